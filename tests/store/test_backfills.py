"""The steps of a backfill on each database: what is written, what is counted, and who is passed by."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.backfiller import REASON, Backfiller
from rota.shared.control import backfills
from rota.shared.control.actor import Actor
from rota.shared.control.backfills import Wanted
from rota.shared.domain.errors import InvalidInput, InvalidParam, NotFound, NotPossible
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import backfills as store
from tests.harness.scenario import Scenario, ended, succeeded

ANN = Actor("ann", "cli")
COUNTERS = ("fires", "written", "not_missing", "succeeded", "failed", "canceled", "revision", "ended_before")
MINUTE = timedelta(minutes=1)
BEGIN = datetime.fromisoformat("2026-01-05T00:00:00")
Step = Callable[[], float]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    return Settings.load()


@pytest.fixture
def step(rows: Scenario, settings: Settings) -> Step:
    return Backfiller(rows.database, settings).step


def started(rows: Scenario, name: str, fires: int, **options: Any) -> int:
    """A backfill of the first so many minutes of a day."""
    end = BEGIN + (fires - 1) * MINUTE
    document, _ = backfills.start(rows.database, ANN, Wanted(name, str(BEGIN), str(end), **options))
    return int(document["id"])


def shown(rows: Scenario, number: int, *names: str) -> tuple[Any, ...]:
    document = backfills.show(rows.database, number)
    return tuple(document[name] for name in names)


def written(rows: Scenario) -> list[Any]:
    """The instances of backfills, in the order in which they were written."""
    ids = rows.sql("SELECT id FROM schedule_instance WHERE origin = 'backfill' ORDER BY id")
    return [rows.row(one.id) for one in ids]


def run_all(rows: Scenario, worker: int, settings: Settings) -> list[datetime]:
    """Let the worker run what waits; returns the times of the runs."""
    Assigner(rows.database, settings).step()
    times = []
    while assigned := [instance for instance, status in rows.statuses().items() if status == "assigned"]:
        for run in rows.claim(worker, *assigned).runs:
            times.append(run.schedule_datetime)
            rows.report(worker, succeeded(run))
    return times


@pytest.mark.parametrize("newest_first", [False, True])
def test_it_writes_as_many_as_may_be_in_flight_and_goes_on_as_they_end(
    rows: Scenario, settings: Settings, step: Step, newest_first: bool
) -> None:
    rows.task("nightly", param={"a": 1}, overlap_policy="allow", priority=2)
    worker = rows.worker(capacity=20)
    number = started(rows, "nightly", 7, concurrency=3, newest_first=newest_first)
    times = []
    for done in (0, 3, 6):
        assert shown(rows, number, "ended", "status") == (0 if done == 0 else done - 3, "running")
        step()
        step()
        assert shown(rows, number, "ended", "in_flight") == (done, min(3, 7 - done))
        assert len(written(rows)) == min(done + 3, 7)
        times += run_all(rows, worker, settings)
    step()
    assert shown(rows, number, "status", "written", "succeeded", "in_flight", "next_fire") == ("done", 7, 7, 0, None)
    assert times == sorted((BEGIN + n * MINUTE for n in range(7)), reverse=newest_first)
    one = written(rows)[0]
    assert (one.fire_key, one.run_number, one.priority, one.param) == (f"backfill-{number}", 0, 9, {"a": 1})
    assert one.due_at > one.schedule_datetime
    step()
    assert len(written(rows)) == 7


def test_its_own_param_and_priority_go_into_each_instance(rows: Scenario, step: Step) -> None:
    rows.task("nightly", param={"a": 1})
    started(rows, "nightly", 2, concurrency=2, param={"b": 2}, priority=3)
    step()
    assert [(one.param, one.priority) for one in written(rows)] == [({"b": 2}, 3)] * 2


def test_it_runs_the_fires_that_the_task_had_when_it_began(rows: Scenario, settings: Settings, step: Step) -> None:
    task = rows.task("nightly", overlap_policy="allow")
    worker = rows.worker()
    started(rows, "nightly", 4, concurrency=2)
    step()
    rows.sql(f"UPDATE schedule_task SET cron = '0 0 1 1 *', status = 'off' WHERE id = {task}")
    for _ in range(2):
        run_all(rows, worker, settings)
        step()
    assert [one.schedule_datetime for one in written(rows)] == [BEGIN + n * MINUTE for n in range(4)]


def test_the_ends_of_its_instances_are_counted_apart(rows: Scenario, settings: Settings, step: Step) -> None:
    rows.task("nightly", overlap_policy="allow")
    worker = rows.worker()
    number = started(rows, "nightly", 4, concurrency=4)
    step()
    Assigner(rows.database, settings).step()
    first, second, third, fourth = written(rows)
    [run] = rows.claim(worker, first.id).runs
    rows.report(worker, ended(run))
    [run] = rows.claim(worker, second.id).runs
    rows.report(worker, ended(run, InstanceStatus.FAILED))
    rows.sql(f"DELETE FROM schedule_instance WHERE id = {third.id}")
    step()
    assert shown(rows, number, "succeeded", "failed", "canceled", "in_flight") == (1, 1, 1, 1)
    assert rows.status(fourth.id) == "assigned"


def test_only_missing_passes_over_what_has_an_instance_that_is_not_canceled(rows: Scenario, step: Step) -> None:
    task = rows.task("nightly")
    for number, status in enumerate(("succeed", "failed", "canceled", "pending")):
        rows.pending(task, BEGIN + number * MINUTE)
        at = (BEGIN + number * MINUTE).isoformat(" ", "microseconds")
        rows.sql(f"UPDATE schedule_instance SET status = '{status}' WHERE schedule_datetime = '{at}'")
    preview, _ = backfills.preview(
        rows.database, Wanted("nightly", str(BEGIN), str(BEGIN + 5 * MINUTE), only_missing=True)
    )
    assert (preview["fires"], preview["not_missing"]) == (3, 3)
    assert [fire["utc"][14:16] for fire in preview["first"]] == ["02", "04", "05"]
    number = started(rows, "nightly", 6, only_missing=True, concurrency=10)
    step()
    assert [one.schedule_datetime for one in written(rows)] == [BEGIN + n * MINUTE for n in (2, 4, 5)]
    assert shown(rows, number, "not_missing", "in_flight", "ended") == (3, 3, 3)


def test_only_missing_goes_through_a_long_history_at_once(rows: Scenario, step: Step, monkeypatch: Any) -> None:
    monkeypatch.setattr("rota.shared.domain.backfilling.LOOKED_AT", 5)
    task = rows.task("nightly")
    for number in range(12):
        rows.pending(task, BEGIN + number * MINUTE)
    started(rows, "nightly", 14, only_missing=True)
    assert (step(), step()) == (0, 0)
    assert step() > 0
    assert [one.schedule_datetime for one in written(rows)] == [BEGIN + 12 * MINUTE]


def test_only_missing_leaves_to_the_plan_and_to_the_catch_up_what_they_may_still_write(
    rows: Scenario, step: Step
) -> None:
    task = rows.planned_task(BEGIN + 6 * MINUTE, name="nightly")
    rows.sql(
        "INSERT INTO schedule_catch_up (schedule_task_id, next_fire, last_fire, plan_inputs)"
        " VALUES (:task, :first, :last, '[]')",
        task=task,
        first=(BEGIN + 4 * MINUTE).isoformat(" ", "microseconds"),
        last=(BEGIN + 5 * MINUTE).isoformat(" ", "microseconds"),
    )
    number = started(rows, "nightly", 10, only_missing=True, concurrency=10)
    step()
    assert len(written(rows)) == 4
    rows.sql("DELETE FROM schedule_catch_up")
    step()
    assert len(written(rows)) == 6
    later = (BEGIN + 60 * MINUTE).isoformat(" ", "microseconds")
    rows.sql(f"UPDATE schedule_task SET next_fire_at = '{later}'")
    step()
    assert len(written(rows)) == 10
    assert shown(rows, number, "next_fire", "status") == (None, "running")


def test_where_the_history_is_not_complete_only_missing_is_refused(rows: Scenario, step: Step) -> None:
    task = rows.task("nightly")
    complete_from = (BEGIN + 3 * MINUTE).isoformat(" ", "microseconds")
    rows.sql(f"UPDATE schedule_task SET history_complete_from = '{complete_from}' WHERE id = {task}")
    with pytest.raises(InvalidInput, match="complete only from 2026-01-05 00:03:00"):
        started(rows, "nightly", 5, only_missing=True)
    assert rows.sql("SELECT id FROM schedule_backfill") == []
    started(rows, "nightly", 5)


def test_history_that_is_deleted_meanwhile_pauses_what_runs_only_the_missing(rows: Scenario, step: Step) -> None:
    task = rows.task("nightly")
    number = started(rows, "nightly", 5, only_missing=True, newest_first=True, concurrency=5)
    complete_from = (BEGIN + 3 * MINUTE).isoformat(" ", "microseconds")
    rows.sql(f"UPDATE schedule_task SET history_complete_from = '{complete_from}' WHERE id = {task}")
    step()
    status, reason = shown(rows, number, "status", "reason")
    assert (status, len(written(rows))) == ("paused", 2)
    assert reason.startswith("the history of the task is complete only from")


def test_a_paused_one_writes_no_more_until_it_is_resumed(rows: Scenario, settings: Settings, step: Step) -> None:
    rows.task("nightly", overlap_policy="allow")
    worker = rows.worker()
    number = started(rows, "nightly", 6, concurrency=2)
    step()
    assert backfills.pause(rows.database, ANN, number, "the source is down")["status"] == "paused"
    run_all(rows, worker, settings)
    step()
    assert shown(rows, number, "succeeded", "in_flight", "written") == (2, 0, 2)
    with pytest.raises(NotPossible, match="is paused; only one that is running can be paused"):
        backfills.pause(rows.database, ANN, number)
    backfills.resume(rows.database, ANN, number)
    step()
    assert shown(rows, number, "status", "written") == ("running", 4)


def test_pause_and_resume_by_sql_work(rows: Scenario, step: Step) -> None:
    rows.task("nightly")
    number = started(rows, "nightly", 6)
    rows.sql("UPDATE schedule_backfill SET status = 'paused'")
    step()
    assert written(rows) == []
    rows.sql("UPDATE schedule_backfill SET status = 'running'")
    step()
    assert shown(rows, number, "written") == (1,)


@pytest.mark.parametrize("status", ["canceled", "done"])
def test_one_that_sql_has_ended_says_since_when_and_counts_what_still_runs(
    rows: Scenario, settings: Settings, step: Step, status: str
) -> None:
    rows.task("nightly", overlap_policy="allow")
    worker = rows.worker()
    number = started(rows, "nightly", 6)
    step()
    Assigner(rows.database, settings).step()
    [run] = rows.claim(worker, written(rows)[0].id).runs
    backfills.pause(rows.database, ANN, number, "the source is down")
    assert shown(rows, number, "reason", "gmt_completed") == ("the source is down", None)
    rows.sql(f"UPDATE schedule_backfill SET status = '{status}'")
    step()
    reason, completed = shown(rows, number, "reason", "gmt_completed")
    assert (reason, completed is not None) == (f"{status} by SQL", True)
    rows.report(worker, succeeded(run))
    step()
    assert shown(rows, number, "status", "succeeded", "in_flight", "written") == (status, 1, 0, 1)
    assert shown(rows, number, "reason", "gmt_completed") == (reason, completed)


@pytest.mark.parametrize("paused_by", ["command", "SQL"])
def test_the_estimate_of_one_that_sql_has_resumed_leaves_the_pause_out(
    rows: Scenario, settings: Settings, step: Step, paused_by: str
) -> None:
    rows.task("nightly", overlap_policy="allow")
    worker, number = rows.worker(), started(rows, "nightly", 6)
    step()
    if paused_by == "SQL":
        rows.sql("UPDATE schedule_backfill SET status = 'paused'")
        step()
    else:
        backfills.pause(rows.database, ANN, number)
    assert shown(rows, number, "reason") == ("paused by SQL" if paused_by == "SQL" else "paused by ann",)
    rows.sql("UPDATE schedule_backfill SET status = 'running', gmt_running = '2026-01-01 00:00:00.000000'")
    Assigner(rows.database, settings).step()
    rows.report(worker, succeeded(rows.claim(worker, written(rows)[0].id).runs[0]))
    step()
    [row] = rows.sql("SELECT gmt_running > '2026-01-02' AS is_new, ended_before FROM schedule_backfill")
    assert (bool(row.is_new), row.ended_before) == (True, 1)
    assert shown(rows, number, "reason", "seconds_left", "succeeded") == (None, None, 1)


def test_one_that_was_paused_while_its_last_fire_ran_is_done_without_a_reason(
    rows: Scenario, settings: Settings, step: Step
) -> None:
    rows.task("nightly")
    worker, number = rows.worker(), started(rows, "nightly", 1)
    step()
    backfills.pause(rows.database, ANN, number, "later")
    run_all(rows, worker, settings)
    step()
    assert shown(rows, number, "status", "reason") == ("done", None)


@pytest.mark.parametrize("by_sql", [False, True])
def test_a_canceled_one_cancels_what_has_not_begun_and_lets_the_rest_run(
    rows: Scenario, settings: Settings, step: Step, by_sql: bool
) -> None:
    rows.task("nightly", overlap_policy="allow")
    worker = rows.worker(capacity=2, prefetch=2)
    number = started(rows, "nightly", 9, concurrency=5)
    step()
    Assigner(rows.database, settings).step()
    first = written(rows)[0]
    [run] = rows.claim(worker, first.id).runs
    if by_sql:
        rows.sql("UPDATE schedule_backfill SET status = 'canceled'")
    else:
        assert backfills.cancel(rows.database, ANN, number)["gmt_completed"] is not None
    step()
    step()
    assert Counter(one.status for one in written(rows)) == {"running": 1, "canceled": 4}
    assert shown(rows, number, "status", "canceled", "in_flight") == ("canceled", 4, 1)
    rows.report(worker, succeeded(run))
    step()
    assert shown(rows, number, "succeeded", "in_flight", "written") == (1, 0, 5)
    with pytest.raises(NotPossible, match="only one that is running or paused can be canceled"):
        backfills.cancel(rows.database, ANN, number)


def test_it_ends_when_its_task_is_deleted(rows: Scenario, step: Step) -> None:
    task = rows.task("nightly")
    number = started(rows, "nightly", 5)
    step()
    rows.sql(f"UPDATE schedule_task SET is_deleted = 1 WHERE id = {task}")
    step()
    assert shown(rows, number, "status", "reason", "written") == ("canceled", "its task was deleted", 1)
    assert [one.status for one in written(rows)] == ["canceled"]


def test_of_two_schedulers_that_read_one_row_the_second_writes_nothing(
    rows: Scenario, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another scheduler was quicker, or the answer to a commit was lost and the transaction runs again."""
    rows.task("nightly")
    number = started(rows, "nightly", 5)
    page = rows.database.read(lambda c: store.page(c, 0, 10))
    monkeypatch.setattr(store, "page", lambda *_: page)
    for _ in range(2):
        Backfiller(rows.database, settings).step()
    assert len(written(rows)) == 1
    assert shown(rows, number, "written", "in_flight") == (1, 1)


def test_one_that_was_paused_since_it_was_read_writes_nothing(
    rows: Scenario, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.task("nightly")
    number = started(rows, "nightly", 5)
    page = rows.database.read(lambda c: store.page(c, 0, 10))
    monkeypatch.setattr(store, "page", lambda *_: page)
    backfills.pause(rows.database, ANN, number)
    Backfiller(rows.database, settings).step()
    assert written(rows) == []


def test_a_row_that_sql_has_spoiled_stops_no_other(rows: Scenario, step: Step) -> None:
    rows.task("nightly")
    bad, odd, good = (started(rows, "nightly", 5) for _ in range(3))
    rows.sql(f"UPDATE schedule_backfill SET plan_inputs = 'no plan' WHERE id = {bad}")
    rows.sql(f"UPDATE schedule_backfill SET in_flight_fires = '[1, \"tomorrow\", {{}}]' WHERE id = {odd}")
    step()
    assert shown(rows, bad, "status", "reason") == ("paused", "its plan_inputs cannot be read")
    assert shown(rows, odd, "status", "written") == ("running", 1)
    assert shown(rows, good, "status", "written") == ("running", 1)


@pytest.mark.parametrize(
    "wrong",
    [*(f"{name} = 9223372036854775807" for name in COUNTERS), "concurrency = 32767", "in_flight = 32767"],
)
def test_one_with_a_number_that_cannot_be_is_canceled_with_the_reason(rows: Scenario, step: Step, wrong: str) -> None:
    rows.task("nightly")
    bad, good = (started(rows, "nightly", 5) for _ in range(2))
    step()
    rows.sql(f"UPDATE schedule_backfill SET {wrong} WHERE id = {bad}")
    step()
    column = wrong.partition(" ")[0]
    assert shown(rows, bad, "status", "reason") == ("canceled", f"its row holds what cannot be, in {column}")
    assert shown(rows, good, "status", "written") == ("running", 1)
    assert [(i.status, i.reason) for i in written(rows)] == [
        ("canceled", f"backfill {bad} was canceled"),
        ("pending", REASON),
    ]
    assert rows.sql(f"SELECT gmt_completed IS NOT NULL AS is_over FROM schedule_backfill WHERE id = {bad}")[0].is_over


@pytest.mark.parametrize("policy", ["skip", "replace", "queue"])
@pytest.mark.parametrize("priority", [5, 9])
def test_a_current_fire_is_neither_skipped_nor_canceled_for_a_run_of_a_backfill_nor_the_other_way_round(
    rows: Scenario, settings: Settings, step: Step, policy: str, priority: int
) -> None:
    task = rows.task("nightly", overlap_policy=policy, priority=priority)
    worker = rows.worker()
    started(rows, "nightly", 2)
    step()
    Assigner(rows.database, settings).step()
    [waiting] = written(rows)
    [run] = rows.claim(worker, waiting.id).runs
    due = rows.now() - timedelta(seconds=1)
    rows.sql("UPDATE schedule_instance SET gmt_started = :at", at=(due - MINUTE).isoformat(" ", "microseconds"))
    fire = rows.assigned(worker, task, due.replace(microsecond=0))
    for _ in range(2):
        assert rows.claim(worker, fire).runs == []
    assert (rows.status(fire), rows.row(run.id).gmt_cancel_requested) == ("assigned", None)
    rows.report(worker, succeeded(run))
    [current] = rows.claim(worker, fire).runs
    step()
    Assigner(rows.database, settings).step()
    assert rows.claim(worker, written(rows)[1].id).runs == []
    assert [one.status for one in written(rows)][1] in ("pending", "assigned")
    assert rows.row(current.id).gmt_cancel_requested is None


def test_what_cannot_be_started_is_refused_and_nothing_is_written(rows: Scenario) -> None:
    rows.task("nightly")
    rows.task("asked", cron=None)
    rows.task("after", cron=None, fixed_delay="10m")
    rows.task("seconds", cron=None, every="1s")
    day = timedelta(days=1)
    for wanted, error, said in (
        (Wanted("weekly", str(BEGIN)), NotFound, "no task is named 'weekly'"),
        (Wanted("asked", str(BEGIN)), InvalidInput, "no fires of its own in the past: it runs only when asked"),
        (Wanted("after", str(BEGIN)), InvalidInput, "depends on the ends of its runs"),
        (Wanted("nightly", "soon"), InvalidInput, "'soon' is not a time"),
        (Wanted("nightly", str(BEGIN), str(BEGIN - day)), InvalidInput, "is after to_at"),
        (Wanted("nightly", str(BEGIN), "9000-01-01"), InvalidInput, "is still to come"),
        (Wanted("seconds", "1990-01-01"), InvalidInput, r"about 1,\d{3},\d{3},\d{3} fires"),
        (Wanted("nightly", str(BEGIN), param={"nodes": 5}), InvalidParam, "nodes"),
    ):
        with pytest.raises(error, match=said):
            backfills.start(rows.database, ANN, wanted)
    assert rows.sql("SELECT id FROM schedule_backfill") == []
    assert rows.sql("SELECT id FROM schedule_audit") == []


def test_what_is_done_with_a_backfill_is_recorded(rows: Scenario) -> None:
    rows.task("nightly")
    number = started(rows, "nightly", 5, concurrency=2)
    backfills.pause(rows.database, ANN, number, "later")
    backfills.resume(rows.database, ANN, number)
    backfills.cancel(rows.database, ANN, number)
    found = rows.sql("SELECT action, object_type, object_id, object_name, why FROM schedule_audit ORDER BY id")
    assert [(one.action, one.why) for one in found] == [
        ("backfill.start", None),
        ("backfill.pause", "later"),
        ("backfill.resume", None),
        ("backfill.cancel", None),
    ]
    assert {(one.object_type, one.object_id, one.object_name) for one in found} == {
        ("schedule_backfill", number, "nightly")
    }


def test_the_estimate_is_that_of_the_time_since_it_was_resumed(rows: Scenario) -> None:
    rows.task("nightly")
    number = started(rows, "nightly", 100)
    assert shown(rows, number, "seconds_left") == (None,)
    ago = (rows.now() - timedelta(seconds=50)).isoformat(" ", "microseconds")
    rows.sql(f"UPDATE schedule_backfill SET succeeded = 60, ended_before = 50, gmt_running = '{ago}'")
    [left] = shown(rows, number, "seconds_left")
    assert 195 < left < 260
    assert backfills.listed(rows.database, 5, task="nightly", status="running")[0]["ended"] == 60


INSERT = (
    "INSERT INTO schedule_backfill (schedule_task_id, from_at, to_at, newest_first) VALUES (:task, :begin, :end, 1)"
)


def inserted(rows: Scenario, task: int, begin: datetime, end: datetime) -> int:
    times = {"begin": begin.isoformat(" ", "microseconds"), "end": end.isoformat(" ", "microseconds")}
    rows.sql(INSERT, task=task, **times)
    [(number,)] = rows.sql("SELECT max(id) FROM schedule_backfill")
    return int(number)


def test_a_backfill_that_sql_inserts_runs(rows: Scenario, step: Step) -> None:
    number = inserted(rows, rows.task("nightly"), BEGIN, BEGIN + 4 * MINUTE)
    assert step() == 0
    step()
    assert shown(rows, number, "fires", "written", "next_fire") == (5, 1, "2026-01-05T00:03:00Z")
    assert [one.schedule_datetime for one in written(rows)] == [BEGIN + 4 * MINUTE]


def test_a_backfill_that_sql_inserts_and_that_cannot_be_is_canceled_with_the_reason(rows: Scenario, step: Step) -> None:
    task = rows.task("nightly")
    backwards, endless = (
        inserted(rows, task, BEGIN, BEGIN - MINUTE),
        inserted(rows, task, BEGIN, BEGIN + 10**7 * MINUTE),
    )
    step()
    for number, said in ((backwards, "is after to_at"), (endless, "is still to come")):
        status, reason, completed = shown(rows, number, "status", "reason", "gmt_completed")
        assert (status, said in reason, completed is not None) == ("canceled", True, True)
    assert written(rows) == []


@pytest.mark.parametrize(
    ("param", "status"), [("[]", "canceled"), ("5", "canceled"), ('"day"', "canceled"), ('{"day": 1}', "running")]
)
def test_a_backfill_that_sql_inserts_with_a_param_that_is_no_object_is_canceled(
    rows: Scenario, step: Step, param: str, status: str
) -> None:
    number = inserted(rows, rows.task("nightly"), BEGIN, BEGIN + 4 * MINUTE)
    rows.sql("UPDATE schedule_backfill SET param = :param WHERE id = :id", param=param, id=number)
    step()
    step()
    reason = "its param is no JSON object" if status == "canceled" else None
    assert shown(rows, number, "status", "reason") == (status, reason)
    assert len(written(rows)) == (status == "running")


def test_a_backfill_by_sql_whose_adoption_fails_is_adopted_later(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = rows.planned_task(rows.start + timedelta(minutes=1), overlap_policy="allow")
    begin = rows.start.replace(second=0, microsecond=0) - timedelta(minutes=10)
    rows.sql(
        "INSERT INTO schedule_backfill (schedule_task_id, from_at, to_at) VALUES (:task, :begin, :end)",
        task=task, begin=begin, end=begin + timedelta(minutes=2),
    )  # fmt: skip
    duty = Backfiller(rows.database, Settings.load())
    with monkeypatch.context() as patched:
        write, failures = rows.database.write_undisturbed, [None]
        patched.setattr(rows.database, "write_undisturbed", lambda work: failures.pop() if failures else write(work))
        duty.step()
    assert [row[0] for row in rows.sql("SELECT status FROM schedule_backfill")] == ["running"]
    for _ in range(3):
        duty.step()
    assert rows.sql("SELECT count(*) FROM schedule_instance WHERE schedule_task_id = :task", task=task)[0][0] > 0
