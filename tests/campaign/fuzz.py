#!/usr/bin/env python3
"""Every parser under libFuzzer: those in C++ with the address and undefined-behaviour sanitizers of Clang 16, those in
Python with atheris.

A parser is a file tests/campaign/fuzz/NAME.cpp or a function of tests/campaign/fuzz/parsers.py, where it says what counts
as a finding. It begins with the inputs in tests/campaign/corpus/NAME, among them all that were ever found. Harnesses are
built into build/campaign/fuzz when they are older than their sources. The input of a finding is kept there, and the
command that runs it again is printed.
"""

import argparse
import concurrent.futures
import glob
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = HERE / "fuzz"
BUILT = ROOT / "build" / "campaign" / "fuzz"
VENV = ROOT / ".venv" / "bin" / "python3"
COMPILER = "clang++-16"
RUNTIME = "/usr/lib/llvm-16/lib/clang/16*/lib/linux/libclang_rt.fuzzer-*.a"
FLAGS = ["-std=c++20", "-g1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-pthread"]
NOT_OPTIMISED = ("request",)  # the kernels of all types, which take half a minute otherwise
MOST = 3  # findings of one parser, after which it is left alone
SKIPPED = 77
LIMITS = [
    "-max_len=1024",  # bytes of an input; what parsers allocate must be in proportion (sanitizer_options)
    "-rss_limit_mb=2048",
    "-timeout=60",  # seconds, on a machine with much else to do
    "-detect_leaks=0",  # not after each input, which is slow where threads live on
    "-print_final_stats=1",
]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seconds", type=float, default=20, metavar="N", help="for all parsers together (default 20)")
    parser.add_argument("--inputs", type=int, metavar="N", help="so many for each parser, however long that takes")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="default 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where counters and findings go")
    parser.add_argument("--language", choices=("c++", "python"), help="only the parsers in this one")
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help=f"of {', '.join(in_cpp() + in_python())}")
    options = parser.parse_args()
    start = time.monotonic()

    chosen = options.parsers or in_cpp() + in_python()
    unknown = set(chosen) - set(in_cpp()) - set(in_python())
    if unknown:
        parser.error(f"there is no parser {', '.join(sorted(unknown))}")
    if options.language:
        chosen = [name for name in chosen if (name in in_cpp()) == (options.language == "c++")]
    left_out = {}
    for names, missing in ((in_cpp(), no_clang()), (in_python(), no_atheris())):
        left_out |= {name: missing for name in chosen if missing and name in names}
    for reason in dict.fromkeys(left_out.values()):
        print(f"SKIP: {', '.join(name for name in left_out if left_out[name] == reason)}: {reason}")
    chosen = [name for name in chosen if name not in left_out]
    if not chosen:
        return SKIPPED

    with concurrent.futures.ThreadPoolExecutor(2) as compilers:
        commands = dict(zip(chosen, compilers.map(command_of, chosen)))
    inputs, findings = {}, []
    until = time.monotonic() + options.seconds
    for number, name in enumerate(chosen):
        share = max(1.0, (until - time.monotonic()) / (len(chosen) - number))
        inputs[name], found = fuzz(name, commands[name], options.seed, share, options.inputs)
        findings += found
    result = {
        "part": "fuzz",
        "seed": options.seed,
        "seconds": round(time.monotonic() - start, 1),
        "rounds": len(chosen),
        "inputs": inputs,
        "rows": {name: {"inputs": count} for name, count in inputs.items()},  # of the report
        "skipped": sorted(f"{name}: {why}" for name, why in left_out.items()),
        "findings": findings,
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"fuzz: {sum(inputs.values())} inputs: " + ", ".join(f"{name} {n}" for name, n in inputs.items()))
    print(f"fuzz: {len(chosen)} rounds, {len(findings)} findings")
    return 1 if findings else 0


def in_cpp():
    return sorted(path.stem for path in SOURCES.glob("*.cpp"))


def in_python():
    source = SOURCES / "parsers.py"
    return re.findall(r"^@parser\ndef (\w+)", source.read_text(), re.MULTILINE) if source.exists() else []


def no_clang():
    """Why parsers in C++ cannot run; nothing if they can."""
    if not shutil.which(COMPILER) or not glob.glob(RUNTIME):
        return "no Clang 16 with libFuzzer here (Debian: clang-16 and libclang-rt-16-dev)"
    return ""


def interpreter():
    """The Python that has atheris: this one, or that of the checkout."""
    return sys.executable if importlib.util.find_spec("atheris") or not VENV.exists() else str(VENV)


def no_atheris():
    """Why parsers in Python cannot run; nothing if they can."""
    wanted = "import atheris, yaml, numpy, cloudpickle"
    done = subprocess.run([interpreter(), "-c", wanted], capture_output=True, text=True)
    if done.returncode != 0:
        return f"{done.stderr.strip().splitlines()[-1]} (tools/setup --python)"
    return ""


def command_of(name):
    """What runs the harness of a parser, built if it is out of date."""
    if name not in in_cpp():
        return [interpreter(), str(SOURCES / "parsers.py"), name]
    program, depends = BUILT / name, BUILT / f"{name}.d"
    BUILT.mkdir(parents=True, exist_ok=True)
    flags = [*FLAGS, "-O0" if name in NOT_OPTIMISED else "-O1"]
    line = [COMPILER, *flags, f"-I{ROOT / 'include'}", f"-I{ROOT}", str(SOURCES / f"{name}.cpp")]
    if out_of_date(program, depends, line):
        done = subprocess.run([*line, "-MMD", "-MF", str(depends), "-o", str(program)], cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"fuzz: {name} does not compile")
        (BUILT / f"{name}.line").write_text(shlex.join(line))
    return ["env", *sanitizer_options(), str(program)]


def out_of_date(program, depends, line):
    written = BUILT / f"{program.name}.line"
    if not (program.exists() and depends.exists() and written.exists()) or written.read_text() != shlex.join(line):
        return True
    sources = depends.read_text().replace("\\\n", " ").partition(":")[2].split()
    made = program.stat().st_mtime
    return any(not os.path.exists(source) or os.path.getmtime(source) > made for source in sources)


def sanitizer_options():
    """What is too much for one allocation, and a symbolizer for readable stacks."""
    symbolizer = shutil.which("llvm-symbolizer-16") or shutil.which("addr2line")
    named = f":external_symbolizer_path={symbolizer}" if symbolizer else ""
    return [f"ASAN_OPTIONS=detect_leaks=0:max_allocation_size_mb=64{named}", "UBSAN_OPTIONS=print_stacktrace=1"]


def fuzz(name, command, seed, seconds, inputs):
    """Runs a harness for its time, or for so many inputs; how many it has had, and findings."""
    done, findings, known = 0, [], set()
    until = time.monotonic() + seconds
    found = BUILT / "found"
    found.mkdir(parents=True, exist_ok=True)
    while True:
        with tempfile.TemporaryDirectory(prefix="hvd-fuzz-", dir="/dev/shm") as fresh:
            span = [f"-runs={inputs - done}"] if inputs else [f"-max_total_time={max(1, round(until - time.monotonic()))}"]
            line = [*command, *LIMITS, f"-seed={seed + len(findings)}", *span, f"-artifact_prefix={found}/{name}-", f"{fresh}/new"]
            corpus = HERE / "corpus" / name
            line += [str(corpus)] if corpus.is_dir() else []
            os.mkdir(f"{fresh}/new")
            # What harnesses make there goes even where they crash.
            ended = subprocess.run(line, cwd=ROOT, env={**os.environ, "TMPDIR": fresh}, capture_output=True)
        text = ended.stderr.decode("utf-8", "replace")
        count = re.findall(r"^stat::number_of_executed_units:\s*(\d+)", text, re.MULTILINE)
        done += int(count[-1]) if count else 0
        if ended.returncode == 0:
            return done, findings
        what = reason(text) or f"exit code {ended.returncode}"
        artifact = re.findall(r"Test unit written to (\S+)", text)
        if known.issuperset(artifact) and known:
            return done, findings  # an input of the corpus, with which every run begins
        known.update(artifact)
        again = shlex.join([*command, *LIMITS, artifact[-1]] if artifact else line)
        findings.append({"what": f"{name}: {what}", "seed": seed + len(findings), "command": again})
        print(f"fuzz: FOUND: {name}: {what}\n  repeat: {again}\n{excerpt(text)}", flush=True)
        over = done >= inputs if inputs else time.monotonic() >= until
        if over or len(findings) == MOST or not artifact:
            return done, findings


def reason(text):
    for pattern in (r"^finding: (.*)", r"^(\w*Error: .*)", r"runtime error: (.*)", r"^SUMMARY: (.*)", r"ERROR: (.*)"):
        match = re.search(pattern, text, re.MULTILINE)
        if match:
            return match[1]
    return ""


def excerpt(text):
    """The lines that tell what happened, without the fuzzer's progress."""
    lines = [line for line in text.splitlines() if not re.match(r"#\d+\t|INFO:|\s*NEW_FUNC|stat::", line)]
    return "\n".join(f"  | {line}" for line in lines[:40])


if __name__ == "__main__":
    sys.exit(main())
