"""What SQL may write is checked; what came past the checks concerns its own row alone, and is said."""

import json
import logging
import sqlite3
from datetime import datetime, timedelta
from typing import Any

import pymysql
import pytest
from sqlalchemy.exc import DataError

from rota.scheduler_service import batch
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.strays import Strays
from rota.scheduler_service.fleet import FleetCache, FleetSnapshot
from rota.scheduler_service.floods import Floods
from rota.scheduler_service.placement import Fleet
from rota.shared.control import instances as control_instances
from rota.shared.control import tasks as control_tasks
from rota.shared.control import workers as control_workers
from rota.shared.database.transactions import Database, opened
from rota.shared.domain.deciding import decide
from rota.shared.domain.planning import Decision
from rota.shared.domain.retry import RetryPolicy
from rota.shared.domain.states import NodeStatus
from rota.shared.settings import Settings
from rota.worker_service.running import endings
from rota.worker_service.running.endings import Ending, Span
from tests.harness.command_line import invoke
from tests.harness.databases import NO_JSON, PrivateMariaDB, past_the_checks, run_sql
from tests.harness.processes import wait_until
from tests.harness.puller import Puller
from tests.harness.scenario import Scenario
from tests.harness.schemas import is_sqlite, typed

Refused = (pymysql.err.MySQLError, sqlite3.IntegrityError)
LONG_AGO = "0001-01-01 00:00:00.000000"
ZERO = "0000-00-00 00:00:00.000000"

TASK = "INSERT INTO schedule_task (name, cron, type) VALUES ('nightly', '0 2 * * *', 'REPORT')"
INSTANCE = (
    "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime) VALUES (1, '2026-11-19 02:00:00.000000')"
)
WORKER = (
    "INSERT INTO schedule_worker_node (name, host, pid, process_identity, version, capacity, prefetch, node_types)"
    " VALUES ('w', 'h', 1, 'x', '0', 1, 0, '[]')"
)
BEAT = "INSERT INTO schedule_worker_beat (schedule_worker_node_id) VALUES (1)"
RUNNING = "status = 'running', due_at = schedule_datetime, run_number = 0"
LOCK = "INSERT INTO schedule_task_lock (schedule_task_id) VALUES (1)"


def materialize(rows: Scenario, **options: Any) -> float:
    return Materializer(rows.database, Settings.load(**options)).step()


def assign(rows: Scenario, **options: Any) -> None:
    Assigner(rows.database, Settings.load(**options)).step()


def fire_statuses(rows: Scenario, task: int) -> set[str]:
    found = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    return {rows.status(row.id) for row in found}


# What the database refuses


@pytest.mark.parametrize(
    ("row", "table", "edit", "name"),
    [
        (TASK, "schedule_task", "starts_at = '0001-01-01 00:00:00.000000'", "starts_at_from_1970_to_9999"),
        (TASK, "schedule_task", "ends_at = '9999-12-31 23:59:59.999999'", "ends_at_from_1970_to_9999"),
        (TASK, "schedule_task", "name = ''", "name_is_not_empty"),
        (TASK, "schedule_task", "type = ''", "type_is_not_empty"),
        (TASK, "schedule_task", "misfire_grace_seconds = 0", "misfire_grace_seconds_from_1_to_31536000"),
        (TASK, "schedule_task", "max_instances = 0", "max_instances_from_1_to_1000"),
        (TASK, "schedule_task", "retries = -1", "retries_from_0_to_1000"),
        (TASK, "schedule_task", "retry_delay_seconds = 100000", "retry_delay_seconds_from_0_to_86400"),
        (TASK, "schedule_task", "timeout_seconds = 0", "timeout_seconds_from_1_to_31536000"),
        (TASK, "schedule_task", "cron_seconds = 2", "cron_seconds_from_0_to_1"),
        (INSTANCE, "schedule_instance", "schedule_datetime = '1969-12-31 00:00:00.000000'", "schedule_datetime_from"),
        (INSTANCE, "schedule_instance", "due_at = '0001-01-01 00:00:00.000000'", "due_at_from_1970_to_9999"),
        (INSTANCE, "schedule_instance", "attempt = -1", "attempt_from_0_to_1000000000"),
        (INSTANCE, "schedule_instance", RUNNING, "running_has_a_worker"),
        (INSTANCE, "schedule_instance", "status = 'assigned'", "assigned_has_a_worker"),
        (INSTANCE, "schedule_instance", "schedule_worker_node_id = 1", "pending_has_no_worker"),
        (
            INSTANCE,
            "schedule_instance",
            "gmt_completed = '2026-11-19 02:00:00.000000'",
            "gmt_completed_only_when_ended",
        ),
        (
            INSTANCE,
            "schedule_instance",
            "status = 'running', schedule_worker_node_id = 1",
            "assigned_has_due_at_and_run_number",
        ),
        (INSTANCE, "schedule_instance", "slot_kept = 1", "slot_kept_only_after_a_failure"),
        (INSTANCE, "schedule_instance", "slot_kept = 1, status = 'succeed'", "slot_kept_only_after_a_failure"),
        (WORKER, "schedule_worker_node", "capacity = 0", "capacity_from_1_to_10000"),
        (WORKER, "schedule_worker_node", "prefetch = -1", "prefetch_from_0_to_100000"),
        (BEAT, "schedule_worker_beat", "liveness_seconds = 0", "liveness_seconds_from_1_to_31536000"),
        (LOCK, "schedule_task_lock", "is_locked = 1", "a_lock_has_locked_at"),
    ],
)
def test_a_check_refuses_it_and_its_name_says_what_is_right(
    migrated_url: str, row: str, table: str, edit: str, name: str
) -> None:
    typed(migrated_url, row)
    with pytest.raises(Refused, match=f"ck_{table}_{name}"):
        typed(migrated_url, f"UPDATE {table} SET {edit}")


@pytest.mark.parametrize(
    "edit",
    [
        "max_retry_delay_seconds = 0",
        "max_retry_delay_seconds = 31536001",
        "retry_jitter_percent = 101",
        "retry_on = '{}'",
        "retry_on = 'OSError'",
        "never_retry = '\"OSError\"'",
        "never_retry = 'null'",
        f"retry_on = '[\"{'x' * 4000}\"]'",
        "on_retry = 'again'",
        "on_retry = ''",
        "weight = 0",
        "weight = 10001",
        "max_waiting = 0",
        "max_waiting = 1001",
    ],
)
def test_a_check_of_a_column_that_was_added_names_the_column(migrated_url: str, edit: str) -> None:
    typed(migrated_url, TASK)
    with pytest.raises(Refused, match=edit.split(maxsplit=1)[0]):
        typed(migrated_url, f"UPDATE schedule_task SET {edit}")


@pytest.mark.parametrize("moment", ["0000-00-00", "2026-00-10", "2026-10-00"])
def test_mariadb_refuses_a_zero_day_or_month_in_every_mode(migrated_mariadb_url: str, moment: str) -> None:
    run_sql(migrated_mariadb_url, TASK)
    with pytest.raises(Refused, match="ck_schedule_task_starts_at_from_1970_to_9999"):
        run_sql(migrated_mariadb_url, "SET sql_mode = ''", f"UPDATE schedule_task SET starts_at = '{moment}'")


def test_mariadb_refuses_an_unknown_word_in_every_mode(migrated_mariadb_url: str) -> None:
    run_sql(migrated_mariadb_url, TASK)
    with pytest.raises(Refused, match="ck_schedule_task_status_is_known"):
        run_sql(migrated_mariadb_url, "SET sql_mode = ''", "UPDATE schedule_task SET status = 'paused'")


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        ("misfires = 'many'", "misfires_is_a_whole_number"),
        ("priority = 1.5", "priority_is_a_whole_number"),
        ("misfires = -1", "misfires_is_a_whole_number"),
        ("type = x'00'", "type_is_text"),
        ("gmt_create = 'yesterday'", "gmt_create_form"),
        ("param = x'00'", "param_json"),
    ],
)
def test_sqlite_refuses_what_other_databases_refuse_by_type(migrated_sqlite_url: str, edit: str, name: str) -> None:
    typed(migrated_sqlite_url, TASK)
    with pytest.raises(Refused, match=f"ck_schedule_task_{name}"):
        typed(migrated_sqlite_url, f"UPDATE schedule_task SET {edit}")


@pytest.mark.parametrize("moment", ["1970-01-01 00:00:00.000000", "9999-11-30 23:59:59.999999"])
def test_the_first_and_the_last_time_may_be_written_and_break_nothing(rows: Scenario, moment: str) -> None:
    rows.worker()
    task, healthy = rows.task(timezone="Pacific/Kiritimati"), rows.planned_task()
    columns = "starts_at = :moment, ends_at = :moment"
    typed(
        rows.database.url.render_as_string(hide_password=False),
        f"UPDATE schedule_task SET {columns.replace(':moment', repr(moment))} WHERE id = {task}",
    )
    asked = rows.by_sql(task, at=datetime.fromisoformat(moment))
    materialize(rows)
    assign(rows)
    assert fire_statuses(rows, healthy) == {"assigned"}
    assert rows.status(asked) == ("assigned" if moment < "2000" else "pending")
    assert control_tasks.show(rows.database, rows.task_row(task).name)["plan_error"] is None
    assert control_instances.show(rows.database, asked)["id"] == asked


# A capacity of 0, and other errors that are not the task's own


def test_a_worker_row_with_capacity_0_stops_no_task(rows: Scenario) -> None:
    good, bad = rows.worker(), rows.worker()
    rows.sql("UPDATE schedule_worker_node SET capacity = 0 WHERE id = :id", id=bad)
    tasks = [rows.planned_task() for _ in range(3)]
    asked = rows.by_sql(rows.task())
    materialize(rows)
    assign(rows)
    for task in tasks:
        row = rows.task_row(task)
        assert (row.plan_error, row.next_fire_at is None) == (None, False)
        assert fire_statuses(rows, task) == {"assigned"}
    assert rows.row(asked).schedule_worker_node_id == good


@pytest.mark.parametrize("column", ["labels", "node_types", "type_versions", "schedules"])
@pytest.mark.parametrize("written", ["[[1]]", '[{"a": 1}, 5, null]', "5", '{"REPORT": [1]}', NO_JSON])
def test_a_workers_lists_that_sql_spoiled_concern_that_worker_alone(rows: Scenario, column: str, written: str) -> None:
    good, bad = rows.worker(), rows.worker("bad")
    rows.sql(f"UPDATE schedule_worker_node SET {column} = :written WHERE id = :id", id=bad, written=written)
    task, asked = rows.planned_task(), rows.by_sql(rows.task(required_labels=None))
    materialize(rows)
    assign(rows)
    assert (fire_statuses(rows, task), rows.status(asked)) == ({"assigned"}, "assigned")
    assert rows.row(asked).schedule_worker_node_id in (good, bad)
    control_workers.check_versions(rows.database)
    json.dumps(control_workers.show(rows.database, "bad"), allow_nan=False)
    url = rows.database.url.render_as_string(hide_password=False)
    assert "bad" in invoke("worker", "list", url=url).output


@pytest.mark.parametrize("schema", ["5", '{"type": 5}', '{"type": "nothing"}', "[[1]]", '{"$ref": "nowhere"}', NO_JSON])
@pytest.mark.parametrize("table", ["schedule_task_node_type", "schedule_task_type_version"])
def test_a_schema_that_sql_spoiled_refuses_no_param(rows: Scenario, table: str, schema: str) -> None:
    if table == "schedule_task_node_type":
        rows.sql("UPDATE schedule_task_node_type SET param_schema = :schema, defaults = :schema", schema=schema)
    else:
        nodes = f'[{{"type": "REPORT_SEND", "param_schema": {schema}}}]'
        rows.sql("UPDATE schedule_task_type_version SET nodes = :nodes", nodes=nodes)
    for param in (None, {}, {"nodes": ["REPORT_SEND"]}):
        rows.task(param=param)


class Broken(Fleet):
    """A fleet whose choice fails, as no one expects."""

    def choose(self, *arguments: Any, **options: Any) -> int | None:
        raise ZeroDivisionError("float division by zero")


class BrokenFleet(FleetCache):
    """Gives out a broken fleet."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.fleet: Fleet = Broken([], floods=Floods(database.clock))

    def current(self) -> FleetSnapshot:
        return FleetSnapshot(super().current().catalog, self.fleet)


def test_an_error_of_the_placing_sets_no_task_aside_and_cancels_nothing(
    rows: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    rows.worker()
    task, asked = rows.planned_task(), rows.by_sql(rows.task())
    cache, settings = BrokenFleet(rows.database), Settings.load()
    for duty in (Materializer(rows.database, settings, cache), Assigner(rows.database, settings, cache)):
        duty.step()
    row = rows.task_row(task)
    assert (row.plan_error, row.next_fire_at > rows.start) == (None, True)
    assert (fire_statuses(rows, task), rows.status(asked)) == ({"pending"}, "pending")
    assert rows.row(asked).reason == "the instance could not be placed: ZeroDivisionError: float division by zero"
    assert "not expected, and will be tried again: ZeroDivisionError" in caplog.text
    assign(rows)
    assert (fire_statuses(rows, task), rows.status(asked)) == ({"assigned"}, "assigned")


def test_a_task_whose_plan_fails_unexpectedly_is_left_alone_for_a_lease_and_said_once(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows.worker()
    healthy, odd = rows.planned_task(), rows.planned_task(priority=7)

    def broken(terms: Any, *rest: Any, **options: Any) -> Decision:
        if terms.priority == 7:
            raise KeyError("a fault of Rota's")
        return decide(terms, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(batch, "decide", broken)
        duty = Materializer(rows.database, Settings.load(lock_lease_seconds=0.001))
        duty.step()
        duty.step()
        assert fire_statuses(rows, healthy) == {"assigned"}
        assert (fire_statuses(rows, odd), rows.task_row(odd).plan_error) == (set(), None)
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1

    def statuses() -> set[str]:
        duty.step()
        return fire_statuses(rows, odd)

    wait_until(lambda: statuses() == {"assigned"}, 10, "the lease to end, and the fire to be given")


# Dates that are none, or out of range


@pytest.mark.parametrize("written", [LONG_AGO, ZERO, "9999-12-31 23:59:59.999999"])
def test_a_task_with_such_a_date_is_set_aside_alone(rows: Scenario, written: str) -> None:
    rows.worker()
    healthy, bad = rows.planned_task(), rows.planned_task()
    rows.sql("UPDATE schedule_task SET starts_at = :written WHERE id = :id", id=bad, written=written)
    materialize(rows)
    assert fire_statuses(rows, healthy) == {"assigned"}
    assert rows.task_row(bad).plan_error.startswith("starts_at ")
    rows.sql("UPDATE schedule_task SET starts_at = NULL WHERE id = :id", id=bad)
    materialize(rows)
    assert (rows.task_row(bad).plan_error, rows.task_row(bad).next_fire_at is None) == (None, False)


@pytest.mark.parametrize("column", ["next_fire_at", "gmt_create"])
def test_a_time_of_the_schedulers_own_that_sql_spoiled_is_made_anew(rows: Scenario, column: str) -> None:
    task = rows.planned_task() if column == "next_fire_at" else rows.task()
    rows.sql(f"UPDATE schedule_task SET {column} = :written WHERE id = :id", id=task, written=ZERO)
    if column == "next_fire_at":  # else nobody would look at it, since nothing is due
        rows.sql("UPDATE schedule_task SET planned_inputs = NULL WHERE id = :id", id=task)
    materialize(rows)
    row = rows.task_row(task)
    assert (row.plan_error, row.next_fire_at > rows.start) == (None, True)


def test_a_zero_date_stops_no_other_task_where_the_server_has_no_zero_date(
    own_mariadb: PrivateMariaDB, own_template: list[str]
) -> None:
    url = own_mariadb.create_database()
    run_sql(url, *own_template)
    run_sql(own_mariadb.admin_url(), "SET GLOBAL sql_mode = 'TRADITIONAL'")
    with opened(url) as database:
        rows = Scenario(database)
        rows.worker()
        healthy, bad = rows.planned_task(), rows.planned_task()
        waiting, zero = rows.by_sql(rows.task()), rows.by_sql(rows.task())
        run_sql(
            url,
            *past_the_checks(url),
            f"UPDATE schedule_task SET starts_at = '{ZERO}', next_fire_at = '{ZERO}' WHERE id = {bad}",
            f"UPDATE schedule_instance SET schedule_datetime = '{ZERO}' WHERE id = {zero}",
        )
        materialize(rows)
        assign(rows)
        assert fire_statuses(rows, healthy) == {"assigned"}
        assert (
            rows.task_row(bad).plan_error
            == f"starts_at '{ZERO}' is no date: SQL wrote a day or month that does not exist; write a date, or NULL"
        )
        assert (rows.status(waiting), rows.status(zero)) == ("assigned", "canceled")
        mode = rows.sql("SELECT @@SESSION.sql_mode AS mode")[0].mode
        assert "NO_ZERO" not in mode
        assert "STRICT_TRANS_TABLES" in mode


@pytest.mark.parametrize("column", ["schedule_datetime", "due_at"])
@pytest.mark.parametrize("written", [LONG_AGO, ZERO, "1969-12-31 23:59:59.000000"])
def test_a_pending_instance_with_such_a_date_is_canceled_alone(rows: Scenario, column: str, written: str) -> None:
    rows.worker()
    bad, good = rows.by_sql(rows.task()), rows.by_sql(rows.task())
    rows.sql(f"UPDATE schedule_instance SET {column} = :written WHERE id = :id", id=bad, written=written)
    assign(rows)
    assert (rows.status(bad), rows.status(good)) == ("canceled", "assigned")
    assert "is out of range" in (reason := rows.row(bad).reason) or "is no date" in reason or "refuses" in reason


@pytest.mark.parametrize("written", [LONG_AGO, ZERO])
def test_an_assigned_instance_with_such_a_date_hangs_nobody_and_is_canceled_in_the_end(
    rows: Scenario, written: str
) -> None:
    worker = rows.worker()
    bad, good = rows.assigned(worker), rows.assigned(worker)
    spoil = "UPDATE schedule_instance SET due_at = :written, gmt_assigned = :past WHERE id = :id"
    past = (rows.start - timedelta(minutes=5)).isoformat(" ", "microseconds")
    rows.sql(spoil, id=bad, written=written, past=past)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    assert puller.claim() == [good]
    Reaper(rows.database, Settings.load(), "test").step()
    assert rows.status(bad) == "pending"
    assign(rows)
    assert rows.status(bad) == "canceled"


@pytest.mark.parametrize("column", ["schedule_datetime", "due_at"])
def test_a_date_that_is_spoiled_between_poll_and_claim_hangs_nobody(rows: Scenario, column: str) -> None:
    worker = rows.worker()
    bad, good = rows.assigned(worker), rows.assigned(worker)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    rows.sql(f"UPDATE schedule_instance SET {column} = :written WHERE id = :id", id=bad, written=ZERO)
    assert puller.claim() == [good]
    assert len(puller.backlog) == 0, "what cannot be started is let go"


def test_a_row_that_cannot_be_claimed_once_more_is_canceled_alone(rows: Scenario) -> None:
    worker = rows.worker()
    several = [rows.assigned(worker) for _ in range(5)]
    rows.sql("UPDATE schedule_instance SET attempt = 2147483647 WHERE id = :id", id=several[2])
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    puller.claimer.claim()
    statuses = rows.statuses()
    assert [statuses[i] for i in several] == ["running", "running", "canceled", "running", "running"]
    assert rows.row(several[2]).reason == (
        "it cannot be claimed again: its attempt is 2147483647, the greatest there is"
    )


@pytest.mark.parametrize("retry", [True, False])
def test_a_row_that_has_failed_as_often_as_its_column_can_count_fails_once_more(rows: Scenario, *, retry: bool) -> None:
    worker = rows.worker()
    instance = rows.running(worker).id
    for table, key in ("schedule_instance", "id"), ("schedule_task_node", "schedule_instance_id"):
        rows.sql(f"UPDATE {table} SET failures = 32767 WHERE {key} = :id", id=instance)
    [run] = rows.claim(worker, instance).runs
    failed = Ending(NodeStatus.FAILED, "{}", "it broke", retry=retry)
    span = Span(rows.now(), rows.now(), rows.now())
    report = endings.report(run, run.nodes[0], failed, span, RetryPolicy(retries=40_000))
    assert rows.report(worker, report) == set()
    assert rows.status(instance) == ("pending" if retry else "failed")


def test_a_row_whose_claim_the_database_refuses_is_canceled_alone(rows: Scenario) -> None:
    worker = rows.worker()
    several = [rows.assigned(worker) for _ in range(5)]
    puller = Puller(rows.database, worker)

    def meanwhile() -> None:
        if several[2] in puller.rows.asked[-1]:
            raise DataError("UPDATE", {}, pymysql.err.DataError(1264, "Out of range value"))

    puller.fetcher.fetch()
    puller.rows.meanwhile = meanwhile
    puller.claimer.claim()
    statuses = rows.statuses()
    assert [statuses[i] for i in several] == ["running", "running", "canceled", "running", "running"]
    assert rows.row(several[2]).reason.startswith("the database refuses its claim: ")


def test_an_unexpected_error_of_a_claim_puts_off_its_own_instance_and_no_other(
    rows: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    worker = rows.worker()
    several = [rows.assigned(worker) for _ in range(4)]
    puller = Puller(rows.database, worker)

    def meanwhile() -> None:
        if several[1] in puller.rows.asked[-1]:
            raise TypeError("a fault of Rota's")

    puller.fetcher.fetch()
    puller.rows.meanwhile = meanwhile
    puller.claimer.claim()
    assert [rows.status(i) for i in several] == ["running", "assigned", "running", "running"]
    assert len(puller.backlog) == 1
    assert f"instance {several[1]}: not expected" in caplog.text


def test_a_holder_without_a_start_hangs_no_claim(rows: Scenario) -> None:
    worker = rows.worker()
    task = rows.task(overlap_policy="skip")
    holder = rows.running(worker, task)
    rows.sql("UPDATE schedule_instance SET gmt_started = NULL WHERE id = :id", id=holder.id)
    waiting, other = rows.assigned(worker, task), rows.assigned(worker)
    claim = rows.claim(worker, waiting, other)
    assert [run.id for run in claim.runs] == [other]


def test_an_instance_without_a_due_time_holds_up_no_turn_of_its_task(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="queue")
    older, given = rows.by_sql(task), rows.assigned(worker, task)
    rows.sql("UPDATE schedule_instance SET overlap_slot = 0 WHERE id IN (:older, :given)", older=older, given=given)
    assert [run.id for run in rows.claim(worker, given).runs] == [given]


def test_a_row_that_cannot_be_adopted_is_canceled_alone(sqlite_rows: Scenario) -> None:
    rows = sqlite_rows
    rows.worker()
    bad, good = rows.by_sql(rows.task()), rows.by_sql(rows.task())
    rows.sql("UPDATE schedule_instance SET schedule_datetime = 'tomorrow' WHERE id = :id", id=bad)
    assign(rows)
    assert (rows.status(bad), rows.status(good)) == ("canceled", "assigned")


def test_pages_show_what_is_no_date_as_it_is(rows: Scenario) -> None:
    task = rows.task()
    good, bad = rows.by_sql(task), rows.by_sql(task)
    for column in ("schedule_datetime", "due_at", "gmt_started", "gmt_completed", "gmt_create", "gmt_cancel_requested"):
        rows.sql(f"UPDATE schedule_instance SET {column} = :written WHERE id = :id", id=bad, written=ZERO)
    rows.sql("UPDATE schedule_task SET gmt_create = :written, ends_at = :written", written=ZERO)
    name = rows.task_row(task).name
    listed = control_instances.listed(rows.database, limit=10)
    assert {document["id"] for document in listed} == {good, bad}
    assert control_instances.show(rows.database, bad)["due_at"] == ZERO
    assert control_tasks.show(rows.database, name)["ends_at"] == ZERO


# Locks and statuses that SQL wrote


@pytest.mark.parametrize("locked_at", [None, "9000-01-01 00:00:00.000000"])
def test_a_lock_that_sql_wrote_without_a_time_or_in_the_future_holds_nobody_back(
    rows: Scenario, locked_at: str | None
) -> None:
    rows.worker()
    task = rows.planned_task()
    asked = rows.by_sql(rows.task())
    for each in (task, rows.row(asked).schedule_task_id):
        rows.sql(
            "INSERT INTO schedule_task_lock (schedule_task_id, is_locked, locked_at) VALUES (:task, 1, :locked_at)",
            task=each,
            locked_at=locked_at,
        )
    materialize(rows)
    assign(rows)
    assert (fire_statuses(rows, task), rows.status(asked)) == ({"assigned"}, "assigned")


def test_a_status_that_sql_wrote_on_a_row_that_nobody_has_is_ended_with_a_reason(rows: Scenario) -> None:
    worker = rows.worker()
    waits, ended, given, runs = rows.pending(), rows.ended(), rows.assigned(worker), rows.running(worker).id
    healthy = [rows.pending(), rows.assigned(worker), rows.running(worker).id]
    rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = :w WHERE id = :id", id=waits, w=worker)
    rows.sql("UPDATE schedule_instance SET status = 'pending' WHERE id = :id", id=ended)
    rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = NULL WHERE id IN (:a, :b)", a=given, b=runs)
    Strays(rows.database, 15).step()
    assert [rows.status(i) for i in (waits, ended, given, runs)] == ["canceled", "canceled", "canceled", "failed"]
    assert rows.row(runs).reason == "somebody made it running by SQL, and no worker runs it"
    assert rows.row(given).reason == "somebody made it assigned without a worker by SQL"
    assert [rows.status(i) for i in healthy] == ["pending", "assigned", "running"]
    assert not is_sqlite(str(rows.database.url)) or rows.broken() == {}
