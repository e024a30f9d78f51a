"""Shards where SQL, a lock, or instances that cannot run are in the way of others."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.control import instances
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.overlap import REPORTED_WITHIN
from rota.shared.store.params import LARGE
from rota.shared.store.runs import Run
from rota.worker_service.rows import WorkerRows
from tests.harness import leases
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario, ended
from tests.harness.spreading import ANN, Spread
from tests.harness.statements import executed
from tests.harness.together import impatient, uncommitted

NOBODY_CAN = {"nodes": ["ELSEWHERE"]}
"""A param that lists a node type which no live worker has."""


@pytest.fixture
def spread(database: Database) -> Spread:
    found = Spread(Scenario(database))
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("ELSEWHERE", "OTHER", 1)], "test"))
    return found


def fire(spread: Spread, task: int, minutes_ago: int, **columns: Any) -> int:
    """A fire of the task's cron that no worker has had."""
    moment = spread.rows.start - timedelta(minutes=minutes_ago)
    return spread.rows.pending(task, moment, origin="cron", **columns)


def set_columns(spread: Spread, instance: int, columns: str) -> None:
    spread.rows.sql(f"UPDATE schedule_instance SET {columns} WHERE id = :id", id=instance)


def written(spread: Spread) -> list[str]:
    """The statements of one more step that change an instance."""
    with executed(spread.database.engine) as statements:
        spread.step()
    return [one for one in statements if one.startswith("UPDATE") and "schedule_instance" in one]


@pytest.mark.parametrize("policy", ["skip", "fire_once"])
def test_a_fire_that_waits_for_its_slot_is_not_missed(spread: Spread, policy: str) -> None:
    task = spread.add(shards=2, misfire_policy=policy)
    later = spread.start()
    spread.step()
    waiting = fire(spread, task, minutes_ago=60)
    spread.step()
    spread.step()
    assert [spread.rows.status(one) for one in (later, waiting)] == ["running", "pending"]
    spread.end(spread.claim())
    spread.step()
    spread.step()
    assert [spread.rows.status(one) for one in (later, waiting)] == ["succeed", "running"]


@pytest.mark.parametrize(("policy", "left"), [("skip", 0), ("fire_once", 1), ("fire_all", 2)])
def test_fires_that_no_worker_could_run_in_time_are_missed(database: Database, policy: str, left: int) -> None:
    spread = Spread(Scenario(database), workers=0)
    task = spread.add(shards=2, overlap_policy="allow", misfire_policy=policy, misfire_cap=2)
    fires = [fire(spread, task, minutes_ago) for minutes_ago in (60, 30, 20)]
    spread.step()
    assert [one for one in fires if spread.rows.status(one) == "pending"] == fires[3 - left :]
    assert all(spread.rows.row(one).reason.startswith("missed: no worker could") for one in fires[: 3 - left])


def test_fires_that_were_missed_at_different_times_are_judged_together(database: Database) -> None:
    spread = Spread(Scenario(database), workers=0)
    task = spread.add(shards=2, overlap_policy="allow", misfire_policy="fire_once")
    fires = []
    for minutes_ago in (60, 50, 40, 30):
        fires.append(fire(spread, task, minutes_ago))
        spread.step()
        assert [one for one in fires if spread.rows.status(one) == "pending"] == fires[-1:]


def test_what_nobody_can_run_does_not_hold_up_the_rest_of_its_task(spread: Spread) -> None:
    spread.add(shards=1, overlap_policy="allow")
    stuck = [spread.start(param=NOBODY_CAN) for _ in range(120)]
    able = spread.start()
    spread.step()
    assert spread.rows.status(able) == "running"
    assert {spread.rows.status(one) for one in stuck} == {"pending"}


def test_what_nobody_can_run_gives_its_turn_to_the_next(spread: Spread) -> None:
    spread.add(shards=1, overlap_policy="queue")
    stuck, able = spread.start(param=NOBODY_CAN), spread.start()
    wait_until(lambda: spread.stepped().status(able) == "running", 5, "the one that can run")
    assert spread.rows.status(stuck) == "pending"


def test_many_of_one_task_that_wait_leave_room_for_those_of_another(spread: Spread) -> None:
    spread.add("many", shards=1, overlap_policy="allow", max_instances=1)
    waiting = [spread.start("many") for _ in range(60)]
    spread.add("few", shards=1, overlap_policy="allow")
    few = spread.start("few")
    spread.step()
    assert spread.rows.status(few) == "running"
    assert [spread.rows.status(one) for one in waiting[:2]] == ["running", "pending"]


@contextmanager
def locked_row(spread: Spread, parent: int) -> Iterator[None]:
    if spread.database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite locks no rows")
    lock = text("SELECT id FROM schedule_instance WHERE id = :id FOR UPDATE")
    with uncommitted(spread.database, lambda c: c.execute(lock, {"id": parent}).all()):
        yield


@contextmanager
def leased_task(spread: Spread, parent: int) -> Iterator[None]:
    spread.database.write(lambda c: leases.acquire(c, "somebody", [spread.task(parent)], 60))
    yield


def test_no_fire_is_skipped_for_a_parent_that_somebody_has_locked(spread: Spread) -> None:
    """Its shards may have ended before the fire was due: its end waits for the lock."""
    spread.add(shards=2)
    first = spread.start()
    spread.step()
    spread.claim()
    with locked_row(spread, first):
        late = spread.rows.pending(spread.task(first), spread.rows.now(), origin="cron")
        spread.step()
        wait_until(lambda: spread.rows.now() > spread.rows.row(late).due_at + REPORTED_WITHIN, 5, "its time to pass")
        spread.step()
        assert spread.rows.status(late) == "pending"
    spread.step()
    assert spread.rows.status(late) == "pending", "the end of the one before has its time from now on"
    wait_until(lambda: spread.stepped().status(late) == "canceled", 5, "it to be skipped")


@pytest.mark.parametrize("held", [locked_row, leased_task])
def test_what_somebody_holds_is_for_the_next_look_and_wakes_nobody(
    spread: Spread, held: Callable[[Spread, int], AbstractContextManager[None]]
) -> None:
    spread.add(shards=1, overlap_policy="allow")
    parent = spread.start()
    woken: list[None] = []
    spread.spreader.wake = lambda: woken.append(None)
    with held(spread, parent):
        for _ in range(3):
            assert spread.stepped().status(parent) == "pending"
    assert len(woken) == 1


def test_a_cancel_that_sql_asks_for_before_it_runs_is_done(spread: Spread) -> None:
    spread.add(shards=1)
    parent = spread.start()
    set_columns(spread, parent, "gmt_cancel_requested = gmt_create")
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, row.reason, spread.shards(parent)) == ("canceled", "canceled before it started", [])


def test_a_running_parent_that_sql_puts_back_goes_on_with_the_shards_that_it_has(spread: Spread) -> None:
    spread.add(shards=3)
    parent = spread.start()
    spread.step()
    before = [one.id for one in spread.shards(parent)]
    claimed = spread.claim()
    set_columns(spread, parent, "status = 'pending', schedule_worker_node_id = NULL")
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, row.schedule_worker_node_id, row.shard_total) == ("running", 0, 3)
    assert [one.id for one in spread.shards(parent)] == before
    spread.end(claimed)
    spread.step()
    assert spread.rows.status(parent) == "succeed"


def test_a_failed_parent_and_its_failed_shard_that_sql_puts_back_run_again(spread: Spread) -> None:
    spread.add(shards=2)
    parent = spread.start()
    spread.step()
    claimed = [(worker, run) for worker, some in spread.claim().items() for run in some]
    spread.end({claimed[0][0]: [claimed[0][1]]}, "failed")
    spread.end({claimed[1][0]: [claimed[1][1]]})
    spread.step()
    assert spread.rows.status(parent) == "failed"
    back = "status = 'pending', schedule_worker_node_id = NULL, gmt_completed = NULL, due_at = schedule_datetime"
    set_columns(spread, claimed[0][1].id, back)
    set_columns(spread, parent, back)
    spread.step()
    spread.step()
    assert spread.rows.status(parent) == "running"
    [again] = [run for some in spread.claim().values() for run in some]
    assert again.id == claimed[0][1].id
    spread.end({spread.rows.row(again.id).schedule_worker_node_id: [again]})
    spread.step()
    assert spread.rows.status(parent) == "succeed"


def test_shards_of_a_parent_that_sql_has_canceled_are_not_begun(spread: Spread) -> None:
    spread.add(shards=2)
    parent = spread.start()
    spread.assigner.step()
    spread.spreader.step()
    set_columns(spread, parent, "status = 'canceled', gmt_completed = gmt_create")
    spread.step()
    assert [(one.status, one.reason) for one in spread.shards(parent)] == [
        ("canceled", f"its parent, instance {parent}, runs no more")
    ] * 2


@pytest.mark.parametrize("policy", ["skip", "queue", "allow"])
@pytest.mark.parametrize("from_afar", [False, True])
def test_shards_that_a_worker_has_do_not_begin_when_sql_has_ended_their_parent(
    spread: Spread, policy: str, from_afar: bool
) -> None:
    spread.add(shards=2, overlap_policy=policy)
    parent = spread.start()
    spread.step()
    set_columns(spread, parent, "status = 'canceled', gmt_completed = gmt_create")
    spread.rows.is_far = from_afar
    assert spread.claim() == {worker: [] for worker in spread.workers}
    assert [(one.status, one.reason) for one in spread.shards(parent)] == [
        ("canceled", f"its parent, instance {parent}, runs no more")
    ] * 2


@pytest.mark.parametrize("policy", ["skip", "queue", "allow"])
@pytest.mark.parametrize("from_afar", [False, True])
def test_shards_that_a_worker_has_wait_for_a_parent_that_sql_puts_back(
    spread: Spread, policy: str, from_afar: bool
) -> None:
    spread.add(shards=2, overlap_policy=policy)
    parent = spread.start()
    spread.step()
    set_columns(spread, parent, "status = 'pending', schedule_worker_node_id = NULL")
    spread.rows.is_far = from_afar
    assert spread.claim() == {worker: [] for worker in spread.workers}
    spread.step()
    spread.end(spread.claim())
    spread.step()
    assert spread.rows.status(parent) == "succeed"


def put_back(spread: Spread, *, shards: int) -> tuple[int, list[Run]]:
    """A parent that SQL has put back after its shards were written and the first of them was claimed; that run."""
    spread.add(shards=shards)
    parent = spread.start()
    spread.step()
    first, *_ = spread.shards(parent)
    running = spread.rows.claim(first.schedule_worker_node_id, first.id).runs
    set_columns(spread, parent, "status = 'pending', schedule_worker_node_id = NULL")
    return parent, list(running)


@pytest.mark.parametrize("by_sql", [False, True])
def test_to_cancel_a_parent_that_was_put_back_stops_its_shards(spread: Spread, by_sql: bool) -> None:
    parent, running = put_back(spread, shards=4)
    if by_sql:
        set_columns(spread, parent, "gmt_cancel_requested = gmt_create")
        spread.step()
    else:
        instances.cancel(spread.database, ANN, [parent])
    assert spread.rows.status(parent) == "canceled"
    begun, *others = spread.shards(parent)
    assert begun.gmt_cancel_requested is not None
    assert {(one.status, one.reason) for one in others} == {("canceled", "its parent is canceled")}
    spread.end({begun.schedule_worker_node_id: running}, "canceled")
    spread.step()
    assert written(spread) == []


def test_a_parent_that_was_put_back_is_not_canceled_before_its_shards_are_asked_to_stop(spread: Spread) -> None:
    parent, [run] = put_back(spread, shards=3)
    set_columns(spread, parent, "gmt_cancel_requested = gmt_create")
    with locked_row(spread, run.id):
        spread.step()
        begun, *others = spread.shards(parent)
        assert (spread.rows.status(parent), begun.gmt_cancel_requested) == ("pending", None)
        assert {one.status for one in others} == {"canceled"}
    spread.step()
    begun, *_ = spread.shards(parent)
    assert (spread.rows.status(parent), begun.status) == ("canceled", "running")
    assert begun.gmt_cancel_requested is not None


def test_who_cancels_a_parent_that_was_put_back_waits_for_a_shard_that_somebody_has_locked(spread: Spread) -> None:
    parent, [run] = put_back(spread, shards=1)
    with impatient(spread.database) as other:
        with locked_row(spread, run.id), pytest.raises(DatabaseProblem):
            instances.cancel(other, ANN, [parent])
        assert spread.rows.status(parent) == "pending"
        instances.cancel(other, ANN, [parent])
    assert spread.rows.status(parent) == "canceled"
    assert spread.shards(parent)[0].gmt_cancel_requested is not None


def test_a_parent_that_sql_puts_back_has_no_end_while_it_runs_again(spread: Spread) -> None:
    spread.add(shards=1)
    parent = spread.start()
    spread.step()
    spread.end(spread.claim(), "failed")
    spread.step()
    assert spread.rows.row(parent).gmt_completed is not None
    set_columns(spread, spread.shards(parent)[0].id, "status = 'pending', schedule_worker_node_id = NULL")
    set_columns(spread, parent, "status = 'pending', schedule_worker_node_id = NULL")
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, row.gmt_completed, row.execution_result) == ("running", None, None)


def test_to_stop_shards_is_written_once(spread: Spread) -> None:
    spread.add(shards=4)
    parent = spread.start()
    spread.step()
    spread.claim()
    instances.cancel(spread.database, ANN, [parent])
    spread.step()
    assert all(one.gmt_cancel_requested is not None for one in spread.shards(parent))
    assert written(spread) == []


def test_results_of_every_kind_are_in_the_parents_list_but_for_large_ones(spread: Spread) -> None:
    results = ['{"rows":[1,2]}', json.dumps("x" * (2 * LARGE)), "null", '"words"']
    spread.add(shards=len(results))
    parent = spread.start()
    spread.step()
    for worker, some in spread.claim().items():
        for run in some:
            assert spread.rows.report(worker, ended(run, result=results[run.shard.index])) == set()
    spread.step()
    said = [one.get("result", "left out") for one in spread.rows.row(parent).execution_result]
    assert said == [{"rows": [1, 2]}, "left out", None, "words"]


def test_fewer_shards_said_by_sql_than_there_are_do_not_fail_the_parent(spread: Spread) -> None:
    spread.add(shards=3)
    parent = spread.start()
    spread.step()
    set_columns(spread, parent, "shard_total = 1")
    spread.end(spread.claim())
    spread.step()
    assert spread.rows.status(parent) == "succeed"


@pytest.mark.parametrize("policy", ["skip", "queue", "allow"])
def test_a_parent_goes_on_while_the_thread_of_a_shard_runs_unless_fires_may_run_beside_each_other(
    spread: Spread, policy: str
) -> None:
    spread.add(shards=2, overlap_policy=policy)
    parent = spread.start()
    spread.step()
    [lingering, other] = [(worker, run) for worker, runs in spread.claim().items() for run in runs]
    report = ended(lingering[1], InstanceStatus.FAILED)
    assert report.instance is not None
    report.instance.lingers = True
    assert spread.rows.report(lingering[0], report) == set()
    assert spread.rows.report(other[0], ended(other[1])) == set()
    assert spread.stepped().status(parent) == ("failed" if policy == "allow" else "running")
    following = spread.start()
    assert spread.stepped().status(following) == ("running" if policy == "allow" else "pending")
    WorkerRows(spread.database, lingering[0]).free_slots([lingering[1].id])
    assert spread.stepped().status(parent) == "failed"
    assert spread.stepped().status(following) == "running"
    assert spread.rows.broken() == {}


def test_a_parent_ends_when_the_worker_is_dead_whose_thread_it_waits_for(spread: Spread) -> None:
    spread.add(shards=1)
    parent = spread.start()
    spread.step()
    [(worker, run)] = [(worker, run) for worker, runs in spread.claim().items() for run in runs]
    report = ended(run, InstanceStatus.FAILED)
    assert report.instance is not None
    report.instance.lingers = True
    assert spread.rows.report(worker, report) == set()
    assert spread.stepped().status(parent) == "running"
    spread.rows.bury(worker)
    reaper = Reaper(spread.database, Settings.load(), "test")
    spread.rows.sql("UPDATE schedule_worker_beat SET last_beat = '2020-01-01 00:00:00'")
    reaper.step()
    assert spread.stepped().status(parent) == "failed"
