"""Groups of the backend "hvd": how ranks find each other, sub-groups, several at once, time limits, and their ends."""

from __future__ import annotations

import gc
import itertools
import os
import random
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from dist_ranks import TIMEOUT, Ranks, folder, join, place, same  # noqa: E402

LIMIT = timedelta(seconds=TIMEOUT)


def total(group: Any = None, size: int = 5) -> None:
    """A sum over a group, on exact values: those of the ranks' numbers in the job."""
    ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    mine = torch.full((size,), 2.0 ** dist.get_rank())
    dist.all_reduce(mine, group=group)
    same(mine, torch.full((size,), float(sum(2**q for q in ranks))))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# --- How ranks find each other ----------------------------------------------------------------------------------------


def check_stores(kind: str, port: int) -> None:
    r, n = place()
    more: dict[str, Any] = {"rank": r, "world_size": n}
    if kind == "FileStore":
        more["store"] = dist.FileStore(str(folder() / "one"), n)
    elif kind == "TCPStore":
        more["store"] = dist.TCPStore("127.0.0.1", port, n, r == 0, timeout=LIMIT)
    elif kind == "old TCPStore":
        more["store"] = dist.TCPStore("127.0.0.1", port, n, r == 0, timeout=LIMIT, use_libuv=False)
    elif kind == "PrefixStore":
        more["store"] = dist.PrefixStore("x", dist.PrefixStore("y", dist.FileStore(str(folder() / "two"), n)))
    elif kind == "file://":
        more["init_method"] = f"file://{folder() / 'three'}"
    elif kind == "tcp://":
        more["init_method"] = f"tcp://127.0.0.1:{port}"
    elif kind == "env://":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        more = {}
    dist.init_process_group("hvd", timeout=LIMIT, **more)
    assert (dist.get_rank(), dist.get_world_size()) == (r, n)
    assert dist.get_backend() == "hvd" and dist.is_initialized()
    total()
    total(dist.new_group())
    store = dist.distributed_c10d._get_default_store()
    store.add("left", 1)  # the first rank has the store of all
    dist.destroy_process_group()
    assert not dist.is_initialized()
    while r == 0 and store.add("left", 0) < n:
        time.sleep(0.001)
    os.environ.pop("MASTER_ADDR", None), os.environ.pop("MASTER_PORT", None)


@pytest.mark.parametrize(
    "kind", ["FileStore", "TCPStore", "old TCPStore", "PrefixStore", "file://", "tcp://", "env://"]
)  # fmt: skip
def test_stores(loose_ranks: Ranks, kind: str) -> None:
    loose_ranks.run(check_stores, kind=kind, port=free_port())


def check_one_rank() -> None:
    dist.init_process_group("hvd", store=dist.HashStore(), rank=0, world_size=1)
    total()
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(10)]
    assert all(work.wait() for work in works)
    total(dist.new_group([0]))
    dist.destroy_process_group()


def test_one_rank() -> None:
    ranks = Ranks(1, joined=False)
    ranks.run(check_one_rank)
    assert ranks.stop() == [0]


def open_things() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def check_again_and_again(port: int) -> None:
    """Groups come and go, through new stores and through one that stays, and leave nothing behind."""
    r, n = place()
    shared = dist.TCPStore("127.0.0.1", port, n, r == 0, timeout=LIMIT)
    before = (0, 0)
    for turn in range(30):
        if turn % 2:
            dist.init_process_group("hvd", store=shared, rank=r, world_size=n, timeout=LIMIT)
        else:
            join(f"turn {turn}")
        total()
        work = dist.all_reduce(torch.ones(3), async_op=True)
        if n > 1:
            sending = dist.isend(torch.full((2,), float(turn)), (r + 1) % n)
            got = torch.zeros(2)
            dist.recv(got, (r - 1) % n)
            same(got, torch.full((2,), float(turn)))
            assert sending is not None and sending.wait()
        group = dist.new_group(list(range(turn % n + 1)))
        if r <= turn % n:
            total(group)
        assert work.wait()
        dist.destroy_process_group()
        del group, work
        if turn == 5:
            gc.collect()
            before = open_things()
    gc.collect()
    end = time.monotonic() + 5  # a thread that was waited for may still be listed
    while not all(now <= then for now, then in zip(open_things(), before)):
        assert time.monotonic() < end, (before, open_things())
    shared.add("left", 1)
    while r == 0 and shared.add("left", 0) < n:
        time.sleep(0.001)


def test_again_and_again(loose_ranks: Ranks) -> None:
    loose_ranks.run(check_again_and_again, port=free_port())


# --- Sub-groups -------------------------------------------------------------------------------------------------------


def check_names() -> None:
    group: Any = dist.new_group(group_desc="a description")
    assert dist.get_backend(group) == "hvd" and group.name() == "hvd"
    assert group.rank() == dist.get_rank() and group.size() == dist.get_world_size()
    assert group.group_desc == "a description" and group.group_name
    assert group.group_name != dist.group.WORLD.group_name  # type: ignore[union-attr]
    assert "cpu:hvd" in dist.get_backend_config(group) and group.get_group_store() is not None
    assert torch.device("cpu") in group._device_types and group._get_backend(torch.device("cpu")) is group
    before = group._get_sequence_number_for_group()
    dist.barrier(group=group)
    dist.all_reduce(torch.ones(1), group=group)
    assert group._get_sequence_number_for_group() == before + 2
    dist.destroy_process_group(group)


def test_names(ranks: Ranks) -> None:
    ranks.run(check_names)


def check_subsets() -> None:
    """Every subset of the ranks: roots are given by their numbers in the job, or in the group."""
    r, n = dist.get_rank(), dist.get_world_size()
    subsets = [list(c) for k in range(1, n + 1) for c in itertools.combinations(range(n), k)]
    groups = [dist.new_group(subset[::-1]) for subset in subsets]
    for subset, group in zip(subsets, groups):
        if r not in subset:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(group) == -1
            mine = torch.ones(2)
            dist.all_reduce(mine, group=group)  # a warning, and nothing else
            same(mine, torch.ones(2))
            continue
        assert dist.get_process_group_ranks(group) == subset
        assert dist.get_rank(group) == subset.index(r) and dist.get_world_size(group) == len(subset)
        total(group)
        for index, root in enumerate(subset):
            mine = torch.full((3,), float(r))
            dist.broadcast(mine, root, group=group)
            same(mine, torch.full((3,), float(root)))
            into = [torch.zeros(1) for _ in subset] if r == root else None
            dist.gather(torch.full((1,), float(r)), into, group_dst=index, group=group)
            assert into is None or [int(t) for t in into] == subset
        if len(subset) > 1:
            sending = dist.isend(torch.full((2,), float(r)), subset[(subset.index(r) + 1) % len(subset)], group=group)
            got = torch.zeros(2)
            left = subset[subset.index(r) - 1]
            assert dist.recv(got, group=group) == left  # numbers in the job
            same(got, torch.full((2,), float(left)))
            assert sending is not None and sending.wait()
            objects: list[Any] = [None] * len(subset)
            dist.all_gather_object(objects, f"rank {r}", group=group)
            assert objects == [f"rank {q}" for q in subset]
    for subset, group in zip(subsets, groups):
        if r in subset:
            dist.destroy_process_group(group)
    total()


def test_subsets(ranks: Ranks) -> None:
    ranks.run(check_subsets)


def check_new_subgroups() -> None:
    r, n = dist.get_rank(), dist.get_world_size()
    for size in (k for k in range(1, n + 1) if n % k == 0):
        mine, groups = dist.new_subgroups(group_size=size)
        assert len(groups) == n // size
        assert dist.get_process_group_ranks(mine) == [r // size * size + k for k in range(size)]
        total(mine)
        dist.destroy_process_group(mine)
    halves = [list(range(0, n, 2)), list(range(1, n, 2))]
    mine, _ = dist.new_subgroups_by_enumeration([half for half in halves if half])
    assert dist.get_process_group_ranks(mine) == halves[r % 2]
    total(mine)
    dist.destroy_process_group(mine)
    # Only its own ranks make it.
    if r > 0:
        some = dist.new_group(list(range(1, n)), use_local_synchronization=True)
        total(some)
        dist.destroy_process_group(some)
    dist.barrier()


def test_new_subgroups(ranks: Ranks) -> None:
    ranks.run(check_new_subgroups)


def check_split_group() -> None:
    """Also the same ranks twice, and a group of a group."""
    r, n = dist.get_rank(), dist.get_world_size()
    world: Any = dist.group.WORLD
    for _ in range(2):
        parts = [list(range(n - n // 2)), list(range(n - n // 2, n))]
        made = [world.split_group(part) for part in parts if part]
        mine = made[0] if r in parts[0] else made[1]
        part = parts[0] if r in parts[0] else parts[1]
        assert sum(m is not None for m in made) == 1
        assert mine.rank() == part.index(r) and mine.size() == len(part)
        x = torch.full((3,), 2.0**r)
        mine.allreduce([x]).wait()
        same(x, torch.full((3,), float(sum(2**q for q in part))))
        mine.shutdown()
    group = world.split_group(list(range(n)), group_name="mine", group_desc="of mine", timeout=timedelta(seconds=30))
    assert (group.getGroupName(), group.getGroupDesc()) == ("mine", "of mine")
    inner = group.split_group([n - 1, 0] if n > 1 else [0])
    assert (inner is None) == (r not in (0, n - 1))
    if inner is not None:
        assert inner.rank() == (0 if r == n - 1 else 1)
        x = torch.full((3,), 1.0 + r)
        inner.broadcast([x]).wait()
        same(x, torch.full((3,), float(n)))
        inner.shutdown()
    group.shutdown()
    total()


def test_split_group(ranks: Ranks) -> None:
    ranks.run(check_split_group)


def check_several_at_once() -> None:
    """Collectives in flight in several groups, waited for in another order on each rank."""
    r, n = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(4)]
    dice = random.Random(r)
    for turn in range(20):
        works = []
        order = list(range(4))
        dice.shuffle(order)  # of the groups; within a group all ranks have one order
        for g in order:
            for i in range(3):
                size = (turn * 700 + g * 90 + i) % 3000 + (30_000 if turn == 10 else 0)
                mine = torch.full((size,), 2.0**r * (g + 1) + i)
                work = dist.all_reduce(mine, group=groups[g], async_op=True)
                works.append((work, mine, (2**n - 1.0) * (g + 1) + n * i))
        dice.shuffle(works)
        for work, mine, expected in works:
            assert work.wait()
            same(mine, torch.full(mine.shape, expected))
    # One group waits for its last rank while others go on.
    if r == 0:
        works = [(dist.all_reduce(torch.ones(5), group=groups[0], async_op=True), None, 0.0)]
        for group in groups[1:]:
            total(group)
        assert n == 1 or not works[0][0].is_completed()
        total()
        assert works[0][0].wait()
    else:
        for group in groups[1:]:
            total(group)
        total()
        dist.all_reduce(torch.ones(5), group=groups[0])
    for group in groups:
        dist.destroy_process_group(group)


def test_several_at_once(ranks: Ranks) -> None:
    ranks.run(check_several_at_once)


def check_threads() -> None:
    """A thread for each group, all at once."""
    r, n = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(3)]
    problems: list[BaseException] = []

    def work(group: Any, number: int) -> None:
        try:
            for i in range(40):
                mine = torch.full((i * 10 * number + 1,), 2.0**r)
                if i % 3 == 0:
                    dist.all_reduce(mine, group=group, async_op=True).wait()
                else:
                    dist.all_reduce(mine, group=group)
                same(mine, torch.full(mine.shape, 2.0**n - 1))
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=work, args=(group, k + 1)) for k, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        total()
    for thread in threads:
        thread.join()
    for group in groups:
        dist.destroy_process_group(group)
    if problems:
        raise problems[0]


def test_threads(ranks: Ranks) -> None:
    ranks.run(check_threads)


def check_order() -> None:
    """Blocking calls come after what is in flight, asynchronous ones in their order."""
    r, n = dist.get_rank(), dist.get_world_size()
    for size in (1, 500, 30_000):
        mine = torch.ones(size)
        works = [dist.all_reduce(mine, async_op=True) for _ in range(3)]
        dist.all_reduce(mine)
        works.append(dist.broadcast(mine, n - 1, async_op=True))
        works.append(dist.all_reduce(mine, dist.ReduceOp.AVG, async_op=True))
        dist.barrier()
        same(mine, torch.full((size,), float(n**4)))
        assert all(work.is_completed() for work in works)
        works = [dist.all_reduce(mine.fill_(1.0 + r), dist.ReduceOp.MAX, async_op=True) if i == 0 else
                 dist.all_reduce(mine, async_op=True) for i in range(2)]
        assert works[1].wait() and works[0].is_completed()
        same(mine, torch.full((size,), float(n * n)))


def test_order(ranks: Ranks) -> None:
    ranks.run(check_order)


class Program:
    """Random collectives and messages on two groups, the same on all ranks of a seed, with exact results."""

    def __init__(self, seed: int, groups: list[Any]) -> None:
        self.dice = random.Random(seed)
        self.own = random.Random(seed + 1000 + dist.get_rank())  # what ranks do differently: waits
        self.groups = groups
        self.flying: list[tuple[Any, Callable[[], Any]]] = []

    def step(self) -> None:
        r, n = dist.get_rank(), dist.get_world_size()
        group = self.dice.choice(self.groups)
        size = self.dice.choice([0, 1, 3, 100, 1000, 5000, 20_000])
        root = self.dice.randrange(n)
        kind = self.dice.choice(["sum", "max", "broadcast", "gather", "exchange", "scatter", "message", "barrier"])
        dtype = self.dice.choice([torch.float32, torch.int64, torch.bfloat16])
        asynchronous = self.dice.random() < 0.6 or kind == "message"
        strided = self.own.random() < 0.2
        base = torch.full((size, 2), r + 1.0).to(dtype)
        mine = base[:, 0] if strided else base[:, 0].contiguous()

        def is_(tensor: Any, value: float) -> None:
            same(tensor.contiguous(), torch.full((size,), value).to(dtype))

        work: Any
        if kind in ("sum", "max"):
            op, expected = (dist.ReduceOp.SUM, n * (n + 1) / 2) if kind == "sum" else (dist.ReduceOp.MAX, float(n))
            work = dist.all_reduce(mine, op, group=group, async_op=asynchronous)
            check = lambda: is_(mine, expected)  # noqa: E731
        elif kind == "broadcast":
            work = dist.broadcast(mine, root, group=group, async_op=asynchronous)
            check = lambda: is_(mine, root + 1.0)  # noqa: E731
        elif kind == "gather":
            into = [torch.empty(size, dtype=dtype) for _ in range(n)]
            work = dist.all_gather(into, mine, group=group, async_op=asynchronous)
            check = lambda: [is_(t, q + 1.0) for q, t in enumerate(into)]  # noqa: E731
        elif kind == "exchange":
            into = [torch.empty(size, dtype=dtype) for _ in range(n)]
            work = dist.all_to_all(into, [mine] * n, group=group, async_op=asynchronous)
            check = lambda: [is_(t, q + 1.0) for q, t in enumerate(into)]  # noqa: E731
        elif kind == "scatter":
            output = torch.empty(size, dtype=dtype)
            work = dist.reduce_scatter(output, [mine] * n, group=group, async_op=asynchronous)
            check = lambda: is_(output, n * (n + 1) / 2)  # noqa: E731
        elif kind == "message" and n > 1:
            got = torch.empty(size, dtype=dtype)
            sending = dist.isend(mine, (r + 1) % n, group=group)
            work = dist.irecv(got, (r - 1) % n, group=group)
            self.flying.append((sending, lambda: None))
            check = lambda: is_(got, (r - 1) % n + 1.0)  # noqa: E731
        else:
            work = dist.barrier(group=group, async_op=asynchronous)
            check = lambda: None  # noqa: E731
        if work is None:
            check()
        else:
            self.flying.append((work, check))
        while len(self.flying) > 12 or (self.flying and self.own.random() < 0.3):
            self.wait(self.own.randrange(len(self.flying)))

    def wait(self, index: int) -> None:
        work, check = self.flying.pop(index)
        how = self.own.randrange(4)
        if how == 0:
            work.get_future().wait()
        elif how == 1:
            work.wait(timedelta(seconds=60))
        elif how == 2:
            while not work.is_completed():
                time.sleep(0.0001)
            work.wait()
        else:
            work.wait()
        check()


def check_random_programs(seeds: list[int]) -> None:
    groups = [dist.group.WORLD, dist.new_group()]
    for seed in seeds:
        program = Program(seed, groups)
        for _ in range(120):
            program.step()
        while program.flying:
            program.wait(program.own.randrange(len(program.flying)))
    dist.destroy_process_group(groups[1])
    total()


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(ranks: Ranks, seed: int) -> None:
    ranks.run(check_random_programs, seeds=[2 * seed, 2 * seed + 1])


# --- Beside other backends --------------------------------------------------------------------------------------------


def check_beside_gloo(first: str) -> None:
    r, n = place()
    store = dist.FileStore(str(folder() / f"first {first}"), n)
    dist.init_process_group(first, store=store, rank=r, world_size=n, timeout=LIMIT)
    other = "gloo" if first == "hvd" else "hvd"
    group = dist.new_group(backend=other)
    assert dist.get_backend() == first and dist.get_backend(group) == other
    for turn in range(3):
        works = [dist.all_reduce(torch.full((100,), 2.0**r), group=g, async_op=True) for g in (None, group)]
        total()
        total(group)
        for work in reversed(works):
            assert work.wait()
            same(work.result()[0], torch.full((100,), 2.0**n - 1))
    some = dist.new_group([0], backend=other)
    if r == 0:
        total(some)
    dist.monitored_barrier()
    dist.monitored_barrier(group)
    dist.destroy_process_group()


@pytest.mark.parametrize("first", ["hvd", "gloo"])
def test_beside_gloo(loose_ranks: Ranks, first: str) -> None:
    loose_ranks.run(check_beside_gloo, first=first)


def check_spellings() -> None:
    """Of the backend: as a device's, and in capitals."""
    r, n = place()
    for i, name in enumerate(("cpu:hvd", "HVD", "cpu:hvd,cuda:hvd")):
        store = dist.FileStore(str(folder() / f"spelling {i}"), n)
        dist.init_process_group(name, store=store, rank=r, world_size=n, timeout=LIMIT)
        total()
        total(dist.new_group())
        dist.destroy_process_group()


def test_spellings(loose_ranks: Ranks) -> None:
    loose_ranks.run(check_spellings)


def check_mesh() -> None:
    """Rows and columns of a mesh are groups."""
    from torch.distributed.device_mesh import init_device_mesh

    r = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    for name, ranks in (("row", [r % 2, r % 2 + 2]), ("column", [r // 2 * 2, r // 2 * 2 + 1])):
        group = mesh.get_group(name)
        assert dist.get_backend(group) == "hvd" and dist.get_process_group_ranks(group) == ranks
        total(group)
    for name in ("row", "column"):
        dist.destroy_process_group(mesh.get_group(name))


def test_mesh() -> None:
    ranks = Ranks(4)
    ranks.run(check_mesh)
    assert ranks.stop() == [0] * 4


# --- Time limits ------------------------------------------------------------------------------------------------------


def waits_for(r: int, n: int, begin: Callable[[], Any]) -> Any:
    """Rank 0 begins a collective while the others wait for a message, which it sends afterwards."""
    if r != 0:
        dist.recv(torch.zeros(1), 0, tag=77)
    return begin()


def check_short_wait() -> None:
    """The wait raises, and the operation ends all the same."""
    r, n = dist.get_rank(), dist.get_world_size()
    for size in (3, 100_000):
        mine = torch.full((size,), 1.0 + r)
        work = waits_for(r, n, lambda: dist.all_reduce(mine, async_op=True))
        if r == 0:
            words = r"^hvd: all_reduce: Timed out after 0.02 s of waiting; the operation is still in flight"
            for _ in range(2):
                with pytest.raises(dist.DistBackendError, match=words):
                    work.wait(timedelta(seconds=0.02))
            assert not work.is_completed() and work.exception() is None
            same(mine, torch.full((size,), 1.0))
            for q in range(1, n):
                dist.send(torch.zeros(1), q, tag=77)
        assert work.wait(timedelta(seconds=30)) is True
        same(mine, torch.full((size,), n * (n + 1) / 2))
    total()


def test_short_wait(several_ranks: Ranks) -> None:
    several_ranks.run(check_short_wait)


def come_late(mine: Any, n: int, group: Any) -> None:
    """To a sum that another rank has given up: an error, or the sum, where that rank's part was there already."""
    try:
        dist.all_reduce(mine, group=group)
    except dist.DistBackendError:
        return
    same(mine, torch.full(mine.shape, float(n)))


def check_time_limit(kind: str) -> None:
    """A group whose limit is a millisecond: an error that says so, on all ranks, and nothing hangs."""
    r, n = dist.get_rank(), dist.get_world_size()
    group: Any = dist.new_group()
    if kind == "set_timeout":
        group.set_timeout(timedelta(milliseconds=1))
    else:
        dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=1), group)
        group._set_default_timeout(timedelta(milliseconds=1))
    mine = torch.ones(10)
    if r == 0:
        with pytest.raises(dist.DistBackendError, match=r"Timed out waiting for an answer: .*rank \d.*longer timeout"):
            dist.all_reduce(mine, group=group)
        for q in range(1, n):
            dist.send(torch.zeros(1), q, tag=78)
    else:
        dist.recv(torch.zeros(1), 0, tag=78)
        come_late(mine, n, group)
    # It has ended, and says so at once.
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError):
        dist.barrier(group=group)
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(mine, group=group, async_op=True).wait()
    assert time.monotonic() - began < 20
    dist.destroy_process_group(group)
    total()


@pytest.mark.parametrize("kind", ["set_timeout", "_set_pg_timeout"])
def test_time_limit(several_ranks: Ranks, kind: str) -> None:
    several_ranks.run(check_time_limit, kind=kind)


def check_late_rank() -> None:
    """Who waits asynchronously is told after the limit, too, in the wait, the future and the work."""
    r, n = dist.get_rank(), dist.get_world_size()
    group: Any = dist.new_group()
    group.set_timeout(timedelta(seconds=0.2))
    if r != 1:
        work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        future = work.get_future()
        with pytest.raises(dist.DistBackendError, match=r"^hvd: all_reduce: Timed out|aborted|ended|gave up|given up"):
            work.wait()
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), dist.DistBackendError)
        with pytest.raises(RuntimeError, match="hvd: all_reduce"):
            future.wait()
        with pytest.raises(dist.DistBackendError):
            work.result()
    dist.barrier()
    if r == 1:
        come_late(torch.ones(4), n, group)
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group(group)
    total()


def test_late_rank(several_ranks: Ranks) -> None:
    several_ranks.run(check_late_rank)


def check_barrier_with_its_own_limit() -> None:
    """The limit of one barrier, which is shorter than the group's."""
    r, n = dist.get_rank(), dist.get_world_size()
    group: Any = dist.new_group()
    began = time.monotonic()
    if r == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            dist.barrier(group=group, timeout=timedelta(seconds=0.2))
        assert time.monotonic() - began < 20
    dist.barrier()
    dist.destroy_process_group(group)


def test_barrier_with_its_own_limit(several_ranks: Ranks) -> None:
    several_ranks.run(check_barrier_with_its_own_limit)


def check_monitored_barrier() -> None:
    """Rank 0 names who does not come, and those that have come are told; the group goes on."""
    r, n = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    for everyone in (False, True):
        late = n - 1
        if r != late:
            words = rf"Rank {r} successfully"
            if r == 0:
                words = rf"\[Rank 0\]: Ranks? {late} failed to pass monitoredBarrier in 500 ms"
            with pytest.raises(RuntimeError, match=words):
                dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=everyone)
        dist.barrier()
        if r == late and late != 0:
            with pytest.raises(RuntimeError, match=rf"Rank {r} successfully reached"):
                dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=everyone)
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    total()


def test_monitored_barrier(several_ranks: Ranks) -> None:
    several_ranks.run(check_monitored_barrier)


# --- The end ----------------------------------------------------------------------------------------------------------


def check_abort() -> None:
    """From another thread: who waits gets an error at once, here and on the other ranks."""
    r, n = dist.get_rank(), dist.get_world_size()
    group: Any = dist.new_group()
    began = time.monotonic()
    if r == 0:
        pending = dist.irecv(torch.zeros(3), 1, group=group)
        thread = threading.Thread(target=lambda: (time.sleep(0.1), group.abort()))
        thread.start()
        with pytest.raises(dist.DistBackendError, match="hvd: all_reduce"):
            dist.all_reduce(torch.ones(3), group=group)
        assert pending is not None
        with pytest.raises(dist.DistBackendError, match="hvd: recv"):
            pending.wait()
        thread.join()
        with pytest.raises(ValueError, match="hvd: the process group was aborted"):
            dist.all_reduce(torch.ones(3), group=group)
    elif r == 1:
        work = dist.irecv(torch.zeros(3), 0, group=group)
        assert work is not None
        with pytest.raises(dist.DistBackendError, match="hvd: recv"):
            work.wait()
    else:
        dist.recv(torch.zeros(1), 0, tag=79)
        with pytest.raises(dist.DistBackendError, match="hvd: all_reduce"):
            dist.all_reduce(torch.ones(3), group=group)
    for q in range(2, n):
        if r == 0:
            dist.send(torch.zeros(1), q, tag=79)
    assert time.monotonic() - began < 20
    total()
    dist.destroy_process_group(group)


def test_abort(several_ranks: Ranks) -> None:
    several_ranks.run(check_abort)


def check_one_leaves() -> None:
    """Others that wait for it are told at once; what had ended stays so."""
    r, n = dist.get_rank(), dist.get_world_size()
    group: Any = dist.new_group()
    total(group)
    if r == 1:
        dist.destroy_process_group(group)
    else:
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"^hvd: all_reduce: .*rank 1"):
            dist.all_reduce(torch.ones(3), group=group)
        assert time.monotonic() - began < 20
        dist.destroy_process_group(group)
    total()


def test_one_leaves(several_ranks: Ranks) -> None:
    several_ranks.run(check_one_leaves)


def check_destroyed_with_work() -> None:
    """What is in flight ends before the group is left, if the others come."""
    r, n = dist.get_rank(), dist.get_world_size()
    for size in (10, 200_000):
        group: Any = dist.new_group()
        mine = [torch.full((size,), 2.0**r) for _ in range(5)]
        works = [dist.all_reduce(one, group=group, async_op=True) for one in mine]
        dist.destroy_process_group(group)
        for work, one in zip(works, mine):
            assert work.wait()
            same(one, torch.full((size,), 2.0**n - 1))


def test_destroyed_with_work(ranks: Ranks) -> None:
    ranks.run(check_destroyed_with_work)


def check_dropped_groups() -> None:
    """Groups that nobody holds any more."""
    for _ in range(5):
        group = dist.new_group()
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        assert work.wait()
    total()


def test_dropped_groups(ranks: Ranks) -> None:
    ranks.run(check_dropped_groups)


def check_exit(how: str) -> None:
    """What a program leaves behind when it just ends."""
    join("exit")
    total()
    dist.new_group()
    if how == "in flight":
        dist.all_reduce(torch.ones(3), async_op=True)
        dist.irecv(torch.zeros(3), (place()[0] + 1) % place()[1])
    if how == "futures":
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
        dist.barrier(async_op=True).get_future().then(lambda f: None)
    if how == "destroyed":
        dist.destroy_process_group()


@pytest.mark.parametrize("how", ["at once", "in flight", "futures", "destroyed"])
def test_exit(how: str) -> None:
    for _ in range(3 if how == "futures" else 1):
        ranks = Ranks(3, joined=False, whole_exit=True)
        ranks.run(check_exit, how=how)
        processes = ranks.processes
        assert ranks.stop() == [0, 0, 0]
        assert not [name for p in processes for name in os.listdir("/dev/shm") if name.startswith(f"torch_{p}_")]


def check_long_limits() -> None:
    """A limit beyond the 292 years of nanoseconds in 64 bits means no limit."""
    r, n = place()
    for limit in (timedelta(days=110_000), timedelta.max):
        group = dist.new_group(list(range(n)), backend="hvd", timeout=limit)
        x = torch.full((3,), float(r))
        assert dist.all_reduce(x, group=group, async_op=True).wait(limit)
        assert x.tolist() == [n * (n - 1) / 2] * 3
        if n > 1 and r == 0:
            time.sleep(0.05)
            dist.send(x, 1, group=group)
        elif r == 1:
            dist.recv(x, 0, group=group)
        dist.barrier(group=group)
        dist.destroy_process_group(group)


def test_long_limits(ranks: Ranks) -> None:
    ranks.run(check_long_limits)
