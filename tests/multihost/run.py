#!/usr/bin/env python3
"""Runs MPI programs on hosts that hosts.py makes: what the hosts are, what MPICH does there, and what hvd does.

A program that is not named is not tested, which a line says.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

from hosts import Hosts, why_not  # noqa: E402

LIMIT = 30  # seconds for one program; most need one
TRAINING = ["--check-bits"]  # what the trainer is told
# One case counts arrivals in memory that all ranks share.
CONFORMANCE = ["--source-file=*/conformance_mpi.cpp", "--test-case-exclude=*nobody leaves a barrier*"]
MIB = 64  # of the vectors whose bytes are counted
S = MIB << 20
LINE = re.compile(
    r"^rank (\d+) of (\d+) on (\w+), local rank (\d+) of (\d+): (\d+) wrong, host sent (\d+) bytes in ([\d.]+) s$",
    re.MULTILINE,
)
programs = argparse.Namespace()


@dataclass(frozen=True)
class Rank:
    """What a rank has said with report.hpp."""

    rank: int
    size: int
    host: str
    local_rank: int
    local_size: int
    wrong: int
    sent: int
    seconds: float

    @staticmethod
    def all(text):
        said = [(*map(int, m[:2]), m[2], *map(int, m[3:7]), float(m[7])) for m in LINE.findall(text)]
        return sorted((Rank(*words) for words in said), key=lambda rank: rank.rank)


def least(hosts):
    """Bytes that each host must send in an allreduce of S bytes (P. Patarasuk, X. Yuan, 2009)."""
    return 2 * (hosts - 1) * S // hosts


class Case(unittest.TestCase):
    def program(self, name):
        """The path of a program, or the end of this test."""
        path = getattr(programs, name)
        if not path:
            # For whom counts skips in what is printed.
            print(f"SKIP: {self.id().removeprefix('__main__.')}: no --{name} was named", flush=True)
            self.skipTest(f"no --{name}")
        return path.absolute()

    def made(self, count):
        hosts = Hosts(count, programs.preload).__enter__()
        self.addCleanup(hosts.__exit__)
        return hosts

    def run_well(self, hosts, program, ranks_per_host=2, **options):
        result = hosts.run(program, ranks_per_host, **{"timeout": LIMIT, **options})
        self.assertFalse(result.timed_out, f"not at its end after {result.seconds:.0f} s: {result.output}")
        self.assertEqual(result.code, 0, result.output)
        return result

    def ranks(self, hosts, program, ranks_per_host=2, local=None, **options):
        """Runs a program that reports; checks who is where, and returns what the ranks have said."""
        result = self.run_well(hosts, program, ranks_per_host, **options)
        self.output = result.output
        each = [ranks_per_host] * hosts.count if isinstance(ranks_per_host, int) else ranks_per_host
        places = [(host.name, i, n) for host, n in zip(hosts.all, each) for i in range(n)]
        if local == "alone":
            places = [(name, 0, 1) for name, _, _ in places]
        said = Rank.all(result.output)
        self.assertEqual([(r.rank, r.size) for r in said], [(i, sum(each)) for i in range(sum(each))], result.output)
        self.assertEqual([(r.host, r.local_rank, r.local_size) for r in said], places, result.output)
        self.assertEqual([r.wrong for r in said], [0] * len(said), result.output)
        return said

    def sent(self, said):
        """Bytes by host. Ranks read the same counter at almost the same time."""
        return {host: max(r.sent for r in said if r.host == host) for host in dict.fromkeys(r.host for r in said)}

    def show(self, name, said):
        sent = self.sent(said)
        numbers = ", ".join(f"{host} {number / S:.3f}" for host, number in sent.items())
        print(
            f"{name}, {MIB} MiB, {len(sent)} hosts, {len(said)} ranks: sent {numbers} of the vector "
            f"(least {least(len(sent)) / S:.3f}) in {max(r.seconds for r in said):.3f} s",
            flush=True,
        )

    def wait_until(self, true, what, seconds=10):
        end = time.monotonic() + seconds
        while not true():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)


class TheHosts(Case):
    """What hosts.py makes."""

    def test_each_has_names_addresses_memory_and_processes_of_its_own(self):
        hosts = self.made(2)
        one, other = hosts.all
        self.assertEqual([host.name for host in hosts.all], ["h1", "h2"])
        self.assertEqual([host.run("hostname").strip() for host in hosts.all], ["h1", "h2"])
        self.assertEqual(one.run("getent", "hosts", "h2").split()[0], other.address)
        self.assertIn(other.address, other.run("ip", "-brief", "address", "show", "eth0"))
        self.assertEqual(one.run("ls", "/sys/class/net").split(), ["eth0", "lo"])
        one.run("touch", "/dev/shm/here")
        self.assertEqual((one.run("ls", "/dev/shm"), other.run("ls", "/dev/shm")), ("here\n", ""))
        self.assertFalse(Path("/dev/shm/here").exists())
        one.run("ipcmk", "-M", "4096")
        self.assertIn("4096", one.run("ipcs", "-m"))
        self.assertNotIn("4096", other.run("ipcs", "-m"))
        ids = {host.run("cat", "/proc/sys/kernel/random/boot_id") for host in hosts.all}
        ids.add(Path("/proc/sys/kernel/random/boot_id").read_text())
        self.assertEqual(len(ids), 3)
        self.assertEqual(one.run("readlink", "/proc/1/ns/pid"), one.run("readlink", "/proc/self/ns/pid"))

    def test_two_runs_at_once_do_not_meet(self):
        first, second = self.made(2), self.made(2)
        first.all[0].run("touch", "/dev/shm/here")
        self.assertEqual(second.all[0].run("ls", "/dev/shm"), "")
        self.assertEqual([host.address for host in first.all], [host.address for host in second.all])
        for hosts in (first, second):
            self.run_well(hosts, ["true"])

    def test_nothing_remains_however_the_maker_ends(self):
        program = (
            "import sys, time; sys.path.insert(0, sys.argv[1]); from hosts import Hosts\n"
            "with Hosts(2) as hosts:\n"
            "    print(*(host.first for host in hosts.all), hosts.switch, flush=True)\n"
            "    hosts.run(['sleep', '1000'])\n"
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number.name):
                maker = subprocess.Popen(
                    [sys.executable, "-B", "-c", program, str(HERE)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
                firsts = maker.stdout.readline().split()
                self.assertEqual(len(firsts), 3)
                namespaces = {os.readlink(f"/proc/{int(first)}/ns/net") for first in firsts}
                started = lambda: [command_of(p) for p in in_networks(namespaces)].count("sleep") == 4  # noqa: E731
                self.wait_until(started, "the program has not started")
                maker.send_signal(number)
                maker.wait(20)
                maker.stdout.close()
                self.wait_until(lambda: not in_networks(namespaces), f"after {number.name} processes remain")

    def test_where_they_cannot_be_made_a_line_says_why(self):
        command = [sys.executable, "-B", HERE / "hosts.py", "true"]
        weak = ["setpriv", "--bounding-set", "-sys_admin", *command]
        for words, path, says in (
            (command, "/nowhere", r"SKIP: ip is missing \(Debian: iproute2\)\n"),
            (weak, os.environ["PATH"], r"SKIP: namespaces cannot be made: unshare: .*\n"),
        ):
            done = subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (77, ""))
            self.assertRegex(done.stdout, f"^{says}$")

    def test_bad_numbers(self):
        with self.assertRaisesRegex(ValueError, "0 hosts"):
            Hosts(0)
        hosts = self.made(2)
        with self.assertRaisesRegex(ValueError, "each host needs a number from 1"):
            hosts.run(["true"], [1])


class Mpich(Case):
    """What MPI does there, without hvd: this is the ground that the tests of hvd stand on."""

    def test_ranks_are_where_they_should_be(self):
        probe = self.program("probe")
        for count, ranks in ((2, 2), (2, 1), (2, [2, 1]), (3, 1)):
            with self.subTest(hosts=count, ranks=ranks):
                self.ranks(self.made(count), [probe, "allreduce", "1"], ranks)

    def test_allreduce_crosses_the_network(self):
        probe = self.program("probe")
        for count in (2, 3):
            with self.subTest(hosts=count):
                said = self.ranks(self.made(count), [probe, "allreduce", str(MIB)])
                self.show("MPI_Allreduce of MPICH", said)
                self.assertGreaterEqual(min(self.sent(said).values()), 0.99 * min(S, least(count)))

    def test_a_rank_that_is_killed_ends_the_job_and_leaves_nothing(self):
        probe = self.program("probe")
        for count, rank in ((2, 3), (2, 0), (3, 4)):
            with self.subTest(hosts=count, rank=rank):
                hosts = self.made(count)
                result = hosts.run([probe, "die", str(rank)], timeout=LIMIT)
                self.assertFalse(result.timed_out, result.output)
                self.assertNotEqual(result.code, 0, result.output)
                self.wait_until(lambda: not any(host.processes() for host in hosts.all), "ranks remain")


class Hierarchical(Case):
    """hvd's hierarchical allreduce: bytes.cpp."""

    def test_bytes_that_cross(self):
        program = self.program("bytes")
        for count in (2, 3):
            with self.subTest(hosts=count):
                said = self.ranks(self.made(count), [program, str(MIB)])
                self.show("hvd::Hierarchical", said)
                self.assertLessEqual(max(self.sent(said).values()), 1.05 * least(count))
                self.assertGreaterEqual(min(self.sent(said).values()), 0.99 * min(S, least(count)))

    def test_uneven_numbers_of_ranks_and_one_rank_per_host(self):
        program = self.program("bytes")
        for count, ranks in ((2, [2, 1]), (2, [1, 3]), (3, [2, 1, 2]), (2, 1), (3, 1)):
            with self.subTest(hosts=count, ranks=ranks):
                self.ranks(self.made(count), [program, "4"], ranks)

    def test_the_end_does_not_wait_for_mpi(self):
        program = self.program("bytes")
        hosts = self.made(2)
        for _ in range(3):
            result = self.run_well(hosts, [program, "1"], [2, 1])
            self.assertLess(result.seconds, 10, "MPI_Finalize hung, until hvd ended it")

    def test_ranks_of_one_host_without_common_memory(self):
        program = self.program("bytes")
        env = {"MPIR_CVAR_NOLOCAL": "1", "HOROVOD_LOG_LEVEL": "INFO"}
        options = {"env": env, "alone": "/dev/shm", "local": "alone"}
        self.ranks(self.made(2), [program, "4"], 2, **options)
        self.assertEqual(self.output.count("2 ranks of one host cannot share memory in /dev/shm"), 2, self.output)
        self.assertEqual(self.output.count("hvd: info: 4 ranks over MPICH"), 1, self.output)


class Given(Case):
    """Programs that say with their exit code whether all is well."""

    def test_conformance(self):
        conformance = self.program("conformance")
        result = self.run_well(self.made(2), [conformance, *CONFORMANCE], timeout=180)
        self.assertRegex(result.output, r"test cases: *(\d+) \| *\1 passed")

    def test_trainer(self):
        trainer = self.program("trainer")
        for count in (2, 3):
            with self.subTest(hosts=count):
                result = self.run_well(self.made(count), [trainer, *TRAINING], timeout=60)
                print(*result.output.splitlines()[-1:], flush=True)


def in_networks(namespaces):
    """Processes whose network is one of these."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "ns" / "net") in namespaces:
                found.append(int(path.name))
        except OSError:
            pass  # it has ended
    return found


def command_of(process):
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def main():
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    for name in ("probe", "bytes", "conformance", "trainer"):
        parser.add_argument(f"--{name}", type=Path, metavar="PROGRAM")
    parser.add_argument("--preload", type=Path, metavar="LIBRARY", help="what preload.cpp becomes")
    parser.add_argument("classes", nargs="*", metavar="CLASS", help="the classes to run (all, unless some are named)")
    parser.parse_args(namespace=programs)
    if reason := why_not():
        print(f"SKIP: {reason}")
        return 77
    result = unittest.main(argv=[sys.argv[0], *programs.classes], verbosity=2, exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
