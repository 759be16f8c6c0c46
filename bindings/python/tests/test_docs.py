"""The pages about Python say what is so: their code runs, and prints what they promise; options and variables exist.

The blocks of `python` of a page are one program, which two ranks run under hvdrun from top to bottom, after rank 0's
output. One with the comment `<!-- block: alone -->` before it is a program of its own, without a launcher, and one with
`<!-- block: as NAME -->` a program that a test of its own runs. How blocks are read, and how a block of `text` is
compared with what was printed, is that of tests/docs/blocks.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hvd.launcher import function, options, settings

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["README.md", "bindings/python/README.md", "docs/integrations.md", "docs/jax.md", "docs/python.md",
         "docs/tensorflow.md", "docs/timeline.md", "docs/torch_distributed.md"]
if not (ROOT / "tests/docs/blocks.py").exists():
    pytest.skip("the pages are not part of this distribution", allow_module_level=True)

MARK = "\x1e"  # in the output, before what the block of this line prints


def load_blocks() -> ModuleType:
    """tests/docs/blocks.py, as a module."""
    spec = importlib.util.spec_from_file_location("hvd_docs_blocks", ROOT / "tests/docs/blocks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


BLOCKS = load_blocks()


def blocks_of(page: str, language: str) -> list[Any]:
    """The blocks of a page in one language."""
    return [block for block in BLOCKS.read(ROOT / page)[0] if block.language == language]


def program_of(blocks: list[Any]) -> str:
    """The blocks as one program, in which each has the lines that it has on the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 2 - len(lines))
        lines += [f'print("{MARK}{block.line}", flush=True)', *block.text.splitlines()]
    return "\n".join([*lines, ""])


def run(command: list[str]) -> str:
    """What a command prints, which ends well."""
    launcher = ("HVD_", "HOROVOD_", "PMI_", "PMIX_", "OMPI_", "SLURM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outputs(printed: str) -> dict[int, str]:
    """What each block has printed, by its line."""
    parts = [part.split("\n", 1) for part in printed.split(MARK)[1:]]
    return {int(line): text for line, text in parts}


def compare(blocks: list[Any], found: dict[int, str]) -> None:
    """A block prints what the page promises, and nothing where it promises nothing."""
    assert sorted(found) == [block.line for block in blocks]
    for block in blocks:
        BLOCKS.compare(block, found[block.line], block.output or "")


@pytest.mark.parametrize("page", PAGES)
def test_code(page: str, tmp_path: Path) -> None:
    blocks = blocks_of(page, "python")
    assert blocks
    together = [block for block in blocks if not (block.says("alone") or name_of(block))]
    if any("torch" in block.text for block in blocks):
        pytest.importorskip("torch")
    if any("tensorflow" in block.text for block in blocks):
        pytest.importorskip("tensorflow")
    if any("import jax" in block.text for block in blocks):
        pytest.importorskip("optax")
    if together:
        script = tmp_path / "together.py"
        script.write_text(program_of(together))
        hvdrun = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--output-filename", str(tmp_path)]
        run([*hvdrun, sys.executable, str(script)])
        compare(together, outputs((tmp_path / "rank.0" / "stdout").read_text()))
    for block in blocks:
        if block.says("alone"):
            script = tmp_path / f"alone_{block.line}.py"
            script.write_text(program_of([block]))
            printed = run([sys.executable, str(script)])
            # Ranks that it starts import their modules anew, not the script: the mark comes once.
            compare([block], outputs(printed))


def name_of(block: Any) -> str:
    """The name of the program that a block is for a test of its own; "" for any other."""
    return next((words.split()[1] for words in block.words if words.startswith("as ")), "")


# Runs train.py. Rank 0 of the first start meets its fate when it has saved the first checkpoint.
FATE = """
import os, runpy, signal, sys, time

fate, first = sys.argv[1], os.environ["HVD_RESTART"] == "0" and os.environ["RANK"] == "0"
replace, handle, seen = os.replace, signal.signal, []

def saved(*files):
    replace(*files)
    os.replace = replace
    if fate == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, b"saved\\n")
    while not seen:
        time.sleep(0.01)

if first:
    signal.signal = lambda number, act: handle(number, lambda *what: (seen.append(number), act(*what)))
    os.replace = saved
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.fixture
def resuming(tmp_path: Path) -> Path:
    """A folder with the script that continues from its checkpoint, and the one that interrupts it."""
    pytest.importorskip("torch.nn")
    named = {name_of(block): block for language in ("python", "sh") for block in blocks_of("docs/python.md", language)}
    for name in ("train.py", "job.sh"):
        (tmp_path / name).write_text(named[name.partition(".")[0]].text)
    (tmp_path / "fate.py").write_text(FATE)
    return tmp_path


def test_a_script_that_continues_after_a_failure(resuming: Path) -> None:
    hvdrun = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", "--restarts", "1"]
    done = subprocess.run([*hvdrun, sys.executable, "fate.py", "killed"], cwd=resuming, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    both = ("continues at step 100", "ended at step 1000")
    assert lines == [f"[{rank}]<stdout>: {what}" for rank in (0, 1) for what in both]
    assert "hvdrun: rank 0 of 2 on localhost was killed by SIGKILL (Killed); restart 1 of 1\n" in done.stderr


def test_a_script_that_saves_when_slurm_warns(resuming: Path) -> None:
    """A stand-in for Slurm: the test runs the batch script of the page, and sends the shell what Slurm sends it."""
    script = resuming / "job.sh"
    line = script.read_text().splitlines()[-1]
    assert line == "exec hvdrun -np 4 --restarts 3 python train.py"
    here = f"exec {sys.executable} -m hvd.launcher.main -np 2 --restarts 3 {sys.executable} fate.py warned"
    script.write_text(script.read_text().replace(line, here))
    for begins, ends in ((None, 101), (101, 1000)):
        with subprocess.Popen(["sh", "job.sh"], cwd=resuming, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            assert job.stdout
            lines = []
            while begins is None and not (lines and lines[-1].endswith("saved\n")):
                lines.append(job.stdout.readline())
                assert lines[-1]
            if begins is None:
                job.send_signal(signal.SIGUSR1)  # --signal=B:USR1@60
            out, err = job.communicate(timeout=100)
        assert (job.returncode, err) == (0, "")
        said = [f"continues at step {begins}"] if begins else []
        lines = [text.partition(": ")[2] for text in sorted(out.splitlines())]
        assert lines == [*said, f"ended at step {ends}"] * 2
        (resuming / "fate.py").write_text('import runpy; runpy.run_path("train.py")')


def known_options() -> list[str]:
    """Those of hvdrun."""
    return [name for action in options.make_parser()._actions for name in action.option_strings]


def options_before_the_command(command: str) -> list[str]:
    """The words of a command line of hvdrun that must be its options."""
    words = shlex.split(command, comments=True)[1:]
    parsed = options.make_parser().parse_args(options.joined(options.make_parser(), words))
    assert parsed.command, f"{command}: it starts nothing"
    return [word.partition("=")[0] for word in words[: len(words) - len(parsed.command)] if word.startswith("-")]


@pytest.mark.parametrize("page", [*PAGES, "docs/migrating.md"])
def test_command_lines(page: str) -> None:
    """hvdrun understands those in blocks of sh, in tables and in the text."""
    text = (ROOT / page).read_text()
    lines = [line for block in blocks_of(page, "sh") for line in block.text.splitlines() if line.startswith("hvdrun")]
    lines += re.findall(r"`(hvdrun -[^`]*)`", text)
    assert lines, "no command line was found"
    for line in lines:
        if line != "hvdrun --help":
            assert set(options_before_the_command(line)) <= set(known_options())


def test_options_of_hvdrun() -> None:
    """The table names options, variables and keys as hvdrun has them, and leaves out none that does something."""
    section = (ROOT / "docs/python.md").read_text().split("### hvdrun", 1)[1].split("\n##", 1)[0]
    rows = [[cell.strip() for cell in row.split("|")[1:4]] for row in section.splitlines() if row.startswith("| `-")]
    assert len(rows) > 10
    named = {}
    for cell, variable, key in rows:
        for option in re.findall(r"`(--?[\w-]+)", cell):
            assert option in known_options(), option
            named[option] = (variable.strip("`"), key.strip("`"))
    for flag, setting in ((f"--{s.flag}", s) for s in settings.ALL.values()):
        row = named.get(flag) or named.get(flag.replace("--", "--no-", 1))
        if row is not None:
            assert row == (setting.variable, setting.key), flag
            assert not settings.help_of(setting.flag), f"{flag} has no effect"


def test_options_without_effect() -> None:
    """The table is that of the launcher."""
    section = (ROOT / "docs/python.md").read_text().split("#### Options without effect", 1)[1].split("\n##", 1)[0]
    rows = [[cell.strip() for cell in row.split("|")[1:5]] for row in section.splitlines() if row.startswith("| `-")]
    named = {flag: (when, why.replace("`", "")) for cell, _, when, why in rows for flag in re.findall("`--([^`]+)`", cell)}
    assert named == {flag: (one.when, one.why) for flag, one in settings.IDLE.items()}
    passed = {name for _, cell, _, _ in rows for name in re.findall("`([^`]+)`", cell)}
    accepted = set(inspect.signature(function.run).parameters)
    assert passed == accepted & {one.argument or flag.replace("-", "_") for flag, one in settings.IDLE.items()}


def is_installed(framework: str) -> bool:
    found = importlib.util.find_spec(framework)
    return found is not None and found.origin is not None  # a folder of the tests has the name, and no origin


def is_there(name: str, modules: tuple[str, ...]) -> bool:
    """Whether hvd.NAME is something in one of these modules, or a module."""
    for module in modules:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return True
    package, _, last = f"hvd.{name}".rpartition(".")
    try:
        return importlib.util.find_spec(f"hvd.{name}") is not None or hasattr(importlib.import_module(package), last)
    except ImportError:
        framework = name.partition(".")[0]
        return framework in ("tensorflow", "keras", "jax") and not is_installed(framework)


@pytest.mark.parametrize("page", PAGES)
def test_names(page: str) -> None:
    """What the text names as `hvd.NAME` is there."""
    frameworks = {"docs/tensorflow.md": ("tensorflow", "keras"), "docs/jax.md": ("jax",)}.get(page, ("torch",))
    for name in frameworks:
        if not is_installed(name):
            pytest.skip(f"{name} is not installed")
    modules = ("hvd", *(f"hvd.{name}" for name in frameworks))
    names = set(re.findall(r"`hvd\.(\w+(?:\.\w+)*)", BLOCKS.read(ROOT / page)[1]))
    assert names and {name for name in names if not is_there(name, modules)} == set()


def test_mistakes_are_found() -> None:
    """Each of the checks fails where it should."""
    pytest.importorskip("torch")
    block = BLOCKS.Block(ROOT / "docs" / "none.md", 3, "python", "print(1)\n", output="2\n")
    with pytest.raises(BLOCKS.Problem):
        compare([block], {3: "1\n"})
    block.output = None
    with pytest.raises(BLOCKS.Problem):  # what is printed must stand on the page
        compare([block], {3: "1\n"})
    with pytest.raises(AssertionError):
        compare([block], {})
    with pytest.raises(SystemExit):
        options_before_the_command("hvdrun -np 2 --no-such-option python train.py")
    known = ("hvd", "hvd.torch")
    assert not is_there("no_such_name", known) and not is_there("torch.no_such_name", known)
    assert program_of([block]).split("\n")[2] == "print(1)"
    assert outputs(f"{MARK}3\na\nb\n{MARK}9\n") == {3: "a\nb\n", 9: ""}
