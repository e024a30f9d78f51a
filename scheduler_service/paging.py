"""Paging: a pass over all that is pending, page by page.

Far back in the line of a task whose stretch is worked off, instances wait for turns that come later. Only the oldest of
such a line are given, and a look at the stretch does that. So behind its first page a pass reads where instances stand,
and passes over those that the pass before has seen far back.
"""

from collections.abc import Collection, Iterable, Sequence
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
    """Those that the last pass has seen far back in lines.

    far_back.begin(worked_off)
    page = far_back.page(database, horizon, limit, after)
    far_back.note(later)
    """

    def __init__(self) -> None:
        self._worked_off: Collection[int] = ()
        self._known: dict[int, Standing] = {}
        self._seen: dict[int, Standing] = {}

    def begin(self, worked_off: Iterable[int]) -> None:
        """A pass begins. ``worked_off``: the tasks whose stretches are worked off."""
        self._worked_off = frozenset(worked_off)
        self._known = {i: one for i, one in self._seen.items() if one.task_id in self._worked_off}
        self._seen = {}

    def note(self, later: Iterable[tuple[Pending, str]]) -> None:
        """These wait for turns that come later, each for a reason. They are passed over once their rows tell it."""
        for one, reason in later:
            if one.task_id in self._worked_off and one.reason == reason and is_alone(one):
                self._seen[one.id] = Standing(one.id, one.task_id, one.priority, one.due_at)

    def page(self, database: Database, horizon: datetime, limit: int, after: Cursor) -> Page:
        """Up to ``limit`` pending instances due by ``horizon`` (naive UTC), after the cursor."""
        if not self._known:
            return Page.of(database.read(lambda c: assignments.pending(c, horizon, limit, after)))
        standing = database.read(lambda c: assignments.standing(c, horizon, limit, after))
        passed = [one for one in standing if self._known.get(one.id) == one]
        self._seen.update((one.id, one) for one in passed)
        others = {one.id for one in standing} - {one.id for one in passed}
        found = {one.id: one for one in database.read(lambda c: assignments.pending_of(c, others, horizon))}
        instances = [found[one.id] for one in standing if one.id in found]
        return Page(instances, passed, len(standing), standing[-1].cursor if standing else None)
