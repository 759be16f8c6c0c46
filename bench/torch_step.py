#!/usr/bin/env python3
"""Measures training steps of PyTorch models on several processes, and how much of them is communication.

A ResNet-18 and a transformer with 30 million parameters are trained by the same processes in turn with hvd, with DDP on
Gloo and on hvd, with Horovod if it is installed, and without any communication. The ways take single steps in turn, in
an order that changes from round to round. All begin with the same weights and see the same data, and at the end their
parameters are compared. The time of a step beyond one without communication is exposed: computation did not hide it.
Needs the package hvd and PyTorch (tools/setup --python).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support import ROOT  # noqa: E402
from training import program  # noqa: E402
from training.report import GRADIENTS, MODELS, markdown, middle, slowest, summarise, watching, wrong  # noqa: E402
from training.settings import Failed, Settings  # noqa: E402

PROGRAM = "bench/torch_step.py"
WAYS = ("hvd", "hvd-views", "ddp", "ddp-hvd", "ddp-hvd-shared", "horovod")
IMPORTS = 5  # how often the time of the import is taken


def wheel(folder: Path) -> dict[str, float]:
    """Builds the wheel; its megabytes and the seconds that it took."""
    start = time.monotonic()
    source = ROOT / "bindings" / "python"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    made = list(folder.glob("*.whl"))
    if done.returncode != 0 or not made:
        raise Failed(f"no wheel: {(done.stderr.splitlines() or ['pip failed'])[-1]}")
    return {"megabytes": made[0].stat().st_size / 1e6, "seconds": time.monotonic() - start}


def options() -> argparse.Namespace:
    parser = program.parser(PROGRAM, __doc__, WAYS)
    parser.add_argument(
        "--models", type=program.names(MODELS), default=tuple(MODELS),
        help=f"of {','.join(MODELS)} (default all)",
    )
    parser.add_argument(
        "--gradients", type=program.names(GRADIENTS), default=tuple(GRADIENTS),
        help=f"between steps, of {','.join(GRADIENTS)}: made again or zeroed (default all)",
    )
    parser.add_argument(
        "--buckets", type=lambda text: tuple(map(program.number(1, 1024), text.split(","))), default=(4, 100),
        help="bucket sizes of DDP in MiB, besides its default (default 4,100)",
    )
    parser.add_argument("--watched", action="store_true", help="also measure the cost of the timeline and its page")
    parser.add_argument("--wheel", action="store_true", help="also build the wheel, for its size")
    return program.parsed(parser)


def main(arguments: argparse.Namespace) -> int:
    settings = Settings(
        arguments.ways, arguments.models, arguments.gradients, arguments.rounds, arguments.warmup,
        not arguments.steps_only, arguments.buckets, arguments.watched, tuple(sorted(os.sched_getaffinity(0))),
        arguments.tiny, arguments.timeout,
    )
    imports = None
    if settings.package:
        imports = program.import_time("hvd.torch", "torch", 1 if settings.tiny else IMPORTS)
    of_ranks, launcher = program.launch(PROGRAM, settings, arguments.ranks, not arguments.unbound, {})
    built = None
    if arguments.wheel:
        with tempfile.TemporaryDirectory() as folder:
            built = wheel(Path(folder))
    models = {name: summarise([rank["models"][name] for rank in of_ranks]) for name in of_ranks[0]["models"]}
    calls = {
        name: middle(slowest([rank["calls"][name] for rank in of_ranks])) for name in of_ranks[0]["calls"]
    }
    run = {
        **program.about(PROGRAM, arguments.ranks, settings, of_ranks, launcher, ("HVD_", "HOROVOD_", "GLOO_")),
        "models": models,
        "missing": of_ranks[0]["missing"],
        "calls": calls,
        "import_ms": imports,
        "wheel": built,
        "watched": {name: watching([rank["watched"][name] for rank in of_ranks]) for name in of_ranks[0]["watched"]},
        "wrong": wrong(models, arguments.ranks),
    }
    return program.finish(PROGRAM, run, markdown(run), "torch-step", arguments)


if __name__ == "__main__":
    program.start(PROGRAM, options(), main, "training.rank")
