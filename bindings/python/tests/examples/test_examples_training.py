"""The trainers of examples/python: as scripts under hvdrun and as functions under HorovodRunner they do what one
process does with the whole batch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_support import (
    COMPAT, EXAMPLES, FRAMEWORKS, HVDRUN, IMPORTS, NEEDS, means, run, script, write_mnist,
)

EPOCHS = 2
# A step of one process that two processes make together: half the batch each, and half the rate, which they double.
WHOLE = {"batch_size": 64, "lr": 0.04}
HALF = {"batch_size": 32, "lr": 0.02}

# Sums over a batch are rounded differently where it is divided. On these losses that has shown in the eighth digit. The
# network for PyTorch has kinks (relu, maxima), at which rounding can be seen in the fourth: after one epoch it cannot.
TOLERANCE = 1e-5


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    """Each in turn, where it is installed."""
    name: str = request.param
    found = importlib.util.find_spec(NEEDS[name])  # not imported: that takes seconds
    if found is None or found.origin is None:  # a folder of the tests has the name of the package
        pytest.skip(f"SKIP: {NEEDS[name]} is not installed")
    return name


DRIVER = """
import importlib, importlib.util, json, os, sys

folder, name, epochs, whole, half = json.loads(sys.argv[1])
sys.path.insert(0, folder)
spec = importlib.util.spec_from_file_location("single", os.path.join(folder, "single", name + "_digits.py"))
single = importlib.util.module_from_spec(spec)
spec.loader.exec_module(single)
many = importlib.import_module(name + "_digits")
from hvd import HorovodRunner

def train_and_gather(**arguments):
    import hvd
    result = many.train(**arguments)
    hvd.init()
    return result, hvd.allgather_object(result["weights"])

results = [
    single.train(epochs=epochs, **whole),
    HorovodRunner(np=-1).run(many.train, epochs=epochs, **whole),
    *HorovodRunner(np=-2).run(train_and_gather, epochs=epochs, **half),
]
print("RESULTS", json.dumps(results))
"""


def options(arguments: dict[str, float]) -> list[str]:
    return [word for name, value in arguments.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_functions(framework: str, tmp_path: Path) -> None:
    """HorovodRunner(np=-1) and (np=-2) have the loss of one process; two ranks have the same bits as weights."""
    epochs = 1 if framework == "torch" else EPOCHS
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    arguments = json.dumps([str(EXAMPLES), framework, epochs, WHOLE, HALF])
    printed = run([sys.executable, str(driver), arguments], tmp_path)
    alone, here, together, weights = json.loads(printed.split("\nRESULTS ", 1)[1])
    assert here["loss"] == pytest.approx(alone["loss"], rel=TOLERANCE)
    assert together["loss"] == pytest.approx(alone["loss"], rel=TOLERANCE)
    assert here["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
    assert together["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
    assert len(weights) == 2 and weights[0] == weights[1] == together["weights"]


def check_checkpoint(framework: str, path: Path) -> None:
    if framework == "torch":
        import torch

        saved = torch.load(path)
        assert saved["model"]["fc2.bias"].shape == (10,) and len(saved["optimizer"]["state"]) == 8
    elif framework == "keras":
        with zipfile.ZipFile(path) as archive:
            compiled: Any = json.loads(archive.read("config.json"))["compile_config"]
        optimizer = compiled["optimizer"]  # of Keras, so that it can be loaded without hvd
        assert optimizer["module"].startswith("keras.") and optimizer["class_name"] == "SGD"
    elif framework == "tensorflow2":
        assert Path(f"{path}.index").exists()
    else:
        steps = EPOCHS * 23  # of 64 of 1438 images
        assert (path / f"model.ckpt-{steps}.index").exists()


def test_scripts(framework: str, tmp_path: Path) -> None:
    """One process, and hvdrun with one rank and with two, print the same; rank 0 writes what one process does."""
    paths = [tmp_path / f"{name}.keras" for name in ("alone", "one", "two")]
    launchers = [[], [*HVDRUN, "-np", "1"], [*HVDRUN, "-np", "2"]]
    found = []
    for path, launcher, arguments in zip(paths, launchers, (WHOLE, WHOLE, HALF)):
        command = [*launcher, *script(framework, single=not launcher), "--checkpoint", str(path)]
        found.append(means(run([*command, "--epochs", str(EPOCHS), *options(arguments)], tmp_path)))
        check_checkpoint(framework, path)
    alone, one, two = found
    assert len(alone) == EPOCHS and alone[-1][0] < alone[0][0]
    digit = 0.0011  # the last that is printed
    np.testing.assert_allclose(one, alone, rtol=0, atol=digit)
    np.testing.assert_allclose(two, alone, rtol=0, atol=0.02 if framework == "torch" else digit)


def test_as_it_was_written_for_horovod_with_mnist(framework: str, tmp_path: Path) -> None:
    """With one import changed; the images are in files as MNIST has them."""
    if not COMPAT.is_dir():
        pytest.skip("SKIP: bindings/python/compat/horovod is not there")
    ours, theirs = (f"\nimport {package}.{IMPORTS[framework]} as hvd  # 1\n" for package in ("hvd", "horovod"))
    text = (EXAMPLES / f"{framework}_digits.py").read_text()
    assert text.count(ours) == 1
    copy = tmp_path / "mine.py"
    copy.write_text(text.replace(ours, theirs))
    write_mnist(tmp_path / "mnist", 101, 30, compressed=True)  # two ranks leave one out, or see one twice
    command = [*HVDRUN, "-np", "2", sys.executable, str(copy), "--mnist", str(tmp_path / "mnist")]
    printed = run(
        [*command, "--epochs", "2", "--batch-size", "8"], tmp_path, PYTHONPATH=f"{COMPAT}:{EXAMPLES}"
    )
    assert len(means(printed)) == 2, printed


def test_jax(tmp_path: Path) -> None:
    """Two ranks print what one with the whole batch prints, and write the weights."""
    if importlib.util.find_spec("optax") is None:
        pytest.skip("SKIP: JAX and Optax are not installed")
    found = []
    for ranks, arguments in ((1, WHOLE), (2, HALF)):
        command = [*HVDRUN, "-np", str(ranks), *script("jax"), "--epochs", str(EPOCHS), "--checkpoint", f"{ranks}.npz"]
        found.append(means(run([*command, *options(arguments)], tmp_path, JAX_PLATFORMS="cpu")))
    one, two = found
    assert len(one) == EPOCHS and one[-1][0] < one[0][0]
    np.testing.assert_allclose(two, one, rtol=0, atol=0.0011)
    with np.load(tmp_path / "1.npz") as whole, np.load(tmp_path / "2.npz") as parts:
        for name, weights in whole.items():
            np.testing.assert_allclose(parts[name], weights, rtol=1e-4, atol=1e-5)
