"""Words that this Rota does not know: a newer one may have added them, or SQL wrote them past the checks."""

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.kinds import LOOK_SECONDS
from rota.shared.control import schedulers as control
from rota.shared.control import tasks as control_tasks
from rota.shared.database.constructs import written
from rota.shared.database.transactions import opened
from rota.shared.domain.deciding import known_kinds
from rota.shared.settings import Settings
from rota.shared.store import kinds, processes, schedulers
from rota.shared.store.schedulers import SchedulerDeclaration
from tests.harness import later
from tests.harness.processes import RotaProcess
from tests.harness.scenario import Scenario
from tests.harness.schemas import is_sqlite, typed


@pytest.fixture
def migrated(migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]) -> str:
    """The URL of a database that a later Rota has migrated: it takes the kind ``solar``."""
    folder = later.migrations_until(later.ADDS_A_KIND, tmp_path / "migrations")
    process = rota("migrate", database_url=migrated_url, command=later.command(later.VERSION, folder))
    assert process.wait_exit(30) == 0, process.log
    return migrated_url


@pytest.fixture
def later_rows(migrated: str) -> Iterator[Scenario]:
    """A scenario on that database, for this Rota."""
    with opened(migrated) as database:
        yield Scenario(database)


def of_solar(rows: Scenario, name: str = "of-solar") -> int:
    """A task of the kind that this Rota does not know, as SQL inserts it."""
    rows.sql(
        "INSERT INTO schedule_task (name, type, trigger_kind, trigger_spec) VALUES (:name, 'REPORT', 'solar', :spec)",
        name=name,
        spec='{"seconds": 1}',
    )
    [(task,)] = rows.sql("SELECT id FROM schedule_task WHERE live_name = :name", name=name)
    return int(task)


def register(rows: Scenario, scheduler: SchedulerDeclaration) -> None:
    schedulers.insert_into(rows.database, lambda c: [schedulers.register(c, scheduler)])


def leased(rows: Scenario) -> list[int]:
    found = rows.sql("SELECT schedule_task_id FROM schedule_task_lock WHERE is_locked = 1")
    return [task for (task,) in found]


def test_a_task_of_a_kind_that_a_newer_rota_added_is_left_as_it_is(
    later_rows: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    rows = later_rows
    caplog.set_level(logging.INFO)
    rows.worker()
    known, unknown = rows.planned_task(), of_solar(rows)
    before = rows.task_row(unknown)
    materializer = Materializer(rows.database, Settings.load())
    materializer.step()
    said = [message for message in caplog.messages if "are left to newer schedulers" in message]
    assert len(said) == 1
    assert "tasks with trigger_kind 'solar', such as 'of-solar', are left" in said[0]
    assert (rows.task_row(unknown), leased(rows)) == (before, [])
    assert {rows.row(i).schedule_task_id for i in rows.statuses()} == {known}

    another = of_solar(rows, "another")
    rows.sql("DELETE FROM schedule_task_lock")
    materializer.step()
    locks = {task for (task,) in rows.sql("SELECT schedule_task_id FROM schedule_task_lock")}
    assert locks.isdisjoint({unknown, another}), "it does not lease what it cannot plan"
    assert rows.task_row(unknown) == before


def test_a_task_that_others_planned_keeps_its_plan(later_rows: Scenario) -> None:
    rows = later_rows
    task = of_solar(rows)
    late = rows.start - timedelta(seconds=30)
    rows.sql(
        "UPDATE schedule_task SET planned_inputs = plan_inputs, next_fire_at = :late WHERE id = :task",
        late=written(late),
        task=task,
    )
    before = rows.task_row(task)
    materializer = Materializer(rows.database, Settings.load())
    materializer.step()
    materializer.step()
    assert (rows.task_row(task), rows.statuses(), leased(rows)) == (before, {}, [])


def test_each_scheduler_that_does_not_know_a_kind_says_so_where_nobody_plans_its_tasks(
    later_rows: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    rows = later_rows
    task = of_solar(rows)
    materializer = Materializer(rows.database, Settings.load())
    unknown = materializer.unknown_kinds
    assert unknown.step() == LOOK_SECONDS
    materializer.step()
    unknown.step()
    assert "do not fire" not in caplog.text, "it was inserted just now"
    edited = rows.now() - timedelta(seconds=LOOK_SECONDS + 1)
    rows.sql("UPDATE schedule_task SET gmt_modified = :at WHERE id = :task", at=written(edited), task=task)
    for _ in range(2):
        unknown.step()
    told = [message for message in caplog.messages if "do not fire" in message]
    assert len(told) == 1
    assert "tasks with trigger_kind 'solar' do not fire: this Rota 0.1.0 does not know it" in told[0]
    rows.sql("UPDATE schedule_task SET planned_inputs = plan_inputs, next_fire_at = :at", at=written(rows.now()))
    assert rows.database.read(lambda c: kinds.neglected(c, rows.now() - timedelta(seconds=5))) == set()
    assert rows.database.read(lambda c: kinds.neglected(c, rows.now() + timedelta(seconds=5))) == {
        ("trigger_kind", "solar")
    }


def test_doctor_tells_which_kinds_no_scheduler_at_work_knows(later_rows: Scenario) -> None:
    rows = later_rows
    rows.task()
    of_solar(rows)

    nobody = control.check_kinds(rows.database)
    assert (nobody.ok, nobody.found) == (None, "not known: no scheduler is at work")
    register(rows, SchedulerDeclaration("old", "vm", 7, "0", 15, known_kinds()))
    told = control.check_kinds(rows.database)
    assert (told.ok, told.found) == (None, "trigger_kind 'solar': 1 that are on")
    assert "start one of the Rota that migrated the database" in told.help
    more = {**known_kinds(), "trigger_kind": ["cron", "manual", "solar"]}
    register(rows, SchedulerDeclaration("new", "vm", 8, "0", 15, more))
    assert control.check_kinds(rows.database).ok
    rows.sql("UPDATE schedule_scheduler_node SET state = 'paused' WHERE name = 'new'")
    assert control.check_kinds(rows.database).ok is None
    rows.sql("UPDATE schedule_scheduler_node SET state = 'active', kinds = '[1]' WHERE name = 'new'")
    assert control.check_kinds(rows.database).ok is None


def test_this_rota_shows_such_a_task_and_all_others(later_rows: Scenario) -> None:
    rows = later_rows
    of_solar(rows)
    rows.task(name="of-cron")
    listed = {task["name"]: task for task in control_tasks.listed(rows.database, 10)}
    assert set(listed) == {"of-solar", "of-cron"}
    assert "trigger_kind 'solar' is not known to this Rota" in listed["of-solar"]["remark"]
    assert "not known" in control_tasks.show(rows.database, "of-solar")["remark"]


def write_past_the_checks(rows: Scenario, task: int, column: str) -> None:
    """MariaDB writes '' for a word that it does not know; SQLite, where Rota's sessions do not check, the word."""
    ignore = "" if is_sqlite(str(rows.database.url)) else "IGNORE"
    rows.sql(f"UPDATE {ignore} schedule_task SET {column} = 'hourly' WHERE id = :task", task=task)


@pytest.mark.parametrize("column", ["trigger_kind", "misfire_policy"])
def test_a_word_that_the_database_does_not_take_sets_its_task_aside(rows: Scenario, column: str) -> None:
    healthy, bad = rows.planned_task(), rows.planned_task(rows.start - timedelta(hours=1), cron="* * * * *")
    write_past_the_checks(rows, bad, column)
    materializer = Materializer(rows.database, Settings.load())
    materializer.step()
    row = rows.task_row(bad)
    assert row.plan_error.startswith(f"{column} ")
    assert "is not known to this Rota; there are: " in row.plan_error
    assert (row.next_fire_at, materializer.unknown_kinds.are_left) == (None, False)
    assert {rows.row(i).schedule_task_id for i in rows.statuses()} == {healthy}


def test_an_unknown_overlap_policy_runs_one_at_a_time_and_stops_no_other_task(migrated_url: str) -> None:
    if not is_sqlite(migrated_url):
        words = "ENUM('skip', 'queue', 'replace', 'allow', 'buffer') NOT NULL DEFAULT 'skip'"
        typed(migrated_url, f"ALTER TABLE schedule_task MODIFY overlap_policy {words}")
    with opened(migrated_url) as database:
        rows = Scenario(database)
        worker = rows.worker()
        task, other = rows.task(), rows.by_sql(rows.task())
        rows.sql("UPDATE schedule_task SET overlap_policy = 'buffer' WHERE id = :task", task=task)
        asked = [rows.by_sql(task), rows.by_sql(task)]
        Assigner(database, Settings.load()).step()
        assert {rows.status(i) for i in (*asked, other)} == {"assigned"}
        assert len(rows.claim(worker, *asked).runs) == 1


def test_processes_at_work_are_told_with_their_versions(rows: Scenario) -> None:
    rows.worker("w", version="0.1.0")
    rows.bury(rows.worker("dead", version="0.0.1"))
    silent = rows.worker("silent", version="0.0.1")
    long_ago = "2020-01-01 00:00:00.000000"
    rows.sql(f"UPDATE schedule_worker_beat SET last_beat = '{long_ago}' WHERE schedule_worker_node_id = {silent}")
    register(rows, SchedulerDeclaration("s", "vm", 7, "0.2.0", 15))
    register(rows, SchedulerDeclaration("frozen", "vm", 7, "0.0.1", 15))
    rows.sql(f"UPDATE schedule_scheduler_node SET last_tick = '{long_ago}' WHERE name = 'frozen'")
    found = rows.database.read(processes.at_work)
    assert [str(process) for process in found] == ["scheduler 's' (Rota 0.2.0)", "worker 'w' (Rota 0.1.0)"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("'many'", 0),
        ("''", 0),
        ("x'00'", 0),
        ("2.5", 3),
        ("-2.5", -3),
        ("1e300", 2**63 - 1),
        ("0.49999999999999994", 0),
    ],
)
def test_what_is_no_whole_number_is_read_as_the_nearest_one(sqlite_rows: Scenario, written: str, read: int) -> None:
    rows = sqlite_rows
    bad = rows.task()
    rows.sql(f"UPDATE schedule_task SET max_instances = {written} WHERE id = :task", task=bad)
    assert rows.task_row(bad).max_instances == read


@pytest.mark.parametrize("column", ["attempt", "priority", "failures", "worker_losses", "overlap_slot", "slot_kept"])
def test_a_text_in_place_of_a_number_of_an_instance_stops_no_other_one(sqlite_rows: Scenario, column: str) -> None:
    rows = sqlite_rows
    worker = rows.worker()
    bad, healthy = rows.by_sql(rows.task()), rows.by_sql(rows.task())
    rows.sql(f"UPDATE schedule_instance SET {column} = 'many' WHERE id = :id", id=bad)
    Assigner(rows.database, Settings.load()).step()
    assert rows.status(healthy) == "assigned"
    assert [run.id for run in rows.claim(worker, bad, healthy).runs][-1:] == [healthy]


@pytest.mark.parametrize(
    "column",
    [
        *("misfire_grace_seconds", "misfire_window_seconds", "misfire_cap", "max_instances"),
        *("retries", "run_timeout_seconds", "timeout_seconds", "shards", "priority"),
    ],
)
@pytest.mark.parametrize("policy", ["fire_once", "fire_all", "skip"])
def test_a_number_beyond_all_bounds_stops_no_other_task(sqlite_rows: Scenario, column: str, policy: str) -> None:
    """SQLite keeps it, where its CHECKs are off."""
    rows = sqlite_rows
    rows.worker(capacity=1000, prefetch=1000)
    missed = rows.start - timedelta(hours=1)
    fields: dict[str, Any] = {"spread": "shards", "shards": 2} if column == "shards" else {}
    bad, healthy = (rows.planned_task(missed, misfire_policy=policy, **fields) for fields in (fields, {}))
    with closing(sqlite3.connect(rows.database.url.database or "", isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE schedule_task SET {column} = {2**63 - 1} WHERE id = {bad}")
    waits = [rows.pending(task, missed - timedelta(minutes=1), origin="cron") for task in (bad, healthy)]
    settings = Settings.load()
    Materializer(rows.database, settings).step()
    Assigner(rows.database, settings).step()
    assert rows.task_row(healthy).next_fire_at > rows.now() - timedelta(minutes=1)
    assert rows.status(waits[1]) in ("assigned", "canceled")
