"""torchrun --max-restarts with the backend hvd: a rank is killed, and the job goes on from its checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.nn")

TRAIN = """
import os, signal
import torch, torch.distributed as dist
import hvd.torch.distributed
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("hvd")
rank, start = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    model.module.load_state_dict(saved["model"])
    step = saved["step"]
os.write(1, f"start {start} from {step}\\n".encode())
while step < 8:
    if (start, rank, step) == (0, 1, 5):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.full((2, 4), 1.0 + rank + step)).sum().backward()
    optimizer.step()
    step += 1
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")
    dist.barrier()
weights = model.module.weight.detach().numpy().tobytes().hex()
os.write(1, f"end of {start} at {step} with {weights}\\n".encode())
dist.destroy_process_group()
"""


def torchrun(folder: Path, restarts: int) -> subprocess.CompletedProcess[str]:
    outer = ("HOROVOD_", "HVD_", "PMI", "OMPI_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHELASTIC_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    env.update(OMP_NUM_THREADS="1", HVD_SHM_DIR=str(folder / "shm"))
    (folder / "shm").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts), "train.py"]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words], cwd=folder, env=env, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip


def test_a_killed_rank(tmp_path: Path) -> None:
    done = torchrun(tmp_path / "killed", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines[2:] == ["start 0 from 0"] * 2 + ["start 1 from 5"] * 2
    # The other rank was at step 5, or already in it: it cannot have ended it.
    assert lines[0] == lines[1] and lines[0].startswith("end of 1 at 8 with ")
    assert os.listdir(tmp_path / "killed/shm") == []


def test_no_restart_is_left(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 0)
    assert done.returncode != 0 and done.stdout.splitlines() == ["start 0 from 0"] * 2
    assert "Signal 9 (SIGKILL) received by PID" in done.stderr
