"""Files of models with hvd.tensorflow.SyncBatchNormalization."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras.layers")  # a part: this folder has the name of the package

import keras  # noqa: E402
import numpy as np  # noqa: E402

import hvd.keras as hvd  # noqa: E402


def check_files(folder: str) -> None:
    from hvd.tensorflow import SyncBatchNormalization

    x = np.random.default_rng(hvd.rank()).standard_normal((8, 4)).astype("float32")
    layer = SyncBatchNormalization(momentum=0.5, epsilon=0.25)
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), keras.losses.MeanSquaredError())
    model.fit(x, x.sum(1), batch_size=4, verbose=0)
    for ending in (".keras", ".h5"):
        path = f"{folder}/{hvd.rank()}{ending}"
        model.save(path)
        for loaded in (keras.saving.load_model(path), hvd.load_model(path)):
            assert type(loaded.layers[0]) is SyncBatchNormalization
            assert loaded.layers[0].get_config() == layer.get_config()
            np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    again = keras.models.clone_model(model)
    assert type(again.layers[0]) is SyncBatchNormalization and again.layers[0].momentum == 0.5


def test_files(tensorflow_ranks: Any, tmp_path: Path) -> None:
    tensorflow_ranks.run(check_files, folder=str(tmp_path))


def test_a_program_that_only_loads_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    save = (
        "import keras; from hvd.tensorflow import SyncBatchNormalization\n"
        f"keras.Sequential([keras.Input((4,)), SyncBatchNormalization()]).save({str(path)!r})"
    )
    load = f"import hvd.keras as hvd; hvd.init(); print(type(hvd.load_model({str(path)!r}).layers[0]).__name__)"
    environ = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", save], check=True, env=environ)
    run = subprocess.run([sys.executable, "-c", load], stdout=subprocess.PIPE, text=True, check=True, env=environ)
    assert run.stdout == "SyncBatchNormalization\n"
