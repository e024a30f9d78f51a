"""What the scheduler's duties and a stopping worker send: no lock is held over a round trip.

A transaction is one packet, from BEGIN to COMMIT. So a process that is frozen at any statement, or whose database is in
another zone, holds up nobody.
"""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.database.later import read_before
from rota.shared.domain.states import RECOVER
from rota.shared.settings import Settings
from rota.shared.store import fires, recovery, reports, unclaimed, workers
from rota.shared.store.transitions import recovering
from rota.shared.store.transitions.recovering import Verdict
from rota.worker_service.rows import WorkerRows
from tests.harness.packets import Packets, assert_one_packet_each, verbs
from tests.harness.scenario import Scenario, ended

MINUTE = timedelta(minutes=1)


@pytest.fixture
def reaper(mariadb_rows: Scenario) -> Reaper:
    """A reaper that has watched the workers for long enough to declare them dead."""
    reaper = Reaper(mariadb_rows.database, Settings.load(), "test")
    reaper._watching_since = float("-inf")
    return reaper


def assigner(rows: Scenario) -> Assigner:
    """An assigner to which no task is new."""
    rows.sql("INSERT INTO schedule_task_lock (schedule_task_id) SELECT id FROM schedule_task")
    return Assigner(rows.database, Settings.load())


def writing(packets: Packets) -> list[list[str]]:
    """The verbs of the packets that write."""
    return [verbs(packet) for packet in packets if {"BEGIN", "INSERT", "UPDATE", "DELETE"} & {*verbs(packet)}]


def test_the_assigner_gives_in_one_packet(mariadb_rows: Scenario, packets: Packets) -> None:
    mariadb_rows.worker()
    instances = [mariadb_rows.by_sql(mariadb_rows.task()) for _ in range(3)]
    mariadb_rows.sql("UPDATE schedule_instance SET due_at = schedule_datetime")
    duty = assigner(mariadb_rows)
    packets.clear()
    duty.step()
    assert [mariadb_rows.status(i) for i in instances] == ["assigned"] * 3
    assert all(mariadb_rows.node_statuses(i) for i in instances)
    assert_one_packet_each(packets)
    assert writing(packets)[1:] == [["BEGIN", "UPDATE", "SET", "UPDATE", "INSERT", "COMMIT"]]


def waiting(rows: Scenario) -> Iterator[int]:
    """Instances of which the assigner writes something, but that it does not give."""
    yield rows.pending(rows.task(required_labels={"gpu": "a100"}))
    queue = rows.task(overlap_policy="queue")
    rows.running(rows.worker(), queue)
    yield rows.by_sql(queue)
    gone = rows.task()
    yield rows.pending(gone)
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :id", id=gone)
    rows.sql("UPDATE schedule_instance SET due_at = schedule_datetime")


def test_the_assigner_says_why_others_wait_in_one_packet(mariadb_rows: Scenario, packets: Packets) -> None:
    labeled, queued, gone = waiting(mariadb_rows)
    duty = assigner(mariadb_rows)
    packets.clear()
    duty.step()
    assert [mariadb_rows.status(i) for i in (labeled, queued, gone)] == ["pending", "pending", "canceled"]
    assert mariadb_rows.row(labeled).reason is not None
    assert mariadb_rows.row(queued).overlap_slot == 0
    assert_one_packet_each(packets)


def test_the_assigner_leases_new_tasks_in_one_packet(mariadb_rows: Scenario, packets: Packets) -> None:
    mariadb_rows.worker()
    instance = mariadb_rows.pending()
    packets.clear()
    Assigner(mariadb_rows.database, Settings.load()).step()
    assert mariadb_rows.status(instance) == "assigned"
    assert_one_packet_each(packets)


def test_the_assigner_replaces_nodes_in_one_packet(mariadb_rows: Scenario, packets: Packets) -> None:
    worker = mariadb_rows.worker()
    instance = mariadb_rows.assigned(worker)
    mariadb_rows.sql("UPDATE schedule_instance SET status = 'pending', schedule_worker_node_id = NULL, reason = 'back'")
    mariadb_rows.sql("DELETE FROM schedule_task_node WHERE sequence > 0 OR schedule_instance_id = 0")
    duty = assigner(mariadb_rows)
    packets.clear()
    duty.step()
    assert mariadb_rows.status(instance) == "assigned"
    assert_one_packet_each(packets)


def test_what_a_lost_worker_held_is_recovered_in_one_packet_each(
    mariadb_rows: Scenario, packets: Packets, reaper: Reaper
) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    once = {"on_worker_lost": "fail"}
    runs = [rows.running(worker), rows.running(worker, rows.task(**once)), rows.begun(worker, rows.task(**once))]
    given = rows.assigned(worker)
    keeping = rows.running(worker, rows.task())
    rows.database.write(lambda c: reports.report(c, worker, [ended(keeping)]))
    rows.sql("UPDATE schedule_worker_beat SET last_beat = '2020-01-01 00:00:00'")
    packets.clear()
    reaper.step()
    assert [rows.status(run.id) for run in runs] == ["pending", "pending", "failed"]
    assert rows.status(given) == "pending"
    assert_one_packet_each(packets)


def test_what_a_worker_does_not_start_is_taken_back_in_one_packet(
    mariadb_rows: Scenario, packets: Packets, reaper: Reaper
) -> None:
    rows = mariadb_rows
    busy, _ = rows.worker(), rows.worker()
    instance = rows.assigned(busy)
    rows.sql("UPDATE schedule_instance SET gmt_assigned = '2020-01-01 00:00:00', due_at = '2020-01-01 00:00:00'")
    packets.clear()
    reaper.step()
    assert rows.status(instance) == "pending"
    assert_one_packet_each(packets)


@pytest.mark.parametrize("wary", [False, True])
def test_the_plans_of_edited_tasks_are_written_in_one_packet(
    mariadb_rows: Scenario, packets: Packets, monkeypatch: pytest.MonkeyPatch, *, wary: bool
) -> None:
    rows = mariadb_rows
    rows.worker()
    replanned, turned_on = rows.planned_task(rows.start + MINUTE), rows.planned_task(rows.start + MINUTE)
    duty = Materializer(rows.database, Settings.load(lookahead_seconds=300))
    duty.step()
    [passed, *_] = fires_of(rows, turned_on)
    assert fires_of(rows, replanned)
    rows.sql("UPDATE schedule_task SET status = 'off' WHERE id = :id", id=turned_on)
    duty.step()
    monkeypatch.setattr(rows.database.wariness, "is_wary", lambda: wary)
    rows.sql("UPDATE schedule_task SET status = 'on' WHERE id = :id", id=turned_on)
    rows.sql("UPDATE schedule_task SET cron = '0 3 1 1 *' WHERE id = :id", id=replanned)
    moment = (rows.now() - timedelta(seconds=5)).strftime("%Y-%m-%d %H:%M:%S.%f")
    rows.sql("UPDATE schedule_instance SET schedule_datetime = :at, due_at = :at WHERE id = :id", at=moment, id=passed)
    packets.clear()
    duty.step()
    assert_one_packet_each(packets)
    assert (rows.status(passed), fires_of(rows, replanned)) == ("canceled", [])


def fires_of(rows: Scenario, task: int) -> list[int]:
    found = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task ORDER BY id", task=task)
    return [row[0] for row in found]


def test_a_worker_that_stops_hands_back_what_it_was_given_in_one_packet(
    mariadb_rows: Scenario, packets: Packets
) -> None:
    worker = mariadb_rows.worker()
    given = [mariadb_rows.assigned(worker) for _ in range(3)]
    packets.clear()
    WorkerRows(mariadb_rows.database, worker).hand_back_assigned(100)
    assert {mariadb_rows.status(i) for i in given} == {"pending"}
    assert_one_packet_each(packets)


def test_strangers_are_disowned_in_one_packet_each(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    once = {"on_worker_lost": "fail"}
    runs = [rows.running(worker), rows.begun(worker, rows.task(**once)), rows.running(worker, rows.task(**once))]
    packets.clear()
    done = WorkerRows(rows.database, worker).disown([(run.id, run.attempt) for run in runs], "test")
    assert done == (1, 2)
    assert [rows.status(run.id) for run in runs] == ["pending", "failed", "pending"]
    assert_one_packet_each(packets)


# What was read may have changed before the packet arrives


def test_a_fire_that_is_claimed_after_it_was_found_is_not_dropped(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.planned_task()
    claimed, waiting = (rows.assigned(worker, task, rows.start + n * MINUTE) for n in (1, 2))
    rows.sql("UPDATE schedule_instance SET due_at = '2020-01-01 00:00:00'")
    found = rows.database.read(lambda c: unclaimed.ahead(c, [task], rows.start))
    rows.claim(worker, claimed)
    rows.database.write(lambda c: unclaimed.drop(c, found))
    assert (found, rows.statuses()) == ([claimed, waiting], {claimed: "running"})
    assert len(rows.sql("SELECT id FROM schedule_task_node")) == len(rows.nodes) == len(rows.node_statuses(claimed))


def test_what_runs_elsewhere_since_it_was_read_is_not_recovered_once_more(rows: Scenario) -> None:
    first, second = rows.worker(), rows.worker()
    run = rows.running(first)
    rows.bury(first)
    rows.database.write(lambda c: recovery.recover(c, first, 10))
    rows.give(second, run.id)
    rows.claim(second, run.id)
    for holder, attempt in ((first, 1), (second, 1), (first, 2)):
        verdicts = [Verdict(run.id, attempt, RECOVER, "too late")]
        rows.database.write(partial(recovering.recover, verdicts=verdicts, holder=holder, worker="", by="test"))
    assert (rows.status(run.id), rows.row(run.id).schedule_worker_node_id) == ("running", second)
    assert rows.node_statuses(run.id)[0] == "running"


def test_what_began_since_it_was_read_as_waiting_does_not_run_again(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    verdict = Verdict(run.id, run.attempt, RECOVER, "it had not begun", losses=0, waits=True)
    rows.database.write(lambda c: recovering.recover(c, [verdict], worker, "", "test"))
    assert rows.status(run.id) == "running"
    rows.bury(worker)
    rows.database.write(lambda c: recovery.recover(c, worker, 10))
    assert rows.status(run.id) == "failed"


def test_an_assigner_whose_lease_was_taken_over_gives_only_what_it_leases_still(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mariadb_rows
    rows.worker()
    lost, mine = rows.pending(), rows.pending()
    duty = assigner(rows)
    read = fires.pinned

    def take_over(*given: Any) -> Any:
        rows.sql(
            "UPDATE schedule_task_lock SET locked_by = 'another' WHERE schedule_task_id = :id AND is_locked = 1",
            id=rows.row(lost).schedule_task_id,
        )
        return read(*given)

    monkeypatch.setattr(fires, "pinned", take_over)
    duty.step()
    assert [rows.status(i) for i in (lost, mine)] == ["pending", "assigned"]


def test_a_worker_that_beats_after_it_was_found_silent_lives(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    rows.sql("UPDATE schedule_worker_beat SET last_beat = '2020-01-01 00:00:00'")

    def beat(*given: Any) -> Any:
        monkeypatch.setattr("rota.shared.store.workers.read_before", read_before)
        found = read_before(*given)
        silent = found.scalars().all()
        rows.database.write_one(lambda c: workers.heartbeat(c, worker, workers.Load()))
        return SimpleNamespace(scalars=lambda: silent)

    monkeypatch.setattr("rota.shared.store.workers.read_before", beat)
    assert rows.database.write(lambda c: workers.bury_silent(c, [worker], "test")) == 0
    assert rows.sql("SELECT gmt_dead FROM schedule_worker_beat") == [(None,)]
