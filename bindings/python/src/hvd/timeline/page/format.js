// Numbers with their units, and elements whose texts are always texts.

const PREFIXES = [["G", 1e9], ["M", 1e6], ["k", 1e3]];

/** Three digits that count: 1234 -> "1,234", 12.345 -> "12.3", 0.01234 -> "0.0123". */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

/** With a prefix where it is large: 12345 -> "12.3 k". */
export function count(value) {
  const found = PREFIXES.find(([, factor]) => Math.abs(value) >= factor * 10);
  return found ? `${number(value / found[1])} ${found[0]}` : number(value);
}

export function bytes(value) {
  const found = PREFIXES.find(([, factor]) => value >= factor);
  return found ? `${number(value / found[1])} ${found[0]}B` : `${number(value)} B`;
}

/** A duration in microseconds, in the unit that fits. */
export function duration(us) {
  const size = Math.abs(us);
  if (size === 0) return "0 s";
  if (size < 1) return `${number(us * 1000)} ns`;
  if (size < 1e3) return `${number(us)} µs`;
  if (size < 1e6) return `${number(us / 1e3)} ms`;
  if (size < 60e6) return `${number(us / 1e6)} s`;
  const seconds = Math.round(us / 1e6);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** A duration without what changes every second: "45 s", "3 min", "2 h 10 min". */
export function age(us) {
  const seconds = Math.max(0, Math.round(us / 1e6));
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : duration(us);
}

export function percent(share) {
  const value = share * 100;
  return Number.isFinite(value) ? `${value >= 10 ? Math.round(value) : Number(value.toPrecision(2))} %` : "–";
}

/** The time of day of a moment of the timeline. */
export function clock(epochUs, us, withMs = false) {
  const date = new Date((epochUs + us) / 1000);
  const text = date.toLocaleTimeString("en-GB");
  return withMs ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

export function plural(n, word) {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

/** Names as one line: what would break it or turn it around is shown as a sign. */
export function name(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (sign) => {
    if (sign === "\n") return "⏎";
    return sign === "\t" ? "⇥" : "�";
  });
}

/** A tensor's name without the prefix that all gradients have; tensor_name of waiting.py does the same. */
export function tensorName(text) {
  return name(String(text).replace(/^(set \d+: )?allreduce\./, "$1"));
}

/** An element; children are elements or texts. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") made.textContent = value;
    else if (key === "click") made.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Sets a text only where it changes, so that a screen reader and a selection are left alone. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
