#!/usr/bin/env python3
"""Hosts on one machine, as namespaces, and MPI programs on them (Linux; needs root, iproute2, util-linux and MPICH).

As a command it runs one program: hosts.py --hosts 3 --ranks 2 PROGRAM [ARGUMENT]...

A host has a network, a name, processes, IPC objects, /dev/shm, /sys, /etc/hosts and a boot id of its own; it shares
files and CPUs with the others. Each host's eth0 is one end of a cable whose other end is in a switch, a network of its
own where mpiexec runs. Nothing of it has a name outside, so runs do not meet. The first process of a host lives as long
as a pipe to its maker is open, and with it end all processes there, the namespaces, and the cables between them:
however the maker ends, nothing is left.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

AGENT = Path(__file__).resolve().parent / "agent"
NETWORK = "10.77.0."
SWITCH_ADDRESS = NETWORK + "254"
CABLE = "eth0"
MTU = 9000  # so that headers are less than one hundredth of what is sent
PROGRAMS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "mpiexec.mpich": "mpich",
}
HOST_NAMESPACES = ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"]
SWITCH_NAMESPACES = ["--mount", "--net"]

# What must be allowed in a namespace.
TRIAL = """
set -e
mount -t tmpfs none /dev/shm
mount -t sysfs none /sys
ip link add name a type veth
ip link add name b type bridge
"""

# The first process of a host: prints its number, then waits for its end.
#   $1 name ("" for the switch)   $2 boot id   $3 contents of /etc/hosts
FIRST = r"""
set -e
read -r number rest </proc/self/stat  # while /proc still is the maker's, in whose numbers it is
replace() {  # the file $1 by what is read, which needs no file that others see
  cat >/dev/shm/new
  mount --bind /dev/shm/new "$1"
  rm /dev/shm/new
}
mount -t tmpfs none /dev/shm
printf '%s\n' "$3" | replace /etc/hosts
if [ -n "$1" ]; then
  hostname "$1"
  mount -t proc none /proc
  printf '%s\n' "$2" | replace /proc/sys/kernel/random/boot_id
fi
# UCX looks for interfaces in /sys; control groups, which hvd looks for, stay as they are.
mkdir /dev/shm/cgroup
mount --rbind /sys/fs/cgroup /dev/shm/cgroup
mount -t sysfs none /sys
mount --move /dev/shm/cgroup /sys/fs/cgroup
rmdir /dev/shm/cgroup
ip link set lo up
echo "$number"
exec cat
"""

# Gives a rank a memory file system, in the folder $0, and IPC objects for itself, as containers on one host have them.
ALONE = ["unshare", "--mount", "--ipc", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']


def why_not():
    """Why hosts cannot be made here, in a sentence; "" where they can."""
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            return f"{program} is missing (Debian: {package})"
    trial = subprocess.run(["unshare", *HOST_NAMESPACES, "sh", "-c", TRIAL], capture_output=True, text=True)
    said = " ".join(trial.stderr.split())
    return "" if trial.returncode == 0 else f"namespaces cannot be made: {said or f'exit code {trial.returncode}'}"


@dataclass
class Host:
    """A host: its name and address in its network, and the number of its first process (here, not on the host)."""

    name: str
    address: str
    first: int

    def run(self, *words):
        """Runs a command there to its end and returns what it printed."""
        command = [AGENT, self.name, shell_words(words)]
        env = {**os.environ, f"HVD_HOST_{self.name}": str(self.first)}
        return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout

    def sent(self):
        """Bytes that have left this host, with the headers of Ethernet, IP and TCP."""
        for line in Path(f"/proc/{self.first}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == CABLE:
                return int(numbers.split()[8])
        raise RuntimeError(f"{self.name} has no {CABLE}")

    def processes(self):
        """Numbers (here) of all that runs there but the first process, which does not wait for what others leave."""
        own = os.readlink(f"/proc/{self.first}/ns/pid")
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if os.readlink(path / "ns" / "pid") == own and int(path.name) != self.first:
                    state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [int(path.name)] if state not in "ZX" else []
        return found

    def clear(self):
        """Ends all that runs there but the first process."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@dataclass
class Result:
    """What became of a program on the hosts. A code below zero: a signal ended mpiexec; timed_out: it did not end."""

    code: int
    output: str
    seconds: float
    timed_out: bool = False
    sent: dict = field(default_factory=dict)  # bytes that each host sent, by name


class Hosts:
    """`with Hosts(2) as hosts:` makes h1 and h2; hosts.all is the list of them. preload is a library for all ranks."""

    def __init__(self, count, preload=None):
        if not 1 <= count <= 200:
            raise ValueError(f"{count} hosts: from 1 to 200 can be made")
        self.count = count
        self.preload = preload
        self.all = []
        self.makers = []  # the processes at whose end the namespaces end

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # Together, so that it takes no longer than one.
        for maker in self.makers:
            maker.stdin.close()
        for maker in self.makers:
            try:
                maker.wait(10)
            except subprocess.TimeoutExpired:
                maker.kill()
                maker.wait()
            maker.stdout.close()
        self.makers, self.all = [], []

    def make(self):
        names = {f"h{i}": f"{NETWORK}{i}" for i in range(1, self.count + 1)}
        known = "\n".join(["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())])
        self.switch = self.start(SWITCH_NAMESPACES, "", known)
        self.all = [Host(name, names[name], self.start(HOST_NAMESPACES, name, known)) for name in names]
        lines = ["link add name switch type bridge"]
        lines += [f"address add {SWITCH_ADDRESS}/24 dev switch", "link set switch up"]
        for host in self.all:
            lines += [
                f"link add name {host.name} mtu {MTU} type veth peer name {CABLE} mtu {MTU} netns {host.first}",
                f"link set {host.name} master switch",
                f"link set {host.name} up",
            ]
        ip(self.switch, lines)
        keep_order(self.switch)
        for host in self.all:
            ip(host.first, [f"address add {host.address}/24 dev {CABLE}", f"link set {CABLE} up"])
            keep_order(host.first)

    def start(self, namespaces, name, known):
        """The number of the first process in new namespaces."""
        command = ["unshare", *namespaces, "sh", "-c", FIRST, "sh", name, str(uuid.uuid4()), known]
        # In a process group of its own, or Ctrl-C would end the hosts before what runs on them.
        maker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )
        self.makers.append(maker)
        number = maker.stdout.readline().strip()
        if not number:
            raise RuntimeError(f"{name or 'the switch'} could not be made: exit code {maker.wait()}")
        return int(number)

    def command(self, program, ranks_per_host=2, alone=""):
        """The command line that runs a program on all hosts; run() says what the arguments are."""
        ranks = [ranks_per_host] * self.count if isinstance(ranks_per_host, int) else list(ranks_per_host)
        if len(ranks) != self.count or min(ranks) < 1:
            raise ValueError(f"{ranks} ranks for {self.count} hosts: each host needs a number from 1")
        places = ",".join(f"{host.name}:{n}" for host, n in zip(self.all, ranks))
        # The last thing that nsenter does is to become mpiexec, which therefore dies with this process.
        enter = ["setpriv", "--pdeathsig", "KILL", "nsenter", "--target", str(self.switch), "--mount", "--net"]
        mpiexec = ["mpiexec.mpich", "-launcher", "rsh", "-launcher-exec", str(AGENT), "-localhost", SWITCH_ADDRESS]
        mpiexec += ["-genv", "LD_PRELOAD", os.path.abspath(self.preload)] if self.preload else []
        mpiexec += ["-hosts", places, "-np", str(sum(ranks))]
        return [*enter, "env", "-C", os.getcwd(), *mpiexec, *([*ALONE, alone] if alone else []), *map(str, program)]

    def run(self, program, ranks_per_host=2, env=None, alone="", timeout=60):
        """Runs a program, a list of words, on all hosts, and waits for it at most timeout seconds.

        ranks_per_host is one number for all hosts, or a list with one number for each. alone names a folder for memory
        files which each rank has for itself: with "/dev/shm" MPICH needs MPIR_CVAR_NOLOCAL=1, or it refuses to start;
        with another one that HVD_SHM_DIR names, MPICH has shared memory and hvd has none.
        Where it takes longer than timeout, it is ended on all hosts. What else runs on the hosts afterwards is left for
        the caller to see; a host's clear() ends it.
        """
        environment = {
            **os.environ,
            # Without it mpiexec would start a host by itself that it takes for its own.
            "HYDRA_LAUNCHER_AUTOFORK": "0",
            **{f"HVD_HOST_{host.name}": str(host.first) for host in self.all},
            "UCX_NET_DEVICES": CABLE,
            **{name: str(value) for name, value in (env or {}).items()},
        }
        before = {host.name: host.sent() for host in self.all}
        start = time.monotonic()
        running = subprocess.Popen(
            self.command(program, ranks_per_host, alone),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        timed_out = False
        try:
            output, _ = running.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            self.end(running)
            output, _ = running.communicate()
        except BaseException:
            self.end(running)
            running.communicate()
            raise
        seconds = time.monotonic() - start
        sent = {host.name: host.sent() - before[host.name] for host in self.all}
        return Result(running.returncode, output, seconds, timed_out, sent)

    def end(self, running):
        """Ends mpiexec with its agents, and what it has started on the hosts."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        for host in self.all:
            host.clear()


def ip(first, lines):
    """Commands of ip(8), in the network of a process."""
    command = ["nsenter", "--target", str(first), "--net", "ip", "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), text=True, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip: {done.stderr.strip()}")


def keep_order(first):
    """Lets one CPU take what arrives, where the kernel can. TCP sends again what others let overtake each other."""
    script = 'for file in /sys/class/net/*/queues/rx-*/rps_cpus; do echo 1 >"$file"; done 2>/dev/null || true'
    subprocess.run(["nsenter", "--target", str(first), "--mount", "--net", "sh", "-c", script], check=True)


def shell_words(words):
    return " ".join("'" + str(word).replace("'", "'\\''") + "'" for word in words)


def main():
    parser = argparse.ArgumentParser(prog="hosts.py", description="Runs an MPI program on hosts made for it.")
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="how many (default 2)")
    parser.add_argument("--ranks", default="2", metavar="N[,N...]", help="ranks of each host, or of all (default 2)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the ranks")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds for the program (default 60)")
    parser.add_argument("--alone", default="", metavar="FOLDER", help="where each rank has memory files for itself")
    parser.add_argument("--preload", metavar="LIBRARY", help="for the ranks: the one of preload.cpp, for MPICH 4.0")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what to run, with its arguments")
    options = parser.parse_args()
    if not options.program:
        parser.error("no program was named")
    try:
        ranks = [int(word) for word in options.ranks.split(",")]
        env = dict(pair.split("=", 1) for pair in options.env)
    except ValueError:
        parser.error("--ranks takes numbers with commas between them, --env NAME=VALUE")
    if reason := why_not():
        print(f"SKIP: {reason}")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Hosts(options.hosts, options.preload) as hosts:
        each = ranks[0] if len(ranks) == 1 else ranks
        result = hosts.run(options.program, each, env, options.alone, options.timeout)
        print(result.output, end="")
        for name, sent in result.sent.items():
            print(f"{name} sent {sent} bytes")
        if result.timed_out:
            print(f"hosts.py: ended after {options.timeout:g} s")
    return 1 if result.timed_out else result.code if result.code >= 0 else 128 - result.code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
