"""hvd/launcher/function.py: hvd.run, which runs a function on several ranks, with horovod.run's signature."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from hvd.launcher import hosts as hosts_, settings
from hvd.launcher.call import call_on_hosts, call_on_ranks
from hvd.launcher.console import LinePrinter, Speech
from hvd.launcher.elastic import Reach
from hvd.launcher.rounds import Limits
from hvd.launcher.supervisor.interfaces import named, stripped


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | Sequence[str] | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` on `num_proc` new processes. Returns the results by rank.

    func, args, kwargs and results are pickled: by value if they are defined in __main__ or next to it. Output of ranks
    is printed with the rank before each line. `np` is an older name of num_proc. `executable` is the Python of the
    ranks, `output_filename` a folder for rank.N/stdout and stderr, start_timeout by default HOROVOD_START_TIMEOUT, or
    30 s.

    All ranks run on this host over shared memory, unless `hosts` ("h1:2,h2:2"), `hostfile` or `host_discovery_script`
    (run once, or in an elastic job once in each second; `slots` is for hosts printed without a number) names other hosts. Then they run as with hvdrun -H, over MPI
    if MPICH's mpiexec is there, else over TCP, and ssh_port, ssh_identity_file, mpi_args and network_interfaces apply.
    `use_mpi` selects MPI also on one host, and `use_gloo` TCP on several.
    Arguments without effect are accepted, like horovodrun's flags, with a warning on standard error.

    With min_num_proc or max_num_proc the job is elastic, as with hvdrun --min-np: it goes on when ranks fail, if func uses
    hvd.elastic.run. The results are those of the ranks in the last round.

    ValueError: fewer than one rank, too few slots, invalid hosts, an elastic job over MPI, num_proc outside of
    min_num_proc to max_num_proc, an invalid cooldown_range or HOROVOD_ELASTIC_TIMEOUT. LaunchError: a host cannot be reached,
    or the ranks cannot be started. TypeError: an object cannot be pickled; the text contains the path to it. RankError:
    func raised an exception on a rank; the text contains the rank's traceback, and the exception is the cause.
    RankFailed: the process of a rank was ended.
    """
    given = dict(locals())
    count = num_proc if np is None else np
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"num_proc, the number of ranks, is {count!r}; it must be a whole number from 1")
    if sum(each is not None for each in (hosts, hostfile, host_discovery_script)) > 1:
        raise ValueError("hosts, hostfile and host_discovery_script exclude each other")
    least, most = (new if old is None else old for new, old in ((min_num_proc, min_np), (max_num_proc, max_np)))
    elastic = least is not None or most is not None
    least, most = (count if each is None else each for each in (least, most))
    if not 1 <= least <= count <= most:
        raise ValueError(f"num_proc {count} is not from min_num_proc {least} to max_num_proc {most}")
    once = None if elastic else host_discovery_script
    places = hosts_.named_hosts(count, hosts, hostfile, once, slots, "hosts", most)
    several = bool(use_mpi) or (places is not None and not hosts_.this_host_only(places))
    if elastic and (use_mpi or os.environ.get("HVD_TRANSPORT") == "mpi"):
        raise ValueError("an MPI cannot lose ranks: elastic jobs run without one (leave out use_mpi and HVD_TRANSPORT=mpi)")
    speech = Speech("hvd.run")
    when = ["always"]
    when += [] if elastic else ["with a fixed number of ranks"]
    reached = several or (elastic and host_discovery_script is not None)
    when += [] if reached else ["on one host"]
    when += [] if host_discovery_script else ["without a script"]
    for flag, found in settings.IDLE.items():
        name = found.argument or flag.replace("-", "_")
        if given.get(name) and found.when in when:
            speech.warn(f"{name} has no effect here: {found.why}")
    call = functools.partial(func, *args, **(kwargs or {}))
    python = shlex.split(executable) if executable else []
    common: dict[str, Any] = {
        "output_dir": output_filename,
        "notify": speech.warn,
        "verbose": speech.say if verbose else None,
    }
    size = most if places is None else sum(each for _, each in places)
    interfaces = (network_interfaces or network_interface or "").split(",")
    if elastic:
        common["elastic"] = Limits.of(least, count, size, reset_limit, cooldown_range, os.environ)
        if host_discovery_script:
            common["discovery"] = hosts_.Discovery(host_discovery_script, slots)
        if reached:
            limit = settings.start_timeout() if start_timeout is None else start_timeout
            common["reach"] = Reach(limit, ssh_port, ssh_identity_file, stripped(interfaces) or named(os.environ))
    if elastic or not several:
        return call_on_ranks(
            size,
            call,
            every=True,
            python=python,
            printer=LinePrinter(),
            start_timeout=start_timeout,
            hosts=places or (),
            **common,
        )
    return call_on_hosts(
        call,
        python or [sys.executable],
        places or [("localhost", count)],
        start_timeout,
        "mpi" if use_mpi else "tcp" if use_gloo else None,
        ssh_port=ssh_port,
        ssh_identity=ssh_identity_file,
        interfaces=interfaces,
        mpi_args=shlex.split(mpi_args) if isinstance(mpi_args, str) else mpi_args or (),
        **common,
    )
