"""hvd/spark/across.py: additions for a job whose tasks are on several hosts: a check that all have the same MPI, how
ranks find each other, and the network that they use.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hvd.launcher.errors import LaunchError
from hvd.launcher.supervisor.interfaces import named, of_this_host, variables
from hvd.remote import network
from hvd.remote.pmi import RANK_VARIABLES, Server
from hvd.spark.hub import Hub
from hvd.spark.link import Link


def refusal(context: Any, names: Sequence[str]) -> str:
    """Why the ranks cannot use MPI; "" if they can. Every task calls it."""
    found = [json.loads(text) for text in context.allGather(json.dumps(_library()))]
    for rank, (version, problem) in enumerate(found):
        if problem:
            return f"the executors are on several hosts, which need MPICH, and rank {rank} on {names[rank]}: {problem}"
    for rank, (version, _) in enumerate(found):
        if version != found[0][0]:
            return (
                f"rank 0 on {names[0]} has {found[0][0]}, and rank {rank} on {names[rank]} has {version}; "
                "install the same MPICH on all executors"
            )
    return ""


def _library() -> tuple[str, str]:
    """The MPI of this executor, or the problem with it."""
    try:
        from hvd import _core_mpi
    except ImportError as error:
        return "", f"hvd was built there without MPICH, or cannot load it ({error}); install MPICH and build hvd again"
    name = " ".join(str(_core_mpi.library()).split())
    if "Open MPI" in name:
        return "", f"hvd was built there with {name[:40]}; on Spark it has to be MPICH"
    return name, ""


def interface_variables(
    context: Any, rank: int, hosts: Sequence[int], secret: bytes, environ: Mapping[str, str]
) -> dict[str, str]:
    """Variables that make MPICH, NCCL and Gloo use the interfaces over which all hosts reach each other. Every task
    calls it.

    The first rank of each host searches for them, unless the driver's HVD_NETWORK_INTERFACES names them. Raises
    LaunchError on all tasks if some host has no interface that all others reach.
    """
    if names := named(environ):
        here, problem = of_this_host(names, socket.gethostname())
        if problems := sorted({json.loads(text) for text in context.allGather(json.dumps(problem))} - {""}):
            raise LaunchError("\n".join(problems))
        return variables(here)
    firsts = sorted(set(hosts))
    with _prober() if rank in firsts else contextlib.nullcontext() as prober:
        told = _gathered(context, _line(prober))
        order = {"secret": secret.hex(), "me": firsts.index(hosts[rank]), "hosts": told, "limit": network.LONGEST}
        if prober:
            prober.stdin.write(json.dumps(order) + "\n")
            prober.stdin.flush()
        found = _gathered(context, _line(prober))
    try:
        chosen = network.choose(told, found)
    except network.NoCommonNetwork as error:
        raise LaunchError(str(error)) from None
    me = firsts.index(hosts[rank])
    return variables(chosen[me], told[me]["devices"])


def _gathered(context: Any, own: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of the first ranks of all hosts, by host."""
    everywhere = [json.loads(text) for text in context.allGather(json.dumps(own))]
    return [one for one in everywhere if one]


@contextlib.contextmanager
def _prober() -> Iterator[Any]:
    command = [sys.executable, "-I", "-S", network.__file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.communicate("", timeout=2)
        process.kill()
        process.wait()


def _line(prober: Any) -> dict[str, Any]:
    """The prober's next line, at most network.LONGEST seconds after its order; {} on a rank without a prober."""
    if not prober:
        return {}
    if not (line := prober.stdout.readline()):
        raise RuntimeError(f"{network.__file__} has ended on {socket.gethostname()}")  # ends the whole stage
    return dict(json.loads(line))


def serve(hub: Hub, hosts: Sequence[int], names: Sequence[str], seconds: float) -> None:
    """Makes the first task answer MPICH's ranks, which must all begin within `seconds` of the first one."""
    firsts = sorted(set(hosts))
    server = Server([firsts.index(host) for host in hosts])
    one_at_a_time = threading.Lock()

    def late() -> None:
        missing = [f"rank {rank} on {names[rank]}" for rank in range(len(hosts)) if rank not in server.initialised]
        if missing:
            hub.refuse(f"{', '.join(missing)} did not join within {seconds:g} s (start_timeout) of the first rank")

    timer = threading.Timer(seconds, late)
    timer.daemon = True

    def handle(rank: int, words: list[Any], payload: bytes) -> None:
        with one_at_a_time:
            first = not server.initialised
            replies = server.answer(rank, payload.decode("ascii", "replace"))
            if first and server.initialised:
                timer.start()
            if server.aborted:
                hub.blame(*server.aborted)
        for each, line in replies:
            hub.send(each, "pmi", payload=line.encode())

    hub.handle("pmi", handle)


class Pmi:
    """A rank's connection to the first task."""

    def __init__(self, rank: int, size: int, link: Link) -> None:
        self._mine, self.theirs = socket.socketpair()
        self.variables = dict(zip(RANK_VARIABLES, map(str, (self.theirs.fileno(), rank, size))))
        threading.Thread(target=self._pass_on, args=(link,), name="hvd-pmi", daemon=True).start()

    def _pass_on(self, link: Link) -> None:
        """Forwards the rank's requests, line by line, until its end."""
        with contextlib.suppress(OSError), self._mine.makefile("rb") as lines:
            for line in lines:
                link.send("pmi", payload=line)

    def answer(self, data: bytes) -> None:
        """Forwards an answer to the rank."""
        try:
            self._mine.sendall(data)
        except OSError:  # the rank has ended
            pass

    def close(self) -> None:
        """Closes both ends."""
        self.theirs.close()
        self._mine.close()

