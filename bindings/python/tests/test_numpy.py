"""The collectives on NumPy arrays, on 1 to 3 ranks, with exact values."""

from __future__ import annotations

import array
import signal
import warnings
from typing import Any

import numpy as np
import pytest

import hvd
from hvd.core import collectives

NUMBERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
ALL = [*NUMBERS, *COMPLEX, "bool"]


def same(result: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    assert isinstance(result, np.ndarray)
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert (result == expected).all(), (result, expected)


def check_allreduce(dtype: str) -> None:
    r, n = hvd.rank(), hvd.size()
    mine = (np.arange(6).reshape(2, 3) + r).astype(dtype)
    total = sum((np.arange(6).reshape(2, 3) + q).astype(dtype) for q in range(n)).astype(dtype)
    same(hvd.allreduce(mine, op=hvd.Sum), total)
    same(hvd.allreduce(mine, average=False), total)
    if np.dtype(dtype).kind not in "iu":
        same(hvd.allreduce(mine), (total / n).astype(dtype))
        same(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), total)
    if np.dtype(dtype).kind != "c":
        same(hvd.allreduce(mine, op=hvd.Min), np.arange(6).reshape(2, 3).astype(dtype))
        same(hvd.allreduce(mine, op=hvd.Max), (np.arange(6).reshape(2, 3) + n - 1).astype(dtype))
    product = np.prod([(np.full(2, q + 1)).astype(dtype) for q in range(n)], axis=0).astype(dtype)
    same(hvd.allreduce(np.full(2, r + 1).astype(dtype), op=hvd.Product), product)


@pytest.mark.parametrize("dtype", NUMBERS + COMPLEX)
def test_allreduce(ranks: Any, dtype: str) -> None:
    ranks.run(check_allreduce, dtype=dtype)


def check_mean_of_small_integers() -> None:
    """Sums wrap, as in C++; the first mean of each type warns, and only that."""
    n = hvd.size()
    collectives._warned.clear()
    mine = np.full(2, 200, np.uint8)
    both = [np.full(2, 100, np.int16), np.full(2, 100, np.int8)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        hvd.allreduce(mine, op=hvd.Sum), hvd.allreduce(mine, op=hvd.Max), hvd.allreduce(np.full(2, 7, np.int32))
        assert not seen
        for _ in range(2):
            same(hvd.allreduce(mine), np.full(2, 200 * n % 256 // n, np.uint8))
            hvd.reducescatter(mine), hvd.grouped_allreduce(both)
    types = ["uint8", "int16", "int8"]
    assert [str(w.message)[: len(f"hvd: Average of {t} sums")] for w, t in zip(seen, types)] == [
        f"hvd: Average of {t} sums" for t in types
    ] and len(seen) == 3


def test_mean_of_small_integers(ranks: Any) -> None:
    ranks.run(check_mean_of_small_integers)


def check_allreduce_bool() -> None:
    r, n = hvd.rank(), hvd.size()
    same(hvd.allreduce(np.array([r == 0, True, False]), op=hvd.Max), np.array([True, True, False]))
    same(hvd.allreduce(np.array([r == 0, True, False]), op=hvd.Min), np.array([n == 1, True, False]))
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(np.array([True]), op=hvd.Sum)


def test_allreduce_bool(ranks: Any) -> None:
    ranks.run(check_allreduce_bool)


def check_forms_of_allreduce() -> None:
    r, n = hvd.rank(), hvd.size()
    x = np.full(3, float(r))
    handle = hvd.allreduce_async(x, op=hvd.Sum)
    assert isinstance(handle, int)
    same(hvd.synchronize(handle), np.full(3, n * (n - 1) / 2))
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="cleared"):
        hvd.poll(handle)
    same(x, np.full(3, float(r)))
    assert hvd.allreduce_(x, op=hvd.Max) is x
    same(x, np.full(3, n - 1.0))
    handle = hvd.allreduce_async_(x, op=hvd.Sum)
    hvd.synchronize(handle)
    same(x, np.full(3, n * (n - 1.0)))
    a, b = np.full(2, float(r), np.float32), np.full((2, 2), r)
    first, second = hvd.grouped_allreduce([a, b], op=hvd.Sum)
    same(first, np.full(2, n * (n - 1) / 2, np.float32))
    same(second, np.full((2, 2), n * (n - 1) // 2))
    hvd.grouped_allreduce_([a, b], op=hvd.Max)
    same(a, np.full(2, n - 1, np.float32))
    same(b, np.full((2, 2), n - 1))
    same(hvd.allreduce(np.full(2, r + 0.5), compression=hvd.Compression.fp16, op=hvd.Sum), np.full(2, n * n / 2))
    rounded = hvd.allreduce(np.full(2, 1 + 2**-12, np.float32), compression=hvd.Compression.fp16, op=hvd.Sum)
    same(rounded, np.full(2, n, np.float32))
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(x, average=True, op=hvd.Sum)


def test_forms_of_allreduce(ranks: Any) -> None:
    ranks.run(check_forms_of_allreduce)


def check_adasum() -> None:
    n = hvd.size()
    same(hvd.allreduce(np.ones(4, np.float32) * 2, op=hvd.Adasum), np.full(4, 2, np.float32))  # parallel: the average
    e = np.zeros(4)
    e[hvd.rank()] = 1
    expected = np.zeros(4)
    expected[:n] = 1
    same(hvd.allreduce(e, op=hvd.Adasum), expected)  # orthogonal: the sum


def test_adasum(ranks: Any) -> None:
    ranks.run(check_adasum)


def check_moves(dtype: str) -> None:
    r, n = hvd.rank(), hvd.size()
    rows = [np.full((q + 1, 2), q % 2).astype(dtype) for q in range(n)]
    same(hvd.allgather(rows[r]), np.concatenate(rows))
    first, second = hvd.grouped_allgather([rows[r], rows[r][:1]])
    same(first, np.concatenate(rows))
    same(second, np.concatenate([x[:1] for x in rows]))
    for root in range(n):
        same(hvd.broadcast(rows[r][:1], root), rows[root][:1])
        mine = rows[r][:1].copy()
        assert hvd.broadcast_(mine, root) is mine
        same(mine, rows[root][:1])
    same(hvd.alltoall(np.repeat(np.arange(n) % 2, 2).astype(dtype)), np.full(2 * n, r % 2).astype(dtype))
    # q + 1 rows to rank q
    output, received = hvd.alltoall(np.full(n * (n + 1) // 2, r % 2).astype(dtype), splits=np.arange(1, n + 1))
    same(output, np.repeat(np.arange(n) % 2, r + 1).astype(dtype))
    same(received, np.full(n, r + 1, np.int32))


@pytest.mark.parametrize("dtype", ALL)
def test_moves(ranks: Any, dtype: str) -> None:
    ranks.run(check_moves, dtype=dtype)


def check_reducescatter() -> None:
    r, n = hvd.rank(), hvd.size()
    rows = 2 * n + 1  # the first rank gets one more
    mine = np.arange(rows * 2, dtype=np.float64).reshape(rows, 2) * (r + 1)
    factor = (n + 1) / 2
    begin, end = (0, 3) if r == 0 else (2 * r + 1, 2 * r + 3)
    whole = np.arange(rows * 2, dtype=np.float64).reshape(rows, 2) * factor
    same(hvd.reducescatter(mine), whole[begin:end])
    same(hvd.reducescatter(mine, op=hvd.Sum), whole[begin:end] * n)
    same(hvd.reducescatter(mine, op=hvd.Sum, prescale_factor=0.5), whole[begin:end] * n / 2)
    both = hvd.grouped_reducescatter([mine, mine.astype(np.float32)])
    same(both[0], whole[begin:end])
    same(both[1], whole[begin:end].astype(np.float32))
    for op in (hvd.Adasum, hvd.Max):
        with pytest.raises(RuntimeError, match="reducescatter"):
            hvd.reducescatter(mine, op=op)
    with pytest.raises(ValueError):
        hvd.reducescatter(np.float32(1))


def test_reducescatter(ranks: Any) -> None:
    ranks.run(check_reducescatter)


def check_empty() -> None:
    n = hvd.size()
    same(hvd.allreduce(np.empty((0, 3), np.float32)), np.empty((0, 3), np.float32))
    same(hvd.allgather(np.empty((0, 3), np.int32)), np.empty((0, 3), np.int32))
    same(hvd.broadcast(np.empty(0), n - 1), np.empty(0))
    output, received = hvd.alltoall(np.empty((0, 2)), splits=[0] * n)
    same(output, np.empty((0, 2)))
    same(received, np.zeros(n, np.int32))


def test_empty(ranks: Any) -> None:
    ranks.run(check_empty)


class OnlyDlpack:
    """Another library's array."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.values.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def check_inputs() -> None:
    n = hvd.size()
    same(hvd.allreduce(2.5, op=hvd.Sum), np.asarray(2.5 * n))
    same(hvd.allreduce([1, 2], op=hvd.Sum), np.array([1, 2]) * n)
    same(hvd.allreduce(array.array("i", [1, 2]), op=hvd.Sum), np.array([1, 2], np.int32) * n)
    same(hvd.allreduce(memoryview(b"\x01\x02"), op=hvd.Sum), np.array([1, 2], np.uint8) * n)
    same(hvd.allreduce(OnlyDlpack(np.ones(3)), op=hvd.Sum), np.full(3, float(n)))
    same(hvd.allreduce(np.arange(6.0).reshape(2, 3).T, op=hvd.Sum), np.arange(6.0).reshape(2, 3).T * n)
    changed = bytearray(b"\x01\x02")
    hvd.allreduce_(changed, op=hvd.Sum)
    assert list(changed) == [n, 2 * n]


def test_inputs(ranks: Any) -> None:
    ranks.run(check_inputs)


def check_refusals() -> None:
    n = hvd.size()
    for bad in (np.array(["a"]), np.array([None]), np.zeros(2, ">f4"), np.zeros(2, "M8[s]"), np.zeros(2, "f8,i4")):
        with pytest.raises(ValueError, match="allowed"):
            hvd.allreduce(bad)
    read_only = np.zeros(2)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        hvd.allreduce_(read_only)
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce_(np.zeros((2, 3)).T)
    with pytest.raises(ValueError, match="in place"):
        hvd.allreduce_([1.0])
    with pytest.raises(ValueError):
        hvd.allgather(np.float64(1))
    for root in (-1, n):
        with pytest.raises(ValueError, match=f"rank {root}"):
            hvd.broadcast(np.zeros(1), root)
    for splits in ([1] * (n + 1), [-1] * n, [9] * n, [1.0] * n, [[1]] * n, "1" * n, n):
        with pytest.raises(ValueError):
            hvd.alltoall(np.zeros(n), splits=splits)
    for wrong in (0, None, [0]):
        with pytest.raises(ValueError, match="allowed: a ProcessSet"):
            hvd.allreduce(np.ones(1), process_set=wrong)
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        hvd.allreduce(np.ones(1), name="\udc80")
    for arguments in ({"prescale_factor": "2"}, {"postscale_factor": None}):
        with pytest.raises(TypeError, match="^hvd: 'allreduce.*postscale_factor=.* numbers$"):
            hvd.allreduce(np.ones(1), **arguments)
    same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.array([float(n)]))


def test_refusals(ranks: Any) -> None:
    ranks.run(check_refusals)


def check_refused_on_one_rank() -> None:
    """A call without a name that one rank alone gets wrong can be made again, and meets those of the others."""
    r, n = hvd.rank(), hvd.size()
    if r == 0:
        for wrong in ({"splits": [n + 1] * n}, {"splits": [1] * (n + 1)}):
            with pytest.raises(ValueError):
                hvd.alltoall(np.full(n, 0), **wrong)
        with pytest.raises(ValueError):
            hvd.allgather(np.float64(1))
    same(hvd.alltoall(np.full(n, r)), np.arange(n))
    same(hvd.allgather(np.full(1, r)), np.arange(n))


def test_refused_on_one_rank(ranks: Any) -> None:
    ranks.run(check_refused_on_one_rank)


def check_resized_in_flight() -> None:
    n = hvd.size()
    first = hvd.rank() == 0
    mine, raw = np.ones(1000), bytearray(b"\x01" * 1000)
    handles = [hvd.allreduce_async_(x, name=f"x{i}", op=hvd.Sum) for i, x in enumerate((mine, raw))] if first else []
    if first:  # nobody else has come: all is in flight
        with pytest.raises(ValueError, match="resize"):
            mine.resize(100000)
        with pytest.raises(BufferError):
            raw.extend(b"more")
    hvd.barrier()
    if not first:
        handles = [hvd.allreduce_async_(x, name=f"x{i}", op=hvd.Sum) for i, x in enumerate((mine, raw))]
    for handle in handles:
        hvd.synchronize(handle)
    same(mine, np.full(1000, float(n)))
    assert raw == bytes([n]) * 1000


def test_resized_in_flight(several_ranks: Any) -> None:
    several_ranks.run(check_resized_in_flight)


def check_mismatches() -> None:
    r, n = hvd.rank(), hvd.size()

    def refused(function: Any, *arguments: Any, **more: Any) -> None:
        with pytest.raises(hvd.HorovodInternalError) as caught:
            function(*arguments, **more)
        assert caught.value.kind == "mismatch" and isinstance(caught.value, RuntimeError)
        assert len(set(hvd.allgather_object(str(caught.value)))) == 1
        same(hvd.allreduce(np.ones(1), op=hvd.Sum, name="after"), np.array([float(n)]))

    refused(hvd.allreduce, np.ones(r + 1), name="shape")
    refused(hvd.allreduce, np.ones(2, np.float32 if r == 0 else np.float64), name="dtype")
    refused(hvd.allreduce, np.ones(2), name="op", op=hvd.Sum if r == 0 else hvd.Max)
    refused(hvd.allreduce, np.ones(2), name="scale", prescale_factor=1.0 + r)
    refused(hvd.broadcast, np.ones(2), 0 if r == 0 else 1, name="root")
    refused(hvd.allgather, np.ones((2, r + 1)), name="columns")
    refused(hvd.allgather, np.ones([1] * (r + 1)), name="dimensions")
    refused(hvd.grouped_allreduce, [np.ones(1)] * (r + 1), name="group")


def test_mismatches(several_ranks: Any) -> None:
    several_ranks.run(check_mismatches)


def check_duplicate_name() -> None:
    """Refused on all ranks, whether the first has ended or not; what comes after is as if nothing had been."""
    r, n = hvd.rank(), hvd.size()

    def refused(call: Any, *arguments: Any, **more: Any) -> None:
        with pytest.raises(ValueError, match="twice.*was not waited for; wait for it first"):
            call(*arguments, name="twice", op=hvd.Sum, **more)

    for call, what in ((hvd.allreduce_async, np.ones(2)), (hvd.grouped_allreduce_async, [np.ones(2), np.ones(3)])):
        if r != 0:  # nobody else has come
            hvd.barrier()
        first = call(what, name="twice", op=hvd.Sum)
        for _ in range(10):
            refused(call, what)
        if r == 0:
            hvd.barrier()
        for _ in range(2):  # behind which the first has ended
            hvd.barrier()
        refused(call, what)
        for _ in range(100):
            same(hvd.allreduce(np.ones(1), op=hvd.Sum), np.array([float(n)]))
        while not hvd.poll(first):
            pass
        second = call(what, name="twice", op=hvd.Sum)
        for handle in (second, first):
            assert sum(map(np.sum, hvd.synchronize(handle))) == n * sum(map(np.sum, what))
    # A rank that waits goes on; those that do not are refused, and go on when they have waited.
    first = hvd.allreduce_async(np.ones(2), name="twice", op=hvd.Sum)
    if r == 0:
        hvd.synchronize(first)
    else:
        refused(hvd.allreduce_async, np.ones(2))
        hvd.synchronize(first)
    for i in range(20):
        same(hvd.allreduce(np.full(2, i), name="twice", op=hvd.Sum), np.full(2, i * n))
    with pytest.raises(ValueError, match="duplicate_name"):  # as Horovod's users try it
        for _ in range(10):
            hvd.allreduce_async(np.ones(2), name=f"duplicate_name {n}")


def test_duplicate_name(several_ranks: Any) -> None:
    several_ranks.run(check_duplicate_name)


class Interrupted(Exception):
    """What a signal raises in a call that waits."""


def check_interrupted() -> None:
    """A call that a signal ends on one rank is in flight there, and the next one of its name comes behind it."""
    r, n = hvd.rank(), hvd.size()

    def interrupt(*_: Any) -> None:
        raise Interrupted

    if r == 0:  # nobody else has come
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            hvd.allreduce_(np.full(2, 1.0), name="interrupted", op=hvd.Sum)
        signal.signal(signal.SIGALRM, before)
        hvd.barrier()
    else:
        hvd.barrier()
        same(hvd.allreduce(np.full(2, 1.0), name="interrupted", op=hvd.Sum), np.full(2, float(n)))
    same(hvd.allreduce(np.full(3, 2.0), name="interrupted", op=hvd.Sum), np.full(3, 2.0 * n))


def test_interrupted(several_ranks: Any) -> None:
    several_ranks.run(check_interrupted)


def check_any_order() -> None:
    r, n = hvd.rank(), hvd.size()
    names = [f"t{i}" for i in range(20)]
    handles = {name: hvd.allreduce_async(np.full(3, i), name=name, op=hvd.Sum)
               for i, name in (list(enumerate(names)) if r == 0 else list(enumerate(names))[::-1])}
    for i, name in enumerate(names):
        same(hvd.synchronize(handles[name]), np.full(3, i * n))


def test_any_order(several_ranks: Any) -> None:
    several_ranks.run(check_any_order)


def check_join() -> None:
    r, n = hvd.rank(), hvd.size()
    for i in range(r + 1):  # rank r has r + 1 batches
        taking_part = n - i
        same(hvd.allreduce(np.ones(2), name=f"batch{i}", op=hvd.Sum), np.full(2, float(taking_part)))
    assert hvd.join() == n - 1
    same(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, float(n)))


def test_join(ranks: Any) -> None:
    ranks.run(check_join)


def check_objects() -> None:
    r, n = hvd.rank(), hvd.size()
    thing = {"rank": r, "text": "x" * (10 * r), "nested": [1, (2, None)]}
    assert hvd.broadcast_object(thing, n - 1) == {"rank": n - 1, "text": "x" * (10 * (n - 1)), "nested": [1, (2, None)]}
    assert [t["rank"] for t in hvd.allgather_object(thing)] == list(range(n))


def test_objects(ranks: Any) -> None:
    ranks.run(check_objects)


def check_unpicklable() -> None:
    import threading

    r = hvd.rank()
    lock = threading.Lock()
    expected = TypeError if r == 0 else hvd.HorovodInternalError
    with pytest.raises(expected, match="pickle"):
        hvd.broadcast_object(lock if r == 0 else None, 0)
    with pytest.raises(expected, match="pickle"):
        hvd.allgather_object(lock if r == 0 else 1)
    hvd.barrier()


def test_unpicklable(several_ranks: Any) -> None:
    several_ranks.run(check_unpicklable)


def test_lengths_of_objects_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other ranks announce is compared with what comes, before anything is unpickled."""
    from hvd.core import objects, state

    arrays: list[Any] = []
    monkeypatch.setattr(state, "rank", lambda: 1)
    monkeypatch.setattr(objects, "_broadcast", lambda *_: arrays.pop(0))
    monkeypatch.setattr(objects, "_allgather", lambda *_: arrays.pop(0))
    arrays[:] = [np.array([1 << 60]), np.zeros(1, np.uint8)]
    with pytest.raises(hvd.HorovodInternalError, match=f"rank 0 announces an object of {1 << 60} bytes"):
        objects.broadcast_object(None, 0)
    for lengths in ([5, 4], [1 << 62, 1 << 62]):
        arrays[:] = [np.array(lengths), np.zeros(8, np.uint8)]
        with pytest.raises(hvd.HorovodInternalError, match=r"announce objects of \[.*\] bytes but sent 8"):
            objects.allgather_object(None)
