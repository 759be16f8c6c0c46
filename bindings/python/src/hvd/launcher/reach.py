"""hvd/launcher/reach.py: how other hosts are reached, and whether they have the files that ranks need."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Callable

from hvd.launcher import hosts
from hvd.launcher.errors import LaunchError
from hvd.launcher.signals import held
from hvd.launcher.supervisor.client import GUARD


def reach(
    places: Sequence[tuple[str, int]],
    env: Mapping[str, str],
    folder: str,
    mpiexec: str | None,
    ssh_port: int | None,
    ssh_identity: str | None,
    limit: float,
    verbose: Callable[[str], None] | None,
) -> tuple[list[str], list[str], str]:
    """Options with which mpiexec reaches hosts, after a trial; the names of the hosts reached by an agent; and that
    agent. If a resource manager starts mpiexec's ranks, there are no names and no agent.

    Raises LaunchError for hosts that cannot be reached.
    """
    launcher = launcher_in(env)
    ssh_options = ssh_port is not None or ssh_identity is not None
    if mpiexec and not ssh_options and not launcher and any(name in env for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")):
        return [], [], ""  # Hydra uses the resource manager that allocated the hosts
    if mpiexec and launcher not in ("", "ssh", "rsh"):
        return [], [], ""
    others = [name for name, _ in places if is_away(name, env)]
    if not others:
        return [], [], ""
    agent = find_agent(others, env, folder, ssh_port, ssh_identity, limit)
    try_hosts(others, agent, env, mpiexec, limit)
    if verbose:
        verbose(f"{', '.join(others)} can be reached")
    return ["-launcher", "ssh", "-launcher-exec", agent] if os.path.dirname(agent) == folder else [], others, agent


def launcher_in(env: Mapping[str, str]) -> str:
    """The program for other hosts, ssh, rsh or that of a resource manager, as MPICH's mpiexec is told; "" for any."""
    return env.get("HYDRA_LAUNCHER") or env.get("HYDRA_BOOTSTRAP") or ""


def is_away(name: str, env: Mapping[str, str]) -> bool:
    """Whether a host is reached by an agent. Tests reach even this host so. May ask a name server."""
    return env.get("HYDRA_LAUNCHER_AUTOFORK") == "0" or not hosts.is_local(name)


def find_agent(
    others: Sequence[str], env: Mapping[str, str], folder: str, ssh_port: int | None, ssh_identity: str | None, limit: float
) -> str:
    """The agent for hosts: `agent HOST COMMAND` runs a command there. One for ssh is written to `folder`. Raises
    LaunchError if this host has no program for that.
    """
    launcher, agent = launcher_in(env), env.get("HYDRA_LAUNCHER_EXEC") or env.get("HYDRA_BOOTSTRAP_EXEC") or ""
    if launcher not in ("", "ssh", "rsh"):
        launcher = agent = ""  # that of a resource manager, which starts one program on many hosts
    if launcher == "rsh" and not agent and not (agent := shutil.which("rsh") or ""):
        raise LaunchError(f"{', '.join(others)}: HYDRA_LAUNCHER=rsh, but rsh is not in PATH; unset it for ssh")
    if agent:
        return agent
    ssh = shutil.which("ssh", path=env.get("PATH", os.defpath))
    if not ssh:
        raise LaunchError(f"{', '.join(others)}: hosts are reached by ssh, which is not in PATH")
    if ssh_identity is not None and not Path(ssh_identity).is_file():
        raise LaunchError(f"-i {ssh_identity}: there is no such file")
    line = [ssh, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(limit))}"]
    line += ["-p", str(ssh_port)] if ssh_port is not None else []
    line += ["-i", os.path.abspath(ssh_identity)] if ssh_identity is not None else []
    agent = os.path.join(folder, "ssh")
    Path(agent).write_text(f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n', encoding="utf-8")
    os.chmod(agent, 0o700)
    return agent


def try_hosts(names: Sequence[str], agent: str, env: Mapping[str, str], mpiexec: str | None, limit: float) -> None:
    """Runs a small script on all hosts at once, which checks for the files that ranks need."""
    wanted = [os.getcwd(), sys.executable, str(GUARD)]
    wanted += [os.path.join(os.path.dirname(mpiexec), "hydra_pmi_proxy")] if mpiexec else []
    # Answers contain numbers instead of paths, which may contain any character.
    script = "; ".join(f"test -e {shlex.quote(path)} || echo no {i}" for i, path in enumerate(wanted)) + "; echo there"
    deadline = time.monotonic() + limit
    problems = []
    with contextlib.ExitStack() as stack:
        with held():
            asked = {name: stack.enter_context(_asking([agent, name, script], env)) for name in names}
        for name, process in asked.items():
            try:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                problems.append(f"{name} did not answer within {limit:g} s (--start-timeout)")
                continue
            lines = out.decode("utf-8", "replace").splitlines()
            lacking = [path for i, path in enumerate(wanted) if f"no {i}" in lines]
            if "there" not in lines:
                reason = " ".join(err.decode("utf-8", "replace").split()) or f"exit code {process.returncode}"
                problems.append(f"{name} cannot be reached: {reason}")
            elif lacking:
                problems.append(f"{name} lacks {', '.join(lacking)}, which must exist there as on this host")
    if problems:
        raise LaunchError("; ".join(problems))


@contextlib.contextmanager
def _asking(command: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
