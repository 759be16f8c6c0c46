"""hvd/launcher/network.py: finds the network interfaces of a job on several hosts, before it starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hvd.launcher.errors import LaunchError
from hvd.remote import network

COMMAND = [sys.executable, "-I", "-S", network.__file__]
LINE = 1 << 24  # the most bytes in a line printed by a host

_T = TypeVar("_T")


def find_interfaces(
    names: Sequence[str], others: Sequence[str], agent: str, env: Mapping[str, str], limit: float
) -> tuple[list[list[str]], list[list[str]], str, tuple[str, list[int]]]:
    """For each host of `names`, its interfaces and its InfiniBand ports; the address by which all reach this host; and
    the first host's address with two free ports.

    `others` are reached by `agent HOST COMMAND`. This host takes part even without a rank, because mpiexec listens
    here. Raises LaunchError with the hosts that do not answer or, if no interface is common, with all addresses.
    """
    asked = [(name, name in others) for name in names]
    if all(far for _, far in asked):
        asked.append(("this host", False))
    told, results = _completed(_ask_all(asked, agent, env, limit))
    try:
        chosen = network.choose(told, results, len(names))
    except network.NoCommonNetwork as error:
        raise LaunchError(str(error)) from None

    def address(host: int) -> str:
        return next(str(address) for name, address, _ in told[host]["interfaces"] if name == chosen[host][0])

    here = next(index for index, (_, far) in enumerate(asked) if not far)
    devices = [host["devices"] for host in told[: len(names)]]
    return chosen[: len(names)], devices, address(here), (address(0), told[0]["free"])


def ask_host(name: str, agent: str, env: Mapping[str, str], limit: float) -> dict[str, Any]:
    """The first line of hvd/remote/network.py on one host, reached by `agent NAME COMMAND`."""

    async def ask() -> dict[str, Any]:
        async with _running(name, [agent, name, shlex.join(COMMAND)], env) as one:
            return dict(await one.line(limit))

    return _completed(ask())


def _completed(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`. Runs on another thread if this one has an event loop, as in a notebook cell."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as worker:
        return worker.submit(asyncio.run, work).result()


async def _ask_all(
    asked: Sequence[tuple[str, bool]], agent: str, env: Mapping[str, str], limit: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    secret = secrets.token_hex(32)
    async with contextlib.AsyncExitStack() as stack:
        running = []
        for name, far in asked:
            command = [agent, name, shlex.join(COMMAND)] if far else COMMAND
            running.append(await stack.enter_async_context(_running(name, command, env)))
        told = await _together([one.line(limit) for one in running])
        for one, (name, _) in zip(told, asked):
            one["host"] = name
        probing = min(limit, network.LONGEST)
        for me, one in enumerate(running):
            one.say({"secret": secret, "me": me, "hosts": told, "limit": probing})
        return told, await _together([one.line(limit + probing) for one in running])


async def _together(lines: list[Any]) -> list[dict[str, Any]]:
    """All hosts' lines. Raises LaunchError with all errors."""
    done = await asyncio.gather(*lines, return_exceptions=True)
    problems = [str(one) for one in done if isinstance(one, LaunchError)]
    if problems:
        raise LaunchError("; ".join(problems))
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return done  # type: ignore[return-value]


class _Running:
    """The program on one host."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    def say(self, what: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(what).encode() + b"\n")

    async def line(self, limit: float) -> dict[str, Any]:
        """The next line that it prints. Skips earlier output of a shell's start-up files."""
        assert self.process.stdout and self.process.stderr
        try:
            while line := await asyncio.wait_for(self.process.stdout.readline(), limit):
                with contextlib.suppress(ValueError):
                    if isinstance(found := json.loads(line), dict):
                        return found
        except asyncio.TimeoutError:
            raise LaunchError(f"{self.name} did not answer within {limit:g} s (--start-timeout)") from None
        error = (await self.process.stderr.read()).decode("utf-8", "replace")
        raise LaunchError(f"{self.name}: its network interfaces could not be found: {' '.join(error.split())}")


@contextlib.asynccontextmanager
async def _running(name: str, command: Sequence[str], env: Mapping[str, str]) -> Any:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(env), stdin=pipe, stdout=pipe, stderr=pipe, limit=LINE, start_new_session=True
    )
    try:
        yield _Running(name, process)
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 2)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
