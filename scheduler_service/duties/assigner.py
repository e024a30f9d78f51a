"""Assigning: give pending instances to workers: retries, replays, ad-hoc runs, and rows that SQL inserted."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service import adopting
from rota.scheduler_service.behind import behind_a_flood, note_floods
from rota.scheduler_service.fitting import binding, fits
from rota.scheduler_service.fleet import SNAPSHOT_SECONDS, FleetCache
from rota.scheduler_service.full_lines import FullLines
from rota.scheduler_service.giving import Placed, write
from rota.scheduler_service.leasing import lease_new
from rota.scheduler_service.limit_places import LimitPlaces, hand_on, unused_places
from rota.scheduler_service.notices import Notices, of_instance
from rota.scheduler_service.out_of_reach import OutOfReach
from rota.scheduler_service.paging import FarBack, Page, Pass
from rota.scheduler_service.params import portions, with_lists, with_params
from rota.scheduler_service.parting import is_new, stranded, to_spread, unwanted_of
from rota.scheduler_service.placement import FULL, NOBODY
from rota.scheduler_service.placing import place
from rota.scheduler_service.stretches import LOOK_SECONDS, Line, Stretches, in_turn
from rota.scheduler_service.urgent import wake_for
from rota.shared.clock import TICK_PHASE_SECONDS, seconds_to_next
from rota.shared.database.later import Unexpected, then_read
from rota.shared.database.transactions import Database
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.waiting import superseded
from rota.shared.settings import Settings
from rota.shared.store import assignments, chain_runs, fires, locks, overlap, pauses
from rota.shared.store.pending import Cursor, Pending
from rota.shared.store.transitions import canceling, giving
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

ROWS = 10_000
"""One pass looks at most at so many instances, page by page: the first page, then pages further on."""


class Assigner:
    """The duty: page through the pending instances, place those that fit, and write why the others wait.

    An instance for which there is no worker or no room keeps its place in the order. So that it holds up others little,
    each pass looks at the first page, and when some of that page must wait, it goes on at the cursor: behind the last
    page that an earlier pass saw waiting. In a long backlog the cursor moves on from pass to pass.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        fleet_cache: FleetCache | None = None,
        requested: Callable[[], None] = lambda: None,
        to_spread: Callable[[Iterable[Pending]], None] = lambda _: None,
    ) -> None:
        """``requested`` is called when a program has requested something; ``to_spread`` with what waits for shards."""
        self._database = database
        self._requested = requested
        self._to_spread = to_spread
        self._settings = settings
        self._fleet_cache = fleet_cache or FleetCache(database)
        self._notices = Notices("assigner")
        self._out_of_reach = OutOfReach()
        self._limits = LimitPlaces(database)
        self._stretches = Stretches(database)
        self._far_back = FarBack()
        self._fleet_cache.aside = lambda: self._stretches.aside
        self._pass_at = float("-inf")
        """When the next pass is due, in seconds of the clock's ``monotonic``."""

        self.is_woken = False
        """Set it so that the next step is a whole pass: there is urgent work."""

        self.is_crowded = False
        """Whether the last pass ended because workers are full."""

        self._surprises = Surprises("assigner")
        self._full_lines = FullLines(database, settings, self._surprises)
        self._cursor: Cursor | None = None
        self._is_paused = False
        """Whether all scheduling is paused: then new fires are given to no worker."""

        self._any_chain = True
        """Whether any task follows another."""

    def step(self) -> float:
        """One pass, or a look at the stretches that are worked off; returns the seconds to rest until the next."""
        now = self._database.clock.monotonic
        if self._stretches.quick and now() < self._pass_at and not self.is_woken:
            self._top_up()
            rest = max(0.0, self._pass_at - now())
        else:
            self.is_woken = False
            rest = self._whole_pass()
            self._pass_at = now() + rest
        return min(rest, LOOK_SECONDS) if self._stretches.quick else rest

    def _top_up(self) -> None:
        """Give more of the tasks whose stretches are worked off."""
        horizon = self._horizon()
        self._stretches.look()
        for task, most in self._stretches.worked_off().items():
            page = self._database.read(partial(assignments.pending_in_turn, task=task, horizon=horizon, limit=most))
            if page:
                self._assign(page, Pass())

    def _whole_pass(self) -> float:
        """One pass; returns the seconds to rest.

        0 if the pass settled most of what it saw and there is more. Until the loads are counted again, at most a
        period, where workers are full but room is being made. Else until the next tick by the database's clock.
        """
        limit = self._settings.batch
        horizon = self._horizon()
        seen = self._database.read(lambda c: assignments.look(c, horizon))
        if seen.requested:
            self._requested()
        adopted = adopting.adopt(self._database, limit, self._surprises) if seen.orphaned else 0
        self._is_paused = seen.is_paused
        self._any_chain = seen.any_chain
        if seen.any_bound and not seen.is_paused:
            self._full_lines.shorten()
        done = self._pass(horizon) if seen.due or adopted else self._end(Pass())
        if adopted >= limit or (done.cut and 2 * done.settled >= done.seen):
            return 0
        period = self._settings.tick_period
        self.is_crowded = done.crowded
        if done.crowded and done.settled:
            return min(max(SNAPSHOT_SECONDS, self._fleet_cache.seconds_good()), period)
        return seconds_to_next(self._database.clock.now(), period, TICK_PHASE_SECONDS)

    def _horizon(self, share: float = 1) -> datetime:
        """So far ahead it looks for work: until the end of the look-ahead, or of this share of it."""
        return self._database.clock.now() + timedelta(seconds=self._settings.lookahead_seconds * share)

    def _pass(self, horizon: datetime) -> Pass:
        """Page through what is pending.

        While no worker has room, the first page and one more are enough: there are only reasons to be written.
        """
        limit = self._settings.batch
        done = Pass()
        after: Cursor | None = None
        some_wait = False
        first = self._database.read(lambda c: assignments.pending(c, horizon, limit))
        self._far_back.begin(self._stretches.worked_off())
        for number in range(max(2, ROWS // limit)):
            page = Page.of(first) if after is None else self._far_back.page(self._database, horizon, limit, after)
            done.pass_over(page.passed)
            settled = self._assign(page.instances, done) if page.instances else 0
            if number == 0 and done.crowded:
                note_floods(self._fleet_cache.current(), first, limit)
            if page.length < limit:
                return self._end(done)
            after = page.cursor
            if some_wait:
                self._cursor = after
            elif settled < page.length:
                some_wait = True
                after = self._cursor = self._cursor or after
            if number > 0 and not self._fleet_cache.current().has_room(floods=True):
                done.crowded = True
                self._look_behind(first, horizon, done)
                return done
        self._look_behind(first, horizon, done)
        done.cut = True
        return done

    def _look_behind(self, first: Sequence[Pending], horizon: datetime, done: Pass) -> None:
        """Place what fell due behind a flood, which fills the first page."""
        if others := behind_a_flood(self._database, self._fleet_cache.current(), first, horizon):
            self._assign(others, done)

    def _end(self, done: Pass) -> Pass:
        """This pass came to the end of what is pending."""
        self._cursor = None
        self._notices.looked_at_all()
        self._out_of_reach.looked_at_all()
        return done

    def _assign(self, page: Sequence[Pending], done: Pass) -> int:
        """Place what fits; returns how many of the page are settled."""
        held = {p.id: pauses.REASON for p in page if self._is_paused and p.is_planned and p.attempt == 0}
        full, pinned, (lost, early) = self._database.read(partial(_facts, page=[p for p in page if p.id not in held]))
        held |= early
        kept_back = [(p, held[p.id]) for p in page if p.id in held]
        page = [p for p in page if p.id not in held]
        now = self._database.clock.now()
        snapshot = self._fleet_cache.current()
        page = with_lists(self._database, page, snapshot.catalog, pinned)
        bound = binding(page, snapshot, pinned)
        parents = to_spread(page, snapshot, bound)
        unwanted = unwanted_of(page, parents.keys(), pinned, now) | lost
        self._to_spread(p for p in parents.values() if p.id not in unwanted)
        wanted = [p for p in page if p.id not in unwanted and p.id not in parents]
        queued = (p for p in wanted if p.slots is not None or p.limit_name is not None)
        unfit = {p.id for p in queued if not fits(p, snapshot, bound.get(p.id))}
        self._stretches.look()
        near, later = in_turn(wanted, full, unfit, self._stretches.missing(wanted), done.lines)
        self._far_back.note(later)
        near, limited = self._limits.part(near, unfit)
        line = Line(self._stretches.holders(near, full), later, now)
        placed, waiting, refused = place(near, snapshot, bound, line, self._surprises)
        while limited and (unused := unused_places(near, {one.instance.id for one in placed} | unfit)):
            near, limited = hand_on(unused, limited)
            more, still, bad = place(near, snapshot, bound, line, self._surprises)
            placed, waiting, refused = placed + more, waiting + still, refused | bad
        done.lines.remember(wanted, unfit | refused.keys())
        refused |= unwanted | self._missed_in_turn(page, waiting, pinned, now)
        self._notices.complain(f"task type {p.task_type}: {reason}" for p, reason in waiting)
        said = self._say(page, unfit, [*waiting, *later, *limited, *kept_back], refused)
        self._limits.give([p for p, *_ in placed])
        self._stretches.give((p, worker) for p, worker, *_ in placed)
        settled = len(refused.keys() & said) + (self._give(placed) if placed else 0)
        done.seen += len(page)
        done.settled += settled
        done.crowded |= bool(limited) or any(reason == FULL for _, reason in waiting)
        return settled

    def _say(
        self,
        page: Sequence[Pending],
        unfit: Collection[int],
        waiting: Iterable[tuple[Pending, str]],
        refused: Mapping[int, str],
    ) -> set[int]:
        """Write who takes a place in the line of its task, who leaves it, why instances wait, and which are refused.

        Returns the instances of which it wrote something.
        """
        comers = {p.id for p in page if p.is_out_of_line and p.id not in unfit}
        leavers = {p.id for p in page if p.id in unfit and p.slots is not None and p.overlap_slot is not None}
        unexplained = {p.id: reason for p, reason in waiting if p.reason != reason}
        changed = comers | leavers | unexplained.keys() | refused.keys()
        written: set[int] = set()

        def write(connection: Connection, some: Sequence[int]) -> None:
            free = giving.free_pending(connection, some).keys()
            giving.line_up(connection, comers & free)
            giving.leave_line(connection, leavers & free)
            giving.explain(connection, {i: reason for i, reason in unexplained.items() if i in free})
            canceling.refuse(connection, {i: reason for i, reason in refused.items() if i in free})
            written.update(free)

        if changed:
            surprise = partial(adopting.note, self._surprises)
            held_up = self._database.write_by_halves(sorted(changed), write, surprise, of_instance)
            written.difference_update(held_up)
        return written

    def _missed_in_turn(
        self, page: Iterable[Pending], waiting: Iterable[tuple[Pending, str]], pinned: Collection[int], now: datetime
    ) -> dict[int, str]:
        """The fires of tasks with turns that were missed: they fell due while no live worker could run them."""
        unfit = [(p, reason) for p, reason in waiting if p.slots is not None and reason != FULL and is_new(p, pinned)]
        since = self._out_of_reach.note({p.task_id for p, _ in unfit}, now)
        if all(reason != NOBODY for _, reason in unfit):
            page = [p for p, _ in unfit]
        fires = (
            p.waiting_fire
            for p in page
            if p.task_id in since and is_new(p, pinned) and since[p.task_id] <= p.due_at <= now
        )
        return superseded(fires, now)

    def _give(self, placed: Sequence[Placed]) -> int:
        """Assign, in portions that are bounded in bytes; returns how many it gave or canceled.

        It cancels an instance whose param is no JSON for Python, or that the database refuses. Instances of tasks that
        another scheduler has leased are left to that scheduler, and rows that somebody has locked to a later pass.
        """
        snapshot = self._fleet_cache.current()
        settled = 0
        for portion in portions(placed):
            ready, refused = with_params(self._database, portion, snapshot.catalog)
            if refused:
                settled += len(self._say((), (), (), refused))
            if ready:
                given = self._give_portion(ready)
                settled += len(given)
                if snapshot.fleet.listens:
                    mine = [p for p in ready if p.instance.id in given]
                    wake_for(mine, self._stretches.were_dry, snapshot, self._horizon(0.5))
        return settled

    def _give_portion(self, placed: Sequence[Placed]) -> set[int]:
        token = locks.new_token()
        task_ids = {p.task_id for p, *_ in placed}
        lease = self._settings.lock_lease_seconds
        got = self._database.write(
            then_read(lambda c: locks.take(c, token, task_ids, lease), lambda c: locks.held(c, token, task_ids))
        )
        if new := task_ids - got:
            got |= lease_new(self._database, token, new, lease)
        given: set[int] = set()

        def give(connection: Connection, some: Sequence[Placed], *, at_once: bool) -> None:
            mine = write(connection, token, got, some, at_once=at_once)
            if self._any_chain:
                chain_runs.mark_given(connection, mine)
            given.update(mine)

        def refused(one: Placed, error: DBAPIError) -> None:
            adopting.refuse(self._database, one.instance.id, error, self._surprises)

        def give_all(*, at_once: bool) -> None:
            held_up = self._database.write_by_halves(placed, partial(give, at_once=at_once), refused, _name)
            given.difference_update(one.instance.id for one in held_up)
            if held_up:  # the next fires of their tasks need not wait for that lock, too
                self._database.write(lambda c: locks.drop(c, token, {one.instance.task_id for one in held_up}))

        if got:
            try:
                give_all(at_once=True)
            except Unexpected:  # another scheduler has taken a lease over; and if one does so again, it gives the rest
                with suppress(Unexpected):
                    give_all(at_once=False)
        return given


def _name(one: Placed) -> str:
    return of_instance(one.instance.id)


def _facts(
    connection: Connection, page: Sequence[Pending]
) -> tuple[set[int], dict[int, list[PlannedNode]], tuple[dict[int, str], dict[int, str]]]:
    """The tasks of a page whose overlap slots are all taken, the nodes that its instances have, and which of these are
    shards that nobody runs any more, or not yet."""
    bounded = {p.task_id: p.slots for p in page if p.slots is not None}
    again = [p.id for p in page if p.may_have_nodes]
    return overlap.full(connection, bounded), fires.pinned(connection, again), stranded(connection, page)
