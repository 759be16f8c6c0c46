"""hvd/launcher/local.py: runs a command on several ranks of this host."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Callable

from hvd.core import rendezvous
from hvd.descriptors import above_streams
from hvd.launcher.command import Program, find_program
from hvd.launcher.console import LinePrinter
from hvd.launcher.errors import Interrupted, LaunchError
from hvd.launcher.elastic import ElasticJob, Reach
from hvd.launcher.hosts import Discovery
from hvd.launcher.job import Job
from hvd.launcher.reach import is_away
from hvd.launcher.rounds import Limits
from hvd.launcher.streams import OnLine, Tee
from hvd.launcher.supervisor import planning, rank as guard, torchrun
from hvd.launcher.supervisor.processes import segment_prefix
from hvd.remote.errors import RankFailed

MOST_RANKS = 1024


@above_streams()
def run_local(
    command: Sequence[str | os.PathLike[str]],
    np: int,
    *,
    env: Mapping[str, str] | None = None,
    rank_env: Callable[[int], Mapping[str, str]] | None = None,
    on_line: OnLine | None = None,
    stdin: int | None = None,
    pass_fds: Callable[[int], Sequence[int]] | None = None,
    bind: bool | int = True,
    pin: str | None = None,
    start_timeout: float = 30.0,
    signals: Sequence[int] = (signal.SIGINT,),
    output_dir: str | os.PathLike[str] | None = None,
    notify: Callable[[str], None] | None = None,
    verbose: Callable[[str], None] | None = None,
    hosts: Sequence[tuple[str, int]] = (),
    restart: tuple[int, int] = (0, 0),
    elastic: Limits | None = None,
    discovery: Discovery | None = None,
    reach: Reach | None = None,
) -> list[int]:
    """Runs a command as `np` ranks of one job on this host, over shared memory. Returns when all have succeeded: the
    number that each rank had at its start, which differs from its rank only in an elastic job.

    command: a list of words, the program first. Ranks get HOROVOD_RANK, HOROVOD_SIZE and the rest of their place, and
        HVD_JOB, a random name; torchrun's variables, with a port that is kept free; PYTHONUNBUFFERED=1 unless it is
        set, so that output arrives when it is printed.
    env: the ranks' other variables, by default this process's environment. MASTER_ADDR and MASTER_PORT in it are used.
        If it contains RANK from another launcher, all variables of that launcher are replaced, with a message.
        rank_env(rank) overrides all others.
    on_line(rank, stream, piece): called on this thread with the ranks' output; stream is "stdout" or "stderr". A piece
        keeps its line end; see hvd/launcher/streams.py for "\\r" and pieces without one. By default: LinePrinter.
    stdin: a file descriptor for rank 0, for example 0. All others, and rank 0 if it is None, get /dev/null.
    pass_fds(rank): file descriptors that the rank inherits, with the same numbers. They stay the caller's to close.
    bind: True gives each rank its own cores if there are enough; a number is the number of cores; False does not bind.
    pin: a policy for GPUs and CPUs, as for hvd.pin, which ranks get in HVD_PIN. LaunchError if it has no place for a
        rank; ValueError if it is invalid.
    start_timeout: seconds for all ranks to start, and to find each other (HOROVOD_START_TIMEOUT).
    signals: forwarded to the ranks if this is called on the main thread. Raises Interrupted, a KeyboardInterrupt, when
        all ranks are gone. They have 30 s to end; a second signal kills them.
    output_dir: a folder for rank.N/stdout and rank.N/stderr, with the unchanged bytes.
    notify, verbose: called with sentences for the user about events and about decisions. Without `notify`, a message on
        replaced variables is a warning.
    hosts: names of this host as listed, each with its number of ranks, for HOROVOD_HOSTNAME; default "localhost".
    restart: the number of this start, for HVD_RESTART, and the most that there may be.
    elastic: the limits of a job that goes on when ranks fail; `np` is then the number of its slots. See rounds.py.
    discovery: finds the hosts of such a job, which may come and go; else they are those in `hosts`.
    reach: how such a job starts ranks on other hosts; None if it may not.

    When a rank fails, the others get SIGTERM, and SIGKILL after 5 s. Processes started by ranks end with them. Raises
    RankFailed for the first failed rank when all are gone; LaunchError if the ranks cannot be started; ValueError for
    an invalid np. If this process is killed, all ranks are killed. Cost: one process in addition to the ranks, started
    before them.
    """
    if isinstance(np, bool) or not isinstance(np, int) or not 1 <= np <= MOST_RANKS:
        raise ValueError(f"np, the number of ranks, is {np!r}; allowed: 1 to {MOST_RANKS}")
    check_timeout(start_timeout)
    base = ranks_environment(env)
    if sentence := torchrun.remove_outer(base):
        (notify or warnings.warn)(sentence)
    words, program = find_program(command, base)
    if reach and discovery:
        bind = False  # the script may change the number of a host's slots
    plan = (planning.policy_text(None, True), extension_file(None)) if reach and bind else ("", "")
    listed = dict(hosts) or {"localhost": np}
    names = [name for name, count in listed.items() for _ in range(count)]
    others = {name for name in listed if reach and is_away(name, base)}
    here = [rank for rank in range(np) if names[rank] not in others]
    shares = plan_ranks(len(here), pin, bind)
    if verbose and here:
        verbose(f"ranks{' of this host' if reach else ''} are {planning.describe(shares)}")
    share_of = dict(zip(here, shares))  # those of other hosts are planned there
    identity = new_identity()
    printer = LinePrinter() if on_line is None else None
    with contextlib.ExitStack() as stack:
        tee = stack.enter_context(files_of_ranks(output_dir, np)) if output_dir is not None else None
        common = {
            "HOROVOD_START_TIMEOUT": f"{start_timeout:g}",
            **identity,
            torchrun.RUN: identity["HVD_JOB"],
            **torchrun.restart_variables(*restart),
            **torchrun.meeting(base, "127.0.0.1", stack),
        }
        show = on_line or printer or LinePrinter()
        common_to_jobs = (base, show, tee, notify)
        job = ElasticJob(*common_to_jobs, elastic, listed, discovery, reach, plan, identity) if elastic else Job(*common_to_jobs)
        stack.callback(job.close)
        for rank in range(np):
            own = {**guard.place(rank, [np], [names[rank]]), **common, **job.variables(rank)}
            own.update(share_of[rank].variables(pin) if rank in share_of else {})
            own.update(rank_env(rank) if rank_env else {})
            job.add(
                Program(
                    argv=words,
                    executable=program,
                    env=own,
                    cpus=share_of[rank].cpus if rank in share_of else None,
                    stdin=stdin if rank == 0 else None,
                    pass_fds=tuple(pass_fds(rank)) if pass_fds else (),
                )
            )
        directory = base.get("HVD_SHM_DIR") or "/dev/shm"
        try:
            sweep = [(directory, segment_prefix(identity)), *job.leftovers()]
            outcome = job.run(start_timeout, sweep, signals, identity)
        finally:
            if printer:
                printer.finish()
    if outcome.failed is not None:
        raise RankFailed(
            outcome.failed, outcome.code, job.outputs.last_lines(outcome.failed), np, after=outcome.after,
            again=outcome.hurried is None, who=job.who, why=job.why,
        )  # fmt: skip
    if outcome.interrupted is not None:
        raise Interrupted(outcome.interrupted)
    return job.places()


def plan_ranks(np: int, pin: str | None, bind: bool | int) -> list[planning.Share]:
    """The share of each of `np` ranks of this host. Raises LaunchError if a rank has no place, ValueError for an
    invalid policy.
    """
    each = 0 if isinstance(bind, bool) else bind
    try:
        from hvd import _core
    except ImportError as error:
        if pin:
            raise LaunchError(f"--pin needs the extension of hvd, which cannot be loaded: {error}") from None
        why = f"not bound: the extension of hvd cannot be loaded: {error}"
        return [planning.Share([], "", "", None, "", why, "")] * np
    shares = planning.plan(_core, np, planning.policy_text(pin, bind is not False), 0, each)
    for share in shares:
        if share.problem:
            raise LaunchError(share.problem)
    return shares


def extension_file(pin: str | None) -> str:
    """The path of the extension, with which hosts plan the ranks' placement; "" if it cannot be loaded.

    Raises ValueError for an invalid policy.
    """
    try:
        from hvd import _core
    except ImportError as error:
        if pin:
            raise LaunchError(f"--pin needs the extension of hvd, which cannot be loaded: {error}") from None
        return ""
    if pin:
        _core.parse_pin(pin)
    return str(_core.__file__)


def ranks_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of all ranks. Sets PYTHONUNBUFFERED, because Python otherwise buffers output to a pipe. Removes
    what a launcher around this one has set for its ranks to meet.
    """
    base = dict(os.environ if env is None else env)
    if guard.TCP_ADDRESS in base and base.get("HVD_TRANSPORT") == "tcp":  # which that launcher has set, too
        del base["HVD_TRANSPORT"]
    for name in (*guard.MEETING, *rendezvous.VARIABLES):
        base.pop(name, None)
    base.setdefault("PYTHONUNBUFFERED", "1")
    return base


def check_timeout(seconds: float) -> None:
    """Raises ValueError for an invalid start_timeout."""
    if not 1e-3 <= seconds <= 1e9:
        raise ValueError(f"start_timeout is {seconds!r}; allowed: 0.001 to 1000000000 seconds")


def new_identity() -> dict[str, str]:
    """Variables that distinguish the ranks of this launch from all others: the name by which they find each other, and
    a launch number. Neither is a secret.
    """
    return {"HVD_JOB": secrets.token_hex(16), "HVD_LAUNCH": secrets.token_hex(16)}


@contextlib.contextmanager
def files_of_ranks(folder: str | os.PathLike[str], np: int) -> Iterator[Tee]:
    """Yields a function that writes each rank's bytes to FOLDER/rank.N/stdout and stderr. N has leading zeros, as in
    Horovod.
    """
    files: dict[tuple[int, str], BinaryIO] = {}
    with contextlib.ExitStack() as stack:
        for rank in range(np):
            own = Path(folder, f"rank.{rank:0{len(str(np - 1))}d}")
            try:
                own.mkdir(parents=True, exist_ok=True)
                for stream in ("stdout", "stderr"):
                    files[rank, stream] = stack.enter_context(open(own / stream, "wb", buffering=0))
            except OSError as error:
                raise LaunchError(f"{error.filename}: output cannot be written there: {error.strerror}") from None
        yield lambda rank, stream, data: None if files[rank, stream].write(data) else None
