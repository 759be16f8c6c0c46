#!/usr/bin/env python3
"""Measures the collectives of tensor parallelism: sums of tensors one after another, and tokens of a model.

Processes sum bfloat16 and float32 tensors of the sizes of a model with 7 billion parameters: from Python through
torch.distributed on hvd and on Gloo and through DeepSpeed's operator, and from C++ with hvd-bench. Then a Llama, spread
over the processes, generates text on both backends. All ways take turns in the same processes, and results are
compared. Needs the package hvd, PyTorch and transformers (tools/setup --python). DeepSpeed's sources are those that
tools/setup --bench fetches, and hvd-bench is the one in build/bench.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support import children  # noqa: E402
from tensor_parallelism import compiled, deepspeed_op  # noqa: E402
from tensor_parallelism.page import markdown  # noqa: E402
from tensor_parallelism.report import means, ratios, summarise_calls, summarise_tokens, wrong  # noqa: E402
from tensor_parallelism.settings import DECODING, PARTS, PREFILL, TYPES, WAYS, Settings  # noqa: E402
from training import program  # noqa: E402
from training.settings import Failed  # noqa: E402

PROGRAM = "bench/tensor_parallel.py"
TINY_SIZES = (DECODING[1], PREFILL[0])
# Variables that affect how a rank waits, which readers of a result may want to know.
PREFIXES = ("HVD_", "HOROVOD_", "GLOO_", "DS_", "OMP_")


def size(text: str) -> int:
    """Bytes, such as 4096, 4K or 1M."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("K", "M") else (text, "")
    if not number.isdigit() or not 4 <= int(number) << {"": 0, "K": 10, "M": 20}[unit] <= 1 << 30:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size from 4 to 1024M")
    bytes_ = int(number) << {"": 0, "K": 10, "M": 20}[unit]
    if bytes_ % max(TYPES.values()):
        raise argparse.ArgumentTypeError(f"'{text}' is not a multiple of 4 bytes")
    return bytes_


def options() -> argparse.Namespace:
    parser = program.plain_parser(PROGRAM, __doc__, "two sizes and a model with 100,000 parameters")
    parser.add_argument("-n", "--ranks", type=program.number(1, 64), default=2, help="processes (default 2)")
    parser.add_argument(
        "--parts", type=program.names(PARTS), default=tuple(PARTS),
        help="\n".join([f"of {','.join(PARTS)} (default all):", *(f"{name}: {what}" for name, what in PARTS.items())]),
    )
    parser.add_argument(
        "--ways", type=program.names(WAYS), default=tuple(WAYS), help=f"of {','.join(WAYS)} (default all)"
    )
    parser.add_argument(
        "--types", type=program.names(TYPES), default=tuple(TYPES), help=f"of {','.join(TYPES)} (default all)"
    )
    parser.add_argument(
        "--sizes", type=lambda text: tuple(map(size, text.split(","))),
        help="in bytes, such as 8K,1M (default 4 to 64 KiB and 1 to 32 MiB, by powers of 2)",
    )
    parser.add_argument(
        "--rounds", type=program.number(1, 10000), default=15, help="blocks of calls in each way (default 15)"
    )
    parser.add_argument("--warmup", type=program.number(0, 1000), default=2, help="blocks before those (default 2)")
    parser.add_argument(
        "--texts", type=program.number(1, 1000), default=10, help="texts generated in each way (default 10)"
    )
    parser.add_argument("--tokens", type=program.number(1, 512), help="tokens of each text (default 32)")
    parser.add_argument("--unbound", action="store_true", help="let the kernel place processes, not one on each core")
    parser.add_argument(
        "--timeout", type=program.number(1, 3600), default=120, help="seconds for each wait (default 120)"
    )
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return program.parsed(parser)


def build_deepspeed() -> tuple[str, str]:
    """Compiles DeepSpeed's operator if necessary. Returns its library, or why there is none."""
    if why := deepspeed_op.why_not():
        return "", why
    lines: list[str] = []
    if sys.stderr.isatty():
        print(f"{PROGRAM}: compiling DeepSpeed's operator takes about a minute the first time", file=sys.stderr)
    try:
        code, errors = children.run(
            [sys.executable, deepspeed_op.__file__], lines.append, silence=deepspeed_op.COMPILE_SECONDS
        )
    except children.Silent:
        return "", f"its operator was not compiled within {deepspeed_op.COMPILE_SECONDS} s"
    if code != 0:
        said = [line for line in [*lines, *errors.splitlines()] if "error" in line.lower()]
        return "", f"its operator could not be compiled: {(said or ['no reason given'])[0].strip()}"
    return lines[-1], ""


def main(arguments: argparse.Namespace) -> int:
    parts = arguments.parts
    for name in ("torch", "hvd"):
        if importlib.util.find_spec(name) is None:
            raise Failed(f"{name} is not installed (tools/setup --python and docs/python.md)")
    library, why = build_deepspeed() if "calls" in parts and "deepspeed" in arguments.ways else ("", "")
    ways = tuple(way for way in arguments.ways if not (why and way == "deepspeed"))
    settings = Settings(
        parts, ways, arguments.types, arguments.sizes or (TINY_SIZES if arguments.tiny else (*DECODING, *PREFILL)),
        arguments.rounds, arguments.warmup, arguments.texts, arguments.tokens or (4 if arguments.tiny else 32), library,
        tuple(sorted(os.sched_getaffinity(0))), arguments.tiny, arguments.timeout,
    )
    of_ranks, launcher = program.launch(PROGRAM, settings, arguments.ranks, not arguments.unbound, {})
    from_cpp = None
    if "compiled" in parts:
        with tempfile.TemporaryDirectory(prefix="hvd-sums-") as folder:
            from_cpp = compiled.measure(settings, arguments.ranks, not arguments.unbound, Path(folder))
    calls = summarise_calls([rank["calls"] for rank in of_ranks])
    tokens = summarise_tokens([rank["tokens"] for rank in of_ranks])
    found = ratios(calls, from_cpp)
    missing = {WAYS[way]: reason for way, reason in of_ranks[0]["missing"].items()}
    if why:
        missing[WAYS["deepspeed"]] = why
    if from_cpp and from_cpp["missing"]:
        missing["C++"] = from_cpp["missing"]
    if library:
        of_ranks[0]["versions"]["deepspeed"] = deepspeed_op.version()
    run = {
        **program.about(PROGRAM, arguments.ranks, settings, of_ranks, launcher, PREFIXES),
        "calls": calls,
        "compiled": from_cpp,
        "tokens": tokens,
        "ratios": found,
        "means": means(found),
        "missing": missing,
        "wrong": wrong(calls, from_cpp, tokens),
    }
    run["settings"]["deepspeed"] = os.path.basename(library)
    return program.finish(PROGRAM, run, markdown(run), "tensor-parallel", arguments)


if __name__ == "__main__":
    program.start(PROGRAM, options(), main, "tensor_parallelism.rank")
