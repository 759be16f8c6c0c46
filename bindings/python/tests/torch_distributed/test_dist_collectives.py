"""The collectives of torch.distributed over the backend "hvd", with all types, on exact values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from dist_ranks import same  # noqa: E402

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex32", "complex64", "complex128"]
# They can be moved, but not reduced.
BYTES = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
BYTES = [name for name in BYTES if hasattr(torch, name)]
NUMBERS = [*SIGNED, *UNSIGNED, *FLOATS, *COMPLEX]
ALL = [*NUMBERS, "bool", *BYTES]
SIZES = [0, 1, 7, 1000, 70_000]  # the last one: also the shortest types have more than 64 KiB

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
    for size in SIZES:
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
    for size in (0, 7, 70_000):
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
    for each in (0, 1, 7, 70_000 // n):
        for op, values, expected in reductions(name, each * n, n):
            for asynchronous in (False, True):
                source = values(r)
                result = torch.zeros(each, dtype=source.dtype)
                ended(dist.reduce_scatter_tensor(result, source, op, async_op=asynchronous), asynchronous)
                same(result, expected[each * r : each * (r + 1)])
                same(source, values(r))
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
    for lengths in ([3 * q for q in range(n)], [2 * (n - 1 - q) + q % 2 for q in range(n)], [1000 * (q + 1) for q in range(n)]):
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
    for size in SIZES:
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
    for size in SIZES:
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
