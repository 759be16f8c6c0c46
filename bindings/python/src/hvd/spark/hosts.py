"""hvd/spark/hosts.py: what a job needs whose executors are on several hosts: a network that all reach, and MPI.

Ranks speak MPI across hosts. They find each other by PMI (hvd/remote/pmi.py): what a rank asks goes through its task's
connection to the first task, which answers. MPICH's own Hydra would do it with processes of its own. But it keeps the
environment of one executor for all, does not notice a rank that exits with an error, waits for ever for a host that
does not come, and tells every stranger who connects the ranks' environment.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Callable

from hvd.launcher.errors import LaunchError
from hvd.remote import network, pmi


def numbered(hosts: Sequence[int]) -> list[int]:
    """Numbers of hosts from 0 in the order of their first ranks, from the lowest rank on each (see place.hosts_of)."""
    firsts = sorted(set(hosts))
    return [firsts.index(host) for host in hosts]


def mpi_library() -> str:
    """The MPI with which this hvd runs across hosts; empty where it was built without one."""
    try:
        from hvd import _core_mpi
    except ImportError:
        return ""
    return str(_core_mpi.library())


def find_network(context: Any, rank: int, hosts: Sequence[int], secret: bytes, limit: float) -> dict[str, str]:
    """The variables by which this rank uses the interfaces that all hosts reach. Every task has to call it.

    The first rank of each host asks for all of it. LaunchError, on all tasks, where some host has no such interface.
    """
    asks = hosts[rank] == rank
    with _program() if asks else contextlib.nullcontext() as program:
        own = {**_line(program), "mpi": mpi_library()} if program else {}
        told = [json.loads(text) for text in context.allGather(json.dumps(own))]
        told = [one for one in told if one]
        me = numbered(hosts)[rank]
        result: dict[str, Any] = {}
        if program:
            order = {"secret": secret.hex(), "me": me, "hosts": told, "limit": limit}
            assert program.stdin
            program.stdin.write(json.dumps(order) + "\n")
            program.stdin.flush()
            result = _line(program)
        results = [json.loads(text) for text in context.allGather(json.dumps(result))]
    _check_mpi(told)
    try:
        chosen = network.choose(told, [one for one in results if one])
    except network.NoCommonNetwork as error:
        raise LaunchError(str(error)) from None
    return network.variables(chosen[me], told[me]["devices"])


@contextlib.contextmanager
def _program() -> Any:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", network.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(OSError):
            assert process.stdin
            process.stdin.close()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout
        process.stdout.close()


def _line(program: subprocess.Popen[str]) -> dict[str, Any]:
    """What it prints next, which it does after `limit` seconds at the latest."""
    assert program.stdout
    line = program.stdout.readline()
    if not line:
        raise LaunchError(f"{socket.gethostname()}: its network interfaces could not be found: {network.__file__} ended")
    return dict(json.loads(line))


def _check_mpi(told: Sequence[dict[str, Any]]) -> None:
    """Raises LaunchError, the same on all tasks, unless all hosts have one MPI that asks by PMI-1."""
    for one in told:
        if not one["mpi"]:
            raise LaunchError(
                f"the executors are on several hosts, between which ranks speak MPI, and on {one['host']} hvd was built "
                "without one: install MPICH (Debian: libmpich-dev) and then hvd on all hosts"
            )
        if one["mpi"] != told[0]["mpi"]:
            raise LaunchError(
                f"{told[0]['host']} has {told[0]['mpi']} and {one['host']} has {one['mpi']}; install the same on both"
            )
        if "Open MPI" in one["mpi"]:
            raise LaunchError(
                f"on {one['host']} hvd was built with {one['mpi']}, whose ranks only its own mpirun can start; across "
                "hosts of Spark it needs MPICH: install libmpich-dev and then hvd on all hosts"
            )


class Asking:
    """The socket by which a rank asks its launcher; `send(line)` passes on what it asks."""

    def __init__(self, rank: int, size: int, send: Callable[[bytes], Any]) -> None:
        self._mine, self._theirs = socket.socketpair()
        self._send = send
        self.passed = self._theirs.fileno()
        self.variables = dict(zip(pmi.RANK_VARIABLES, (str(self.passed), str(rank), str(size))))

    def start(self) -> None:
        """Begins to listen, once the rank has been started."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._mine.makefile("rb") as lines:
            for line in lines:
                self._send(line)

    def answer(self, text: bytes) -> None:
        """Gives an answer to the rank."""
        with contextlib.suppress(OSError):  # it has ended
            self._mine.sendall(text)

    def close(self) -> None:
        """Ends it; its rank may live on."""
        for one in (self._mine, self._theirs):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class Answering:
    """The first task's part: it answers all ranks, by `send(rank, "pmi", payload=line)`."""

    def __init__(self, hosts: Sequence[int], send: Callable[..., Any]) -> None:
        self._server = pmi.Server(numbered(hosts))
        self._send = send
        self._one_at_a_time = threading.Lock()

    def __call__(self, rank: int, _: list[Any], payload: bytes) -> None:
        with self._one_at_a_time:
            for other, answer in self._server.answer(rank, payload.decode("utf-8", "replace")):
                self._send(other, "pmi", payload=answer.encode())
