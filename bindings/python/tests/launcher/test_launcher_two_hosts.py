"""Jobs on two hosts, which are network namespaces as tests/multihost makes them; with sshd as any hosts are reached."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_support import LIMIT, ROOT, end_of_all, environment, mpi_library, signals_reach_ranks
from network_hosts import hosts_module
from test_launcher_elastic import KILLED, check_end, script, start  # noqa: F401  script: a fixture

from hvd.launcher import across, timeline
from hvd.launcher.job import GRACE
from hvd.launcher.supervisor import spread

if not any(map(shutil.which, across.NAMES)):
    pytest.skip("mpiexec.mpich is missing (Debian: mpich)", allow_module_level=True)

PLACE = "echo " + " ".join(f"$HOROVOD_{n}" for n in "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE".split())
HVDRUN = [sys.executable, "-m", "hvd.launcher.main"]


@pytest.fixture(scope="module")
def made():
    """Two hosts, h1 and h2, and the module that makes them."""
    hosts = hosts_module()
    with hosts.Hosts(2) as two:
        yield Two(two, hosts)


class Two:
    """Programs that start from the switch between two hosts, and what they leave there."""

    def __init__(self, hosts, module):
        self.all = hosts.all
        self.address = module.SWITCH_ADDRESS
        self.by = []  # the options with which hvdrun starts ranks; see `started_by`
        self.agent = module.AGENT
        self.enter = ["nsenter", "--target", str(hosts.switch), "--mount", "--net", "env", "-C", os.getcwd()]
        self.reach = {
            **{f"HVD_HOST_{host.name}": str(host.first) for host in hosts.all},
            "HYDRA_LAUNCHER": "rsh",
            "HYDRA_LAUNCHER_EXEC": str(module.AGENT),
            "HYDRA_LAUNCHER_AUTOFORK": "0",
            "UCX_NET_DEVICES": module.CABLE,
        }

    def started_by(self, starter):
        """hvdrun's ranks are started by mpiexec, or by hvdrun itself."""
        self.by = ["--mpi-args", f"-localhost {self.address}"] if starter == "mpiexec" else ["--gloo"]

    def run(self, *words, stdin="", **env):
        """One program to its end, where both hosts can be reached."""
        env = environment(**{**self.reach, "OMP_NUM_THREADS": "1", **env})
        return subprocess.run(
            [*self.enter, *map(str, words)], env=env, input=stdin, capture_output=True, text=True, timeout=LIMIT
        )

    def hvdrun(self, *words, **env):
        """hvdrun with these arguments."""
        return self.run(*HVDRUN, *self.by, *words, **env)

    def hvdrun_in(self, folder):
        """The beginning of a command that runs hvdrun in another folder."""
        move = ["sh", "-c", 'cd "$0" && exec "$@"', str(folder)]
        return [*move, *HVDRUN, *self.by]

    def mpiexec(self, places, *words, **env):
        """The launcher of the MPI that hvd was built with."""
        np = str(sum(int(place.partition(":")[2]) for place in places.split(",")))
        if "MPICH" in mpi_library():
            return self.run(next(filter(shutil.which, across.NAMES)), "-localhost", self.address, "-hosts", places, "-np", np, *words, **env)
        reach = ["--allow-run-as-root", "--mca", "plm_rsh_agent", self.agent, "--mca", "btl_tcp_if_include", "eth0"]
        passed = [word for name in ("PYTHONPATH", "OMP_NUM_THREADS", *env) for word in ("-x", name)]
        return self.run("mpirun.openmpi", *reach, *passed, "--host", places, "-np", np, *words, **env)

    def left(self):
        """For each host, the commands of its processes, and the files in its shared memory."""
        return [([command(pid) for pid in host.processes()], host.run("ls", "/dev/shm")) for host in self.all]


def command(pid):
    """The command line of a process, or what is left of it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError as error:
        return str(error)


both_starters = pytest.mark.parametrize("two", ["mpiexec", "hvdrun"], indirect=True)


@pytest.fixture
def two(made, tmp_path, monkeypatch, request):
    """Two hosts; afterwards nothing of a job may be there: no process, no shared memory, no temporary file."""
    made.started_by(getattr(request, "param", "mpiexec"))
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield made
    left = made.left()
    for host in made.all:
        host.clear()  # for the next test
    assert left == [([], "")] * 2 and not list(folder.glob("hvd*"))


over_mpi = pytest.mark.skipif(not mpi_library(), reason="hvd was built without an MPI (Debian: libmpich-dev)")
over_mpich = pytest.mark.skipif(
    "MPICH" not in mpi_library(), reason="hvd was not built with MPICH (Debian: libmpich-dev)"
)
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing")


@both_starters
def test_places_and_a_hostfile(two, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("h1 slots=2\nh2 slots=2\n")
    more = " $(hostname) $HOROVOD_HOSTNAME $HVD_JOB $HVD_LAUNCH"
    done = two.hvdrun("-np", "3", "-hostfile", hostfile, "sh", "-c", PLACE + more)
    assert (done.returncode, done.stderr) == (0, "")
    lines = sorted(line.rsplit(" ", 2) for line in done.stdout.splitlines())
    assert [line[0] for line in lines] == [
        "[0]<stdout>: 0 3 0 2 0 2 h1 h1", "[1]<stdout>: 1 3 1 2 0 1 h1 h1", "[2]<stdout>: 2 3 0 1 1 2 h2 h2",
    ]  # fmt: skip
    assert lines[0][1:] == lines[1][1:] == lines[2][1:] and [len(bytes.fromhex(n)) for n in lines[0][1:]] == [16, 16]


@both_starters
def test_restarts(two):
    script = "echo $HVD_RESTART $MASTER_PORT; if [ $HVD_RESTART = 0 ]; then [ $HOROVOD_RANK = 2 ] && kill -KILL $$; sleep 1000; fi"
    done = two.hvdrun("-np", "3", "-H", "h1:2,h2:1", "--restarts", "1", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "hvdrun: rank 2 of 3 on h2 was killed by SIGKILL (Killed); restart 1 of 1;" in done.stderr
    starts = [line.split()[1:] for line in done.stdout.splitlines()]
    assert [number for number, _ in starts].count("1") == 3 and len({port for _, port in starts}) == 2


TORCHRUN = """
import os, socket
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"
print(*(os.environ[name] for name in names.split()), flush=True)
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
assert os.environ["TORCHELASTIC_RUN_ID"] == os.environ["HVD_JOB"]
if os.environ["RANK"] == "0":
    with socket.socket() as other:
        try:
            other.bind(("", address[1]))
            raise SystemExit("the port is not kept")
        except OSError:
            pass
    with socket.create_server(("", address[1])) as server:  # sets SO_REUSEADDR
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection(address).close()
            break
        except ConnectionRefusedError:
            pass
"""


@both_starters
@pytest.mark.parametrize("options", [[], ["--network-interfaces", "eth0"]])
def test_what_torchrun_sets(two, options):
    """All ranks reach the first host at MASTER_ADDR and MASTER_PORT."""
    done = two.hvdrun(*options, "-np", "3", "-H", "h1:2,h2:1", sys.executable, "-c", TORCHRUN)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(": ")[2] for line in sorted(done.stdout.splitlines())] == [
        "0 3 0 2 0 2", "1 3 1 2 0 2", "2 3 0 1 1 2",
    ]  # fmt: skip


@both_starters
def test_an_address_and_a_port_of_the_user(two):
    show = ["sh", "-c", "echo $MASTER_ADDR $MASTER_PORT"]
    done = two.hvdrun("-np", "2", "-H", "h1:1,h2:1", *show, MASTER_ADDR="somewhere", MASTER_PORT="7")
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: somewhere 7", "[1]<stdout>: somewhere 7"]
    assert done.returncode == 0


@both_starters
def test_signals_that_end_nothing_are_passed_on(two):
    command = [*two.enter, *HVDRUN, *two.by, "-np", "2", "-H", "h1:1,h2:1"]
    signals_reach_ranks(command, environment(**two.reach), here=False)
    end = time.monotonic() + LIMIT
    while any(processes for processes, _ in two.left()) and time.monotonic() < end:  # the hosts see that hvdrun is gone
        time.sleep(0.05)


@both_starters
def test_a_host_that_is_not_there(two):
    done = two.hvdrun("-np", "2", "-H", "h1:1,h9:1", "true")
    assert done.returncode == 1 and done.stderr.startswith("hvdrun: h9 cannot be reached: agent: there is no host 'h9'")


def test_too_few_slots(two):
    done = two.hvdrun("-np", "5", "-H", "h1:2,h2:2", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("hvdrun: 5 ranks were asked for, but there are 4 slots (h1:2, h2:2); name more hosts")


VARIABLES = "NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME UCX_NET_DEVICES HOROVOD_RANK"


@pytest.fixture
def more_interfaces(two, made):
    """Beside their cables, hosts have a card that leads nowhere, and the bridge of a container engine."""
    for number, host in enumerate(made.all, 1):
        host.run("ip", "link", "add", "eth1", "type", "veth", "peer", "name", "nowhere")
        host.run("ip", "address", "add", f"10.78.0.{number}/24", "dev", "eth1")
        host.run("ip", "link", "add", "docker0", "type", "bridge")
        host.run("ip", "address", "add", "172.17.0.1/16", "dev", "docker0")
        for name in ("nowhere", "eth1", "docker0"):
            host.run("ip", "link", "set", name, "up")
    yield made.all
    for host in made.all:
        for name in ("eth1", "docker0"):
            host.run("ip", "link", "delete", name)
        host.run("ip", "link", "set", "eth0", "up")


def test_interfaces_that_lead_nowhere_are_not_used(two, more_interfaces, monkeypatch):
    monkeypatch.delitem(two.reach, "UCX_NET_DEVICES")
    show = ["-np", "2", "-H", "h1:1,h2:1", "sh", "-c", "printenv " + VARIABLES]
    done = two.run(*HVDRUN, "--verbose", *show)  # mpiexec's own address is found, too
    assert done.returncode == 0, done.stderr
    assert "h1 is reached by eth0; h2 is reached by eth0" in done.stderr
    assert [line.partition("stdout>: ")[2] for line in sorted(done.stdout.splitlines())] == [
        "0", "=eth0", "eth0", "eth0", "1", "=eth0", "eth0", "eth0",
    ]  # fmt: skip
    named = two.run(*HVDRUN, *show, HVD_NETWORK_INTERFACES="switch,eth0", GLOO_SOCKET_IFNAME="lo")
    assert [line.partition("stdout>: ")[2] for line in sorted(named.stdout.splitlines())] == [
        "0", "=eth0", "eth0", "lo", "1", "=eth0", "eth0", "lo",
    ]  # fmt: skip
    none = two.run(*HVDRUN, *show, HVD_NETWORK_INTERFACES="switch, eth2")
    said = r"hvdrun: rank \d could not be started: the network interfaces switch, eth2 are named, and h\d has only .*eth0"
    assert none.returncode == 1 and re.search(said, none.stderr), none.stderr


def test_no_interface_in_common(two, more_interfaces):
    more_interfaces[1].run("ip", "link", "set", "eth0", "down")
    done = two.run(*HVDRUN, "-np", "2", "-H", "h1:1,h2:1", "true")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == (
        "hvdrun: no network interface of h1, h2, this host can be reached by all other hosts of the job; tried:"
    )
    assert any(re.fullmatch(r"  h2 eth1 10\.78\.0\.2: from h1: [^;]+; from this host: [^;]+", line) for line in lines)
    assert "  h1 docker0 172.17.0.1: from h2: Connection refused" in done.stderr
    assert lines[-1].startswith("Name the interfaces to use with --network-interfaces or HVD_NETWORK_INTERFACES")


ODD = "it's a\n\"b\" $(false) `false` %r %d \\ * ü\udcff;#"  # as a name, a value or an argument


@both_starters
def test_names_of_all_kinds(two, tmp_path, monkeypatch):
    folder = tmp_path / ODD
    (folder / "temporary").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    (folder / "my program.py").write_text(
        "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:], os.environ['ODD'], os.environ['EMPTY']]))"
    )
    arguments = [ODD, "", "-x", "a  b", "\n"]
    move = two.hvdrun_in(folder)
    job = ["-np", "2", "-H", "h1:1,h2:1", "--output-filename", "out put", sys.executable, "my program.py", *arguments]
    done = two.run(*move, *job, ODD=ODD, EMPTY="")
    assert (done.returncode, done.stderr) == (0, "")
    for rank in range(2):
        assert json.loads((folder / f"out put/rank.{rank}/stdout").read_text()) == [str(folder), arguments, ODD, ""]
    (folder / "here.sh").write_text("#!/bin/sh\nexit 3\n")
    (folder / "here.sh").chmod(0o755)
    for program in ("./here.sh", folder / "here.sh"):
        done = two.run(*move, "-np", "2", "-H", "h1:1,h2:1", program)
        assert done.returncode == 3, done.stderr
    assert list((folder / "temporary").iterdir()) == []


# ---- collectives ---------------------------------------------------------------------------------------------------

NUMPY = """
import os, sys
import numpy as np, hvd

sizes = [int(text) for text in sys.argv[1].split(",")]
places = [(local, host) for host, count in enumerate(sizes) for local in range(count)]
for again in range(2):
    hvd.init()
    r, n = hvd.rank(), hvd.size()
    local, host = places[r]
    fellows = [q for q in range(n) if places[q][0] == local]
    assert n == len(places) and os.uname().nodename == f"h{host + 1}"
    assert (hvd.local_rank(), hvd.local_size()) == (local, sizes[host])
    assert (hvd.cross_rank(), hvd.cross_size()) == (fellows.index(r), len(fellows))
    assert hvd.is_homogeneous() == (len(set(sizes)) == 1) and hvd.mpi_enabled()
    for kind in (np.float16, np.float32, np.float64, np.int64):
        for count in (1, 7, 1000, 100003):
            x = (np.arange(count) % 13).astype(kind)
            assert (hvd.allreduce(x + kind(r), op=hvd.Sum) == x * kind(n) + kind(n * (n - 1) // 2)).all()
            assert (hvd.allreduce(x + kind(r), op=hvd.Min) == x).all()
    assert hvd.allgather(np.full((r + 1, 3), r)).tolist() == [[q] * 3 for q in range(n) for _ in range(q + 1)]
    for root in range(n):
        assert hvd.broadcast(np.full(1000, r), root).tolist() == [root] * 1000
    sent = np.concatenate([np.full(to + 1, 10 * r + to) for to in range(n)])
    out, received = hvd.alltoall(sent, np.arange(n) + 1)
    assert out.tolist() == [10 * q + r for q in range(n) for _ in range(r + 1)] and received.tolist() == [r + 1] * n
    rows = 2 * n + 1
    x = np.arange(3.0 * rows).reshape(rows, 3)
    first = sum(rows // n + (q < rows % n) for q in range(r))
    mine = (x * n + n * (n - 1) / 2)[first : first + rows // n + (r < rows % n)]
    assert (hvd.reducescatter(x + r, op=hvd.Sum) == mine).all()
    hvd.barrier()
    assert hvd.broadcast_object({"rank": r}, n - 1) == {"rank": n - 1}
    assert hvd.allgather_object("x" * r) == ["x" * q for q in range(n)]
    for ranks in ([0, n - 1], [0, 1], list(range(1, n))):
        some = hvd.add_process_set(ranks)
        if some.included():
            m = len(ranks)
            assert hvd.allreduce(np.full(3, r), op=hvd.Sum, process_set=some).tolist() == [sum(ranks)] * 3
            assert hvd.allgather(np.array([r]), process_set=some).tolist() == ranks
            assert hvd.broadcast(np.array([r]), ranks[-1], process_set=some).tolist() == [ranks[-1]]
            assert hvd.reducescatter(np.full(m, r), op=hvd.Sum, process_set=some).tolist() == [sum(ranks)]
            assert hvd.alltoall(np.full(m, r), process_set=some).tolist() == ranks
            hvd.barrier(process_set=some)
        hvd.remove_process_set(some)
    try:
        hvd.allreduce(np.ones(r + 1), name="shape")
    except hvd.HorovodInternalError as e:
        assert e.kind == "mismatch"
    else:
        raise AssertionError("not refused")
    hvd.shutdown()
os.write(1, b"done\\n")  # in one piece
"""
TORCH = """
import os
import torch, hvd.torch as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()
for kind in (torch.bfloat16, torch.float32, torch.int32):
    x = torch.arange(1000).to(kind) % 16
    assert torch.equal(hvd.allreduce(x + r, op=hvd.Sum), x * n + n * (n - 1) // 2)
    assert hvd.allgather(torch.full((r + 1,), r, dtype=kind)).tolist() == [q for q in range(n) for _ in range(q + 1)]
many = hvd.grouped_allreduce([torch.full((k,), float(r + k)) for k in range(1, 20)])
assert all(torch.equal(each, torch.full((k,), (n - 1) / 2 + k)) for k, each in enumerate(many, 1))
assert hvd.broadcast(torch.tensor([r]), 1).tolist() == [1]
assert hvd.alltoall(torch.arange(n) + 10 * r).tolist() == [10 * q + r for q in range(n)]
assert hvd.reducescatter(torch.arange(float(n)) + r, op=hvd.Sum).tolist() == [n * r + n * (n - 1) / 2]
hvd.barrier()
x = torch.full((3,), float(r), requires_grad=True)
hvd.allreduce(x, op=hvd.Sum).sum().backward()
assert x.grad.tolist() == [n] * 3
for view in (False, True):
    torch.manual_seed(r)
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), gradient_as_bucket_view=view
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    start = model.weight.detach().clone()
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 4), float(r))).sum().backward()
        optimizer.step()
    assert torch.allclose(model.weight, start - (n - 1) / 2), view  # two steps, by half of the ranks' average
    assert all(torch.equal(model.weight, each) for each in hvd.allgather_object(model.weight.detach()))
assert 0 <= hvd.join() < n
os.write(1, b"done\\n")
"""


@over_mpich
@pytest.mark.parametrize("places", ["h1:2,h2:2", "h1:2,h2:1"])
def test_collectives(two, places):
    counts = re.sub("h.:", "", places)
    np = str(sum(map(int, counts.split(","))))
    done = two.hvdrun("-np", np, "-H", places, sys.executable, "-c", NUMPY, counts)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>: done" for rank in range(int(np))]


@over_mpi
def test_collectives_under_mpiexec(two):
    done = two.mpiexec("h1:2,h2:1", sys.executable, "-c", NUMPY, "2,1")
    assert (done.returncode, done.stdout) == (0, "done\n" * 3), done.stderr


@over_mpi
@with_torch
def test_pytorch(two):
    done = two.mpiexec("h1:2,h2:1", sys.executable, "-c", TORCH)
    assert (done.returncode, done.stdout) == (0, "done\n" * 3), done.stderr


@over_mpich
@with_torch
def test_digits(two):
    script = ROOT / "examples/python/torch_digits.py"
    done = two.hvdrun("-np", "4", "-H", "h1:2,h2:2", sys.executable, script, "--epochs", "2", "--batch-size", "8")
    accuracies = re.findall(r"\[0\]<stdout>: epoch \d: loss [\d.]+, accuracy ([\d.]+)%", done.stdout)
    assert done.returncode == 0 and len(accuracies) == 2 and float(accuracies[-1]) > 80, done.stdout + done.stderr


# ---- without an MPI between the hosts ------------------------------------------------------------------------------

BOTH = """
import os
import torch, torch.distributed as dist
import hvd.torch as hvd
from torch.nn.parallel import DistributedDataParallel

hvd.init()
r, n = hvd.rank(), hvd.size()
assert not hvd.mpi_enabled() and hvd.allreduce(torch.full((3,), r + 1.0), op=hvd.Sum).tolist() == [n * (n + 1) / 2] * 3
assert (hvd.local_size(), hvd.cross_size()) == (2, 2) if n == 4 else n == 3
assert hvd.allgather_object(r) == list(range(n))
dist.init_process_group("hvd")
assert len(set(dist.group.WORLD._group.hosts)) == 2
for count in (1, 1000, 300_000):
    x = torch.arange(count, dtype=torch.float64) + r
    dist.all_reduce(x)
    assert torch.equal(x, torch.arange(count, dtype=torch.float64) * n + n * (n - 1) / 2)
    parts = [torch.empty(count) for _ in range(n)]
    dist.all_gather(parts, torch.full((count,), float(r)))
    assert all(bool(part.eq(q).all()) for q, part in enumerate(parts))
if r == n - 1:
    dist.send(torch.arange(100_000), 0, tag=7)
elif r == 0:
    got = torch.empty(100_000, dtype=torch.int64)
    assert dist.recv(got, tag=7) == n - 1 and torch.equal(got, torch.arange(100_000))
across = dist.new_group([0, n - 1])
if r in (0, n - 1):
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": r}, group=across)
    assert objects == [{"rank": 0}, {"rank": n - 1}]
torch.manual_seed(r)
model = DistributedDataParallel(torch.nn.Linear(300, 300))
model(torch.full((2, 300), float(r))).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((300, 300), float(n - 1)))
dist.destroy_process_group()
hvd.shutdown()
os.write(1, f"done by {n}\\n".encode())
"""


def torchrun_on_hosts(two, script, ranks, **env):
    """torchrun on each host, as torchrun's documentation says for several: exit code, output and error output of each."""
    nodes = start_torchrun(two, script, ranks, **env)
    outputs = [node.communicate(timeout=LIMIT) for node in nodes]
    return [(node.returncode, *output) for node, output in zip(nodes, outputs)]


def start_torchrun(two, script, ranks, **env):
    nodes = []
    for i, host in enumerate(two.all):
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(ranks[i])]
        words += ["--node-rank", str(i), "--master-addr", two.all[0].name, "--master-port", "29431", str(script)]
        nodes.append(
            subprocess.Popen(
                [*two.enter, str(two.agent), host.name, shlex.join(words)], stdin=subprocess.DEVNULL, text=True,
                env=environment(**{**two.reach, "OMP_NUM_THREADS": "1", **env}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    return nodes


@with_torch
@pytest.mark.parametrize("ranks", [(2, 2), (1, 2)])
def test_torchrun_on_two_hosts(two, tmp_path, ranks):
    script = tmp_path / "both.py"
    script.write_text(BOTH)
    for count, (code, output, text) in zip(ranks, torchrun_on_hosts(two, script, ranks)):
        assert (code, output) == (0, f"done by {sum(ranks)}\n" * count), text


LOSES = """
import os, signal, time
import torch, torch.distributed as dist

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # with which torchrun ends a host's other ranks as soon as one has failed
dist.init_process_group("hvd")
r = dist.get_rank()
x = torch.ones(100_000)
dist.all_reduce(x)
if r == 3:
    os.kill(os.getpid(), signal.SIGKILL)
since = time.monotonic()
try:
    while True:
        dist.all_reduce(x)
except dist.DistBackendError as e:
    lost = "has exited or was killed" in str(e) and "rank 3" in str(e)
    os.write(1, f"rank {r} {'names' if lost else e} {time.monotonic() - since < 2}\\n".encode())  # at once: lines stay whole
raise SystemExit(1)
"""


@with_torch
def test_a_rank_that_is_killed_on_another_host(two, tmp_path):
    script = tmp_path / "loses.py"
    script.write_text(LOSES)
    (_, first, text), (_, second, _) = torchrun_on_hosts(two, script, (2, 2))
    assert sorted(first.splitlines()) == ["rank 0 names True", "rank 1 names True"], text + second


UNPLUGGED = """
import os, signal, subprocess, time
import torch, torch.distributed as dist

dist.init_process_group("hvd")
r = dist.get_rank()
x = torch.ones({count})
dist.all_reduce(x)
dist.barrier()
if r == 2:
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
since = time.monotonic()
try:
    while True:
        dist.all_reduce(x)
except dist.DistBackendError as e:
    text = str(e)
    os.write(1, f"rank {{r}}: {{time.monotonic() - since:.0f}} s: {{text}}\\n".encode())  # at once, so that lines stay whole
time.sleep(2)
if r >= 2:
    subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)
    os.kill(os.getppid(), signal.SIGKILL)
os._exit(1)
"""


@with_torch
@pytest.mark.parametrize("count", [10, 3_000_000], ids=["idle", "sending"])
def test_a_host_without_a_network(two, tmp_path, count):
    """The kernel says so of an idle connection, hvd itself of one with data on its way."""
    script = tmp_path / "unplugged.py"
    script.write_text(UNPLUGGED.format(count=count))
    (_, first, text), _ = torchrun_on_hosts(two, script, (2, 2))
    ends = sorted(first.splitlines())
    assert len(ends) == 2 and any("or its host is gone: it does not answer" in end for end in ends), text
    for r, end in enumerate(ends):
        seconds = re.match(rf"rank {r}: (\d+) s: hvd: all_reduce: ", end)
        assert seconds and int(seconds[1]) < 25, end
        assert re.search(r"rank [23] has exited or was killed|of all ranks: rank [23]\)", end), end


@with_torch
def test_hvdrun_without_an_mpi_between_ranks(two, tmp_path):
    script = tmp_path / "both.py"
    script.write_text(BOTH)
    (tmp_path / "bin").mkdir()  # all programs but mpiexec
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            link = tmp_path / "bin" / program.name
            if not program.name.startswith(("mpiexec", "hydra")) and not link.is_symlink():
                link.symlink_to(program)
    for options, path in (["--gloo"], os.environ["PATH"]), ([], str(tmp_path / "bin")):
        done = two.run(*HVDRUN, *options, "-np", "4", "-H", "h1:2,h2:2", sys.executable, script, PATH=path)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"[{r}]<stdout>: done by 4" for r in range(4)]


def test_a_program_in_cpp(two, tmp_path):
    (tmp_path / "main.cpp").write_text(r"""
#include <hvd/allreduce.hpp>
#include <hvd/transport/tcp.hpp>
#include <cstdio>
int main() {
  auto comm = hvd::TcpTransport::from_environment();
  double value = comm.rank();
  hvd::allreduce(comm, std::span(&value, 1));
  std::printf("%g\n", value);
}
""")
    program = [f"-I{ROOT}/include", tmp_path / "main.cpp", "-o", tmp_path / "main", "-pthread"]
    subprocess.run(["g++", "-std=c++20", *program], check=True, timeout=LIMIT)
    two.started_by("hvdrun")
    done = two.hvdrun("-np", "3", "-H", "h1:2,h2:1", tmp_path / "main")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}]<stdout>: 3" for r in range(3)]


@both_starters
def test_much_input_for_a_rank_that_reads_late(two):
    late = "if [ $HOROVOD_RANK = 0 ]; then sleep 0.5; cksum; fi"
    for text in ("x" * (1 << 20), ""):
        want = subprocess.run(["cksum"], input=text, capture_output=True, check=True, text=True).stdout
        done = two.hvdrun("-np", "3", "-H", "h1:1,h2:2", "sh", "-c", late, stdin=text)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"[0]<stdout>: {want}")


def test_much_output(two):
    two.started_by("hvdrun")
    script = "for n in 1 2 3; do head -c 3000000 /dev/zero | tr '\\0' x; echo; done; echo end >&2"
    done = two.hvdrun("-np", "3", "-H", "h1:2,h2:1", "sh", "-c", script)
    assert done.returncode == 0 and done.stderr.count("end") == 3
    assert done.stdout.count("x") == 27_000_000


KILL_PROXY = """
import os, pathlib, signal, time
if os.environ["HOROVOD_RANK"] == "1":
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        if path.read_bytes().endswith(b"__main__.py\\0proxy\\0"):
            os.kill(int(path.parent.name), signal.SIGKILL)
time.sleep(1000)
"""


def test_a_connection_that_is_lost(two):
    two.started_by("hvdrun")
    done = two.hvdrun("-np", "2", "-H", "h1:1,h2:1", sys.executable, "-c", KILL_PROXY)
    assert done.returncode == 1, done.stderr
    assert "hvdrun: the starter of ranks ended with exit code 1; its last lines:" in done.stderr
    assert re.search("h2 was lost: the connection ended, with exit code (-9|137)", done.stderr), done.stderr


KILL_GUARD = """
import os, signal, time
if os.environ["HOROVOD_RANK"] == "1":  # its parent is the guard, and the guard's parent what the proxy has started
    with open(f"/proc/{os.getppid()}/stat") as file:
        os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
time.sleep(1000)
"""


def test_a_guard_that_is_killed(two):
    two.started_by("hvdrun")
    done = two.hvdrun("-np", "2", "-H", "h1:1,h2:1", sys.executable, "-c", KILL_GUARD)
    assert done.returncode == 1 and "rank 1 on h2: its guard ended with code -9" in done.stderr, done.stderr


def test_a_host_that_does_not_answer_any_more(monkeypatch):
    (there, mine), (_, other) = os.pipe(), os.pipe()
    link = spread.Link(there, other)
    assert link.tend()
    os.write(mine, spread.FRAME.pack(spread.ALIVE, 0, 0))
    now = time.monotonic()
    monkeypatch.setattr(spread.time, "monotonic", lambda: now + spread.SILENCE - 1)
    assert link.read() == [(spread.ALIVE, 0, b"")]
    link.write()  # nothing, which is no sign of life
    assert link.tend() and link.waiting == spread.FRAME.pack(spread.ALIVE, 0, 0)
    now += spread.SILENCE - 1
    assert link.tend()
    now += 1
    assert not link.tend()


# ---- elastic jobs --------------------------------------------------------------------------------------------------


def elastic(two, tmp_path, *words, **env):
    """An elastic job on the two hosts: see test_launcher_elastic.py."""
    two.started_by("hvdrun")
    return start(tmp_path, *words, begin=[*two.enter, *two.hvdrun_in(tmp_path)], **{**two.reach, "OMP_NUM_THREADS": "1", **env})


def await_first_step(tmp_path):
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end_of(job):
    """The job, at its end."""
    out, err = job.communicate(timeout=LIMIT)
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def test_a_rank_of_another_host_is_left_out_and_another_one_joins(two, tmp_path):
    """First one of h2, then the one that the others have met at."""
    job, wait_for = elastic(two, tmp_path, "-H", "h1:2,h2:2", "-np", "4", "--min-np", "2", FAIL="2.0:5:kill,0.0:15:kill")
    wait_for(f"rank 2 of 4 on h2 (slot 2, round 1) {KILLED}; another one starts in its place; 3 ranks are left")
    wait_for("round 2 begins with 3 ranks")
    wait_for("round 3 begins with 4 ranks, 1 of them new")
    wait_for(f"rank 0 of 4 on h1 (slot 0, round 3) {KILLED}; another one starts in its place; 3 ranks are left")
    wait_for("round 4 begins with 3 ranks")
    sizes = check_end(end_of(job), {3, 4})
    assert sizes[:3] == [4] * 3 and set(sizes) == {3, 4}, sizes


def test_a_host_that_is_lost_and_comes_back(two, tmp_path):
    """Its ranks have ended without a report. The ranks of the other one go on in shared memory."""
    job, wait_for = elastic(two, tmp_path, "-H", "h1:2,h2:1", "-np", "3", "--min-np", "1")
    await_first_step(tmp_path)
    two.all[1].clear()
    wait_for("h2 was lost: the connection ended")
    wait_for("on h2 (slot 2, round 1) ended with exit code 255; another one starts in its place; 2 ranks are left")
    wait_for("round 2 begins with 2 ranks")
    wait_for("round 3 begins with 3 ranks, 1 of them new")
    check_end(end_of(job), {3})


def test_the_state_goes_from_host_to_host(two, tmp_path, script):
    """A discovery script finds h1, then h2 as well, then h2 alone."""
    job, wait_for = elastic(two, tmp_path, *script.words, "-np", "1", "--min-np", "1", "--max-np", "2")
    script("echo h1:1")
    wait_for("h1 has 1 slot")
    script("echo h1:1; echo h2:1")
    wait_for("round 2 begins with 2 ranks, 1 of them new")
    script("echo h2:1")
    wait_for("h1 is gone")
    wait_for("round 3 begins with 1 rank")
    assert set(check_end(end_of(job), {1})) == {1, 2}


def test_a_host_that_elastic_ranks_cannot_use(two, tmp_path, script):
    """The ranks do without it."""
    job, wait_for = elastic(two, tmp_path, *script.words, "-np", "1", "--min-np", "1", "--max-np", "2", PAUSE="0.05")
    script("echo h1:1; echo h3:1")
    wait_for("in slot 1 on h3 ended with exit code 255; h3 gets no more ranks after 2 failures in slot 1")
    assert check_end(end_of(job), {1}) == [1] * 120


CORES = """
import os, hvd
hvd.init()
os.write(1, f"{hvd.rank()} {os.environ['HOROVOD_HOSTNAME']} {sorted(os.sched_getaffinity(0))} {os.environ['HVD_CPUS']}\\n".encode())
hvd.barrier()
"""


def test_elastic_ranks_get_the_cores_of_ranks_of_other_jobs(two):
    two.started_by("hvdrun")
    words = ["-H", "h1:2,localhost:2,h2:1", "-np", "5", sys.executable, "-c", CORES]
    fixed, elastic = (two.hvdrun(*options, *words, HYDRA_LAUNCHER_AUTOFORK="") for options in ([], ["--min-np", "5"]))
    assert (fixed.returncode, fixed.stderr, elastic.returncode, elastic.stderr) == (0, "", 0, "")
    assert sorted(elastic.stdout.splitlines()) == sorted(fixed.stdout.splitlines())
    assert "]<stdout>: 1 h1 [" in elastic.stdout


def test_a_timeline_of_elastic_ranks(two, tmp_path):
    """All hosts have the current folder, in which it is."""
    two.started_by("hvdrun")
    words = ["-H", "h1:1,h2:1", "-np", "2", "--min-np", "2", "--timeline-live", sys.executable, "-c", "import hvd; hvd.init()"]
    done = two.run(*two.hvdrun_in(tmp_path), *words, HVD_TIMELINE_STAY="0")
    assert done.returncode == 0 and timeline.ELASTIC in done.stderr, done.stderr
    (file,) = tmp_path.glob("hvd-timeline-*.json")
    hosts = {e["args"]["host"] for e in json.loads(file.read_text()) if e.get("name") == "hvd_rank"}
    assert hosts == {"h1", "h2"}


def test_an_agent_that_hangs(two, tmp_path):
    """It counts as a failure of its host, and the others do without it."""
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\nif [ "$1" = h2 ] && [ -e begun ]; then exec sleep 1000; fi\nexec {two.agent} "$@"\n')
    agent.chmod(0o755)
    job, wait_for = elastic(
        two, tmp_path, "-H", "h1:1,h2:1", "-np", "2", "--min-np", "1", "--start-timeout", "3", FAIL="1.0:3:kill",
        HYDRA_LAUNCHER_EXEC=str(agent),
    )  # fmt: skip
    wait_for("round 2 begins with 1 rank")
    wait_for("h2 was lost: no process was started there in time (--start-timeout)")
    wait_for("h2 gets no more ranks after 2 failures in slot 1")
    check_end(end_of(job), {1})


# ---- more of an MPI ------------------------------------------------------------------------------------------------


def test_mpi_alone(two, tmp_path):
    compiler = shutil.which("mpicxx.mpich")
    if not compiler:
        pytest.skip("mpicxx.mpich is missing (Debian: libmpich-dev)")
    (tmp_path / "main.cpp").write_text(r"""
#include <mpi.h>
#include <cstdio>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, sum;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::printf("%d\n", sum);
  MPI_Finalize();
}
""")
    subprocess.run([compiler, tmp_path / "main.cpp", "-o", tmp_path / "main"], check=True, timeout=LIMIT)
    done = two.hvdrun("-np", "2", "-H", "h1:1,h2:1", tmp_path / "main")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>: 1", "[1]<stdout>: 1"]), done.stderr


# ---- ranks that fail -----------------------------------------------------------------------------------------------

# Nobody but the last rank fails by itself; those of the other host do not learn of it.
FAIL = """
import os, signal, sys
import numpy as np, hvd
hvd.init()
hvd.allreduce(np.ones(3))
if hvd.rank() < 2:
    hvd.allreduce(np.ones(3))
elif hvd.rank() == 2:
    signal.pause()
elif sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
else:
    raise KeyError("no luck")
"""


@both_starters
def test_a_rank_of_another_host_fails(two):
    script = "if [ $HOROVOD_RANK = 3 ]; then echo why >&2; exit 5; fi; setsid sleep 1000 & sleep 1000"
    done = two.hvdrun("-np", "4", "-H", "h1:2,h2:2", "sh", "-c", script)
    assert done.returncode == 5
    assert "hvdrun: rank 3 of 4 ended with exit code 5; the others were ended; its last lines:\n  why" in done.stderr


@both_starters
@over_mpich
@pytest.mark.parametrize(("how", "code", "said"), [
    ("raise", 1, "ended with exit code 1; the others were ended; its last lines:\n  Traceback "),
    ("kill", 137, "was killed by SIGKILL (Killed); the others were ended"),
])  # fmt: skip
def test_a_rank_fails_while_others_wait_for_it(two, how, code, said):
    done = two.hvdrun("-np", "4", "-H", "h1:2,h2:2", sys.executable, "-c", FAIL, how)
    assert done.returncode == code and f"hvdrun: rank 3 of 4 {said}" in done.stderr, done.stderr


@over_mpi
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_rank_fails_under_mpiexec(two, how):
    done = two.mpiexec("h1:2,h2:2", sys.executable, "-c", FAIL, how)
    assert done.returncode != 0
    if how == "raise":
        assert "KeyError: 'no luck'" in done.stderr and "hvd: rank 3 ends with exit code 1" in done.stderr, done.stderr
    end_of_all([pid for host in two.all for pid in host.processes()])  # mpiexec does not wait for the last


# ---- hvd.run -------------------------------------------------------------------------------------------------------

FUNCTION = """
import json, os, signal, sys
import hvd
from hvd.launcher import LaunchError, RankFailed

def work(start, step=0):
    import numpy as np, hvd
    hvd.init()
    total = int(hvd.allreduce(np.array([start + step]), op=hvd.Sum)[0])
    hvd.shutdown()
    return os.environ["HOROVOD_RANK"], os.uname().nodename, total

def fail(how):
    import numpy as np, hvd
    hvd.init()
    hvd.allreduce(np.ones(3))
    if hvd.rank() != 3:
        signal.pause()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise KeyError("no luck")

def place(hosts):
    return dict(np=4, hosts=hosts, **json.loads(sys.argv[1]))

if __name__ == "__main__":
    found = hvd.run(work, (3,), {"step": 2}, **place("h1:2,h2:2"))
    assert found == [("0", "h1", 20), ("1", "h1", 20), ("2", "h2", 20), ("3", "h2", 20)], found
    assert hvd.run(os.getcwd, **place("h2:4")) == [os.getcwd()] * 4
    try:
        hvd.run(fail, ("raise",), **place("h1:2,h2:2"))
    except RankFailed as e:
        assert e.rank == 3 and isinstance(e.__cause__, KeyError), repr(e.__cause__)
        assert str(e).startswith("rank 3 of 4 raised KeyError: 'no luck'\\n\\nTraceback"), e
    else:
        raise AssertionError("nothing raised")
    try:
        hvd.run(fail, ("kill",), **place("h1:2,h2:2"))
    except RankFailed as e:
        # mpiexec kills the others at once. Times of two hosts compare by an estimate of their clocks, of one host exactly.
        assert e.rank in (0, 1, 3) and e.returncode == -signal.SIGKILL, e
    else:
        raise AssertionError("nothing raised")
    try:
        hvd.run(work, (3,), **place("h1:2,h9:2"))
    except LaunchError as e:
        assert str(e).startswith("h9 cannot be reached: agent: there is no host 'h9'"), e
    else:
        raise AssertionError("nothing raised")
    try:
        hvd.run(work, (3,), **place("h1:1,h2:1"))
    except ValueError as e:
        assert str(e).startswith("4 ranks were asked for, but there are 2 slots (h1:1, h2:1)"), e
    else:
        raise AssertionError("nothing raised")
    print("done")
"""


@over_mpich
@pytest.mark.parametrize("starter", ["mpiexec", "hvdrun"])
def test_a_function(two, tmp_path, starter):
    script = tmp_path / "script.py"
    script.write_text(FUNCTION)
    options = {"mpi_args": f"-localhost {two.address}"} if starter == "mpiexec" else {"use_gloo": True}
    done = two.run(sys.executable, script, json.dumps(options))
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


ELASTIC_FUNCTION = """
import os, signal, time
import numpy, hvd, hvd.elastic
from hvd.launcher import RankFailed

def work(data, folder):
    hvd.init()
    if folder and hvd.rank() == 2:
        while not {"0", "1"} <= set(os.listdir(folder)):
            time.sleep(0.01)
        raise KeyError("no luck")
    if folder:
        open(f"{folder}/{hvd.rank()}", "w").close()
        hvd.shutdown()
        hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, sizes=[])

    @hvd.elastic.run
    def train(state):
        while len(state.sizes) < 20 or state.sizes[-1] < 3:
            if len(state.sizes) == 5 and hvd.rank() == 2 and os.environ["HVD_JOB"].endswith("-1"):
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.broadcast_object(None)
            state.sizes = [*state.sizes, hvd.size()]
            state.commit()
            time.sleep(0.05)

    train(state)
    return hvd.rank(), os.uname().nodename, state.sizes, data

if __name__ == "__main__":
    job = dict(num_proc=3, hosts="h1:2,h2:1")
    data = numpy.arange(200_000)
    found = hvd.run(work, (data, ""), **job, min_num_proc=2)
    assert [one[:2] for one in found] == [(0, "h1"), (1, "h1"), (2, "h2")], found
    sizes = found[0][2]
    assert sizes[:5] == [3] * 5 and 2 in sizes and sizes[-1] == 3 and all(one[2] == sizes for one in found), sizes
    assert all((one[3] == data).all() for one in found)
    try:
        hvd.run(work, (data, os.path.dirname(os.path.abspath(__file__))), **job, min_num_proc=3, reset_limit=0)
    except RankFailed as e:
        assert isinstance(e.__cause__, KeyError), repr(e)
        assert str(e).startswith("rank 2 of 3 on h2 (slot 2, round 1) raised KeyError: 'no luck', and the ranks have changed 0 times"), e
        assert "Traceback" in str(e)
    else:
        raise AssertionError("nothing raised")
    print("done")
"""


def test_an_elastic_function(two, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ELASTIC_FUNCTION)
    done = two.run(sys.executable, script)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


# ---- ssh -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sshd(made, tmp_path_factory):
    """Two hosts that answer to ssh alone: the PATH with an ssh that knows them, and the key."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if not server or not shutil.which("ssh-keygen"):
        pytest.skip("sshd is missing (Debian: openssh-server)")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("key", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "config").write_text(f"""Port 2222
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
StrictModes no
PasswordAuthentication no
UsePAM no
PermitRootLogin yes
PidFile none
""")
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text(f"[h1]:2222,[h2]:2222 {key}\n")
    (folder / "passwd").write_text(Path("/etc/passwd").read_text() + "sshd:x:104:65534::/run/sshd:/usr/sbin/nologin\n")
    (folder / "bin").mkdir()
    line = shlex.join([str(shutil.which("ssh")), "-F", "none", "-o", f"UserKnownHostsFile={folder}/known"])
    (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    (folder / "bin/ssh").chmod(0o755)
    # What sshd wants to find, for that host alone.
    start = f"mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs none /run && mkdir /run/sshd"
    start += f" && exec {shlex.join([server, '-D', '-e', '-f', str(folder / 'config')])}"
    servers = []
    try:
        for host in made.all:
            command = [made.agent, host.name, start]
            env = {**os.environ, **made.reach}
            servers.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
            said = ""
            while "Server listening on 0.0.0.0" not in said:
                said = servers[-1].stderr.readline()
                assert said, "sshd did not start"
        yield f"{folder}/bin:{os.environ['PATH']}", str(folder / "key"), folder
    finally:
        for host in made.all:
            host.clear()
        for server in servers:
            server.communicate()


NO_AGENT = {name: "" for name in ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC")}


@over_mpich
@pytest.mark.parametrize("starter", ["mpiexec", "hvdrun"])
def test_hosts_behind_ssh(made, sshd, tmp_path, starter):
    path, key, folder = sshd
    made.started_by(starter)
    def run(*words, port="2222"):
        return made.hvdrun("-p", port, "-i", key, "-np", "4", "-H", "h1:2,h2:2", *words, PATH=path, **NO_AGENT)

    before = [host.processes() for host in made.all]
    script = NUMPY if starter == "mpiexec" else NUMPY.replace(" and hvd.mpi_enabled()", " and not hvd.mpi_enabled()")
    done = run(sys.executable, "-c", script, "2,2")
    assert (done.returncode, done.stderr, done.stdout.count("done")) == (0, "", 4)
    odd = tmp_path / ODD
    odd.mkdir()
    reach = ["-p", "2222", "-i", key, "-np", "2", "-H", "h1:1,h2:1"]
    program = [sys.executable, "-c", "import os, sys; print(ascii([os.getcwd(), *sys.argv[1:]]))", ODD, ""]
    done = made.run(*made.hvdrun_in(odd), *reach, *program, PATH=path, TMPDIR=str(odd), **NO_AGENT)
    assert (done.returncode, done.stderr, done.stdout.count(ascii([str(odd), ODD, ""]))) == (0, "", 2)
    assert list(odd.iterdir()) == []
    done = run(sys.executable, "-c", FAIL, "raise")
    assert done.returncode == 1 and "hvdrun: rank 3 of 4 ended with exit code 1" in done.stderr, done.stderr
    deadline = time.monotonic() + LIMIT
    while [host.processes() for host in made.all] != before:  # sshd's own for the connections end by themselves
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done = run("true", port="2223")
    assert done.returncode == 1
    assert "h1 cannot be reached: ssh: connect to host h1 port 2223: Connection refused" in done.stderr
    known = (folder / "known").read_text()
    (folder / "known").write_text("")
    done = run("true")
    (folder / "known").write_text(known)
    assert done.returncode == 1 and "h2 cannot be reached: Host key verification failed." in done.stderr, done.stderr


# Saves its work on SIGTERM, in a number of seconds; rank 1 may fail.
SAVES = """
import os, pathlib, signal, sys, time
import hvd

def save(*_):
    time.sleep(float(sys.argv[1]))
    pathlib.Path(f"saved-{hvd.rank()}").touch()
    os._exit(0)

signal.signal(signal.SIGTERM, save)
hvd.init()
pathlib.Path("begun").touch()
if sys.argv[2:] and hvd.rank() == 1:
    os._exit(3)
if sys.argv[2:] and "HVD_ELASTIC_SLOT" in os.environ:
    hvd.shutdown()
    hvd.init()  # there may be no other round
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(("starter", "options"), [
    pytest.param("mpiexec", [], marks=over_mpich, id="mpiexec"),
    pytest.param("hvdrun", [], id="hvdrun"),
    pytest.param("hvdrun", ["--min-np", "2", "--reset-limit", "0"], id="elastic"),
])  # fmt: skip
def test_how_long_ranks_have_to_end(made, sshd, tmp_path, starter, options):
    """Longer when hvdrun gets a signal than when a rank has failed, or hvdrun is gone."""
    path, key, _ = sshd
    made.started_by(starter)
    before = made.left()
    jobs = {}
    for how, words in {"stopped": [GRACE + 1], "failed": [4 * GRACE, "fail"], "gone": [4 * GRACE]}.items():
        folder = tmp_path / how
        folder.mkdir()
        command = [*made.enter, *made.hvdrun_in(folder), *options, "-p", "2222", "-i", key, "-H", "h1:1,h2:1", "-np", "2"]
        command += [sys.executable, "-c", SAVES, *map(str, words)]
        env = environment(**{**made.reach, **NO_AGENT, "PATH": path})
        jobs[how] = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for how in ("stopped", "gone"):
        await_first_step(tmp_path / how)
    jobs["stopped"].send_signal(signal.SIGTERM)
    jobs["gone"].kill()
    codes = {how: end_of(job).returncode for how, job in jobs.items()}
    assert not [line for lines, _ in made.left() for line in lines if line.endswith(" fail ")]  # hvdrun has waited for them
    deadline = time.monotonic() + LIMIT
    while made.left() != before:
        assert time.monotonic() < deadline, made.left()
        time.sleep(0.05)
    assert codes == {"stopped": 128 + signal.SIGTERM, "failed": 3, "gone": -signal.SIGKILL}
    saved = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/saved-*"))
    assert saved == ["stopped/saved-0", "stopped/saved-1"]


WATCHED = """
import numpy, hvd
hvd.init()
for _ in range(3):
    hvd.allreduce(numpy.ones(4), name="w")
hvd.mark_step(8)
"""


@pytest.mark.parametrize("starter", ["mpiexec", "hvdrun"])
@pytest.mark.parametrize("folder", ["of each host", "shared"])
def test_the_timelines_of_all_hosts_come_to_one_file(made, folder, tmp_path, starter):
    """Each host has a /dev/shm of its own, and all have this folder."""
    made.started_by(starter)
    file = tmp_path / "timeline.json" if folder == "shared" else Path("/dev/shm/hvd-test-timeline.json")
    try:
        done = made.hvdrun(
            "-H", "h1:2,h2:1", "-np", 3, "--timeline-live", "--timeline-filename", file, sys.executable, "-c", WATCHED,
            HVD_TIMELINE_STAY="0",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "timeline: http://127.0.0.1:" in done.stderr
        events = json.loads(made.run("cat", file).stdout)
    finally:
        made.run("rm", "-f", file)
        for host in made.all:
            host.run("rm", "-f", "/dev/shm/hvd-test-timeline.json")
    assert sum("start_time_since_epoch_in_micros" in e.get("args", {}) for e in events) == 1
    hosts = {e["tid"]: e["args"]["host"] for e in events if e.get("name") == "hvd_rank"}
    assert hosts == {0: "h1", 1: "h1", 2: "h2"}
    for rank in range(3):
        mine = [e for e in events if e.get("tid") == rank]
        assert sum(e.get("name") == "ALLREDUCE" for e in mine) == 3
        assert [e["args"]["samples"] for e in mine if e.get("name") == "STEP"] == [8]
        begun, ended = ([e["ph"] for e in mine].count(phase) for phase in "BE")
        assert begun == ended
    assert list(tmp_path.iterdir()) == []  # the file, and the mark beside it
