"""Trains a small network on handwritten digits with PyTorch, on any number of processes.

    hvdrun -np 2 python examples/python/torch_digits.py

It is written for Horovod: with ``import horovod.torch as hvd`` it is the same program. Six lines make it distributed;
each is marked by a number.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, Tuple

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import hvd.torch as hvd

DATA = Path(__file__).resolve().parent.parent / "data" / "digits.csv"


class Net(torch.nn.Module):
    """Two convolutions and two layers: 8 x 8 pixels to 10 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * 4 * 4, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logarithms of probabilities."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def load(path: Path) -> Tuple[TensorDataset, TensorDataset]:
    """Images to train with and, every fifth, to test with."""
    lines = path.read_text().splitlines()[1:]
    rows = torch.tensor([[int(v) for v in line.split(",")] for line in lines])
    images, labels = rows[:, :64].float().div(16).view(-1, 1, 8, 8), rows[:, 64]
    testing = torch.arange(len(rows)) % 5 == 4
    return TensorDataset(images[~testing], labels[~testing]), TensorDataset(images[testing], labels[testing])


def train(
    epochs: int = 5, batch_size: int = 32, lr: float = 0.02, checkpoint: str = "", data: str = str(DATA)
) -> Dict[str, Any]:
    """Trains, and returns loss and accuracy on the images to test with, the same on all ranks."""
    hvd.init()  # 1
    torch.manual_seed(42)
    torch.set_num_threads(1)  # the network is tiny
    training, testing = load(Path(data))
    sampler: DistributedSampler[Any] = DistributedSampler(training, hvd.size(), hvd.rank(), seed=1)  # 2
    loader = DataLoader(training, batch_size, sampler=sampler)

    model = Net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)  # 3
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # 4
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 5
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    result = {}
    for epoch in range(epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.nll_loss(model(images), labels).backward()
            optimizer.step()
        result = test(model, testing)
        if hvd.rank() == 0:  # 6
            print(f"epoch {epoch + 1}: loss {result['loss']:.3f}, accuracy {result['accuracy']:.1%}", flush=True)
            if checkpoint:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    hvd.shutdown()
    return result


def test(model: torch.nn.Module, testing: TensorDataset) -> Dict[str, float]:
    """Each rank takes its share of the images; the averages are over all."""
    model.eval()
    images, labels = (t[hvd.rank() :: hvd.size()] for t in testing.tensors)
    with torch.no_grad():
        output = model(images)
        sums = torch.stack([
            F.nll_loss(output, labels, reduction="sum"),
            (output.argmax(1) == labels).sum().float(),
            torch.tensor(float(len(labels))),
        ])
    loss, right, count = hvd.allreduce(sums, op=hvd.Sum, name="test").tolist()
    return {"loss": loss / count, "accuracy": right / count}


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="how often to see each image (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a rank's step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one rank (default: %(default)s)")
    parser.add_argument("--checkpoint", default="", help="file that rank 0 writes after each epoch")
    parser.add_argument("--data", default=str(DATA), help="the images (default: %(default)s)")
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
