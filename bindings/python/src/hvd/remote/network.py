"""hvd/remote/network.py: finds the network interfaces over which all hosts of a job reach each other.

Some interfaces lead nowhere, such as a second card without a cable or the bridge of a container engine, which has the
same address on every host. So names and addresses prove nothing: each host connects to every address of every other
host. The answering host proves with the job's secret which host it is, because an address used on several hosts leads
back to the asking host. IPv4 only, like MPICH's Hydra.

This file is also a program, run on each host by its path alone (python -I -S), so it imports nothing of hvd. It
exchanges lines of JSON. First it prints the host's data, {"host", "port", "interfaces": [[name, address, Mbit/s], ...],
"devices": [...], "free": [port, port]}. Then it reads {"secret", "me": index, "hosts": [the data of each host], "limit":
seconds}, and prints {"reached": {index: [address, ...]}, "refused": {address: why}}. It ends when its standard input
ends, because other hosts may still connect until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import random
import resource
import secrets
import socket
import struct
import sys
from pathlib import Path
from typing import Any

NONCE = 16  # bytes
DIGEST = 32  # bytes of SHA-256
LONGEST = 10.0  # seconds after which a connection within a cluster no longer succeeds
SETTLED = 0.5  # seconds after the last answer, if each host has answered; addresses still silent then lead nowhere
SIOCGIFADDR, SIOCGIFFLAGS, UP, LOOPBACK = 0x8915, 0x8913, 0x1, 0x8


class NoCommonNetwork(Exception):
    """No interface of some host can be reached by all others. The text lists all addresses with their results."""


class _Stranger(Exception):
    """The answering program does not know the job's secret."""


def interfaces() -> list[list[Any]]:
    """[name, IPv4 address, Mbit/s or -1] of each interface of this host that is up, without loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("40s", name.encode())
            with contextlib.suppress(OSError):  # no IPv4 address, or gone
                flags = struct.unpack("16xH22x", fcntl.ioctl(asking, SIOCGIFFLAGS, request))[0]
                if flags & UP and not flags & LOOPBACK:
                    address = fcntl.ioctl(asking, SIOCGIFADDR, request)[20:24]
                    found.append([name, socket.inet_ntoa(address), _speed(name)])
    return found


def _speed(name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/sys/class/net", name, "speed").read_text())
    return -1


def devices() -> list[str]:
    """InfiniBand and RoCE ports that are up, by their names in UCX: mlx5_0:1."""
    return sorted(
        f"{port.parent.parent.name}:{port.name}"
        for port in Path("/sys/class/infiniband").glob("*/ports/*")
        if "ACTIVE" in _text(port / "state")
    )


def free_ports() -> list[int]:
    """Two unused ports below those that Linux assigns by itself. They stay free until the guard of rank 0 takes them."""
    found: set[int] = set()
    for port in (*random.sample(range(10000, 32768), 100), 0, 0):
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind(("", port))
            found.add(int(trial.getsockname()[1]))
        if len(found) == 2:
            return list(found)
    raise OSError("no two ports are free")


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


class Prober:
    """One host's part: answers other hosts' connections, and connects to all other hosts."""

    def __init__(self) -> None:
        self.me = -1
        self.secret = b""
        self.known = asyncio.Event()  # set as soon as `me` and `secret` are
        self.server: asyncio.Server | None = None
        self.asking: dict[asyncio.StreamWriter, None] = {}  # oldest first
        # A stranger who holds connections open leaves descriptors for the job's own.
        self.most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2

    async def listen(self) -> int:
        """Starts to answer on all addresses. Returns the port."""
        # asyncio accepts as many connections as its backlog before _answer runs for one of them.
        self.server = await asyncio.start_server(self._answer, "0.0.0.0", 0, backlog=min(128, self.most // 2))
        return int(self.server.sockets[0].getsockname()[1])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Sends this host's index to a peer that knows the secret, and nothing to any other."""
        self.asking[writer] = None
        if len(self.asking) > self.most:
            oldest = next(iter(self.asking))
            del self.asking[oldest]
            oldest.transport.abort()
        endings = (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.CancelledError)
        with contextlib.suppress(*endings):  # the last: this program ends
            nonce = secrets.token_bytes(NONCE)
            writer.write(nonce)
            asked = await asyncio.wait_for(reader.readexactly(NONCE + DIGEST), 30)
            await asyncio.wait_for(self.known.wait(), 30)
            theirs, proof = asked[:NONCE], asked[NONCE:]
            if hmac.compare_digest(proof, _proof(self.secret, b"ask", nonce + theirs)):
                me = struct.pack(">i", self.me)
                writer.write(me + _proof(self.secret, b"answer", theirs + nonce + me))
                await writer.drain()
        self.asking.pop(writer, None)  # it may have been removed to make room
        writer.close()

    async def _ask(self, address: str, port: int) -> int:
        """The index of the host that answers at an address. Raises OSError if none does, _Stranger for another program.
        """
        reader, writer = await asyncio.open_connection(address, port)
        try:
            nonce = await reader.readexactly(NONCE)
            mine = secrets.token_bytes(NONCE)
            writer.write(mine + _proof(self.secret, b"ask", nonce + mine))
            answer = await reader.readexactly(4 + DIGEST)
            me, proof = answer[:4], answer[4:]
            if not hmac.compare_digest(proof, _proof(self.secret, b"answer", mine + nonce + me)):
                raise _Stranger
            return int(struct.unpack(">i", me)[0])
        except asyncio.IncompleteReadError:
            raise _Stranger from None
        finally:
            writer.close()

    async def probe(self, hosts: list[dict[str, Any]], limit: float) -> dict[str, Any]:
        """Connects to all addresses of all other hosts. The file's docstring describes the result."""
        reached: dict[int, list[str]] = {index: [] for index in range(len(hosts)) if index != self.me}
        refused: dict[str, str] = {}

        async def one(index: int, address: str) -> None:
            try:
                who = await self._ask(address, hosts[index]["port"])
                if who == index:
                    reached[index].append(address)
                else:
                    refused[address] = f"leads to {'itself' if who == self.me else hosts[who]['host']}"
            except _Stranger:
                refused[address] = "the peer does not know the job's secret"
            except OSError as error:
                refused[address] = os.strerror(error.errno) if error.errno else str(error)

        asked = {
            asyncio.ensure_future(one(index, address)): address
            for index in reached
            for _, address, _ in hosts[index]["interfaces"]
        }
        waiting = set(asked)
        end = asyncio.get_running_loop().time() + limit
        while waiting and (left := end - asyncio.get_running_loop().time()) > 0:
            settled = all(reached.values())
            done, waiting = await asyncio.wait(
                waiting, timeout=min(left, SETTLED) if settled else left, return_when=asyncio.FIRST_COMPLETED
            )
            if settled and not done:
                break
        for task in waiting:
            task.cancel()
            refused[asked[task]] = "no answer"
        return {"reached": reached, "refused": refused}


def _proof(secret: bytes, what: bytes, text: bytes) -> bytes:
    return hmac.new(secret, what + b":" + text, hashlib.sha256).digest()


def choose(hosts: list[dict[str, Any]], results: list[dict[str, Any]], ranked: int | None = None) -> list[list[str]]:
    """For each host, the names of its interfaces that all others reach, the fastest first.

    `hosts` and `results`: the two lines printed by each host. The first `ranked` hosts (default: all) have ranks. If
    some names work on all of these, only those names are returned for them. Raises NoCommonNetwork for a host without
    an interface that all others reach.
    """
    good: list[list[tuple[str, int]]] = []
    for index, host in enumerate(hosts):
        others = [result["reached"][str(index)] for i, result in enumerate(results) if i != index]
        names = [(name, speed) for name, address, speed in host["interfaces"] if all(address in one for one in others)]
        good.append(names)
    if bad := [index for index, names in enumerate(good) if not names]:
        raise NoCommonNetwork(_what_was_tried(hosts, results, bad))
    common = set.intersection(*({name for name, _ in names} for names in good[:ranked]))
    chosen = [[one for one in names if one[0] in common] or names for names in good]
    return [[name for name, _ in sorted(names, key=lambda one: -one[1])] for names in chosen]


def _what_was_tried(hosts: list[dict[str, Any]], results: list[dict[str, Any]], bad: list[int]) -> str:
    names = ", ".join(hosts[index]["host"] for index in bad)
    lines = [f"no network interface of {names} can be reached by all other hosts of the job; tried:"]
    for index, host in enumerate(hosts):
        if not host["interfaces"]:
            lines.append(f"  {host['host']} has no interface with an IPv4 address that is up")
        for name, address, _ in host["interfaces"]:
            became: dict[str, list[str]] = {}
            for i, result in enumerate(results):
                if i != index:
                    there = address in result["reached"][str(index)]
                    what = "reached" if there else result["refused"].get(address, "no answer")
                    became.setdefault(what, []).append(hosts[i]["host"])
            said = "; ".join(f"from {', '.join(who)}: {what}" for what, who in became.items())
            lines.append(f"  {host['host']} {name} {address}: {said}")
    lines.append("Name the interfaces to use with --network-interfaces or HVD_NETWORK_INTERFACES, or open the network.")
    return "\n".join(lines)


async def _main() -> None:
    prober = Prober()
    port = await prober.listen()
    own = {"host": socket.gethostname(), "port": port, "interfaces": interfaces(), "devices": devices()}
    own["free"] = free_ports()
    print(json.dumps(own), flush=True)
    loop = asyncio.get_running_loop()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    if not line:
        return
    told = json.loads(line)
    prober.secret, prober.me = bytes.fromhex(told["secret"]), told["me"]
    prober.known.set()
    print(json.dumps(await prober.probe(told["hosts"], told["limit"])), flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(_main())
