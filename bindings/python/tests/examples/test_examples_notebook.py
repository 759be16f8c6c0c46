"""The notebook of examples/python is executed, with its own kernel."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from examples_support import EXAMPLES

nbclient = pytest.importorskip("nbclient", reason="SKIP: nbclient is not installed")
pytest.importorskip("ipykernel", reason="SKIP: ipykernel is not installed")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("torch.nn")  # a part: a folder of the tests has the name of the package


def test_from_one_to_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells check that the losses are alike; they print those of all three ways."""
    kernel = tmp_path / "kernels" / "here" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "here", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    notebook = nbformat.read(EXAMPLES / "from_one_to_many.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="here", resources={"metadata": {"path": str(EXAMPLES)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert all(output.output_type == "stream" for output in outputs), outputs
    printed = "".join(output.text for output in outputs if output.name == "stdout")
    alone, here, together = printed.splitlines()
    assert alone == here and re.fullmatch(r"loss [\d.]+, accuracy [\d.]+%", alone)
    assert re.fullmatch(r"\[0\]<stdout>: loss [\d.]+, accuracy [\d.]+%", together)
