"""Trains a small network on handwritten digits with PyTorch, on any number of processes.

    hvdrun -np 2 python examples/python/torch_digits.py
    hvdrun -np 2 python examples/python/torch_digits.py --device cuda

It is written for Horovod: with ``import horovod.torch as hvd`` it is the same program. Lines added to
single/torch_digits.py are marked: 1 init, 2 pin, 3 shard, 4 scale the rate, 5 wrap, 6 broadcast, 7 write on rank 0
alone. Only ``local_device`` is not in Horovod; its programs call ``torch.cuda.set_device(hvd.local_rank())`` instead.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Tuple

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler  # 3

import digits
import hvd.torch as hvd  # 1


class Net(torch.nn.Module):
    """Two convolutions and two layers: pixels to 10 digits."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = torch.nn.Linear(32 * (side // 2) ** 2, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logarithms of probabilities."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def load(data: str) -> Tuple[TensorDataset, TensorDataset]:
    """Images to train with and to test with."""
    parts = [(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)) for images, labels in digits.load(data)]
    return TensorDataset(*parts[0]), TensorDataset(*parts[1])


def find_device(kind: str) -> torch.device:
    """The CPU, or a GPU. If there is no GPU, ends the program with the reason."""
    if kind == "cpu":
        return torch.device("cpu")
    try:  # 2
        number = hvd.local_device()  # 2, in Horovod: hvd.local_rank()
    except (RuntimeError, ValueError) as e:  # 2
        sys.exit(str(e))  # 2
    if not torch.cuda.is_available():
        sys.exit(f"this PyTorch ({torch.__version__}) sees no GPU")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def train(
    epochs: int = 5, batch_size: int = 32, lr: float = 0.02, checkpoint: str = "", data: str = str(digits.DATA),
    device: str = "cpu",
) -> Dict[str, Any]:
    """Trains; returns loss and accuracy on the images to test with, and a checksum of the weights."""
    hvd.init()  # 1
    where = find_device(device)
    torch.manual_seed(42)
    torch.set_num_threads(1)  # the network is tiny
    training, testing = load(data)
    sampler: Any = DistributedSampler(training, hvd.size(), hvd.rank(), seed=1)  # 3
    loader = DataLoader(training, batch_size, sampler=sampler)

    model = Net(testing.tensors[0].shape[-1]).to(where)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)  # 4
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # 5
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 6
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # 6

    result: Dict[str, Any] = {}
    for epoch in range(epochs):
        model.train()
        sampler.set_epoch(epoch)  # 3
        for images, labels in loader:
            optimizer.zero_grad()
            F.nll_loss(model(images.to(where)), labels.to(where)).backward()
            optimizer.step()
        result = test(model, testing, where)
        if hvd.rank() == 0:  # 7
            print(f"epoch {epoch + 1}: loss {result['loss']:.3f}, accuracy {result['accuracy']:.1%}", flush=True)
        if checkpoint and hvd.rank() == 0:  # 7
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    hvd.shutdown()  # 1
    return {**result, "weights": digits.checksum(w.detach().cpu().numpy() for w in model.parameters())}


def test(model: torch.nn.Module, testing: TensorDataset, where: torch.device) -> Dict[str, float]:
    """Means over the images to test with."""
    model.eval()
    images, labels = (t.to(where) for t in testing.tensors)
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]  # 3
    with torch.no_grad():
        output = model(images)
        loss = F.nll_loss(output, labels, reduction="sum")
        right = (output.argmax(1) == labels).sum().float()
        sums = torch.stack([loss, right])
    sums = hvd.allreduce(sums, op=hvd.Sum, name="test")  # 3
    loss_sum, right_sum = sums.tolist()
    return {"loss": loss_sum / len(testing), "accuracy": right_sum / len(testing)}


def main() -> None:
    """Reads the command line."""
    parser = digits.options(__doc__ or "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
