"""docs/torch_distributed.md says what is so: its code runs on two ranks, and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[4] / "docs" / "torch_distributed.md"
if not PAGE.exists():
    pytest.skip("the page is not part of this distribution", allow_module_level=True)


@pytest.mark.parametrize("start", ["torchrun", "hvdrun"])
def test_code(start: str, tmp_path: Path) -> None:
    text = PAGE.read_text()
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)))
    command = {
        "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        "hvdrun": ["-m", "hvd.launcher.main", "-np", "2", sys.executable],
    }
    ended = subprocess.run(
        [sys.executable, *command[start], str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [re.sub(r"^\[\d+\]<stdout>: ?", "", line) for line in ended.stdout.splitlines()]
    assert lines == "".join(re.findall(r"```text\n(.*?)```", text, re.S)).splitlines(), ended.stderr
