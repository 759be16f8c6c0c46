"""The series that the options of bench/compare ask for. Standard library only."""

import re
from pathlib import Path

from support.options import Refused
from support.where import usable_cpus

# For each word of --collectives: hvd-bench's name, buffers, and the numbers of ranks without --ranks.
COLLECTIVES = {
    "allreduce": ("allreduce", "private", (2, 4, 8)),
    "allreduce_shared": ("allreduce", "shared", (2,)),
    "allgather": ("allgather", "private", (2,)),
    "reduce_scatter": ("reduce_scatter", "private", (2,)),
    "broadcast": ("broadcast", "private", (2,)),
    "alltoall": ("alltoall", "private", (2,)),
    "reduce": ("reduce", "private", (2,)),
    "fused": ("fused", "private", (2,)),
    "fused_shared": ("fused", "shared", (2,)),
}
MODELS = {"resnet50": 102_228_128, "transformer124m": 497_759_232}  # bytes, for the estimate of the time left

SIZES = "8,16:256M"
QUICK_SIZES = "8,4K,64K,1M,16M"
# With more ranks than CPUs, a call of any size takes up to several milliseconds: fewer sizes are enough.
OVERSUBSCRIBED_SIZES = "8,1K,16K,256K,1M,4M,16M"
QUICK_OVERSUBSCRIBED_SIZES = "8,64K,1M"
# Bytes of the fusion buffer: tables show each library with its fastest. A step of the transformer takes so long that it
# is measured with only one.
FUSIONS = {"resnet50": (256 << 10, 1 << 20, 4 << 20), "transformer124m": (1 << 20,)}
QUICK_FUSIONS = {"resnet50": (1 << 20,)}
MOST_RANKS = 256


def size(text):
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise Refused(f"--sizes: '{text}' is not a size in bytes such as 8, 64K, 1M or 1G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


def sizes(text):
    """'8,16:256M' or '1K:1M:2' as a sorted list."""
    found = set()
    for part in text.split(","):
        begin, *more = part.split(":")
        first = last = size(begin)
        factor = 4
        if more:
            last = size(more[0])
        if len(more) > 1:
            if len(more) > 2 or not re.fullmatch(r"\d{1,6}", more[1]) or int(more[1]) < 2:
                raise Refused(f"--sizes: '{part}' is not BEGIN:END:FACTOR with a whole FACTOR of at least 2")
            factor = int(more[1])
        if first > last:
            raise Refused(f"--sizes: '{part}' begins beyond its end")
        while first <= last:
            found.add(first)
            first *= factor
    return sorted(found)


def runs_of(sizes):
    """Sizes as (begin, end, factor) of hvd-bench's -b, -e and -f."""
    left, found = list(sizes), []
    while left:
        factor = left[1] // left[0] if len(left) > 1 and left[1] % left[0] == 0 else 2
        length = 1
        while length < len(left) and left[length] == left[length - 1] * factor:
            length += 1
        found.append((left[0], left[length - 1], factor))
        left = left[length:]
    return found


def names(option, text, known):
    """The known names in a comma-separated text; '-' and '_' are the same."""
    spelled = {name.replace("-", "_"): name for name in known}
    chosen = [name.strip().lower().replace("-", "_") for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in spelled:
            raise Refused(f"{option}: there is no '{name}'; choose from {', '.join(known)}")
    return [spelled[name] for name in dict.fromkeys(chosen)]


def rank_counts(text):
    found = []
    for part in text.split(","):
        if not re.fullmatch(r"\d{1,6}", part.strip()) or not 2 <= int(part) <= MOST_RANKS:
            raise Refused(f"--ranks: '{part}' is not a whole number from 2 to {MOST_RANKS}")
        found.append(int(part))
    return sorted(set(found))


def plan(arguments):
    """The series to measure, the most important first."""
    chosen = list(COLLECTIVES)
    if arguments.collectives is not None:
        chosen = names("--collectives", arguments.collectives, COLLECTIVES)
    if not chosen:
        raise Refused(f"--collectives names none; choose from {', '.join(COLLECTIVES)}")
    ranks = rank_counts(arguments.ranks) if arguments.ranks is not None else None
    cpus = usable_cpus()
    series = []
    for word in chosen:
        collective, buffers, usual = COLLECTIVES[word]
        for count in ranks or usual:
            oversubscribed = count > cpus
            text = arguments.sizes
            if text is None and arguments.quick:
                text = QUICK_OVERSUBSCRIBED_SIZES if oversubscribed else QUICK_SIZES
            elif text is None:
                text = OVERSUBSCRIBED_SIZES if oversubscribed else SIZES
            fused = collective == "fused"
            fusions = {} if not fused else QUICK_FUSIONS if arguments.quick else FUSIONS
            kind = "fused" if word == "fused" else f"{collective}-{buffers}"
            series.append(
                {
                    "name": f"{kind}-{count}",
                    "collective": collective,
                    "buffers": buffers,
                    "ranks": count,
                    "cpus": cpus,
                    "fusions": {model: list(each) for model, each in fusions.items()},
                    "sizes": [] if fused else sizes(text),
                }
            )
    return sorted(series, key=lambda one: one["ranks"])  # stable: 2 ranks first


def values(series):
    """The bytes of each thing that is measured."""
    return series["sizes"] or [MODELS[model] for model, each in series["fusions"].items() for _ in each]


def cost(series, value):
    """A rough cost of a size, in any unit, to estimate the remaining time."""
    return 1 + value * series["ranks"] / (48 << 20)


def check_memory(series):
    """Refuses sizes that cannot fit, before minutes of measuring. hvd-bench checks this exactly."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        there = int(re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)[1]) << 10
    except (OSError, TypeError):
        return
    for one in series:
        need = 2 * one["ranks"] * max(values(one))
        if need > there:
            raise Refused(
                f"{one['name']} needs at least {need >> 20} MiB of memory (an input and an output for each of "
                f"{one['ranks']} ranks) and this machine has {there >> 20} MiB available; take smaller "
                "--sizes or fewer --ranks"
            )
