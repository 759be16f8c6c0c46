"""Messages between two ranks over the backend "hvd": tags, any source, batches, sizes, and what goes on beside them."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from dist_ranks import same  # noqa: E402

TYPES = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


def place() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def still_usable() -> None:
    """Messages between all pairs, and a collective."""
    r, n = place()
    sent = [dist.isend(torch.full((3,), 10.0 * r + q), q, tag=99) for q in range(n) if q != r]
    for q in range(n):
        if q != r:
            got = torch.zeros(3)
            dist.recv(got, q, tag=99)
            same(got, torch.full((3,), 10.0 * q + r))
    for work in sent:
        assert work is not None and work.wait()
    total = torch.ones(2)
    dist.all_reduce(total)
    same(total, torch.full((2,), float(n)))


def check_types(name: str) -> None:
    """Around the ring, of all sizes: in fragments, and of no bytes."""
    r, n = place()
    dtype = getattr(torch, name)
    for size in (0, 1, 7, 1000, 70_000):
        rows = [(torch.arange(size) * 3 + q) % 7 for q in range(n)]
        if name.startswith("float8"):
            tensors = [row.to(torch.uint8).view(dtype) for row in rows]
        else:
            tensors = [row.to(dtype) for row in rows]
        work = dist.isend(tensors[r], (r + 1) % n)
        got = torch.zeros_like(tensors[r])
        assert dist.recv(got, (r - 1) % n) == (r - 1) % n
        same(got, tensors[(r - 1) % n])
        assert work.wait() is True and work.is_completed() and work.is_success()
    one = torch.zeros((), dtype=dtype)  # without dimensions
    wanted = torch.ones((), dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else torch.ones((), dtype=dtype)
    if r == 0:
        dist.send(wanted, 1)
    elif r == 1:
        dist.recv(one, 0)
        same(one, wanted)


@pytest.mark.parametrize("name", TYPES)
def test_types(several_ranks: Any, name: str) -> None:
    several_ranks.run(check_types, name=name)


def check_layouts() -> None:
    """Strided tensors on both sides, and lazily negative ones."""
    r, n = place()
    if r == 0:
        dist.send(torch.arange(24.0).view(4, 6)[:, ::2], 1)
        dist.send(torch.arange(24.0).view(4, 6).t(), 1)
        dist.send(torch.view_as_complex(torch.arange(6.0).view(3, 2)).conj().imag, 1)
        dist.send(torch.nn.Parameter(torch.arange(3.0)), 1)
    elif r == 1:
        base = torch.full((4, 6), -1.0)
        assert dist.recv(base[:, 1::2], 0) == 0
        same(base[:, 1::2], torch.arange(24.0).view(4, 6)[:, ::2])
        same(base[:, ::2], torch.full((4, 3), -1.0))
        got = torch.zeros(4, 6).t()
        work = dist.irecv(got, 0)
        assert work.wait()
        same(got, torch.arange(24.0).view(4, 6).t())
        whole = torch.zeros(3, dtype=torch.complex64)
        dist.recv(whole.conj().imag, 0)
        same(whole.imag, torch.tensor([1.0, 3.0, 5.0]))
        leaf = torch.nn.Parameter(torch.zeros(3))
        dist.recv(leaf, 0)
        same(leaf, torch.arange(3.0))
        assert leaf.is_leaf and leaf.requires_grad
    still_usable()


def test_layouts(several_ranks: Any) -> None:
    several_ranks.run(check_layouts)


def check_tags() -> None:
    """Received in another order than sent: by tags; those with the same tag in their order."""
    r, n = place()
    sizes = [0, 1, 1000, 70_000, 3]
    for receiver in range(1, n):
        if r == 0:
            works = [dist.isend(torch.full((s,), 10.0 + i), receiver, tag=i) for i, s in enumerate(sizes)]
            works += [dist.isend(torch.full((2,), 20.0 + i), receiver, tag=7) for i in range(3)]
            assert all(w.wait() for w in works if w is not None)
        elif r == receiver:
            for i in reversed(range(len(sizes))):
                got = torch.zeros(sizes[i])
                assert dist.recv(got, 0, tag=i) == 0
                same(got, torch.full((sizes[i],), 10.0 + i))
            for i in range(3):
                got = torch.zeros(2)
                dist.recv(got, 0, tag=7)
                same(got, torch.full((2,), 20.0 + i))
    # The same with all receives posted first, waited for in any order.
    if r == 0:
        for receiver in range(1, n):
            for i in (3, 1, 4, 0, 2):
                dist.send(torch.full((sizes[i],), 30.0 + i), receiver, tag=1000 + i)
    else:
        targets = [torch.zeros(s) for s in sizes]
        works = [dist.irecv(t, 0, tag=1000 + i) for i, t in enumerate(targets)]
        for i in (2, 0, 1, 4, 3):
            assert works[i].wait()
            same(targets[i], torch.full((sizes[i],), 30.0 + i))
    # Large tags.
    for tag in (2**31 - 1, 2**20):
        if r == 0:
            dist.send(torch.tensor([float(tag)]), 1, tag=tag)
        elif r == 1:
            got = torch.zeros(1)
            dist.recv(got, 0, tag=tag)
            assert float(got) == float(torch.tensor(float(tag)))


def test_tags(several_ranks: Any) -> None:
    several_ranks.run(check_tags)


def check_any_source() -> None:
    """Rank 0 takes one message of each rank, whichever comes first, and is told whose it is."""
    r, n = place()
    for size in (0, 5, 70_000):
        for tag in (0, 3):
            dist.barrier()
            if r == 0:
                seen = set()
                for _ in range(1, n):
                    got = torch.full((size,), -1.0)
                    source = dist.recv(got, tag=tag)
                    same(got, torch.full((size,), float(source)))
                    seen.add(source)
                assert seen == set(range(1, n))
            else:
                dist.send(torch.full((size,), float(r)), 0, tag=tag)
    # Posted, two at a time, beside one from a certain rank.
    if r == 0:
        targets = [torch.zeros(3) for _ in range(n - 1)]
        works: list[Any] = [dist.irecv(t, tag=5) for t in targets]
        certain = torch.zeros(4)
        last = dist.irecv(certain, n - 1, tag=6)
        dist.barrier()
        for work, target in zip(works, targets):
            assert work.wait()
            same(target, torch.full((3,), float(work.source_rank())))
        assert sorted(w._source_rank() for w in works) == list(range(1, n))
        assert last is not None and last.wait() and float(certain[3]) == 42.0
    else:
        dist.barrier()
        dist.send(torch.full((3,), float(r)), 0, tag=5)
        if r == n - 1:
            dist.send(torch.full((4,), 42.0), 0, tag=6)


def test_any_source(several_ranks: Any) -> None:
    several_ranks.run(check_any_source)


def check_batches() -> None:
    r, n = place()
    right, left = (r + 1) % n, (r - 1) % n
    for size in (0, 1, 1000, 200_000):
        for receive_first in (False, True):
            sent, got = torch.full((size,), float(r)), torch.full((size,), -1.0)
            operations = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]
            for work in dist.batch_isend_irecv(operations[::-1] if receive_first else operations):
                assert work.wait()
            same(got, torch.full((size,), float(left)))
    # Everybody with everybody, with tags.
    sent_to = [torch.full((100,), 10.0 * r + q) for q in range(n)]
    got_from = [torch.zeros(100) for _ in range(n)]
    operations = [dist.P2POp(dist.isend, sent_to[q], q, tag=q) for q in range(n) if q != r]
    operations += [dist.P2POp(dist.irecv, got_from[q], q, tag=r) for q in reversed(range(n)) if q != r]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for q in range(n):
        if q != r:
            same(got_from[q], torch.full((100,), 10.0 * q + r))
    # In a coalescing manager with a device, as PyTorch's own groups use it.
    sent, got = torch.full((50_000,), float(r)), torch.zeros(50_000)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.isend(sent, right)
        dist.irecv(got, left)
    manager.wait()
    same(got, torch.full((50_000,), float(left)))


def test_batches(several_ranks: Any) -> None:
    several_ranks.run(check_batches)


def check_long_messages() -> None:
    """20 MB in both directions at once: blocking sends would wait for each other without the receives in flight."""
    r, n = place()
    size = 5_000_000
    peer = r ^ 1
    if peer >= n:
        return
    pattern = torch.arange(size, dtype=torch.float32)
    got = torch.zeros(size)
    receiving = dist.irecv(got, peer)
    sending = dist.isend(pattern + r, peer)
    short = torch.zeros(1)
    after = dist.irecv(short, peer, tag=1)
    dist.send(torch.tensor([7.0 + r]), peer, tag=1)  # waits behind the long one, or passes it
    assert sending is not None and receiving is not None and after is not None
    assert sending.wait() and receiving.wait() and after.wait()
    same(got, pattern + peer)
    assert float(short) == 7.0 + peer


def test_long_messages(several_ranks: Any) -> None:
    several_ranks.run(check_long_messages)


def check_other_length() -> None:
    """The receiver gets an error that names both lengths, and the message is gone; everything else goes on."""
    r, n = place()
    for sent, expected in ((10, 12), (12, 10), (0, 5), (5, 0), (100_000, 7), (7, 100_000)):
        if r == 0:
            dist.send(torch.ones(sent), 1, tag=2)
            dist.send(torch.full((3,), 5.0), 1, tag=2)
        elif r == 1:
            got = torch.full((expected,), -1.0)
            words = rf"^hvd: recv: .*expected {4 * expected} bytes from rank 0 but it sent {4 * sent}; .* was dropped"
            with pytest.raises(dist.DistBackendError, match=words):
                dist.recv(got, 0, tag=2)
            same(got, torch.full((expected,), -1.0))
            good = torch.zeros(3)
            dist.recv(good, 0, tag=2)
            same(good, torch.full((3,), 5.0))
    # Also of one that came before it was wanted, and of one that is waited for asynchronously.
    if r == 0:
        dist.send(torch.ones(4), 1, tag=3)
        dist.send(torch.ones(2), 1, tag=4)
        dist.send(torch.ones(6), 1, tag=5)
    elif r == 1:
        last = torch.zeros(6)
        dist.recv(last, 0, tag=5)
        with pytest.raises(dist.DistBackendError, match="expected 4 bytes from rank 0 but it sent 16"):
            dist.recv(torch.zeros(1), 0, tag=3)
        work = dist.irecv(torch.zeros(5), 0, tag=4)
        assert work is not None
        with pytest.raises(dist.DistBackendError, match="expected 20 bytes from rank 0 but it sent 8"):
            work.wait()
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), dist.DistBackendError)
        with pytest.raises(dist.DistBackendError, match="expected 20 bytes"):
            work.wait()
    still_usable()


def test_other_length(several_ranks: Any) -> None:
    several_ranks.run(check_other_length)


def check_many() -> None:
    """Hundreds in flight, small and large, in all directions, waited for in another order."""
    r, n = place()
    count = 100
    sizes = [(37 * i) % 500 if i % 10 else 20_000 for i in range(count)]
    sends, receives, targets = [], [], []
    for i, size in enumerate(sizes):
        for q in range(n):
            if q == r:
                continue
            target = torch.full((size,), -1.0)
            receives.append(dist.irecv(target, q, tag=i))
            targets.append((target, torch.full((size,), 1000.0 * q + i)))
    for i, size in enumerate(sizes):
        for q in range(n):
            if q != r:
                sends.append(dist.isend(torch.full((size,), 1000.0 * r + i), q, tag=i))
    for work in reversed(receives):
        assert work is not None and work.wait()
    for work in sends:
        assert work is not None and work.wait()
    for target, expected in targets:
        same(target, expected)
    # The same the other way round: all are sent before the first is received.
    sends = [dist.isend(torch.full((i,), float(r)), (r + 1) % n, tag=i) for i in range(count)]
    for i in reversed(range(count)):
        target = torch.zeros(i)
        dist.recv(target, (r - 1) % n, tag=i)
        same(target, torch.full((i,), float((r - 1) % n)))
    for work in sends:
        assert work is not None and work.wait()


def test_many(several_ranks: Any) -> None:
    several_ranks.run(check_many)


def check_left_alone() -> None:
    """Long messages are moved while nobody waits for them, also when a short one is received right after them."""
    r, n = place()
    right, left = (r + 1) % n, (r - 1) % n
    for turn in range(300):
        early = dist.isend(torch.full((3,), float(turn)), right, tag=2)
        dist.barrier()  # the short message of the left one is there
        got, short = torch.zeros(20_000), torch.zeros(3)
        receiving: Any = dist.irecv(got, left, tag=1)
        sending: Any = dist.isend(torch.full((20_000,), float(turn)), right, tag=1)
        last: Any = dist.irecv(short, left, tag=2)
        end = time.monotonic() + 20
        while not (receiving.is_completed() and sending.is_completed() and last.is_completed()):
            assert time.monotonic() < end, f"in flight in turn {turn}"
            time.sleep(0.0001)
        same(got, torch.full((20_000,), float(turn)))
        same(short, torch.full((3,), float(turn)))
        assert early is not None and early.wait()


def test_left_alone(several_ranks: Any) -> None:
    several_ranks.run(check_left_alone)


def check_beside_collectives() -> None:
    """Receives that are pending while collectives run, and messages that are sent while others run."""
    r, n = place()
    right, left = (r + 1) % n, (r - 1) % n
    got = torch.zeros(30_000)
    receiving = dist.irecv(got, left, tag=1)
    anyone = torch.zeros(2)
    from_any = dist.irecv(anyone, tag=2)
    assert receiving is not None and from_any is not None
    for turn in range(10):
        total = torch.full((1000 * turn + 1,), 1.0 + r)
        work = dist.all_reduce(total, async_op=True)
        dist.barrier()
        assert work.wait()
        same(total, torch.full((1000 * turn + 1,), n * (n + 1) / 2))
    assert not receiving.is_completed() and not from_any.is_completed()
    dist.barrier()  # no rank sends before all have looked
    works = [dist.all_reduce(torch.full((20_000,), 1.0), async_op=True) for _ in range(5)]
    sending = [dist.isend(torch.full((size,), float(r)), right, tag=tag) for size, tag in ((30_000, 1), (2, 2))]
    assert receiving.wait() and from_any.wait()
    same(got, torch.full((30_000,), float(left)))
    same(anyone, torch.full((2,), float(left)))
    for one in (*sending, *works):
        assert one is not None and one.wait()
    for one in works:
        same(one.result()[0], torch.full((20_000,), float(n)))


def test_beside_collectives(several_ranks: Any) -> None:
    several_ranks.run(check_beside_collectives)


def check_threads() -> None:
    """A thread for each other rank, which exchanges messages with it, while the main thread does collectives."""
    r, n = place()
    problems: list[BaseException] = []

    def exchange(q: int) -> None:
        try:
            for i in range(30):
                tag = 100 * min(q, r) + max(q, r)
                sending = dist.isend(torch.full((i * 50,), 100.0 * r + i), q, tag=tag)
                got = torch.zeros(i * 50)
                dist.recv(got, q, tag=tag)
                same(got, torch.full((i * 50,), 100.0 * q + i))
                assert sending is not None and sending.wait()
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=exchange, args=(q,)) for q in range(n) if q != r]
    for thread in threads:
        thread.start()
    for _ in range(30):
        total = torch.full((500,), 1.0 + r)
        dist.all_reduce(total)
        same(total, torch.full((500,), n * (n + 1) / 2))
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def test_threads(several_ranks: Any) -> None:
    several_ranks.run(check_threads)


def check_futures() -> None:
    r, n = place()
    got = torch.zeros(4)
    work = dist.irecv(got, (r - 1) % n)
    assert work is not None
    future = work.get_future().then(lambda f: f.value()[0].sum().item())
    sending = dist.isend(torch.full((4,), 1.0 + r), (r + 1) % n)
    assert future.wait() == 4.0 * ((r - 1) % n + 1)
    assert work.is_completed() and work.result()[0] is got and work.source_rank() == (r - 1) % n
    assert sending is not None
    sending.get_future().wait()


def test_futures(several_ranks: Any) -> None:
    several_ranks.run(check_futures)


def check_wait_with_a_limit() -> None:
    """A wait that is too short leaves the receive as it is: it ends when the message comes."""
    r, n = place()
    if r == 1:
        got = torch.zeros(3)
        work = dist.irecv(got, 0, tag=8)
        assert work is not None
        with pytest.raises(dist.DistBackendError, match=r"^hvd: recv: Timed out after 0.05 s of waiting; .* in flight"):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed() and work.exception() is None
        dist.send(torch.zeros(1), 0, tag=9)
        assert work.wait(timedelta(seconds=30))
        same(got, torch.full((3,), 6.0))
    elif r == 0:
        dist.recv(torch.zeros(1), 1, tag=9)
        dist.send(torch.full((3,), 6.0), 1, tag=8)
    still_usable()


def test_wait_with_a_limit(several_ranks: Any) -> None:
    several_ranks.run(check_wait_with_a_limit)


def check_time_limit_of_the_group() -> None:
    """A message that does not come within the group's limit: an error for it alone."""
    r, n = place()
    group: Any = dist.new_group()
    group.set_timeout(timedelta(seconds=0.1))
    if r == 1:
        with pytest.raises(dist.DistBackendError, match="Timed out waiting for a message from rank 0 with tag 4"):
            dist.recv(torch.zeros(3), 0, group=group, tag=4)
        with pytest.raises(dist.DistBackendError, match="Timed out waiting for a message from any rank with tag 5"):
            dist.recv(torch.zeros(3), group=group, tag=5)
        work = dist.irecv(torch.zeros(3), 0, group=group, tag=6)
        assert work is not None
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            work.wait()
        assert not work.is_success() and "Timed out" in str(work.exception())
    group.set_timeout(timedelta(seconds=30))
    dist.barrier()
    if r == 0:  # it still works
        dist.send(torch.full((3,), 2.0), 1, group=group, tag=4)
    elif r == 1:
        got = torch.zeros(3)
        dist.recv(got, 0, group=group, tag=4)
        same(got, torch.full((3,), 2.0))
    dist.destroy_process_group(group)
    still_usable()


def test_time_limit_of_the_group(several_ranks: Any) -> None:
    several_ranks.run(check_time_limit_of_the_group)


def check_dropped() -> None:
    """Nobody has the tensors and the works any more, and the messages arrive all the same."""
    import gc

    r, n = place()
    right, left = (r + 1) % n, (r - 1) % n
    for size in (10, 100_000):
        dist.isend(torch.full((size,), float(r)), right, tag=1)
        work = dist.irecv(torch.full((size,), -1.0), left, tag=2)
        gc.collect()
        junk = [torch.full((size,), 9.0) for _ in range(50)]
        got = torch.zeros(size)
        dist.recv(got, left, tag=1)
        same(got, torch.full((size,), float(left)))
        dist.send(torch.full((size,), 3.0), right, tag=2)
        assert work is not None and work.wait()
        same(work.result()[0], torch.full((size,), 3.0))
        assert all(float(j[0]) == 9.0 and float(j[-1]) == 9.0 for j in junk)


def test_dropped(several_ranks: Any) -> None:
    several_ranks.run(check_dropped)


def check_refused() -> None:
    """Before anything is sent: the group goes on."""
    r, n = place()
    group: Any = dist.group.WORLD
    one = torch.ones(1)
    with pytest.raises(ValueError, match="destination rank should not be the same"):  # PyTorch's words
        dist.send(one, r)
    for call in (lambda: dist.isend(one, r), lambda: dist.irecv(one, r), lambda: group.recv([one], r, 0)):
        words = rf"hvd: rank {r} of {n} cannot send to or receive from rank {r} .*; allowed:"
        with pytest.raises(ValueError, match=words):
            call()
    for call in (lambda: dist.isend(one, n), lambda: dist.irecv(one, n), lambda: group.send([one], -1, 0)):
        with pytest.raises(ValueError, match=rf"{n}|-1"):
            call()
    with pytest.raises(ValueError, match=r"takes one tensor .* got 2"):
        group.send([one, one], (r + 1) % n, 0)
    for bad, words in (
        (torch.ones(2, device="meta"), r"device meta.*pass x.cpu\(\)"), (torch.eye(2).to_sparse(), "make it dense"),
    ):  # fmt: skip
        for call in (lambda: dist.isend(bad, (r + 1) % n), lambda: dist.irecv(bad, (r - 1) % n)):
            with pytest.raises(ValueError, match=words):
                call()
    with pytest.raises(TypeError):
        dist.send([1, 2], (r + 1) % n)
    still_usable()


def test_refused(several_ranks: Any) -> None:
    several_ranks.run(check_refused)


def check_alone() -> None:
    """One rank has nobody to send to."""
    group: Any = dist.group.WORLD
    one = torch.ones(1)
    for call in (lambda: dist.isend(one, 0), lambda: dist.irecv(one, 0), lambda: dist.irecv(one)):
        with pytest.raises(ValueError, match="allowed: another rank of it"):
            call()
    group.barrier().wait()


def test_alone(ranks: Any) -> None:
    if ranks.size == 1:
        ranks.run(check_alone)


def check_pipeline() -> None:
    """As in a pipeline: activations go up the ranks, gradients come back down, several batches at a time."""
    r, n = place()
    works = []
    for batch in range(8):
        x = torch.full((64, 32), float(batch))
        if r > 0:
            dist.recv(x, r - 1, tag=batch)
        same(x, torch.full((64, 32), float(batch + r)))
        if r < n - 1:
            works.append(dist.isend(x + 1, r + 1, tag=batch))
    for batch in reversed(range(8)):
        g = torch.full((64, 32), 100.0 + batch)
        if r < n - 1:
            dist.recv(g, r + 1, tag=1000 + batch)
        same(g, torch.full((64, 32), 100.0 + batch + (n - 1 - r)))
        if r > 0:
            works.append(dist.isend(g + 1, r - 1, tag=1000 + batch))
    for work in works:
        assert work is not None and work.wait()


def test_pipeline(several_ranks: Any) -> None:
    several_ranks.run(check_pipeline)
