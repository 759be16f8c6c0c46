"""tests/multihost/hosts.py, which makes hosts of network namespaces, for tests of the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "tests/multihost"


def hosts_module() -> Any:
    """The module; skips with a reason where it is not there, or where hosts cannot be made."""
    sys.path.insert(0, str(FOLDER))
    try:
        hosts = pytest.importorskip("hosts", reason="tests/multihost is not there")
    finally:
        sys.path.remove(str(FOLDER))
    if reason := hosts.why_not():
        pytest.skip(reason)
    return hosts
