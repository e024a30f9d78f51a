"""A worker that starts nothing: it is given less, or nothing, and what waits for it is given to others."""

from datetime import timedelta

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.settings import Settings
from rota.shared.store import loads, workers
from rota.shared.store.workers import Load
from tests.harness.scenario import Scenario

QUICK = Settings.load(assignment_timeout_seconds=0.001)


def beat(rows: Scenario, worker: int, load: Load) -> None:
    assert rows.database.write(lambda c: workers.heartbeat(c, worker, load))


def overdue(rows: Scenario, worker: int) -> int:
    """An instance that was given to the worker a while ago, and is due."""
    instance = rows.assigned(worker)
    ago = (rows.now() - timedelta(minutes=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
    rows.sql("UPDATE schedule_instance SET gmt_assigned = :ago WHERE id = :id", ago=ago, id=instance)
    return instance


@pytest.mark.parametrize(("abandoned", "capacity"), [(0, 10), (4, 6), (10, 0), (12, 0)])
def test_abandoned_threads_are_no_capacity(rows: Scenario, abandoned: int, capacity: int) -> None:
    worker = rows.worker(capacity=10)
    beat(rows, worker, Load(busy=abandoned, abandoned=abandoned))
    [found] = rows.database.read(loads.fleet)
    assert (found.capacity, found.said, found.load) == (capacity, abandoned, 0)


def test_a_worker_all_of_whose_threads_are_abandoned_attracts_no_work(rows: Scenario) -> None:
    stuck, healthy = rows.worker(capacity=2, prefetch=1000), rows.worker(capacity=2, prefetch=1000)
    beat(rows, stuck, Load(busy=2, abandoned=2))
    waiting = [rows.pending() for _ in range(20)]
    Assigner(rows.database, Settings.load()).step()
    assert {rows.row(instance).schedule_worker_node_id for instance in waiting} == {healthy}


def test_what_a_stalled_worker_did_not_start_is_given_to_another(rows: Scenario) -> None:
    stalled, other = rows.worker("stalled"), rows.worker("other", capacity=1, prefetch=10)
    instance = overdue(rows, stalled)
    for _ in range(3):
        rows.running(other)  # so that the stalled one has the smaller load
    Reaper(rows.database, QUICK, "test").step()
    assert (rows.status(instance), rows.row(instance).lost_by) == ("pending", "stalled")
    Assigner(rows.database, Settings.load()).step()
    assert rows.row(instance).schedule_worker_node_id == other


def test_a_worker_that_makes_progress_keeps_its_queue(rows: Scenario) -> None:
    busy, other = rows.worker(), rows.worker(capacity=1)
    rows.running(other)
    instance = overdue(rows, busy)
    beat(rows, busy, Load(busy=10, started=7))
    patient = Settings.load(assignment_timeout_seconds=10)
    Reaper(rows.database, patient, "test").step()
    assert rows.status(instance) == "assigned"


def test_a_worker_with_free_slots_takes_over_what_waits_in_anothers_queue(rows: Scenario) -> None:
    busy, idle = rows.worker(), rows.worker()
    instance = overdue(rows, busy)
    beat(rows, busy, Load(busy=10, started=7))
    patient = Settings.load(assignment_timeout_seconds=10)
    Reaper(rows.database, patient, "test").step()
    assert (rows.status(instance), rows.row(instance).lost_by) == ("pending", None)
    assert idle
