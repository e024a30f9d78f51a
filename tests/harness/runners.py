"""A runner with stand-ins for its executors and its reporter, which the test drives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rota.shared.settable_clock import SettableClock
from rota.shared.store.reports import InstanceReport, Report
from rota.shared.store.runs import Run
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import Call, Done, Failure, Outcome
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running.runner import Runner
from tests.harness.runs import NOON, Reports

LIMIT, GRACE = 1000, 10


def node_type(name: str, **fields: Any) -> Node:
    return Node(f"REPORT_{name}", "REPORT", 1, lambda ctx: None, "thread", **fields)


@dataclass
class Running:
    """A call that runs until the test ends it."""

    call: Call
    done: Done
    clock: SettableClock
    entered: float | None
    stopped: bool = False
    killed: bool = False
    place: str | None = "/app/jobs.py:42 in fetch"

    def stop(self, *, asks: bool = False) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.killed = True

    def standing(self) -> str | None:
        return self.place

    def linger(self) -> None:
        """It was stopped, and its thread has not returned."""
        now = self.clock.monotonic()
        self.done(Outcome(now, now, stopped=True, lingers=True))

    def end(self, result: Any = None, *, failure: BaseException | None = None, stopped: bool = False) -> None:
        now = self.clock.monotonic()
        self.done(Outcome(now, now, result, None if failure is None else Failure.of(failure), stopped))

    @property
    def context(self) -> NodeContext[Any]:
        return self.call.context


@dataclass
class Executor:
    clock: SettableClock
    calls: list[Running] = field(default_factory=list)
    later: list[Running] = field(default_factory=list)
    refusal: BaseException | None = None
    meanwhile: Callable[[], None] = lambda: None

    def start(self, call: Call, done: Done, *, later: bool = False) -> Running:
        if self.refusal:
            raise self.refusal
        running = Running(call, done, self.clock, self.clock.monotonic())
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


class World:
    """A runner with its stand-ins."""

    def __init__(self, nodes: Mapping[str, Node], capacity: int = 50) -> None:
        self.clock = SettableClock(NOON)
        self.executor, self.reports, self.told = Executor(self.clock), Reports(), 0
        self.slots = Slots(capacity, 1000, self.clock)
        self.slots.on_free(self._count)
        limits: dict[str, Any] = {"result_limit_bytes": LIMIT, "grace_seconds": GRACE, "worker": "w1"}
        self.runner = Runner(nodes, {"thread": self.executor}, self.reports, self.slots, self.clock, **limits)

    def _count(self) -> None:
        self.told += 1

    def start(self, *runs: Run) -> None:
        assert self.runner.accept(runs) == list(runs)
        assert self.runner.start(runs) == set()

    def ended(self, result: Any = None, **how: Any) -> Report:
        """End the newest call, and return what is reported of it."""
        before = len(self.reports.seen)
        self.executor.calls[-1].end(result, **how)
        assert len(self.reports.seen) == before + 1
        return self.reports.seen[-1]


def states(report: Report) -> list[tuple[int, str]]:
    return [(node.id, node.status.value) for node in report.nodes]


def instance(report: Report) -> InstanceReport:
    assert report.instance is not None
    return report.instance
