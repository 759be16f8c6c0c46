"""Trains a small network on handwritten digits with PyTorch's DistributedDataParallel, on any number of processes.

    torchrun --nproc-per-node 2 examples/python/ddp_digits.py --backend hvd

With ``--backend gloo`` it is the same program, and prints the same losses: hvd is one word.
"""

from __future__ import annotations

from typing import Any, Dict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import digits
from single.torch_digits import Net, load


def train(
    epochs: int = 5, batch_size: int = 32, lr: float = 0.02, checkpoint: str = "", data: str = str(digits.DATA),
    backend: str = "hvd",
) -> Dict[str, Any]:
    """Trains; returns loss and accuracy on the images to test with, and a checksum of the weights."""
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    torch.set_num_threads(1)  # the network is tiny
    training, testing = load(data)
    sampler: Any = DistributedSampler(training, size, rank, seed=1)
    loader = DataLoader(training, batch_size, sampler=sampler)

    model = DistributedDataParallel(Net(testing.tensors[0].shape[-1]), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * size, momentum=0.9)

    result: Dict[str, Any] = {}
    for epoch in range(epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.nll_loss(model(images), labels).backward()
            optimizer.step()
        result = test(model, testing)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {result['loss']:.3f}, accuracy {result['accuracy']:.1%}", flush=True)
        if checkpoint and rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    dist.destroy_process_group()
    return {**result, "weights": digits.checksum(w.detach().numpy() for w in model.parameters())}


def test(model: torch.nn.Module, testing: Any) -> Dict[str, float]:
    """Means over the images to test with."""
    model.eval()
    images, labels = (t[dist.get_rank() :: dist.get_world_size()] for t in testing.tensors)
    with torch.no_grad():
        output = model(images)
        loss = F.nll_loss(output, labels, reduction="sum")
        right = (output.argmax(1) == labels).sum().float()
        sums = torch.stack([loss, right])
    dist.all_reduce(sums)
    loss_sum, right_sum = sums.tolist()
    return {"loss": loss_sum / len(testing), "accuracy": right_sum / len(testing)}


def main() -> None:
    """Reads the command line."""
    parser = digits.options(__doc__ or "")
    parser.add_argument("--backend", default="hvd", help="hvd, or another one of torch.distributed (default: %(default)s)")
    train(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
