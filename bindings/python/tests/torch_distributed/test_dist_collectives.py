"""The collectives of torch.distributed over the backend "hvd", with all types, on exact values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Callable

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from dist_ranks import same  # noqa: E402

import hvd.torch  # noqa: E402

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex32", "complex64", "complex128"]
# They can be moved, but not reduced.
BYTES = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
BYTES = [name for name in BYTES if hasattr(torch, name)]
NUMBERS = [*SIGNED, *UNSIGNED, *FLOATS, *COMPLEX]
ALL = [*NUMBERS, "bool", *BYTES]
BIG = 70_000  # bytes: from 64 KiB on, ranks tell each other whether a buffer is shared

Op = dist.ReduceOp
Values = Callable[[int], Any]  # of a rank


def place() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def cast(values: Any, name: str) -> Any:
    """Whole numbers as a tensor of a type: what is complex gets other numbers beside them."""
    dtype = getattr(torch, name)
    if dtype.is_complex:
        return torch.complex(values.double(), (values * 2 + 1).double()).to(dtype)
    if name in BYTES:
        return (values % 256).to(torch.uint8).view(dtype)
    return values.to(torch.bool if dtype is torch.bool else dtype)


def sizes_of(name: str) -> list[int]:
    return [0, 1, 7, 1000, BIG // getattr(torch, name).itemsize]


def ended(work: Any, asynchronous: bool) -> None:
    """What a collective has returned, at its end."""
    if not asynchronous:
        assert work is None
        return
    assert work.wait() is True
    assert work.is_completed() and work.is_success() and work.exception() is None


def mixed(size: int, r: int, period: int = 16) -> Any:
    """Whole numbers from 0 to period - 1."""
    return (torch.arange(size) * 7 + r * 3) % period


def reductions(name: str, size: int, n: int) -> Iterator[tuple[Any, Values, Any]]:
    """Operations that are defined for a type: with the input of each rank, and the result."""

    def together(f: Callable[[Any, Any], Any], values: Values) -> Any:
        total = values(0)
        for q in range(1, n):
            total = f(total, values(q))
        return total

    def case(op: Any, f: Callable[[Any, Any], Any], values: Values, finish: Values = lambda x: x) -> Any:
        return op, lambda q: cast(values(q), name), cast(finish(together(f, values)), name)

    if name == "bool":
        bits: Values = lambda q: (torch.arange(size) >> q) & 1  # noqa: E731
        for op in (Op.SUM, Op.MAX, Op.BOR):
            yield case(op, torch.bitwise_or, bits)
        for op in (Op.PRODUCT, Op.MIN, Op.BAND):
            yield case(op, torch.bitwise_and, bits)
        yield case(Op.BXOR, torch.bitwise_xor, bits)
        return
    # All of these have sums and products that bfloat16 and int8 can represent; sums of complex numbers, too.
    if name in COMPLEX:
        six: Values = lambda q: 6 * mixed(size, q, 8)  # noqa: E731
        for op, factor in ((Op.SUM, 1.0), (Op.AVG, 1 / n), (dist._make_nccl_premul_sum(0.5), 0.5)):
            total = sum(cast(six(q), name).to(torch.complex128) for q in range(n)) * torch.tensor(6 * factor)
            yield op, lambda q: (cast(six(q), name) * 6), total.to(getattr(torch, name))
        return
    least = -5 if name in SIGNED + FLOATS else 0
    yield case(Op.SUM, torch.add, lambda q: mixed(size, q) + least)
    yield case(Op.AVG, torch.add, lambda q: 12 * mixed(size, q, 3), lambda x: x // n)
    yield case(Op.PRODUCT, torch.mul, lambda q: mixed(size, q, 3) + 1)
    yield case(Op.MIN, torch.minimum, lambda q: mixed(size, q, 11) + least)
    yield case(Op.MAX, torch.maximum, lambda q: mixed(size, q, 11) + least)
    yield case(dist._make_nccl_premul_sum(2.0), torch.add, lambda q: mixed(size, q, 12), lambda x: x * 2)
    if name in FLOATS:
        yield case(dist._make_nccl_premul_sum(0.5), torch.add, lambda q: 2 * mixed(size, q), lambda x: x // 2)
        tensor = torch.tensor([0.25])
        yield case(dist._make_nccl_premul_sum(tensor), torch.add, lambda q: 4 * mixed(size, q), lambda x: x // 4)
        return
    bits = lambda q: mixed(size, q, 128)  # noqa: E731
    yield case(Op.BAND, torch.bitwise_and, bits)
    yield case(Op.BOR, torch.bitwise_or, bits)
    yield case(Op.BXOR, torch.bitwise_xor, bits)


# --- Reductions -------------------------------------------------------------------------------------------------------


def check_all_reduce(name: str) -> None:
    r, n = place()
    for size in sizes_of(name):
        for op, values, expected in reductions(name, size, n):
            for asynchronous in (False, True):
                mine = values(r)
                ended(dist.all_reduce(mine, op, async_op=asynchronous), asynchronous)
                same(mine, expected)


@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_all_reduce(ranks: Any, name: str) -> None:
    ranks.run(check_all_reduce, name=name)


def check_reduce(name: str) -> None:
    r, n = place()
    for size in (0, 7, sizes_of(name)[-1]):
        for op, values, expected in reductions(name, size, n):
            for root in range(n):
                mine = values(r)
                ended(dist.reduce(mine, root, op, async_op=root % 2 == 1), root % 2 == 1)
                if r == root:
                    same(mine, expected)
    size = 1000
    for op, values, expected in reductions(name, size, n):
        mine = values(r)
        dist.reduce(mine, group_dst=n - 1, op=op)
        if r == n - 1:
            same(mine, expected)


@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_reduce(ranks: Any, name: str) -> None:
    ranks.run(check_reduce, name=name)


def check_reduce_scatter(name: str) -> None:
    r, n = place()
    for each in (0, 1, 7, sizes_of(name)[-1] // n):
        for op, values, expected in reductions(name, each * n, n):
            for asynchronous in (False, True):
                source = values(r)
                result = torch.zeros(each, dtype=source.dtype)
                ended(dist.reduce_scatter_tensor(result, source, op, async_op=asynchronous), asynchronous)
                same(result, expected[each * r : each * (r + 1)])
                same(source, values(r))
                part = source[each * r : each * (r + 1)]  # in place
                ended(dist.reduce_scatter_tensor(part, source, op, async_op=asynchronous), asynchronous)
                same(part, expected[each * r : each * (r + 1)])
                source = values(r)
                result = torch.zeros(each, dtype=source.dtype)
                parts = [part.clone() for part in source.view(n, each)]
                ended(dist.reduce_scatter(result, parts, op, async_op=asynchronous), asynchronous)
                same(result, expected[each * r : each * (r + 1)])


@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_reduce_scatter(ranks: Any, name: str) -> None:
    ranks.run(check_reduce_scatter, name=name)


def check_uneven_reduce_scatter(name: str) -> None:
    """Also empty parts, of any rank; as parts of one tensor and as tensors of their own."""
    r, n = place()
    for lengths in (
        [3 * q for q in range(n)], [2 * (n - 1 - q) + q % 2 for q in range(n)], [1000 * (q + 1) for q in range(n)]
    ):  # fmt: skip
        for op, values, expected in reductions(name, sum(lengths), n):
            source = values(r)
            for parts in (list(source.split(lengths)), [part.clone() for part in source.split(lengths)]):
                result = torch.zeros(lengths[r], dtype=source.dtype)
                ended(dist.reduce_scatter(result, parts, op, async_op=r % 2 == 1), r % 2 == 1)
                same(result, expected.split(lengths)[r])


@pytest.mark.parametrize("name", ["int8", "uint32", "float16", "float64", *COMPLEX, "bool"])
def test_uneven_reduce_scatter(ranks: Any, name: str) -> None:
    ranks.run(check_uneven_reduce_scatter, name=name)


def check_whole_numbers() -> None:
    """Sums wrap around; averages are truncated towards zero; factors too."""
    r, n = place()
    for name, bits in (("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64)):
        big = torch.tensor([2 ** (bits - 1) - 1 - r, -(2 ** (bits - 1)) + r], dtype=getattr(torch, name))
        dist.all_reduce(big)
        sums = [n * (2 ** (bits - 1) - 1) - n * (n - 1) // 2, -n * 2 ** (bits - 1) + n * (n - 1) // 2]
        assert big.tolist() == [(s + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for s in sums]
        mean = torch.tensor([-7 * (r + 1), 7 * (r + 1), -1 if r == 0 else 0], dtype=getattr(torch, name))
        dist.all_reduce(mean, Op.AVG)
        total = 7 * n * (n + 1) // 2
        assert mean.tolist() == [-(total // n), total // n, -1 if n == 1 else 0]
    for name, bits in (("uint8", 8), ("uint16", 16), ("uint32", 32), ("uint64", 64)):
        ones = torch.full((3,), -1).to(getattr(torch, name))
        dist.all_reduce(ones)
        assert ones.tolist() == [(n * (2**bits - 1)) % 2**bits] * 3


def test_whole_numbers(ranks: Any) -> None:
    ranks.run(check_whole_numbers)


def check_fractions() -> None:
    """An average is one division of the sum, in float for short types; special values stay what they are."""
    r, n = place()
    for name in FLOATS:
        dtype = getattr(torch, name)
        mine = torch.tensor([1.0, -2.5, 0.0]).to(dtype) * (r + 1)
        dist.all_reduce(mine, Op.AVG)
        total = torch.tensor([1.0, -2.5, 0.0]) * n * (n + 1) / 2
        same(mine, (total.to(torch.float64 if name == "float64" else torch.float32) / n).to(dtype))
        inf, nan = float("inf"), float("nan")
        odd = torch.tensor([inf, -inf if r else inf, nan if r == n - 1 else 1.0, -0.0]).to(dtype)
        for op, second in ((Op.SUM, nan if n > 1 else inf), (Op.MIN, inf if n == 1 else -inf), (Op.MAX, inf)):
            copy = odd.clone()
            dist.all_reduce(copy, op)
            expected = torch.tensor([inf, second, nan, -0.0]).to(dtype)
            assert torch.equal(copy.isnan(), expected.isnan()) and torch.equal(copy.nan_to_num(), expected.nan_to_num())
            assert bool(torch.signbit(copy[3]))


def test_fractions(ranks: Any) -> None:
    ranks.run(check_fractions)


def check_same_bits_on_all_ranks() -> None:
    """Whatever the order of a sum that rounds, all ranks have it alike."""
    r, n = place()
    for name in FLOATS:
        for size in (1, 1000, 70_000):
            torch.manual_seed(r)
            mine = torch.randn(size).to(getattr(torch, name))
            dist.all_reduce(mine)
            everyone = [torch.empty_like(mine) for _ in range(n)]
            dist.all_gather(everyone, mine)
            for other in everyone:
                same(other, mine)
            torch.manual_seed(0)
            exact = torch.zeros(size, dtype=torch.float64)
            for q in range(n):
                torch.manual_seed(q)
                exact += torch.randn(size).to(mine.dtype).double()
            tolerance = torch.finfo(mine.dtype).eps * 16
            assert torch.allclose(mine.double(), exact, rtol=tolerance, atol=tolerance)


def test_same_bits_on_all_ranks(ranks: Any) -> None:
    ranks.run(check_same_bits_on_all_ranks)


# --- Moves ------------------------------------------------------------------------------------------------------------


def check_broadcast_and_gather(name: str) -> None:
    r, n = place()
    for size in sizes_of(name):
        rows = [cast(mixed(size, q), name) for q in range(n)]
        for root in range(n):
            asynchronous = root % 2 == 1
            mine = rows[r].clone()
            ended(dist.broadcast(mine, root, async_op=asynchronous), asynchronous)
            same(mine, rows[root])
            mine = rows[r].clone()
            ended(dist.broadcast(mine, group_src=root, async_op=not asynchronous), not asynchronous)
            same(mine, rows[root])

            into = [torch.zeros_like(rows[0]) for _ in range(n)] if r == root else None
            ended(dist.gather(rows[r], into, root, async_op=asynchronous), asynchronous)
            for q in range(n if into else 0):
                same(into[q], rows[q])
            into = list(torch.zeros(n, size, dtype=rows[0].dtype)) if r == root else None  # parts of one tensor
            ended(dist.gather(rows[r], into, group_dst=root, async_op=not asynchronous), not asynchronous)
            for q in range(n if into else 0):
                same(into[q], rows[q])

            for parts in (rows, list(torch.stack(rows))):
                mine = torch.zeros_like(rows[0])
                ended(dist.scatter(mine, parts if r == root else None, root, async_op=asynchronous), asynchronous)
                same(mine, rows[r])


@pytest.mark.parametrize("name", ALL)
def test_broadcast_and_gather(ranks: Any, name: str) -> None:
    ranks.run(check_broadcast_and_gather, name=name)


def check_all_gather(name: str) -> None:
    r, n = place()
    for size in sizes_of(name):
        rows = [cast(mixed(size, q), name) for q in range(n)]
        together = torch.cat(rows)
        for asynchronous in (False, True):
            for into in ([torch.zeros_like(rows[0]) for _ in range(n)], list(torch.zeros_like(together).view(n, size))):
                ended(dist.all_gather(into, rows[r], async_op=asynchronous), asynchronous)
                for q in range(n):
                    same(into[q], rows[q])
            for shape in ((n * size,), (n, size)):
                whole = torch.zeros(shape, dtype=together.dtype)
                ended(dist.all_gather_into_tensor(whole, rows[r], async_op=asynchronous), asynchronous)
                same(whole, together.view(shape))
    # In place, as FSDP does.
    whole = torch.zeros_like(together)
    own = whole[r * size : (r + 1) * size]
    own.copy_(rows[r])
    dist.all_gather_into_tensor(whole, own)
    same(whole, together)
    into = list(torch.zeros_like(together).view(n, size))
    into[r].copy_(rows[r])
    dist.all_gather(into, into[r])
    same(torch.cat(into), together)
    into = [row.clone() if q == r else torch.zeros_like(row) for q, row in enumerate(rows)]
    dist.all_gather(into, into[r])
    same(torch.cat(into), together)


@pytest.mark.parametrize("name", ALL)
def test_all_gather(ranks: Any, name: str) -> None:
    ranks.run(check_all_gather, name=name)


def check_uneven_all_gather(name: str) -> None:
    r, n = place()
    for lengths in ([2 * q for q in range(n)], [n - q for q in range(n)], [1000 * (q % 2) for q in range(n)]):
        rows = [cast(mixed(3 * length, q), name).view(length, 3) for q, length in enumerate(lengths)]
        for asynchronous in (False, True):
            for into in (
                [torch.zeros_like(row) for row in rows],
                list(torch.zeros_like(torch.cat(rows)).split(lengths)),
            ):
                ended(dist.all_gather(into, rows[r], async_op=asynchronous), asynchronous)
                for q in range(n):
                    same(into[q], rows[q])


@pytest.mark.parametrize("name", ["int8", "uint16", "bfloat16", "complex128", "bool", *BYTES[:1]])
def test_uneven_all_gather(ranks: Any, name: str) -> None:
    ranks.run(check_uneven_all_gather, name=name)


def check_all_to_all(name: str) -> None:
    """Rank r sends to rank q the rows ``block(r, q)``."""
    r, n = place()
    for length in (
        lambda q, p: 3, lambda q, p: 0, lambda q, p: q + 2 * p, lambda q, p: int(q < p), lambda q, p: 1000 + q * p,
        lambda q, p: 9000,
    ):  # fmt: skip

        def block(q: int, p: int, length: Any = length) -> Any:
            return cast(mixed(2 * length(q, p), q + n * p), name).view(length(q, p), 2)

        sent, received = [block(r, q) for q in range(n)], [block(q, r) for q in range(n)]
        even = len({length(q, p) for q in range(n) for p in range(n)}) == 1
        send, recv = [length(r, q) for q in range(n)], [length(q, r) for q in range(n)]
        for asynchronous in (False, True):
            result = torch.zeros_like(torch.cat(received))
            work = dist.all_to_all_single(result, torch.cat(sent), recv, send, async_op=asynchronous)
            ended(work, asynchronous)
            same(result, torch.cat(received))
            if even:
                result = torch.zeros_like(torch.cat(received))
                ended(dist.all_to_all_single(result, torch.cat(sent), async_op=asynchronous), asynchronous)
                same(result, torch.cat(received))
            for into in (
                [torch.zeros_like(b) for b in received],
                list(torch.zeros_like(torch.cat(received)).split(recv)),
            ):
                source = sent if asynchronous else list(torch.cat(sent).split(send))
                ended(dist.all_to_all(into, source, async_op=asynchronous), asynchronous)
                for q in range(n):
                    same(into[q], received[q])


@pytest.mark.parametrize("name", ALL)
def test_all_to_all(ranks: Any, name: str) -> None:
    ranks.run(check_all_to_all, name=name)


# --- Tensors that are no simple rows ----------------------------------------------------------------------------------


def layouts(q: int) -> Iterator[tuple[Any, Any]]:
    """Tensors of rank q, and what they are views of: with the same shapes on all ranks."""
    base = torch.arange(24.0).view(4, 6) + 100 * q
    yield base[:, ::2], base
    base = torch.arange(24.0).view(4, 6) + 100 * q
    yield base.t(), base
    base = torch.arange(24.0).view(4, 6) + 100 * q
    yield base[1:3, 2:], base
    base = torch.tensor([5.0 + q, 7.0])
    yield base[0], base  # without dimensions
    base = (torch.arange(120.0).view(2, 3, 4, 5) + q).to(memory_format=torch.channels_last)
    yield base, base
    base = torch.arange(70_000.0).view(2, -1) + q
    yield base.t(), base
    base = torch.view_as_complex(torch.arange(12.0).view(6, 2) + 1 + q)
    yield base.conj().imag, base  # lazily negative
    base = torch.arange(6.0).view(2, 3) + q
    yield base.requires_grad_(), base


def check_layouts() -> None:
    """Results go where the view shows them, and nowhere else."""
    r, n = place()
    everything = [list(layouts(q)) for q in range(n)]
    for i, (first, _) in enumerate(everything[0]):
        values = [one[i][0].detach().clone() for one in everything]
        total = sum(v.double() for v in values).to(first.dtype)
        assert first.is_neg() == (i == 6)

        def checked(view: Any, base: Any, expected: Any, i: int = i) -> None:
            same(view, expected)
            untouched = list(layouts(r))[i]
            with torch.no_grad():
                untouched[0].copy_(expected)
            same(base, untouched[1])

        for asynchronous in (False, True):
            view, base = list(layouts(r))[i]
            with torch.no_grad():
                ended(dist.all_reduce(view, async_op=asynchronous), asynchronous)
            checked(view, base, total)
            for root in range(n):
                view, base = list(layouts(r))[i]
                with torch.no_grad():
                    ended(dist.broadcast(view, root, async_op=asynchronous), asynchronous)
                checked(view, base, values[root])
                view, base = list(layouts(r))[i]
                with torch.no_grad():
                    ended(dist.reduce(view, root, async_op=asynchronous), asynchronous)
                if r == root:
                    checked(view, base, total)
                # Lists that mix views and contiguous tensors.
                view, base = list(layouts(r))[i]
                with torch.no_grad():
                    parts = [v if q % 2 else everything[q][i][0] for q, v in enumerate(values)] if r == root else None
                    ended(dist.scatter(view, parts, root, async_op=asynchronous), asynchronous)
                    checked(view, base, values[r])
                    if parts:
                        parts = [list(layouts(n))[i][0] if q % 2 else torch.zeros_like(v) for q, v in enumerate(values)]
                    ended(dist.gather(everything[r][i][0], parts, root, async_op=asynchronous), asynchronous)
                    for part, value in zip(parts or (), values):
                        same(part, value)
            with torch.no_grad():
                view, base = list(layouts(n))[i]
                into = [view if q == n - 1 else torch.zeros_like(value) for q, value in enumerate(values)]
                ended(dist.all_gather(into, everything[r][i][0], async_op=asynchronous), asynchronous)
                for part, value in zip(into, values):
                    same(part, value)
                whole = torch.zeros(n, *first.shape, dtype=first.dtype)
                ended(dist.all_gather_into_tensor(whole, everything[r][i][0], async_op=asynchronous), asynchronous)
                for part, value in zip(whole, values):
                    same(part, value)
                view, base = list(layouts(n))[i]
                parts = [everything[r][i][0] if q % 2 else values[r] for q in range(n)]
                ended(dist.reduce_scatter(view, parts, async_op=asynchronous), asynchronous)
                same(view, total)
                view, base = list(layouts(n))[i]
                into = [view if q == 0 else torch.zeros_like(value) for q, value in enumerate(values)]
                ended(dist.all_to_all(into, parts, async_op=asynchronous), asynchronous)
                for part, value in zip(into, values):
                    same(part, value)


def test_layouts(ranks: Any) -> None:
    ranks.run(check_layouts)


def check_layouts_that_differ() -> None:
    """What is contiguous on one rank may be strided on another one."""
    r, n = place()
    values = [torch.arange(24.0).view(6, 4) + 100 * q for q in range(n)]
    total = sum(values)

    def mine() -> Any:
        if r % 3 == 0:
            return values[r].clone()
        if r % 3 == 1:
            return values[r].t().contiguous().t()
        return torch.stack([values[r], values[r]], 2)[..., 0]

    for asynchronous in (False, True):
        x = mine()
        ended(dist.all_reduce(x, async_op=asynchronous), asynchronous)
        same(x, total)
        for root in range(n):
            x = mine()
            ended(dist.broadcast(x, root, async_op=asynchronous), asynchronous)
            same(x, values[root])
            x = mine()
            ended(dist.reduce(x, root, async_op=asynchronous), asynchronous)
            if r == root:
                same(x, total)
            into = [mine() for _ in range(n)] if r == root else None
            ended(dist.gather(mine(), into, root, async_op=asynchronous), asynchronous)
            for part, value in zip(into or (), values):
                same(part, value)
            x = mine()
            ended(dist.scatter(x, values if r == root else None, root, async_op=asynchronous), asynchronous)
            same(x, values[r])
        into = [mine() for _ in range(n)]
        ended(dist.all_gather(into, mine(), async_op=asynchronous), asynchronous)
        for part, value in zip(into, values):
            same(part, value)


def test_layouts_that_differ(ranks: Any) -> None:
    ranks.run(check_layouts_that_differ)


def check_strided_parts() -> None:
    """Of one tensor for all ranks: strided inputs everywhere, and outputs where they may be."""
    r, n = place()
    wide = torch.arange(4 * n * 6.0).view(4 * n, 6) + r
    wides = [torch.arange(4 * n * 6.0).view(4 * n, 6) + q for q in range(n)]
    total = sum(wides)
    base = torch.full((4, 6), -1.0)
    dist.reduce_scatter_tensor(base[:, ::2], wide[:, ::2])
    same(base[:, ::2], total[4 * r : 4 * r + 4, ::2])
    same(base[:, 1::2], torch.full((4, 3), -1.0))
    result = torch.zeros(4 * n, 3)
    dist.all_to_all_single(result, wide[:, 1::2])
    same(result, torch.cat([w[4 * r : 4 * r + 4, 1::2] for w in wides]))
    result = torch.zeros(n * 4 * n, 3)
    dist.all_gather_into_tensor(result, wide[:, ::2])
    same(result, torch.cat([w[:, ::2] for w in wides]))
    # A row of zeros is a view of one of them.
    row = torch.tensor([float(r)]).expand(5)
    into = torch.zeros(n, 5)
    dist.all_gather_into_tensor(into, row)
    same(into, torch.arange(float(n)).repeat_interleave(5).view(n, 5))


def test_strided_parts(ranks: Any) -> None:
    ranks.run(check_strided_parts)


def check_conjugates() -> None:
    """Lazily conjugate tensors, where PyTorch lets them through."""
    r, n = place()
    ranks = [torch.complex(torch.arange(6.0) + 1 + q, torch.arange(6.0) * 2 + 5 - q) for q in range(n)]
    total = sum(ranks)
    for root in range(n):
        base = ranks[r].clone()
        dist.reduce(base.conj(), root)
        if r == root:
            same(base, total)  # its conjugate is the sum of the conjugates
        into = [torch.zeros(6, dtype=torch.complex64).conj() for _ in range(n)] if r == root else None
        dist.gather(ranks[r].conj(), into, root)
        for q in range(n if into else 0):
            assert into[q].is_conj()
            same(into[q], ranks[q].conj())
    output = torch.zeros(6, dtype=torch.complex64).conj()
    dist.reduce_scatter(output, [ranks[r].conj()] * n)
    same(output, total.conj())
    output = torch.zeros(6, dtype=torch.complex64)
    dist.reduce_scatter_tensor(output, torch.cat([ranks[r]] * n).conj())
    same(output, total.conj())
    with pytest.raises(RuntimeError, match="conj"):  # PyTorch's own words
        dist.all_reduce(ranks[r].conj())
    for op in (Op.PRODUCT,):
        mine = ranks[r].clone()
        dist.reduce(mine, 0, op)
        product = ranks[0]
        for q in range(1, n):
            product = product * ranks[q]
        if r == 0:
            assert torch.allclose(mine, product, rtol=1e-5)
    # complex and real numbers of the same size may be mixed in gathers.
    into = [torch.zeros(6, 2) for _ in range(n)]
    dist.all_gather(into, ranks[r])
    for q in range(n):
        same(torch.view_as_complex(into[q]), ranks[q])


def test_conjugates(ranks: Any) -> None:
    ranks.run(check_conjugates)


def check_without_dimensions() -> None:
    r, n = place()
    everyone = [torch.tensor(q + 0.5) for q in range(n)]
    whole = torch.zeros(n)
    dist.all_gather_into_tensor(whole, everyone[r])
    same(whole, torch.arange(n) + 0.5)
    one = torch.zeros(())
    dist.reduce_scatter_tensor(one, torch.arange(float(n)) + r)
    same(one, torch.tensor(float(n * r + n * (n - 1) // 2)))
    into = [torch.zeros(()) for _ in range(n)]
    dist.all_to_all(into, [torch.tensor(10.0 * r + q) for q in range(n)])
    assert [float(t) for t in into] == [10.0 * q + r for q in range(n)]
    single = torch.zeros(n)
    dist.all_to_all_single(single, torch.arange(float(n)) + 10 * r)
    same(single, torch.arange(float(n)) * 10 + r)


def test_without_dimensions(ranks: Any) -> None:
    ranks.run(check_without_dimensions)


def check_leafs() -> None:
    """A leaf that requires a gradient can be reduced in place, and keeps its place in the graph."""
    r, n = place()
    for shape in ((3, 4), (200, 300)):
        plain = torch.nn.Parameter(torch.full(shape, 1.0 + r))
        strided = torch.nn.Parameter(torch.full(shape, 1.0 + r).t())
        for leaf in (plain, strided):
            for asynchronous in (False, True):
                with torch.no_grad():
                    leaf.fill_(1.0 + r)
                    ended(dist.all_reduce(leaf, async_op=asynchronous), asynchronous)
                same(leaf, torch.full(leaf.shape, n * (n + 1) / 2))
                assert leaf.is_leaf and leaf.requires_grad and leaf.grad is None
                ended(dist.broadcast(leaf, n - 1, async_op=asynchronous), asynchronous)  # also without no_grad
            (leaf * 2).sum().backward()
            same(leaf.grad.contiguous(), torch.full(leaf.shape, 2.0))
    gathered = [torch.zeros(3, 4) for _ in range(n)]
    dist.all_gather(gathered, torch.full((3, 4), float(r), requires_grad=True))
    assert [float(g[2, 3]) for g in gathered] == list(range(n)) and not any(g.requires_grad for g in gathered)


def test_leafs(ranks: Any) -> None:
    ranks.run(check_leafs)


def check_sparse() -> None:
    """Sums of COO tensors, whose numbers of elements differ."""
    r, n = place()
    for shape, dense in (((6,), ()), ((6, 4), ()), ((6, 3), (3,))):
        for op, divisor in ((Op.SUM, 1), (Op.AVG, n)):
            for asynchronous in (False, True):
                per_rank = []
                for q in range(n):
                    dims = len(shape) - len(dense)
                    indices = torch.tensor([[(q + k) % shape[0] for k in range(q + 1)]] + [[0] * (q + 1)] * (dims - 1))
                    values = torch.arange(float((q + 1) * (dense[0] if dense else 1))).view(q + 1, *dense) + 1
                    per_rank.append(torch.sparse_coo_tensor(indices, values, shape))
                mine = per_rank[r].clone()
                ended(dist.all_reduce(mine, op, async_op=asynchronous), asynchronous)
                assert mine.layout is torch.sparse_coo
                same(mine.to_dense(), sum(t.to_dense() for t in per_rank) / divisor)
    whole = torch.sparse_coo_tensor(torch.tensor([[r, n]]), torch.tensor([-7, 2**40 + 1]), (n + 1,))
    dist.all_reduce(whole, Op.AVG)
    assert whole.to_dense().tolist() == [-(7 // n)] * n + [2**40 + 1]
    scaled = torch.sparse_coo_tensor(torch.tensor([[r, n]]), torch.tensor([2.0, 3.0]), (n + 1,))
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    assert scaled.to_dense().tolist() == [1.0] * n + [1.5 * n]
    empty = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), torch.empty(0), (4,))
    dist.all_reduce(empty)
    same(empty.to_dense(), torch.zeros(4))
    doubled = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([1.0, 2.0]), (3,))  # not coalesced
    dist.all_reduce(doubled)
    same(doubled.to_dense(), torch.tensor([0.0, 3.0 * n, 0.0]))


def test_sparse(ranks: Any) -> None:
    ranks.run(check_sparse)


# --- Forms of several tensors, and of objects -------------------------------------------------------------------------


def check_coalesced() -> None:
    r, n = place()
    sizes = [0, 1, 7, 70_000]
    pg = dist.group.WORLD
    for op, expected in ((Op.SUM, n * (n + 1) / 2), (Op.MAX, float(n)), (Op.AVG, (n + 1) / 2)):
        tensors = [torch.full((size,), 1.0 + r) for size in sizes]
        assert dist.all_reduce_coalesced(tensors, op) is None
        for tensor, size in zip(tensors, sizes):
            same(tensor, torch.full((size,), expected))
        tensors = [torch.full((size,), 1.0 + r).t() for size in sizes]
        future = dist.all_reduce_coalesced(tensors, op, async_op=True)
        for tensor, size in zip(future.wait(), sizes):
            same(tensor, torch.full((size,), expected))
        same(tensors[3], torch.full((70_000,), expected))

    inputs = [torch.full((size,), 10.0 * r + i) for i, size in enumerate(sizes)]
    expected = [[torch.full((size,), 10.0 * q + i) for i, size in enumerate(sizes)] for q in range(n)]
    for asynchronous in (False, True):
        outputs = [[torch.zeros(size) for size in sizes] for _ in range(n)]
        work = dist.all_gather_coalesced(outputs, inputs, async_op=asynchronous)
        if asynchronous:
            work.wait()
        for row, wanted in zip(outputs, expected):
            for tensor, value in zip(row, wanted):
                same(tensor, value)

    for device in (None, torch.device("cpu")):
        for asynchronous in (False, True):
            sums = [torch.full((size,), 1.0 + r) for size in sizes]
            gathered = [torch.zeros(n * size) for size in sizes]
            scattered = [torch.zeros(size) for size in sizes]
            with dist._coalescing_manager(device=device, async_ops=asynchronous) as manager:
                for tensor in sums:
                    dist.all_reduce(tensor, async_op=asynchronous)
            if asynchronous:
                manager.wait()
            for tensor, size in zip(sums, sizes):
                same(tensor, torch.full((size,), n * (n + 1) / 2))
            with dist._coalescing_manager(device=device, async_ops=asynchronous) as manager:
                for tensor, own in zip(gathered, inputs):
                    dist.all_gather_into_tensor(tensor, own, async_op=asynchronous)
            if asynchronous:
                manager.wait()
            for i, (tensor, size) in enumerate(zip(gathered, sizes)):
                same(tensor, (torch.arange(float(n)) * 10 + i).repeat_interleave(size))
            with dist._coalescing_manager(device=device, async_ops=asynchronous) as manager:
                for tensor, size in zip(scattered, sizes):
                    dist.reduce_scatter_tensor(tensor, torch.arange(float(n)).repeat_interleave(size) + r, Op.AVG)
            if asynchronous:
                manager.wait()
            for tensor, size in zip(scattered, sizes):
                same(tensor, torch.full((size,), r + (n - 1) / 2))
    assert pg is not None and dist.distributed_c10d._world.pg_coalesce_state == {}


def test_coalesced(ranks: Any) -> None:
    ranks.run(check_coalesced)


def thing(q: int) -> Any:
    """An object of rank q; those of ranks differ in size."""
    return [None, {"rank": q, "text": "x" * 1000 * q}, (torch.full((q,), float(q)).tolist(), b"\0" * 100_000 * q)]


def check_objects() -> None:
    r, n = place()
    everyone = [thing(q) for q in range(n)]
    found: list[Any] = [None] * n
    dist.all_gather_object(found, thing(r))
    assert found == everyone
    for root in range(n):
        found = [None] * n if r == root else None  # type: ignore[assignment]
        dist.gather_object(thing(r), found, root)
        assert found == (everyone if r == root else None)
        objects = [thing(root), root, "text"] if r == root else [None, None, None]
        dist.broadcast_object_list(objects, root)
        assert objects == [thing(root), root, "text"]
        got: list[Any] = [None]
        dist.scatter_object_list(got, everyone if r == root else None, root)
        assert got == [thing(r)]
    for use_batch in (False, True):  # around the ring
        if n == 1:
            break
        objects = [None, None]
        for q in range(n):
            if r == q:
                dist.send_object_list([thing(r), r], (r + 1) % n, use_batch=use_batch)
            if r == (q + 1) % n:
                assert dist.recv_object_list(objects, q, use_batch=use_batch) == q
        assert objects == [thing((r - 1) % n), (r - 1) % n]


def test_objects(ranks: Any) -> None:
    ranks.run(check_objects)


# --- Work and futures -------------------------------------------------------------------------------------------------


def check_work() -> None:
    r, n = place()
    tensor = torch.full((5,), 1.0 + r)
    work = dist.all_reduce(tensor, async_op=True)
    assert isinstance(work, dist.Work)
    future = work.get_future()
    assert work.get_future() is future
    doubled = future.then(lambda f: f.value()[0] * 2)
    same(doubled.wait(), torch.full((5,), n * (n + 1.0)))
    assert future.done() and work.is_completed() and work.is_success() and work.exception() is None
    (result,) = work.result()
    assert result is tensor
    assert work.wait() is True and work.wait() is True  # again
    late = work.get_future().then(lambda f: f.value()[0].sum())
    assert float(late.wait()) == 5 * n * (n + 1) / 2

    # Strided results are there before a future has its value.
    base = torch.full((4, 6), 1.0 + r)
    future = dist.all_reduce(base[:, ::2], async_op=True).get_future()
    assert float(future.then(lambda f: f.value()[0].sum()).wait()) == 12 * n * (n + 1) / 2
    same(base[:, 1::2], torch.full((4, 3), 1.0 + r))

    lists = [torch.zeros(2) for _ in range(n)]
    future = dist.all_gather(lists, torch.full((2,), float(r)), async_op=True).get_future()
    future.wait()
    assert [float(t[1]) for t in lists] == list(range(n))

    works = [dist.all_reduce(torch.full((1000 * i,), 1.0), async_op=True) for i in range(20)]
    for i, w in reversed(list(enumerate(works))):
        assert w.wait()
        same(w.result()[0], torch.full((1000 * i,), float(n)))
    both = torch.futures.collect_all([
        dist.all_reduce(torch.ones(2), async_op=True).get_future(), dist.barrier(async_op=True).get_future(),
        dist.broadcast(torch.full((1,), float(r)), n - 1, async_op=True).get_future(),
    ])
    first, _, last = both.wait()
    same(first.value()[0], torch.full((2,), float(n)))
    assert float(last.value()[0]) == n - 1


def test_work(ranks: Any) -> None:
    ranks.run(check_work)


def check_callbacks() -> None:
    """Callbacks may raise, and may do collectives of their own and wait for them."""
    r, n = place()
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()

    def raises(f: Any) -> Any:
        raise KeyError("from a callback")

    with pytest.raises(Exception, match="from a callback"):
        future.then(raises).wait()

    def again(f: Any) -> Any:
        tensor = f.value()[0]
        dist.all_reduce(tensor)
        inner = dist.all_reduce(tensor, async_op=True).get_future().then(lambda g: g.value()[0] + 1)
        return inner.wait()

    tensor = torch.ones(3)
    same(dist.all_reduce(tensor, async_op=True).get_future().then(again).wait(), torch.full((3,), n**3 + 1.0))

    chain = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    for _ in range(20):
        chain = chain.then(lambda f: [f.value()[0] + 1])
    same(chain.wait()[0], torch.full((3,), n + 20.0))


def test_callbacks(ranks: Any) -> None:
    ranks.run(check_callbacks)


def check_not_yet_complete() -> None:
    """Before the last rank has come, nothing is complete."""
    r, n = place()
    if r == 0:
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=True)
        future = work.get_future()
        assert not work.is_completed() and not work.is_success() and work.exception() is None and not future.done()
        same(tensor, torch.ones(3))
        for q in range(1, n):
            dist.send(torch.ones(1), q)
        assert work.wait()
    else:
        dist.recv(torch.zeros(1), 0)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(n)))


def test_not_yet_complete(several_ranks: Any) -> None:
    several_ranks.run(check_not_yet_complete)


def check_default_device() -> None:
    """No tensor of hvd's own is made on a device that only the program's tensors are for."""
    r, n = place()
    indices, cpu = torch.tensor([[r]]), torch.device("cpu")
    sparse = torch.sparse_coo_tensor(indices, torch.ones(1), (n,))
    with torch.device("meta"):
        shared = hvd.torch.empty(3000)
        assert shared.device == cpu and dist.group.WORLD.allocate_tensor(3, dtype=torch.int8, device=cpu).device == cpu
        dist.all_reduce(shared.fill_(1))
        dist.all_reduce(sparse)
        dist.monitored_barrier()
    same(shared, torch.full((3000,), float(n)))
    same(sparse.to_dense(), torch.ones(n))


def test_default_device(ranks: Any) -> None:
    ranks.run(check_default_device)


def check_barriers() -> None:
    r, n = place()
    for asynchronous in (False, True):
        ended(dist.barrier(async_op=asynchronous), asynchronous)
    dist.barrier(timeout=timedelta(seconds=30))
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)
    # Nobody passes before the last has come.
    store = dist.PrefixStore("barriers", dist.distributed_c10d._get_default_store())
    for turn in range(5):
        store.add(f"before {turn}", 1)
        (dist.monitored_barrier if turn % 2 else dist.barrier)()
        assert store.add(f"before {turn}", 0) == n


def test_barriers(ranks: Any) -> None:
    ranks.run(check_barriers)


# --- Buffers that ranks share -----------------------------------------------------------------------------------------


def check_shared_tensors() -> None:
    """Tensors in memory that all ranks map: the same results, of the whole and of its parts."""
    r, n = place()
    pg: Any = dist.group.WORLD
    whole = torch.zeros(n * 40_000)
    assert pg.share(whole) is True
    again = pg.allocate_tensor(n * 40_000, dtype=torch.float32, device=torch.device("cpu"))
    for begin, end in ((0, n * 40_000), (0, 4), (1000, 3000), (5, 20_005)):
        for asynchronous in (False, True):
            part = whole[begin:end]
            part.copy_(torch.arange(begin, end) % 50 + r)
            ended(dist.all_reduce(part, async_op=asynchronous), asynchronous)
            same(part, n * (torch.arange(begin, end) % 50).float() + n * (n - 1) // 2)
            part.fill_(r + 1.0)
            ended(dist.all_reduce(part, Op.AVG, async_op=asynchronous), asynchronous)
            same(part, torch.full((end - begin,), (n + 1) / 2))
            part.fill_(r + 1.0)
            ended(dist.broadcast(part, n - 1, async_op=asynchronous), asynchronous)
            same(part, torch.full((end - begin,), float(n)))
            part.fill_(r + 1.0)
            ended(dist.reduce(part, 0, async_op=asynchronous), asynchronous)
            if r == 0:
                same(part, torch.full((end - begin,), n * (n + 1) / 2))
    each = 40_000
    for source, target in ((whole, again), (whole, torch.zeros(n * each)), (torch.zeros(n * each), again)):
        source.copy_((torch.arange(float(n)) + n * r).repeat_interleave(each))
        dist.all_to_all_single(target, source)
        same(target, (torch.arange(float(n)) * n + r).repeat_interleave(each))
        dist.reduce_scatter_tensor(target[:each], source)
        same(target[:each], torch.full((each,), n * r + n * n * (n - 1) / 2))
        source.fill_(float(r))
        dist.all_gather_into_tensor(target, source[:each])
        same(target, torch.arange(float(n)).repeat_interleave(each))
        own = target[r * each : (r + 1) * each]
        own.fill_(r + 7.0)
        dist.all_gather_into_tensor(target, own)
        same(target, (torch.arange(float(n)) + 7).repeat_interleave(each))
    del whole, again, source, target, part, own


def test_shared_tensors(ranks: Any) -> None:
    ranks.run(check_shared_tensors)


def check_gradients_of_a_model(view: bool) -> None:
    """DistributedDataParallel: buckets move into shared memory on the way, and gradients stay the exact average."""
    r, n = place()
    model = torch.nn.Linear(300, 200)
    with torch.no_grad():
        model.weight.fill_(0.0)
        model.bias.fill_(float(r))  # that of rank 0 counts
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
    assert float(model.bias[0]) == 0.0
    for step in range(6):
        model.zero_grad(set_to_none=step % 2 == 0)
        wrapped(torch.full((1, 300), float((r + 1) * (step + 1)))).sum().backward()
        same(model.weight.grad, torch.full((200, 300), (step + 1) * (n + 1) / 2))
        same(model.bias.grad, torch.ones(200))


@pytest.mark.parametrize("view", [False, True])
def test_gradients_of_a_model(ranks: Any, view: bool) -> None:
    ranks.run(check_gradients_of_a_model, view=view)


# --- Functional collectives, and those with gradients -----------------------------------------------------------------


def check_functional() -> None:
    import torch.distributed._functional_collectives as functional

    r, n = place()
    group = dist.group.WORLD
    for size in (1, 7, 70_000):
        mine = torch.full((size, 2), 1.0 + r)
        for op, expected in (("sum", n * (n + 1) / 2), ("avg", (n + 1) / 2), ("max", float(n)), ("min", 1.0)):
            result = functional.all_reduce(mine, op, group)
            assert isinstance(result, functional.AsyncCollectiveTensor)
            same(result + 0, torch.full((size, 2), expected))
            same(mine, torch.full((size, 2), 1.0 + r))
        result = functional.all_reduce(mine, "sum", group)
        same(functional.wait_tensor(result), torch.full((size, 2), n * (n + 1) / 2))
        columns = torch.arange(float(n)) + 1
        rows = columns.repeat_interleave(size).repeat(2, 1).t().contiguous()
        same(functional.all_gather_tensor(mine, 0, group) + 0, rows)
        same(functional.all_gather_tensor(mine, 1, group) + 0, columns.repeat_interleave(2).repeat(size, 1))
        wide = torch.arange(float(n)).repeat_interleave(2).repeat(size, 1) + r  # n * 2 columns
        scattered = functional.reduce_scatter_tensor(wide, "sum", 1, group)
        same(scattered + 0, torch.full((size, 2), n * r + n * (n - 1) / 2))
        scattered = functional.reduce_scatter_tensor(wide.t().contiguous(), "avg", 0, group)
        same(scattered + 0, torch.full((2, size), r + (n - 1) / 2))
        for root in range(n):
            same(functional.broadcast(mine, root, group) + 0, torch.full((size, 2), root + 1.0))
        rows = torch.arange(float(n)).repeat_interleave(size) + 10 * r
        swapped = functional.all_to_all_single(rows, None, None, group)
        same(swapped + 0, (torch.arange(float(n)) * 10 + r).repeat_interleave(size))
        lengths = [q + 1 for q in range(n)]
        uneven = functional.all_to_all_single(torch.full((sum(lengths),), float(r)), [r + 1] * n, lengths, group)
        same(uneven + 0, torch.arange(float(n)).repeat_interleave(r + 1))
    several = [torch.full((s,), 1.0 + r) for s in (3, 1, 70_000)]
    for tensor, s in zip(functional.all_reduce_coalesced(several, "sum", group), (3, 1, 70_000)):
        same(tensor + 0, torch.full((s,), n * (n + 1) / 2))
    for tensor, s in zip(functional.all_gather_into_tensor_coalesced(several, group), (3, 1, 70_000)):
        same(tensor + 0, (torch.arange(float(n)) + 1).repeat_interleave(s))
    inputs = [torch.arange(float(n)).repeat_interleave(s) + r for s in (3, 1, 7_000)]
    results = functional.reduce_scatter_tensor_coalesced(inputs, "sum", [0, 0, 0], group)
    for tensor, s in zip(results, (3, 1, 7_000)):
        same(tensor + 0, torch.full((s,), n * r + n * (n - 1) / 2))
    moved = functional.permute_tensor(torch.full((4,), float(r)), [(q + 1) % n for q in range(n)], group)
    same(moved + 0, torch.full((4,), float((r - 1) % n)))
    # In place, and through names of groups, as compiled programs call them.
    mine = torch.full((7,), 1.0 + r)
    name = group.group_name  # type: ignore[union-attr]
    result = torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce_(mine, "sum", name))
    same(result, torch.full((7,), n * (n + 1) / 2))
    same(mine, result)


def test_functional(ranks: Any) -> None:
    ranks.run(check_functional)


def check_functional_with_output() -> None:
    """What compiled programs may call: the one functional collective that goes by c10d's dispatcher."""
    r, n = place()
    out = torch.zeros(7 * n)
    group: Any = dist.group.WORLD
    torch.ops._c10d_functional.all_gather_into_tensor_out(torch.full((7,), float(r)), n, group.group_name, out=out)
    same(torch.ops._c10d_functional.wait_tensor(out), torch.arange(float(n)).repeat_interleave(7))


def test_functional_with_output(ranks: Any) -> None:
    ranks.run(check_functional_with_output)


def check_functional_gradients() -> None:
    import torch.distributed._functional_collectives as functional

    r, n = place()
    group = dist.group.WORLD
    weight = r + 1.0

    def gradient(function: Callable[[Any], Any], shape: Sequence[int]) -> Any:
        x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
        (function(x) * weight).sum().backward()
        return x.grad

    total = n * (n + 1) / 2
    ones = torch.ones(2, 3, dtype=torch.float64)
    same(gradient(lambda x: functional.all_gather_tensor_autograd(x, 0, group), (2, 3)), ones * total)
    own = (torch.arange(float(n)) + 1).repeat_interleave(2).double()
    got = gradient(lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group), (2 * n,))
    same(got, own)
    got = gradient(lambda x: functional.all_to_all_single_autograd(x, [2] * n, [2] * n, group), (2 * n,))
    same(got, own)


def test_functional_gradients(ranks: Any) -> None:
    ranks.run(check_functional_gradients)


def check_gradients() -> None:
    """torch.distributed.nn, against what its functions are: linear maps, whose gradient is the transposed map."""
    from torch.distributed.nn import functional as nn

    r, n = place()
    weight = r + 1.0

    def gradient(function: Callable[[Any], Any], shape: Sequence[int] = (2, 3)) -> Any:
        x = torch.full(shape, 1.0 + r, dtype=torch.float64, requires_grad=True)
        result = function(x)
        parts = result if isinstance(result, tuple) else (result,)
        sum((part * weight).sum() for part in parts).backward()
        return x.grad

    ones = torch.ones(2, 3, dtype=torch.float64)
    total = n * (n + 1) / 2
    same(gradient(lambda x: nn.all_reduce(x)), ones * total)
    same(gradient(lambda x: nn.all_gather(x)), ones * total)
    for root in range(n):
        same(gradient(lambda x: nn.broadcast(x, root)), ones * (total if r == root else 0))
        same(gradient(lambda x: nn.reduce(x, root)), ones * (root + 1))
        same(gradient(lambda x: nn.gather(x, root)), ones * (root + 1))
        got = gradient(lambda x: nn.scatter(list(x.unbind()), root), (n, 3))
        each = (torch.arange(n, dtype=torch.float64) + 1).repeat_interleave(3).view(n, 3)
        same(got, each if r == root else each * 0)
    own = (torch.arange(n, dtype=torch.float64) + 1).repeat_interleave(2)
    got = gradient(lambda x: nn.reduce_scatter(torch.zeros(2, dtype=x.dtype), list(x.chunk(n))), (2 * n,))
    same(got, own)
    into = [torch.zeros(2, dtype=torch.float64) for _ in range(n)]
    got = gradient(lambda x: nn.all_to_all(into, list(x.chunk(n))), (2 * n,))
    same(got, own)
    got = gradient(lambda x: nn.all_to_all_single(torch.zeros_like(x), x), (2 * n,))
    same(got, own)
    # And their values.
    x = torch.full((2,), 1.0 + r)
    same(nn.all_reduce(x, Op.MAX), torch.full((2,), float(n)))
    assert [float(t[0]) for t in nn.all_gather(x)] == [q + 1.0 for q in range(n)]
    same(nn.broadcast(x, n - 1), torch.full((2,), float(n)))
    same(x, torch.full((2,), 1.0 + r))


def test_gradients(ranks: Any) -> None:
    ranks.run(check_gradients)


# --- Refusals of reductions -------------------------------------------------------------------------------------------


def check_refused_reductions() -> None:
    """On all ranks alike, before anything is sent: the group goes on."""
    r, n = place()
    calls: list[Callable[[Any, Any], Any]] = [
        lambda x, op: dist.all_reduce(x, op), lambda x, op: dist.reduce(x, 0, op),
        lambda x, op: dist.reduce_scatter_tensor(x[:2].clone(), x, op),
        lambda x, op: dist.reduce_scatter(x[:2].clone(), list(x.chunk(n)), op),
        lambda x, op: dist.all_reduce_coalesced([x, x], op), lambda x, op: dist.all_reduce(x, op, async_op=True).wait(),
    ]  # fmt: skip
    premul = dist._make_nccl_premul_sum(2.0)
    bitwise = (Op.BAND, Op.BOR, Op.BXOR)
    refused = [
        *((name, op, rf"{name} can be moved, but not reduced") for name in BYTES for op in (Op.SUM, Op.MAX, Op.BAND)),
        *((name, op, rf"bitwise operations of {name} are not defined") for name in FLOATS for op in bitwise),
        ("bool", Op.AVG, "average of bool is not defined"), ("bool", premul, "cannot be scaled"),
        *(("complex64", op, "complex") for op in (Op.MIN, Op.MAX, Op.BAND)),
        *(("complex32", op, "complex") for op in (Op.MIN, Op.MAX, Op.BXOR, Op.PRODUCT)),
    ]
    for name, op, match in refused:
        for call in calls:
            with pytest.raises(ValueError, match=match):
                call(torch.zeros(2 * n, dtype=getattr(torch, name)), op)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(n)))


def test_refused_reductions(ranks: Any) -> None:
    ranks.run(check_refused_reductions)


def check_sizes_beside_limits() -> None:
    """Around sizes at which other algorithms begin, odd ones included."""
    r, n = place()
    for kilobytes in (1, 4, 16, 64, 256, 1024, 4096):
        for size in (kilobytes * 256 - 1, kilobytes * 256, kilobytes * 256 + 1):
            tensor = mixed(size, r).float()
            total = sum(mixed(size, q) for q in range(n)).float()
            dist.all_reduce(tensor)
            same(tensor, total)
            if kilobytes <= 256:
                tensor = mixed(size, r).float()
                dist.broadcast(tensor, n - 1)
                same(tensor, mixed(size, n - 1).float())


def test_sizes_beside_limits(ranks: Any) -> None:
    ranks.run(check_sizes_beside_limits)
