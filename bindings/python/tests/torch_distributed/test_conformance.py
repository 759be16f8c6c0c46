"""PyTorch's own tests of torch.distributed on backend "hvd": what passes, and what is skipped and why."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Union

import pytest
from bench_program import LAUNCHER

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's tests need expecttest")

DRIVER = Path(__file__).with_name("conformance_driver.py")
LIMIT = 900  # seconds for one run, of which the longest takes 35 on an idle machine

# Why PyTorch skips a test, by the reason that it gives.
REASONS = {
    "GPUs": r"CUDA is not available|Need at least \d CUDA devices",
    # Of these only in the run "as-is": hvd is not in the list of backends that a test is for.
    "lists": r"hvd backend does not|\{.*'gloo'.*\}|GLOO |(Gloo|gloo).* support|Gloo and NCCL|mpi, nccl|Only MPI",
    "NCCL": r"Only N(ccl|CCL)|NCCL .*Only|NCCL only|\{'nccl'\}",
    "more ranks": r"small world size|world size of 4",
    "torchvision": r"no torchvision",
    "off in PyTorch": r"github.com/pytorch|[Ff]lakiness",
}

# What has to come of the tests of PyTorch 2.13. With 3 ranks those run that pass with 2, and with 4 and 8 those that
# ask for so many. Of 285 tests 127 pass with some number; the others want GPUs or NCCL, or PyTorch skips them itself.
EXPECTED = {
    (2, "as-is"): {
        "pass": 65, "lists": 141, "GPUs": 11, "NCCL": 41, "more ranks": 16, "torchvision": 1, "off in PyTorch": 10,
    },
    (2, "known"): {"pass": 100, "GPUs": 97, "NCCL": 41, "more ranks": 33, "torchvision": 1, "off in PyTorch": 13},
    (3, "known"): {"pass": 100},
    (4, "known"): {"pass": 3, "GPUs": 4},
    (8, "known"): {"pass": 24, "GPUs": 2},
}  # fmt: skip

Results = dict[str, tuple[str, str, float]]  # of each test: the outcome, the reason or the traceback, and seconds


def chosen(ranks: int, folder: Path) -> list[str]:
    """The tests that run with so many ranks, by what came of them with 2; none: all of them."""
    if ranks == 2:
        return []
    wanted = {3: "pass", 4: "skip.*world size of 4", 8: "skip.*small world size"}[ranks]
    return [name for name, found in results(2, "known", folder).items() if re.match(wanted, " ".join(found[:2]))]


@functools.cache
def run(ranks: int, way: str, folder: Path) -> Union[Results, str]:
    """What came of each test, or what the driver said when it failed."""
    file, said = folder / f"{ranks}-{way}.json", folder / f"{ranks}-{way}.output"
    names = chosen(ranks, folder)
    clean = {k: v for k, v in os.environ.items() if not LAUNCHER.match(k) and not k.startswith("TORCH_DISTRIBUTED_")}
    with said.open("w") as output:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), str(ranks), way, str(file), *names], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, env={**clean, "OMP_NUM_THREADS": "1"},
        )
        try:
            ended = f"ended with {driver.wait(LIMIT)}"
        except subprocess.TimeoutExpired:
            ended = f"did not end in {LIMIT} s"
            os.killpg(driver.pid, signal.SIGKILL)  # its ranks as well
            driver.wait()
    if not file.exists():
        return f"the driver {ended}:\n{said.read_text(errors='replace')[-10000:]}"
    found: Results = json.loads(file.read_text(encoding="utf-8"))
    return found


def results(ranks: int, way: str, folder: Path) -> Results:
    """What came of each test. See the driver for ``way``."""
    found = run(ranks, way, folder)
    if isinstance(found, str):
        pytest.fail(found, pytrace=False)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for what the driver writes."""
    return tmp_path_factory.mktemp("conformance")


def only_where_known() -> None:
    """Skips the rest of a test where the numbers above are not known."""
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"none failed; the numbers are those of PyTorch 2.13, and this is {torch.__version__}")


def kind(outcome: str, why: str) -> str:
    """The outcome, or the name of the reason of a skip."""
    if outcome != "skip":
        return outcome
    return next((name for name, pattern in REASONS.items() if re.search(pattern, why)), why)


@pytest.mark.parametrize("ranks, way", EXPECTED, ids=str)
def test_pytorch_tests(ranks: int, way: str, folder: Path) -> None:
    found = results(ranks, way, folder)
    failed = [f"--- {name}:\n{why}" for name, (outcome, why, _) in found.items() if outcome == "fail"]
    counts = Counter(kind(outcome, why) for outcome, why, _ in found.values())
    print(f"{ranks} ranks, {way}: {dict(counts)}")
    assert not failed, "\n".join(failed)
    only_where_known()
    assert counts == EXPECTED[ranks, way]


def test_what_passes_with_some_number_of_ranks(folder: Path) -> None:
    runs = [results(ranks, way, folder) for ranks, way in EXPECTED]
    passed = [{name for name, (outcome, _, _) in found.items() if outcome == "pass"} for found in runs]
    some = set.union(*passed)
    print(f"{len(some)} of {len(runs[0])} tests pass")
    assert passed[0] < passed[1]  # as PyTorch is, and with lists that know hvd
    only_where_known()
    assert len(some) == 127 and len([name for name in some if name.startswith("test_all_to_all")]) == 12
