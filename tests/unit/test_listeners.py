"""Listeners: what is told and in which order, and that they can neither slow nor break what they listen to."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from rota import Rota, RunEvent
from rota.shared.clock import DatabaseClock
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.retry import RetryPolicy
from rota.shared.domain.states import InstanceStatus
from rota.shared.store.reports import InstanceReport, Report
from rota.shared.store.runs import Run
from rota.worker_service.running import listeners as module
from rota.worker_service.running.listeners import Listeners
from tests.harness.processes import wait_until

NOON = datetime.fromisoformat("2026-11-25T12:00:00")


def run(number: int = 7, attempt: int = 1) -> Run:
    return Run(
        id=number, attempt=attempt, task_id=1, task_name="nightly", timezone="UTC", schedule_datetime=NOON, due_at=NOON,
        run_number=1, origin="cron", param=None, failures=0, retry=RetryPolicy(), on_worker_lost="retry",
        timeout_seconds=None, nodes=(),
    )  # fmt: skip


def report(status: str, number: int = 7, attempt: int = 1, **fields: Any) -> Report:
    end = InstanceReport(InstanceStatus(status), fields.pop("result", None), fields.pop("reason", None), None, None)
    for name, value in fields.items():
        setattr(end, name, value)
    return Report(number, attempt, [], end)


@contextmanager
def listening(app: Rota) -> Iterator[Listeners]:
    made = Listeners(app.listeners, DatabaseClock(lambda: NOON), worker="w")
    made.start()
    try:
        yield made
    finally:
        made.close()


def heard(app: Rota, *events: str) -> list[RunEvent]:
    """What a listener for these events hears."""
    told: list[RunEvent] = []
    app.on(*(events or ("started", "succeeded", "failed", "retried", "canceled")))(told.append)
    return told


def test_a_run_is_told_from_its_start_to_its_end() -> None:
    told = heard(app := Rota())
    with listening(app) as listeners:
        listeners.hold([run()])
        listeners.begun([run()])
        listeners.reported(report("succeed", result='{"rows": 3}'))
        wait_until(lambda: len(told) == 2, 5, "both events")
    start, end = told
    assert (start.event, start.instance_id, start.task_name, start.attempt) == ("started", 7, "nightly", 1)
    assert (start.schedule_datetime, start.worker, start.reason) == (NOON.replace(tzinfo=UTC), "w", None)
    assert (end.event, end.result) == ("succeeded", {"rows": 3})
    assert start.at.tzinfo == UTC


@pytest.mark.parametrize(
    ("given", "event"),
    [
        (report("failed", reason="it broke"), "failed"),
        (report("canceled", reason="it broke"), "canceled"),
        (report("pending", reason="it broke", failures=1, due_at=NOON + timedelta(minutes=5)), "retried"),
    ],
)
def test_each_end_has_an_event_with_its_reason(given: Report, event: str) -> None:
    told = heard(app := Rota(), event)
    with listening(app) as listeners:
        listeners.hold([run()])
        listeners.reported(given)
        wait_until(lambda: told, 5, "the event")
    assert [(one.event, one.reason, one.result) for one in told] == [(event, "it broke", None)]
    later = (NOON + timedelta(minutes=5)).replace(tzinfo=UTC)
    assert told[0].retry_at == (later if event == "retried" else None)


def test_the_start_is_told_once_and_before_the_end_that_is_reported_first() -> None:
    told = heard(app := Rota())
    with listening(app) as listeners:
        listeners.hold([run()])
        listeners.reported(report("succeed"))
        listeners.begun([run()])
        wait_until(lambda: len(told) == 2, 5, "both events")
    assert [one.event for one in told] == ["started", "succeeded"]


def test_what_is_no_end_of_this_attempt_is_not_told() -> None:
    told = heard(app := Rota(), "failed", "retried", "succeeded")
    with listening(app) as listeners:
        listeners.hold([run(attempt=2)])
        listeners.reported(report("failed", attempt=1))
        listeners.reported(report("running", attempt=2))
        listeners.reported(report("pending", attempt=2, due_at=NOON))  # handed back: it did not fail
        listeners.reported(Report(7, 2, []))
        listeners.reported(report("failed", number=8))
        listeners.forget([run(attempt=2)])
        listeners.reported(report("failed", attempt=2))
    assert told == []


def test_what_a_listener_raises_is_logged_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    app = Rota()

    @app.on("succeeded")
    def broken(event: RunEvent) -> None:
        raise SystemExit("meant to fail")

    told = heard(app, "succeeded")
    with listening(app) as listeners:
        for number in (1, 2):
            listeners.hold([run(number)])
            listeners.reported(report("succeed", number))
        wait_until(lambda: len(told) == 2, 5, "both events")
    assert "broken" in caplog.text
    assert "meant to fail" in caplog.text


def test_a_slow_listener_holds_up_nobody_and_what_it_misses_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    app, free, entered = Rota(), threading.Event(), threading.Event()
    told: list[int] = []

    @app.on("succeeded")
    def slow(event: RunEvent) -> None:
        entered.set()
        free.wait(30)
        told.append(event.instance_id)

    with listening(app) as listeners:
        for number in range(1, 101):
            listeners.hold([run(number)])
            listeners.reported(report("succeed", number))
            if number == 1:
                assert entered.wait(10)
        assert len(listeners._waiting) == 5
        free.set()
        wait_until(lambda: "they keep up again; 94 events were dropped" in caplog.text, 10, "the count")
    assert told == [1, 2, 3, 4, 5, 6]


def test_one_that_never_returns_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSING_SECONDS", 0.1)
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    app, entered, never = Rota(), threading.Event(), threading.Event()

    @app.on("succeeded")
    def stuck(event: RunEvent) -> None:
        entered.set()
        never.wait(60)

    with listening(app) as listeners:
        for number in range(1, 5):
            listeners.hold([run(number)])
            listeners.reported(report("succeed", number))
            assert entered.wait(10)
    assert "3 events were not heard before the worker stopped" in caplog.text, "one waits, two were dropped"
    never.set()


def test_without_listeners_nothing_is_kept() -> None:
    with listening(Rota()) as listeners:
        listeners.hold([run()])
        listeners.begun([run()])
        listeners.reported(report("succeed"))
        assert (listeners._runs, listeners._begun, len(listeners._waiting)) == ({}, set(), 0)
        assert "listeners" not in {thread.name for thread in threading.enumerate()}


async def coroutine(event: RunEvent) -> None: ...


@pytest.mark.parametrize(
    ("events", "listener", "said"),
    [
        (("faild",), print, "there is no event 'faild' (did you mean failed?); there are: started, succeeded, failed"),
        ((5,), print, "there is no event 5; there are: "),
        ((), print, "name the events, as in @app.on('failed')"),
        (("failed",), coroutine, "the listener coroutine is an async def; write a def"),
        (("failed",), lambda: None, "must take one argument, the event"),
        (("failed",), 5, "the listener 5 is not a function"),
        (("missed",), partial(print, "missed"), "has no name of its own, by which Rota keeps what it has heard; write"),
        (("missed",), lambda _: None, "has no name of its own"),
        (("task_removd",), print, "did you mean task_removed?"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_written(events: tuple[Any, ...], listener: Any, said: str) -> None:
    on: Callable[..., Any] = Rota().on
    with pytest.raises(InvalidInput) as refused:
        on(*events)(listener)
    assert said in str(refused.value)


def test_an_app_that_is_included_brings_its_listeners() -> None:
    app, other = Rota(), Rota()
    told, more = heard(app, "failed"), heard(other, "failed")
    app.include(other)
    assert app.listeners == {"failed": [told.append, more.append]}


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no words")


@dataclass
class Unhashable:
    """A listener that can be no key, and fails."""

    told: list[RunEvent]

    def __call__(self, event: RunEvent) -> None:
        self.told.append(event)
        raise Unsayable


def test_a_listener_that_fails_in_whatever_way_keeps_no_other_from_hearing() -> None:
    app = Rota()
    app.on("started")(failing := Unhashable([]))
    told = heard(app, "started")
    with listening(app) as listeners:
        for number in (7, 8):
            listeners.hold([run(number)])
            listeners.begun([run(number)])
        wait_until(lambda: len(told) == 2, 5, "both")
    assert failing.told == told


def test_an_event_that_is_named_twice_is_told_once() -> None:
    told = heard(app := Rota(), "started", "started")
    with listening(app) as listeners:
        listeners.hold([run()])
        listeners.begun([run()])
        wait_until(lambda: bool(told), 5, "it")
    assert len(told) == 1


def test_what_surrounds_an_app_surrounds_its_listeners() -> None:
    told = heard(app := Rota(), "started")
    around: list[str] = []

    def noted(listener: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(event: Any) -> None:
            around.append("before")
            listener(event)

        return call

    app.surround(noted)
    with listening(app) as listeners:
        listeners.hold([run()])
        listeners.begun([run()])
        wait_until(lambda: bool(told), 5, "it")
    assert around == ["before"]
