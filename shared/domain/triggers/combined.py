"""The trigger of a task that fires when any of several triggers fires, or when all of them fire at one instant.

A combination may hold others. When it is read it is multiplied out into the ways in which it can fire. Each way is a
set of plain triggers that fire together. ``any_of`` has the ways of all its members; ``all_of`` has one way for each
choice of one way of each member. So a search consists of a few flat ones, which are bounded (``MOST_CANDIDATES``).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain, cycle, islice, product
from math import lcm, prod
from typing import Any, Self, TypedDict

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.states import TriggerKind
from rota.shared.domain.times import EARLIEST, LATEST, is_time
from rota.shared.domain.triggers.after import read_after
from rota.shared.domain.triggers.cron import CronTrigger
from rota.shared.domain.triggers.inputs import FOR_ANY_KIND, TriggerInputs
from rota.shared.domain.triggers.interval import IntervalTrigger, interval_seconds
from rota.shared.domain.triggers.once import OnceTrigger, time_text

MOST_MEMBERS = 20
"""The most plain triggers in a combination, and the most ways in which it can fire."""

MOST_LEVELS = 5
"""How deep combinations may stand in each other."""

MOST_CANDIDATES = 3_000
"""At how many fires of its triggers a search looks for one at which all fire. Then it takes them for never meeting.

Each way has an equal part of them. So a search ends after some 0.1 s, whatever SQL wrote.
"""

GROUPS = {"any_of": ("any of {} fires", " | "), "all_of": ("all of {} fire together", " & ")}
"""The two combinations: how each is said in words, and what stands between its members in a label."""

TICK = timedelta(microseconds=1)
_LONGER_THAN_TIME = (LATEST - EARLIEST) // timedelta(seconds=1) + 1
_LOOKED_FROM = datetime(2040, 1, 1)  # noqa: DTZ001 - from then on the zones' rules repeat each year
_EXAMPLE = [{"cron": "0 9 * * mon"}, {"every": "15m"}]
_TOO_DEEP = f"trigger_spec: at most {MOST_LEVELS} combinations may stand in each other"

Plain = CronTrigger | IntervalTrigger | OnceTrigger


class Member(TypedDict, total=False):
    """A trigger in a combination, for type checkers: one of the keys, and the zone of a ``cron`` or an ``at``."""

    cron: str
    every: float | timedelta | str
    at: datetime | str
    timezone: str
    any_of: "Sequence[Member]"
    all_of: "Sequence[Member]"


@dataclass(frozen=True, slots=True)
class Together:
    """One way in which a combination fires: all of these at one instant."""

    triggers: tuple[Plain, ...]
    most: int

    @classmethod
    def of(cls, triggers: Sequence[Plain], most: int) -> Self:
        """Each trigger once; a search looks at ``most`` of their fires.

        Intervals become one, of their least common multiple, because they have one anchor.
        """
        intervals = [one for one in triggers if isinstance(one, IntervalTrigger)]
        others: list[Plain] = [one for one in triggers if not isinstance(one, IntervalTrigger)]
        if intervals:
            seconds = lcm(*(round(one.every.total_seconds()) for one in intervals))
            every = timedelta(seconds=min(seconds, _LONGER_THAN_TIME))
            others.append(IntervalTrigger(every, intervals[0].anchor))
        return cls(tuple(dict.fromkeys(others)), most)

    def next_after(self, moment: datetime, most: int) -> tuple[datetime | None, int]:
        """The first instant after a moment at which all fire, or None; and at how many fires it looked."""
        return self._meeting(moment + TICK, lambda trigger, fire: trigger.next_after(fire - TICK), most)

    def latest_at_or_before(self, moment: datetime, most: int) -> tuple[datetime | None, int]:
        """The last instant not after a moment at which all fire, as ``next_after``."""
        return self._meeting(moment, lambda trigger, fire: trigger.latest_at_or_before(fire), most)

    def _meeting(
        self, fire: datetime, nearest: Callable[[Plain, datetime], datetime | None], most: int
    ) -> tuple[datetime | None, int]:
        agreed = looked_at = 0
        for looked_at, trigger in enumerate(islice(cycle(self.triggers), min(most, self.most)), 1):
            found = nearest(trigger, fire)
            if found is None:
                return None, looked_at
            agreed = agreed + 1 if found == fire else 1
            fire = found
            if agreed == len(self.triggers):
                return fire, looked_at
        return None, looked_at


class Search:
    """One search that asks for fire after fire, in one direction, until it finds one that is wanted.

    All that it asks looks at no more fires of the triggers than the search for a single one may. Then it finds none.
    """

    def __init__(self, ways: Sequence[Together]) -> None:
        self._ways = ways
        self._left = MOST_CANDIDATES
        self._found: dict[Together, datetime | None] = {}

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment (naive UTC), or None; no moment is before the one before."""
        passed = [way for way in self._ways if (fire := self._found.get(way, moment)) is not None and fire <= moment]
        return min(self._fires(passed, lambda way: way.next_after(moment, self._left)), default=None)

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The last fire that is not after a moment (naive UTC), or None; no moment is after the one before."""
        later = moment + TICK
        passed = [way for way in self._ways if (fire := self._found.get(way, later)) is not None and fire > moment]
        return max(self._fires(passed, lambda way: way.latest_at_or_before(moment, self._left)), default=None)

    def _fires(
        self, passed: Iterable[Together], find: Callable[[Together], tuple[datetime | None, int]]
    ) -> list[datetime]:
        for way in passed:
            self._found[way], looked_at = find(way)
            self._left -= looked_at
        return [fire for fire in self._found.values() if fire is not None] if self._left > 0 else []


@dataclass(frozen=True, slots=True)
class CombinedTrigger:
    """Fires whenever one of its ways does; fires that meet at an instant are one."""

    ways: tuple[Together, ...]
    words: str
    text: str

    @classmethod
    def of(cls, inputs: TriggerInputs) -> Self:
        """The trigger that ``any_of`` or ``all_of`` in ``trigger_spec`` describes.

        Raises InvalidInput, InvalidTimezone; InvalidInput also for one that never fires.
        """
        spec = inputs.trigger_spec
        names = spec.keys() - FOR_ANY_KIND if isinstance(spec, dict) else set()
        name = "any_of" if "any_of" in names else "all_of"
        members = inputs.spec_value(name, _EXAMPLE)
        starts_at = inputs.starts_at if is_time(inputs.starts_at) else None
        return cls(*_read(_text_of({name: members}), inputs.cron_seconds, inputs.timezone, starts_at))

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after a moment (naive UTC), or None if it does not fire any more."""
        fires = [way.next_after(moment, way.most)[0] for way in self.ways]
        return min((fire for fire in fires if fire is not None), default=None)

    def latest_at_or_before(self, moment: datetime) -> datetime | None:
        """The last fire that is not after a moment (naive UTC), or None."""
        fires = [way.latest_at_or_before(moment, way.most)[0] for way in self.ways]
        return max((fire for fire in fires if fire is not None), default=None)

    def search(self) -> Search:
        """A search for a fire on some days: all its steps together are bounded, as one is."""
        return Search(self.ways)

    def describe(self) -> str:
        """The members in plain English, each in brackets: ``when all of [every day at 09:00], [every 7 days] …``."""
        return f"when {self.words}"

    def label(self) -> str:
        """The members as people write them, with ``&`` for all of and ``|`` for any of: ``0 9 * * * & every 7d``."""
        return self.text


def _text_of(spec: Any) -> str:
    try:
        return json.dumps(spec)
    except RecursionError:
        raise InvalidInput(_TOO_DEEP) from None


@dataclass(frozen=True, slots=True)
class _Part:
    """A member that has been read."""

    ways: list[tuple[Plain, ...]]
    words: str
    text: str
    plain: int = 1
    is_group: bool = False


@lru_cache(maxsize=1024)
def _read(whole: str, seconds: int, zone: str, starts_at: datetime | None) -> tuple[tuple[Together, ...], str, str]:
    """The ways of a combination that fire at all, its words, and its label."""
    part = _part(json.loads(whole), TriggerInputs("", cron_seconds=seconds, timezone=zone, starts_at=starts_at))
    most = max(len(part.ways), MOST_CANDIDATES // len(part.ways))
    ways = tuple(way for way in dict.fromkeys(Together.of(one, most) for one in part.ways) if _ever_fires(way))
    if not ways:
        [name] = json.loads(whole)
        raise InvalidInput(
            f"{name} never fires: {part.text:.120} have no fire in common; "
            f"Rota looks at {MOST_CANDIDATES:,} of their fires"
        )
    if not any(map(_recurs, ways)):
        [name] = json.loads(whole)
        raise InvalidInput(
            f"{name} fires too seldom: {part.text:.120} have a fire in common, and no next one in "
            f"{most:,} of their fires; Rota would not find it"
        )
    return ways, part.words, part.text


@lru_cache(maxsize=4096)
def _ever_fires(way: Together) -> bool:
    return _first(way) is not None


@lru_cache(maxsize=4096)
def _recurs(way: Together) -> bool:
    """Whether the search for the fire after its first one finds it, or that there is none. Else it has given up."""
    first = _first(way)
    if first is None or any(isinstance(one, OnceTrigger) for one in way.triggers):
        return True
    following, looked_at = way.next_after(first, way.most)
    return following is not None or looked_at < way.most


def _first(way: Together) -> datetime | None:
    begins = [one.moment for one in way.triggers if isinstance(one, OnceTrigger)]
    begins += [one.anchor for one in way.triggers if isinstance(one, IntervalTrigger)]
    return way.next_after(next(iter(begins), _LOOKED_FROM) - TICK, way.most)[0]


def _part(member: Any, inputs: TriggerInputs, level: int = 0) -> _Part:
    keys = member.keys() - {"timezone"} if isinstance(member, dict) else set()
    if len(keys) != 1 or not keys <= READ.keys() or ("timezone" in member and not keys <= IN_A_ZONE):
        raise InvalidInput(
            f"{member!r:.60} is no trigger of a combination; "
            'write {"cron": "0 9 * * mon"}, {"every": "15m"}, {"at": "2027-01-04T09:00"}, or a combination'
        )
    [key] = keys
    return READ[key](key, member, inputs, level)


def _group(name: str, member: Mapping[str, Any], inputs: TriggerInputs, level: int) -> _Part:
    members = member[name]
    if not isinstance(members, list) or not 2 <= len(members) <= MOST_MEMBERS:
        raise InvalidInput(
            f"{name} {members!r:.60}: write a list of 2 to {MOST_MEMBERS} triggers, such as {json.dumps(_EXAMPLE)}"
        )
    if level == MOST_LEVELS:
        raise InvalidInput(_TOO_DEEP)
    parts = [_part(one, inputs, level + 1) for one in members]
    plain = sum(part.plain for part in parts)
    of_each = [part.ways for part in parts]
    number = sum(map(len, of_each)) if name == "any_of" else prod(map(len, of_each))
    if max(plain, number) > MOST_MEMBERS:
        raise InvalidInput(
            f"{name} has {plain} triggers, which can fire in {number} ways; at most {MOST_MEMBERS} of each are taken"
        )
    ways = list(chain(*of_each)) if name == "any_of" else [tuple(chain(*choice)) for choice in product(*of_each)]
    words, between = GROUPS[name]
    listed = ", ".join(f"[{part.words}]" for part in parts)
    text = between.join(f"({part.text})" if part.is_group else part.text for part in parts)
    return _Part(ways, words.format(listed), text, plain, is_group=True)


def _cron(_: str, member: Mapping[str, Any], inputs: TriggerInputs, __: int) -> _Part:
    text = member["cron"]
    if not isinstance(text, str):
        raise InvalidInput(f"cron {text!r:.60}: write a cron expression, such as 0 9 * * mon")
    zone = _zone(member, inputs)
    trigger = CronTrigger.of(TriggerInputs(TriggerKind.CRON, text, inputs.cron_seconds, zone))
    return _plain(trigger, member)


def _interval(_: str, member: Mapping[str, Any], inputs: TriggerInputs, __: int) -> _Part:
    spec = {"every": member["every"]}
    return _plain(
        IntervalTrigger.of(TriggerInputs(TriggerKind.INTERVAL, trigger_spec=spec, starts_at=inputs.starts_at)), member
    )


def _once(_: str, member: Mapping[str, Any], inputs: TriggerInputs, __: int) -> _Part:
    spec = {"at": member["at"]}
    zone = _zone(member, inputs)
    return _plain(OnceTrigger.of(TriggerInputs(TriggerKind.ONCE, timezone=zone, trigger_spec=spec)), member)


READ = {"any_of": _group, "all_of": _group, "cron": _cron, "every": _interval, "at": _once}
"""For each key of a member the function that reads it."""

IN_A_ZONE = {"cron", "at"}
"""The members that may say their own zone."""


def _plain(trigger: Plain, member: Mapping[str, Any]) -> _Part:
    zone = f" {member['timezone']}" if "timezone" in member else ""
    return _Part([(trigger,)], trigger.describe() + zone, trigger.label() + zone)


def _zone(member: Mapping[str, Any], inputs: TriggerInputs) -> str:
    zone = member.get("timezone", inputs.timezone)
    if not isinstance(zone, str):
        raise InvalidInput(f"timezone {zone!r:.60}: write a name such as Asia/Shanghai")
    return zone


def written_members(value: Any) -> Any:
    """The members of a combination as JSON: code gives times and distances as objects, too. What is wrong stays.

    Raises InvalidInput for what is no time or no distance.

        written_members([{"every": timedelta(minutes=15)}])   # [{"every": 900}]
    """
    if not isinstance(value, list | tuple):
        return value
    return [
        {key: WRITTEN.get(key, lambda as_it_is: as_it_is)(inner) for key, inner in member.items()}
        if isinstance(member, dict)
        else member
        for member in value
    ]


WRITTEN: dict[str, Callable[[Any], Any]] = {
    "every": interval_seconds,
    "at": time_text,
    "any_of": written_members,
    "all_of": written_members,
    "fixed_delay": lambda value: interval_seconds(value, "fixed_delay"),
    "after": read_after,
}
"""For each field of a trigger that code may give as an object how it is written as JSON."""
