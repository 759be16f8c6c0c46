#!/usr/bin/env python3
"""Measures torch.distributed between hosts: hvd over TCP against PyTorch's Gloo, started by torchrun.

The hosts are network namespaces of this machine. The same processes call all_reduce with both in turn, and train a
model with DistributedDataParallel on both and without communication; what a step takes beyond the latter is exposed.
Every result is checked, and the bytes that leave a host are counted. Needs root, the package hvd and PyTorch
(tools/setup --python).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "multihost"))

import hosts  # noqa: E402
from support.texts import call_text, origin_text, page, ratio_text, size_text, table  # noqa: E402
from support.where import origin  # noqa: E402
from training import program  # noqa: E402
from training.settings import Failed  # noqa: E402

PROGRAM = "bench/torch_hosts.py"
BACKENDS = ("hvd", "gloo")
SIZES = (8, 4 << 10, 256 << 10, 4 << 20, 16 << 20)
LAYERS, WIDTH, BATCH = 8, 600, 16  # of the model
PORT = 29400
LIMIT = 600  # seconds for all ranks


def options() -> argparse.Namespace:
    made = program.plain_parser(PROGRAM, __doc__, "two sizes and few rounds")
    made.add_argument("--hosts", type=program.number(2, 8), default=2, help="how many (default 2)")
    made.add_argument("--ranks-per-host", type=program.number(1, 16), default=2, help="default 2")
    made.add_argument("--rounds", type=program.number(1, 1000), help="measurements of each (default 15)")
    made.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return program.parsed(made)


# ---- a rank --------------------------------------------------------------------------------------------------------


def work(file: Path) -> None:
    """One rank, under torchrun; rank 0 writes the results of all into the file."""
    import torch
    import torch.distributed as dist

    settings = json.loads(file.with_suffix(".settings").read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    meet = groups["gloo"]

    def slowest(seconds: float) -> float:
        most = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=meet)
        return float(most)

    def in_turn(calls: dict[str, Any]) -> dict[str, float]:
        """The median over the rounds of the slowest rank's time; the order changes from round to round."""
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(settings["rounds"] + 1):
            for name in list(calls)[:: 1 if number % 2 else -1]:
                dist.barrier(meet)
                begun = time.perf_counter()
                calls[name]()
                times[name].append(slowest(time.perf_counter() - begun))
        return {name: statistics.median(each[1:]) for name, each in times.items()}

    result: dict[str, Any] = {"sizes": [], "wrong": []}
    for size in settings["sizes"]:
        result["sizes"].append(measured(size, groups, in_turn, result["wrong"]))
    result["step"] = steps(groups, in_turn, result["wrong"])
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, result["wrong"], group=meet)
    result["wrong"] = [text for each in every for text in each]
    result["versions"] = {"torch": torch.__version__, "hvd": __import__("hvd").__version__}
    if dist.get_rank() == 0:
        file.write_text(json.dumps(result))
    dist.barrier(meet)
    dist.destroy_process_group()


def measured(size: int, groups: dict[str, Any], in_turn: Any, wrong: list[str]) -> dict[str, Any]:
    """all_reduce of one size: seconds a call, and bytes that this host sends, for each backend."""
    import torch
    import torch.distributed as dist

    data, rank, ranks = torch.empty(size // 4), dist.get_rank(), dist.get_world_size()
    repeats = 20 if size < 1 << 20 else 2

    def calls(name: str) -> Any:
        def run() -> None:
            for _ in range(repeats):
                dist.all_reduce(data, group=groups[name])

        return run

    row: dict[str, Any] = {"bytes": size, "seconds": {}, "sent": {}}
    for name in groups:
        data.copy_((torch.arange(len(data)) % 97 + rank).float())
        dist.barrier(groups["gloo"])
        before = sent()
        dist.all_reduce(data, group=groups[name])
        dist.barrier(groups["gloo"])
        row["sent"][name] = sent() - before
        whole = (torch.arange(len(data)) % 97 * ranks + ranks * (ranks - 1) // 2).float()
        if not torch.equal(data, whole):
            wrong.append(f"{name}, {size} bytes: a wrong sum on rank {rank}")
    data.zero_()
    times = in_turn({name: calls(name) for name in groups})
    row["seconds"] = {name: each / repeats for name, each in times.items()}
    return row


def sent() -> int:
    """Bytes that have left this host."""
    return int(hosts.Host("", "", os.getpid()).sent())


def steps(groups: dict[str, Any], in_turn: Any, wrong: list[str]) -> dict[str, Any]:
    """Seconds of a step of DDP with each backend, and of one without communication."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])

    models = {name: DistributedDataParallel(model(), process_group=group) for name, group in groups.items()}
    models["alone"] = model()
    torch.manual_seed(dist.get_rank())
    data = torch.randn(BATCH, WIDTH)

    def step(name: str) -> Any:
        optimizer = torch.optim.SGD(models[name].parameters(), lr=1e-6)

        def run() -> None:
            optimizer.zero_grad()
            models[name](data).sum().backward()
            optimizer.step()

        return run

    times = in_turn({name: step(name) for name in models})
    weights = {name: torch.cat([each.detach().ravel() for each in models[name].parameters()]) for name in groups}
    first = weights["hvd"].clone()
    dist.broadcast(first, 0, group=groups["gloo"])
    if not torch.equal(first, weights["hvd"]):
        wrong.append(f"the weights of rank {dist.get_rank()} are not those of rank 0")
    if not torch.allclose(weights["hvd"], weights["gloo"], rtol=1e-5, atol=1e-6):
        wrong.append("hvd and Gloo have trained different weights")
    return {"seconds": times, "parameters": sum(each.numel() for each in models["alone"].parameters())}


# ---- all of them ---------------------------------------------------------------------------------------------------


def run_ranks(arguments: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Starts torchrun on each host; the results."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hvd-hosts-")))
        file = folder / "result.json"
        file.with_suffix(".settings").write_text(json.dumps(settings))
        if why := hosts.why_not():
            raise Failed(f"no hosts can be made here: {why}")
        made = stack.enter_context(hosts.Hosts(arguments.hosts))
        env = {**os.environ, **{f"HVD_HOST_{host.name}": str(host.first) for host in made.all}}
        env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=hosts.CABLE)
        running = []
        for number, host in enumerate(made.all):
            words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", arguments.hosts, "--node-rank", number]
            words += ["--nproc-per-node", arguments.ranks_per_host, "--master-addr", made.all[0].name]
            words += ["--master-port", PORT, Path(__file__).resolve(), "--work", file]
            command = [hosts.AGENT, host.name, shlex.join(map(str, words))]
            log = stack.enter_context(open(folder / f"{host.name}.log", "w+", encoding="utf-8"))
            running.append((subprocess.Popen(command, env=env, stdout=log, stderr=log), log))
        end = time.monotonic() + LIMIT
        for process, log in running:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failed(f"the ranks have not ended within {LIMIT} s") from None
            if process.returncode != 0:
                log.seek(0)
                raise Failed("\n".join(["the ranks failed:", *log.read().splitlines()[-25:]]))
        return dict(json.loads(file.read_text()))


def markdown(run: dict[str, Any]) -> str:
    step, about = run["step"]["seconds"], run["machine"]
    exposed = {name: step[name] - step["alone"] for name in BACKENDS}
    least = 2 * (run["hosts"] - 1) / run["hosts"]
    rows = []
    for row in run["sizes"]:
        us = [1e6 * row["seconds"][name] for name in BACKENDS]
        wire = [f"{row['sent'][name] / row['bytes']:.2f}" if row["bytes"] >= 1 << 20 else None for name in BACKENDS]
        rows.append([size_text(row["bytes"]), *map(call_text, us), ratio_text(us[1] / us[0]), *wire])
    crowded = f"There are more ranks than CPUs ({run['ranks']} on {about['cores']}). " if run["ranks"] > about["cores"] else ""
    return page(
        f"torch.distributed between {run['hosts']} hosts",
        origin_text(run),
        f"{run['ranks']} ranks on {run['hosts']} hosts, network namespaces of one machine whose network is its memory; started "
        f"by torchrun. {crowded}PyTorch {run['versions']['torch']}, hvd {run['versions']['hvd']} over TCP, and PyTorch's Gloo. "
        f"Medians of {run['rounds']} rounds of the slowest rank, in turns; every result is checked.",
        "all_reduce of floats. Sent: what leaves the first host in one call, in lengths of the vector; at least "
        f"{least:.2f}.",
        table(["bytes", "hvd", "Gloo", "Gloo / hvd", "sent by hvd", "sent by Gloo"], rows, "r"),
        f"A step of DistributedDataParallel, {run['step']['parameters'] / 1e6:.1f} million parameters: "
        f"{1e3 * step['alone']:.1f} ms without communication, {1e3 * step['hvd']:.1f} ms with hvd, "
        f"{1e3 * step['gloo']:.1f} ms with Gloo; exposed {1e3 * exposed['hvd']:.1f} and {1e3 * exposed['gloo']:.1f} ms "
        f"({ratio_text(exposed['gloo'] / exposed['hvd'])} x).",
    )


def main(arguments: argparse.Namespace) -> int:
    settings = {
        "sizes": SIZES[1:4:2] if arguments.tiny else SIZES,
        "rounds": arguments.rounds or (2 if arguments.tiny else 15),
    }
    result = run_ranks(arguments, settings)
    run = {
        **origin(PROGRAM, *sys.argv[1:]),
        "hosts": arguments.hosts,
        "ranks": arguments.hosts * arguments.ranks_per_host,
        "rounds": settings["rounds"],
        "variables": program.variables(("HVD_", "GLOO_")),
        **result,
    }
    layout = f"torch-hosts-{arguments.hosts}x{arguments.ranks_per_host}"
    return program.finish(PROGRAM, run, markdown(run), layout, arguments)


if __name__ == "__main__":
    chosen = options()
    if chosen.work is not None:
        work(chosen.work)
    else:
        program.start(PROGRAM, chosen, main)
