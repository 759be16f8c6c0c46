"""Settings of Spark and Java for all tests of this folder, and for the programs that they start."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from spark_support import JAVA_OPTIONS, end_shared, hurry, missing


@pytest.fixture(scope="session", autouse=True)
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the environment until the last test."""
    if missing():
        yield
        return
    folder = tmp_path_factory.mktemp("hurried")
    hurry(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        patch.setenv("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # the name of a host in a sandbox may not be known
        yield
        end_shared()
