"""torch.distributed over the backend "hvd" on a real GPU: the checks of bindings/python/tests/torch_distributed/
test_dist_gpu.py, which there run on stand-ins, and what these cannot do: autograd and kernels of PyTorch's own.
tools/gpu-check runs it.
"""

from __future__ import annotations

import faulthandler
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TESTS = Path(__file__).resolve().parents[3] / "bindings" / "python" / "tests"
HELD = 0.3  # s


class Gpu:
    """In place of the stand-in, which counts what a real GPU does not tell."""

    violations = host_synchronisations = 0
    last_violation = ""

    def calls(self, _name: str) -> int:
        return 0

    def pending(self, _rank: int, _stream: int) -> int:
        return 0 if torch.cuda.current_stream().query() else 1

    @contextmanager
    def held(self, _rank: int, _stream: int) -> Iterator[None]:
        """The GPU has other work first, for which the block does not wait."""
        torch.cuda.synchronize()
        began = time.monotonic()
        torch.cuda._sleep(int(2e9 * HELD))  # clocks, of at most 2 GHz
        yield
        took = time.monotonic() - began
        assert took < HELD and self.pending(0, 0), f"the host waited for the GPU: {took:.2f} s"


def begin() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def module(name: str, **members: Any) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


module("standin_gpu", gpu=Gpu, find_libraries=lambda: None, WHERE="")
sys.path[:0] = [str(TESTS), str(TESTS / "torch_distributed")]
import hvd.torch.distributed  # noqa: E402, F401  (registers the backend where the package is only a folder)
import test_dist_gpu as checks  # noqa: E402

checks.begin = begin


def mean_of(model: torch.nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of all ranks' inputs, computed by this rank alone."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x in inputs:
        for one, sum_ in zip(torch.autograd.grad(model(x).square().sum(), list(model.parameters())), total):
            sum_ += one / len(inputs)
    return total


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)]
    return torch.nn.Sequential(*layers).to(begin())


def inputs_of_all() -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randn(16, 64).to(begin()) for _ in range(dist.get_world_size())]


def check_data_parallel() -> None:
    inputs = inputs_of_all()
    expected = mean_of(network(), inputs)
    model = torch.nn.parallel.DistributedDataParallel(network(), device_ids=[0], gradient_as_bucket_view=True)
    for _ in range(3):
        model.zero_grad()
        model(inputs[dist.get_rank()]).square().sum().backward()
        for p, right in zip(model.parameters(), expected):
            torch.testing.assert_close(p.grad, right)


def check_fully_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    inputs = inputs_of_all()
    expected = mean_of(network(), inputs)
    model = network()
    mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    for _ in range(3):
        model.zero_grad()
        model(inputs[dist.get_rank()]).square().sum().backward()
        for p, right in zip(model.parameters(), expected):
            torch.testing.assert_close(p.grad.full_tensor(), right)


def check_functional() -> None:
    from torch.distributed import _functional_collectives as functional

    rank, size = checks.place()
    x = torch.full((1000,), float(rank + 1), device=begin())
    group = dist.group.WORLD

    def step(x: torch.Tensor) -> torch.Tensor:
        whole = functional.all_gather_tensor(functional.all_reduce(x * 2, "sum", group), 0, group)
        return functional.reduce_scatter_tensor(whole + 1, "sum", 0, group)

    right = [size * (size * (size + 1) + 1.0)] * 1000
    assert step(x).tolist() == right
    assert torch.compile(step)(x).tolist() == right


def run_all() -> list[tuple[str, Callable[[], None]]]:
    two = dist.get_world_size() == 2
    named = "strided coalesced empty scattered_views streams futures completed_without_wait groups no_wait memory_is_free"
    found = [(name, getattr(checks, f"check_{name}")) for name in named.split()]
    for name, dtypes in (("reductions", checks.DTYPES), ("moves", [*checks.DTYPES, "int16"])):
        found += [(f"{name}, {d}", lambda d=d, name=name: getattr(checks, f"check_{name}")(d)) for d in dtypes]
    for d in ("float32", "bfloat16", "int16", "bool"):
        found.append((f"messages, {d}", lambda d=d: checks.check_messages(d)))
    found += [("messages between collectives", checks.check_messages_between_collectives)]
    if two:
        found += [(name, getattr(checks, f"check_{name}")) for name in ("overlap", "registered", "registered_works")]
        found.append(("fork", checks.check_fork))
    found += [("DDP", check_data_parallel), ("FSDP2", check_fully_sharded), ("functional", check_functional)]
    if two:
        found.append(("errors of messages", checks.check_message_errors))
    return found


def main() -> int:
    warnings.simplefilter("ignore")
    faulthandler.dump_traceback_later(100, exit=True)  # below tools/gpu-check's limit, which would say nothing
    torch.cuda.set_device(0)
    dist.init_process_group("hvd")
    found, failed = run_all(), 0
    for name, check in found:
        try:
            check()
        except Exception:  # the others go on, so that one run tells of all
            failed += 1
            print(f"rank {dist.get_rank()}: {name}:\n{traceback.format_exc()}", flush=True)
    dist.barrier()
    print(f"{len(found)} checks of torch.distributed on rank {dist.get_rank()}, {failed} failed", flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
