"""Chains: when a run that other tasks follow has ended, write their fires, and forget the run."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service import plan_calendars
from rota.scheduler_service.leasing import lease_new
from rota.scheduler_service.notices import Notices
from rota.shared.clock import seconds_to_next
from rota.shared.database.later import Unexpected
from rota.shared.database.transactions import Database
from rota.shared.domain.calendars.definition import Found
from rota.shared.domain.chains import EndedRun, Link, fires
from rota.shared.domain.errors import RotaError
from rota.shared.domain.planning import Skipped
from rota.shared.domain.states import OnEnd, SkipReason
from rota.shared.domain.times import is_time
from rota.shared.loop import sparing_rest
from rota.shared.settings import Settings
from rota.shared.store import catch_ups, chain_fires, chain_runs, locks, skips
from rota.shared.store.chain_fires import Follower, Place
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)

Ends = Mapping[int, Mapping[str, OnEnd]]
"""The tasks that tasks follow, by the id of the one that follows: their names, each with the end that it waits for."""

LOOK_SECONDS = 0.25
"""While runs that are followed have not ended, it looks so often for their ends."""

SHARE = 0.05
"""The part of its time that it spends on pages of which no run has ended: many runs may wait for workers for long."""

PAGE = 200
"""A page has so many marks: each may have many followers."""

LOOKED_UP = 5_000
"""One transaction follows up as many ends as ask for so many runs: a fire may follow many tasks."""


@dataclass(slots=True)
class Followed:
    """What is written for the end of one run: the fires of the tasks that follow it; those for a replay; and those of
    tasks that are off."""

    mark_id: int
    fires: list[Link] = field(default_factory=list)
    again: list[Link] = field(default_factory=list)
    off: list[Link] = field(default_factory=list)
    waits: bool = False
    """Whether another replay goes on before one of the tasks: nothing is written until that has ended."""


class Chains:
    """The duty: page through the runs that others follow, and follow up those that have ended.

    The fires and the removal of the run's mark are one transaction. If another scheduler has removed the mark, nothing
    is written. So each end is followed up once, whichever scheduler is killed, and when. Of tasks that follow several,
    each end is looked at: the last one finds all others.
    """

    def __init__(self, database: Database, settings: Settings, written: Callable[[], None] = lambda: None) -> None:
        """``written`` is called when fires are written: they are due at once."""
        self._database = database
        self._settings = settings
        self._written = written
        self._notices = Notices("chains")
        self._surprises = Surprises("chains")
        self._after = 0
        self._some_run = False
        """Whether this pass through the marks has seen one whose run goes on."""

    def step(self) -> float:
        """One page; returns the seconds to rest. After the last page, that is until the next look."""
        clock = self._database.clock
        began = clock.monotonic()
        page = self._database.read(lambda c: chain_runs.page(c, self._after, min(PAGE, self._settings.batch)))
        self._after = page.following
        self._some_run |= page.number > len(page.ended)
        if page.ended:
            return 0 if self._follow(page.ended) else LOOK_SECONDS
        rest = sparing_rest(clock.monotonic() - began, SHARE)
        if self._after:
            return rest
        some_run, self._some_run = self._some_run, False
        if some_run:
            return max(rest, LOOK_SECONDS)
        self._notices.looked_at_all()
        return seconds_to_next(clock.now(), self._settings.tick_period)

    def _follow(self, marks: Sequence[int]) -> bool:
        """Follow up some ends; returns whether any was. The others are for the next look."""
        followers = self._database.read(lambda c: chain_fires.followers(c, marks))
        of_mark: dict[int, list[Follower]] = {mark: [] for mark in marks}
        for one in followers:
            of_mark[one.mark_id].append(one)
        ends = self._ends(followers)
        written = False
        portion: dict[int, list[Follower]] = {}
        size = 0
        for mark, some in of_mark.items():
            portion[mark] = some
            size += 1 + sum(len(ends.get(one.link.task_id, ())) for one in some)
            if size >= LOOKED_UP:
                written |= self._write(portion, ends)
                portion, size = {}, 0
        return (self._write(portion, ends) if portion else False) or written

    def _ends(self, followers: Sequence[Follower]) -> Ends:
        """The ends that each task waits for, by the task's id; without those that cannot be read."""
        ends: dict[int, Mapping[str, OnEnd]] = {}
        for one in followers:
            task = one.link.task_id
            if task not in ends and one.inputs is not None:
                try:
                    ends[task] = one.inputs.before
                except RotaError as error:
                    self._notices.complain([f"task {one.name!r} follows nothing until it is edited: {error}"])
                except Exception as error:  # noqa: BLE001 - perhaps a fault of Rota's: one task must not stop the others
                    self._surprises.say(f"what task {one.name!r} follows", error)
        return ends

    def _write(self, portion: Mapping[int, Sequence[Follower]], ends: Ends) -> bool:
        """Follow up the ends of a portion; returns whether any was.

        Those are left for which a task is to be leased that somebody else has, and those that wait for another replay.
        """
        decided = [one for one in self._decide(portion, ends) if not one.waits]
        token, lease = locks.new_token(), self._settings.lock_lease_seconds
        repeated = {link.task_id for one in decided for link in one.again}
        held: set[int] = set()
        locked: list[Followed] = []
        if repeated:
            held = lease_new(self._database, token, repeated, lease)
        mine = [one for one in decided if all(link.task_id in held for link in one.again)]
        self._drop(token, held - {link.task_id for one in mine for link in one.again})
        try:
            refused = partial(self._refused, token=token, locked=locked)
            held_up = self._database.write_by_halves(mine, partial(_write, token=token), refused, _name)
        except Unexpected:  # another scheduler has followed some of them up: the next step looks again
            self._drop(token, held)
            return False
        self._drop(token, {link.task_id for one in held_up for link in one.again})
        written = [one for one in mine if one not in held_up and one not in locked]
        if any(one.fires or one.again for one in written):
            self._written()
        return bool(written)

    def _drop(self, token: str, task_ids: Collection[int]) -> None:
        """Give leases back at once: whoever waits for one of them has another that this scheduler waits for."""
        if task_ids:
            self._database.write(lambda c: locks.drop(c, token, task_ids))

    def _refused(self, one: Followed, error: DBAPIError, *, token: str, locked: list[Followed]) -> None:
        """The database refuses what SQL has made of a task: the others that follow this end are fired without it.

        If somebody has locked something of it, the mark stays, for a later step.
        """
        self._surprises.say(_name(one), error)
        given = ((chain_fires.fire, one.fires), (chain_fires.fire_again, one.again))

        def fire(connection: Connection, some: Sequence[tuple[Callable[..., object], Link]]) -> None:
            locks.release(connection, token, {link.task_id for _, link in some if link.again_of is not None})
            for write, link in some:
                write(connection, links=[link])

        def end(connection: Connection, _: object) -> None:
            chain_runs.remove(connection, [one.mark_id])

        rows = [(write, link) for write, links in given for link in links]
        with suppress(Unexpected):
            is_locked = bool(self._database.write_by_halves(rows, fire, lambda *_: None, lambda _: _name(one)))
            if is_locked or bool(self._database.write_by_halves([one], end, None, _name)):
                locked.append(one)
        self._drop(token, {link.task_id for link in one.again})

    def _decide(self, portion: Mapping[int, Sequence[Follower]], ends: Ends) -> list[Followed]:
        every = [one for some in portion.values() for one in some]
        calendars = plan_calendars.give(self._database, (), (one.inputs for one in every))
        wanted = [one for one in every if ends.get(one.link.task_id) and self._admits(one, calendars)]
        facts = self._database.read(partial(_facts, wanted=wanted, ends=ends))
        decided = {mark: Followed(mark) for mark in portion}
        for one in wanted:
            if facts.waits(one, ends[one.link.task_id]):
                decided[one.mark_id].waits = True
            elif (link := facts.fire(one, ends[one.link.task_id])) is not None:
                _add(decided[one.mark_id], link, is_on=one.is_on)
        return list(decided.values())

    def _admits(self, one: Follower, calendars: Mapping[str, Found]) -> bool:
        """Whether its window and its calendar have nothing against the time."""
        try:
            moment = one.link.moment
            is_place = is_time(moment) and isinstance(one.link.fire_key, str)
            return one.inputs is not None and is_place and one.inputs.on(calendars).admits(moment)
        except RotaError as error:
            self._notices.complain([f"task {one.name!r}: {error}"])
        except Exception as error:  # noqa: BLE001 - as above
            self._surprises.say(f"a fire of task {one.name!r}", error)
        return False


@dataclass(frozen=True, slots=True)
class Facts:
    """The ended runs; what comes behind the replays that are followed; and what goes on for such replays."""

    ended: Mapping[tuple[Place, int], Mapping[str, Sequence[EndedRun]]]
    behind: Mapping[int, Collection[str]]
    going_on: Collection[tuple[Place, str]]

    def waits(self, one: Follower, ends: Mapping[str, OnEnd]) -> bool:
        """Whether a run for a replay goes on before the task, which is to run once for both."""
        return one.link.again_of is not None and any((one.link.place, name) in self.going_on for name in ends)

    def fire(self, one: Follower, ends: Mapping[str, OnEnd]) -> Link | None:
        """The fire of a task that waits for these ends; None: it does not fire, or not yet.

        For a replay the newest run counts, and of what comes behind it only one that has run for it, too. The fire
        counts for the newest replay whose end it follows.
        """
        link = one.link
        found = self.ended.get((link.place, 0), {})
        if link.again_of is not None:
            behind, again = self.behind[link.again_of], self.ended.get((link.place, link.again_of), {})
            found = {name: runs[-1:] for name, runs in found.items() if name not in behind}
            found |= {name: runs[-1:] for name, runs in again.items() if name in behind}
            runs = (run for name, some in found.items() if name in ends for run in some)
            replays = [run.again_of for run in runs if run.again_of is not None]
            link = replace(link, again_of=max([link.again_of, *replays]))
        return link if fires(ends.items(), found) else None


def _facts(connection: Connection, wanted: Sequence[Follower], ends: Ends) -> Facts:
    asked = [(name, *one.link.place, 0) for one in wanted for name in ends[one.link.task_id]]
    once_more = [
        (name, *one.link.place, one.link.again_of)
        for one in wanted
        if one.link.again_of is not None
        for name in ends[one.link.task_id]
    ]
    return Facts(
        chain_fires.ended(connection, [*asked, *once_more]),
        chain_fires.behind(connection, {replay for *_, replay in once_more}),
        chain_fires.open_again(connection, once_more),
    )


def _name(one: Followed) -> str:
    return f"what follows the end that row {one.mark_id} of schedule_chain_run marks"


def _add(followed: Followed, link: Link, *, is_on: bool) -> None:
    if link.again_of is not None:
        followed.again.append(link)
    elif is_on:
        followed.fires.append(link)
    else:
        followed.off.append(link)


def _write(connection: Connection, decided: Sequence[Followed], token: str) -> None:
    """Write in one transaction, which relies on ``token``'s holding the leases of what runs once more."""
    again = [link for one in decided for link in one.again]
    locks.release(connection, token, {link.task_id for link in again})
    chain_runs.remove(connection, [one.mark_id for one in decided])
    chain_fires.fire(connection, [link for one in decided for link in one.fires])
    chain_fires.fire_again(connection, again)
    off = sorted({(link.task_id, link.moment) for one in decided for link in one.off})
    skips.record(connection, [(task, Skipped(SkipReason.OFF, moment, moment, 1)) for task, moment in off])
    catch_ups.count(connection, [(task, 0, number) for task, number in Counter(task for task, _ in off).items()])
