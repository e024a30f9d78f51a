"""What waits for its own task stays pending and leaves the workers' queues to others."""

import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from sqlalchemy.exc import DataError, OperationalError

from rota.scheduler_service import fleet
from rota.scheduler_service.duties import assigner as assigner_module
from rota.scheduler_service.duties import materializer as materializer_module
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.stretches import AHEAD
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import instances, locks, node_types, overlap, plans, recovery, reports
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.transitions import giving
from tests.harness.scenario import Scenario, to_retry
from tests.harness.statements import executed

NOON = datetime.fromisoformat("2026-11-22 12:00:00")


@pytest.fixture
def rows(database: Database) -> Scenario:
    return Scenario(database)


@pytest.fixture
def assign(database: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A pass of an assigner, which sees the workers as they are then."""
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    return Assigner(database, Settings.load()).step


def count(rows: Scenario, task: int, status: str) -> int:
    [(number,)] = rows.sql(
        "SELECT count(*) FROM schedule_instance WHERE schedule_task_id = :task AND status = :status",
        task=task,
        status=status,
    )
    return int(number)


def test_of_many_that_wait_for_each_other_only_the_next_are_given_out(
    rows: Scenario, assign: Callable[[], float]
) -> None:
    rows.worker(capacity=100)
    queued, free = rows.task(overlap_policy="queue"), rows.task(overlap_policy="allow")
    for n in range(AHEAD + 9):
        rows.by_sql(queued, rows.start - timedelta(minutes=n))
        rows.by_sql(free, rows.start - timedelta(minutes=n))
    assign()
    assert (count(rows, queued, "assigned"), count(rows, queued, "pending")) == (1 + AHEAD, 8)
    assert (count(rows, free, "assigned"), count(rows, free, "pending")) == (AHEAD + 9, 0)
    reasons = rows.sql("SELECT DISTINCT reason FROM schedule_instance WHERE status = 'pending'")
    assert list(reasons) == [("waits for its turn: its task runs one at a time",)]
    with executed(rows.database.engine) as statements:
        assign()
    assert not [s for s in statements if s.startswith("UPDATE schedule_instance")], "it is said once"


@pytest.mark.parametrize(("policy", "held"), [("queue", True), ("skip", True), ("replace", True), ("allow", False)])
def test_while_its_task_runs_what_would_wait_for_it_stays_pending(
    rows: Scenario, assign: Callable[[], float], policy: str, held: bool
) -> None:
    worker = rows.worker()
    task = rows.task(overlap_policy=policy)
    running = rows.running(worker, task)
    asked = rows.by_sql(task)
    assign()
    assert rows.status(asked) == ("pending" if held else "assigned")
    assert rows.row(asked).reason == ("waits for its turn: its task runs one at a time" if held else None)
    rows.sql("UPDATE schedule_instance SET status = 'succeed' WHERE id = :id", id=running.id)
    assign()
    assert rows.status(asked) == "assigned"
    assert rows.row(asked).reason is None


def test_a_retry_that_waits_for_its_turn_keeps_the_reason_why_it_is_to_run_again(
    rows: Scenario, assign: Callable[[], float]
) -> None:
    worker = rows.worker()
    task = rows.task(overlap_policy="skip")
    failed = rows.running(worker, task)
    rows.report(worker, to_retry(failed, rows.start, "it failed"))
    rows.running(worker, task)
    assign()
    assert (rows.status(failed.id), rows.row(failed.id).reason) == ("pending", "it failed")


def test_a_limited_task_is_full_when_all_its_slots_are_taken(rows: Scenario, database: Database) -> None:
    worker = rows.worker()
    task = rows.task(overlap_policy="allow", max_instances=2)
    rows.running(worker, task)
    assert database.read(lambda c: overlap.full(c, {task: 2})) == set()
    rows.running(worker, task)
    assert database.read(lambda c: overlap.full(c, {task: 2})) == {task}


@pytest.mark.parametrize("left_there", [None, 5])
def test_a_fire_that_is_to_queue_behind_a_run_is_materialized_pending(
    rows: Scenario, database: Database, left_there: int | None
) -> None:
    worker = rows.worker()
    task = rows.planned_task(overlap_policy="queue")
    rows.running(worker, task, rows.start - timedelta(hours=1))
    rows.sql("UPDATE schedule_task SET max_instances = :n", n=left_there)
    Materializer(database, Settings.load()).step()
    assert count(rows, task, "assigned") == 0
    assert count(rows, task, "pending") in (1, 2)  # the next minute may be within the look-ahead
    reasons = rows.sql("SELECT DISTINCT reason FROM schedule_instance WHERE status = 'pending'")
    assert list(reasons) == [("waits for its turn: its task runs one at a time",)]


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_fire_that_waits_for_no_run_is_given_out_behind_one_whatever_sql_left_in_max_instances(
    rows: Scenario, database: Database, policy: str
) -> None:
    worker = rows.worker()
    task = rows.planned_task(overlap_policy=policy)
    rows.running(worker, task, rows.start - timedelta(hours=1))
    rows.sql("UPDATE schedule_task SET max_instances = 1")
    Materializer(database, Settings.load()).step()
    assert count(rows, task, "pending") == 0
    assert count(rows, task, "assigned") in (1, 2)


def test_the_duties_of_a_scheduler_look_often_enough(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (materializer_module, assigner_module):
        monkeypatch.setattr(module, "seconds_to_next", lambda _, period, __: period)
    for tick, lookahead, rest in ((1, 5, 1), (60, 5, 0.9375), (60, 300, 3.75), (1, 0.4, 0.0625)):
        settings = Settings.load(tick_seconds=tick, lookahead_seconds=lookahead)
        duties = Materializer(rows.database, settings), Assigner(rows.database, settings)
        assert [duty.step() for duty in (*duties, Reaper(rows.database, settings, "test"))] == [rest] * 3


def test_a_scheduler_that_is_outrun_again_and_again_looks_less_and_less_often(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    rows.planned_task()
    materializer, take_new = Materializer(rows.database, Settings.load()), locks.take_new
    monkeypatch.setattr(locks, "take_new", lambda *_: None)
    assert [materializer.step() for _ in range(8)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1]
    monkeypatch.setattr(locks, "take_new", take_new)
    materializer.step()
    rows.planned_task()
    monkeypatch.setattr(locks, "take_new", lambda *_: None)
    assert [materializer.step() for _ in range(2)] == [0.02, 0.04]
    monkeypatch.setattr(plans, "due", lambda *_, **__: ([], False, False))
    materializer.step()
    monkeypatch.undo()
    monkeypatch.setattr(random, "uniform", lambda _, longest: longest)
    monkeypatch.setattr(locks, "take_new", lambda *_: None)
    assert materializer.step() == 0.02


def test_a_fire_that_fits_no_worker_is_complained_of_once_whatever_other_batches_hold(
    rows: Scenario, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rows.worker(node_types=["REPORT_EXTRACT", "REPORT_SEND"])
    settings = Settings.load(batch=1)
    rows.planned_task(required_labels={"lane": "x"}, next_fire_at=rows.start - timedelta(seconds=2))
    rows.planned_task(next_fire_at=rows.start - timedelta(seconds=1))
    materializer, assigner = Materializer(database, settings), Assigner(database, settings)
    for _ in range(3):
        materializer.step()
        assigner.step()
    assert [record.getMessage() for record in caplog.records if "task type" in record.getMessage()] == [
        "assigner: task type REPORT: no live worker that can run it carries the labels lane=x"
    ]


def test_what_the_database_refuses_to_assign_is_canceled_alone(
    rows: Scenario, assign: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.worker()
    task = rows.task(overlap_policy="allow")
    ids = [rows.by_sql(task, rows.start - timedelta(minutes=n)) for n in range(5)]
    give = giving.give

    def refusing(connection: object, given: list[tuple[int, int, int | None, str | None]]) -> None:
        if ids[2] in {row[0] for row in given}:
            raise DataError("UPDATE", {}, Exception(1406, "Data too long"))
        give(connection, given)  # type: ignore[arg-type]

    monkeypatch.setattr(giving, "give", refusing)
    for _ in ids:  # what is left of a task is taken up by the next passes, as its lease is given back with each part
        assign()
    assert [rows.status(i) for i in ids] == ["assigned", "assigned", "canceled", "assigned", "assigned"]
    assert rows.row(ids[2]).reason == "the database refuses the instance: Data too long"


def test_a_deploy_changes_no_instance_whose_nodes_are_pinned(
    rows: Scenario, database: Database, assign: Callable[[], float]
) -> None:
    types = ["REPORT_EXTRACT", "REPORT_SEND", "REPORT_TRANSFORM"]
    run = rows.running(rows.worker(node_types=types), rows.task(overlap_policy="allow"))
    deployed = [node_types.NodeTypeDeclaration(name, "REPORT", at) for name, at in zip(types, (1, 3, 2), strict=True)]
    database.write(lambda c: node_types.register(c, deployed, "test"))
    database.write(lambda c: reports.hand_back(c, rows.row(run.id).schedule_worker_node_id, [(run.id, 1)], "test"))
    assign()
    assert rows.status(run.id) == "assigned"
    pinned = database.read(lambda c: instances.nodes(c, run.id))
    assert [(node.sequence, node.type) for node in pinned] == [(1, "REPORT_EXTRACT"), (2, "REPORT_SEND")]


@pytest.mark.parametrize("how", ["handed back", "lost"])
def test_after_a_deploy_an_instance_goes_to_a_worker_that_can_run_its_pinned_nodes(
    rows: Scenario, database: Database, assign: Callable[[], float], how: str
) -> None:
    old, task = rows.worker(), rows.task(overlap_policy="allow")
    instance = rows.assigned(old, task)
    claimed = rows.claim(old, instance).runs
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("REPORT_LOAD", "REPORT", 1)], "test"))
    rows.sql("UPDATE schedule_task_node_type SET is_deleted = 1 WHERE type <> 'REPORT_LOAD'")
    new = rows.worker(node_types=["REPORT_LOAD"])
    match how:
        case "handed back":
            database.write(lambda c: reports.hand_back(c, old, [(run.id, run.attempt) for run in claimed], "test"))
        case "lost":
            database.write(lambda c: recovery.recover(c, old, 10))
    fresh = rows.by_sql(task)
    rows.bury(old)
    assign()
    assert (rows.status(instance), rows.status(fresh)) == ("pending", "assigned")
    assert rows.row(fresh).schedule_worker_node_id == new
    assert rows.row(instance).reason == "no live worker can run REPORT_EXTRACT, REPORT_SEND"
    able = rows.worker()
    assign()
    assert (rows.status(instance), rows.row(instance).schedule_worker_node_id) == ("assigned", able)


def test_an_error_of_the_server_is_not_blamed_on_the_row(
    rows: Scenario, assign: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.worker()
    asked = rows.by_sql(rows.task())

    def interrupted(connection: object, given: object) -> None:
        raise OperationalError("UPDATE", {}, Exception(1105, "Unknown error"))

    with monkeypatch.context() as patched:
        patched.setattr(giving, "give", interrupted)
        with pytest.raises(OperationalError, match="Unknown error"):
            assign()
    assert rows.status(asked) == "pending"


def test_a_zero_date_by_sql_is_canceled_and_reaches_no_worker(
    mariadb_rows: Scenario,
) -> None:
    mariadb_rows.worker()
    good, bad = mariadb_rows.by_sql(mariadb_rows.task()), mariadb_rows.by_sql(mariadb_rows.task())
    mariadb_rows.sql("UPDATE schedule_instance SET schedule_datetime = '2026-11-00 02:00:00' WHERE id = :id", id=bad)
    Assigner(mariadb_rows.database, Settings.load()).step()
    assert mariadb_rows.statuses() == {good: "assigned", bad: "canceled"}
    assert "is no date" in str(mariadb_rows.row(bad).reason)
