"""Parameters, optimizer states and objects from the root; SyncBatchNorm against batch normalisation in one process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.nn")  # a part: this folder has the name of the package

import torch  # noqa: E402

import hvd.torch as hvd  # noqa: E402


def equal_everywhere(tensor: Any) -> bool:
    everyone = hvd.allgather(tensor.detach().contiguous()[None])
    return bool((everyone == everyone[0]).all())


def check_broadcast_parameters() -> None:
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(r)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    expected = hvd.broadcast(model[0].weight.detach().contiguous(), n - 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=n - 1)
    assert torch.equal(model[0].weight, expected)
    assert not model[0].weight.is_contiguous()
    torch.manual_seed(r)
    model[0].reset_parameters()
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
    assert all(equal_everywhere(p) for p in model.parameters())
    for wrong in (3, "x", torch.ones(1), None, model, [3]):
        with pytest.raises(ValueError, match="invalid params"):
            hvd.broadcast_parameters(wrong, 0)


def test_broadcast_parameters(ranks: Any) -> None:
    ranks.run(check_broadcast_parameters)


def check_broadcast_optimizer_state(name: str) -> None:
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    cls = getattr(torch.optim, name)
    optimizer = cls(model.parameters(), lr=0.1 * (r + 1))
    root = n - 1
    if r == root:  # the others have no state yet
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    expected = hvd.broadcast_object(optimizer.state_dict(), root)
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    mine = optimizer.state_dict()
    assert mine["param_groups"] == expected["param_groups"]
    assert mine["state"].keys() == expected["state"].keys()
    for key, state in expected["state"].items():
        for field, value in state.items():
            got = mine["state"][key][field]
            assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value, (key, field)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "Rprop"])
def test_broadcast_optimizer_state(ranks: Any, name: str) -> None:
    ranks.run(check_broadcast_optimizer_state, name=name)


def check_gradients_of_a_new_optimizer(name: str, wrapped: bool) -> None:
    """Zero where there were none and no state; scripts that clip or scale them need that."""
    r, n = hvd.rank(), hvd.size()
    a, b, c, d = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(4))
    b.requires_grad_(False)
    c.grad = torch.ones(2, 3).to_sparse(1) if name == "SparseAdam" else torch.ones(2, 3)
    optimizer = getattr(torch.optim, name)([a, b, c], lr=0.1)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, [("a", a), ("b", b), ("c", c)])
    hvd.broadcast_optimizer_state(optimizer, root_rank=n - 1)
    assert a.grad.is_sparse == (name == "SparseAdam") and not a.grad.to_dense().any() and a.grad.shape == (2, 3)
    assert b.grad is None and c.grad.to_dense().all() and d.grad is None
    assert all(p.all() for p in (a, b, c)) and not optimizer.state  # nothing was stepped
    a.grad = torch.ones(2, 3).to_sparse(1) if name == "SparseAdam" else torch.ones(2, 3)
    optimizer.step()
    if optimizer.state:
        a.grad = None
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert a.grad is None
    assert r < n


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam", "SparseAdam"])
def test_gradients_of_a_new_optimizer(ranks: Any, name: str, wrapped: bool) -> None:
    ranks.run(check_gradients_of_a_new_optimizer, name=name, wrapped=wrapped)


def check_objects() -> None:
    r, n = hvd.rank(), hvd.size()
    assert torch.equal(hvd.broadcast_object({"t": torch.full((2,), r)}, root_rank=n - 1)["t"], torch.full((2,), n - 1))
    assert hvd.allgather_object(("rank", r)) == [("rank", q) for q in range(n)]


def test_objects(ranks: Any) -> None:
    ranks.run(check_objects)


def check_sync_batch_norm(shape: Any, affine: bool, momentum: Any) -> None:
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(2)
    rows = [q + 2 for q in range(n)]
    whole = torch.randn(sum(rows), *shape, dtype=torch.float64) * 3 + 1
    weights = torch.randn(sum(rows), *shape, dtype=torch.float64)
    begin = sum(rows[:r])
    plain = (torch.nn.BatchNorm1d if len(shape) < 3 else torch.nn.BatchNorm2d)(
        shape[0], affine=affine, momentum=momentum, dtype=torch.float64
    )
    synchronised = hvd.SyncBatchNorm(shape[0], affine=affine, momentum=momentum).double()
    if affine:
        with torch.no_grad():
            for module in (plain, synchronised):
                module.weight.copy_(torch.arange(1.0, shape[0] + 1))
                module.bias.fill_(0.5)
    for _ in range(2):
        expected_input = whole.clone().requires_grad_()
        expected = plain(expected_input)
        (expected * weights).sum().backward()
        mine = whole[begin : begin + rows[r]].clone().requires_grad_()
        output = synchronised(mine)
        (output * weights[begin : begin + rows[r]]).sum().backward()
        torch.testing.assert_close(output, expected[begin : begin + rows[r]])
        torch.testing.assert_close(mine.grad, expected_input.grad[begin : begin + rows[r]])
    torch.testing.assert_close(synchronised.running_mean, plain.running_mean)
    torch.testing.assert_close(synchronised.running_var, plain.running_var)
    assert synchronised.num_batches_tracked.item() == 2
    if affine:
        torch.testing.assert_close(hvd.allreduce(synchronised.weight.grad, op=hvd.Sum), plain.weight.grad)
        torch.testing.assert_close(hvd.allreduce(synchronised.bias.grad, op=hvd.Sum), plain.bias.grad)
    plain.eval(), synchronised.eval()
    torch.testing.assert_close(synchronised(whole), plain(whole))


@pytest.mark.parametrize("shape,affine,momentum", [([3], True, 0.1), ([3, 4], False, None), ([2, 3, 4], True, 0.5)])
def test_sync_batch_norm(ranks: Any, shape: Any, affine: bool, momentum: Any) -> None:
    ranks.run(check_sync_batch_norm, shape=shape, affine=affine, momentum=momentum)


def check_sync_batch_norm_misuse() -> None:
    with pytest.raises(ValueError, match="2D"):
        hvd.SyncBatchNorm(3)(torch.ones(3))
    half = hvd.SyncBatchNorm(3)(torch.randn(4, 3, 5).bfloat16())
    assert half.dtype == torch.bfloat16


def test_sync_batch_norm_misuse(ranks: Any) -> None:
    ranks.run(check_sync_batch_norm_misuse)
