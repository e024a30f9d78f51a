"""The pause of all scheduling: no new fire begins in it, and on resuming the misfire policies decide."""

import json
from collections import Counter
from datetime import datetime, timedelta

import pytest

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.catch_up import Catcher
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.fleet import FleetCache
from rota.shared.control import schedulers, whys
from rota.shared.control.actor import Actor
from rota.shared.database.later import Unexpected
from rota.shared.domain.deciding import known_kinds
from rota.shared.domain.errors import InvalidInput
from rota.shared.settings import Settings
from rota.shared.store import pauses, plans, skips
from rota.shared.store import schedulers as store_schedulers
from rota.shared.store.pauses import Pause
from rota.shared.store.schedulers import SchedulerDeclaration
from tests.harness.scenario import Scenario, to_retry

ANN = Actor("ann", "cli")
SECONDLY = {"cron": "* * * * * *", "cron_seconds": True, "overlap_policy": "allow"}


@pytest.fixture(autouse=True)
def fresh_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)


@pytest.fixture
def both(rows: Scenario) -> list[Materializer]:
    """Two schedulers."""
    return [Materializer(rows.database, Settings.load()) for _ in range(2)]


def assign(rows: Scenario) -> None:
    Assigner(rows.database, Settings.load()).step()


def step(both: list[Materializer]) -> None:
    """Let each scheduler do all that it has to do at once."""
    for one in both:
        for _ in range(10):
            if one.step() > 0:
                break


def pause(rows: Scenario) -> None:
    assert schedulers.pause(rows.database, ANN, "the database moves")["changed"]


def resume(rows: Scenario) -> None:
    assert schedulers.resume(rows.database, ANN)["changed"]


def fires(rows: Scenario, task: int) -> list[tuple[datetime, str]]:
    found = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    whole = [rows.row(one.id) for one in found]
    return sorted((row.schedule_datetime, row.status) for row in whole)


def skipped(rows: Scenario, task: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in rows.database.read(lambda c: skips.newest(c, task, 100)):
        found[row.reason] += row.fires
    return dict(found)


@pytest.mark.parametrize(
    ("policy", "runs", "counted"),
    [("fire_once", 1, {"fire_once": 59}), ("skip", 0, {"skip": 60}), ("fire_all", 10, {"cap": 50})],
)
def test_on_resuming_the_misfire_policy_decides_about_what_was_missed(
    rows: Scenario, both: list[Materializer], *, policy: str, runs: int, counted: dict[str, int]
) -> None:
    newest = rows.start.replace(second=0) - timedelta(minutes=2)
    at = f"{newest.minute} {newest.hour} * * *"
    days = timedelta(days=59)
    limits = {"misfire_cap": 10, "misfire_window_seconds": 10**7}
    task = rows.planned_task(newest - days, cron=at, misfire_policy=policy, overlap_policy="queue", **limits)
    rows.worker(capacity=100)
    pause(rows)
    step(both)
    Catcher(rows.database, Settings.load(), FleetCache(rows.database)).step()
    assert (fires(rows, task), skipped(rows, task)) == ([], {})
    assert rows.task_row(task).next_fire_at == newest - days
    resume(rows)
    step(both)
    Catcher(rows.database, Settings.load(), FleetCache(rows.database)).step()
    assert len(fires(rows, task)) == runs
    assert skipped(rows, task) == counted
    assert rows.task_row(task).next_fire_at == newest + timedelta(days=1)


def test_fires_written_ahead_are_taken_out_and_written_again_on_resuming(
    rows: Scenario, both: list[Materializer]
) -> None:
    rows.worker()
    task = rows.planned_task(rows.start + timedelta(seconds=3), **SECONDLY)
    step(both)
    ahead = fires(rows, task)
    assert [status for _, status in ahead] == ["assigned"] * len(ahead)
    assert len(ahead) >= 2
    pause(rows)
    step(both)
    assert fires(rows, task) == []
    assert rows.task_row(task).next_fire_at == ahead[0][0]
    assert rows.sql("SELECT * FROM schedule_task_node") == []
    step(both)
    assert (fires(rows, task), skipped(rows, task)) == ([], {})
    resume(rows)
    step(both)
    assert fires(rows, task)[: len(ahead)] == ahead


def test_a_fire_that_a_worker_has_claimed_stays_and_is_not_written_again(
    rows: Scenario, both: list[Materializer]
) -> None:
    worker = rows.worker()
    task = rows.planned_task(rows.start + timedelta(seconds=3), **SECONDLY)
    step(both)
    (first, _), *later = fires(rows, task)
    [claimed] = rows.sql("SELECT min(id) AS id FROM schedule_instance")
    rows.sql("UPDATE schedule_instance SET due_at = gmt_create WHERE id = :id", id=claimed.id)
    assert rows.claim(worker, claimed.id).runs
    pause(rows)
    step(both)
    assert fires(rows, task) == [(first, "running")]
    assert rows.task_row(task).next_fire_at == later[0][0]


def test_a_single_fire_ahead_comes_back_to_its_task(rows: Scenario, both: list[Materializer]) -> None:
    """Its plan has no next fire when it is written."""
    rows.worker()
    at = rows.start + timedelta(seconds=4)
    task = rows.planned_task(at, cron=None, at=at.isoformat() + "+00:00")
    step(both)
    assert (len(fires(rows, task)), rows.task_row(task).next_fire_at) == (1, None)
    pause(rows)
    step(both)
    assert (fires(rows, task), rows.task_row(task).next_fire_at) == ([], at)


def test_what_was_due_and_waits_with_a_worker_is_put_back_and_held(rows: Scenario, both: list[Materializer]) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    pause(rows)
    step(both)
    assign(rows)
    row = rows.row(instance)
    assert (row.status, row.reason, row.schedule_worker_node_id) == ("pending", pauses.REASON, None)
    assert rows.node_statuses(instance) == []
    rows.sql("UPDATE schedule_instance SET due_at = :now", now=rows.now().isoformat(" ", "microseconds"))
    resume(rows)
    assign(rows)
    assert rows.status(instance) == "assigned"
    assert rows.broken() == {}


def test_what_waited_for_too_long_goes_by_the_misfire_policy_on_resuming(
    rows: Scenario, both: list[Materializer]
) -> None:
    worker = rows.worker()
    task = rows.task(misfire_policy="skip")
    instance = rows.assigned(worker, task, rows.start - timedelta(minutes=5))
    pause(rows)
    step(both)
    assign(rows)
    resume(rows)
    assign(rows)
    row = rows.row(instance)
    assert (row.status, "misfire_policy is skip" in row.reason) == ("canceled", True)


def test_runs_by_hand_and_what_has_begun_go_on(rows: Scenario, both: list[Materializer]) -> None:
    worker = rows.worker(capacity=20)
    run = rows.running(worker)
    pending = rows.pending()
    by_sql = rows.by_sql(rows.task())
    manual = rows.pending(origin="manual")
    pause(rows)
    assert rows.report(worker, to_retry(run, rows.past())) == set()
    step(both)
    assign(rows)
    given = {name: rows.status(one) for name, one in {"run": run.id, "sql": by_sql, "manual": manual}.items()}
    assert given == dict.fromkeys(given, "assigned")
    assert rows.status(pending) == "pending"


def test_held_fires_are_in_nobodys_way(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_BATCH", "2")
    rows.worker(capacity=20)
    held = [rows.pending() for _ in range(7)]
    manual = rows.pending(origin="manual", due_at=rows.now())
    pause(rows)
    assigner = Assigner(rows.database, Settings.load())
    for _ in range(8):
        assigner.step()
    assert rows.status(manual) == "assigned"
    assert {rows.status(one) for one in held} == {"pending"}


def test_a_task_that_is_edited_in_the_pause_is_planned_anew_and_fires_nothing(
    rows: Scenario, both: list[Materializer]
) -> None:
    rows.worker()
    edited = rows.planned_task(rows.start - timedelta(seconds=1), **SECONDLY)
    off, new = (rows.planned_task(rows.start - timedelta(seconds=n), cron="0 0 1 2 *") for n in (2, 3))
    pause(rows)
    rows.sql(f"UPDATE schedule_task SET cron = '0 0 1 1 *', cron_seconds = 0 WHERE id = {edited}")
    rows.sql(f"UPDATE schedule_task SET status = 'off' WHERE id = {off}")
    rows.sql(f"UPDATE schedule_task SET planned_inputs = NULL, next_fire_at = NULL WHERE id = {new}")
    step(both)
    assert rows.statuses() == {}
    assert rows.task_row(edited).next_fire_at > rows.now()
    assert (skipped(rows, off), rows.task_row(off).fires_held_back) == ({"edited": 1}, 0)
    assert rows.task_row(new).next_fire_at is not None
    assert rows.sql("SELECT id FROM schedule_task WHERE plan_stale = 1") == []


def test_who_acts_because_of_a_pause_that_has_ended_writes_nothing(rows: Scenario, both: list[Materializer]) -> None:
    worker = rows.worker()
    task = rows.planned_task(rows.start + timedelta(seconds=3), **SECONDLY)
    step(both)
    ahead, due = fires(rows, task), rows.assigned(worker)
    pause(rows)
    [row] = rows.database.read(pauses.current)
    ended = Pause(row.id, row.gmt_create)
    resume(rows)
    read = plans.locked
    found = rows.database.read(lambda c: read(c, rows.sql("SELECT locked_by FROM schedule_task_lock")[0][0], [task]))
    for act in (
        lambda c: pauses.rewind(c, ended, found),
        lambda c: pauses.take_back(c, ended, [due]),
    ):
        with pytest.raises(Unexpected):
            rows.database.write(act)
    assert (fires(rows, task), rows.status(due)) == (ahead, "assigned")


def test_a_pause_is_begun_once_and_both_acts_are_in_the_audit(rows: Scenario) -> None:
    assert schedulers.paused(rows.database)["paused"] is False
    pause(rows)
    again = schedulers.pause(rows.database, Actor("bob", "cli"), "another reason")
    assert (again["changed"], again["by"], again["reason"]) == (False, "ann", "the database moves")
    resume(rows)
    assert schedulers.resume(rows.database, ANN) == {**schedulers.GOES_ON, "changed": False}
    audit = rows.sql("SELECT actor, action, object_type FROM schedule_audit ORDER BY id")
    assert [tuple(row) for row in audit] == [
        ("ann", "scheduler.pause", "schedule_pause"),
        ("ann", "scheduler.resume", "schedule_pause"),
    ]
    with pytest.raises(InvalidInput, match="too long"):
        schedulers.pause(rows.database, ANN, "x" * 1001)


def test_sql_pauses_and_resumes(rows: Scenario, both: list[Materializer]) -> None:
    task = rows.planned_task(cron="0 0 1 2 *")
    rows.sql("INSERT INTO schedule_pause (reason) VALUES ('by sql')")
    rows.sql("INSERT INTO schedule_pause (reason) VALUES ('twice')")
    assert schedulers.paused(rows.database)["by"] == "sql"
    step(both)
    assert fires(rows, task) == []
    resume(rows)
    step(both)
    assert len(fires(rows, task)) == 1


def test_doctor_says_that_scheduling_is_paused(rows: Scenario) -> None:
    pause(rows)
    found = schedulers.check_scheduling(rows.database)
    assert found.ok is None
    assert "by ann, the database moves" in found.found
    assert "rota scheduler resume" in found.help


def test_schedulers_at_work_that_are_older_than_pauses_are_named(rows: Scenario) -> None:
    for name in ("new", "old"):
        declared = SchedulerDeclaration(name, "host", 1, "0", 3600, known_kinds())
        rows.database.write(lambda c, one=declared: store_schedulers.register(c, one))  # type: ignore[misc]
    rows.planned_task(rows.start + timedelta(hours=1), name="each")
    assert schedulers.pause(rows.database, ANN)["ignored_by"] == []
    older = json.dumps(known_kinds())
    rows.sql("UPDATE schedule_scheduler_node SET kinds = :kinds WHERE name = 'old'", kinds=older)
    assert schedulers.paused(rows.database)["ignored_by"] == ["old"]
    advice = schedulers.check_scheduling(rows.database).help
    assert advice == "fires begin all the same: stop old, which is older than pauses"
    assert pauses.REASON not in (whys.why(rows.database, "each").document["remark"] or "")
    rows.sql("UPDATE schedule_scheduler_node SET is_deleted = 1 WHERE name = 'old'")
    assert schedulers.paused(rows.database)["ignored_by"] == []
    assert pauses.REASON in whys.why(rows.database, "each").document["remark"]


def test_what_became_of_a_fire_says_that_scheduling_is_paused(rows: Scenario, both: list[Materializer]) -> None:
    declared = SchedulerDeclaration("s", "host", 1, "0", 3600, known_kinds())
    rows.database.write(lambda c: store_schedulers.register(c, declared))
    rows.planned_task(rows.start + timedelta(hours=1), name="each")
    written = rows.pending(rows.task("late"), rows.start - timedelta(seconds=1))
    pause(rows)
    step(both)
    assign(rows)
    assert pauses.REASON in whys.why(rows.database, "each").document["remark"]
    told = whys.why(rows.database, "late", rows.row(written).schedule_datetime.isoformat() + "Z").document
    assert (told["outcome"], pauses.REASON in told["why"]) == ("waiting", True), told
