"""The same program on Gloo and on hvd, one after the other in the same ranks, for tests that compare their results."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist
from dist_ranks import TIMEOUT, folder, place
from torch import nn

_numbers = itertools.count()


@contextlib.contextmanager
def group(backend: str, seconds: float = TIMEOUT, **more: Any) -> Iterator[Any]:
    """The default group, as long as this lasts. All ranks make the same ones in the same order."""
    logging.getLogger("torch").setLevel(logging.ERROR)  # it tells of what is slow
    rank, size = place()
    store = dist.FileStore(str(folder() / f"features-{next(_numbers)}"), size)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds), **more
    )
    try:
        yield dist.group.WORLD
    finally:
        if backend == "gloo" and torch.__version__ < "2.7":
            time.sleep(0.1)  # its threads want the GIL, while it waits for them with it
        dist.destroy_process_group()


def both(program: Callable[[], Any], exact: bool | None = None) -> Any:
    """What the program returns on hvd, after it was compared with what it returns on Gloo: equal bits, which is the
    default with two ranks, as these have only one order in which to add; else nearly equal.
    """
    results = {}
    for backend in ("gloo", "hvd"):
        with group(backend):
            torch.manual_seed(1)
            results[backend] = program()
    compare(results["hvd"], results["gloo"], place()[1] == 2 if exact is None else exact)
    return results["hvd"]


def compare(found: Any, expected: Any, exact: bool) -> None:
    """Fails where two results differ: tensors, and lists and dictionaries of them."""
    limits = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found, expected, equal_nan=True, **limits)


# --- Programs ---------------------------------------------------------------------------------------------------------


def network(inputs: int = 8, hidden: int = 32, layers: int = 3) -> nn.Module:
    """The same weights on all ranks."""
    torch.manual_seed(5)
    inner = [part for _ in range(layers) for part in (nn.Linear(hidden, hidden), nn.Tanh())]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), *inner, nn.Linear(hidden, 1))


def batch(step: int, inputs: int = 8, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Of this rank."""
    random = torch.Generator().manual_seed(100 * step + place()[0])
    x = torch.randn(rows, inputs, generator=random)
    return x, x.sum(1, keepdim=True).sin()


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy, by name."""
    return {name.replace("module.", ""): value.detach().clone() for name, value in model.state_dict().items()}


def train(model: nn.Module, steps: int = 4, optimizer: Any = None, keep: bool = False, inputs: int = 8) -> list[Any]:
    """The losses, and the weights at the end. ``keep``: gradients stay, as zeros, from step to step."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = batch(step, inputs)
        optimizer.zero_grad(set_to_none=not keep)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, weights(model)]
