"""Time zones by their IANA name, and the instants at which their offset changes. All instants are naive UTC."""

from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import cache
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from rota.shared.domain.errors import InvalidTimezone

SECOND = timedelta(seconds=1)

_NOT_ZONES = {"localtime", "Factory"}  # the host's own zone, and the database's mark for "not set"


@cache
def load_zone(name: str) -> ZoneInfo:
    """The time zone of that name in the IANA database; cached.

    Raises InvalidTimezone, which suggests similar names, for any other name. ``localtime`` is refused too, because it
    means another zone on each host.

        >>> load_zone("Asia/Shanghai")
        zoneinfo.ZoneInfo(key='Asia/Shanghai')
    """
    if name not in _names():
        raise InvalidTimezone(f"There is no time zone {name[:60]!a}; {_suggestion(name)}.")
    return ZoneInfo(name)


@cache
def _names() -> frozenset[str]:
    return frozenset(available_timezones() - _NOT_ZONES)


def _suggestion(name: str) -> str:
    """Names with a similar spelling, or with a last part (the city) of a similar spelling."""
    spellings = {known.rpartition("/")[2].casefold(): known for known in sorted(_names()) if "/" in known}
    spellings |= {known.casefold(): known for known in sorted(_names())}
    wanted = name[:60].casefold().replace(" ", "_")
    alike = [wanted] if wanted in spellings else get_close_matches(wanted, spellings, n=3, cutoff=0.75)
    known = dict.fromkeys(spellings[match] for match in alike) or ("Europe/Berlin", "Asia/Shanghai", "UTC")
    return f"use a name of the IANA database, such as {' or '.join(known)}"


def offset_at(instant: datetime, zone: ZoneInfo) -> timedelta:
    """How far the zone's local time is ahead of UTC at an instant."""
    return zone.fromutc(instant.replace(tzinfo=zone)).replace(tzinfo=None) - instant


def offsets_of(reading: datetime, zone: ZoneInfo) -> tuple[timedelta, timedelta]:
    """The offsets before and after the transition that makes a wall-clock reading ambiguous or nonexistent.

    For a reading that occurs exactly once the two are equal. In a fold the first is greater, in a gap the second
    (PEP 495).
    """
    local = reading.replace(tzinfo=zone)
    return cast("timedelta", local.utcoffset()), cast("timedelta", local.replace(fold=1).utcoffset())


def transition_between(early: datetime, late: datetime, zone: ZoneInfo) -> datetime | None:
    """The instant in (early, late] at which the zone's offset changes, or None if it does not.

    It bisects by whole seconds. ``early`` and ``late`` must be so close that at most one transition lies between them.
    (In the IANA database 2026f, two transitions of a zone are always more than three days apart.)
    """
    offset = offset_at(early, zone)
    if offset_at(late, zone) == offset:
        return None
    while late - early > SECOND:
        middle = early + SECOND * ((late - early) // (2 * SECOND))
        if offset_at(middle, zone) == offset:
            early = middle
        else:
            late = middle
    return late
