"""What divides a model between ranks trains on hvd as on Gloo: optimizers, FSDP, DTensor, pipelines, checkpoints."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from dist_ranks import Ranks, place  # noqa: E402
from features_ranks import batch, both, compare, group, network, train, weights  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import (  # noqa: E402
    FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, StateDictType, fully_shard,
)  # fmt: skip
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

warnings.filterwarnings("ignore", category=FutureWarning)


def whole(values: Any) -> dict[str, torch.Tensor]:
    """Tensors by name, those of DTensor put together."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in values.items()
    }


# --- Optimizers -------------------------------------------------------------------------------------------------------


def check_zero_redundancy(overlapping: bool) -> None:
    def program() -> Any:
        model = DDP(network())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, parameters_as_bucket_view=overlapping
        )
        result = train(model, optimizer=optimizer)
        optimizer.consolidate_state_dict(to=0)
        state = optimizer.state_dict()["state"] if place()[0] == 0 else {}
        return [result, {str(key): value["exp_avg"] for key, value in state.items()}]

    result = both(program)
    assert len(result[1]) == (10 if place()[0] == 0 else 0)
    with group("hvd"):  # it is the optimizer that was divided
        model = DDP(network())
        compare(train(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01)), result[0], exact=False)


@pytest.mark.parametrize("views", [False, True])
def test_zero_redundancy(features: Ranks, views: bool) -> None:
    features.run(check_zero_redundancy, overlapping=views)


def check_clip_and_sampler() -> None:
    """Norms of gradients, and images that are divided between ranks and shuffled."""

    def program() -> Any:
        data = TensorDataset(torch.arange(22.0).reshape(11, 2))
        sampler: Any = DistributedSampler(data, shuffle=True, seed=3)
        model = DDP(nn.Linear(2, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        seen, norms = [], []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for (x,) in DataLoader(data, 2, sampler=sampler):
                seen.append(x)
                optimizer.zero_grad()
                model(x).square().mean().backward()
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
                optimizer.step()
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, seen[:3])
        assert sorted(set(torch.cat(sum(everybody, []))[:, 0].tolist())) == [2.0 * n for n in range(11)]
        state = optimizer.state_dict()["state"]
        return [seen, norms, weights(model), {str(k): v["exp_avg_sq"] for k, v in state.items()}]

    both(program)


def test_clip_and_sampler(features: Ranks) -> None:
    features.run(check_clip_and_sampler)


# --- FSDP -------------------------------------------------------------------------------------------------------------


def check_first_fsdp(strategy: str) -> None:
    def program() -> Any:
        inner = network()
        inner[2] = FullyShardedDataParallel(
            inner[2], sharding_strategy=ShardingStrategy[strategy], device_id=torch.device("cpu"), use_orig_params=True
        )
        model = FullyShardedDataParallel(
            inner, sharding_strategy=ShardingStrategy[strategy], device_id=torch.device("cpu"), use_orig_params=True
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for step in range(4):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            norm = model.clip_grad_norm_(0.3)
            optimizer.step()
            losses += [loss.detach(), norm]
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            result = weights(model)
            state = FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"]
        return [losses, result, {str(k): v["exp_avg"] for k, v in state.items()}]

    both(program)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_first_fsdp(features: Ranks, strategy: str) -> None:
    features.run(check_first_fsdp, strategy=strategy)


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    """A model whose layers are divided between ranks."""
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def train_sharded(model: nn.Module, steps: int = 4) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        losses += [loss.detach(), norm.full_tensor()]
    state = {str(n): one["exp_avg"] for n, one in enumerate(optimizer.state.values())}
    return [losses, whole(model.state_dict()), whole(state)]


def check_fsdp() -> None:
    plain = both(lambda: train_sharded(sharded(network())))
    keep = both(lambda: train_sharded(sharded(network(), reshard_after_forward=False)))
    compare(keep, plain, exact=True)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    both(lambda: train_sharded(sharded(network(), mp_policy=half)))


def test_fsdp(features: Ranks) -> None:
    features.run(check_fsdp)


def check_fsdp_three_ranks() -> None:
    both(lambda: train_sharded(sharded(network())))


def test_fsdp_three_ranks(three_features: Ranks) -> None:
    three_features.run(check_fsdp_three_ranks)


def check_fsdp_in_shared_memory() -> None:
    """Where FSDP asks the group for memory, it gets some that ranks share, and the results stay the same."""
    with group("gloo"):
        expected = train_sharded(sharded(network(hidden=96)))
    with group("hvd"):
        model = sharded(network(hidden=96))
        for layer in model.modules():
            if isinstance(layer, FSDPModule):
                layer.set_allocate_memory_from_process_group_for_comm(True)
        ours: Any = dist.group.WORLD
        given: list[Any] = []
        allocate = ours.allocate_tensor
        ours.allocate_tensor = lambda *size, **options: given.append(allocate(*size, **options)) or given[-1]
        compare(train_sharded(model), expected, exact=True)
        assert len(given) > 8 and all(one.is_shared() for one in given)
        assert sum(one.memory is not None for one in ours._storages.known.values()) == len(given)


def test_fsdp_in_shared_memory(features: Ranks) -> None:
    features.run(check_fsdp_in_shared_memory)


def check_hybrid() -> None:
    """Sharded in rows of a mesh, and the same in all rows."""

    def program() -> Any:
        mesh = init_device_mesh("cpu", (2, place()[1] // 2), mesh_dim_names=("copies", "parts"))
        result = train_sharded(sharded(network(), mesh=mesh))
        sizes = [mesh["copies"].size(), mesh["parts"].size(), mesh.get_group("parts").size()]
        return [result, sizes, list(mesh.get_coordinate())]

    both(program)


def test_hybrid(features: Ranks, four_features: Ranks) -> None:
    features.run(check_hybrid)
    four_features.run(check_hybrid)


# --- DTensor ----------------------------------------------------------------------------------------------------------


def check_dtensor() -> None:
    """All ways between placements, evenly and unevenly divided, with gradients."""

    def program() -> Any:
        mesh = init_device_mesh("cpu", (place()[1],))
        results = []
        for shape in ((6, 12), (5, 7)):
            values = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
            for start in (Replicate(), Shard(0), Shard(1)):
                for target in (Replicate(), Shard(0), Shard(1)):
                    one = distribute_tensor(values, mesh, [start]).requires_grad_()
                    two = one.redistribute(mesh, [target])
                    (two * two).sum().full_tensor().backward()
                    results += [two.to_local().detach(), two.full_tensor().detach(), one.grad.full_tensor()]
            partial = DTensor.from_local(values + place()[0], mesh, [Partial()])
            for target in (Replicate(), Shard(0), Shard(1)):
                results.append(partial.redistribute(mesh, [target]).to_local())
            left = distribute_tensor(values, mesh, [Shard(0)])
            right = distribute_tensor(values.T.contiguous(), mesh, [Shard(0)])
            results.append((left @ right).full_tensor())
            results.append(torch.nn.functional.layer_norm(left, shape[1:]).full_tensor())
        return results

    both(program)


def test_dtensor(features: Ranks, three_features: Ranks) -> None:
    features.run(check_dtensor)
    three_features.run(check_dtensor)


def check_two_dimensions() -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        values = torch.arange(48.0).reshape(8, 6)
        results = []
        for placements in ([Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(1)]):
            one = distribute_tensor(values, mesh, placements)
            results += [one.to_local(), one.full_tensor(), one.redistribute(mesh, [Shard(1), Replicate()]).to_local()]
        flat = mesh._flatten("all")
        mine = torch.tensor([float(place()[0])])
        for each in (mesh["a"], mesh["b"], flat):
            total = mine.clone()
            dist.all_reduce(total, group=each.get_group())
            results.append(total)
        return results

    result = both(program)
    rank = place()[0]
    assert [x.item() for x in result[-3:]] == [2.0 * (rank % 2) + 2, 4.0 * (rank // 2) + 1, 6.0]


def test_two_dimensions(four_features: Ranks) -> None:
    four_features.run(check_two_dimensions)


# --- Pipelines --------------------------------------------------------------------------------------------------------


def check_pipeline(schedule: str) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    rank, size = place()

    def program() -> Any:
        torch.manual_seed(5)
        stages = 2 if schedule == "Interleaved" else 1
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(size * stages)]
        parts = [PipelineStage(layers[n], n, len(layers), torch.device("cpu")) for n in range(rank, len(layers), size)]
        kinds = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
        if schedule == "Interleaved":
            steps: Any = ScheduleInterleaved1F1B(parts, 4, loss_fn=nn.functional.mse_loss)
        else:
            steps = kinds[schedule](parts[0], 4, loss_fn=nn.functional.mse_loss)
        results = []
        for step in range(2):
            x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
            losses: list[Any] = []
            if rank == 0:
                steps.step(x)
            else:
                last = steps.step(target=x.sin(), losses=losses)
                results.append([last.detach(), *losses] if rank == size - 1 else [])
        return [results, [w.grad for part in parts for w in part.submod.parameters()]]

    both(program)


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe", "Interleaved"])
def test_pipeline(features: Ranks, schedule: str) -> None:
    features.run(check_pipeline, schedule=schedule)


# --- Checkpoints ------------------------------------------------------------------------------------------------------


class Training:
    """A sharded model with its optimizer, as a checkpoint."""

    def __init__(self) -> None:
        self.model = sharded(network())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def state_dict(self) -> Any:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: Any) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def step(self, steps: int) -> Any:
        for step in range(steps):
            x, y = batch(step)
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
        return whole(self.model.state_dict())


def check_checkpoint(path: str) -> None:
    """Saved by two ranks, and read by two."""
    with group("hvd"):
        one = Training()
        one.step(2)
        dcp.save({"all": one}, checkpoint_id=path)
        saved = whole(one.model.state_dict())
        expected = one.step(2)
        two = Training()
        dcp.load({"all": two}, checkpoint_id=path)
        compare(whole(two.model.state_dict()), saved, exact=True)
        compare(two.step(2), expected, exact=True)
        if place()[0] == 0:
            torch.save(saved, path + ".pt")


def check_resharded(path: str) -> None:
    """Of two ranks, read by this one, and by one without a group."""
    saved = torch.load(path + ".pt")
    with group("hvd"):
        one = Training()
        dcp.load({"all": one}, checkpoint_id=path)
        compare(whole(one.model.state_dict()), saved, exact=True)
        one.step(1)
    plain = {"all": {"model": network().state_dict()}}
    dcp.load(plain, checkpoint_id=path)
    compare(plain["all"]["model"], saved, exact=True)


def test_checkpoint(features: Ranks, three_features: Ranks, tmp_path: Any) -> None:
    path = os.path.join(tmp_path, "saved")
    features.run(check_checkpoint, path=path)
    three_features.run(check_resharded, path=path)
    alone = Ranks(1, joined=False)
    try:
        alone.run(check_resharded, path=path)
    finally:
        alone.stop()
