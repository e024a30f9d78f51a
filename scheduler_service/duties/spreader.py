"""Spreading: an instance of a task that is spread runs as its shards, and ends when they have ended."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.fitting import needed
from rota.scheduler_service.fleet import FleetCache, FleetSnapshot
from rota.scheduler_service.gathering import gather, stop_shards
from rota.scheduler_service.leasing import lease_new
from rota.scheduler_service.notices import of_instance
from rota.scheduler_service.params import with_lists
from rota.scheduler_service.placing import why_never
from rota.scheduler_service.waiting_parents import WaitingParents
from rota.shared.database.later import Unexpected
from rota.shared.database.refusals import sentence
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, RotaError, UnknownType
from rota.shared.domain.spreading import PARAM_BYTES, check_size, workers_of
from rota.shared.domain.states import REASON_LIMIT, TaskStatus
from rota.shared.loop import sparing_rest
from rota.shared.settings import Settings
from rota.shared.store import (
    assignments,
    chain_runs,
    fires,
    locks,
    overlap,
    params,
    pauses,
    run_numbers,
    settling,
    spreading,
)
from rota.shared.store.overlap import REPORTED_WITHIN, SkipCandidate
from rota.shared.store.pending import Pending
from rota.shared.store.run_numbers import FireKey
from rota.shared.store.transitions import canceling, giving
from rota.shared.store.transitions import spreading as moves
from rota.shared.store.transitions.spreading import Parent
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""While something waits for its slot, or runs as its shards, it looks so often."""

SHARE = 0.1
"""The part of its time that it spends on looking, where that takes long."""

PAGE = 200
"""It looks at so many at once."""

SHARDS_IN_WRITE = 2_000
"""One transaction inserts so many shards, or those of one instance; fewer where their params are large."""


Able = tuple[Sequence[int | None], int]
"""For each shard the only worker that may run it, or None; and how many shards there are."""


class NoWorker(RotaError):
    """No live worker can run an instance now."""


@dataclass(slots=True)
class Decided:
    """What is to be done with the instances of a page."""

    parents: list[Parent] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    waiting: dict[int, str] = field(default_factory=dict)
    """Why these wait."""

    unfit: set[int] = field(default_factory=set)
    """Of those that wait: no live worker can run them."""

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
        self._waiting = WaitingParents(database.clock)
        self._skip_candidates: dict[int, SkipCandidate] = {}
        self._looked_at = database.clock.monotonic()
        """When a look at what is due last began, or had read what it decides by."""

        self.wake: Callable[[], None] = lambda: None
        """Called when something is noted."""

    def note(self, found: Iterable[Pending]) -> None:
        """Note instances that wait, due or not. The assigner calls it."""
        if self._waiting.note(found):
            self.wake()

    def step(self) -> float:
        """One look; returns the seconds to rest."""
        clock = self._database.clock
        began = clock.monotonic()
        some_run = gather(self._database, self._surprises)
        some_wait = self._spread_due()
        rest = LOOK_SECONDS if some_wait or some_run else self._settings.tick_period
        now = clock.now()
        if (following := self._waiting.next_due(now)) is not None:
            rest = min(rest, (following - now).total_seconds())
        return max(rest, sparing_rest(clock.monotonic() - began, SHARE))

    def _spread_due(self) -> bool:
        """Spread what is due, page by page; returns whether some of it waits for its slot."""
        now = self._database.clock.now()
        self._look_again()
        due = self._waiting.due(now)
        waits = [self._spread_page(due[at : at + PAGE], now) for at in range(0, len(due), PAGE)]
        return any(waits)

    def _look_again(self) -> None:
        passed, self._looked_at = self._database.clock.monotonic() - self._looked_at, self._database.clock.monotonic()
        self._skip_candidates = overlap.at_the_next_look(self._skip_candidates, passed)

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
        sizes = {one.id: one.param_size or 0 for one in page}
        done = decided.refused.keys() | self._spread({one.id: one.task_id for one in page}, sizes, decided.parents)
        self._forget(done)
        self._waiting.put_off(decided.unfit - decided.refused.keys())
        return len(done | decided.unfit) < len(page)

    def _forget(self, ids: Collection[int]) -> None:
        self._waiting.forget(ids)
        for number in ids:
            self._skip_candidates.pop(number, None)

    def _decide(self, page: Sequence[Pending], snapshot: FleetSnapshot, now: datetime) -> Decided:
        decided = Decided()
        able: dict[int, Able] = {}
        for one in page:
            try:
                able[one.id] = _able(one, snapshot)
            except NoWorker as error:
                decided.unfit.add(one.id)
                decided.waiting[one.id] = str(error)[:REASON_LIMIT]
            except RotaError as error:
                decided.refused[one.id] = str(error)[:REASON_LIMIT]
            except Exception as error:  # noqa: BLE001 - perhaps a fault of Rota's: one row must not stop the others
                words = self._surprises.say(f"task type {one.task_type}", error)
                decided.unfit.add(one.id)
                decided.waiting[one.id] = f"the instance could not be spread: {words}"[:REASON_LIMIT]
        wanted = [one for one in page if one.id in able]
        slots, numbers = self._database.read(lambda c: self._slots(c, wanted, decided, now))
        for one in (one for one in wanted if one.id in slots):
            number = one.run_number if one.run_number is not None else numbers.get(one.fire, 0) + 1
            numbers[one.fire] = max(number, numbers.get(one.fire, 0))
            workers, total = able[one.id]
            decided.parents.append(Parent(one.id, one.attempt, slots[one.id], number, workers, total))
        return decided

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
        self._look_again()
        for one in settling.with_holders(connection, judged.waiting, self._skip_candidates):
            overlap.note_candidate(self._skip_candidates, one, self._database.clock.now() + REPORTED_WITHIN)
        decided.refused |= judged.skipped
        decided.replaced |= judged.replaced
        waiting = {one.id for one in judged.waiting}
        decided.waiting |= {p.id: overlap.in_turn(p.slots) for p in wanted if p.id in waiting and p.slots is not None}
        numbers = run_numbers.last_of(connection, {p.fire for p in wanted if p.run_number is None})
        return slots, numbers

    def _write(self, page: Sequence[Pending], decided: Decided) -> None:
        """Write which are refused, why others wait, and which runs are to stop for others."""
        for number in self._not_stopped([one.id for one in page if one.has_shards and one.id in decided.refused]):
            del decided.refused[number]
        said = {one.id: one.reason for one in page}
        unsaid = {number: why for number, why in decided.waiting.items() if said.get(number) != why}
        changed = unsaid.keys() | decided.refused.keys()
        if not changed and not decided.replaced:
            return

        def write(connection: Connection, some: Sequence[int]) -> None:
            free = giving.free_pending(connection, some)
            giving.explain(connection, {i: why for i, why in unsaid.items() if i in free})
            canceling.refuse(connection, {i: why for i, why in decided.refused.items() if i in free})

        for number in self._database.write_by_halves(sorted(changed), write, self._not_written, of_instance):
            decided.refused.pop(number, None)
        if decided.replaced:
            self._database.write(lambda c: canceling.request_cancel_of_free(c, decided.replaced, settling.REPLACED))

    def _not_written(self, instance_id: int, error: DBAPIError) -> None:
        self._surprises.say(of_instance(instance_id), error)

    def _not_stopped(self, put_back: Sequence[int]) -> Sequence[int]:
        """Stop the shards of these instances, which SQL has put back and which are refused.

        Returns those of which somebody has locked the row of a shard: they are refused by a later look.
        """
        stopped = stop_shards(self._database, put_back, self._surprises) if put_back else ()
        return self._database.read(lambda c: spreading.unstopped(c, stopped)).parents if stopped else ()

    def _spread(
        self, tasks: Mapping[int, int], param_sizes: Mapping[int, int], parents: Sequence[Parent]
    ) -> Collection[int]:
        """Let these run as their shards; returns those that wait no more. The others, which somebody has locked or
        leased, are for the next look.

        ``tasks`` and ``param_sizes``: the task of each, and the bytes of its param, by its id.
        """

        def size(one: Parent) -> int:
            return max(PARAM_BYTES // SHARDS_IN_WRITE, param_sizes[one.id]) * len(one.workers)

        for some in params.in_portions(parents, size, PARAM_BYTES):
            self._spread_some({one.id: tasks[one.id] for one in some}, some)
        tried = [one.id for one in parents]
        latest = self._database.clock.now() + timedelta(days=1)
        left = {one.id for one in self._database.read(lambda c: assignments.pending_of(c, tried, latest))}
        done = set(tried) - left
        if done:
            self._written()
        return done

    def _spread_some(self, tasks: Mapping[int, int], parents: Sequence[Parent]) -> None:
        token, lease, wanted = locks.new_token(), self._settings.lock_lease_seconds, set(tasks.values())
        got = lease_new(self._database, token, wanted, lease)

        def write(connection: Connection, mine: Sequence[Parent]) -> None:
            _write_parents(connection, token, {tasks[one.id] for one in mine}, mine)

        with suppress(Unexpected):  # another scheduler has taken a lease over: it spreads them
            mine = [one for one in parents if tasks[one.id] in got]
            held_up = self._database.write_by_halves(mine, write, self._refuse, lambda one: of_instance(one.id))
            if held_up:  # the next fires of their tasks need not wait for that lock, too
                self._database.write(lambda c: locks.drop(c, token, {tasks[one.id] for one in held_up}))

    def _refuse(self, parent: Parent, error: DBAPIError) -> None:
        reason = f"the database refuses the instance: {sentence(error)}"[:REASON_LIMIT]
        log.warning("spreader: instance %d: %s", parent.id, reason)

        def refuse(connection: Connection, instance_ids: Sequence[int]) -> None:
            canceling.refuse(connection, dict.fromkeys(instance_ids, reason))

        self._database.write_by_halves([parent.id], refuse, self._not_written, of_instance)


def _able(one: Pending, snapshot: FleetSnapshot) -> Able:
    """For each shard of an instance the only worker that may run it, or None, and how many there are.

    What has its shards already gets no others. Raises NoWorker if no live worker fits, and RotaError if it can never
    run.
    """
    if (never := why_never(one)) is not None or (never := _why_unwanted(one)) is not None:
        raise InvalidInput(never)
    if one.has_shards:
        return (), max(1, one.shard_total or 0)
    try:
        _, needs = needed(one, one.task_type or "", snapshot, None)
    except UnknownType as error:
        raise NoWorker(str(error)) from error
    workers = workers_of(one.spread or "", one.shards, snapshot.of_pool(one.pool).fitting(needs))
    if not workers:
        raise NoWorker(snapshot.of_pool(one.pool).why_not(needs))
    check_size(one.param_size or 0, len(workers))
    return workers, len(workers)


def _why_unwanted(one: Pending) -> str | None:
    return None if one.gmt_cancel_requested is None else "canceled before it started"


def _write_parents(connection: Connection, token: str, tasks: set[int], parents: Sequence[Parent]) -> None:
    """Write in one transaction, which relies on ``token``'s holding the leases."""
    free = giving.free_pending(connection, [one.id for one in parents])
    mine = [one for one in parents if free.get(one.id) == one.attempt]
    locks.release(connection, token, tasks)
    fires.unpin(connection, [one.id for one in mine], attempt=0)
    moves.spread(connection, mine)
    chain_runs.mark_spread(connection, [one.id for one in mine])
