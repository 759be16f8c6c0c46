"""hvd/spark/pmi.py: PMI-1, by which ranks of MPICH find each other, served over the job's own connections.

The first task is the server (wire protocol 1.1 of MPICH's simple PMI). Each rank has one end of a socket pair, PMI_FD,
whose other end its task holds: no port is open for it, and no launcher of MPICH is needed.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Callable

from hvd.spark.link import Link

Replies = list[tuple[int, str]]  # rank, line

_LARGEST = 1 << 16


class PmiServer:
    """Answers the commands of all ranks. `abort(rank, code)` is called where one asks for the end of the job."""

    def __init__(self, hosts: Sequence[int], abort: Callable[[int, int], None]) -> None:
        self._size = len(hosts)
        self._pairs = {"PMI_process_mapping": mapping(hosts)}
        self.begun: set[int] = set()  # ranks that have asked for something
        self._waiting: set[int] = set()
        self._abort = abort

    def handle(self, rank: int, line: str) -> Replies:
        """What to answer to a line."""
        words = dict(part.split("=", 1) for part in line.split() if "=" in part)
        command = words.get("cmd", "")
        if command == "barrier_in":
            self._waiting.add(rank)
            if len(self._waiting) < self._size:
                return []
            self._waiting.clear()
            return [(each, "cmd=barrier_out rc=0") for each in range(self._size)]
        if command == "put":
            key = words.get("key", "")
            # A value may hold spaces and signs of equality.
            self._pairs.setdefault(key, line.partition(" value=")[2])
            return [(rank, "cmd=put_result rc=0 msg=success")]
        if command == "get":
            value = self._pairs.get(words.get("key", ""))
            if value is None:
                return [(rank, "cmd=get_result rc=-1 msg=key_not_found value=unknown")]
            return [(rank, f"cmd=get_result rc=0 msg=success value={value}")]
        if command == "abort":
            code = words.get("exitcode", "1")
            self._abort(rank, int(code) if code.lstrip("-").isdigit() else 1)
            return []
        answers = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096 rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_my_kvsname": "cmd=my_kvsname kvsname=hvd rc=0",
            "get_universe_size": f"cmd=universe_size size={self._size} rc=0",
            "finalize": "cmd=finalize_ack rc=0",
        }
        return [(rank, answers.get(command, f"cmd={command} rc=-1 msg=unsupported"))]


def mapping(hosts: Sequence[int]) -> str:
    """Which ranks are on one host, in MPICH's words: blocks of first node, number of nodes, ranks on each."""
    nodes = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    blocks: list[list[int]] = []
    for host in hosts:
        if blocks and blocks[-1][0] == nodes[host]:
            blocks[-1][2] += 1
        else:
            blocks.append([nodes[host], 1, 1])
    return f"(vector,{','.join(f'({node},{count},{ranks})' for node, count, ranks in blocks)})"


def relay(rank_end: socket.socket, link: Link) -> None:
    """Passes on what a rank asks, line by line, until its end."""
    rest = b""
    while True:
        try:
            data = rank_end.recv(_LARGEST)
        except OSError:
            return
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            link.send("pmi", payload=line)
