"""A batch of which somebody has locked a row is parted, in few transactions, and waits for the lock once."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from rota.shared.database.wariness import WARY_SECONDS, Wariness
from rota.shared.settable_clock import SettableClock
from tests.harness.databases import MariaDBServer
from tests.harness.scenario import Scenario
from tests.harness.together import DEADLINE, locked, wait_for_lock_wait

NUMBER = 1_000


class Batch:
    """Tasks whose priorities are set to 1, and the transactions that try it."""

    def __init__(self, rows: Scenario) -> None:
        self.rows, self.database = rows, rows.database
        self.tasks = rows.tasks(NUMBER)
        self.tried: list[int] = []

    def write(self) -> list[int]:
        self.tried.clear()
        return self.database.write_by_halves(self.tasks, self._set, self._refused, lambda task: f"task {task}")

    def _set(self, connection: Connection, tasks: Sequence[int]) -> None:
        self.tried.append(len(tasks))
        ids = ", ".join(map(str, tasks))
        connection.execute(text(f"UPDATE schedule_task SET priority = 1 WHERE id IN ({ids})"))

    def _refused(self, task: int, error: DBAPIError) -> None:
        raise AssertionError(task) from error

    @property
    def left(self) -> list[int]:
        return [row[0] for row in self.rows.sql("SELECT id FROM schedule_task WHERE priority <> 1")]


@pytest.fixture
def batch(mariadb_rows: Scenario) -> Batch:
    return Batch(mariadb_rows)


def test_one_locked_row_of_many_is_found_in_few_transactions(batch: Batch, caplog: pytest.LogCaptureFixture) -> None:
    stuck = batch.tasks[617]
    with locked(batch.database, "schedule_task", "id = :id", id=stuck):
        assert batch.write() == [stuck]
        if batch.rows.on_mysql:
            assert len(batch.tried) == 1 + 32 + 32, "waiting, and parts in two steps"
        else:
            assert len(batch.tried) == 1 + 1 + 2 * 10 + 1, "waiting, not waiting, halves, and once more alone"
        assert batch.left == [stuck]
        assert batch.write() == [stuck]
        assert len(batch.tried) == (65 if batch.rows.on_mysql else 22), "and for a minute it does not wait"
    assert batch.write() == []
    assert (batch.tried, batch.left) == ([NUMBER], [])
    said = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert said == [f"task {stuck} waits: another session has locked it, or what is written with it"]


def test_a_lock_that_goes_while_it_is_waited_for_parts_nothing(batch: Batch, mariadb_server: MariaDBServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        with locked(batch.database, "schedule_task", "id = :id", id=batch.tasks[0]):
            written = pool.submit(batch.write)
            wait_for_lock_wait(mariadb_server, written)
        assert written.result(DEADLINE) == []
    assert batch.tried == [NUMBER]


def test_nothing_to_write_is_no_transaction(batch: Batch) -> None:
    batch.tasks = []
    assert (batch.write(), batch.tried) == ([], [])


def test_a_write_of_its_own_waits_for_locks_however_wary_the_process_is(batch: Batch) -> None:
    batch.database.wariness.met()
    [seconds] = batch.database.write(lambda c: c.execute(text("SELECT @@innodb_lock_wait_timeout")).scalars().all())
    [none] = batch.database.write_if_free(
        lambda c: list(c.execute(text("SELECT @@innodb_lock_wait_timeout")).scalars())
    )
    assert (seconds, none) == (2, 1 if batch.rows.on_mysql else 0)


def test_wariness_is_over_a_minute_after_the_last_lock(caplog: pytest.LogCaptureFixture) -> None:
    clock = SettableClock(datetime.fromisoformat("2026-11-22 12:00:00"))
    wariness = Wariness(clock)
    assert not wariness.is_wary()
    for _ in range(3):
        wariness.passed_over(["task 'nightly'"])
        clock.advance(WARY_SECONDS - 1)
        assert wariness.is_wary()
    clock.advance(1)
    assert not wariness.is_wary()
    assert len(caplog.records) == 1
    wariness.passed_over(["task 'nightly'"])
    assert len(caplog.records) == 2


def test_a_row_that_a_lock_of_milliseconds_held_up_is_written_all_the_same(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if batch.rows.on_mysql:
        pytest.skip("there each try waits for a second")
    batch.database.wariness.met()
    with ExitStack() as held:
        held.enter_context(locked(batch.database, "schedule_task", "id = :id", id=batch.tasks[0]))
        monkeypatch.setattr(batch.database.clock, "sleep", lambda seconds: held.close())
        assert batch.write() == []
    assert batch.left == []
    assert "waits" not in caplog.text
