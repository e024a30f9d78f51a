"""Formats times for people: in a zone, in words, relative to now."""

from datetime import datetime
from zoneinfo import ZoneInfo

from rota.shared.domain.times import localized, span


def moment_of(text: str | None) -> datetime | None:
    """A time of a document as naive UTC. None for none, and for a date that does not exist, which SQL may write."""
    try:
        return None if text is None else datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


def shown_local(moment: datetime | None, zone: ZoneInfo) -> str | None:
    """A naive UTC time as people read it in a zone: ``2026-11-21 10:00:00+08:00``."""
    return None if moment is None else localized(moment, zone).isoformat(" ", "seconds")


def shown_utc(moment: datetime | None) -> str | None:
    """A naive UTC time as people read it: ``2026-11-21 02:00:00Z``."""
    return None if moment is None else moment.isoformat(" ", "seconds") + "Z"


def relative(moment: datetime | None, now: datetime) -> str | None:
    """A time relative to now: ``in 3 min``, ``2 h ago``."""
    if moment is None:
        return None
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now" if seconds > 0 else "just now"
    whole = span(round(abs(seconds)))
    return f"in {whole}" if seconds > 0 else f"{whole} ago"


def between(start: datetime | None, end: datetime | None) -> str | None:
    """The duration from ``start`` to ``end``, in words. None: one of them is missing."""
    return None if start is None or end is None else span((end - start).total_seconds())
