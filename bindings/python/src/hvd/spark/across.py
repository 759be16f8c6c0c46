"""hvd/spark/across.py: what a job whose tasks are on several hosts needs besides: an MPI that is the same everywhere,
how its ranks find each other, and the network that they use.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from typing import Any

from hvd.remote import network
from hvd.spark.hub import Hub
from hvd.spark.link import Link
from hvd.spark.pmi import PmiServer, relay


def refusal(context: Any, names: Sequence[str]) -> str:
    """Why the ranks cannot use MPI; "" where they can. Every task calls it."""
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
    """The MPI of this executor, or what is wrong with it."""
    try:
        from hvd import _core_mpi
    except ImportError as error:
        return "", f"hvd was built there without MPICH, or MPICH is gone ({error}); install MPICH and build hvd again"
    name = " ".join(str(_core_mpi.library()).split())
    if "Open MPI" in name:
        return "", f"hvd was built there with {name[:40]}; on Spark it has to be MPICH"
    return name, ""


def serve(hub: Hub, hosts: Sequence[int], names: Sequence[str], seconds: float) -> None:
    """Has the first task answer the ranks of MPICH, which have to begin within `seconds` of the first."""
    server = PmiServer(hosts, hub.blame)
    one_at_a_time = threading.Lock()

    def late() -> None:
        missing = [f"rank {rank} on {names[rank]}" for rank in range(len(hosts)) if rank not in server.begun]
        if missing:
            hub.refuse(f"{', '.join(missing)} did not join within {seconds:g} s (start_timeout) of the first rank")

    timer = threading.Timer(seconds, late)
    timer.daemon = True

    def handle(rank: int, words: list[Any], payload: bytes) -> None:
        with one_at_a_time:
            if not server.begun:
                timer.start()
            server.begun.add(rank)
            replies = server.handle(rank, payload.decode("ascii", "replace"))
        for each, line in replies:
            hub.send(each, "pmi", payload=line.encode() + b"\n")

    hub.handle("pmi", handle)


class Pmi:
    """A rank's way to the first task."""

    def __init__(self, rank: int, size: int, link: Link) -> None:
        self._mine, self.theirs = socket.socketpair()
        self.variables = {
            "PMI_FD": str(self.theirs.fileno()),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(size),
        }
        threading.Thread(target=relay, args=(self._mine, link), name="hvd-pmi", daemon=True).start()

    def answer(self, data: bytes) -> None:
        """Passes on an answer to the rank."""
        try:
            self._mine.sendall(data)
        except OSError:  # the rank has ended
            pass

    def close(self) -> None:
        """Closes both ends."""
        self.theirs.close()
        self._mine.close()


def interface_variables(environ: dict[str, str]) -> dict[str, str]:
    """What makes MPICH, NCCL and Gloo use the interfaces that HVD_NETWORK_INTERFACES names."""
    names = [name.strip() for name in environ.get("HVD_NETWORK_INTERFACES", "").split(",") if name.strip()]
    return network.variables(names, network.devices()) if names else {}
