"""An oracle for every kind of trigger that fires by the clock: random triggers, and their fires by a literal scan.

A window is scanned minute by minute: what the zone's clock shows then, by ``zoneinfo`` alone. A cron fires where the
rule says so (cron_scan), an interval where whole distances have passed since its anchor, a single time where its
reading is first met, and a combination at the union or the intersection of its members' fires. No code of the product
is called.
"""

import random
from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from tests.harness.cron_scan import Meant, Tick, random_expression, scan, ticks

EPOCH = datetime.fromisoformat("1970-01-01")
END = datetime.fromisoformat("2100-01-01")
DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)

WARM_UP = 26 * HOUR
"""So long before its begin a window is scanned: the first pass of a fold may lie there."""

ZONES = (
    "Australia/Lord_Howe",  # half an hour
    "Pacific/Apia",  # a day that never was
    "Atlantic/Azores",
    "Antarctica/Troll",  # two hours
    "Asia/Kolkata",
    "Pacific/Chatham",  # a quarter of an hour beside the others
    "America/Sao_Paulo",  # at midnight
    "Europe/Berlin",
)


@cache
def transitions(zone_name: str) -> list[datetime]:
    """The instants from 1970 to 2100 at which the zone's offset changes, to the minute."""
    zone = ZoneInfo(zone_name)

    def offset(minute: int) -> timedelta | None:
        return (EPOCH + MINUTE * minute).replace(tzinfo=UTC).astimezone(zone).utcoffset()

    days = [(minute, offset(minute)) for minute in range(0, (END - EPOCH) // MINUTE, 1440)]
    changed = [(early, before) for (early, before), (_, after) in pairwise(days) if before != after]
    minutes = [early + bisect(range(1440), 0, key=lambda n: offset(early + n) != before) for early, before in changed]
    return [EPOCH + MINUTE * minute for minute in minutes]


@dataclass
class Window:
    """A stretch of time, and what the clocks of zones show in it."""

    begin: datetime
    end: datetime
    middle: datetime
    _scanned: dict[str, list[Tick]] = field(default_factory=dict)

    def ticks(self, zone: str) -> list[Tick]:
        """Minute by minute, from before the begin."""
        if zone not in self._scanned:
            self._scanned[zone] = ticks(zone, self.begin - WARM_UP, self.end, MINUTE)
        return self._scanned[zone]


@dataclass(frozen=True)
class Case:
    """Columns of a task that make a trigger, and its fires in a window."""

    kind: str
    columns: Mapping[str, Any]
    fires: frozenset[datetime]


def random_case(rng: random.Random, kind: str, window: Window, zone: str) -> Case:
    """A trigger of a kind; of some the task's ``starts_at`` and ``ends_at`` clip it."""
    starts_at, ends_at = _clip(rng, window)
    case = CASES[kind](rng, window, zone, starts_at)
    inside = {fire for fire in case.fires if (starts_at or EPOCH) <= fire <= (ends_at or END)}
    columns = {**case.columns, "timezone": zone, "starts_at": starts_at, "ends_at": ends_at}
    return Case(kind.partition(" ")[0], columns, frozenset(inside))


def _clip(rng: random.Random, window: Window) -> tuple[datetime | None, datetime | None]:
    minutes = (window.end - window.begin) // MINUTE
    starts_at = window.begin + MINUTE * rng.randrange(minutes) if rng.random() < 0.2 else None
    ends_at = window.end - MINUTE * rng.randrange(minutes) if rng.random() < 0.1 else None
    is_window = starts_at is None or ends_at is None or starts_at <= ends_at
    return starts_at, ends_at if is_window else None


def _crons(rng: random.Random, window: Window, zone: str, _: datetime | None) -> Case:
    meant = [_expression(rng, window, zone) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    fires = {fire for one in meant for fire in scan(one, window.ticks(zone))}
    return Case("cron", {"cron": "; ".join(one.text for one in meant)}, frozenset(fires))


def _expression(rng: random.Random, window: Window, zone: str, *, seconds: bool = False) -> Meant:
    near = window.middle.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    return random_expression(rng, near, seconds=seconds)


def _crons_by_second(rng: random.Random, window: Window, zone: str, _: datetime | None) -> Case:
    """The seconds of a minute have one offset, since these zones' clocks change on full minutes."""
    meant = _expression(rng, window, zone, seconds=True)
    by_minute, fires = replace(meant, seconds={0}), set()
    for tick in window.ticks(zone):
        if by_minute.matches(tick.wall) and not (meant.fixed and tick.again):
            fires |= {tick.instant + SECOND * second for second in meant.seconds}
        if meant.fixed and any(map(by_minute.matches, tick.jumped)):
            fires.add(tick.instant)
    return Case("cron", {"cron": meant.text, "cron_seconds": 1}, frozenset(fires))


def _interval(rng: random.Random, window: Window, _: str, starts_at: datetime | None) -> Case:
    seconds = rng.choice([rng.randint(20, 90), rng.randint(60, 20_000), 60, 900, 3600, 86_400, 604_800])
    fires = _distances(seconds, window, starts_at)
    return Case("interval", {"trigger_spec": {"every": seconds}}, frozenset(fires))


def _distances(seconds: int, window: Window, starts_at: datetime | None) -> set[datetime]:
    anchor = starts_at or EPOCH
    first, last = ((moment - anchor) // SECOND for moment in (window.begin - WARM_UP, window.end))
    return {anchor + SECOND * passed for passed in range(max(0, first // seconds * seconds), last + 1, seconds)}


def _once(rng: random.Random, window: Window, zone: str, _: datetime | None) -> Case:
    spec, fires = _single(rng, window, zone)
    return Case("once", {"trigger_spec": spec}, fires)


def _single(rng: random.Random, window: Window, zone: str) -> tuple[dict[str, Any], frozenset[datetime]]:
    near = [tick for tick in window.ticks(zone) if abs(tick.instant - window.middle) <= 3 * HOUR]
    tick = rng.choice(near if rng.random() < 0.7 else [t for t in window.ticks(zone) if t.instant > window.begin])
    reading = rng.choice([tick.wall, *tick.jumped])
    if rng.random() < 0.2:
        return {"at": f"{tick.instant.isoformat()}+00:00"}, frozenset({tick.instant})
    first = next(t.instant for t in window.ticks(zone) if reading == t.wall or reading in t.jumped)
    return {"at": reading.isoformat()}, frozenset({first})


def _combined(rng: random.Random, window: Window, zone: str, starts_at: datetime | None) -> Case:
    spec, fires = _group(rng, window, zone, starts_at)
    return Case("combined", {"trigger_spec": spec}, fires)


def _group(
    rng: random.Random, window: Window, zone: str, starts_at: datetime | None, level: int = 0
) -> tuple[dict[str, Any], frozenset[datetime]]:
    name = rng.choice(["any_of", "all_of"])
    members = [_member(rng, window, zone, starts_at, level) for _ in range(rng.randint(2, 3))]
    of_each = [fires for _, fires in members]
    together = frozenset.union(*of_each) if name == "any_of" else frozenset.intersection(*of_each)
    return {name: [spec for spec, _ in members]}, together


def _member(
    rng: random.Random, window: Window, zone: str, starts_at: datetime | None, level: int
) -> tuple[dict[str, Any], frozenset[datetime]]:
    """Mostly one that fires often, so that there are instants at which all fire."""
    kind = rng.choice(["often", "often", "cron", "interval", "once", "group", "group"])
    if kind == "group" and level < 1:
        return _group(rng, window, zone, starts_at, level + 1)
    if kind == "interval":
        minutes = rng.choice([1, 2, 3, 5, 7, 10, 15, 45, 60, 90, 1440])
        return {"every": 60 * minutes}, frozenset(_distances(60 * minutes, window, starts_at))
    if kind == "once":
        return _single(rng, window, zone)
    own = {"timezone": rng.choice(ZONES)} if rng.random() < 0.1 else {}
    read_in = own.get("timezone", zone)
    meant = _expression(rng, window, read_in) if kind == "cron" else _frequent(rng)
    return {"cron": meant.text, **own}, frozenset(scan(meant, window.ticks(read_in)))


def _frequent(rng: random.Random) -> Meant:
    """Every few minutes, in some hours; as a fixed time or as one that follows real time."""
    step, first = rng.choice([1, 2, 5, 15, 30]), rng.choice([0, 0, 6])
    is_fixed = rng.random() < 0.5
    minute, hour = (f"0-59/{step}", f"{first}-23") if is_fixed else (f"*/{step}", f"{first}-23")
    minutes, hours = set(range(0, 60, step)), set(range(first, 24))
    return Meant(f"{minute} {hour} * * *", {0}, minutes, hours, None, set(range(1, 13)), None, is_fixed)


Build = Callable[[random.Random, Window, str, datetime | None], Case]

CASES: dict[str, Build] = {
    "cron": _crons,
    "interval": _interval,
    "once": _once,
    "combined": _combined,
    "cron by second": _crons_by_second,
}
"""For each kind of trigger that fires by the clock how a random one is made."""
