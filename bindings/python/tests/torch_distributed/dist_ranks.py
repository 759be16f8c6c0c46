"""Ranks for tests of torch.distributed: forked from a process that has imported PyTorch once, which takes longer than a
test. They stay from test to test.

As a program this is that process; its arguments are the descriptor of a socket and a directory. It gets requests
through the socket, lines of JSON: to fork ranks, whose sockets it sends back, or to wait for a rank. A rank gets lines
that name a file, a function in it and arguments, and answers each with what the function returned, or with its
traceback.
"""

from __future__ import annotations

import array
import atexit
import inspect
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest  # noqa: E402
from rank_jobs import IMPORTS, LIMIT  # noqa: E402

TIMEOUT = 40.0  # of the groups of ranks, in seconds: below LIMIT, so that what hangs says for whom it waits
_NOT_INHERITED = ("HOROVOD_", "HVD_", "PMI_", "OMPI_", "SLURM_", "TORCH_DISTRIBUTED_", "MASTER_", "RANK", "WORLD_SIZE")


# --- In the process of the tests --------------------------------------------------------------------------------------


class _Source:
    """The process from which ranks are forked; it starts when it is needed."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, **request: Any) -> tuple[Any, list[int]]:
        """Its answer, with the descriptors that came along."""
        if self.process is None:
            self.channel, other = socket.socketpair()
            self.folder = Path(tempfile.mkdtemp(prefix="hvd-ranks-"))
            atexit.register(shutil.rmtree, self.folder, True)
            clean = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno()), str(self.folder)], stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()], env={**clean, "OMP_NUM_THREADS": "1"},
            )
            other.close()
            self.channel.settimeout(IMPORTS)
        self.channel.sendall(json.dumps(request).encode() + b"\n")
        size = array.array("i").itemsize
        text, more, _, _ = self.channel.recvmsg(65536, socket.CMSG_SPACE(16 * size))
        self.channel.settimeout(LIMIT)
        descriptors = array.array("i")
        for _, _, data in more:
            descriptors.frombytes(data[: len(data) - len(data) % size])
        return json.loads(text), list(descriptors)

    def stop(self) -> None:
        if self.process is not None:
            self.channel.close()
            self.process.wait(LIMIT)
            self.process = None


SOURCE = _Source()


class Ranks:
    """Processes that run functions of test modules, in a process group "hvd" unless ``joined`` is False: then they are
    told their place only by RANK and WORLD_SIZE, as torchrun does. ``whole_exit``: they take the interpreter down at
    their end, which lasts; else they call what is registered for it, and no more.
    """

    def __init__(self, size: int, joined: bool = True, whole_exit: bool = False, **environment: str) -> None:
        self.size = size
        self.joined = joined
        self.whole_exit = whole_exit
        self.environment = environment
        self.processes: list[int] = []
        self.channels: list[socket.socket] = []
        self._reports: list[Any] = []
        self._gone: set[int] = set()
        self._ended: dict[int, int] = {}

    def start(self) -> None:
        """Forks the ranks, if there are none."""
        if self.processes:
            return
        self.processes, descriptors = SOURCE.ask(
            size=self.size, joined=self.joined, whole_exit=self.whole_exit, environment=self.environment
        )
        self.channels = [socket.socket(fileno=one) for one in descriptors]
        self._reports = [channel.makefile("r") for channel in self.channels]

    def run(self, function: Callable[..., Any], dead: Any = (), **arguments: Any) -> list[Any]:
        """Calls the function on all ranks, and returns what they return, of JSON. Fails with the tracebacks of ranks
        that raised, or hung, or died. Of the ranks in ``dead`` death is expected, and nothing else.
        """
        self.start()
        order = json.dumps([inspect.getfile(function), function.__name__, arguments]) + "\n"
        for rank, channel in enumerate(self.channels):
            if rank not in self._gone:
                channel.sendall(order.encode())
        problems, answers = self._collect(set(dead))
        if problems:
            self.stop(kill=True)
            text = "\n".join(f"--- rank {rank} of {self.size} {text}" for rank, text in sorted(problems.items()))
            pytest.fail(text, pytrace=False)
        return [answers.get(rank) for rank in range(self.size)]

    def _collect(self, dead: set[int]) -> tuple[dict[int, str], dict[int, Any]]:
        waiting = {rank: report for rank, report in enumerate(self._reports) if rank not in self._gone}
        problems: dict[int, str] = {}
        answers: dict[int, Any] = {}
        end = time.monotonic() + LIMIT
        while waiting:
            ready = select.select(list(waiting.values()), [], [], max(0.0, end - time.monotonic()))[0]
            if not ready:
                break
            for rank in [r for r, report in waiting.items() if report in ready]:
                line = waiting.pop(rank).readline()
                if not line:
                    self._gone.add(rank)
                    if rank not in dead:
                        problems[rank] = f"died: {self.status(rank)}"
                elif rank in dead:
                    problems[rank] = f"has not died, and answers {line}"
                else:
                    answers[rank], failure = json.loads(line)
                    if failure is not None:
                        problems[rank] = "raised:\n" + failure
            if problems:
                end = min(end, time.monotonic() + 5)
        for rank in waiting:
            os.kill(self.processes[rank], signal.SIGUSR1)  # it prints the stacks of its threads
            problems[rank] = "has not answered; its stacks are on stderr"
            time.sleep(0.3)
        return problems, answers

    def status(self, rank: int) -> int:
        """How a rank has ended, as ``os.waitstatus_to_exitcode`` says it."""
        if rank not in self._ended:
            self._ended[rank] = int(SOURCE.ask(wait=self.processes[rank])[0])
        return self._ended[rank]

    def stop(self, kill: bool = False) -> list[int]:
        """Ends the ranks: they leave as a program does that returns. Returns how they ended."""
        gone = [self.processes[rank] for rank in self._ended]
        for process, channel in zip(self.processes, self.channels):
            if kill and process not in gone:
                os.kill(process, signal.SIGKILL)
            channel.shutdown(socket.SHUT_WR)
        ended = [self.status(rank) for rank in range(len(self.processes))]
        for one in (*self._reports, *self.channels):
            one.close()
        self.processes, self.channels, self._reports = [], [], []
        self._gone, self._ended = set(), {}
        return ended


# --- In a rank --------------------------------------------------------------------------------------------------------


def place() -> tuple[int, int]:
    """This rank's number, and how many there are."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def folder() -> Path:
    """A directory of these ranks, empty at first."""
    return Path(os.environ["HVD_TEST_FOLDER"])


def join(name: str = "store", seconds: float = TIMEOUT, **more: Any) -> None:
    """Makes the default group, over a file that ranks give the same name."""
    import torch.distributed as dist

    rank, size = place()
    more.setdefault("store", dist.FileStore(str(folder() / name), size))
    dist.init_process_group("hvd", rank=rank, world_size=size, timeout=timedelta(seconds=seconds), **more)


def same(result: Any, expected: Any) -> None:
    """Compares types, shapes and bits."""
    import torch

    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    plain = [t.detach().resolve_conj().resolve_neg().reshape(-1) for t in (result, expected)]
    left, right = (t.clone(memory_format=torch.contiguous_format).view(torch.uint8) for t in plain)
    assert torch.equal(left, right), (result, expected)


def _serve(channel: socket.socket, request: dict[str, Any], rank: int) -> None:
    from rank_worker import load

    if request["joined"]:
        join()
    report = channel.makefile("w")
    for line in channel.makefile("r"):
        path, function, arguments = json.loads(line)
        answer, failure = None, None
        try:
            answer = getattr(load(path), function)(**arguments)
        except SystemExit:
            raise  # it ends as a program does
        except BaseException:
            failure = traceback.format_exc()
        report.write(json.dumps([answer, failure]) + "\n")
        report.flush()


def _fork_ranks(request: dict[str, Any], control: socket.socket) -> tuple[list[int], list[socket.socket]]:
    import ctypes
    import faulthandler

    import torch.distributed as dist

    processes: list[int] = []
    ends: list[socket.socket] = []
    own = tempfile.mkdtemp(dir=sys.argv[2])
    for rank in range(request["size"]):
        end, channel = socket.socketpair()
        process = os.fork()
        if process != 0:
            channel.close()
            processes.append(process)
            ends.append(end)
            continue
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the process that forks it ends
        for other in (*ends, end, control):
            other.close()
        faulthandler.register(signal.SIGUSR1)
        os.environ.update(request["environment"])
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(request["size"]), HVD_TEST_FOLDER=own)
        dist.set_debug_level_from_env()
        try:
            _serve(channel, request, rank)
        except SystemExit:
            raise
        except BaseException:
            traceback.print_exc()
            os._exit(3)
        if not request["whole_exit"]:
            atexit._run_exitfuncs()
            os._exit(0)
        sys.exit(0)
    return processes, ends


def main() -> None:
    """Forks ranks until the socket is closed."""
    import gc
    import warnings

    import torch._dynamo  # DistributedDataParallel and gradients of functional collectives import it
    import torch.distributed._functional_collectives
    import torch.distributed.nn.functional  # noqa: F401

    import hvd.torch.distributed.process_group  # noqa: F401

    warnings.simplefilter("ignore")  # PyTorch tells of new names of its functions
    gc.collect()
    gc.freeze()  # what ranks collect is their own
    control = socket.socket(fileno=int(sys.argv[1]))
    for line in control.makefile("r"):
        request = json.loads(line)
        if "wait" in request:
            control.sendall(str(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])).encode())
            continue
        processes, ends = _fork_ranks(request, control)
        socket.send_fds(control, [json.dumps(processes).encode()], [end.fileno() for end in ends])
        for end in ends:
            end.close()


if __name__ == "__main__":
    main()
