"""Nodes of one run that run beside each other; executors and reports are stand-ins that the test drives."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from rota import EndRun, Retry, RunAgain
from rota.shared.domain.states import LEFT, InstanceStatus, NodeStatus
from rota.shared.store.reports import Report
from rota.shared.store.runs import NodeRun, Run
from rota.worker_service.contents import Node
from rota.worker_service.executors.base import NoThread
from rota.worker_service.running import reporter
from rota.worker_service.running.stopping import KILLED_SECONDS
from tests.harness.runners import GRACE, Running, World, instance, node_type, states
from tests.harness.runs import run

EU, US, MERGE, SEND, CLEANUP = range(101, 106)

NODES = {
    node.type: node
    for node in (
        node_type("EU", after=(), timeout=60),
        node_type("US", after=(), retries=3),
        node_type("MERGE"),
        node_type("SEND", after=("REPORT_EU",)),
        node_type("CLEANUP", always=True),
    )
}


def report_run(*names: str, **fields: Any) -> Run:
    """EU and US run beside each other, then MERGE."""
    return run(*(names or ("EU", "US", "MERGE")), **{"weight": 2, **fields})


@pytest.fixture
def world() -> World:
    return World(NODES)


def call(world: World, name: str) -> Running:
    """The newest call of this node."""
    return next(one for one in reversed(world.executor.calls) if one.call.node.type == f"REPORT_{name}")


def waits(world: World, retry: Report) -> float:
    """For how many seconds from now a retry waits."""
    due_at = instance(retry).due_at
    assert due_at is not None
    return (due_at - world.clock.now()).total_seconds()


def hang_eu(world: World) -> None:
    """EU times out, and its thread does not return within its grace."""
    world.clock.advance(60)
    world.runner.stopping.expire()
    call(world, "EU").linger()
    world.clock.advance(GRACE)
    world.runner.stopping.expire()


def commit_all(world: World) -> None:
    while world.reports.waiting:
        world.reports.commit()


def test_nodes_that_wait_for_none_begin_together_and_the_next_when_all_are_committed(world: World) -> None:
    world.start(report_run())
    assert world.executor.started == ["EU", "US"]
    assert states(world.reports.seen[0]) == [(US, "running")]
    call(world, "EU").end({"rows": 1})
    assert states(world.reports.seen[1]) == [(EU, "succeed")], "it is reported while the other runs"
    commit_all(world)
    assert world.executor.started == ["EU", "US"]
    call(world, "US").end({"rows": 2})
    assert states(world.reports.seen[2]) == [(US, "succeed"), (MERGE, "running")]
    assert world.executor.started == ["EU", "US"], "the next node waits for the commit"
    commit_all(world)
    assert call(world, "MERGE").context.results == {
        "EU": {"rows": 1}, "REPORT_EU": {"rows": 1}, "US": {"rows": 2}, "REPORT_US": {"rows": 2},
    }  # fmt: skip
    end = world.ended({"rows": 3})
    assert (instance(end).status, instance(end).result) == (InstanceStatus.SUCCEED, '{"rows":3}')
    commit_all(world)
    assert (len(world.runner), world.slots.busy) == (0, 0)


def test_with_one_slot_they_run_one_after_another(world: World) -> None:
    world.start(report_run(weight=1))
    assert world.executor.started == ["EU"]
    world.ended(1)
    world.reports.commit()
    assert world.executor.started == ["EU", "US"]
    assert call(world, "US").context.results == {}, "it does not wait for EU, so it does not see its result"
    world.ended(2)
    world.reports.commit()
    assert call(world, "MERGE").context.results["US"] == 2


def test_no_more_run_than_the_run_has_slots(world: World) -> None:
    nodes = {**NODES, "REPORT_ASIA": node_type("ASIA", after=())}
    world = World(nodes)
    world.start(report_run("EU", "US", "ASIA", "MERGE"))
    assert world.executor.started == ["EU", "US"]
    call(world, "US").end(2)
    assert states(world.reports.seen[-1]) == [(102, "succeed"), (103, "running")]
    assert world.executor.started == ["EU", "US"], "it begins after the commit, which says that it runs"
    commit_all(world)
    assert world.executor.started == ["EU", "US", "ASIA"]
    call(world, "EU").end(1)
    call(world, "ASIA").end(3)
    commit_all(world)
    assert call(world, "MERGE").context.results.keys() >= {"EU", "US", "ASIA"}


def test_a_node_begins_when_those_that_it_waits_for_have_succeeded_though_others_run(world: World) -> None:
    world.start(report_run("EU", "US", "SEND", "MERGE"))
    call(world, "EU").end(1)
    assert states(world.reports.seen[-1]) == [(EU, "succeed"), (103, "running")]
    commit_all(world)
    assert world.executor.started == ["EU", "US", "SEND"]
    assert call(world, "SEND").context.results == {"EU": 1, "REPORT_EU": 1}
    call(world, "SEND").end(None)
    call(world, "US").end(2)
    commit_all(world)
    assert world.executor.started[-1] == "MERGE"


def test_what_ends_before_the_start_returns_is_not_lost() -> None:
    world = World(NODES)
    world.executor.meanwhile = lambda: (world.executor.later or world.executor.calls)[-1].end(1)
    world.start(report_run())
    commit_all(world)
    assert world.executor.started[-1] == "MERGE"
    assert (len(world.runner), world.slots.busy) == (0, 0)


def test_the_other_ends_by_itself_when_one_has_failed_and_nothing_more_begins(world: World) -> None:
    world.start(report_run("EU", "US", "SEND", "MERGE"))
    call(world, "EU").end(failure=ValueError("no such region"))
    assert len(world.reports.seen) == 1, "the run fails when the other has ended"
    assert not call(world, "US").stopped
    call(world, "US").end(2)
    success, failure = world.reports.seen[1:]
    assert states(success) == [(US, "succeed")]
    assert states(failure) == [(EU, "failed"), (103, "canceled"), (104, "canceled")]
    assert instance(failure).status is InstanceStatus.FAILED
    assert "node REPORT_EU failed: ValueError: no such region" in str(instance(failure).reason)
    commit_all(world)
    assert (len(world.runner), world.slots.busy) == (0, 0)


def test_when_one_is_retried_what_has_succeeded_beside_it_stays(world: World) -> None:
    world.start(report_run())
    call(world, "US").end(failure=ValueError("busy"))
    call(world, "EU").end(1)
    success, retry = world.reports.seen[1:]
    assert (states(success), states(retry)) == ([(EU, "succeed")], [(US, "pending")])
    assert (instance(retry).status, instance(retry).failures) == (InstanceStatus.PENDING, 1)


def test_when_both_fail_each_counts_and_the_run_is_retried_with_both() -> None:
    world = World({**NODES, "REPORT_EU": node_type("EU", after=(), retries=3)})
    world.start(report_run())
    call(world, "US").end(failure=Retry("later", in_=600))
    call(world, "EU").end(failure=ValueError("busy"))
    [retry] = world.reports.seen[1:]
    assert [(node.id, node.status.value, node.failures) for node in retry.nodes] == [
        (EU, "pending", 1),
        (US, "pending", 1),
    ]
    assert waits(world, retry) == 600, "the later of the two"
    assert json.loads(str(retry.nodes[0].result))["error"] == "ValueError: busy"


def test_a_failure_for_good_goes_before_one_that_would_be_retried(world: World) -> None:
    world.start(report_run())
    call(world, "US").end(failure=ValueError("busy"))
    call(world, "EU").end(failure=ValueError("no such region"))
    [failure] = world.reports.seen[1:]
    assert states(failure) == [(US, "failed"), (EU, "failed"), (MERGE, "canceled")]
    assert instance(failure).status is InstanceStatus.FAILED


def test_a_cancel_stops_all_that_run(world: World) -> None:
    world.start(report_run())
    world.runner.stop(7, 1, "canceled by ann", canceled=True)
    assert all(one.stopped and one.context.cancel_requested for one in world.executor.calls)
    call(world, "EU").end(stopped=True)
    call(world, "US").end(stopped=True)
    [end] = world.reports.seen[1:]
    assert states(end) == [(US, "canceled"), (EU, "canceled"), (MERGE, "canceled")]
    assert (instance(end).status, instance(end).reason) == (InstanceStatus.CANCELED, "canceled by ann")


def test_a_cancel_while_a_node_waits_for_its_commit_enters_no_handler(world: World) -> None:
    world.start(report_run("EU", "US", "SEND", "MERGE"))
    call(world, "EU").end(1)
    world.runner.stop(7, 1, "canceled by ann", canceled=True)
    commit_all(world)
    call(world, "US").end(stopped=True)
    assert world.executor.started == ["EU", "US"]
    assert instance(world.reports.seen[-1]).status is InstanceStatus.CANCELED


def test_a_run_that_was_canceled_and_whose_nodes_have_all_succeeded_runs_no_further_one(world: World) -> None:
    world.start(report_run())
    world.runner.stop(7, 1, "canceled by ann", canceled=True)
    call(world, "EU").end(1)
    call(world, "US").end(2)
    commit_all(world)
    assert world.executor.started == ["EU", "US"]
    assert instance(world.reports.seen[-1]).status is InstanceStatus.CANCELED


def test_each_has_its_own_time(world: World) -> None:
    world.start(report_run())
    world.clock.advance(60)
    world.runner.stopping.expire()
    assert (call(world, "EU").stopped, call(world, "US").stopped) == (True, False)
    call(world, "EU").end(stopped=True)
    call(world, "US").end(2)
    assert str(instance(world.reports.seen[-1]).reason).startswith("REPORT_EU timed out after 60 s at /app/jobs.py:42")


def test_the_limit_of_the_run_stops_them_all(world: World) -> None:
    world.start(report_run(run_timeout_seconds=30))
    world.clock.advance(30)
    world.runner.stopping.expire()
    assert all(one.stopped for one in world.executor.calls)
    for one in list(world.executor.calls):
        one.end(stopped=True)
    assert "the run timed out after 30 s in REPORT_EU" in str(instance(world.reports.seen[-1]).reason)


def test_a_thread_that_does_not_return_ends_the_run_and_keeps_one_slot(world: World) -> None:
    world.start(report_run())
    call(world, "US").end(2)
    commit_all(world)
    hang_eu(world)
    end = world.reports.seen[-1]
    assert (instance(end).status, instance(end).lingers) == (InstanceStatus.FAILED, True)
    assert "its thread did not end within the grace and still ran on worker 'w1'" in str(instance(end).reason)
    assert end.nodes[0].gmt_started is not None
    assert world.runner.lingering.within(world.slots) == 1
    commit_all(world)
    assert (len(world.runner), world.runner.lingering.returned()) == (0, set())
    call(world, "EU").end(stopped=True)
    assert (world.runner.lingering.returned(), world.runner.lingering.within(world.slots)) == ({7}, 0)


def test_the_slot_of_the_task_is_free_when_the_last_of_two_threads_has_returned(world: World) -> None:
    world.start(report_run(timeout_seconds=60))
    world.clock.advance(60)
    world.runner.stopping.expire()
    for name in ("EU", "US"):
        call(world, name).linger()
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    commit_all(world)
    assert world.runner.lingering.within(world.slots) == 2
    call(world, "US").end(stopped=True)
    assert world.runner.lingering.returned() == set()
    call(world, "EU").end(stopped=True)
    assert world.runner.lingering.returned() == {7}


def test_a_retry_waits_until_all_threads_have_returned() -> None:
    world = World({**NODES, "REPORT_EU": node_type("EU", after=(), retries=3, timeout=60)})
    world.start(report_run())
    call(world, "US").end(2)
    hang_eu(world)
    waiting = world.reports.seen[-1]
    assert (states(waiting), instance(waiting).status) == ([(EU, "running")], InstanceStatus.RUNNING)
    assert str(instance(waiting).reason).startswith("waits until its handler returns: retry 1 of 3")
    before = len(world.reports.seen)
    world.clock.advance(10)
    world.runner.stopping.expire()
    assert len(world.reports.seen) == before, "it says so once"
    call(world, "EU").end(stopped=True)
    assert instance(world.reports.seen[-1]).status is InstanceStatus.PENDING
    commit_all(world)
    assert (len(world.runner), len(world.runner.lingering)) == (0, 0)


def test_a_coroutine_that_was_stopped_is_killed_after_its_grace(world: World) -> None:
    world.start(report_run())
    world.runner.stop(7, 1, "canceled", canceled=True)
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    assert all(one.killed for one in world.executor.calls)
    world.clock.advance(KILLED_SECONDS)
    world.runner.stopping.expire()
    assert world.runner.lingering.within(world.slots) == 2


def test_one_that_ends_the_run_early_lets_the_other_end_and_skips_the_rest(world: World) -> None:
    world.start(report_run())
    call(world, "EU").end(EndRun({"new": 0}))
    call(world, "US").end(2)
    success, end = world.reports.seen[1:]
    assert states(success) == [(US, "succeed")]
    assert states(end) == [(EU, "succeed"), (MERGE, "skipped")]
    assert (instance(end).status, instance(end).result) == (InstanceStatus.SUCCEED, '{"new":0}')


def test_only_the_node_that_waits_for_all_others_may_say_when_the_task_runs_again(world: World) -> None:
    world.start(report_run("EU", "US"))
    call(world, "US").end(RunAgain(in_=60))
    call(world, "EU").end(1)
    assert "only the last node of an instance may" in str(instance(world.reports.seen[-1]).reason)


@pytest.mark.parametrize("weight", [1, 2])
def test_a_node_that_runs_always_waits_for_all_of_them(weight: int) -> None:
    world = World({**NODES, "REPORT_US": node_type("US", after=())})
    world.start(report_run("EU", "US", "MERGE", "CLEANUP", weight=weight))
    call(world, "EU").end(failure=ValueError("no such region"))
    if weight == 2:
        call(world, "US").end(failure=ValueError("nor this"))
    commit_all(world)
    assert world.executor.started[-1] == "CLEANUP"
    assert (call(world, "CLEANUP").context.run_status, len(world.executor.calls)) == ("failed", weight + 1)
    end = world.ended(None)
    assert instance(end).status is InstanceStatus.FAILED
    assert "node REPORT_EU failed" in str(instance(end).reason)


def test_another_worker_goes_on_with_those_that_are_left(world: World) -> None:
    whole = report_run()
    nodes = [replace(node, status="succeed", result=2) if node.id == US else node for node in whole.nodes]
    world.start(replace(whole, nodes=tuple(nodes), attempt=2))
    assert world.executor.started == ["EU"]
    call(world, "EU").end(1)
    assert states(world.reports.seen[-1]) == [(EU, "succeed"), (MERGE, "running")]
    commit_all(world)
    assert call(world, "MERGE").context.results["US"] == 2


def test_another_worker_cleans_up_after_a_failure_though_a_node_before_it_never_began() -> None:
    whole = report_run("EU", "US", "SEND", "CLEANUP")
    status = {EU: "succeed", US: "failed", 103: "canceled", 104: "pending"}
    error = {"error": "it was broken"}
    for order in ([EU, US, 103, 104], [EU, 103, US, 104]):
        byid = {node.id: node for node in whole.nodes}
        nodes = tuple(
            replace(byid[one], sequence=at, status=status[one], result=error if one == US else None)
            for at, one in enumerate(order, start=1)
        )
        world = World(NODES)
        world.start(replace(whole, nodes=nodes, attempt=2))
        assert (world.executor.started, call(world, "CLEANUP").context.run_status) == (["CLEANUP"], "failed")


def test_what_may_run_at_most_once_begins_when_that_is_committed(world: World) -> None:
    world.start(report_run(on_worker_lost="fail"))
    assert world.executor.started == []
    world.reports.commit()
    assert world.executor.started == ["EU", "US"]


def test_at_the_end_of_the_grace_what_has_succeeded_is_reported_and_the_rest_handed_back(world: World) -> None:
    world.start(report_run())
    left = world.runner.detach_unfinished()
    assert all(one.stopped for one in world.executor.calls)
    call(world, "EU").end(1)
    assert [one.is_called for one in left] == [True]
    world.runner.kill(left)
    assert (call(world, "EU").killed, call(world, "US").killed) == (False, True)
    call(world, "US").end(stopped=True)
    assert [one.is_called for one in left] == [False]
    assert [states(report) for one in left for report in one.unwritten] == [[(US, "running")], [(EU, "succeed")]]
    world.reports.commit()
    assert [states(report) for one in left for report in one.unwritten] == [[(EU, "succeed")]]
    assert world.executor.started == ["EU", "US"]


def test_at_most_once_at_the_end_of_the_grace_fails_at_one_of_them(world: World) -> None:
    world.start(report_run(on_worker_lost="fail"))
    world.reports.commit()
    [left] = world.runner.detach_unfinished()
    call(world, "EU").end(stopped=True)
    call(world, "US").end(stopped=True)
    end = world.runner.outcomes.failed_at_grace_end(left, still_runs=False)
    assert end is not None
    assert states(end) == [(EU, "failed"), (US, "canceled"), (MERGE, "canceled")]


def test_a_run_that_another_has_by_now_is_stopped_and_dropped(world: World) -> None:
    world.start(report_run())
    call(world, "EU").end(1)
    world.reports.commit()
    world.reports.commit(ours=False)
    us = call(world, "US")
    assert (len(world.runner), us.stopped, us.killed) == (0, True, False)
    assert world.runner.lingering.within(world.slots) == 1, "its handler still takes a slot"
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    assert us.killed
    us.end(stopped=True)
    assert (world.reports.waiting, world.slots.busy, len(world.runner.lingering)) == ([], 0, 0)


def test_without_a_thread_for_one_of_them_the_run_is_handed_back_when_the_other_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(world, "US", monkeypatch)
    world.start(report_run())
    call(world, "EU").end(1)
    success, back = world.reports.seen[1:]
    assert states(success) == [(EU, "succeed")]
    assert (states(back), instance(back).status) == ([(US, "pending")], InstanceStatus.PENDING)
    assert (instance(back).reason, instance(back).failures) == (
        "its worker could not start REPORT_US: no more threads",
        None,
    )


def test_a_list_of_nodes_in_the_param_says_its_own_order(world: World) -> None:
    listed = ["REPORT_EU", {"type": "REPORT_MERGE", "after": []}, {"type": "REPORT_CLEANUP"}]
    world.start(report_run("EU", "MERGE", "CLEANUP", param={"nodes": listed}))
    assert world.executor.started == ["EU", "MERGE"]


@pytest.mark.parametrize("after", [["REPORT_NIGHT"], 7, [7], {"a": 1}])
def test_what_sql_has_spoiled_waits_for_all_before_it(world: World, after: Any) -> None:
    listed = ["REPORT_EU", {"type": "REPORT_MERGE", "after": after}]
    world.start(report_run("EU", "MERGE", param={"nodes": listed}))
    assert world.executor.started == ["EU"]


def rows_of(whole: Run, world: World) -> dict[int, str]:
    """The states of a run's nodes after all that was reported of it."""
    rows = {node.id: node.status for node in whole.nodes}
    rows[whole.nodes[0].id] = "running"
    for report in world.reports.seen:
        rows.update({node.id: node.status.value for node in report.nodes})
    return rows


def read_again(whole: Run, **statuses: Any) -> Run:
    """A run as its next claim reads it: the states of its nodes, or (state, result)."""
    nodes = []
    for node in whole.nodes:
        said = statuses.get(node.type.removeprefix("REPORT_"), node.status)
        status, result = said if isinstance(said, tuple) else (said, None)
        nodes.append(replace(node, status=status, result=result))
    return replace(whole, nodes=tuple(nodes), attempt=2)


def test_an_early_end_skips_a_node_that_waits_for_its_commit(world: World) -> None:
    whole = report_run("EU", "US", "SEND", "MERGE")
    world.start(whole)
    call(world, "EU").end(1)
    call(world, "US").end(EndRun({"new": 0}))
    commit_all(world)
    assert rows_of(whole, world) == {EU: "succeed", US: "succeed", 103: "skipped", 104: "skipped"}


def test_an_early_end_skips_a_node_without_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(world, "US", monkeypatch)
    whole = report_run()
    world.start(whole)
    call(world, "EU").end(EndRun(1))
    assert rows_of(whole, world) == {EU: "succeed", US: "skipped", MERGE: "skipped"}


def refuse(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has no thread for this node."""
    start = world.executor.start

    def start_others(made: Any, done: Any, *, later: bool = False) -> Running:
        if made.node.type == f"REPORT_{name}":
            raise NoThread("no more threads")
        return start(made, done, later=later)

    monkeypatch.setattr(world.executor, "start", start_others)


def test_what_succeeds_entirely_while_its_worker_stops_has_succeeded(world: World) -> None:
    whole = report_run("EU", "US")
    world.start(whole)
    world.reports.commit()
    [left] = world.runner.detach_unfinished()
    call(world, "EU").end(1)
    call(world, "US").end(2)
    [end] = left.unwritten
    assert (states(end), instance(end).status) == ([(EU, "succeed"), (US, "succeed")], InstanceStatus.SUCCEED)
    assert instance(end).result == "2"


def test_at_most_once_what_has_succeeded_while_its_worker_stops_stays_so(world: World) -> None:
    world.start(report_run(on_worker_lost="fail"))
    world.reports.commit()
    world.reports.commit()
    [left] = world.runner.detach_unfinished()
    call(world, "EU").end(1)
    call(world, "US").end(stopped=True)
    assert [states(report) for report in left.unwritten] == [[(EU, "succeed")]]
    end = world.runner.outcomes.failed_at_grace_end(left, still_runs=False)
    assert end is not None
    assert states(end) == [(US, "failed"), (MERGE, "canceled")]


def test_a_failure_before_its_worker_stops_ends_the_run(world: World) -> None:
    world.start(report_run())
    world.reports.commit()
    call(world, "EU").end(failure=ValueError("no such region"))
    [left] = world.runner.detach_unfinished()
    call(world, "US").end(stopped=True)
    [end] = left.unwritten
    assert (states(end), instance(end).status) == (
        [(EU, "failed"), (US, "canceled"), (MERGE, "canceled")],
        InstanceStatus.FAILED,
    )


@pytest.mark.parametrize("canceled", [False, True])
def test_a_node_that_returns_though_it_is_to_stop_has_succeeded_also_while_its_worker_stops(
    world: World, canceled: bool
) -> None:
    world.start(report_run())
    world.reports.commit()
    if canceled:
        world.runner.stop(7, 1, "canceled by ann", canceled=True)
    else:
        world.clock.advance(60)
        world.runner.stopping.expire()
    [left] = world.runner.detach_unfinished()
    call(world, "EU").end(1)
    call(world, "US").end(stopped=True)
    assert [states(report) for report in left.unwritten] == [[(EU, "succeed")]]


def test_an_early_end_while_its_worker_stops_counts_only_if_the_other_has_ended(world: World) -> None:
    for stopped in (True, False):
        world = World(NODES)
        world.start(report_run())
        world.reports.commit()
        [left] = world.runner.detach_unfinished()
        call(world, "EU").end(EndRun(1))
        call(world, "US").end(2, stopped=stopped)
        ends = [instance(report).status for report in left.unwritten]
        assert ends == ([] if stopped else [InstanceStatus.SUCCEED])


def test_what_ends_just_as_its_worker_stops_is_kept_and_nothing_more_begins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start(report_run("EU", "US", "SEND", "MERGE"))
    commit_all(world)
    ending, left = world.runner.outcomes.ending, []

    def late(*args: Any) -> Any:
        left.extend(world.runner.detach_unfinished())
        return ending(*args)

    monkeypatch.setattr(world.runner.outcomes, "ending", late)
    call(world, "EU").end(1)
    assert [states(report) for one in left for report in one.unwritten] == [[(EU, "succeed")]]
    assert world.reports.waiting == []


def test_a_result_that_the_database_refuses_ends_the_run_and_keeps_its_slots_while_others_run(world: World) -> None:
    world.start(report_run())
    world.reports.commit()
    call(world, "EU").end(1)
    refusal, written = reporter._refused(*world.reports.waiting.pop(), "too large")
    assert states(refusal) == [(EU, "failed"), (US, "canceled")]
    assert (instance(refusal).status, instance(refusal).lingers) == (InstanceStatus.FAILED, True)
    written(True)
    us = call(world, "US")
    assert (us.stopped, len(world.runner), world.runner.lingering.within(world.slots)) == (True, 0, 1)
    assert world.runner.lingering.returned() == set()
    us.end(stopped=True)
    assert (world.runner.lingering.returned(), len(world.runner.lingering)) == ({7}, 0)


def test_a_refused_result_frees_the_slot_of_the_task_though_the_others_have_ended_by_then(world: World) -> None:
    world.start(report_run())
    world.reports.commit()
    call(world, "EU").end(1)
    call(world, "US").end(2)
    refusal, written = reporter._refused(*world.reports.waiting.pop(0), "too large")
    assert instance(refusal).lingers
    written(True)
    world.reports.commit(ours=False)
    assert (len(world.runner), world.runner.lingering.returned()) == (0, {7})


def test_a_late_report_of_a_lost_attempt_does_not_drop_the_next_one(world: World) -> None:
    world.start(report_run())
    call(world, "EU").end(1)
    world.reports.commit(ours=False)
    world.start(replace(report_run(), attempt=2))
    world.reports.commit(ours=False)
    assert world.runner.held == {(7, 2)}


def test_a_retry_waits_from_the_end_of_its_own_node() -> None:
    world = World({**NODES, "REPORT_EU": node_type("EU", after=(), retries=3)})
    world.start(report_run())
    call(world, "US").end(failure=Retry("later", in_=600))
    world.clock.advance(3600)
    call(world, "EU").end(failure=Retry("later", in_=300))
    assert waits(world, world.reports.seen[-1]) == 300


@pytest.mark.parametrize("weight", [1, 2])
def test_a_short_name_of_two_categories_is_that_of_the_node_that_is_waited_for(weight: int) -> None:
    nodes = {
        "REPORT_SEND": node_type("SEND"),
        "MAIL_SEND": replace(node_type("SEND"), type="MAIL_SEND", category="MAIL"),
        "REPORT_LAST": node_type("LAST"),
    }
    listed = [{"type": name, "after": []} for name in nodes]
    listed[2]["after"] = ["REPORT_SEND"]
    rows = [NodeRun(101 + at, name, name.split("_")[0], at + 1, "pending", None, None) for at, name in enumerate(nodes)]
    world = World(nodes)
    world.start(run(nodes=tuple(rows), weight=weight, param={"nodes": listed}))
    for name, result in (("REPORT_SEND", "report"), ("MAIL_SEND", "mail")):
        next(one for one in world.executor.calls if one.call.node.type == name).end(result)
        commit_all(world)
    assert world.executor.calls[-1].context.results == {"REPORT_SEND": "report", "SEND": "report"}


def test_of_one_type_that_stands_twice_the_later_result_counts_whichever_ends_first(world: World) -> None:
    listed = ["REPORT_EU", {"type": "REPORT_EU", "after": []}, "REPORT_MERGE"]
    types = ("REPORT_EU", "REPORT_EU", "REPORT_MERGE")
    rows = tuple(NodeRun(101 + at, name, "REPORT", at + 1, "pending", None, None) for at, name in enumerate(types))
    world.start(run(nodes=rows, weight=2, param={"nodes": listed}))
    first, second = world.executor.calls
    second.end("second")
    first.end("first")
    commit_all(world)
    assert call(world, "MERGE").context.results == {"EU": "second", "REPORT_EU": "second"}


def test_where_some_have_run_beside_each_other_a_worker_without_an_order_runs_the_rest() -> None:
    world = World({name: replace(node, after=None) for name, node in NODES.items()})
    whole = read_again(report_run(), EU="running", US=("succeed", 2))
    world.start(whole)
    for _ in ("EU", "MERGE"):
        world.ended(1)
        commit_all(world)
    assert world.executor.started == ["EU", "MERGE"]
    assert rows_of(whole, world) == {EU: "succeed", US: "succeed", MERGE: "succeed"}


@pytest.mark.parametrize("weight", [1, 2])
def test_a_node_that_has_failed_and_was_revived_by_sql_runs_before_those_that_wait_for_it(weight: int) -> None:
    world = World(NODES)
    world.start(read_again(report_run(weight=weight), EU="running", US=("failed", {"error": "x"})))
    while len(world.executor.started) < 2:
        world.ended(1)
        commit_all(world)
    assert world.executor.started[:2] == ["EU", "US"]


def test_a_canceled_run_is_cleaned_up_as_canceled_also_elsewhere(world: World) -> None:
    whole = report_run("EU", "US", "MERGE", "CLEANUP")
    world.start(whole)
    call(world, "US").end(failure=ValueError("busy"))
    world.runner.stop(7, 1, "canceled by ann", canceled=True)
    call(world, "EU").end(stopped=True)
    commit_all(world)
    assert call(world, "CLEANUP").context.run_status == "canceled"
    rows = rows_of(whole, world)
    assert rows == {EU: "canceled", US: "canceled", MERGE: "canceled", 104: "running"}
    elsewhere = World(NODES)
    named = {"EU": rows[EU], "US": rows[US], "MERGE": rows[MERGE], "CLEANUP": rows[104]}
    elsewhere.start(read_again(whole, **named))
    assert call(elsewhere, "CLEANUP").context.run_status == "canceled"


def test_when_the_first_fails_as_it_begins_the_second_does_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    start = world.executor.start

    def fail_eu(made: Any, done: Any, *, later: bool = False) -> Running:
        running = start(made, done, later=later)
        if made.node.type == "REPORT_EU":
            running.end(failure=ValueError("no such region"))
        return running

    monkeypatch.setattr(world.executor, "start", fail_eu)
    whole = report_run()
    world.start(whole)
    assert [one.call.node.type for one in (*world.executor.calls, *world.executor.later)] == ["REPORT_EU"]
    assert rows_of(whole, world) == {EU: "failed", US: "canceled", MERGE: "canceled"}


def test_a_cancel_after_one_hangs_ends_the_run_and_cleans_up_when_it_has_returned() -> None:
    world = World(NODES)
    world.start(report_run("EU", "US", "MERGE", "CLEANUP"))
    call(world, "US").end(2)
    hang_eu(world)
    assert str(instance(world.reports.seen[-1]).reason).startswith("ends when its handler returns: ")
    world.runner.stop(7, 1, "canceled by ann", canceled=True)
    world.runner.stopping.expire()
    commit_all(world)
    call(world, "EU").end(stopped=True)
    commit_all(world)
    assert call(world, "CLEANUP").context.run_status == "canceled"
    world.ended(None)
    commit_all(world)
    assert (len(world.runner), world.slots.busy, len(world.runner.lingering)) == (0, 0, 0)


class Chance:
    """A run of random nodes, some of which wait for some of those before them, and its rows.

    Nodes fail or end it early, its worker stops and another goes on, somebody cancels it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = [f"N{at}" for at in range(self.random.randint(2, 7))]
        self.nodes: dict[str, Node] = {}
        self.waits_for: dict[str, set[str]] = {}
        for at, name in enumerate(self.names):
            before = self.names[:at]
            after = None if self.random.random() < 0.3 else self.random.sample(before, self.random.randint(0, at))
            self.waits_for[name] = set(before if after is None else after)
            types = None if after is None else tuple(f"REPORT_{one}" for one in after)
            self.nodes[f"REPORT_{name}"] = node_type(name, retries=self.random.randint(0, 2), after=types)
        self.rows = {node.type: node for node in report_run(*self.names).nodes}
        self.succeeded: list[str] = []
        self.end = InstanceStatus.PENDING
        self.number = 0

    def may(self, probability: float) -> bool:
        return self.random.random() < probability

    def attempt(self) -> None:
        """Run what is left, on a worker of its own, until the run has ended, is to be retried, or is handed back."""
        self.number += 1
        world, width = World(self.nodes), self.random.randint(1, 4)
        first = next(row for row in self.rows.values() if row.status in LEFT)
        self.rows[first.type] = replace(first, status="running")  # as the claim does
        world.start(report_run(nodes=tuple(self.rows.values()), weight=width, attempt=self.number))
        over: set[int] = set()
        while len(world.runner):
            live = [one for one in world.executor.calls if id(one) not in over]
            assert len(live) <= width
            assert all(self.waits_for[short(one)] <= self.written for one in live)
            if self.may(0.02):
                return self.stop(world, live)
            if self.may(0.02):
                world.runner.stop(7, self.number, "canceled by ann", canceled=True)
            place = self.random.randrange(len(live) + bool(world.reports.waiting))
            if place == len(live):
                self.write(world.reports.commit())
            else:
                over.add(id(live[place]))
                self.end_call(live[place])
        assert world.slots.busy == 0
        return None

    def stop(self, world: World, live: list[Running]) -> None:
        """The worker stops. What is left then is handed back."""
        left = world.runner.detach_unfinished()
        for one in self.random.sample(live, len(live)):
            if left and self.may(0.5):
                one.end(stopped=True)
            else:
                self.end_call(one)
        while world.reports.waiting:
            self.write(world.reports.commit())
        for report in (report for one in left for report in one.unwritten):
            self.write(report)
        if self.end is InstanceStatus.RUNNING:
            self.end = InstanceStatus.PENDING
            for row in self.rows.values():
                if row.status == NodeStatus.RUNNING:
                    self.rows[row.type] = replace(row, status="pending")

    def end_call(self, one: Running) -> None:
        if one.stopped and self.may(0.5):
            one.end(stopped=True)
        elif self.may(0.75):
            ends_run = self.may(0.05)
            self.succeeded += [] if ends_run else [short(one)]
            one.end(EndRun(short(one)) if ends_run else short(one))
        else:
            one.end(failure=ValueError("by chance"))

    def write(self, report: Report) -> None:
        """Keep what a report says, as the tables do."""
        types = {row.id: row.type for row in self.rows.values()}
        for node in report.nodes:
            row = self.rows[types[node.id]]
            result = None if node.result is None else json.loads(node.result)
            failures = row.failures if node.failures is None else node.failures
            self.rows[row.type] = replace(row, status=node.status.value, result=result, failures=failures)
        self.end = InstanceStatus.RUNNING if report.instance is None else report.instance.status
        states = {row.status for row in self.rows.values()}
        allowed = {
            InstanceStatus.PENDING: {"pending", "succeed"},
            InstanceStatus.SUCCEED: {"succeed", "skipped"},
            InstanceStatus.FAILED: {"failed", "succeed", "canceled"},
            InstanceStatus.CANCELED: {"canceled", "succeed"},
        }.get(self.end, {"running", "pending", "succeed"})
        assert states <= allowed, (self.end, states)
        assert ("running" in states) == (self.end is InstanceStatus.RUNNING)

    @property
    def written(self) -> set[str]:
        """The nodes whose success is committed."""
        return {row.type.removeprefix("REPORT_") for row in self.rows.values() if row.status == NodeStatus.SUCCEED}


def short(one: Running) -> str:
    return one.call.node.type.removeprefix("REPORT_")


def test_whatever_happens_each_node_runs_after_those_it_waits_for_and_succeeds_once() -> None:
    first, ends = random.randrange(1_000_000), set()
    for seed in range(first, first + 300):
        chance = Chance(seed)
        try:
            while chance.end is InstanceStatus.PENDING:
                chance.attempt()
            assert len(chance.succeeded) == len(set(chance.succeeded))
            assert chance.written >= set(chance.succeeded)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        ends.add(chance.end)
    assert ends == {InstanceStatus.SUCCEED, InstanceStatus.FAILED, InstanceStatus.CANCELED}
