// Small curves of the last minutes.

import { say } from "./format.js";
import { hideTip, showTip } from "./tip.js";

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 42;

/** Draws values over times (s) into a box, with what is written below it. Gaps (null) are left open. The pointer shows
 * the value and the time, as `format` and `moment` write them.
 */
export function spark(box, times, values, { most = 0, format, moment, label, kind = "" }) {
  const usable = values.filter((value) => value !== null && Number.isFinite(value));
  box.hidden = usable.length < 2;
  if (box.hidden) return;
  if (!box.firstChild) build(box);
  const [svg, foot] = box.children;
  const highest = Math.max(most, ...usable) || 1;
  const begin = times[0];
  const length = times.at(-1) - begin || 1;
  let line = "";
  let area = "";
  let open = null;
  const close = (x) => { if (open !== null) area += `L${x} ${HEIGHT}L${open} ${HEIGHT}Z`; };
  let x = 0;
  values.forEach((value, index) => {
    if (value === null || !Number.isFinite(value)) {
      close(x);
      open = null;
      return;
    }
    x = Math.round(((times[index] - begin) / length) * WIDTH * 10) / 10;
    const y = Math.round((HEIGHT - 2 - (value / highest) * (HEIGHT - 4)) * 10) / 10;
    line += `${open === null ? "M" : "L"}${x} ${y}`;
    area += open === null ? `M${x} ${y}` : `L${x} ${y}`;
    open ??= x;
  });
  close(x);
  box.told = (share) => {
    const wanted = begin + share * length;
    let at = 0;
    times.forEach((time, index) => { if (Math.abs(time - wanted) < Math.abs(times[at] - wanted)) at = index; });
    const value = values[at];
    return `${value === null || !Number.isFinite(value) ? "nothing known" : format(value)} at ${moment(times[at])}`;
  };
  svg.setAttribute("class", kind);
  svg.querySelector(".area").setAttribute("d", area);
  svg.querySelector(".line").setAttribute("d", line);
  svg.setAttribute("aria-label", `${label}, from ${format(Math.min(...usable))} to ${format(Math.max(...usable))}`);
  say(foot.children[0], ago(length));
  say(foot.children[1], `highest ${format(Math.max(...usable))}`);
}

function ago(seconds) {
  return seconds < 90 ? `last ${Math.round(seconds)} s` : `last ${Math.round(seconds / 60)} min`;
}

function build(box) {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  for (const kind of ["area", "line"]) {
    const path = document.createElementNS(NS, "path");
    path.setAttribute("class", kind);
    svg.append(path);
  }
  const foot = document.createElement("p");
  foot.append(document.createElement("span"), document.createElement("span"));
  box.append(svg, foot);
  svg.addEventListener("pointermove", (event) => {
    const { left, width } = svg.getBoundingClientRect();
    showTip(box.told((event.clientX - left) / width), event);
  });
  svg.addEventListener("pointerleave", () => hideTip(svg));
}
