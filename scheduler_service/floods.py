"""Floods: groups of which so much is given that others would find no room. Of each worker's room they get a part."""

from rota.shared.clock import Timer
from rota.shared.domain.groups import Group

KEPT = 0.1
"""The part of each worker's room that is kept for the instances of other groups. And a group of which so much of the
whole room is given within one snapshot of the fleet is a flood."""

REMEMBERED_SECONDS = 5.0
"""So long a group counts as a flood after it was noted last."""

OTHERS_SECONDS = 60.0
"""Room is kept for so long after an instance of another group was to be given. A group that is alone gets all."""


class Floods:
    """The groups that are floods, as far as this scheduler has seen. It goes by what it gives, and remembers no rows.

    floods.see("shop 7"); floods.note("flood"); floods.hold_back("flood")
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._until: dict[Group, float] = {}
        self._last: Group = None
        self._others_until = float("-inf")

    def hold_back(self, group: Group) -> bool:
        """Whether room is kept from this group: it is a flood, and there are others."""
        until = self._until.get(group)
        return until is not None and until > self._timer.monotonic() and self.keep_room

    @property
    def keep_room(self) -> bool:
        """Whether there are several groups, so that room is kept from one that is a flood."""
        return self._others_until > self._timer.monotonic()

    def see(self, group: Group) -> None:
        """An instance of this group is to be given."""
        if group != self._last:
            if self._last is not None:
                self._others_until = self._timer.monotonic() + OTHERS_SECONDS
            self._last = group

    def note(self, group: Group) -> None:
        """This group is a flood: it was given much of the room, or is a crowd among what waits for room."""
        now = self._timer.monotonic()
        if group not in self._until:
            self._until = {one: until for one, until in self._until.items() if until > now}
        self._until[group] = now + REMEMBERED_SECONDS


def without_kept(room: int) -> int:
    """How much of a worker's room a flood may take: ``without_kept(10_050) == 9_045``, ``without_kept(5) == 5``."""
    return room - int(room * KEPT)
