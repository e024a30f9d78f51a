"""How far a listener has been told of what the rows of a table say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from rota.shared.domain.times import is_time

SETTLED = timedelta(seconds=60)
"""Behind a row that is older than this nothing is committed any more that stands before it: no transaction of Rota's
lasts as long, and the clocks of a cluster do not differ by as much."""

MOST_OPEN = 10_000
"""So many rows behind a place are read at most. What stands behind them is read when the first ones are settled."""

Place = tuple[int, str] | tuple[str, int]
"""Where a row stands: by its id, and the time when it was written; or by the time when it changed, and its id."""


def text_of(moment: object) -> str:
    """A time as places have it, which are compared as texts: 2026-11-25 12:00:00.000000."""
    return moment.isoformat(" ", "microseconds") if isinstance(moment, datetime) else str(moment)


class Entry(NamedTuple):
    """A row of a table that is read for events: where it stands, its id, and when it was written (naive UTC)."""

    place: Place
    row_id: int
    written_at: object

    def is_settled(self, now: datetime) -> bool:
        """Whether it is old enough; or its time is none, or ahead of the clock: then nobody knows how old it is."""
        at = self.written_at
        return not (is_time(at) and now - SETTLED < at < now + SETTLED)


@dataclass(slots=True)
class Told:
    """All up to ``place`` was told, and of what follows ``beyond``.

    Ids are given in order, and committed in any. So what was committed later than a row that stands behind it is still
    found: ``place`` moves on over rows that are settled.

        told = Told((17, "2026-11-25 12:00:00.000000"))
        new = told.untold(entries)      # in their order
        told.add(new[0]); told.settle(entries, now)
    """

    place: Place
    beyond: set[Place] = field(default_factory=set)

    def untold(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those that were not told."""
        return [entry for entry in entries if entry.place > self.place and entry.place not in self.beyond]

    def add(self, entry: Entry) -> None:
        """This one was told."""
        self.beyond.add(entry.place)

    def settle(self, entries: Sequence[Entry], now: datetime) -> None:
        """Move ``place`` over those of the entries, in their order, that were told and were settled at ``now``.

        ``entries``: all behind ``place``, or the first ``MOST_OPEN``, as they were read after ``now``. In the order of
        a time ``place`` stays ``SETTLED`` behind ``now``, because a row may have any time.
        """
        by_time, latest, are_all = isinstance(self.place[0], str), text_of(now - SETTLED), len(entries) < MOST_OPEN
        all_told = not self.untold(entries)
        for entry in entries:
            is_old = str(entry.place[0]) < latest if by_time else entry.is_settled(now)
            if entry.place > self.place and not (is_old and entry.place in self.beyond):
                break
            self.place = max(self.place, entry.place)
        if by_time and are_all and all_told:
            self.place = max(self.place, (latest, 0))
        present = {entry.place for entry in entries} if are_all else self.beyond
        self.beyond = {place for place in self.beyond & present if place > self.place}

    def go_back(self, now: datetime) -> None:
        """The clock may have been set back: what is written from now on is to be found."""
        latest = (text_of(now - SETTLED), 0)
        if isinstance(self.place[0], str) and self.place > latest:
            self.place = latest

    def is_beyond(self, newest_id: float) -> bool:
        """Whether the table gives ids again that it gave before, as after a TRUNCATE."""
        return isinstance(self.place[0], int) and self.place[0] > newest_id

    def as_json(self) -> dict[str, Any]:
        """As ``read`` takes it."""
        return {"place": list(self.place), "beyond": sorted(map(list, self.beyond))}

    @classmethod
    def read(cls, value: Any, *, by_time: bool) -> "Told | None":
        """What ``as_json`` has written; None for anything else, and for places of the other kind."""
        if not isinstance(value, Mapping) or not isinstance(value.get("beyond"), list):
            return None
        places = [_place(one, by_time=by_time) for one in (value.get("place"), *value["beyond"])]
        read = [one for one in places if one is not None]
        return cls(read[0], set(read[1:])) if len(read) == len(places) else None


def _place(value: Any, *, by_time: bool) -> Place | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    text, number = value if by_time else reversed(value)
    if not isinstance(text, str) or type(number) is not int or not 0 <= number < 2**63:
        return None
    if by_time and not _is_written_time(text):
        return None
    return (text, number) if by_time else (number, text)


def _is_written_time(text: str) -> bool:
    try:
        return text_of(datetime.fromisoformat(text)) == text
    except ValueError:
        return False
