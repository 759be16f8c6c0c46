// The timeline: which span is shown, and how a person moves in it.

import { listen } from "./controls.js";
import { colours, drawAxis, drawRows } from "./draw.js";
import { duration, say } from "./format.js";
import { layOut, rowAt, showLabels } from "./rows.js";
import { hideTip } from "./tip.js";

const FIRST = 10e6; // µs from edge to edge at first
const LEAST = 1; // µs from edge to edge
const OPENED = { ranks: 2, tensors: 16 }; // so small a job shows its tensors from the start
const NEAR = 4; // pixels beside a short operation that still count as on it

export class Timeline {
  /** `onView()` is called when another span is shown, `onChoose(what, row)` when a person chooses something. */
  constructor({ onView, onChoose }) {
    this.view = { from: 0, to: FIRST };
    this.untouched = true;
    this.follow = true;
    this.begin = 0;
    this.end = 0;
    this.ranks = [];
    this.open = new Set();
    this.data = null;
    this.chosen = null;
    this.layout = { rows: [], height: 0 };
    this.labels = new Map();
    this.onView = onView;
    this.onChoose = onChoose;
    this.canvas = document.querySelector("#canvas");
    this.axis = document.querySelector("#axis-canvas");
    this.box = document.querySelector("#rows");
    this.drawing = 0;
    this.colour = colours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colour = colours();
      this.draw();
    });
    new ResizeObserver(() => {
      this.arrange();
      this.onView();
    }).observe(this.box);
    this.box.addEventListener("scroll", () => this.draw());
    listen(this);
  }

  get width() {
    return Math.max(1, this.canvas.clientWidth);
  }

  // The data to show.

  /** The ranks and the ends of the job, as the server knows them now. */
  update(ranks, begin, end) {
    const key = JSON.stringify(ranks.map((each) => [each.rank, each.host]));
    this.begin = begin;
    this.end = end;
    if (this.ranksKey !== key) {
      this.ranksKey = key;
      this.ranks = ranks.map(({ rank, host }) => ({ rank, host }));
      for (const node of this.labels.values()) node.remove();
      this.labels.clear();
      this.arrange();
    }
    if (this.follow) this.toEnd();
    this.draw();
  }

  /** Forgets what was shown: the file was restarted. */
  restart() {
    this.data = null;
    this.chosen = null;
    this.untouched = true;
    this.setFollow(true);
    this.onChoose(null);
  }

  /** The events of the span that is shown. */
  setData(data) {
    if (!this.data && !data.bins && this.ranks.length <= OPENED.ranks) {
      for (const { rank } of this.ranks) if (data.tensors(rank).length <= OPENED.tensors) this.open.add(rank);
    }
    this.data = data;
    this.arrange();
    if (this.reveal) this.scrollToTensor();
    this.draw();
  }

  arrange() {
    this.height = this.box.clientHeight;
    this.layout = layOut(this.ranks, this.open, this.data, this.height);
    this.box.querySelector("#extent").style.height = `${this.layout.height}px`;
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  // Moving.

  set(from, to, follow = false) {
    const span = Math.min(Math.max(to - from, LEAST), 1e13);
    const room = Math.max(this.end - this.begin, 1e4);
    const high = this.end + room * 0.5 + span * 0.5;
    const start = Math.max(this.begin, Math.min(from, high - span));
    this.view = { from: start, to: start + span };
    this.untouched = false;
    this.setFollow(follow);
    hideTip(this.canvas);
    this.onView();
    this.draw();
  }

  setFollow(on) {
    this.follow = on;
    document.querySelector("#follow").setAttribute("aria-pressed", String(on));
  }

  toEnd() {
    // Until a person chooses a span it grows with the job.
    const span = this.untouched ? Math.min(Math.max(this.end - this.begin, 1e5), FIRST) / 0.98 : this.view.to - this.view.from;
    const from = Math.max(this.begin, this.end - span * 0.98);
    const { untouched } = this;
    if (Math.abs(from - this.view.from) > 0.5 || Math.abs(from + span - this.view.to) > 0.5) this.set(from, from + span, true);
    this.untouched = untouched;
  }

  zoom(factor, at = (this.view.from + this.view.to) / 2) {
    const { from, to } = this.view;
    if (this.follow && factor < 1) this.set(to - (to - from) * factor, to, true);
    else this.set(at - (at - from) * factor, at + (to - at) * factor, this.follow);
    if (this.follow) this.toEnd();
  }

  pan(us) {
    this.set(this.view.from + us, this.view.to + us);
  }

  all() {
    const room = Math.max(this.end - this.begin, 1e3);
    this.set(this.begin, this.begin + room * 1.02);
  }

  span(us) {
    const middle = (this.view.from + this.view.to) / 2;
    if (this.follow) this.set(this.view.to - us, this.view.to, true);
    else this.set(middle - us / 2, middle + us / 2);
    if (this.follow) this.toEnd();
  }

  /** Shows an operation with some room around it. */
  show(slice) {
    const length = Math.max(slice.end - slice.begin, 10);
    this.set(slice.begin - length, slice.end + length);
  }

  /** Shows where a tensor was reduced last, below the first rank. */
  goTo(tensor, at) {
    const span = Math.min(this.view.to - this.view.from, 1e5);
    if (this.ranks.length && !this.ranks.some((each) => this.open.has(each.rank))) this.open.add(this.ranks[0].rank);
    this.chosen = { tensor };
    this.reveal = tensor;
    this.set(at - span * 0.7, at + span * 0.3);
    this.arrange();
  }

  scrollToTensor() {
    const row = this.layout.rows.find((each) => each.kind === "tensor" && each.tensor === this.reveal);
    if (!row) return;
    this.reveal = null;
    if (row.top < this.box.scrollTop || row.top + row.height > this.box.scrollTop + this.height) {
      this.box.scrollTop = row.top - this.height / 3;
    }
  }

  toggle(rank) {
    if (!this.open.delete(rank)) this.open.add(rank);
    this.arrange();
  }

  // The entry below the pointer, and choosing.

  at(clientX, clientY) {
    const place = this.canvas.getBoundingClientRect();
    const us = this.view.from + ((clientX - place.left) / this.width) * (this.view.to - this.view.from);
    const y = clientY - place.top + this.box.scrollTop;
    return { us, row: rowAt(this.layout.rows, y), y };
  }

  hit({ us, row, y }) {
    if (!row || !this.data) return null;
    const near = ((this.view.to - this.view.from) / this.width) * NEAR;
    return this.data.hit(row, us, near, y - row.top);
  }

  choose(slice, row) {
    this.chosen = slice;
    this.onChoose(slice, row);
    this.draw();
  }

  /** The next (1) or the one before (-1) of the chosen operation, in its row. */
  step(direction) {
    const row = this.chosen?.row ?? this.layout.rows.find((each) => each.kind === "rank");
    const found = row && this.data?.next(row, this.chosen?.begin ?? (direction > 0 ? this.view.from : this.view.to), direction);
    if (!found) return;
    const span = this.view.to - this.view.from;
    if (found.begin < this.view.from || found.begin > this.view.to) this.set(found.begin - span / 2, found.begin + span / 2);
    this.choose({ ...found, row }, row);
  }

  toggleFollow() {
    this.setFollow(!this.follow);
    if (this.follow) this.toEnd();
  }

  // Drawing, once a frame at most.

  draw() {
    if (!this.drawing) this.drawing = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    this.drawing = 0;
    const width = this.width;
    const empty = this.end <= this.begin; // before the first event there is no time to show
    this.axis.parentElement.hidden = empty;
    if (!empty) drawAxis(this.axis, width, this.view, this.colour);
    const scroll = this.box.scrollTop;
    drawRows(this.canvas, width, this.height, scroll, this.view, this.layout, this.data, this.chosen, this.colour, !empty);
    showLabels(document.querySelector("#labels"), this.layout.rows, scroll - 100, scroll + this.height + 100, this.labels,
      { open: this.open, chosen: this.chosen?.tensor, onToggle: (rank) => this.toggle(rank) });
    this.describe();
    say(document.querySelector("#span"), `shows ${duration(this.view.to - this.view.from)}`);
  }

  /** Says in words what the canvas shows. */
  describe() {
    const seconds = (us) => `${(us / 1e6).toFixed(3)} s`;
    const what = this.data ? this.data.sentence(this.view.from, this.view.to) : "nothing yet";
    const text = `Timeline of ${this.ranks.length} ranks from ${seconds(this.view.from)} to ${seconds(this.view.to)}: ${what}`;
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text);
  }
}
