"""Shared by all programs in bench/: running others, where they run, options, texts. Standard library only."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench" / "results"
