"""Time zones by their IANA name, and where their clocks are moved. Instants are naive UTC throughout."""

from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import cache
from typing import cast
from zoneinfo import ZoneInfo, available_timezones

from shared.domain.errors import InvalidTimezone

SECOND = timedelta(seconds=1)

_NOT_ZONES = {"localtime", "Factory"}  # the host's own zone, and the database's mark for "not set"


@cache
def load_zone(name: str) -> ZoneInfo:
    """The time zone of that name in the IANA database; cached.

    Raises InvalidTimezone for anything else (``localtime``, which differs from host to host, among it), naming the
    value and what is spelt alike.

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
    """Names that are spelt like it, or whose last part (the city) is."""
    spellings = {known.rpartition("/")[2].casefold(): known for known in sorted(_names()) if "/" in known}
    spellings |= {known.casefold(): known for known in sorted(_names())}
    wanted = name[:60].casefold().replace(" ", "_")
    alike = [wanted] if wanted in spellings else get_close_matches(wanted, spellings, n=3, cutoff=0.75)
    known = dict.fromkeys(spellings[match] for match in alike) or ("Europe/Berlin", "Asia/Shanghai", "UTC")
    return f"use a name of the IANA database, such as {' or '.join(known)}"


def offset_at(instant: datetime, zone: ZoneInfo) -> timedelta:
    """What that zone's clocks are ahead of UTC at an instant."""
    return zone.fromutc(instant.replace(tzinfo=zone)).replace(tzinfo=None) - instant


def offsets_of(reading: datetime, zone: ZoneInfo) -> tuple[timedelta, timedelta]:
    """The offsets before and after the transition that makes a wall-clock reading ambiguous or nonexistent.

    The two are equal for a reading that occurs just once; the first is the greater one in a fold, the second in a gap
    (PEP 495).
    """
    local = reading.replace(tzinfo=zone)
    return cast("timedelta", local.utcoffset()), cast("timedelta", local.replace(fold=1).utcoffset())


def transition_between(early: datetime, late: datetime, zone: ZoneInfo) -> datetime | None:
    """The instant in (early, late] from which another offset holds, or None.

    Bisects by seconds; ``early`` and ``late`` must be so near that only one transition can lie between them. (In the
    database, 2026f, no two of a zone are within three days of each other.)
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
