"""A failed run is in the worker's log: once, with what failed where; its traceback only at DEBUG."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from rota.shared.settable_clock import SettableClock
from rota.shared.store.runs import Run
from rota.worker_service.builtin.http import RequestFailed
from rota.worker_service.contents import Node
from rota.worker_service.executors.base import Done, Failure, Outcome
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running.runner import Runner
from tests.harness.http_server import Server, answer
from tests.harness.http_server import run as request
from tests.harness.runs import NOON, Reports, run

NAME = "rota.worker_service.running.failures"


NODES = {
    f"REPORT_{name}": Node(f"REPORT_{name}", "REPORT", 1, lambda ctx: None, "thread", timeout=timeout)
    for name, timeout in (("EXTRACT", 60), ("LOG", None))
}

GRACE = 10
LIMITS: dict[str, Any] = {"result_limit_bytes": 1000, "grace_seconds": GRACE}


class Running:
    """A call that runs until the test ends it."""

    def __init__(self, done: Done, clock: SettableClock) -> None:
        self.done, self.clock, self.entered = done, clock, clock.monotonic()

    def stop(self, *, asks: bool = False) -> None: ...

    def kill(self) -> None: ...

    def standing(self) -> None: ...

    def end(self, failure: BaseException | None = None, **how: Any) -> None:
        now = self.clock.monotonic()
        self.done(Outcome(now, now, failure=None if failure is None else Failure.of(failure), **how))


class World:
    """A runner whose calls and reports are stand-ins."""

    def __init__(self) -> None:
        self.clock = SettableClock(NOON)
        self.calls: list[Running] = []
        slots = Slots(10, 1000, self.clock)
        self.reports = Reports()
        self.runner = Runner(NODES, {"thread": self}, self.reports, slots, self.clock, **LIMITS)

    def start(self, call: Any, done: Done, *, later: bool = False) -> Running:
        self.calls.append(Running(done, self.clock))
        return self.calls[-1]

    def begin(self) -> None: ...

    def close(self) -> None: ...

    def claim(self, *runs: Run) -> None:
        self.runner.accept(runs)
        self.runner.start(runs)


@pytest.fixture
def world() -> World:
    return World()


def said(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == NAME and record.levelno == level]


def test_a_failure_is_logged_with_its_task_instance_node_attempt_and_first_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.claim(run("EXTRACT", attempt=3))
    world.calls[-1].end(ValueError("no such region: \x1b[31meu\nsecond line"))
    words = "ValueError: no such region: \\x1b[31meu"
    assert said(caplog) == [f"task 'daily', instance 7, attempt 3: node REPORT_EXTRACT failed: {words}"]
    [record] = [r for r in caplog.records if r.name == NAME and r.levelno == logging.WARNING]
    assert (vars(record)["task"], vars(record)["instance"], vars(record)["node"]) == ("daily", 7, "REPORT_EXTRACT")
    [debug] = said(caplog, logging.DEBUG)
    assert "second line" in debug
    assert "\x1b" not in debug


def test_each_failed_attempt_is_logged_and_that_it_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.claim(run("LOG", retries=1))
    world.calls[-1].end(ValueError("no"))
    [line] = said(caplog)
    assert line.endswith("attempt 1: retry 1 of 1 after 10 s: node REPORT_LOG failed: ValueError: no")


def test_a_success_and_a_cancel_are_no_failures(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world.claim(run("LOG"), run("LOG", id=8))
    world.calls[-1].end()
    world.runner.stop(7, 1, "canceled", canceled=True)
    world.calls[0].end(stopped=True)
    assert said(caplog) == []


def test_a_run_that_times_out_is_logged_once_although_its_thread_returns_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.claim(run("EXTRACT", retries=1))
    running = world.calls[0]
    world.clock.advance(60)
    world.runner.stopping.expire()
    running.end(stopped=True, lingers=True)
    world.clock.advance(GRACE)
    world.runner.stopping.expire()
    assert len(said(caplog)) == 1
    running.end(stopped=True)
    assert len(said(caplog)) == 1
    assert "REPORT_EXTRACT timed out" in said(caplog)[0]


def test_what_never_reached_a_handler_is_logged_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.claim(run("NIGHT"), replace(run(id=8), nodes=()))
    assert said(caplog) == [
        "task 'daily', instance 7, attempt 1: node REPORT_NIGHT failed: this worker cannot run REPORT_NIGHT",
        "task 'daily', instance 8, attempt 1: the instance has no nodes that are left to run",
    ]


def test_a_line_of_the_log_is_bounded(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.claim(run("LOG"))
    world.calls[-1].end(ValueError("x" * 1_000_000))
    assert len(said(caplog)[0]) < 1200


def test_what_http_request_hides_is_in_no_line_of_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Server()
    server.answers["/"] = lambda handler: answer(500, str(handler.headers))(handler)
    address = server.url("/", host="user:pa-ssw0rd@127.0.0.1")
    secrets = {"headers": {"X-Api-Key": "k3y-of-mine"}, "params": {"token": "t0ken-of-mine"}}
    world.claim(run("LOG"))
    try:
        with pytest.raises(RequestFailed) as caught:
            request(address, **secrets)
    finally:
        server.close()
    world.calls[-1].end(caught.value)
    assert "500" in said(caplog)[0]
    assert said(caplog, logging.DEBUG) != []
    assert not any(secret in caplog.text for secret in ("pa-ssw0rd", "k3y-of-mine", "t0ken-of-mine"))


def test_a_log_handler_that_raises_hangs_no_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise OSError("the log's disk is full")

    monkeypatch.setattr(logging.getLogger(NAME), "filters", [refuse])
    world.claim(run("EXTRACT"))
    world.calls[-1].end(ValueError("no"))
    assert len(world.reports.seen) == 1
