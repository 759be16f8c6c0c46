"""Runs PyTorch's own tests of torch.distributed with backend "hvd" and writes what came of each as JSON.

usage: conformance_driver.py RANKS WAY FILE [TEST...]

WAY: "as-is", or "known", where PyTorch's lists of backends know hvd. Ranks are forked from this process, because each
would import PyTorch otherwise.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

NAME = "hvd"
# What tests are skipped for that hvd can do: the only all_to_all on CPUs that PyTorch knows is MPI's.
MPI_ONLY = {"Only MPI supports all_to_all", "Only MPI supports CPU all_to_all_single"}


class LikeGloo(str):
    """The name of the backend, found in each list that has Gloo's."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def load(known: bool) -> Any:
    """PyTorch's test module. It reads the backend's name when it is imported."""
    from torch.testing._internal.common_distributed import DistTestCases

    name = NAME
    if known:
        name = LikeGloo(NAME)
        DistTestCases.backend_feature["plugin"].add(NAME)
    with mock.patch.object(os, "environ", {**os.environ, "BACKEND": name}):
        from torch.testing._internal.distributed import distributed_test
    return distributed_test


def prepare(ranks: int) -> None:
    """The environment that the tests read."""
    os.environ["BACKEND"] = NAME
    os.environ["WORLD_SIZE"] = str(ranks)
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = "60"
    folder = tempfile.mkdtemp()
    os.environ["INIT_METHOD"] = f"file://{folder}/init"


def main() -> None:
    ranks, way, path, *names = sys.argv[1:]
    prepare(int(ranks))
    module = load(way == "known")

    class Conformance(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            import torch

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Conformance.__qualname__ = "Conformance"
    results = {}
    chosen = names or unittest.TestLoader().getTestCaseNames(Conformance)
    for name in chosen:
        function = getattr(Conformance, name)
        if way == "known" and getattr(function, "__unittest_skip_why__", "") in MPI_ONLY:
            function.__unittest_skip__ = False
        result = unittest.TestResult()
        began = time.monotonic()
        Conformance(name).run(result)
        if result.skipped:
            outcome = ["skip", result.skipped[0][1]]
        elif result.wasSuccessful():
            outcome = ["pass", ""]
        else:
            outcome = ["fail", "\n".join(text for _, text in result.failures + result.errors)]
        outcome.append(round(time.monotonic() - began, 2))
        results[name] = outcome
        print(name, outcome[0], outcome[1][:100] if outcome[0] == "skip" else outcome[1], outcome[2], flush=True)
    Path(path).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
