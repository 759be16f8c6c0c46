"""Runs PyTorch's own tests of torch.distributed on backend "hvd" and writes what came of each as JSON.

usage: conformance_driver.py RANKS WAY FILE [TEST...]

WAY: "as-is", or "known", where PyTorch's lists of backends know hvd. Ranks are forked from this process, because each
would import PyTorch otherwise.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

NAME = "hvd"
# Why tests are skipped that hvd can pass: the only all_to_all on CPUs that PyTorch knows is MPI's.
MPI_ONLY = {"Only MPI supports all_to_all", "Only MPI supports CPU all_to_all_single"}


class LikeGloo(str):
    """The backend's name, which is also found where a test looks for Gloo's."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def hurry(sleep: Any = time.sleep) -> None:
    """PyTorch's tests look every 0.1 s whether a process has come or gone, which would be most of their time."""
    time.sleep = lambda seconds: sleep(0.005 if seconds == 0.1 else seconds)


def load(ranks: str, known: bool, folder: str) -> Any:
    """PyTorch's module of tests, which reads the environment when it is imported."""
    os.environ.update(
        BACKEND=NAME, WORLD_SIZE=ranks, INIT_METHOD=f"file://{folder}/init", CUDA_VISIBLE_DEVICES="",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="60",
    )
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # skips do not depend on what else is installed
    from torch.testing._internal.common_distributed import DistTestCases, logger

    logger.setLevel(logging.WARNING)
    name = NAME
    if known:
        name = LikeGloo(NAME)
        DistTestCases.backend_feature["plugin"].add(NAME)
    # Lists of what the profiler shows stay as they are: hvd gives it no events.
    with mock.patch.object(os, "environ", {**os.environ, "BACKEND": name}):
        from torch.testing._internal.distributed import distributed_test
    return distributed_test


def tests_of(module: Any) -> type[unittest.TestCase]:
    import torch

    class Conformance(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Conformance


def outcome_of(test: unittest.TestCase) -> tuple[str, str]:
    result = unittest.TestResult()
    test.run(result)
    if result.skipped:
        return "skip", result.skipped[0][1]
    if result.wasSuccessful():
        return "pass", ""
    return "fail", "\n".join(text for _, text in result.failures + result.errors)


def main(ranks: str, way: str, path: str, *names: str) -> None:
    hurry()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # PyTorch's tests leave files behind
        module = load(ranks, way == "known", folder)
        import hvd.torch.distributed.process_group  # noqa: F401  # once, and not in each rank

        tests = tests_of(module)
        gc.freeze()  # so that ranks copy less of this memory
        for name in names or unittest.TestLoader().getTestCaseNames(tests):
            function = getattr(tests, name)
            if way == "known" and getattr(function, "__unittest_skip_why__", "") in MPI_ONLY:
                function.__unittest_skip__ = False
            began = time.monotonic()
            results[name] = (*outcome_of(tests(name)), round(time.monotonic() - began, 2))
            print(name, *results[name], flush=True)
    Path(path).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
