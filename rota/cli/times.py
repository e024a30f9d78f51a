"""Times as people write and read them. Inside Rota a time is naive UTC; here it meets zones and words."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from shared.domain.errors import InvalidInput, InvalidTimezone
from shared.domain.triggers.zones import load_zone, offsets_of, transition_between

SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def written_utc(moment: datetime) -> str:
    """A naive UTC time in ISO 8601: ``2026-11-21T02:00:00Z``."""
    return moment.isoformat() + "Z"


def localized(moment: datetime, zone: ZoneInfo) -> datetime:
    """A naive UTC time in a zone."""
    return moment.replace(tzinfo=UTC).astimezone(zone)


def written_local(moment: datetime, zone: ZoneInfo) -> str:
    """A naive UTC time in ISO 8601, in a zone and with its offset: ``2026-11-21T10:00:00+08:00``."""
    return localized(moment, zone).isoformat()


def shown_local(moment: datetime | None, zone: ZoneInfo) -> str | None:
    """A naive UTC time as people read it in a zone: ``2026-11-21 10:00:00+08:00``."""
    return None if moment is None else localized(moment, zone).isoformat(" ", "seconds")


def shown_utc(moment: datetime | None) -> str | None:
    """A naive UTC time as people read it: ``2026-11-21 02:00:00Z``."""
    return None if moment is None else moment.isoformat(" ", "seconds") + "Z"


def zone_of(name: str | None) -> ZoneInfo:
    """The zone of a row; UTC where SQL wrote one that does not exist."""
    try:
        return load_zone(name or "UTC")
    except InvalidTimezone:
        return ZoneInfo("UTC")


def span(seconds: float) -> str:
    """A duration in words: ``850 ms``, ``12.3 s``, ``3 min 20 s``, ``2 d 4 h``."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left = round(seconds)
    words: list[tuple[int, str]] = []
    for size, unit in SPANS:
        count, left = divmod(left, size)
        if count or words:
            words.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in words[:2] if count)


def relative(moment: datetime | None, now: datetime) -> str | None:
    """Where a time lies from now: ``in 3 min``, ``2 h ago``."""
    if moment is None:
        return None
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now" if seconds > 0 else "just now"
    whole = span(round(abs(seconds)))
    return f"in {whole}" if seconds > 0 else f"{whole} ago"


def between(start: datetime | None, end: datetime | None) -> str | None:
    """How long something took, in words."""
    return None if start is None or end is None else span((end - start).total_seconds())


def read_time(text: str, zone: ZoneInfo) -> tuple[datetime, str | None]:
    """A time that a user wrote in ISO 8601, naive ones in the zone: (naive UTC, what to tell about it or None).

    A local time that occurs twice is the first; one that does not occur is the first instant after the gap, as for
    cron. Raises InvalidInput.
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a time; write it as 2026-11-19T02:00, or with an offset") from None
    try:
        if given.tzinfo is not None:
            return given.astimezone(UTC).replace(tzinfo=None), None
        before, after = offsets_of(given, zone)
        if before == after:
            return given - before, None
        if before < after:
            return _after_gap(given, zone, before, after)
    except OverflowError:
        raise InvalidInput(f"{text!r} is too far from now") from None
    first = given - before
    return first, (
        f"{given} occurs twice in {zone.key}; the first is taken, {written_local(first, zone)} "
        f"(write {written_local(given - after, zone)} for the second)"
    )


def _after_gap(given: datetime, zone: ZoneInfo, before: timedelta, after: timedelta) -> tuple[datetime, str]:
    moment = transition_between(given - after, given - before, zone) or given - before
    taken = written_local(moment, zone)
    return moment, f"{given} does not occur in {zone.key}; the first instant after the gap is taken, {taken}"
