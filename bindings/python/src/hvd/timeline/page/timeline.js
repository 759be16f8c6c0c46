// The timeline: which span is shown, and how a person moves in it.

import { colours, drawAxis, drawRows } from "./draw.js";
import { duration, name, say } from "./format.js";
import { layOut, rowAt, showLabels } from "./rows.js";

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
    this.tip = document.querySelector("#tip");
    this.drawing = 0;
    this.colour = colours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colour = colours();
      this.draw();
    });
    new ResizeObserver(() => {
      this.fit();
      this.onView();
    }).observe(this.box);
    this.box.addEventListener("scroll", () => this.draw());
    this.listen();
  }

  get width() {
    return Math.max(1, this.canvas.clientWidth);
  }

  // What there is to show.

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
    this.layout = layOut(this.ranks, this.open, this.data);
    const extent = this.box.querySelector("#extent");
    extent.style.height = `${this.layout.height}px`;
    this.fit();
  }

  fit() {
    this.height = Math.min(this.layout.height, this.box.clientHeight || this.layout.height) || 96;
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  // Moving.

  set(from, to, follow = false) {
    const span = Math.min(Math.max(to - from, LEAST), 1e13);
    const room = Math.max(this.end - this.begin, 1e4);
    const low = this.begin - room * 0.5 - span * 0.5;
    const high = this.end + room * 0.5 + span * 0.5;
    const start = Math.min(Math.max(from, low), Math.max(low, high - span));
    this.view = { from: start, to: start + span };
    this.untouched = false;
    this.setFollow(follow);
    this.hideTip();
    this.onView();
    this.draw();
  }

  setFollow(on) {
    this.follow = on;
    document.querySelector("#follow").setAttribute("aria-pressed", String(on));
  }

  toEnd() {
    // Until a person chooses a span it grows with the job.
    const span = this.untouched ? Math.min(Math.max(this.end - this.begin, 1e5), FIRST) * 1.02 : this.view.to - this.view.from;
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

  // What is below the pointer, and choosing.

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

  // Events.

  listen() {
    const click = (id, act) => document.querySelector(id).addEventListener("click", act);
    click("#in", () => this.zoom(0.5));
    click("#out", () => this.zoom(2));
    click("#second", () => this.span(1e6));
    click("#minute", () => this.span(60e6));
    click("#all", () => this.all());
    click("#follow", () => this.toggleFollow());
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const by = event.deltaMode === 1 ? 16 : 1;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        this.pan((((event.deltaX || event.deltaY) * by) / this.width) * (this.view.to - this.view.from));
      } else this.zoom(1.0015 ** (Math.max(-400, Math.min(400, event.deltaY * by))), this.at(event.clientX, 0).us);
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.hideTip());
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.25, this.at(event.clientX, 0).us));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  toggleFollow() {
    this.setFollow(!this.follow);
    if (this.follow) this.toEnd();
  }

  grab(event) {
    if (event.button !== 0) return;
    const start = { x: event.clientX, view: { ...this.view }, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
    const move = (now) => {
      if (Math.abs(now.clientX - start.x) > 3) start.moved = true;
      if (!start.moved) return;
      this.canvas.classList.add("moving");
      const by = ((start.x - now.clientX) / this.width) * (start.view.to - start.view.from);
      this.set(start.view.from + by, start.view.to + by);
    };
    const over = (now) => {
      for (const [kind, act] of [["pointermove", move], ["pointerup", over], ["pointercancel", over]]) this.canvas.removeEventListener(kind, act);
      this.canvas.classList.remove("moving");
      if (start.moved || now.type === "pointercancel") return;
      const place = this.at(now.clientX, now.clientY);
      const slice = this.hit(place);
      this.choose(slice && { ...slice, row: place.row }, place.row);
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", over);
    this.canvas.addEventListener("pointercancel", over);
  }

  hover(event) {
    if (event.buttons) return this.hideTip();
    const slice = this.hit(this.at(event.clientX, event.clientY));
    if (!slice) return this.hideTip();
    this.tip.textContent = slice.tip ?? `${name(slice.tensor ?? "")}\n${slice.activity} · ${duration(slice.end - slice.begin)}`.trim();
    this.tip.hidden = false;
    const { width, height } = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
    this.tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  }

  hideTip() {
    this.tip.hidden = true;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const span = this.view.to - this.view.from;
    const acts = {
      "ArrowLeft": () => this.pan(-span / 8), "ArrowRight": () => this.pan(span / 8),
      "ArrowUp": () => { this.box.scrollTop -= 54; }, "ArrowDown": () => { this.box.scrollTop += 54; },
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "_": () => this.zoom(2),
      "Home": () => this.set(this.begin, this.begin + span), "End": () => this.set(this.end - span, this.end),
      "f": () => this.toggleFollow(), "a": () => this.all(),
      "n": () => this.step(1), "p": () => this.step(-1),
      "Enter": () => { if (this.chosen?.begin !== undefined) this.onChoose(this.chosen, this.chosen.row, true); else this.step(1); },
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // Drawing, once a frame at most.

  draw() {
    if (!this.drawing) this.drawing = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    this.drawing = 0;
    const width = this.width;
    drawAxis(this.axis, width, this.view, this.colour);
    const scroll = this.box.scrollTop;
    drawRows(this.canvas, width, this.height, scroll, this.view, this.layout, this.data, this.chosen, this.colour);
    showLabels(document.querySelector("#labels"), this.layout.rows, scroll - 100, scroll + this.height + 100, this.labels,
      { open: this.open, chosen: this.chosen?.tensor, onToggle: (rank) => this.toggle(rank), name });
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
