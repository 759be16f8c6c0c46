"""hvd/launcher/rounds.py: the rounds of an elastic job: who is in which, who is started again, and when the job ends.

A job has slots, each with a worker or none, on hosts that may come and go. A worker that has called init waits for a
place. A round begins when none of the workers of the round before is in it any more (each has ended, or asks for a new
place), and enough of them ask. A worker that comes while a round is under way waits until the others have committed
their state; one whose slot has gone stays until then. At least one worker that has the state of the job stays as long as
no other has it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hvd.core.rendezvous import ADDED, REMOVED
from hvd.launcher.settings import seconds_in
from hvd.remote.errors import how_it_ended

STRIKES = 2  # failures in a slot, with no commit between them, after which its host gets no more workers
FRUITLESS = 3  # rounds in a row of the same workers that got no further than init


@dataclass(frozen=True)
class Limits:
    """The limits of an elastic job. `least` and `most` ranks; the first round waits for `first` of them. `timeout`: seconds
    in which a round must begin. `resets`: the most rounds after the first; None for any number. `cooldown`: the least and
    the most seconds after which a host that gets no more workers gets them again; None for never.
    """

    least: int
    first: int
    most: int
    timeout: float = 600.0
    resets: int | None = None
    cooldown: Sequence[float] | None = None

    @staticmethod
    def of(
        least: int, first: int, most: int, resets: int | None, cooldown: Sequence[float] | None, env: Mapping[str, str]
    ) -> Limits:
        """The same, with the timeout that the environment has. Raises ValueError for invalid ones."""
        timeout = seconds_in(env, "HOROVOD_ELASTIC_TIMEOUT", 600.0)
        if not 0 < timeout <= 1e9:
            raise ValueError(f"HOROVOD_ELASTIC_TIMEOUT is {timeout:g}; allowed: more than 0, to 1000000000 seconds")
        if cooldown is not None and not (len(cooldown) == 2 and 1 <= cooldown[0] <= cooldown[1] <= 3600):
            given = " ".join(f"{each:g}" for each in cooldown)
            raise ValueError(f"the range of cooldowns is {given}; allowed: two numbers of seconds, from 1 to 3600, the smaller one first")
        return Limits(least, first, most, timeout, resets, cooldown)


@dataclass(frozen=True)
class Failure:
    """The end of a worker: its slot, its name for the user, and its exit code as in subprocess."""

    slot: int
    who: str
    code: int


class Actions(Protocol):
    """The effects of a job's rounds on its workers."""

    def start(self, slot: int, host: str) -> None:
        """Starts a worker in a slot, on a host."""

    def place(self, slot: int, rank: int, hosts: Sequence[str], number: int) -> None:
        """Gives a worker its rank in round `number`: rank 0 first. `hosts` has the host of each rank; those on one machine
        are together.
        """

    def machine(self, host: str) -> str:
        """The machine that has this name."""

    def change(self, slot: int, how: int) -> None:
        """Tells a worker that others have come or gone, as in hvd/core/rendezvous.py."""

    def say(self, sentence: str) -> None:
        """Tells the user what has happened."""

    def refuse_worker(self, slot: int, why: str) -> None:
        """Answers a worker of this round that there will be no other one."""

    def dismiss(self, slot: int) -> None:
        """Answers a worker that it is not needed, or not any more."""

    def succeed(self) -> None:
        """The job is over. Workers that are left are new ones, which are not needed."""

    def fail_job(self, failure: Failure | None, why: str) -> None:
        """The job has failed. `why` goes on from a sentence about the failure, or is one if no worker is to blame."""


@dataclass
class _Worker:
    born: int  # the order in which workers were started
    round: int = 0  # that it is in, or was in last; 0 for none
    first: float = math.inf  # its first round
    rank: int = -1
    has_state: bool = False  # the job's
    asking: bool = False
    dismissed: bool = False  # it is about to end, and counts no more


@dataclass
class _Slot:
    host: str = ""  # of its worker, or of the last one
    worker: _Worker | None = None
    strikes: int = 0
    closed: bool = False  # its worker has ended without an error before it joined


@dataclass
class Rounds:
    """A job's rounds. Its methods are called with what happens; it answers by `actions`, in no other thread."""

    limits: Limits
    hosts: dict[str, int]  # and how many workers each can have, the oldest one first
    actions: Actions
    fixed: bool = True  # whether the hosts stay as they are
    number: int = 0  # of the round
    ended: bool = False
    winners: dict[int, int] = field(default_factory=dict)  # the slots of the ranks that have ended without an error
    _slots: list[_Slot] = field(default_factory=list)
    _born: int = 0
    _size: int = 0  # of this round
    _barred: dict[str, tuple[str, float]] = field(default_factory=dict)  # hosts that get no workers: a sentence, until when
    _times: dict[str, int] = field(default_factory=dict)  # how often that was so
    _first_failure: Failure | None = None  # of a rank of this round
    _failure: Failure | None = None  # the last one of any worker
    _succeeded: int | None = None  # the rank that did so first
    _told: int = 0  # the changes that rank 0 knows of
    _joined: bool = False  # a worker has got further than init in this round
    _again: int = 0  # the rounds before it in a row that were of the same workers, and in which none had
    _ages: list[int] = field(default_factory=list)  # of this round's workers
    _since: float = 0.0  # when this round began to be awaited

    def begin(self) -> None:
        """Starts the first workers."""
        self._slots = [_Slot() for _ in range(self.limits.most)]
        self._since = time.monotonic()
        self._fill()

    def found(self, hosts: Mapping[str, int]) -> None:
        """The hosts that there are now."""
        if self.ended or self._succeeded is not None or hosts == self.hosts:
            return
        before = self.hosts
        self.hosts = {**{host: hosts[host] for host in before if host in hosts}, **hosts}
        changes = [f"{host} has {count} slot{'s' if count > 1 else ''}" for host, count in hosts.items() if count != before.get(host)]
        changes += [f"{host} is gone" for host in before if host not in hosts]
        self.actions.say("; ".join(changes))
        for each in self._slots:
            each.closed = each.closed and each.host in hosts
        self._fill()
        self._advance()

    def deadline(self) -> float | None:
        """When `tick` must be called at the latest, on time.monotonic()'s clock; None if nothing is awaited."""
        times = [self._overdue(), *(until for _, until in self._barred.values())]
        return None if self.ended or min(times) == math.inf else min(times)

    def _overdue(self) -> float:
        """When this round must have begun."""
        under_way = self._running() and not self._leaving()
        return math.inf if under_way else self._since + self.limits.timeout

    def tick(self) -> None:
        """Lets hosts get workers again, and ends a job for which too few have come in time."""
        now = time.monotonic()
        for host in [host for host, (_, until) in self._barred.items() if now >= until]:
            del self._barred[host]
            for each in self._slots:
                each.strikes *= each.host != host
            if host in self.hosts and not self.ended:
                self.actions.say(f"{host} gets ranks again")
                self._fill()
        if self.ended or now < self._overdue():
            return
        within = f"within {self.limits.timeout:g} s (--elastic-timeout)"
        if running := self._running():
            ranks = ", ".join(str(rank) for rank in sorted(worker.rank for worker in running))
            return self._give_up(f"rank(s) {ranks} did not leave round {self.number} {within}, as others have")
        self._give_up(f"{len(self._asking())} of the {self._need()} ranks that this job needs have come {within}{self._bars()}")

    def asked(self, slot: int) -> None:
        """A worker has called init, or calls it again."""
        worker = self._slots[slot].worker
        if self.ended or worker is None:
            self.actions.refuse_worker(slot, "this elastic job has ended")
        elif worker.dismissed or (self._succeeded is not None and worker.round != self.number):
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
        self._joined = True
        self._slots[slot].strikes = 0

    def synchronised(self, slot: int) -> None:
        """A worker has the job's state: that of rank 0 in this round."""
        worker = self._slots[slot].worker
        if worker is not None and not self.ended:
            self._joined = True
            worker.has_state = True
            self._advance()

    def exited(self, slot: int, code: int) -> None:
        """A worker has ended, with an exit code as in subprocess."""
        here = self._slots[slot]
        worker, here.worker = here.worker, None
        if worker is None or self.ended:
            return
        if self._succeeded is not None and worker.round != self.number:
            return  # it was not needed
        if worker.dismissed:
            self._fill()
            return
        if code == 0 and worker.round == 0:
            here.closed = True
            if not self.number:
                self.winners[slot] = slot
            else:
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
        over = self._succeeded is not None and not self._members()
        if not self.number and not self._workers():  # they were programs that do not use hvd
            over = all(each.closed for each in self._slots if each.host)
        if over:
            self.ended = True
            for late, each in enumerate(self._slots):
                if each.worker and not each.worker.dismissed:
                    self.actions.say(f"the new process in slot {late} came too late and was not needed")
            return self.actions.succeed()
        if self._enough():
            self._advance()

    def _lose(self, slot: int, worker: _Worker, code: int) -> None:
        """A worker has failed: another one starts, unless that cannot help."""
        here = self._slots[slot]
        here.strikes += 1
        failure = Failure(slot, self._name(slot, worker), code)
        self._failure = failure
        if worker.round == self.number:
            self._first_failure = self._first_failure or failure
        mates = self._members()
        if worker.round == self.number > 0 and not mates:
            return self._give_up("no other rank is left" if self._size > 1 else "it was the only rank")
        if worker.has_state and not any(mate.has_state for mate in mates):
            return self._give_up("the ranks that are left do not have the job's state yet")
        host, sentence = here.host, f"{failure.who} {how_it_ended(code)}"
        if here.strikes >= STRIKES and host not in self._barred:
            sentence += f"; {self._bar(host, slot)}"
        for other in self._fill()[:1]:
            same = other == slot and self._slots[slot].host == host
            sentence += f"; another one starts in {'its place' if same else f'slot {other} on {self._slots[other].host}'}"
        left = f"{len(mates)} rank{'s are' if len(mates) > 1 else ' is'} left"
        self.actions.say(f"{sentence}; {left}" if self.number else sentence)

    def _bar(self, host: str, slot: int) -> str:
        """Lets a host get no more workers, for a while or for ever; a sentence about that."""
        why = f"{STRIKES} failures in slot {slot}, the last one at {time.strftime('%H:%M:%S')}"
        seconds = math.inf
        if self.limits.cooldown is not None:
            least, most = self.limits.cooldown
            seconds = least * 2.0 ** min(self._times.get(host, 0), 12)
            seconds = min(most, seconds * random.uniform(1, 1.1))  # hosts barred together do not come back together
        self._times[host] = self._times.get(host, 0) + 1
        sentence = f"{host} gets no more ranks " + (f"for {seconds:.0f} s " if seconds < math.inf else "") + f"after {why}"
        self._barred[host] = (sentence, time.monotonic() + seconds)
        return sentence

    def _bars(self) -> str:
        """The hosts that get no more workers, to be added to a sentence."""
        return ": " + "; ".join(sentence for sentence, _ in self._barred.values()) if self._barred else ""

    def _enough(self) -> bool:
        """Whether enough workers can still come together; if not, ends the job."""
        possible, need = len(self._workers()), self._need()
        if possible >= need or self._succeeded is not None or self._used_up():
            return True
        if not self._barred and not self._asking():
            return True  # programs that do not use hvd, or ranks that have still to notice a loss
        if not self.fixed or any(until < self._overdue() for _, until in self._barred.values()):
            return True  # others may come in time
        self._give_up(f"{possible} of the {need} ranks that this job needs can run{self._bars()}")
        return False

    def _name(self, slot: int, worker: _Worker) -> str:
        """A worker's name for the user."""
        host = self._slots[slot].host
        if worker.round == 0:
            return f"a new process in slot {slot} on {host}"
        return f"rank {worker.rank} of {self._size} on {host} (slot {slot}, round {worker.round})"

    def _fill(self) -> list[int]:
        """Starts workers where hosts can have more, and returns their slots."""
        started: list[int] = []
        if self._succeeded is not None or self._used_up():
            return started
        for host, count in self.hosts.items():
            here = [slot for slot, _ in self._workers() if self._slots[slot].host == host]
            closed = sum(each.closed and each.host == host for each in self._slots)
            free = [slot for slot, each in enumerate(self._slots) if each.worker is None and not each.closed]
            free.sort(key=lambda slot: self._slots[slot].host != host)
            for slot in [] if host in self._barred else free[: max(0, count - len(here) - closed)]:
                if self._slots[slot].host != host:
                    self._slots[slot] = _Slot(host)
                self._slots[slot].worker = _Worker(self._born)
                self._born += 1
                self.actions.start(slot, host)
                started.append(slot)
        return started

    def _workers(self) -> list[tuple[int, _Worker]]:
        """All that are not dismissed, with their slots: those first that have been ranks for the longest time."""
        found = [(slot, each.worker) for slot, each in enumerate(self._slots) if each.worker and not each.worker.dismissed]
        return sorted(found, key=lambda one: (one[1].first, one[1].born))

    def _unwanted(self) -> list[tuple[int, _Worker]]:
        """Those of them for which their hosts have no slot any more: the last ones, but not all that have the state."""
        left, found, kept = dict(self.hosts), [], False
        for slot, worker in self._workers():
            host = self._slots[slot].host
            left[host] = left.get(host, 0) - 1
            if left[host] < 0:
                found.append((slot, worker))
            else:
                kept = kept or worker.has_state
        spared = None if kept else next((one for one in found if one[1].has_state), None)
        return [one for one in found if one is not spared]

    def _members(self) -> list[_Worker]:
        """The workers of the last round that have not ended; before the first round, none."""
        return [worker for _, worker in self._workers() if worker.round == self.number > 0]

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
        return [one for one in self._workers() if one[1].asking]

    def _advance(self) -> None:
        """Begins the next round, if it can begin; or tells rank 0 that it should."""
        running, unwanted = self._running(), self._unwanted()
        for slot, worker in unwanted:
            if worker.asking and (worker.round < self.number or not running):
                worker.dismissed = True
                self.actions.dismiss(slot)
        if running:
            news = any(worker.round < self.number for _, worker in self._asking())
            gone = any(worker.round == self.number > 0 for _, worker in unwanted)
            change = ((ADDED if news else 0) | (REMOVED if gone else 0)) & ~self._told
            first = next((slot for slot, worker in self._workers() if worker in running and worker.rank == 0), None)
            if change and first is not None and not self._used_up():
                self._told |= change
                self.actions.change(first, change)
            return
        if self._succeeded is not None:
            return
        if self._used_up():
            return self._give_up(f"the ranks have changed {self.limits.resets} times, as often as they may (--reset-limit)")
        ready = self._asking()
        if len(ready) < self._need():
            return
        ages = [worker.born for _, worker in ready]
        self._again = self._again + 1 if ages == self._ages and not self._joined else 0
        if self._again == FRUITLESS:
            return self._give_up(f"the same {len(ready)} ranks have met {FRUITLESS} times and could not join: do they reach each other?")
        self._ages, self._joined = ages, False
        self.number += 1
        self.winners.clear()
        self._size = len(ready)
        self._first_failure = None
        self._told = 0
        self._since = time.monotonic()
        before = sum(worker.round > 0 for _, worker in ready)
        machine = {slot: self.actions.machine(self._slots[slot].host) for slot, _ in ready}
        # The machine of the oldest is the first.
        ordered = [one for each in dict.fromkeys(machine.values()) for one in ready if machine[one[0]] == each]
        hosts = [self._slots[slot].host for slot, _ in ordered]
        for rank, (slot, worker) in enumerate(ordered):
            worker.round, worker.rank, worker.asking = self.number, rank, False
            worker.first = min(worker.first, self.number)
            worker.has_state = worker.has_state or self.number == 1  # at first nobody has anything to lose
        for rank, (slot, _) in enumerate(ordered):
            self.actions.place(slot, rank, hosts, self.number)
        if self.number > 1:
            new = len(ready) - before
            ranks = f"{len(ready)} rank{'s' if len(ready) > 1 else ''}"
            self.actions.say(f"round {self.number} begins with {ranks}" + (f", {new} of them new" if new else ""))

    def _give_up(self, why: str) -> None:
        """Ends the job, and says why after the first failure in this round, or after the last one of all."""
        failure = self._first_failure or self._failure
        self._fail(failure, f"and {why}" if failure else why)

    def _fail(self, failure: Failure | None, why: str) -> None:
        """Ends the job: see Actions.fail_job."""
        self.ended = True
        self.actions.fail_job(failure, why)
