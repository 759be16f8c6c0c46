"""Groups of ranks that hvdrun, mpiexec or nobody has started, on one host and on several.

A host is a folder of shared memory of its own here (HVD_SHM_DIR): ranks of different ones cannot share memory, as on
different hosts, and MPI connects them. test_launcher_two_hosts.py has hosts with addresses of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.nn")

RANK = """
import os, sys
import torch, torch.distributed as dist
import hvd.torch.distributed
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("hvd")
r, n = dist.get_rank(), dist.get_world_size()
group = dist.group.WORLD
for count in (1, 1000, 100_000):
    x = torch.full((count,), float(r + 1))
    dist.all_reduce(x)
    assert x.eq(n * (n + 1) / 2).all()
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    assert x.eq(n * (n + 1) / 2).all()
bits = torch.tensor([1 << r, 7])
dist.all_reduce(bits, op=dist.ReduceOp.BOR)
assert bits.tolist() == [2**n - 1, 7]
half = torch.full((1000,), r + 1.0, dtype=torch.bfloat16)
dist.reduce(half, n - 1)
assert r != n - 1 or half.eq(n * (n + 1) / 2).all()
rows = [torch.empty(q + 1, dtype=torch.int64) for q in range(n)]
dist.all_gather(rows, torch.full((r + 1,), r))
assert [row.tolist() for row in rows] == [[q] * (q + 1) for q in range(n)]
out = torch.empty(2)
dist.reduce_scatter_tensor(out, torch.arange(2.0 * n))
assert out.tolist() == [n * 2.0 * r, n * (2.0 * r + 1)]
out = torch.empty(n)
dist.all_to_all_single(out, torch.full((n,), float(r)))
assert out.tolist() == [float(q) for q in range(n)]
objects = [None] * n
dist.all_gather_object(objects, {"rank": r})
assert objects == [{"rank": q} for q in range(n)]

# Messages cross each other, out of order, and from any rank.
peer = (r + 1) % n
sent = [dist.isend(torch.full((50_000,), float(10 * r + tag)), peer, tag=tag) for tag in (1, 2)]
two, one = torch.empty(50_000), torch.empty(50_000)
before = (r - 1) % n
got = [dist.irecv(two, before, tag=2), dist.irecv(one, before, tag=1)]
for work in [*sent, *got]:
    work.wait()
assert one.eq(10 * before + 1).all() and two.eq(10 * before + 2).all()
token = torch.tensor([float(r)])
if r == 0:
    seen = set()
    for _ in range(n - 1):
        source = dist.recv(token)
        assert token.item() == source
        seen.add(source)
    assert seen == set(range(1, n))
else:
    dist.send(token, 0)
try:
    dist.recv(torch.empty(3), before) if r == 1 else dist.send(torch.ones(5), 1) if r == 0 else None
    assert r != 1
except dist.DistBackendError as e:
    assert "expected 12 bytes" in str(e) and "20" in str(e)

pair = dist.new_group([0, n - 1])
x = torch.ones(3)
if r in (0, n - 1):
    dist.all_reduce(x, group=pair)
    assert x.eq(2).all()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(300, 300))
for _ in range(4):
    model(torch.full((2, 300), float(r))).sum().backward()
    assert model.module.bias.grad.eq(2.0).all()
    model.zero_grad()
dist.barrier()
hosts = len(set(group._group.hosts))
dist.destroy_process_group()
os.write(1, f"done on {hosts} hosts\\n".encode())  # in one piece
"""


def environment(**more: str) -> dict[str, str]:
    started = ("HOROVOD_", "HVD_", "PMI", "OMPI_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
    return {k: v for k, v in os.environ.items() if not k.startswith(started)} | {"OMP_NUM_THREADS": "1"} | more


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(command: list[str], **more: str) -> list[str]:
    done = subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.rpartition(": ")[2] for line in done.stdout.splitlines()]


def mpiexec() -> str:
    """The launcher of the MPI that hvd was built with."""
    _core_mpi = pytest.importorskip("hvd._core_mpi", reason="hvd was built without an MPI")
    name = "mpiexec.mpich" if "MPICH" in _core_mpi.library() else "mpirun.openmpi"
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def on_hosts(tmp_path: Path, script: Path, variable: str) -> str:
    """A program that runs the script on a host of its own: each number in `variable` has one."""
    program = tmp_path / "on_host.sh"
    program.write_text(
        f'#!/bin/sh\nmkdir -p "{tmp_path}/host${variable}"\nHVD_SHM_DIR="{tmp_path}/host${variable}"'
        f' exec "{sys.executable}" "{script}"\n'
    )
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return path


LATE = """
import os, threading, time
import torch, torch.distributed as dist
import hvd.torch.distributed

dist.init_process_group("hvd")
started = threading.Event()

def late(_):
    started.set()
    time.sleep(0.5)
    os.write(1, b"done on time\\n")

work = dist.all_reduce(torch.ones(4), async_op=True)
work.get_future().then(late)
work.wait()
started.wait(60)
dist.destroy_process_group()
"""


def test_a_callback_that_still_runs_at_the_end(tmp_path: Path) -> None:
    # Python ends a thread that comes back from C++ after it, by which the process was aborted.
    path = tmp_path / "late.py"
    path.write_text(LATE)
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", sys.executable, str(path)]
    assert run(command) == ["done on time"] * 2


def test_hvdrun(script: Path) -> None:
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "3", sys.executable, str(script)]
    assert run(command) == ["done on 1 hosts"] * 3


def test_mpiexec_on_one_host(script: Path) -> None:
    assert run([mpiexec(), "-n", "2", sys.executable, str(script)]) == ["done on 1 hosts"] * 2


def test_mpiexec_on_hosts(script: Path, tmp_path: Path) -> None:
    program = on_hosts(tmp_path, script, "PMI_RANK" if "mpich" in mpiexec() else "OMPI_COMM_WORLD_RANK")
    lines = run([mpiexec(), "-n", "3", program], MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    assert lines == ["done on 3 hosts"] * 3


def on_two_hosts_without_mpi(script: Path, tmp_path: Path, **more: str) -> list[tuple[int, str, str]]:
    """Exit code, output and error output of two ranks."""
    program = on_hosts(tmp_path, script, "RANK")
    port = free_port()
    ranks = [
        subprocess.Popen(
            [program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(RANK=str(r), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **more),
        )
        for r in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=100) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs)]


def test_hosts_without_an_mpi(script: Path, tmp_path: Path) -> None:
    for code, output, text in on_two_hosts_without_mpi(script, tmp_path):
        assert code == 0, text
        assert output == "done on 2 hosts\n"


AS_GLOO = """
import os
import torch, torch.distributed as dist

dist.init_process_group(os.environ.get("ASKED_FOR") or None)
r, n = dist.get_rank(), dist.get_world_size()
x = torch.full((100,), float(r + 1))
dist.all_reduce(x)
assert x.eq(n * (n + 1) / 2).all()
objects = [None] * n
dist.all_gather_object(objects, {"rank": r})
assert objects == [{"rank": q} for q in range(n)]
pair = dist.new_group([0, n - 1])
dist.monitored_barrier()
if r in (0, n - 1):
    dist.all_reduce(x, group=pair)
    assert dist.get_backend(pair) == "gloo" and type(pair) is type(dist.group.WORLD)
by = type(dist.group.WORLD).__module__.split(".")[0]
os.write(1, f"{dist.get_backend()} by {by}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("asked_for", ["gloo", "cpu:gloo", ""])
def test_a_program_that_asks_for_gloo(asked_for: str, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(AS_GLOO)
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "3", sys.executable, str(tmp_path / "rank.py")]
    lines = run(command, HVD_AS="gloo", ASKED_FOR=asked_for)
    # On a machine with a GPU the default is NCCL.
    assert lines == ["gloo by hvd"] * 3 or (not asked_for and lines == ["nccl by torch"] * 3)


def test_a_program_that_asks_for_gloo_on_two_hosts(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(AS_GLOO)
    for code, output, text in on_two_hosts_without_mpi(script, tmp_path, HVD_AS="gloo", ASKED_FOR="gloo"):
        assert code == 0, text
        assert output == "gloo by hvd\n"


def test_a_name_that_hvd_does_not_take(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(AS_GLOO)
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", sys.executable, str(script)]
    done = subprocess.run(
        command, env=environment(HVD_AS="glue", ASKED_FOR="gloo"), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != 0
    assert 'HVD_AS="glue" is not a name that hvd takes; allowed: gloo' in done.stderr


OTHER_BACKENDS = """
import datetime, os
import torch.distributed as dist
if os.environ["ASKED_FOR"] == "more":
    os.environ["WORLD_SIZE"] = "3"
    os.environ["RANK"] = "1" if os.environ["RANK"] == "1" else "2"
store = dist.FileStore(os.environ["STORE"], int(os.environ["WORLD_SIZE"]))
backend = "gloo" if os.environ["ASKED_FOR"] == "gloo" and os.environ["RANK"] == "1" else "hvd"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
try:
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=3))
except RuntimeError as e:
    os.write(1, f"{e}\\n".encode())
"""


@pytest.mark.parametrize(
    "asked_for, words",
    [
        ("gloo", r"rank\(s\) 1 of 2 did not come within 3 s; all ranks of a group must create it, with the backend hvd"),
        ("more", r"rank 0 of 3 did not come within 3 s; .*; the launcher has started 2 \(HOROVOD_SIZE\)"),
    ],
)
def test_ranks_that_disagree_about_the_group(asked_for: str, words: str, tmp_path: Path) -> None:
    """About its backend, or its size: they get a sentence, and none goes on alone."""
    (tmp_path / "rank.py").write_text(OTHER_BACKENDS)
    command = [sys.executable, "-m", "hvd.launcher.main", "-np", "2", sys.executable, str(tmp_path / "rank.py")]
    lines = run(command, ASKED_FOR=asked_for, STORE=str(tmp_path / "store"))
    assert len(lines) == 2 and any(re.search(words, line) for line in lines), lines


def test_a_tensor_is_never_a_standard_stream():
    """What the program prints without standard error would go into the tensor."""
    code = (
        "import torch; from hvd.torch.distributed import storages;"
        "raise SystemExit(storages._descriptor(torch.empty(5000, device='cpu').untyped_storage()) < 3)"
    )
    command = f'exec {sys.executable} -c "$0" <&- 2>&-'
    assert subprocess.run(["sh", "-c", command, code], timeout=120).returncode == 0
