// Which rows the timeline has, and where they are: ranks, and below an open one its tensors.

import { name, tensorName } from "./format.js";

export const HEAD = 40; // height of a rank's row, in pixels
const TALL_HEAD = 120; // where there is room
const LOW_HEAD = 24; // where there are many ranks
const MANY = 16;
const ROW = 18; // height of a tensor's row
const MOST_TENSORS = 400; // rows below a rank

/** The rows from top to bottom, each {kind: "rank" | "tensor" | "hint", rank, tensor, text, top, height}; those of ranks
 * take the rest of the `room`.
 */
export function layOut(ranks, open, data, room) {
  const rows = [];
  let top = 0;
  const add = (row, height) => {
    rows.push({ ...row, top, height });
    top += height;
  };
  const low = ranks.length > MANY;
  for (const each of ranks) {
    add({ kind: "rank", rank: each.rank, host: each.host, low }, low ? LOW_HEAD : HEAD);
    if (!open.has(each.rank)) continue;
    const tensors = data?.tensors(each.rank) ?? [];
    for (const tensor of tensors.slice(0, MOST_TENSORS)) add({ kind: "tensor", rank: each.rank, tensor }, ROW);
    if (data?.bins) add({ kind: "hint", rank: each.rank, text: "zoom in for tensors" }, ROW);
    else if (!tensors.length) add({ kind: "hint", rank: each.rank, text: "no operation here" }, ROW);
    else if (tensors.length > MOST_TENSORS) add({ kind: "hint", rank: each.rank, text: `and ${tensors.length - MOST_TENSORS} more` }, ROW);
    rows.at(-1).last = true;
  }
  const heads = rows.filter((row) => row.kind === "rank");
  const more = Math.min(TALL_HEAD - HEAD, Math.floor((room - top) / heads.length));
  if (!(more > 0)) return { rows, height: top };
  top = 0;
  for (const row of rows) {
    if (row.kind === "rank") row.height += more;
    row.top = top;
    top += row.height;
  }
  return { rows, height: top };
}

/** The row at a height, or undefined. */
export function rowAt(rows, y) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].top + rows[middle].height <= y) low = middle + 1;
    else high = middle;
  }
  return rows[low];
}

/** Shows the names of the rows between two heights. Elements stay, so that the one with the focus keeps it. */
export function showLabels(box, rows, from, to, known, { open, chosen, onToggle }) {
  const visible = new Set();
  for (const row of rows) {
    if (row.top + row.height < from || row.top > to) continue;
    const key = `${row.kind} ${row.rank} ${row.tensor ?? ""}`;
    visible.add(key);
    let node = known.get(key);
    if (!node) {
      node = document.createElement(row.kind === "rank" ? "button" : "span");
      if (row.kind === "rank") {
        node.type = "button";
        node.classList.toggle("low", row.low);
        node.append(`rank ${row.rank}`);
        if (row.host) {
          const host = document.createElement("small");
          host.textContent = name(row.host);
          node.append(host);
        }
        node.addEventListener("click", () => onToggle(row.rank));
      } else node.textContent = row.text ?? tensorName(row.tensor);
      node.title = row.kind === "rank" ? "Show or hide the rank's tensors" : row.text ?? name(row.tensor);
      known.set(key, node);
      box.append(node);
    }
    node.style.top = `${row.top}px`;
    node.style.height = `${row.height}px`;
    node.style.lineHeight = row.kind === "rank" ? "" : `${row.height}px`;
    if (row.kind === "rank") node.setAttribute("aria-expanded", String(open.has(row.rank)));
    else node.classList.toggle("chosen", row.tensor !== undefined && row.tensor === chosen);
  }
  for (const [key, node] of known) {
    if (!visible.has(key) && node !== document.activeElement) {
      node.remove();
      known.delete(key);
    }
  }
}
