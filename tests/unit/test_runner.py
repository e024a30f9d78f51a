"""How a claimed instance goes through its nodes; executors and reports are stand-ins that the test drives."""

import json
import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
from pydantic import BaseModel, ConfigDict

from rota import EndRun, Fail, Retry, RunAgain
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import UnreadableJson, json_text
from rota.shared.domain.states import REASON_LIMIT, InstanceStatus, NodeStatus
from rota.shared.settable_clock import SettableClock
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import NodeRun, Run
from rota.shared.store.shards import Shard
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import NoThread, Outcome, Refused
from rota.worker_service.pulling.ends import FEWEST_ENDS
from rota.worker_service.pulling.slot import Slot
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running import endings
from rota.worker_service.running import lost as lost_attempts
from rota.worker_service.running.active import Active
from rota.worker_service.running.deadlines import DEADLINE_SECONDS, LONGEST_LOOK_SECONDS
from rota.worker_service.running.runner import Runner
from rota.worker_service.running.stopping import KILLED_SECONDS
from tests.harness.runners import GRACE, LIMIT, Running, World, instance, node_type, states
from tests.harness.runs import NOON, run


class Param(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rows: int = 42


NODES = {node.type: node for node in (node_type("EXTRACT", timeout=60), node_type("SEND", retries=3), node_type("LOG"))}


@pytest.fixture
def world() -> World:
    return World(NODES)


def test_nodes_run_in_order_each_after_the_commit_of_its_predecessor(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    report = world.ended({"rows": 42})
    assert (states(report), report.instance) == ([(101, "succeed"), (102, "running")], None)
    assert world.executor.started == ["EXTRACT"]
    world.reports.commit()
    assert world.executor.started == ["EXTRACT", "SEND"]


def test_runs_that_are_due_together_are_begun_together(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    begin = world.executor.begin

    def noted() -> None:
        begun.append(len(world.executor.later))
        begin()

    monkeypatch.setattr(world.executor, "begin", noted)
    world.start(*(run("EXTRACT", id=number) for number in range(3)))
    assert (begun, len(world.executor.calls)) == ([3], 3)


def test_of_runs_that_are_due_together_one_that_cannot_be_started_holds_up_no_other(world: World) -> None:
    unreadable = run("EXTRACT", id=1, param=UnreadableJson("it is nested too deeply"))
    world.start(unreadable, run("NIGHT", id=2), replace(run(id=3), nodes=()), run("EXTRACT", id=4))
    assert [running.context.instance_id for running in world.executor.calls] == [4]
    assert [report.instance_id for report in world.reports.seen] == [1, 2, 3]


def test_whatever_a_start_raises_the_next_ones_are_started(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = world.reports.put

    def fatal(report: Report, written: Callable[[bool], None]) -> None:
        if report.instance_id == 1:
            raise SystemExit(1)
        put(report, written)

    monkeypatch.setattr(world.reports, "put", fatal)
    world.start(run("NIGHT", id=1), run("EXTRACT", id=2))
    assert [running.context.instance_id for running in world.executor.calls] == [2]
    assert "instance 1 could not be started" in caplog.text


def test_the_last_nodes_result_is_the_instances_and_its_run_is_known_until_it_is_committed(
    world: World,
) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.ended({"rows": 42})
    world.reports.commit()
    report = world.ended({"sent": 1})
    assert (states(report), report.attempt) == ([(102, "succeed")], 1)
    assert (instance(report).status, instance(report).result) == (InstanceStatus.SUCCEED, '{"sent":1}')
    assert instance(report).reason is None
    assert world.runner.held == {(7, 1)}
    world.reports.commit()
    assert (len(world.runner), world.runner.held, world.reports.waiting) == (0, set(), [])


def slots(world: World) -> tuple[int, int]:
    return world.slots.busy, world.slots.capacity - world.slots.idle()


def test_a_slot_is_taken_from_the_claim_to_the_end_of_the_last_handler_but_while_a_node_is_reported(
    world: World,
) -> None:
    one = run("EXTRACT", "SEND")
    assert slots(world) == (0, 0)
    world.runner.accept([one])
    assert slots(world) == (1, 0)
    world.runner.start([one])
    assert slots(world) == (1, 1)
    world.ended(1)
    assert (slots(world), world.told) == ((1, 1), 1)
    world.reports.commit()
    assert (slots(world), world.told) == ((1, 1), 1)
    world.ended(2)
    assert (slots(world), len(world.runner), world.told) == ((0, 0), 1, 2)
    world.reports.commit()
    assert (slots(world), len(world.runner)) == ((0, 0), 0)


def in_line(world: World) -> tuple[Run, Run]:
    """Two runs and one slot: the first waits for the slot of its next node, while the second has it."""
    first, second = run("EXTRACT", "SEND", id=1), run("EXTRACT", "LOG", id=2)
    world.start(first)
    world.ended(1)
    world.start(second)
    world.reports.commit()
    assert ([c.context.instance_id for c in world.executor.calls], world.slots.line) == ([1, 2], 1)
    return first, second


def test_a_run_whose_node_is_reported_lends_its_slot_and_gets_the_next_free_one_before_a_new_run() -> None:
    world = World(NODES, capacity=1)
    in_line(world)
    new = run("EXTRACT", id=3)
    world.runner.accept([new])
    world.runner.proceeding.loop.start()
    world.executor.calls[1].end(2)
    world.clock.advance(0)
    assert world.executor.started == ["EXTRACT", "EXTRACT", "SEND"]
    assert world.slots.idle() <= 0
    assert world.runner.start([new]) == {3}
    world.reports.commit()  # the second waits in turn
    world.executor.calls[2].end(3)
    world.clock.advance(0)
    assert (world.executor.started[-1], slots(world)[1], world.slots.line) == ("LOG", 1, 0)
    world.executor.calls[3].end(4)
    assert world.runner.start([new]) == set()
    world.runner.proceeding.loop.stop()


def test_while_runs_wait_for_the_slot_of_their_next_node_no_new_one_may_start() -> None:
    world = World(NODES, capacity=1)
    in_line(world)
    world.executor.calls[1].end(2)
    assert world.slots.idle() <= 0, "the slot is free, and the first run is the next to have it"
    assert world.slots.next_in_line() is not None
    assert world.slots.next_in_line() is None


@pytest.mark.parametrize("when", ["in the line", "before the commit"])
def test_what_is_canceled_between_two_nodes_waits_for_no_slot(when: str) -> None:
    world = World(NODES, capacity=1)
    if when == "in the line":
        in_line(world)
        world.runner.stop(1, 1, "canceled", canceled=True)
    else:
        world.start(run("EXTRACT", "SEND", id=1))
        world.ended(1)
        world.start(run("EXTRACT", id=2))
        world.runner.stop(1, 1, "canceled", canceled=True)
        world.reports.commit()
    canceled = world.reports.seen[-1]
    assert (canceled.instance_id, instance(canceled).status) == (1, InstanceStatus.CANCELED)
    assert (slots(world), world.slots.line, len(world.executor.calls)) == ((1, 1), 0, 2)


def test_what_is_canceled_in_the_line_waits_for_no_slot_though_its_node_had_ended_before_its_start_returned() -> None:
    """As a quick function on a thread may."""
    world = World(NODES, capacity=1)
    world.executor.meanwhile = lambda: world.executor.later[-1].end(1)
    world.start(run("EXTRACT", "SEND", id=1))
    world.executor.meanwhile = lambda: None
    world.start(run("EXTRACT", id=2))
    world.reports.commit()
    assert world.slots.line == 1
    world.runner.stop(1, 1, "canceled", canceled=True)
    canceled = world.reports.seen[-1]
    assert (canceled.instance_id, instance(canceled).status) == (1, InstanceStatus.CANCELED)


@pytest.mark.parametrize("how", ["dropped", "detached"])
def test_what_leaves_the_line_gets_no_slot(how: str) -> None:
    world = World(NODES, capacity=1)
    in_line(world)
    if how == "dropped":
        world.runner.drop(1)
    else:
        assert len(world.runner.detach_unfinished()) == 2
    assert (world.slots.line, world.slots.next_in_line()) == (0, None)
    assert slots(world) == ((1, 1) if how == "dropped" else (0, 0))


def test_a_timeout_does_not_count_the_wait_for_a_slot() -> None:
    world = World(NODES, capacity=1)
    in_line(world)
    world.clock.advance(3600)
    world.runner.stopping.expire()
    assert world.slots.line == 1
    assert [report.instance_id for report in world.reports.seen] == [1]


def test_an_abandoned_thread_keeps_the_slot_from_those_in_the_line() -> None:
    world = World(NODES, capacity=1)
    in_line(world)
    world.slots.abandon(+1)
    world.executor.calls[1].end(2)
    assert world.slots.next_in_line() is None
    world.slots.abandon(-1)
    assert world.slots.next_in_line() is not None


def begin_many(world: World, number: int) -> int:
    """Start so many runs of two nodes, one after another, of which no report is committed; returns how many began."""
    began = 0
    for run_id in range(1000, 1000 + number):
        if world.slots.idle() > 0:
            world.start(run("EXTRACT", "SEND", id=run_id))
            world.executor.calls[-1].end(1)
            began += 1
    return began


@pytest.mark.parametrize(("took", "began"), [(0.001, 1050), (0.01, 550), (1.0, 55), (60.0, 50)])
def test_as_many_runs_may_have_begun_beyond_the_capacity_as_the_slots_serve_in_a_tenth_of_a_second(
    world: World, took: float, began: int
) -> None:
    for run_id in range(FEWEST_ENDS):
        world.start(run("EXTRACT", id=run_id))
        world.clock.advance(took)
        world.ended(1)
    assert begin_many(world, 2_000) == pytest.approx(began, abs=1)


def test_before_some_runs_have_ended_no_more_begin_than_there_are_slots(world: World) -> None:
    assert begin_many(world, 100) == world.slots.capacity


def test_large_results_of_runs_that_have_begun_bound_how_many_begin(world: World) -> None:
    live_through(world, number=FEWEST_ENDS, took=0.001)
    world.runner.outcomes._result_limit_bytes = 10**9
    began = 0
    while world.slots.idle() > 0:
        world.start(run("EXTRACT", "SEND", id=1000 + began))
        world.executor.calls[-1].end("x" * 1_000_000)
        began += 1
    assert began == world.slots.capacity


def test_no_more_are_claimed_than_may_begin(world: World) -> None:
    live_through(world, number=FEWEST_ENDS, took=0.001)
    begin_many(world, 2_000)
    world.clock.advance(60)
    assert world.slots.claimable(0.1) == 0


def test_no_handler_runs_beyond_the_capacity_whoever_starts_at_once() -> None:
    """The thread of the reports and the thread that starts new runs take slots at the same time."""
    slots = Slots(3, 1000, SettableClock(NOON))
    most: list[int] = []

    def live(number: int) -> None:
        for _ in range(number):
            slot = Slot()
            slots.claim([slot])
            while not slots.start([slot]):
                if (other := slots.next_in_line()) is not None:
                    slots.end(other)
            for _ in range(3):
                most.append(slots.capacity - slots._running)
                slots.lend(slot, 0)
                if not slots.take_back(slot):
                    break
            else:
                slots.end(slot)

    threads = [threading.Thread(target=live, args=(300,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while (other := slots.next_in_line()) is not None:
        slots.end(other)
    assert min(most) >= 0
    assert (slots.idle(), slots.line) == (3, 0)


@pytest.mark.parametrize("how", ["ended", "failed", "retried", "canceled", "refused", "unknown", "without nodes"])
def test_however_a_run_ends_its_slot_is_free_once(world: World, how: str) -> None:
    world.start(run("LOG", id=8))
    if how == "refused":
        world.executor.refusal = OSError("no more processes")
    one = run("NIGHT" if how == "unknown" else "EXTRACT", retries=1 if how == "retried" else 0)
    world.start(replace(one, nodes=()) if how == "without nodes" else one)
    if how in ("failed", "retried"):
        world.ended(failure=ValueError("no"))
    elif how == "canceled":
        world.runner.stop(7, 1, "canceled", canceled=True)
        world.ended(stopped=True)
    elif how == "ended":
        world.ended(1)
    assert (slots(world), len(world.runner)) == ((1, 1), 2)
    world.reports.commit()
    assert (slots(world), len(world.runner)) == ((1, 1), 1)


def test_what_is_dropped_or_detached_takes_no_slot_any_more(world: World) -> None:
    waiting, running, lost, through = (run("EXTRACT", "SEND", id=number) for number in range(1, 5))
    world.runner.accept([waiting])
    world.start(running, lost, replace(through, nodes=through.nodes[:1]))
    world.ended(1)
    world.executor.calls[1].end(1)
    assert (slots(world), len(world.runner)) == ((3, 2), 4)
    world.reports.waiting.reverse()
    world.reports.commit(ours=False)
    assert (slots(world), len(world.runner)) == ((2, 1), 3)
    world.runner.drop(1)
    assert (slots(world), len(world.runner)) == ((1, 1), 2)
    assert [active.run.id for active in world.runner.detach_unfinished()] == [2]
    assert (slots(world), world.runner.held) == ((0, 0), {(4, 1)})
    world.executor.calls[0].end(stopped=True)
    world.reports.commit()
    assert (slots(world), len(world.runner)) == ((0, 0), 0)


def live_through(world: World, *, number: int, took: float) -> None:
    """Runs that end, one a second."""
    for run_id in range(number):
        world.clock.advance(1 - took)
        world.start(run("EXTRACT", id=run_id))
        world.clock.advance(took)
        world.ended(1)


def test_a_few_ends_are_too_few_to_expect_slots_by(world: World) -> None:
    live_through(world, number=FEWEST_ENDS - 1, took=0.01)
    assert world.slots.expected(100) == 0


def test_a_hopeful_worker_that_has_run_next_to_nothing_expects_that_its_idle_slots_pass_on_many(world: World) -> None:
    world.slots.abandon(world.slots.capacity - 3)
    assert (world.slots.expected(0.1), world.slots.expected(0.1, hopeful=True)) == (0, 300)
    world.slots.abandon(3)
    assert world.slots.expected(0.1, hopeful=True) == 0, "none is idle"


def test_a_hopeful_worker_goes_by_what_it_knows(world: World) -> None:
    live_through(world, number=20, took=0.5)
    world.clock.advance(60)
    assert world.slots.expected(0.1, hopeful=True) == world.slots.expected(0.1)


def test_as_many_ends_are_expected_as_there_were_lately(world: World) -> None:
    live_through(world, number=20, took=1)
    world.slots.abandon(world.slots.capacity)  # none is idle
    assert world.slots.expected(7.5) == 8
    world.clock.advance(2)
    assert world.slots.expected(7.5) == 6
    world.clock.advance(10)
    assert world.slots.expected(7.5) == 0


@pytest.mark.parametrize(("took", "idle", "seen"), [(0.01, 3, 30), (0.01, -3, 0), (0.0001, 2, 200), (0.5, 4, 0)])
def test_idle_slots_pass_on_as_many_as_handlers_lately_took(world: World, took: float, idle: int, seen: int) -> None:
    live_through(world, number=20, took=took)
    world.clock.advance(60)
    world.slots.abandon(world.slots.capacity - idle)
    assert world.slots.expected(0.1) == pytest.approx(seen, abs=1 if seen else 0)


def test_what_is_claimed_and_waits_takes_of_the_slots_that_are_expected(world: World) -> None:
    live_through(world, number=20, took=0.01)
    world.clock.advance(60)
    world.slots.abandon(world.slots.capacity - 3)
    before = world.slots.expected(0.1)
    world.slots.claim([Slot() for _ in range(12)])
    assert world.slots.expected(0.1) == before - 12
    world.slots.claim([Slot() for _ in range(100)])
    assert world.slots.expected(0.1) == 0


def test_a_node_finds_earlier_results_by_short_name_and_by_type(world: World) -> None:
    world.start(run("EXTRACT", "LOG", "SEND"))
    for result in ({"rows": 1}, None):
        world.ended(result)
        world.reports.commit()
    results = {"EXTRACT": {"rows": 1}, "REPORT_EXTRACT": {"rows": 1}, "LOG": None, "REPORT_LOG": None}
    assert world.executor.calls[-1].context.results == results


def test_a_result_is_seen_as_the_database_holds_it_as_after_a_retry(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.ended({1: (Param(rows=3).rows, 2)})
    world.reports.commit()
    assert world.executor.calls[-1].context.results["EXTRACT"] == {"1": [3, 2]}


def test_a_node_type_listed_twice_runs_twice(world: World) -> None:
    world.start(run("LOG", "LOG", "EXTRACT"))
    for _ in range(2):
        world.ended(1)
        world.reports.commit()
    assert world.executor.started == ["LOG", "LOG", "EXTRACT"]


def test_the_context_tells_the_fires_own_time_in_the_tasks_zone(world: World) -> None:
    world.start(run(origin="replay", run_number=2, attempt=3, due_at=NOON + timedelta(hours=9)))
    context = world.executor.calls[0].context
    assert context.schedule_datetime == NOON.replace(tzinfo=UTC)
    assert context.schedule_datetime.isoformat() == "2026-11-19T20:00:00+08:00"
    assert context.due_at == NOON.replace(tzinfo=UTC) + timedelta(hours=9)
    told = (context.task_name, context.node_type, context.instance_id, context.run_number, context.attempt)
    assert told == ("daily", "REPORT_EXTRACT", 7, 2, 3)
    assert context.origin == "replay"


def test_a_retry_goes_on_at_the_node_that_failed_with_the_results_before_it(world: World) -> None:
    done = NodeRun(101, "REPORT_EXTRACT", "REPORT", 1, "succeed", None, {"rows": 42})
    failed = NodeRun(102, "REPORT_SEND", "REPORT", 2, "running", None, None, failures=1)
    world.start(run(nodes=(done, failed), attempt=2, failures=1))
    assert world.executor.started == ["SEND"]
    assert world.executor.calls[0].context.results["EXTRACT"] == {"rows": 42}
    assert states(world.ended("ok")) == [(102, "succeed")]


@pytest.mark.parametrize(
    ("name", "of_the_task", "failures", "retried"),
    [
        ("EXTRACT", 0, 0, False),
        ("EXTRACT", 2, 1, True),
        ("EXTRACT", 2, 2, False),
        ("SEND", 0, 2, True),  # the node's own 3 go before the task's
        ("SEND", 9, 3, False),
    ],
)
def test_a_node_that_fails_is_retried_as_often_as_it_or_its_task_says(
    world: World, name: str, of_the_task: int, failures: int, retried: bool
) -> None:
    nodes = (failed_before(name, failures), NodeRun(102, "REPORT_LOG", "REPORT", 2, "pending", None, None))
    world.start(run(nodes=nodes, retries=of_the_task, failures=failures))
    report = world.ended(failure=ValueError("no such region"))
    assert (report.nodes[0].failures, instance(report).failures) == (failures + 1, failures + 1)
    if retried:
        assert states(report) == [(101, "pending")]
        assert instance(report).status is InstanceStatus.PENDING
        assert instance(report).gmt_completed is None
    else:
        assert states(report) == [(101, "failed"), (102, "canceled")]
        assert instance(report).status is InstanceStatus.FAILED
        assert instance(report).reason == f"node REPORT_{name} failed: ValueError: no such region"


@pytest.mark.parametrize("ours", [True, False])
def test_what_may_run_at_most_once_enters_no_handler_before_it_is_committed_that_it_begins(
    world: World, *, ours: bool
) -> None:
    world.start(run("EXTRACT", "SEND", on_worker_lost="fail"))
    report = world.reports.seen[-1]
    assert (states(report), instance(report).status) == ([(101, "running")], InstanceStatus.RUNNING)
    assert world.executor.started == []
    assert (slots(world)[1], len(world.runner)) == (1, 1)
    world.reports.commit(ours=ours)
    assert world.executor.started == (["EXTRACT"] if ours else [])
    assert len(world.runner) == ours


def test_what_is_stopped_before_it_is_committed_that_it_begins_enters_no_handler(world: World) -> None:
    world.start(run("EXTRACT", on_worker_lost="fail"))
    world.runner.stop(7, 1, "canceled", canceled=True)
    world.reports.commit()
    assert world.executor.started == []
    assert instance(world.reports.seen[-1]).status is InstanceStatus.CANCELED


@pytest.mark.parametrize("committed", ["before", "after", "never"])
def test_a_stopping_worker_fails_only_what_has_begun_of_what_may_run_at_most_once(
    world: World, *, committed: str
) -> None:
    world.start(run("EXTRACT", on_worker_lost="fail"))
    if committed == "before":
        world.reports.commit()
    [left] = world.runner.detach_unfinished()
    assert left.begun is (committed == "before")
    if committed == "after":
        world.reports.commit()
    assert world.executor.started == (["EXTRACT"] if committed == "before" else [])


def failed_before(name: str, failures: int) -> NodeRun:
    """The first node of a run, which has failed so often."""
    return NodeRun(101, f"REPORT_{name}", "REPORT", 1, "running", None, None, failures)


def test_the_failures_of_one_node_use_up_no_retry_of_another(world: World) -> None:
    nodes = (
        NodeRun(101, "REPORT_SEND", "REPORT", 1, "succeed", None, {"rows": 42}, failures=3),
        NodeRun(102, "REPORT_EXTRACT", "REPORT", 2, "running", None, None),
    )
    world.start(run(nodes=nodes, attempt=4, failures=3, retries=2))
    report = world.ended(failure=ValueError("no"))
    assert states(report) == [(102, "pending")]
    assert (report.nodes[0].failures, instance(report).failures) == (1, 4)
    assert (instance(report).reason or "").startswith("retry 1 of 2 after 10 s")


@pytest.mark.parametrize("name", ["EXTRACT", "SEND"])
def test_what_may_run_at_most_once_is_not_retried_whatever_its_task_and_its_nodes_say(world: World, name: str) -> None:
    world.start(run(name, "LOG", retries=5, on_worker_lost="fail"))
    world.reports.commit()
    report = world.ended(failure=ValueError("no"))
    assert states(report) == [(101, "failed"), (102, "canceled")]
    assert instance(report).status is InstanceStatus.FAILED


def test_a_timeout_of_what_may_run_at_most_once_is_not_retried(world: World) -> None:
    world.start(run("EXTRACT", retries=5, on_worker_lost="fail"))
    world.reports.commit()
    world.runner.stop(7, 1, "REPORT_EXTRACT timed out", canceled=False)
    assert instance(world.ended(stopped=True)).status is InstanceStatus.FAILED


def test_a_retry_is_due_after_its_delay_and_says_why(world: World) -> None:
    world.start(run(nodes=(failed_before("EXTRACT", 2),), retries=5, failures=2))
    told = instance(world.ended(failure=ValueError("no")))
    assert told.due_at is not None
    assert (told.due_at - NOON).total_seconds() == pytest.approx(40, abs=1)
    assert told.reason == "retry 3 of 5 after 40 s: node REPORT_EXTRACT failed: ValueError: no"


def test_a_retry_tells_when_its_attempt_started(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.clock.advance(1)
    world.ended({"rows": 42})
    world.reports.commit()
    world.clock.advance(4)
    assert instance(world.ended(failure=ValueError("no"))).gmt_started == NOON + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("task", "own", "failure", "why"),
    [
        ({"retry_on": ["OSError"]}, {}, ConnectionError("no"), None),
        ({"retry_on": ["OSError"]}, {}, ValueError("no"), "retry_on has only OSError"),
        ({"never_retry": ["OSError"]}, {}, ConnectionError("no"), "never_retry has OSError"),
        ({"never_retry": ["OSError"]}, {"never_retry": []}, ConnectionError("no"), None),
        ({"retry_on": ["OSError"]}, {"retry_on": ["ValueError"]}, ValueError("no"), None),
        ({}, {"retry_on": ["ValueError"]}, Retry("not yet"), None),
        ({"never_retry": ["Exception"]}, {}, Retry("not yet"), None),
    ],
)
def test_the_task_or_else_its_node_says_which_exceptions_are_retried(
    task: Any, own: Any, failure: Exception, why: str | None
) -> None:
    world = World({**NODES, "REPORT_EXTRACT": replace(NODES["REPORT_EXTRACT"], retry=own)})
    world.start(run("EXTRACT", "SEND", retries=2, **task))
    told = instance(world.ended(failure=failure))
    assert told.status is (InstanceStatus.PENDING if why is None else InstanceStatus.FAILED)
    if why is not None:
        error = f"{type(failure).__name__}: no"
        assert told.reason == f"node REPORT_EXTRACT failed: {error}; not retried: {why}"


def test_a_long_reason_is_cut_before_why_it_is_not_retried(world: World) -> None:
    world.start(run("EXTRACT", "SEND", retries=2, retry_on=[f"pkg.module.Error{number}" for number in range(200)]))
    told = instance(world.ended(failure=ValueError("x" * 5000))).reason or ""
    assert len(told) <= REASON_LIMIT
    assert told.startswith("node REPORT_EXTRACT failed: ValueError: xxx")
    assert "; not retried: retry_on has only pkg.module.Error0, " in told
    assert told.endswith("…")


@pytest.mark.parametrize(("never", "retried"), [("TimeoutError", False), ("ConnectionError", True)])
def test_a_timeout_may_be_chosen_as_an_exception(world: World, never: str, *, retried: bool) -> None:
    running = time_out(world, run("EXTRACT", retries=1, never_retry=[never]))
    running.end(stopped=True)
    told = instance(world.reports.seen[-1])
    assert told.status is (InstanceStatus.PENDING if retried else InstanceStatus.FAILED)


@pytest.mark.parametrize(("in_", "seconds"), [(None, 20), (300, 300), (timedelta(hours=2), 7200), (0, 0)])
def test_a_handler_says_when_it_is_to_be_retried_and_uses_up_an_attempt(world: World, in_: Any, seconds: float) -> None:
    world.start(run(nodes=(failed_before("EXTRACT", 1),), retries=2, failures=1))
    report = world.ended(failure=Retry("the file is not there yet", in_=in_))
    told = instance(report)
    assert (states(report), report.nodes[0].failures, told.failures) == ([(101, "pending")], 2, 2)
    assert told.due_at == NOON + timedelta(seconds=seconds)
    assert (told.reason or "").endswith(": node REPORT_EXTRACT failed: Retry: the file is not there yet")
    assert (told.reason or "").startswith("retry 2 of 2 after ")


def test_a_handler_that_asks_for_one_retry_too_many_fails(world: World) -> None:
    world.start(run(nodes=(failed_before("EXTRACT", 2),), retries=2, failures=2))
    told = instance(world.ended(failure=Retry("not yet", in_=300)))
    assert (told.status, told.due_at) == (InstanceStatus.FAILED, None)


def test_a_handler_that_gives_up_fails_whatever_retries_are_left(world: World) -> None:
    world.start(run("EXTRACT", "SEND", retries=5))
    report = world.ended(failure=Fail("the invoice was canceled"))
    assert states(report) == [(101, "failed"), (102, "canceled")]
    assert instance(report).reason == "node REPORT_EXTRACT failed: Fail: the invoice was canceled"
    said = json.loads(report.nodes[0].result or "")
    assert said["type"] == "Fail"
    assert "Fail: the invoice was canceled" in said["traceback"]


def test_an_attempt_that_restarts_runs_all_nodes_again_when_that_is_committed(world: World) -> None:
    done = NodeRun(101, "REPORT_EXTRACT", "REPORT", 1, "succeed", None, {"rows": 42}, failures=1)
    failed = NodeRun(102, "REPORT_SEND", "REPORT", 2, "running", None, None, failures=1)
    world.start(run(nodes=(done, failed), attempt=3, failures=2, on_retry="restart"))
    report = world.reports.seen[-1]
    assert (states(report), instance(report).status) == ([(101, "running"), (102, "pending")], InstanceStatus.RUNNING)
    assert (report.nodes[0].gmt_started, instance(report).gmt_started) == (NOON, NOON)
    assert world.executor.started == []
    world.reports.commit()
    assert (world.executor.started, world.executor.calls[0].context.results) == (["EXTRACT"], {})
    world.ended({"rows": 43})
    world.reports.commit()
    assert world.executor.calls[-1].context.results["EXTRACT"] == {"rows": 43}
    assert world.ended(failure=ValueError("no")).nodes[0].failures == 2, "what failed before still counts"


def test_what_may_run_at_most_once_does_not_restart(world: World) -> None:
    """Its worker has stopped, and given the nodes that are left to another one. What has run does not run again."""
    done = NodeRun(101, "REPORT_EXTRACT", "REPORT", 1, "succeed", None, {"rows": 42})
    left = NodeRun(102, "REPORT_SEND", "REPORT", 2, "pending", None, None)
    world.start(run(nodes=(done, left), attempt=2, on_retry="restart", on_worker_lost="fail"))
    world.reports.commit()
    assert world.executor.started == ["SEND"]
    assert world.executor.calls[0].context.results["EXTRACT"] == {"rows": 42}


def test_where_only_nodes_are_left_that_run_always_nothing_restarts(cleaning: World) -> None:
    """A cancel has nothing else to end, and must not let all run again."""
    nodes = (node(1, "EXTRACT", "succeed", {"rows": 42}), node(2, "SEND", "succeed"), node(3, "CLEANUP", "pending"))
    cleaning.start(run(nodes=nodes, attempt=2, on_retry="restart"))
    assert cleaning.executor.started == ["CLEANUP"]
    assert cleaning.executor.calls[0].context.results["EXTRACT"] == {"rows": 42}


def test_an_attempt_that_restarts_with_nothing_done_needs_no_commit(world: World) -> None:
    world.start(run("EXTRACT", "SEND", attempt=2, on_retry="restart"))
    assert world.executor.started == ["EXTRACT"]


def test_an_attempt_that_is_lost_before_it_restarts_runs_nothing(world: World) -> None:
    done = NodeRun(101, "REPORT_EXTRACT", "REPORT", 1, "succeed", None, {"rows": 42})
    failed = NodeRun(102, "REPORT_SEND", "REPORT", 2, "running", None, None, failures=1)
    world.start(run(nodes=(done, failed), attempt=2, on_retry="restart"))
    world.reports.commit(ours=False)
    assert (world.executor.started, len(world.runner)) == ([], 0)


def test_a_failure_is_told_with_its_type_and_traceback(world: World) -> None:
    world.start(run("EXTRACT"))
    report = world.ended(failure=ValueError("no such region"))
    said = json.loads(report.nodes[0].result or "")
    assert (said["type"], said["error"]) == ("ValueError", "ValueError: no such region")
    assert "ValueError: no such region" in said["traceback"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize("failure", [OSError("caf\udce9.txt"), Unprintable(), ValueError("x" * 5000)])
def test_whatever_a_handler_raises_its_failure_can_be_stored(world: World, failure: Exception) -> None:
    world.start(run("EXTRACT"))
    report = world.ended(failure=failure)
    (report.nodes[0].result or "").encode()
    reason = instance(report).reason or ""
    reason.encode()
    assert type(failure).__name__ in reason
    assert len(reason) <= 1000


class Holder(BaseModel):
    anything: Any


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({1, 2}, "returned what is not JSON: a set"),
        ({"at": NOON}, "returned what is not JSON: at is a datetime"),
        ({"x": [float("nan")]}, "returned what is not JSON: x[0] is nan"),
        (float("inf"), "returned what is not JSON: inf"),
        (Holder(anything=object()), "not JSON"),
        ("caf\udce9.txt", "half of a surrogate pair"),
        ("x" * LIMIT, "1,002 bytes of JSON; the limit is 1,000"),
        ("é" * (LIMIT // 2), "1,002 bytes"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_the_node_for_good(world: World, result: Any, said: str) -> None:
    world.start(run("EXTRACT", "SEND", retries=5))
    report = world.ended(result)
    assert states(report) == [(101, "failed"), (102, "canceled")]
    assert said in (instance(report).reason or "")


def test_a_result_as_large_as_the_limit_and_a_model_are_fine(world: World) -> None:
    world.start(run("EXTRACT", "LOG"))
    assert world.ended("x" * (LIMIT - 2)).nodes[0].status is NodeStatus.SUCCEED
    world.reports.commit()
    assert world.ended(Param(rows=3)).nodes[0].result == '{"rows":3}'


def test_a_value_that_holds_itself_is_refused_as_no_json() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidInput, match="a list is not JSON"):
        json_text(loop)


@pytest.mark.parametrize(
    ("of_the_task", "of_the_node", "seen"),
    [(None, None, {}), ({"a": 1}, None, {"a": 1}), ({"a": 1}, {"b": 2}, {"b": 2}), ({"a": 1}, {}, {})],
)
def test_a_nodes_own_param_goes_before_the_tasks(world: World, of_the_task: Any, of_the_node: Any, seen: Any) -> None:
    world.start(run(nodes=(NodeRun(101, "REPORT_LOG", "REPORT", 1, "pending", of_the_node, None),), param=of_the_task))
    assert world.executor.calls[0].context.param == seen


@pytest.mark.parametrize(("given", "rows"), [(None, 42), ({"rows": 3}, 3)])
def test_a_declared_param_is_checked_by_the_executor(
    world: World, monkeypatch: pytest.MonkeyPatch, given: Any, rows: int
) -> None:
    monkeypatch.setitem(NODES, "REPORT_EXTRACT", replace(NODES["REPORT_EXTRACT"], param_model=Param))
    world.start(run("EXTRACT", param=given))
    assert world.executor.calls[0].context.param == (given or {})
    assert world.executor.calls[0].call.checked().param == Param(rows=rows)


def test_a_param_that_does_not_fit_fails_the_node_for_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NODES, "REPORT_EXTRACT", replace(NODES["REPORT_EXTRACT"], param_model=Param))
    world.start(run("EXTRACT", "SEND", param={"rows": "many", "colour": 1}, retries=5))
    with pytest.raises(Refused) as refused:
        world.executor.calls[0].call.checked()
    report = world.ended(failure=refused.value)
    assert states(report) == [(101, "failed"), (102, "canceled")]
    assert "param of REPORT_EXTRACT: rows: " in (instance(report).reason or "")
    assert "colour: " in (instance(report).reason or "")


def test_a_param_that_cannot_be_read_fails_the_node_for_good_and_runs_nothing(world: World) -> None:
    world.start(run("EXTRACT", "SEND", param=UnreadableJson("it is nested too deeply"), retries=5))
    assert world.executor.calls == []
    report = world.reports.seen[0]
    assert states(report) == [(101, "failed"), (102, "canceled")]
    said = "param of REPORT_EXTRACT: JSON that cannot be read: it is nested too deeply"
    assert said in (instance(report).reason or "")


class Exiting(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit(1)


def test_a_result_whose_own_code_exits_ends_its_run_and_not_its_thread(world: World) -> None:
    world.start(run("EXTRACT"))
    assert "SystemExit" in (instance(world.ended(Exiting(a=1))).reason or "")


def test_a_node_that_this_worker_does_not_know_fails(world: World) -> None:
    world.start(run("NIGHT"))
    assert instance(world.reports.seen[0]).reason == "node REPORT_NIGHT failed: this worker cannot run REPORT_NIGHT"


def test_an_instance_with_no_nodes_fails_and_does_not_hang(world: World) -> None:
    world.start(replace(run(), nodes=()))
    assert instance(world.reports.commit()).status is InstanceStatus.FAILED
    assert len(world.runner) == 0


@pytest.mark.parametrize("refusal", [OSError("no more processes"), SystemExit("no more processes")])
def test_a_call_that_cannot_be_started_fails_the_node_and_not_the_thread(world: World, refusal: BaseException) -> None:
    world.executor.refusal = refusal
    world.start(run("EXTRACT"))
    assert f"{type(refusal).__name__}: no more processes" in (instance(world.reports.commit()).reason or "")


def test_a_run_for_which_the_machine_has_no_thread_is_pending_again_and_has_not_failed(world: World) -> None:
    world.executor.refusal = NoThread("can't start new thread")
    world.start(run("EXTRACT"))
    report = world.reports.commit()
    assert (states(report), instance(report).status, instance(report).failures) == ([(101, "pending")], "pending", None)
    assert instance(report).reason == "its worker could not start REPORT_EXTRACT: can't start new thread"
    assert (slots(world), len(world.runner)) == ((0, 0), 0)


def test_a_cancel_stops_what_runs_and_cancels_the_rest(world: World) -> None:
    world.start(run("EXTRACT", "SEND", retries=5))
    world.runner.stop(7, 1, "canceled", canceled=True)
    running = world.executor.calls[0]
    assert running.stopped
    assert running.context.cancel_requested
    report = world.ended(stopped=True)
    assert states(report) == [(101, "canceled"), (102, "canceled")]
    assert (instance(report).status, instance(report).reason) == (InstanceStatus.CANCELED, "canceled")
    assert instance(report).failures == 0


def test_a_result_that_came_before_the_stop_counts_and_the_next_node_is_not_run(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.runner.stop(7, 1, "canceled", canceled=True)
    assert states(world.ended({"rows": 1})) == [(101, "succeed"), (102, "running")]
    world.reports.commit()
    assert world.executor.started == ["EXTRACT"]
    assert states(world.reports.seen[-1]) == [(102, "canceled")]
    assert instance(world.reports.seen[-1]).status is InstanceStatus.CANCELED


def test_what_is_canceled_before_it_starts_never_runs(world: World) -> None:
    one = run("EXTRACT")
    world.runner.accept([one])
    world.runner.stop(7, 1, "canceled", canceled=True)
    world.runner.start([one])
    assert world.executor.calls == []
    assert instance(world.reports.seen[0]).status is InstanceStatus.CANCELED


def test_a_cancel_that_comes_while_a_call_is_being_started_stops_it(world: World) -> None:
    world.executor.meanwhile = lambda: world.runner.stop(7, 1, "canceled", canceled=True)
    world.start(run("EXTRACT"))
    assert world.executor.calls[0].stopped


@pytest.mark.parametrize(("instance_id", "attempt"), [(7, 2), (8, 1)])
def test_another_attempt_or_instance_is_not_stopped(world: World, instance_id: int, attempt: int) -> None:
    world.start(run("EXTRACT"))
    world.runner.stop(instance_id, attempt, "canceled", canceled=True)
    assert not world.executor.calls[0].stopped


@pytest.mark.parametrize(("name", "of_the_task", "limit"), [("EXTRACT", 5, 60), ("LOG", 5, 5), ("LOG", None, None)])
def test_a_node_that_exceeds_its_own_or_its_tasks_timeout_is_stopped_and_retried(
    world: World, name: str, of_the_task: int | None, limit: int | None
) -> None:
    world.start(run(name, timeout_seconds=of_the_task, retries=1))
    world.clock.advance((limit or 10**9) - 0.001)
    world.runner.stopping.expire()
    running = world.executor.calls[0]
    assert not running.stopped
    if limit is None:
        return
    world.clock.advance(0.001)
    world.runner.stopping.expire()
    assert running.stopped
    report = world.ended(stopped=True)
    assert instance(report).status is InstanceStatus.PENDING
    assert instance(report).reason == (
        f"retry 1 of 1 after 10 s: REPORT_{name} timed out after {limit} s at /app/jobs.py:42 in fetch; "
        "it began at 2026-11-19 12:00:00.000 UTC"
    )


def test_after_a_result_that_came_at_the_timeout_the_next_node_is_not_asked_to_stop(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.clock.advance(60)
    world.runner.stopping.expire()
    running = world.executor.calls[0]
    running.context.cancellation.request()  # as an executor does that asks its handler to stop
    assert states(world.ended({"rows": 1})) == [(101, "succeed"), (102, "running")]
    world.reports.commit()
    context = world.executor.calls[1].context
    assert (context.cancel_requested, context.results["EXTRACT"]) == (False, {"rows": 1})


def test_the_next_node_has_its_own_time(world: World) -> None:
    world.start(run("LOG", "LOG", timeout_seconds=10))
    world.clock.advance(9)
    world.ended(1)
    world.runner.stopping.expire()
    world.clock.advance(6)
    world.runner.stopping.expire()  # between the nodes nobody is late
    world.reports.commit()
    world.runner.stopping.expire()
    assert not world.executor.calls[1].stopped
    world.clock.advance(10)
    world.runner.stopping.expire()
    assert world.executor.calls[1].stopped


def test_who_is_out_of_time_is_stopped_within_a_tenth_of_a_second_and_nobody_looks_without_a_timeout(
    world: World,
) -> None:
    assert world.runner.stopping.expire() == math.inf
    world.runner.stopping.deadlines.loop.start()
    world.clock.advance(3600)
    world.start(run("LOG", timeout_seconds=100, id=1))
    world.clock.advance(50)
    world.start(run("LOG", timeout_seconds=10, id=2), run("LOG", timeout_seconds=10.05, id=3))
    first, second, third = world.executor.calls
    world.clock.advance(9.999)
    assert not second.stopped
    world.clock.advance(0.001)
    assert (first.stopped, second.stopped, third.stopped) == (False, True, False)
    world.clock.advance(DEADLINE_SECONDS)
    assert (first.stopped, third.stopped) == (False, True)
    assert world.runner.stopping.expire() == LONGEST_LOOK_SECONDS, "a thread's wait does not count the time in suspend"
    first.end(1)
    second.end(stopped=True)
    third.end(stopped=True)
    assert world.runner.stopping.expire() == math.inf
    world.runner.stopping.deadlines.loop.stop()


@pytest.mark.parametrize(("late", "said"), [(1.0, "succeed"), (1.2, "failed")])
def test_a_handler_that_returns_after_its_timeout_before_anybody_could_look_has_timed_out(
    world: World, late: float, said: str
) -> None:
    """One long call of C holds the interpreter: the thread that looks for deadlines does not go on meanwhile."""
    world.start(run("EXTRACT"))
    world.clock.advance(60 + late)
    report = world.ended({"rows": 42})
    assert report.nodes[0].status == said
    if said == "failed":
        assert (instance(report).reason or "").startswith("REPORT_EXTRACT timed out after 60 s")


def test_an_attempt_that_was_dropped_as_lost_is_not_run_again(world: World) -> None:
    """A node of a cluster that lags behind says that it is not ours, and then that it is."""
    lost = run()
    world.start(lost)
    world.executor.calls[0].end()
    world.reports.commit(ours=False)
    assert world.runner.accept([lost]) == []
    assert world.runner.held == set()
    again = replace(lost, attempt=lost.attempt + 1)
    assert world.runner.accept([again]) == [again]


def test_only_the_last_lost_attempts_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_attempts, "KEPT", 2)
    lost = [run(id=number) for number in (1, 2, 3)]
    world.start(*lost)
    for call in world.executor.calls:
        call.end()
        world.reports.commit(ours=False)
    assert world.runner.accept(lost) == [lost[0]]


def test_a_run_that_is_not_ours_any_more_is_dropped(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.ended(1)
    world.reports.commit(ours=False)
    assert (world.executor.started, len(world.runner), world.told) == (["EXTRACT"], 0, 2)


def test_an_instance_that_runs_here_is_not_taken_again(world: World) -> None:
    world.start(run("EXTRACT"))
    again, other = run("EXTRACT", attempt=2), run("EXTRACT", id=8)
    assert world.runner.accept([again, other]) == [other]
    world.runner.drop(8)
    assert world.runner.held == {(7, 1)}
    world.ended(1)
    world.reports.commit()
    assert world.runner.accept([again]) == [again]


def test_what_was_dropped_before_its_time_does_not_start(world: World) -> None:
    one = run("EXTRACT")
    world.runner.accept([one])
    world.runner.drop(7)
    world.runner.start([one])
    assert world.executor.calls == []
    assert slots(world) == (0, 0)


def test_what_is_detached_is_stopped_and_reports_nothing_more(world: World) -> None:
    world.start(run("EXTRACT"))
    waiting = run("LOG", id=8)
    world.runner.accept([waiting])
    left = world.runner.detach_unfinished()
    assert sorted(active.run.id for active in left) == [7, 8]
    assert world.executor.calls[0].stopped
    world.executor.calls[0].end(stopped=True)
    world.runner.start([waiting])
    assert (world.reports.seen, world.executor.started, len(world.runner)) == ([], ["EXTRACT"], 0)


@pytest.mark.parametrize(("nodes", "done"), [(["LOG"], 0), (["LOG", "SEND"], 1)])
def test_what_succeeds_although_its_worker_stops_is_kept_for_its_report(
    world: World, nodes: list[str], done: int
) -> None:
    world.start(run(*nodes))
    [active] = world.runner.detach_unfinished()
    running = world.executor.calls[0]
    running.linger()
    now = world.clock.monotonic()
    running.done(Outcome(now, now, {"rows": 7}, stopped=True, finished=True))
    assert active.last is not None
    assert (active.last.is_over, active.done, active.calls) == (done == 0, done, 0)
    assert (states(active.last)[0], active.last.nodes[0].result) == ((101, "succeed"), '{"rows":7}')
    assert world.reports.seen == []


@pytest.mark.parametrize("canceled", [False, True])
@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_what_does_not_succeed_while_its_worker_stops_is_not_kept(world: World, how: str, canceled: bool) -> None:
    world.start(run("LOG"))
    if canceled:
        world.runner.stop(7, 1, "canceled", canceled=True)
    [active] = world.runner.detach_unfinished()
    if how == "failed":
        world.executor.calls[0].end(failure=ValueError("no"))
    else:
        world.executor.calls[0].end(7, stopped=True)
    assert (active.last, active.calls) == (None, 0)


@pytest.mark.parametrize("canceled", [True, False])
def test_what_returns_though_it_is_to_stop_has_succeeded_also_while_its_worker_stops(canceled: bool) -> None:
    for is_stopping in (False, True):
        world = World({"REPORT_LOG": node_type("LOG", timeout=60)})
        world.start(run("LOG"))
        if canceled:
            world.runner.stop(7, 1, "canceled", canceled=True)
        else:
            world.clock.advance(60)
            world.runner.stopping.expire()
        [active] = world.runner.detach_unfinished() if is_stopping else [None]
        world.executor.calls[0].end(7)
        report = world.reports.seen[-1] if active is None else active.last
        assert report is not None
        assert (states(report)[0], report.nodes[0].result) == ((101, "succeed"), "7"), is_stopping


def test_a_commit_after_it_was_detached_starts_nothing(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.ended(1)
    world.runner.detach_unfinished()
    world.reports.commit()
    assert world.executor.started == ["EXTRACT"]


def test_times_are_the_databases_and_in_order(world: World) -> None:
    world.start(run("EXTRACT"))
    world.clock.advance(1)
    report = world.ended(1)
    node: NodeReport = report.nodes[0]
    assert node.gmt_started is not None
    assert node.gmt_completed is not None
    assert NOON <= node.gmt_started <= node.gmt_completed < NOON + timedelta(minutes=1)
    assert (instance(report).gmt_started, instance(report).gmt_completed) == (node.gmt_started, node.gmt_completed)


@pytest.mark.parametrize(("early", "told"), [(0.005, 0.0), (0.3, 0.3)])
def test_a_handler_that_was_entered_before_it_was_due_is_recorded_as_it_was(
    world: World, early: float, told: float
) -> None:
    """The clock was set back meanwhile. Only what two measurements of one clock may differ by counts as due."""
    due = NOON + timedelta(seconds=early)
    world.start(run("EXTRACT", due_at=due))
    report = world.ended(1)
    assert report.nodes[0].gmt_started == instance(report).gmt_started == due - timedelta(seconds=told)


def time_out(world: World, one: Run) -> Running:
    """Start a run whose only node times out on a thread that does not return."""
    world.start(one)
    running = world.executor.calls[-1]
    world.clock.advance(60)
    world.runner.stopping.expire()
    assert running.stopped
    running.linger()
    return running


def test_a_timed_out_thread_that_returns_within_its_grace_ends_as_any_other(world: World) -> None:
    running = time_out(world, run("EXTRACT"))
    world.clock.advance(GRACE / 2)
    world.runner.stopping.expire()
    assert world.reports.seen == []
    running.end(stopped=True)
    assert (instance(world.reports.seen[0]).status, instance(world.reports.seen[0]).lingers) == ("failed", False)
    assert (slots(world), world.slots.busy, len(world.runner.lingering)) == ((0, 0), 0, 0)


def test_a_timed_out_thread_with_no_retry_left_fails_at_once_and_keeps_its_slots(world: World) -> None:
    running = time_out(world, run("EXTRACT"))
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    report = world.reports.commit()
    assert states(report) == [(101, "failed")]
    assert (instance(report).status, instance(report).lingers) == ("failed", True)
    assert (world.slots.busy, world.slots.idle(), len(world.runner), len(world.runner.lingering)) == (1, 49, 0, 1)
    assert world.runner.lingering.returned() == set()
    running.end(stopped=True)
    assert (world.slots.busy, world.slots.idle(), len(world.runner.lingering)) == (0, 50, 0)
    assert world.runner.lingering.returned() == {7}
    assert len(world.reports.seen) == 1


@pytest.mark.parametrize("entered", [True, False])
def test_what_lingers_began_when_its_handler_was_entered_or_never(world: World, entered: bool) -> None:
    began = world.clock.now()
    world.start(run("EXTRACT"))
    running = world.executor.calls[-1]
    running.entered = running.entered if entered else None
    world.clock.advance(60)
    world.runner.stopping.expire()
    running.linger()
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    report = world.reports.seen[0]
    assert report.nodes[0].gmt_completed == world.clock.now()
    assert report.nodes[0].gmt_started == instance(report).gmt_started == (began if entered else None)
    since = "at /app/jobs.py:42 in fetch; it began at" if entered else "before its handler began; it waited since"
    still = "; its thread did not end within the grace and still ran on worker 'w1'"
    assert instance(report).reason == f"REPORT_EXTRACT timed out after 60 s {since} 2026-11-19 12:00:00.000 UTC{still}"


def test_a_process_says_with_its_end_where_it_stood_and_what_it_had_to_tell(world: World) -> None:
    world.start(run("EXTRACT"))
    running = world.executor.calls[-1]
    running.place = None
    world.clock.advance(60)
    world.runner.stopping.expire()
    now = world.clock.monotonic()
    running.done(Outcome(running.entered, now, stopped=True, place="/app/jobs.py:7 in hang"))
    reason = instance(world.reports.seen[0]).reason or ""
    assert "timed out after 60 s at /app/jobs.py:7 in hang; it began at" in reason


@pytest.mark.parametrize("how", ["canceled before it starts", "unknown", "refused"])
def test_a_node_whose_handler_was_not_entered_has_no_start(world: World, how: str) -> None:
    one = run("NIGHT" if how == "unknown" else "LOG")
    world.runner.accept([one])
    if how == "refused":
        world.executor.refusal = OSError("no more processes")
    if how == "canceled before it starts":
        world.runner.stop(7, 1, "canceled", canceled=True)
    world.runner.start([one])
    report = world.reports.seen[0]
    assert (report.nodes[0].gmt_started, report.nodes[0].gmt_completed) == (None, world.clock.now())
    assert instance(report).gmt_started is None, "the row keeps the time of its claim"


def test_the_slots_of_a_thread_that_returns_before_the_commit_are_freed_after_it(world: World) -> None:
    running = time_out(world, run("EXTRACT"))
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    running.end(stopped=True)
    assert world.runner.lingering.returned() == set()
    world.reports.commit()
    assert world.runner.lingering.returned() == {7}


def test_a_timed_out_thread_with_retries_is_retried_when_it_has_returned(world: World) -> None:
    running = time_out(world, run("EXTRACT", retries=1))
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    waits = world.reports.commit()
    assert (states(waits), instance(waits).status) == ([(101, "running")], "running")
    assert (waits.nodes[0].failures, instance(waits).failures) == (1, 1)
    assert instance(waits).due_at is None
    assert "waits until its handler returns" in (instance(waits).reason or "")
    assert (slots(world), world.runner.held) == ((1, 1), {(7, 1)})
    world.clock.advance(100)
    world.runner.stopping.expire()
    assert len(world.reports.seen) == 1
    running.end(stopped=True)
    report = world.reports.commit()
    assert (states(report), instance(report).status, instance(report).failures) == ([(101, "pending")], "pending", 1)
    assert "REPORT_EXTRACT timed out" in (instance(report).reason or "")
    assert (slots(world), len(world.runner), len(world.runner.lingering)) == ((0, 0), 0, 0)
    assert world.runner.lingering.longest == 0


def test_a_cancel_ends_what_waits_for_its_thread_to_be_retried(world: World) -> None:
    running = time_out(world, run("EXTRACT", retries=1))
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    world.reports.commit()
    world.runner.stop(7, 1, "canceled", canceled=True)
    world.runner.stopping.expire()
    report = world.reports.commit()
    assert (instance(report).status, instance(report).lingers) == ("canceled", True)
    running.end(stopped=True)
    assert world.runner.lingering.returned() == {7}


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("lingers", [True, False])
def test_a_cancel_counts_also_in_the_grace_of_a_timeout(world: World, retries: int, *, lingers: bool) -> None:
    world.start(run("EXTRACT", "SEND", retries=retries))
    running = world.executor.calls[-1]
    world.clock.advance(60)
    world.runner.stopping.expire()
    if lingers:
        running.linger()
    world.runner.stop(7, 1, "canceled by hand", canceled=True)
    world.clock.advance(GRACE / 2)
    world.runner.stopping.expire()
    assert (world.reports.seen, running.killed) == ([], False), "it keeps its grace"
    running.end(stopped=True)
    report = world.reports.commit()
    assert states(report) == [(101, "canceled"), (102, "canceled")]
    assert (instance(report).status, instance(report).reason) == ("canceled", "canceled by hand")


def stop_in_vain(world: World, one: Run, *, canceled: bool) -> Running:
    """Start a run whose only node is stopped, and is a coroutine that blocks the loop: nobody hears of it."""
    world.start(one)
    if canceled:
        world.runner.stop(one.id, one.attempt, "canceled", canceled=True)
    else:
        world.clock.advance(60)
        world.runner.stopping.expire()
    assert world.executor.calls[-1].stopped
    world.clock.advance(GRACE - 0.01)
    world.runner.stopping.expire()
    assert not world.executor.calls[-1].killed
    world.clock.advance(0.01)
    world.runner.stopping.expire()
    assert world.executor.calls[-1].killed
    world.clock.advance(KILLED_SECONDS - 0.01)
    world.runner.stopping.expire()
    assert (world.reports.seen, len(world.runner.lingering)) == ([], 0)
    world.clock.advance(0.01)
    world.runner.stopping.expire()
    return world.executor.calls[-1]


@pytest.mark.parametrize("canceled", [True, False])
def test_a_coroutine_that_does_not_end_when_it_is_stopped_lingers_as_a_thread_does(
    world: World, canceled: bool
) -> None:
    running = stop_in_vain(world, run("EXTRACT"), canceled=canceled)
    report = world.reports.commit()
    assert (instance(report).status, instance(report).lingers) == ("canceled" if canceled else "failed", True)
    assert (world.slots.busy, len(world.runner), len(world.runner.lingering)) == (1, 0, 1)
    world.clock.advance(100)
    assert world.runner.lingering.longest == 100
    running.end(stopped=True)
    assert (world.slots.busy, world.runner.lingering.returned(), len(world.reports.seen)) == (0, {7}, 1)


def test_a_coroutine_that_does_not_end_at_its_timeout_is_retried_when_it_has_ended(world: World) -> None:
    running = stop_in_vain(world, run("EXTRACT", retries=1), canceled=False)
    assert "waits until its handler returns" in (instance(world.reports.commit()).reason or "")
    running.end(stopped=True)
    assert (instance(world.reports.commit()).status, world.runner.lingering.longest) == ("pending", 0)


def test_a_run_that_is_lost_while_its_thread_lingers_leaves_the_slot_to_the_thread(world: World) -> None:
    running = time_out(world, run("EXTRACT", retries=1))
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    world.reports.commit(ours=False)
    assert (len(world.runner), world.slots.busy) == (0, 1)
    running.end(stopped=True)
    assert (world.slots.busy, len(world.reports.seen)) == (0, 1)


def test_what_is_detached_is_over_when_its_handler_has_ended(world: World) -> None:
    world.start(run("EXTRACT"))
    [active] = world.runner.detach_unfinished()
    running = world.executor.calls[0]
    assert active.calls == 1
    running.linger()
    world.clock.advance(7)
    assert (active.calls, world.runner.lingering.longest) == (1, 7)
    running.end(stopped=True)
    assert (active.calls, len(world.runner.lingering), world.reports.seen) == (0, 0, [])


def test_the_last_node_says_when_its_task_runs_again_and_its_result_is_kept(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.ended({"rows": 42})
    world.reports.commit()
    world.clock.advance(30)
    end = instance(world.ended(RunAgain(in_=60, result={"sent": 1})))
    assert (end.status, end.result) == (InstanceStatus.SUCCEED, '{"sent":1}')
    assert end.again == world.clock.now() + timedelta(seconds=60)


def test_another_node_may_not_say_it(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    end = instance(world.ended(RunAgain(in_=60)))
    assert (end.status, end.again) == (InstanceStatus.FAILED, None)
    assert end.reason == (
        "node REPORT_EXTRACT failed: REPORT_EXTRACT returned RunAgain: only the last node of an instance may"
    )


@pytest.mark.parametrize("parent", [3, None], ids=["a shard", "the replay of one"])
def test_a_shard_may_not_say_it(world: World, parent: int | None) -> None:
    world.start(run("SEND", shard=Shard(parent, 0, 2, is_part=True)))
    end = instance(world.ended(RunAgain(in_=60)))
    assert (end.status, end.again) == (InstanceStatus.FAILED, None)
    assert "a shard may not, its task would run as a whole" in str(end.reason)


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (RunAgain(at=datetime.fromisoformat("9999-12-31T00:00:00")), "is too far from now"),
        (RunAgain(in_=1, result={1, 2}), "returned what is not JSON"),
    ],
)
def test_what_cannot_be_stored_fails(world: World, again: RunAgain, said: str) -> None:
    world.start(run("SEND"))
    end = instance(world.ended(again))
    assert (end.status, end.again) == (InstanceStatus.FAILED, None)
    assert said in str(end.reason)


def test_a_run_that_is_canceled_or_fails_does_not_run_again(world: World) -> None:
    world.start(run("SEND"))
    world.runner.stop(7, 1, "canceled by hand", canceled=True)
    end = instance(world.ended(RunAgain(in_=60), stopped=True))
    assert (end.status, end.again) == (InstanceStatus.CANCELED, None)


# A handler ends the run early


def test_the_run_ends_as_a_success_and_the_nodes_after_it_are_skipped(world: World) -> None:
    world.start(run("EXTRACT", "LOG", "SEND"))
    report = world.ended(EndRun({"new": 0}))
    end = instance(report)
    assert (end.status, end.result, end.reason) == (InstanceStatus.SUCCEED, '{"new":0}', None)
    assert [(node.status, node.result, node.gmt_started is None) for node in report.nodes] == [
        (NodeStatus.SUCCEED, '{"new":0}', False),
        (NodeStatus.SKIPPED, None, True),
        (NodeStatus.SKIPPED, None, True),
    ]


def test_the_last_node_may_say_it_too(world: World) -> None:
    world.start(run("SEND"))
    end = instance(world.ended(EndRun()))
    assert (end.status, end.result) == (InstanceStatus.SUCCEED, "null")


def test_an_early_end_whose_result_cannot_be_stored_is_a_failure(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    end = instance(world.ended(EndRun({1, 2})))
    assert end.status is InstanceStatus.FAILED
    assert "returned what is not JSON" in str(end.reason)


def test_a_run_that_was_canceled_does_not_succeed_by_an_early_end(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.runner.stop(7, 1, "canceled by hand", canceled=True)
    end = instance(world.ended(EndRun(), stopped=True))
    assert end.status is InstanceStatus.CANCELED


# The limit for a whole run


def test_a_run_that_exceeds_its_limit_is_stopped_in_the_node_that_runs_and_retried(world: World) -> None:
    world.start(run("LOG", "SEND", run_timeout_seconds=90, retries=1))
    world.clock.advance(60)
    world.ended({"rows": 42})
    world.reports.commit()
    world.clock.advance(29.999)
    world.runner.stopping.expire()
    running = world.executor.calls[1]
    assert not running.stopped
    world.clock.advance(0.001)
    world.runner.stopping.expire()
    assert running.stopped
    report = world.ended(stopped=True)
    assert states(report) == [(102, "pending")]
    assert instance(report).status is InstanceStatus.PENDING
    assert instance(report).reason == (
        "retry 1 of 3 after 10 s: the run timed out after 90 s in REPORT_SEND at /app/jobs.py:42 in fetch; "
        "the run began at 2026-11-19 12:00:00.000 UTC"
    )


@pytest.mark.parametrize(("run_limit", "said"), [(30, "the run timed out after 30 s"), (61, "REPORT_EXTRACT timed")])
def test_the_earlier_of_the_limits_of_node_and_run_counts(world: World, run_limit: int, said: str) -> None:
    world.start(run("EXTRACT", run_timeout_seconds=run_limit))
    world.clock.advance(min(run_limit, 60))
    world.runner.stopping.expire()
    assert (instance(world.ended(stopped=True)).reason or "").startswith(said)


def test_the_limit_of_a_run_counts_while_it_waits_between_two_nodes(world: World) -> None:
    world.start(run("EXTRACT", "SEND", run_timeout_seconds=10, on_worker_lost="fail"))
    world.reports.commit()
    world.ended({"rows": 42})
    world.clock.advance(10)
    world.runner.stopping.expire()
    world.reports.commit()
    report = world.reports.seen[-1]
    assert world.executor.started == ["EXTRACT"]
    assert states(report) == [(102, "failed")]
    assert (instance(report).reason or "").startswith("the run timed out after 10 s in REPORT_SEND before its handler")


def test_a_run_that_waits_in_line_for_a_slot_is_over_at_its_limit() -> None:
    world = World(NODES, capacity=1)
    world.start(run("EXTRACT", "LOG", run_timeout_seconds=10))
    world.ended({"rows": 42})
    other = run("EXTRACT", id=8)
    world.start(other)
    world.reports.commit()
    assert world.executor.started == ["EXTRACT", "EXTRACT"]
    world.clock.advance(10)
    world.runner.stopping.expire()
    assert world.reports.seen[-1].instance_id == 7
    assert instance(world.reports.seen[-1]).status is InstanceStatus.FAILED


def test_a_handler_that_ends_just_as_its_run_times_out_lets_no_further_node_begin(world: World) -> None:
    world.start(run("EXTRACT", "LOG", run_timeout_seconds=10))
    world.clock.advance(10)
    world.runner.stopping.expire()
    assert states(world.ended({"rows": 42})) == [(101, "succeed"), (102, "running")]
    world.runner.stopping.expire()
    world.reports.commit()
    assert world.executor.started == ["EXTRACT"]
    assert states(world.reports.seen[-1]) == [(102, "failed")]


def test_what_ends_in_its_grace_after_its_runs_limit_lets_no_further_node_begin(world: World) -> None:
    world.start(run("EXTRACT", "LOG", run_timeout_seconds=10))
    world.clock.advance(10)
    world.runner.stopping.expire()
    assert states(world.ended({"rows": 42})) == [(101, "succeed"), (102, "running")]
    world.reports.commit()
    assert world.executor.started == ["EXTRACT"]
    assert states(world.reports.seen[-1]) == [(102, "failed")]
    said = "the run timed out after 10 s in REPORT_LOG before"
    assert (instance(world.reports.seen[-1]).reason or "").startswith(said)


def test_each_attempt_has_the_whole_limit(world: World) -> None:
    world.start(run("LOG", run_timeout_seconds=10, retries=1))
    world.clock.advance(10)
    world.runner.stopping.expire()
    world.ended(stopped=True)
    world.reports.commit()
    world.clock.advance(3600)
    world.start(run("LOG", run_timeout_seconds=10, retries=1, attempt=2))
    world.clock.advance(9.999)
    world.runner.stopping.expire()
    assert not world.executor.calls[-1].stopped


def test_a_run_without_a_limit_sets_no_deadline(world: World) -> None:
    world.start(run("LOG"))
    assert world.runner.stopping.expire() == math.inf


def test_whoever_drops_a_run_those_who_wait_for_it_are_told_once() -> None:
    told: list[Run] = []
    world, one = World(NODES), run()
    runner = Runner(
        NODES, {}, world.reports, world.slots, world.clock, result_limit_bytes=LIMIT, grace_seconds=1, gone=told.append
    )
    runner.accept([one])
    runner.drop(one.id)
    runner.drop(one.id)
    assert told == [one]


# Nodes that run always


CLEANUPS = {
    node.type: node for node in (node_type("CLEANUP", always=True, timeout=30), node_type("NOTIFY", always=True))
}
ORDER = ("EXTRACT", "SEND", "CLEANUP", "LOG", "NOTIFY")


@pytest.fixture
def cleaning() -> World:
    return World({**NODES, **CLEANUPS})


def now_runs(world: World, name: str, status: str, why: str = "") -> NodeContext[Any]:
    """Commit what was reported: then this node runs, and is told how the run has ended."""
    world.reports.commit()
    context = world.executor.calls[-1].context
    assert (context.node_type, context.run_status) == (f"REPORT_{name}", status)
    assert why in (context.run_reason or "")
    return context


def test_after_a_failure_the_nodes_that_run_always_run_in_order_and_the_failure_stays(cleaning: World) -> None:
    cleaning.start(run(*ORDER))
    cleaning.ended({"rows": 42})
    cleaning.reports.commit()
    decided = cleaning.ended(failure=Fail("no mail server"))
    assert states(decided) == [(102, "failed"), (104, "canceled"), (103, "running")]
    assert (instance(decided).status, decided.fails) == (InstanceStatus.RUNNING, True)
    context = now_runs(cleaning, "CLEANUP", "failed", "node REPORT_SEND failed: Fail: no mail server")
    assert (dict(context.results), context.cancel_requested) == (
        {"EXTRACT": {"rows": 42}, "REPORT_EXTRACT": {"rows": 42}},
        False,
    )
    cleaned = cleaning.ended({"removed": 1})
    assert (states(cleaned), cleaned.fails) == ([(103, "succeed"), (105, "running")], False)
    assert now_runs(cleaning, "NOTIFY", "failed", "no mail server").results["CLEANUP"] == {"removed": 1}
    report = cleaning.ended()
    assert states(report) == [(105, "succeed"), (102, "failed")]
    end = instance(report)
    assert (end.status, end.failures, report.has_failed, report.fails) == (InstanceStatus.FAILED, 1, True, False)
    assert end.reason == "node REPORT_SEND failed: Fail: no mail server"
    assert json.loads(end.result or "") == {"error": end.reason, "node": "REPORT_SEND"}
    cleaning.reports.commit()
    assert (len(cleaning.runner), cleaning.slots.busy) == (0, 0)


def test_they_do_not_run_before_a_retry_but_at_the_end_of_the_last_attempt(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP", retries=1))
    assert states(cleaning.ended(failure=ValueError("no"))) == [(101, "pending")]
    cleaning.reports.commit()
    once_failed = NodeRun(101, "REPORT_LOG", "REPORT", 1, "pending", None, None, failures=1)
    cleanup = NodeRun(102, "REPORT_CLEANUP", "REPORT", 2, "pending", None, None)
    cleaning.start(run(nodes=(once_failed, cleanup), retries=1, attempt=2, failures=1))
    assert states(cleaning.ended(failure=ValueError("no"))) == [(101, "failed"), (102, "running")]
    now_runs(cleaning, "CLEANUP", "failed")
    assert instance(cleaning.ended()).failures == 2


def test_where_all_goes_well_they_run_as_the_others_and_the_result_stays_that_of_the_last_other(
    cleaning: World,
) -> None:
    cleaning.start(run("LOG", "CLEANUP"))
    assert states(cleaning.ended({"sent": 3})) == [(101, "succeed"), (102, "running")]
    now_runs(cleaning, "CLEANUP", "running")
    report = cleaning.ended({"removed": 1})
    assert report.is_plain_success
    assert (report.nodes[0].result, instance(report).result) == ('{"removed":1}', '{"sent":3}')


def test_after_an_early_end_they_run_and_it_is_a_success_with_its_own_result(cleaning: World) -> None:
    cleaning.start(run(*ORDER))
    assert states(cleaning.ended(EndRun({"new": 0}))) == [
        (101, "succeed"), (102, "skipped"), (104, "skipped"), (103, "running"),
    ]  # fmt: skip
    now_runs(cleaning, "CLEANUP", "succeed")
    cleaning.ended({"removed": 1})
    now_runs(cleaning, "NOTIFY", "succeed")
    end = instance(cleaning.ended(RunAgain(in_=60)))
    assert (end.status, end.result, end.reason) == (InstanceStatus.SUCCEED, '{"new":0}', None)
    assert end.again == NOON + timedelta(seconds=60)


def test_an_early_end_that_skips_no_node_goes_on_as_any_run(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP"))
    assert cleaning.ended(EndRun({"new": 0})).is_plain_step
    now_runs(cleaning, "CLEANUP", "running")
    assert instance(cleaning.ended({"removed": 1})).result == '{"new":0}'


def test_one_of_them_that_fails_makes_a_success_a_failure_and_the_others_run_all_the_same(cleaning: World) -> None:
    cleaning.start(run(*ORDER))
    cleaning.ended(EndRun({"new": 0}))
    cleaning.reports.commit()
    assert states(cleaning.ended(failure=Fail("disk"))) == [(103, "failed"), (105, "running")]
    now_runs(cleaning, "NOTIFY", "failed", "node REPORT_CLEANUP failed: Fail: disk")
    end = instance(cleaning.ended(RunAgain(in_=60)))
    assert (end.status, end.reason, end.again) == ("failed", "node REPORT_CLEANUP failed: Fail: disk", None)


def test_one_of_them_that_fails_does_not_hide_the_failure_before_it(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP"))
    cleaning.ended(failure=Fail("first"))
    cleaning.reports.commit()
    report = cleaning.ended(failure=Fail("second"))
    assert states(report) == [(102, "failed"), (101, "failed")]
    end = instance(report)
    assert end.reason == "node REPORT_LOG failed: Fail: first; then node REPORT_CLEANUP failed: Fail: second"
    assert json.loads(end.result or "")["node"] == "REPORT_LOG"


def test_one_of_them_that_fails_in_a_run_that_goes_well_ends_it_as_any_node(cleaning: World) -> None:
    cleaning.start(run("CLEANUP", "LOG", "NOTIFY"))
    assert states(cleaning.ended(failure=Fail("disk"))) == [(101, "failed"), (102, "canceled"), (103, "running")]
    now_runs(cleaning, "NOTIFY", "failed", "disk")


def test_a_cancel_stops_the_node_that_runs_and_none_that_runs_always(cleaning: World) -> None:
    cleaning.start(run(*ORDER))
    cleaning.runner.stop(7, 1, "canceled by hand", canceled=True)
    assert cleaning.executor.calls[0].stopped
    decided = cleaning.ended(stopped=True)
    assert states(decided) == [(101, "canceled"), (102, "canceled"), (104, "canceled"), (103, "running")]
    assert decided.nodes[0].result == '{"error":"canceled by hand"}', "whoever goes on elsewhere reads it"
    context = now_runs(cleaning, "CLEANUP", "canceled", "canceled by hand")
    cleaning.runner.stop(7, 1, "canceled", canceled=True)  # as at each comparison with the rows
    assert (cleaning.executor.calls[-1].stopped, context.cancel_requested) == (False, False)
    cleaning.ended()
    now_runs(cleaning, "NOTIFY", "canceled", "canceled by hand")
    end = instance(cleaning.ended(failure=ConnectionError("no mail server")))
    assert (end.status, end.failures) == (InstanceStatus.CANCELED, 0)
    assert end.reason == "canceled by hand; then node REPORT_NOTIFY failed: ConnectionError: no mail server"
    assert end.note == "; then node REPORT_NOTIFY failed: ConnectionError: no mail server"


def test_a_cancel_that_comes_while_one_of_them_runs_cancels_the_next_other_node(cleaning: World) -> None:
    cleaning.start(run("CLEANUP", "LOG", "NOTIFY"))
    cleaning.runner.stop(7, 1, "canceled", canceled=True)
    assert not cleaning.executor.calls[0].stopped
    cleaning.ended({"removed": 1})
    cleaning.reports.commit()
    assert states(cleaning.reports.seen[-1]) == [(102, "canceled"), (103, "running")]
    now_runs(cleaning, "NOTIFY", "canceled")
    assert instance(cleaning.ended()).status is InstanceStatus.CANCELED


def test_a_cancel_that_finds_no_other_node_to_cancel_leaves_a_success(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP"))
    cleaning.ended({"sent": 1})
    cleaning.reports.commit()
    cleaning.runner.stop(7, 1, "canceled", canceled=True)
    assert instance(cleaning.ended()).status is InstanceStatus.SUCCEED


def test_a_cancel_between_two_nodes_lets_the_next_run_in_a_slot_if_it_runs_always() -> None:
    world = World({**NODES, **CLEANUPS}, capacity=1)
    world.start(run("EXTRACT", "CLEANUP", id=1))
    world.executor.calls[-1].end(1)
    world.start(run("EXTRACT", id=2))
    world.runner.stop(1, 1, "canceled", canceled=True)
    world.reports.commit()
    assert (world.executor.started, world.slots.line) == (["EXTRACT", "EXTRACT"], 1)
    world.executor.calls[1].end(2)
    assert world.slots.next_in_line() is not None


def test_a_run_that_is_canceled_before_any_handler_was_entered_has_nothing_to_clean_up(cleaning: World) -> None:
    one = run("CLEANUP", "LOG", "NOTIFY")
    cleaning.runner.accept([one])
    cleaning.runner.stop(7, 1, "canceled", canceled=True)
    cleaning.runner.start([one])
    [report] = cleaning.reports.seen
    assert states(report) == [(101, "canceled"), (102, "canceled"), (103, "canceled")]
    assert (instance(report).status, cleaning.executor.calls) == (InstanceStatus.CANCELED, [])


def test_the_limit_of_the_run_ends_no_node_that_runs_always_but_its_own_does(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP", run_timeout_seconds=10))
    cleaning.clock.advance(10)
    cleaning.runner.stopping.expire()
    assert states(cleaning.ended(stopped=True)) == [(101, "failed"), (102, "running")]
    now_runs(cleaning, "CLEANUP", "failed", "the run timed out after 10 s in REPORT_LOG")
    cleaning.clock.advance(29.9)
    cleaning.runner.stopping.expire()
    assert not cleaning.executor.calls[-1].stopped
    cleaning.clock.advance(0.1)
    cleaning.runner.stopping.expire()
    assert cleaning.executor.calls[-1].stopped
    end = instance(cleaning.ended(stopped=True))
    assert "the run timed out after 10 s" in str(end.reason)
    assert "; then REPORT_CLEANUP timed out after 30 s" in str(end.reason)


def test_the_limit_of_the_run_waits_for_a_node_that_runs_always_and_ends_the_next_other(cleaning: World) -> None:
    cleaning.start(run("NOTIFY", "LOG", run_timeout_seconds=10))
    cleaning.clock.advance(60)
    cleaning.runner.stopping.expire()
    assert not cleaning.executor.calls[-1].stopped
    cleaning.ended()
    cleaning.runner.stopping.expire()
    cleaning.reports.commit()
    assert states(cleaning.reports.seen[-1]) == [(102, "failed")]
    assert cleaning.executor.started == ["NOTIFY"]


def test_without_a_timeout_of_its_own_nothing_stops_it(cleaning: World) -> None:
    cleaning.start(run("LOG", "NOTIFY", run_timeout_seconds=10))
    cleaning.ended()
    cleaning.reports.commit()
    cleaning.clock.advance(3600)
    cleaning.runner.stopping.expire()
    assert (cleaning.executor.started, cleaning.executor.calls[-1].stopped) == (["LOG", "NOTIFY"], False)


def test_an_early_end_that_sql_has_revived_runs_the_nodes_that_were_skipped(cleaning: World) -> None:
    nodes = (node(1, "EXTRACT", "succeed", 1), node(2, "LOG", "running"), node(3, "SEND", "skipped"))
    cleaning.start(run(nodes=nodes, attempt=2))
    assert states(cleaning.ended()) == [(102, "succeed"), (103, "running")]


def test_a_result_that_the_database_refuses_leaves_the_first_failure_as_it_is(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP"))
    cleaning.ended(failure=Fail("first"))
    cleaning.reports.commit()
    last = cleaning.ended({"removed": 1})
    refused = endings.refused(last, "too large")
    assert states(refused) == [(102, "failed"), (101, "failed")]
    assert ["first" in (one.result or "") for one in refused.nodes] == [False, True]
    end = instance(refused)
    assert (end.status, end.failures) == (InstanceStatus.FAILED, 1)
    why = "node REPORT_LOG failed: Fail: first; then the result could not be stored: too large"
    assert (end.reason, json.loads(end.result or "")["node"]) == (why, "REPORT_LOG")


@pytest.mark.parametrize(("state", "why"), [("failed", "no"), ("canceled", "canceled by hand")])
@pytest.mark.parametrize("fails", [False, True])
def test_what_had_ended_on_another_worker_has_so_also_if_the_last_report_is_refused(
    cleaning: World, state: str, why: str, fails: bool
) -> None:
    nodes = (node(1, "LOG", state, {"error": why}), node(2, "CLEANUP", "running"))
    cleaning.start(run(nodes=nodes, attempt=2))
    last = cleaning.ended(failure=Fail("full")) if fails else cleaning.ended({"removed": 1})
    refused = endings.refused(last, "too large")
    assert states(refused) == [(102, "failed")]
    end, before = instance(refused), instance(last)
    error = "; then the result could not be stored: too large"
    assert (end.status, end.reason) == (state, f"{before.reason}{error}")
    assert (end.result, end.failures) == (before.result, before.failures)
    assert end.note == f"{before.note or ''}{error}"


def test_the_first_failure_stays_if_the_report_of_one_of_them_is_refused_before_the_last(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP", "NOTIFY"))
    cleaning.ended(failure=Fail("first"))
    cleaning.reports.commit()
    refused = endings.refused(cleaning.ended(failure=Fail("second")), "too large")
    assert (states(refused), instance(refused).status) == ([(102, "failed"), (103, "canceled")], "failed")
    assert str(instance(refused).reason).startswith("node REPORT_LOG failed: Fail: first; then node REPORT_CLEANUP")
    assert str(instance(refused).reason).endswith("; then the result could not be stored: too large")


@pytest.mark.parametrize("fails", [False, True])
def test_a_report_that_is_refused_before_the_run_had_ended_says_only_that(cleaning: World, fails: bool) -> None:
    cleaning.start(run("LOG", "CLEANUP"))
    refused = endings.refused(cleaning.ended(failure=Fail("no") if fails else None), "too large")
    assert (states(refused), instance(refused).status) == ([(101, "failed"), (102, "canceled")], "failed")
    assert instance(refused).reason == "the result could not be stored: too large"


def test_they_wait_for_a_handler_that_does_not_return_within_its_grace(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP"))
    cleaning.runner.stop(7, 1, "canceled", canceled=True)
    running = cleaning.executor.calls[0]
    running.linger()
    cleaning.clock.advance(GRACE)
    cleaning.runner.stopping.expire()
    waiting = cleaning.reports.commit()
    assert (states(waiting), instance(waiting).status) == ([(101, "running")], InstanceStatus.RUNNING)
    assert instance(waiting).reason == "ends when its handler returns: canceled"
    assert len(cleaning.executor.calls) == 1
    assert states(cleaning.ended(stopped=True)) == [(101, "canceled"), (102, "running")]
    now_runs(cleaning, "CLEANUP", "canceled")
    assert instance(cleaning.ended()).status is InstanceStatus.CANCELED
    assert cleaning.slots.busy == 0


def node(number: int, name: str, status: str, result: Any = None, failures: int = 0) -> NodeRun:
    return NodeRun(100 + number, f"REPORT_{name}", "REPORT", number, status, None, result, failures)


def test_another_worker_goes_on_with_those_that_are_left(cleaning: World) -> None:
    """As after the loss of the worker that ran them."""
    nodes = (
        node(1, "EXTRACT", "succeed", {"rows": 42}),
        node(2, "SEND", "failed", {"error": "Fail: no mail server"}, failures=4),
        node(3, "CLEANUP", "running"),
        node(4, "LOG", "canceled"),
        node(5, "NOTIFY", "pending"),
    )
    cleaning.start(run(nodes=nodes, attempt=2, run_timeout_seconds=10, on_retry="restart"))
    context = cleaning.executor.calls[-1].context
    assert (context.node_type, context.run_status) == ("REPORT_CLEANUP", "failed")
    assert context.run_reason == "node REPORT_SEND failed: Fail: no mail server"
    assert context.results["EXTRACT"] == {"rows": 42}
    cleaning.clock.advance(20)
    cleaning.runner.stopping.expire()
    assert not cleaning.executor.calls[-1].stopped, "the limit of the run does not count"
    assert states(cleaning.ended()) == [(103, "succeed"), (105, "running")]
    now_runs(cleaning, "NOTIFY", "failed")
    report = cleaning.ended()
    assert states(report) == [(105, "succeed")]
    assert (instance(report).status, instance(report).reason) == ("failed", context.run_reason)
    assert not report.fails, "the attempt that failed was another one"


@pytest.mark.parametrize(
    ("statuses", "status", "result"),
    [
        (("succeed", "skipped", "running"), "succeed", '{"new":0}'),
        (("canceled", "canceled", "pending"), "canceled", '{"error":"canceled"}'),
        (("skipped", "failed", "pending"), "failed", None),
        (("canceled", "failed", "pending"), "canceled", '{"error":"canceled"}'),
    ],
)
def test_how_a_run_has_ended_is_read_from_its_nodes(
    cleaning: World, statuses: tuple[str, str, str], status: str, result: str | None
) -> None:
    names = ("LOG", "CLEANUP", "NOTIFY") if "failed" in statuses else ("LOG", "SEND", "NOTIFY")
    nodes = tuple(
        node(at, name, one, {"new": 0} if one == "succeed" else {"error": "disk"} if one == "failed" else None)
        for at, (name, one) in enumerate(zip(names, statuses, strict=True), start=1)
    )
    cleaning.start(run(nodes=nodes, attempt=2))
    assert cleaning.executor.calls[-1].context.run_status == status
    end = instance(cleaning.ended())
    assert end.status == status
    assert end.result == result or status == "failed"


@pytest.mark.parametrize("cleanup", ["running", "succeed"])
def test_an_early_end_is_known_also_where_nodes_that_run_always_stand_before_what_it_skipped(
    cleaning: World, cleanup: str
) -> None:
    nodes = (
        node(1, "EXTRACT", "succeed", {"new": 0}),
        node(2, "CLEANUP", cleanup, {"removed": 1} if cleanup == "succeed" else None),
        node(3, "SEND", "skipped"),
        node(4, "NOTIFY", "pending"),
    )
    cleaning.start(run(nodes=nodes, attempt=2))
    if cleanup == "running":
        assert states(cleaning.ended({"removed": 1})) == [(102, "succeed"), (104, "running")]
        cleaning.reports.commit()
    end = instance(cleaning.ended())
    assert cleaning.executor.started[-1] == "NOTIFY"
    assert (end.status, end.result) == (InstanceStatus.SUCCEED, '{"new":0}')


def test_a_run_that_sql_has_revived_begins_at_the_node_that_failed(cleaning: World) -> None:
    nodes = (node(1, "EXTRACT", "succeed"), node(2, "SEND", "failed"), node(3, "LOG", "canceled"))
    cleaning.start(run(nodes=nodes, attempt=2))
    context = cleaning.executor.calls[-1].context
    assert (context.node_type, context.run_status) == ("REPORT_SEND", "running")


def test_where_sql_has_revived_the_run_they_run_once_more_behind_it(cleaning: World) -> None:
    nodes = (node(1, "LOG", "running"), node(2, "SEND", "canceled"), node(3, "CLEANUP", "succeed", {"removed": 1}))
    cleaning.start(run(nodes=nodes, attempt=2))
    assert states(cleaning.ended()) == [(101, "succeed"), (102, "running")]
    cleaning.reports.commit()
    assert states(cleaning.ended({"sent": 1})) == [(102, "succeed"), (103, "running")]
    now_runs(cleaning, "CLEANUP", "running")
    assert instance(cleaning.ended()).status is InstanceStatus.SUCCEED


def test_where_sql_has_revived_a_run_that_may_run_once_it_begins_at_the_node_that_failed(cleaning: World) -> None:
    nodes = (node(1, "LOG", "failed"), node(2, "SEND", "canceled"), node(3, "CLEANUP", "succeed", {"removed": 1}))
    cleaning.start(run(nodes=nodes, attempt=2, on_worker_lost="fail"))
    assert states(cleaning.reports.commit()) == [(101, "running")]
    assert cleaning.executor.started == ["LOG"]


def test_one_of_them_is_retried_as_any_node_and_the_next_attempt_begins_with_it(cleaning: World) -> None:
    cleaning.start(run("LOG", "NOTIFY"))
    cleaning.ended(failure=Fail("first"))
    cleaning.reports.commit()
    report = cleaning.ended(failure=Retry("later", in_=5))
    assert states(report) == [(102, "failed"), (101, "failed")], "it has no retries"
    cleaning.reports.commit()
    cleaning.start(run("EXTRACT", "NOTIFY", retries=2, id=8))
    cleaning.ended(failure=Fail("first"))
    cleaning.reports.commit()
    report = cleaning.ended(failure=Retry("later", in_=5))
    assert (states(report), instance(report).status) == ([(102, "pending")], InstanceStatus.PENDING)


def test_in_a_run_that_was_canceled_none_of_them_is_retried(cleaning: World) -> None:
    cleaning.start(run("LOG", "NOTIFY", retries=2))
    cleaning.runner.stop(7, 1, "canceled", canceled=True)
    cleaning.ended(stopped=True)
    cleaning.reports.commit()
    assert instance(cleaning.ended(failure=Retry("later", in_=5))).status is InstanceStatus.CANCELED


def test_one_of_them_that_fails_after_a_cancel_has_come_is_not_retried(cleaning: World) -> None:
    """The cancel would wait for the retry."""
    cleaning.start(run("CLEANUP", "LOG", "NOTIFY", retries=2))
    cleaning.runner.stop(7, 1, "canceled", canceled=True)
    report = cleaning.ended(failure=Retry("later", in_=5))
    assert states(report) == [(101, "failed"), (102, "canceled"), (103, "running")]
    now_runs(cleaning, "NOTIFY", "failed", "node REPORT_CLEANUP failed: Retry: later")


def at_grace_end(world: World) -> Report:
    [active] = world.runner.detach_unfinished()
    active.calls = 0
    report = world.runner.outcomes.failed_at_grace_end(active, still_runs=False)
    assert report is not None
    return report


def test_what_may_run_once_and_is_cut_by_its_workers_stop_leaves_them_to_another_worker(cleaning: World) -> None:
    cleaning.start(run("LOG", "CLEANUP", "SEND", "NOTIFY", on_worker_lost="fail"))
    cleaning.reports.commit()
    report = at_grace_end(cleaning)
    assert states(report) == [(101, "failed"), (103, "canceled")]
    assert (instance(report).status, instance(report).due_at, report.has_failed) == ("pending", NOON, False)
    assert report.fails


@pytest.mark.parametrize("fails", [False, True])
def test_one_of_them_that_was_not_entered_is_left_to_another_worker_as_it_is(cleaning: World, fails: bool) -> None:
    cleaning.start(run("LOG", "CLEANUP", on_worker_lost="fail"))
    cleaning.reports.commit()
    cleaning.ended(failure=Fail("first")) if fails else cleaning.ended({"sent": 1})
    report = at_grace_end(cleaning)
    assert states(report) == [(102, "pending")]
    assert (instance(report).status, report.has_failed, report.fails) == (InstanceStatus.PENDING, False, False)


def given_up(world: World, *, canceled: bool, **fields: Any) -> Active:
    """A run whose first handler was stopped, and lingers beyond its grace; then its worker stops, too."""
    world.start(run("LOG", "CLEANUP", timeout_seconds=10, **fields))
    if fields:  # it may run at most once, and says that it begins
        world.reports.commit()
    if canceled:
        world.runner.stop(7, 1, "canceled by hand", canceled=True)
    else:
        world.clock.advance(10)
        world.runner.stopping.expire()
    world.executor.calls[0].linger()
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    assert str(instance(world.reports.commit()).reason).startswith("ends when its handler returns: ")
    [active] = world.runner.detach_unfinished()
    return active


@pytest.mark.parametrize(("canceled", "becomes"), [(True, "canceled"), (False, "failed")])
def test_what_had_ended_but_for_its_handler_has_ended_also_if_that_returns_while_its_worker_stops(
    cleaning: World, canceled: bool, becomes: str
) -> None:
    active = given_up(cleaning, canceled=canceled)
    cleaning.executor.calls[0].end(stopped=True)
    assert active.last is not None
    assert (states(active.last), active.last.is_over) == ([(101, becomes), (102, "running")], False)


def test_what_had_ended_so_and_may_run_once_leaves_them_to_another_worker(cleaning: World) -> None:
    active = given_up(cleaning, canceled=False, on_worker_lost="fail")
    cleaning.executor.calls[0].end(stopped=True)
    assert active.last is not None
    assert states(active.last) == [(101, "failed"), (102, "running")]
    report = cleaning.runner.outcomes.failed_at_grace_end(active, still_runs=False)
    assert report is not None
    assert (states(report), instance(report).status) == ([(102, "pending")], InstanceStatus.PENDING)


@pytest.mark.parametrize("names", [("LOG", "NOTIFY"), ("CLEANUP", "NOTIFY")])
def test_what_may_run_once_is_left_to_the_scheduler_if_its_handler_outlives_its_worker(
    cleaning: World, names: tuple[str, str]
) -> None:
    """Nobody may clean up beside the handler. When the worker is dead, the scheduler has another one clean up."""
    cleaning.start(run(*names, on_worker_lost="fail"))
    cleaning.reports.commit()
    [active] = cleaning.runner.detach_unfinished()
    assert cleaning.runner.outcomes.failed_at_grace_end(active, still_runs=True) is None


def test_what_may_run_once_and_has_none_of_them_left_fails_beside_its_handler(cleaning: World) -> None:
    cleaning.start(run("CLEANUP", "LOG", on_worker_lost="fail"))
    cleaning.reports.commit()
    cleaning.ended()
    cleaning.reports.commit()
    [active] = cleaning.runner.detach_unfinished()
    report = cleaning.runner.outcomes.failed_at_grace_end(active, still_runs=True)
    assert report is not None
    assert (states(report), instance(report).status) == ([(102, "failed")], InstanceStatus.FAILED)


def test_what_may_run_once_and_is_cut_in_the_last_of_them_ends_as_it_had_ended(cleaning: World) -> None:
    cleaning.start(run("LOG", "NOTIFY", on_worker_lost="fail"))
    cleaning.reports.commit()
    cleaning.ended(failure=Fail("first"))
    cleaning.reports.commit()
    report = at_grace_end(cleaning)
    assert states(report) == [(102, "failed")]
    assert instance(report).status is InstanceStatus.FAILED
    assert str(instance(report).reason).startswith("node REPORT_LOG failed: Fail: first; then its worker stopped")


def test_a_worker_that_stops_keeps_an_early_end_and_leaves_them_to_another_worker(cleaning: World) -> None:
    cleaning.start(run("LOG", "SEND", "NOTIFY"))
    [active] = cleaning.runner.detach_unfinished()
    cleaning.executor.calls[0].end(EndRun({"new": 0}))
    assert active.last is not None
    assert (states(active.last), active.last.is_over) == (
        [(101, "succeed"), (102, "skipped"), (103, "running")],
        False,
    )


# Random runs, whose worker is lost at random, and what a model says of them


MARKED = {f"REPORT_{name}": node_type(name, always=name.startswith("ALWAYS")) for name in ("STEP", "ALWAYS")}


def foretold(names: list[str], does: list[str]) -> tuple[str, list[str], int]:
    """How a run ends of which each node does what it is told: its status, those of its nodes, and which one says so."""
    status, cut, nodes = "succeed", "", []
    says = max((at for at, name in enumerate(names) if name == "STEP"), default=len(names) - 1)
    for at, (name, does_it) in enumerate(zip(names, does, strict=True)):
        if cut and name == "STEP":
            nodes.append(cut)
            continue
        nodes.append({"fail": "failed", "cancel": "canceled"}.get(does_it, "succeed"))
        if nodes[-1] != "succeed" and status == "succeed":
            status, says, cut = nodes[-1], at, cut or "canceled"
        elif does_it == "end" and not cut and "STEP" in names[at + 1 :]:
            says, cut = at, "skipped"
    return status, nodes, says


def lived(names: list[str], does: list[str], rng: random.Random) -> tuple[str, list[str], int]:
    """The same of a real runner, whose worker is lost now and then; another one then goes on by the nodes' rows."""
    rows = [node(at, name, "pending") for at, name in enumerate(names, start=1)]
    attempt = 1
    end: InstanceReport | None = None
    while end is None:
        world = World(MARKED)
        world.start(run(nodes=tuple(replace(row) for row in rows), attempt=attempt))
        while end is None and (attempt > 5 or rng.random() > 0.2):
            call = world.executor.calls[-1]
            at = cast("partial[None]", call.done).args[1].sequence - 1
            if does[at] == "cancel":
                world.runner.stop(7, attempt, "canceled", canceled=True)
                call.end(stopped=True)
            else:
                call.end(EndRun(at) if does[at] == "end" else at, failure=Fail("no") if does[at] == "fail" else None)
            report = world.reports.seen[-1]
            for said in report.nodes:
                row = next(row for row in rows if row.id == said.id)
                row.status, row.result = said.status.value, json.loads(said.result or "null")
            end = report.instance if report.is_over else None
            world.reports.commit()
        attempt += 1
        for row in rows:
            row.status = "pending" if row.status == "running" else row.status
    result = json.loads(end.result or "null")
    if end.status != "succeed":
        result = next(at for at, row in enumerate(rows) if row.status in ("failed", "canceled"))
    return end.status.value, [row.status for row in rows], result


@pytest.mark.parametrize("seed", range(150))
def test_a_run_ends_as_a_model_says_wherever_its_workers_are_lost(seed: int) -> None:
    rng = random.Random(seed)
    names = [rng.choice(["STEP", "STEP", "ALWAYS"]) for _ in range(rng.randint(1, 6))]
    does = [rng.choice(["succeed", "succeed", "succeed", "fail", "end", "cancel"]) for _ in names]
    does = ["succeed" if one == "cancel" and name == "ALWAYS" else one for one, name in zip(does, names, strict=True)]
    assert lived(names, does, rng) == foretold(names, does), (names, does)
