"""Trains torch_digits.py's network while ranks fail and new ones come.

    hvdrun -np 3 --min-np 2 python examples/python/elastic_digits.py --pause 0.2

Kill a rank in the middle (``kill -9``): the others go on from the last commit, and a new one joins them. It is written for
Horovod: with ``import horovod.torch as hvd`` it is the same program.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import digits
import hvd.torch as hvd
from torch_digits import Net, load

LEARNING_RATE = 0.02  # of one rank


@hvd.elastic.run
def train(state: Any, dataset: Any, epochs: int, batch_size: int, pause: float) -> None:
    """Trains from where ``state`` is, to the end."""
    while state.epoch < epochs:
        loader = DataLoader(dataset, batch_size, sampler=state.sampler)
        for x, y in loader:
            state.optimizer.zero_grad()
            loss = F.nll_loss(state.model(x), y)
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(state.batch, batch_size)
            state.batch += 1
            time.sleep(pause)  # a real network takes longer
            if state.batch % 5 == 0:
                state.commit()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: loss {loss.item():.3f}, size {hvd.size()}", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Trains on handwritten digits, elastically.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    parser.add_argument("--data", default=str(digits.DATA))
    chosen = parser.parse_args()
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    training, testing = load(chosen.data)
    model = Net(testing.tensors[0].shape[-1])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(training, seed=1)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    def adapt() -> None:
        """Fits the learning rate to the number of ranks."""
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * hvd.size()
        print(f"process {os.getpid()} is rank {hvd.rank()} of {hvd.size()}", flush=True)

    state.register_reset_callbacks([adapt])
    adapt()
    train(state, training, chosen.epochs, chosen.batch_size, chosen.pause)
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
    print(f"rank {hvd.rank()} of {hvd.size()}: weights {weights}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
