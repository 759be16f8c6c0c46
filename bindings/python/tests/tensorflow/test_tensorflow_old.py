"""An older TensorFlow with its Keras: the same installed hvd, tested in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow.data")  # a part: this folder has the name of the package

HERE = Path(__file__).resolve().parent
FOLDERS = sorted((Path(sys.prefix) / "tensorflow-old").glob("lib/python*/site-packages"))
CHOSEN = "2_ranks and (float32 or gradients or tape or sparse or disagreement or session or exact or fit)"


@pytest.mark.skipif(not FOLDERS, reason="no older TensorFlow (tools/setup --tensorflow installs one)")
@pytest.mark.skipif("HVD_TEST_OLD_TENSORFLOW" in os.environ, reason="this is the older TensorFlow")
def test_an_older_tensorflow() -> None:
    environment = {**os.environ, "PYTHONPATH": str(FOLDERS[0]), "HVD_TEST_OLD_TENSORFLOW": "1"}
    version = [sys.executable, "-c", "import tensorflow, keras; print(tensorflow.__version__, keras.__version__)"]
    found = subprocess.run(version, capture_output=True, text=True, env=environment, check=True).stdout.split()
    import keras
    import tensorflow as tf

    assert found[0].split(".")[:2] < tf.__version__.split(".")[:2] and found[1] < keras.__version__
    tests = [HERE / "test_tensorflow_ops.py", HERE / "test_tensorflow_gradients.py", HERE / "test_tensorflow_v1.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *tests, HERE.parent / "keras"],
        capture_output=True, text=True, env=environment, check=False,
    )
    assert done.returncode == 0, f"{found}\n{done.stdout[-6000:]}"
    assert "passed" in done.stdout and "skipped" not in done.stdout.splitlines()[-1]
