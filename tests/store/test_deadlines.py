"""The scheduler ends runs that are over their task's limit, and that their workers do not end."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.deadlines import REPORT_SECONDS, Deadlines
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import instances
from rota.shared.control.actor import Actor
from rota.shared.database.later import Unexpected
from rota.shared.settings import Settings
from rota.shared.store import deadlines
from rota.shared.store.reports import Report
from rota.shared.store.runs import Run
from rota.worker_service.running import cut_short
from tests.harness.packets import Packets, assert_one_packet_each
from tests.harness.scenario import Scenario, ended, stepped, to_retry
from tests.harness.statements import executed
from tests.harness.together import locked

LIMIT, GRACE = 60, 30
LOOK_NOW = "UPDATE schedule_deadline SET check_at = '2026-01-01 00:00:00.000000'"


@pytest.fixture
def look(rows: Scenario) -> Callable[[], float]:
    return duty(rows)


def duty(rows: Scenario) -> Callable[[], float]:
    """The duty of a scheduler that has watched for long enough; each look finds all rows."""
    one = Deadlines(rows.database, Settings.load(overdue_seconds=GRACE))
    one._wait_until, one._report_seconds = float("-inf"), 0

    def step() -> float:
        rows.sql(LOOK_NOW)
        return one.step()

    return step


SLOW = {"tick_seconds": 60, "lookahead_seconds": 300, "liveness_seconds": 1800}


@pytest.mark.parametrize(
    ("settings", "rest"),
    [
        pytest.param({}, 5, id="by default"),
        pytest.param({**SLOW, "overdue_seconds": 600}, 60, id="a long tick"),
        pytest.param({**SLOW, "overdue_seconds": 40}, 20, id="half of the grace"),
        pytest.param({"tick_seconds": 60, "overdue_seconds": 600}, 5, id="a tick that the look-ahead makes short"),
    ],
)
def test_it_rests_for_five_seconds_or_a_tick(rows: Scenario, settings: dict[str, float], rest: float) -> None:
    assert Deadlines(rows.database, Settings.load(**settings)).step() == rest


def given(rows: Scenario, **fields: Any) -> tuple[int, Run]:
    """A worker, and a run that the assigner gave it, of a task with a limit."""
    worker, task = rows.worker(), rows.task(**{"run_timeout_seconds": LIMIT, **fields})
    instance = rows.pending(task)
    Assigner(rows.database, Settings.load()).step()
    [run] = rows.claim(worker, instance).runs
    return worker, run


def began(rows: Scenario, run: Run, seconds_ago: float) -> None:
    at = rows.now() - timedelta(seconds=seconds_ago)
    rows.sql("UPDATE schedule_instance SET gmt_started = :at WHERE id = :i", i=run.id, at=f"{at:%F %T.%f}")


def watched(rows: Scenario) -> list[int]:
    return [row[0] for row in rows.sql("SELECT schedule_instance_id FROM schedule_deadline")]


def test_a_run_that_is_over_its_limit_and_the_grace_fails_as_its_worker_would_fail_it(
    rows: Scenario, look: Callable[[], float]
) -> None:
    worker, run = given(rows)
    began(rows, run, LIMIT + GRACE - 5)
    look()
    assert rows.status(run.id) == "running"
    began(rows, run, LIMIT + GRACE + 1)
    look()
    row = rows.row(run.id)
    assert (row.status, row.failures, row.worker_losses) == ("failed", 1, 0)
    assert row.reason == (
        f"the run timed out after 60 s in REPORT_EXTRACT; worker {row.worker_name!r} beats, and did not end it within "
        "30 s: the scheduler did"
    )
    assert rows.node_statuses(run.id) == ["failed", "canceled"]
    assert row.failed_attempts[-1]["reason"] == row.reason
    assert rows.report(worker, ended(run)) == {run.id}, "the worker has lost it"
    look()
    assert watched(rows) == []
    assert rows.broken() == {}


def test_it_is_retried_at_the_node_that_ran_by_another_worker(rows: Scenario, look: Callable[[], float]) -> None:
    worker, run = given(rows, retries=1, retry_delay_seconds=0)
    rows.report(worker, stepped(run))
    began(rows, run, LIMIT + GRACE + 1)
    look()
    row = rows.row(run.id)
    assert (row.status, row.lost_by, row.failures) == (
        "pending",
        rows.sql("SELECT name FROM schedule_worker_node")[0][0],
        1,
    )
    assert row.reason.startswith("retry 1 of 1 after 0 ms: the run timed out after 60 s in REPORT_SEND")
    assert rows.node_statuses(run.id) == ["succeed", "pending"]
    other = rows.worker()
    Assigner(rows.database, Settings.load()).step()
    [again] = rows.claim(other, run.id).runs
    assert again.attempt == 2
    began(rows, again, LIMIT + GRACE + 1)
    look()
    assert rows.status(run.id) == "failed"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"retries": 3, "never_retry": ["TimeoutError"]}, "failed"),
        ({"on_worker_lost": "fail"}, "failed"),
        ({"retries": 3}, "pending"),
    ],
)
def test_what_is_not_to_be_retried_fails(
    rows: Scenario, look: Callable[[], float], fields: dict[str, Any], status: str
) -> None:
    _, run = given(rows, **fields)
    began(rows, run, LIMIT + GRACE + 1)
    look()
    assert rows.status(run.id) == status


def test_what_somebody_has_asked_to_cancel_is_canceled(rows: Scenario, look: Callable[[], float]) -> None:
    _, run = given(rows, retries=3)
    instances.cancel(rows.database, Actor("ann", "cli"), [run.id])
    began(rows, run, LIMIT + GRACE + 1)
    look()
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("canceled", ["canceled", "canceled"])


def test_a_run_whose_thread_does_not_return_is_left_to_its_worker(rows: Scenario, look: Callable[[], float]) -> None:
    worker, run = given(rows, retries=1)
    retry = to_retry(run, rows.now())
    assert retry.instance is not None
    rows.report(worker, cut_short.waiting_for_its_handler(retry, retry.instance))
    began(rows, run, LIMIT + GRACE + 1)
    look()
    assert rows.status(run.id) == "running"


@pytest.mark.parametrize(("report", "status"), [(ended, "succeed"), (stepped, "running")])
def test_what_its_worker_has_reported_meanwhile_stays_as_it_is(
    rows: Scenario, report: Callable[[Run], Report], status: str
) -> None:
    worker, run = given(rows)
    began(rows, run, LIMIT + GRACE + 1)
    rows.sql("UPDATE schedule_deadline SET check_at = '2026-01-01 00:00:00.000000'")
    [seen] = rows.database.read(lambda c: deadlines.due(c, 10))
    node = rows.database.read(lambda c: deadlines.running_node(c, run.id))
    assert node is not None
    made = deadlines.overdue(seen, node, GRACE)
    rows.report(worker, report(run))
    with pytest.raises(Unexpected):
        rows.database.write(lambda c: deadlines.end_overdue(c, seen, node, made))
    assert rows.status(run.id) == status
    assert rows.broken() == {}


def beside(rows: Scenario, run: Run) -> None:
    """Its second node runs beside the first."""
    rows.sql("UPDATE schedule_task_node SET status = 'running' WHERE id = :node", node=run.nodes[1].id)


@pytest.mark.parametrize(
    ("retries", "status", "nodes"),
    [(1, "pending", ["pending", "pending"]), (0, "failed", ["failed", "canceled"])],
)
def test_what_runs_beside_the_node_ends_with_it_and_has_not_failed(
    rows: Scenario, look: Callable[[], float], retries: int, status: str, nodes: list[str]
) -> None:
    _, run = given(rows, retries=retries)
    beside(rows, run)
    began(rows, run, LIMIT + GRACE + 1)
    look()
    assert (rows.status(run.id), rows.node_statuses(run.id)) == (status, nodes)
    failures = rows.sql("SELECT failures FROM schedule_task_node WHERE schedule_instance_id = :i ORDER BY id", i=run.id)
    assert [row.failures for row in failures] == [1, 0]


def test_what_has_ended_beside_the_node_meanwhile_stays_so(rows: Scenario) -> None:
    _, run = given(rows, retries=1)
    beside(rows, run)
    began(rows, run, LIMIT + GRACE + 1)
    rows.sql("UPDATE schedule_deadline SET check_at = '2026-01-01 00:00:00.000000'")
    [seen] = rows.database.read(lambda c: deadlines.due(c, 10))
    node = rows.database.read(lambda c: deadlines.running_node(c, run.id))
    assert node is not None
    rows.sql("UPDATE schedule_task_node SET status = 'succeed' WHERE id = :node", node=run.nodes[1].id)
    with pytest.raises(Unexpected):
        rows.database.write(lambda c: deadlines.end_overdue(c, seen, node, deadlines.overdue(seen, node, GRACE)))
    assert rows.node_statuses(run.id) == ["running", "succeed"]


def test_fires_are_noted_with_their_instances_and_those_without_a_limit_are_not(rows: Scenario) -> None:
    rows.worker()
    soon = rows.now().replace(microsecond=0) + timedelta(seconds=2)
    limited = rows.planned_task(soon, run_timeout_seconds=LIMIT, cron="0 3 1 1 *")
    rows.planned_task(soon, cron="0 3 1 1 *")
    Materializer(rows.database, Settings.load()).step()
    [noted] = rows.sql("SELECT schedule_instance_id, run_timeout_seconds, check_at FROM schedule_deadline")
    assert (rows.row(noted.schedule_instance_id).schedule_task_id, noted.run_timeout_seconds) == (limited, LIMIT)
    assert str(noted.check_at) > f"{rows.now() + timedelta(seconds=LIMIT - 5)}"


def test_a_limit_that_was_lengthened_or_removed_holds_for_what_runs(rows: Scenario, look: Callable[[], float]) -> None:
    _, run = given(rows)
    began(rows, run, LIMIT + GRACE + 1)
    for seconds in ("600", "NULL"):
        rows.sql(f"UPDATE schedule_task SET run_timeout_seconds = {seconds}")
        look()
        assert rows.status(run.id) == "running"


def test_after_its_start_an_outage_or_a_step_of_the_clock_it_ends_nothing_at_once(rows: Scenario) -> None:
    _, run = given(rows)
    began(rows, run, LIMIT + GRACE + 1)
    one = Deadlines(rows.database, Settings.load(overdue_seconds=GRACE))
    rows.sql("UPDATE schedule_deadline SET check_at = '2026-01-01 00:00:00.000000'")
    one.step()
    assert rows.status(run.id) == "running"
    one._wait_until = float("-inf")
    one._heard -= 100  # it has heard nothing for so long
    one._time = None
    rows.sql("UPDATE schedule_deadline SET check_at = '2026-01-01 00:00:00.000000'")
    one.step()
    assert rows.status(run.id) == "running"
    one._wait_until = float("-inf")
    assert one._time is not None
    one._time -= timedelta(seconds=3600)  # the clock was set forward by an hour
    for _ in range(2):
        rows.sql("UPDATE schedule_deadline SET check_at = '2026-01-01 00:00:00.000000'")
        one.step()
        one._wait_until = float("-inf")
    assert rows.status(run.id) == "running"


def test_an_idle_look_asks_two_statements_and_reads_no_instance(rows: Scenario) -> None:
    given(rows)
    one = Deadlines(rows.database, Settings.load())
    one.step()
    with executed(rows.database.engine) as texts:
        one.step()
    asked = [text for text in texts if text != "BEGIN"]
    assert len(asked) == 2
    assert not any("schedule_instance " in text for text in asked)


def test_an_overdue_run_is_ended_in_one_packet(mariadb_rows: Scenario, packets: Packets) -> None:
    _, run = given(mariadb_rows)
    began(mariadb_rows, run, LIMIT + GRACE + 1)
    one = Deadlines(mariadb_rows.database, Settings.load(overdue_seconds=GRACE))
    one._wait_until = float("-inf")
    mariadb_rows.sql("UPDATE schedule_deadline SET check_at = '2026-01-01 00:00:00.000000'")
    packets.clear()
    one.step()
    assert mariadb_rows.status(run.id) == "failed"
    assert_one_packet_each(packets)


def test_what_sql_has_written_into_a_row_stops_no_other(rows: Scenario, look: Callable[[], float]) -> None:
    task, worker = rows.task(run_timeout_seconds=LIMIT, overlap_policy="allow"), rows.worker()
    runs = [rows.running(worker, task) for _ in range(2)]
    for run, seconds in zip(runs, ("-5", "60"), strict=True):
        rows.sql(
            "INSERT INTO schedule_deadline (schedule_instance_id, run_timeout_seconds, check_at)"
            f" VALUES (:i, {seconds}, '2026-01-01 00:00:00.000000')",
            i=run.id,
        )
        began(rows, run, LIMIT + GRACE + 1)
    look()
    assert {rows.status(run.id) for run in runs} == {"failed"}


@pytest.mark.parametrize(
    ("table", "where"), [("schedule_instance", "id"), ("schedule_task_node", "schedule_instance_id")]
)
def test_a_run_that_somebody_has_locked_is_not_ended(mariadb_rows: Scenario, table: str, where: str) -> None:
    """It may have ended long ago: its report waits for the lock, too."""
    _, run = given(mariadb_rows)
    began(mariadb_rows, run, LIMIT + GRACE + 1)
    look = duty(mariadb_rows)
    with locked(mariadb_rows.database, table, f"{where} = :id", id=run.id):
        look()
    assert mariadb_rows.status(run.id) == "running"
    look()
    assert mariadb_rows.status(run.id) == "failed", "it was not reported"


def test_what_is_reported_soon_after_a_lock_is_not_ended(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock was gone just before the look, and the worker looks twice a second."""
    worker, run = given(mariadb_rows)
    began(mariadb_rows, run, LIMIT + GRACE + 1)
    one = Deadlines(mariadb_rows.database, Settings.load(overdue_seconds=GRACE))
    one._wait_until = float("-inf")
    pauses: list[float] = []

    def report_meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        assert mariadb_rows.report(worker, ended(run)) == set()

    monkeypatch.setattr(one._clock, "sleep", report_meanwhile)
    mariadb_rows.sql(LOOK_NOW)
    one.step()
    assert (mariadb_rows.status(run.id), pauses) == ("succeed", [REPORT_SECONDS])
