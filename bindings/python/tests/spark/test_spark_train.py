"""Training on Spark: real digits, on two executors that are processes of their own."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from spark_support import EXAMPLES, missing, session_of_file

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
spark = session_of_file()


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples' folder is that of a notebook."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_torch(spark: Any, examples: None) -> None:
    pytest.importorskip("torch.nn")
    import torch_digits

    from hvd.horovod_runner import HorovodRunner

    result = HorovodRunner(np=2).run(torch_digits.train, epochs=3)
    assert result["accuracy"] > 0.85
    sys.modules.pop("torch_digits")


def test_keras(spark: Any, examples: None) -> None:
    pytest.importorskip("tensorflow.keras", reason="SKIP: TensorFlow is not installed")
    import keras_digits

    from hvd.horovod_runner import HorovodRunner

    result = HorovodRunner(np=2).run(keras_digits.train, epochs=2)
    assert result["accuracy"] > 0.7
    sys.modules.pop("keras_digits")
