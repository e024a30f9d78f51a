"""What somebody else has locked stops nobody else: the reaper and the workers' heartbeats pass it over, and so
do a worker's reports.

The locks are those of a console that was left open in a transaction. SQLite has no locks of rows.
"""

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseAway, DatabaseProblem
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import loads, workers
from rota.shared.store.overlap import SkipCandidate, note_candidate
from rota.shared.store.transitions import run_again
from rota.shared.store.workers import Load
from rota.worker_service import registration
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.reporter import Reporter
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario, ended, failed_while_its_thread_runs
from tests.harness.together import locked, uncommitted

LIVE, DEAD = "live", "dead"
MINUTE = timedelta(minutes=1)


def state(rows: Scenario, worker: int) -> str:
    return str(rows.sql("SELECT state FROM schedule_worker_node WHERE id = :id", id=worker)[0][0])


def is_dead(rows: Scenario, worker: int) -> bool:
    found = rows.sql("SELECT gmt_dead FROM schedule_worker_beat WHERE schedule_worker_node_id = :id", id=worker)
    return found[0][0] is not None


def silence(rows: Scenario, *worker_ids: int) -> None:
    for worker in worker_ids:
        rows.sql(
            "UPDATE schedule_worker_beat SET last_beat = '2020-01-01 00:00:00' WHERE schedule_worker_node_id = :id",
            id=worker,
        )


@pytest.fixture
def reaper(mariadb_rows: Scenario) -> Reaper:
    """A reaper that has watched the workers for long enough to declare them dead."""
    reaper = Reaper(mariadb_rows.database, Settings.load(), "test")
    reaper._watching_since = float("-inf")
    return reaper


def test_a_lock_on_all_workers_kills_no_healthy_worker(mariadb_rows: Scenario, reaper: Reaper) -> None:
    rows = mariadb_rows
    healthy, silent = rows.worker(), rows.worker()
    rows.sql("UPDATE schedule_worker_node SET last_heartbeat = '2020-01-01 00:00:00'")
    run = rows.running(silent)
    silence(rows, silent)
    with locked(rows.database, "schedule_worker_node"):
        assert rows.database.write_one(lambda c: workers.heartbeat(c, healthy, Load(busy=2)))
        reaper.step()
        assert (is_dead(rows, healthy), is_dead(rows, silent)) == (False, True)
        assert [worker.id for worker in rows.database.read(loads.fleet)] == [healthy]
        assert rows.status(run.id) == "pending", "what the dead one held is recovered, though its row is locked"
        assert state(rows, silent) == LIVE
    reaper.step()
    assert (state(rows, healthy), state(rows, silent)) == (LIVE, DEAD)
    [shown] = rows.sql("SELECT reason, gmt_dead FROM schedule_worker_node WHERE id = :id", id=silent)
    assert shown.reason == "silent for longer than its liveness limit"
    assert shown.gmt_dead is not None


def test_a_lock_on_one_dead_workers_beat_stops_no_other_recovery(mariadb_rows: Scenario, reaper: Reaper) -> None:
    rows = mariadb_rows
    first, stuck, last = rows.worker(), rows.worker(), rows.worker()
    runs = {worker: rows.running(worker).id for worker in (first, stuck, last)}
    silence(rows, first, stuck, last)
    with locked(rows.database, "schedule_worker_beat", "schedule_worker_node_id = :id", id=stuck):
        reaper.step()
        assert {worker: rows.status(run) for worker, run in runs.items()} == {
            first: "pending", stuck: "running", last: "pending",
        }  # fmt: skip
    reaper.step()
    assert rows.status(runs[stuck]) == "pending"


def test_a_lock_on_one_instance_of_a_dead_worker_stops_no_other_recovery(
    mariadb_rows: Scenario, reaper: Reaper
) -> None:
    rows = mariadb_rows
    worker, other = rows.worker(), rows.worker()
    stuck, beside, elsewhere = rows.running(worker).id, rows.running(worker).id, rows.running(other).id
    held, given = rows.assigned(worker), rows.assigned(worker)
    silence(rows, worker, other)
    with locked(rows.database, "schedule_instance", "id IN (:running, :assigned)", running=stuck, assigned=held):
        reaper.step()
        seen = [rows.status(instance) for instance in (stuck, beside, elsewhere, held, given)]
        assert seen == ["running", "pending", "pending", "assigned", "pending"]
    reaper.step()
    assert {rows.status(instance) for instance in (stuck, held)} == {"pending"}


@pytest.mark.parametrize(("sequence", "policy"), [(1, "retry"), (1, "fail"), (2, "retry"), (2, "fail")])
def test_a_lock_on_a_node_of_one_dead_worker_stops_no_other_recovery(
    mariadb_rows: Scenario, reaper: Reaper, sequence: int, policy: str
) -> None:
    """Neither that of the worker's other runs, nor that of who dies while the lock lasts."""
    rows = mariadb_rows
    worker, other, later = rows.worker(), rows.worker(), rows.worker()
    stuck = rows.begun(worker, rows.task(on_worker_lost=policy)).id
    beside, elsewhere, last = (rows.running(one).id for one in (worker, other, later))
    silence(rows, worker, other)
    node = "schedule_instance_id = :id AND sequence = :sequence"
    with locked(rows.database, "schedule_task_node", node, id=stuck, sequence=sequence):
        reaper.step()
        assert [rows.status(one) for one in (stuck, beside, elsewhere)] == ["running", "pending", "pending"]
        silence(rows, later)
        reaper.step()
        assert rows.status(last) == "pending"
    reaper.step()
    assert rows.status(stuck) == {"retry": "pending", "fail": "failed"}[policy]


@pytest.mark.parametrize(("problem", "watches"), [(DatabaseProblem, False), (DatabaseAway, True)])
def test_who_waits_for_a_lock_in_vain_has_heard_from_the_database(
    mariadb_rows: Scenario,
    reaper: Reaper,
    monkeypatch: pytest.MonkeyPatch,
    problem: type[DatabaseProblem],
    watches: bool,
) -> None:
    """Otherwise the reaper would watch anew after each such pass, and declare nobody dead."""
    rows = mariadb_rows
    first, second = rows.worker(), rows.worker()
    held = {rows.running(first).id: first, rows.running(second).id: second}

    def wait_in_vain(worker_id: int, *, is_gone: bool) -> None:
        reaper._heard -= 100
        raise problem(f"{worker_id}: Lock wait timeout exceeded")

    silence(rows, *held.values())
    monkeypatch.setattr(reaper, "_recover_from", wait_in_vain)
    reaper.step()
    assert (reaper._watching_since > float("-inf")) is watches


@pytest.mark.parametrize(
    ("table", "where"), [("schedule_instance", "id = :id"), ("schedule_task_node", "schedule_instance_id = :id")]
)
def test_a_lock_on_one_run_holds_up_no_other_report_of_its_worker(
    mariadb_rows: Scenario, table: str, where: str
) -> None:
    rows, done = mariadb_rows, threading.Event()
    worker = rows.worker()
    stuck, other = rows.running(worker), rows.running(worker)
    hasty = Database(rows.database.url.render_as_string(hide_password=False), retry_seconds=0.1)
    reporter = Reporter(WorkerRows(hasty, worker), hasty.clock)
    thread = threading.Thread(target=reporter.run)
    try:
        with locked(rows.database, table, where, id=stuck.id):
            reporter.put(ended(stuck, InstanceStatus.FAILED), lambda ours: None)
            reporter.put(ended(other, InstanceStatus.FAILED), lambda ours: done.set())
            thread.start()
            assert done.wait(20)
            assert (rows.status(stuck.id), rows.status(other.id)) == ("running", "failed")
        assert reporter.flush(20)
        assert rows.status(stuck.id) == "failed"
    finally:
        reporter.close()
        thread.join(20)
        hasty.close()


@pytest.mark.parametrize("lock", ["its kept slot", "the place of its next run"])
def test_a_lock_on_what_goes_with_one_report_holds_up_no_other(mariadb_rows: Scenario, lock: str) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    task = rows.task()
    runs = [rows.running(worker, task if n == 4 else None) for n in range(8)]
    stuck, others = runs[4], [*runs[:4], *runs[5:]]
    reported = {run.id: ended(run) for run in runs}
    told: list[int] = []

    def note(run_id: int, ours: bool) -> None:
        told.append(run_id)

    if lock == "its kept slot":
        for report in reported.values():
            assert report.instance is not None
            report.instance.lingers = True
        insert = "INSERT INTO schedule_kept_slot (schedule_instance_id, schedule_worker_node_id) VALUES (:id, 1)"
        values: dict[str, Any] = {"id": stuck.id}
    else:
        again = reported[stuck.id].instance
        assert again is not None
        again.again = rows.now()
        insert = (
            "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, fire_key, run_number)"
            " VALUES (:task, :at, :key, 0)"
        )
        values = {"task": task, "at": again.again, "key": run_again.fire_key(stuck.id)}
    reporter = Reporter(WorkerRows(rows.database, worker), rows.database.clock)
    thread = threading.Thread(target=reporter.run)
    try:
        with uncommitted(rows.database, lambda c: c.execute(text(insert), values).rowcount):
            for run_id, report in reported.items():
                reporter.put(report, partial(note, run_id))
            thread.start()
            wait_until(lambda: len(told) == len(others), 20, "the others to be reported")
            assert rows.status(stuck.id) == "running"
        assert reporter.flush(20)
        assert rows.status(stuck.id) == "succeed"
    finally:
        reporter.close()
        thread.join(20)


@pytest.mark.parametrize("sequence", [1, 2])
@pytest.mark.parametrize("is_far", [False, True], ids=["nearby", "from afar"])
def test_a_lock_on_a_node_lets_its_run_wait_whole_and_no_other(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch, is_far: bool, sequence: int
) -> None:
    """A run of which a node is missing would end without it."""
    monkeypatch.setattr(Scenario, "is_far", is_far)
    rows, worker = mariadb_rows, mariadb_rows.worker()
    edited, other = rows.assigned(worker), rows.assigned(worker)
    node = "schedule_instance_id = :id AND sequence = :sequence"
    with locked(rows.database, "schedule_task_node", node, id=edited, sequence=sequence):
        during = rows.claim(worker, edited, other)
    after = rows.claim(worker, edited)
    found = [{run.id: [node.sequence for node in run.nodes] for run in claim.runs} for claim in (during, after)]
    assert found == [{other: [1, 2]}, {edited: [1, 2]}]
    assert [waiting.id for waiting in during.waiting] == [edited]
    assert rows.broken() == {}


@pytest.mark.parametrize("write", ["give", "line up", "explain", "refuse", "adopt", "refuse an orphan"])
def test_a_lock_on_one_pending_instance_holds_up_no_other(mariadb_rows: Scenario, write: str) -> None:
    rows = mariadb_rows
    rows.worker()
    task = rows.task(overlap_policy="queue" if write == "line up" else "allow")
    stuck = rows.by_sql(task)
    if write == "refuse an orphan":
        rows.sql("UPDATE schedule_instance SET schedule_datetime = '2026-11-00 02:00:00'")
    elif write != "adopt":
        rows.sql("UPDATE schedule_instance SET due_at = schedule_datetime")
    if write == "explain":
        rows.sql("UPDATE schedule_task SET required_labels = :labels", labels='{"gpu": "a100"}')
    if write == "refuse":
        rows.sql("UPDATE schedule_task SET is_deleted = 1")
    others = [rows.by_sql(rows.task()) for _ in range(2)]
    assigner = Assigner(rows.database, Settings.load(batch=1))
    with locked(rows.database, "schedule_instance", "id = :id", id=stuck):
        assigner.step()
        assigner.step()
        assert [rows.status(i) for i in (stuck, *others)] == ["pending", "assigned", "assigned"]
    for _ in range(2):
        assigner.step()
    after = {"explain": "pending", "refuse": "canceled", "refuse an orphan": "canceled"}
    assert rows.status(stuck) == after.get(write, "assigned")
    assert (rows.row(stuck).reason is not None) == (write in after)


def test_a_lock_on_a_run_that_is_to_be_replaced_holds_up_nothing_else_of_the_claim(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task, worker = rows.task(overlap_policy="replace"), rows.worker()
    run = rows.running(worker, task, rows.past())
    newer, other = rows.assigned(worker, task, rows.start), rows.assigned(worker)
    with locked(rows.database, "schedule_instance", "id = :id", id=run.id):
        claim = rows.claim(worker, newer, other)
        assert ([one.id for one in claim.runs], [one.id for one in claim.waiting]) == ([other], [newer])
    rows.claim(worker, newer)
    assert rows.row(run.id).gmt_cancel_requested is not None


def test_a_worker_waits_for_the_name_of_a_dead_one_whose_row_is_locked(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    dead = rows.worker("twin")
    with locked(rows.database, "schedule_worker_node", "id = :id", id=dead):
        rows.bury(dead)
        assert (is_dead(rows, dead), state(rows, dead)) == (True, LIVE)
        assert rows.database.read(workers.alive) == []
    again = workers.WorkerDeclaration("twin", "host", 2, "another", "0", 1, 0, 15, [])
    assert registration.register(rows.database, again)[0] > dead
    assert state(rows, dead) == DEAD


class Behind:
    """A fire that was due while a run of its task was in its way, and a worker that looks at it time and again."""

    def __init__(self, rows: Scenario) -> None:
        self.rows, self.worker = rows, rows.worker()
        task = rows.task(overlap_policy="skip")
        self.run = rows.running(self.worker, task, rows.start - MINUTE)
        self.ended_at = rows.now()
        self.fire = rows.assigned(self.worker, task, rows.start + MINUTE)
        self.candidates: dict[int, SkipCandidate] = {}

    def look(self) -> list[int]:
        """Look after the fire was due, and give the run no more time; returns the runs that the worker claims."""
        now = self.rows.start + 2 * MINUTE
        claim = self.rows.claim(self.worker, self.fire, now=now, skip_candidates=self.candidates)
        for one in claim.waiting:
            note_candidate(self.candidates, one, now)
        return [run.id for run in claim.runs]


@pytest.fixture
def behind(mariadb_rows: Scenario) -> Behind:
    return Behind(mariadb_rows)


@pytest.mark.parametrize("is_far", [False, True], ids=["nearby", "from afar"])
@pytest.mark.parametrize(
    ("table", "where"), [("schedule_instance", "id"), ("schedule_task_node", "schedule_instance_id")]
)
def test_no_fire_is_skipped_for_a_run_that_somebody_has_locked(
    behind: Behind, monkeypatch: pytest.MonkeyPatch, is_far: bool, table: str, where: str
) -> None:
    """It may have ended before the fire was due: its report waits for the lock, and comes soon after it."""
    monkeypatch.setattr(Scenario, "is_far", is_far)
    with locked(behind.rows.database, table, f"{where} = :id", id=behind.run.id):
        for _ in range(3):
            assert (behind.look(), behind.rows.status(behind.fire)) == ([], "assigned")
    assert (behind.look(), behind.rows.status(behind.fire)) == ([], "assigned"), "the report has its time from now on"
    report = ended(behind.run)
    assert report.instance is not None
    report.instance.gmt_completed = behind.ended_at
    assert behind.rows.report(behind.worker, report) == set()
    assert behind.look() == [behind.fire]


def test_a_fire_is_skipped_when_the_lock_is_gone_and_the_run_goes_on(behind: Behind) -> None:
    with locked(behind.rows.database, "schedule_instance", "id = :id", id=behind.run.id):
        behind.look()
    behind.look()
    assert (behind.look(), behind.rows.status(behind.fire)) == ([], "canceled")


def test_a_lock_on_one_slot_that_a_dead_workers_thread_kept_lets_the_others_be_freed(
    mariadb_rows: Scenario, reaper: Reaper
) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    runs = [rows.running(worker) for _ in range(3)]
    for run in runs:
        rows.report(worker, failed_while_its_thread_runs(run))
    kept = "SELECT schedule_instance_id FROM schedule_kept_slot"
    assert len(rows.sql(kept)) == 3
    silence(rows, worker)
    with locked(rows.database, "schedule_instance", "id = :id", id=runs[1].id):
        reaper.step()
        assert rows.sql(kept) == [(runs[1].id,)]
    reaper.step()
    assert rows.sql(kept) == []
