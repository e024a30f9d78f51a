"""Paging: a pass over all that is pending, page by page.

Far back in the line of a task whose stretch is worked off, instances wait for turns that come later. Only the oldest of
such a line are given. So behind its first page a pass reads where instances stand, and of each such line it passes over
those that the pass before has seen, but for the first ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from rota.scheduler_service.stretches import Seen, is_alone
from rota.shared.database.transactions import Database
from rota.shared.store import assignments
from rota.shared.store.assignments import Standing
from rota.shared.store.pending import Cursor, Pending


@dataclass(slots=True)
class Pass:
    """The outcome of a pass.

    ``seen``: how many instances it looked at; ``settled``: how many it gave to a worker or canceled; ``crowded``: some
    wait for room; ``cut``: it ended because it may look at no more; ``lines``: those that it has seen.
    """

    seen: int = 0
    settled: int = 0
    crowded: bool = False
    cut: bool = False
    lines: Seen = field(default_factory=Seen)

    def pass_over(self, passed: Sequence[Standing]) -> None:
        """It need not look at these again: they wait far back in lines."""
        self.seen += len(passed)
        self.lines.pass_over(passed)


class Page(NamedTuple):
    """A page of what is pending: the ``instances`` that are to be looked at, and those that are ``passed`` over."""

    instances: Sequence[Pending]
    passed: Sequence[Standing]
    length: int
    """How many there were when it was read. If it is shorter than asked for, it is the last one."""

    cursor: Cursor | None
    """Where the next page begins; None behind an empty one."""

    @classmethod
    def of(cls, instances: Sequence[Pending]) -> "Page":
        """A page of which all are to be looked at."""
        return cls(instances, (), len(instances), instances[-1].cursor if instances else None)


class FarBack:
    """Those that the last pass has seen in lines that are worked off, and that were told why they wait.

    far_back.begin(worked_off)
    page = far_back.page(database, horizon, limit, after)
    far_back.note(later)
    """

    def __init__(self) -> None:
        self._in_front: dict[int, int] = {}
        """Of how many more of each line that is worked off this pass is to read all: their turns may have come."""

        self._known: dict[int, Standing] = {}
        self._seen: dict[int, Standing] = {}
        self._is_strange = False
        """Whether a page of this pass showed nothing that is known. The pass before has not come so far."""

    def begin(self, worked_off: Mapping[int, int]) -> None:
        """A pass begins. ``worked_off``: how many of each line that is worked off may be given, at the most."""
        self._in_front = dict(worked_off)
        self._known = {i: one for i, one in self._seen.items() if one.task_id in worked_off}
        self._seen, self._is_strange = {}, False

    def note(self, later: Iterable[tuple[Pending, str]]) -> None:
        """These wait for turns that come later, each for a reason. The next pass may pass over those that have it."""
        for one, reason in later:
            if one.task_id in self._in_front and one.reason == reason and is_alone(one) and not one.is_out_of_line:
                self._seen[one.id] = Standing(one.id, one.task_id, one.priority, one.due_at)

    def page(self, database: Database, horizon: datetime, limit: int, after: Cursor) -> Page:
        """Up to ``limit`` pending instances due by ``horizon`` (naive UTC), after the cursor."""
        if not self._known or self._is_strange:
            return Page.of(database.read(lambda c: assignments.pending(c, horizon, limit, after)))
        standing = database.read(lambda c: assignments.standing(c, horizon, limit, after))
        passed = [one for one in standing if self._known.get(one.id) == one and not self._is_next_in_front(one)]
        self._seen.update((one.id, one) for one in passed)
        self._is_strange = not any(one.id in self._known for one in standing)
        others = {one.id for one in standing} - {one.id for one in passed}
        found = {one.id: one for one in database.read(lambda c: assignments.pending_of(c, others, horizon))}
        instances = [found[one.id] for one in standing if one.id in found]
        return Page(instances, passed, len(standing), standing[-1].cursor if standing else None)

    def _is_next_in_front(self, one: Standing) -> bool:
        """Whether it is among the first of its line, of which a pass reads all. Ask once for each, in their order."""
        self._in_front[one.task_id] -= 1
        return self._in_front[one.task_id] >= 0
