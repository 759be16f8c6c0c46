"""Shared by the programs in Python: options, ranks, times of imports, files."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support import RESULTS, ROOT, children
from support.options import can_write, whole as number
from support.texts import write_whole
from support.where import free_name, name_of, origin
from training.settings import Failed

HOROVOD_CYCLE_TIME = "0.1"  # ms; its best setting for one host, on which the default of 1 ms only adds waiting


def real_horovod() -> str | None:
    """The version of the installed Horovod; None without one, or if the package of that name is hvd's."""
    try:
        about = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    return None if about.version.endswith("+hvd") else about.version


def names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """A function that reads known names with commas between."""

    def read(text: str) -> tuple[str, ...]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no '{name}'; allowed: {', '.join(known)}")
        return tuple(text.split(","))

    return read


def plain_parser(prog: str, description: str | None, tiny: str) -> argparse.ArgumentParser:
    """A parser with the options of all programs; `tiny`: what --tiny measures."""
    made = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--tiny", action="store_true", help=f"{tiny}: to try this program")
    made.add_argument(
        "--output", type=Path, nargs="?", const=RESULTS,
        help="also write the numbers as JSON and Markdown into this folder (bench/results if none is named)",
    )
    return made


def parser(prog: str, description: str | None, ways: tuple[str, ...]) -> argparse.ArgumentParser:
    """A parser with the options of programs that measure steps."""
    made = plain_parser(prog, description, "models of a few thousand parameters")
    made.add_argument("-n", "--ranks", type=number(1, 64), default=2, help="processes (default 2)")
    made.add_argument("--rounds", type=number(1, 10000), default=15, help="steps in each way (default 15)")
    made.add_argument("--warmup", type=number(0, 1000), default=3, help="steps before those (default 3)")
    made.add_argument("--ways", type=names(ways), default=ways, help=f"of {','.join(ways)} (default all)")
    made.add_argument("--unbound", action="store_true", help="let the kernel place processes, not one on each core")
    made.add_argument("--steps-only", action="store_true", help="no single calls, and no time of the import")
    made.add_argument("--timeout", type=number(1, 3600), default=120, help="seconds for each wait (default 120)")
    made.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return made


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line; ends the program if it is wrong."""
    arguments = made.parse_args()
    if arguments.output is not None and not can_write(arguments.output):
        made.error(f"--output: cannot write into '{arguments.output}'")
    return arguments


def launch(
    program: str, settings: Any, ranks: int, bound: bool, variables: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Starts the program's ranks with these settings, a dataclass, and variables of the environment. Returns the
    results of each rank, and the launcher's command."""
    with tempfile.TemporaryDirectory(prefix="hvd-steps-") as name:
        folder = Path(name)
        (folder / "settings.json").write_text(json.dumps(asdict(settings)), encoding="utf-8")
        (folder / "barrier").write_bytes(bytes(64 * ranks))
        words = [sys.executable, str(ROOT / program), "--work", name]
        if "horovod" in settings.ways and real_horovod() is not None:  # its ranks need its own launcher
            launcher = ["horovodrun", "-np", str(ranks), *(["--binding-args", "-bind-to core"] if bound else [])]
        else:
            launcher = [sys.executable, "-m", "hvd.launcher.main", "-np", str(ranks)]
            launcher += ["--binding-args", f"-bind-to {'core' if bound else 'none'}"]
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "HVD_JOB": folder.name, "HVD_TIMEOUT": f"{settings.timeout:g}",
            **variables,
        }
        said: list[str] = []
        try:
            code, errors = children.run(
                [*launcher, *words], said.append, silence=None, env=environment, cwd=ROOT
            )
        except OSError as trouble:
            raise Failed(f"cannot start {launcher[0]}: {trouble.strerror}") from None
        files = [folder / f"rank-{rank}.json" for rank in range(ranks)]
        if code != 0 or not all(file.exists() for file in files):
            lines = [line for line in [*said, *errors.splitlines()] if line.strip()]
            raise Failed("\n".join([f"the ranks ended with exit code {code}:", *lines[-25:]]))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files], [Path(launcher[0]).name, *launcher[1:]]


def import_time(module: str, after: str, times_taken: int) -> dict[str, float]:
    """Milliseconds of importing a module after another one, in new processes."""
    text = f"import {after}, time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    times = []
    for _ in range(times_taken):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed((done.stderr.splitlines() or [f"`import {module}` failed"])[-1])
        times.append(1e3 * float(done.stdout.splitlines()[-1]))
    return {"median": statistics.median(times), "most": max(times)}


def about(
    program: str, ranks: int, settings: Any, of_ranks: list[dict[str, Any]], launcher: list[str],
    prefixes: tuple[str, ...],
) -> dict[str, Any]:
    """The first keys of every result; of the environment, variables with these prefixes."""
    return {
        **origin(program, *sys.argv[1:]),
        "launcher": shlex.join(launcher),
        "ranks": ranks,
        "cpus": [",".join(map(str, rank["cpus"])) for rank in of_ranks],
        "versions": of_ranks[0]["versions"],
        "variables": variables(prefixes),
        "settings": asdict(settings),
    }


def variables(prefixes: tuple[str, ...]) -> str:
    """Environment variables with these prefixes, as text."""
    return " ".join(f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith(prefixes))


def finish(program: str, run: dict[str, Any], page: str, kind: str, arguments: argparse.Namespace) -> int:
    """Prints the page, writes it and the run under a free name, and reports errors. Returns the exit code."""
    print(page, end="")
    if arguments.output:
        name = name_of(run, kind, *(["tiny"] if arguments.tiny else []))
        path = arguments.output / (free_name(name, arguments.output) + ".json")
        try:
            write_whole(path, json.dumps(run, indent=1) + "\n")
            write_whole(path.with_suffix(".md"), page)
        except OSError as trouble:
            raise Failed(f"cannot write '{path}': {trouble.strerror}") from None
        print(path.with_suffix(".md"), file=sys.stderr)
    for text in run["wrong"]:
        print(f"{program}: {text}", file=sys.stderr)
    return 1 if run["wrong"] else 0


def start(
    program: str, arguments: argparse.Namespace, main: Callable[[argparse.Namespace], int], rank: str = ""
) -> None:
    """Runs the program, or one of its ranks by the module `rank`, which may load PyTorch, and ends it."""
    try:
        if rank and arguments.work is not None:
            importlib.import_module(rank).work(arguments.work)
        else:
            children.heed_signals()
            sys.exit(main(arguments))
    except Failed as trouble:
        sys.exit(f"{program}: {trouble}")
    except children.Interrupted as interrupted:
        sys.exit(interrupted.code)
    except KeyboardInterrupt:  # from a handler that a library has set meanwhile
        sys.exit(128 + signal.SIGINT)
