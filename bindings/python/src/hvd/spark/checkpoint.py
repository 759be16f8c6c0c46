"""hvd/spark/checkpoint.py: state kept by a training function in case Spark loses an executor."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from hvd.descriptors import above_streams
from hvd.remote import channel

CHECKPOINT = "HVD_RUNNER_CHECKPOINT"  # the variable with the descriptor of the last checkpoint's file


class Checkpoint:
    """The last state committed by rank 0: at the driver, or in a file that all hosts see."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else os.fspath(path)

    @above_streams()
    def load(self) -> Any:
        """The last committed state, on every rank; None at the first start."""
        number = os.environ.get(CHECKPOINT, "")
        source = self._path if self._path is not None else f"/proc/self/fd/{number}" if number.isdigit() else ""
        if not source or not os.path.exists(source):
            return None
        with open(source, "rb") as file:
            return pickle.load(file)

    @above_streams()
    def commit(self, state: Any) -> None:
        """Pickles `state` and replaces the last committed state with it. Does nothing on ranks other than 0.

        Without a path, sends it to the driver, or drops it if no Spark job runs. With a path, replaces the file as a
        whole.
        """
        if int(os.environ.get("HOROVOD_RANK", "0")) != 0:
            return
        from hvd.core.handles import settle  # only here: the tasks of Spark import this module without the extension

        settle()  # what a GPU has computed is usable, or this raises
        if self._path is None:
            channel.tell("checkpoint", cloudpickle.dumps(state))
            return
        folder, name = os.path.split(os.path.abspath(self._path))
        new = tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False)
        try:
            with new:
                cloudpickle.dump(state, new)
                new.flush()
                os.fsync(new.fileno())
            os.replace(new.name, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new.name)
            raise


def checkpoint(path: str | os.PathLike[str] | None = None) -> Checkpoint:
    """The state of a training function that survives the loss of an executor. To be called in that function.

    ```python
    kept = hvd.spark.checkpoint()
    state = kept.load() or {"epoch": 0}
    for epoch in range(state["epoch"], 10):
        ...
        kept.commit({"epoch": epoch + 1, "model": model.state_dict()})
    ```

    With HVD_RUNNER_RETRIES=N at the driver, a job that has lost an executor is restarted up to N times.
    """
    return Checkpoint(path)
