"""A task with several cron expressions, from the row to its instances, on each database."""

from datetime import datetime, timedelta

import pytest

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import tasks
from rota.shared.control.actor import Actor
from rota.shared.domain.errors import InvalidInput
from rota.shared.settings import Settings
from tests.harness.scenario import Scenario

ANN = Actor("ann", "cli")
MINUTE = timedelta(minutes=1)


def materialize(rows: Scenario, *, seconds: int) -> None:
    duty = Materializer(rows.database, Settings.load(lookahead_seconds=seconds))
    while duty.step() == 0:
        pass


def fires(rows: Scenario) -> list[datetime]:
    made = rows.sql("SELECT schedule_datetime FROM schedule_instance ORDER BY schedule_datetime")
    return [datetime.fromisoformat(str(moment)) for (moment,) in made]


def test_fires_that_meet_make_one_instance(rows: Scenario) -> None:
    first = rows.start.replace(second=0) + MINUTE
    rows.planned_task(first, cron="1-59/2 * * * *; * * * * *; */2 * * * *")
    materialize(rows, seconds=300)
    made = fires(rows)
    assert len(made) >= 4
    assert made == [first + MINUTE * number for number in range(len(made))]


def test_sql_writes_several_and_a_wrong_one_sets_the_task_aside_by_its_name(rows: Scenario) -> None:
    task = rows.planned_task(cron="0 0 1 1 *")
    rows.sql("UPDATE schedule_task SET cron = '0 * * * *; 30 * * * *' WHERE id = :id", id=task)
    materialize(rows, seconds=1)
    row = rows.task_row(task)
    assert row.plan_error is None
    assert row.next_fire_at - rows.start <= 31 * MINUTE
    rows.sql("UPDATE schedule_task SET cron = '0 * * * *; 61 * * * *' WHERE id = :id", id=task)
    materialize(rows, seconds=1)
    assert "'61 * * * *' is refused" in rows.task_row(task).plan_error


def test_what_an_older_scheduler_has_set_aside_fires_again_after_its_cron_is_spelled_otherwise(rows: Scenario) -> None:
    task = rows.planned_task(cron="0 * * * *; 30 * * * *")
    aside = "UPDATE schedule_task SET next_fire_at = NULL, plan_error = 'refused', planned_inputs = plan_inputs"
    rows.sql(f"{aside} WHERE id = :id", id=task)
    materialize(rows, seconds=1)
    assert rows.task_row(task).next_fire_at is None
    rows.sql("UPDATE schedule_task SET cron = '0 * * * *;  30 * * * *' WHERE id = :id", id=task)
    materialize(rows, seconds=1)
    row = rows.task_row(task)
    assert row.plan_error is None
    assert row.next_fire_at - rows.start <= 31 * MINUTE


@pytest.mark.parametrize("bad", ["0 3 * * *; 61 * * * *", "0 3 * * *;", "0 3 * * *; 0 0 31 2 *"])
def test_a_wrong_one_is_refused_and_changes_nothing(rows: Scenario, bad: str) -> None:
    tasks.add(rows.database, ANN, {"name": "nightly", "type": "REPORT", "cron": "0 3 * * *; 0 15 * * *"})
    before = rows.sql("SELECT * FROM schedule_task")
    with pytest.raises(InvalidInput, match="is refused"):
        tasks.edit(rows.database, ANN, "nightly", {"cron": bad})
    with pytest.raises(InvalidInput, match="is refused"):
        tasks.add(rows.database, ANN, {"name": "other", "type": "REPORT", "cron": bad})
    assert rows.sql("SELECT * FROM schedule_task") == before
