"""What programs should not do with the backend "hvd": each is an error that names the value and what is allowed, and
the group goes on where that is possible.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from dist_ranks import Ranks, folder, join, place, same  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import hvd.torch.distributed  # noqa: E402
from hvd.torch.distributed.process_group import ProcessGroup  # noqa: E402


def usable(group: Any = None) -> None:
    """Whether a collective and messages still work."""
    n = dist.get_world_size(group)
    mine = torch.full((3,), 2.0)
    dist.all_reduce(mine, group=group)
    same(mine, torch.full((3,), 2.0 * n))
    if n > 1:
        r = dist.get_rank(group)
        sending = dist.isend(torch.full((2,), float(r)), group=group, group_dst=(r + 1) % n, tag=5)
        got = torch.zeros(2)
        dist.recv(got, group=group, group_src=(r - 1) % n, tag=5)
        same(got, torch.full((2,), float((r - 1) % n)))
        assert sending is not None and sending.wait()


def refused(words: str, *calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(ValueError, match=words):
            call()


# --- Arguments --------------------------------------------------------------------------------------------------------


def check_types() -> None:
    """Mixed dtypes: PyTorch refuses lists itself, hvd what comes past that."""
    n, r = dist.get_world_size(), dist.get_rank()
    group: Any = dist.group.WORLD
    f, i = torch.ones(2), torch.ones(2, dtype=torch.int64)
    refused(
        "different dtypes", lambda: dist.all_gather([i] * n, f), lambda: dist.reduce_scatter(f, [i] * n),
        lambda: dist.gather(f, [i] * n if r == 0 else None) if r == 0 else dist.gather(f, [i]),
        lambda: dist.all_to_all([i] * n, [f] * n), lambda: dist.all_to_all_single(i, f),
        lambda: dist.all_reduce_coalesced([f, i]),
    )  # fmt: skip
    refused(
        r"hvd: .*: tensor \d of the list is torch.int64, and the other one torch.float32",
        lambda: group.allgather([[i] * n], [f]), lambda: group.reduce_scatter([f], [[i] * n]),
    )  # fmt: skip
    words = r"hvd: {}: the output is torch.int64 and the input torch.float32"
    whole = torch.ones(2 * n)
    refused(words.format("all_gather_into_tensor"), lambda: dist.all_gather_into_tensor(whole.long(), f))
    refused(words.format("reduce_scatter_tensor"), lambda: dist.reduce_scatter_tensor(i, whole))
    refused(words.format("all_to_all_single"), lambda: group.all_to_all_single(whole.long(), whole, [], []))
    usable()


def test_types(ranks: Ranks) -> None:
    ranks.run(check_types)


def check_sizes() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    two, three = torch.ones(2), torch.ones(3)
    own = [three if q == r else two for q in range(n)]
    refused(
        rf"hvd: all_gather: tensor {r} of the list has 3 elements, and the other one 2",
        lambda: dist.all_gather([t.clone() for t in own], two), lambda: dist.all_gather(list(own), two, async_op=True),
    )  # fmt: skip
    refused(
        rf"hvd: reduce_scatter: tensor {r} of the list has 3 elements, and the other one 2",
        lambda: dist.reduce_scatter(two, own),
    )
    refused(
        rf"hvd: all_gather_into_tensor: the output has {2 * n + 1} elements; allowed: {2 * n}",
        lambda: dist.all_gather_into_tensor(torch.ones(2 * n + 1), two),
        lambda: dist.all_gather_into_tensor(torch.ones(2 * n + 1), two, async_op=True),
    )
    if n > 1:
        refused(
            rf"hvd: reduce_scatter_tensor: the input has {2 * n + 1} elements and the output 2; allowed: {n} times",
            lambda: dist.reduce_scatter_tensor(two, torch.ones(2 * n + 1)),
        )
        refused(
            rf"hvd: all_to_all_single: the input has {n + 1} rows; allowed: a multiple of {n}",
            lambda: dist.all_to_all_single(torch.ones(n), torch.ones(n + 1)),
        )
        refused(
            rf"hvd: all_to_all_single: the output has {n + 1} rows; allowed: a multiple of {n}",
            lambda: dist.all_to_all_single(torch.ones(n + 1), torch.ones(n)),
        )
    refused("hvd: reduce_scatter_tensor: .* 3 ", lambda: dist.reduce_scatter_tensor(three, torch.ones(2 * n)))
    x = torch.ones(2 * n)
    for splits in ([2] * (n + 1), [2] * (n - 1) + [3], [-2] + [2] * (n - 1) + [4], [2 * n + 1] + [-1] + [0] * (n - 2)):
        listed = re.escape(str(splits))
        words = rf"hvd: all_to_all_single: the {{}} has {2 * n} rows and the splits {listed}; allowed: one number"
        refused(words.format("input"), lambda: dist.all_to_all_single(x.clone(), x, None, splits))
        refused(words.format("output"), lambda: dist.all_to_all_single(x.clone(), x, splits, None))
    if r == 0:  # others cannot know
        words = rf"hvd: {{}}: tensor {n - 1} of the list has 3 elements, and the other one 2"
        refused(words.format("gather"), lambda: dist.gather(two, [two] * (n - 1) + [three], 0))
        refused(words.format("scatter"), lambda: dist.scatter(two, [two] * (n - 1) + [three], 0))
    usable()


def test_sizes(ranks: Ranks) -> None:
    ranks.run(check_sizes)


def check_numbers_of_tensors() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    group: Any = dist.group.WORLD
    one = torch.ones(1)
    for count in (n + 1, n - 1):
        some = [torch.ones(1) for _ in range(count)]
        refused(rf"hvd: all_gather: a list of {count} tensors; allowed: {n}", lambda: dist.all_gather(some, one))
        words = rf"hvd: reduce_scatter: a list of {count} tensors; allowed: {n}"
        refused(words, lambda: dist.reduce_scatter(one, some))
        refused(rf"hvd: all_to_all: {count} input tensors; allowed: {n}", lambda: dist.all_to_all([one] * n, some))
        refused(rf"hvd: all_to_all: {count} output tensors; allowed: {n}", lambda: dist.all_to_all(some, [one] * n))
        if r == 0:
            words = r"a list of 2 tensors; allowed: 1" if n == 1 else rf"a list of {count} tensors; allowed: {n}"
            if some:
                refused(words, lambda: dist.gather(one, some), lambda: dist.scatter(one, some))
            else:
                refused("must be specified", lambda: dist.gather(one, some), lambda: dist.scatter(one, some))
    for call in (group.allreduce, group.broadcast, group.reduce):
        refused(r"hvd: this operation takes one tensor .*, and got 2", lambda: call([one, one]))
        refused(r"hvd: this operation takes one tensor .*, and got 0", lambda: call([]))
    refused(r"takes one list of tensors, and got 2", lambda: group.allgather([[one] * n] * 2, [one]))
    usable()


def test_numbers_of_tensors(ranks: Ranks) -> None:
    ranks.run(check_numbers_of_tensors)


def check_roots() -> None:
    n = dist.get_world_size()
    one = torch.ones(1)
    some: Any = dist.new_group([0])
    if dist.get_rank() == 0 and n > 1:  # PyTorch's words
        refused(
            "Global rank 1 is not part of group", lambda: dist.broadcast(one, 1, some),
            lambda: dist.reduce(one, 1, group=some),
        )  # fmt: skip
        refused("allowed: 0 to 0", lambda: dist.broadcast(one, group_src=1, group=some))
    refused(
        rf"hvd: (src|dst) {n} is not a rank of this group; allowed: 0 to {n - 1}", lambda: dist.broadcast(one, n),
        lambda: dist.reduce(one, n), lambda: dist.gather(one, dst=n), lambda: dist.scatter(one, src=n),
    )  # fmt: skip
    for root in (n, -1, 1000):
        words = rf"hvd: (src|dst) {root} is not a rank of this group; allowed: 0 to {n - 1}"
        refused(
            words, lambda: dist.broadcast(one, group_src=root), lambda: dist.reduce(one, group_dst=root),
            lambda: dist.broadcast(one, group_src=root, async_op=True),
            lambda: dist.gather(one, group_dst=root), lambda: dist.scatter(one, group_src=root),
        )  # fmt: skip
    usable()


def test_roots(ranks: Ranks) -> None:
    ranks.run(check_roots)


def check_other_devices() -> None:
    """A tensor without memory, and layouts that are not dense."""
    n, r = dist.get_world_size(), dist.get_rank()
    for bad, words in (
        (torch.ones(n, device="meta"), r"hvd: .*device meta.*allowed: .*(cpu|CPU)"),
        (torch.eye(n).to_sparse_csr(), r"hvd: .*layout is torch.sparse_csr"),
        (torch.eye(n).to_sparse_csc(), r"hvd: .*layout is torch.sparse_csc"),
        (torch.ones(n).to_mkldnn(), r"hvd: .*layout is torch._mkldnn"),
    ):
        one = torch.ones(bad.shape)
        refused(
            words, lambda: dist.all_reduce(bad), lambda: dist.all_reduce(bad, async_op=True),
            lambda: dist.broadcast(bad, 0), lambda: dist.reduce(bad, 0),
            lambda: dist.all_gather([one.clone() for _ in range(n)], bad),
            lambda: dist.reduce_scatter(one, [bad] * n), lambda: dist.all_to_all([one] * n, [bad] * n),
            lambda: dist.gather(bad, [one] * n if r == 0 else None),
            lambda: dist.scatter(bad, [one] * n if r == 0 else None),
        )  # fmt: skip
        if bad.layout is torch.strided:
            refused(
                words, lambda: dist.all_gather_into_tensor(torch.ones(n * n), bad),
                lambda: dist.all_gather_into_tensor(torch.ones(n * n, device="meta"), one),
                lambda: dist.reduce_scatter_tensor(one[:1], bad), lambda: dist.all_to_all_single(one, bad),
                lambda: dist.reduce_scatter_tensor(torch.ones(1, device="meta"), one),
                lambda: dist.all_to_all_single(torch.ones(n, device="meta"), one),
                lambda: dist.all_gather([torch.ones(n, device="meta") for _ in range(n)], one),
            )  # fmt: skip
    with FakeTensorMode():
        fake, fakes = torch.ones(n), [torch.ones(n) for _ in range(n)]
        refused(
            "hvd: the tensor is a FakeTensor, which has no memory; allowed: ", lambda: dist.all_reduce(fake),
            lambda: dist.all_reduce(torch.ones(2000)), lambda: dist.all_reduce(torch.ones(5, 5)[:, 0]),
            lambda: hvd.torch.distributed.inference_all_reduce(fake), lambda: dist.broadcast(fake, 0, async_op=True),
            lambda: dist.all_gather(fakes, fake), lambda: dist.all_to_all(fakes, fakes),
            lambda: dist.group.WORLD.send([fake], 0, 0), lambda: dist.group.WORLD.recv([fake], 0, 0),
        )  # fmt: skip
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        words = r"hvd: all_reduce: sparse tensors can be summed, and .* was asked"
        refused(words, lambda: dist.all_reduce(torch.eye(n).to_sparse(), op))
    refused(r"layout is torch.sparse_coo; make it dense", lambda: dist.broadcast(torch.eye(n).to_sparse(), 0))
    usable()


def test_other_devices(ranks: Ranks) -> None:
    ranks.run(check_other_devices)


def check_outputs_that_are_not_contiguous() -> None:
    n = dist.get_world_size()
    bad = torch.ones(4 * n, 4)[:, ::2]
    words = r"hvd: {}: the output is not contiguous; pass a contiguous tensor and copy from it"
    refused(
        words.format("all_gather_into_tensor"), lambda: dist.all_gather_into_tensor(bad, torch.ones(4, 2)),
        lambda: dist.all_gather_into_tensor(torch.ones(2, 4 * n).t(), torch.ones(4, 2)),
    )  # fmt: skip
    refused(words.format("all_to_all_single"), lambda: dist.all_to_all_single(bad, torch.ones(4 * n, 2)))
    if n > 1:
        with pytest.raises(RuntimeError, match="single memory location"):  # PyTorch's words, when it is copied back
            dist.all_reduce(torch.ones(1).expand(5))
    usable()


def test_outputs_that_are_not_contiguous(ranks: Ranks) -> None:
    ranks.run(check_outputs_that_are_not_contiguous)


def check_overlaps() -> None:
    """Inputs that lie in the output, but not where this rank's part of it goes: refused, or right all the same."""
    n, r = dist.get_world_size(), dist.get_rank()
    for each in (4, 1000, 100_000):
        whole = torch.zeros(each * n + 1)
        row = torch.arange(float(each * n))
        parts = row[r * each : (r + 1) * each]

        def gather() -> Any:
            shifted = whole[r * each + 1 : (r + 1) * each + 1]
            shifted.copy_(parts)
            return dist.all_gather_into_tensor(whole[: each * n], shifted), whole[: each * n], row

        def exchange() -> Any:
            mine = row + 1000 * r
            return dist.all_to_all_single(mine, mine), mine, torch.cat([parts + 1000 * q for q in range(n)])

        def reduce() -> Any:
            mine = row.clone()
            output = mine[1 : each + 1] if r == 0 else mine[r * each - 1 : (r + 1) * each - 1]
            return dist.reduce_scatter_tensor(output, mine), output, parts * n

        def gather_list() -> Any:
            shifted = whole[r * each + 1 : (r + 1) * each + 1]
            shifted.copy_(parts)
            return dist.all_gather(list(whole[: each * n].split(each)), shifted), whole[: each * n], row

        def exchange_list() -> Any:
            mine = row + 1000 * r
            lists = list(mine.split(each))
            return dist.all_to_all(lists, lists), mine, torch.cat([parts + 1000 * q for q in range(n)])

        def reduce_list() -> Any:
            mine = row.clone()
            output = mine[1 : each + 1] if r == 0 else mine[r * each - 1 : (r + 1) * each - 1]
            return dist.reduce_scatter(output, list(mine.split(each))), output, parts * n

        def in_place() -> Any:
            mine = torch.zeros(each * n)
            mine[r * each : (r + 1) * each] = parts
            lists = list(mine.split(each))
            return dist.all_gather(lists, lists[r]), mine, row

        for call in (gather, exchange, reduce, gather_list, exchange_list, reduce_list, in_place):
            if n == 1:
                continue
            try:
                _, found, expected = call()
            except ValueError as e:
                assert "overlap; allowed" in str(e)
            else:
                same(found, expected)
    usable()


def test_overlaps(ranks: Ranks) -> None:
    ranks.run(check_overlaps)


# --- Tensors in flight ------------------------------------------------------------------------------------------------


def check_deleted_in_flight() -> None:
    """Nobody has the tensors, nor the works, any more. Their memory lives until the operation has ended."""
    n, r = dist.get_world_size(), dist.get_rank()
    for size in (10, 20_000, 300_000):
        works: list[Any] = []
        if r == 0:
            x = torch.full((size,), 1.0)
            works.append(dist.all_reduce(x, async_op=True))
            works.append(dist.all_gather([torch.zeros(size) for _ in range(n)], x, async_op=True))
            works.append(dist.all_reduce(torch.full((size, 2), 1.0).t(), async_op=True))
            dist.all_reduce(torch.full((size,), 7.0), async_op=True)
            rows = [torch.full((size,), 1.0) for _ in range(n)]
            works.append(dist.reduce_scatter(torch.zeros(size), rows, async_op=True))
            del rows
            del x
            gc.collect()
            junk = [torch.full((size,), 9.0) for _ in range(20)]
            for q in range(1, n):
                dist.send(torch.zeros(1), q, tag=3)
        else:
            dist.recv(torch.zeros(1), 0, tag=3)
            junk = []
            works.append(dist.all_reduce(torch.full((size,), 1.0 + r), async_op=True))
            x = torch.full((size,), 1.0 + r)
            works.append(dist.all_gather([torch.zeros(size) for _ in range(n)], x, async_op=True))
            works.append(dist.all_reduce(torch.full((size, 2), 1.0 + r).t(), async_op=True))
            dist.all_reduce(torch.full((size,), 7.0), async_op=True)
            works.append(
                dist.reduce_scatter(torch.zeros(size), [torch.full((size,), 1.0 + r) for _ in range(n)], async_op=True)
            )
        gc.collect()
        total = n * (n + 1) / 2
        assert works[3].wait()
        same(works[0].result()[0], torch.full((size,), total))
        for q, part in enumerate(works[1].result()[0]):
            same(part, torch.full((size,), total if q == 0 else 1.0 + q) if part.numel() == 0 else part)
            assert float(part[0]) == (total if q == 0 and part[0] == total else 1.0 + q)
        same(works[2].result()[0].contiguous(), torch.full((2, size), total))
        same(works[3].result()[0], torch.full((size,), total))
        assert all(bool((j == 9.0).all()) for j in junk)
    usable()


def test_deleted_in_flight(several_ranks: Ranks) -> None:
    several_ranks.run(check_deleted_in_flight)


# --- After the end, and elsewhere -------------------------------------------------------------------------------------


def check_destroyed() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    group: Any = dist.new_group()
    usable(group)
    one = torch.ones(n)
    done = dist.all_reduce(one, group=group, async_op=True)
    dist.destroy_process_group(group)
    assert done.wait()
    words = "hvd: the process group was destroyed"
    for _ in range(2):
        refused(
            words, lambda: group.allreduce([one]), lambda: group.broadcast([one]), lambda: group.barrier().wait(),
            lambda: group.send([one], (r + 1) % n, 0) if n > 1 else group.barrier(),
            lambda: group.recv([one], (r + 1) % n, 0) if n > 1 else group.barrier(),
            lambda: group.all_gather_single(torch.ones(n * n), one), lambda: group.alltoall([one] * n, [one] * n),
            lambda: group.allreduce_coalesced([one, one]), lambda: group.share(torch.ones(5)),
            lambda: group.gather([[one] * n] if r == 0 else [], [one]), lambda: group.split_group([r]),
        )  # fmt: skip
    group.shutdown()  # again
    group.abort()
    with pytest.raises(ValueError):
        dist.all_reduce(one, group=group)
    usable()


def test_destroyed(ranks: Ranks) -> None:
    ranks.run(check_destroyed)


def in_child(body: Callable[[], None]) -> None:
    """Runs a function in a forked child. Fails with what it raised."""
    read, write = os.pipe()
    stores = [group.get_group_store() for group in dist.distributed_c10d._world.pg_map]
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it, if it hangs
        status = 1
        try:
            body()
            status = 0
        except BaseException as e:
            os.write(write, repr(e).encode()[:4000])
        assert stores  # a store that goes would take its file along
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == 0, (ended, text)


def check_forked_child() -> None:
    """A child is told what it is; the parent goes on, also with what was in flight."""
    n, r = dist.get_world_size(), dist.get_rank()
    group: Any = dist.new_group()
    flying = torch.full((1000,), 1.0)
    work = dist.all_reduce(flying, group=group, async_op=True) if r == 0 else None

    def body() -> None:
        one = torch.ones(n)
        words = rf"hvd: this process was forked from rank {r} of the group, .*; do collectives in the parent"
        refused(
            words, lambda: dist.all_reduce(one), lambda: dist.all_reduce(one, async_op=True), lambda: dist.barrier(),
            lambda: dist.all_reduce(one, group=group), lambda: dist.broadcast(one, 0),
            lambda: dist.send(one, (r + 1) % n) if n > 1 else dist.barrier(),
            lambda: dist.irecv(one, (r + 1) % n) if n > 1 else dist.barrier(),
            lambda: dist.all_gather([one] * n, one),
        )  # fmt: skip
        assert dist.get_rank() == r and dist.get_world_size() == n
        dist.destroy_process_group()

    for _ in range(2):
        in_child(body)
        usable()
    if work is None:
        dist.all_reduce(flying, group=group)
    else:
        assert work.wait()
    same(flying, torch.full((1000,), float(n)))
    usable(group)
    dist.destroy_process_group(group)


def test_forked_child(ranks: Ranks) -> None:
    ranks.run(check_forked_child)


def check_many_children() -> None:
    """Forked while threads of the groups are at work, which a child does not have."""
    for _ in range(30):
        works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]
        works[0].get_future().then(lambda f: None)
        in_child(lambda: refused("forked from rank", lambda: dist.all_reduce(torch.ones(1), async_op=True)))
        assert all(work.wait() for work in works)
    usable()


def test_many_children(ranks: Ranks) -> None:
    ranks.run(check_many_children)


def check_child_that_joins() -> None:
    """A child that leaves its parent's groups behind can be a rank of another job."""
    r = dist.get_rank()

    def body() -> None:
        dist.destroy_process_group()
        dist.init_process_group("hvd", store=dist.HashStore(), rank=0, world_size=1)
        mine = torch.ones(3)
        dist.all_reduce(mine, async_op=True).wait()
        assert dist.all_reduce(mine, async_op=True).get_future().wait()[0].tolist() == [1.0] * 3
        dist.destroy_process_group()

    in_child(body)
    usable()
    assert dist.get_rank() == r


def test_child_that_joins(ranks: Ranks) -> None:
    ranks.run(check_child_that_joins)


class Samples(torch.utils.data.Dataset[Any]):
    """Its workers are children of a rank."""

    def __init__(self, reduce: bool) -> None:
        self.reduce = reduce

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        if self.reduce:
            with pytest.raises(ValueError, match="forked from rank"):
                dist.all_reduce(torch.ones(1))
        return torch.tensor([i, dist.get_rank()])


def check_dataloader() -> None:
    r = dist.get_rank()
    for reduce in (False, True):
        loader = torch.utils.data.DataLoader(Samples(reduce), 4, num_workers=2, multiprocessing_context="fork")
        for _ in range(2):
            rows = [row for batch in loader for row in batch.tolist()]
            assert rows == [[i, r] for i in range(8)]
            usable()


def test_dataloader(three_ranks: Ranks) -> None:
    three_ranks.run(check_dataloader)


# --- Ranks that do not meet -------------------------------------------------------------------------------------------


def check_missing_rank(missing: list[int], seconds: float) -> None:
    """Not all ranks make a group: those that do are told who is missing."""
    n, r = dist.get_world_size(), dist.get_rank()
    dist.barrier()
    began = time.monotonic()
    if r not in missing:
        here = [q for q in range(n) if q not in missing]
        who = ", ".join(map(str, missing)) if 0 in here else "0"
        words = rf"^hvd: rank(\(s\))? {who} of {n} did not come within {seconds:g} s"
        with pytest.raises(dist.DistBackendError, match=words):
            dist.new_group(timeout=timedelta(seconds=seconds))
        assert seconds * 0.9 <= time.monotonic() - began < seconds + 10
    else:
        dist.distributed_c10d._world.group_count += 1  # the others have counted it
    usable()
    usable(dist.new_group())


@pytest.mark.parametrize("missing", [[0], [1], [0, 1], [1, 2]])
def test_missing_rank(three_ranks: Ranks, missing: list[int]) -> None:
    three_ranks.run(check_missing_rank, missing=missing, seconds=0.9)


def check_missing_at_start(seconds: float) -> None:
    r, n = place()
    if r == n - 1:
        return
    words = rf"^hvd: rank\(s\) {n - 1} of {n} did not come within {seconds:g} s; all ranks of a group must create it"
    with pytest.raises(dist.DistBackendError, match=words):
        join("absent", seconds)
    assert not dist.is_initialized()
    dist.init_process_group("hvd", store=dist.HashStore(), rank=0, world_size=1)
    usable()
    dist.destroy_process_group()


def test_missing_at_start(several_loose_ranks: Ranks) -> None:
    several_loose_ranks.run(check_missing_at_start, seconds=0.9)


def check_entries_of_earlier_ranks(early: int) -> None:
    """A rank comes alone, and gives up. Later ranks meet in the same store, as those do that torchrun starts again."""
    r, n = place()
    store = dist.FileStore(str(folder() / f"twice {early}"))

    def meet(seconds: float) -> Any:
        return ProcessGroup(store, r, n, timedelta(seconds=seconds))

    if r == early % n:
        with pytest.raises(dist.DistBackendError, match="did not come within 0.2 s"):
            meet(0.2)
        (folder() / f"gave up {early}").touch()
    while not (folder() / f"gave up {early}").exists():
        time.sleep(0.005)
    for _ in range(2):
        group, x = meet(20), torch.ones(1)
        group.allreduce([x]).wait()
        assert x.item() == n
        group.shutdown()


@pytest.mark.parametrize("early", [0, -1])
def test_entries_of_earlier_ranks(several_loose_ranks: Ranks, early: int) -> None:
    several_loose_ranks.run(check_entries_of_earlier_ranks, early=early)


_store: Any = None


def serve_store(port: int) -> None:
    global _store
    _store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)


def check_store_that_dies(port: int, where: str) -> None:
    """While some ranks wait for others."""
    r, n = place()
    store = dist.TCPStore("127.0.0.1", port, None, False)
    Path(where, f"connected {r}").touch()
    while r == n - 1 and not Path(where, "dead").exists():  # it comes too late
        time.sleep(0.01)
    began = time.monotonic()
    with pytest.raises(dist.DistNetworkError):
        dist.init_process_group("hvd", store=store, rank=r, world_size=n, timeout=timedelta(seconds=30))
    assert time.monotonic() - began < 20
    assert not dist.is_initialized()
    join("another")
    usable()
    dist.destroy_process_group()


def test_store_that_dies(tmp_path: Path, several_loose_ranks: Ranks) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    server = Ranks(1, joined=False)
    server.run(serve_store, port=port)

    def kill() -> None:
        while len(list(tmp_path.glob("connected *"))) < several_loose_ranks.size:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(server.processes[0], signal.SIGKILL)
        time.sleep(0.1)
        (tmp_path / "dead").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    several_loose_ranks.run(check_store_that_dies, port=port, where=str(tmp_path))
    killer.join()
    assert server.stop() == [-signal.SIGKILL]


def check_versions() -> None:
    """All ranks are told, at once."""
    from hvd.torch.distributed import meeting

    r, n = place()
    own = meeting._core.version
    if r == n - 1:
        meeting._core.version = "0.0.1"
    try:
        words = rf"^hvd: rank 0 runs hvd {re.escape(own)} and rank {n - 1} hvd 0\.0\.1; install one version .*rank {r}"
        with pytest.raises(dist.DistBackendError, match=words):
            join("versions")
    finally:
        meeting._core.version = own
    join("versions again")
    usable()
    dist.destroy_process_group()


def test_versions(several_loose_ranks: Ranks) -> None:
    several_loose_ranks.run(check_versions)


def check_strange_store() -> None:
    """A rank writes something else under hvd's keys."""
    from hvd.torch.distributed import meeting

    r, n = place()
    real = meeting.json.dumps
    if r == 1:
        meeting.json.dumps = lambda value: "[1, 2" if isinstance(value, dict) and "host" in value else real(value)
    try:
        with pytest.raises(dist.DistBackendError, match=r"^hvd: the store has entries of another version of hvd"):
            join("strange")
    finally:
        meeting.json.dumps = real
    join("after it")
    usable()
    dist.destroy_process_group()


def test_strange_store(several_loose_ranks: Ranks) -> None:
    several_loose_ranks.run(check_strange_store)


# --- Calls that differ ------------------------------------------------------------------------------------------------

# What rank 0 and the others call, and what differs, in words of the sentence.
_SUM, _MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
DIFFERENT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "counts": (
        lambda g: dist.all_reduce(torch.ones(10), group=g), lambda g: dist.all_reduce(torch.ones(12), group=g),
        "count 10 on rank 0, 12 on rank",
    ),
    "long counts": (
        lambda g: dist.all_reduce(torch.ones(200_000), group=g),
        lambda g: dist.all_reduce(torch.ones(100_000), group=g), "count 200000 on rank 0, 100000 on rank",
    ),
    "types": (
        lambda g: dist.all_reduce(torch.ones(10), group=g),
        lambda g: dist.all_reduce(torch.ones(10, dtype=torch.int32), group=g),
        "element type float32 on rank 0, int32 on rank",
    ),
    "operations": (
        lambda g: dist.all_reduce(torch.ones(10), _SUM, group=g),
        lambda g: dist.all_reduce(torch.ones(10), _MAX, group=g),
        "reduction sum on rank 0, max on rank",
    ),
    "roots": (
        lambda g: dist.broadcast(torch.ones(10), group_src=0, group=g),
        lambda g: dist.broadcast(torch.ones(10), group_src=1, group=g), "root 0 on rank 0, 1 on rank",
    ),
    "collectives": (
        lambda g: dist.all_reduce(torch.ones(10), group=g),
        lambda g: dist.broadcast(torch.ones(10), group_src=0, group=g),
        "operation allreduce on rank 0, broadcast on rank",
    ),
    "barrier": (
        lambda g: dist.barrier(group=g), lambda g: dist.all_reduce(torch.ones(10), group=g),
        "operation barrier on rank 0, allreduce on rank",
    ),
    "gathered": (
        lambda g: dist.all_gather([torch.ones(3) for _ in range(g.size())], torch.ones(3), group=g),
        lambda g: dist.all_gather([torch.ones(4) for _ in range(g.size())], torch.ones(4), group=g),
        r"count \d+ on rank 0, \d+ on rank",
    ),
    "exchanged": (
        lambda g: dist.all_to_all_single(torch.ones(3 * g.size()), torch.ones(3 * g.size()), group=g),
        lambda g: dist.all_to_all_single(torch.ones(2 * g.size()), torch.ones(2 * g.size()), group=g),
        r"count \d+ on rank 0, \d+ on rank",
    ),
    "scattered sums": (
        lambda g: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(3 * g.size()), group=g),
        lambda g: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * g.size()), group=g),
        r"count \d+ on rank 0, \d+ on rank",
    ),
    "in flight": (
        lambda g: dist.all_reduce(torch.ones(10), group=g, async_op=True).wait(),
        lambda g: dist.all_reduce(torch.ones(12), group=g), "count 10 on rank 0, 12 on rank",
    ),
}


def check_different_calls(name: str) -> None:
    """All ranks get an error, and nothing hangs."""
    r = dist.get_rank()
    first, others, _ = DIFFERENT[name]
    group: Any = dist.new_group()
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=r"ranks \d and \d are in different calls"):
        (first if r == 0 else others)(group)
    try:  # it has ended, unless ranks have compared what they pass
        mine = torch.ones(1)
        dist.all_reduce(mine, group=group)
        same(mine, torch.full((1,), float(group.size())))
    except dist.DistBackendError:
        pass
    assert time.monotonic() - began < 20
    dist.destroy_process_group(group)
    usable()


# Ranks that all think they are the root wait for nobody: only the comparison finds that.
@pytest.mark.parametrize("name", [name for name in DIFFERENT if name != "roots"])
def test_different_calls(several_ranks: Ranks, name: str) -> None:
    several_ranks.run(check_different_calls, name=name)


def check_different_checked_calls() -> None:
    """Ranks compare their calls: the sentence names the difference, and the group goes on."""
    r = dist.get_rank()
    for first, others, words in DIFFERENT.values():
        with pytest.raises(dist.DistBackendError, match=rf"ranks 0 and \d are in different calls: {words} \d"):
            (first if r == 0 else others)(dist.group.WORLD)
        usable()


@pytest.mark.parametrize("how", [{"HVD_CHECK": "1"}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}], ids=lambda how: [*how][0])
@pytest.mark.parametrize("size", [2, 4])
def test_different_checked_calls(how: dict[str, str], size: int) -> None:
    ranks = Ranks(size, **how)
    ranks.run(check_different_checked_calls)
    ranks.stop()
