// Draws the visible rows of a timeline, and the axis above them.

import { duration } from "./format.js";
import { HEAD } from "./rows.js";

const STEPS = [1, 2, 5];

/** The colours of the page, in the light or the dark. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["text", "quiet", "line", "grid", "panel", "run", "run-soft", "negotiate", "negotiate-soft", "wait", "chosen", "on-amber"];
  return Object.fromEntries(names.map((name) => [name, get(name)]));
}

/** A canvas of the size of its box, cleared, in CSS pixels. */
export function prepare(canvas, width, height) {
  const scale = Math.min(window.devicePixelRatio || 1, 3);
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(w / Math.max(width, 1), 0, 0, h / Math.max(height, 1), 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Round times, about one in 110 pixels. */
export function ticks(from, to, width) {
  const wanted = ((to - from) / Math.max(width, 1)) * 110;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = (STEPS.find((each) => each * power >= wanted) ?? 10) * power;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to && found.length < 100; at += step) found.push(at);
  return { step, found };
}

function moment(us, step) {
  if (Math.abs(us) < step / 2) return "0";
  if (step < 1e3) return `${(us / 1e6).toFixed(step < 10 ? 6 : step < 100 ? 5 : 4)} s`;
  if (us < 60e6 || step < 1e5) return `${(us / 1e6).toFixed(step >= 1e6 ? 0 : step >= 1e5 ? 1 : step >= 1e4 ? 2 : 3)} s`;
  const seconds = us / 1e6;
  const hours = Math.floor(seconds / 3600);
  const rest = `${String(Math.floor((seconds % 3600) / 60)).padStart(hours ? 2 : 1, "0")}:${(seconds % 60).toFixed(step < 1e6 ? 1 : 0).padStart(step < 1e6 ? 4 : 2, "0")}`;
  return hours ? `${hours}:${rest}` : rest;
}

export function drawAxis(canvas, width, view, colour) {
  const context = prepare(canvas, width, 24);
  const { step, found } = ticks(view.from, view.to, width);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colour.quiet;
  context.strokeStyle = colour.line;
  for (const at of found) {
    const x = Math.round(((at - view.from) / (view.to - view.from)) * width) + 0.5;
    context.beginPath();
    context.moveTo(x, 17);
    context.lineTo(x, 24);
    context.stroke();
    const text = moment(at, step);
    if (x + context.measureText(text).width + 6 < width) context.fillText(text, x + 4, 16);
  }
}

/** The rows; `scroll` is how far they are scrolled, `grid` whether there are times. */
export function drawRows(canvas, width, height, scroll, view, layout, data, chosen, colour, grid) {
  const context = prepare(canvas, width, height);
  const scale = width / (view.to - view.from);
  const x = (at) => (at - view.from) * scale;
  context.strokeStyle = colour.grid;
  context.lineWidth = 1;
  context.beginPath();
  for (const at of grid ? ticks(view.from, view.to, width).found : []) {
    const place = Math.round(x(at)) + 0.5;
    context.moveTo(place, 0);
    context.lineTo(place, height);
  }
  context.stroke();
  for (const row of layout.rows) {
    const top = row.top - scroll;
    if (top + row.height < 0 || top > height) continue;
    context.fillStyle = colour.line;
    if (row.kind === "rank" || row.last) context.fillRect(0, Math.round(top + row.height) - 1, width, 1);
    if (!data) continue;
    if (row.kind === "rank") drawRank(context, row, top, x, scale, width, view, data, chosen, colour);
    else if (row.kind === "tensor") drawTensor(context, row, top, x, width, view, data, chosen, colour);
  }
}

const APART = 16; // pixels between the ends of steps that are drawn

// Three lanes: what the rank waits for others, what it does with them, and what the program waits for.
const LANES = { negotiate: [4, 8], run: [13, 13], wait: [28, 8] };

function drawRank(context, row, top, x, scale, width, view, data, chosen, colour) {
  const size = row.height / HEAD;
  for (const [kind, lane] of Object.entries(LANES)) {
    const [offset, high] = lane.map((each) => each * size);
    context.fillStyle = colour[kind];
    if (data.bins) {
      const shares = data.bins.get(row.rank)?.[kind];
      if (!shares) continue;
      const wide = data.binUs * scale;
      const first = Math.max(0, Math.floor((view.from - data.from) / data.binUs));
      const last = Math.min(shares.length, Math.ceil((view.to - data.from) / data.binUs));
      for (let at = first; at < last; ++at) {
        if (!(shares[at] > 0)) continue;
        const tall = Math.max(1, Math.min(1, shares[at]) * high);
        context.fillRect(x(data.from + at * data.binUs), top + offset + high - tall, Math.max(wide, 0.7), tall);
      }
      continue;
    }
    for (const slice of data.lane(row.rank, kind)) {
      const begin = x(slice.begin);
      const end = x(slice.end);
      if (end < 0 || begin > width) continue;
      context.fillRect(begin, top + offset, Math.max(end - begin, 0.8), high);
    }
  }
  drawMarks(context, data.marks(row.rank), top, row.height, x, width, colour);
  if (chosen && chosen.rank === row.rank && chosen.begin !== undefined) frame(context, chosen, x, top + 2, row.height - 5, colour);
}

function drawMarks(context, marks, top, height, x, width, colour) {
  let last = -Infinity;
  for (const mark of marks) {
    const place = Math.round(x(mark.begin));
    if (place < -2 || place > width + 2) continue;
    const step = mark.kind === "step";
    if (step && place - last < APART) continue; // closer they would hide what they mark
    if (step) last = place;
    context.fillStyle = step ? colour.text : colour.wait;
    context.fillRect(place, top + 2, step ? 1 : 2, height - 5);
  }
}

function drawTensor(context, row, top, x, width, view, data, chosen, colour) {
  context.font = "10.5px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const slice of data.row(row.rank, row.tensor)) {
    const begin = x(slice.begin);
    const end = x(slice.end);
    if (end < 0 || begin > width) continue;
    const inset = Math.min(slice.depth, 2) * 2;
    context.fillStyle = colour[tone(slice)];
    context.fillRect(begin, top + 2 + inset, Math.max(end - begin, 0.8), row.height - 4 - 2 * inset);
  }
  for (const slice of data.row(row.rank, row.tensor)) {
    const begin = Math.max(x(slice.begin), 0);
    const room = Math.min(x(slice.end), width) - begin;
    if (room < 56 || slice.covered) continue;
    const text = room > 140 ? `${slice.activity}  ${duration(slice.end - slice.begin)}` : slice.activity;
    if (context.measureText(text).width > room - 6) continue;
    context.fillStyle = slice.kind === "run" ? colour.panel : slice.kind === "negotiate" ? colour["on-amber"] : colour.text;
    context.fillText(text, begin + 4, top + row.height / 2 + 0.5);
  }
  context.textBaseline = "alphabetic";
  if (chosen && chosen.rank === row.rank && chosen.tensor === row.tensor && chosen.begin !== undefined) frame(context, chosen, x, top + 1, row.height - 2, colour);
}

function tone(slice) {
  if (slice.kind === "negotiate") return slice.depth ? "negotiate-soft" : "negotiate";
  if (slice.kind === "outer") return "run-soft";
  return slice.kind === "tick" ? "quiet" : slice.kind;
}

function frame(context, chosen, x, top, height, colour) {
  const begin = x(chosen.begin);
  context.strokeStyle = colour.chosen;
  context.lineWidth = 1.5;
  context.strokeRect(begin - 1.5, top, Math.max(x(chosen.end) - begin, 1) + 3, height);
  context.lineWidth = 1;
}
