"""How a worker claims the instances that are assigned to it: a packet claims and commits.

So nothing is locked over a round trip: neither one that takes long, as to another zone, nor one of a process that is
frozen meanwhile (docs/decisions/0030-few-round-trips.md).

A packet may claim instances of which nothing is known, and read after its commit what has become of them. Where the
database is near, it costs less to read them first: the statements are simpler, and nearly always all are won.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NoReturn

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.shared.database.later import Later, then_read
from rota.shared.database.refusals import is_locked
from rota.shared.database.transactions import Database
from rota.shared.domain.states import OverlapPolicy, WorkerLostPolicy
from rota.shared.store import handing_on, large_values, limit_slots, overlap, passed_over, reports, runs, settling
from rota.shared.store.limit_slots import NOTHING, Taking
from rota.shared.store.node_types import NodeTypeNames
from rota.shared.store.overlap import SkipCandidate, Waiting
from rota.shared.store.runs import ASSIGNED, RUNNING, Claim, Skip, Wanted
from rota.shared.store.tables import MOST_ATTEMPTS
from rota.shared.store.transitions import canceling, claiming

Claimed = tuple[list[Wanted], list[Wanted], datetime | None]
"""What the worker has won, what is assigned to it still, and the database's time."""


class Claims:
    """The claims of one worker.

    for claim in Claims(database, worker_id, types, ahead).claim({7}, now, {}): start(claim.runs)
    """

    def __init__(
        self,
        database: Database,
        worker_id: int,
        types: NodeTypeNames,
        ahead: timedelta,
        *,
        from_afar: bool = False,
        room: float = math.inf,
    ) -> None:
        """What is due more than ``ahead`` after the database's time is not claimed.

        ``room``: for how many bytes of large params and results the worker has room. Instances that have some are
        claimed until the room is used up; the last one may have more than is left.
        """
        self._from_afar = from_afar
        self._room = room
        self._places: Mapping[int, int] = {}
        self._database = database
        self._worker_id = worker_id
        self._types = types
        self._ahead = ahead

    def claim(
        self, instance_ids: Collection[int], now: datetime, skip_candidates: Mapping[int, SkipCandidate]
    ) -> Iterator[Claim]:
        """Claim instances, in which the unique overlap key decides. ``now`` is naive UTC. The first ones get the room.

        ``skip_candidates`` holds those that found a run in their way before, and may be skipped for it. If the answer
        to a commit was lost, a claim may be made again: it finds the instances ``running`` under this worker.

        The first claim takes two round trips, or one from afar. It has all whose slot follows from the policy of their
        task. The second one has the others, and decides about those that waited for a run that is in their way.
        """
        ids = sorted(instance_ids)
        self._places = {instance_id: place for place, instance_id in enumerate(instance_ids)}
        plain = [i for i in ids if i not in skip_candidates]
        won, assigned, time = self._unread(ids, plain, None) if self._from_afar else self._read_first(ids, plain)
        self._room -= sum(row.large for row in won)
        latest = now.max if time is None else time + self._ahead
        tried = [row for row in assigned if row.terms.is_plain and not (self._from_afar and row.large)]
        too_early = {row.id for row in tried if row.due_at > now}
        early = [row for row in assigned if row.due_at > latest or row.id in too_early]
        held_up = [row for row in assigned if row.due_at <= now and _is_held_up(row) and row.id not in skip_candidates]
        yield Claim([row.run() for row in won], [Waiting(row.id, row.due_at) for row in early], time)
        if held_up:
            yield Claim([], self._database.read(partial(_behind, rows=held_up, skip_candidates=skip_candidates)))
        decided = {row.id for row in (*early, *held_up)}
        if contested := [row for row in assigned if row.id not in decided]:
            yield from self._contest(contested, now, skip_candidates)
        if len(won) + len(assigned) < len(ids):
            values, read = {"ids": ids, "worker": self._worker_id}, {row.id for row in (*won, *assigned)}
            yield Claim([], self._database.write(lambda c: passed_over.left_waiting(c, values, read)))

    def _contest(
        self, rows: Sequence[Wanted], now: datetime, skip_candidates: Mapping[int, SkipCandidate]
    ) -> Iterator[Claim]:
        """Claim instances whose slot depends on others, and skip those that nobody wants any more."""

        def choose(connection: Connection) -> tuple[dict[int, str], overlap.Slots, Taking]:
            skipped = overlap.overrun(connection, rows, skip_candidates) | overlap.superseded(connection, rows, now)
            wanted = {row.id: row for row in rows if _may_start(row) and row.id not in skipped}
            slots = self._within_room(overlap.free_slots(connection, [*wanted.values()]), wanted)
            taking = limit_slots.choose(connection, [wanted[instance_id] for instance_id, _ in slots])
            return skipped, [s for s in slots if wanted[s[0]].limit_name is None or s[0] in taking.allowed], taking

        skipped, slots, taking = self._database.read(choose)
        for row_id in self._skip(skipped):
            del skipped[row_id]
        won = self._claimed_for(slots, rows, taking) if slots else []
        gone = skipped.keys() | {row.id for row in won}
        lost = [row for row in rows if row.id not in gone]
        if won and lost:  # what is won need not wait for what becomes of the others
            yield Claim([row.run() for row in won])
            won = []
        waiting, settled = self._settled(lost, now, skip_candidates, taking) if lost else ([], {})
        wait = {one.id for one in waiting if one.task_id is not None}
        following = [row for row in lost if row.id in wait and row.due_at <= now and handing_on.may_follow(row)]
        because = skipped | settled
        skips = [Skip(row, because[row.id]) for row in rows if row.id in because]
        yield Claim([row.run() for row in won], waiting, following=following, skipped=skips)

    def _skip(self, because: Mapping[int, str]) -> Sequence[int]:
        """Skip instances, each for its reason; returns those that somebody has locked."""

        def skip(connection: Connection, some: Sequence[int]) -> None:
            canceling.skip(connection, self._worker_id, {i: because[i] for i in some})

        return self._database.write_by_halves(sorted(because), skip, _raise, lambda i: f"instance {i}")

    def _settled(
        self,
        lost: Sequence[Wanted],
        now: datetime,
        skip_candidates: Mapping[int, SkipCandidate],
        taking: Taking,
    ) -> tuple[list[Waiting], dict[int, str]]:
        settled: dict[int, tuple[Waiting | None, str | None]] = {}

        def settle(connection: Connection, some: Sequence[Wanted]) -> None:
            waiting, skipped = settling.settle(connection, self._worker_id, some, now, skip_candidates)
            waits = {one.id: one for one in waiting}
            settled.update((row.id, (waits.get(row.id), skipped.get(row.id))) for row in some)

        for row in self._database.write_by_halves(lost, settle, _raise, lambda row: f"instance {row.id}"):
            settled[row.id] = Waiting(row.id, row.due_at), None
        waiting = [one for one, _ in settled.values() if one is not None]
        waiting = self._database.read(lambda c: settling.with_holders(c, waiting, skip_candidates))
        names = {row.id: row.limit_name for row in lost if row.limit_name is not None and row.id in taking.tried}
        for_limits = [_for_limit(one, names[one.id], taking) if one.id in names else one for one in waiting]
        return for_limits, {i: why for i, (_, why) in settled.items() if why is not None}

    def _claimed_for(self, slots: overlap.Slots, rows: Sequence[Wanted], taking: Taking) -> list[Wanted]:
        """Claim instances that were read, for these slots; returns those that the worker has won."""
        ids = [instance_id for instance_id, _ in slots]
        is_unread = self._from_afar and not taking.allowed
        won = self._unread(ids, ids, slots)[0] if is_unread else self._won(slots, rows, taking)
        self._room -= sum(row.large for row in won)
        return won

    def _won(self, slots: overlap.Slots, rows: Sequence[Wanted], taking: Taking) -> list[Wanted]:
        wanted = {instance_id for instance_id, _ in slots}
        chosen = [row for row in rows if row.id in wanted]
        self._database.read(lambda c: large_values.read(c, chosen))
        has_won = self._wins(slots, chosen, taking)
        if has_won:
            return chosen
        if has_won is None:
            self._win_parts(slots, chosen)
        return _running(self._database.read(lambda c: self._read(c, sorted(wanted)))[0])

    def _win_parts(self, slots: overlap.Slots, rows: Sequence[Wanted]) -> None:
        """Claim what is left where somebody has locked a limit, or a slot of one: limit by limit.

        Of a limit of which something is locked, and that has no rate, each instance is claimed alone, until a second
        one meets a lock.
        """
        by_limit: dict[str | None, list[Wanted]] = {}
        for row in sorted(rows, key=lambda row: self._places[row.id]):
            by_limit.setdefault(row.limit_name, []).append(row)

        def wins(part: Sequence[Wanted]) -> bool | None:
            ids = {row.id for row in part}
            return self._wins([slot for slot in slots if slot[0] in ids], part, taking.only(ids))

        for name, some in by_limit.items():
            # What was read before the lock was waited for counts no more.
            taking = self._database.read(partial(limit_slots.choose, rows=some))
            part = [row for row in some if name is None or row.id in taking.allowed]
            if wins(part) is not None:
                continue
            if name is None:
                ids = {row.id for row in part}
                self._win_halves([slot for slot in slots if slot[0] in ids], part)
                continue
            if name not in taking.starts:
                locks = 0
                for row in part:
                    locks += wins([row]) is None
                    if locks > 1:
                        break

    def _within_room(self, slots: overlap.Slots, rows: Mapping[int, Wanted]) -> overlap.Slots:
        """Those of the instances for whose large params and results there is room."""
        room, within = self._room, []
        for slot in sorted(slots, key=lambda slot: self._places[slot[0]]):
            large = rows[slot[0]].large
            if not large or room > 0:
                room -= large
                within.append(slot)
        return within

    def _read_first(self, ids: Sequence[int], tried: Sequence[int]) -> Claimed:
        """Read these instances, and claim those that are ``tried`` and whose slot follows from their policy."""
        wanted = set(tried)

        def choose(connection: Connection) -> tuple[list[Wanted], datetime | None, dict[int, Wanted], overlap.Slots]:
            rows, time = runs.read_free(connection, self._worker_id, ids, self._types)
            latest = None if time is None else time + self._ahead
            ready = {row.id: row for row in rows if row.id in wanted and _is_ready(row, latest)}
            plain = [(row.id, _slot(row)) for row in ready.values() if row.terms.is_plain]
            has_large = any(row.large for row in ready.values())  # only for these the order of the instances counts
            chosen = self._within_room(plain, ready) if has_large else plain
            large_values.read(connection, [ready[instance_id] for instance_id, _ in chosen])
            large_values.read(connection, _running(rows))
            return rows, time, ready, chosen

        rows, time, ready, chosen = self._database.read(choose)
        won = {instance_id for instance_id, _ in chosen}
        has_won = self._wins(chosen, [ready[i] for i in won])
        if has_won is None:
            self._win_halves(chosen, [ready[i] for i in won])
        if not has_won:
            rows, _ = self._database.read(lambda c: self._read(c, ids))
            won = set()
        won.update(row.id for row in _running(rows))
        return [row for row in rows if row.id in won], [row for row in rows if row.id not in won], time

    def _wins(self, slots: overlap.Slots, rows: Sequence[Wanted], taking: Taking = NOTHING) -> bool | None:
        """Claim instances that were read; whether the worker has won all of them. None: something is locked."""
        if not slots:
            return True
        try:
            counts = self._database.write_unless_locked(self._claim_of_read(slots, rows, taking))
        except DBAPIError as error:
            if not is_locked(error):
                raise
            return None
        return counts is not None and sum(count.rows for count in counts) == len(slots)

    def _win_halves(self, slots: overlap.Slots, rows: Sequence[Wanted]) -> None:
        """Claim instances without limits, of which somebody has locked something, but those that he has locked."""
        by_id = {row.id: row for row in rows}

        def claim(connection: Connection, some: Sequence[tuple[int, int | None]]) -> None:
            self._claim_of_read(list(some), [by_id[instance_id] for instance_id, _ in some])(connection)

        self._database.write_what_is_free(slots, claim)

    def _claim_of_read(
        self, slots: overlap.Slots, rows: Sequence[Wanted], taking: Taking = NOTHING
    ) -> Callable[[Connection], Sequence[Later]]:
        """The transaction that claims instances as they were read, for these slots."""
        nodes: tuple[list[int], list[int]] = [], []
        for row in rows:
            if (first := row.first_node) is not None:
                nodes[row.terms.on_worker_lost == WorkerLostPolicy.FAIL].append(first)
        attempts = {row.id: row.attempt for row in rows}
        tried = [(instance_id, slot, attempts[instance_id]) for instance_id, slot in slots]
        claim = partial(claiming.claim_read, worker_id=self._worker_id, slots=tried, taking=taking)
        return partial(claim, nodes=nodes[0], nodes_to_begin=nodes[1])

    def _unread(self, ids: Sequence[int], tried: Sequence[int], slots: overlap.Slots | None) -> Claimed:
        """Claim in one packet with the reading; without those that somebody has locked, if that fails."""
        found = None
        for again in (True, False):
            if not tried:
                break
            read = then_read(self._claiming(tried, slots), lambda c: self._read(c, ids))
            found = self._database.write_undisturbed(read)
            if found is not None:
                break
            if again:
                locked = self._database.read(partial(reports.locked, instance_ids=tried))
                tried = [i for i in tried if i not in locked]
                slots = None if slots is None else [slot for slot in slots if slot[0] not in locked]
        if tried and found is None:
            slot_of = None if slots is None else dict(slots)

            def claim(connection: Connection, some: Sequence[int]) -> None:
                self._claiming(some, None if slot_of is None else [(i, slot_of[i]) for i in some])(connection)

            self._database.write_what_is_free(tried, claim)
        rows, time = found or self._database.read(lambda c: self._read(c, ids))
        return _running(rows), [row for row in rows if row.terms.status == ASSIGNED], time

    def _read(self, connection: Connection, ids: Sequence[int]) -> tuple[list[Wanted], datetime | None]:
        """The instances, and the database's time. Those that run have their large params and results."""
        rows, time = runs.read_wanted(connection, self._worker_id, ids, self._types)
        large_values.read(connection, _running(rows))
        return rows, time

    def _claiming(self, ids: Sequence[int], slots: overlap.Slots | None) -> Callable[[Connection], None]:
        return lambda c: claiming.claim_unread(c, self._worker_id, ids, self._ahead.total_seconds(), slots)


def _raise(_: object, error: DBAPIError) -> NoReturn:
    raise error


def _running(rows: Sequence[Wanted]) -> list[Wanted]:
    return [row for row in rows if row.terms.status == RUNNING]


def _is_ready(row: Wanted, latest: datetime | None) -> bool:
    """Whether the row may be claimed, if there is a slot for it: it is due by ``latest``."""
    return latest is not None and row.due_at <= latest and row.terms.status == ASSIGNED and _may_start(row)


def _may_start(row: Wanted) -> bool:
    return row.terms.may_run and row.attempt < MOST_ATTEMPTS


def _slot(row: Wanted) -> int | None:
    return None if row.overlap_policy == OverlapPolicy.ALLOW or row.parent_id is not None else 0


def _is_held_up(row: Wanted) -> bool:
    """Whether a run is in the way of a row that is skipped for that, if it is a fire."""
    is_skipped = row.overlap_policy == OverlapPolicy.SKIP and row.parent_id is None
    return row.terms.may_run and is_skipped and row.holder_id is not None


def _behind(
    connection: Connection, rows: Sequence[Wanted], skip_candidates: Mapping[int, SkipCandidate]
) -> list[Waiting]:
    waiting = [Waiting(row.id, row.due_at, row.holder_id if overlap.may_skip(row) else None) for row in rows]
    return settling.with_holders(connection, waiting, skip_candidates)


def _for_limit(one: Waiting, name: str, taking: Taking) -> Waiting:
    """An instance that waits, as one that waits for its limit; not before the limit's rate lets it start."""
    later = taking.free_again(name)
    return one._replace(limit_name=name, due_at=one.due_at if later is None else max(one.due_at, later))
