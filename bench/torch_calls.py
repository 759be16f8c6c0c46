#!/usr/bin/env python3
"""Measures a sum of 8 bytes from PyTorch, layer by layer: from the call of the extension to the functions of hvd.torch.

Two ranks of this machine call each layer in turn. The floors are PyTorch's calls with a backend that
does nothing. Needs the package hvd and PyTorch (tools/setup --python).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.texts import origin_text, table  # noqa: E402
from support.where import origin  # noqa: E402
from training import program  # noqa: E402

PROGRAM = "bench/torch_calls.py"
FLOOR = "PyTorch's part of that: with a backend that does nothing"
FUNCTIONAL_FLOOR = "PyTorch's part of that: with a backend that returns a work that is done"


def measure(rounds: int, calls: int) -> tuple[dict[str, list[float]], list[str]]:
    """Microseconds of a call of each layer, in each round, and what was wrong. Runs on each rank."""
    import time

    import torch
    import torch.distributed as dist

    import hvd.torch as hvd
    from hvd import _core
    from hvd.torch.adapter import DTYPES

    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("hvd", rank=hvd.rank(), world_size=hvd.size())
    backend: Any = dist.distributed_c10d._get_default_group()
    x = torch.zeros(2)
    options = dist.AllreduceOptions()
    options.asyncOp = False
    functional, name = torch.ops._c10d_functional, backend.group_name
    kind, at, number = _core.operations["allreduce"], x.data_ptr(), DTYPES[x.dtype]

    layers = {
        "the extension: `Group.run`": lambda: backend._group.run(kind, at, at, 2, number, 0, 1.0, 0, None, None, 60.0, False),
        "the backend: `ProcessGroup.allreduce`": lambda: backend.allreduce([x], options),
        "`torch.distributed.all_reduce`": lambda: dist.all_reduce(x),
        FLOOR: lambda: dist.all_reduce(x),
        "functional collectives: `all_reduce_` and `wait_tensor`": lambda: functional.wait_tensor(functional.all_reduce_(x, "sum", name)),
        FUNCTIONAL_FLOOR: lambda: functional.wait_tensor(functional.all_reduce_(x, "sum", name)),
        "`hvd.allreduce_(x, name=...)`": lambda: hvd.allreduce_(x, op=hvd.Sum, name="in place"),
        "`hvd.allreduce(x, name=...)`": lambda: hvd.allreduce(x, op=hvd.Sum, name="new"),
        "`hvd.allreduce(x)`": lambda: hvd.allreduce(x, op=hvd.Sum),
    }
    done = dist.all_reduce(x, async_op=True)
    done.wait()
    floors = {FLOOR: lambda tensors, opts: None, FUNCTIONAL_FLOOR: lambda tensors, opts: done}
    found: dict[str, list[float]] = {layer: [] for layer in layers}
    for _ in range(rounds):
        for layer, call in layers.items():
            hvd.barrier()
            if layer in floors:
                backend.allreduce = floors[layer]
            for _ in range(calls // 10):
                call()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            found[layer].append((time.perf_counter() - began) / calls * 1e6)
            if layer in floors:
                del backend.allreduce
    x.fill_(hvd.rank() + 1)
    expected = sum(range(1, hvd.size() + 1))
    dist.all_reduce(x)
    wrong = [] if x.tolist() == [expected] * 2 and hvd.allreduce(x, op=hvd.Average).tolist() == [expected] * 2 else [f"rank {hvd.rank()}: a wrong sum"]
    return found, wrong


def markdown(run: dict[str, Any]) -> str:
    rows = [[name, f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}"] for name, times in run["times"].items()]
    text = f"hvd {run['versions']['hvd']}, PyTorch {run['versions']['torch']}; {run['ranks']} ranks. Microseconds of a call on the slower rank: the median of {run['rounds']} rounds of {run['calls']} calls each, and the range."
    return "\n\n".join([origin_text(run), text, table(["layer", "median", "range"], rows)]) + "\n"


def main(arguments: argparse.Namespace) -> int:
    from hvd.launcher import run as run_ranks

    rounds, calls = (3, 100) if arguments.tiny else (arguments.rounds, 5000)
    of_ranks = run_ranks(measure, (rounds, calls), num_proc=2)
    times = {name: [max(values) for values in zip(*(found[name] for found, _ in of_ranks))] for name in of_ranks[0][0]}
    run = {
        **origin(PROGRAM, *sys.argv[1:]),
        "versions": {name: importlib.metadata.version(name) for name in ("hvd", "torch")},
        "ranks": 2, "rounds": rounds, "calls": calls, "times": times,
        "wrong": [text for _, wrong in of_ranks for text in wrong],
    }  # fmt: skip
    return program.finish(PROGRAM, run, markdown(run), "torch-calls", arguments)


def options() -> argparse.Namespace:
    made = program.plain_parser(PROGRAM, __doc__, "few calls")
    made.add_argument("--rounds", type=program.number(1, 1000), default=9, help="default 9")
    return program.parsed(made)


if __name__ == "__main__":
    program.start(PROGRAM, options(), main)
