"""Limit places: how many instances of each limit the scheduler gives to workers, so that queues stay short.

This is for economy alone. Who may run is decided by the claim (``rota.shared.store.limit_slots``).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from rota.shared.database.transactions import Database
from rota.shared.domain.limits import MOST_AHEAD
from rota.shared.store import assignments, limit_slots
from rota.shared.store.limit_slots import LimitRow
from rota.shared.store.pending import Pending

SHRINK_AFTER_SECONDS = 1.0
"""What was given stays for a while before it counts as too much: workers poll once a second."""


Limited = list[tuple[Pending, str]]
"""Instances that wait for their limit, each with the reason."""


@dataclass(slots=True)
class Given:
    """What this scheduler has given to workers of one limit, and nobody has claimed, as far as it knows."""

    ahead: int
    """How many it gives beyond those that may start."""

    ids: set[int] = field(default_factory=set)
    at: float = float("-inf")
    """When it gave the last one, in seconds of the clock's ``monotonic``."""

    def look(self, still: Collection[int], least: int, now: float, *, has_room: bool = False) -> None:
        """Forget what was claimed. If that is half of it, give more the next time; if it is next to nothing, fewer.

        ``has_room``: the limit lets more start. Then what was given and does not start waits for something else, such
        as its turn or a slot of its worker. It takes no places from others.
        """
        left = self.ids & set(still)
        gone = len(self.ids) - len(left)
        if self.ids and 2 * gone >= len(self.ids):
            self.ahead = min(2 * self.ahead, MOST_AHEAD)
        elif 10 * gone < len(self.ids) and now - self.at > SHRINK_AFTER_SECONDS:
            self.ahead = max(least, self.ahead // 2)
            left = set() if has_room else left
        self.ids = left


class LimitPlaces:
    """Parts pages of pending instances into those whose limit has places, and those that wait for it.

    Of each limit as many are given as may start now, and some ahead: the workers start these as soon as others end.
    Where half of them have gone by the next look, twice as many are given ahead.

        near, waiting = places.part(page, unfit=())
        near, waiting = hand_on(Counter({"warehouse": 2}), waiting)  # two of the near ones have found no worker
        places.give(near)
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._given: dict[str, Given] = {}

    def part(self, page: Sequence[Pending], unfit: Collection[int]) -> tuple[list[Pending], Limited]:
        """The instances that may be placed, and those that wait for their limit, each with the reason.

        Those that no worker fits (``unfit``) take no place: they are tried, which says why they wait.
        """
        names = {p.limit_name for p in page if p.limit_name is not None}
        if not names:
            return list(page), []
        limits, left = self._look(names)
        near: list[Pending] = []
        waiting: Limited = []
        for one in page:
            name = one.limit_name
            if name is None or one.id in unfit:
                near.append(one)
            elif left[name] > 0:
                left[name] -= 1
                near.append(one)
            else:
                reason = one.reason if one.attempt > 0 else None
                waiting.append((one, reason or limit_slots.why_full(limits, name)))
        return near, waiting

    def give(self, placed: Iterable[Pending]) -> None:
        """Note that these are given to workers."""
        now = self._database.clock.monotonic()
        for one in placed:
            if one.limit_name in self._given:
                self._given[one.limit_name].ids.add(one.id)
                self._given[one.limit_name].at = now

    def _look(self, names: Collection[str]) -> tuple[dict[str, LimitRow], dict[str, int]]:
        """These limits, and how many instances of each may be given now."""
        asked = {i for name in names if name in self._given for i in self._given[name].ids}

        def read(connection: Connection) -> tuple[dict[str, LimitRow], set[int]]:
            return limit_slots.read(connection, names), assignments.still_assigned(connection, asked)

        limits, still = self._database.read(read)
        now = self._database.clock.monotonic()
        left = dict.fromkeys(names, 0)
        for name, row in limits.items():
            least = row.state.ahead()
            given = self._given.setdefault(name, Given(least))
            allowed = row.state.allowed(row.time)
            given.look(still, least, now, has_room=allowed > 0)
            is_open = row.state.max_running != 0 and row.state.starts_per_minute != 0
            left[name] = allowed + given.ahead - len(given.ids) if is_open else 0
        return limits, left


def unused_places(near: Iterable[Pending], settled: Collection[int]) -> Counter[str]:
    """How many places of each limit were meant for instances that no worker has room for.

    ``settled``: the ids of those that have a worker, or that none fits.
    """
    return Counter(p.limit_name for p in near if p.limit_name and p.id not in settled)


def hand_on(unused: Counter[str], limited: Limited) -> tuple[list[Pending], Limited]:
    """Part those that wait for their limit into the next ones, for its ``unused`` places, and the others."""
    near: list[Pending] = []
    still: Limited = []
    for one, reason in limited:
        name = one.limit_name or ""
        if unused[name] > 0:
            unused[name] -= 1
            near.append(one)
        else:
            still.append((one, reason))
    return near, still
