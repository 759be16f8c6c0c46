// Asks the server once a second, and shows what it says.

import { address, ask, Refused } from "./api.js";
import { showCards, showHead } from "./cards.js";
import { Data } from "./data.js";
import { hideDetail, showDetail } from "./detail.js";
import { name, percent, say } from "./format.js";
import { searchBox } from "./search.js";
import { Timeline } from "./timeline.js";

const PERIOD = 1000; // ms
const HIDDEN_PERIOD = 10000; // ms, while nobody looks
const SETTLE = 60; // ms without a movement until the span is asked for
const LEAST = 2000; // columns, also in a narrow window: they limit how many operations are sent one by one
const CELLS = 48000; // columns of all ranks together

let answers = null;
let end = 0; // of what there is to show, in µs
let shown = ""; // job, files and ranks
let polling = false;
let gone = false;
let refused = false;
let asking = null; // stops the question for a span
let timer = 0;
let settling = 0;

const timeline = new Timeline({
  onView: () => {
    clearTimeout(settling);
    settling = setTimeout(look, SETTLE);
  },
  onChoose: (slice, row, focus) => (slice
    ? showDetail(slice, row, answers?.epoch_us, { onShow: (each) => timeline.show(each), focus }) : hideDetail()),
});

/** The answers, once a second; what is shown stays where the server is gone. */
async function poll() {
  if (polling) return;
  polling = true;
  clearTimeout(timer);
  try {
    await refresh();
  } finally {
    polling = false;
    timer = setTimeout(poll, document.hidden ? HIDDEN_PERIOD : PERIOD);
  }
}

async function refresh() {
  try {
    answers = await ask("answers");
    // Present waits last until now, though nothing has been written since.
    end = answers.waiting.length && answers.state !== "ended" ? Math.max(answers.end_us, answers.now_us) : answers.end_us;
    gone = false;
    refused = false;
  } catch (error) {
    const other = refused !== error instanceof Refused;
    refused = error instanceof Refused;
    if (!gone || other) tell(error);
    gone = true;
  }
  if (!gone) document.querySelector("#gone").hidden = true;
  if (answers) {
    showHead(answers, gone);
    showCards(answers, gone, findTensor);
    if (shown && !shown.startsWith(`${answers.job} `)) timeline.restart();
    shown = `${answers.job} ${answers.files.length} ${answers.ranks.length}`;
    timeline.update(answers.ranks, answers.begin_us, end);
    showEmpty();
    if (!gone) await look(true);
  } else if (gone) {
    document.querySelector("#state").dataset.state = "gone";
    say(document.querySelector("#state-text"), refused ? "not allowed" : "no answer");
  }
}

function tell(error) {
  const since = new Date().toLocaleTimeString("en-GB");
  const file = answers?.files[0];
  const again = file ? ` hvd-timeline with ${name(file)} shows it again.` : "";
  const sentence = error instanceof Refused
    ? error.message : `The server has not answered since ${since}. The page shows the state of that time.${again}`;
  say(document.querySelector("#gone"), sentence);
  document.querySelector("#gone").hidden = false;
}

function showEmpty() {
  const empty = document.querySelector("#empty");
  empty.hidden = end > answers.begin_us || answers.operations > 0;
  if (empty.hidden) return;
  say(empty, answers.reading < 0.999 ? `The file is being read: ${percent(answers.reading)}.`
    : answers.state === "ended" ? "There is no event in this timeline." : "The first operation will show here by itself.");
}

/** Asks for the operations of the span that is shown, unless they are there; with `again` also where they have grown. */
async function look(again = false) {
  if (!(end > answers?.begin_us) || gone) return;
  const { from, to } = timeline.view;
  const data = timeline.data;
  const covers = data && data.of === shown && data.from <= Math.max(from, answers.begin_us) && data.to >= Math.min(to, end);
  if (covers && data.fineEnough(from, to) && !(again && data.to >= data.endThen && data.endThen < end)) return;
  if (again && asking) return;
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  const span = to - from;
  const wanted = { from: from - span / 2, to: to + span / 2 }; // with room to move
  const width = Math.round(Math.min(Math.max(timeline.width * 4, LEAST), Math.max(300, CELLS / answers.ranks.length)));
  const then = { of: shown, span, end };
  try {
    const found = await ask("timeline", { ...wanted, width }, mine.signal);
    if (asking === mine) timeline.setData(new Data(found, wanted, then));
  } catch {
    // Another span is asked for meanwhile, or the next answers tell why there is none.
  } finally {
    if (asking === mine) asking = null;
  }
}

async function findTensor(wanted) {
  try {
    const { tensors } = await ask("search", { text: wanted });
    const found = tensors.find((each) => each.name === wanted) ?? tensors[0];
    if (found) timeline.goTo(found.name, found.last_us);
  } catch {
    // The banner says already that the server is gone.
  }
}

searchBox((tensor) => {
  timeline.goTo(tensor.name, tensor.last_us);
  document.querySelector("#canvas").focus({ preventScroll: true });
});
document.querySelector("#merged").href = address("merged");
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !(event.target instanceof HTMLInputElement)) {
    event.preventDefault();
    document.querySelector("#search").focus();
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
poll();
