"""HorovodRunner in a Jupyter notebook that is executed with its own kernel."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hvd import horovod_runner

nbclient = pytest.importorskip("nbclient", reason="SKIP: nbclient is not installed")
pytest.importorskip("ipykernel", reason="SKIP: ipykernel is not installed")
nbformat = pytest.importorskip("nbformat")

SOURCE = str(Path(horovod_runner.__file__).parents[2])

HELPERS = """
import os
from . import defaults

def train(rate=defaults.rate):
    from .late import label
    print("training", label, "at", rate)
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]), rate
"""


def execute(folder: Path, *cells: str) -> list[Any]:
    """The outputs of each cell of a notebook that lies in a folder."""
    (folder / "kernels" / "here").mkdir(parents=True)
    (folder / "kernels" / "here" / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": "here",
                "language": "python",
            }
        )
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        notebook,
        timeout=50,
        kernel_name="here",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def text(outputs: Any) -> str:
    """What a cell has printed to standard output; there is nothing else."""
    assert {(output.output_type, output.get("name")) for output in outputs} <= {("stream", "stdout")}, outputs
    return "".join(output.text for output in outputs)


def error(outputs: Any) -> Any:
    return next(output for output in outputs if output.output_type == "error")


def plain(lines: list[str]) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "defaults.py").write_text("rate = 0.5\n")
    (package / "late.py").write_text("label = 'digits'\n")
    (package / "helpers.py").write_text(HELPERS)
    outputs = execute(
        tmp_path,
        "from hvd.horovod_runner import HorovodRunner, log_to_driver\n"
        "from project import helpers\n"
        "import os, threading\n"
        "lock = threading.Lock()\n"
        "runner = HorovodRunner(np=-2)",
        # 1: a function of a module beside the notebook, with relative imports when loaded and when run
        "print(runner.run(helpers.train))",
        # 2: the module's state in memory, and a function of the notebook that uses the module
        "helpers.defaults.rate = 0.25\n"
        "def twice():\n"
        "    log_to_driver('message')\n"
        "    return 2 * helpers.defaults.rate\n"
        "print(runner.run(twice))",
        # 3: an exception
        "def fails(batch):\n"
        "    if os.environ['HOROVOD_RANK'] == '1':\n"
        "        raise ValueError(f'bad batch {batch}')  # a line of this cell\n"
        "    while True: pass\n"
        "runner.run(fails, batch=7)",
        # 4: what cannot be pickled
        "def locked():\n    with lock: return 1\nrunner.run(locked)",
        # 5: all is well afterwards
        "print(runner.run(lambda: os.environ['HOROVOD_SIZE']))",
    )
    assert text(outputs[0]) == ""
    printed = text(outputs[1]).splitlines()
    assert sorted(printed[:2]) == [f"[{rank}]<stdout>: training digits at 0.5" for rank in range(2)]
    assert printed[2:] == ["(0, 2, 0.5)"]
    printed = text(outputs[2]).splitlines()
    assert sorted(printed[:2]) == [f"[{rank}]<stdout>: message" for rank in range(2)]
    assert printed[2:] == ["0.5"]

    raised = error(outputs[3])
    assert raised.ename == "RankError"
    lines = raised.evalue.rstrip().split("\n")
    assert lines[0] == "rank 1 of 2 raised ValueError: bad batch 7"
    assert lines[2] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: bad batch 7"
    assert "    raise ValueError(f'bad batch {batch}')  # a line of this cell" in lines
    assert "direct cause" in plain(raised.traceback)

    raised = error(outputs[4])
    assert raised.ename == "NotPicklable"
    assert raised.evalue.split("\n")[1] == (
        "  locked() → global variable 'lock', of type _thread.lock: cannot pickle '_thread.lock' object"
    )
    assert text(outputs[5]) == "2\n"


def test_the_page_of_the_timeline_is_in_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("HVD_TIMELINE_LIVE", "1")
    monkeypatch.setenv("HVD_TIMELINE_STAY", "0")
    monkeypatch.setenv("HVD_TIMELINE_PROXY", "/user/me/proxy/{port}/")
    cell = "from hvd.horovod_runner import HorovodRunner\nprint(HorovodRunner(np=-2).run(lambda: 'all is well'))"
    printed, frame, result = execute(tmp_path, cell)[0]
    address = printed.text.removeprefix("timeline: ").rstrip("\n")
    assert re.fullmatch(r"/user/me/proxy/\d+/\?token=\S+", address)
    assert "<iframe" in frame.data["text/html"] and f'src="{address}"' in frame.data["text/html"]
    assert result.text == "there is no timeline: no rank of this host has called init()\nall is well\n"


def test_interrupted_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's interrupt button ends the ranks, and the kernel lives on."""
    manager = pytest.importorskip("jupyter_client.manager")
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        client.execute(
            "import os, time\n"
            "from hvd.horovod_runner import HorovodRunner\n"
            "def main():\n"
            "    print('pid', os.getpid())\n"
            "    while True: time.sleep(1)\n"
            "HorovodRunner(np=-2).run(main)",
            stop_on_error=False,
        )
        printed, raised = "", None
        interrupted = False
        while raised is None:
            message = client.get_iopub_msg(timeout=50)
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
                if printed.count("pid") == 2 and not interrupted:
                    interrupted = True
                    kernel.interrupt_kernel()
            elif message["msg_type"] == "error":
                raised = message["content"]["ename"]
        assert raised in ("KeyboardInterrupt", "Interrupted")
        pids = re.findall(r"pid (\d+)", printed)
        assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert client.execute_interactive("1 + 1", timeout=50)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
