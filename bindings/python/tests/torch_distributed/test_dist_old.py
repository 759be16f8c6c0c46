"""An older PyTorch: the same installed hvd, tested in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
FOLDERS = sorted((Path(sys.prefix) / "torch-old").glob("lib/python*/site-packages"))
# What needs no newer arguments of functions, no newer types, and no GIL in threads of Gloo while it is destroyed.
CHOSEN = {
    "test_dist_collectives.py": "2_ranks and float32 or 3_ranks and (all_reduce and float16 or layouts or leafs or work"
    " or callbacks or coalesced or shared_tensors or gradients or functional)",
    "test_dist_groups.py": "3_ranks and (names or several_at_once or split_group or threads or short_wait or"
    " monitored_barrier or one_leaves or destroyed or dropped) or 2_ranks and beside_gloo or exit",
    "test_dist_messages.py": "3_ranks and (float32 or tags or any_source or batches or futures)",
    "test_dist_ddp.py": "not builtin_fp16",
    "test_dist_buckets.py": "",
}
REFUSED = "not reduce[ and not broadcast_and_gather"


@pytest.mark.skipif(not FOLDERS, reason="no older PyTorch (tools/setup --torch-old installs one)")
@pytest.mark.skipif("HVD_TEST_OLD_TORCH" in os.environ, reason="this is the older PyTorch")
def test_an_older_torch() -> None:
    paths = os.pathsep.join([str(FOLDERS[0]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "HVD_TEST_OLD_TORCH": "1"}
    version = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    found = subprocess.run(version, capture_output=True, text=True, env=environment, check=True).stdout.strip()
    assert torch.torch_version.TorchVersion(found) < torch.__version__, found
    chosen = " or ".join(f"{name} and ({what})" if what else name for name, what in CHOSEN.items())
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"({chosen}) and {REFUSED}",
            *(HERE / name for name in CHOSEN),
        ],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{found}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert "passed" in done.stdout and "skipped" not in done.stdout.splitlines()[-1]
    assert int(done.stdout.splitlines()[-1].split()[0]) > 60, done.stdout[-300:]
