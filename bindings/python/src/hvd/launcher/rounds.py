"""hvd/launcher/rounds.py: the rounds of an elastic job: who is in which, who is started again, and when the job ends.

A job has slots, each with a worker or none. A worker that has called init waits for a place. A round begins when none of
the workers of the round before is in it any more (each has ended, or asks for a new place), and enough of them ask. A
worker that comes while a round is under way waits until the others have committed their state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hvd.core.rendezvous import ADDED
from hvd.launcher.settings import seconds_in
from hvd.remote.errors import how_it_ended

STRIKES = 2  # failures in a slot, with no commit between them, after which its host gets no more workers


@dataclass(frozen=True)
class Limits:
    """The limits of an elastic job. `least` and `most` ranks; the first round waits for `first` of them. `timeout`: seconds
    in which a round must begin. `resets`: the most rounds after the first; None for any number.
    """

    least: int
    first: int
    most: int
    timeout: float = 600.0
    resets: int | None = None

    @staticmethod
    def of(least: int, first: int, most: int, resets: int | None, env: Mapping[str, str]) -> Limits:
        """The same with the timeout that the environment has. Raises ValueError for an invalid one."""
        timeout = seconds_in(env, "HOROVOD_ELASTIC_TIMEOUT", 600.0)
        if not 0 < timeout <= 1e9:
            raise ValueError(f"HOROVOD_ELASTIC_TIMEOUT is {timeout:g}; allowed: more than 0, to 1000000000 seconds")
        return Limits(least, first, most, timeout, resets)


@dataclass(frozen=True)
class Failure:
    """The end of a worker: its slot, its name for the user, and its exit code as in subprocess."""

    slot: int
    who: str
    code: int


class Actions(Protocol):
    """The effects of a job's rounds on its workers."""

    def start(self, slot: int) -> None:
        """Starts a worker in a slot."""

    def place(self, slot: int, rank: int, hosts: Sequence[str], number: int) -> None:
        """Gives a worker its rank in round `number`. `hosts` has the host of each rank; equal ones are together."""

    def change(self, slot: int, how: int) -> None:
        """Tells a worker that others have come or gone, as in hvd/core/rendezvous.py."""

    def say(self, sentence: str) -> None:
        """Tells the user what has happened."""

    def refuse_worker(self, slot: int, why: str) -> None:
        """Answers a worker of this round that there will be no other one."""

    def dismiss(self, slot: int) -> None:
        """Answers a new worker that it is not needed."""

    def succeed(self) -> None:
        """The job is over. Workers that are left are new ones, which are not needed."""

    def fail_job(self, failure: Failure | None, why: str) -> None:
        """The job has failed. `why` goes on from a sentence about the failure, or is one if no worker is to blame."""


@dataclass
class _Worker:
    born: int  # the order in which workers were started
    round: int = 0  # that it is in, or was in last; 0 for none
    rank: int = -1
    asking: bool = False


@dataclass
class _Slot:
    host: str
    worker: _Worker | None = None
    strikes: int = 0


@dataclass
class Rounds:
    """A job's rounds. Its methods are called with what happens; it answers by `actions`, in no other thread."""

    limits: Limits
    hosts: Sequence[str]  # of each slot
    actions: Actions
    number: int = 0  # of the round
    ended: bool = False
    winners: dict[int, int] = field(default_factory=dict)  # the slots of the ranks that have ended without an error
    _slots: list[_Slot] = field(default_factory=list)
    _born: int = 0
    _size: int = 0  # of this round
    _barred: dict[str, str] = field(default_factory=dict)  # hosts that get no more workers, and why
    _first_failure: Failure | None = None  # of a rank of this round
    _failure: Failure | None = None  # the last one of any worker
    _succeeded: int | None = None  # the rank that did so first
    _told: bool = False  # whether rank 0 knows of a worker that waits for the next round
    _since: float = 0.0  # when this round began to be awaited

    def begin(self) -> None:
        """Starts the first workers."""
        self._slots = [_Slot(host) for host in self.hosts]
        self._since = time.monotonic()
        for slot in range(len(self._slots)):
            self._start(slot)

    def deadline(self) -> float | None:
        """When `tick` must be called at the latest, on time.monotonic()'s clock; None if nothing is awaited."""
        under_way = self._running() and not self._leaving()
        return None if self.ended or under_way else self._since + self.limits.timeout

    def tick(self) -> None:
        """Ends a job for which too few workers have come in time."""
        until = self.deadline()
        if until is None or time.monotonic() < until:
            return
        within = f"within {self.limits.timeout:g} s (--elastic-timeout)"
        if running := self._running():
            ranks = ", ".join(str(rank) for rank in sorted(worker.rank for worker in running))
            return self._fail(None, f"round {self.number} has failed, and rank(s) {ranks} did not notice it {within}")
        self._fail(None, f"{len(self._asking())} of the {self._need()} ranks that this job needs have come {within}")

    def asked(self, slot: int) -> None:
        """A worker has called init, or calls it again."""
        worker = self._slots[slot].worker
        if self.ended or worker is None:
            self.actions.refuse_worker(slot, "this elastic job has ended")
        elif self._succeeded is not None and worker.round != self.number:
            self.actions.dismiss(slot)
        elif self._succeeded is not None:
            self.actions.refuse_worker(slot, f"rank {self._succeeded} has ended with success, so this job begins no new round")
        else:
            if worker.round == self.number > 0 and not self._leaving():
                self._since = time.monotonic()
            worker.asking = True
            if self._enough():
                self._advance()

    def committed(self, slot: int) -> None:
        """A worker has committed its state for the first time in this round."""
        self._slots[slot].strikes = 0

    def exited(self, slot: int, code: int) -> None:
        """A worker has ended, with an exit code as in subprocess."""
        here = self._slots[slot]
        worker, here.worker = here.worker, None
        if worker is None or self.ended:
            return
        if self._succeeded is not None and worker.round != self.number:
            return  # it was not needed
        if code == 0 and worker.round == 0:
            if self.number:
                self.actions.say(f"{self._name(slot, worker)} has ended without an error before it joined; its place stays free")
        elif code == 0:
            self.winners[worker.rank] = slot
            if self._succeeded is None:
                self._succeeded = worker.rank
                for other, _ in self._asking():
                    self.asked(other)
        elif self._succeeded is not None:
            failure = Failure(slot, self._name(slot, worker), code)
            return self._fail(failure, f"after rank {self._succeeded} had ended with success")
        else:
            self._lose(slot, worker, code)
        if self.ended:
            return
        # Without any round: they were programs that do not use hvd.
        over = not self._members() if self._succeeded is not None else not any(each.worker for each in self._slots)
        if over:
            self.ended = True
            for late, each in enumerate(self._slots):
                if each.worker:
                    self.actions.say(f"the new process in slot {late} came too late and was not needed")
            return self.actions.succeed()
        if self._enough():
            self._advance()

    def _lose(self, slot: int, worker: _Worker, code: int) -> None:
        """A worker has failed: another one takes its slot, unless that cannot help."""
        here = self._slots[slot]
        here.strikes += 1
        failure = Failure(slot, self._name(slot, worker), code)
        self._failure = failure
        if worker.round == self.number:
            self._first_failure = self._first_failure or failure
        mates = self._members()
        if worker.round == self.number > 0 and not mates:
            others = "all others have failed, too" if self._size > 1 else "it was the only rank"
            return self._fail(self._first_failure, f"and {others}")
        sentence = f"{failure.who} {how_it_ended(code)}"
        if here.strikes >= STRIKES and here.host not in self._barred:
            self._barred[here.host] = f"{STRIKES} failures in slot {slot}, the last one at {time.strftime('%H:%M:%S')}"
            sentence += f"; {here.host} gets no more ranks after {self._barred[here.host]}"
        if here.host not in self._barred:
            self._start(slot)
            sentence += "; another one starts in its place"
        left = f"{len(mates)} rank{'s are' if len(mates) > 1 else ' is'} left"
        self.actions.say(f"{sentence}; {left}" if self.number else sentence)

    def _enough(self) -> bool:
        """Whether enough workers can still come together; if not, ends the job."""
        possible, need = sum(each.worker is not None for each in self._slots), self._need()
        if possible >= need or self._succeeded is not None:
            return True
        if not self._barred and not self._asking():
            return True  # programs that do not use hvd, or ranks that have still to notice a loss
        barred = "; ".join(f"{host} gets no more ranks after {why}" for host, why in self._barred.items())
        why = f"{possible} of the {need} ranks that this job needs can run" + (f": {barred}" if barred else "")
        failure = self._first_failure or self._failure
        self._fail(failure, f"and {why}" if failure else why)
        return False

    def _name(self, slot: int, worker: _Worker) -> str:
        """A worker's name for the user."""
        host = self._slots[slot].host
        if worker.round == 0:
            return f"a new process in slot {slot} on {host}"
        return f"rank {worker.rank} of {self._size} on {host} (slot {slot}, round {worker.round})"

    def _start(self, slot: int) -> None:
        self._slots[slot].worker = _Worker(self._born)
        self._born += 1
        self.actions.start(slot)

    def _members(self) -> list[_Worker]:
        """The workers of the last round that have not ended; before the first round, none."""
        return [each.worker for each in self._slots if each.worker and each.worker.round == self.number > 0]

    def _running(self) -> list[_Worker]:
        """Those of them that do not ask for the next round."""
        return [worker for worker in self._members() if not worker.asking]

    def _leaving(self) -> list[_Worker]:
        """Those of them that do."""
        return [worker for worker in self._members() if worker.asking]

    def _used_up(self) -> bool:
        """Whether the ranks may not change any more."""
        return self.limits.resets is not None and self.number > self.limits.resets

    def _need(self) -> int:
        """How many workers the next round needs."""
        return self.limits.least if self.number else self.limits.first

    def _asking(self) -> list[tuple[int, _Worker]]:
        """The workers that wait for a place, with their slots, the oldest first."""
        found = [(slot, each.worker) for slot, each in enumerate(self._slots) if each.worker and each.worker.asking]
        return sorted(found, key=lambda one: one[1].born)

    def _advance(self) -> None:
        """Begins the next round, if it can begin; or tells rank 0 of workers that wait for it."""
        if running := self._running():
            news = [worker for _, worker in self._asking() if worker.round != self.number]
            first = next((slot for slot, each in enumerate(self._slots) if each.worker in running and each.worker.rank == 0), None)
            if news and not self._told and first is not None and len(running) < self.limits.most and not self._used_up():
                self._told = True
                self.actions.change(first, ADDED)
            return
        ready = self._asking()[: self.limits.most]
        if len(ready) < self._need() or self._succeeded is not None:
            return
        if self._used_up():
            return self._fail(self._first_failure, f"and the ranks have changed {self.limits.resets} times, as often as they may (--reset-limit)")
        self.number += 1
        self._size = len(ready)
        self._first_failure = None
        self._told = False
        self._since = time.monotonic()
        before = sum(worker.round > 0 for _, worker in ready)
        by_host = dict.fromkeys(self._slots[slot].host for slot, _ in ready)  # the host of the oldest is the first
        ordered = [one for host in by_host for one in ready if self._slots[one[0]].host == host]
        hosts = [self._slots[slot].host for slot, _ in ordered]
        for rank, (slot, worker) in enumerate(ordered):
            worker.round, worker.rank, worker.asking = self.number, rank, False
        for rank, (slot, _) in enumerate(ordered):
            self.actions.place(slot, rank, hosts, self.number)
        if self.number > 1:
            new = len(ready) - before
            ranks = f"{len(ready)} rank{'s' if len(ready) > 1 else ''}"
            self.actions.say(f"round {self.number} begins with {ranks}" + (f", {new} of them new" if new else ""))

    def _fail(self, failure: Failure | None, why: str) -> None:
        """Ends the job: see Actions.fail_job."""
        self.ended = True
        self.actions.fail_job(failure, why)
