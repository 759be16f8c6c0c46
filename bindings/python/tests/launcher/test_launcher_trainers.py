"""Hugging Face's Accelerate and Trainer and PyTorch Lightning, as released, under hvdrun, and the scripts of
docs/integrations.md under torchrun and in Ray Train: one job of two ranks each.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_support import LIMIT, ROOT, environment, hvdrun

pytest.importorskip("torch.nn")
PACKAGES = {"Accelerate": "accelerate", "Trainer": "transformers", "Lightning": "pytorch_lightning"}

# Trainer runs in the job of the Accelerate loop, because it is made of Accelerate, which takes seconds to import. Ranks
# begin with weights of their own, and have data of which each gets its part.
RANK = '''
import os, sys
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.manual_seed(rank)
data = torch.utils.data.DataLoader([torch.full((4,), float(i)) for i in range(8)], batch_size=2)


def accelerate_loop():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), data)
    steps = 0
    for x in loader:
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        steps += 1
    return accelerator.num_processes, steps, net


def huggingface_trainer():
    from transformers import Trainer, TrainingArguments

    class Net(torch.nn.Linear):
        def forward(self, x, labels):
            return {"loss": (super().forward(x) - labels).square().mean()}

    net = Net(4, 1)
    arguments = TrainingArguments(
        output_dir=sys.argv[2], num_train_epochs=1, per_device_train_batch_size=2, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True,
    )
    rows = [{"x": torch.full((4,), float(i)), "labels": torch.ones(1)} for i in range(8)]
    trainer = Trainer(net, arguments, train_dataset=rows)
    trainer.train()
    return trainer.args.world_size, trainer.state.global_step, net


def lightning():
    import pytorch_lightning
    from pytorch_lightning.strategies import DDPStrategy

    class Net(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, x, _):
            return self.layer(x).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    net = Net()
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="hvd"), max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(net, data)
    return trainer.world_size, trainer.global_step, net


for name, train in {"Accelerate": accelerate_loop, "Trainer": huggingface_trainer, "Lightning": lightning}.items():
    if name in sys.argv[1].split(","):
        size, steps, net = train()
        weights = [p.detach().numpy().tobytes().hex() for p in net.parameters()]
        made_by = type(dist.group.WORLD).__module__.split(".")[0]
        line = f"{name} {size} {dist.get_world_size()} {steps} {dist.get_backend()} {made_by} {'.'.join(weights)}\\n"
        os.write(1, line.encode())
dist.destroy_process_group()
'''


@pytest.mark.parametrize(
    ("names", "backend", "by"),
    [
        (["Accelerate", "Trainer"], "gloo", "torch"),  # they do not let their user choose
        (["Accelerate", "Trainer"], "gloo", "hvd"),  # by HVD_AS
        (["Lightning"], "hvd", "hvd"),
    ],
    ids=["accelerate", "accelerate_as_gloo", "lightning"],
)
def test_one_job_of_two_ranks(names: list[str], backend: str, by: str, tmp_path: Path) -> None:
    for package in (PACKAGES[name] for name in names):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (tools/setup installs it)")
    (tmp_path / "train.py").write_text(RANK)
    words = [sys.executable, "train.py", ",".join(names), "out"]
    name_taken = {"HVD_AS": "gloo"} if backend != by == "hvd" else {}
    done = hvdrun("-np", "2", *words, cwd=tmp_path, limit=5 * LIMIT, OMP_NUM_THREADS="1", **name_taken)
    # PyTorch's Gloo sometimes aborts when its processes end, with all done.
    gloo_aborts = by == "torch" and "terminate called without an active exception" in done.stderr
    assert done.returncode == 0 or gloo_aborts, done.stdout + done.stderr
    for name in names:
        lines = [line.partition(": ")[2].split() for line in done.stdout.splitlines()]
        first, second = (line for line in lines if line[:1] == [name])
        assert first[1:6] == ["2", "2", "2", backend, by] and first == second


def script_for(name: str, package: str) -> str:
    """The script of docs/integrations.md for a trainer. Skips the test if the page or the trainer is missing."""
    page = ROOT / "docs/integrations.md"
    if importlib.util.find_spec(package) is None or not page.exists():
        pytest.skip(f"{package} is not installed (tools/setup --trainers installs it), or the pages are missing")
    block = re.search(rf"<!-- block: as {name.lower()} -->\n```python\n(.*?)```", page.read_text(), re.S)
    assert block
    return block[1]


@pytest.mark.parametrize("package", list(PACKAGES))
def test_the_pages_script_under_torchrun(package: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_for(package, PACKAGES[package]))
    chosen = {} if package == "Lightning" else {"HVD_AS": "gloo"}
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment(OMP_NUM_THREADS="1", **chosen), capture_output=True,
        text=True, timeout=5 * LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    made_by = "hvd" if package == "Lightning" else "hvd.torch.distributed.process_group"
    assert f"2 ranks, {made_by}\n" in done.stdout


def test_the_pages_script_in_ray_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_for("Ray", "ray"))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=10 * LIMIT,
        env=environment(HOME=str(tmp_path), RAY_TRAIN_V2_ENABLED="1"),  # its results are stored below HOME
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks, hvd\n" in done.stdout + done.stderr
