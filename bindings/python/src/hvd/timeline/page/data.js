// The events of a span of time as the server has sent them: one by one, or as shares of columns.

import { duration, name, percent } from "./format.js";

const COLLECTIVE = /(ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER|REDUCE_SCATTER|REDUCE|GATHER|SCATTER|BARRIER|SEND|RECV|RECEIVE|BCAST|ADASUM|JOIN)/;
const FINE = 0.6; // of the span for which columns were made: on a shorter one others are asked for
const natural = new Intl.Collator("en", { numeric: true });

export class Data {
  /** `sent` is the server's answer for the span `wanted`. `then`: of which files, how long the view was, and where the
   * job ended when that was asked for.
   */
  constructor(sent, wanted, { of, span, end }) {
    this.from = wanted.from;
    this.to = wanted.to;
    this.of = of;
    this.span = span;
    this.endThen = end;
    this.bins = null;
    this.ranks = new Map();
    if (sent.resolution === "bins") this.takeBins(sent);
    else this.takeSlices(sent, end);
  }

  takeBins(sent) {
    this.bins = new Map();
    this.from = sent.from_us;
    this.to = sent.to_us;
    this.binUs = (sent.to_us - sent.from_us) / sent.columns;
    sent.ranks.forEach((rank, at) => this.bins.set(rank, {
      run: sent.busy[at], negotiate: sent.negotiate[at], wait: sent.wait[at],
      operations: sent.operations?.[at], steps: sent.steps?.[at],
    }));
  }

  takeSlices(sent, end) {
    const open = new Map(); // (rank, tensor): what lies around the next one
    for (let at = 0; at < sent.begin_us.length; ++at) {
      const rank = sent.rank[at];
      const tensor = sent.tensors[sent.tensor[at]] ?? "";
      const activity = sent.names[sent.name[at]];
      const slice = {
        rank, tensor, activity, depth: sent.depth[at], begin: sent.begin_us[at], end: sent.end_us[at],
        state: sent.state[at], detail: sent.detail[at], covered: false,
      };
      slice.openEnd = slice.state === 2;
      if (slice.openEnd) slice.end = Math.max(slice.end, end);
      const own = this.own(rank);
      if (activity === "WAIT" && slice.depth === 0) {
        slice.kind = "wait";
        own.wait.push(slice);
        continue;
      }
      slice.kind = activity.startsWith("NEGOTIATE_") ? "negotiate" : "outer";
      if (!own.rows.has(tensor)) own.rows.set(tensor, []);
      own.rows.get(tensor).push(slice);
      const key = `${rank} ${sent.tensor[at]}`;
      const around = (open.get(key) ?? []).filter((each) => each.depth < slice.depth && each.end >= slice.begin);
      if (around.length) around.at(-1).covered = true;
      around.push(slice);
      open.set(key, around);
    }
    for (const own of this.ranks.values()) {
      for (const slices of own.rows.values()) {
        for (const slice of slices) {
          if (slice.kind === "negotiate") {
            if (slice.depth === 0) own.negotiate.push(slice);
          } else if (!slice.covered && COLLECTIVE.test(slice.activity)) {
            slice.kind = "run";
            own.run.push(slice);
          }
        }
      }
      for (const kind of ["run", "negotiate", "wait"]) own[kind].sort((a, b) => a.begin - b.begin);
    }
    for (const [at, rank, kind, text] of sent.marks ?? []) {
      if (kind === "CYCLE_START") continue;
      const mark = { rank, begin: at, end: at, activity: kind, kind: kind.toLowerCase(), facts: [] };
      mark.title = kind === "STEP" ? "End of a step" : kind === "STALL" ? "Stall" : "Events were dropped here";
      if (kind === "STEP" && text) mark.facts.push(["samples", text]);
      else if (text) mark.facts.push([kind === "STALL" ? "warning" : "events", text]);
      mark.tip = `${mark.title}${mark.facts.length ? `: ${name(mark.facts[0][1])}` : ""}`;
      this.own(rank).marks.push(mark);
    }
  }

  own(rank) {
    if (!this.ranks.has(rank)) this.ranks.set(rank, { rows: new Map(), run: [], negotiate: [], wait: [], marks: [] });
    return this.ranks.get(rank);
  }

  /** Whether columns are narrow enough for a view. */
  fineEnough(from, to) {
    return !this.bins || to - from >= this.span * FINE;
  }

  /** The names of a rank's tensors, in an order that stays. */
  tensors(rank) {
    const own = this.ranks.get(rank);
    if (!own) return [];
    own.names ??= [...own.rows.keys()].sort(natural.compare);
    return own.names;
  }

  row(rank, tensor) {
    return this.ranks.get(rank)?.rows.get(tensor) ?? [];
  }

  lane(rank, kind) {
    return this.ranks.get(rank)?.[kind] ?? [];
  }

  marks(rank) {
    return this.ranks.get(rank)?.marks ?? [];
  }

  /** The entry at a time in a row, `down` pixels below its top; the shortest of several. */
  hit(row, us, near, down) {
    if (row.kind === "rank" && this.bins) return this.column(row.rank, us);
    if (row.kind === "hint") return null;
    let best = null;
    for (const slice of this.candidates(row, down)) {
      if (us < slice.begin - near || us > slice.end + near) continue;
      const exact = us >= slice.begin && us <= slice.end;
      const length = (exact ? 0 : 1e15) + slice.end - slice.begin - slice.depth;
      if (!best || length < best.length) best = { slice, length };
    }
    return best && this.described(best.slice);
  }

  candidates(row, down = row.height / 2) {
    if (row.kind === "tensor") return this.row(row.rank, row.tensor);
    const part = down / row.height; // see the lanes of draw.js
    const lane = this.lane(row.rank, part < 0.31 ? "negotiate" : part < 0.68 ? "run" : "wait");
    return [...lane, ...this.marks(row.rank)];
  }

  /** The operation after (1) or before (-1) a time in a row. */
  next(row, at, direction) {
    const list = row.kind === "rank" ? this.lane(row.rank, "run") : this.candidates(row).filter((each) => each.depth === 0);
    let found = null;
    for (const slice of list) {
      if (direction > 0 ? slice.begin > at && (!found || slice.begin < found.begin)
        : slice.begin < at && (!found || slice.begin > found.begin)) found = slice;
    }
    return found && this.described(found);
  }

  described(slice) {
    if (slice.facts) return slice;
    const [type, ...shape] = (slice.detail ?? "").split(" ");
    const facts = [["activity", slice.activity], ["type", type], ["shape", shape.join(" ")]];
    if (slice.state === 1) facts.push(["note", "not finished when the timeline ended"]);
    if (slice.state === 2) facts.push(["note", "not finished yet"]);
    return { ...slice, facts: facts.filter(([, text]) => text) };
  }

  /** A description of a span. */
  sentence(from, to) {
    if (this.bins) return `shares of ${duration(this.binUs)} each`;
    let count = 0;
    for (const own of this.ranks.values()) {
      for (const slices of own.rows.values()) for (const each of slices) count += each.depth === 0 && each.end >= from && each.begin <= to;
    }
    return `${count} activities of tensors`;
  }

  column(rank, us) {
    const own = this.bins.get(rank);
    const at = Math.floor((us - this.from) / this.binUs);
    if (!own || at < 0 || at >= own.run.length) return null;
    const facts = [["communication", percent(own.run[at])], ["waits for other ranks", percent(own.negotiate[at])], ["program waits", percent(own.wait[at])]];
    if (own.operations?.[at]) facts.push(["operations", String(Math.round(own.operations[at]))]);
    const begin = this.from + at * this.binUs;
    return {
      rank, begin, end: begin + this.binUs, activity: "", title: `${duration(this.binUs)} of rank ${rank}`,
      facts, tip: facts.map(([title, text]) => `${title} ${text}`).join("\n"),
    };
  }
}
