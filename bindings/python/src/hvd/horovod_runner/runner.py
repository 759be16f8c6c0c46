"""hvd/horovod_runner/runner.py: HorovodRunner, with the same signatures as Databricks'."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import warnings
from typing import Any

from hvd.horovod_runner.notebook import show_page
from hvd.launcher import timeline
from hvd.launcher.call import call_on_ranks
from hvd.launcher.console import LinePrinter

_VERBOSITIES = ("all", "log_callback_only")


class HorovodRunner:
    """Runs a function with Horovod's interface in several processes at once.

    ```python
    def train(rate):
        import hvd.torch as hvd
        hvd.init()
        ...
        return loss

    loss = HorovodRunner(np=-2).run(train, rate=0.1)
    ```

    `np`: the number of processes.
        -1: starts no process: the function is called in this process, and can change its state. There is no page of its
            timeline.
        -n (n of 2 or more): n processes on this machine, over shared memory. Nothing else is needed.
        n of 1 or more: n tasks of a Spark job in barrier mode, on the executors of the active Spark session (if there
            is none, of a new one with Spark's settings). `run` waits for as many free task slots.
        0: all task slots. Deprecated, because executors may come and go: pass a number.

    `driver_log_verbosity`: the output of Spark tasks shown here. "log_callback_only": messages of `log_to_driver` and
    `LogCallback`; "all": also everything that they print. The log of the first task's executor contains everything.
    Output of processes on this machine always goes to this process's standard output, each line with its rank.

    Raises TypeError for an `np` that is not an integer, ValueError for another verbosity.
    """

    def __init__(self, *, np, driver_log_verbosity="log_callback_only"):  # type: ignore[no-untyped-def]
        # Callers inspect the signature, so it has no annotations and no further arguments.
        if isinstance(np, bool):
            raise TypeError(f"np is {np}, and must be an integer: -2 for two processes on this machine")
        try:
            self.num_processor = operator.index(np)
        except TypeError:
            raise TypeError(f"np is {np!r}, and must be an integer: -2 for two processes on this machine") from None
        if driver_log_verbosity not in _VERBOSITIES:
            allowed = " or ".join(map(repr, _VERBOSITIES))
            raise ValueError(f"driver_log_verbosity is {driver_log_verbosity!r}, and must be {allowed}")
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main, **kwargs):  # type: ignore[no-untyped-def]
        """Calls `main(**kwargs)` on every rank. Returns the result of rank 0.

        If processes are started, cloudpickle pickles `main`, `kwargs` and the result, so changes that `main` makes
        outside of itself stay on the ranks. Modules next to the notebook or script are sent along, as they are in
        memory here: imported Python files below the working directory, the script's directory or `sys.path[0]` that are
        not installed. Imports inside `main` and the functions it calls are resolved on the ranks, with the same
        `sys.path`.

        If np is -1, raises the exceptions of `main`. Otherwise, after all processes have ended:
            NotPicklable (a TypeError) before any is started, with the path to each object that cannot be pickled;
            TypeError if `kwargs` do not fit `main`;
            RankError (a RankFailed) if `main` raised: its text contains the rank and its traceback; its __cause__ is
            the exception itself if it can be pickled;
            RankFailed (a RuntimeError) if a process was killed, with the signal and its last lines;
            KeyboardInterrupt if this process was interrupted, after the ranks are gone;
            with Spark: LaunchError (a RuntimeError) if Spark is missing or has too few slots; TaskLost (a RankFailed)
            if an executor was lost or the job cancelled.

        With HVD_TIMELINE_LIVE=1 in the environment, the job's timeline (HOROVOD_TIMELINE, or a new file in
        ./hvd-timelines) is shown on a page while it runs: in the notebook's cell, and at a printed address.

        Warns, with names and sizes, if more than `hvd.remote.pickling.LARGE` bytes are sent to each process.
        """
        if not callable(main):
            raise TypeError(f"main is {main!r}, and must be a function, which is called on every rank")
        environ = dict(os.environ)
        if self.num_processor == -1:
            if timeline.wanted(environ):
                warnings.warn(
                    f"{timeline.LIVE}=1 has no effect with np=-1, which starts no process. {timeline.FILE}=FILE makes a "
                    f"timeline, which `{timeline.command()} FILE` shows",
                    stacklevel=2,
                )
            return main(**kwargs)
        call = functools.partial(main, **kwargs)
        with contextlib.ExitStack() as stack:
            if timeline.wanted(environ):
                program = getattr(main, "__name__", "HorovodRunner")
                stack.enter_context(timeline.page(environ, False, print, show_page, program))
            if self.num_processor < -1:
                return call_on_ranks(-self.num_processor, call, env=environ)[0]
            return self._run_on_spark(call, environ)

    def _run_on_spark(self, call: functools.partial[Any], environ: dict[str, str]) -> Any:
        from hvd.spark.driver import call_on_tasks

        if self.num_processor == 0:
            warnings.warn(
                "np=0, all task slots, is deprecated: executors may come and go while they are counted. Pass the "
                "number",
                DeprecationWarning,
                stacklevel=3,
            )
        printer = LinePrinter(sys.stdout, sys.stdout)

        def show(message: str) -> None:
            printer.finish()
            print(message, flush=True)

        try:
            return call_on_tasks(
                call,
                self.num_processor or None,
                every=False,
                on_line=printer if self.driver_log_verbosity == "all" else None,
                on_message=show,
                env={timeline.LIVE: "0", **{name: environ[name] for name in (timeline.FILE,) if name in environ}},
                level=6,
            )[0]
        finally:
            printer.finish()
