"""A row that somebody else has locked, of a task that is due, holds back that task alone: the materializer goes on.

The locks are those of a console that was left open in a transaction. SQLite has no locks of rows.
"""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.settings import Settings
from tests.harness.scenario import Scenario
from tests.harness.together import uncommitted

MINUTE = timedelta(minutes=1)


def materializer(rows: Scenario, **settings: Any) -> Materializer:
    return Materializer(rows.database, Settings.load(lookahead_seconds=300, **settings))


def fired(rows: Scenario) -> set[int]:
    """The tasks that have instances."""
    return {row[0] for row in rows.sql("SELECT DISTINCT schedule_task_id FROM schedule_instance")}


def off(*tasks: int) -> Any:
    """An operator's UPDATE of these tasks."""

    def update(connection: Connection) -> None:
        for task in tasks:
            connection.execute(text("UPDATE schedule_task SET status = 'off' WHERE id = :id"), {"id": task})

    return update


def test_an_uncommitted_edit_of_one_task_holds_back_that_task_alone(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    edited, other = rows.planned_task(rows.start - MINUTE), rows.planned_task()
    duty = materializer(rows)
    with uncommitted(rows.database, off(edited)):
        duty.step()
        assert fired(rows) == {other}
        duty.step()
        later = rows.planned_task()
        duty.step()
        assert fired(rows) == {other, later}
    assert rows.task_row(edited).next_fire_at == rows.start - MINUTE


def test_locked_tasks_that_fill_a_batch_hold_back_no_other(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    edited = [rows.planned_task(rows.start - MINUTE) for _ in range(5)]
    others = {rows.planned_task() for _ in range(3)}
    duty = materializer(rows, batch=2)
    with uncommitted(rows.database, off(*edited)):
        steps = 0
        while fired(rows) != others and steps < 20:
            duty.step()
            steps += 1
    assert fired(rows) == others


@pytest.mark.parametrize(
    ("table", "where"),
    [("schedule_instance", "schedule_task_id = :task"), ("schedule_task_node", "schedule_instance_id > 0")],
)
def test_a_lock_on_a_fire_that_a_new_plan_drops_holds_back_that_plan_alone(
    mariadb_rows: Scenario, table: str, where: str
) -> None:
    rows = mariadb_rows
    rows.worker()
    task = rows.planned_task(rows.start + MINUTE)
    materializer(rows).step()
    assert fired(rows) == {task}
    rows.sql("UPDATE schedule_task SET cron = '0 3 1 1 *' WHERE id = :task", task=task)
    other = rows.planned_task(rows.start - MINUTE)
    lock = text(f"SELECT id FROM {table} WHERE {where} FOR UPDATE")
    with uncommitted(rows.database, lambda c: c.execute(lock, {"task": task} if ":task" in where else {}).all()):
        duty = materializer(rows)
        duty.step()
        assert fired(rows) == {task, other}
        assert rows.task_row(task).plan_stale == 1
    rows.sql("UPDATE schedule_task_lock SET is_locked = 0")
    duty.step()
    assert rows.task_row(task).plan_stale is None
    assert fired(rows) == {other}
