"""hvd.pin and hvd.local_device, on a host where no CUDA driver is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import hvd

CPUS = os.sched_getaffinity(0)


def run(code: str, **env: str) -> str:
    """What a program prints that has no GPU, and no launcher but what `env` says."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "HVD_", "PMI_"))}
    plain.update(HVD_CUDA_LIBRARY="/nowhere/libcuda.so.1", **env)
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_gpu() -> None:
    code = """
import hvd
guard = hvd.pin()
print(guard.ordinal, guard.device, guard.cpus)
print(guard.reason)
try:
    hvd.local_device()
except RuntimeError as error:
    print(type(error).__name__, error)
try:
    hvd.pin("list:0")
except ValueError as error:
    print(error)
"""
    plain, why, device, named = run(code).splitlines()
    assert plain == "None None []"
    assert why.startswith("no CUDA driver was found") and why.endswith("; CPUs: not bound: as asked for")
    assert device.startswith("RuntimeError hvd: this rank has no GPU: no CUDA driver was found")
    assert named.startswith('hvd: pin list:0: rank 0 (local rank 0 of 1) does not see "0": no GPU is visible to it (no ')


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_cpus_of_a_rank_among_others() -> None:
    code = """
import os, hvd
before = os.sched_getaffinity(0)
with hvd.pin("none,cpus=exclusive") as guard:
    assert os.sched_getaffinity(0) == set(guard.cpus or before)
    print(guard.cpus)
assert os.sched_getaffinity(0) == before
hvd.pin("none,cpus=exclusive")  # a statement: it stays
assert os.sched_getaffinity(0) == set(guard.cpus or before)
"""
    found = []
    for rank in range(2):
        place = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
        found.append(run(code, **{f"HOROVOD_{name}": str(value) for name, value in place.items()}))
    first, second = (set(eval(text)) for text in found)
    assert not first & second and first | second <= CPUS
    # Under a launcher that has bound the rank there is nothing left to share out.
    bound = run("import hvd; print(hvd.pin('cpus=exclusive').reason)", HVD_CPUS="0")
    assert bound.endswith("; CPUs: bound by the launcher\n")


def test_the_variable_counts_where_no_policy_is_given() -> None:
    code = """
import hvd
print(hvd.pin("none"))
try:
    hvd.pin()
except ValueError as error:
    print(error)
"""
    given, by_variable = run(code, HVD_PIN="nonsense").splitlines()
    assert given == "<hvd pin: no GPU (no GPU is asked for; CPUs: not bound: as asked for)>"
    assert by_variable.startswith('hvd: HVD_PIN="nonsense" has the unknown part "nonsense"; allowed: by_local_rank, ')


def test_wrong_policies() -> None:
    with pytest.raises(ValueError, match='pin="0" is out of range; allowed: shared:N, N from 1'):
        hvd.pin("shared:0")
    with pytest.raises(ValueError, match="names two policies"):
        hvd.pin("scatter,compact")


def test_names() -> None:
    torch = pytest.importorskip("hvd.torch")
    assert (torch.pin, torch.local_device, torch.PinGuard) == (hvd.pin, hvd.local_device, hvd.PinGuard)
