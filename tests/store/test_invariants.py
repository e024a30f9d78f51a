"""``rota doctor --data`` finds each broken invariant, names the row, and finds nothing where all is well."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rota.shared.domain.states import InstanceStatus
from rota.shared.store import invariants, tasks
from rota.shared.store.invariants import INVARIANTS
from rota.shared.store.transitions import canceling
from tests.harness.command_line import invoke
from tests.harness.scenario import Scenario, ended, to_retry

Break = Callable[[Scenario], int]
"""Breaks an invariant by SQL; returns the id of the row that breaks it."""


def ago(rows: Scenario, **long: float) -> str:
    return (rows.now() - timedelta(**long)).strftime("%Y-%m-%d %H:%M:%S.%f")


def set_instance(rows: Scenario, instance: int, assignments: str, **values: Any) -> int:
    rows.sql(f"UPDATE schedule_instance SET {assignments} WHERE id = :id", id=instance, **values)
    return instance


def set_node(rows: Scenario, instance: int, sequence: int, assignments: str, **values: Any) -> int:
    """Returns the node's id."""
    which = "schedule_instance_id = :instance AND sequence = :sequence"
    given = {"instance": instance, "sequence": sequence}
    rows.sql(f"UPDATE schedule_task_node SET {assignments} WHERE {which}", **given, **values)
    [(node,)] = rows.sql(f"SELECT id FROM schedule_task_node WHERE {which}", **given)
    return int(node)


def a_canceled_instance_with_a_pending_node(rows: Scenario) -> int:
    instance = rows.assigned(rows.worker())
    rows.database.write(lambda c: canceling.cancel(c, instance, "test", "test"))
    return set_node(rows, instance, 2, "status = 'pending'")


def a_success_with_a_canceled_node(rows: Scenario) -> int:
    return set_node(rows, rows.ended(), 1, "status = 'canceled'")


def a_pending_instance_with_a_running_node(rows: Scenario) -> int:
    worker = rows.worker()
    run = rows.running(worker)
    rows.report(worker, to_retry(run, rows.start))
    return set_node(rows, run.id, 2, "status = 'running'")


def a_shard_that_waits_behind_its_parent(rows: Scenario) -> int:
    parent = rows.ended()
    waiting = rows.pending(rows.row(parent).schedule_task_id)
    at = "(SELECT schedule_datetime FROM (SELECT * FROM schedule_instance) AS other WHERE other.id = :parent)"
    return set_instance(
        rows, waiting, f"parent_id = :parent, fire_key = 'shard', schedule_datetime = {at}", parent=parent
    )


def an_assigned_instance_without_nodes(rows: Scenario) -> int:
    instance = rows.assigned(rows.worker())
    rows.sql("DELETE FROM schedule_task_node WHERE schedule_instance_id = :id", id=instance)
    return instance


def two_nodes_that_run_at_once(rows: Scenario) -> int:
    run = rows.running(rows.worker())
    set_node(rows, run.id, 2, "status = 'running'")
    return run.id


def no_node_that_runs(rows: Scenario) -> int:
    run = rows.running(rows.worker())
    set_node(rows, run.id, 1, "status = 'pending'")
    return run.id


def a_pending_instance_with_a_worker(rows: Scenario) -> int:
    return set_instance(rows, rows.pending(), "schedule_worker_node_id = :worker", worker=rows.worker())


def silence(rows: Scenario, worker: int, seconds: float) -> None:
    rows.sql(
        "UPDATE schedule_worker_beat SET last_beat = :at WHERE schedule_worker_node_id = :id",
        id=worker,
        at=ago(rows, seconds=seconds),
    )


def bury(rows: Scenario, worker: int, seconds: float) -> None:
    rows.bury(worker)
    rows.sql(
        "UPDATE schedule_worker_beat SET gmt_dead = :at WHERE schedule_worker_node_id = :id",
        id=worker,
        at=ago(rows, seconds=seconds),
    )


def held_for(rows: Scenario, instance: int, column: str, seconds: float) -> int:
    return set_instance(rows, instance, f"{column} = :at", at=ago(rows, seconds=seconds))


def an_assignment_to_nobody(rows: Scenario) -> int:
    return set_instance(rows, rows.assigned(rows.worker()), "schedule_worker_node_id = NULL")


def an_assignment_to_one_long_dead(rows: Scenario) -> int:
    worker = rows.worker()
    instance = held_for(rows, rows.assigned(worker), "gmt_assigned", 40)
    bury(rows, worker, 31)
    return instance


def a_run_of_one_long_silent(rows: Scenario) -> int:
    worker = rows.worker()
    instance = held_for(rows, rows.running(worker).id, "gmt_started", 40)
    silence(rows, worker, 31)
    return instance


def a_run_of_a_worker_that_never_was(rows: Scenario) -> int:
    return set_instance(rows, rows.running(rows.worker()).id, "schedule_worker_node_id = 999999")


def a_node_whose_instance_is_gone(rows: Scenario) -> int:
    instance = rows.assigned(rows.worker())
    rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=instance)
    rows.sql("DELETE FROM schedule_task_node WHERE schedule_instance_id = :id AND sequence = 2", id=instance)
    return set_node(rows, instance, 1, "gmt_started = NULL")


def another_type(rows: Scenario) -> int:
    """The id of a node type of another category than REPORT."""
    rows.sql("INSERT INTO schedule_task_node_type (type, category) VALUES ('CLEANUP_TEMP', 'CLEANUP')")
    [(found,)] = rows.sql("SELECT id FROM schedule_task_node_type WHERE type = 'CLEANUP_TEMP'")
    return int(found)


def a_node_of_another_type(rows: Scenario) -> int:
    return set_node(rows, rows.ended(), 2, "schedule_task_node_type_id = :type", type=another_type(rows))


def a_node_of_no_type(rows: Scenario) -> int:
    return set_node(rows, rows.ended(), 2, "schedule_task_node_type_id = 999999")


def an_assignment_without_a_number(rows: Scenario) -> int:
    return set_instance(rows, rows.assigned(rows.worker()), "run_number = NULL")


def a_run_without_a_due_time(rows: Scenario) -> int:
    return set_instance(rows, rows.running(rows.worker()).id, "due_at = NULL")


def a_start_before_the_claim(rows: Scenario) -> int:
    return set_instance(rows, rows.assigned(rows.worker()), "gmt_started = :at", at=ago(rows, seconds=0))


def a_run_without_a_start(rows: Scenario) -> int:
    return set_instance(rows, rows.running(rows.worker()).id, "gmt_started = NULL")


def a_success_without_an_attempt(rows: Scenario) -> int:
    return set_instance(rows, rows.ended(), "attempt = 0")


def an_early_start(rows: Scenario) -> int:
    return set_instance(rows, rows.ended(), "gmt_started = :at", at=ago(rows, days=1))


def an_end_without_its_time(rows: Scenario) -> int:
    return set_instance(rows, rows.ended("failed"), "gmt_completed = NULL")


def a_run_with_an_end(rows: Scenario) -> int:
    return set_instance(rows, rows.running(rows.worker()).id, "gmt_completed = :at", at=ago(rows, seconds=0))


def a_node_that_ended_at_no_time(rows: Scenario) -> int:
    return set_node(rows, rows.ended(), 2, "gmt_completed = NULL")


def a_slot_that_is_kept_for_no_thread(rows: Scenario) -> int:
    return set_instance(rows, rows.ended("failed"), "slot_kept = 1")


BROKEN: list[tuple[str, Break]] = [
    ("ended-nodes", a_canceled_instance_with_a_pending_node),
    ("succeeded-nodes", a_success_with_a_canceled_node),
    ("waiting-nodes", a_pending_instance_with_a_running_node),
    ("assigned-nodes", an_assigned_instance_without_nodes),
    ("running-nodes", two_nodes_that_run_at_once),
    ("running-nodes", no_node_that_runs),
    ("pending-worker", a_pending_instance_with_a_worker),
    ("assigned-worker", an_assignment_to_nobody),
    ("assigned-worker", an_assignment_to_one_long_dead),
    ("running-worker", a_run_of_one_long_silent),
    ("running-worker", a_run_of_a_worker_that_never_was),
    ("node-instance", a_node_whose_instance_is_gone),
    ("node-type", a_node_of_another_type),
    ("node-type", a_node_of_no_type),
    ("numbered", an_assignment_without_a_number),
    ("numbered", a_run_without_a_due_time),
    ("not-started", a_start_before_the_claim),
    ("claimed", a_run_without_a_start),
    ("claimed", a_success_without_an_attempt),
    ("not-early", an_early_start),
    ("completed", an_end_without_its_time),
    ("completed", a_run_with_an_end),
    ("shards-end-first", a_shard_that_waits_behind_its_parent),
    ("kept-slot", a_slot_that_is_kept_for_no_thread),
    ("completed-nodes", a_node_that_ended_at_no_time),
]


def live(rows: Scenario) -> None:
    """An instance in each state, with the nodes that belong to it."""
    worker = rows.worker()
    rows.pending()
    rows.by_sql(rows.task())
    rows.assigned(worker)
    rows.running(worker)
    rows.report(worker, to_retry(rows.running(worker), rows.start))
    canceled = rows.assigned(worker)
    rows.database.write(lambda c: canceling.cancel(c, canceled, "test", "test"))
    for status in (InstanceStatus.SUCCEED, InstanceStatus.FAILED, InstanceStatus.CANCELED):
        run = rows.running(worker)
        rows.report(worker, ended(run, status))


def test_where_all_is_well_nothing_is_found(rows: Scenario) -> None:
    live(rows)
    assert rows.broken() == {}


@pytest.mark.parametrize(("name", "breaking"), BROKEN, ids=[breaking.__name__ for _, breaking in BROKEN])
def test_what_is_broken_is_found_and_named(rows: Scenario, name: str, breaking: Break) -> None:
    live(rows)
    row = breaking(rows)
    assert rows.broken() == {name: [row]}


def test_each_invariant_was_broken() -> None:
    assert {name for name, _ in BROKEN} == {invariant.name for invariant in INVARIANTS}


def test_no_more_ids_are_read_than_are_shown(rows: Scenario) -> None:
    worker = rows.worker()
    for _ in range(invariants.IDS + 5):
        set_instance(rows, rows.pending(), "schedule_worker_node_id = :worker", worker=worker)
    assert len(rows.broken()["pending-worker"]) == invariants.IDS


# What is no fault


def test_what_a_dead_or_silent_worker_holds_has_two_limits_to_come_back(rows: Scenario) -> None:
    dead, silent = rows.worker(), rows.worker()
    for worker in (dead, silent):
        held_for(rows, rows.assigned(worker), "gmt_assigned", 40)
        held_for(rows, rows.running(worker).id, "gmt_started", 40)
    bury(rows, dead, 25)
    silence(rows, silent, 25)
    assert rows.broken() == {}


def test_what_was_given_to_a_dead_worker_a_moment_ago_is_no_fault(rows: Scenario) -> None:
    """A scheduler that had seen it alive assigned it; the next pass of the reaper takes it back."""
    worker = rows.worker()
    bury(rows, worker, 3600)
    rows.assigned(worker)
    assert rows.broken() == {}


def test_a_param_may_list_nodes_of_any_type(rows: Scenario) -> None:
    other, listed = another_type(rows), """param = '{"nodes": ["REPORT_EXTRACT", "CLEANUP_TEMP"]}'"""
    pinned, task = rows.ended(), rows.task()
    for instance in (pinned, rows.ended(task=task)):
        set_node(rows, instance, 2, "schedule_task_node_type_id = :type", type=other)
    set_instance(rows, pinned, listed)
    rows.sql(f"UPDATE schedule_task SET {listed} WHERE id = :task", task=task)
    assert rows.broken() == {}


def test_nodes_that_need_not_wait_for_each_other_may_run_at_once(rows: Scenario) -> None:
    two_nodes_that_run_at_once(rows)
    rows.sql("""UPDATE schedule_task_node_type SET defaults = '{"after": []}' WHERE type = 'REPORT_SEND'""")
    assert rows.broken() == {}
    rows.sql("UPDATE schedule_task_node_type SET defaults = NULL")
    for nodes, may in (('["REPORT_EXTRACT", "REPORT_SEND"]', False), ('[{"type": "REPORT_SEND", "after": []}]', True)):
        rows.sql("UPDATE schedule_task SET param = :param", param=f'{{"nodes": {nodes}}}')
        assert (rows.broken() == {}) == may


def test_instances_keep_the_nodes_of_the_type_that_their_task_had(rows: Scenario) -> None:
    task = rows.task("edited")
    rows.ended(task=task)
    another_type(rows)
    rows.database.write(lambda c: tasks.edit(c, tasks.find(c, "edited"), {"type": "CLEANUP"}, "test"))
    assert rows.task_row(task).type == "CLEANUP"
    assert rows.broken() == {}


# The command


def test_doctor_shows_what_is_broken_and_its_exit_code_is_1(rows: Scenario) -> None:
    url = rows.database.url.render_as_string(hide_password=False)
    live(rows)
    well = invoke("doctor", "--data", "--json", url=url)
    assert (well.exit_code, json.loads(well.stdout)["ok"]) == (0, True)
    assert [(found["name"], found["ids"]) for found in json.loads(well.stdout)["data"]] == [
        (invariant.name, []) for invariant in INVARIANTS
    ]
    row = a_pending_instance_with_a_worker(rows)
    sick = invoke("doctor", "--data", "--json", url=url)
    assert (sick.exit_code, json.loads(sick.stdout)["ok"]) == (1, False)
    [found] = [found for found in json.loads(sick.stdout)["data"] if found["ids"]]
    assert (found["name"], found["table"], found["ids"]) == ("pending-worker", "instance", [row])
    shown = invoke("doctor", "--data", url=url)
    assert shown.exit_code == 1
    [line] = [line for line in shown.stdout.splitlines() if line.startswith("wrong")]
    assert line.endswith(f"instance [{row}]")
    without = invoke("doctor", "--json", url=url)
    assert (without.exit_code, "data" in json.loads(without.stdout)) == (0, False)


def test_doctor_asks_nothing_of_the_rows_where_the_database_is_not_fit(sqlite_url: str) -> None:
    sick = invoke("doctor", "--data", "--json", url=sqlite_url)
    assert (sick.exit_code, json.loads(sick.stdout)["data"]) == (3, [])
