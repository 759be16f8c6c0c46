"""hvdrun --pin and --show-placement, and hvd/launcher/supervisor/planning.py, on hosts without GPUs."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from launcher_support import hvdrun

from hvd import _core
from hvd.launcher import LaunchError, across
from hvd.launcher.local import plan_ranks
from hvd.launcher.supervisor import planning
from hvd.launcher.supervisor.planning import Share

NO_GPU = {"HVD_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
CPUS = sorted(os.sched_getaffinity(0))
MIG = ("MIG-5a7d2000-0000-4000-8000-000000000001", "MIG-5a7d2000-0000-4000-8000-000000000002")

needs_mpi = pytest.mark.skipif(not any(map(shutil.which, across.NAMES)), reason="mpiexec.mpich is missing (Debian: mpich)")


def share(cpus=(), cpu_list="", visible=None, why="bound to 1 of 2 cores each"):
    return Share(list(cpus), cpu_list, "", visible, "", why, "")


def test_what_a_rank_finds_in_its_environment():
    assert share([0, 1], "0-1").variables(None) == {"HVD_CPUS": "0-1"}
    assert share().variables("cpus=none,shared:2,list:0,1") == {"HVD_CPUS": "", "HVD_PIN": "shared:2,list:0,1"}
    assert share().variables("cpus=numa") == {"HVD_CPUS": "", "HVD_PIN": "by_local_rank"}
    assert share(visible="MIG-1").variables("list:MIG-0,MIG-1") == {
        "HVD_CPUS": "", "HVD_PIN": "list:MIG-0,MIG-1", "CUDA_VISIBLE_DEVICES": "MIG-1",
    }  # fmt: skip


def test_policies_of_a_launcher():
    assert planning.policy_text(None, True) == "none"
    assert planning.policy_text(None, False) == "none,cpus=none"
    assert planning.policy_text("scatter", False) == "scatter,cpus=none"
    assert planning.policy_text("scatter,cpus=numa", False) == "scatter,cpus=numa"


def test_sentences():
    assert planning.describe([share([0], "0"), share([1], "1")]) == (
        "bound to 1 of 2 cores each: rank 0 on CPUs 0, rank 1 on CPUs 1"
    )
    assert planning.describe([share(why="not bound: as asked for")] * 2) == "not bound: as asked for"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shares_are_whole_cores_and_disjoint(ranks):
    shares = plan_ranks(ranks, None, True)
    assert len(shares) == ranks
    bound = [cpu for each in shares for cpu in each.cpus]
    assert len(set(bound)) == len(bound) and set(bound) <= set(CPUS)
    if ranks == 1:
        assert shares[0].cpu_reason == "not bound: one rank has all CPUs to itself" and not bound
    assert not any(each.cpus for each in plan_ranks(ranks, None, False))
    assert plan_ranks(1, None, 1)[0].cpus


def test_the_plan_of_another_process_is_the_same():
    apart = planning.plan_apart(_core.__file__, 2, "none", 6)
    assert apart == planning.plan(_core, 2, "none", 6)
    assert planning.plan_apart("/nowhere/_core.so", 2, "none", 0).startswith("/nowhere/_core.so: ")
    assert planning.plan_apart(_core.__file__, 2, "nonsense", 0).startswith('hvd: --pin="nonsense" has the unknown part')


def test_policies_reach_the_ranks():
    code = "echo $HVD_PIN; [ \"$HVD_CPUS\" = \"$(taskset -cp $$ | sed 's/.*: //')\" ] || [ -z \"$HVD_CPUS\" ]"
    done = hvdrun("-np", "2", "--pin", "cpus=exclusive,scatter", "sh", "-c", code, **NO_GPU)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, [f"[{r}]<stdout>: scatter" for r in range(2)])
    done = hvdrun("-np", "1", "sh", "-c", "echo ${HVD_PIN-unset}", **NO_GPU)
    assert done.stdout == "[0]<stdout>: unset\n"
    # The variable is the option's default.
    done = hvdrun("-np", "1", "true", HVD_PIN="list:0", **NO_GPU)
    assert done.returncode == 1 and 'does not see "0": no GPU is visible to it' in done.stderr


@pytest.mark.parametrize("how", [[], pytest.param(["--mpi"], marks=needs_mpi)])
def test_each_rank_sees_its_mig_instance(how):
    code = "echo $CUDA_VISIBLE_DEVICES $HVD_PIN"
    done = hvdrun("-np", "2", *how, "--pin", f"list:{MIG[0]},{MIG[1]}", "sh", "-c", code, **NO_GPU)
    assert sorted(done.stdout.splitlines()) == [f"[{r}]<stdout>: {MIG[r]} list:{MIG[0]},{MIG[1]}" for r in range(2)]


@pytest.mark.parametrize("how", [[], pytest.param(["--mpi"], marks=needs_mpi)])
def test_what_cannot_be_placed_is_not_started(how):
    done = hvdrun("-np", "2", *how, "--pin", "list:0,1", "echo", "started", **NO_GPU)
    assert done.returncode == 1 and done.stdout == ""
    # Under mpiexec either rank may be the first to report.
    assert re.search(
        r'pin list:0,1: rank ([01]) \(local rank \1 of 2\) does not see "\1": no GPU is visible to it \(', done.stderr
    )
    done = hvdrun("-np", "2", *how, "--pin", "nonsense", "echo", "started", **NO_GPU)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith('hvdrun: --pin="nonsense" has the unknown part "nonsense"; allowed: by_local_rank,')


def test_one_word_on_cpus():
    done = hvdrun("-np", "2", "--pin", "cpus=numa", "--binding-args", "-bind-to none", "true")
    assert done.returncode == 2
    assert done.stderr == (
        "hvdrun: --pin cpus=numa and --binding-args both set what ranks are bound to; give one of them\n"
    )
    done = hvdrun("-np", "2", "--pin", "round_robin", "--binding-args", "-bind-to none", "--verbose", "true", **NO_GPU)
    assert done.stderr == "hvdrun: ranks are not bound: as asked for\n"


def test_the_extension_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "hvd._core", None)
    monkeypatch.delattr("hvd._core")
    assert plan_ranks(2, None, True)[1].cpu_reason.startswith("not bound: the extension of hvd cannot be loaded: ")
    with pytest.raises(LaunchError, match="--pin needs the extension of hvd"):
        plan_ranks(2, "scatter", True)


@pytest.mark.parametrize("how", [[], pytest.param(["--mpi"], marks=needs_mpi)])
def test_a_table_of_placements(how):
    done = hvdrun("-np", "2", *how, "--show-placement", "--binding-args", "-bind-to none", **NO_GPU)
    assert (done.returncode, done.stderr) == (0, "")
    *table, why = done.stdout.splitlines()
    assert table == [
        "rank  host       GPU  CPUs  reason",
        "0     localhost  -    all   CPUs: not bound: as asked for",
        "1     localhost  -    all   CPUs: not bound: as asked for",
    ]
    assert why.startswith("no GPU for ranks 0, 1: no CUDA driver was found")


def test_a_table_with_ranks_that_cannot_be_placed():
    done = hvdrun("-np", "2", "--show-placement", "--pin", f"list:{MIG[0]},7,cpus=none", "train.py", **NO_GPU)
    assert done.returncode == 1
    *table, why = done.stdout.splitlines()
    assert table[1] == (
        f"0     localhost  {MIG[0]}  all   GPU: in the list; the only one that its process will see; "
        "CPUs: not bound: as asked for"
    )
    assert why.startswith(f"no GPU for rank 1: pin list:{MIG[0]},7: rank 1 (local rank 1 of 2) does not see \"7\": ")
