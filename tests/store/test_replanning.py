"""What an edit, an off, a deletion and an upgrade of the schema make of a plan, as the materializer sees them."""

import re
from datetime import datetime, timedelta

import pytest

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.database.transactions import Database
from rota.shared.domain.planning import PlanInputs
from rota.shared.settings import Settings
from rota.shared.store.tables import plan_inputs_text
from tests.harness.scenario import Scenario
from tests.harness.schemas import is_sqlite, typed

MINUTE = timedelta(minutes=1)


def materialize(rows: Scenario) -> None:
    Materializer(rows.database, Settings.load(lookahead_seconds=300)).step()


def instances(rows: Scenario, task: int) -> dict[datetime, str]:
    """A task's instances: their times and statuses."""
    ids = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    return {row.schedule_datetime: row.status for row in (rows.row(found.id) for found in ids)}


def edit(rows: Scenario, task: int, assignment: str) -> None:
    rows.sql(f"UPDATE schedule_task SET {assignment} WHERE id = {task}")


def test_off_and_on_again_keep_what_is_ahead_though_the_scheduler_saw_both(rows: Scenario) -> None:
    task, worker = rows.planned_task(rows.start.replace(second=0) + 2 * MINUTE), rows.worker()
    materialize(rows)
    ahead, plan = instances(rows, task), rows.task_row(task).next_fire_at
    for status in ("off", "on"):
        edit(rows, task, f"status = '{status}'")
        materialize(rows)
        assert (instances(rows, task), rows.task_row(task).next_fire_at) == (ahead, plan)
        assert rows.task_row(task).plan_stale is None
    assert len(rows.claim(worker, *rows.statuses()).runs) > 0


def test_fires_that_pass_while_a_task_is_off_are_held_back_and_no_misfires(rows: Scenario) -> None:
    task = rows.planned_task(rows.start - 10 * MINUTE, status="off")
    materialize(rows)
    edit(rows, task, "status = 'on'")
    materialize(rows)
    row = rows.task_row(task)
    assert row.misfires == 0
    assert row.fires_held_back in (10, 11)
    assert all(moment > rows.start for moment in instances(rows, task))


def test_a_deletion_takes_back_what_is_ahead_within_a_tick(rows: Scenario) -> None:
    task = rows.planned_task(rows.start + MINUTE)
    materialize(rows)
    assert instances(rows, task) != {}
    edit(rows, task, "is_deleted = 1")
    materialize(rows)
    row = rows.task_row(task)
    assert (instances(rows, task), row.next_fire_at, row.plan_stale) == ({}, None, None)


def test_a_task_that_is_not_deleted_any_more_fires_again_and_replays_no_past(rows: Scenario) -> None:
    task = rows.planned_task(rows.start - 10 * MINUTE)
    edit(rows, task, "is_deleted = 1")
    materialize(rows)
    edit(rows, task, "is_deleted = 0")
    materialize(rows)
    row = rows.task_row(task)
    assert (row.misfires in (10, 11), row.plan_stale) == (True, None), (
        "missed before it was deleted, as far as is known"
    )
    assert min(instances(rows, task)) > rows.start


@pytest.mark.parametrize("edited", ["cron = '*/2 * * * *'", "status = 'off'", "is_deleted = 1"])
def test_fires_missed_while_no_scheduler_ran_are_counted_though_the_task_was_edited_meanwhile(
    rows: Scenario, edited: str
) -> None:
    task = rows.planned_task(rows.start.replace(second=0) - 10 * MINUTE)
    edit(rows, task, edited)
    materialize(rows)
    row = rows.task_row(task)
    assert (row.misfires in (10, 11, 12), row.fires_held_back, row.plan_stale) == (True, 0, None)
    assert min(instances(rows, task), default=rows.start) >= rows.start.replace(second=0), "an edit replays no past"
    materialize(rows)
    assert rows.task_row(task).misfires == row.misfires


def test_on_again_after_an_outage_runs_no_fire_of_the_time_that_the_task_was_off(rows: Scenario) -> None:
    task = rows.planned_task(rows.start.replace(second=0) - 10 * MINUTE, status="off", misfire_grace_seconds=3600)
    edit(rows, task, "status = 'on'")
    materialize(rows)
    row = rows.task_row(task)
    assert (row.misfires, row.fires_held_back in (10, 11, 12)) == (0, True)
    assert min(instances(rows, task)) > rows.start


def waiting_for_its_jitter(rows: Scenario) -> tuple[int, int]:
    """A task whose fire has passed, and the fire, which jitter makes due later."""
    fire = rows.start - MINUTE
    while True:
        task = rows.planned_task(fire, cron=None, every="1d", starts_at=fire, jitter_seconds=86_400)
        inputs = PlanInputs("interval", trigger_spec={"every": "1d", "jitter_seconds": 86_400}, starts_at=fire)
        due_at = inputs.due_at(task, fire)
        if due_at is not None and due_at > rows.start + 10 * MINUTE:
            break
        edit(rows, task, "next_fire_at = NULL")  # this one is due too soon
    edit(rows, task, "misfire_grace_seconds = 3600")
    materialize(rows)
    assert instances(rows, task) == {fire: "pending"}
    return task, rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)[0].id


@pytest.mark.parametrize("taken_away", ["starts_at = NULL", "is_deleted = 1", "trigger_kind = 'manual'"])
def test_an_edit_takes_back_a_fire_that_has_passed_and_that_jitter_makes_due_later(
    rows: Scenario, taken_away: str
) -> None:
    task, fire = waiting_for_its_jitter(rows)
    edit(rows, task, taken_away)
    materialize(rows)
    row = rows.row(fire)
    assert (row.status, row.reason) == ("canceled", "its task was edited before it was due")


WITHOUT_JITTER = """trigger_spec = '{"every": "1d"}'"""


@pytest.mark.parametrize("left", ["timezone = 'Etc/GMT'", WITHOUT_JITTER, "status = 'off'", "description = 'x'"])
def test_a_fire_that_jitter_makes_due_later_stays_if_the_edit_has_it_too(rows: Scenario, left: str) -> None:
    task, fire = waiting_for_its_jitter(rows)
    edit(rows, task, left)
    materialize(rows)
    assert rows.row(fire).status == "pending"


def test_a_once_task_that_was_edited_a_moment_after_its_time_fires_if_the_time_stays(rows: Scenario) -> None:
    at = rows.start - timedelta(seconds=3)
    kept, moved, toggled = (rows.planned_task(at, cron=None, at=f"{at.isoformat()}Z") for _ in range(3))
    edit(rows, kept, "timezone = 'Asia/Tokyo'")
    edit(rows, moved, f"""trigger_spec = '{{"at": "{(at - MINUTE).isoformat()}Z"}}'""")
    edit(rows, toggled, "status = 'off'")
    edit(rows, toggled, "status = 'on'")
    materialize(rows)
    assert [list(instances(rows, task)) for task in (kept, moved, toggled)] == [[at], [], [at]]
    [skip] = rows.sql("SELECT reason, first_fire, last_fire FROM schedule_skip")
    assert (rows.task_row(moved).misfires, skip.reason, skip.first_fire == skip.last_fire) == (1, "edited", True)


@pytest.mark.parametrize("rewritten", [True, False], ids=["plans rewritten first", "plans left as they are"])
def test_an_upgrade_during_an_outage_loses_no_misfire(
    database: Database, migrated_url: str, *, rewritten: bool
) -> None:
    rows = Scenario(database)
    missed, edited = (rows.planned_task(rows.start.replace(second=0) - 10 * MINUTE) for _ in range(2))
    edit(rows, edited, "cron = '*/2 * * * *'")
    newer = plan_inputs_text().removesuffix(")") + ", priority)"
    for _ in range(2):  # a step of a migration may run again
        if rewritten:
            rows.sql(f"UPDATE schedule_task SET planned_inputs = {newer} WHERE plan_stale IS NULL")
    change_plan_inputs(migrated_url, newer)
    stale = {row.id for row in rows.sql("SELECT id FROM schedule_task WHERE plan_stale = 1")}
    assert stale == ({edited} if rewritten else {missed, edited})

    materialize(rows)
    assert rows.sql("SELECT id FROM schedule_task WHERE plan_stale = 1") == []
    minutes = (rows.now() - rows.start.replace(second=0)) // MINUTE
    missable = range(10, 12 + minutes)
    assert rows.task_row(missed).misfires in missable
    assert min(instances(rows, missed)) <= rows.now(), "the newest missed fire runs"
    assert rows.task_row(edited).misfires in missable
    assert min(instances(rows, edited), default=rows.start) >= rows.start, "an edit replays no past"


def change_plan_inputs(url: str, expression: str) -> None:
    """Give ``plan_inputs`` another expression, as a migration would."""
    if not is_sqlite(url):
        typed(url, f"ALTER TABLE schedule_task MODIFY plan_inputs LONGTEXT GENERATED ALWAYS AS ({expression}) STORED")
        return
    [(table,)] = typed(url, "SELECT sql FROM sqlite_master WHERE name = 'schedule_task'")
    indexes = typed(
        url, "SELECT sql FROM sqlite_master WHERE tbl_name = 'schedule_task' AND type = 'index' AND sql > ''"
    )
    columns = ", ".join(name for _, name, *_ in typed(url, "PRAGMA table_info(schedule_task)"))
    changed = re.sub(
        r"^CREATE TABLE schedule_task", "CREATE TABLE newer", table.replace(plan_inputs_text(), expression)
    )
    assert changed.count(expression) == 1
    typed(
        url,
        changed,
        f"INSERT INTO newer ({columns}) SELECT {columns} FROM schedule_task",
        "DROP TABLE schedule_task",
        "ALTER TABLE newer RENAME TO schedule_task",
        *(sql for (sql,) in indexes),
    )


def test_a_bulk_edit_delays_no_fire_and_many_fires_stop_no_replanning(rows: Scenario) -> None:
    rows.worker(prefetch=10_000)
    edited = rows.tasks(60, cron="0 3 * * *")
    duty = Materializer(rows.database, Settings.load(batch=20, lookahead_seconds=0.1))
    while duty.step() == 0:
        pass
    rows.sql("UPDATE schedule_task SET timezone = 'Asia/Tokyo'")
    punctual = [rows.planned_task(rows.start - MINUTE) for _ in range(40)]
    replanned, written = [], []
    for _ in range(3):
        duty.step()
        replanned.append(60 - rows.sql("SELECT COUNT(*) AS n FROM schedule_task WHERE plan_stale = 1")[0].n)
        written.append(sum(1 for task in punctual if instances(rows, task)))
    assert written == [15, 30, 40]
    assert replanned == [5, 10, 20], "a quarter of each batch, then what the fires leave"
    assert {rows.task_row(task).plan_error for task in edited} == {None}
