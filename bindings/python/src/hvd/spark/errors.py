"""hvd/spark/errors.py: translates Spark's errors of a failed job to errors of ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hvd.launcher.errors import LaunchError
from hvd.remote.errors import RankFailed


class TaskLost(RankFailed):
    """Spark lost the task of a rank: its executor or Python worker is gone, or the job was cancelled.

    `rank` is -1 if Spark names no task. Spark's error is the cause.
    """

    def __init__(self, rank: int, size: int, sentence: str, again: bool = False) -> None:
        super().__init__(rank, 1, (), size)
        self.again = again  # whether the job may succeed if it is restarted
        self.sentence = sentence
        self.args = (sentence,)


_TASK = re.compile(r"barrier task (?:ResultTask|ShuffleMapTask)\(\d+, (\d+)\)")
_EXECUTOR = re.compile(r"ExecutorLostFailure \(executor (\S+) [^)]*\) Reason: ([^\n]*)")
_SUBMIT = {
    "SPARK-24942": "set spark.dynamicAllocation.enabled=false for this application and start its executors beforehand",
    "SPARK-24820": "call run() outside of other Spark operations",
    "SPARK-24819": "ask for fewer ranks, or give the application more executors or cores",
}
# Spark 4 writes "version: 3.9 than that in driver: 3.11", Spark 3 "version (3, 9) than that in driver 3.11".
_PYTHON = re.compile(r"Python in worker has different version:? (.+?) than that in driver:? ([\d.]*\d)")
_ERROR = re.compile(r"^(?:[\w.]*\.)?(\w+(?:Error|Exception|Failed|Interrupt|Exit)): (.*)$", re.MULTILINE)


def with_lines(text: str, rank: int, lines: Sequence[str]) -> str:
    """The text of an error, with the last lines of its rank."""
    if not lines:
        return text
    said = "\n".join(f"  {line}" for line in lines)
    what = "line" if len(lines) == 1 else f"{len(lines)} lines"
    return f"{text}\nThe last {what} of rank {rank}:\n{said}"


def translate(error: BaseException, size: int, hosts: Sequence[str], lines: Mapping[int, Sequence[str]]) -> Exception:
    """The exception to raise for an error of Spark. `hosts` of ranks is empty if unknown; `lines` are the last lines of
    ranks whose tasks were lost.
    """
    found = _translate(error, size, hosts)
    if isinstance(found, TaskLost):
        found.last_lines = list(lines.get(found.rank, ()))
        found.args = (with_lines(found.sentence, found.rank, found.last_lines),)
    return found


def _translate(error: BaseException, size: int, hosts: Sequence[str]) -> Exception:
    text = _message(error)
    for code, remedy in _SUBMIT.items():
        if code in text:
            line = next(line for line in text.splitlines() if code in line).strip()
            line = line[line.index(f"[{code}]") :] if f"[{code}]" in line else line
            return LaunchError(f"{line}\nRemedy: {remedy}.")
    found = _TASK.search(text)
    rank = int(found[1]) if found else -1
    who = f"rank {rank} of {size}{f' on {hosts[rank]}' if hosts[rank] else ''}" if rank >= 0 else "a rank"
    if python := _PYTHON.search(text):
        there = ".".join(re.findall(r"\d+", python[1]))
        return LaunchError(
            f"the executor of {who} has Python {there}, and the driver has Python {python[2]}; install the same on "
            "both, and name it in PYSPARK_PYTHON"
        )
    if executor := _EXECUTOR.search(text):
        reason = executor[2].strip() or "Spark gives no reason"
        return TaskLost(rank, size, f"{who} was lost with its executor ({executor[1]}): {reason}", True)
    if "cancelled" in text:
        line = next(line.strip() for line in text.splitlines() if "cancelled" in line)
        return TaskLost(-1, size, f"the Spark job was cancelled, and its ranks were ended: {_after(line)}")
    if "Python worker exited unexpectedly" in text:
        why = "the Python worker of its Spark task was killed or has crashed"
        return TaskLost(rank, size, f"{who} was lost: {why}", True)
    raised = _ERROR.findall(text)
    if raised and raised[-1][0] in ("LaunchError", "ImportError"):
        return LaunchError(raised[-1][1])
    if found and raised:
        return TaskLost(rank, size, f"the Spark task of {who} failed: {raised[-1][0]}: {raised[-1][1]}")
    return TaskLost(rank, size, f"the Spark job failed: {text.strip().splitlines()[0] if text.strip() else error!r}")


def _after(line: str) -> str:
    """The informative part of Spark's line, without the leading Java class."""
    return line.rpartition("SparkException: ")[2]


def _message(error: BaseException) -> str:
    """The JVM's message: the end of py4j's text, or all of Spark Connect's."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        try:
            return str(java.toString())
        except Exception:  # the JVM is gone
            pass
    return str(error)
