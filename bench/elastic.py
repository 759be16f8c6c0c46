#!/usr/bin/env python3
"""Measures how long training stands still when a rank is killed: in an elastic job of hvdrun, and under torchrun.

A model of PyTorch trains in processes of this machine, and one of them gets SIGKILL. What is taken is the time until the
others have done their next step, and until as many ranks as before have done one. torchrun (--max-restarts) starts all
processes again, which go on from a checkpoint on disk; they average gradients on Gloo. The jobs take turns. Needs the
package hvd and PyTorch (tools/setup --python).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.texts import origin_text, table  # noqa: E402
from support.where import origin  # noqa: E402
from training import program  # noqa: E402
from training.settings import Failed  # noqa: E402

PROGRAM = "bench/elastic.py"
LIMIT = 60.0  # seconds after a kill

# Each step is one line: "STEP", the round, the number of ranks, the rank, its process, and the time on the monotonic clock.
COMMON = """
import os, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
inputs = torch.randn(32, 64)

def step(round, size, rank, model, optimizer):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
    line = f"STEP {round} {size} {rank} {os.getpid()} {time.monotonic()}\\n"
    os.write(1, line.encode())  # at once: processes may share the stream
    time.sleep(0.01)
"""
SCRIPTS = {
    "hvdrun": COMMON + """
import hvd.torch as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

@hvd.elastic.run
def train(state):
    while True:
        step(os.environ["HVD_JOB"], hvd.size(), hvd.rank(), model, optimizer)
        state.step += 1
        state.commit()

train(state)
""",
    "torchrun": COMMON + """
import torch.distributed as dist
dist.init_process_group("gloo")
path = sys.argv[1]
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
parallel = torch.nn.parallel.DistributedDataParallel(model)
while True:
    step(os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_world_size(), dist.get_rank(), parallel, optimizer)
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
        os.replace(path + ".new", path)
""",
}


def command(way: str, ranks: int, script: str, folder: str) -> list[str]:
    if way == "hvdrun":
        return [sys.executable, "-m", "hvd.launcher.main", "-np", str(ranks), "--min-np", "1", sys.executable, script]
    words = ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks), "--max-restarts", "1000"]
    return [sys.executable, *words, script, os.path.join(folder, "checkpoint")]


def measure(way: str, ranks: int) -> dict[str, float]:
    """The seconds from a SIGKILL to the next step in another round, and to the one of as many ranks as before; without
    those that had not been done after LIMIT seconds.
    """
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as folder:
        script = os.path.join(folder, f"{way}.py")
        Path(script).write_text(SCRIPTS[way])
        job = subprocess.Popen(
            command(way, ranks, script, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
        said: list[str] = []
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        for stream, take in ((job.stdout, lines.put), (job.stderr, said.append)):
            threading.Thread(target=lambda s=stream, t=take: [t(line) for line in s], daemon=True).start()
        pids: dict[int, int] = {}
        try:
            for _ in range(20 * ranks):
                number, _, rank, pid, _ = next_step(lines, LIMIT)
                pids[rank] = pid
            began = time.monotonic()
            os.kill(pids[1], signal.SIGKILL)
            found: dict[str, float] = {}
            with contextlib.suppress(queue.Empty):
                while "again" not in found:
                    round, size, *_, when = next_step(lines, began + LIMIT - time.monotonic())
                    if round != number:
                        found.setdefault("step", when - began)
                        if size == ranks:
                            found["again"] = when - began
            return found
        except queue.Empty:
            raise Failed("\n".join([f"{way}, {ranks} ranks: no steps within {LIMIT:.0f} s", *said[-20:]])) from None
        finally:
            job.terminate()  # torchrun then ends its processes, within 30 s
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()


def next_step(lines: queue.SimpleQueue[str], seconds: float) -> tuple[str, int, int, int, float]:
    """The words of the next line of a step. Raises queue.Empty after some seconds without a line."""
    while True:
        line = lines.get(timeout=max(0.0, seconds))
        if "STEP " in line:
            round, size, rank, pid, when = line[line.index("STEP ") :].split()[1:6]
            return round, int(size), int(rank), int(pid), float(when)


def cell(found: list[dict[str, float]], key: str) -> str:
    values = [each[key] for each in found if key in each]
    late = f"; {len(found) - len(values)} not within {LIMIT:.0f} s" if len(values) < len(found) else ""
    return (f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-") + late


def markdown(run: dict[str, Any]) -> str:
    rows = [[way, ranks, len(found), cell(found, "step"), cell(found, "again")] for way, ranks, found in run["times"]]
    head = ["launcher", "ranks", "kills", "to the next step", "to the next step of all ranks"]
    versions = f"hvd {run['versions']['hvd']}, PyTorch {run['versions']['torch']}."
    return "\n\n".join([origin_text(run), f"{versions} Seconds after SIGKILL: the median (and the range).", table(head, rows)]) + "\n"


def main(arguments: argparse.Namespace) -> int:
    times: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(arguments.kills):
        for ranks in (2,) if arguments.tiny else (2, 3):
            for way in SCRIPTS:
                times.setdefault((way, ranks), []).append(measure(way, ranks))
                print(f"{way}, {ranks} ranks: {json.dumps(times[way, ranks][-1])}", file=sys.stderr)
    run = {
        **origin(PROGRAM, *sys.argv[1:]),
        "versions": {name: importlib.metadata.version(name) for name in ("hvd", "torch")},
        "times": [[way, ranks, found] for (way, ranks), found in times.items()],
        "wrong": [],
    }
    return program.finish(PROGRAM, run, markdown(run), "elastic", arguments)


def options() -> argparse.Namespace:
    made = program.plain_parser(PROGRAM, __doc__, "one kill, of 2 ranks")
    made.add_argument("--kills", type=program.number(1, 100), help="of each kind, each in a job of its own (default 5)")
    chosen = program.parsed(made)
    chosen.kills = chosen.kills or (1 if chosen.tiny else 5)
    return chosen


if __name__ == "__main__":
    program.start(PROGRAM, options(), main)
