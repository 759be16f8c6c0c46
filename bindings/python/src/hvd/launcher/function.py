"""hvd/launcher/function.py: hvd.run, a function on several ranks, with horovod.run's signature.

What to call, and what came of it, lie in files in memory that only these processes have, as for HorovodRunner, whose
worker the ranks are: nothing listens, and nothing is on a disk.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from hvd.launcher import hosts as hosts_
from hvd.launcher.local import LaunchError, RankFailed, run_local
from hvd.launcher.output import LinePrinter
from hvd.launcher.speech import Speech

RESULT = "HVD_RUN_RESULT"  # the number of the file that a rank's result goes to


class Delivery(functools.partial):  # type: ignore[type-arg,unused-ignore]
    """A call whose value goes to the file of this rank."""

    def __call__(self) -> None:  # type: ignore[override,unused-ignore]
        from hvd.horovod_runner import contents, pickling

        file = os.fdopen(int(os.environ.pop(RESULT)), "wb")
        value = functools.partial.__call__(self)
        what = f"what {contents.describe(self)} returned on rank {os.environ['HOROVOD_RANK']}"
        with file:
            pickling.dump(value, file, what, "return numbers, arrays, a state_dict or a path")


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
    from hvd.horovod_runner import local as runner

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
    python = shlex.split(executable) if executable else [sys.executable]
    limit = start_timeout if start_timeout is not None else runner._start_timeout()
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(runner._file_in_memory("hvd-program"))
        ends = [stack.enter_context(runner._file_in_memory(f"hvd-end-{rank}")) for rank in range(count)]
        values = [stack.enter_context(runner._file_in_memory(f"hvd-result-{rank}")) for rank in range(count)]
        runner._write_program(program, Delivery(func, *args, **(kwargs or {})), count)
        environ = dict(os.environ)
        here = str(Path(__file__).parents[2])  # where hvd lies, which this process may know by sys.path alone
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, environ.get("PYTHONPATH"))))
        printer = LinePrinter()
        failed = None
        try:
            run_local(
                [*python, "-m", "hvd.horovod_runner.worker"],
                count,
                env=environ,
                rank_env=lambda rank: {
                    runner.FILES: f"{program.fileno()},{ends[rank].fileno()}",
                    RESULT: str(values[rank].fileno()),
                },
                pass_fds=lambda rank: (program.fileno(), ends[rank].fileno(), values[rank].fileno()),
                on_line=printer,
                start_timeout=limit,
                output_dir=output_filename,
                notify=speech.warn,
                verbose=speech.say if verbose else None,
            )
        except RankFailed as error:
            failed = error
        finally:
            printer.finish()
        runner._result(ends, failed)
        for file in values:
            file.seek(0)
        return [pickle.load(file) for file in values]


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
