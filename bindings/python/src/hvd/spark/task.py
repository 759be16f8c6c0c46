"""hvd/spark/task.py: the work of each task of the barrier job: it finds its place, starts its rank, and watches it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from hvd.descriptors import above_streams
from hvd.launcher.command import Program
from hvd.launcher.errors import LaunchError
from hvd.launcher.job import GRACE, Job
from hvd.launcher.local import ranks_environment
from hvd.launcher.supervisor import torchrun
from hvd.launcher.supervisor.planning import NOTHING, plan
from hvd.launcher.supervisor.processes import segment_prefix
from hvd.remote import channel
from hvd.remote.channel import CHANNEL
from hvd.remote.files import FILES, file_in_memory
from hvd.remote.program import worker_environment
from hvd.spark import across, place, timeline
from hvd.spark.checkpoint import CHECKPOINT
from hvd.spark.hub import Hub
from hvd.spark.link import Link, dial

Record = tuple[int, str, bytes]  # rank, kind, and data for the driver

LATER = 5.0  # seconds
LAST_MESSAGES = 30.0  # seconds for messages that the rank sent to the driver before its end


class RankJob(Job):
    """The job of one rank on this executor. Its reports go to the first task."""

    link: Link

    def lost(self, rank: int, by: int) -> None:
        """Forwards that this rank has lost another one."""
        self.link.send("lost", rank, by)


def run_task(order: dict[str, Any], program: bytes, kept: bytes, context: Any) -> Iterator[Record]:
    """Runs the rank of this task. Yields its records for the driver.

    `order` is created by hvd/spark/driver.py; `kept` is the last checkpoint, or empty; `context` is Spark's
    BarrierTaskContext. Every task makes the same calls of allGather, whatever it finds.
    """
    rank, size = context.partitionId(), order["size"]
    secret = bytes.fromhex(order["secret"])
    environ = {**os.environ, **order["environ"]}
    if sentence := torchrun.remove_outer(environ):
        print(f"hvd.spark: {sentence}", file=sys.stderr, flush=True)
    directory = environ.get("HVD_SHM_DIR") or "/dev/shm"
    with above_streams(), contextlib.ExitStack() as stack:
        to_driver = _link_to_driver(order, secret, stack) if rank == 0 else None
        hub = None
        if rank == 0:
            send = to_driver.send if to_driver else lambda *_, **__: False
            hub = Hub(size, secret, _own_addresses(context), send, order["all_output"])
            stack.callback(hub.close)
            if to_driver:
                threading.Thread(target=_obey_driver, args=(to_driver, hub), daemon=True).start()
        starting = stack.enter_context(contextlib.ExitStack())
        starting.enter_context(_limit(order["start_timeout"], f"rank {rank} on {socket.gethostname()}"))
        seen_here = stack.enter_context(contextlib.ExitStack())
        file = seen_here.enter_context(place.shown(directory, order["identity"]))
        fact = {
            "host": socket.gethostname(),
            "kernel": place.kernel(),
            "file": file,
            "versions": place.versions(),
            "python": sys.executable,
            "hub": hub.address if hub else None,
            "meeting": torchrun.meeting(environ, hub.address[0], stack) if hub else None,
        }
        facts = [json.loads(text) for text in context.allGather(json.dumps(fact))]
        seen = [one["file"] for one in facts if one["file"] and os.path.exists(os.path.join(directory, one["file"]))]
        sights = [json.loads(text) for text in context.allGather(json.dumps(seen))]
        seen_here.close()
        if problem := place.mismatch(facts, order["versions"]):
            yield rank, "refused", problem.encode()
            return
        names = [one["host"] for one in facts]
        hosts = place.hosts_of(facts, sights)
        several = len(set(hosts)) > 1
        if several and (problem := across.refusal(context, names)):
            yield rank, "refused", problem.encode()
            return
        try:
            network = across.interface_variables(context, rank, hosts, secret, order["environ"]) if several else {}
        except LaunchError as error:
            yield rank, "refused", str(error).encode()
            return
        starting.close()
        own = {**place.place_of(rank, hosts, names), **order["identity"], **_gpus(context, order), **facts[0]["meeting"]}
        own[torchrun.RUN] = order["identity"]["HVD_JOB"]
        result = stack.enter_context(file_in_memory(f"hvd-result-{rank}"))
        if hub:
            if several:
                across.serve(hub, hosts, names, order["start_timeout"])
            hub.open(order["start_timeout"])
            send("hosts", names)
            waiting = threading.Thread(target=hub.await_tasks, args=(names,), daemon=True)
            waiting.start()
        try:
            # Longer than the first task waits, because its error is more precise.
            link = dial(tuple(facts[0]["hub"]), secret, order["start_timeout"] + LATER)
        except OSError as error:
            yield rank, "refused", f"rank {rank} on {names[rank]}: the first task, on {names[0]}: {error}".encode()
            return
        stack.callback(link.close)
        link.send("rank", rank)
        pmi = None
        if several:
            pmi = across.Pmi(rank, size, link)
            stack.callback(pmi.close)
            own.update({name: value for name, value in network.items() if name not in environ})
            own.update(pmi.variables)
        cpus = _cpus(context, hosts, rank, {**environ, **own})
        sender = None
        if order["timeline"]:
            own["HOROVOD_TIMELINE"] = timeline.local_path(order["identity"])
            if own["HOROVOD_LOCAL_RANK"] == "0":
                sender = timeline.Sender(own["HOROVOD_TIMELINE"], hosts[rank], link)
        try:
            _run_rank(order, environ, program, kept, rank, own, cpus, result, link, directory, pmi)
        except LaunchError as error:
            link.send("ended", 1, time.monotonic_ns(), payload=str(error).encode())
            yield rank, "refused", f"rank {rank} on {names[rank]}: {error}".encode()
        if sender:
            sender.finish(order["identity"])
        link.close()
        if hub:
            hub.await_end()
            yield rank, "job", json.dumps(_account(hub, names)).encode()
        result.seek(0)
        yield rank, "result", result.read()


@contextlib.contextmanager
def _limit(seconds: float, who: str) -> Iterator[None]:
    """Raises LaunchError if the block takes longer. Spark's own limit for tasks to meet is a year."""

    def late(*_: Any) -> None:
        raise LaunchError(
            f"{who}: not all tasks have reported to the others within {seconds:g} s (HOROVOD_START_TIMEOUT); "
            "is an executor busy, or stopped?"
        )

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled on the main thread, where Spark's Python worker calls this
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _account(hub: Hub, names: list[str]) -> dict[str, Any]:
    """The end of the job, as data for the driver."""
    failed = hub.outcome.failed
    return {
        "hosts": names,
        "failed": failed,
        "code": hub.outcome.code,
        "after": hub.outcome.after,
        "behind": [hub.behind.get(rank, 0) for rank in range(hub.size)],
        "lines": [hub.last_lines(rank) for rank in range(hub.size)],
        "gone": sorted(hub.gone),
        "refusal": hub.refusal,
    }


def _run_rank(
    order: dict[str, Any],
    environ: dict[str, str],
    program: bytes,
    kept: bytes,
    rank: int,
    own: dict[str, str],
    cpus: Sequence[int],
    result: BinaryIO,
    link: Link,
    directory: str,
    pmi: across.Pmi | None,
) -> None:
    """Starts the rank under a guard, reports its output and end to the first task, and obeys that task's orders."""
    # The path of this executor's Python, which includes files that travel with the application.
    environ = {**environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with contextlib.ExitStack() as stack:
        call = stack.enter_context(file_in_memory("hvd-program"))
        call.write(program)
        call.flush()
        mine, theirs = channel.pair()
        stack.callback(mine.close)
        job = RankJob(
            ranks_environment(worker_environment(environ)),
            lambda _, stream, piece: None if link.send("piece", stream, payload=piece.encode()) else None,
        )
        job.link = link
        passed = [call.fileno(), result.fileno(), theirs.fileno()]
        own = {
            **own,
            "HOROVOD_START_TIMEOUT": f"{order['start_timeout']:g}",
            FILES: f"{passed[0]},{passed[1]}",
            CHANNEL: str(passed[2]),
        }
        if kept:
            last = stack.enter_context(file_in_memory("hvd-checkpoint"))
            last.write(kept)
            last.flush()
            passed.append(last.fileno())
            own[CHECKPOINT] = str(last.fileno())
        if pmi:
            passed.append(pmi.theirs.fileno())
        command = [sys.executable, "-m", "hvd.remote.worker"]
        job.add(Program(command, sys.executable, own, cpus=cpus or None, pass_fds=passed, index=rank))
        identity = order["identity"]
        threading.Thread(target=_obey, args=(link, job, pmi), daemon=True).start()
        receiving = threading.Thread(target=_receive, args=(mine, link), daemon=True)
        receiving.start()
        outcome = job.run(
            order["start_timeout"],
            [(place, segment_prefix(identity), identity) for place in (directory, environ.get("TMPDIR") or tempfile.gettempdir())],
            (),
            {**identity, "HOROVOD_RANK": str(rank)},
        )
        theirs.close()
        receiving.join(LAST_MESSAGES)
        lines = "\n".join(job.outputs.last_lines(rank))
        code = outcome.code if outcome.failed is not None else 0
        link.send("ended", code, time.monotonic_ns(), payload=lines.encode())


def _obey(link: Link, job: RankJob, pmi: across.Pmi | None) -> None:
    """Executes orders of the first task. Ends the rank when that task is gone."""
    while (frame := link.receive()) is not None:
        words, payload = frame
        if words[0] == "stop":
            job.stop(words[1], words[2])
        elif words[0] == "pmi" and pmi:
            pmi.answer(payload)
    job.stop(signal.SIGTERM, GRACE)


def _obey_driver(link: Link, hub: Hub) -> None:
    """Ends all ranks when the driver is interrupted."""
    while (frame := link.receive()) is not None:
        if frame[0][0] == "stop":
            hub.refuse("the driver was interrupted")


def _receive(mine: socket.socket, link: Link) -> None:
    """Forwards messages of the rank for the driver."""
    while (message := channel.receive(mine)) is not None:
        kind, data = message
        link.send("message", kind, payload=data)


def _own_addresses(context: Any) -> list[str]:
    """The addresses at which the first task listens: the one at which Spark's executors reach it, or else any."""
    named = context.getTaskInfos()[0].address.rpartition(":")[0].strip("[]")
    return [named, "0.0.0.0"]


def _gpus(context: Any, order: dict[str, Any]) -> dict[str, str]:
    """The variables with the GPUs that Spark has assigned to this task. A user's own policy takes precedence."""
    given = context.resources().get("gpu")
    if given is None:
        return {}
    return {"HVD_TASK_GPUS": ",".join(given.addresses), "HVD_PIN": order["environ"].get("HVD_PIN", "from_scheduler")}


def _cpus(context: Any, hosts: list[int], rank: int, environ: Mapping[str, str]) -> list[int]:
    """A rank's own cores, as under hvdrun, if the tasks of this job have all CPUs of the host.

    Empty, meaning no binding, if others also use the host, or if a policy for GPUs decides.
    """
    from hvd import _core

    here = [other for other in range(len(hosts)) if hosts[other] == hosts[rank]]
    if "HVD_PIN" in environ or len(here) * context.cpus() < len(os.sched_getaffinity(0)):
        return []
    return plan(_core, len(here), NOTHING)[here.index(rank)].cpus


def _link_to_driver(order: dict[str, Any], secret: bytes, stack: contextlib.ExitStack) -> Link | None:
    """The connection to the driver. Without one, messages for it stay in the executor's log."""
    if order["driver"] is None:
        return None
    try:
        link = dial(tuple(order["driver"]), secret, order["driver_seconds"])
    except OSError as error:
        print(f"hvd.spark: nothing is shown at the driver while the job runs: {error}", file=sys.stderr, flush=True)
        return None
    stack.callback(link.close)
    return link
