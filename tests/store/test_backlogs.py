"""A backlog that nobody can run is passed over: by what is urgent, by what is behind it, and at little cost."""

import logging
from collections.abc import Callable
from datetime import timedelta
from unittest.mock import Mock

import pytest
from sqlalchemy import insert

from rota.scheduler_service import fleet
from rota.scheduler_service.duties import assigner as assigner_module
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.fleet import SNAPSHOT_SECONDS
from rota.shared.database.transactions import Database
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import assignments
from rota.shared.store.tables import schedule_instance
from tests.harness import leases
from tests.harness.scenario import Scenario

BATCH = 5
PAGES = 10
TICK = 1.0


@pytest.fixture
def rows(database: Database) -> Scenario:
    return Scenario(database)


@pytest.fixture
def assigner(database: Database, monkeypatch: pytest.MonkeyPatch) -> Assigner:
    """An assigner of small pages, which sees the workers as they are then, and whose ticks never come sooner."""
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    monkeypatch.setattr(assigner_module, "ROWS", PAGES * BATCH)
    monkeypatch.setattr(assigner_module, "seconds_to_next", lambda _, period, __: period)
    return Assigner(database, Settings.load(batch=BATCH))


def backlog(rows: Scenario, task: int, number: int, *, with_due_at: bool = True) -> None:
    """Pending fires of a task, due before whatever else a test has, and the earlier the lower their ids."""
    moments = [rows.start - timedelta(hours=2, seconds=-n) for n in range(number)]
    due = [{"due_at": at} if with_due_at else {} for at in moments]
    fires = [{"schedule_task_id": task, "schedule_datetime": at, **more} for at, more in zip(moments, due, strict=True)]
    rows.database.write(lambda c: c.execute(insert(schedule_instance), fires).rowcount)


def stuck(rows: Scenario, number: int) -> None:
    """A backlog that no worker is there for."""
    backlog(rows, rows.task(required_labels={"lane": "x"}), number)


@pytest.fixture
def pages(assigner: Assigner, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """One pass: how many pages it reads."""
    pending = Mock(side_effect=assignments.pending)
    monkeypatch.setattr(assignments, "pending", pending)

    def count() -> int:
        pending.reset_mock()
        assigner.step()
        return pending.call_count

    return count


def test_what_is_urgent_is_given_out_by_the_next_pass_wherever_the_last_one_stood(
    rows: Scenario, assigner: Assigner
) -> None:
    rows.worker()
    stuck(rows, 3 * PAGES * BATCH)
    assigner.step()
    urgent = rows.pending(rows.task(priority=1), priority=1)
    assigner.step()
    assert rows.status(urgent) == "assigned"


def test_what_is_behind_a_backlog_of_one_task_that_nobody_can_run_is_given_out_at_once(
    rows: Scenario, assigner: Assigner
) -> None:
    rows.worker()
    stuck(rows, 2 * PAGES * BATCH)
    behind = rows.pending(at=rows.start)
    assert (assigner.step(), rows.status(behind)) == (TICK, "assigned")


def test_what_is_behind_a_backlog_of_many_tasks_that_nobody_can_run_is_given_out_some_passes_later(
    rows: Scenario, assigner: Assigner
) -> None:
    rows.worker()
    for number in range(2 * PAGES * BATCH):
        task = rows.task(required_labels={"lane": "x"})
        rows.pending(task, at=rows.start - timedelta(hours=2, seconds=-number))
    behind = rows.pending(at=rows.start)
    passes = [(assigner.step(), rows.status(behind)) for _ in range(3)]
    assert passes == [(TICK, "pending"), (TICK, "pending"), (TICK, "assigned")]


def test_a_pass_that_settles_nothing_rests_and_one_that_settles_most_goes_on(
    rows: Scenario, assigner: Assigner
) -> None:
    worker = rows.worker(capacity=10, prefetch=0)
    backlog(rows, rows.task(overlap_policy="allow"), 3 * PAGES * BATCH)
    assert assigner.step() == SNAPSHOT_SECONDS, "there was room for a few"
    assert assigner.step() == TICK, "there was none"
    rows.sql("UPDATE schedule_worker_node SET prefetch = 1000 WHERE id = :id", id=worker)
    assert [assigner.step() for _ in range(3)] == [0, 0, TICK]
    assert set(rows.statuses().values()) == {"assigned"}


def test_what_can_never_run_is_canceled_without_a_rest(rows: Scenario, assigner: Assigner) -> None:
    deleted = rows.task()
    backlog(rows, deleted, 2 * PAGES * BATCH + 1)
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :id", id=deleted)
    rows.worker()
    assert [assigner.step() for _ in range(3)] == [0, 0, TICK]
    assert set(rows.statuses().values()) == {"canceled"}


def test_where_no_worker_has_room_a_pass_is_two_pages_and_each_row_says_why_in_the_end(
    rows: Scenario, pages: Callable[[], int]
) -> None:
    stuck(rows, 4 * BATCH)
    assert pages() == 2
    assert rows.sql("SELECT count(*) FROM schedule_instance WHERE reason IS NULL") == [(2 * BATCH,)]
    for _ in range(3):
        assert pages() == 2
    assert list(rows.sql("SELECT DISTINCT reason FROM schedule_instance")) == [("no worker is live",)]
    rows.worker()
    assert pages() == 5


def test_what_another_scheduler_has_leased_holds_up_nothing_behind_it(
    rows: Scenario, assigner: Assigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.worker(capacity=1000)
    leased = rows.task(overlap_policy="allow")
    backlog(rows, leased, 2 * PAGES * BATCH)
    behind = rows.pending(at=rows.start)
    monkeypatch.setattr(assigner, "_settings", Settings.load(batch=BATCH, lock_lease_seconds=600))
    rows.database.write(lambda c: leases.acquire(c, "frozen", [leased], 600))
    assert [assigner.step() for _ in range(3)] == [TICK] * 3
    assert rows.status(behind) == "assigned"
    rows.sql("UPDATE schedule_task_lock SET locked_at = '2000-01-01 00:00:00.000000'")
    assert [assigner.step() for _ in range(3)] == [0, 0, TICK]
    assert set(rows.statuses().values()) == {"assigned"}


def test_after_its_rest_a_pass_finds_the_room_that_was_made(
    rows: Scenario, assigner: Assigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SettableClock(rows.start)
    assigner._fleet_cache._clock = clock
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", 1.0)
    worker = rows.worker(capacity=3, prefetch=0)
    backlog(rows, rows.task(overlap_policy="allow"), 2 * PAGES * BATCH)
    for given in (3, 6, 9):
        clock.advance(assigner.step() + 0.001)
        assert list(rows.statuses().values()).count("assigned") == given
        rows.sql("UPDATE schedule_worker_node SET capacity = capacity + 3 WHERE id = :id", id=worker)


@pytest.mark.usefixtures("assigner")
def test_a_rest_is_no_longer_than_a_period(rows: Scenario) -> None:
    quick = Assigner(rows.database, Settings.load(batch=BATCH, tick_seconds=0.1))
    rows.worker(capacity=3, prefetch=0)
    backlog(rows, rows.task(overlap_policy="allow"), 2 * BATCH)
    assert quick.step() == 0.1


def test_the_order_of_what_waits_for_room_is_that_of_priority_and_due_time(rows: Scenario, assigner: Assigner) -> None:
    worker = rows.worker(capacity=1, prefetch=0)
    backlog(rows, rows.task(overlap_policy="allow"), 3 * PAGES * BATCH)
    for more in (1, 1, 1, 4 * BATCH, 1):
        assigner.step()
        rows.sql("UPDATE schedule_worker_node SET capacity = capacity + :more WHERE id = :id", id=worker, more=more)
    given = [i for i, status in sorted(rows.statuses().items()) if status == "assigned"]
    assert given == sorted(rows.statuses())[: 4 + 4 * BATCH]


def test_all_that_sql_inserted_without_a_due_time_is_taken_up_at_once(rows: Scenario, assigner: Assigner) -> None:
    rows.worker(capacity=100)
    backlog(rows, rows.task(overlap_policy="allow"), 3 * BATCH, with_due_at=False)
    assert [assigner.step() for _ in range(4)] == [0, 0, 0, TICK]
    assert set(rows.statuses().values()) == {"assigned"}


def test_what_nobody_can_run_is_complained_of_at_once_and_is_over_when_all_was_looked_at(
    rows: Scenario, assigner: Assigner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rows.worker()
    stuck(rows, 2 * PAGES * BATCH)
    said = []
    for _ in range(3):
        assigner.step()
        said.append([record.getMessage() for record in caplog.records if "lane" in record.getMessage()])
        caplog.clear()
    complaint = "task type REPORT: no live worker that can run it carries the labels lane=x"
    assert said == [[f"assigner: {complaint}"], [], []]
    rows.sql("DELETE FROM schedule_instance")
    for over in ([f"assigner: over: {complaint}"], []):
        assigner.step()
        assert [record.getMessage() for record in caplog.records if "lane" in record.getMessage()] == over
        caplog.clear()
