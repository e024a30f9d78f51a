"""How a claimed instance goes through its nodes; executors and reports are stand-ins that the test drives."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from shared.clock import DatabaseClock, boottime
from shared.domain.errors import InvalidInput
from shared.domain.jsontext import UnreadableJson, json_text
from shared.domain.states import InstanceStatus, NodeStatus
from shared.store.reports import InstanceReport, NodeReport, Report
from shared.store.runs import NodeRun, Run
from worker_service import runner as runners
from worker_service.authoring import Node
from worker_service.context import NodeContext
from worker_service.executors.base import Call, Done, Failure, Outcome, Refused
from worker_service.runner import Runner

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
LIMIT = 1000


class Param(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rows: int = 42


def node_type(name: str, **fields: Any) -> Node:
    return Node(f"REPORT_{name}", "REPORT", 1, lambda ctx: None, "thread", **fields)


NODES = {node.type: node for node in (node_type("EXTRACT", timeout=60), node_type("SEND", retries=3), node_type("LOG"))}


def run(*names: str, nodes: tuple[NodeRun, ...] | None = None, **fields: Any) -> Run:
    planned = nodes or tuple(
        NodeRun(100 + at, f"REPORT_{name}", "REPORT", at, "pending", None, None)
        for at, name in enumerate(names or ("EXTRACT", "SEND"), start=1)
    )
    values: dict[str, Any] = {
        "id": 7, "attempt": 1, "task_id": 3, "task_name": "daily", "timezone": "Asia/Shanghai",
        "schedule_datetime": NOON, "due_at": NOON, "run_number": 0, "origin": "cron", "param": None, "failures": 0,
        "retries": 0, "retry_delay_seconds": 10, "retry_backoff": "exponential", "on_worker_lost": "retry",
        "timeout_seconds": None,
    }  # fmt: skip
    return Run(**{**values, **fields}, nodes=planned)


@dataclass
class Running:
    """A call that runs until the test ends it."""

    call: Call
    done: Done
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True

    def end(self, result: Any = None, *, failure: BaseException | None = None, stopped: bool = False) -> None:
        now = boottime()
        self.done(Outcome(now, now, result, None if failure is None else Failure.of(failure), stopped))

    @property
    def context(self) -> NodeContext[Any]:
        return self.call.context


@dataclass
class Executor:
    calls: list[Running] = field(default_factory=list)
    later: list[Running] = field(default_factory=list)
    refusal: BaseException | None = None
    meanwhile: Callable[[], None] = lambda: None

    def start(self, call: Call, done: Done, *, later: bool = False) -> Running:
        if self.refusal:
            raise self.refusal
        running = Running(call, done)
        (self.later if later else self.calls).append(running)
        self.meanwhile()
        return running

    def begin(self) -> None:
        self.calls += self.later
        self.later.clear()

    def close(self) -> None: ...

    @property
    def started(self) -> list[str]:
        return [running.call.node.type.removeprefix("REPORT_") for running in self.calls]


@dataclass
class Reports:
    waiting: list[tuple[Report, Callable[[bool], None]]] = field(default_factory=list)
    seen: list[Report] = field(default_factory=list)

    def put(self, report: Report, written: Callable[[bool], None]) -> None:
        self.waiting.append((report, written))
        self.seen.append(report)

    def commit(self, *, ours: bool = True) -> Report:
        report, written = self.waiting.pop(0)
        written(ours)
        return report


class World:
    """A runner with its stand-ins."""

    def __init__(self) -> None:
        clock = DatabaseClock(lambda: NOON)
        clock.measure()
        self.executor, self.reports, self.told = Executor(), Reports(), 0
        self.runner = Runner(
            NODES, {"thread": self.executor}, self.reports, clock, result_limit_bytes=LIMIT, room_made=self._room_made
        )

    def _room_made(self) -> None:
        self.told += 1

    def start(self, *runs: Run) -> None:
        assert self.runner.accept(runs) == list(runs)
        self.runner.start(runs)

    def ended(self, result: Any = None, **how: Any) -> Report:
        """End the newest call, and return what is reported of it."""
        before = len(self.reports.seen)
        self.executor.calls[-1].end(result, **how)
        assert len(self.reports.seen) == before + 1
        return self.reports.seen[-1]


@pytest.fixture
def world() -> World:
    return World()


def states(report: Report) -> list[tuple[int, str]]:
    return [(node.id, node.status.value) for node in report.nodes]


def instance(report: Report) -> InstanceReport:
    assert report.instance is not None
    return report.instance


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


def test_the_last_nodes_result_is_the_instances_and_its_run_is_known_until_it_is_committed(world: World) -> None:
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
    return world.runner.occupied, world.runner.running


def test_a_slot_is_taken_from_the_claim_to_the_end_of_the_last_handler(world: World) -> None:
    one = run("EXTRACT", "SEND")
    assert slots(world) == (0, 0)
    world.runner.accept([one])
    assert slots(world) == (1, 0)
    world.runner.start([one])
    assert slots(world) == (1, 1)
    world.ended(1)
    assert slots(world) == (1, 1)
    world.reports.commit()
    assert (slots(world), world.told) == ((1, 1), 0)
    world.ended(2)
    assert (slots(world), len(world.runner), world.told) == ((0, 0), 1, 1)
    world.reports.commit()
    assert (slots(world), len(world.runner)) == ((0, 0), 0)


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


def test_what_is_dropped_or_forsaken_takes_no_slot_any_more(world: World) -> None:
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
    assert [active.run.id for active in world.runner.forsake()] == [2]
    assert (slots(world), world.runner.held) == ((0, 0), {(4, 1)})
    world.executor.calls[0].end(stopped=True)
    world.reports.commit()
    assert (slots(world), len(world.runner)) == ((0, 0), 0)


class Past:
    """Runs that have ended, one a second."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *, number: int, took: float) -> None:
        self._patch, self.now = monkeypatch, boottime()
        for run_id in range(number):
            self.wait(1 - took)
            world.start(run("EXTRACT", id=run_id))
            self.wait(took)
            world.ended(1)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._patch.setattr(runners, "boottime", lambda now=self.now: now)


def test_a_few_ends_are_too_few_to_foresee_by(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Past(world, monkeypatch, number=runners.FEW_ENDS - 1, took=0.01)
    assert world.runner.foreseen(5, 100) == 0


def test_as_many_ends_are_foreseen_as_there_were_lately(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(world, monkeypatch, number=20, took=1)
    assert world.runner.foreseen(0, 7.5) == 8
    past.wait(2)
    assert world.runner.foreseen(0, 7.5) == 6
    past.wait(10)
    assert world.runner.foreseen(0, 7.5) == 0


@pytest.mark.parametrize(("took", "free", "seen"), [(0.01, 3, 30), (0.01, -3, 0), (0.0001, 2, 200), (0.5, 4, 0)])
def test_free_slots_pass_on_as_many_as_handlers_lately_took(
    world: World, monkeypatch: pytest.MonkeyPatch, took: float, free: int, seen: int
) -> None:
    Past(world, monkeypatch, number=20, took=took).wait(60)
    assert world.runner.foreseen(free, 0.1) == pytest.approx(seen, abs=1 if seen else 0)


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
    failed = NodeRun(102, "REPORT_SEND", "REPORT", 2, "running", None, None)
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
    world.start(run(name, "LOG", retries=of_the_task, failures=failures))
    report = world.ended(failure=ValueError("no such region"))
    assert instance(report).failures == failures + 1
    if retried:
        assert states(report) == [(101, "pending")]
        assert instance(report).status is InstanceStatus.PENDING
        assert instance(report).gmt_completed is None
    else:
        assert states(report) == [(101, "failed"), (102, "canceled")]
        assert instance(report).status is InstanceStatus.FAILED
        assert instance(report).reason == f"node REPORT_{name} failed: ValueError: no such region"


@pytest.mark.parametrize("name", ["EXTRACT", "SEND"])
def test_what_may_run_at_most_once_is_not_retried_whatever_its_task_and_its_nodes_say(world: World, name: str) -> None:
    world.start(run(name, "LOG", retries=5, on_worker_lost="fail"))
    report = world.ended(failure=ValueError("no"))
    assert states(report) == [(101, "failed"), (102, "canceled")]
    assert instance(report).status is InstanceStatus.FAILED


def test_a_timeout_of_what_may_run_at_most_once_is_not_retried(world: World) -> None:
    world.start(run("EXTRACT", retries=5, on_worker_lost="fail"))
    world.runner.stop(7, 1, "REPORT_EXTRACT timed out", canceled=False)
    assert instance(world.ended(stopped=True)).status is InstanceStatus.FAILED


def test_a_retry_is_due_after_its_delay_and_says_why(world: World) -> None:
    world.start(run("EXTRACT", retries=5, failures=2))
    told = instance(world.ended(failure=ValueError("no")))
    assert told.due_at is not None
    assert (told.due_at - NOON).total_seconds() == pytest.approx(40, abs=1)
    assert told.reason == "retry 3 of 5 after 40 s: node REPORT_EXTRACT failed: ValueError: no"


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
        ({"at": NOON}, "not JSON"),
        ({"x": [float("nan")]}, "not JSON"),
        (float("inf"), "not JSON"),
        (Holder(anything=object()), "not JSON"),
        ("caf\udce9.txt", "surrogates not allowed"),
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
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, of_the_task: int | None, limit: int | None
) -> None:
    began = boottime()
    monkeypatch.setattr(runners, "boottime", lambda: began)
    world.start(run(name, timeout_seconds=of_the_task, retries=1))
    monkeypatch.setattr(runners, "boottime", lambda: began + (limit or 10**9) - 0.001)
    world.runner.expire()
    running = world.executor.calls[0]
    assert not running.stopped
    if limit is None:
        return
    monkeypatch.setattr(runners, "boottime", lambda: began + limit)
    world.runner.expire()
    assert running.stopped
    report = world.ended(stopped=True)
    assert instance(report).status is InstanceStatus.PENDING
    assert f"REPORT_{name} timed out" in (instance(report).reason or "")


def test_the_next_node_has_its_own_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    began = boottime()
    monkeypatch.setattr(runners, "boottime", lambda: began)
    world.start(run("LOG", "LOG", timeout_seconds=10))
    monkeypatch.setattr(runners, "boottime", lambda: began + 9)
    world.ended(1)
    world.runner.expire()
    monkeypatch.setattr(runners, "boottime", lambda: began + 15)
    world.runner.expire()  # between the nodes nobody is late
    world.reports.commit()
    world.runner.expire()
    assert not world.executor.calls[1].stopped
    monkeypatch.setattr(runners, "boottime", lambda: began + 25)
    world.runner.expire()
    assert world.executor.calls[1].stopped


def test_a_run_that_is_not_ours_any_more_is_dropped(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.ended(1)
    world.reports.commit(ours=False)
    assert (world.executor.started, len(world.runner), world.told) == (["EXTRACT"], 0, 1)


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


def test_what_is_forsaken_is_stopped_and_reports_nothing_more(world: World) -> None:
    world.start(run("EXTRACT"))
    waiting = run("LOG", id=8)
    world.runner.accept([waiting])
    left = world.runner.forsake()
    assert sorted(active.run.id for active in left) == [7, 8]
    assert world.executor.calls[0].stopped
    world.executor.calls[0].end(stopped=True)
    world.runner.start([waiting])
    assert (world.reports.seen, world.executor.started, len(world.runner)) == ([], ["EXTRACT"], 0)


def test_a_commit_after_it_was_forsaken_starts_nothing(world: World) -> None:
    world.start(run("EXTRACT", "SEND"))
    world.ended(1)
    world.runner.forsake()
    world.reports.commit()
    assert world.executor.started == ["EXTRACT"]


def test_times_are_the_databases_and_in_order(world: World) -> None:
    world.start(run("EXTRACT"))
    report = world.ended(1)
    node: NodeReport = report.nodes[0]
    assert node.gmt_started is not None
    assert node.gmt_completed is not None
    assert NOON <= node.gmt_started <= node.gmt_completed < NOON + timedelta(minutes=1)
    assert (instance(report).gmt_started, instance(report).gmt_completed) == (node.gmt_started, node.gmt_completed)
