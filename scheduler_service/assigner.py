"""Assigning: from pending instances that are due to workers. What SQL inserted, retries, replays and runs by hand."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from scheduler_service.leases import new_token
from scheduler_service.notices import Notices
from scheduler_service.placement import FULL, needs_of
from scheduler_service.world import WORLD_SECONDS, World, Worlds
from shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from shared.domain.errors import InvalidInput, UnknownType
from shared.domain.jsontext import json_text
from shared.domain.nodes import Catalog, PlannedNode
from shared.settings import Settings
from shared.store import assignments, fires, locks, overlap
from shared.store.assignments import Cursor, Pending
from shared.store.database import Database, is_refusal, sentence

log = logging.getLogger(__name__)

REASON_LIMIT = 1000
"""Characters of a reason that are kept."""

ROWS = 10_000
"""How many instances one pass looks at, in pages: the first, and others further on."""

AHEAD = 20
"""How many instances that must wait for each other are given out beyond the slots of their task."""

Placed = tuple[Pending, int, list[PlannedNode], str | None]
"""An instance, its worker, its nodes, and the param to pin as JSON (None: it has its own)."""


@dataclass(slots=True)
class Pass:
    """How many a pass saw, and settled, that is gave to a worker or canceled; whether some wait for room, and whether
    it was cut off by how many it may look at."""

    seen: int = 0
    settled: int = 0
    crowded: bool = False
    cut: bool = False


class Assigner:
    """The duty: page through what is pending, place what fits, say why the rest waits.

    Instances that no worker fits stay where they are in the order, as do those for which there is no room. So that they
    hold up others little, each pass begins with the first, and after a page of which some must wait it goes on behind
    the last that were seen to wait: the cursor, which in a long backlog moves on from pass to pass.
    """

    def __init__(self, database: Database, settings: Settings, worlds: Worlds | None = None) -> None:
        self._database = database
        self._settings = settings
        self._worlds = worlds or Worlds(database)
        self._notices = Notices("assigner")
        self._cursor: Cursor | None = None

    def step(self) -> float:
        """One pass; returns the seconds to rest: until the next tick by the database's clock; where workers are full
        and room is being made, until they are counted again, a period at most; 0 if most was settled and there is more.
        """
        limit = self._settings.batch
        horizon = self._database.clock.now() + timedelta(seconds=self._settings.lookahead_seconds)
        due, orphaned = self._database.read(lambda c: assignments.look(c, horizon))
        adopted = self._database.write(lambda c: assignments.adopt(c, limit)) if orphaned else 0
        done = self._pass(horizon) if due or adopted else self._end(Pass())
        if adopted >= limit or (done.cut and 2 * done.settled >= done.seen):
            return 0
        period = self._settings.tick_period
        if done.crowded and done.settled:
            return min(max(WORLD_SECONDS, self._worlds.seconds_good()), period)
        return seconds_to_next(self._database.clock.now(), period, TICK_PHASE_SECONDS)

    def _pass(self, horizon: datetime) -> Pass:
        """Page through what is pending. While no worker has room one page behind the first is enough: there are but
        reasons to be told."""
        limit = self._settings.batch
        done = Pass()
        after: Cursor | None = None
        some_wait = False
        for number in range(max(2, ROWS // limit)):
            page = self._database.read(partial(assignments.pending, horizon=horizon, limit=limit, after=after))
            settled = self._assign(page, done) if page else 0
            if len(page) < limit:
                return self._end(done)
            after = page[-1].cursor
            if some_wait:
                self._cursor = after
            elif settled < len(page):
                some_wait = True
                after = self._cursor = self._cursor or after
            if number > 0 and not self._worlds.current().fleet.has_room():
                done.crowded = True
                return done
        done.cut = True
        return done

    def _end(self, done: Pass) -> Pass:
        """This pass came to the end of what is pending."""
        self._cursor = None
        self._notices.looked_at_all()
        return done

    def _assign(self, page: Sequence[Pending], done: Pass) -> int:
        """Place what fits; returns how many of the page are settled."""
        bounded = {p.task_id: p.slots for p in page if p.slots is not None}
        again = [p.id for p in page if p.attempt > 0 or p.reason is not None]  # whatever comes back has a reason
        full, pinned = self._database.read(lambda c: (overlap.full(c, bounded), fires.pinned(c, again)))
        near, later = _in_turn(page, full)
        placed, waiting, refused = _place(near, self._worlds.current(), pinned, self._database.clock.now())
        self._notices.complain(f"task type {p.task_type}: {reason}" for p, reason in waiting)
        unexplained = {p.id: reason for p, reason in (*waiting, *later) if p.reason != reason}
        if unexplained or refused:
            self._database.write(lambda c: _explain(c, unexplained, refused))
        settled = len(refused) + (self._give(placed) if placed else 0)
        done.seen += len(page)
        done.settled += settled
        done.crowded |= any(reason == FULL for _, reason in waiting)
        return settled

    def _give(self, placed: Sequence[Placed]) -> int:
        """Returns how many it could: those of tasks that another scheduler has leased are left to it."""
        token = new_token()
        task_ids = {p.task_id for p, *_ in placed}
        lease = self._settings.lock_lease_seconds
        got = self._database.write(lambda c: locks.acquire(c, token, task_ids, lease))
        if got:
            self._write(token, got, placed)
        return sum(p.task_id in got for p, *_ in placed)

    def _write(self, token: str, got: set[int], placed: Sequence[Placed]) -> None:
        """Write a batch; one that the database refuses is halved until the instance at fault is alone, and canceled."""
        try:
            self._database.write(lambda c: _write(c, token, got, placed))
        except DBAPIError as error:
            if not is_refusal(error):
                raise
            if len(placed) > 1:
                middle = len(placed) // 2
                self._write(token, got, placed[:middle])
                self._write(token, got, placed[middle:])
                return
            reason = f"the database refuses it: {sentence(error)}"[:REASON_LIMIT]
            log.warning("assigner: instance %d: %s", placed[0][0].id, reason)
            self._database.write(lambda c: assignments.refuse(c, {placed[0][0].id: reason}))


def _in_turn(page: Iterable[Pending], full: Collection[int]) -> tuple[list[Pending], list[tuple[Pending, str]]]:
    """Those whose turn may be near: none of a task whose slots are all taken, else a few more than it has slots.

    The rest would only fill the workers' queues, where others could run, and wait there. They are returned with the
    reason, but those that have begun keep theirs: why they are to run again.
    """
    near: list[Pending] = []
    later: list[tuple[Pending, str]] = []
    numbers: Counter[int] = Counter()
    for one in page:
        slots = one.slots
        if slots is not None:
            numbers[one.task_id] += 1
            if one.task_id in full or numbers[one.task_id] > slots + AHEAD:
                reason = one.reason if one.attempt > 0 else None
                later.append((one, reason or overlap.in_turn(slots)))
                continue
        near.append(one)
    return near, later


def _place(
    page: Iterable[Pending], world: World, pinned: Mapping[int, list[PlannedNode]], now: datetime
) -> tuple[list[Placed], list[tuple[Pending, str]], dict[int, str]]:
    placed: list[Placed] = []
    waiting: list[tuple[Pending, str]] = []
    refused: dict[int, str] = {}
    for one in page:
        if one.task_type is None:
            refused[one.id] = f"there is no task {one.task_id}"
            continue
        if not isinstance(one.schedule_datetime, datetime) or not isinstance(one.due_at, datetime):
            refused[one.id] = f"{one.schedule_datetime} is no date: MariaDB takes a zero day or month from SQL"
            continue
        if one.task_deleted:
            refused[one.id] = "its task was deleted"
            continue
        try:
            nodes = pinned.get(one.id) or _nodes(one, one.task_type, world.catalog)
            param = json_text(one.task_param) if one.param is None and one.task_param is not None else None
            needs = needs_of(nodes, one.required_labels or {})
            worker = world.fleet.choose(needs, avoid=one.lost_by, late=one.due_at <= now)
            if worker is None:
                waiting.append((one, world.fleet.why_not(needs)))
            else:
                placed.append((one, worker, nodes, param))
        except UnknownType as error:
            waiting.append((one, str(error)[:REASON_LIMIT]))
        except InvalidInput as error:
            refused[one.id] = str(error)[:REASON_LIMIT]
        except Exception as error:  # noqa: BLE001 - one poisonous row must not stop the others
            refused[one.id] = f"{type(error).__name__}: {error}"[:REASON_LIMIT]
    return placed, waiting, refused


def _nodes(one: Pending, task_type: str, catalog: Catalog) -> list[PlannedNode]:
    """Its nodes as they are to be pinned; a param that cannot be written is refused here, alone.

    Raises InvalidInput.
    """
    nodes = catalog.nodes_of(task_type, one.task_param if one.param is None else one.param)
    for node in nodes:
        if node.param is not None:
            json_text(node.param)
    return nodes


def _explain(connection: Connection, unexplained: dict[int, str], refused: dict[int, str]) -> None:
    assignments.explain(connection, unexplained)
    assignments.refuse(connection, refused)


def _write(connection: Connection, token: str, got: set[int], placed: Sequence[Placed]) -> None:
    held = locks.release(connection, token, got & {p.task_id for p, *_ in placed})
    mine = [one for one in placed if one[0].task_id in held]
    numbers = assignments.last_run_numbers(connection, {p.fire for p, *_ in mine if p.run_number is None})
    rows = []
    for p, worker, _, param in mine:
        number = p.run_number
        if number is None:
            number = numbers[p.fire] = numbers.get(p.fire, 0) + 1
        rows.append((p.id, worker, number, param))
    assignments.give(connection, rows)
    pinned = fires.pinned(connection, [p.id for p, *_ in mine])
    fires.pin_nodes(connection, [(p.id, node) for p, _, nodes, _ in mine if p.id not in pinned for node in nodes])
