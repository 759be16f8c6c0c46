"""Ranks that are killed, give up, or are interrupted: the others are told which at once, and nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable

import pytest

pytest.importorskip("torch.distributed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from dist_ranks import Ranks, folder, join, place, same  # noqa: E402

SOON = 5.0  # seconds; survivors notice within a few milliseconds, and groups wait for 40 s

Starter = Callable[..., Ranks]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Makes ranks whose shared memory lies in a directory of its own, which has to be empty at the end."""
    directory = Path(tempfile.mkdtemp(prefix="hvd-test-", dir="/dev/shm"))
    made: list[Ranks] = []

    def begin(size: int, **more: Any) -> Ranks:
        made.append(Ranks(size, HVD_SHM_DIR=str(directory), **more))
        made[-1].start()
        return made[-1]

    try:
        yield begin
        processes = [process for ranks in made for process in ranks.processes]
        for ranks in made:
            ranks.stop()
        assert os.listdir(directory) == []
        left = [name for name in os.listdir("/dev/shm") for p in processes if name.startswith(f"torch_{p}_")]
        assert left == []
    finally:
        for ranks in made:
            ranks.stop(kill=True)
        shutil.rmtree(directory)


def die(how: str) -> None:
    """Ends this rank, after it has written when."""
    (folder() / "dying").write_text(str(time.monotonic()))
    (folder() / "dying").rename(folder() / "died")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(1)
    if how == "_exit":
        os._exit(0)


def since_death() -> float:
    return time.monotonic() - float((folder() / "died").read_text())


def everyone_waits(others: list[int]) -> None:
    """Until the other ranks are in their calls: they have said that they go there, and some time has passed."""
    while not all((folder() / f"waits {q}").exists() for q in others):
        time.sleep(0.005)
    time.sleep(0.1)


def i_wait() -> None:
    (folder() / f"waits {dist.get_rank()}").touch()


def total() -> None:
    n = dist.get_world_size()
    mine = torch.ones(3)
    dist.all_reduce(mine)
    same(mine, torch.full((3,), float(n)))


def receiving(source: int) -> Any:
    return dist.irecv(torch.ones(10), source)


# What survivors wait in. What they get names the rank that is lost, whatever its part in the call was.
CALLS: dict[str, Callable[[int, int, int], Any]] = {  # of the own rank, their number, and the rank that dies
    "all_reduce": lambda r, n, lost: dist.all_reduce(torch.ones(10)),
    "long all_reduce": lambda r, n, lost: dist.all_reduce(torch.ones(2_000_000)),
    "barrier": lambda r, n, lost: dist.barrier(),
    "broadcast": lambda r, n, lost: dist.broadcast(torch.ones(100_000), lost),
    "reduce": lambda r, n, lost: (dist.reduce(torch.ones(100_000), (lost + 1) % n), dist.recv(torch.ones(1), lost)),
    "all_gather": lambda r, n, lost: dist.all_gather([torch.ones(5) for _ in range(n)], torch.ones(5)),
    "reduce_scatter": lambda r, n, lost: dist.reduce_scatter_tensor(torch.ones(5), torch.ones(5 * n)),
    "all_to_all": lambda r, n, lost: dist.all_to_all_single(torch.ones(5 * n), torch.ones(5 * n)),
    "scatter": lambda r, n, lost: dist.scatter(torch.ones(5), None, lost),
    "object": lambda r, n, lost: dist.all_gather_object([None] * n, "text"),
    "async": lambda r, n, lost: dist.all_reduce(torch.ones(10), async_op=True).wait(),
    "async with a limit": lambda r, n, lost: dist.all_reduce(torch.ones(10), async_op=True).wait(timedelta(seconds=30)),
    "several async": lambda r, n, lost: [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(5)][4].wait(),
    "long async": lambda r, n, lost: dist.all_reduce(torch.ones(2_000_000), async_op=True).wait(),
    "recv": lambda r, n, lost: dist.recv(torch.ones(10), lost),
    "irecv": lambda r, n, lost: receiving(lost).wait(),
    "irecv with a limit": lambda r, n, lost: receiving(lost).wait(timedelta(seconds=30)),
    "long send": lambda r, n, lost: dist.send(torch.ones(2_000_000), lost),
    "monitored barrier": lambda r, n, lost: dist.monitored_barrier(),
}  # fmt: skip


def check_lost(name: str, lost: int, how: str) -> float | None:
    r, n = dist.get_rank(), dist.get_world_size()
    total()
    if r == lost:
        everyone_waits([q for q in range(n) if q != lost])
        die(how)
        raise ValueError("this rank gives up")
    i_wait()
    kind: Any = RuntimeError if name == "monitored barrier" else dist.DistBackendError
    with pytest.raises(kind, match=rf"rank {lost}\b|Rank {lost}\b"):
        CALLS[name](r, n, lost)
    took = since_death()
    assert took < SOON
    with pytest.raises(dist.DistBackendError, match=rf"rank {lost}\b"):  # from now on
        dist.all_reduce(torch.ones(1))
    return took


@pytest.mark.parametrize("name", CALLS)
def test_killed(start: Starter, name: str) -> None:
    ranks = start(3)
    times = ranks.run(check_lost, dead=[1], name=name, lost=1, how="killed")
    print("seconds until the others knew:", times)
    assert [t is None for t in times] == [False, True, False]
    assert ranks.status(1) == -signal.SIGKILL


@pytest.mark.parametrize("lost", [0, 3])
@pytest.mark.parametrize("name", ["all_reduce", "long all_reduce", "barrier", "async", "recv"])
def test_killed_of_four(start: Starter, name: str, lost: int) -> None:
    start(4).run(check_lost, dead=[lost], name=name, lost=lost, how="killed")


@pytest.mark.parametrize("name", ["all_reduce", "async", "recv"])
def test_killed_of_two(start: Starter, name: str) -> None:
    start(2).run(check_lost, dead=[0], name=name, lost=0, how="killed")


@pytest.mark.parametrize("how", ["exit", "_exit"])
@pytest.mark.parametrize("name", ["all_reduce", "async", "recv", "barrier"])
def test_exits(start: Starter, name: str, how: str) -> None:
    start(3).run(check_lost, dead=[1], name=name, lost=1, how=how)


def check_raises() -> float | None:
    """A rank that raises, and leaves its group on the way out, as a program does."""
    r, n = dist.get_rank(), dist.get_world_size()
    total()
    if r == 1:
        everyone_waits([0, 2])
        try:
            raise ValueError("a mistake")
        except ValueError:
            die("by itself")
            dist.destroy_process_group()
        return None
    i_wait()
    with pytest.raises(dist.DistBackendError, match=r"^hvd: all_reduce: .*rank 1\b"):
        dist.all_reduce(torch.ones(10))
    assert since_death() < SOON
    return since_death()


def test_raises(start: Starter) -> None:
    start(3).run(check_raises)


def check_future_of_a_lost_rank() -> None:
    """The error comes out of futures and works, too."""
    r = dist.get_rank()
    total()
    if r == 1:
        everyone_waits([0, 2])
        die("killed")
    work = dist.all_reduce(torch.ones(10), async_op=True)
    future = work.get_future().then(lambda f: f.value()[0])
    receiving = dist.irecv(torch.ones(3), 1)
    assert receiving is not None
    message = receiving.get_future()
    i_wait()
    with pytest.raises(RuntimeError, match="hvd: all_reduce: .*rank 1"):
        future.wait()
    with pytest.raises(RuntimeError, match="hvd: recv: .*rank 1"):
        message.wait()
    assert since_death() < SOON
    for one in (work, receiving):
        assert one.is_completed() and not one.is_success()
        assert isinstance(one.exception(), dist.DistBackendError)
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            one.wait()


def test_future_of_a_lost_rank(start: Starter) -> None:
    start(3).run(check_future_of_a_lost_rank, dead=[1])


def check_backward_of_a_lost_rank() -> None:
    """DistributedDataParallel: the backward pass raises."""
    r = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
    for _ in range(3):
        model(torch.ones(1, 300)).sum().backward()
    if r == 1:
        everyone_waits([0, 2])
        die("killed")
    i_wait()
    loss = model(torch.ones(1, 300)).sum()
    with pytest.raises(RuntimeError, match="hvd: all_reduce.*rank 1"):
        loss.backward()
    assert since_death() < SOON


def test_backward_of_a_lost_rank(start: Starter) -> None:
    start(3).run(check_backward_of_a_lost_rank, dead=[1])


def check_message_that_breaks_off() -> None:
    """The sender dies in the middle of a long message."""
    r = dist.get_rank()
    total()
    if r == 1:
        dist.isend(torch.ones(50_000_000), 0)
        everyone_waits([0])
        die("killed")
    if r == 0:
        got = torch.zeros(50_000_000)
        i_wait()
        time.sleep(0.3)  # the message has begun, and waits for room
        with pytest.raises(dist.DistBackendError, match=r"^hvd: recv: .*rank 1\b"):
            dist.recv(got, 1)
    else:
        with pytest.raises(dist.DistBackendError, match=r"rank 1\b"):
            dist.recv(torch.zeros(1), 1)


def test_message_that_breaks_off(start: Starter) -> None:
    start(3).run(check_message_that_breaks_off, dead=[1])


def check_other_groups() -> None:
    """Groups that the lost rank is not in go on; those that it is in are lost for all."""
    r, n = dist.get_rank(), dist.get_world_size()
    without, with_it = dist.new_group([0, 2]), dist.new_group([1, 2])
    total()
    if r == 1:
        everyone_waits([0, 2])
        die("killed")
    i_wait()
    mine = torch.ones(3)
    if r == 2:  # ranks of the group, and in the job
        with pytest.raises(dist.DistBackendError, match=r"rank 0 .*\(rank 0 of this group is rank 1 of the job\)"):
            dist.all_reduce(mine, group=with_it)
    with pytest.raises(dist.DistBackendError, match=r"rank 1\b"):
        dist.barrier()
    mine = torch.full((3,), 2.0**r)
    dist.all_reduce(mine, group=without)
    same(mine, torch.full((3,), 5.0))
    # And the survivors make a job of their own.
    dist.destroy_process_group()
    number = [0, 2].index(r)
    store = dist.FileStore(str(folder() / "survivors"), 2)
    dist.init_process_group("hvd", store=store, rank=number, world_size=2, timeout=timedelta(seconds=30))
    total()
    dist.destroy_process_group()


def test_other_groups(start: Starter) -> None:
    start(3).run(check_other_groups, dead=[1])


def check_all_killed() -> None:
    total()
    dist.new_group()
    dist.all_reduce(torch.ones(10), async_op=True)
    dist.barrier()
    (folder() / f"here {dist.get_rank()}").touch()
    while len(list(folder().glob("here *"))) < dist.get_world_size():
        time.sleep(0.005)
    die_all()


def die_all() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_all_killed(start: Starter) -> None:
    start(3).run(check_all_killed, dead=[0, 1, 2])


def check_killed_while_joining() -> None:
    r, n = place()
    if r == 1:
        (folder() / "here").touch()
        die("killed")
    while not (folder() / "here").exists():
        time.sleep(0.005)
    with pytest.raises(dist.DistBackendError, match=r"^hvd: rank\(s\) 1 of 3 did not come within 0.9 s"):
        join(seconds=0.9)


def test_killed_while_joining(start: Starter) -> None:
    start(3, joined=False).run(check_killed_while_joining, dead=[1])


def check_stopped() -> None:
    """A rank that is alive and silent: an error after the time limit, which names it; it is told when it goes on."""
    r, n = dist.get_rank(), dist.get_world_size()
    group: Any = dist.new_group()
    group.set_timeout(timedelta(seconds=1))
    if r == 1:
        (folder() / "process").write_text(str(os.getpid()))
        (folder() / "process").rename(folder() / "stopped")
        while (folder() / "stopped").exists():
            time.sleep(0.005)
        mine = torch.ones(10)
        try:
            dist.all_reduce(mine, group=group)
        except dist.DistBackendError:
            pass
        else:
            same(mine, torch.full((10,), float(n)))
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(mine, group=group)
    else:
        while not (folder() / "stopped").exists():
            time.sleep(0.005)
        process = int((folder() / "stopped").read_text())
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(dist.DistBackendError, match=r"rank 1 did not answer within 1 s .*longer timeout"):
            dist.all_reduce(torch.ones(10), group=group)
        (folder() / f"done {r}").touch()
        while not all((folder() / f"done {q}").exists() for q in (0, 2)):
            time.sleep(0.005)
        if r == 0:
            os.kill(process, signal.SIGCONT)
            (folder() / "stopped").unlink()
    dist.barrier()
    total()


def test_stopped(start: Starter) -> None:
    start(3).run(check_stopped)


# --- Signals ----------------------------------------------------------------------------------------------------------

INTERRUPTED: dict[str, Callable[[], Any]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(10)),
    "long all_reduce": lambda: dist.all_reduce(torch.ones(2_000_000)),
    "barrier": lambda: dist.barrier(),
    "async": lambda: dist.all_reduce(torch.ones(10), async_op=True).wait(),
    "async with a limit": lambda: dist.all_reduce(torch.ones(10), async_op=True).wait(timedelta(seconds=30)),
    "after async": lambda: (dist.all_reduce(torch.ones(10), async_op=True), dist.all_reduce(torch.ones(10))),
    "recv": lambda: dist.recv(torch.ones(10), 1),
    "send": lambda: dist.send(torch.ones(2_000_000), 1),
    "new_group": lambda: dist.new_group(),
}


def check_interrupted(name: str) -> float | None:
    """Ctrl-C to a rank that waits. The others, of which one has come, are told that it has given up."""
    r, n = dist.get_rank(), dist.get_world_size()
    total()
    blocking = name in ("all_reduce", "long all_reduce", "barrier")
    if r == 0:
        sent: list[float] = []

        def interrupt() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.15, interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            INTERRUPTED[name]()
        took = time.monotonic() - sent[0]
        timer.join()
        assert took < SOON
        (folder() / "interrupted").touch()
        return took
    if r == 1 and blocking:
        with pytest.raises(dist.DistBackendError, match=r"rank 0\b"):
            INTERRUPTED[name]()
        (folder() / "told").touch()
    while not (folder() / "interrupted").exists():
        time.sleep(0.005)
    if r == 2 and blocking:
        # Where rank 1 is slow to come, its call would end well if this one came first: rank 0 has done its part.
        while not (folder() / "told").exists():
            time.sleep(0.005)
        come_late(INTERRUPTED[name])
    return None


def come_late(call: Callable[[], Any]) -> None:
    """To a call that another rank has given up. It may end well, if that rank had done its part; no other one does."""
    try:
        call()
    except dist.DistBackendError:
        pass
    with pytest.raises(dist.DistBackendError, match=r"rank 0\b"):
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("name", INTERRUPTED)
def test_interrupted(start: Starter, name: str) -> None:
    start(3).run(check_interrupted, name=name)


def check_handler() -> None:
    """A handler that does not raise runs while the rank waits, and the call goes on."""
    r, n = dist.get_rank(), dist.get_world_size()
    total()
    for name in ("all_reduce", "async", "recv"):
        if r == 0:
            seen: list[int] = []
            signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
            timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR2))
            timer.start()
            release = threading.Timer(0.4, (folder() / f"go {name}").touch)
            release.start()
        else:
            while not (folder() / f"go {name}").exists():
                time.sleep(0.005)
        mine = torch.ones(10)
        if name == "recv":
            if r == 0:
                dist.recv(mine, 1)
            elif r == 1:
                dist.send(torch.full((10,), float(n)), 0)
            else:
                continue
        elif name == "async":
            dist.all_reduce(mine, async_op=True).wait()
        else:
            dist.all_reduce(mine)
        if r == 0:
            assert seen == [signal.SIGUSR2]
            same(mine, torch.full((10,), float(n)))
            timer.join(), release.join()


def test_handler(start: Starter) -> None:
    start(3).run(check_handler)


def check_handler_that_raises() -> None:
    """What it raises comes out of the call."""
    r = dist.get_rank()
    total()
    if r == 0:

        def handler(number: int, frame: Any) -> None:
            raise KeyError("from the handler")

        signal.signal(signal.SIGUSR2, handler)
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR2))
        timer.start()
        with pytest.raises(KeyError, match="from the handler"):
            dist.all_reduce(torch.ones(10))
        timer.join()
        (folder() / "raised").touch()
    while not (folder() / "raised").exists():
        time.sleep(0.005)
    come_late(lambda: dist.all_reduce(torch.ones(10)))


def test_handler_that_raises(start: Starter) -> None:
    start(3).run(check_handler_that_raises)
