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
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support import RESULTS, ROOT, children  # noqa: E402
from support.options import can_write, whole  # noqa: E402
from support.where import free_name, name_of, origin, write_whole  # noqa: E402
from training.report import GRADIENTS, MODELS, markdown, middle, slowest, summarise, wrong  # noqa: E402
from training.settings import Failed, Settings  # noqa: E402
from training.ways import real_horovod  # noqa: E402

IMPORTS = 5  # how often the time of the import is taken


def launch(settings: Settings, ranks: int, bound: bool) -> tuple[list[dict[str, Any]], list[str]]:
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
        said: list[str] = []
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


def import_time(times_taken: int) -> dict[str, float]:
    """Milliseconds of `import hvd.torch` where torch is imported already, in processes of their own."""
    text = "import torch, time; t = time.perf_counter(); import hvd.torch; print(time.perf_counter() - t)"
    times = []
    for _ in range(times_taken):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed((done.stderr.splitlines() or ["`import hvd.torch` failed"])[-1])
        times.append(1e3 * float(done.stdout))
    return {"median": statistics.median(times), "most": max(times)}


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


def write(folder: Path, run: dict[str, Any], kind: str) -> None:
    """NAME.json and NAME.md, under a name that is not taken."""
    path = folder / (free_name(name_of(run, "torch-step" + kind), folder) + ".json")
    try:
        write_whole(path, json.dumps(run, indent=1) + "\n")
        write_whole(path.with_suffix(".md"), markdown(run))
    except OSError as trouble:
        raise Failed(f"cannot write '{path}': {trouble.strerror}") from None
    print(path.with_suffix(".md"), file=sys.stderr)


def names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """What reads names with commas between, each of which is known."""

    def read(text: str) -> tuple[str, ...]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no '{name}'; allowed: {', '.join(known)}")
        return tuple(text.split(","))

    return read


def number(low: int, high: int) -> Callable[[str], int]:
    return whole(low, high, "is no whole number from")


def options() -> argparse.Namespace:
    every_way = ("hvd", "hvd-views", "ddp", "horovod")
    parser = argparse.ArgumentParser(
        prog="bench/torch_step.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-n", "--ranks", type=number(1, 64), default=2, help="processes (default 2)")
    parser.add_argument("--rounds", type=number(1, 10000), default=15, help="steps in each way (default 15)")
    parser.add_argument("--warmup", type=number(0, 1000), default=3, help="steps before those (default 3)")
    parser.add_argument(
        "--models", type=names(MODELS), default=tuple(MODELS),
        help=f"of {','.join(MODELS)} (default all)",
    )
    parser.add_argument(
        "--gradients", type=names(GRADIENTS), default=tuple(GRADIENTS),
        help=f"between steps, of {','.join(GRADIENTS)}: made anew or zeroed (default all)",
    )
    parser.add_argument(
        "--ways", type=names(every_way), default=every_way,
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
        "--output", type=Path, nargs="?", const=RESULTS,
        help="also write the numbers as JSON and Markdown into this folder (bench/results if none is named)",
    )
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output is not None and not can_write(arguments.output):
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
    run = {
        **origin("bench/torch_step.py", *sys.argv[1:]),
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
            from training.rank import work

            work(given.work)
        else:
            children.heed_signals()
            sys.exit(main(given))
    except Failed as trouble:
        sys.exit(f"bench/torch_step.py: {trouble}")
    except children.Interrupted as interrupted:
        sys.exit(interrupted.code)
