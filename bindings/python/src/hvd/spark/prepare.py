"""hvd/spark/prepare.py: collects the driver's data for a Spark job: the call, modules next to it, and variables."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Mapping
from typing import Any

from hvd.remote import contents, sources, trial
from hvd.remote.program import write_program

FORWARDED = ("HOROVOD_", "HVD_", "NCCL_", "UCX_", "FI_", "GLOO_", "KERAS_BACKEND", "TF_")
_PLACE = (
    "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE"
    " HOROVOD_HOSTNAME HVD_JOB HVD_LAUNCH HVD_CPUS HVD_LOST_RANKS HVD_TASK_GPUS"
).split()


def tried_program(call: functools.partial[Any], np: int, every: bool, level: int) -> bytes:
    """The program for the ranks, with modules that functions import later. It has been loaded once in a new Python
    here.
    """
    program = io.BytesIO()
    write_program(program, call, np, every, apart=True, level=level + 1)
    what = f"{contents.describe(call)} and its arguments"
    guarded = trial.try_call(program.getvalue(), what)
    files, nowhere = sources.collect(guarded)
    absent = [name for name in nowhere if not guarded[name]]
    if absent:
        warnings.warn(
            f"{contents.describe(call)} imports {', '.join(sorted(absent))}, which this Python does not have; it has "
            "to be installed where the ranks run",
            stacklevel=level,
        )
    if files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # already warned
            program = io.BytesIO()
            write_program(program, call, np, every, apart=True, files=files)
    return program.getvalue()


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """The driver's variables that ranks get: settings of hvd and of libraries that it uses, but no place."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(FORWARDED) and name not in _PLACE and not name.startswith("HVD_RUNNER_")
    }
