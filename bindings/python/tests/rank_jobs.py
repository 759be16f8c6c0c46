"""Jobs for tests: ranks that stay from test to test, forked from a process that imports frameworks once."""

from __future__ import annotations

import array
import inspect
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import pytest

WORKER = Path(__file__).with_name("rank_worker.py")
# Seconds for one function on all ranks: a deadlock, not a slow machine, is what takes so long.
LIMIT = float(os.environ.get("HVD_TEST_LIMIT", "60"))
IMPORTS = LIMIT + 240  # to start and to import frameworks, which a busy machine does ten times slower


_NOT_INHERITED = ("HOROVOD_", "HVD_", "PMI_", "OMPI_", "SLURM_")


def rank_environment(rank: int, size: int, job: str, **more: str) -> dict[str, str]:
    """What a launcher would tell a rank of one host."""
    place = {
        "HOROVOD_RANK": rank, "HOROVOD_SIZE": size, "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": size,
        "HOROVOD_CROSS_RANK": 0, "HOROVOD_CROSS_SIZE": 1, "HVD_JOB": job, "OMP_NUM_THREADS": 1,
        "HVD_LAUNCH": 1,  # the name is drawn for each launch: nobody else has it, and joining need not wait for others
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
    return {**clean, **{name: str(value) for name, value in place.items()}, **more}


class Source:
    """A process from which ranks are forked; it starts when it is needed."""

    def __init__(self, program: Path, not_inherited: tuple[str, ...], environment: dict[str, str]) -> None:
        self._program, self._not_inherited, self._environment = program, not_inherited, environment
        self._process: subprocess.Popen[bytes] | None = None
        self.loaded: set[str] = set()  # files of test modules

    def ask(self, **request: Any) -> tuple[Any, list[int]]:
        """Its answer, with the descriptors that came along."""
        if self._process is None:
            self._channel, other = socket.socketpair()
            self._folder = tempfile.mkdtemp(prefix="hvd-source-")  # for what TensorFlow in ranks that are killed leaves
            clean = {k: v for k, v in os.environ.items() if not k.startswith(self._not_inherited)}
            self._process = subprocess.Popen(
                [sys.executable, str(self._program), str(other.fileno())], stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env={**clean, "OMP_NUM_THREADS": "1", "TMPDIR": self._folder, **self._environment},
            )
            other.close()
            self._channel.settimeout(IMPORTS)
        self._channel.sendall(json.dumps(request).encode() + b"\n")
        size = array.array("i").itemsize
        text, more, _, _ = self._channel.recvmsg(65536, socket.CMSG_SPACE(16 * size))
        self._channel.settimeout(LIMIT)
        descriptors = array.array("i")
        for _, _, data in more:
            descriptors.frombytes(data[: len(data) - len(data) % size])
        return json.loads(text), list(descriptors)

    def load(self, file: str) -> None:
        """Imports a test module, for ranks that are forked later."""
        if self._process is not None:
            self._channel.settimeout(IMPORTS)
        problem, _ = self.ask(load=file)
        if problem is not None:
            pytest.fail(problem, pytrace=False)
        self.loaded.add(file)

    def stop(self) -> None:
        """Ends it, after its ranks."""
        if self._process is not None:
            self._channel.close()
            self._process.wait(LIMIT)
            self._process = None
            shutil.rmtree(self._folder, ignore_errors=True)


_sources: dict[tuple[tuple[str, str], ...], Source] = {}


def stop_sources() -> None:
    """Ends the processes from which ranks were forked."""
    for source in _sources.values():
        source.stop()


class Ranks:
    """A job of ``size`` processes that run functions of test modules. The variables are there before they import."""

    whole_exit = False

    def __init__(self, size: int, **environment: str) -> None:
        self.size = size
        self.processes: list[int] = []
        self.channels: list[socket.socket] = []
        key = tuple(sorted(environment.items()))
        self._source = _sources.setdefault(key, Source(WORKER, _NOT_INHERITED, environment))
        self._loaded: set[str] = set()
        self._reports: list[Any] = []
        self._gone: set[int] = set()
        self._ended: dict[int, int] = {}

    def _prepare(self, file: str) -> None:
        """Starts the ranks again if the module is new: all have imported it before one waits in it for another."""
        if file not in self._source.loaded:
            self._source.load(file)
        if file not in self._loaded:
            self.stop()
            self._loaded = set(self._source.loaded)

    def _request(self) -> dict[str, Any]:
        job = f"pytest-{secrets.token_hex(8)}"
        return {"environments": [rank_environment(r, self.size, job, HVD_TIMEOUT="40") for r in range(self.size)]}

    def start(self) -> None:
        """Forks the ranks, if there are none."""
        if self.processes:
            return
        self.processes, descriptors = self._source.ask(whole_exit=self.whole_exit, **self._request())
        self.channels = [socket.socket(fileno=one) for one in descriptors]
        self._reports = [channel.makefile("r") for channel in self.channels]

    def run(self, function: Callable[..., Any], dead: Any = (), **arguments: Any) -> list[Any]:
        """Calls the function on all ranks, and returns what they return, of JSON. Fails with the tracebacks of ranks
        that raised, or hung, or died. Of the ranks in ``dead`` death is expected, and nothing else.
        """
        file = inspect.getfile(function)
        self._prepare(file)
        self.start()
        order = json.dumps([file, function.__name__, arguments]) + "\n"
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
            self._ended[rank] = int(self._source.ask(wait=self.processes[rank])[0])
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


class Job(Ranks):
    """Ranks of one test, with variables of their own, which end as programs do; ``joined``: they have called init()."""

    whole_exit = True

    def __init__(self, size: int, joined: bool = True, **own: str) -> None:
        super().__init__(size)
        self._joined, self._own = joined, own

    def _request(self) -> dict[str, Any]:
        environments = [{**environment, **self._own} for environment in super()._request()["environments"]]
        return {"environments": environments, "joined": self._joined}
