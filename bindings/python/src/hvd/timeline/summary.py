"""hvd/timeline/summary.py: the answers as text, for a terminal."""

from __future__ import annotations

import io
import time
import unicodedata
from collections.abc import Sequence
from typing import Any, Optional

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hvd.timeline.waiting import clock, duration, milliseconds, ranks as named, tensor_name

BARS = "▁▂▃▄▅▆▇█"
MOST_RANKS = 16
_STATES = {"running": "runs", "quiet": "is quiet", "ended": "has ended"}


def render(answers: dict[str, Any]) -> Group:
    """The text that rich prints."""
    verdict = Text(clean(answers["verdict"]["text"]), style="bold", overflow="fold")
    parts: list[RenderableType] = [verdict, _head(answers), Text(), _facts(answers)]
    parts += _section("Slow rank", [answers["slow"]["text"]] if answers["slow"] else [])
    verb = "Not ended" if answers["state"] == "ended" else "Stuck right now"
    parts += _section(verb, [entry["text"] for entry in answers["waiting"]])
    parts += _section("Stalls", [f"{_clock(answers, s['ts_us'])} {s['text']}" for s in answers["stalls"]])
    if answers["exposed"]["tensors"]:
        parts += [Text(), Text("Waited for most, in the last minute", style="bold"), _tensors(answers["exposed"]["tensors"])]
    if answers["ranks"]:
        parts += [Text(), Text("Ranks", style="bold"), _ranks(answers)]
    parts += _section("Notes", answers["notes"])
    return Group(*parts)


def text(answers: dict[str, Any], width: int = 100) -> str:
    """The same without colours."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, force_terminal=False).print(render(answers))
    return out.getvalue()


def clean(name: str) -> str:
    """A text of a file, without what a terminal would obey."""
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in name)


def _head(answers: dict[str, Any]) -> Text:
    job = Text()
    job.append(f"Job {clean(answers['job'])}" if answers["job"] else "The job")
    hosts = {rank["host"] for rank in answers["ranks"] if rank["host"]}
    size = answers["size"]
    job.append(f" of {size} rank{'s' * (size != 1)}")
    if len(hosts) > 1:
        job.append(f" on {len(hosts)} hosts")
    elif hosts:
        job.append(f" on {clean(hosts.pop())}")
    job.append(f" {_STATES[answers['state']]}")
    if answers["epoch_us"]:
        job.append(f"; started {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(answers['epoch_us'] / 1e6))}")
    job.append(f", {duration(answers['end_us'] / 1e6)} until the last event")
    if answers["reading"] < 1:
        job.append(f" ({answers['reading']:.0%} of the files are read)")
    return job


def _facts(answers: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    speed, exposed, bandwidth = answers["speed"], answers["exposed"], answers["bandwidth"]
    if speed["steps_per_second"] is None:
        said = "not known: the program marks no steps (hvd.mark_step())"
    else:
        said = f"{_number(speed['steps_per_second'])} steps/s"
        said += " (guessed from the operations)" if speed["source"] == "inferred" else ""
        if speed["samples_per_second"] is not None:
            said += f", {_number(speed['samples_per_second'])} samples/s"
    table.add_row("Speed", _with_chart(said, speed["history"]["steps"]))
    if exposed["recorded"]:
        said = f"{exposed['share']:.1%} of the time"
        if exposed["ms_per_step"] is not None:
            said += f", {milliseconds(exposed['ms_per_step'])} a step"
        table.add_row("Time lost to communication", _with_chart(said, exposed["history"]))
    else:
        table.add_row("Time lost to communication", Text("not recorded: the timeline has no waits of the program"))
    if bandwidth["bus_GB_per_s"] is not None:
        said = f"{_number(bandwidth['bus_GB_per_s'])} GB/s while operations run, {bandwidth['busy_share']:.0%} of the time"
        if bandwidth["bytes_per_step"] is not None:
            said += f", {_number(bandwidth['bytes_per_step'] / 1e6)} MB a step"
        table.add_row("Bandwidth", _with_chart(said, bandwidth["history"]))
    table.add_row("Operations", Text(f"{answers['operations']:,}, {answers['events']:,} events"))
    return table


def _with_chart(said: str, history: Sequence[Optional[float]]) -> Text:
    line = Text(said)
    bars = chart(history)
    if bars:
        line.append(f"  {bars}", style="cyan")
    return line


def chart(history: Sequence[Optional[float]], width: int = 40) -> str:
    """Values as bars, the last one at the right; blank where nothing is known."""
    known = [value for value in history if value is not None]
    if len(known) < 2 or max(known) <= 0:
        return ""
    count = min(width, len(history))
    bars = ""
    for i in range(count):
        part = [v for v in history[i * len(history) // count : (i + 1) * len(history) // count] if v is not None]
        level = sum(part) / len(part) / max(known) if part else 0.0
        bars += BARS[min(len(BARS) - 1, int(level * len(BARS)))] if part else " "
    return bars


def _section(title: str, lines: Sequence[str]) -> list[RenderableType]:
    if not lines:
        return []
    return [Text(), Text(title, style="bold"), *(Text(f"  {clean(line)}", overflow="fold") for line in lines)]


def _tensors(tensors: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor", overflow="fold")
    table.add_column("of the time", justify="right")
    table.add_column("a step", justify="right")
    for tensor in tensors:
        step = milliseconds(tensor["ms_per_step"]) if tensor["ms_per_step"] is not None else ""
        table.add_row(Text(clean(tensor_name(tensor["name"]))), f"{tensor['share']:.1%}", step)
    return table


def _ranks(answers: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("rank", justify="right")
    table.add_column("host", overflow="fold")
    for title in ("operations", "steps/s", "behind", "time lost", "last event"):
        table.add_column(title, justify="right")
    shown = answers["ranks"]
    if len(shown) > MOST_RANKS:
        # Those that cost the others most.
        shown = sorted(shown, key=lambda rank: -(rank["behind_us"] or 0.0))[:MOST_RANKS]
        rest = {rank["rank"] for rank in answers["ranks"]} - {rank["rank"] for rank in shown}
        table.caption = f"without {named(rest)}, which are less far behind"
    last = "at the end" if answers["state"] == "ended" else "now"
    for rank in shown:
        ago = (answers["end_us"] - rank["last_us"]) / 1e6 if rank["last_us"] is not None else None
        table.add_row(
            str(rank["rank"]),
            Text(clean(rank["host"])),
            f"{rank['operations']:,}",
            _number(rank["steps_per_second"]) if rank["steps_per_second"] is not None else "",
            milliseconds(rank["behind_us"] / 1e3) if rank["behind_us"] is not None else "",
            f"{rank['exposed_share']:.1%}" if rank["exposed_share"] is not None else "",
            "" if ago is None else last if ago < 0.5 else f"{duration(ago)} before",
        )
    return table


def _clock(answers: dict[str, Any], us: float) -> str:
    if not answers["epoch_us"]:
        return f"{us / 1e6:.1f} s:"
    return clock(answers["epoch_us"] + us)


def _number(value: float) -> str:
    """Three digits that matter."""
    if value >= 1e6:
        return f"{value / 1e6:,.3g} million"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


__all__ = ["chart", "clean", "render", "text"]
