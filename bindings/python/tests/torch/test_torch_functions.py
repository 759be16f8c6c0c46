"""Parameters, optimizer states and objects from the root; SyncBatchNorm against batch normalisation in one process."""

from __future__ import annotations

import copy
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


def check_parameters_of_any_layout() -> None:
    """Expanded, transposed and sliced buffers as in any ``state_dict``, and keys of several types."""
    r, n = hvd.rank(), hvd.size()
    expanded = torch.full((1, 4), float(r)).expand(3, 4)
    both = torch.full((1,), r).expand(2, 5)
    transposed = (torch.arange(6.0) + 10 * r).view(2, 3).t()
    sliced = torch.full((4, 6), float(r))
    window = (torch.arange(5.0) + 10 * r).unfold(0, 3, 1)  # neighbours share elements
    nothing = torch.ones(1).expand(0, 4)
    params = {"b": expanded, 1: both, "1.x": transposed, (0, "y"): sliced[:, ::2], "window": window, None: None}
    hvd.broadcast_parameters(params if r else dict(reversed(params.items())), root_rank=n - 1)
    assert torch.equal(expanded, torch.full((3, 4), n - 1.0)) and expanded.stride() == (0, 1)
    assert torch.equal(both, torch.full((2, 5), n - 1))
    assert torch.equal(transposed, (torch.arange(6.0) + 10 * (n - 1)).view(2, 3).t())
    assert torch.equal(sliced[:, ::2], torch.full((4, 3), n - 1.0)) and bool((sliced[:, 1::2] == r).all())
    assert torch.equal(window, (torch.arange(5.0) + 10 * (n - 1)).unfold(0, 3, 1))
    hvd.broadcast_parameters([nothing], 0)


def test_parameters_of_any_layout(ranks: Any) -> None:
    ranks.run(check_parameters_of_any_layout)


def check_parameters_that_cannot_be_sent() -> None:
    """All ranks know before anything is sent, whichever rank has them; the job goes on."""
    r, n = hvd.rank(), hvd.size()
    wrong = {
        "sparse": torch.eye(4).to_sparse(), "on device meta": torch.ones(4, device="meta"),
        "torch.float8_e5m2": torch.ones(4).to(torch.float8_e5m2),
    }
    for text, value in wrong.items():
        mine = torch.full((3,), float(r))
        error = ValueError if r == n - 1 else hvd.HorovodInternalError
        with pytest.raises(error, match=rf"(?s)'z'.*{text}" if r == n - 1 else rf"(?s)rank {n - 1}: 'z'.*{text}"):
            hvd.broadcast_parameters({"a": mine, "z": value if r == n - 1 else torch.ones(4)}, root_rank=0)
        assert bool((mine == r).all())
    if n > 1:
        mine = torch.full((3,), float(r))
        mask = torch.ones(1, 4).expand(2, 4) if r == 0 else torch.ones(2, 4)
        with pytest.raises(hvd.HorovodInternalError, match=r"'z' share memory .* rank 0 with strides \(0, 1\)"):
            hvd.broadcast_parameters({"a": mine, "z": mask}, root_rank=0)
        assert bool((mine == r).all())
    with pytest.raises(ValueError, match="surrogate"):
        hvd.broadcast_parameters({"a\udc80": torch.ones(1)}, root_rank=0)
    hvd.broadcast_parameters({"a": mine}, root_rank=n - 1)
    assert bool((mine == n - 1).all())


def test_parameters_that_cannot_be_sent(ranks: Any) -> None:
    ranks.run(check_parameters_that_cannot_be_sent)


class Masters(torch.optim.Optimizer):
    """As common for mixed precision: float32 copies of parameters; and whatever else a state may hold."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "note": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s.update(
                        master=p.float(), count=torch.zeros((), dtype=torch.int64), none=None, number=0.1, text="x",
                        nested={"list": [torch.ones(2, dtype=torch.float64), 1], "pair": (torch.ones(1), None)},
                        sparse=torch.eye(2).to_sparse(), flags=torch.tensor([True, False]), expanded=torch.ones(1).expand(3),
                        transposed=torch.ones(3, 2, dtype=torch.float16).t(), kept=torch.nn.Parameter(torch.ones(1)),
                    )
                s["count"] += 1
                s["master"] -= group["lr"] * p.grad.float()
                p.copy_(s["master"])


def same_state(got: Any, expected: Any, where: str = "") -> None:
    """Bit for bit, and of the same types."""
    assert type(got) is type(expected), where
    if isinstance(got, torch.Tensor):
        assert (got.dtype, got.device, got.layout, got.shape) == (
            expected.dtype, expected.device, expected.layout, expected.shape
        ), where
        got, expected = (got.to_dense(), expected.to_dense()) if got.is_sparse else (got, expected)
        assert torch.equal(got, expected), where
    elif isinstance(got, dict):
        assert list(got) == list(expected), where
        for key in got:
            same_state(got[key], expected[key], f"{where}.{key}")
    elif isinstance(got, (list, tuple)):
        assert len(got) == len(expected), where
        for i in range(len(got)):
            same_state(got[i], expected[i], f"{where}.{i}")
    else:
        assert got == expected, where


def held_by(optimizer: Any) -> Any:
    """All that an optimizer holds but its parameters."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return [dict(optimizer.state[p]) for group in optimizer.param_groups for p in group["params"]], groups


def stepped(optimizer: Any, p: torch.Tensor, sparse: bool) -> None:
    p.grad = torch.full_like(p, 0.3)
    p.grad = p.grad.to_sparse(1) if sparse else p.grad
    optimizer.step()


OPTIMIZERS = [
    *(name for name in dir(torch.optim) if name[0].isupper() and name not in ("LBFGS", "Optimizer")), "Masters",
]
OPTIONS: dict[str, Any] = {
    "Adam": {"amsgrad": True, "foreach": True}, "AdamW": {"fused": True}, "RMSprop": {"momentum": 0.9, "centered": True},
    "SGD": {"momentum": 0.9},
}


def check_broadcast_optimizer_state(name: str, kind: str) -> None:
    r, n = hvd.rank(), hvd.size()
    root = n - 1
    p = torch.nn.Parameter(torch.full((3, 2), 0.5, dtype=getattr(torch, kind)))
    cls = Masters if name == "Masters" else getattr(torch.optim, name)
    options = OPTIONS.get(name, {}) if r == root else {}
    optimizer = cls([p], lr=0.1 * (r + 1), **options)
    if r == root:  # the others have no state yet
        for _ in range(2):
            stepped(optimizer, p, name == "SparseAdam")
    expected = copy.deepcopy(hvd.broadcast_object(held_by(optimizer), root))
    if n > 1:
        assert expected[0][0], "no state"
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    same_state(held_by(optimizer), expected)
    # The same when it is restored.
    state = hvd.elastic.TorchState(optimizer=optimizer)
    stepped(optimizer, p, name == "SparseAdam")
    state.restore()
    same_state(held_by(optimizer), expected)
    state.sync()
    same_state(held_by(optimizer), expected)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_broadcast_optimizer_state(several_ranks: Any, name: str, kind: str) -> None:
    several_ranks.run(check_broadcast_optimizer_state, name=name, kind=kind)


def check_converted_optimizer_state() -> None:
    """A class whose ``state_dict`` is not what it holds is taken by its own functions."""

    class Halved(torch.optim.SGD):
        def state_dict(self) -> Any:
            saved = super().state_dict()
            return {**saved, "state": {i: {k: v / 2 for k, v in s.items()} for i, s in saved["state"].items()}}

        def load_state_dict(self, saved: Any) -> None:
            super().load_state_dict(saved)
            for s in self.state.values():
                s.update({k: v * 2 for k, v in s.items()})

    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = Halved([p], lr=0.1, momentum=0.9)
    if hvd.rank() == 0:
        stepped(optimizer, p, False)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    same_state(optimizer.state[p]["momentum_buffer"], torch.full((2,), 0.3))


def test_converted_optimizer_state(several_ranks: Any) -> None:
    several_ranks.run(check_converted_optimizer_state)


def check_optimizers_that_differ() -> None:
    """All ranks know, and the job goes on."""
    r, n = hvd.rank(), hvd.size()
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3 if r == n - 1 else 2)]
    with pytest.raises(ValueError if r == n - 1 else hvd.HorovodInternalError, match=r"groups of \[3\].* 0, .* of \[2\]"):
        hvd.broadcast_optimizer_state(torch.optim.SGD(parameters, lr=0.1), root_rank=0)
    same_state(hvd.allreduce(torch.ones(1)), torch.ones(1))


def test_optimizers_that_differ(several_ranks: Any) -> None:
    several_ranks.run(check_optimizers_that_differ)


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
