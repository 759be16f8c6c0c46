"""hvd.run"""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from launcher_support import mpi_library

from hvd.launcher import LaunchError, RankFailed, across, run

over_mpi = pytest.param(
    True,
    id="over_mpi",
    marks=pytest.mark.skipif(
        not any(map(shutil.which, across.NAMES)) or "MPICH" not in mpi_library(),
        reason="there is no mpiexec.mpich, or hvd was not built with MPICH (Debian: mpich, libmpich-dev)",
    ),
)
transports = pytest.mark.parametrize("use_mpi", [None, over_mpi])


def place(*args, **kwargs):
    assert os.environ["RANK"] == os.environ["HOROVOD_RANK"] and int(os.environ["MASTER_PORT"]) > 0
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]), args, kwargs


@pytest.mark.parametrize("np", [1, 2, 3])
def test_results_of_all_ranks(np):
    found = run(place, (1, "a"), {"b": 2}, num_proc=np)
    assert found == [(rank, np, (1, "a"), {"b": 2}) for rank in range(np)]
    assert run(place, np=np) == [(rank, np, (), {}) for rank in range(np)]


@transports
def test_a_large_call_large_results_and_output(use_mpi, capsys, tmp_path):
    def work(text):
        print("working")
        return text + os.environ["HOROVOD_RANK"].encode()

    text = os.urandom(1 << 20)
    found = run(work, (text,), num_proc=2, use_mpi=use_mpi, output_filename=str(tmp_path))
    assert found == [text + b"0", text + b"1"]
    out = capsys.readouterr().out
    assert sorted(out.splitlines()) == ["[0]<stdout>: working", "[1]<stdout>: working"]
    assert (tmp_path / "rank.1/stdout").read_text() == "working\n"


@transports
def test_an_exception_of_a_rank(use_mpi):
    def work():
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("no luck")
        return threading.Event().wait()

    with pytest.raises(RankFailed, match=r"rank 1 of 2 raised KeyError: 'no luck'(.|\n)*Traceback") as failed:
        run(work, num_proc=2, use_mpi=use_mpi)
    assert failed.value.rank == 1 and isinstance(failed.value.__cause__, KeyError)


@transports
def test_a_rank_that_is_killed(use_mpi):
    def work():
        if os.environ["HOROVOD_RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    with pytest.raises(RankFailed, match=r"rank 0 of 2 was killed by SIGKILL \(Killed\)") as failed:
        run(work, num_proc=2, use_mpi=use_mpi)
    assert failed.value.returncode == -signal.SIGKILL


@transports
def test_what_cannot_be_pickled(use_mpi):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="closure variable 'lock'"):
        run(lambda: lock, num_proc=2, use_mpi=use_mpi)
    with pytest.raises(RankFailed, match=r"the value that <lambda> returned on rank 1 cannot be pickled(.|\n)*lock"):
        run(lambda: threading.Lock() if os.environ["HOROVOD_RANK"] == "1" else 0, num_proc=2, use_mpi=use_mpi)


@pytest.mark.parametrize(("arguments", "error", "sentence"), [
    ({"num_proc": 0}, ValueError, "num_proc, the number of ranks, is 0"),
    ({"num_proc": 2.0}, ValueError, "num_proc, the number of ranks, is 2.0"),
    ({"num_proc": 2, "hosts": "localhost:1"}, ValueError, "2 ranks were asked for, but there are 1 slots"),
    ({"hosts": "a b"}, ValueError, "hosts: 'a b' is not a host"),
    ({"hosts": "a", "hostfile": "b"}, ValueError, "hosts, hostfile and host_discovery_script exclude each other"),
    ({"num_proc": 2, "min_np": 3}, ValueError, "num_proc 2 is not from min_num_proc 3 to max_num_proc 2"),
    ({"num_proc": 2, "min_num_proc": 0}, ValueError, "num_proc 2 is not from min_num_proc 0 to max_num_proc 2"),
    ({"num_proc": 2, "max_num_proc": 3, "use_mpi": True}, ValueError, "an MPI cannot lose ranks: elastic jobs run without one"),
    ({"executable": "no-python"}, LaunchError, "no-python was not found"),
])  # fmt: skip
def test_bad_arguments(arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        run(place, **arguments)


def test_an_elastic_job(capsys):
    """Rank 0 of the first round is killed; the results are those of the ranks in the last one."""

    def work():
        import hvd.elastic

        hvd.init()
        state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, sizes=[])

        @hvd.elastic.run
        def train(state):
            while len(state.sizes) < 40:
                if len(state.sizes) == 10 and hvd.rank() == 0 and os.environ["HVD_JOB"].endswith("-1"):
                    os.kill(os.getpid(), signal.SIGKILL)
                hvd.broadcast_object(None)
                state.sizes = [*state.sizes, hvd.size()]
                state.commit()
                time.sleep(0.05)
            return hvd.rank(), state.sizes

        return train(state)

    found = run(work, num_proc=3, min_num_proc=2)
    ranks, sizes = zip(*found)
    assert list(ranks) == [0, 1, 2] and sizes[0] == sizes[1] == sizes[2]
    assert sizes[0][:10] == [3] * 10 and 2 in sizes[0] and sizes[0][-1] == 3
    said = capsys.readouterr().err
    assert "rank 0 of 3 on localhost (slot 0, round 1) was killed by SIGKILL (Killed); another one starts in its place" in said


def test_an_elastic_job_without_hvd():
    assert run(lambda: os.environ["HVD_ELASTIC_SLOT"], num_proc=2, min_num_proc=1) == ["0", "1"]


def test_an_elastic_job_that_fails(tmp_path):
    """The traceback is that of the first rank, although another process has started in its place."""

    def work():
        import hvd

        (tmp_path / f"{os.environ['HVD_ELASTIC_SLOT']}-{os.getpid()}").touch()
        hvd.init()
        while hvd.rank() == 0 and len(list(tmp_path.glob("1-*"))) < 2:
            time.sleep(0.01)
        raise KeyError(f"no luck in round {os.environ['HVD_JOB'].rpartition('-')[2]}")

    with pytest.raises(RankFailed, match=r"rank 1 of 2 on localhost \(slot 1, round 1\) raised KeyError: 'no luck in round 1', and (.|\n)*Traceback") as failed:
        run(work, num_proc=2, min_num_proc=1)
    assert isinstance(failed.value.__cause__, KeyError)


def test_a_host_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("HYDRA_LAUNCHER", "rsh")
    monkeypatch.setenv("HYDRA_LAUNCHER_EXEC", str(shutil.which("false")))
    with pytest.raises(LaunchError, match="^(no-such-host.invalid cannot be reached|several hosts need MPICH)"):
        run(place, hosts="no-such-host.invalid:1")


def test_what_changes_nothing_is_said(capsys):
    assert run(place, num_proc=1, hosts="localhost:1", use_gloo=True) == [(0, 1, (), {})]
    assert capsys.readouterr().err.startswith("hvd.run: use_gloo has no effect here: ")


def test_the_signature_is_horovod_s():
    names = """func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile
        host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo
        use_mpi mpi_args network_interface network_interfaces executable np min_np max_np""".split()
    parameters = inspect.signature(run).parameters
    assert list(parameters) == names
    assert parameters["num_proc"].default == 1 and parameters["args"].default == ()


def test_a_process_without_standard_streams(tmp_path):
    """Also no descriptor that hvd keeps gets their numbers."""
    script = (
        "import os, hvd\n"
        "from hvd.descriptors import above_streams\n"
        "def closed():\n"
        "    return [number for number in range(3) if not os.path.lexists(f'/proc/self/fd/{number}')]\n"
        "def call():\n"
        "    hvd.init()\n"
        "    return hvd.rank(), closed()\n"
        "if __name__ == '__main__':\n"
        "    with above_streams():\n"
        "        pipe = os.pipe()\n"
        "    assert min(pipe) > 2 and closed() == [0, 1, 2]\n"
        "    hvd.init()\n"
        "    hvd.start_timeline('timeline.json')\n"
        "    assert closed() == [0, 1, 2]\n"
        "    assert hvd.run(call, np=2) == [(0, []), (1, [])]\n"
        "    assert closed() == [0, 1, 2]\n"
        "    open('done', 'w').close()\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = f'exec {sys.executable} -c "$0" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", command, script], cwd=tmp_path, env=environ, timeout=60)
    assert done.returncode == 0 and (tmp_path / "done").exists()
