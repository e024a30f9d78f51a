"""Stretches: how many instances of a task that runs one at a time one worker is given ahead, so that it never runs dry.

A worker hands the slot of such a task from run to run by itself. So whoever has the turn before is given the next ones,
also while the slot is taken. A stretch grows while its worker works it off, and takes no slots: it counts little in its
worker's load. This is for economy alone; the claim decides who may run (docs/decisions/0057-handing-a-turn-on.md).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from rota.scheduler_service.placement import FULL, Turn
from rota.shared.database.transactions import Database
from rota.shared.domain.times import is_time
from rota.shared.store import assignments, overlap, turns
from rota.shared.store.assignments import Standing
from rota.shared.store.pending import Pending

AHEAD = 20
"""Of a task whose instances wait for each other, so many are assigned beyond its slots."""

LONGEST = 500
"""The longest stretch."""

LOOK_SECONDS = 0.25
"""How often a stretch that is worked off is looked at, and topped up."""

LOOKS_AHEAD = 4
"""A stretch is as long as what its worker ran between two looks, times this."""

MOST_TASKS = 20
"""So many tasks at most have stretches."""

SLOW_SECONDS = 1.5
"""A stretch of which nothing went for so long is not topped up any more."""


class Given(NamedTuple):
    """To which worker an instance was given, its place in the order of the turns, and how many slots it takes."""

    worker: int
    place: turns.Place
    weight: int = 1


@dataclass(slots=True)
class Stretch:
    """What this scheduler has given of a task and nobody has claimed, by instance id."""

    given: dict[int, Given] = field(default_factory=dict)
    length: int = 0
    """How long it is to be. 0: nobody works it off, and it is not topped up while the slot is taken."""

    moved_at: float = float("-inf")
    """When some of it had gone, in seconds of the clock's ``monotonic``."""

    worker: int | None = None
    """To whom the last of it was given."""

    def look(self, still: Collection[int], now: float) -> None:
        """Forget what was claimed. So much may go until the next look, too."""
        before, self.given = len(self.given), {i: one for i, one in self.given.items() if i in still}
        gone = before - len(self.given)
        if gone:
            self.moved_at = now
            self.length = min(LONGEST, max(LOOKS_AHEAD * gone, self.length * 3 // 4))
        if self.length <= AHEAD or now - self.moved_at > SLOW_SECONDS:
            self.length = 0

    def missing(self, first: turns.Place) -> int:
        """How many it lacks before the instance at this place. What was given behind that has to wait for it."""
        return max(0, self.length - sum(one.place < first for one in self.given.values()))


class Stretches:
    """The stretches of the tasks that run one at a time.

    stretches.look()
    near, later = in_turn(page, full, unfit, stretches.missing(page), seen)
    stretches.give([(instance, worker)])
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked_at = float("-inf")
        self._stretches: dict[int, Stretch] = {}
        self.were_dry: Collection[int] = ()
        """The tasks that were ``dry`` when ``give`` was called last: a worker waits for what was given then."""

    @property
    def quick(self) -> list[int]:
        """The tasks whose stretches are worked off, and are to be topped up soon."""
        return [task for task, stretch in self._stretches.items() if stretch.length]

    def worked_off(self) -> dict[int, int]:
        """The tasks whose stretches are worked off, each with how many of its oldest may be given now, at the most."""
        return {task: max(AHEAD + 1, one.length) for task, one in self._stretches.items() if one.length}

    @property
    def aside(self) -> Mapping[int, int]:
        """How many slots those of each worker take that wait for their turns behind others of their tasks."""
        given = [list(stretch.given.values())[AHEAD + 1 :] for stretch in list(self._stretches.values())]
        slots: Counter[int] = Counter()
        for one in (one for some in given for one in some):
            slots[one.worker] += one.weight
        return slots

    def missing(self, page: Iterable[Pending]) -> dict[int, int]:
        """How many instances the stretches that are worked off lack, of the tasks of a page of pending instances."""
        first: dict[int, turns.Place] = {}
        for one in page:
            if one.task_id in self._stretches:
                first[one.task_id] = min(first.get(one.task_id, _place(one)), _place(one))
        return {task: self._stretches[task].missing(place) for task, place in first.items()}

    def look(self) -> None:
        """Look what has gone of the stretches, unless the last look was a moment ago."""
        now = self._database.clock.monotonic()
        if not self._stretches or now - self._looked_at < LOOK_SECONDS / 2:
            return
        self._looked_at = now
        asked = {instance_id for stretch in self._stretches.values() for instance_id in stretch.given}
        still = self._database.read(lambda c: assignments.still_assigned(c, asked))
        for task, stretch in list(self._stretches.items()):
            stretch.look(still, now)
            if not stretch.given and not stretch.length:
                del self._stretches[task]

    def holders(self, near: Iterable[Pending], full: Collection[int]) -> dict[int, int]:
        """The workers that have the turns before these, or the run, by task; of tasks with a line alone.

        Where nobody has, because a worker has run all that it was given, it is this worker, which waits for more.
        """
        first: dict[int, Pending] = {}
        number: Counter[int] = Counter()
        for one in near:
            if is_alone(one) and is_time(one.due_at):
                number[one.task_id] += 1
                if one.task_id not in first or _place(one) < _place(first[one.task_id]):
                    first[one.task_id] = one
        lines = [(task, p.due_at) for task, p in first.items() if number[task] > 1 or task in full][:MOST_TASKS]
        if not lines:
            return {}
        workers = self._database.read(lambda c: {task: turns.worker_before(c, task, due) for task, due in lines})
        for task in self.dry & workers.keys():
            workers[task] = workers[task] or self._stretches[task].worker
        return {task: worker for task, worker in workers.items() if worker is not None}

    @property
    def dry(self) -> set[int]:
        """The tasks of which a worker has run all that it was given, and more could follow at once."""
        return {task for task, stretch in self._stretches.items() if stretch.length and not stretch.given}

    def give(self, placed: Iterable[tuple[Pending, int]]) -> None:
        """Note that these were given to workers."""
        now, self.were_dry = self._database.clock.monotonic(), self.dry
        given = [(one, worker) for one, worker in placed if is_alone(one)]
        for one, worker in given:
            if one.task_id not in self._stretches and len(self._stretches) >= MOST_TASKS:
                self._forget()
            if one.task_id in self._stretches or len(self._stretches) < MOST_TASKS:
                stretch = self._stretches.setdefault(one.task_id, Stretch())
                stretch.given[one.id] = Given(worker, _place(one), one.weight)
                stretch.worker = worker
        for task in {one.task_id for one, _ in given} & self._stretches.keys():
            stretch = self._stretches[task]
            if len(stretch.given) > AHEAD and not stretch.length:  # perhaps it is worked off at once
                stretch.length, stretch.moved_at = AHEAD + 1, now

    def _forget(self) -> None:
        """Forget the stretches that nobody works off."""
        self._stretches = {task: stretch for task, stretch in self._stretches.items() if stretch.length}


class Line:
    """The turns of a page's instances, while these are placed one after the other.

    ``holders``: the workers that have the turns before, by task; ``later``: the instances whose turn is to come later;
    ``now``: naive UTC.
    """

    def __init__(self, holders: dict[int, int], later: list[tuple[Pending, str]], now: datetime) -> None:
        self.now = now
        self._holders = holders
        self._later = later
        self._numbers: Counter[int] = Counter()

    def turn_of(self, one: Pending) -> Turn | None:
        """The turn of the next instance of the page, if its task runs one at a time."""
        if not is_alone(one):
            return None
        self._numbers[one.task_id] += 1
        return Turn(self._holders.get(one.task_id), is_far=self._numbers[one.task_id] > AHEAD + 1)

    def is_put_off(self, one: Pending, turn: Turn | None, why: str) -> bool:
        """Whether one that no worker takes comes later, because none has room for one whose turn is far."""
        if turn is None or not turn.is_far or why != FULL:
            return False
        self._later.append((one, why_later(one, 1)))
        return True

    def goes_to(self, one: Pending, worker: int) -> None:
        """Note to which worker it goes: the next of its task is to go there, too."""
        if is_alone(one):
            self._holders[one.task_id] = worker


def is_alone(one: Pending) -> bool:
    """Whether the task of an instance runs one at a time, in turns, and no limit bounds it."""
    slots = overlap.slots_waited_for(one.overlap_policy, one.max_instances)
    return slots == 1 and one.limit_name is None and one.parent_id is None


@dataclass(slots=True)
class Seen:
    """What a pass has seen, on its pages so far, of the lines of tasks that run one at a time."""

    lines: dict[int, list[turns.Place]] = field(default_factory=dict)
    """The places of those that wait, ascending, by task."""

    passed: dict[int, list[Standing]] = field(default_factory=dict)
    """Those of the lines that it has passed over, by task."""

    missing: dict[int, int] = field(default_factory=dict)
    """How many instances each stretch lacked when the pass came to its task."""

    def remember(self, page: Iterable[Pending], gone: Collection[int]) -> None:
        """Add those of a page that wait in such lines, but for those that are ``gone`` or hold up nobody."""
        self.lines |= self.with_these(one for one in page if is_alone(one) and one.id not in gone)

    def pass_over(self, passed: Iterable[Standing]) -> None:
        """Add those of a page that are known to wait in such lines."""
        for one in passed:
            self.passed.setdefault(one.task_id, []).append(one)

    def with_these(self, instances: Iterable[Pending]) -> dict[int, list[turns.Place]]:
        """The lines of the tasks of these instances, with these."""
        places: dict[int, set[turns.Place]] = {}
        for one in instances:
            places.setdefault(one.task_id, set()).add(_place(one))
        for task, some in places.items():
            some.update(map(_place, self.passed.get(task, ())))
        return {task: sorted(some.union(self.lines.get(task, ()))) for task, some in places.items()}


def in_turn(
    page: Iterable[Pending], full: Collection[int], unfit: Collection[int], missing: Mapping[int, int], seen: Seen
) -> tuple[list[Pending], list[tuple[Pending, str]]]:
    """Part a page into instances whose turn may be near, and those that come later, each with the reason.

    A task whose slots are all taken has none near; of any other the oldest are near, a few more than its slots. The
    later ones would only fill the workers' queues, where other tasks could run. But of a task whose stretch is worked
    off, so many are near as are ``missing``. An instance that has begun before keeps its reason, which says why it runs
    again. An ``unfit`` one is in nobody's way: it is near, so that it is tried.

    ``seen``: what earlier pages of the pass have shown. The caller adds this page (``remember``).
    """
    near: list[Pending] = []
    later: list[tuple[Pending, str]] = []
    far: dict[int, int] = {}
    seen.missing = {**missing, **seen.missing}
    bounded = [(one, slots) for one in page if (slots := one.slots) is not None and one.id not in unfit]
    lines = seen.with_these(one for one, _ in bounded)
    for one, slots in bounded:
        most = 0 if one.task_id in full else slots + AHEAD
        if bisect_left(lines[one.task_id], _place(one)) >= max(most, seen.missing.get(one.task_id, 0)):
            far[one.id] = slots
    for one in page:
        if one.id in far:
            later.append((one, why_later(one, far[one.id])))
        else:
            near.append(one)
    return near, later


def why_later(one: Pending, slots: int) -> str:
    """Why an instance waits for its turn."""
    reason = one.reason if one.attempt > 0 else None
    return reason or overlap.in_turn(slots)


def _place(one: Pending | Standing) -> tuple[str, int]:
    return (str(one.due_at), one.id)  # SQL may write any date
