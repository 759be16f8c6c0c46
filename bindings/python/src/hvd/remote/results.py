"""hvd/remote/results.py: reads workers' files: their results, or how they ended."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Sequence
from typing import Any, BinaryIO

from hvd.remote.errors import RankError, RankFailed


def results_of(
    files: Sequence[BinaryIO], failed: RankFailed | None, every: bool = False, hosts: Sequence[str] = ()
) -> list[Any]:
    """The result of rank 0, or of every rank; raises the error of the first failed rank. `hosts` are for error texts.
    """
    size = len(files)
    hosts = hosts or [""] * size
    records = [read_record(file) for file in files]
    raised = {rank: record for rank, record in enumerate(records) if record and record["raised"]}
    if failed and failed.who:  # in an elastic job other failures, here or elsewhere, did not end the job
        raised = {rank: record for rank, record in raised.items() if rank == failed.rank and failed.returncode == 1}
    if failed and failed.rank not in raised:  # its process ended without a record
        failed.args = (failed.args[0] + _others(raised, failed.rank, size),)
        raise failed
    if raised:
        rank = min(raised, key=lambda rank: raised[rank]["when"])
        record = raised[rank]
        what = f"could not {record['doing']}" if record["doing"] else f"raised {record['summary']}"
        cause = None
        with contextlib.suppress(Exception):  # an exception may not survive pickling
            cause = pickle.loads(record["exception"])
        if failed and failed.why:
            what += f", {failed.why}"
        text = f"{what}\n\n{record['traceback']}" + _others(raised, rank, size)
        error = RankError(rank, size, text, hosts[rank], failed.who if failed else "")
        raise error from (cause if isinstance(cause, BaseException) else None)
    for rank, ended in enumerate(records):
        if ended is None:
            raise RankError(rank, size, "ended its process, with exit code 0, before main returned", hosts[rank])
    return [_value(file, rank, size) for rank, file in enumerate(files if every else files[:1])]


_RECORD = {"raised": bool, "when": int, "doing": str, "summary": str, "traceback": str}


def read_record(file: BinaryIO) -> dict[str, Any] | None:
    """A worker's record of its end; None if there is none, or if the file contains something else."""
    file.seek(0)
    try:
        record = dict(pickle.load(file))
    except Exception:  # missing or incomplete
        return None
    wanted = _RECORD if record.get("raised") else {"raised": bool}
    return record if all(isinstance(record.get(key), kind) for key, kind in wanted.items()) else None


def from_host(data: bytes | bytearray, behind: int) -> BinaryIO:
    """The file of a worker on a host whose monotonic clock is `behind` ns behind this host's, with times converted to
    this host.

    Empty if nothing or only a part has arrived.
    """
    file = io.BytesIO(data)
    record = read_record(file)
    if record is None:
        return io.BytesIO()
    if record["raised"]:
        record["when"] += behind
    return io.BytesIO(pickle.dumps(record) + file.read())


def _value(file: BinaryIO, rank: int, size: int) -> Any:
    """A rank's result, which follows the record."""
    try:
        return pickle.load(file)
    except Exception as error:  # unpickling may raise any exception
        why = f"{type(error).__name__}: {error}"
        what = f"returned a value that cannot be unpickled here, or that is incomplete ({why})"
        raise RankError(rank, size, what) from error


def _others(raised: dict[int, dict[str, Any]], first: int, size: int) -> str:
    lines = [
        f"\nthen rank {rank} of {size} raised {raised[rank]['summary']}" for rank in sorted(raised) if rank != first
    ]
    return "".join(lines)
