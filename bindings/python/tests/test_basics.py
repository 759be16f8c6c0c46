"""Joining and leaving a job, what holds outside one, and what happens when a rank fails."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_jobs import rank_environment

import hvd

NOT_INITIALIZED = r"^Horovod has not been initialized; use hvd.init\(\).$"


def start_ranks(size: int, code: str, **environment: str) -> list[subprocess.Popen[str]]:
    job = f"pytest-{secrets.token_hex(8)}"
    return [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], env=rank_environment(r, size, job, **environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(size)
    ]


def end_ranks(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; fails where one does not end."""
    results = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=60)
            results.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return results


def run_alone(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_", "PMI_", "OMPI_", "SLURM_"))}
    clean.update({k: v for k, v in environment.items() if v is not None})
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=clean, capture_output=True, text=True, timeout=60
    )


def test_outside_a_job() -> None:
    assert not hvd.is_initialized()
    calls: list[Any] = [
        hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size, hvd.is_homogeneous,
        hvd.mpi_threads_supported, hvd.stop_timeline, hvd.join, hvd.barrier, hvd.global_process_set.size,
        lambda: hvd.start_timeline("/tmp/x"), lambda: hvd.add_process_set([0]), lambda: hvd.allreduce(np.ones(1)),
        lambda: hvd.allgather(np.ones(1)), lambda: hvd.alltoall(np.ones(1)), lambda: hvd.reducescatter(np.ones(1)),
        lambda: hvd.broadcast_object(1), lambda: hvd.allgather_object(1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=NOT_INITIALIZED):
            call()
    hvd.shutdown()
    assert hvd.ProcessSet([1, 0]).ranks == [0, 1] and hvd.ProcessSet([0]).size() is None
    for wrong in (3, ["a"], [1.0], None):
        with pytest.raises(ValueError, match="ProcessSet should be initialized"):
            hvd.ProcessSet(wrong)


def test_alone_and_again() -> None:
    done = run_alone("""
        import hvd, numpy as np
        for i in range(50):
            hvd.init()
            hvd.init()  # does nothing
            assert hvd.is_initialized() and (hvd.rank(), hvd.size(), hvd.local_size(), hvd.cross_size()) == (0, 1, 1, 1)
            assert hvd.allreduce(np.ones(2)).tolist() == [1, 1] and hvd.join() == 0
            ps = hvd.ProcessSet([0])
            hvd.shutdown()
            hvd.shutdown()
            assert not hvd.is_initialized()
    """)
    assert done.returncode == 0, done.stderr


def check_again() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def mapped() -> int:
        with open("/proc/self/maps") as file:
            return sum("hvd" in line or "/dev/shm" in line for line in file)

    hvd.shutdown()
    before = descriptors(), mapped()
    for i in range(200):
        hvd.init(process_sets=[hvd.ProcessSet([0])] if i % 50 == 0 else None)
        assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
        hvd.shutdown()
    assert (descriptors(), mapped()) == before
    hvd.init()


def test_again_200_times(several_ranks: Any) -> None:
    several_ranks.run(check_again)


def check_static_process_sets() -> None:
    n = hvd.size()
    hvd.shutdown()
    first, rest = hvd.ProcessSet([0]), hvd.ProcessSet(range(1, n))
    hvd.init(process_sets=[first, rest])
    assert (first.process_set_id, rest.process_set_id) == (1, 2)
    mine = first if hvd.rank() == 0 else rest
    assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=mine)[0] == mine.size()
    hvd.shutdown()
    assert first.process_set_id is None
    for wrong in ("static", 3, [3], first, [[0]]):
        with pytest.raises(ValueError, match="dynamic"):
            hvd.init(process_sets=wrong)
        assert not hvd.is_initialized()
    hvd.init(process_sets=(first,))
    hvd.init(process_sets=[rest])  # does nothing
    assert first.process_set_id == 1 and rest.process_set_id is None
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


def test_static_process_sets(several_ranks: Any) -> None:
    several_ranks.run(check_static_process_sets)


def check_comm() -> None:
    r, n = hvd.rank(), hvd.size()
    hvd.shutdown()
    for wrong in ([r, r], [n], "x", 3, [r + 0.5], [[r]], [q for q in range(n) if q != r]):
        with pytest.raises(ValueError, match="comm"):
            hvd.init(comm=wrong)
    hvd.init(comm=[n - 1, 0] if r in (0, n - 1) else [r])
    assert (hvd.rank(), hvd.size()) == ((0, 1) if 0 < r < n - 1 else (int(r == 0), 2))
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
    hvd.shutdown()
    hvd.init()


def test_comm(several_ranks: Any) -> None:
    several_ranks.run(check_comm)


class Communicator:
    """What hvd asks of a communicator of mpi4py, over files."""

    def __init__(self, folder: str, ranks: list[int], me: int) -> None:
        self._files = [Path(folder, f"{'.'.join(map(str, ranks))}-{r}") for r in ranks]
        self._rank = ranks.index(me)
        self._calls = 0

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return len(self._files)

    def allgather(self, value: Any) -> list[Any]:
        self._calls += 1
        with self._files[self._rank].open("a") as file:
            file.write(json.dumps(value) + "\n")
        values = []
        for file_of_rank in self._files:
            lines: list[str] = []
            while len(lines) < self._calls or not lines[self._calls - 1].endswith("\n"):
                lines = file_of_rank.read_text().splitlines(keepends=True) if file_of_rank.exists() else []
            values.append(json.loads(lines[self._calls - 1]))
        return values

    def bcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


def check_communicator(folder: str) -> None:
    r, n = hvd.rank(), hvd.size()
    chosen = hvd.ProcessSet(Communicator(folder, [0, n - 1], r)) if r in (0, n - 1) else hvd.ProcessSet([0, n - 1])
    if n > 2:
        hvd.add_process_set(chosen)
        assert chosen.ranks == [0, n - 1] and chosen.included() == (r in chosen.ranks)
        assert not chosen.included() or hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=chosen)[0] == 2
    hvd.shutdown()
    order = [n - 1, *range(n - 1)]
    hvd.init(comm=Communicator(folder, order, r))
    assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (order.index(r), n, order.index(r))
    assert hvd.allgather(np.array([r])).tolist() == order
    hvd.shutdown()
    hvd.init()


def test_communicator(several_ranks: Any, tmp_path: Path) -> None:
    several_ranks.run(check_communicator, folder=str(tmp_path))


def test_a_rank_that_does_not_come() -> None:
    results = end_ranks(start_ranks(2, """
        import hvd
        from hvd.core.placement import find_place
        if find_place().rank == 0:
            try:
                hvd.init()
            except hvd.HorovodInternalError as e:
                print(e.kind, hvd.is_initialized())
    """, HOROVOD_START_TIMEOUT="1"))
    assert results[0][:2] == (0, "timeout False\n"), results


def test_a_rank_that_raises() -> None:
    """The others learn of it in the middle of their step."""
    results = end_ranks(start_ranks(3, """
        import hvd, numpy as np
        hvd.init()
        hvd.allreduce(np.ones(1))
        if hvd.rank() == 1:
            raise KeyError("mine")
        try:
            hvd.allreduce(np.ones(1), name="x")
        except hvd.HorovodInternalError as e:
            print(e.kind, e.rank, "rank 1 " in str(e), hvd.is_initialized())
    """))
    assert results[1][0] == 1 and "KeyError" in results[1][2], results
    assert all(results[r][:2] == (0, "peer_lost 1 True True\n") for r in (0, 2)), results


def test_a_rank_that_is_killed() -> None:
    results = end_ranks(start_ranks(3, """
        import hvd, numpy as np, os, signal
        hvd.init()
        hvd.allreduce(np.ones(1))
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce(np.ones(1), name="x")
        except hvd.HorovodInternalError as e:
            print(e.kind, e.rank)
    """))
    assert results[2][0] == -signal.SIGKILL
    assert all(results[r][:2] == (0, "peer_lost 2\n") for r in (0, 1)), results


def test_control_c() -> None:
    """A rank that waits can be interrupted, and ends."""
    processes = start_ranks(2, """
        import hvd, numpy as np, sys, time
        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            sys.stdin.read()
        else:
            try:
                print("waiting", flush=True)
                hvd.allreduce(np.ones(1), name="never")
            except KeyboardInterrupt:
                print("interrupted")
    """)
    try:
        first = processes[0]
        assert first.stdout is not None and first.stdout.readline() == "waiting\n"
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=30)
        assert (first.returncode, out) == (0, "interrupted\n"), err
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_control_c_on_all_ranks() -> None:
    """What was interrupted is in flight still, and the job goes on."""
    processes = start_ranks(2, """
        import hvd, numpy as np
        hvd.init()
        r = hvd.rank()
        mine = hvd.allreduce_async(np.ones(2), op=hvd.Sum, name=f"of rank {r}")
        hvd.barrier()
        try:
            print("waiting", flush=True)
            hvd.synchronize(mine)
        except KeyboardInterrupt:
            print(hvd.poll(mine))
        print(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
        other = hvd.allreduce_async(np.ones(2), op=hvd.Sum, name=f"of rank {1 - r}")
        print(hvd.synchronize(mine).tolist(), hvd.synchronize(other).tolist())
    """)
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
    for process in processes:
        process.send_signal(signal.SIGINT)
    results = end_ranks(processes)
    assert [r[:2] for r in results] == [(0, "False\n2.0\n[2.0, 2.0] [2.0, 2.0]\n")] * 2, results


@pytest.mark.parametrize("call", ["hvd.init()", "hvd.add_process_set([0])"])
def test_control_c_where_all_ranks_are_waited_for(call: str) -> None:
    processes = start_ranks(2, f"""
        import hvd, os, sys, time
        if "init" not in {call!r}:
            hvd.init()
        if os.environ["HOROVOD_RANK"] == "1":
            sys.stdin.read()
        else:
            started = time.monotonic()
            try:
                print("waiting", flush=True)
                {call}
            except KeyboardInterrupt:
                print("interrupted", time.monotonic() - started < 20, flush=True)
    """, HOROVOD_START_TIMEOUT="40")
    try:
        first = processes[0]
        assert first.stdout is not None and first.stdout.readline() == "waiting\n"
        time.sleep(0.3)  # comes to the call itself, where the signal is of interest
        first.send_signal(signal.SIGINT)
        assert first.stdout.readline() == "interrupted True\n"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


WAITING = {
    "allreduce": "hvd.allreduce(np.ones(1), name='x')",
    "synchronize": "hvd.synchronize(hvd.allreduce_async(np.ones(1), name='x'))",
    "barrier": "hvd.barrier()",
    "join": "hvd.join()",
    "add_process_set": "hvd.add_process_set([0])",
    "remove_process_set": "hvd.remove_process_set(other)",
    "again and again": "[hvd.allreduce(np.ones(1), process_set=alone) for i in iter(int, 1)]",
    "init": "hvd.init()",
}


@pytest.mark.parametrize("call", WAITING)
def test_interpreter_ends_while_a_daemon_thread_waits(call: str) -> None:
    # Each trial ends the interpreter at another moment of the wait; all must end alike.
    trials = [start_ranks(2, f"""
        import hvd, numpy as np, os, sys, threading, time
        first = os.environ["HOROVOD_RANK"] == "0"
        if {call!r} != "init":
            hvd.init()
            if {call!r} == "remove_process_set":
                other = hvd.add_process_set([1])
            elif {call!r} == "again and again":
                alone = hvd.add_process_set([0])
        if first:
            threading.Thread(target=lambda: {WAITING[call]}, daemon=True).start()
            time.sleep({trial} * 0.02)
        else:
            sys.stdin.readline()  # until the first is gone
            try:
                hvd.init()
                hvd.allreduce(np.ones(1), name="x")
            except hvd.HorovodInternalError as e:
                print("left" if e.kind in ("aborted", "peer_lost") else e.kind, e.rank)
    """, HOROVOD_START_TIMEOUT="2" if call == "init" else "40") for trial in range(6)]
    first = [(process.wait(60), *process.communicate()) for process, _ in trials]
    # Who has not met the others leaves nothing: they wait until their deadline.
    expected = "timeout 0\n" if call == "init" else "left 0\n"
    for _, process in trials:
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    second = end_ranks([process for _, process in trials])
    assert first == [(0, "", "")] * 6 and second == [(0, expected, "")] * 6, (first, second)


def test_interpreter_runs_while_a_rank_waits() -> None:
    results = end_ranks(start_ranks(2, """
        import hvd, numpy as np, threading, time
        hvd.init()
        if hvd.rank() == 0:
            waiting = threading.Thread(target=lambda: hvd.allreduce(np.ones(1), name="x"))
            waiting.start()
            sum(range(10000))  # needs the interpreter's lock
            hvd.barrier()
            waiting.join()
        else:
            hvd.barrier()
            hvd.allreduce(np.ones(1), name="x")
        print("both")
    """))
    assert [r[:2] for r in results] == [(0, "both\n")] * 2, results


def test_fork() -> None:
    results = end_ranks(start_ranks(2, """
        import hvd, numpy as np, os
        hvd.init()
        hvd.allreduce(np.ones(1))
        child = os.fork()
        if child == 0:
            assert hvd.rank() in (0, 1) and hvd.size() == 2 and not hvd.is_initialized()
            try:
                hvd.allreduce(np.ones(1))
            except hvd.HorovodInternalError as e:
                os._exit(7 if "forked" in str(e) else 1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    """))
    assert [r[:2] for r in results] == [(0, "2.0\n")] * 2, results


def test_fork_while_something_is_in_flight() -> None:
    """The child is told, whatever it tries; a wait there would be for ever."""
    results = end_ranks(start_ranks(2, """
        import hvd, numpy as np, os, sys
        hvd.init()
        r = hvd.rank()
        handle = hvd.allreduce_async(np.ones(1), op=hvd.Sum, name="x") if r == 0 else None
        child = os.fork()
        if child == 0:
            told = 0
            for call in (
                lambda: hvd.synchronize(handle or 1), lambda: hvd.poll(handle or 1), hvd.init, hvd.join, hvd.barrier,
                lambda: hvd.broadcast_object(1), lambda: hvd.add_process_set([0]), lambda: hvd.start_timeline("/tmp/x"),
            ):
                try:
                    call()
                except hvd.HorovodInternalError as e:
                    told += f"forked from rank {r}" in str(e)
            hvd.shutdown()
            sys.exit(told)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        hvd.barrier()
        print(hvd.synchronize(handle or hvd.allreduce_async(np.ones(1), op=hvd.Sum, name="x"))[0])
    """))
    assert [r[:2] for r in results] == [(0, "8\n2.0\n")] * 2, results


def test_a_forked_child_may_be_a_rank_of_another_job() -> None:
    results = end_ranks(start_ranks(2, """
        import hvd, numpy as np, os
        hvd.init()
        child = os.fork()
        if child == 0:
            os.environ["HVD_JOB"] += "-children"
            hvd.init()
            os._exit(int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0]) + 10 * hvd.rank())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    """))
    assert [r[:2] for r in results] == [(0, f"{2 + 10 * r} 2.0\n") for r in range(2)], results


def test_child_that_exits_normally_leaves_the_job_alone() -> None:
    results = end_ranks(start_ranks(2, """
        import hvd, numpy as np, os, sys
        hvd.init()
        child = os.fork()
        if child == 0:
            sys.exit(0)
        os.waitpid(child, 0)
        print(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    """))
    assert [r[:2] for r in results] == [(0, "2.0\n")] * 2, results


def check_timeline(path: str) -> None:
    hvd.start_timeline(path, mark_cycles=True)
    hvd.allreduce(np.ones(4), name="seen")
    hvd.stop_timeline()
    hvd.barrier()
    text = Path(path).read_text()
    json.loads(text)
    names = ["allreduce.seen", "start_time_since_epoch_in_micros", "NEGOTIATE_ALLREDUCE", '"ALLREDUCE"', "CYCLE_START"]
    assert [name for name in names if name not in text] == []
    hvd.barrier()
    for wrong in (os.path.join(path, "no", "folder"), "", path + "\0x"):
        with pytest.raises(ValueError):
            hvd.start_timeline(wrong)
    hvd.start_timeline(os.fsencode(path))
    hvd.start_timeline(Path(path))  # goes on
    hvd.stop_timeline()
    hvd.stop_timeline()


def test_timeline(ranks: Any, tmp_path: Path) -> None:
    ranks.run(check_timeline, path=str(tmp_path / "timeline.json"))


def test_report() -> None:
    done = subprocess.run([sys.executable, "-m", "hvd"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"hvd {hvd.__version__}" in done.stdout and "[X] shared memory" in done.stdout


def test_report_of_a_small_shared_memory(tmp_path: Path) -> None:
    """As in a container of Docker, whose /dev/shm has 64 MiB."""
    mount = 'mount -t tmpfs -o size=64m none "$1" && shift && exec "$@"'
    alone = ["unshare", "--mount", "sh", "-c", mount, "sh", str(tmp_path)]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here (root can)")
    env = {**os.environ, "HVD_SHM_DIR": str(tmp_path)}
    report = subprocess.run([*alone, sys.executable, "-m", "hvd"], capture_output=True, text=True, timeout=60, env=env)
    assert f"Warning: {tmp_path} has only 64 MiB: make it larger (--shm-size for containers)" in report.stdout
    env["HVD_SHM_DIR"] = str(tmp_path / "none")
    report = subprocess.run([sys.executable, "-m", "hvd"], capture_output=True, text=True, timeout=60, env=env)
    assert f"    [ ] shared memory ({tmp_path}/none: No such file or directory)" in report.stdout


def check_what_is_enabled() -> None:
    assert (hvd.gloo_enabled(), hvd.mpi_enabled()) == (True, False)


def test_what_is_built(ranks: Any) -> None:
    """Shared memory stands for Gloo. The report of the installation has what scripts are told, and what is there."""
    assert hvd.gloo_built() is True and not hvd.gloo_enabled() and not hvd.mpi_enabled()
    commands = [["hvd"], ["hvd.launcher.main", "--check-build"]]
    missing = {**os.environ, "HVD_CUDA_LIBRARY": "/nowhere/libcuda.so"}
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=60, env=missing
        )
        report = done.stdout
        assert "    [ ] CUDA (no driver: /nowhere/libcuda.so: " in report, report
        for name, built in (("shared memory", hvd.gloo_built()), ("MPI", hvd.mpi_built()), ("NCCL", hvd.nccl_built())):
            assert f"    [{'X' if built else ' '}] {name}" in report, report
        torch = importlib.util.find_spec("torch.nn")  # a part: a folder here has the name of the package
        for name, there in (("TCP", True), ('backend "hvd"', torch), ("PyTorch", torch), ("JAX", importlib.util.find_spec("jax.numpy"))):
            assert f"    [{'X' if there else ' '}] {name}" in report, report
        assert "Warning" not in report, report
    ranks.run(check_what_is_enabled)


def test_nccl_of_a_wheel(tmp_path: Path) -> None:
    """NCCL in the folder of its wheel is found without PyTorch, which would load it."""
    installed = Path(__file__).resolve().parents[3] / ".venv" / "nccl"
    if not (installed / "nccl" / "lib" / "libnccl.so.2").exists():
        pytest.skip("NCCL is not in .venv (tools/setup --gpu)")
    (tmp_path / "nvidia").symlink_to(installed)
    ask = "import sys, hvd; print(hvd.nccl_built(), 'torch' in sys.modules)"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    clean = {name: value for name, value in os.environ.items() if name != "HVD_NCCL_LIBRARY"}
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, env={**clean, "PYTHONPATH": path}
    )
    version, has_torch = done.stdout.split()
    assert int(version) > 20000 and has_torch == "False", done.stderr


def test_import_is_light() -> None:
    done = run_alone("""
        import sys, hvd
        assert "numpy" not in sys.modules and "hvd._core" not in sys.modules
        hvd.HorovodInternalError
        assert "numpy" not in sys.modules and "hvd._core" not in sys.modules
        try:
            hvd.nothing
        except AttributeError as e:
            print(e)
    """)
    assert (done.returncode, done.stdout) == (0, "module 'hvd' has no attribute 'nothing'\n"), done.stderr


def test_thread_affinity() -> None:
    """What the engine starts, process sets included, runs on the CPU of the rank, and the program where it ran."""
    cpus = sorted(os.sched_getaffinity(0))
    chosen = [cpus[0], cpus[-1]]
    code = """
        import contextlib, hvd, numpy as np, os
        def threads():
            found = {}
            for thread in map(int, os.listdir("/proc/self/task")):
                with contextlib.suppress(ProcessLookupError):  # it has ended since
                    found[thread] = sorted(os.sched_getaffinity(thread))
            return found
        before = threads()
        hvd.init()
        hvd.add_process_set([0])
        after = threads()
        new = {str(cpus) for thread, cpus in after.items() if thread not in before}
        print(new, all(after.get(t, cpus) == cpus for t, cpus in before.items()), hvd.allreduce(np.ones(1))[0])
    """
    results = end_ranks(start_ranks(2, code, HOROVOD_THREAD_AFFINITY=f"{chosen[0]}, {chosen[1]}"))
    assert [r[:2] for r in results] == [(0, f"{{'[{cpu}]'}} True 1.0\n") for cpu in chosen], results


@pytest.mark.parametrize("wrong", ["0", "0,", "0,x", "0,-1", "999999,999999"])
def test_bad_thread_affinity(wrong: str) -> None:
    results = end_ranks(start_ranks(2, """
        import hvd
        try:
            hvd.init()
        except ValueError as e:
            print("HOROVOD_THREAD_AFFINITY" in str(e), hvd.is_initialized())
    """, HOROVOD_THREAD_AFFINITY=wrong))
    assert [r[:2] for r in results] == [(0, "True False\n")] * 2, results


SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


def test_slurm_with_a_pmi_of_its_own() -> None:
    """srun --mpi=pmi2 says rank and size as MPICH does, but nothing of hosts: those are Slurm's to say."""
    from hvd.core.placement import find_place

    place = find_place({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"})
    assert place == find_place(SLURM) and (place.rank, place.local_rank, place.local_size) == (3, 1, 2)


@pytest.mark.parametrize("wrong", ["", "x", "2(x3)", "2,2,", "1(x4", "-1,5"])
def test_bad_slurm(wrong: str) -> None:
    from hvd.core.placement import find_place

    with pytest.raises(ValueError, match="SLURM_STEP_TASKS_PER_NODE"):
        find_place({**SLURM, "SLURM_STEP_TASKS_PER_NODE": wrong})


def test_bad_environment() -> None:
    done = run_alone("import hvd; hvd.init()", HOROVOD_FUSION_THRESHOLD="much")
    assert done.returncode == 1 and 'ValueError: hvd: HOROVOD_FUSION_THRESHOLD="much"' in done.stderr


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_a_folder_with_the_name_of_a_framework(name: str) -> None:
    """Where the framework is not installed, Python makes a module of the folder; the error says where it is."""
    code = f"import sys, types; sys.modules[{name!r}] = found = types.ModuleType({name!r}); found.__path__ = ['/here/{name}']; import hvd.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and f"/here/{name} is another folder of that name" in done.stderr, done.stderr
