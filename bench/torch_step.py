#!/usr/bin/env python3
"""Measures training steps of PyTorch models on several processes, and how much of them is communication.

A ResNet-18 and a transformer with 30 million parameters are trained by the same processes in turn with hvd, with DDP on
Gloo, with Horovod where it is installed, and without any communication. One step of each follows one of another, in an
order that changes from round to round; all begin with the same weights and see the same data, and at the end their
parameters are compared. What a step takes longer than one without communication is exposed: it was not hidden behind
the computation. The package hvd and PyTorch have to be installed where this runs (tools/setup --python).
"""

from __future__ import annotations

import argparse
import copy
import datetime
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import math
import mmap
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from comparison import children  # noqa: E402
from comparison.plan import ROOT  # noqa: E402
from comparison.where import commit, machine, slug  # noqa: E402

MODELS = {"conv": "ResNet-18", "transformer": "transformer"}
# What zero_grad() does: sets gradients to None, so that the backward pass makes new tensors, or zeroes those there are.
GRADIENTS = {"new": "`zero_grad()`", "kept": "`zero_grad(set_to_none=False)`"}
TINY_CALLS, CALLS, CALLS_A_BLOCK = 40, 2000, 20
IMPORTS = 5  # how often the time of the import is taken
LIMIT = 1e-3  # by how much parameters may differ between ways, as a part of how far training has moved them
APART = 1e-2  # by how much they have to differ without communication, or else the comparison would show nothing
HOROVOD_CYCLE_TIME = "0.1"  # ms; its best setting for processes of one host, where the default of 1 ms only waits


class Failed(Exception):
    """One sentence for the user; exit code 1."""


@dataclass(frozen=True)
class Settings:
    """What ranks are told."""

    ways: Tuple[str, ...]
    models: Tuple[str, ...]
    gradients: Tuple[str, ...]
    rounds: int
    warmup: int
    package: bool
    buckets: Tuple[int, ...]  # of DDP, in MiB, besides its default
    tiny: bool
    timeout: float


# ---- models ---------------------------------------------------------------------------------------------------------


def conv(tiny: bool) -> Tuple[Any, Callable[[Any], Any], Callable[[Any], Tuple[Any, Any]], str]:
    """ResNet-18 (He et al., "Deep residual learning for image recognition", 2016), its optimizer, data and sizes."""
    import torch
    from torch import nn

    width, classes, pixels, batch = (8, 10, 32, 2) if tiny else (64, 1000, 64, 8)

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.path = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
            )
            self.shortcut = nn.Sequential() if stride == 1 else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

        def forward(self, x: Any) -> Any:
            return torch.relu(self.path(x) + self.shortcut(x))

    widths = [width, width, 2 * width, 4 * width, 8 * width]
    blocks = [Block(widths[i + (b > 0)], widths[i + 1], 2 if i and not b else 1) for i in range(4) for b in range(2)]
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes),
    )

    def data(generator: Any) -> Tuple[Any, Any]:
        images = torch.randn(batch, 3, pixels, pixels, generator=generator)
        return images, torch.randint(classes, (batch,), generator=generator)

    return (
        model, lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9), data,
        f"{batch} images of {pixels} x {pixels} on each rank; SGD with momentum",
    )


def transformer(tiny: bool) -> Tuple[Any, Callable[[Any], Any], Callable[[Any], Tuple[Any, Any]], str]:
    """A decoder as GPT-2's (embeddings tied, norms first), with its optimizer, data and sizes."""
    import torch
    from torch import nn

    wide, layers, heads, words, length, batch = (32, 2, 2, 64, 8, 2) if tiny else (512, 8, 8, 8192, 64, 2)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, wide)
            self.places = nn.Parameter(torch.randn(length, wide) * 0.02)
            nn.init.normal_(self.words.weight, std=0.02)
            layer = nn.TransformerEncoderLayer(
                wide, heads, 4 * wide, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(wide), enable_nested_tensor=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

        def forward(self, text: Any) -> Any:
            x = self.layers(self.words(text) + self.places, mask=self.mask, is_causal=True)
            return (x @ self.words.weight.t()).flatten(0, 1)

    def data(generator: Any) -> Tuple[Any, Any]:
        text = torch.randint(words, (batch, length + 1), generator=generator)
        return text[:, :-1], text[:, 1:].flatten()

    return (
        Decoder(), lambda parameters: torch.optim.AdamW(parameters, lr=1e-4), data,
        f"{batch} texts of {length} tokens on each rank; AdamW",
    )


# ---- ways to train --------------------------------------------------------------------------------------------------


def real_horovod() -> Optional[str]:
    """The version of Horovod that is installed; None without one, or where the package of that name is hvd's own."""
    try:
        about = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    return None if about.version.endswith("+hvd") else about.version


def ways_of(settings: Settings) -> Tuple[Dict[str, Callable[[Any, Any], Tuple[Any, Any]]], Dict[str, str]]:
    """Functions that make a model and an optimizer distributed, and reasons for those ways that cannot be measured.

    Collective, because libraries are initialised.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import hvd.torch as hvd

    def with_optimizer(library: Any, model: Any, optimizer: Any, **more: Any) -> Tuple[Any, Any]:
        library.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, library.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **more)

    def with_ddp(model: Any, optimizer: Any, bucket: Optional[int] = None) -> Tuple[Any, Any]:
        # Buffers are left to each rank, as they are by the other ways.
        return DistributedDataParallel(
            model, gradient_as_bucket_view=True, bucket_cap_mb=bucket, broadcast_buffers=False
        ), optimizer

    ways: Dict[str, Callable[[Any, Any], Tuple[Any, Any]]] = {
        "none": lambda model, optimizer: (model, optimizer),
        "none again": lambda model, optimizer: (model, optimizer),
    }
    missing = {}
    if "hvd" in settings.ways:
        ways["hvd"] = functools.partial(with_optimizer, hvd)
    if "hvd-views" in settings.ways:
        if "gradient_as_bucket_view" in inspect.signature(hvd.DistributedOptimizer).parameters:
            ways["hvd, bucket views"] = functools.partial(with_optimizer, hvd, gradient_as_bucket_view=True)
        else:
            missing["hvd, bucket views"] = "this hvd.torch has no gradient_as_bucket_view"
    if "ddp" in settings.ways:
        if dist.is_available() and dist.is_gloo_available():
            ways["DDP on Gloo"] = with_ddp
            for bucket in settings.buckets:
                ways[f"DDP on Gloo, {bucket} MiB"] = functools.partial(with_ddp, bucket=bucket)
        else:
            missing["DDP on Gloo"] = "this PyTorch was built without it"
    if "horovod" in settings.ways:
        if real_horovod() is None:
            missing["Horovod"] = "not installed"
        else:
            os.environ["HOROVOD_CYCLE_TIME"] = HOROVOD_CYCLE_TIME  # hvd has read it before
            import horovod.torch as horovod

            horovod.init()
            if horovod.size() != hvd.size() or horovod.rank() != hvd.rank():
                raise Failed(f"Horovod calls rank {hvd.rank()} of {hvd.size()} {horovod.rank()} of {horovod.size()}")
            ways["Horovod"] = functools.partial(with_optimizer, horovod)
    torch.manual_seed(0)
    return ways, missing


# ---- a rank ---------------------------------------------------------------------------------------------------------


class Barrier:
    """A light barrier of processes, which belongs to none of the libraries."""

    def __init__(self, file: Path, rank: int, size: int, timeout: float) -> None:
        import numpy

        with open(file, "r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), size * 64)
        self._counts = numpy.frombuffer(self._memory, dtype=numpy.int64)[::8]
        self._rank = rank
        self._timeout = timeout

    def __call__(self) -> None:
        mine = int(self._counts[self._rank]) + 1
        self._counts[self._rank] = mine
        end = time.monotonic() + self._timeout
        while int(self._counts.min()) < mine:
            os.sched_yield()
            if time.monotonic() > end:
                late = [rank for rank, count in enumerate(self._counts) if count < mine]
                raise Failed(f"ranks {late} have not come to a barrier within {self._timeout:g} s (--timeout)")


def measure_model(
    name: str, gradients: str, settings: Settings, ways: Dict[str, Callable[[Any, Any], Tuple[Any, Any]]], rank: int, barrier: Barrier
) -> Dict[str, Any]:
    """Seconds of each step of this rank by way, and what its parameters have become."""
    import torch

    torch.manual_seed(1)
    model, optimize, data, sizes = {"conv": conv, "transformer": transformer}[name](settings.tiny)
    loss_of = torch.nn.CrossEntropyLoss()
    begin = torch.cat([p.detach().flatten() for p in model.parameters()])
    trained = {}
    for way, distribute in ways.items():
        own = copy.deepcopy(model)
        trained[way] = (own, *distribute(own, optimize(own.parameters())))
    seconds: Dict[str, List[float]] = {way: [] for way in ways}
    generator = torch.Generator().manual_seed(1000 + rank)
    order = list(ways)
    gc.collect()
    gc.disable()
    for number in range(settings.warmup + settings.rounds):
        inputs, targets = data(generator)
        for way in order:
            _, net, optimizer = trained[way]
            barrier()
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=gradients == "new")
            loss_of(net(inputs), targets).backward()
            optimizer.step()
            if number >= settings.warmup:
                seconds[way].append(time.perf_counter() - start)
        # Neither the place in a round nor the predecessor is always the same.
        order = order[1:] + order[:1] if number % 2 else order[::-1]
        gc.collect()
    gc.enable()
    return {
        "sizes": sizes,
        "parameters": begin.numel(),
        "tensors": len(list(model.parameters())),
        "seconds": seconds,
        **compare({way: own for way, (own, _, _) in trained.items()}, begin),
    }


def compare(models: Dict[str, Any], begin: Any) -> Dict[str, Any]:
    """For each way a digest of all parameters, and how far they are from those of the first that communicates, as a
    part of how far training has moved these."""
    import torch

    ends = {way: torch.cat([p.detach().flatten() for p in model.parameters()]) for way, model in models.items()}
    reference = next((end for way, end in ends.items() if not way.startswith("none")), ends["none"])
    moved = float((reference - begin).double().norm())
    return {
        "digests": {way: hashlib.sha256(end.numpy().tobytes()).hexdigest() for way, end in ends.items()},
        "apart": {way: float((end - reference).double().norm()) / moved for way, end in ends.items()},
    }


def measure_calls(settings: Settings, ways: Dict[str, Any], barrier: Barrier) -> Dict[str, List[float]]:
    """Seconds of each call of an allreduce of 8 bytes, a block of calls in one way after a block in another."""
    import torch
    import torch.distributed as dist

    import hvd.torch as hvd

    tensor = torch.ones(2)
    calls: Dict[str, Callable[[], Any]] = {
        "hvd.allreduce": lambda: hvd.allreduce(tensor, op=hvd.Sum, name="eight bytes"),
        "hvd.allreduce_": lambda: hvd.allreduce_(tensor, op=hvd.Average, name="eight bytes"),
    }
    if "DDP on Gloo" in ways:
        calls["dist.all_reduce on Gloo"] = lambda: dist.all_reduce(tensor)
    if "Horovod" in ways:
        import horovod.torch as horovod

        calls["horovod.allreduce"] = lambda: horovod.allreduce(tensor, op=horovod.Sum, name="eight bytes")
    seconds: Dict[str, List[float]] = {name: [] for name in calls}
    wanted = TINY_CALLS if settings.tiny else CALLS
    for block in range(wanted // CALLS_A_BLOCK + 1):
        for name, call in calls.items():
            tensor.fill_(1.0)
            for _ in range(CALLS_A_BLOCK):
                barrier()
                start = time.perf_counter()
                call()
                if block > 0:  # the first one is for getting warm
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def work(folder: Path) -> None:
    """What a rank does, which a launcher has started."""
    given = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    settings = Settings(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    import hvd.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if "ddp" in settings.ways and dist.is_available() and dist.is_gloo_available():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size,
            timeout=datetime.timedelta(seconds=settings.timeout),
        )
    ways, missing = ways_of(settings)
    barrier = Barrier(folder / "barrier", rank, size, settings.timeout)
    result: Dict[str, Any] = {
        "cpus": sorted(os.sched_getaffinity(0)),
        "missing": missing,
        "versions": {
            "hvd": importlib.import_module("hvd").__version__, "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "models": {
            f"{name}, {gradients}": measure_model(name, gradients, settings, ways, rank, barrier)
            for name in settings.models for gradients in settings.gradients
        },
        "calls": measure_calls(settings, ways, barrier) if settings.package else {},
    }
    barrier()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    hvd.shutdown()
    (folder / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    # Not through the end of the interpreter: a thread of Gloo that lets go of its last tensor meanwhile asks for the
    # GIL, and ends the process by std::terminate (https://github.com/pytorch/pytorch/issues/190489).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# ---- all ranks ------------------------------------------------------------------------------------------------------


def launch(settings: Settings, ranks: int, bound: bool) -> Tuple[List[Dict[str, Any]], List[str]]:
    """Starts the ranks and returns what each has found, and the words of the launcher."""
    with tempfile.TemporaryDirectory(prefix="hvd-torch-step-") as name:
        folder = Path(name)
        (folder / "settings.json").write_text(json.dumps(asdict(settings)), encoding="utf-8")
        (folder / "barrier").write_bytes(bytes(64 * ranks))
        program = [sys.executable, str(Path(__file__).resolve()), "--work", name]
        if "horovod" in settings.ways and real_horovod() is not None:  # whose ranks meet only by its own launcher
            launcher = ["horovodrun", "-np", str(ranks), *(["--binding-args", "-bind-to core"] if bound else [])]
        else:
            launcher = [sys.executable, "-m", "hvd.launcher.main", "-np", str(ranks)]
            launcher += ["--binding-args", f"-bind-to {'core' if bound else 'none'}"]
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "HVD_JOB": folder.name, "HVD_TIMEOUT": f"{settings.timeout:g}",
        }
        said: List[str] = []
        try:
            code, errors = children.run(
                [*launcher, *program], said.append, silence=None, env=environment, cwd=ROOT
            )
        except OSError as trouble:
            raise Failed(f"cannot start {launcher[0]}: {trouble.strerror}") from None
        files = [folder / f"rank-{rank}.json" for rank in range(ranks)]
        if code != 0 or not all(file.exists() for file in files):
            lines = [line for line in [*said, *errors.splitlines()] if line.strip()]
            raise Failed("\n".join([f"the ranks ended with exit code {code}:", *lines[-25:]]))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files], [Path(launcher[0]).name, *launcher[1:]]


def slowest(of_ranks: List[List[float]]) -> List[float]:
    """Milliseconds of the slowest rank, step by step."""
    return [1e3 * max(step) for step in zip(*of_ranks)]


def middle(values: List[float]) -> Dict[str, float]:
    """The median, and how far it may be from the one of infinitely many rounds: twice its standard error, from the
    quartiles, as if values were normally distributed."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {
        "median": statistics.median(values),
        "within": 2 * 1.253 * (high - low) / 1.349 / math.sqrt(len(values)),
    }


def summarise(of_ranks: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Of one model: for each way its step, what of it is exposed, and whether its results are those of the others."""
    first = of_ranks[0]
    steps = {way: slowest([rank["seconds"][way] for rank in of_ranks]) for way in first["seconds"]}
    alone = [(a + b) / 2 for a, b in zip(steps["none"], steps["none again"])]
    rows = {}
    for way, step in steps.items():
        base = steps["none again"] if way == "none" else steps["none"] if way == "none again" else alone
        rows[way] = {
            "step_ms": middle(step),
            "exposed_ms": middle([s - b for s, b in zip(step, base)]),
            "same_bits_on_all_ranks": len({rank["digests"][way] for rank in of_ranks}) == 1,
            "apart": max(rank["apart"][way] for rank in of_ranks),
            "steps_ms": step,
        }
    ddp = {way: row["exposed_ms"]["median"] for way, row in rows.items() if way.startswith("DDP")}
    best = min(ddp, key=ddp.__getitem__) if ddp else None
    for way, row in rows.items():
        if best is not None and not way.startswith("none"):
            exposed = row["exposed_ms"]
            row["best_ddp_over_this"] = ddp[best] / max(exposed["median"], exposed["within"], 1e-6)
            row["at_least"] = exposed["median"] <= exposed["within"]  # it is too little to be measured
    return {**{key: first[key] for key in ("sizes", "parameters", "tensors")}, "best_ddp": best, "ways": rows}


def wrong(models: Dict[str, Any], ranks: int) -> List[str]:
    """What is wrong with the results; one sentence each."""
    found = []
    for model, about in models.items():
        for way, row in about["ways"].items():
            if way.startswith("none"):
                if ranks > 1 and row["apart"] < APART:
                    found.append(f"{model}, {way}: parameters are apart by {row['apart']:.1e} only: nothing is shown")
                continue
            if not row["same_bits_on_all_ranks"]:
                found.append(f"{model}, {way}: ranks end with different parameters")
            if not row["apart"] <= LIMIT:
                found.append(f"{model}, {way}: parameters are apart by {row['apart']:.1e}; allowed: {LIMIT:.0e}")
    return found


def import_time(times_taken: int) -> Dict[str, float]:
    """Milliseconds of `import hvd.torch` where torch is imported already, in processes of their own."""
    text = "import torch, time; t = time.perf_counter(); import hvd.torch; print(time.perf_counter() - t)"
    times = []
    for _ in range(times_taken):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed((done.stderr.splitlines() or ["`import hvd.torch` failed"])[-1])
        times.append(1e3 * float(done.stdout))
    return {"median": statistics.median(times), "most": max(times)}


def wheel(folder: Path) -> Dict[str, float]:
    """Builds the wheel; its megabytes and the seconds that it took."""
    start = time.monotonic()
    source = ROOT / "bindings" / "python"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    made = list(folder.glob("*.whl"))
    if done.returncode != 0 or not made:
        raise Failed(f"no wheel: {(done.stderr.splitlines() or ['pip failed'])[-1]}")
    return {"megabytes": made[0].stat().st_size / 1e6, "seconds": time.monotonic() - start}


# ---- for people -----------------------------------------------------------------------------------------------------


def table(header: List[str], rows: List[List[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def with_error(value: Dict[str, float], scale: float = 1.0) -> str:
    return f"{scale * value['median']:.2f} ± {scale * value['within']:.2f}"


def model_table(about: Dict[str, Any], missing: Dict[str, str]) -> str:
    rows = []
    base = about["ways"]["none"]["step_ms"]["median"]
    for way, row in about["ways"].items():
        ratio = "" if "at_least" not in row else ("> " if row["at_least"] else "") + f"{row['best_ddp_over_this']:.2f}"
        same = "" if way.startswith("none") else f"{row['apart']:.1e}"
        share = "" if way == "none" else f"{100 * row['exposed_ms']['median'] / base:.1f} %"
        exposed = "" if way == "none" else with_error(row["exposed_ms"])
        name = {"none": "without communication", "none again": "the same again"}.get(way, way)
        rows.append([name, with_error(row["step_ms"]), exposed, share, ratio, same])
    rows += [[way, f"not measured: {why}", "", "", "", ""] for way, why in missing.items()]
    return table(
        ["", "step, ms", "exposed, ms", "of a step without", "DDP's best / this", "parameters apart by"], rows
    )


def markdown(run: Dict[str, Any]) -> str:
    """The whole result as a page."""
    about = ", ".join(f"{key} {value}" for key, value in run["machine"].items())
    parts = [
        "# Training steps of PyTorch\n",
        f"{run['date']}, {about}, commit `{run['commit']}`, command `{run['command']}`.\n",
        f"{run['ranks']} processes with one thread each, CPUs {' and '.join(map(str, run['cpus']))}; "
        + ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        + f". Started by `{run['launcher']}`. Variables: {run['variables'] or 'none'}.\n",
        f"Medians over {run['settings']['rounds']} rounds after {run['settings']['warmup']} to get warm, of the "
        "slowest rank; in each round one step in each way, in changing order. Exposed: what a step takes longer than "
        "the mean of two without communication in its round; behind ± twice the standard error of a median. `the same "
        "again` shows what exposed means where there is nothing to expose. A ratio with > is bounded by that error. "
        "DDP has `gradient_as_bucket_view=True` and `broadcast_buffers=False`, its bucket of 25 MiB and others that "
        "are named. Parameters are those after the last step: their distance from those of the first way that "
        "communicates, as a part of how far training has moved these. Their bits are compared between ranks; what "
        "differs is told below.\n",
    ]
    for name, result in run["models"].items():
        model, gradients = name.split(", ")
        parts.append(
            f"## {MODELS[model]}, {GRADIENTS[gradients]}\n\n{result['parameters'] / 1e6:.1f} million parameters in {result['tensors']} tensors; "
            f"{result['sizes']}.\n"
        )
        parts.append(model_table(result, run["missing"]))
    rows = [[f"`{name}` of 8 bytes, median", f"{1e3 * value['median']:.1f} us"] for name, value in run["calls"].items()]
    if run["import_ms"]:
        rows.append(["`import hvd.torch` beyond PyTorch, median", f"{run['import_ms']['median']:.1f} ms"])
    if run["wheel"]:
        rows.append(["wheel", f"{run['wheel']['megabytes']:.2f} MB, built in {run['wheel']['seconds']:.0f} s"])
    if rows:
        parts.append("## Of the package\n")
        parts.append(table(["", "measured"], rows))
    if run["wrong"]:
        parts.append("## Wrong results\n\n" + "".join(f"* {text}\n" for text in run["wrong"]))
    return "\n".join(parts)


def write(folder: Path, run: Dict[str, Any], kind: str) -> None:
    """NAME.json and NAME.md, under a name that is not taken."""
    name = f"{run['date'][:10]}-{slug(run['machine']['cpu'])}-torch-step{kind}"
    number = 1
    while (path := folder / (name + (f"-{number}" if number > 1 else "") + ".json")).exists():
        number += 1
    try:
        path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(markdown(run), encoding="utf-8")
    except OSError as trouble:
        raise Failed(f"cannot write '{path}': {trouble.strerror}") from None
    print(path.with_suffix(".md"), file=sys.stderr)


def chosen(text: str, known: Tuple[str, ...]) -> Tuple[str, ...]:
    """Names with commas between, each of which is known."""
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no '{name}'; allowed: {', '.join(known)}")
    return names


def number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {low} to {high}")
        return int(text)

    return read


def options() -> argparse.Namespace:
    every_way = ("hvd", "hvd-views", "ddp", "horovod")
    parser = argparse.ArgumentParser(
        prog="bench/torch_step.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-n", "--ranks", type=number(1, 64), default=2, help="processes (default 2)")
    parser.add_argument("--rounds", type=number(1, 10000), default=15, help="steps in each way (default 15)")
    parser.add_argument("--warmup", type=number(0, 1000), default=3, help="steps before those (default 3)")
    parser.add_argument(
        "--models", type=lambda text: chosen(text, tuple(MODELS)), default=tuple(MODELS),
        help=f"of {','.join(MODELS)} (default all)",
    )
    parser.add_argument(
        "--gradients", type=lambda text: chosen(text, tuple(GRADIENTS)), default=tuple(GRADIENTS),
        help=f"between steps, of {','.join(GRADIENTS)}: made anew or zeroed (default all)",
    )
    parser.add_argument(
        "--ways", type=lambda text: chosen(text, every_way), default=every_way,
        help=f"of {','.join(every_way)} (default all)",
    )
    parser.add_argument(
        "--buckets", type=lambda text: tuple(map(number(1, 1024), text.split(","))), default=(4, 100),
        help="of DDP, in MiB, besides its default (default 4,100)",
    )
    parser.add_argument("--unbound", action="store_true", help="leave processes to the kernel: no core for each")
    parser.add_argument("--tiny", action="store_true", help="models of a few thousand parameters: to try this program")
    parser.add_argument("--steps-only", action="store_true", help="neither single calls nor the time of the import")
    parser.add_argument("--wheel", action="store_true", help="also build the wheel, for its size")
    parser.add_argument("--timeout", type=number(1, 3600), default=120, help="seconds for any one wait (default 120)")
    parser.add_argument(
        "--output", type=Path, nargs="?", const=ROOT / "bench" / "results",
        help="also write the numbers as JSON and Markdown into this folder (bench/results if none is named)",
    )
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output is not None and not (arguments.output.is_dir() and os.access(arguments.output, os.W_OK)):
        parser.error(f"--output: cannot write into '{arguments.output}'")
    return arguments


def main(arguments: argparse.Namespace) -> int:
    settings = Settings(
        arguments.ways, arguments.models, arguments.gradients, arguments.rounds, arguments.warmup, not arguments.steps_only,
        arguments.buckets, arguments.tiny, arguments.timeout,
    )
    imports = import_time(1 if settings.tiny else IMPORTS) if settings.package else None
    of_ranks, launcher = launch(settings, arguments.ranks, not arguments.unbound)
    built = None
    if arguments.wheel:
        with tempfile.TemporaryDirectory() as folder:
            built = wheel(Path(folder))
    models = {name: summarise([rank["models"][name] for rank in of_ranks]) for name in of_ranks[0]["models"]}
    calls = {
        name: middle(slowest([rank["calls"][name] for rank in of_ranks])) for name in of_ranks[0]["calls"]
    }
    now = datetime.datetime.now(datetime.timezone.utc)
    run = {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "machine": machine(),
        "commit": commit(),
        "command": shlex.join(["bench/torch_step.py", *sys.argv[1:]]),
        "launcher": shlex.join(launcher),
        "ranks": arguments.ranks,
        "cpus": [",".join(map(str, rank["cpus"])) for rank in of_ranks],
        "versions": of_ranks[0]["versions"],
        "variables": " ".join(
            f"{key}={value}"
            for key, value in sorted(os.environ.items())
            if key.startswith(("HVD_", "HOROVOD_", "GLOO_"))
        ),
        "settings": asdict(settings),
        "models": models,
        "missing": of_ranks[0]["missing"],
        "calls": calls,
        "import_ms": imports,
        "wheel": built,
        "wrong": wrong(models, arguments.ranks),
    }
    print(markdown(run), end="")
    if arguments.output:
        write(arguments.output, run, "-tiny" if arguments.tiny else "")
    for text in run["wrong"]:
        print(f"bench/torch_step.py: {text}", file=sys.stderr)
    return 1 if run["wrong"] else 0


if __name__ == "__main__":
    given = options()
    try:
        if given.work is not None:
            work(given.work)
        else:
            children.heed_signals()
            sys.exit(main(given))
    except Failed as trouble:
        sys.exit(f"bench/torch_step.py: {trouble}")
    except children.Interrupted as interrupted:
        sys.exit(interrupted.code)
