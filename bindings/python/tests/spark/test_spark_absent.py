"""Where Spark, Java or executors' slots are not what a job needs; and what imports hvd and sparkdl imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from spark_support import missing, new_session


def run(code: str, **environ: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return ended.stdout


def test_imports() -> None:
    """Neither pyspark nor a framework, nor NumPy."""
    code = "import sys, hvd, hvd.spark\nfrom hvd.horovod_runner import HorovodRunner\n{}"
    code += "print(sorted({{'pyspark', 'torch', 'tensorflow', 'keras', 'numpy'}} & set(sys.modules)))"
    also = "import sparkdl, sparkdl.horovod\n" if find_spec("sparkdl.horovod") else ""
    assert run(code.format(also)) == "[]\n"


JOB = "from hvd.spark import run\ntry:\n    run(print, num_proc=1)\nexcept RuntimeError as e:\n    print(type(e).__name__, e)"


def test_no_pyspark() -> None:
    found = run("import sys\nsys.modules['pyspark'] = None\n" + JOB)
    assert found.startswith("LaunchError a positive np asks for tasks of Spark, and pyspark is not installed: pip install")
    assert "openjdk-17-jre-headless" in found


@pytest.mark.skipif(find_spec("pyspark") is None, reason="SKIP: pyspark is not installed (tools/setup --spark)")
def test_no_java() -> None:
    found = run("import os\nos.environ.pop('JAVA_HOME', None)\n" + JOB, PATH=os.path.dirname(sys.executable))
    if shutil.which("java", path=os.path.dirname(sys.executable)):
        pytest.skip("SKIP: Java is in the folder of Python")
    assert found.startswith("LaunchError Spark needs Java 17 or newer, and no Java was found: JAVA_HOME is not set")


def test_what_horovod_has_and_hvd_has_not() -> None:
    """Elastic jobs and estimators: scripts learn what to use instead, before anything is started."""
    import hvd.spark

    compat = Path(__file__).resolve().parents[2] / "compat" / "horovod" / "src"
    if not compat.exists():
        pytest.skip("SKIP: the package horovod is not part of this distribution")
    code = "from horovod.spark import run_elastic\ntry:\n    run_elastic(print, num_proc=2, min_num_proc=1)\n"
    code += "except NotImplementedError as error:\n    print(error)\n"
    for name in ("keras", "torch.estimator", "lightning", "common.store", "nothing"):
        code += f"try:\n    import horovod.spark.{name}\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    path = os.pathsep.join([str(compat), str(Path(hvd.spark.__file__).parents[2])])
    instead = "save the data first, and train in a function that reads them: horovod.spark.run or HorovodRunner"
    assert run(code, PYTHONPATH=path).splitlines() == [
        "run_elastic: hvd has no elastic jobs on Spark. Use run: with HVD_RUNNER_RETRIES it restarts a job that has "
        "lost an executor, and the job goes on from its hvd.spark.checkpoint()",
        f"horovod.spark.keras: Horovod's estimators are not supported; {instead}",
        f"horovod.spark.torch: Horovod's estimators are not supported; {instead}",
        f"horovod.spark.lightning: Horovod's estimators are not supported; {instead}",
        f"horovod.spark.common: Horovod's stores and backends are not supported; {instead}",
        "No module named 'horovod.spark.nothing'",
    ]


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_dynamic_allocation() -> None:
    """Spark's own sentence, and what to do."""
    from hvd.horovod_runner import HorovodRunner
    from hvd.spark import LaunchError

    settings = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true"}
    session = new_session("local-cluster[1,1,1024]", **settings)
    try:
        with pytest.raises(LaunchError, match=r"^\[SPARK-24942\]: Barrier execution mode does not support dynamic.* "
                           "Remedy: set spark.dynamicAllocation.enabled=false"):  # fmt: skip
            HorovodRunner(np=1).run(os.getpid)
    finally:
        session.stop()
