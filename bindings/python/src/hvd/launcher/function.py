"""hvd/launcher/function.py: hvd.run, a function on several ranks, with horovod.run's signature.

What to call, and what came of it, lie in files in memory that only these processes have, as for HorovodRunner, whose
worker the ranks are: nothing listens, and nothing is on a disk.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from hvd.launcher import hosts as hosts_
from hvd.launcher.local import LaunchError
from hvd.launcher.output import LinePrinter
from hvd.launcher.speech import Speech


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
    """Calls `func(*args, **kwargs)` on `num_proc` new processes of this host, and returns what each returned, by rank.

    func, args and kwargs are pickled by value where they are from __main__ or beside it; results as well. Output of
    ranks is printed with the rank before each line. `np` is an older name of num_proc. `executable` is the Python of
    the ranks, `output_filename` a folder for rank.N/stdout and stderr, start_timeout 30 s or HOROVOD_START_TIMEOUT.
    `hosts` ("localhost:4") and `hostfile` may name this host alone. What is about elastic jobs, ssh and MPI is
    accepted, as horovodrun's flags are, with a sentence to standard error.

    ValueError: fewer than one rank, too few slots, hosts that are none. LaunchError: another host, or what cannot be
    started. TypeError: something cannot be pickled, with the path to it. RankError: func raised an exception on a rank,
    with the traceback there, and the exception as the cause. RankFailed: a rank's process was ended.
    """
    from hvd.horovod_runner.local import call_on_ranks

    count = num_proc if np is None else np
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"num_proc, the number of ranks, is {count!r}; it must be a whole number from 1")
    speech = Speech("hvd.run")
    _check_hosts(hosts, hostfile, count)
    unused = {
        "min_num_proc": min_num_proc,
        "max_num_proc": max_num_proc,
        "min_np": min_np,
        "max_np": max_np,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
        "disable_cache": disable_cache,
        "use_gloo": use_gloo,
        "use_mpi": use_mpi,
        "mpi_args": mpi_args,
        "ssh_port": ssh_port,
        "ssh_identity_file": ssh_identity_file,
        "network_interface": network_interface,
        "network_interfaces": network_interfaces,
    }
    for name in [name for name, value in unused.items() if value]:
        speech.warn(f"{name} has no effect here: all ranks are on this host, over shared memory, and no job is elastic")
    return call_on_ranks(
        count,
        functools.partial(func, *args, **(kwargs or {})),
        every=True,
        python=shlex.split(executable) if executable else (),
        printer=LinePrinter(),
        start_timeout=start_timeout,
        output_dir=output_filename,
        notify=speech.warn,
        verbose=speech.say if verbose else None,
    )


def _check_hosts(text: str | None, file: str | None, count: int) -> None:
    """Hosts may be named where they are this one."""
    if text is None and file is None:
        return
    if text is not None and file is not None:
        raise ValueError("hosts and hostfile exclude each other")
    named = hosts_.parse_hosts(text, "hosts") if text is not None else hosts_.parse_hostfile(str(file))
    others = [name for name, _ in hosts_.allot(named, count) if not hosts_.is_local(name)]
    if others:
        raise LaunchError(
            f"hvd.run starts ranks on this host only, not on {', '.join(others)}; for several hosts put the call "
            f"into a script: hvdrun -np {count} -H HOSTS python SCRIPT"
        )
