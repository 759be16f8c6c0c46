"""hvd/launcher/supervisor/cores.py, on hosts that are folders."""

from __future__ import annotations

import math
import os

import pytest

from hvd.launcher.supervisor import cores


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Makes a host: for each CPU its socket, NUMA node and core; all may be used."""

    def make(places, limits=None, cgroup="0::/a/b\n"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(len(places))))
        for cpu, (socket, node, core) in enumerate(places):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}"
            (folder / "topology").mkdir(parents=True)
            (folder / f"node{node}").mkdir()
            (folder / "topology/physical_package_id").write_text(f"{socket}\n")
            (folder / "topology/core_id").write_text(f"{core}\n")
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(cgroup)
        for name, text in (limits or {}).items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return make


def test_whole_cores_and_neighbours(host):
    # Two sockets of two cores with two threads each, numbered as Linux does.
    root = host([(0, 0, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)] * 2)
    shares, why = cores.share_out(2, root=root)
    assert shares == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert why == "bound to 2 of 4 cores each: rank 0 on CPUs 0-1,4-5, rank 1 on CPUs 2-3,6-7"
    assert cores.share_out(4, root=root)[0] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    # Equal shares: what is left over is nobody's.
    assert cores.share_out(3, root=root)[0] == [[0, 4], [1, 5], [2, 6]]


def test_too_few_cores_or_one_rank(host):
    root = host([(0, 0, 0), (0, 0, 1)])
    assert cores.share_out(3, root=root) == (None, "not bound: 3 ranks on 2 cores")
    assert cores.share_out(1, root=root) == (None, "not bound: one rank has all CPUs to itself")
    assert cores.share_out(2, 2, root=root) == (None, "not bound: 2 ranks of 2 cores on 2 cores")
    assert cores.share_out(1, 1, root=root)[0] == [[0]]


def test_only_what_this_process_may_use(host, monkeypatch):
    root = host([(0, 0, core) for core in range(8)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 6})
    assert cores.share_out(3, root=root)[0] == [[2], [3], [6]]
    assert cores.share_out(4, root=root)[0] is None


def test_a_quota_of_any_control_group_above(host):
    root = host([(0, 0, core) for core in range(8)], {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"})
    assert cores.quota(root) == 4
    shares, why = cores.share_out(2, root=root)
    assert shares == [[0, 1], [2, 3]]
    assert why.startswith("bound to 2 of 4 cores (a quota of 4 CPUs, on 8 cores) each: ")
    assert cores.share_out(5, root=root)[0] is None


def test_a_quota_of_version_1(host):
    limits = {"cpu,cpuacct/a/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}
    root = host([(0, 0, 0), (0, 0, 1)], limits, "3:cpu,cpuacct:/a\n2:memory:/a\n")
    assert cores.quota(root) == 1.5
    assert cores.share_out(2, root=root)[0] is None


def test_no_quota_and_no_topology(tmp_path):
    assert cores.quota(str(tmp_path)) == math.inf
    assert cores.usable_cores({1, 0}, str(tmp_path)) == [[0], [1]]


def test_lists():
    assert cores.list_text([8, 0, 1, 2]) == "0-2,8"
    assert cores.list_text([]) == ""
