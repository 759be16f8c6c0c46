// Input for the timeline: buttons, wheel, pointer and keys.

import { duration, tensorName } from "./format.js";
import { hideTip, showTip } from "./tip.js";

const LINE = 16; // pixels, where a wheel counts lines
const STILL = 3; // pixels by which a pointer may move in a click

export function listen(timeline) {
  const canvas = timeline.canvas;
  const click = (id, act) => document.querySelector(id).addEventListener("click", act);
  click("#in", () => timeline.zoom(0.5));
  click("#out", () => timeline.zoom(2));
  click("#second", () => timeline.span(1e6));
  click("#minute", () => timeline.span(60e6));
  click("#all", () => timeline.all());
  click("#follow", () => timeline.toggleFollow());
  canvas.addEventListener("wheel", (event) => turn(timeline, event), { passive: false });
  canvas.addEventListener("pointerdown", (event) => grab(timeline, event));
  canvas.addEventListener("pointermove", (event) => hover(timeline, event));
  canvas.addEventListener("pointerleave", () => hideTip(canvas));
  canvas.addEventListener("dblclick", (event) => timeline.zoom(0.25, timeline.at(event.clientX, 0).us));
  canvas.addEventListener("keydown", (event) => press(timeline, event));
}

/** The wheel zooms around the pointer; sideways, or with Shift, it moves. */
function turn(timeline, event) {
  event.preventDefault();
  const by = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE : 1;
  const { from, to } = timeline.view;
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
    timeline.pan((((event.deltaX || event.deltaY) * by) / timeline.width) * (to - from));
  } else {
    const factor = 1.0015 ** Math.max(-400, Math.min(400, event.deltaY * by));
    timeline.zoom(factor, timeline.at(event.clientX, 0).us);
  }
}

/** Dragging moves; a click tells of what is there. */
function grab(timeline, event) {
  if (event.button !== 0) return;
  const canvas = timeline.canvas;
  const begin = { x: event.clientX, ...timeline.view };
  let moved = false;
  canvas.setPointerCapture(event.pointerId);
  const move = (now) => {
    moved ||= Math.abs(now.clientX - begin.x) > STILL;
    if (!moved) return;
    canvas.classList.add("moving");
    const by = ((begin.x - now.clientX) / timeline.width) * (begin.to - begin.from);
    timeline.set(begin.from + by, begin.to + by);
  };
  const events = { pointermove: move, pointerup: over, pointercancel: over };
  function over(now) {
    for (const [kind, act] of Object.entries(events)) canvas.removeEventListener(kind, act);
    canvas.classList.remove("moving");
    if (moved || now.type === "pointercancel") return;
    const place = timeline.at(now.clientX, now.clientY);
    const slice = timeline.hit(place);
    timeline.choose(slice && { ...slice, row: place.row }, place.row);
  }
  for (const [kind, act] of Object.entries(events)) canvas.addEventListener(kind, act);
}

function hover(timeline, event) {
  const slice = event.buttons ? null : timeline.hit(timeline.at(event.clientX, event.clientY));
  if (!slice) return hideTip(timeline.canvas);
  const what = `${slice.activity} · ${duration(slice.end - slice.begin)}`;
  showTip(slice.tip ?? (slice.tensor ? `${tensorName(slice.tensor)}\n${what}` : what), event);
}

function press(timeline, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { begin, end, box, chosen } = timeline;
  const span = timeline.view.to - timeline.view.from;
  const zoomIn = () => timeline.zoom(0.5);
  const zoomOut = () => timeline.zoom(2);
  const acts = {
    "ArrowLeft": () => timeline.pan(-span / 8),
    "ArrowRight": () => timeline.pan(span / 8),
    "ArrowUp": () => { box.scrollTop -= 54; },
    "ArrowDown": () => { box.scrollTop += 54; },
    "Home": () => timeline.set(begin, begin + span),
    "End": () => timeline.set(end - span, end),
    "+": zoomIn, "=": zoomIn, "-": zoomOut, "_": zoomOut,
    "f": () => timeline.toggleFollow(),
    "a": () => timeline.all(),
    "n": () => timeline.step(1),
    "p": () => timeline.step(-1),
    "Enter": () => { if (chosen?.begin !== undefined) timeline.onChoose(chosen, chosen.row, true); else timeline.step(1); },
  };
  const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
