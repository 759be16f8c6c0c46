"""The package horovod: hvd under the names that scripts use."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import hvd
import hvd.core.job
import hvd.core.process_sets
import hvd.elastic
import hvd.exceptions
import hvd.launcher

COMPAT = Path(__file__).parents[2] / "compat"
SOURCE = str(Path(hvd.launcher.__file__).parents[2])

MODULES = [
    "horovod",
    "horovod.common.basics",
    "horovod.common.elastic",
    "horovod.common.exceptions",
    "horovod.common.process_sets",
    "horovod.common.util",
    "horovod.runner.common.util.env",
    "horovod.runner.launch",
    "horovod.runner.util.threads",
    "horovod.runner",
]


@pytest.mark.parametrize("name", MODULES)
def test_modules_exist(name: str) -> None:
    importlib.import_module(name)


def test_the_top() -> None:
    import horovod

    assert [int(part) for part in horovod.__version__.split(".")] == [0, 28, 1]
    assert horovod.run is hvd.launcher.run
    with pytest.raises(AttributeError, match="module 'horovod' has no attribute 'walk'"):
        _ = horovod.walk
    assert importlib.import_module("horovod.runner").run is horovod.run


def test_importing_it_imports_no_framework() -> None:
    path = os.pathsep.join((SOURCE, str(COMPAT / "horovod" / "src")))
    code = (
        "import sys, horovod, horovod.common.util, horovod.runner.common.util.env;"
        "print([m for m in ('hvd._core', 'torch', 'tensorflow', 'numpy', 'hvd.launcher') if m in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environ)
    assert run.stdout == "[]\n"


def test_without_hvd_it_says_so(tmp_path: Path) -> None:
    code = "import horovod.torch"
    environ = {**os.environ, "PYTHONPATH": str(COMPAT / "horovod" / "src")}
    command = [sys.executable, "-S", "-c", code]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ)
    said = "horovod.torch is served by hvd, which is not installed: pip install bindings/python of its sources"
    assert run.stderr.splitlines()[-1] == f"ImportError: {said}"


# --- Frameworks -------------------------------------------------------------------------------------------------------


def test_a_framework_is_hvds_own_module_with_all_below(tmp_path: Path) -> None:
    """With a package in hvd's place, whose every module counts how often it is loaded."""
    for name, text in {
        "hvd/__init__.py": "",
        "hvd/torch/__init__.py": "print('loading torch')\nfrom hvd.torch.deep.mpi_ops import allreduce\n",
        "hvd/torch/deep/__init__.py": "print('loading deep')\n",
        "hvd/torch/deep/mpi_ops.py": "print('loading mpi_ops')\ndef allreduce(): pass\n",
        "hvd/torch/broken.py": "import g_not_there\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = """
import sys
import horovod.torch as hvd
from horovod.torch.deep.mpi_ops import allreduce
import horovod.torch.deep.mpi_ops
import hvd.torch, hvd.torch.deep.mpi_ops
print(hvd.torch is sys.modules['horovod.torch'] is horovod.torch, hvd.torch.__name__, hvd.torch.__spec__.name)
print(horovod.torch.deep.mpi_ops is hvd.torch.deep.mpi_ops, allreduce is hvd.torch.allreduce)
for name in ('horovod.torch.nothing', 'horovod.spark', 'horovod.nothing', 'horovod.torch.broken'):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error)
"""
    path = os.pathsep.join((str(tmp_path), str(COMPAT / "horovod" / "src")))
    environ = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environ)
    assert run.stdout.splitlines() == [
        "loading torch",
        "loading deep",
        "loading mpi_ops",
        "True hvd.torch hvd.torch",
        "True True",
        "No module named 'horovod.torch.nothing'",
        "No module named 'horovod.spark'",
        "No module named 'horovod.nothing'",
        "No module named 'g_not_there'",
    ]


def test_torch() -> None:
    pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")
    pytest.importorskip("hvd._core", reason="SKIP: the extension is not built")
    theirs = importlib.import_module("horovod.torch")
    ours = importlib.import_module("hvd.torch")
    assert theirs is ours
    missing = [name for name in ours.__all__ if getattr(theirs, name) is not getattr(ours, name)]
    assert ours.__all__ and missing == []
    for name in ("mpi_ops", "functions", "optimizer", "compression", "sync_batch_norm"):
        assert importlib.import_module(f"horovod.torch.{name}") is importlib.import_module(f"hvd.torch.{name}")


@pytest.mark.parametrize("name", ["keras", "tensorflow", "tensorflow.keras"])
def test_keras_and_tensorflow(name: str) -> None:
    pytest.importorskip("tensorflow.dtypes", reason="SKIP: TensorFlow is not installed")
    pytest.importorskip("hvd._core", reason="SKIP: the extension is not built")
    theirs, ours = importlib.import_module(f"horovod.{name}"), importlib.import_module(f"hvd.{name}")
    assert theirs is ours
    assert ours.__all__ and [one for one in ours.__all__ if not hasattr(theirs, one)] == []
    for module in {"tensorflow": ("mpi_ops", "functions", "compression", "elastic")}.get(name, ("callbacks", "elastic")):
        assert importlib.import_module(f"horovod.{name}.{module}") is importlib.import_module(f"hvd.{name}.{module}")


def test_tensorflow_util() -> None:
    pytest.importorskip("tensorflow.dtypes", reason="SKIP: TensorFlow is not installed")
    from horovod.tensorflow.util import _executing_eagerly

    assert _executing_eagerly() is True


# --- What frameworks share --------------------------------------------------------------------------------------------


def test_common_modules_have_hvds_objects() -> None:
    from horovod.common import elastic, exceptions, process_sets
    from horovod.common.basics import HorovodBasics

    for name in exceptions.__all__:
        assert getattr(exceptions, name) is getattr(hvd.exceptions, name)
    for name in elastic.__all__:
        assert getattr(elastic, name) is getattr(hvd.elastic, name)
    for name in process_sets.__all__:
        assert getattr(process_sets, name) is getattr(hvd.core.process_sets, name)
    basics = HorovodBasics(__file__, "mpi_lib_v2")
    assert basics.rank is hvd.core.job.rank and basics.init is hvd.core.job.init
    with pytest.raises(ValueError, match=r"^Horovod has not been initialized; use hvd.init\(\).$"):
        basics.size()
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = basics.walk


NAMES = {
    "horovod.common.elastic": "HorovodInternalError HostsUpdatedInterrupt ObjectState State run_fn",
    "horovod.common.exceptions": """HorovodInternalError HorovodVersionMismatchError HostsUpdatedInterrupt
        get_version_mismatch_message""",
    "horovod.common.process_sets": "ProcessSet add_process_set global_process_set remove_process_set",
    "horovod.common.util": """HorovodVersionMismatchError ccl_built check_extension check_installed_version cuda_built
        ddl_built env extension_available get_average_backwards_compatibility_fun get_ext_suffix
        get_version_mismatch_message gloo_built gpu_available is_iterable is_version_greater_equal_than mpi_built
        nccl_built num_rank_is_power_2 rocm_built split_list""",
    "horovod.keras": """Adasum Average Compression DistributedOptimizer Max Min PartialDistributedOptimizer ProcessSet
        Product Sum allgather allreduce broadcast broadcast_global_variables callbacks elastic init is_initialized
        load_model local_rank local_size rank reducescatter shutdown size""",
    "horovod.keras.callbacks": """BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback
        LearningRateWarmupCallback MetricAverageCallback""",
    "horovod.keras.elastic": "CommitStateCallback KerasState UpdateBatchStateCallback UpdateEpochStateCallback run",
    "horovod.tensorflow.elastic": "TensorFlowKerasState TensorFlowState run",
    "horovod.tensorflow.keras": "DistributedOptimizer PartialDistributedOptimizer callbacks elastic load_model",
    "horovod.torch.compression": "Compression",
    "horovod.torch.elastic": "ElasticSampler TorchState run",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.torch.elastic.state": """LRSchedulerStateHandler ModelStateHandler OptimizerStateHandler
        SamplerStateHandler StateHandler TorchState get_handler_registry set_handler_registry""",
    "horovod.torch.functions": "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters",
    "horovod.torch.mpi_ops": """Adasum Average HorovodAllgather HorovodAllreduce HorovodAlltoall HorovodBroadcast
        HorovodGroupedAllgather HorovodGroupedAllreduce HorovodGroupedReducescatter HorovodInternalError
        HorovodReducescatter Max Min Product ProcessSet Sum add_process_set allgather allgather_async allreduce
        allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast broadcast_
        broadcast_async broadcast_async_ ccl_built check_installed_version cross_rank cross_size cuda_built ddl_built
        global_process_set gloo_built gloo_enabled gpu_available grouped_allgather grouped_allgather_async
        grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
        grouped_reducescatter_async init is_homogeneous is_initialized join local_rank local_size mpi_built mpi_enabled
        mpi_threads_supported nccl_built num_rank_is_power_2 poll rank reducescatter reducescatter_async
        remove_process_set rocm_built shutdown size sparse_allreduce_async start_timeline stop_timeline synchronize""",
    "horovod.torch.optimizer": "DistributedOptimizer",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
}


@pytest.mark.parametrize("module", sorted(NAMES))
def test_names_that_scripts_import(module: str) -> None:
    if module.startswith("horovod.torch"):
        pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")
        pytest.importorskip("hvd._core", reason="SKIP: the extension is not built")
    if module.startswith(("horovod.keras", "horovod.tensorflow")):
        pytest.importorskip("tensorflow.dtypes", reason="SKIP: TensorFlow is not installed")
        pytest.importorskip("hvd._core", reason="SKIP: the extension is not built")
    there = importlib.import_module(module)
    assert [name for name in NAMES[module].split() if not hasattr(there, name)] == []


def test_small_helpers(capsys: pytest.CaptureFixture[str]) -> None:
    from horovod.common import util

    assert [n for n in range(-2, 20) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8, 16]
    assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert util.split_list("abcd", 2) == ["ab", "cd"] and util.split_list([1], 2) == [[1], []]
    assert [util.is_iterable(x) for x in ([], "x", {1}, iter(()), 3, None)] == [True, True, True, True, False, False]
    assert util.get_ext_suffix() in importlib.machinery.EXTENSION_SUFFIXES
    assert util.gpu_available("torch") is False and capsys.readouterr().out == ""
    assert util.gpu_available("torch", verbose=True) is False
    assert capsys.readouterr().out == "Extension torch was NOT running with GPU.\n"
    util.check_installed_version("torch", "0.0.1", ImportError("of it"))
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="^horovod.mxnet: hvd does not support mxnet$"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    error = util.HorovodVersionMismatchError("torch", "2.0", "1.9")
    assert (error.name, error.version, error.installed_version) == ("torch", "2.0", "1.9")
    assert isinstance(error, ImportError) and str(error) == util.get_version_mismatch_message("torch", "2.0", "1.9")
    assert "torch" in str(error) and "2.0" in str(error) and "1.9" in str(error)
    chosen = util.get_average_backwards_compatibility_fun(hvd)
    pairs = [(None, None), (None, True), (None, False), (hvd.Max, None)]
    assert [chosen(*pair) for pair in pairs] == [hvd.Average, hvd.Average, hvd.Sum, hvd.Max]
    with pytest.raises(ValueError, match="supersedes"):
        chosen(hvd.Sum, True)


def test_run_fn() -> None:
    from horovod.common.elastic import ObjectState, run_fn

    class Counted(ObjectState):
        pass

    calls: list[Any] = []
    state = Counted(lambda obj, **_: obj, lambda: 0, step=0)
    state.register_reset_callbacks([lambda: calls.append("callback")])

    def train(state: Any, more: int) -> int:
        state.step += more
        if len(calls) == 0:
            raise hvd.HorovodInternalError("lost")
        return int(state.step)

    assert run_fn(train, lambda: calls.append("reset"))(state, 3) == 3
    assert calls == ["reset", "callback"]


def test_built() -> None:
    from horovod.common import util

    pytest.importorskip("hvd._core", reason="SKIP: the extension is not built")
    for name in ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"):
        assert getattr(util, name)(verbose=True) == getattr(hvd, name)()
    assert util.gloo_built() is True  # with which many scripts begin


def test_extension_available(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from horovod.common import util

    there = {"hvd.torch", "torch", "tensorflow"}
    monkeypatch.setattr(util, "find_spec", lambda name: object() if name in there else None)
    assert [util.extension_available(name) for name in ("torch", "tensorflow", "mxnet")] == [True, False, False]
    assert capsys.readouterr().out == ""
    util.extension_available("mxnet", verbose=True)
    assert capsys.readouterr().out == "Extension mxnet was NOT found.\n"


def test_env(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.common.util import env

    monkeypatch.setenv("G_SET", "before")
    monkeypatch.setenv("G_KEPT", "before")
    monkeypatch.delenv("G_NEW", raising=False)

    def now() -> Any:
        return [os.environ.get(name) for name in ("G_SET", "G_KEPT", "G_NEW", "G_UNKNOWN")]

    with pytest.raises(KeyError), env(G_SET="inside", G_KEPT=None, G_NEW="new", G_UNKNOWN=None):
        assert now() == ["inside", "before", "new", None]
        raise KeyError
    assert now() == ["before", "before", None, None]


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("2.0.0", "2.0.0", True),
        ("2.0", "2.0.0", True),
        ("2.0.1", "2.0.0", True),
        ("10.0.0", "9.9.9", True),
        ("1.9.9", "2.0.0", False),
        ("2.13.0+cpu", "2.13.0", True),
        ("2.0.0rc1", "2.0.0", False),
        ("2.0.1rc1", "2.0.0", True),
        ("2.1.0.dev20230101", "2.1.0", False),
        ("1.13.0a0+git1234", "1.13.0", False),
        ("2.0.0.1", "2.0.0", True),
        ("2.0.0.post1", "2.0.0", True),
    ],
)
def test_versions(version: str, target: str, expected: bool) -> None:
    from horovod.common.util import is_version_greater_equal_than

    assert is_version_greater_equal_than(version, target) is expected


@pytest.mark.parametrize(("version", "target"), [(2.0, "2.0.0"), ("2.0.0", "2.0"), ("2.0.0", None), ("new", "2.0.0")])
def test_bad_versions(version: Any, target: Any) -> None:
    from horovod.common.util import is_version_greater_equal_than

    with pytest.raises(ValueError):
        is_version_greater_equal_than(version, target)


# --- The runner -------------------------------------------------------------------------------------------------------


def test_rank_and_size_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.common.util.env import get_env_rank_and_size

    for prefix in ("HOROVOD", "PMI", "OMPI_COMM_WORLD"):
        monkeypatch.delenv(f"{prefix}_RANK", raising=False)
        monkeypatch.delenv(f"{prefix}_SIZE", raising=False)
    assert get_env_rank_and_size() == (0, 1)
    for prefix, rank in (("OMPI_COMM_WORLD", 3), ("PMI", 2), ("HOROVOD", 1)):
        monkeypatch.setenv(f"{prefix}_RANK", str(rank))
        previous = get_env_rank_and_size()
        assert previous[0] == {3: 0, 2: 3, 1: 2}[rank]  # a rank without a size says nothing
        monkeypatch.setenv(f"{prefix}_SIZE", "4")
        assert get_env_rank_and_size() == (rank, 4)


def test_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod.runner.util.threads import in_thread

    seen: list[Any] = []
    thread = in_thread(lambda *args: seen.append((args, threading.current_thread())), (1, 2), name="g", daemon=False)
    thread.join()
    assert seen == [((1, 2), thread)] and (thread.name, thread.daemon) == ("g", False)
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    for silent in (True, False):
        in_thread(lambda: 1 / 0, silent=silent).join()
    assert raised == [ZeroDivisionError]
    with pytest.raises(ValueError, match=r"args is 3, and must be a tuple: \(x,\)"):
        in_thread(print, 3)


# --- Installing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "version"), [("horovod", "0.28.1+hvd"), ("sparkdl", "2.2.0+hvd")])
def test_both_can_be_installed(name: str, version: str, tmp_path: Path) -> None:
    pytest.importorskip("flit_core", reason="SKIP: flit_core is not installed")
    before = sorted(path for path in (COMPAT / name).rglob("*") if "__pycache__" not in str(path))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index"]
    run = subprocess.run(
        [*command, "--target", str(tmp_path), str(COMPAT / name)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert (tmp_path / f"{name}-{version}.dist-info" / "METADATA").exists()
    source = COMPAT / name / "src"
    files = {path.relative_to(source) for path in source.rglob("*.py*") if "__pycache__" not in str(path)}
    assert len(files) >= 4 and all((tmp_path / file).exists() for file in files)
    after = sorted(path for path in (COMPAT / name).rglob("*") if "__pycache__" not in str(path))
    assert before == after
    if name == "horovod":
        text = (tmp_path / f"{name}-{version}.dist-info" / "entry_points.txt").read_text()
        assert "horovodrun=hvd.launcher.main:main" in text
