"""The engine on memory of GPUs, which stand-ins for libcuda and libnccl play: streams work later than the host, and
work that no event orders is counted as a mistake.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import Ranks
from standin_gpu import WHERE, find_libraries

np = pytest.importorskip("numpy")

LIBRARIES = find_libraries()
pytestmark = pytest.mark.skipif(LIBRARIES is None, reason=f"the stand-ins are not built: {WHERE}")


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda n: f"{n}_ranks")
def gpu_ranks(request: pytest.FixtureRequest) -> Any:
    """1, 2 and 3 ranks with a GPU each."""
    job = start(request.param)
    yield job
    job.stop()


@pytest.fixture(scope="module")
def two_ranks() -> Any:
    """2 ranks with a GPU each."""
    job = start(2)
    yield job
    job.stop()


def start(size: int) -> Ranks:
    assert LIBRARIES is not None
    return Ranks(size, HVD_STANDIN_GPUS="3", **LIBRARIES.environment)


# What runs on the ranks.


def _array(shape: Any, dtype: str = "float32", stream: int = 0) -> Any:
    import gpu_arrays
    import hvd

    return gpu_arrays.DeviceArray(hvd.rank(), stream, shape, dtype)


def _checked(work: Any) -> None:
    """Calls it, and finds no mistake."""
    from standin_gpu import gpu

    before = gpu().violations
    work()
    assert gpu().violations == before, gpu().last_violation


def all_operations(dtype: str) -> None:
    import hvd
    from gpu_arrays import BLOCKING, OPS
    from hvd.core.reduce_op import Average, Max, Reduction, Sum
    from standin_gpu import gpu

    rank, size = hvd.rank(), hvd.size()
    every = hvd.global_process_set
    ranks = range(1, size + 1)

    def work() -> None:
        stream = gpu().stream(rank)
        for on in (0, stream):
            x = _array((5, 3), dtype, on)
            x.fill(np.arange(15).reshape(5, 3) + rank + 1)
            base = np.arange(15).reshape(5, 3) * size + sum(ranks)
            assert (BLOCKING.allreduce([x], True, None, Reduction(Sum), every).read() == base).all()
            largest = BLOCKING.allreduce([x], True, None, Reduction(Max), every).read()
            assert (largest == np.arange(15).reshape(5, 3) + size).all()
            assert (x.read() == np.arange(15).reshape(5, 3) + rank + 1).all(), "an input changed"

            group = [_array((n,), dtype, on) for n in (1, 7, 0, 300)]
            for i, one in enumerate(group):
                one.fill(i + rank)
            results = BLOCKING.allreduce(group, False, None, Reduction(Sum), every)
            for i, one in enumerate(results):
                assert one.shape == group[i].shape and (one.read() == i * size + sum(ranks) - size).all()

            assert (BLOCKING.broadcast(x, size - 1, None, every).read() == np.arange(15).reshape(5, 3) + size).all()

            rows = _array((rank + 1, 2), dtype, on)
            rows.fill(rank + 1)
            gathered = BLOCKING.allgather([rows], True, None, every).read()
            assert (gathered == np.repeat(ranks, ranks)[:, None] * np.ones(2)).all()

            parts = _array((2 * size,), dtype, on)
            parts.fill(np.arange(2 * size) + 10 * rank)
            output, received = BLOCKING.alltoall(parts, None, None, every)
            assert list(received) == [2] * size
            expected = np.concatenate([[2 * rank + 10 * r, 2 * rank + 1 + 10 * r] for r in range(size)])
            assert (output.read() == expected).all()
            splits = [rank + 1 if r == 0 else 0 for r in range(size)]
            lines = _array((rank + 1, 2), dtype, on)
            lines.fill(rank)
            output, received = BLOCKING.alltoall(lines, splits, None, every)
            assert list(received) == (list(ranks) if rank == 0 else [0] * size)
            assert output.read().shape == (sum(ranks) if rank == 0 else 0, 2)

            shared = _array((2 * size + 1, 2), dtype, on)
            shared.fill(np.arange(2 * size + 1)[:, None])
            mine = BLOCKING.reducescatter([shared], True, None, Reduction(Sum), every).read()
            first = 0 if rank == 0 else 2 * rank + 1
            assert (mine[:, 0] == size * np.arange(first, first + (3 if rank == 0 else 2))).all()

            if dtype != "int64":
                hvd.synchronize(OPS.allreduce([x], [x], True, None, Reduction(Average, 2.0, 0.5), every))
                assert np.allclose(x.read(), base / size, rtol=0.01)

    _checked(work)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
def test_all_operations(gpu_ranks: Ranks, dtype: str) -> None:
    gpu_ranks.run(all_operations, dtype=dtype)


def host_and_device() -> None:
    import hvd
    from gpu_arrays import BLOCKING
    from hvd.core.reduce_op import Reduction, Sum

    def work() -> None:
        for _ in range(3):
            x = _array((4,))
            x.fill(hvd.rank())
            total = BLOCKING.allreduce([x], True, "x", Reduction(Sum), hvd.global_process_set)
            on_host = hvd.allreduce(np.ones(4), op=hvd.Sum, name="y")
            assert (on_host == hvd.size()).all() and (total.read() == sum(range(hvd.size()))).all()
            assert hvd.broadcast_object(hvd.rank()) == 0

    _checked(work)


def test_tensors_of_the_host_and_of_gpus_are_in_one_job(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(host_and_device)


def host_does_not_wait() -> None:
    import hvd
    from gpu_arrays import OPS
    from hvd.core.reduce_op import Reduction, Sum
    from standin_gpu import gpu

    stream = gpu().stream(hvd.rank())
    x = _array((1000,), stream=stream)
    hvd.barrier()

    def reduce() -> None:
        hvd.synchronize(OPS.allreduce([x], [x], True, "x", Reduction(Sum), hvd.global_process_set))

    x.fill(1)
    reduce()  # connects NCCL
    before = gpu().host_synchronisations, gpu().calls("cuEventSynchronize")
    with gpu().held(hvd.rank(), stream):  # the GPU does nothing now, so whoever waits for it hangs
        x.fill(hvd.rank())
        handle = OPS.allreduce([x], [x], True, "x", Reduction(Sum), hvd.global_process_set)
        hvd.synchronize(handle)
        x.enqueue("step", True, lambda view: np.multiply(view, 2, out=view))
        assert gpu().pending(hvd.rank(), stream) > 0
    assert (gpu().host_synchronisations, gpu().calls("cuEventSynchronize")) == before
    assert (x.read() == 2 * sum(range(hvd.size()))).all()


def test_allreduce_does_not_wait_for_the_gpu(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(host_does_not_wait)


def poll_tells_the_end() -> None:
    import hvd
    from gpu_arrays import OPS
    from hvd.core.reduce_op import Reduction, Sum
    from standin_gpu import gpu

    x = _array((10,))
    x.fill(1)
    with gpu().held(hvd.rank(), 0):
        handle = OPS.allreduce([x], [x], True, "x", Reduction(Sum), hvd.global_process_set)
        time.sleep(0.3)
        assert not hvd.poll(handle)
    limit = time.monotonic() + 20
    while not hvd.poll(handle):
        assert time.monotonic() < limit
        time.sleep(0.01)
    hvd.synchronize(handle)


def test_poll_tells_when_the_gpu_is_done(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(poll_tells_the_end)


def planted(mistake: str) -> None:
    """Each is found, by every rank that makes it: all do. An event on a stream that has nothing to do is as good as a
    forgotten one.
    """
    import hvd
    from gpu_arrays import OPS
    from hvd.core import handles
    from hvd.core.reduce_op import Reduction, Sum
    from standin_gpu import gpu

    rank, every = hvd.rank(), hvd.global_process_set
    right, wrong = gpu().stream(rank), gpu().stream(rank)
    x = _array((1000,), stream=right)
    gpu().clear_violations()

    def reduce() -> int:
        return OPS.allreduce([x], [x], True, f"planted.{mistake}", Reduction(Sum), every)

    def step(plant: bool) -> None:
        x.fill(rank)
        if mistake == "the event is on a stream that the tensor is not made on":
            x.stream = wrong if plant else right
            handle = reduce()
            x.stream = right
            hvd.synchronize(handle)
        elif mistake == "the input changes after it was submitted":
            handle = reduce()
            if plant:
                x.fill(7)
            hvd.synchronize(handle)
        elif mistake == "the result is used before the stream waits for it":
            handle = reduce()
            if plant:
                handles._pending[handle].handle.wait_queued()
            else:
                hvd.synchronize(handle)
            x.enqueue("step", True, lambda view: None)
            hvd.synchronize(handle)
        elif mistake == "the result is used on a stream that does not wait":
            hvd.synchronize(reduce())
            x.enqueue("step", True, lambda view: None, wrong if plant else right)
        else:
            raise AssertionError(mistake)

    for plant in (False, True):
        with gpu().held(rank, right):  # else the operation may be over, and known to be, before the mistake is made
            step(plant)
        gpu().synchronise(rank, right)
        found, sentence = gpu().violations, gpu().last_violation
        assert found > 0 if plant else found == 0, sentence
        if plant:
            assert "no event orders them" in sentence
        gpu().synchronise(rank, wrong)
        hvd.barrier()
    gpu().synchronise(rank, wrong)
    gpu().clear_violations()


@pytest.mark.parametrize(
    "mistake",
    [
        "the event is on a stream that the tensor is not made on",
        "the input changes after it was submitted",
        "the result is used before the stream waits for it",
        "the result is used on a stream that does not wait",
    ],
)
def test_planted_mistakes_are_found(two_ranks: Ranks, mistake: str) -> None:
    two_ranks.run(planted, mistake=mistake)


def memory_is_kept() -> None:
    import hvd
    from gpu_arrays import OPS
    from hvd.core.reduce_op import Reduction, Sum
    from standin_gpu import gpu

    freed: list[bool] = []

    class Watched:
        def __del__(self) -> None:
            freed.append(True)

    x = _array((100,))
    x.fill(1)
    with gpu().held(hvd.rank(), 0):
        x.owner = Watched()
        handle = OPS.allreduce([x], [x], True, "kept", Reduction(Sum), hvd.global_process_set)
        hvd.synchronize(handle)  # only queued
        del x
        assert not freed, "the memory is given back while the GPU works with it"
    for _ in range(50):
        hvd.allreduce(np.ones(1))  # calls drop what has ended
        time.sleep(0.01)
    assert freed


def test_memory_is_kept_until_the_gpu_is_done(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(memory_is_kept)


def captures() -> None:
    import hvd
    from gpu_arrays import BLOCKING, OPS
    from hvd.core.reduce_op import Reduction, Sum
    from standin_gpu import gpu

    every = hvd.global_process_set
    rank, size = hvd.rank(), hvd.size()
    stream = gpu().stream(rank)
    x, y = _array((4,), stream=stream), _array((4,))
    x.fill(1)
    y.fill(1)
    earlier = OPS.allreduce([x], [x], True, "x", Reduction(Sum), every)
    with gpu().captured(rank, stream):
        hvd.synchronize(OPS.allreduce([y], [y], True, "y", Reduction(Sum), every))  # on another stream
        for call in (
            lambda: OPS.allreduce([x], [x], True, "z", Reduction(Sum), every),
            lambda: hvd.synchronize(earlier),
        ):
            with pytest.raises(ValueError, match="the stream is being captured into a CUDA graph"):
                call()
    assert (y.read() == size).all()
    assert (BLOCKING.allreduce([y], True, "z", Reduction(Sum), every).read() == size * size).all()


def test_captures_of_the_program_go_on_and_collectives_in_them_are_refused(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(captures)


def errors() -> None:
    import hvd
    from gpu_arrays import BLOCKING, DeviceArray
    from hvd.core.reduce_op import Reduction, Sum

    every = hvd.global_process_set
    x = _array((4,))
    x.fill(1)
    BLOCKING.allreduce([x], True, "right", Reduction(Sum), every)
    other = DeviceArray((hvd.rank() + 1) % 3, 0, (4,), "float32")
    with pytest.raises(ValueError, match=f"rank {hvd.rank()}"):
        BLOCKING.allreduce([other], True, "other", Reduction(Sum), every)
    if hvd.size() > 1:
        with pytest.raises(hvd.exceptions.HorovodInternalError, match="shape|length|elements"):
            wrong = _array((4 + hvd.rank(),))
            BLOCKING.allreduce([wrong], True, "wrong", Reduction(Sum), every)
    assert (BLOCKING.allreduce([x], True, "right", Reduction(Sum), every).read() == hvd.size()).all()


def test_errors(gpu_ranks: Ranks) -> None:
    gpu_ranks.run(errors)


def test_without_a_driver_a_tensor_on_a_gpu_is_refused(tmp_path: Path) -> None:
    script = (
        "import hvd\n"
        "from hvd import _core\n"
        "hvd.init()\n"
        "from hvd.core import state\n"
        "try:\n"
        "    state.current_job().submit(type('Pending', (), {})(), _core.operations['allreduce'], 'x',"
        " [(4096, 4096, _core.dtypes['float32'], (1,), None, 0, 0)], 1, 1.0, 1.0, -1, 0, 0, 0, (), True, None)\n"
        "except ValueError as e:\n"
        "    print(e)\n"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_"))}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**clean, "HVD_CUDA_LIBRARY": str(tmp_path / "none.so")},
        capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0 and "none.so" in done.stdout and "HVD_CUDA_LIBRARY" in done.stdout, done


RANK = """
import sys
sys.path.insert(0, sys.argv[1])
import hvd
from gpu_arrays import BLOCKING, DeviceArray
from hvd.core.reduce_op import Reduction, Sum
from standin_gpu import gpu

for again in range(2):
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert hvd.mpi_enabled() == (sys.argv[2] == "mpi")
    x = DeviceArray(rank, 0, (1000,), "float32")
    x.fill(rank + 1)
    rest = hvd.add_process_set(range(1, size))
    for name in ("a", "b"):
        result = BLOCKING.allreduce([x], True, name, Reduction(Sum), hvd.global_process_set)
        assert (result.read() == size * (size + 1) / 2).all()
        if rest.included():
            result = BLOCKING.allreduce([x], True, name, Reduction(Sum), rest)
            assert (result.read() == size * (size + 1) / 2 - 1).all()
    rows = BLOCKING.allgather([x], True, None, hvd.global_process_set)
    assert rows.shape == (1000 * size,)
    hvd.shutdown()
assert rows.read()[-1] == size  # it outlives the job
assert gpu().violations == 0, gpu().last_violation
assert hvd.nccl_built() > 20000
print("done", flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "mpi"])
def test_process_sets_and_jobs_one_after_another(transport: str) -> None:
    assert LIBRARIES is not None
    launcher = [sys.executable, "-m", "hvd.launcher.main", "-np", "3"]
    environment = {"HVD_STANDIN_GPUS": "3", **LIBRARIES.environment}
    if transport == "mpi":
        launcher = mpiexec()
        environment["HVD_TRANSPORT"] = "mpi"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_", "PMI", "OMPI_", "SLURM_"))}
    done = subprocess.run(
        [*launcher, sys.executable, "-c", RANK, str(Path(__file__).parent), transport], env={**clean, **environment},
        capture_output=True, text=True, timeout=100,
    )
    assert done.returncode == 0 and done.stdout.count("done") == 3, done.stdout + done.stderr


def mpiexec() -> list[str]:
    """Of the MPI that hvd is built with."""
    _core_mpi = pytest.importorskip("hvd._core_mpi", reason="hvd was built without an MPI")
    if "MPICH" in _core_mpi.library():
        return ["mpiexec.mpich", "-n", "3"]
    return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3"]
