"""Assignments that their workers did not start in time: they are found wherever they stand in a queue."""

from datetime import datetime, timedelta

import pytest

from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.database.constructs import written
from rota.shared.settings import Settings
from rota.shared.store import unstarted, workers
from rota.shared.store.unstarted import FRONT, Place, Queue
from rota.shared.store.workers import Load
from tests.harness.scenario import Scenario

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
PRIORITY = 5


def late_queues(rows: Scenario, *workers: int, cutoff: datetime) -> list[Queue]:
    return rows.database.read(lambda c: unstarted.late_queues(c, workers, cutoff))


def take_back(
    rows: Scenario, worker: int, cutoff: datetime, limit: int = 10, after: Place = FRONT
) -> tuple[int, Place]:
    queue = Queue(worker, PRIORITY)
    return rows.database.write(lambda c: unstarted.take_back(c, queue, cutoff, limit, after))


def assigned_long_ago(rows: Scenario, *instances: int) -> None:
    for instance in instances:
        ago = written(rows.now() - MINUTE)
        rows.sql("UPDATE schedule_instance SET gmt_assigned = :ago WHERE id = :id", ago=ago, id=instance)


def test_what_a_worker_has_not_started_in_time_is_taken_back_with_the_reason(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    overdue = rows.assigned(worker)
    not_due = rows.assigned(worker, due_at=rows.start + timedelta(hours=1))
    running, of_another = rows.running(worker).id, rows.assigned(other)
    cutoff = rows.now() + SECOND
    assert take_back(rows, worker, cutoff) == (1, FRONT)
    row = rows.row(overdue)
    assert (row.status, row.schedule_worker_node_id, row.gmt_assigned) == ("pending", None, None)
    assert row.reason.startswith("its worker did not start the instance in time")
    assert [rows.status(i) for i in (not_due, running, of_another)] == ["assigned", "running", "assigned"]


def test_the_queues_in_which_something_is_late_are_found_of_each_worker_and_priority(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    for one, priority in ((worker, 0), (worker, 9), (other, 5)):
        rows.assigned(one, priority=priority)
    rows.assigned(other, due_at=rows.start + timedelta(hours=1), priority=3)
    rows.running(worker)
    cutoff = rows.now() + SECOND
    assert late_queues(rows, worker, other, cutoff=cutoff) == [(worker, 0), (worker, 9), (other, 5)]
    assert late_queues(rows, worker, cutoff=cutoff) == [(worker, 0), (worker, 9)]
    assert late_queues(rows, cutoff=cutoff) == []


@pytest.mark.parametrize("spoiled", ["due_at", "gmt_assigned"])
def test_what_sql_wrote_without_a_time_is_in_nobodys_way(rows: Scenario, spoiled: str) -> None:
    worker = rows.worker()
    behind, first = rows.assigned(worker), rows.assigned(worker)
    rows.sql(f"UPDATE schedule_instance SET {spoiled} = NULL WHERE id = :id", id=first)
    cutoff = rows.now() + SECOND
    assert late_queues(rows, worker, cutoff=cutoff) == [(worker, PRIORITY)]
    assert take_back(rows, worker, cutoff) == (1, FRONT)
    assert [rows.status(i) for i in (first, behind)] == ["assigned", "pending"]


def test_what_was_assigned_a_moment_ago_is_not_taken_back_though_it_was_due_long_ago(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    assert take_back(rows, worker, rows.now() - MINUTE) == (0, FRONT)
    assert rows.status(instance) == "assigned"


def test_looks_go_through_a_queue_page_by_page_and_begin_anew_at_its_end(rows: Scenario) -> None:
    worker, at = rows.worker(), rows.past()
    waiting = [rows.assigned(worker, due_at=at) for _ in range(5)]
    cutoff = rows.now() - SECOND
    assigned_long_ago(rows, waiting[1], waiting[4])
    place, taken = FRONT, []
    for _ in range(3):
        count, place = take_back(rows, worker, cutoff, 2, place)
        taken.append((count, [rows.status(i) for i in waiting].count("pending"), place and place[1]))
    assert taken == [(1, 1, waiting[1]), (0, 1, waiting[3]), (1, 2, FRONT)]
    assert place == FRONT


def test_what_waits_behind_a_stream_of_new_assignments_is_taken_over_by_an_idle_worker(rows: Scenario) -> None:
    """As during a backfill: what comes is due before what waits, and is always assigned a moment ago."""
    busy, idle = rows.worker(), rows.worker()
    assert idle
    behind = rows.assigned(busy, due_at=rows.start - MINUTE)
    assigned_long_ago(rows, behind)
    for _ in range(3):
        rows.assigned(busy, due_at=rows.start - timedelta(hours=1))
    assert rows.database.write(lambda c: workers.heartbeat(c, busy, Load(busy=10, started=7)))
    reaper = Reaper(rows.database, Settings.load(assignment_timeout_seconds=10, batch=2), "test")
    for _ in range(2):
        reaper._looked_for_unstarted = float("-inf")
        reaper.step()
    assert rows.status(behind) == "pending"
    assert sorted(rows.statuses().values()) == ["assigned"] * 3 + ["pending"]
