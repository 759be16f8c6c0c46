"""hvd/launcher/main.py: the command hvdrun."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from hvd.launcher import hosts, options, restarts, settings, timeline
from hvd.launcher.console import LinePrinter, Speech
from hvd.launcher.elastic import Reach
from hvd.launcher.errors import Interrupted, LaunchError
from hvd.launcher.local import run_local
from hvd.launcher.rounds import Limits
from hvd.launcher.signals import PASSED, SIGNALS
from hvd.launcher.supervisor.interfaces import named as interfaces_in, stripped
from hvd.launcher.supervisor.processes import open_streams
from hvd.remote.errors import RankFailed


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs hvdrun; returns its exit code."""
    use_streams()
    code = 0
    try:
        try:
            code = run(arguments)
        finally:
            try:
                sys.stderr.flush()
            except OSError:  # argparse could not write
                discard(sys.stderr)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader is gone
        discard(sys.stdout, sys.stderr)
        return 128 + signal.SIGPIPE
    except OSError as error:
        if code == 0:  # else the job's error is already printed
            Speech(options.program_name()).error(f"standard output: {error.strerror or error}")
        discard(sys.stdout)
        return code or 1


def discard(*streams: TextIO) -> None:
    """Drops unwritten output, which Python would try to write again at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null, stream.fileno())


def use_streams() -> None:
    """Makes the standard streams accept any text. Closed ones become /dev/null."""
    open_streams()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def run(arguments: Sequence[str] | None) -> int:
    """Runs hvdrun with open standard streams; raises BrokenPipeError if the reader of its output is gone."""
    for number in (*SIGNALS, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, interrupt)
    chosen, warnings = options.parse(arguments)
    if chosen.version:
        print(version())
        return 0
    if chosen.check_build:
        return check_build()
    speech = Speech(options.program_name())
    for sentence in warnings:
        speech.warn(sentence)
    with contextlib.ExitStack() as stack:  # its last messages come after the job's error
        return attempt(chosen, speech, stack)


def attempt(chosen: argparse.Namespace, speech: Speech, stack: contextlib.ExitStack) -> int:
    """Runs the job, and prints why it has failed. Returns the exit code."""
    try:
        return launch(chosen, speech, stack)
    except ValueError as error:
        speech.error(str(error).removeprefix("hvd: "))
        return 2
    except LaunchError as error:
        speech.error(str(error))
        return 1
    except RankFailed as error:
        alone = error.rank < 0 or error.size == 1 or error.why
        sentence = error.sentence + ("" if alone else "; the others were ended")
        speech.error(sentence, error.last_lines)
        return error.exit_code
    except Interrupted as error:
        return 128 + error.signal
    except BrokenPipeError:
        raise
    except OSError as error:
        speech.error(f"{error.filename or 'the job'}: {error.strerror or error}")
        return 1


def interrupt(number: int, _: Any) -> NoReturn:
    """Handles signals while there are no ranks to forward them to. The exception cleans up."""
    raise Interrupted(number)


def launch(chosen: argparse.Namespace, speech: Speech, stack: contextlib.ExitStack) -> int:
    """Starts the ranks, on one host or on several, and waits for them. `stack` ends after the job."""
    env = {**os.environ, **settings.variables(vars(chosen))}
    discovery = None
    if chosen.elastic and chosen.host_discovery_script:
        discovery = hosts.Discovery(chosen.host_discovery_script, chosen.slots_per_host)
    named = (chosen.hosts, chosen.hostfile, None if discovery else chosen.host_discovery_script, chosen.slots_per_host)
    places = hosts.named_hosts(chosen.np, *named, most=chosen.max_num_proc)
    listed = places or [("localhost", chosen.max_num_proc)]
    several = chosen.mpi or (places is not None and not hosts.this_host_only(places))
    timeout = chosen.start_timeout or settings.start_timeout()
    pin = chosen.pin or os.environ.get("HVD_PIN") or None
    if pin and chosen.binding_args and "cpus=" in pin:
        raise ValueError(f"--pin {pin} and --binding-args both set what ranks are bound to; give one of them")
    if chosen.show_placement:
        from hvd.launcher.show import show_placement

        bound = binding(chosen.binding_args, speech)
        return show_placement(listed, pin, bound, several, env, timeout, chosen)
    check_affinity(env, listed if several else [("", chosen.max_num_proc)], speech)
    if not several and discovery is None:
        for sentence in settings.warnings(vars(chosen), "on one host"):
            speech.warn(sentence)
    page = timeline.wanted(env)
    if chosen.elastic and (chosen.mpi or env.get("HVD_TRANSPORT") == "mpi"):
        raise ValueError("an MPI cannot lose ranks: elastic jobs run without one (leave out --mpi and HVD_TRANSPORT=mpi)")
    if chosen.elastic and several and pin:
        raise ValueError(f"--pin {pin}: elastic jobs on several hosts do not pin ranks so far")
    interfaces = stripped((chosen.network_interfaces or "").split(","))
    common: dict[str, Any] = {
        "stdin": 0,
        "bind": not chosen.binding_args if several else binding(chosen.binding_args, speech),
        "pin": pin,
        "start_timeout": timeout,
        "signals": (*SIGNALS, *PASSED),
        "notify": speech.warn,
        "verbose": speech.say if chosen.verbose else None,
    }
    if chosen.elastic:
        cooldown = chosen.blacklist_cooldown_range
        slots = sum(count for _, count in listed)
        common["elastic"] = Limits.of(chosen.min_num_proc, chosen.np, slots, chosen.reset_limit, cooldown, env)
        common["discovery"] = discovery
        if not pin and (several or discovery):
            common["reach"] = Reach(timeout, chosen.ssh_port, chosen.ssh_identity_file, interfaces or interfaces_in(env))
            if page or env.get(timeline.FILE):
                speech.say(timeline.ELASTIC)
        several = False  # the processes of this host stand for those of others
    if several:
        common["waiting"] = speech.waiting
        common["ssh_port"] = chosen.ssh_port
        common["ssh_identity"] = chosen.ssh_identity_file
        common["interfaces"] = interfaces
        common["mpi_args"] = [*(chosen.binding_args or []), *(chosen.mpi_args or [])]
        if chosen.mpi:
            env.setdefault("HVD_TRANSPORT", "mpi")
        if chosen.gloo:
            env.setdefault("HVD_TRANSPORT", "tcp")
        if chosen.tcp:
            env.setdefault("UCX_TLS", "tcp,sm,self")
            env.setdefault("NCCL_IB_DISABLE", "1")

    def start(this: restarts.Start, ends: contextlib.ExitStack) -> None:
        own = {**common, "env": this.environment(env), "output_dir": this.folder(chosen.output_filename)}
        if page:
            title = timeline.title(chosen.command)
            own["timeline"] = ends.enter_context(
                timeline.page(own["env"], several or "reach" in own, speech.say, program=title, suffix=this.suffix)
            )
        start_ranks(chosen, listed, several, own, this)

    hosts_of_ranks = [name for name, count in listed for _ in range(count)]
    written = functools.partial(restarts.Start.files, env=env, folder=chosen.output_filename)
    restarts.run(start, chosen.restarts, hosts_of_ranks, written, speech, stack)
    return 0


def start_ranks(
    chosen: argparse.Namespace, places: Sequence[tuple[str, int]], several: bool, own: dict[str, Any], this: restarts.Start
) -> None:
    """Starts the ranks once, with the parameters `own` of run_across or run_local, and waits for them."""
    printer = LinePrinter(timestamp=chosen.prefix_output_with_timestamp)
    own.update(on_line=printer, restart=(this.number, this.most))
    try:
        if several:
            from hvd.launcher.across import run_across

            run_across(chosen.command, places, **own)
        else:
            own.pop("timeline", None)  # the ranks write to the page's file
            run_local(chosen.command, sum(count for _, count in places), hosts=places, **own)
    finally:
        printer.finish()


def binding(arguments: Sequence[str] | None, speech: Speech) -> bool | int:
    """The binding requested by --binding-args for this host, as in mpiexec -bind-to none, core or core:N."""
    text = " ".join(arguments or [])
    match = re.fullmatch(r"--?bind-to[ =](none|core)(?::([0-9]{1,9}))?( --?map-by \S+)?", text)
    if text and not match:
        speech.warn(f"--binding-args {text!r} has no effect here: {settings.IDLE['binding-args'].why}")
    if match and match[1] == "none":
        return False
    return int(match[2]) if match and match[2] else True


def check_affinity(env: dict[str, str], places: Sequence[tuple[str, int]], speech: Speech) -> None:
    """Removes HOROVOD_THREAD_AFFINITY if it has fewer CPUs than a host has ranks: as in Horovod, none is then used."""
    most = max(count for _, count in places)
    text = env.get("HOROVOD_THREAD_AFFINITY")
    if text and len(text.split(",")) < most:
        del env["HOROVOD_THREAD_AFFINITY"]
        why = settings.IDLE["thread-affinity"].why
        speech.warn(f"HOROVOD_THREAD_AFFINITY (--thread-affinity) {text[:80]!r} has no effect here: {why} ({most} ranks)")


def version() -> str:
    """The version of the installed package."""
    from importlib import metadata

    try:
        return metadata.version("hvd")
    except metadata.PackageNotFoundError:
        return "hvd is not installed as a package, so its version is not known"


def check_build() -> int:
    """Prints the report of `python -m hvd`. Returns the exit code."""
    try:
        from hvd.__main__ import main as report

        return report()
    except ImportError as error:
        Speech(options.program_name()).error(f"the extension of hvd cannot be loaded: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
