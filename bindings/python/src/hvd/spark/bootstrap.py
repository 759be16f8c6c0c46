"""hvd/spark/bootstrap.py: Spark's barrier job: through RDDs, or with Spark Connect through DataFrame.mapInArrow.

The function for the tasks is pickled by value, so it can report an executor without hvd.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Callable

CHUNK = 1 << 20  # bytes of a record in one row

Body = Callable[[], Iterator[tuple[int, str, bytes]]]


def task_body(order: dict[str, Any], files: tuple[bytes, bytes] | None, sent: Any) -> Body:
    """The function for each task. The program and the last checkpoint are in `files`, or in a broadcast variable,
    `sent`.
    """

    def body() -> Iterator[tuple[int, str, bytes]]:
        import socket
        import sys

        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        try:
            from hvd.spark.task import run_task
        except ImportError as error:
            raise ImportError(
                f"rank {context.partitionId()} on {socket.gethostname()}: {sys.executable} cannot import hvd "
                f"({error}); install on all executors the hvd that the driver has"
            ) from None
        program, kept = sent.value if files is None else files
        yield from run_task(order, program, kept, context)

    return body


def submit(session: Any, np: int, body: Body) -> tuple[Callable[[], list[Any]], Callable[[], None]]:
    """A function that runs the job and returns all records, and a function that cancels it."""
    from hvd.spark.session import context_of

    tag = f"hvd-{secrets.token_hex(8)}"
    context = context_of(session)
    if context is None:
        return _submit_arrow(session, np, body, tag)

    def job() -> list[Any]:
        context.addJobTag(tag)
        try:
            return list(context.parallelize(range(np), np).barrier().mapPartitions(lambda _: body()).collect())
        finally:
            context.removeJobTag(tag)

    return job, lambda: context.cancelJobsWithTag(tag)


def _submit_arrow(session: Any, np: int, body: Body, tag: str) -> tuple[Callable[[], list[Any]], Callable[[], None]]:
    chunk = CHUNK

    def rows(_: Any) -> Iterator[Any]:
        import pyarrow  # type: ignore[import-untyped,unused-ignore]

        names = ["rank", "kind", "data"]
        for rank, kind, data in body():
            for start in range(0, max(1, len(data)), chunk):
                columns = [pyarrow.array([rank], pyarrow.int32()), pyarrow.array([kind])]
                columns.append(pyarrow.array([data[start : start + chunk]], pyarrow.binary()))
                yield pyarrow.RecordBatch.from_arrays(columns, names=names)

    def job() -> list[Any]:
        session.addTag(tag)
        try:
            frame = session.range(0, np, 1, np).mapInArrow(rows, "rank int, kind string, data binary", barrier=True)
            return [(row.rank, row.kind, bytes(row.data)) for row in frame.collect()]
        finally:
            session.removeTag(tag)

    return job, lambda: session.interruptTag(tag) and None


def inheriting(session: Any, work: Callable[[], None]) -> Callable[[], None]:
    """`work` for another thread, with the job group and tags of this one."""
    from pyspark import inheritable_thread_target

    wrap: Any = inheritable_thread_target
    try:
        found: Callable[[], None] = wrap(session)(work)
    except TypeError:  # Spark 3, without Connect
        found = wrap(work)
    return found
