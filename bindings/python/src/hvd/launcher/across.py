"""hvd/launcher/across.py: runs a command on ranks of several hosts.

MPICH's mpiexec.hydra starts the ranks or, without an MPI between them, supervisor/spread.py by ssh. Both write each
rank's output to its own pipe, so nothing has to be separated. mpiexec notices neither ranks that end with an error nor
hosts that never answer. So the guard of each rank (supervisor/rank.py) reports the rank's start and end, in marked
lines of the rank's standard error, which are removed here.
"""

from __future__ import annotations

import binascii
import collections
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Callable

from hvd.launcher import hosts
from hvd.launcher.collection import Collection
from hvd.launcher.command import Program, find_program
from hvd.launcher.console import LinePrinter
from hvd.launcher.errors import Interrupted, LaunchError
from hvd.launcher.job import FAREWELL, GRACE, Job
from hvd.launcher.local import MOST_RANKS, check_timeout, extension_file, files_of_ranks, new_identity, ranks_environment
from hvd.launcher.network import ask_host, find_interfaces
from hvd.launcher.reach import reach
from hvd.launcher.streams import OnLine
from hvd.launcher.supervisor import planning, rank as guard, spread, torchrun
from hvd.launcher.supervisor.client import GUARD
from hvd.launcher.supervisor.interfaces import named, stripped, variables
from hvd.remote.errors import RankFailed
from hvd.remote.files import RESULT
from hvd.remote.network import free_ports, interfaces as own_interfaces

STARTER = -1  # the index of mpiexec, or of the other starter, among ranks
NAMES = ("mpiexec.mpich", "mpiexec.hydra")  # not mpiexec, which may be Open MPI's; Intel MPI also has the second


@dataclass
class Results:
    """The contents of ranks' in-memory files (see keep_rank), and estimates of their hosts' clocks."""

    written: dict[int, bytearray] = field(default_factory=dict)  # by rank
    # By host number: ns by which its monotonic clock is behind this host's; and that value when its first rank failed.
    behind: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)


def run_across(
    command: Sequence[str | os.PathLike[str]],
    places: Sequence[tuple[str, int]],
    *,
    env: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
    stdin: int | None = None,
    bind: bool = True,
    pin: str | None = None,
    start_timeout: float = 30.0,
    signals: Sequence[int] = (signal.SIGINT,),
    output_dir: str | os.PathLike[str] | None = None,
    notify: Callable[[str], None] | None = None,
    verbose: Callable[[str], None] | None = None,
    ssh_port: int | None = None,
    ssh_identity: str | None = None,
    interfaces: Sequence[str] = (),
    mpi_args: Sequence[str] = (),
    waiting: Callable[[str], AbstractContextManager[Any]] | None = None,
    results: Results | None = None,
    timeline: Collection | None = None,
    restart: tuple[int, int] = (0, 0),
) -> None:
    """Runs a command on `places`, hosts with their numbers of ranks. Other parameters and errors as in run_local.

    Ranks get HOROVOD_RANK and the rest of their place, HVD_JOB, and the variables of torchrun and of MPI. With
    HVD_TRANSPORT=tcp, and where MPICH's mpiexec is missing, they get HVD_TRANSPORT=tcp and nothing of MPI. Python, hvd,
    the command and the working directory must have the same paths on all hosts. Hosts are reached by ssh without a
    password, or by HYDRA_LAUNCHER and HYDRA_LAUNCHER_EXEC. `mpi_args` are for mpiexec. `interfaces` are for traffic
    between hosts; without them (or HVD_NETWORK_INTERFACES), those over which all hosts reach each other are
    used (see network.py). `results` receives the ranks' results, even if ranks fail; `timeline` receives the events of
    ranks whose hosts write to other files. LaunchError for a host that cannot be reached within start_timeout, or that
    lacks a file. If the starter fails, as when a host is lost, and no rank has failed, RankFailed with rank -1.
    """
    listed = [name for name, _ in places]
    places = [(socket.gethostname() if name in ("localhost", "127.0.0.1") else name, n) for name, n in places]
    size = sum(count for _, count in places)
    if not 1 <= size <= MOST_RANKS:
        raise ValueError(f"np, the number of ranks, is {size}; allowed: 1 to {MOST_RANKS}")
    check_timeout(start_timeout)
    base = ranks_environment(env)
    if sentence := torchrun.remove_outer(base):
        (notify or warnings.warn)(sentence)
    identity = new_identity()
    interfaces = stripped(interfaces) or named(base)
    words, _ = find_program(command, base)
    mpiexec = None if base.get("HVD_TRANSPORT") == "tcp" else next(filter(None, map(shutil.which, NAMES)), None)
    if mpiexec is None:
        if base.get("HVD_TRANSPORT") == "mpi":
            raise LaunchError(f"ranks need MPICH: neither {' nor '.join(NAMES)} is in PATH (Debian: apt-get install mpich)")
        base["HVD_TRANSPORT"] = "tcp"
        for name in [name for name in base if name.startswith("PMI_")]:  # of an MPI around this job
            del base[name]
        if mpi_args:
            (notify or warnings.warn)(f"{' '.join(mpi_args)} has no effect: ranks are started without an MPI")
    token = secrets.token_hex(8)
    options: dict[str, Any] = {
        "token": token,
        "counts": [count for _, count in places],
        "names": listed,
        "pin": pin,
        "plan": [planning.policy_text(pin, bind), extension_file(pin)],
        "result": RESULT if results is not None else None,
        "timeline": timeline.options() if timeline is not None else None,
        "network": [{}] * len(places),
        "interfaces": interfaces,
        "env": {
            "HOROVOD_START_TIMEOUT": f"{start_timeout:g}",
            **identity,
            torchrun.RUN: identity["HVD_JOB"],
            **torchrun.restart_variables(*restart),
        },
        "grace": GRACE,
        "farewell": FAREWELL,
    }
    if verbose:
        verbose(f"{size} ranks on {', '.join(f'{name}:{count}' for name, count in places)}, started by {mpiexec or 'hvdrun, without an MPI'}")
        verbose("ranks get their own cores where a host has enough" if bind else "ranks are not bound")
        if pin:
            verbose(f"ranks are pinned by {pin}")
    printer = LinePrinter() if on_line is None else None
    with contextlib.ExitStack() as stack:
        if timeline is not None:
            stack.enter_context(timeline.marked())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hvdrun-"))  # for this user only
        # Hydra puts paths into patterns and remote command lines without quoting. This path has only letters, digits
        # and slashes, whatever TMPDIR is.
        opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        stack.callback(os.close, opened)
        plain = f"/proc/{os.getpid()}/fd/{opened}"
        with waiting("trying to reach the hosts") if waiting else contextlib.nullcontext():
            address = ""  # of this host, where mpiexec listens
            launcher, others, agent = reach(places, base, plain, mpiexec, ssh_port, ssh_identity, start_timeout, verbose)
            names = [name for name, _ in places]
            if interfaces:
                address = next((there for name, there, _ in own_interfaces() if name in interfaces), "")
                meeting = first_host(names[0], names[0] in others, interfaces, agent, base, start_timeout)
            elif not others:
                meeting = "127.0.0.1" if hosts.this_host_only(places) else names[0], free_ports()
            else:
                chosen, ports, address, meeting = find_interfaces(names, others, agent, base, start_timeout)
                options["network"] = [variables(*one) for one in zip(chosen, ports)]
                if verbose:
                    verbose("; ".join(f"{name} is reached by {', '.join(found)}" for name, found in zip(names, chosen)))
        found = {torchrun.ADDRESS: meeting[0], torchrun.PORT: str(meeting[1][0])}
        if mpiexec is None:  # mpiexec's messages are not encrypted
            options["env"].update(zip(guard.MEETING, (f"{meeting[0]}:{meeting[1][1]}", secrets.token_hex(16))))
        options["meeting"] = {name: value for name, value in found.items() if name not in base}
        tee = stack.enter_context(files_of_ranks(output_dir, size)) if output_dir is not None else None
        show = on_line or printer or LinePrinter()
        said: collections.deque[str] = collections.deque(maxlen=20)

        def sort_out(index: int, stream: str, piece: str) -> None:
            if index != STARTER:
                show(index, stream, piece)
            elif piece.strip():
                said.append(piece.rstrip())

        job = Job(base, sort_out, lambda *what: tee(*what) if tee and what[0] != STARTER else None, notify)
        missing = set(range(size))
        job.expected = size
        job.guards = set(range(size))
        kept = results or Results()
        hosts_of_ranks = host_numbers(places)
        job.late = lambda: late_text(missing, places)
        for rank in range(size):
            for stream in ("stdout", "stderr"):
                path = os.path.join(folder, f"{stream}.{rank}")
                os.mkfifo(path, 0o600)
                # Also opened for writing; otherwise it would be at its end before mpiexec opens it.
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                handle = heed(job, rank, hosts_of_ranks[rank], missing, kept, timeline)
                only = guard.GuardLines(token, handle) if stream == "stderr" else None
                job.outputs.listen(fd, rank, stream, only)
        python = [sys.executable, "-I", "-S", str(GUARD)]
        if mpiexec is None:
            reached = [(name, name in others) for name in names]
            own = {spread.ORDER: json.dumps({"hosts": reached, "agent": agent, "folder": plain, "options": options})}
            line = [*python, "spread", *words]
        else:
            own = {guard.OPTIONS: json.dumps(options)}
            line = [mpiexec, *launcher, "-hosts", ",".join(f"{name}:{count}" for name, count in places), "-np", str(size)]
            line += [f"-{name}file-pattern={plain}/std{name}.%r" for name in ("out", "err")]
            line += [] if {"-localhost", "-iface"} & set(mpi_args) or not address else ["-localhost", address]
            # The guards end ranks. Hydra is faster, and would end other ranks before the first failed one is known.
            line += [*mpi_args, "-disable-auto-cleanup", *python, "rank", *words]
        job.add(Program(line, line[0], own, stdin=stdin, index=STARTER, alone=True, window=guard.WINDOW))
        try:
            outcome = job.run(start_timeout, [os.path.split(folder)], signals)
        except LaunchError as error:
            raise LaunchError("\n  ".join([str(error), *said])) from None
        finally:
            if printer:
                printer.finish()
    if outcome.failed is not None:
        lines = list(said) if outcome.failed == STARTER else job.outputs.last_lines(outcome.failed)
        # A starter that fails before all ranks have started would fail again.
        again = outcome.hurried is None and not (outcome.failed == STARTER and missing)
        who = "" if mpiexec else "the starter of ranks"
        raise RankFailed(outcome.failed, outcome.code, lines, size, who if outcome.failed == STARTER else "", outcome.after, again)
    if outcome.interrupted is not None:
        raise Interrupted(outcome.interrupted)


def host_numbers(places: Sequence[tuple[str, int]]) -> list[int]:
    """For each rank, the number of its host among the places."""
    return [host for host, (_, count) in enumerate(places) for _ in range(count)]


def first_host(
    name: str, far: bool, interfaces: Sequence[str], agent: str, env: Mapping[str, str], limit: float
) -> tuple[str, list[int]]:
    """The address of the first host on one of these interfaces, and two free ports there. If a resource manager reaches
    the host, its name instead of the address.
    """
    if far:
        told = ask_host(name, agent, env, limit)
        found, ports = told["interfaces"], told["free"]
    else:
        found, ports = own_interfaces() if hosts.is_local(name) else [], free_ports()
    return next((str(address) for each, address, _ in found if each in interfaces), name), ports


def heed(
    job: Job, rank: int, host: int, missing: set[int], results: Results, timeline: Collection | None = None
) -> Callable[[list[Any]], None]:
    """Returns a function that handles the reports of a rank's guard. Their last word is the time on its host."""

    def act(words: list[Any]) -> None:
        if words[0] == "broken":  # from the starter, on this host: the rank's guard or its host was lost
            job.fail(STARTER, 1, words[-1])
            return
        # The line with the least delay gives the best estimate.
        behind = time.monotonic_ns() - int(words[-1])
        results.behind[host] = min(behind, results.behind.get(host, behind))
        if words[0] == "result":
            results.written.setdefault(rank, bytearray()).extend(binascii.a2b_base64(words[1]))
        elif words[0] == "timeline":
            if timeline is not None:
                timeline.add(rank, None if words[1] is None else binascii.a2b_base64(words[1]))
        elif words[0] == "took":
            job.took(words[1])
        elif words[0] == "started":
            missing.discard(rank)
            job.begun()
        elif words[0] == "refused":
            job.refuse(f"rank {rank} could not be started: {words[3]}")
        elif words[0] == "left":
            job.left(words[1:-1])
        elif words[0] == "lost":
            job.lost(words[1], words[2])
        elif words[0] == "passed":
            job.passed(rank)
        elif words[0] == "exited":
            job.guards.discard(rank)
            job.passed(rank)
            _, _, code, made_to_end, when = words
            if code != 0 and not made_to_end:
                # When a rank dies, mpiexec may end others before this process reads about it. From then on each host
                # keeps one estimate, so that times of two ranks of a host compare exactly.
                job.fail(rank, code, when + results.clocks.setdefault(host, results.behind[host]))

    return act


def late_text(missing: set[int], places: Sequence[tuple[str, int]]) -> str:
    """The error text with the hosts that did not start their ranks."""
    silent, first = [], 0
    for name, count in places:
        if missing & set(range(first, first + count)):
            silent.append(name)
        first += count
    return f"{len(missing)} ranks, on {', '.join(silent)}, were not started"
