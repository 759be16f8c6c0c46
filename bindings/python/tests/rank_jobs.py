"""Jobs for tests: processes that stay from test to test, because a framework takes longer to load than a test to
run.
"""

from __future__ import annotations

import inspect
import json
import os
import secrets
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest

WORKER = Path(__file__).with_name("rank_worker.py")
# Seconds for one function on all ranks: a deadlock, not a slow machine, is what takes so long.
LIMIT = float(os.environ.get("HVD_TEST_LIMIT", "60"))
IMPORTS = LIMIT + 240  # to start and to import frameworks, which a busy machine does ten times slower


def rank_environment(rank: int, size: int, job: str, **more: str) -> dict[str, str]:
    """What a launcher would tell a rank of one host."""
    place = {
        "HOROVOD_RANK": rank, "HOROVOD_SIZE": size, "HOROVOD_LOCAL_RANK": rank, "HOROVOD_LOCAL_SIZE": size,
        "HOROVOD_CROSS_RANK": 0, "HOROVOD_CROSS_SIZE": 1, "HVD_JOB": job, "OMP_NUM_THREADS": 1,
        "HVD_LAUNCH": 1,  # the name is drawn for each launch: nobody else has it, and joining need not wait for others
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "HVD_", "PMI_", "OMPI_", "SLURM_"))}
    return {**clean, **{name: str(value) for name, value in place.items()}, **more}


class Ranks:
    """A job of ``size`` processes that run functions of test modules."""

    def __init__(self, size: int, **environment: str) -> None:
        self.size = size
        self._environment = environment
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reports: list[Any] = []
        self._loaded: set[str] = set()

    def _start(self) -> None:
        job = f"pytest-{secrets.token_hex(8)}"
        for rank in range(self.size):
            read, write = os.pipe()
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, str(WORKER), str(write)], stdin=subprocess.PIPE, pass_fds=[write],
                    env=rank_environment(rank, self.size, job, HVD_TIMEOUT="40", **self._environment),
                )
            )
            os.close(write)
            self._reports.append(os.fdopen(read))

    def run(self, function: Callable[..., None], **arguments: Any) -> None:
        """Calls the function on all ranks. Fails with the traceback of the first that raised, or hung, or died."""
        if not self._processes:
            self._start()
        file = inspect.getfile(function)
        if file not in self._loaded:  # apart, so that no rank waits in a collective for one that imports
            self._order(IMPORTS, file)
            self._loaded.add(file)
        self._order(LIMIT, file, function.__name__, arguments)

    def _order(self, limit: float, *order: Any) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        problem = self._collect(limit)
        if problem is not None:
            self.stop(kill=True)
            pytest.fail(problem, pytrace=False)

    def _collect(self, limit: float) -> str | None:
        waiting = dict(enumerate(self._reports))
        deadline = time.monotonic() + limit
        problems = {}
        while waiting:
            ready, _, _ = select.select(list(waiting.values()), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for rank in [r for r, report in waiting.items() if report in ready]:
                line = waiting.pop(rank).readline()
                failure = json.loads(line) if line else f"rank {rank} died: {self._processes[rank].wait()}"
                if failure is not None:
                    problems[rank] = failure
                    deadline = min(deadline, time.monotonic() + 5)
        if not problems and not waiting:
            return None
        texts = [f"--- rank {rank} of {self.size}:\n{text}" for rank, text in sorted(problems.items())]
        texts += [f"--- rank {rank} of {self.size} has not answered" for rank in waiting]
        return "\n".join(texts)

    def stop(self, kill: bool = False) -> None:
        """Ends the processes."""
        for process in self._processes:
            if kill:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for report in self._reports:
            report.close()
        self._processes, self._reports, self._loaded = [], [], set()
