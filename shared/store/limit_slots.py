"""How a claim takes slots and starts of the limits that tasks share (docs/decisions/0051-limits-across-tasks.md).

A slot names the instance that took it last, and the attempt. It is taken while that instance runs in that attempt;
otherwise it is free. So nothing that ends an instance, not even SQL, need know of slots, and none leaks.

A claim reads the limits and their slots, chooses free ones, and then takes them in its own packet, before it claims:

1. It takes a slot only if the slot still names the holder that was read, and the limit is as it was read. Of two claims
   that read the same slot, one takes it.
2. It claims only those instances that have got a slot.
3. It empties the slots of instances that it did not win. So a slot that is committed names an instance that ran in
   that attempt when it was committed. Once such a holder does not run any more, it never will again in that attempt:
   what was read as free stays free until somebody takes it.

A rate has no slots: the claim writes its starts into the limit's row, if no other claim has done so since it was read,
and the rate is as it was read.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import sample
from secrets import token_hex
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, insert, or_, select, update

from rota.shared.database.constructs import (
    Json,
    Listed,
    SecondsBefore,
    UtcNow,
    among,
    bound,
    by_index,
    ignore_conflicts,
    json_rows,
)
from rota.shared.database.later import execute_later
from rota.shared.domain.limits import CLAIMED_WITHIN, LimitState, Starts, no_such_limit, noted, starts_in
from rota.shared.domain.states import InstanceStatus
from rota.shared.store.tables import schedule_instance, schedule_limit, schedule_limit_slot

_limit = schedule_limit.c
_slot = schedule_limit_slot.c
_instance = schedule_instance.c

Holder = tuple[int | None, int | None]
"""The instance that a slot names, and its attempt."""


class Claimant(Protocol):
    """An instance that wants to run."""

    id: int

    @property
    def attempt(self) -> int:
        """How many times a worker has claimed the instance before."""
        ...

    @property
    def limit_name(self) -> str | None:
        """The limit of its task."""
        ...


LOOK_AGAIN = timedelta(seconds=2)
"""When what waits for a rate asks again at the latest."""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit as it was read, with its slots: all that have rows, and those that are taken. ``time`` is naive UTC."""

    state: LimitState
    token: str | None
    time: datetime
    slots: dict[int, Holder] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)

    def free(self, number: int) -> list[int]:
        """So many free slots.

        Where more instances run than the limit allows now, the free slots with the highest numbers are none: those
        that run beyond the limit stand in for them.
        """
        most = self.state.max_running or 0
        free = [slot for slot in range(most) if slot not in self.taken][: max(0, most - len(self.taken))]
        return sorted(sample(free, number))  # claims that choose at once seldom choose the same


@dataclass(frozen=True, slots=True)
class Taking:
    """What a claim is about to take: of each limit the instances, with the slots that they take."""

    slots: dict[int, tuple[str, int, int, Holder]] = field(default_factory=dict)
    """By instance: the limit, the slot, the attempt that the instance will have, and the slot's holder until now."""

    starts: dict[str, tuple[str, Starts]] = field(default_factory=dict)
    """By limit with a rate: the token of this claim, and the starts with those of this claim."""

    limits: dict[str, LimitRow] = field(default_factory=dict)
    allowed: dict[int, str] = field(default_factory=dict)
    """The instances that may be claimed, each with its limit."""

    tried: set[int] = field(default_factory=set)
    """The instances that wanted it: nothing else is in the way of those."""

    def only(self, instance_ids: Collection[int]) -> "Taking":
        """The part of it that is of these instances: of a limit that has a rate, they must be all, or none."""
        wanted = set(instance_ids)
        return replace(
            self,
            slots={i: slot for i, slot in self.slots.items() if i in wanted},
            starts={name: self.starts[name] for name in {self.allowed.get(i) for i in wanted} if name in self.starts},
            allowed={i: name for i, name in self.allowed.items() if i in wanted},
        )

    def token_of(self, name: str) -> str | None:
        """What ``claim_token`` of a limit is when this claim has taken its starts."""
        return self.starts[name][0] if name in self.starts else self.limits[name].token

    def free_again(self, name: str) -> datetime | None:
        """When to ask again whether the rate of a limit lets the next instance start (naive UTC), as far as is known.

        That is no later than in 2 s, because somebody may raise the rate meanwhile.
        """
        row = self.limits.get(name)
        moment = None if row is None else row.state.free_again(row.time)
        return None if row is None or moment is None else min(moment, row.time + LOOK_AGAIN)


NOTHING = Taking()

is_taken: ColumnElement[bool] = and_(
    _instance.id == _slot.schedule_instance_id,
    _instance.attempt == _slot.attempt,
    or_(_instance.status == InstanceStatus.RUNNING.value, _instance.slot_kept == 1),
)
"""Whether the instance that a slot names holds it: it runs in that attempt, or its thread still does."""

_limits_with_slots = (
    select(
        _limit.name, _limit.max_running, _limit.starts_per_minute, _limit.recent_starts, _limit.claim_token, UtcNow(),
        _slot.slot, _slot.schedule_instance_id, _slot.attempt, _instance.id,
    )
    .select_from(schedule_limit)
    .outerjoin(schedule_limit_slot, and_(_slot.limit_name == _limit.name, _limit.max_running.is_not(None)))
    .outerjoin(schedule_instance, is_taken)
    .where(among(_limit.name, "names"), _limit.is_deleted == 0)
)  # fmt: skip


def read(connection: Connection, names: Collection[str]) -> dict[str, LimitRow]:
    """These limits, by name; those that are not there are left out."""
    limits: dict[str, LimitRow] = {}
    if not names:
        return limits
    for row in connection.execute(_limits_with_slots, {"names": Listed(sorted(names))}):
        name, most, rate, recent, token, time, slot, holder, attempt, held_by = row
        if name not in limits:
            limits[name] = LimitRow(LimitState(name, most, rate, 0, starts_in(recent)), token, time)
        if slot is not None:
            limits[name].slots[slot] = (holder, attempt)
        if held_by is not None:
            limits[name].taken.add(slot)
    return {name: replace(row, state=replace(row.state, running=len(row.taken))) for name, row in limits.items()}


def choose(connection: Connection, rows: Sequence[Claimant]) -> Taking:
    """What the instances that have a limit may take now; the first ones before the others."""
    by_limit: dict[str, list[Claimant]] = {}
    for row in rows:
        if row.limit_name is not None:
            by_limit.setdefault(row.limit_name, []).append(row)
    if not by_limit:
        return NOTHING
    tried = {row.id for some in by_limit.values() for row in some}
    taking = Taking(limits=read(connection, by_limit.keys()), tried=tried)
    for name, limit in taking.limits.items():
        allowed = limit.state.allowed(limit.time)
        chosen = by_limit.get(name, [])[:allowed]
        if not chosen:
            continue
        taking.allowed.update((row.id, name) for row in chosen)
        if limit.state.max_running is not None:
            for row, slot in zip(chosen, limit.free(len(chosen)), strict=True):
                taking.slots[row.id] = name, slot, row.attempt + 1, limit.slots.get(slot, (None, None))
        if limit.state.starts_per_minute is not None:
            taking.starts[name] = token_hex(8), noted(limit.state.recent, limit.time, len(chosen))
    return taking


BY_NAME = "uq_schedule_limit_name"
"""A statement that locks must not read the few rows there are one by one: somebody may have locked another limit."""

_note_starts = (
    update(schedule_limit)
    .with_hint(BY_NAME)
    .where(
        _limit.name == bindparam("limit"),
        _limit.is_deleted == 0,
        _limit.starts_per_minute == bindparam("rate"),
        _limit.claim_token.is_not_distinct_from(bindparam("was")),
        SecondsBefore(UtcNow(), bindparam("within")) <= bindparam("asked"),
    )
    .values(recent_starts=bindparam("starts", type_=Json), claim_token=bindparam("token"))
)

_made = json_rows("made", limit_name="str", slot="int")
_make = ignore_conflicts(
    insert(schedule_limit_slot).from_select(["limit_name", "slot"], select(_made.c.limit_name, _made.c.slot))
)

_wanted = json_rows(
    "wanted", limit_name="str", slot="int", instance="id", attempt="int", holder="id", held="int",
    max_running="int", starts_per_minute="int", token="str",  # noqa: S106
)  # fmt: skip
_is_as_read = exists(
    by_index(select(_limit.id), schedule_limit, BY_NAME)
    .where(
        _limit.name == _wanted.c.limit_name,
        _limit.is_deleted == 0,
        _limit.max_running == _wanted.c.max_running,
        _limit.starts_per_minute.is_not_distinct_from(_wanted.c.starts_per_minute),
        _limit.claim_token.is_not_distinct_from(_wanted.c.token),
    )
    .with_for_update(read=True)  # so that nothing starts by the old number after a lower one is committed
    .correlate(_wanted)
)
_its_slot = and_(_slot.limit_name == _wanted.c.limit_name, _slot.slot == _wanted.c.slot)
_take = (
    update(schedule_limit_slot)
    .where(
        _its_slot,
        _slot.schedule_instance_id.is_not_distinct_from(_wanted.c.holder),
        _slot.attempt.is_not_distinct_from(_wanted.c.held),
        _is_as_read,
    )
    .values(schedule_instance_id=_wanted.c.instance, attempt=_wanted.c.attempt, gmt_modified=UtcNow())
)
_empty = (
    update(schedule_limit_slot)
    .where(
        _its_slot,
        _slot.schedule_instance_id == _wanted.c.instance,
        _slot.attempt == _wanted.c.attempt,
        ~exists(select(_instance.id).where(is_taken).correlate(schedule_limit_slot)),
    )
    .values(schedule_instance_id=None, attempt=None)
)


def take(connection: Connection, taking: Taking) -> None:
    """Take the slots and the starts that were chosen, if they are as they were read. Slots that are new get rows."""
    for name, (token, starts) in sorted(taking.starts.items()):
        limit = taking.limits[name]
        read = {"limit": name, "was": limit.token, "rate": limit.state.starts_per_minute, "asked": limit.time}
        noted_starts = {"token": token, "within": CLAIMED_WITHIN, "starts": [list(one) for one in starts]}
        execute_later(connection, _note_starts, read | noted_starts)
    new = sorted((name, slot) for name, slot, *_ in taking.slots.values() if slot not in taking.limits[name].slots)
    if new:
        execute_later(connection, _make, {"rows": bound(new)})
    if taking.slots:
        execute_later(connection, _take, {"rows": bound(_rows(taking))})


def empty_unused(connection: Connection, taking: Taking) -> None:
    """Empty the slots of instances that this transaction did not claim."""
    if taking.slots:
        execute_later(connection, _empty, {"rows": bound(_rows(taking))})


def _rows(taking: Taking) -> list[tuple[Any, ...]]:
    rows = []
    for instance_id, (name, slot, attempt, holder) in taking.slots.items():
        state = taking.limits[name].state
        terms = (state.max_running, state.starts_per_minute, taking.token_of(name))
        rows.append((name, slot, instance_id, attempt, *holder, *terms))
    return sorted(rows, key=lambda row: row[:2])


def why_no_more(connection: Connection, name: str) -> str | None:
    """Why a limit lets no instance start now; None if it lets one start."""
    limits = read(connection, [name])
    row = limits.get(name)
    return why_full(limits, name) if row is None or row.state.allowed(row.time) <= 0 else None


def why_full(limits: dict[str, LimitRow], name: str) -> str:
    """Why an instance waits for a limit that allows no more, or that is not there."""
    return limits[name].state.why() if name in limits else no_such_limit(name)
