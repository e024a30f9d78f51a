"""What is long gone is removed: dead workers, the locks of tasks that are gone, versions that nobody carries.

What lives, or what a process could still use, stays, whoever removes at the same time.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection

from rota.scheduler_service.app import Scheduler
from rota.scheduler_service.duties.reaper import Reaper
from rota.scheduler_service.duties.remover import LOOK_SECONDS, PAGE_SECONDS, Remover
from rota.shared.database.constructs import written
from rota.shared.settings import Settings
from rota.shared.store import gone, node_types, workers
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.transitions import keeping
from tests.harness import leases
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario, ended
from tests.harness.statements import executed, explained
from tests.harness.together import together, uncommitted

LONG_AGO = "2020-01-01 00:00:00.000000"
SETTINGS = Settings.load()
SECONDS = 7 * 86_400


def remove(rows: Scenario) -> None:
    """Look once at each kind."""
    remover = Remover(rows.database, SETTINGS)
    assert [remover.step() for _ in gone.KINDS] == [LOOK_SECONDS] * len(gone.KINDS)


def dead(rows: Scenario, name: str | None = None, since: str | None = LONG_AGO) -> int:
    """A worker that has died, long ago unless ``since`` is None."""
    worker = rows.worker(name)
    rows.bury(worker)
    if since is not None:
        age(rows, worker, since)
    return worker


def age(rows: Scenario, worker: int, since: str = LONG_AGO) -> None:
    values = {"at": since, "id": worker}
    rows.sql("UPDATE schedule_worker_node SET gmt_dead = :at WHERE id = :id", **values)
    rows.sql(
        "UPDATE schedule_worker_beat SET gmt_dead = :at, last_beat = :at WHERE schedule_worker_node_id = :id", **values
    )


def column(found: Sequence[Any]) -> list[int]:
    return [int(row[0]) for row in found]


def worker_rows(rows: Scenario) -> list[int]:
    """The workers whose rows are there; each has its heartbeats."""
    beats = rows.sql("SELECT schedule_worker_node_id FROM schedule_worker_beat ORDER BY schedule_worker_node_id")
    nodes = column(rows.sql("SELECT id FROM schedule_worker_node ORDER BY id"))
    assert column(beats) == nodes
    return nodes


def lock_rows(rows: Scenario) -> list[int]:
    return column(rows.sql("SELECT schedule_task_id FROM schedule_task_lock ORDER BY schedule_task_id"))


# Workers


def test_a_worker_that_has_been_dead_for_long_is_removed_and_no_other(rows: Scenario) -> None:
    dead(rows)
    lately, live, draining = dead(rows, since=None), rows.worker(), rows.worker()
    rows.database.write(lambda c: workers.drain(c, draining, "test", "test"))
    remove(rows)
    assert worker_rows(rows) == [lately, live, draining]
    assert rows.broken() == {}


def test_the_history_of_a_worker_that_is_removed_stays(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.ended(worker=worker)
    rows.bury(worker)
    age(rows, worker)
    live = rows.worker()
    remove(rows)
    assert worker_rows(rows) == [live]
    row = rows.row(instance)
    assert (row.status, row.schedule_worker_node_id, row.worker_name) == ("succeed", worker, None)
    assert rows.broken() == {}


def test_a_dead_worker_that_still_holds_an_instance_is_not_removed(rows: Scenario) -> None:
    holds_running, holds_assigned = rows.worker(), rows.worker()
    run, waiting = rows.running(holds_running), rows.assigned(holds_assigned)
    for worker in (holds_running, holds_assigned):
        rows.bury(worker)
        age(rows, worker)
    newest = rows.worker()
    remove(rows)
    both = [holds_running, holds_assigned]
    assert worker_rows(rows) == [*both, newest]
    assert rows.database.write(lambda c: gone.remove_workers(c, both, SECONDS)) == 0, "whoever asks"
    rows.sql("UPDATE schedule_instance SET status = 'failed' WHERE id IN (:a, :b)", a=run.id, b=waiting)
    remove(rows)
    assert worker_rows(rows) == [newest]


def test_a_dead_worker_whose_thread_keeps_a_slot_is_not_removed(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker, rows.task(overlap_policy="skip"))
    rows.report(worker, ended(run))
    rows.sql(
        "INSERT INTO schedule_kept_slot (schedule_instance_id, schedule_worker_node_id) VALUES (:i, :w)",
        i=run.id,
        w=worker,
    )
    rows.bury(worker)
    age(rows, worker)
    newest = rows.worker()
    remove(rows)
    assert worker_rows(rows) == [worker, newest]
    assert rows.database.write(lambda c: gone.remove_workers(c, [worker], SECONDS)) == 0, "whoever asks"
    rows.database.write(partial(keeping.free, instance_ids=[run.id]))
    remove(rows)
    assert worker_rows(rows) == [newest]


@pytest.mark.parametrize(
    "revived",
    [
        "UPDATE schedule_worker_beat SET gmt_dead = NULL WHERE schedule_worker_node_id = :id",
        "UPDATE schedule_worker_node SET state = 'live' WHERE id = :id",
        "UPDATE schedule_worker_beat SET last_beat = '2100-01-01 00:00:00.000000' WHERE schedule_worker_node_id = :id",
    ],
)
def test_a_worker_that_comes_back_after_it_was_found_is_not_removed(rows: Scenario, revived: str) -> None:
    worker = dead(rows)
    newest = rows.worker()
    found, _ = rows.database.read(lambda c: gone.find_workers(c, 0, 10, SECONDS))
    assert found == [worker]
    rows.sql(revived, id=worker)
    assert rows.database.write(lambda c: gone.remove_workers(c, found, SECONDS)) == 0
    assert worker_rows(rows) == [worker, newest]
    assert rows.database.read(lambda c: gone.find_workers(c, 0, 10, SECONDS)) == ([], 0)


def test_the_process_of_a_worker_that_was_removed_learns_that_it_is_dead(rows: Scenario) -> None:
    worker = dead(rows, "vm")
    rows.worker()
    remove(rows)
    assert not rows.database.write(lambda c: workers.heartbeat(c, worker, workers.Load()))
    rows.database.write(lambda c: workers.leave(c, worker))
    assert rows.worker("vm") > worker, "it registers under another id"


def test_the_newest_worker_stays_since_its_id_tells_which_were_given(rows: Scenario) -> None:
    dead(rows)
    newest = dead(rows)
    remove(rows)
    assert worker_rows(rows) == [newest]


def test_heartbeats_whose_workers_row_sql_deleted_are_removed(rows: Scenario) -> None:
    worker = dead(rows)
    newest = rows.worker()
    rows.sql("DELETE FROM schedule_worker_node WHERE id = :id", id=worker)
    remove(rows)
    assert worker_rows(rows) == [newest]


@pytest.mark.parametrize(
    ("table", "key"), [("schedule_worker_node", "id"), ("schedule_worker_beat", "schedule_worker_node_id")]
)
def test_a_worker_whose_row_somebody_has_locked_is_passed_over(mariadb_rows: Scenario, table: str, key: str) -> None:
    rows = mariadb_rows
    held, free, newest = dead(rows), dead(rows), rows.worker()
    lock = f"UPDATE {table} SET modifier = 'console' WHERE {key} = {held}"
    with uncommitted(rows.database, lambda c: c.exec_driver_sql(lock)):
        remove(rows)
        assert worker_rows(rows) == [held, newest], free
    remove(rows)
    assert worker_rows(rows) == [newest]


def test_nobody_waits_for_rows_that_are_only_looked_at(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    worker, newest = rows.worker(), rows.worker()
    instance = rows.ended(worker=worker)
    rows.bury(worker)
    age(rows, worker)
    old, _ = declare(rows, "A"), declare(rows, "B")
    registered(rows, LONG_AGO, old)
    tables = {
        "schedule_instance": instance,
        "schedule_worker_node": newest,
        "schedule_task": rows.row(instance).schedule_task_id,
    }

    def lock(connection: Connection) -> None:
        for table, number in tables.items():
            connection.exec_driver_sql(f"UPDATE {table} SET modifier = 'console' WHERE id = {number}")
        connection.exec_driver_sql(
            "UPDATE schedule_task_type_version SET modifier = 'console' WHERE gmt_modified > '2021-01-01'"
        )

    with uncommitted(rows.database, lock):
        remove(rows)
        assert (worker_rows(rows), len(versions(rows))) == ([newest], 1)


def test_two_schedulers_remove_each_worker_once(rows: Scenario) -> None:
    found = [dead(rows) for _ in range(40)]
    newest = rows.worker()

    def remove_all() -> int:
        return rows.database.write(lambda c: gone.remove_workers(c, found, SECONDS))

    removed = together(remove_all, remove_all)
    while worker_rows(rows) != [newest]:  # each may pass over what the other has locked
        removed.append(remove_all())
    assert sum(removed) == len(found)


def test_schedulers_at_work_remove_what_is_long_gone(rows: Scenario) -> None:
    for _ in range(10):
        dead(rows)
    newest = rows.worker()
    schedulers = [Scheduler(rows.database, SETTINGS) for _ in range(2)]
    for scheduler in schedulers:
        scheduler.start()
    try:
        wait_until(lambda: rows.sql("SELECT id FROM schedule_worker_node") == [(newest,)], 20, "the dead to be removed")
    finally:
        for scheduler in schedulers:
            scheduler.stop()
    assert worker_rows(rows) == [newest]


def test_what_is_given_to_a_worker_at_the_moment_of_its_removal_comes_back(rows: Scenario) -> None:
    worker = dead(rows)
    newest = rows.worker()
    remove(rows)
    assert worker_rows(rows) == [newest]
    waiting = rows.assigned(worker)
    assert rows.status(waiting) == "assigned"
    Reaper(rows.database, SETTINGS, "test").step()
    assert rows.status(waiting) == "pending"


# Locks of tasks


def test_the_lock_of_a_task_that_is_gone_is_removed_and_no_other(rows: Scenario) -> None:
    deleted, missing, kept, leased, lately = (rows.task() for _ in range(5))
    every = [deleted, missing, kept, leased, lately]
    for task in (deleted, leased, lately):
        rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :id", id=task)
    rows.database.write(lambda c: leases.acquire(c, "one", every, 2))
    rows.database.write(lambda c: leases.release(c, "one", sorted(set(every) - {leased})))
    rows.sql("DELETE FROM schedule_task WHERE id = :id", id=missing)
    for task in (deleted, missing, kept):
        rows.sql("UPDATE schedule_task_lock SET locked_at = :at WHERE schedule_task_id = :id", at=LONG_AGO, id=task)
    remove(rows)
    assert lock_rows(rows) == sorted([kept, leased, lately])
    assert rows.database.write(lambda c: gone.remove_locks(c, every, SECONDS)) == 0, "whoever asks"
    assert rows.database.write(lambda c: leases.release(c, "one", [leased])) == {leased}


def test_a_lock_that_is_leased_after_it_was_found_is_not_removed(rows: Scenario) -> None:
    task = rows.task()
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :id", id=task)
    rows.sql("INSERT INTO schedule_task_lock (schedule_task_id) VALUES (:id)", id=task)
    found, _ = rows.database.read(lambda c: gone.find_locks(c, 0, 10, SECONDS))
    assert found == [task]
    assert rows.database.write(lambda c: leases.acquire(c, "one", [task], 2)) == {task}
    assert rows.database.write(lambda c: gone.remove_locks(c, found, SECONDS)) == 0


def test_a_task_that_is_undeleted_is_leased_although_its_lock_was_removed(rows: Scenario) -> None:
    task = rows.task()
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :id", id=task)
    rows.sql("INSERT INTO schedule_task_lock (schedule_task_id) VALUES (:id)", id=task)
    remove(rows)
    assert lock_rows(rows) == []
    rows.sql("UPDATE schedule_task SET is_deleted = 0 WHERE id = :id", id=task)
    assert rows.database.write(lambda c: leases.acquire(c, "one", [task], 2)) == {task}


def test_a_lock_that_a_scheduler_leases_at_this_moment_is_passed_over(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = rows.task()
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :id", id=task)
    rows.sql("INSERT INTO schedule_task_lock (schedule_task_id) VALUES (:id)", id=task)
    with uncommitted(rows.database, lambda c: leases.acquire(c, "one", [task], 2)) as leased:
        assert leased == {task}
        remove(rows)
    assert lock_rows(rows) == [task]
    assert rows.database.write(lambda c: leases.release(c, "one", [task])) == {task}


def test_locks_are_looked_at_a_page_at_a_time_and_a_full_page_is_gone_on_with_soon(rows: Scenario) -> None:
    tasks = [rows.task() for _ in range(5)]
    rows.sql("INSERT INTO schedule_task_lock (schedule_task_id) SELECT id FROM schedule_task")
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id IN (:one, :other)", one=tasks[1], other=tasks[4])
    remover, kinds = Remover(rows.database, Settings.load(batch=2)), [kind.name for kind in gone.KINDS]
    rests = [remover.step() for _ in range(kinds.index("lock"))]
    assert set(rests) <= {LOOK_SECONDS}
    left = [(remover.step(), lock_rows(rows)) for _ in range(3)]
    without = [task for task in tasks if task != tasks[1]]
    assert left == [(PAGE_SECONDS, without), (PAGE_SECONDS, without), (LOOK_SECONDS, without[:-1])]


# Versions of task types


def declare(rows: Scenario, *types: str) -> str:
    """Register the task type MAIL with these nodes; returns the version."""
    declared = [NodeTypeDeclaration(f"MAIL_{name}", "MAIL", at) for at, name in enumerate(types, 1)]
    rows.database.write(lambda c: node_types.register(c, declared, "test"))
    return node_types.versions_of(declared)["MAIL"]


def versions(rows: Scenario) -> set[str]:
    return {str(v) for (v,) in rows.sql("SELECT version FROM schedule_task_type_version WHERE category = 'MAIL'")}


def registered(rows: Scenario, at: str, version: str) -> None:
    rows.sql(
        "UPDATE schedule_task_type_version SET gmt_modified = :at WHERE version = :version", at=at, version=version
    )


def test_a_version_that_nobody_carries_is_removed_and_no_other(rows: Scenario) -> None:
    unused, carried, drained, lately, newest = (declare(rows, name) for name in "ABCDE")
    for at, version in enumerate((unused, carried, drained), 1):
        registered(rows, f"2020-01-0{at} 00:00:00.000000", version)
    rows.worker(type_versions={"MAIL": carried})
    draining = rows.worker(type_versions={"MAIL": drained})
    rows.database.write(lambda c: workers.drain(c, draining, "test", "test"))
    rows.bury(rows.worker(type_versions={"MAIL": unused}))
    ids = column(rows.sql("SELECT id FROM schedule_task_type_version"))
    remove(rows)
    assert versions(rows) == {carried, drained, lately, newest}
    assert rows.database.write(lambda c: gone.remove_versions(c, ids, SECONDS)) == 0, "whoever asks"


def test_the_newest_version_of_a_task_type_stays_whoever_carries_it(rows: Scenario) -> None:
    old, newest = declare(rows, "A"), declare(rows, "B")
    registered(rows, LONG_AGO, old)
    registered(rows, "2020-01-02 00:00:00.000000", newest)
    remove(rows)
    assert versions(rows) == {newest}
    assert [node.type for node in rows.database.read(node_types.catalog).lists_of("MAIL")[0].nodes] == ["MAIL_B"]


def test_a_version_that_is_registered_again_after_it_was_found_is_not_removed(rows: Scenario) -> None:
    old, newest = declare(rows, "A"), declare(rows, "B")
    registered(rows, LONG_AGO, old)
    found, _ = rows.database.read(lambda c: gone.find_versions(c, 0, 10, SECONDS))
    assert len(found) == 1
    declare(rows, "A")
    assert rows.database.write(lambda c: gone.remove_versions(c, found, SECONDS)) == 0
    assert versions(rows) == {old, newest}


def test_a_node_type_stays_and_history_keeps_its_name(rows: Scenario) -> None:
    instance = rows.ended()
    rows.sql("UPDATE schedule_task_node_type SET gmt_modified = :at", at=LONG_AGO)
    remove(rows)
    assert len(rows.node_statuses(instance)) == 2


# Requests that were refused


def request_rows(rows: Scenario) -> set[str]:
    return {number for (number,) in rows.sql("SELECT number FROM schedule_request")}


def test_a_request_that_was_refused_long_ago_is_removed_and_no_other(rows: Scenario) -> None:
    for number, refused, at in (("old", 1, LONG_AGO), ("open", 0, LONG_AGO), ("lately", 1, written(rows.start))):
        rows.sql(
            "INSERT INTO schedule_request (type, number, is_deleted, gmt_modified) VALUES ('MAIL', :n, :refused, :at)",
            n=number,
            refused=refused,
            at=at,
        )
    ids = column(rows.sql("SELECT id FROM schedule_request"))
    remove(rows)
    assert request_rows(rows) == {"open", "lately"}
    assert rows.database.write(lambda c: gone.remove_requests(c, ids, SECONDS)) == 0, "whoever asks"


def test_refused_requests_are_found_by_their_index_a_page_at_a_time(mariadb_rows: Scenario) -> None:
    for number in range(200):
        mariadb_rows.sql(
            "INSERT INTO schedule_request (type, number, is_deleted, gmt_modified) VALUES ('MAIL', :n, :refused, :at)",
            n=str(number),
            refused=number % 20 == 0,
            at=LONG_AGO,
        )
    first, *more = column(mariadb_rows.sql("SELECT id FROM schedule_request WHERE is_deleted = 1 ORDER BY id"))
    with explained(mariadb_rows.database.engine) as statements:
        found, after = mariadb_rows.database.read(lambda c: gone.find_requests(c, first, 3, SECONDS))
    assert (found, after) == (more[:3], more[2])
    [look] = [one for one in statements if one.text.startswith("SELECT")]
    assert "ix_schedule_request_open" in {step.key for step in look.plan}
    assert look.rows_read <= 20


# What it costs


def test_an_idle_scheduler_asks_one_statement_a_minute(rows: Scenario) -> None:
    rows.ended()
    remover = Remover(rows.database, SETTINGS)
    for _ in range(6):
        with executed(rows.database.engine) as texts:
            assert remover.step() == 60
        assert len([one for one in texts if not one.startswith("BEGIN")]) == 1
