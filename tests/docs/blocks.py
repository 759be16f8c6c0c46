#!/usr/bin/env python3
"""Compiles and runs the code of README.md, bindings/python/README.md and the pages in docs/, and checks what they name.

A block marked `cpp` that has a main function is a program: it is compiled alone and run. Any other is a fragment: the
body of a function that two processes run. It has `comm` (their hvd::ShmTransport) and the vectors of float `grad`, `in`
and `out` of 1000 elements, and prints what rank 0 prints. All fragments of a page are compiled together. A comment
before a block changes that; its parts are separated by semicolons:

    <!-- block: file -->         declarations, which later fragments of the page use
    <!-- block: alone -->        a fragment that one process runs, without `comm`
    <!-- block: ranks 4 -->      more or fewer ranks
    <!-- block: env NAME=X -->   with a variable of the environment
    <!-- block: exit 1 9 -->     ends with one of these exit codes
    <!-- block: as NAME -->      a program that later blocks of `sh` run as ./NAME, instead of being run here
    <!-- block: run -->          a block of `sh` that is run and not only checked

A program that includes <hvd/transport/mpi.hpp> is compiled by MPICH's wrapper, and two ranks run it that MPICH starts.
A block of `sh` that is run finds MPICH's mpicxx and mpiexec under these names. Without MPICH a line says SKIP for each.

All but programs that the text after them builds by `g++` take the engine and the kernels from the library that --library
names, and <hvd/hvd.hpp>, where it is their first include, from a precompiled header: that takes a third of the time.

A program that includes <hvd/gpu.hpp> runs on the libraries that HVD_CUDA_LIBRARY and HVD_NCCL_LIBRARY name: the tests give it
their stand-ins for a GPU.

The next block, if it is marked `text`, is what the code prints; three dots in it stand for anything. So is what a
sentence "It prints `...`" right after a program says; "This is `FILE`" there says that the program is that file, letter
by letter.

What blocks marked `sh` and the text itself name must exist: programs, files, options. Options are looked for in what
`--help` prints, or in the sources of what is not built yet.

Blocks of `python`, and options of hvdrun, are left to bindings/python/tests/test_docs.py, which has the package.

Exit code: 0 if all is well, 1 if not, 2 for a page that is not there.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", "-pthread"]
HEADERS = "algorithm array chrono complex cstdio cstdlib iostream numeric string string_view thread vector".split()
TOOLS = set(". cd cmake cp exec export g++ gcc git hvdrun make meson mkdir mpicxx mpiexec ninja pip python python3 torchrun wait".split())
MPI_HEADER = "#include <hvd/transport/mpi.hpp>"
GPU_HEADER = "#include <hvd/gpu.hpp>"
# What mpiexec says of a rank that it killed because another one ended; it says nothing if that one's end comes first.
MPICH_REPORT = re.compile(r"\n=+\n=   BAD TERMINATION.*?\n=+\n.*?FAQ page[^\n]*", re.S)
TIMEOUT = 60

FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w+{}-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.M | re.S,
)
MARKER = re.compile(r"<!-- block: (?P<words>[^>]*?) -->\s*\Z")
PATHS = r"(?:bench|bindings|docs|examples|include|tests|tools)/(?:[\w./-]*[\w/])?|hvd/[\w/]+\.hpp"


class Problem(Exception):
    """Something that a page says and that is not so."""


@dataclass
class Block:
    page: Path
    line: int
    language: str
    text: str
    words: list = field(default_factory=list)  # of the comment before it
    output: str = None
    after: str = ""  # the sentences that follow it
    number: int = 0

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def says(self, word):
        return word in self.words

    def value(self, name, default):
        return next((word.split(None, 1)[1] for word in self.words if word.startswith(f"{name} ")), default)

    @property
    def environment(self):
        return dict(word.split(None, 1)[1].split("=", 1) for word in self.words if word.startswith("env "))

    @property
    def is_program(self):
        return re.search(r"\bint main\(", self.text) is not None

    @property
    def needs_mpi(self):
        if self.language == "sh":
            return self.says("run") and re.search(r"\bmpi(?:cxx|exec)\b", self.text) is not None
        return MPI_HEADER in self.text

    @property
    def needs_gpu(self):
        return GPU_HEADER in self.text and self.is_program


def read(page):
    """The blocks of a page."""
    text = page.read_text()
    blocks, last = [], None
    for i, match in enumerate(FENCE.finditer(text)):
        before = text[: match.start()]
        marker = MARKER.search(before)
        words = [word.strip() for word in marker["words"].split(";")] if marker else []
        known = r"file|alone|run|as [\w-]+|ranks \d+|exit \d+( \d+)*|env \w+=.*"
        block = Block(page, before.count("\n") + 2, match["language"], textwrap.dedent(match["text"]), words, number=i)
        for word in words:
            if not re.fullmatch(known, word):
                raise Problem(f"{block.place}: the comment before the block says '{word}', which means nothing here")
        if block.language == "text" and last is not None and last.output is None:
            last.output = block.text
        block.after = re.split(r"\n *```|\n#", text[match.end() :], maxsplit=1)[0]
        last = block if block.language in ("cpp", "sh", "python") else None
        blocks.append(block)
    return blocks, FENCE.sub("", text)


# ---- C++ -------------------------------------------------------------------------------------------------------------

START = """\
namespace {
template <class F>
int run_ranks(int ranks, F fragment) {
  return hvd::fork_run(ranks, [&](hvd::ShmTransport& comm) {
    if (comm.rank() != 0) std::freopen("/dev/null", "w", stdout) == nullptr ? std::abort() : void();
    fragment(comm);
  });
}
}  // namespace
"""


def together(blocks):
    """One source file of all fragments of a page."""
    includes = {f"#include <{name}>" for name in HEADERS}
    parts, cases = [], []
    for block in blocks:
        lines = block.text.splitlines()
        includes |= {line for line in lines if line.startswith("#include")}
        body = "\n".join("" if line.startswith("#include") else line for line in lines)
        body = f'#line {block.line} "{block.page.relative_to(ROOT)}"\n{body}\n'
        if block.says("file"):
            parts.append(body)
            continue
        name = f"fragment_{block.number}"
        if block.says("alone"):
            parts.append(f"static void {name}() {{\n{body}}}\n")
            cases.append(f"    case {block.number}: {name}(); return 0;")
        else:
            data = "  [[maybe_unused]] std::vector<float> grad(1000, 1.0f), in(1000, 1.0f), out(1000);\n"
            parts.append(f"static void {name}([[maybe_unused]] hvd::ShmTransport& comm) {{\n{data}{body}}}\n")
            cases.append(f"    case {block.number}: return run_ranks({block.value('ranks', 2)}, {name});")
    choice = ["int main(int, char** arguments) {", "  switch (std::atoi(arguments[1])) {", *cases, "  }"]
    main = "\n".join([*choice, "  return 99;", "}\n"])
    head = "\n".join(["#include <hvd/hvd.hpp>", *sorted(includes)])
    return "\n".join([head, START if "run_ranks(" in main else "", *parts, '#line 1 "blocks.py"', main])


def find_mpich():
    """MPICH's compiler wrapper and launcher; None where there is no MPICH. Debian has them beside those of others."""
    launcher = shutil.which("mpiexec.mpich")
    wrapper = shutil.which("mpicxx.mpich") or (shutil.which("mpichversion") and shutil.which("mpicxx"))
    return (wrapper, launcher) if launcher and wrapper else None


def bring_mpich(tools, compiler, folder):
    """Makes mpicxx and mpiexec in a folder of commands, which come before all others."""
    folder.mkdir()
    for name, command in zip(("mpicxx", "mpiexec"), tools):
        script = folder / name
        beneath = f"MPICH_CXX={shlex.quote(shlex.join(compiler))} " if name == "mpicxx" else ""
        script.write_text(f'#!/bin/sh\n{beneath}exec {shlex.quote(command)} "$@"\n')
        script.chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def precompile(compiler, library, folder):
    """Options for what takes hvd from the library, with hvd/hvd.hpp precompiled below the folder; GCC looks there itself."""
    (folder / "hvd").mkdir()
    header = folder / "all.hpp"
    header.write_text("#include <hvd/hvd.hpp>\n")
    quick = ["-DHVD_COMPILED=1", f"-I{folder}"]
    command = [*compiler, *quick, *OPTIONS, "-x", "c++-header", header, "-o", folder / "hvd/hvd.hpp.gch"]
    # Its 200 MB are for this run alone.
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "CCACHE_DISABLE": "1"})
    return [*quick, library]


def compile_source(text, name, folder, compiler, quick):
    source, program = folder / f"{name}.cpp", folder / name
    source.write_text(text)
    command = [*(["mpicxx"] if MPI_HEADER in text else compiler), source, *quick, *OPTIONS, "-o", program]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if result.returncode != 0:
        raise Problem(f"{name}: does not compile:\n{result.stderr.strip()}")
    return program


def compare(block, printed, expected):
    pattern = r"[^\n]*".join(re.escape(part) for part in expected.rstrip("\n").split("..."))
    if not re.fullmatch(pattern, printed.rstrip("\n")):
        raise Problem(
            f"{block.place}: the page promises\n{expected.rstrip()}\nand the code printed\n{printed.rstrip()}"
        )


def run(block, command, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HVD_", "HOROVOD_"))}
    libraries = ("HVD_CUDA_LIBRARY", "HVD_NCCL_LIBRARY")  # for blocks that need a GPU
    environment |= {name: os.environ[name] for name in libraries if name in os.environ and block.needs_gpu}
    environment |= block.environment
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise Problem(f"{block.place}: did not end within {TIMEOUT} s") from None
    wanted = block.value("exit", "0").split()
    if str(result.returncode) not in wanted:
        codes = f"{result.returncode}, not {' or '.join(wanted)}"
        raise Problem(f"{block.place}: ended with exit code {codes}:\n{result.stdout.strip()}")
    printed = MPICH_REPORT.sub("", result.stdout) if block.needs_mpi else result.stdout
    if block.output is not None:
        compare(block, printed, block.output)
    return printed


def check_program(block, program, folder):
    name = block.value("as", None)
    if name:
        shutil.copy(program, folder / "tree" / name)
    else:
        launcher = ["mpiexec", "-n", block.value("ranks", "2")] if block.needs_mpi else []
        printed = run(block, [*launcher, program], folder)
        said = re.search(r"It\s+prints `([^`]*)`", block.after)
        if said:
            compare(block, printed, said[1])
    same = re.search(r"This is `([^`]*)`", block.after)
    if same and (ROOT / same[1]).read_text() != block.text:
        raise Problem(f"{block.place}: differs from {same[1]}, which it says that it is")


# ---- names -----------------------------------------------------------------------------------------------------------


def must_exist(place, name):
    if name.startswith("hvd/"):
        name = f"include/{name}"
    if not (ROOT / name).exists():
        raise Problem(f"{place}: there is no {name}")


@lru_cache(maxsize=None)
def described_options(command):
    """The text in which the options of a program must be found."""
    if command.startswith("build/"):  # where they are declared: it need not be built yet
        return "\n".join(path.read_text() for path in sorted((ROOT / "bench").rglob("*.cpp")))
    return subprocess.run([ROOT / command, "--help"], capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT).stdout


def check_command(place, words, programs):
    while words and re.fullmatch(r"\w+=.*", words[0]):  # variables
        words = words[1:]
    if not words:
        return
    command = words[0].removeprefix("./")
    if words[0] == f"./{command}" and command in programs:
        return
    if "/" in command and not command.startswith(("/", "~", "build/")):
        must_exist(place, command)
    elif "/" not in command and command not in TOOLS:
        raise Problem(f"{place}: what is {command}?")
    ours = command.startswith(("tools/", "bench/", "build/bench/"))
    for word in words[1:]:
        option = re.match(r"--?[a-zA-Z][\w-]*", word)
        if ours and option and not re.search(rf"(?<![\w-]){re.escape(option[0])}(?![\w-])", described_options(command)):
            raise Problem(f"{place}: {command} has no option {option[0]}")
        setting = re.match(r"-D(tests|examples|bench|\w+)=", word)
        if command == "meson" and setting and f"option('{setting[1]}'" not in (ROOT / "meson.options").read_text():
            raise Problem(f"{place}: meson.options has no option {setting[1]}")
        if re.fullmatch(PATHS, word):
            must_exist(place, word)


def check_shell(block, folder, programs, only_names=False):
    for i, line in enumerate(block.text.replace("\\\n", "  ").splitlines()):
        words = shlex.split(line, comments=True)
        while words:
            end = next((j for j, word in enumerate(words) if word in ("&&", "||", "|", ";", "&")), len(words))
            check_command(f"{block.page.relative_to(ROOT)}:{block.line + i}", words[:end], programs)
            words = words[end + 1 :]
    if block.says("run") and not only_names:
        run(block, ["bash", "-e", "-c", block.text], folder)


def check_names(page, prose):
    """Files that the text names as code, or links to."""
    generated = re.sub(r"<!-- table: .*?<!-- end -->", "", prose, flags=re.S)
    for name in re.findall(rf"`<?({PATHS})>?`", generated):
        must_exist(page.relative_to(ROOT), name)
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", generated):  # what lies behind a # the site's test checks
        if not (page.parent / link).exists():
            raise Problem(f"{page.relative_to(ROOT)}: the link {link} leads nowhere")


def check_variables():
    """docs/variables.md names each variable that the library and its Python package read, and no other."""
    quoted = r'"((?:HVD|HOROVOD)_[A-Z0-9_]*[A-Z0-9])"'
    files = [path for folder in ("include", "c", "bindings/python/src") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text() for path in files if path.suffix in (".hpp", ".h", ".cpp", ".py")]
    read = set(re.findall(quoted, "".join(texts)))
    named = set(re.findall(r"`((?:HVD|HOROVOD)_[A-Z0-9_]+)`", (ROOT / "docs/variables.md").read_text()))
    if read != named:
        raise Problem(f"docs/variables.md: not named: {sorted(read - named)}; read by nobody: {sorted(named - read)}")


# ---- all -------------------------------------------------------------------------------------------------------------


def attempt(problems, what, *arguments):
    try:
        return what(*arguments)
    except Problem as problem:
        problems.append(str(problem))
        return None


def check(pages, compiler, library, folder):
    """Returns sentences about what is wrong, and how many blocks there were."""
    problems, count, jobs = [], 0, {}  # jobs: source text to name and blocks
    shells, skipped = [], []
    mpich = find_mpich()
    if mpich:
        bring_mpich(mpich, compiler, folder / "commands")
    for page in pages:
        found = attempt(problems, read, page)
        if found is None:
            continue
        blocks, prose = found
        attempt(problems, check_names, page, prose)
        count += sum(block.language in ("cpp", "sh") for block in blocks)
        if not mpich:
            skipped += [block for block in blocks if block.needs_mpi]
        shells += [block for block in blocks if block.language == "sh"]
        if not os.environ.get("HVD_CUDA_LIBRARY"):
            skipped += [block for block in blocks if block.needs_gpu]
        code = [block for block in blocks if block.language == "cpp" and block not in skipped]
        fragments = [block for block in code if not block.is_program]
        for block in code:
            if block.is_program:
                jobs.setdefault(block.text, (f"program_{len(jobs)}", []))[1].append(block)
        if fragments:
            jobs[together(fragments)] = (f"{page.stem}_fragments", [b for b in fragments if not b.says("file")])
    attempt(problems, check_variables)
    # A place from which commands see the tree, and in which they may write.
    place = folder / "tree"
    place.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git"):
            (place / entry.name).symlink_to(entry)

    quick = precompile(compiler, library, folder) if library and jobs else []

    def one(job):
        text, (name, blocks) = job
        by_hand = any(block.is_program and "`g++ " in block.after for block in blocks)
        program = attempt(problems, compile_source, text, name, folder, compiler, [] if by_hand else quick)
        for block in blocks if program else []:
            if block.is_program:
                attempt(problems, check_program, block, program, folder)
            else:
                attempt(problems, run, block, [program, str(block.number)], folder)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, jobs.items()))
        # Programs of the pages: built under a name, or by a command such as `g++ ... -o NAME`.
        names = {block.value("as", None) for _, blocks in jobs.values() for block in blocks}
        names |= {name for block in shells for name in re.findall(r" -o (\w+)", block.text)}
        list(pool.map(lambda block: attempt(problems, check_shell, block, place, names, block in skipped), shells))
    for block in skipped:
        why = "no MPICH (mpicxx.mpich and mpiexec.mpich), which tools/setup --bench installs"
        if block.needs_gpu:
            why = "no GPU, and HVD_CUDA_LIBRARY names no stand-in for one, as the tests' own run does"
        print(f"SKIP: {block.place}: {why}")
    return problems, count - len(skipped)


def check_itself():
    """Mistakes are found: each of these must be a Problem."""
    page = ROOT / "docs" / "none.md"
    block = Block(page, 1, "cpp", "")
    compare(block, "rank 3 of 4\nsum 6\n", "rank ... of 4\nsum 6\n")
    check_command("", ["tools/test", "--quick"], set())
    mistakes = [
        (compare, block, "sum 6\n", "sum 5\n"),
        (compare, block, "rank 3\nsum 6\n", "rank ...\n"),  # dots end with the line
        (check_command, "", ["tools/test", "--no-such-option"], set()),
        (check_command, "", ["tools/no_such_tool"], set()),
        (check_command, "", ["g++", "examples/no_such_file.cpp"], set()),
        (check_command, "", ["meson", "setup", "-Dno_such_option=1"], set()),
        (check_names, page, "look at `tests/no_such_test.cpp`"),
        (check_names, page, "look [there](../no_such_page.md)"),
        (run, Block(page, 1, "sh", ""), ["false"], ROOT),
    ]
    for what, *arguments in mistakes:
        if attempt([], lambda: what(*arguments) or True) is not None:
            raise AssertionError(f"{what.__name__}{tuple(arguments)} found nothing")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compiler = os.environ.get("CXX", "g++")
    parser.add_argument("--compiler", default=compiler, help="command of the compiler (default: $CXX or g++)")
    parser.add_argument("--library", type=os.path.abspath, help="libhvd-compiled.a of a build (default: all from the headers)")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="pages to check (default: all)")
    arguments = parser.parse_args()
    everything = [ROOT / "README.md", ROOT / "bindings/python/README.md", *sorted((ROOT / "docs").glob("*.md"))]
    pages = [page.resolve() for page in arguments.pages] or everything
    for page in pages:
        if not page.is_file() or not page.is_relative_to(ROOT):
            print(f"blocks.py: {page} is no page of this tree", file=sys.stderr)
            return 2
    check_itself()
    folder = Path(tempfile.mkdtemp(prefix="hvd-blocks-"))
    try:
        problems, count = check(pages, shlex.split(arguments.compiler), arguments.library, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{count} blocks on {len(pages)} pages, {len(problems)} problems")
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main())
