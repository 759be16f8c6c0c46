"""hvd.launcher.job: an order to stop that comes before the programs run."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from hvd.launcher.command import Program
from hvd.launcher.job import Job
from hvd.launcher.supervisor.client import Supervisor

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def sleeper() -> Job:
    job = Job(dict(os.environ), lambda *_: None)
    job.add(Program(SLEEP, sys.executable, {}))
    job.begun()
    return job


def test_a_stop_before_the_job_runs() -> None:
    job = sleeper()
    job.stop(signal.SIGTERM, 5.0)
    outcome = job.run(30.0)
    assert (outcome.failed, outcome.code) == (0, -signal.SIGTERM)


def test_a_stop_before_the_guard_has_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    job = sleeper()
    begin = Supervisor.begin

    def late(self: Supervisor) -> None:
        stopper = threading.Thread(target=job.stop, args=(signal.SIGTERM, 5.0))
        stopper.start()
        stopper.join()
        begin(self)

    monkeypatch.setattr(Supervisor, "begin", late)
    outcome = job.run(30.0)
    assert (outcome.failed, outcome.code) == (0, -signal.SIGTERM)
