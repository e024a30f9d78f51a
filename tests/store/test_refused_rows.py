"""What the database, or the disk, refuses of one row or file stops no duty of the scheduler."""

import logging
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota.scheduler_service.app import Scheduler
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.strays import Strays
from rota.shared.database.sqlite import SQLITE
from rota.shared.settings import Settings
from rota.shared.store import recovery, strays
from tests.harness.scenario import Scenario


def refused(connection: Connection) -> None:
    """The database refuses this statement's data."""
    connection.execute(text("INSERT INTO schedule_task (id, name, type) VALUES (1, NULL, NULL)"))


def test_a_row_of_one_dead_worker_that_is_refused_stops_no_recovery_of_the_others(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = rows.worker(), rows.worker()
    stuck, other = rows.running(first).id, rows.running(second).id
    rows.bury(first)
    rows.bury(second)
    recover = recovery.recover

    def refusing(connection: Connection, worker_id: int, limit: int) -> int:
        if worker_id == first:
            refused(connection)
        return recover(connection, worker_id, limit)

    monkeypatch.setattr(recovery, "recover", refusing)
    reaper = Reaper(rows.database, Settings.load(), "test")
    for _ in range(2):
        reaper.step()
    assert (rows.status(stuck), rows.status(other)) == ("running", "pending")
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


def test_what_sql_wrote_into_one_row_of_a_dead_worker_stops_no_recovery(rows: Scenario) -> None:
    worker, on_sqlite = rows.worker(), rows.database.backend is SQLITE
    no_list = "5" if rows.on_mysql else "{not json"
    spoiled = {
        rows.running(worker).id: "worker_losses = 'many'" if on_sqlite else "worker_losses = 32767",
        rows.running(worker).id: f"failed_attempts = '{no_list}'",
        rows.running(worker).id: f"failed_attempts = '{'[' * 40}{']' * 40}'",
    }
    other = rows.running(worker).id
    for instance, change in spoiled.items():
        rows.sql(f"UPDATE schedule_instance SET {change} WHERE id = :id", id=instance)
    rows.bury(worker)
    Reaper(rows.database, Settings.load(), "test").step()
    ended = "pending" if on_sqlite else "failed"
    assert [rows.status(i) for i in (*spoiled, other)] == [ended, "pending", "pending", "pending"]


def test_a_stray_that_is_refused_stops_no_end_of_the_others(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = rows.pending(), rows.pending()
    rows.sql("UPDATE schedule_instance SET status = 'running'")
    end = strays.end

    def refusing(connection: Connection, instance_id: int, status: str) -> Any:
        if instance_id == first:
            refused(connection)
        return end(connection, instance_id, status)

    monkeypatch.setattr(strays, "end", refusing)
    Strays(rows.database, 15).step()
    assert rows.status(first) == "running"
    assert rows.status(second) != "running"


def test_a_health_file_that_cannot_be_written_stops_no_tick_and_is_said_once(
    rows: Scenario, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = rows.planned_task()
    scheduler = Scheduler(rows.database, Settings.load(health_file=str(tmp_path / "no" / "health")))
    for _ in range(3):
        scheduler._materialize()
    assert rows.task_row(task).next_fire_at > rows.start
    assert len([r for r in caplog.records if "health file" in r.getMessage()]) == 1
