"""The choice of network interfaces, from what hosts have found out, and the probing itself with strangers about."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys

import pytest

from hvd.launcher import network as launcher_network
from hvd.launcher.supervisor import interfaces
from hvd.remote import network


def host(name, *interfaces, devices=()):
    return {"host": name, "port": 1, "interfaces": [list(one) for one in interfaces], "devices": list(devices)}


def reaches(others, refused=()):
    return {"reached": {str(index): list(addresses) for index, addresses in others.items()}, "refused": dict(refused)}


BRIDGE = ("docker0", "172.17.0.1", -1)


def test_a_bridge_and_a_dead_card_are_left_out():
    hosts = [host(f"h{i}", ("eth0", f"10.0.0.{i}", -1), ("eth1", f"10.1.0.{i}", 25000), BRIDGE) for i in (1, 2)]
    results = [reaches({1: ["10.0.0.2"]}), reaches({0: ["10.0.0.1"]})]
    assert network.choose(hosts, results) == [["eth0"], ["eth0"]]


def test_the_fastest_comes_first_and_all_have_to_reach_it():
    hosts = [host(f"h{i}", ("eth0", f"10.0.0.{i}", 1000), ("ib0", f"10.1.0.{i}", 100000)) for i in (1, 2, 3)]
    both = {i: [f"10.0.0.{i + 1}", f"10.1.0.{i + 1}"] for i in range(3)}
    results = [reaches({i: both[i] for i in range(3) if i != me}) for me in range(3)]
    assert network.choose(hosts, results) == [["ib0", "eth0"]] * 3
    results[0]["reached"]["2"].remove("10.1.0.3")
    assert network.choose(hosts, results) == [["eth0"]] * 3


def test_names_differ_between_hosts():
    hosts = [host("h1", ("eno1", "10.0.0.1", -1)), host("h2", ("ens3", "10.0.0.2", -1))]
    results = [reaches({1: ["10.0.0.2"]}), reaches({0: ["10.0.0.1"]})]
    assert network.choose(hosts, results) == [["eno1"], ["ens3"]]


def test_a_host_without_ranks_keeps_no_name_from_the_others():
    hosts = [host(f"h{i}", ("eth0", f"10.0.0.{i}", -1), ("eth1", f"10.1.0.{i}", -1)) for i in (1, 2)]
    hosts.append(host("front", ("bond0", "10.0.0.9", -1)))
    results = [
        reaches({1: ["10.0.0.2"], 2: ["10.0.0.9"]}),
        reaches({0: ["10.0.0.1"], 2: ["10.0.0.9"]}),
        reaches({0: ["10.0.0.1"], 1: ["10.0.0.2"]}),
    ]
    assert network.choose(hosts, results, 2) == [["eth0"], ["eth0"], ["bond0"]]


def test_none_in_common():
    hosts = [host("h1", ("eth0", "10.0.0.1", -1), BRIDGE), host("h2", BRIDGE), host("h3")]
    results = [
        reaches({1: [], 2: []}, {"172.17.0.1": "leads to itself"}),
        reaches({0: [], 2: []}, {"10.0.0.1": "No route to host", "172.17.0.1": "leads to itself"}),
        reaches({0: ["10.0.0.1"], 1: []}),
    ]
    with pytest.raises(network.NoCommonNetwork) as caught:
        network.choose(hosts, results)
    assert str(caught.value).splitlines() == [
        "no network interface of h1, h2, h3 can be reached by all other hosts of the job; tried:",
        "  h1 eth0 10.0.0.1: from h2: No route to host; from h3: reached",
        "  h1 docker0 172.17.0.1: from h2: leads to itself; from h3: no answer",
        "  h2 docker0 172.17.0.1: from h1: leads to itself; from h3: no answer",
        "  h3 has no interface with an IPv4 address that is up",
        "Name the interfaces to use with --network-interfaces or HVD_NETWORK_INTERFACES, or open the network.",
    ]


def test_variables():
    assert interfaces.variables(["eth0", "eth1"], ["mlx5_0:1"]) == {
        "NCCL_SOCKET_IFNAME": "=eth0,eth1",
        "GLOO_SOCKET_IFNAME": "eth0,eth1",
        "UCX_NET_DEVICES": "mlx5_0:1,eth0,eth1",
        "FI_TCP_IFACE": "eth0",
    }


def test_named_interfaces(monkeypatch):
    """Of all hosts: each uses those that it has, and needs one."""
    assert interfaces.named({"HVD_NETWORK_INTERFACES": " eth0, eth1,"}) == ["eth0", "eth1"]
    assert interfaces.named({}) == []
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth1"), (3, "eth10")])
    assert interfaces.of_this_host(["eth0", "eth1"], "h1") == (["eth1"], "")
    assert interfaces.of_this_host(["eth0", "eth2"], "h1") == (
        [],
        "the network interfaces eth0, eth2 are named, and h1 has only lo, eth1, eth10",
    )
    assert interfaces.variables(["eth1"]) == {
        "NCCL_SOCKET_IFNAME": "=eth1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "UCX_NET_DEVICES": "eth1",
        "FI_TCP_IFACE": "eth1",
    }


class Process:
    """The program of network.py, as a host runs it."""

    def __init__(self, *before):
        self.process = subprocess.Popen(
            [*before, sys.executable, "-I", "-S", network.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.own = self.hear()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def tell(self, me, hosts, secret="00" * 32, limit=20):
        told = {"secret": secret, "me": me, "hosts": hosts, "limit": limit}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(20) == 0
        self.process.stdout.close()


@pytest.fixture
def three():
    made = [Process() for _ in range(3)]
    yield made
    for one in made:
        one.end()


def loopback(one, name="eth0"):
    """What a host says, with an address that is always there."""
    return {**one.own, "interfaces": [[name, "127.0.0.1", -1]]}


def test_hosts_find_each_other(three):
    hosts = [loopback(one) for one in three]
    hosts[2]["interfaces"].append(["eth1", "127.0.0.1", -1])
    for me, one in enumerate(three):
        one.tell(me, hosts)
    results = [one.hear() for one in three]
    assert results[0] == {"reached": {"1": ["127.0.0.1"], "2": ["127.0.0.1"] * 2}, "refused": {}}
    assert network.choose(hosts, results) == [["eth0"], ["eth0"], ["eth0"]]


def test_an_address_that_leads_to_another_host(three):
    hosts = [loopback(one) for one in three]
    hosts[1]["port"] = hosts[0]["port"]  # as a bridge's address leads back to the host that asks
    for me, one in enumerate(three):
        one.tell(me, hosts)
    results = [one.hear() for one in three]
    assert results[0]["refused"] == {"127.0.0.1": "leads to itself"} and results[0]["reached"]["1"] == []
    assert results[2]["reached"] == {"0": ["127.0.0.1"], "1": []}


def test_strangers(three):
    """One that does not know the secret learns nothing; one that is silent or closes disturbs nothing."""
    hosts = [loopback(one) for one in three]
    silent = socket.create_connection(("127.0.0.1", hosts[0]["port"]))
    gone = socket.create_connection(("127.0.0.1", hosts[0]["port"]))
    gone.close()
    guessing = socket.create_connection(("127.0.0.1", hosts[0]["port"]))
    assert len(guessing.recv(1000)) == network.NONCE
    guessing.sendall(b"x" * (network.NONCE + network.DIGEST))
    three[0].tell(0, hosts)
    three[1].tell(1, hosts)
    three[2].tell(2, hosts, secret="11" * 32)
    results = [one.hear() for one in three]
    assert guessing.recv(1000) == b""
    assert results[1]["reached"] == {"0": ["127.0.0.1"], "2": []}
    assert "does not know the job's secret" in results[2]["refused"]["127.0.0.1"]
    assert results[2]["reached"] == {"0": [], "1": []}
    silent.close()
    guessing.close()


def test_more_strangers_than_descriptors():
    """The oldest of those who have not asked as hosts do makes room."""
    few, other = Process("sh", "-c", 'ulimit -n 60 && exec "$@"', "sh"), Process()
    hosts = [loopback(few), loopback(other)]
    strangers = [socket.socket() for _ in range(80)]
    for stranger in strangers:
        stranger.settimeout(0.2)
        with contextlib.suppress(OSError):  # no more fit into the queue of those that connect
            stranger.connect(("127.0.0.1", hosts[0]["port"]))
    few.tell(0, hosts)
    other.tell(1, hosts)
    assert few.hear()["reached"] == {"1": ["127.0.0.1"]}
    assert other.hear()["reached"] == {"0": ["127.0.0.1"]}
    for stranger in strangers:
        stranger.close()
    few.end()
    other.end()


def test_strangers_that_come_at_once():
    async def meet():
        prober = network.Prober()
        port = await prober.listen()
        prober.most = 3
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
        strangers[-1].setblocking(False)
        assert len(await asyncio.get_running_loop().sock_recv(strangers[-1], 1000)) == network.NONCE
        assert len(prober.asking) == 3  # the last to come, and all have come
        for stranger in strangers:
            stranger.close()
        prober.server.close()

    asyncio.run(asyncio.wait_for(meet(), 60))


def test_within_an_event_loop():
    """As in a cell of a notebook."""

    async def value():
        return 3

    async def cell():
        return launcher_network._completed(value())

    assert asyncio.run(cell()) == 3 and launcher_network._completed(value()) == 3
