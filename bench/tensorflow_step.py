#!/usr/bin/env python3
"""Measures training steps of TensorFlow on several processes, and how much time communication adds to them.

A perceptron with 10 million parameters is trained by the same processes in turn with hvd, with TensorFlow's
MultiWorkerMirroredStrategy, with Horovod if it is installed, and without any communication: in custom training loops
and by model.fit; eagerly, in a tf.function, and compiled by XLA. The ways take single steps in turn, in an order that
changes from round to round. All begin with the same weights and see the same data, and at the end their parameters are
compared. In between, the bare engine reduces arrays of the same sizes. Needs the package hvd and TensorFlow
(tools/setup --tensorflow).
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from training import program  # noqa: E402
from training.report import wrong  # noqa: E402
from training.settings import TensorFlowSettings  # noqa: E402
from training.tensorflow_report import MODES, calls_of, markdown, summarise, targets  # noqa: E402

PROGRAM = "bench/tensorflow_step.py"
WAYS = ("hvd", "fit", "engine", "ring", "auto", "horovod")
IMPORTS = 5  # how often the time of each import is taken
VARIABLES = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}


def free_ports(count: int) -> tuple[int, ...]:
    """Free ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return tuple(each.getsockname()[1] for each in sockets)


def options() -> argparse.Namespace:
    parser = program.parser(PROGRAM, __doc__, WAYS)
    parser.add_argument(
        "--modes", type=program.names(MODES), default=tuple(MODES), help=f"of {','.join(MODES)} (default all)"
    )
    return program.parsed(parser)


def main(arguments: argparse.Namespace) -> int:
    os.environ.update(VARIABLES)
    settings = TensorFlowSettings(
        arguments.ways, arguments.modes, arguments.rounds, arguments.warmup, False, arguments.tiny, arguments.timeout,
        free_ports(arguments.ranks),
    )
    imports = calls = None
    if not arguments.steps_only:
        times = 1 if settings.tiny else IMPORTS
        imports = {
            "hvd.tensorflow": program.import_time("hvd.tensorflow", "tensorflow", times),
            "hvd.keras": program.import_time("hvd.keras", "tensorflow, keras", times),
        }
        of_ranks, _ = program.launch(
            PROGRAM, replace(settings, calls=True), arguments.ranks, not arguments.unbound, VARIABLES
        )
        calls = calls_of(of_ranks)
    of_ranks, launcher = program.launch(PROGRAM, settings, arguments.ranks, not arguments.unbound, VARIABLES)
    prefixes = ("HVD_", "HOROVOD_", "KERAS_", "XLA_", "TF_CPP_", "TF_ENABLE_", "TF_NUM_", "TF_XLA_")
    run = {
        **program.about(PROGRAM, arguments.ranks, settings, of_ranks, launcher, prefixes),
        **{key: of_ranks[0][key] for key in ("sizes", "parameters", "tensors", "missing")},
        **summarise(of_ranks),
        "calls": calls or {},
        "import_ms": imports,
    }
    run["targets"] = targets(run)
    run["wrong"] = wrong(run["tables"], arguments.ranks)
    return program.finish(PROGRAM, run, markdown(run), "tensorflow-step", arguments)


if __name__ == "__main__":
    program.start(PROGRAM, options(), main, "training.tensorflow_rank")
