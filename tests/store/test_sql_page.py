"""Every statement of docs/sql.md does what the page says of it, on each database, as an operator's client runs it."""

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pymysql
import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.backfiller import Backfiller
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.sweeper import Sweeper
from rota.shared.control import instances as control_instances
from rota.shared.control import steering as control_steering
from rota.shared.control import tasks as control_tasks
from rota.shared.control.actor import Actor
from rota.shared.database.constructs import TIME_FORMAT, written
from rota.shared.database.sqlite import SQLITE
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import node_types, recovery, schedulers, workers
from rota.shared.store.runs import Run
from rota.shared.store.schedulers import SchedulerDeclaration
from rota.worker_service import builtin
from tests.harness.databases import connect
from tests.harness.processes import ROOT
from tests.harness.scenario import Scenario, ended
from tests.harness.sql_page import BLOCK, PAGE, blocks, for_sqlite

NIGHTLY, INSTANCE = 3, 17
MISSED = datetime.fromisoformat("2026-11-19T02:00:00")
Rows = list[dict[str, Any]]


class Page:
    """The page's statements over a scenario with the task 3, ``nightly``, and the worker ``worker-1``."""

    def __init__(self, rows: Scenario) -> None:
        self.rows = rows
        self.database = rows.database
        self.settings = Settings.load(lookahead_seconds=300, liveness_seconds=15)
        self.worker = rows.worker("worker-1", prefetch=1000)
        self._renumber("schedule_task", rows.task("nightly", overlap_policy="allow", param={"region": "eu"}), NIGHTLY)

    def run(self, name: str) -> tuple[Rows, int]:
        """Run a statement of the page, as a client does; returns its rows and how many it changed."""
        kind = "sqlite" if self.database.backend is SQLITE else "mariadb"
        (block,) = (b for b in blocks() if b.name == name and b.only in (None, kind))
        return self.execute(block.sql)

    def execute(self, sql: str) -> tuple[Rows, int]:
        """Run a statement as a client does."""
        return self._on_sqlite(sql) if self.database.backend is SQLITE else self._on_mariadb(sql)

    def seen(self, name: str) -> Rows:
        return self.run(name)[0]

    def changed(self, name: str) -> int:
        return self.run(name)[1]

    def materialize(self) -> None:
        Materializer(self.database, self.settings).step()

    def assign(self) -> None:
        Assigner(self.database, self.settings).step()

    def claim(self) -> list[Run]:
        """What the worker starts when it claims all that it was assigned."""
        assigned = [i for i, status in self.rows.statuses().items() if status == "assigned"]
        return self.rows.claim(self.worker, *assigned).runs

    def instances(self, task: int = NIGHTLY) -> Rows:
        """A task's instances by their times and run numbers."""
        order = "schedule_datetime, run_number, id"
        ids = self.rows.sql(f"SELECT id FROM schedule_instance WHERE schedule_task_id = {task} ORDER BY {order}")
        return [self.rows.row(row.id)._asdict() for row in ids]

    def task_id(self, name: str) -> int:
        [(number,)] = self.rows.sql("SELECT id FROM schedule_task WHERE live_name = :name", name=name)
        return int(number)

    def set(self, assignments: str, task: int = NIGHTLY) -> None:
        self.rows.sql(f"UPDATE schedule_task SET {assignments} WHERE id = {task}")

    def is_instance_17(self, number: int) -> int:
        self.rows.sql(f"UPDATE schedule_task_node SET schedule_instance_id = 17 WHERE schedule_instance_id = {number}")
        self._renumber("schedule_instance", number, INSTANCE)
        return INSTANCE

    def running_17(self) -> Run:
        run = self.rows.running(self.worker, NIGHTLY)
        return replace(run, id=self.is_instance_17(run.id))

    def ended_17(self, status: str) -> None:
        self.rows.report(self.worker, ended(self.running_17(), InstanceStatus(status), '"why"'))

    def _renumber(self, table: str, old: int, new: int) -> None:
        self.rows.sql(f"UPDATE {table} SET id = {new} WHERE id = {old}")

    def _on_mariadb(self, sql: str) -> tuple[Rows, int]:
        with (
            contextlib.closing(connect(self.database.url.render_as_string(hide_password=False))) as connection,
            connection.cursor(pymysql.cursors.DictCursor) as cursor,
        ):
            cursor.execute(sql)
            rows: Rows = [{key: _plain(value) for key, value in dict(row).items()} for row in cursor.fetchall()]
            return rows, cursor.rowcount

    def _on_sqlite(self, sql: str) -> tuple[Rows, int]:
        assert self.database.url.database is not None
        with contextlib.closing(sqlite3.connect(self.database.url.database)) as connection, connection:
            connection.row_factory = sqlite3.Row
            cursor = connection.execute(for_sqlite(sql))
            return [dict(row) for row in cursor.fetchall()], cursor.rowcount


def _plain(value: Any) -> Any:
    return value.strftime(TIME_FORMAT) if isinstance(value, datetime) else value


@pytest.fixture
def page(rows: Scenario) -> Page:
    return Page(rows)


def test_every_statement_of_the_page_has_a_name_and_is_run_here() -> None:
    source = Path(__file__).read_text()
    run_here = set(re.findall(r'page\.(?:run|seen|changed)\("([a-z-]+)"\)', source))
    assert PAGE.read_text().count("```sql") == len(blocks()) > 20
    assert {block.name for block in blocks()} == run_here


def test_the_sql_of_the_readme_runs_too(page: Page) -> None:
    readme = ROOT / "README.md"
    statements = [s for m in BLOCK.finditer(readme.read_text()) for s in m["sql"].split(";\n") if s.strip()]
    for statement in statements:
        page.execute(statement)


# See


def test_what_runs_is_seen_with_its_worker_and_its_nodes(page: Page) -> None:
    page.rows.assigned(page.worker, NIGHTLY)
    assert page.seen("running") == []
    run = page.running_17()
    [seen] = page.seen("running")
    assert (seen["id"], seen["name"], seen["worker"], seen["attempt"]) == (17, "nightly", "worker-1", 1)
    assert seen["schedule_datetime"] == written(run.schedule_datetime)
    nodes = page.seen("nodes")
    assert [(n["sequence"], n["type"], n["status"]) for n in nodes] == [
        (1, "REPORT_EXTRACT", "running"),
        (2, "REPORT_SEND", "pending"),
    ]


def test_how_an_instance_failed_is_seen_with_the_worker(page: Page) -> None:
    page.ended_17("failed")
    times = '"gmt_started":"2026-11-23 09:59:00.000000","gmt_completed":"2026-11-23 10:00:00.000000"'
    end = f'[{{"attempt":1,"worker_id":WORKER,{times},"error":"no"}}]'
    end = end.replace("WORKER", str(page.worker))
    page.rows.sql("UPDATE schedule_instance SET failed_attempts = :end WHERE id = 17", end=end)
    [seen] = page.seen("failed-attempts")
    assert (seen["id"], seen["attempt"], seen["worker"], seen["error"]) == (17, 1, "worker-1", "no")
    assert (seen["gmt_started"], seen["gmt_completed"]) == ("2026-11-23 09:59:00.000000", "2026-11-23 10:00:00.000000")
    assert seen["traceback"] is None


def test_what_waits_is_seen_with_its_reason(page: Page) -> None:
    page.rows.bury(page.worker)
    at = page.rows.past()
    waiting = [page.rows.by_sql(NIGHTLY, at), page.rows.by_sql(NIGHTLY, at + timedelta(seconds=1))]
    page.assign()
    assert page.seen("waiting") == [
        {
            "name": "nightly",
            "status": "pending",
            "reason": "no worker is live",
            "instances": 2,
            "first_due": written(at),
        }
    ], waiting


def test_what_failed_in_the_last_day_is_seen_with_the_reason(page: Page) -> None:
    page.ended_17("failed")
    page.rows.ended("succeed", page.worker, NIGHTLY)
    old = page.rows.ended("failed", page.worker, NIGHTLY)
    page.rows.sql("UPDATE schedule_instance SET gmt_completed = '2020-01-01 00:00:00.000000' WHERE id = :id", id=old)
    page.rows.sql("UPDATE schedule_instance SET reason = 'node REPORT_SEND failed' WHERE id = 17")
    assert [(row["id"], row["name"], row["reason"]) for row in page.seen("failed")] == [
        (17, "nightly", "node REPORT_SEND failed")
    ]


def test_the_lateness_of_starts_is_told_by_task_for_cron_fires_only(page: Page) -> None:
    other = page.rows.task("other")
    for late in range(1, 41):
        _started(page, NIGHTLY, late)
    _started(page, other, 500)
    _started(page, other, 10_000, origin="sql")
    seen = [(r["name"], r["starts"], round(float(r["p50"])), round(float(r["p95"]))) for r in page.seen("lateness")]
    assert seen == [("other", 1, 500, 500), ("nightly", 40, 20, 38)]


def _started(page: Page, task: int, late_ms: int, **columns: Any) -> None:
    at = page.rows.past()
    page.rows.assigned(page.worker, task, at, gmt_started=at + timedelta(milliseconds=late_ms), **columns)


# Why something did not run


def test_an_instance_that_did_not_run_says_why(page: Page) -> None:
    page.rows.assigned(page.worker, NIGHTLY, MISSED)
    page.set("status = 'off'")
    assert page.claim() == []
    [seen] = page.seen("why-instance")
    assert (seen["status"], seen["reason"]) == ("canceled", "its task was off when it was due")


def test_fires_that_have_no_instance_are_counted_on_their_task(page: Page) -> None:
    page.materialize()
    _plan_stands_at(page, page.rows.start - timedelta(minutes=30))
    page.materialize()
    page.set("status = 'off'")
    page.materialize()
    _plan_stands_at(page, page.rows.start - timedelta(minutes=5))
    page.materialize()
    [seen] = page.seen("why-task")
    assert (seen["status"], seen["plan_error"]) == ("off", None)
    assert seen["misfires"] in (30, 31)  # a minute may have passed meanwhile
    assert seen["fires_held_back"] in (6, 7)
    assert page.seen("counters") == [{key: seen.get(key, "nightly") for key in ("name", "misfires", "fires_held_back")}]


def _plan_stands_at(page: Page, moment: datetime) -> None:
    page.rows.sql(
        "UPDATE schedule_task SET next_fire_at = :at WHERE id = 3", at=written(moment.replace(second=0, microsecond=0))
    )


def test_a_task_with_a_bad_cron_is_set_aside_and_comes_back_with_a_good_one(page: Page) -> None:
    other = page.rows.task("other")
    page.set("cron = '61 * * * *'")
    page.materialize()
    [seen] = page.seen("set-aside")
    assert (seen["id"], seen["name"]) == (3, "nightly")
    assert "61" in seen["plan_error"]
    assert page.instances(other) != []
    page.changed("cron")
    page.materialize()
    assert page.seen("set-aside") == []
    assert page.rows.task_row(NIGHTLY).next_fire_at is not None


def test_the_fires_of_a_task_with_a_bad_param_are_canceled_until_it_is_good(page: Page) -> None:
    page.set("""param = '{"nodes": "REPORT_SEND"}'""")
    page.materialize()
    page.assign()
    assert {row["status"] for row in page.instances()} == {"canceled"}
    assert all("must be a list" in row["reason"] for row in page.instances())
    assert page.rows.task_row(NIGHTLY).next_fire_at is not None
    assert page.seen("set-aside") == []
    assert page.changed("param") == 1
    _plan_stands_at(page, page.rows.start - timedelta(minutes=1))
    page.materialize()
    page.assign()
    assert [row["status"] for row in page.instances() if row["status"] != "canceled"] == ["assigned"]


# Who changed it


def test_who_changed_a_task_and_its_instances_is_seen(page: Page) -> None:
    ann, name = Actor("ann", "cli"), "nightly"
    control_tasks.edit(page.database, ann, name, {"retries": 2}, "it failed")
    page.is_instance_17(control_tasks.run(page.database, ann, name, why="now").document["id"])
    page.rows.sql("UPDATE schedule_audit SET object_id = 17 WHERE action = 'task.run'")
    control_instances.cancel(page.database, ann, [INSTANCE], "no")
    control_tasks.remove(page.database, ann, name)
    seen = [(row["action"], row["object_type"], row["object_id"], row["why"]) for row in page.seen("audit")]
    assert seen == [
        ("task.remove", "schedule_task", NIGHTLY, None),
        ("instance.cancel", "schedule_instance", INSTANCE, "no"),
        ("task.run", "schedule_instance", INSTANCE, "now"),
        ("task.set", "schedule_task", NIGHTLY, "it failed"),
    ]
    assert json.loads(page.seen("audit")[-1]["new_values"]) == {"retries": 2}
    assert [row["action"] for row in page.seen("audit-instance")] == ["instance.cancel", "task.run"]


# Tasks


def test_off_holds_back_what_was_materialized_ahead(page: Page) -> None:
    page.materialize()
    assert {row["status"] for row in page.instances()} == {"assigned"}
    assert page.changed("off") == 1
    assert page.claim() == []
    assert {(row["status"], row["reason"]) for row in page.instances()} == {
        ("canceled", "its task was off when it was due")
    }


def test_on_again_in_time_fires_as_if_nothing_had_been(page: Page) -> None:
    page.materialize()
    page.changed("off")
    page.changed("on")
    assert [run.id for run in page.claim()] == [row["id"] for row in page.instances()] != []


def test_another_cron_takes_back_what_was_ahead_and_plans_anew(page: Page) -> None:
    page.materialize()
    ahead = len(page.instances())
    assert ahead > 1
    assert page.changed("cron") == 1
    page.materialize()
    left = [row["schedule_datetime"] for row in page.instances() if row["schedule_datetime"] > page.rows.now()]
    assert {f"{moment:%H:%M}" for moment in left} <= {"04:30"}
    assert f"{page.rows.task_row(NIGHTLY).next_fire_at:%H:%M:%S}" == "04:30:00"


def test_another_zone_plans_anew(page: Page) -> None:
    page.changed("cron")
    page.materialize()
    page.changed("zone")
    page.materialize()
    local = (
        page.rows.task_row(NIGHTLY)
        .next_fire_at.replace(tzinfo=ZoneInfo("UTC"))
        .astimezone(ZoneInfo("America/New_York"))
    )
    assert f"{local:%H:%M}" == "04:30"


def test_an_inserted_task_fires_from_now_on(page: Page) -> None:
    page.changed("insert-cron")
    task = page.task_id("morning-report")
    page.materialize()
    planned = page.rows.task_row(task)
    local = planned.next_fire_at.replace(tzinfo=ZoneInfo("UTC")).astimezone(ZoneInfo("Europe/Berlin"))
    assert (f"{local:%H:%M}", local.weekday() < 5, planned.plan_error) == ("08:30", True, None)
    now = written(page.rows.now())
    page.rows.sql("UPDATE schedule_task SET next_fire_at = :now WHERE id = :id", now=now, id=task)
    page.materialize()
    fired = page.instances(task)[0]
    assert written(fired["schedule_datetime"]) == now
    assert (fired["status"], fired["run_number"], fired["origin"]) == ("assigned", 0, "cron")


def test_an_inserted_task_with_seconds_fires_every_ten(page: Page) -> None:
    page.changed("insert-seconds")
    page.materialize()
    fired = [row["schedule_datetime"] for row in page.instances(page.task_id("pulse"))]
    assert len(fired) >= 29
    assert {moment.second % 10 for moment in fired} == {0}


def test_an_inserted_request_needs_no_code(page: Page) -> None:
    page.database.write(lambda c: node_types.register(c, builtin.DECLARATIONS, "test"))
    sender = page.rows.worker("sender", node_types=["HTTP_REQUEST"])
    page.changed("insert-http")
    page.materialize()
    fired = page.instances(page.task_id("ping"))
    assert fired != []
    page.database.read(node_types.catalog).check("HTTP_REQUEST", fired[0]["param"])
    assert {(row["status"], row["schedule_worker_node_id"]) for row in fired} == {("assigned", sender)}
    assert fired[0]["param"]["url"] == "https://example.org/hook"


def test_an_inserted_manual_task_waits_to_be_asked(page: Page) -> None:
    page.changed("insert-manual")
    page.materialize()
    task = page.task_id("rebuild")
    assert (page.instances(task), page.rows.task_row(task).plan_error) == ([], None)
    page.rows.by_sql(task)
    page.assign()
    assert [row["status"] for row in page.instances(task)] == ["assigned"]


def test_a_deleted_task_fires_no_more_and_keeps_its_history_and_frees_its_name(page: Page) -> None:
    page.materialize()
    ahead = len(page.instances())
    assert page.changed("delete") == 1
    assert page.claim() == []
    assert {row["reason"] for row in page.instances()} == {"its task was deleted"}
    page.rows.sql("UPDATE schedule_task SET next_fire_at = :now WHERE id = 3", now=written(page.rows.now()))
    page.materialize()
    assert len(page.instances()) == ahead
    assert page.rows.task("nightly") != NIGHTLY
    assert page.seen("history")[0] | {"oldest": None} == {
        "id": 3, "name": "nightly", "is_deleted": 1, "instances": ahead, "oldest": None,
    }  # fmt: skip


def test_an_undeleted_task_fires_again_from_now_on(page: Page) -> None:
    page.changed("delete")
    page.materialize()
    assert page.instances() == []
    assert page.changed("undelete") == 1
    page.materialize()
    assert {row["status"] for row in page.instances()} == {"assigned"}
    assert len(page.claim()) == len(page.instances())
    assert page.rows.task_row(NIGHTLY).misfires == 0


# Run what was missed


def test_an_inserted_time_runs_though_the_task_is_off(page: Page) -> None:
    page.changed("compensate")
    page.changed("off")
    page.assign()
    [row] = page.instances()
    assert (row["status"], row["run_number"], row["origin"]) == ("assigned", 1, "sql")
    assert (row["schedule_datetime"], row["due_at"], row["param"]) == (MISSED, MISSED, {"region": "eu"})
    [run] = page.claim()
    assert (run.schedule_datetime, run.param, len(run.nodes)) == (MISSED, {"region": "eu"}, 2)


def test_a_time_inserted_again_is_its_next_run(page: Page) -> None:
    page.rows.ended(worker=page.worker)
    page.rows.assigned(page.worker, NIGHTLY, MISSED)
    for _ in range(2):
        page.changed("compensate")
    page.assign()
    assert [(row["run_number"], row["status"]) for row in page.instances()] == [
        (0, "assigned"), (1, "assigned"), (2, "assigned"),
    ]  # fmt: skip


def test_several_inserted_times_run_each_as_its_own(page: Page) -> None:
    assert page.changed("compensate-several") == 3
    page.assign()
    expected = [(MISSED - timedelta(days=days), 1, "assigned") for days in (2, 1, 0)]
    assert [(row["schedule_datetime"], row["run_number"], row["status"]) for row in page.instances()] == expected


def test_what_is_run_now_or_replayed_has_the_tasks_priority(page: Page) -> None:
    page.ended_17("failed")
    page.set("priority = 2")
    page.changed("run-now")
    page.changed("replay")
    page.changed("replay-failed")
    new = [row for row in page.instances() if row["id"] != INSTANCE]
    assert [row["priority"] for row in new] == [2] * len(new)
    assert {row["origin"] for row in new} == {"manual", "replay"}


def test_deleting_history_holds_up_no_insert_and_no_report(mariadb_rows: Scenario) -> None:
    page = Page(mariadb_rows)
    page.is_instance_17(page.rows.ended(worker=page.worker, task=NIGHTLY))
    page.rows.sql("UPDATE schedule_instance SET gmt_completed = '2020-01-01 00:00:00.000000' WHERE id = 17")
    following = page.rows.ended(worker=page.worker, task=NIGHTLY)
    page.rows.sql("UPDATE schedule_instance SET id = 1500 WHERE id = :id", id=following)
    running = page.rows.running(page.worker, NIGHTLY)
    page.rows.sql("UPDATE schedule_instance SET id = 2000 WHERE id = :id", id=running.id)
    page.rows.sql(
        "UPDATE schedule_task_node SET schedule_instance_id = 2000 WHERE schedule_instance_id = :i", i=running.id
    )
    url = page.database.url.render_as_string(hide_password=False)
    delete = next(block.sql for block in blocks() if block.name == "delete-history")
    with contextlib.closing(connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        assert cursor.execute(delete) == 1
        page.rows.by_sql(NIGHTLY)
        assert page.rows.report(page.worker, ended(replace(running, id=2000))) == set()


def test_a_task_runs_now_by_its_name(page: Page) -> None:
    page.changed("run-now")
    page.assign()
    [run] = page.claim()
    assert (run.task_name, run.origin) == ("nightly", "manual")
    assert abs(run.due_at - page.rows.now()) < timedelta(minutes=1)


@pytest.mark.parametrize("status", ["failed", "canceled", "succeed"])
def test_what_has_ended_is_replayed_with_its_time_and_param_and_stays_as_history(page: Page, status: str) -> None:
    page.ended_17(status)
    page.rows.sql("""UPDATE schedule_instance SET param = '{"region": "us"}' WHERE id = 17""")
    assert page.changed("replay") == 1
    page.assign()
    old, new = page.instances()
    assert (old["id"], old["status"], old["run_number"]) == (17, status, 0)
    assert (new["status"], new["run_number"], new["origin"]) == ("assigned", 1, "replay")
    assert (new["schedule_datetime"], new["param"]) == (old["schedule_datetime"], {"region": "us"})
    assert page.rows.node_statuses(new["id"]) == ["pending", "pending"]


def test_what_has_not_ended_is_not_replayed(page: Page) -> None:
    page.running_17()
    assert page.changed("replay") == 0


def test_the_fires_that_failed_are_replayed_but_for_those_that_run_or_ran_since(page: Page) -> None:
    failed = [page.rows.ended("failed", page.worker, NIGHTLY) for _ in range(3)]
    page.rows.ended("succeed", page.worker, NIGHTLY)
    page.rows.by_sql(NIGHTLY, page.rows.row(failed[0]).schedule_datetime)
    page.rows.sql(
        "UPDATE schedule_instance SET gmt_completed = '2020-01-01 00:00:00.000000' WHERE id = :id", id=failed[1]
    )
    assert page.changed("replay-failed") == 1
    [again] = [row for row in page.instances() if row["origin"] == "replay"]
    assert again["schedule_datetime"] == page.rows.row(failed[2]).schedule_datetime
    assert page.changed("replay-failed") == 0


# Cancel


@pytest.mark.parametrize("status", ["pending", "assigned"])
def test_what_has_not_started_is_canceled_and_never_starts(page: Page, status: str) -> None:
    waiting = page.rows.pending(NIGHTLY) if status == "pending" else page.rows.assigned(page.worker, NIGHTLY)
    page.is_instance_17(waiting)
    assert page.changed("cancel-waiting-nodes") == 0, "it is not canceled yet"
    assert page.changed("cancel-waiting") == 1
    assert page.changed("cancel-waiting-nodes") == (0 if status == "pending" else 2)
    assert page.rows.broken() == {}
    page.assign()
    assert page.rows.claim(page.worker, INSTANCE).runs == []
    assert page.rows.row(INSTANCE).reason == "not needed any more"
    assert page.rows.row(INSTANCE).gmt_completed is not None


def test_the_worker_of_what_runs_is_asked_to_stop_it(page: Page) -> None:
    page.running_17()
    assert page.changed("cancel-waiting") == 0
    assert page.database.read(lambda c: recovery.held(c, page.worker)) == [(17, 1, False)]
    assert page.changed("cancel-running") == 1
    assert page.database.read(lambda c: recovery.held(c, page.worker)) == [(17, 1, True)]
    assert page.changed("cancel-running") == 0


# Schedulers


def test_the_schedulers_that_tick_are_seen_and_no_others(page: Page) -> None:
    def register(name: str) -> int:
        declared = SchedulerDeclaration(name, "vm", 7, "1.0", 15)
        return page.database.write(lambda c: schedulers.register(c, declared))

    _, killed, stopped, paused = (register(name) for name in ("ticks", "was killed", "has stopped", "is paused"))
    page.rows.sql("UPDATE schedule_scheduler_node SET state = 'paused' WHERE id = :id", id=paused)
    page.database.write(lambda c: schedulers.tick(c, killed, page.rows.start - timedelta(seconds=20)))
    page.database.write(lambda c: schedulers.leave(c, stopped, "test"))
    assert [(row["name"], row["state"]) for row in page.seen("schedulers")] == [("ticks", "active")]


def test_while_scheduling_is_paused_nothing_fires(page: Page) -> None:
    page.rows.sql("UPDATE schedule_task SET cron = '0 0 1 2 *', starts_at = NULL, planned_inputs = NULL")
    page.materialize()
    page.rows.sql("UPDATE schedule_task SET next_fire_at = :past", past=written(page.rows.past()))
    assert page.changed("pause") == 1
    page.materialize()
    assert page.rows.statuses() == {}
    assert page.changed("resume") == 1
    page.materialize()
    assert len(page.rows.statuses()) == 1


def test_the_next_fire_is_skipped_and_no_scheduler_writes_it(page: Page) -> None:
    _steered(page, lambda: page.changed("skip-fire"), "canceled")


def test_the_next_fire_is_moved_and_no_scheduler_writes_it(page: Page) -> None:
    _steered(page, lambda: page.changed("move-fire"), "pending")


def _steered(page: Page, steer: Callable[[], int], status: str) -> None:
    fire = datetime.fromisoformat("2030-01-03T02:00:00")
    page.rows.sql("UPDATE schedule_task SET cron = '0 2 * * *', starts_at = '2030-01-03 02:00:00.000000'")
    page.materialize()
    assert steer() == 1
    page.rows.sql("UPDATE schedule_task SET cron = '0 2 3 * *'")
    page.materialize()
    page.rows.fire(NIGHTLY, fire, page.worker)
    [instance] = page.rows.statuses()
    assert (page.rows.status(instance), page.rows.row(instance).schedule_datetime) == (status, fire)
    assert control_steering.next_fires(page.database, "nightly")["next_fires"][0]["instance"] == instance
    assert page.rows.broken() == {}


# History


def test_old_history_is_deleted_in_portions_and_its_nodes_are_swept_away(page: Page) -> None:
    old, fresh = (page.rows.ended(worker=page.worker, task=NIGHTLY) for _ in range(2))
    waiting = page.rows.assigned(page.worker, NIGHTLY)
    ago = written(page.rows.start - timedelta(days=2))
    page.rows.sql("UPDATE schedule_instance SET gmt_completed = :ago WHERE id = :id", ago=ago, id=old)
    [found] = page.seen("old-history")
    assert (found["first"], found["last"]) == (old, old)
    page.is_instance_17(old)
    assert page.changed("delete-history") == 1
    assert page.changed("delete-history") == 0
    [found] = page.seen("old-history")
    assert (found["first"], found["last"]) == (None, None)
    assert set(page.rows.statuses()) == {fresh, waiting}
    Sweeper(page.database, page.settings).step()
    left = page.rows.sql("SELECT DISTINCT schedule_instance_id FROM schedule_task_node ORDER BY 1")
    assert [instance for (instance,) in left] == [fresh, waiting]


@pytest.mark.parametrize(
    "mark",
    [
        """schedule_follow_up (what, schedule_task_id, schedule_instance_id, instance_gmt_create)
        SELECT 'fixed_delay', schedule_task_id, id, gmt_create FROM schedule_instance""",
        "schedule_chain_run (schedule_instance_id, instance_gmt_create) SELECT id, gmt_create FROM schedule_instance",
    ],
)
def test_history_whose_end_is_still_to_be_followed_stays(page: Page, mark: str) -> None:
    page.is_instance_17(page.rows.ended(worker=page.worker, task=NIGHTLY))
    ago = written(page.rows.start - timedelta(days=2))
    page.rows.sql("UPDATE schedule_instance SET gmt_completed = :ago", ago=ago)
    page.rows.sql(f"INSERT INTO {mark}")
    assert page.seen("old-history") == [{"first": None, "last": None}]
    assert page.changed("delete-history") == 0
    page.rows.sql(f"DELETE FROM {mark.split(maxsplit=1)[0]}")
    assert page.seen("old-history") == [{"first": 17, "last": 17}]
    assert page.changed("delete-history") == 1


def test_what_was_ended_by_hand_is_deleted_as_old_history_too(page: Page) -> None:
    page.running_17()
    page.rows.sql("UPDATE schedule_instance SET status = 'failed' WHERE id = 17")
    assert page.seen("old-history") == [{"first": None, "last": None}], "Rota wrote it a moment ago"
    ago = written(page.rows.start - timedelta(days=2))
    page.rows.sql("UPDATE schedule_instance SET gmt_modified = :ago WHERE id = 17", ago=ago)
    assert page.seen("old-history") == [{"first": 17, "last": 17}]
    assert page.changed("delete-history") == 1


def test_whoever_deletes_history_says_since_when_it_is_complete(page: Page) -> None:
    assert page.changed("history-complete-from") == 1
    assert page.changed("history-complete-from") == 0
    assert page.rows.task_row(NIGHTLY).history_complete_from == datetime.fromisoformat("2026-11-20T00:00:00")


def test_a_backfill_is_inserted_seen_and_paused(page: Page) -> None:
    page.set("cron = '0 2 * * *'")
    page.changed("backfill")
    backfiller = Backfiller(page.database, page.settings)
    backfiller.step()
    backfiller.step()
    [seen] = page.seen("backfills")
    assert (seen["name"], seen["status"], seen["fires"], seen["in_flight"]) == ("nightly", "running", 19, 4)
    assert seen["next_fire"] == "2026-11-05 02:00:00.000000"
    page.rows.sql("UPDATE schedule_backfill SET id = 1")
    assert page.changed("pause-backfill") == 1
    assert page.changed("pause-backfill") == 0
    page.assign()
    assert {run.origin for run in page.claim()} == {"backfill"}


def test_old_rows_of_the_audit_are_deleted_in_portions(page: Page) -> None:
    for retries in (1, 2):
        control_tasks.edit(page.database, Actor("ann", "cli"), "nightly", {"retries": retries})
    [(first,)] = page.rows.sql("SELECT MIN(id) FROM schedule_audit")
    page.rows.sql(
        "UPDATE schedule_audit SET id = 1, gmt_create = '2020-01-01 00:00:00.000000' WHERE id = :id", id=first
    )
    assert page.seen("old-audit") == [{"first": 1, "last": 1}]
    assert page.changed("delete-audit") == 1
    assert page.seen("old-audit") == [{"first": None, "last": None}]
    assert [json.loads(row["new_values"]) for row in page.seen("audit")] == [{"retries": 2}]


def test_what_was_ended_by_hand_is_set_right(page: Page) -> None:
    page.running_17()
    page.rows.sql("UPDATE schedule_instance SET status = 'failed' WHERE id = 17")
    assert set(page.rows.broken()) == {"ended-nodes", "completed"}
    assert page.changed("mend-instance") == 1
    assert page.changed("mend-nodes") == 2
    assert page.rows.broken() == {}
    assert (page.changed("mend-instance"), page.changed("mend-nodes")) == (0, 0)


# Workers


def test_the_workers_alive_are_seen_with_what_they_hold(page: Page) -> None:
    page.rows.bury(page.rows.worker("worker-0"))
    page.rows.worker("worker-2")
    page.rows.assigned(page.worker, NIGHTLY)
    page.rows.assigned(page.worker, NIGHTLY)
    page.running_17()
    seen = [(r["name"], r["state"], int(r["running"]), int(r["assigned"])) for r in page.seen("workers")]
    assert seen == [("worker-1", "live", 1, 2), ("worker-2", "live", 0, 0)]


def test_a_drained_worker_finishes_what_runs_and_the_rest_goes_to_others(page: Page) -> None:
    page.running_17()
    waiting = page.rows.assigned(page.worker, NIGHTLY)
    assert page.changed("drain") == 1
    Reaper(page.database, page.settings, "test").step()
    assert (page.rows.status(INSTANCE), page.rows.status(waiting)) == ("running", "pending")
    assert page.database.write(lambda c: workers.heartbeat(c, page.worker, workers.Load(1)))
    page.assign()
    assert page.rows.status(waiting) == "pending"
    other = page.rows.worker("worker-2")
    page.assign()
    assert page.rows.row(waiting).schedule_worker_node_id == other


def test_a_drained_worker_is_put_to_work_again(page: Page) -> None:
    page.changed("drain")
    assert page.changed("undrain") == 1
    page.rows.by_sql(NIGHTLY)
    page.assign()
    assert [row["schedule_worker_node_id"] for row in page.instances()] == [page.worker]
