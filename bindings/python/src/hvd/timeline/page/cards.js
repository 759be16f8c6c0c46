// The answers at the top: how fast, what is exposed, who is slow, what is waited for.

import { age, bytes, clock, count, duration, element, name, number, percent, plural, say, tensorName } from "./format.js";
import { spark } from "./spark.js";

const find = (selector) => document.querySelector(selector);

/** A number with its unit in small letters, or words. */
function big(card, value, unit = "") {
  const node = find(`#${card} .big`);
  const text = unit ? `${value} ` : value;
  if (node.textContent === text + unit) return;
  node.classList.toggle("words", !unit);
  node.replaceChildren(text, ...(unit ? [element("small", { text: unit })] : []));
}

/** Replaces the items of a list where they differ from what is shown. The focus stays at its place. */
function list(node, items, make) {
  const key = JSON.stringify(items);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const focused = [...node.querySelectorAll("button")].indexOf(document.activeElement);
  node.replaceChildren(...items.map(make));
  node.querySelectorAll("button")[focused]?.focus({ preventScroll: true });
}

function bar(label, value, share, click = null) {
  const fill = element("i", { "aria-hidden": "true" });
  fill.style.width = `${Math.round(Math.min(Math.max(share, 0), 1) * 1000) / 10}%`;
  const parts = [fill, element("span", { text: label }), element("span", { text: value })];
  if (!click) return element("li", { class: "bar", title: label }, ...parts);
  return element("li", {}, element("button", { type: "button", class: "bar", title: label, click }, ...parts));
}

/** Writes the time of a value in a curve, in seconds of the timeline. */
const momentOf = (answers) => (seconds) => (answers.epoch_us ? clock(answers.epoch_us, seconds * 1e6) : `${number(seconds)} s`);

function showSpeed(answers) {
  const speed = answers.speed;
  const known = speed.steps_per_second !== null && speed.steps_per_second !== undefined && speed.source;
  if (known) big("speed", number(speed.steps_per_second), "steps/s");
  else big("speed", answers.operations ? "No steps are known" : "Nothing has run yet");
  const parts = [];
  if (speed.samples_per_second) parts.push(`${count(speed.samples_per_second)} samples/s`);
  if (known && speed.steps_per_second > 0) parts.push(`${duration(1e6 / speed.steps_per_second)} a step`);
  if (speed.source === "inferred") parts.push("steps are counted by a tensor that comes once in each");
  if (!known && answers.operations) parts.push("no tensor comes regularly, and the program marks none");
  say(find("#speed .sub"), parts.join(" · "));
  spark(find("#speed .spark"), speed.history.t, speed.history.steps, {
    format: (value) => `${number(value)} steps/s`, moment: momentOf(answers), label: "Steps per second",
  });
  const bandwidth = answers.bandwidth;
  const rate = (value) => `${bytes(value * 1e9)}/s`;
  say(find("#bus"), bandwidth.bus_GB_per_s ? `Bandwidth ${rate(bandwidth.bus_GB_per_s)}${bandwidth.bytes_per_step ? ` · ${bytes(bandwidth.bytes_per_step)} a step` : ""}`
    : bandwidth.history.some((value) => value > 0) ? "Bandwidth: nothing is sent now" : "");
  spark(find("#speed .spark.bus"), speed.history.t, bandwidth.history, { format: rate, moment: momentOf(answers), label: "Bandwidth" });
}

function showExposed(answers, onTensor) {
  const exposed = answers.exposed;
  const unknown = exposed.recorded && exposed.share === null;
  if (unknown) big("exposed", "Unknown");
  else if (exposed.recorded) big("exposed", percent(exposed.share), "of the time");
  else big("exposed", answers.operations ? "Not recorded in this file" : "Nothing has run yet");
  const parts = unknown ? ["until operations end again"] : [];
  if (exposed.recorded && exposed.ms_per_step) parts.push(`${duration(exposed.ms_per_step * 1000)} a step`);
  say(find("#exposed .sub"), parts.join(" · "));
  spark(find("#exposed .spark"), answers.speed.history.t, exposed.recorded ? exposed.history : [], {
    most: 0.05, format: percent, moment: momentOf(answers), label: "Share of the time lost to communication", kind: "wait",
  });
  const tensors = exposed.tensors.slice(0, 4);
  const bars = find("#exposed .bars");
  bars.classList.add("wait");
  list(bars, tensors.map((each) => [each.name, each.ms_per_step, each.share]), ([label, ms, share]) => {
    const time = ms === null ? percent(share) : `${duration(ms * 1000)} a step`;
    return bar(tensorName(label), time, share, () => onTensor(label));
  });
}

function showSlow(answers) {
  const slow = answers.slow;
  if (slow) {
    big("slow", `Rank ${slow.rank}${slow.host ? ` on ${name(slow.host)}` : ""}`);
    const since = slow.since_us === null || slow.since_us === undefined ? "" : `, since ${clock(answers.epoch_us, slow.since_us)}`;
    say(find("#slow .sub"), `comes ${duration(slow.behind_ms * 1000)} later than the others${since}`);
  } else {
    const several = answers.operations && answers.ranks.length > 1;
    big("slow", several ? "None is slower" : answers.operations ? "There is one rank" : "Nothing has run yet");
    say(find("#slow .sub"), several ? "all ranks come at about the same time" : "");
  }
  const behind = answers.ranks.filter((each) => each.behind_us > 0).sort((a, b) => b.behind_us - a.behind_us).slice(0, 5);
  const step = answers.speed.steps_per_second > 0 ? 1e6 / answers.speed.steps_per_second : Infinity;
  const most = Math.min(slow ? behind[0]?.behind_us : Infinity, step);
  list(find("#slow .bars"), behind.map((each) => [each.rank, each.host, `${duration(each.behind_us)} later`, each.behind_us / most]),
    ([rank, host, time, share]) => bar(`rank ${rank}${host ? ` · ${name(host)}` : ""}`, time, share));
}

function showWaiting(answers, gone) {
  const waiting = answers.waiting;
  if (gone) big("waiting", "Not known: the server is gone");
  else if (waiting.length) big("waiting", duration(waiting[0].seconds * 1e6), waiting.length === 1 ? "for one operation" : `for ${waiting.length} operations`);
  else big("waiting", answers.state === "ended" ? "The job has ended" : "Nothing");
  const none = waiting.length || answers.state === "ended" ? "" : "no operation takes longer than 1 s";
  say(find("#waiting .sub"), answers.stalls.length ? `${plural(answers.stalls.length, "warning")} of stalls` : none);
  const items = waiting.slice(0, 6).map((each) => [each.text, "", each.seconds > 30]);
  for (const stall of answers.stalls.slice(-3).reverse()) items.push([stall.text, `at ${clock(answers.epoch_us, stall.ts_us)}`, true]);
  list(find("#waiting .waits"), items, ([text, when, long]) =>
    element("li", { class: long ? "long" : "" }, name(text), " ", element("small", { text: when })));
}

/** Shows the answers; `gone` says that they are old. `onTensor(name)` is called where one is chosen. */
export function showCards(answers, gone, onTensor) {
  showSpeed(answers);
  showExposed(answers, onTensor);
  showSlow(answers);
  showWaiting(answers, gone);
}

/** The state of the job, and since when. */
function stateOf(answers) {
  // Since the start that is named beside it, where a file says when that was.
  const length = age(answers.end_us - (answers.epoch_us ? 0 : answers.begin_us));
  if (answers.state === "ended") return answers.operations ? `ended after ${length}` : "ended";
  if (!answers.operations) return "starting";
  return answers.state === "quiet" ? `no events for ${age(answers.now_us - answers.end_us)}` : `running ${length}`;
}

/** The lines at the top. */
export function showHead(answers, gone) {
  const state = gone ? "gone" : answers.state;
  find("#state").dataset.state = state;
  say(find("#state-text"), gone ? "server gone" : stateOf(answers));
  const size = answers.size || answers.ranks.length;
  const title = [name(answers.program || answers.files.join(", ")), ...(size ? [plural(size, "rank")] : [])].join(" · ");
  say(find("#job"), title);
  document.title = `${title} · ${find("#state-text").textContent}`;
  find("#verdict").dataset.level = gone ? "" : answers.verdict.level;
  say(find("#verdict"), name(answers.verdict.text));
  const hosts = new Set(answers.ranks.map((each) => each.host).filter(Boolean)).size;
  const facts = [];
  if (hosts > 1) facts.push(plural(hosts, "host"));
  if (answers.operations) facts.push(plural(answers.operations, "operation"));
  if (answers.epoch_us) facts.push(`started ${new Date(answers.epoch_us / 1000).toLocaleString("en-GB")}`);
  if (answers.reading < 0.999) facts.push(`${percent(answers.reading)} read`);
  say(find("#facts"), facts.join(" · "));
  find("#notes").hidden = answers.notes.length === 0;
  list(find("#notes ul"), answers.notes, (text) => element("li", { text: name(text) }));
}
