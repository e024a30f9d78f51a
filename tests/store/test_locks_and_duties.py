"""What one row of a batch waits for is somebody's lock that no SKIP LOCKED sees: the duty does the others' work.

The locks are those of a console that was left open in a transaction. SQLite has no locks of rows.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.backfiller import Backfiller
from rota.scheduler_service.duties.business_keys import BusinessKeys
from rota.scheduler_service.duties.catch_up import Catcher
from rota.scheduler_service.duties.chains import Chains
from rota.scheduler_service.duties.deadlines import Deadlines
from rota.scheduler_service.duties.edited_calendars import EditedCalendars
from rota.scheduler_service.duties.follower import Follower
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.requests import Requests
from rota.scheduler_service.duties.spreader import Spreader
from rota.scheduler_service.duties.strays import Strays
from rota.scheduler_service.duties.sweeper import Sweeper
from rota.scheduler_service.fleet import FleetCache
from rota.scheduler_service.leasing import lease_new
from rota.shared.control import business_keys, calendars, requests, schedulers, tasks
from rota.shared.control.actor import Actor
from rota.shared.control.business_keys import Wanted
from rota.shared.database import callers
from rota.shared.domain.calendars.defining import Changes
from rota.shared.domain.chains import Link
from rota.shared.settings import Settings
from rota.shared.store import chain_fires, chains, node_types
from tests.harness.databases import MariaDBServer, is_mysql, run_sql
from tests.harness.scenario import Scenario, ended, failed_while_its_thread_runs
from tests.harness.together import gap_locked, impatient, locked, uncommitted, wait_for_lock_wait

ANN = Actor("ann", "cli")

MINUTE = timedelta(minutes=1)
TASKS = 9


def in_steps(step: Callable[[], float], done: Callable[[], bool], most: int = 4) -> bool:
    """Whether it is done after so many steps of a duty at most."""
    for _ in range(most):
        step()
        if done():
            return True
    return False


def fired(rows: Scenario, at: Any) -> set[int]:
    """The tasks that have fired at this time."""
    found = rows.sql("SELECT schedule_task_id FROM schedule_instance WHERE schedule_datetime = :at", at=at)
    return {row[0] for row in found}


def gap(rows: Scenario, task: int) -> AbstractContextManager[None]:
    return gap_locked(rows.database, "schedule_instance", "schedule_task_id = :task", task=task)


@contextmanager
def half_written(rows: Scenario, task: int) -> Iterator[None]:
    insert = text(
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, run_number) VALUES (:task, :at, 0)"
    )
    with uncommitted(rows.database, lambda c: c.execute(insert, {"task": task, "at": rows.start}).rowcount):
        yield


@pytest.mark.parametrize("lock", [gap, half_written])
def test_a_lock_on_the_place_of_a_fire_holds_back_that_task_alone(
    mariadb_rows: Scenario, lock: Callable[[Scenario, int], AbstractContextManager[None]]
) -> None:
    rows = mariadb_rows
    tasks = [rows.planned_task() for _ in range(TASKS)]
    for task in tasks:  # so that each has a gap of its own
        rows.fire(task, rows.start - MINUTE)
    stuck, others = tasks[4], {*tasks[:3], *tasks[5:]}  # InnoDB's gap begins at the last row of the task before
    duty = Materializer(rows.database, Settings.load())
    with lock(rows, stuck):
        assert in_steps(duty.step, lambda: fired(rows, rows.start) >= others)
        assert stuck not in fired(rows, rows.start)
    rows.sql("UPDATE schedule_task_lock SET is_locked = 0")
    assert in_steps(duty.step, lambda: stuck in fired(rows, rows.start), most=1)


@contextmanager
def lease_half_written(rows: Scenario, task: int) -> Iterator[None]:
    insert = text("INSERT INTO schedule_task_lock (schedule_task_id) VALUES (:task)")
    with uncommitted(rows.database, lambda c: c.execute(insert, {"task": task}).rowcount):
        yield


def lease_gap(rows: Scenario, task: int) -> AbstractContextManager[None]:
    return gap_locked(rows.database, "schedule_task_lock", "schedule_task_id = :task", task=task)


def leased_before(rows: Scenario, *tasks: int) -> None:
    for task in tasks:
        rows.sql("INSERT INTO schedule_task_lock (schedule_task_id) VALUES (:task)", task=task)


SLOW_LOCK = pytest.mark.mariadb_only("it waits a second for each of many locks, and meanwhile the other leases run out")


@pytest.mark.parametrize("lock", [pytest.param(lease_gap, marks=SLOW_LOCK), lease_half_written])
def test_a_lock_on_the_place_of_a_lease_holds_back_that_task_alone(
    mariadb_rows: Scenario, lock: Callable[[Scenario, int], AbstractContextManager[None]]
) -> None:
    rows = mariadb_rows
    tasks = [rows.planned_task() for _ in range(TASKS)]
    leased_before(rows, tasks[5])  # InnoDB's gap ends there
    stuck, others = tasks[4], {*tasks[5:]}
    duty = Materializer(rows.database, Settings.load())
    with lock(rows, stuck):
        assert in_steps(duty.step, lambda: fired(rows, rows.start) >= others)
        assert stuck not in fired(rows, rows.start)
    assert in_steps(duty.step, lambda: fired(rows, rows.start) == {*tasks}, most=1)


@pytest.mark.parametrize("lock", [lease_gap, lease_half_written])
def test_those_are_leased_of_whose_leases_nobody_has_locked_the_places(
    mariadb_rows: Scenario, lock: Callable[[Scenario, int], AbstractContextManager[None]]
) -> None:
    rows = mariadb_rows
    stuck, before, *new = rows.tasks(TASKS)
    leased_before(rows, before)
    with lock(rows, stuck):
        assert lease_new(rows.database, "one", [stuck, before, *new], 60) == {before, *new}
        assert lease_new(rows.database, "two", [stuck, before], 60) == set()
    assert lease_new(rows.database, "two", [stuck, before], 60) == {stuck}


def leased(rows: Scenario) -> list[Any]:
    return list(rows.sql("SELECT schedule_task_id FROM schedule_task_lock WHERE is_locked = 1"))


def by_tasks(rows: Scenario, table: str) -> set[int]:
    return {row[0] for row in rows.sql(f"SELECT schedule_task_id FROM {table}")}


def test_a_lock_on_what_was_skipped_of_one_task_holds_back_that_task_alone(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    tasks = [rows.planned_task(rows.start - 10 * MINUTE, misfire_policy="skip") for _ in range(3)]
    duty = Materializer(rows.database, Settings.load())
    duty.step()
    assert by_tasks(rows, "schedule_skip") == set(tasks)
    rows.sql("UPDATE schedule_task SET next_fire_at = :at", at=rows.start - 10 * MINUTE)
    rows.sql("UPDATE schedule_task_lock SET is_locked = 0")
    with locked(rows.database, "schedule_skip", "schedule_task_id = :task", task=tasks[1]):
        assert in_steps(duty.step, lambda: planned(rows) == {tasks[0], tasks[2]})


def planned(rows: Scenario) -> set[int]:
    """The tasks whose plans stand in the future."""
    return {row[0] for row in rows.sql("SELECT id FROM schedule_task WHERE next_fire_at > :now", now=rows.now())}


def test_a_lock_on_a_link_of_one_task_holds_back_that_task_alone(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    rows = mariadb_rows
    for name in ("first", "second"):
        rows.task(name)
    followers = [rows.task(f"follower {n}", cron=None, after="first") for n in range(3)]
    duty = Materializer(rows.database, Settings.load())
    duty.step()
    for one in range(3):
        tasks.edit(rows.database, ANN, f"follower {one}", {"after": "second"})
    if not is_mysql(mariadb_server.admin_url()):
        run_sql(mariadb_server.admin_url(), "SET GLOBAL innodb_max_purge_lag_wait = 0")  # what was deleted is gone
    with locked(rows.database, "schedule_chain", "schedule_task_id = :task", task=followers[1]):
        stale = "SELECT id FROM schedule_task WHERE plan_stale = 1 AND name LIKE 'follower %'"
        assert in_steps(duty.step, lambda: [row[0] for row in rows.sql(stale)] == [followers[1]])


def test_links_are_deleted_while_that_of_another_task_is_locked(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    rows.task("first")
    followers = [rows.task(f"follower {n}", cron=None, after="first") for n in range(10)]
    *others, last = followers
    another = locked(rows.database, "schedule_chain", "schedule_task_id = :task", task=last)
    with another, impatient(rows.database) as database:
        database.write(lambda c: chains.link(c, {task: {} for task in others}))
    assert by_tasks(rows, "schedule_chain") == {last}


def test_the_first_link_that_is_added_while_a_write_waits_for_a_lock_is_seen(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    rows = mariadb_rows
    stuck, _ = rows.planned_task(), rows.planned_task(name="parent")
    duty = Materializer(rows.database, Settings.load())
    with locked(rows.database, "schedule_task", "id = :id", id=stuck), ThreadPoolExecutor(1) as pool:
        step = pool.submit(duty.step)
        wait_for_lock_wait(mariadb_server, step)
        tasks.add(rows.database, ANN, {"name": "child", "type": "REPORT", "after": "parent"})
        step.result(30)
        fired = rows.sql("SELECT id FROM schedule_instance")
        assert rows.sql("SELECT schedule_instance_id FROM schedule_chain_run") == fired != []


COPIES = {
    "schedule_deadline": "INSERT INTO schedule_deadline (schedule_instance_id, run_timeout_seconds, check_at)"
    " VALUES (:id, 60, '2031-01-01')",
    "schedule_pool_place": "INSERT INTO schedule_pool_place"
    " (schedule_instance_id, schedule_worker_node_id, pool, gmt_assigned) VALUES (:id, 1, '', '2031-01-01')",
    "schedule_task_node": "INSERT INTO schedule_task_node"
    " (schedule_instance_id, instance_gmt_create, sequence, schedule_task_node_type_id)"
    " SELECT id, gmt_create, 1, 1 FROM schedule_instance WHERE id = :id",
}


@pytest.mark.parametrize("table", COPIES)
def test_a_lock_on_what_is_written_when_one_is_given_holds_up_no_other(mariadb_rows: Scenario, table: str) -> None:
    rows = mariadb_rows
    rows.worker(capacity=10)
    waiting = [rows.by_sql(rows.task(run_timeout_seconds=60, weight=2)) for _ in range(3)]
    stuck, others = waiting[1], [waiting[0], waiting[2]]
    assigner = Assigner(rows.database, Settings.load())
    with uncommitted(rows.database, lambda c: c.execute(text(COPIES[table]), {"id": stuck}).rowcount):
        assert in_steps(assigner.step, lambda: {rows.status(one) for one in others} == {"assigned"})
        assert rows.status(stuck) == "pending"
        assert leased(rows) == []


def test_a_lock_on_the_mark_of_one_end_holds_up_no_other_chain(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    worker = rows.worker()
    names = ["first", "second", "third"]
    ids = {name: rows.task(name) for name in names}
    followers = [rows.task(f"after {name}", cron=None, after=name) for name in names]
    Materializer(rows.database, Settings.load()).step()
    rows.sql("DELETE FROM schedule_instance")
    rows.sql("DELETE FROM schedule_chain_run")
    runs = [rows.by_sql(ids[name]) for name in names]
    Assigner(rows.database, Settings.load()).step()
    for run in rows.claim(worker, *runs).runs:
        rows.report(worker, ended(run))
    duty = Chains(rows.database, Settings.load())
    at = "SELECT DISTINCT schedule_task_id FROM schedule_instance"
    with locked(rows.database, "schedule_chain_run", "schedule_instance_id = :id", id=runs[1]):
        followed = {*ids.values(), followers[0], followers[2]}
        assert in_steps(duty.step, lambda: {row[0] for row in rows.sql(at)} == followed)
    assert in_steps(duty.step, lambda: {row[0] for row in rows.sql(at)} == followed | {followers[1]})


def test_a_lock_on_one_key_holds_up_no_other(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    numbers = ["a", "b", "c"]
    for number in numbers:
        business_keys.once(rows.database, ANN, "REPORT", Wanted(number))
    rows.sql("UPDATE schedule_instance SET status = 'canceled', gmt_completed = gmt_create")
    rows.sql("UPDATE schedule_business_key SET due_at = '2020-01-01'")
    duty = BusinessKeys(rows.database, Settings.load())
    with locked(rows.database, "schedule_business_key", "number = 'b'"):
        assert in_steps(duty.step, lambda: len(rows.sql("SELECT id FROM schedule_business_key")) == 1)
    assert in_steps(duty.step, lambda: rows.sql("SELECT id FROM schedule_business_key") == [])


def test_a_lock_on_what_one_request_changes_holds_up_that_key_alone(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    for number in ("a", "b", "c"):
        business_keys.once(rows.database, ANN, "REPORT", Wanted(number, rows.now().isoformat()))
    for number in ("a", "b", "c", "b", "d"):
        wanted = Wanted(number, (rows.now() + MINUTE).isoformat())
        [insert], _ = requests.once(rows.database, ANN, "REPORT", wanted)
        rows.database.write(partial(callers.execute, insert=insert))
    duty = Requests(rows.database, Settings.load())
    left = "SELECT number FROM schedule_request ORDER BY id"
    with locked(rows.database, "schedule_business_key", "number = 'b'"):
        assert in_steps(duty.step, lambda: [row[0] for row in rows.sql(left)] == ["b", "b"])
    assert in_steps(duty.step, lambda: rows.sql(left) == [])


def overdue(rows: Scenario) -> list[int]:
    """Three runs that are over their limit."""
    worker = rows.worker()
    given = [rows.by_sql(rows.task(run_timeout_seconds=60)) for _ in range(3)]
    Assigner(rows.database, Settings.load()).step()
    assert len(rows.claim(worker, *given).runs) == 3
    rows.sql("UPDATE schedule_instance SET gmt_started = '2020-01-01'")
    return given


def test_a_lock_on_the_deadline_of_one_run_lets_others_be_ended(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    given = overdue(rows)
    rows.sql("UPDATE schedule_deadline SET check_at = '2020-01-01'")
    duty = Deadlines(rows.database, Settings.load())
    duty._wait_until, duty._report_seconds = float("-inf"), 0
    with locked(rows.database, "schedule_deadline", "schedule_instance_id = :id", id=given[0]):
        assert in_steps(duty.step, lambda: [rows.status(one) for one in given[1:]] == ["failed", "failed"], most=1)


def delayed(rows: Scenario) -> list[int]:
    """Three tasks with a fixed delay, each with a run that has ended."""
    worker = rows.worker(capacity=10)
    delayed = [rows.task(cron=None, fixed_delay="10m") for _ in range(3)]
    Materializer(rows.database, Settings.load()).step()
    given = [row[0] for row in rows.sql("SELECT id FROM schedule_instance ORDER BY schedule_task_id")]
    for run in rows.claim(worker, *given).runs:
        rows.report(worker, ended(run))
    return delayed


def test_a_lock_on_the_mark_of_one_run_with_a_delay_holds_up_no_other(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    first, stuck, last = delayed(rows)
    duty = Follower(rows.database, Settings.load())
    with locked(rows.database, "schedule_follow_up", "schedule_task_id = :task", task=stuck):
        assert in_steps(duty.step, lambda: by_tasks(rows, "schedule_follow_up") == {stuck})
        assert planned(rows) == {first, last}
        assert leased(rows) == []
    assert in_steps(duty.step, lambda: by_tasks(rows, "schedule_follow_up") == set())


def test_a_lock_on_the_stretch_of_one_task_holds_up_no_other_catch_up(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    rows.worker()
    tasks = [rows.planned_task(rows.start - 10 * MINUTE, misfire_policy="fire_all") for _ in range(3)]
    Materializer(rows.database, Settings.load()).step()
    assert by_tasks(rows, "schedule_catch_up") == set(tasks)
    rows.sql("DELETE FROM schedule_instance")
    duty = Catcher(rows.database, Settings.load(), FleetCache(rows.database))
    with locked(rows.database, "schedule_catch_up", "schedule_task_id = :task", task=tasks[1]):
        caught_up = {tasks[0], tasks[2]}
        assert in_steps(duty.step, lambda: by_tasks(rows, "schedule_instance") == caught_up)
        assert leased(rows) == []


def test_a_lock_on_one_task_lets_others_be_spread(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    rows.worker()
    spread = [rows.task(shards=2) for _ in range(3)]
    parents = [rows.by_sql(task) for task in spread]
    fleet_cache = FleetCache(rows.database)
    spreader = Spreader(rows.database, Settings.load(), fleet_cache)
    assigner = Assigner(rows.database, Settings.load(), fleet_cache, to_spread=spreader.note)
    with locked(rows.database, "schedule_task", "id = :id", id=spread[1]):
        assigner.step()
        assert in_steps(
            spreader.step, lambda: [rows.status(one) for one in parents] == ["running", "pending", "running"]
        )
        assert leased(rows) == []
    assert in_steps(spreader.step, lambda: rows.status(parents[1]) == "running")


def test_a_lock_on_one_parent_lets_others_end(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    rows.worker()
    parents = [rows.by_sql(rows.task(shards=2)) for _ in range(3)]
    fleet_cache = FleetCache(rows.database)
    spreader = Spreader(rows.database, Settings.load(), fleet_cache)
    Assigner(rows.database, Settings.load(), fleet_cache, to_spread=spreader.note).step()
    spreader.step()
    rows.sql("UPDATE schedule_instance SET status = 'succeed', gmt_completed = gmt_create WHERE parent_id IS NOT NULL")
    with locked(rows.database, "schedule_instance", "id = :id", id=parents[1]):
        assert in_steps(
            spreader.step, lambda: [rows.status(one) for one in parents] == ["succeed", "running", "succeed"]
        )
    assert in_steps(spreader.step, lambda: rows.status(parents[1]) == "succeed")


def test_a_lock_on_the_nodes_of_one_fire_lets_a_pause_take_back_the_others(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    worker = rows.worker(capacity=10)
    given = [rows.assigned(worker) for _ in range(3)]
    schedulers.pause(rows.database, ANN)
    duty = Materializer(rows.database, Settings.load())
    with locked(rows.database, "schedule_task_node", "schedule_instance_id = :id", id=given[1]):
        assert in_steps(duty.step, lambda: [rows.status(i) for i in given] == ["pending", "assigned", "pending"])
    assert in_steps(duty.step, lambda: rows.status(given[1]) == "pending")


def test_a_cancel_that_is_asked_for_behind_a_full_page_comes_after_what_it_cancels(mariadb_rows: Scenario) -> None:
    """A smaller id may be committed later: the next page begins with the oldest request again."""
    rows = mariadb_rows
    duty = Requests(rows.database, Settings.load(batch=2))
    ask = text("INSERT INTO schedule_request (what, type, number) VALUES (:what, 'REPORT', :number)")

    def put(what: str, number: str) -> None:
        rows.database.write(lambda c: c.execute(ask, {"what": what, "number": number}).rowcount)

    with uncommitted(rows.database, lambda c: c.execute(ask, {"what": "once", "number": "late"}).rowcount):
        for number in ("a", "b", "c"):
            put("once", number)
        assert duty.step() == 0
    put("cancel", "late")
    while duty.step() == 0:
        pass
    assert rows.sql("SELECT id FROM schedule_request") == []
    assert [row[0] for row in rows.sql("SELECT number FROM schedule_business_key ORDER BY number")] == ["a", "b", "c"]


def test_a_lock_on_one_request_that_is_refused_holds_up_no_other(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    rows.sql(
        "INSERT INTO schedule_request (what, type, number) VALUES ('dance', 'REPORT', 'a'), ('once', 'REPORT', 'b')"
    )
    duty = Requests(rows.database, Settings.load())
    with locked(rows.database, "schedule_request", "number = 'a'"):
        assert in_steps(duty.step, lambda: len(rows.sql("SELECT id FROM schedule_business_key")) == 1)
    assert in_steps(duty.step, lambda: rows.sql("SELECT is_deleted FROM schedule_request") == [(1,)])


def test_a_lock_on_the_place_of_the_task_of_one_type_lets_requests_of_others_be_done(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    other = node_types.NodeTypeDeclaration("OTHER_RUN", "OTHER", 1)
    rows.database.write(lambda c: node_types.register(c, [other], "test"))
    business_keys.once(rows.database, ANN, "REPORT", Wanted("first"))
    rows.sql("INSERT INTO schedule_request (type, number) VALUES ('OTHER', 'a'), ('REPORT', 'b'), ('OTHER', 'a')")
    duty = Requests(rows.database, Settings.load())
    with gap_locked(rows.database, "schedule_task", "id > 1000000"):
        duty.step()
        assert [row[0] for row in rows.sql("SELECT type FROM schedule_request")] == ["OTHER", "OTHER"]
    assert in_steps(duty.step, lambda: rows.sql("SELECT id FROM schedule_request") == [], most=1)


def test_a_type_whose_task_cannot_be_added_is_tried_once_in_a_round(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mariadb_rows
    other = node_types.NodeTypeDeclaration("OTHER_RUN", "OTHER", 1)
    rows.database.write(lambda c: node_types.register(c, [other], "test"))
    business_keys.once(rows.database, ANN, "REPORT", Wanted("first"))
    for number in range(5):
        rows.sql("INSERT INTO schedule_request (type, number) VALUES ('OTHER', :n), ('REPORT', :n)", n=number)
    tried: list[str] = []
    add = tasks.add

    def counted(*given: Any, **also: Any) -> Any:
        tried.append("add")
        return add(*given, **also)

    monkeypatch.setattr(tasks, "add", counted)
    with gap_locked(rows.database, "schedule_task", "id > 1000000"):
        Requests(rows.database, Settings.load()).step()
        assert {row[0] for row in rows.sql("SELECT type FROM schedule_request")} == {"OTHER"}
    assert tried == ["add"]


def test_a_request_is_tried_again_after_a_lock_though_there_is_always_a_page_of_others(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mariadb_rows
    business_keys.once(rows.database, ANN, "REPORT", Wanted("held", rows.now().isoformat()))
    duty = Requests(rows.database, Settings.load(batch=2))
    monkeypatch.setattr("rota.scheduler_service.duties.requests.ROUND_SECONDS", 0)
    numbers = itertools.count()

    def ask(*keys: Any) -> None:
        for key in keys:
            rows.sql("INSERT INTO schedule_request (type, number) VALUES ('REPORT', :key)", key=str(key))

    ask("held", next(numbers))
    with locked(rows.database, "schedule_business_key", "number = 'held'"):
        assert duty.step() == 0
    for _ in range(3):
        ask(next(numbers), next(numbers))
        assert duty.step() == 0
    assert rows.sql("SELECT id FROM schedule_request WHERE number = 'held'") == []


def test_the_slots_that_another_worker_keeps_by_now_are_not_freed_with_those_of_a_dead_one(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mariadb_rows
    dead, alive = rows.worker(), rows.worker()
    run = rows.running(dead)
    rows.report(dead, failed_while_its_thread_runs(run))
    reaper = Reaper(rows.database, Settings.load(), "test")
    ask = reaper._ask

    def ask_and_move(work: Any) -> Any:
        found = ask(work)
        rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = :alive", alive=alive)
        rows.sql("UPDATE schedule_kept_slot SET schedule_worker_node_id = :alive", alive=alive)
        return found

    monkeypatch.setattr(reaper, "_ask", ask_and_move)
    reaper._free_slots(dead)
    assert rows.sql("SELECT slot_kept FROM schedule_instance") == [(1,)]
    assert rows.sql("SELECT schedule_worker_node_id FROM schedule_kept_slot") == [(alive,)]


def test_a_backfill_that_somebody_has_locked_is_not_tried_again_at_once(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = rows.planned_task(rows.start + MINUTE)
    rows.sql(
        "INSERT INTO schedule_backfill (schedule_task_id, from_at, to_at) VALUES (:task, :begin, :end)",
        task=task, begin=rows.start - 10 * MINUTE, end=rows.start,
    )  # fmt: skip
    duty = Backfiller(rows.database, Settings.load())
    with locked(rows.database, "schedule_backfill"):
        assert [duty.step() > 0 for _ in range(3)] == [True] * 3
    assert in_steps(duty.step, lambda: by_tasks(rows, "schedule_instance") == {task})


def test_a_lock_on_one_stray_lets_others_be_ended(mariadb_rows: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    rows = mariadb_rows
    by_sql = [rows.by_sql(rows.task()) for _ in range(3)]
    rows.sql("UPDATE schedule_instance SET status = 'running', attempt = 1, gmt_started = gmt_create")
    duty = Strays(rows.database, 15)
    with locked(rows.database, "schedule_instance", "id = :id", id=by_sql[0]):
        duty.step()
        assert [rows.status(one) for one in by_sql] == ["running", "failed", "failed"]
    duty.step()
    assert rows.status(by_sql[0]) == "failed"
    assert "not expected" not in caplog.text


def test_a_lock_on_one_stray_slot_lets_others_be_freed(mariadb_rows: Scenario) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    over = [rows.ended("failed", worker, rows.task()) for _ in range(3)]
    rows.sql("UPDATE schedule_instance SET slot_kept = 1, overlap_slot = 0")
    duty = Strays(rows.database, 15)
    kept = "SELECT id FROM schedule_instance WHERE slot_kept = 1"
    with locked(rows.database, "schedule_instance", "id = :id", id=over[1]):
        assert in_steps(duty.step, lambda: rows.sql(kept) == [(over[1],)], most=1)
    assert in_steps(duty.step, lambda: rows.sql(kept) == [], most=1)


def test_a_lock_on_one_stray_node_lets_others_be_swept(mariadb_rows: Scenario) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    for _ in range(3):
        rows.assigned(worker)
    rows.sql("DELETE FROM schedule_instance")
    [first, *_] = nodes = [row[0] for row in rows.sql("SELECT id FROM schedule_task_node ORDER BY id")]
    assert len(nodes) >= 3
    duty = Sweeper(rows.database, Settings.load())
    left = "SELECT id FROM schedule_task_node"
    with locked(rows.database, "schedule_task_node", "id = :id", id=first):
        assert in_steps(duty.step, lambda: rows.sql(left) == [(first,)], most=1)
    assert in_steps(duty.step, lambda: rows.sql(left) == [], most=1)


def test_a_lock_on_the_use_of_a_calendar_by_one_task_holds_up_no_other(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    calendars.add(rows.database, ANN, "days", Changes(off=["2031-02-03"]))
    used = [rows.task(calendar="days") for _ in range(3)]
    Materializer(rows.database, Settings.load()).step()
    assert by_tasks(rows, "schedule_calendar_use") == set(used)
    rows.sql("DELETE FROM schedule_task")
    rows.sql("UPDATE schedule_calendar_use SET edition = 'an old one'")
    duty = EditedCalendars(rows.database, Settings.load(batch=3))
    with locked(rows.database, "schedule_calendar_use", "schedule_task_id = :task", task=used[1]):
        assert in_steps(duty.step, lambda: by_tasks(rows, "schedule_calendar_use") == {used[1]}, most=1)
        assert duty.step() > 0
    assert in_steps(duty.step, lambda: by_tasks(rows, "schedule_calendar_use") == set(), most=1)


def test_a_run_that_is_locked_when_it_is_ended_as_overdue_is_ended_later(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = mariadb_rows
    given = overdue(rows)
    duty = Deadlines(rows.database, Settings.load())
    duty._wait_until, duty._report_seconds = float("-inf"), 0
    monkeypatch.setattr(duty, "_free", lambda overdue: overdue)  # the lock comes after this look
    for still_locked in (True, False):
        rows.sql("UPDATE schedule_deadline SET check_at = '2020-01-01'")
        with locked(rows.database, "schedule_instance", "id = :id", id=given[0] if still_locked else 0):
            duty.step()
        ends = ["running" if still_locked else "failed", "failed", "failed"]
        assert [rows.status(one) for one in given] == ends
    assert f"instance {given[0]} waits" in caplog.text
    assert "not expected" not in caplog.text


def test_an_end_that_one_task_cannot_follow_and_another_is_locked_is_followed_later(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, worker = mariadb_rows, mariadb_rows.worker()
    first = rows.planned_task(name="first", cron="@yearly")
    spoiled, stuck, free = [rows.task(name, cron=None, after="first") for name in ("spoiled", "stuck", "free")]
    Materializer(rows.database, Settings.load()).step()
    [run] = rows.claim(worker, *[row[0] for row in rows.sql("SELECT id FROM schedule_instance")]).runs
    rows.report(worker, ended(run))
    fire = chain_fires.fire

    def refusing(connection: Connection, links: Sequence[Link]) -> object:
        if any(link.task_id == spoiled for link in links):
            connection.execute(text("INSERT INTO schedule_task (id, name, type) VALUES (1, NULL, NULL)"))
        return fire(connection, links)

    monkeypatch.setattr(chain_fires, "fire", refusing)
    duty = Chains(rows.database, Settings.load())
    with half_written(rows, stuck):
        for _ in range(2):
            assert duty.step() > 0
        assert by_tasks(rows, "schedule_instance") == {first, free}
        assert len(rows.sql("SELECT id FROM schedule_chain_run")) == 1
    assert in_steps(duty.step, lambda: rows.sql("SELECT id FROM schedule_chain_run") == [])
    assert by_tasks(rows, "schedule_instance") == {first, stuck, free}


def test_who_links_a_task_after_an_edit_by_sql_changes_the_row_of_the_one_it_follows(rows: Scenario) -> None:
    """A lock holds on one node of a cluster alone; of two changes of a row one fails there."""
    for name in ("parent", "other"):
        rows.task(name, cron=None)
    rows.task("child", cron=None)
    duty = Materializer(rows.database, Settings.load())
    duty.step()
    rows.sql("UPDATE schedule_task SET gmt_modified = :at", at=rows.start - MINUTE)
    spec = '{"after": {"parent": "success"}}'
    rows.sql("UPDATE schedule_task SET trigger_kind = 'after', trigger_spec = :spec WHERE name = 'child'", spec=spec)
    duty.step()
    [(parent,), (other,)] = rows.sql("SELECT gmt_modified FROM schedule_task WHERE name <> 'child' ORDER BY id")
    assert str(parent)[:19] > str(rows.start - MINUTE)[:19] == str(other)[:19]


def test_a_fire_that_is_written_while_sql_lets_a_task_follow_it_is_followed(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another scheduler writes it, between the link and the commit of the one that plans the task that follows."""
    rows = mariadb_rows
    rows.worker()
    parent = rows.planned_task(rows.start + MINUTE, name="parent", cron="@yearly")
    rows.task("other", cron=None)
    rows.task("child", cron=None, after="other")
    first, second = (Materializer(rows.database, Settings.load()) for _ in range(2))
    first.step()
    spec = '{"after": {"parent": "success"}}'
    rows.sql("UPDATE schedule_task SET trigger_spec = :spec WHERE name = 'child'", spec=spec)
    rows.sql("UPDATE schedule_task SET next_fire_at = :at WHERE id = :id", at=rows.start, id=parent)
    rows.sql(
        "INSERT INTO schedule_task_lock (schedule_task_id, is_locked, locked_by, locked_at)"
        " VALUES (:id, 1, 'another', :now)",
        now=rows.now(), id=parent,
    )  # fmt: skip
    link = chains.link

    with ThreadPoolExecutor(1) as pool:

        def link_and_fire(connection: Connection, before: Any) -> None:
            link(connection, before)
            connection.execute(text("SELECT 1"))  # it takes along what waits to be sent
            monkeypatch.undo()
            rows.sql("UPDATE schedule_task_lock SET is_locked = 0 WHERE schedule_task_id = :id", id=parent)
            step = pool.submit(second.step)
            wait_for_lock_wait(mariadb_server, step)
            steps.append(step)

        steps: list[Any] = []
        monkeypatch.setattr(chains, "link", link_and_fire)
        first.step()
        [step] = steps
        step.result(30)
    fired = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :id", id=parent)
    assert rows.sql("SELECT schedule_instance_id FROM schedule_chain_run") == fired != []
