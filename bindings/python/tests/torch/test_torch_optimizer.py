"""DistributedOptimizer against one process with all data, and what may not be done with it."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from typing import Any

import pytest

pytest.importorskip("torch.nn")  # a part: this folder has the name of the package

import cloudpickle  # noqa: E402
import torch  # noqa: E402

import hvd.torch as hvd  # noqa: E402
from hvd.core import buckets  # noqa: E402

STEPS = 4
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"op": 1},
    "groups": {"groups": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    "groups_predivide": {"groups": 3, "gradient_predivide_factor": 4.0},
    "passes": {"backward_passes_per_step": 2},
    "unnamed": {"named_parameters": None},
    "buckets": {"gradient_as_bucket_view": True},
    "buckets_groups": {"gradient_as_bucket_view": True, "groups": 2},
    "buckets_passes": {"gradient_as_bucket_view": True, "backward_passes_per_step": 2},
}


def new_model(seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
    ).double()


def data(n: int) -> Any:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(STEPS, 2, n, 3, 4, dtype=torch.float64, generator=generator)  # step, pass, rank, row, feature


def loss_of(model: Any, rows: Any) -> Any:
    return model(rows).square().mean()


def check_against_one_process(optimizer: str, variant: str) -> None:
    r, n = hvd.rank(), hvd.size()
    options = dict(VARIANTS[variant])
    passes = options.get("backward_passes_per_step", 1)
    batches = data(n)
    alone, model = new_model(), new_model(3 if r == 0 else 4)
    hvd.broadcast_parameters(model.state_dict(), 0)
    reference = OPTIMIZERS[optimizer](alone.parameters())
    options.setdefault("named_parameters", model.named_parameters())
    mine = hvd.DistributedOptimizer(OPTIMIZERS[optimizer](model.parameters()), **options)
    assert isinstance(mine, type(reference)) and type(mine).__name__ == optimizer
    for step in range(STEPS):
        reference.zero_grad()
        mine.zero_grad(set_to_none=step % 2 == 0)
        for i in range(passes):
            loss_of(model, batches[step, i, r]).backward()
            whole = loss_of(alone, batches[step, i].flatten(0, 1))
            (whole * n if variant == "sum" else whole).backward()
        mine.step()
        reference.step()
    for a, b in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        everyone = hvd.allgather(a.detach()[None].contiguous())
        assert (everyone == everyone[0]).all(), "ranks differ"


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_each_optimizer(ranks: Any, optimizer: str) -> None:
    ranks.run(check_against_one_process, optimizer=optimizer, variant="plain")


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_each_variant(ranks: Any, variant: str) -> None:
    ranks.run(check_against_one_process, optimizer="SGD", variant=variant)


def check_half_precision() -> None:
    r, n = hvd.rank(), hvd.size()
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        p = torch.nn.Parameter(torch.zeros(4))
        inner = torch.optim.SGD([p], lr=1.0)
        optimizer = hvd.DistributedOptimizer(inner, [("p", p)], compression=compression, op=hvd.Sum)
        (p * torch.tensor([1.0, 2.0, 3.0, r + 1.0])).sum().backward()
        optimizer.step()
        assert p.tolist() == [-n, -2 * n, -3 * n, -n * (n + 1) / 2]
        # 1 + 2^-12 is 1 in both types. The gradient stays where it is: it is converted while it is packed.
        optimizer.zero_grad(set_to_none=False)
        at = p.grad.data_ptr()
        (p * (1 + 2**-12)).sum().backward()
        optimizer.synchronize()
        sent = n if n > 1 else 1 + 2**-12  # one rank sends nothing
        assert (p.grad.tolist(), p.grad.dtype, p.grad.data_ptr()) == ([sent] * 4, torch.float32, at)
    p = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
    (p * (r + 1)).sum().backward()
    optimizer.step()
    assert p.tolist() == [-n * (n + 1) / 2] * 2


def test_half_precision(ranks: Any) -> None:
    ranks.run(check_half_precision)


def check_own_compression() -> None:
    class Doubled(hvd.Compression.fp16):  # type: ignore[misc, name-defined]
        @staticmethod
        def compress(tensor: Any) -> Any:
            return tensor * 2, "doubled"

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            assert ctx == "doubled"
            return tensor / 2

    n = hvd.size()
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], compression=Doubled, op=hvd.Sum)
    (p * (1 + 2**-12)).sum().backward()
    optimizer.synchronize()
    assert p.grad.tolist() == [n * (1 + 2**-12)] * 2
    # A class that only decompresses in its own way is asked as well.
    class Halved(hvd.Compression.fp16):  # type: ignore[misc, name-defined]
        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor.to(ctx) / 2

    result = hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=Halved)
    assert (result.tolist(), result.dtype) == ([n / 2] * 2, torch.float32)
    # A group of which some members are converted while they are packed, and some before.
    tensors = [torch.full((3,), 1 + 2**-12, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    tensors.append(torch.tensor([70000]))
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert [t.tolist() for t in results] == [[n] * 3, [n] * 3, [70000 * n]]
    assert [t.dtype for t in results] == [torch.float32, torch.float64, torch.int64]


def test_own_compression_and_groups(ranks: Any) -> None:
    ranks.run(check_own_compression)


def check_lbfgs() -> None:
    r, n = hvd.rank(), hvd.size()
    batches = data(n)
    alone, model = new_model(), new_model()
    reference = torch.optim.LBFGS(alone.parameters(), lr=0.5, max_iter=5)
    mine = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5), model.named_parameters())

    def closure(net: Any, optimizer: Any, rows: Any) -> Any:
        def call() -> Any:
            optimizer.zero_grad()
            loss = loss_of(net, rows)
            loss.backward()
            return hvd.allreduce(loss.detach()) if net is model else loss

        return call

    for step in range(2):
        reference.step(closure(alone, reference, batches[step, 0].flatten(0, 1)))
        mine.step(closure(model, mine, batches[step, 0, r]))
    for a, b in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(mine, 0)


def test_lbfgs(ranks: Any) -> None:
    ranks.run(check_lbfgs)


def check_sparse(as_dense: bool) -> None:
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    table = torch.nn.Embedding(2 * n, 3, sparse=True)
    hvd.broadcast_parameters(table.state_dict(), 0)
    start = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense
    )
    table(torch.tensor([0, r + 1])).sum().backward()
    optimizer.step()
    assert table.weight.grad.is_sparse
    expected = torch.zeros(2 * n, 3)
    expected[0] = 1.0
    for q in range(n):
        expected[q + 1] += 1.0 / n
    torch.testing.assert_close(start - table.weight.detach(), expected)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse(several_ranks: Any, as_dense: bool) -> None:
    several_ranks.run(check_sparse, as_dense=as_dense)


def check_sparse_adam(as_dense: bool, groups: Any) -> None:
    """Ranks look up different rows, some twice, and rank 0 none at all in the second step."""
    r, n = hvd.rank(), hvd.size()
    looked_up: Any = [[[0, q + 1, q + 1] for q in range(n)], [[2, q] if q else [] for q in range(n)]]
    looked_up.append([[q] for q in range(n)])
    tables = [torch.nn.Embedding(n + 2, 3, sparse=True).double() for _ in range(4)]
    for i, table in enumerate(tables):
        torch.nn.init.constant_(table.weight, i % 2)
    (a, b), (c, d) = tables[:2], tables[2:]
    reference = torch.optim.SparseAdam([c.weight, d.weight], lr=0.1)
    inner = torch.optim.SparseAdam([a.weight, b.weight], lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        inner, [("a", a.weight), ("b", b.weight)], op=hvd.Sum, sparse_as_dense=as_dense, groups=groups
    )
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert a.weight.grad.is_sparse and not a.weight.grad.to_dense().any()
    for rows in looked_up:
        optimizer.zero_grad(), reference.zero_grad()
        if rows[r]:
            sum((t(torch.tensor(rows[r])) * (r + 1)).sum() for t in (a, b)).backward()
        sum((t(torch.tensor(rows[q])) * (q + 1)).sum() for t in (c, d) for q in range(n) if rows[q]).backward()
        optimizer.step(), reference.step()
        for mine, other in ((a, c), (b, d)):
            assert mine.weight.grad.is_sparse and mine.weight.grad.sparse_dim() == 1
            assert torch.equal(mine.weight.grad.to_dense(), other.weight.grad.to_dense())
            assert torch.equal(mine.weight, other.weight)


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_adam(several_ranks: Any, as_dense: bool, groups: Any) -> None:
    several_ranks.run(check_sparse_adam, as_dense=as_dense, groups=groups)


def check_sparse_and_compressed() -> None:
    """Several passes, and half precision on the way; what cancels is no row any more."""
    r, n = hvd.rank(), hvd.size()
    table = torch.nn.Embedding(n + 1, 2, sparse=True)
    start = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), op=hvd.Sum, sparse_as_dense=True,
        compression=hvd.Compression.fp16, backward_passes_per_step=2, gradient_as_bucket_view=False,
    )
    for _ in range(2):
        for sign in (1.0, 2.0):
            (table(torch.tensor([r, n])) * sign).sum().backward()
        optimizer.step()
        assert table.weight.grad.coalesce().indices().tolist() == [list(range(n + 1))]
        assert table.weight.grad.to_dense().tolist() == [[3.0, 3.0]] * n + [[3.0 * n] * 2]
        optimizer.zero_grad()
    torch.testing.assert_close(start - table.weight, torch.tensor([[6.0, 6.0]] * n + [[6.0 * n] * 2]))


def test_sparse_and_compressed(several_ranks: Any) -> None:
    several_ranks.run(check_sparse_and_compressed)


def check_adasum() -> None:
    """Steps that are at right angles are added, equal ones are not."""
    r, n = hvd.rank(), hvd.size()
    p, q = torch.nn.Parameter(torch.zeros(n)), torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p, q], lr=0.5), [("p", p), ("q", q)], op=hvd.Adasum)
    (p[r] * 2 + q.sum()).backward()
    optimizer.step()
    assert p.tolist() == [-1.0] * n and q.tolist() == [-0.5] * 2
    if n > 1:
        with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
            pass


def test_adasum(ranks: Any) -> None:
    ranks.run(check_adasum)


def check_parameter_without_gradient() -> None:
    r, n = hvd.rank(), hvd.size()
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])
    (a if r == 0 else a + b).sum().backward()
    optimizer.step()
    torch.testing.assert_close(torch.cat([a, b]).detach(), -torch.tensor([1.0, (n - 1) / n]))
    b.requires_grad_(False)
    optimizer.zero_grad()
    a.sum().backward()
    optimizer.step()
    assert b.grad is None


def test_parameter_without_gradient(several_ranks: Any) -> None:
    several_ranks.run(check_parameter_without_gradient)


def check_clipping() -> None:
    n = hvd.size()
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
    (p * torch.tensor([3.0, 4.0])).sum().backward()
    optimizer.synchronize()
    assert p.grad.tolist() == [3.0 * n, 4.0 * n]
    torch.nn.utils.clip_grad_norm_([p], 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([-0.6, -0.8]))
    optimizer.zero_grad()
    p.sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()


def test_clipping(several_ranks: Any) -> None:
    several_ranks.run(check_clipping)


def check_misuse() -> None:
    n = hvd.size()
    model = new_model()

    def make(**options: Any) -> Any:
        options.setdefault("named_parameters", model.named_parameters())
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)

    rows = torch.ones(2, 4, dtype=torch.float64)
    optimizer = make()
    loss_of(model, rows).backward()
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(model, rows).backward()
    optimizer.step()
    optimizer.zero_grad()
    named = list(model.named_parameters())
    for options, match in (
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"named_parameters": [*named, named[0]]}, "unique"),
        ({"named_parameters": named[1:]}, "not named"),
        ({"named_parameters": [p for _, p in named]}, "tuples"),
        ({"groups": -1}, "non-negative"),
        ({"groups": [named[0][1]]}, "list of lists"),
        ({"groups": [[named[0][1]], [named[0][1]]]}, "more than once"),
        ({"groups": [["x"]]}, "torch.Tensor"),
        ({"compression": "fp16"}, "compression is 'fp16'; allowed: Compression.none"),
    ):
        with pytest.raises(ValueError, match=match):
            make(**options)
    with pytest.raises(ValueError, match="should be a torch.optim.Optimizer, and is a Sequential"):
        hvd.DistributedOptimizer(model)
    with pytest.warns(DeprecationWarning, match="groups"):
        make(num_groups=2)
    assert n > 1


def test_misuse(several_ranks: Any) -> None:
    several_ranks.run(check_misuse)


def check_failed_reduction() -> None:
    """Gradients of different shapes under one name: an error on all ranks, and the job goes on."""
    r, n = hvd.rank(), hvd.size()
    p, q = torch.nn.Parameter(torch.zeros(2 + r)), torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)], op=hvd.Sum)
    (p.sum() + q.sum()).backward()
    with pytest.raises(hvd.HorovodInternalError):
        optimizer.step()
    assert q.grad.tolist() == [n, n]
    optimizer.zero_grad()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n


def test_failed_reduction(several_ranks: Any) -> None:
    several_ranks.run(check_failed_reduction)


def check_moved_gradient_of_a_group() -> None:
    """The step ends with ValueError, but ends: nothing of it is in flight in the next one."""
    n = hvd.size()
    p, q, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    named = [("p", p), ("q", q), ("other", other)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p, q, other], lr=1.0), named, op=hvd.Sum, groups=[[p, q]])
    for moved in (True, False):
        (p.sum() + q.sum() + other.sum()).backward()
        if moved:
            p.grad.set_(torch.ones(2))
            with pytest.raises(ValueError, match="was given other memory"):
                optimizer.synchronize()
            assert other.grad.tolist() == [n, n]
        else:
            optimizer.step()
        optimizer.zero_grad()
    assert p.tolist() == q.tolist() == other.tolist() == [-n, -n]


def test_moved_gradient_of_a_group(several_ranks: Any) -> None:
    several_ranks.run(check_moved_gradient_of_a_group)


def check_scheduler_and_groups_of_parameters() -> None:
    n = hvd.size()
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    inner = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.1}])
    before = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)  # made before: it wraps the step of the inner one
    optimizer = hvd.DistributedOptimizer(inner, [("a", a), ("b", b)], op=hvd.Sum)
    for _ in range(2):
        optimizer.zero_grad()
        (a + b).sum().backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before.step()
    torch.testing.assert_close(a.detach(), torch.tensor([-1.5 * n]))
    torch.testing.assert_close(b.detach(), torch.tensor([-0.15 * n]))


def test_scheduler_and_groups_of_parameters(several_ranks: Any) -> None:
    several_ranks.run(check_scheduler_and_groups_of_parameters)


def check_new_optimizer_on_the_same_parameters() -> None:
    p = torch.nn.Parameter(torch.zeros(1))
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
        p.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert p.item() == -3.0


def test_new_optimizer_on_the_same_parameters(several_ranks: Any) -> None:
    several_ranks.run(check_new_optimizer_on_the_same_parameters)


def check_buckets() -> None:
    r, n = hvd.rank(), hvd.size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    model = model.to(memory_format=torch.channels_last)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=hvd.Sum, gradient_as_bucket_view=True)
    places = None
    for _ in range(3):
        model(torch.full((1, 2, 4, 4), r + 1.0)).sum().backward()
        optimizer.synchronize()
        assert model[0].weight.grad.stride() == model[0].weight.stride()
        torch.testing.assert_close(model[2].bias.grad, torch.full((2,), float(n)))
        now = [p.grad.data_ptr() for p in model.parameters()]
        assert places in (None, now), "a gradient has moved"
        assert now == sorted(now, reverse=True) and now[0] - now[-1] < 4096, "gradients lie side by side"
        places = now
        optimizer.zero_grad(set_to_none=False)
    optimizer.zero_grad()  # the backward pass makes new ones, which are reduced elsewhere
    for warns in (True, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(torch.full((1, 2, 4, 4), r + 1.0)).sum().backward()
            optimizer.synchronize()
        said = [str(w.message).partition(":")[0] for w in caught]
        assert said == ["gradient_as_bucket_view"] * warns, (warns, said)
        torch.testing.assert_close(model[2].bias.grad, torch.full((2,), float(n)))
        assert not {p.grad.data_ptr() for p in model.parameters()} & set(places)
        optimizer.zero_grad(set_to_none=False)
    big = torch.nn.Parameter(torch.zeros(4, 4)[:, ::2])
    with pytest.warns(UserWarning, match="are not contiguous"):
        inner = torch.optim.SGD([big], lr=1.0)
        optimizer = hvd.DistributedOptimizer(inner, [("big", big)], gradient_as_bucket_view=True)
    big.sum().backward()
    optimizer.step()
    assert (big == -1).all()
    for options in ({"compression": hvd.Compression.fp16}, {"op": hvd.Adasum}):
        with pytest.warns(UserWarning, match="ignored"):
            hvd.DistributedOptimizer(inner, [("big", big)], gradient_as_bucket_view=True, **options)


def test_buckets(several_ranks: Any) -> None:
    several_ranks.run(check_buckets)


def check_optimizer_in_the_next_job() -> None:
    n = hvd.size()
    p = torch.nn.Parameter(torch.zeros(1))
    for buckets in (False, True):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum, gradient_as_bucket_view=buckets
        )
        for _ in range(2):
            p.sum().backward()
            optimizer.step()
            hvd.shutdown()
            hvd.init()
            optimizer.zero_grad()
    assert p.item() == -4 * n


def test_optimizer_in_the_next_job(several_ranks: Any) -> None:
    several_ranks.run(check_optimizer_in_the_next_job)


def check_order_of_dimensions() -> None:
    """Gradients keep the order of dimensions of their parameters, on a rank that has none, too."""
    r, n = hvd.rank(), hvd.size()
    model = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=hvd.Sum)
    for _ in range(2):
        expected = torch.arange(54.0).view(3, 2, 3, 3)
        if r > 0 or n == 1:
            (model.weight * expected).sum().backward()
        optimizer.synchronize()
        assert model.weight.grad.stride() == model.weight.stride() != (18, 9, 3, 1)
        torch.testing.assert_close(model.weight.grad, expected * max(1, n - 1))
        optimizer.zero_grad()


def test_order_of_dimensions(several_ranks: Any) -> None:
    several_ranks.run(check_order_of_dimensions)


def check_gradients_leave_with_the_backward_pass() -> None:
    """Small gradients wait for others, but not until step(): rank 0 wants something else before."""
    n = hvd.size()
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
    for _ in range(2):
        optimizer.zero_grad()
        p.sum().backward()
        with pytest.raises(AssertionError, match="before optimizer.step"):
            optimizer.zero_grad()
        if hvd.rank() == 0:
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="metric") == n
        optimizer.step()
        if hvd.rank() != 0:
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="metric") == n
    assert p.tolist() == [-2.0 * n] * 2


def test_gradients_leave_with_the_backward_pass(several_ranks: Any) -> None:
    several_ranks.run(check_gradients_leave_with_the_backward_pass)


@pytest.mark.parametrize(
    ("cpus", "of_host", "ranks", "threshold", "expected"),
    [
        (1, 8, 8, None, 16 << 20),  # bound to one CPU each
        (8, 8, 8, None, 16 << 20),  # not bound: a share of one
        (2, 8, 4, None, 1 << 20),  # bound to two
        (8, 8, 4, None, 1 << 20),
        (2, 2, 4, None, 16 << 20),  # oversubscribed
        (1, 8, 8, "4096", 4096),
        (8, 8, 1, "0", 0),
    ],
)
def test_how_many_bytes_are_collected(
    monkeypatch: pytest.MonkeyPatch, cpus: int, of_host: int, ranks: int, threshold: str | None, expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.setattr("os.cpu_count", lambda: of_host)
    monkeypatch.setattr("hvd.core.state.local_size", lambda: ranks)
    monkeypatch.delenv("HOROVOD_FUSION_THRESHOLD", raising=False)
    if threshold is not None:
        monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", threshold)
    assert buckets.bytes_together() == expected


def check_overlap() -> None:
    """Gradients of the last layers are reduced while those of the first are not there yet."""
    n = hvd.size()
    model = new_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    arrived = []

    def in_the_middle(_: Any) -> None:
        parts = optimizer._gradients.parts
        assert parts[model[0].weight].finish is None
        for p in model[4].parameters():  # all ranks wait here until it is done, in the middle of their backward pass
            parts[p].finish()
            arrived.append(hvd.allgather(p.grad[None].contiguous()))

    hidden = model[:2](torch.full((3, 4), hvd.rank() + 1.0, dtype=torch.float64))
    hidden.register_hook(in_the_middle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_FUSION_THRESHOLD", "0")  # these are too few bytes to be sent alone otherwise
        model[2:](hidden).square().sum().backward()
    optimizer.step()
    assert len(arrived) == 2
    for everyone in arrived:
        assert everyone.shape[0] == n and (everyone == everyone[0]).all()


def test_overlap(several_ranks: Any) -> None:
    several_ranks.run(check_overlap)


# --- As Horovod's -----------------------------------------------------------------------------------------------------


def check_attributes() -> None:
    n = hvd.size()
    p = torch.nn.Parameter(torch.zeros(1))
    one = hvd.add_process_set([0]) if n > 1 else hvd.global_process_set
    for options in (
        {}, {"op": hvd.Sum, "sparse_as_dense": True, "process_set": one}, {"gradient_predivide_factor": 2.0},
        {"op": hvd.Adasum, "backward_passes_per_step": 2},
    ):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], **options)
        expected = {
            "op": hvd.Average, "process_set": hvd.global_process_set, "gradient_predivide_factor": 1.0,
            "sparse_as_dense": False, "backward_passes_per_step": 1, **options,
        }
        assert {name: getattr(optimizer, name) for name in expected} == expected
    hvd.remove_process_set(one)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)])
    optimizer.op = hvd.Sum  # what is set afterwards counts
    p.sum().backward()
    optimizer.step()
    assert p.item() == -n
    with pytest.raises(ValueError, match="optimizer is a DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer, [("p", p)])


def test_attributes(ranks: Any) -> None:
    ranks.run(check_attributes)


def check_copies(how: str, variant: str) -> None:
    r, n = hvd.rank(), hvd.size()
    everyone = hvd.add_process_set(list(range(1, n))) if n > 2 else hvd.global_process_set
    options: Any = {
        "plain": {"compression": hvd.Compression.fp16}, "adasum": {"op": hvd.Adasum}, "set": {"process_set": everyone},
        "groups": {"groups": 2, "op": hvd.Sum, "backward_passes_per_step": 1, "gradient_as_bucket_view": True},
    }[variant]
    model = new_model()
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    mine = hvd.DistributedOptimizer(inner, model.named_parameters(), **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(mine, 0.5)
    batches = data(n)

    def train(net: Any, optimizer: Any) -> None:
        for step in range(2):
            optimizer.zero_grad(set_to_none=False)
            loss_of(net, batches[step, 0, r]).backward()
            optimizer.step()

    train(model, mine)
    scheduler.step()
    if how == "deepcopy":
        other, theirs = copy.deepcopy((model, mine))
    elif how == "torch":
        buffer = io.BytesIO()
        torch.save((model, mine), buffer)
        other, theirs = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    else:
        text = (pickle if how == "pickle" else cloudpickle).dumps((model, mine))
        if how == "pickle" and variant != "set":
            hvd.shutdown()  # such as a script that looks at a checkpoint
        other, theirs = pickle.loads(text)
        hvd.init()
    assert type(theirs).__name__ == "Adam" and isinstance(theirs, torch.optim.Adam) and theirs is not mine
    for name in ("op", "process_set", "gradient_predivide_factor", "sparse_as_dense", "backward_passes_per_step"):
        assert getattr(theirs, name) == getattr(mine, name)
    assert theirs.param_groups[0]["lr"] == 0.005
    members = theirs.param_groups[0]["params"]
    assert all(a is b for a, b in zip(members, other.parameters())) and members[0] is not model[0].weight
    assert torch.equal(theirs.state[other[0].weight]["exp_avg"], mine.state[model[0].weight]["exp_avg"])
    train(model, mine)
    train(other, theirs)
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)
        if variant != "set":
            assert all(torch.equal(a, c) for c in hvd.allgather(a.detach()[None]))
    if n > 2:
        hvd.remove_process_set(everyone)


@pytest.mark.parametrize("variant", ["plain", "adasum", "set", "groups"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "cloudpickle", "torch"])
def test_copies(ranks: Any, how: str, variant: str) -> None:
    ranks.run(check_copies, how=how, variant=variant)


def check_hooks_of_steps() -> None:
    """Once for each step, on reduced gradients; after a state was loaded as well."""
    n = hvd.size()
    p = torch.nn.Parameter(torch.zeros(1))
    for op in (hvd.Sum, hvd.Adasum):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=op)
        seen: Any = []
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(p.grad.item()))
        optimizer.register_step_post_hook(lambda o, *_: seen.append("after"))
        for _ in range(2):
            optimizer.zero_grad()
            p.sum().backward()
            optimizer.step()
            assert seen == [float(n) if op == hvd.Sum else 1.0, "after"]
            seen.clear()
            optimizer.load_state_dict(optimizer.state_dict())


def test_hooks_of_steps(ranks: Any) -> None:
    ranks.run(check_hooks_of_steps)


# --- Nothing that is not reduced --------------------------------------------------------------------------------------


def check_parameters_that_come_later(how: str, op: str, passes: int) -> None:
    """Those that were frozen, and those of another group, against one process with all data."""
    r, n = hvd.rank(), hvd.size()
    batches = data(n)
    alone, model = new_model(), new_model()
    optimizers = []
    for net in (alone, model):
        first = net[0].parameters() if how.startswith("group") else net.parameters()
        if how == "frozen":
            for p in net[2].parameters():
                p.requires_grad_(False)
        optimizers.append(torch.optim.SGD(first, lr=0.1, momentum=0.5))
    reference, inner = optimizers
    names = model.named_parameters() if how != "group unnamed" else None
    mine = hvd.DistributedOptimizer(inner, names, op=getattr(hvd, op), backward_passes_per_step=passes)
    for step in range(STEPS):
        if step == 1:
            for net, optimizer in ((alone, reference), (model, inner if how == "group of inner" else mine)):
                if how == "frozen":
                    for p in net[2].parameters():
                        p.requires_grad_()
                else:
                    optimizer.add_param_group({"params": [*net[2].parameters(), *net[4].parameters()], "lr": 0.3})
        reference.zero_grad(), mine.zero_grad()
        for i in range(passes):
            loss_of(model, batches[step, i, r]).backward()
            loss_of(alone, batches[step, i].flatten(0, 1)).backward()
        mine.step(), reference.step()
    for a, b in zip(model.parameters(), alone.parameters()):
        if op == "Average":  # what Adasum gives is no step of one process
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        everyone = hvd.allgather(a.detach()[None].contiguous())
        assert (everyone == everyone[0]).all(), "ranks differ"


@pytest.mark.parametrize("op,passes", [("Average", 1), ("Average", 2), ("Adasum", 1)])
@pytest.mark.parametrize("how", ["frozen", "group", "group unnamed", "group of inner"])
def test_parameters_that_come_later(several_ranks: Any, how: str, op: str, passes: int) -> None:
    several_ranks.run(check_parameters_that_come_later, how=how, op=op, passes=passes)


def check_frozen_member_of_a_group() -> None:
    n = hvd.size()
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD([a, b], lr=1.0, weight_decay=0.5)
    optimizer = hvd.DistributedOptimizer(inner, [("a", a), ("b", b)], op=hvd.Sum, groups=1)
    b.requires_grad_(False)
    a.sum().backward()
    optimizer.step()
    assert a.item() == -n and b.item() == 1.0 and b.grad is None


def test_frozen_member_of_a_group(several_ranks: Any) -> None:
    several_ranks.run(check_frozen_member_of_a_group)


def check_names_of_the_nameless() -> None:
    """Gradients without names on their way, and other tensors without names meanwhile."""
    n = hvd.size()
    hvd.shutdown()
    hvd.init()
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(4)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Sum)
    sum(p.sum() for p in parameters).backward()
    handles = [hvd.allreduce_async(torch.full((3,), float(i)), op=hvd.Sum) for i in range(5)]
    optimizer.step()
    assert [hvd.synchronize(handle).tolist() for handle in handles] == [[float(i * n)] * 3 for i in range(5)]
    assert all(p.tolist() == [-float(n)] * 3 for p in parameters)


def test_names_of_the_nameless(several_ranks: Any) -> None:
    several_ranks.run(check_names_of_the_nameless)


def check_join(variant: str) -> None:
    """Ranks with different numbers of batches, over epochs; what some have missed comes from the last one."""
    r, n = hvd.rank(), hvd.size()
    options: Any = {
        "plain": {}, "unnamed": {"named_parameters": None}, "groups": {"groups": 1},
        "buckets": {"gradient_as_bucket_view": True}, "passes": {"backward_passes_per_step": 2},
    }[variant]
    a, b = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))
    options.setdefault("named_parameters", [("a", a), ("b", b)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), op=hvd.Sum, **options)
    expected = 0.0
    for epoch in range(3):
        batches = [1 + (q + epoch) % n for q in range(n)]
        for step in range(n):
            expected -= sum(q + 1 for q in range(n) if batches[q] > step)
        for _ in range(batches[r]):
            optimizer.zero_grad(set_to_none=False)
            for part in range(options.get("backward_passes_per_step", 1)):
                ((a.sum() + b.sum()) * (r + 1) * (1 - part)).backward()
            optimizer.step()
            hvd.allreduce(torch.ones(3))
        last = hvd.join()
        assert batches[last] == n
        hvd.broadcast_parameters([a, b], root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        assert a.tolist() == [expected] * 3 and b.tolist() == [expected] * 2


@pytest.mark.parametrize("variant", ["plain", "unnamed", "groups", "buckets", "passes"])
def test_join(several_ranks: Any, variant: str) -> None:
    several_ranks.run(check_join, variant=variant)


# --- What ranks do does not depend on what one of them has seen -------------------------------------------------------


def check_unused_on_one_rank(groups: Any, keep: bool) -> None:
    """A gradient that lies in its bucket on one rank and elsewhere on others, of every order of dimensions."""
    r, n = hvd.rank(), hvd.size()
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(3, 2).t())]
    parameters.append(torch.nn.Parameter(torch.zeros(2, 6)[:, ::2]))  # copied, and never in the bucket
    named = [(f"p{i}", p) for i, p in enumerate(parameters)]
    with pytest.warns(UserWarning, match=r"copied: p2 \(its elements are not contiguous\)"):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=1.0), named, op=hvd.Sum, gradient_as_bucket_view=True, groups=groups
        )
    expected = torch.arange(6.0).view(2, 3)
    steps = 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(steps):
            optimizer.zero_grad(set_to_none=not keep)
            if step != 1 or r != 0:
                sum((p * expected).sum() for p in parameters).backward()
            if step == 2:  # changes nothing of what is sent
                parameters[1].data = parameters[1].data.contiguous()
            optimizer.step()
    for p in parameters:
        assert torch.equal(p, -expected * (steps * n - 1))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("groups", [None, 1])
def test_unused_on_one_rank(several_ranks: Any, groups: Any, keep: bool) -> None:
    several_ranks.run(check_unused_on_one_rank, groups=groups, keep=keep)


def check_sparse_from_the_first_step(as_dense: bool, groups: Any) -> None:
    """No rank looks a row up, then the last rank alone, then all; then one has a dense gradient."""
    r, n = hvd.rank(), hvd.size()
    for _ in range(2):  # in the next job again
        table, other = torch.nn.Embedding(n, 2, sparse=True), torch.nn.Parameter(torch.zeros(2))
        start = table.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([table.weight, other], lr=1.0), [("e", table.weight), ("o", other)], op=hvd.Sum,
            sparse_as_dense=as_dense, groups=groups,
        )
        for step in range(4):
            if step == 2:
                hvd.shutdown()
                hvd.init()
            optimizer.zero_grad()
            x = other.sum()
            if step > 0 and (step > 1 or r == n - 1):
                x = x + (table.weight[r] if step == 3 and r == 0 else table(torch.tensor(r))).sum()
            x.backward()
            optimizer.step()
            assert as_dense or table.weight.grad.is_sparse == (step > 0)
        expected = torch.full((n, 2), 2.0)
        expected[n - 1] = 3.0
        torch.testing.assert_close(start - table.weight.detach(), expected)
        assert other.tolist() == [-4.0 * n] * 2


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_from_the_first_step(several_ranks: Any, as_dense: bool, groups: Any) -> None:
    several_ranks.run(check_sparse_from_the_first_step, as_dense=as_dense, groups=groups)


def check_sparse_and_dense(groups: Any) -> None:
    """Rank 0 has a sparse gradient, the last one a dense one, others none: an error on all, and the job goes on."""
    r, n = hvd.rank(), hvd.size()

    def train(optimizer: Any, dense: bool) -> None:
        optimizer.zero_grad()
        x = o.sum() + f(torch.tensor(0)).sum()
        if r == 0:
            x = x + e(torch.tensor(0)).sum()
        elif r == n - 1:
            x = x + (e.weight[1] if dense else e(torch.tensor(1))).sum()
        x.backward()
        optimizer.step()

    for as_dense in (False, True):
        e, f, o = *(torch.nn.Embedding(2, 3, sparse=True) for _ in range(2)), torch.nn.Parameter(torch.zeros(2))
        start = e.weight.detach().clone()
        parameters = [e.weight, f.weight, o]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=1.0), list(zip("efo", parameters)), op=hvd.Sum, sparse_as_dense=as_dense,
            groups=groups,
        )
        if as_dense:
            train(optimizer, True)
        else:
            here = "sparse_dim=1" if r == 0 else "a dense one" if r == n - 1 else "no gradient"
            for _ in range(2):
                text = f"of e is .* rank {r} has {here}. Pass sparse_as_dense=True"
                with pytest.raises(hvd.HorovodInternalError, match=text):
                    train(optimizer, True)
                assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n
            train(optimizer, False)
            assert e.weight.grad.is_sparse
        torch.testing.assert_close(start - e.weight.detach(), torch.ones(2, 3))


@pytest.mark.parametrize("groups", [None, 1])
def test_sparse_and_dense(several_ranks: Any, groups: Any) -> None:
    several_ranks.run(check_sparse_and_dense, groups=groups)


# --- Closures ---------------------------------------------------------------------------------------------------------


def check_half_begun() -> None:
    """A group's sparse gradient is under way when its dense one is refused: an error, and the next step is right."""
    refused = []

    class Refusing(hvd.Compression.none):  # type: ignore[misc, name-defined]
        @staticmethod
        def compress(tensor: Any) -> Any:
            if refused:
                raise ValueError(refused[0])
            return tensor, None

    n = hvd.size()
    table, p = torch.nn.Embedding(2, 3, sparse=True), torch.nn.Parameter(torch.zeros(2))
    named = [("table", table.weight), ("p", p)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([table.weight, p], lr=1.0), named, op=hvd.Sum, groups=1, compression=Refusing
    )
    start = table.weight.detach().clone()

    def backward() -> None:
        optimizer.zero_grad()
        (table(torch.tensor(1)).sum() + p.sum()).backward()

    backward()
    optimizer.step()  # from now on all ranks know which gradient is sparse
    refused.append("not this one")
    with pytest.raises(ValueError, match="not this one"):
        backward()
    with pytest.raises(ValueError, match="not this one"):
        optimizer.step()
    refused.clear()
    backward()
    optimizer.step()
    assert p.tolist() == [-2.0 * n] * 2
    torch.testing.assert_close(start - table.weight, torch.tensor([[0.0] * 3, [2.0 * n] * 3]))


def test_half_begun(several_ranks: Any) -> None:
    several_ranks.run(check_half_begun)


def check_line_search(op: str) -> None:
    """The closure is called as often, and the steps are the same, as in one process with all data."""
    r, n = hvd.rank(), hvd.size()
    batches = torch.randn(n, 20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = batches.sum(2) * (1 + torch.arange(n)).view(n, 1)
    weights, calls = [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(2)], [0, 0]

    def train(i: int, optimizer: Any, rows: Any, target: Any, factor: int = 1) -> None:
        def closure() -> Any:
            calls[i] += 1
            optimizer.zero_grad()
            loss = (rows @ weights[i] - target).pow(4).mean() * factor
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    alone, inner = (torch.optim.LBFGS([w], max_iter=5, line_search_fn="strong_wolfe") for w in weights)
    train(0, alone, batches, targets, n if op == "Sum" else 1)
    train(1, hvd.DistributedOptimizer(inner, [("w", weights[1])], op=getattr(hvd, op)), batches[r], targets[r])
    assert calls[0] == calls[1] > 10
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-6, atol=1e-9)
    assert all(w == weights[1].tolist() for w in hvd.allgather_object(weights[1].tolist()))


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_line_search(several_ranks: Any, op: str) -> None:
    several_ranks.run(check_line_search, op=op)


def check_closures() -> None:
    """What a closure returns, and gradients that one rank's call alone makes."""
    r, n = hvd.rank(), hvd.size()
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), [("p", p)], op=hvd.Sum)
    mean = (n + 1) / 2

    def call(loss: Any, backward: bool = True) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            if backward:
                p.sum().backward()
            return loss

        return optimizer.step(closure)

    assert call(r + 1.0) == n * mean
    optimizer.op = hvd.Average
    for loss in (torch.tensor(r + 1.0), torch.tensor([r + 1], dtype=torch.float64)):
        result = call(loss)
        assert torch.equal(result, torch.full_like(loss, mean)) and result.dtype == loss.dtype
    assert call("text") == "text" and call(None) is None
    assert math.isnan(call(math.nan if r == 0 else 1.0)) and call(math.inf if r == 0 else 1.0) == math.inf
    assert p.tolist() == [-n - 6.0] * 2
    call(0.0, backward=r == 0)
    torch.testing.assert_close(p.detach(), torch.full((2,), -n - 6 - 1 / n))
    p.sum().backward() if r == 0 else None  # before the step
    call(0.0, backward=False)
    assert p.grad is None
    if r < n - 1:  # those that have joined add zeros
        call(1.0)
    hvd.join()


def test_closures(several_ranks: Any) -> None:
    several_ranks.run(check_closures)


def check_number_of_calls() -> None:
    """Ranks that call their closures different numbers of times: an error on all, and the optimizer goes on."""
    r, n = hvd.rank(), hvd.size()
    often = 1

    class Often(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for _ in range(often):
                loss = closure()
            super().step()
            return loss

    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(Often([p], lr=1.0), [("p", p)], op=hvd.Sum)

    def closure() -> Any:
        optimizer.zero_grad()
        p.sum().backward()
        return 1.0

    for often in (2, 2 + (r == 0), 1):
        if often == 1 or (often, r) == (2, 0) or p.grad is None:
            assert optimizer.step(closure) == n
        else:
            where = f"has called the closure of a step, while {n - 1}" if r == 0 else "begins or ends a step, while 1"
            with pytest.raises(hvd.HorovodInternalError, match=f"rank {r} {where} of {n} ranks"):
                optimizer.step(closure)
            assert p.grad is None
            p.data.fill_(-n)
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n
    assert p.tolist() == [-2.0 * n] * 2


def test_number_of_calls(several_ranks: Any) -> None:
    several_ranks.run(check_number_of_calls)


# --- Names, passes and jobs -------------------------------------------------------------------------------------------


def check_two_without_names(op: str) -> None:
    """Their gradients are in flight at once; names are unique, and the same on all ranks."""
    n = hvd.size()
    networks = [torch.nn.Linear(2, 2, bias=False) for _ in range(2)]
    with torch.no_grad():
        for net in networks:
            net.weight.copy_(torch.eye(2))
    first, second = (torch.optim.SGD([{"params": net.parameters()}], lr=0.5) for net in networks)
    optimizers = [hvd.DistributedOptimizer(one, op=getattr(hvd, op)) for one in (first, second)]
    bias = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    optimizers[1].add_param_group({"params": [bias]})
    names = [one._parameter_names for one in optimizers]
    assert [list(one) for one in names] == [[networks[0].weight], [networks[1].weight, bias]]
    every = [*names[0].values(), *names[1].values()]
    assert len(set(every)) == 3 and all(theirs == every for theirs in hvd.allgather_object(every))
    assert copy.deepcopy(optimizers[1])._parameter_names.keys() != names[1].keys()
    assert [*copy.deepcopy(optimizers[1])._parameter_names.values()] == every[1:]
    (networks[1](networks[0](torch.ones(1, 2)))).sum().backward()
    for one in optimizers:
        one.step()
    factor = n if op == "Sum" else 1
    assert all(net.weight.tolist() == (torch.eye(2) - 0.5 * factor).tolist() for net in networks)
    named = hvd.DistributedOptimizer(first, [("w", networks[0].weight)], op=getattr(hvd, op))
    assert named._parameter_names == {networks[0].weight: "w"}


@pytest.mark.parametrize("op", ["Sum", "Adasum"])
def test_two_without_names(several_ranks: Any, op: str) -> None:
    several_ranks.run(check_two_without_names, op=op)


def check_two_with_the_same_names() -> None:
    """An error on all ranks while both reduce; one after the other they may."""
    n = hvd.size()
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    inner = [torch.optim.SGD([p], lr=1.0) for p in parameters]
    optimizers = [hvd.DistributedOptimizer(one, [("p", p)], op=hvd.Sum) for one, p in zip(inner, parameters)]
    with pytest.raises(ValueError, match='"allreduce.p"'):
        (parameters[0].sum() + parameters[1].sum()).backward()
    for one in optimizers:
        one.load_state_dict(one.state_dict())  # waits for what is in flight
    for p, one in zip(parameters, optimizers):
        one.zero_grad()
        p.sum().backward()
        one.step()
        assert p.tolist() == [1.0 - n] * 2


def test_two_with_the_same_names(several_ranks: Any) -> None:
    several_ranks.run(check_two_with_the_same_names)


def check_dropped_passes(groups: Any) -> None:
    n = hvd.size()
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    inner = torch.optim.SGD([a, b], lr=1.0)
    optimizer = hvd.DistributedOptimizer(
        inner, [("a", a), ("b", b)], op=hvd.Sum, backward_passes_per_step=2, groups=groups
    )
    for _ in range(2):
        for i in range(3):  # the end of an epoch leaves a pass
            (a + b).sum().backward()
            if i == 1:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
    assert a.item() == b.item() == -4.0 * n


@pytest.mark.parametrize("groups", [None, 1])
def test_dropped_passes(several_ranks: Any, groups: Any) -> None:
    several_ranks.run(check_dropped_passes, groups=groups)


def check_in_flight_in_another_job(then: str) -> None:
    """What was in flight when the job ended is forgotten, outside of a job, too."""
    n = hvd.size()
    for groups in (None, 1):
        p, q = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p, q], lr=1.0), [("p", p), ("q", q)], op=hvd.Sum, groups=groups
        )
        (p.sum() + q.sum()).backward()
        hvd.shutdown()
        p.grad, q.grad = torch.ones(2), torch.ones(2)  # the former may have been reduced
        if then == "outside":
            optimizer.zero_grad()
            optimizer.load_state_dict(optimizer.state_dict())
        hvd.init()
        if then == "load_state_dict":
            optimizer.load_state_dict(optimizer.state_dict())
        elif then == "step":
            optimizer.step()
        elif then == "closure":
            assert optimizer.step(lambda: 2.0) == 2.0 * n
        if then != "backward":
            optimizer.zero_grad()
        (p.sum() + q.sum()).backward()
        optimizer.step()
        expected = {"step": 2.0 * n, "closure": n + 1.0, "backward": 2.0 * n}.get(then, float(n))
        assert p.tolist() == q.tolist() == [-expected] * 2


@pytest.mark.parametrize("then", ["zero_grad", "outside", "step", "closure", "load_state_dict", "backward"])
def test_in_flight_in_another_job(several_ranks: Any, then: str) -> None:
    several_ranks.run(check_in_flight_in_another_job, then=then)
