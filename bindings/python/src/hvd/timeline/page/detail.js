// Details of the chosen operation.

import { bytes, clock, duration, element, name, tensorName } from "./format.js";

const box = document.querySelector("#detail");

export function hideDetail() {
  box.hidden = true;
}

/** Shows it; `focus` moves the keyboard there as well. */
export function showDetail(slice, row, epochUs, { onShow, focus = false }) {
  if (!slice) return hideDetail();
  const facts = [];
  const fact = (title, text) => { if (text !== undefined && text !== null && text !== "") facts.push([title, text]); };
  fact("rank", row ? `${slice.rank ?? row.rank}${row.host ? ` on ${name(row.host)}` : ""}` : slice.rank);
  fact(slice.end > slice.begin ? "begin" : "time", `${(slice.begin / 1e6).toFixed(6)} s${epochUs ? ` (${clock(epochUs, slice.begin, true)})` : ""}`);
  if (slice.end > slice.begin) fact(slice.openEnd ? "open for" : "duration", duration(slice.end - slice.begin));
  for (const [title, text] of slice.facts ?? []) fact(title, title === "bytes" ? bytes(text) : name(text));
  const title = element("h3", { text: slice.title ?? `${tensorName(slice.tensor ?? "")} · ${slice.activity}`, tabindex: "-1" });
  const buttons = element("div", { class: "buttons" });
  if (slice.end > slice.begin) buttons.append(element("button", { type: "button", text: "Zoom to it", click: () => onShow(slice) }));
  buttons.append(element("button", { type: "button", text: "Close", click: hideDetail }));
  box.replaceChildren(title, element("dl", {}, ...facts.map(([key, value]) =>
    element("div", {}, element("dt", { text: key }), element("dd", { text: value })))), buttons);
  box.hidden = false;
  if (focus) title.focus();
  else box.scrollIntoView({ block: "nearest" }); // on a phone it is below what is seen
}
