"""docs/spark.md says what is so: its code runs, and prints what it promises; what it names exists."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from spark_support import missing

PAGE = Path(__file__).resolve().parents[4] / "docs" / "spark.md"
if not PAGE.exists():
    pytest.skip("the page is not part of this distribution", allow_module_level=True)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_code(tmp_path: Path) -> None:
    pytest.importorskip("torch.nn")
    text = PAGE.read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    script = tmp_path / "page.py"
    script.write_text(program + "\nspark.stop()\n")
    ended = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "".join(re.findall(r"```text\n(.*?)```", text, re.S)), ended.stderr


def test_names() -> None:
    import hvd.spark
    from hvd.spark import prepare

    text = PAGE.read_text()
    for error in ("LaunchError", "NotPicklable", "RankError", "RankFailed", "TaskLost"):
        assert f"`{error}`" in text and issubclass(getattr(hvd.spark, error), Exception)
    for prefix in prepare.FORWARDED:
        assert not prefix.endswith("_") or f"`{prefix}`" in text, prefix


def test_the_arguments_are_those_of_horovod() -> None:
    from hvd.spark import run

    names = (
        "fn args kwargs num_proc start_timeout use_mpi use_gloo extra_mpi_args env stdout stderr verbose nics"
        " prefix_output_with_timestamp executable"
    )
    assert list(inspect.signature(run).parameters) == names.split()
