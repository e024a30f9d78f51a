"""Kinds of tasks: which of them the database takes, and which tasks are of kinds that some schedulers do not know.

A newer Rota may know more kinds of triggers and more misfire policies than this one. Its migration adds the words to
the columns. So the database itself tells a new kind from a word that SQL wrote past the checks.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, inspect, not_, select

from rota.shared.database.constructs import by_index
from rota.shared.domain.deciding import known_kinds
from rota.shared.domain.states import TaskStatus
from rota.shared.store.tables import schedule_task

_task = schedule_task.c

Kinds = Mapping[str, Sequence[str]]
"""Words, by the column of ``schedule_task`` in which they say of what kind a task is."""

ARE_KNOWN: ColumnElement[bool] = and_(*(_task[column].in_(words) for column, words in known_kinds().items()))
"""The condition that this Rota knows the kinds of a task, and so can plan it."""


def takes(connection: Connection, column: str, word: str) -> bool:
    """Whether the database takes a word in this column of ``schedule_task``, by its enum or its CHECK.

    takes(connection, "trigger_kind", "solar")
    """
    inspector = inspect(connection)
    types = {found["name"]: found["type"] for found in inspector.get_columns(schedule_task.name)}
    words = getattr(types[column], "enums", None)
    if words is not None:
        return word in words
    word_type: Any = _task[column].type
    name = f"ck_{schedule_task.name}_{word_type.name}"
    checks = inspector.get_check_constraints(schedule_task.name)
    return any(check["name"] == name and f"'{word}'" in check["sqltext"] for check in checks)


def others(connection: Connection, kinds: Kinds) -> dict[tuple[str, str], int]:
    """How many tasks that are on are of none of these kinds, by (column, word). It reads all tasks that are on."""
    found: dict[tuple[str, str], int] = {}
    for column, words in kinds.items():
        counts = select(_task[column], func.count()).group_by(_task[column])
        of_others = counts.where(
            _task.status == TaskStatus.ON.value, _task[column].not_in(list(words)), _task.is_deleted == 0
        )
        rows = connection.execute(by_index(of_others, schedule_task, "ix_schedule_task_due"))
        found |= {(column, word): number for word, number in rows}
    return found


_of_kinds = select(*(_task[column] for column in known_kinds())).distinct().where(not_(ARE_KNOWN))


def neglected(connection: Connection, since: datetime) -> set[tuple[str, str]]:
    """The kinds that this Rota does not know and of which no other takes care: (column, word).

    A task of such a kind was due before ``since`` (naive UTC), or was edited before and has no new plan.
    """
    due = _of_kinds.where(_task.status == TaskStatus.ON.value, _task.next_fire_at < since)
    stale = _of_kinds.where(_task.plan_stale == 1, _task.gmt_modified < since)
    rows = [
        *connection.execute(by_index(due, schedule_task, "ix_schedule_task_due")),
        *connection.execute(by_index(stale, schedule_task, "ix_schedule_task_stale")),
    ]
    known = known_kinds()
    words = {pair for row in rows for pair in zip(known, row, strict=True)}
    return {(column, word) for column, word in words if word not in known[column]}
