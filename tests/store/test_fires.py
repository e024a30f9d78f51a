"""Law 1: a fire is materialized exactly once. Locks are for speed, the unique key is for truth."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select

from rota.shared.database.later import Unexpected
from rota.shared.domain.planning import PlannedTask
from rota.shared.store import assignments, fires, plans, reports, unclaimed
from rota.shared.store.fires import Fire
from rota.shared.store.tables import schedule_instance, schedule_task_node
from rota.shared.store.transitions import canceling
from tests.harness import leases
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.together import together

MINUTE = timedelta(minutes=1)


class Crash(Exception):
    """The process ends here, before its commit."""


def instances(rows: Scenario) -> Sequence[Any]:
    statement = select(schedule_instance).order_by(schedule_instance.c.id)
    return rows.database.read(lambda c: list(c.execute(statement)))


def nodes(rows: Scenario) -> Sequence[Any]:
    statement = select(schedule_task_node).order_by(schedule_task_node.c.id)
    return rows.database.read(lambda c: list(c.execute(statement)))


def materialize(rows: Scenario, *batch: Fire) -> None:
    rows.database.write(lambda c: fires.materialize(c, batch))


def test_a_fire_given_to_a_worker_is_assigned_with_its_nodes(rows: Scenario) -> None:
    task, worker, at = rows.task(), rows.worker(), rows.start + timedelta(microseconds=123_456)
    materialize(rows, Fire(task, at, 3, '{"region":"eu"}', worker, rows.nodes))
    [row] = instances(rows)
    assert (row.schedule_task_id, row.status, row.schedule_worker_node_id) == (task, "assigned", worker)
    assert (row.schedule_datetime, row.due_at) == (at, at)
    assert (row.run_number, row.fire_key, row.origin, row.attempt) == (0, "", "cron", 0)
    assert (row.priority, row.param, row.reason) == (3, {"region": "eu"}, None)
    assert abs(row.gmt_assigned - rows.now()) < MINUTE
    assert [(n.schedule_instance_id, n.sequence, n.status) for n in nodes(rows)] == [
        (row.id, 1, "pending"),
        (row.id, 2, "pending"),
    ]
    assert [n.schedule_task_node_type_id for n in nodes(rows)] == [n.type_id for n in rows.nodes]


def test_a_fire_that_nobody_can_run_is_pending_with_the_reason_and_without_nodes(rows: Scenario) -> None:
    materialize(rows, Fire(rows.task(), rows.start, 5, None, None, rows.nodes, "no worker is live"))
    [row] = instances(rows)
    assert (row.status, row.schedule_worker_node_id, row.gmt_assigned) == ("pending", None, None)
    assert row.reason == "no worker is live"
    assert nodes(rows) == []


@pytest.mark.parametrize(
    "param",
    [
        {"text": "Grüße, 世界 🚀"},
        {"quoted": 'a "b" \\ /\n\t'},
        {"deep": [[None, True, 1.5]]},
        {"large": "x" * 300_000},
        {},
    ],
    ids=["unicode", "quoted", "deep", "large", "empty"],
)
def test_a_param_is_pinned_as_it_is(rows: Scenario, param: dict[str, Any]) -> None:
    text = json.dumps(param, ensure_ascii=False)
    materialize(rows, Fire(rows.task(), rows.start, 5, text, None, rows.nodes))
    [row] = instances(rows)
    assert row.param == param


def test_an_existing_key_counts_as_done(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="allow"), rows.worker()
    batch = [Fire(task, rows.start - MINUTE * n, 5, None, worker, rows.nodes) for n in range(4)]
    materialize(rows, *batch)
    assigned, retried, done, canceled = sorted(rows.statuses())
    first, second = rows.claim(worker, retried, done).runs
    rows.report(worker, to_retry(first, rows.start), ended(second))
    rows.database.write(lambda c: assignments.take_back_assigned(c, worker, 10))
    rows.database.write(lambda c: canceling.refuse(c, {canceled: "test"}))
    before = instances(rows), nodes(rows)
    materialize(rows, *batch)
    assert (instances(rows), nodes(rows)) == before
    assert rows.status(assigned) == "pending"


def test_a_batch_written_again_by_another_scheduler_adds_only_what_is_missing(rows: Scenario) -> None:
    task, first, second = rows.task(), rows.worker(), rows.worker()
    one = Fire(task, rows.start, 5, None, first, rows.nodes)
    other = Fire(task, rows.start, 5, None, second, rows.nodes)
    next_one = Fire(task, rows.start + MINUTE, 5, None, second, rows.nodes)
    materialize(rows, one)
    materialize(rows, other, next_one)
    assert [(i.schedule_datetime, i.schedule_worker_node_id) for i in instances(rows)] == [
        (rows.start, first),
        (rows.start + MINUTE, second),
    ]
    assert len(nodes(rows)) == 2 * len(rows.nodes)


def test_nodes_of_two_deploys_are_not_mixed_in_one_instance(rows: Scenario) -> None:
    """Two schedulers write one fire, each with the nodes it knows: the instance has those of the one that was first."""
    task, first, second = rows.task(), rows.worker(), rows.worker()
    newer = [*rows.nodes, replace(rows.nodes[0], sequence=3)]
    materialize(rows, Fire(task, rows.start, 5, None, first, rows.nodes))
    materialize(rows, Fire(task, rows.start, 5, None, second, newer))
    assert [node.sequence for node in nodes(rows)] == [1, 2]


def test_fires_and_the_advance_are_one_transaction(rows: Scenario) -> None:
    task = rows.planned_task(rows.start)
    [planned] = locked(rows, "token", [task])

    def crash(connection: Connection) -> None:
        fires.materialize(connection, [Fire(task, rows.start, 5, None, None, rows.nodes)])
        plans.advance(connection, [plans.Advance(planned, rows.start + MINUTE)])
        raise Crash

    with pytest.raises(Crash):
        rows.database.write(crash)
    assert instances(rows) == []
    assert rows.task_row(task).next_fire_at == rows.start


def locked(rows: Scenario, token: str, task_ids: Sequence[int]) -> list[PlannedTask]:
    rows.database.write(lambda c: leases.acquire(c, token, task_ids, 2))
    return rows.database.read(lambda c: plans.locked(c, token, task_ids))


def test_two_schedulers_that_write_the_same_fires_at_once_write_each_once(rows: Scenario) -> None:
    """Both have slept longer than their leases, and neither knows: nothing but the key stands between them."""
    tasks, workers = rows.tasks(50), [rows.worker(), rows.worker()]
    times = [rows.start + MINUTE * n for n in range(3)]

    def scheduler(worker: int) -> None:
        batch = [Fire(task, at, 5, None, worker, rows.nodes) for task in tasks for at in times]
        materialize(rows, *batch)

    together(*(lambda w=worker: scheduler(w) for worker in workers))
    found = instances(rows)
    assert sorted((i.schedule_task_id, i.schedule_datetime) for i in found) == sorted(
        (task, at) for task in tasks for at in times
    )
    of_instance = [n.schedule_instance_id for n in nodes(rows)]
    assert sorted(of_instance) == sorted([i.id for i in found] * len(rows.nodes))


def test_of_schedulers_that_race_through_the_whole_protocol_each_fire_comes_once(rows: Scenario) -> None:
    """Leases last no time here, so that they are taken over all the time."""
    tasks, worker = rows.tasks(20), rows.worker()

    def scheduler(name: str) -> None:
        for number in range(5):
            token = f"{name}-{number}"
            got = rows.database.write(partial(leases.acquire, token=token, task_ids=tasks, lease_seconds=0))
            read = rows.database.read(partial(plans.locked, token=token, task_ids=got))
            with suppress(Unexpected):  # another has taken a lease over at this moment
                rows.database.write(partial(write, token=token, read=read))

    def write(connection: Connection, token: str, read: Sequence[PlannedTask]) -> None:
        held = leases.release(connection, token, [task.id for task in read])
        mine = [task for task in read if task.id in held]
        moves = [(task, task.next_fire_at or rows.start) for task in mine]
        fires.materialize(connection, [Fire(task.id, at, 5, None, worker, rows.nodes) for task, at in moves])
        plans.advance(connection, [plans.Advance(task, at + MINUTE) for task, at in moves])

    together(*(lambda n=name: scheduler(n) for name in ("a", "b", "c")))
    found = instances(rows)
    keys = [(i.schedule_task_id, i.schedule_datetime) for i in found]
    assert keys
    assert len(keys) == len(set(keys))
    for task in tasks:
        times = sorted(at for of, at in keys if of == task)
        assert times == [rows.start + MINUTE * n for n in range(len(times))]
        assert rows.task_row(task).next_fire_at == rows.start + MINUTE * len(times)
    assert len(nodes(rows)) == len(found) * len(rows.nodes)


def test_a_fire_that_is_there_already_leaves_the_others_of_its_batch_their_own_nodes(rows: Scenario) -> None:
    worker, tasks = rows.worker(), rows.tasks(5)
    kinds = [rows.nodes[:1], rows.nodes[1:], rows.nodes]
    batch = [Fire(task, rows.start, 5, None, worker, kinds[n % 3]) for n, task in enumerate(tasks)]
    materialize(rows, batch[2])
    materialize(rows, *batch)
    given = {fire.task_id: [node.type_id for node in fire.nodes] for fire in batch}
    of = {row.id: row.schedule_task_id for row in instances(rows)}
    found: dict[int, list[int]] = {task: [] for task in tasks}
    for node in nodes(rows):
        found[of[node.schedule_instance_id]].append(node.schedule_task_node_type_id)
    assert found == given


def test_nodes_are_pinned_once(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    before = nodes(rows)
    rows.database.write(lambda c: fires.pin_nodes(c, [(instance, node) for node in reversed(rows.nodes)]))
    assert nodes(rows) == before


def test_an_instance_that_was_not_assigned_after_all_gets_no_nodes(rows: Scenario) -> None:
    instance = rows.pending()
    rows.database.write(lambda c: fires.pin_nodes(c, [(instance, node) for node in rows.nodes]))
    assert nodes(rows) == []


def test_an_empty_batch_writes_nothing(rows: Scenario) -> None:
    materialize(rows)
    rows.database.write(lambda c: fires.pin_nodes(c, []))
    rows.database.write(lambda c: plans.advance(c, []))
    rows.database.write(lambda c: unclaimed.drop(c, unclaimed.ahead(c, [], rows.start)))
    assert rows.database.write(lambda c: reports.report(c, 1, [])) == set()
