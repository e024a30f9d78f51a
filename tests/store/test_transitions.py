"""Each move that is declared changes what it declares, nodes included, and nothing from any other state."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.database.later import Unexpected
from rota.shared.domain.states import (
    BEGIN,
    CALL_OFF,
    CANCEL,
    CANCEL_LOST,
    CLAIM,
    CLEAN_UP,
    FAIL,
    FAIL_LOST,
    GIVE,
    HAND_BACK,
    MOVES,
    PROCEED,
    RECOVER,
    REFUSE,
    RESCHEDULE,
    RESTART,
    RETRY,
    SKIP,
    SPREAD,
    STOP,
    SUCCEED,
    TAKE_BACK,
    TERMINAL,
    TRANSITIONS,
    InstanceStatus,
    Move,
    NodeStatus,
)
from rota.shared.settings import Settings
from rota.shared.store import instances, reports
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.tables import schedule_instance, schedule_task_node
from rota.shared.store.transitions import canceling, claiming, giving, recovering, rescheduling, spreading
from rota.shared.store.transitions.canceling import CalledOff
from rota.shared.store.transitions.recovering import Verdict
from rota.shared.store.transitions.rescheduling import Rescheduled
from rota.shared.store.transitions.spreading import Parent
from tests.harness.processes import ROOT
from tests.harness.scenario import Scenario, to_retry

PENDING, ASSIGNED, RUNNING = InstanceStatus.PENDING, InstanceStatus.ASSIGNED, InstanceStatus.RUNNING

SECOND_NODE: Mapping[InstanceStatus, NodeStatus] = {
    PENDING: NodeStatus.PENDING,
    ASSIGNED: NodeStatus.PENDING,
    RUNNING: NodeStatus.RUNNING,
    InstanceStatus.SUCCEED: NodeStatus.SUCCEED,
    InstanceStatus.FAILED: NodeStatus.FAILED,
    InstanceStatus.CANCELED: NodeStatus.CANCELED,
}
"""An instance in this state has a first node that succeeded, a second in that state, and a third."""

ENDED_THIRD = {InstanceStatus.SUCCEED: NodeStatus.SUCCEED}


@dataclass(frozen=True)
class Staged:
    """An instance in some state under its worker's fence, so that its state alone decides whether it moves."""

    id: int
    worker: int
    nodes: tuple[int, ...]

    attempt = 1


Make = Callable[[Connection, Staged], object]


def reported(status: InstanceStatus | None, *nodes: tuple[int, NodeStatus]) -> Make:
    """The worker reports nodes, by their places, and perhaps the instance."""

    def make(connection: Connection, staged: Staged) -> object:
        moment = connection.scalar(select(schedule_instance.c.due_at).where(schedule_instance.c.id == staged.id))
        ended = moment if status in TERMINAL else None
        said = [NodeReport(staged.nodes[at], state, "1", moment, moment) for at, state in nodes]
        whole = InstanceReport(status, "1", "test", ended, ended) if status is not None else None
        return reports.report(connection, staged.worker, [Report(staged.id, staged.attempt, said, whole)])

    return make


def lost(move: Move) -> Make:
    return lambda c, i: recovering.recover(c, [Verdict(i.id, i.attempt, move, "test")], i.worker, "worker", "test")


def cleaned_up(connection: Connection, staged: Staged) -> None:
    verdict = Verdict(staged.id, staged.attempt, CLEAN_UP, "test", ended=staged.nodes[1:])
    recovering.recover(connection, [verdict], staged.worker, "worker", "test")


def called_off(connection: Connection, staged: Staged) -> None:
    """Read while it waits."""
    was = instances.find(connection, staged.id).status
    canceling.call_off(connection, CalledOff(staged.id, was, staged.attempt, staged.nodes[1:]), "test", "test")


def moved(connection: Connection, staged: Staged) -> Rescheduled:
    """It is due tomorrow, so that no scheduler has looked at it."""
    its_own = schedule_instance.c.id == staged.id
    due, task = connection.execute(
        select(schedule_instance.c.due_at, schedule_instance.c.schedule_task_id).where(its_own)
    ).one()
    connection.execute(update(schedule_instance).where(its_own).values(due_at=due + timedelta(days=1)))
    return Rescheduled(staged.id, task, due + timedelta(hours=1), '{"region": "us"}')


HOUR_SECONDS = 3600.0

WAYS: Sequence[tuple[str, Move, Make]] = (
    ("given", GIVE, lambda c, i: giving.give(c, [(i.id, i.worker, 0, None)])),
    ("of a worker", TAKE_BACK, lambda c, i: giving.take_back_from(c, i.worker, [i.id])),
    ("unstarted", TAKE_BACK, lambda c, i: giving.take_back_unstarted(c, [i.id], later(c))),
    ("over shards", SPREAD, lambda c, i: spreading.spread(c, [Parent(i.id, i.attempt, None, 0, [None, None], 2)])),
    ("by policy", CLAIM, lambda c, i: claiming.claim_unread(c, i.worker, [i.id], HOUR_SECONDS)),
    ("for a slot", CLAIM, lambda c, i: claiming.claim_unread(c, i.worker, [i.id], HOUR_SECONDS, [(i.id, 0)])),
    ("reported", BEGIN, reported(BEGIN.target, (1, NodeStatus.RUNNING))),
    ("reported", RESTART, reported(RESTART.target, (0, NodeStatus.RUNNING), (1, NodeStatus.PENDING))),
    ("reported", PROCEED, reported(None, (1, NodeStatus.SUCCEED), (2, NodeStatus.RUNNING))),
    ("plain", SUCCEED, reported(SUCCEED.target, (1, NodeStatus.SUCCEED))),
    ("all nodes", SUCCEED, reported(SUCCEED.target, (0, NodeStatus.SUCCEED), (1, NodeStatus.SUCCEED))),
    ("reported", FAIL, reported(FAIL.target, (1, NodeStatus.FAILED))),
    ("without nodes", FAIL, reported(FAIL.target)),
    ("reported", STOP, reported(STOP.target, (1, NodeStatus.CANCELED))),
    ("without nodes", STOP, reported(STOP.target)),
    ("reported", RETRY, reported(RETRY.target, (1, NodeStatus.PENDING))),
    ("handed back", HAND_BACK, lambda c, i: reports.hand_back(c, i.worker, [(i.id, i.attempt)], "test")),
    ("lost", RECOVER, lost(RECOVER)),
    ("lost", FAIL_LOST, lost(FAIL_LOST)),
    ("lost", CANCEL_LOST, lost(CANCEL_LOST)),
    ("lost", CLEAN_UP, cleaned_up),
    ("by its key", RESCHEDULE, lambda c, i: rescheduling.reschedule(c, [moved(c, i)], "test")),
    ("refused", REFUSE, lambda c, i: canceling.refuse(c, {i.id: "test"})),
    ("skipped", SKIP, lambda c, i: canceling.skip(c, i.worker, {i.id: "test"})),
    ("called off", CALL_OFF, called_off),
    ("canceled", CANCEL, lambda c, i: canceling.cancel(c, i.id, "test", "test")),
)


WRITTEN_AGAIN = {(CLAIM, RUNNING), (SUCCEED, InstanceStatus.SUCCEED)}
"""The answer to a commit was lost. The instance has made its move; its node is written once more, in the same state."""


def later(connection: Connection) -> Any:
    """A moment after every assignment."""
    assigned = connection.scalar(select(schedule_instance.c.gmt_assigned).limit(1))
    return assigned + timedelta(hours=1) if assigned else None


def stage(rows: Scenario, status: InstanceStatus, number_of_nodes: int) -> Staged:
    worker = rows.worker()
    run = rows.running(worker)
    if number_of_nodes == 3:
        rows.sql(
            "INSERT INTO schedule_task_node"
            " (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence)"
            " SELECT id, gmt_create, :type, 3 FROM schedule_instance WHERE id = :instance",
            instance=run.id,
            type=rows.nodes[0].type_id,
        )
    second = SECOND_NODE[status]
    third = NodeStatus.PENDING if status not in TERMINAL else ENDED_THIRD.get(status, NodeStatus.CANCELED)
    for sequence, state in enumerate((NodeStatus.SUCCEED, second, third), start=1):
        rows.sql(
            "UPDATE schedule_task_node SET status = :state WHERE schedule_instance_id = :instance AND sequence = :at",
            state=state.value,
            instance=run.id,
            at=sequence,
        )
    rows.sql("UPDATE schedule_instance SET status = :status WHERE id = :id", status=status.value, id=run.id)
    return Staged(run.id, worker, tuple(node["id"] for node in seen(rows, run.id)[1]))


def seen(rows: Scenario, instance: int) -> tuple[Any, list[Any]]:
    """All columns of an instance and of its nodes."""
    nodes = select(schedule_task_node).where(schedule_task_node.c.schedule_instance_id == instance)

    def read(connection: Connection) -> tuple[Any, list[Any]]:
        [row] = connection.execute(select(schedule_instance).where(schedule_instance.c.id == instance)).mappings()
        return row, list(connection.execute(nodes.order_by(schedule_task_node.c.sequence)).mappings())

    return rows.database.read(read)


def declared(move: Move, nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    """The states of an instance's nodes after a move."""
    after = [move.nodes.get(node, node) for node in nodes]
    if move.first_node is not None:
        first = next(at for at, node in enumerate(after) if node is not NodeStatus.SUCCEED)
        after[first] = move.first_node
    return after


@pytest.mark.parametrize(("way", "move", "make"), WAYS, ids=[f"{move.name}-{way}" for way, move, _ in WAYS])
def test_a_move_changes_what_it_declares_and_nothing_from_another_state(
    rows: Scenario, way: str, move: Move, make: Make
) -> None:
    for status in InstanceStatus:
        staged, other = (stage(rows, status, 2 if move is SUCCEED else 3) for _ in range(2))
        before, bystander = seen(rows, staged.id), seen(rows, other.id)

        def make_it(connection: Connection, instance: Staged = staged) -> None:
            make(connection, instance)

        with suppress(Unexpected):  # the transaction relies on the state from which it moves
            rows.database.write(make_it)
        row, nodes = seen(rows, staged.id)
        told = f"{move.name}, {way}, of an instance that is {status}"
        assert seen(rows, other.id) == bystander, told
        if status in move.sources:
            assert row["status"] == move.target, told
            states = [NodeStatus(node["status"]) for node in before[1]]
            assert [node["status"] for node in nodes] == declared(move, states), told
        elif (move, status) in WRITTEN_AGAIN:
            assert row == before[0], told
            assert [node["status"] for node in nodes] == [node["status"] for node in before[1]], told
        else:
            assert (row, nodes) == before, told


def test_every_move_is_made() -> None:
    assert {move for _, move, _ in WAYS} == set(MOVES)


def test_the_moves_are_those_of_the_diagram() -> None:
    assert {
        PENDING: {ASSIGNED, RUNNING, InstanceStatus.CANCELED},
        ASSIGNED: {PENDING, RUNNING, InstanceStatus.CANCELED},
        RUNNING: {PENDING, *TERMINAL},
        **{status: set() for status in TERMINAL},
    } == TRANSITIONS


def test_the_documentation_names_every_move() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("| move | who makes it")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", table, re.M) == [move.name for move in MOVES]


@pytest.mark.parametrize("move", [move for move in MOVES if move.target in TERMINAL], ids=lambda move: move.name)
def test_a_move_to_an_end_leaves_no_node_that_could_go_on(move: Move) -> None:
    running = {NodeStatus.RUNNING} if RUNNING in move.sources else set()
    waiting = {NodeStatus.PENDING} if move is not SUCCEED else set()  # it has none: its last node succeeds
    assert set(move.nodes) == running | waiting
    assert not set(move.nodes.values()) & {NodeStatus.PENDING, NodeStatus.RUNNING}


@pytest.mark.parametrize("gone", ["deleted", "deleted by SQL"])
def test_a_retry_whose_task_is_gone_is_canceled_with_its_nodes(rows: Scenario, gone: str) -> None:
    worker, task = rows.worker(), rows.task()
    run = rows.running(worker, task)
    assert rows.report(worker, to_retry(run, rows.start)) == set()
    if gone == "deleted":
        rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :task", task=task)
    else:
        rows.sql("DELETE FROM schedule_task WHERE id = :task", task=task)
    Assigner(rows.database, Settings.load()).step()
    assert rows.status(run.id) == "canceled"
    assert rows.node_statuses(run.id) == ["succeed", "canceled"]


def test_the_nodes_of_what_another_has_taken_meanwhile_stay(rows: Scenario) -> None:
    """The scheduler decided to refuse it, and it was given to a worker before."""
    worker = rows.worker()
    run = rows.running(worker)
    assert rows.report(worker, to_retry(run, rows.start)) == set()
    rows.give(worker, run.id)
    rows.database.write(lambda c: canceling.refuse(c, {run.id: "test"}))
    assert (rows.status(run.id), rows.node_statuses(run.id)) == ("assigned", ["succeed", "pending"])


def test_a_report_that_is_written_twice_changes_what_it_declares_once(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    first = run.nodes[0]
    failed = NodeReport(first.id, NodeStatus.FAILED, "1", run.due_at, run.due_at)
    whole = InstanceReport(InstanceStatus.FAILED, "1", "test", run.due_at, run.due_at, 1)
    report = Report(run.id, run.attempt, [failed], whole)
    assert rows.report(worker, report) == set()
    before = seen(rows, run.id)
    assert rows.report(worker, replace(report, nodes=[replace(failed, status=NodeStatus.SUCCEED)])) == {run.id}
    assert seen(rows, run.id) == before
