"""The two packages as their sources have them, where they are not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

COMPAT = Path(__file__).parents[2] / "compat"

for name in ("horovod", "sparkdl"):
    if find_spec(name) is None:
        sys.path.append(str(COMPAT / name / "src"))
