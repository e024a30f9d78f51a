"""Times as documents and people write them. Inside Rota every time is naive UTC; this module converts it."""

from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard
from zoneinfo import ZoneInfo

from rota.shared.domain.errors import InvalidInput, InvalidTimezone
from rota.shared.domain.triggers.zones import load_zone, offsets_of, transition_between

EARLIEST = datetime(1970, 1, 1)  # noqa: DTZ001 - naive UTC, as all times here
LATEST = datetime(9999, 11, 30, 23, 59, 59, 999_999)  # noqa: DTZ001
"""The times that Rota takes. The last month of the year 9999 is left out, so that no time zone and no delay that Rota
adds to one of them can overflow."""

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def is_time(value: Any) -> TypeGuard[datetime]:
    """Whether a value that the database gave is a time that Rota takes.

    SQL may have written a zero day or month, which is no ``datetime``, or a time that is out of range.

        is_time("2026-00-10 02:00:00")   # False
    """
    return isinstance(value, datetime) and value.tzinfo is None and EARLIEST <= value <= LATEST


def why_no_time(value: Any) -> str:
    """What is wrong with a value for which ``is_time`` is False, in a sentence."""
    if isinstance(value, datetime):
        return f"{value} is out of range; a time is from {EARLIEST:%Y-%m-%d} to {LATEST:%Y-%m-%d}"
    return f"{value!r} is no date: SQL wrote a day or month that does not exist"


def written_utc(moment: datetime) -> str:
    """A naive UTC time as ISO 8601 text: ``2026-11-21T02:00:00Z``."""
    return moment.isoformat() + "Z"


def localized(moment: datetime, zone: ZoneInfo) -> datetime:
    """A naive UTC time as an aware time in a zone."""
    return moment.replace(tzinfo=UTC).astimezone(zone)


def written_local(moment: datetime, zone: ZoneInfo) -> str:
    """A naive UTC time as ISO 8601 text in a zone, with the offset: ``2026-11-21T10:00:00+08:00``."""
    return localized(moment, zone).isoformat()


def zone_of(name: str | None) -> ZoneInfo:
    """The zone of a row; UTC if the row has none, or if SQL wrote a zone that does not exist."""
    try:
        return load_zone(name or "UTC")
    except InvalidTimezone:
        return ZoneInfo("UTC")


def span(seconds: float) -> str:
    """A duration in words, as all texts for people have it: ``850 ms``, ``12.3 s``, ``3 min 20 s``, ``2 d 4 h``."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left = round(seconds)
    words: list[tuple[int, str]] = []
    for size, unit in UNITS:
        count, left = divmod(left, size)
        if count or words:
            words.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in words[:2] if count)


def read_time(text: str, zone: ZoneInfo) -> tuple[datetime, str | None]:
    """Read a time that a user wrote in ISO 8601: (naive UTC, a remark for the user or None).

    A text without an offset is local time in ``zone``. If that local time occurs twice, the first is taken. If it does
    not occur, the first instant after the gap is taken, as for cron. In both cases the remark says so.
    Raises InvalidInput for a text that is no time, or a time that is out of range (``EARLIEST``, ``LATEST``).

        read_time("2026-11-21T10:00", ZoneInfo("Asia/Shanghai"))   # (datetime(2026, 11, 21, 2, 0), None)
    """
    try:
        moment, remark = _read(text, zone)
        if is_time(moment):
            return moment, remark
    except OverflowError:
        pass
    raise InvalidInput(f"{text!r} is too far from now; a time is from {EARLIEST:%Y-%m-%d} to {LATEST:%Y-%m-%d}")


def _read(text: str, zone: ZoneInfo) -> tuple[datetime, str | None]:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a time; write it as 2026-11-19T02:00, or with an offset") from None
    if given.tzinfo is not None:
        return given.astimezone(UTC).replace(tzinfo=None), None
    before, after = offsets_of(given, zone)
    if before == after:
        return given - before, None
    if before < after:
        return _after_gap(given, zone, before, after)
    first = given - before
    return first, (
        f"{given} occurs twice in {zone.key}; the first is taken, {written_local(first, zone)} "
        f"(write {written_local(given - after, zone)} for the second)"
    )


def _after_gap(given: datetime, zone: ZoneInfo, before: timedelta, after: timedelta) -> tuple[datetime, str]:
    moment = transition_between(given - after, given - before, zone) or given - before
    taken = written_local(moment, zone)
    return moment, f"{given} does not occur in {zone.key}; the first instant after the gap is taken, {taken}"
