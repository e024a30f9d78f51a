"""Spreading: an instance of a task that is spread runs as its shards, and ends when they have ended."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.fitting import needed
from rota.scheduler_service.fleet import FleetCache, FleetSnapshot
from rota.scheduler_service.params import with_lists
from rota.scheduler_service.placing import why_never
from rota.shared.database.later import Unexpected, then_read
from rota.shared.database.transactions import Database, sentence
from rota.shared.domain.errors import RotaError, UnknownType
from rota.shared.domain.spreading import check_size, gathered, workers_of
from rota.shared.domain.states import REASON_LIMIT, InstanceStatus, TaskStatus
from rota.shared.settings import Settings
from rota.shared.store import assignments, chain_runs, fires, locks, overlap, pauses, run_numbers, settling, spreading
from rota.shared.store.assignments import Pending
from rota.shared.store.overlap import REPORTED_WITHIN, SkipCandidate
from rota.shared.store.run_numbers import FireKey
from rota.shared.store.spreading import Running
from rota.shared.store.transitions import canceling, giving
from rota.shared.store.transitions import spreading as moves
from rota.shared.store.transitions.spreading import Parent
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""While something waits for its slot, or runs as its shards, it looks so often."""

SHARE = 0.1
"""The part of its time that it spends on looking, where that takes long."""

MOST_NOTED = 10_000
"""So many that wait are kept in mind. The assigner sees the others again."""

PAGE = 200
OF_ONE_TASK = 20
"""It looks at so many at once, and at so many of one task at most: the others of that task wait behind these."""

SHARDS_IN_WRITE = 2_000
"""One transaction inserts so many shards, or those of one instance."""


@dataclass(slots=True)
class Decided:
    """What is to be done with the instances of a page."""

    parents: list[Parent] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    waiting: dict[int, str] = field(default_factory=dict)
    """Why these wait, as far as it is not written already."""

    replaced: set[int] = field(default_factory=set)


class Spreader:
    """The duty: let instances run as their shards when they are due and have their overlap slots; end those whose
    shards have ended.

    The assigner tells it which wait. An instance and its shards are written in one transaction; the instance is
    ``running`` then, on no worker, and holds the overlap slot for all of them. All is decided by the rows, so another
    scheduler goes on where this one was killed.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        fleet_cache: FleetCache,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """``written`` is called when shards were written: they are due at once."""
        self._database = database
        self._settings = settings
        self._fleet_cache = fleet_cache
        self._written = written
        self._surprises = Surprises("spreader")
        self._lock = threading.Lock()
        self._noted: dict[int, Pending] = {}
        self._skip_candidates: dict[int, SkipCandidate] = {}

        self.wake: Callable[[], None] = lambda: None
        """Called when something is noted."""

    def note(self, found: Iterable[Pending]) -> None:
        """Note instances that wait, due or not. The assigner calls it."""
        with self._lock:
            new = [one for one in found if one.id not in self._noted]
            room = MOST_NOTED - len(self._noted)
            self._noted.update((one.id, one) for one in new[:room])
        if new and room > 0:
            self.wake()

    def step(self) -> float:
        """One look; returns the seconds to rest."""
        clock = self._database.clock
        began = clock.monotonic()
        some_run = self._gather()
        some_wait = self._spread_due()
        with self._lock:
            following = min((one.due_at for one in self._noted.values()), default=None)
        rest = LOOK_SECONDS if some_wait or some_run else self._settings.tick_period
        if following is not None and not some_wait:
            rest = min(rest, max(0.0, (following - clock.now()).total_seconds()))
        return rest if rest == 0 else max(rest, (clock.monotonic() - began) * (1 / SHARE - 1))

    # Spreading

    def _spread_due(self) -> bool:
        """Spread what is due, page by page; returns whether some of it waits."""
        now = self._database.clock.now()
        with self._lock:
            due = sorted((one.due_at, one.id, one.task_id) for one in self._noted.values() if one.due_at <= now)
        numbers: Counter[int] = Counter()
        first: list[int] = []
        for _, number, task in due:
            numbers[task] += 1
            if numbers[task] <= OF_ONE_TASK:
                first.append(number)
        waits = [self._spread_page(first[at : at + PAGE], now) for at in range(0, len(first), PAGE)]
        return any(waits)

    def _spread_page(self, ids: Collection[int], now: datetime) -> bool:
        snapshot = self._fleet_cache.current()
        page = self._database.read(lambda c: assignments.pending_of(c, ids, now + timedelta(seconds=1)))
        page = [one for one in page if one.is_to_spread]
        self._forget(set(ids) - {one.id for one in page})
        if not page:
            return False
        page = list(with_lists(self._database, page, snapshot.catalog, ()))
        decided = self._decide(page, snapshot, now)
        self._write(page, decided)
        done = decided.refused.keys() | self._spread(page, decided.parents)
        self._forget(done)
        return len(done) < len(page)

    def _forget(self, ids: Collection[int]) -> None:
        with self._lock:
            for number in ids:
                self._noted.pop(number, None)
                self._skip_candidates.pop(number, None)

    def _decide(self, page: Sequence[Pending], snapshot: FleetSnapshot, now: datetime) -> Decided:
        decided = Decided()
        able: dict[int, list[int | None]] = {}
        for one in page:
            try:
                if (never := why_never(one)) is not None:
                    decided.refused[one.id] = never
                else:
                    able[one.id] = self._workers(one, snapshot)
            except UnknownType as error:
                decided.waiting[one.id] = str(error)[:REASON_LIMIT]
            except RotaError as error:
                decided.refused[one.id] = str(error)[:REASON_LIMIT]
            except Exception as error:  # noqa: BLE001 - perhaps a fault of Rota's: one row must not stop the others
                words = self._surprises.say(f"task type {one.task_type}", error)
                decided.waiting[one.id] = f"the instance could not be spread: {words}"[:REASON_LIMIT]
        wanted = [one for one in page if able.get(one.id)]
        decided.waiting |= {one.id: self._nobody(one, snapshot) for one in page if able.get(one.id) == []}
        slots, numbers = self._database.read(lambda c: self._slots(c, wanted, decided, now))
        for one in wanted:
            if one.id in slots:
                number = one.run_number if one.run_number is not None else numbers.get(one.fire, 0) + 1
                numbers[one.fire] = max(number, numbers.get(one.fire, 0))
                decided.parents.append(Parent(one.id, one.attempt, slots[one.id], number, able[one.id]))
        return decided

    def _workers(self, one: Pending, snapshot: FleetSnapshot) -> list[int | None]:
        """For each shard the only worker that may run it, or None; empty if no live worker fits, and one must."""
        _, needs = needed(one, one.task_type or "", snapshot, None)
        workers = workers_of(one.spread or "", one.shards, snapshot.fleet.fitting(needs))
        check_size(one.param_size or 0, len(workers))
        return workers

    def _nobody(self, one: Pending, snapshot: FleetSnapshot) -> str:
        _, needs = needed(one, one.task_type or "", snapshot, None)
        return snapshot.fleet.why_not(needs)

    def _slots(
        self, connection: Connection, wanted: Sequence[Pending], decided: Decided, now: datetime
    ) -> tuple[dict[int, int | None], dict[FireKey, int]]:
        """The overlap slots of those that may run now, and the run numbers of their fires; why others do not run."""
        if pauses.current(connection):
            paused = {one.id for one in wanted if one.is_planned}
            decided.waiting |= dict.fromkeys(paused, pauses.REASON)
            wanted = [one for one in wanted if one.id not in paused]
        off = {p.id: overlap.OFF for p in wanted if p.is_planned and p.task_status == TaskStatus.OFF}
        gone = overlap.overrun(connection, wanted, self._skip_candidates)
        decided.refused |= off | gone | overlap.superseded(connection, wanted, now)
        wanted = [one for one in wanted if one.id not in decided.refused]
        slots = dict(overlap.free_slots(connection, wanted)) if wanted else {}
        judged = settling.judge(connection, [p for p in wanted if p.id not in slots], now, self._skip_candidates)
        for one in judged.waiting:
            if one.holder_id is not None:
                self._skip_candidates.setdefault(one.id, SkipCandidate(one.holder_id, now + REPORTED_WITHIN))
        decided.refused |= judged.skipped
        decided.replaced |= judged.replaced
        waiting = {one.id for one in judged.waiting}
        decided.waiting |= {p.id: overlap.in_turn(p.slots) for p in wanted if p.id in waiting and p.slots is not None}
        numbers = run_numbers.last_of(connection, {p.fire for p in wanted if p.run_number is None})
        return slots, numbers

    def _write(self, page: Sequence[Pending], decided: Decided) -> None:
        """Write which are refused, why others wait, and which runs are to stop for others."""
        said = {one.id: one.reason for one in page}
        unsaid = {number: why for number, why in decided.waiting.items() if said.get(number) != why}
        changed = unsaid.keys() | decided.refused.keys()
        if not changed and not decided.replaced:
            return

        def write(connection: Connection) -> None:
            free = giving.free_pending(connection, changed)
            giving.explain(connection, {i: why for i, why in unsaid.items() if i in free})
            canceling.refuse(connection, {i: why for i, why in decided.refused.items() if i in free})
            canceling.request_cancel_of_free(connection, decided.replaced, settling.REPLACED)

        self._database.write(write)

    def _spread(self, page: Sequence[Pending], parents: Sequence[Parent]) -> set[int]:
        """Let these run as their shards; returns those that were tried."""
        tasks = {one.id: one.task_id for one in page}
        tried: set[int] = set()
        for some in _portions(parents):
            token, lease = locks.new_token(), self._settings.lock_lease_seconds
            wanted = {tasks[one.id] for one in some}
            got = self._database.write(
                then_read(
                    partial(locks.take_new, token=token, task_ids=wanted, lease_seconds=lease),
                    partial(locks.held, token=token, task_ids=wanted),
                )
            )
            mine = [one for one in some if tasks[one.id] in got]
            if not mine:
                continue

            def write(connection: Connection, mine: Sequence[Parent], token: str = token) -> None:
                _write_parents(connection, token, {tasks[one.id] for one in mine}, mine)

            with suppress(Unexpected):  # another scheduler has taken a lease over: it spreads them
                self._database.write_by_halves(mine, write, self._refuse)
                tried |= {one.id for one in mine}
        if tried:
            self._written()
        return tried

    def _refuse(self, parent: Parent, error: DBAPIError) -> None:
        reason = f"the database refuses the instance: {sentence(error)}"[:REASON_LIMIT]
        log.warning("spreader: instance %d: %s", parent.id, reason)
        self._database.write(lambda c: canceling.refuse(c, {parent.id: reason}))

    # Gathering

    def _gather(self) -> bool:
        """End those whose shards have ended; returns whether others run on."""
        after, some_run = 0, False
        while True:
            page = self._database.read(partial(spreading.running, after_id=after, limit=PAGE))
            open_ones = [one for one in page if one.is_open]
            some_run |= bool(open_ones)
            if to_stop := [one for one in open_ones if one.gmt_cancel_requested is not None]:
                self._stop(to_stop)
            if done := [one for one in page if not one.is_open]:
                self._end(done)
            if len(page) < PAGE:
                return some_run
            after = page[-1].id

    def _stop(self, parents: Sequence[Running]) -> None:
        """Cancel the shards of these, or ask their workers to stop them."""
        shards = self._database.read(lambda c: spreading.shards_of(c, [one.id for one in parents]))
        for parent in parents:
            own = shards[parent.id]
            running = [one.id for one in own if one.status == InstanceStatus.RUNNING]
            others = [one.id for one in own if one.status in (InstanceStatus.PENDING, InstanceStatus.ASSIGNED)]
            why = f"its parent, instance {parent.id}, is canceled"
            self._database.write(partial(_cancel_shards, running=running, others=others, why=why))

    def _end(self, parents: Sequence[Running]) -> None:
        shards = self._database.read(lambda c: spreading.shards_of(c, [one.id for one in parents]))
        ends = [
            (
                one.id,
                one.attempt,
                gathered(
                    shards[one.id],
                    one.total,
                    is_cancel_requested=one.gmt_cancel_requested is not None,
                    reason=one.reason,
                ),
            )
            for one in parents
        ]

        def refused(end: moves.End, error: DBAPIError) -> None:
            self._surprises.say(f"the end of instance {end[0]}", error)

        self._database.write_by_halves(ends, moves.end, refused)


def _write_parents(connection: Connection, token: str, tasks: set[int], parents: Sequence[Parent]) -> None:
    """Write in one transaction, which relies on ``token``'s holding the leases."""
    free = giving.free_pending(connection, [one.id for one in parents])
    mine = [one for one in parents if free.get(one.id) == one.attempt]
    locks.release(connection, token, tasks)
    fires.unpin(connection, [one.id for one in mine], attempt=0)
    moves.spread(connection, mine)
    chain_runs.mark_spread(connection, [one.id for one in mine])


def _cancel_shards(connection: Connection, running: Collection[int], others: Collection[int], why: str) -> None:
    moves.cancel(connection, others, why)
    canceling.request_cancel_of_free(connection, running, why)


def _portions(parents: Sequence[Parent]) -> Iterable[list[Parent]]:
    portion: list[Parent] = []
    size = 0
    for one in parents:
        if portion and size + len(one.workers) > SHARDS_IN_WRITE:
            yield portion
            portion, size = [], 0
        portion.append(one)
        size += len(one.workers)
    if portion:
        yield portion
