"""torchrun with the backend hvd: a rank or an agent is killed, or comes later; the job goes on from its checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch.nn")

LIMIT = 200.0  # seconds for a job

TRAIN = """
import os, signal, time
import torch, torch.distributed as dist
import hvd.torch.distributed
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("hvd")
rank, size, agents = dist.get_rank(), dist.get_world_size(), int(os.environ["GROUP_WORLD_SIZE"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    model.module.load_state_dict(saved["model"])
    step = saved["step"]
os.write(1, f"{size} ranks from {step}\\n".encode())
while step < 8:
    if (rank, step) == (1, 5) and not os.path.exists("killed"):
        open("killed", "x").close()
        if agents > 1:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    while agents == size < 3 and (step == 7 or not os.path.exists("killed")):  # until another agent comes
        open(f"waits at {step}", "w").close()
        dist.barrier()
        time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.full((2, 4), 1.0 + rank + step)).sum().backward()
    optimizer.step()
    step += 1
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")
    dist.barrier()
weights = model.module.weight.detach().numpy().tobytes().hex()
os.write(1, f"end of {size} ranks at {step} with {weights}\\n".encode())
dist.destroy_process_group()
"""


def torchrun(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    outer = ("HOROVOD_", "HVD_", "PMI", "OMPI_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHELASTIC_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    env.update(OMP_NUM_THREADS="1", HVD_SHM_DIR=str(folder / "shm"), **more)
    (folder / "shm").mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words, "train.py"], cwd=folder, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ends(*agents: subprocess.Popen[str]) -> tuple[list[int], list[str], str]:
    """Exit codes, lines in order, and what the agents say, of which none is left."""
    try:
        said = [agent.communicate(timeout=LIMIT) for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()  # and its rank
    return [agent.returncode for agent in agents], sorted("".join(out for out, _ in said).splitlines()), "".join(err for _, err in said)


def test_a_killed_rank(tmp_path: Path) -> None:
    (code,), lines, said = ends(torchrun(tmp_path, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"))
    assert code == 0, said
    assert lines[:4] == ["2 ranks from 0"] * 2 + ["2 ranks from 5"] * 2
    # The other rank was at step 5, or already in it: it cannot have ended it.
    assert lines[4:] == [lines[4]] * 2 and lines[4].startswith("end of 2 ranks at 8 with ")
    assert os.listdir(tmp_path / "shm") == []


def test_no_restart_is_left(tmp_path: Path) -> None:
    (code,), lines, said = ends(torchrun(tmp_path, "--standalone", "--nproc-per-node", "2", "--max-restarts", "0"))
    assert code != 0 and lines == ["2 ranks from 0"] * 2
    assert "Signal 9 (SIGKILL) received by PID" in said


def test_agents_that_are_killed_and_come_later(tmp_path: Path) -> None:
    """Two agents go on without the third, and begin again with another one."""
    words = (
        "--nnodes", "1:3", "--nproc-per-node", "1", "--max-restarts", "9", "--local-addr", "localhost",
        "--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", str(tmp_path / "agents"),
        "--rdzv-conf", "store_type=file,keep_alive_interval=1,keep_alive_max_attempt=10,last_call_timeout=3",
    )  # fmt: skip
    # With one store for all rounds a new agent waits for ever for its address.
    more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = [torchrun(tmp_path, *words, **more) for _ in range(3)]
    try:
        end = time.monotonic() + LIMIT
        while not (tmp_path / "waits at 7").exists() and time.monotonic() < end:
            time.sleep(0.05)
        agents.append(torchrun(tmp_path, *words, **more))
    finally:
        codes, lines, said = ends(*agents)
    assert sorted(codes) == [-signal.SIGKILL, 0, 0, 0], said
    assert lines.count("3 ranks from 0") == lines.count("3 ranks from 7") == 3, lines
    # An agent that is late joins the other one, which is alone until then.
    assert "2 ranks from 5" in lines or "1 ranks from 5" in lines, lines
    assert lines[-3:] == [lines[-1]] * 3 and lines[-1].startswith("end of 3 ranks at 8 with "), lines
    assert os.listdir(tmp_path / "shm") == []
