"""The functions that bench/spark_start.py runs on tasks of Spark and on ranks, pickled by value.

Functions make them, and they import everything that they use: Spark's executors have no modules of bench/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

BATCH, TINY_BATCH = 256, 8
WARM_STEPS, TINY_WARM_STEPS = 30, 2
SIZES = (64, 256, 256, 64, 10)  # units of the layers
RATE, MOMENTUM = 0.05, 0.9


def parameters() -> int:
    return sum(a * b + b for a, b in zip(SIZES, SIZES[1:]))


def tensors() -> int:
    return 2 * (len(SIZES) - 1)


def of_barrier_task() -> Callable[[Any], Iterator[list[float]]]:
    """For each task of a barrier job: rank, size, and the time of its first line."""

    def task(_: Any) -> Iterator[list[float]]:
        import time

        first = time.time()
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        context.barrier()
        yield [context.partitionId(), len(context.getTaskInfos()), first]

    return task


def of_hvd_rank() -> Callable[[], list[list[float]]]:
    """For a rank of hvd: the same of all ranks, by an allgather of PyTorch's tensors."""

    def main() -> list[list[float]]:
        import time

        first = time.time()
        import torch

        import hvd.torch as hvd

        hvd.init()
        mine = torch.tensor([[hvd.rank(), hvd.size(), first]], dtype=torch.float64)
        return hvd.allgather(mine).tolist()

    return main


def of_torch_rank() -> Callable[[], list[list[float]]]:
    """For a rank of TorchDistributor: the same, by torch.distributed on Gloo."""

    def train() -> list[list[float]]:
        import time

        first = time.time()
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        mine = torch.tensor([dist.get_rank(), dist.get_world_size(), first], dtype=torch.float64)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_of_them, mine)
        dist.destroy_process_group()
        return [each.tolist() for each in all_of_them]

    return train


def of_training(steps: int, tiny: bool) -> Callable[[], list[dict[str, Any]]]:
    """For a rank that trains: the results of each rank. A perceptron learns outputs of another one."""
    batch, warm = (TINY_BATCH, TINY_WARM_STEPS) if tiny else (BATCH, WARM_STEPS)
    sizes, rate, momentum = SIZES, RATE, MOMENTUM

    def main() -> list[dict[str, Any]]:
        import gc
        import hashlib
        import os
        import time

        import torch

        import hvd.torch as hvd

        hvd.init()
        torch.set_num_threads(1)
        torch.manual_seed(1)
        layers: list[Any] = []
        for width, next_width in zip(sizes, sizes[1:]):
            layers += [torch.nn.Linear(width, next_width), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers[:-1])
        teacher = torch.randn(sizes[0], sizes[-1])
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum), named_parameters=model.named_parameters()
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        generator = torch.Generator().manual_seed(1000 + hvd.rank())  # each rank has its own data
        inputs = torch.randn(batch, sizes[0], generator=generator)
        labels = (inputs @ teacher).argmax(1)
        seconds, losses = [], []
        gc.collect()
        gc.disable()
        for number in range(warm + steps):
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if number >= warm:
                seconds.append(time.perf_counter() - start)
            losses.append(loss.item())
        gc.enable()
        flat = torch.cat([each.detach().flatten() for each in model.parameters()])
        return hvd.allgather_object({
            "rank": hvd.rank(),
            "size": hvd.size(),
            "seconds": seconds,
            "losses": losses,
            "digest": hashlib.sha256(flat.numpy().tobytes()).hexdigest(),
            "cpus": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
            "threads": torch.get_num_threads(),
        })

    return main
