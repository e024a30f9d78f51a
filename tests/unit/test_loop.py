"""The one loop: it rests, wakes, stops, and backs off."""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise

import pytest

from rota.shared.clock import HostTimer
from rota.shared.loop import LONGEST_BACKOFF_SECONDS, Loop
from rota.shared.settable_clock import SettableClock
from tests.harness.processes import wait_until


@contextmanager
def running(step: Callable[[], float], name: str = "duty") -> Iterator[Loop]:
    loop = Loop(name, step, HostTimer())
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()
        assert loop.join(10)


def rests_of(step: Callable[[], float], most: int) -> list[float]:
    """The first rests that a loop takes, in seconds; those of no length left out."""
    clock = SettableClock(datetime.fromisoformat("2026-11-22 12:00:00"))
    began: list[float] = []

    def noted() -> float:
        began.append(clock.monotonic())
        return step()

    loop = Loop("duty", noted, clock)
    loop.start()
    while len(set(began)) <= most:
        clock.advance(1)
    loop.stop()
    assert loop.join(10)
    moments = sorted(set(began))
    return [later - earlier for earlier, later in pairwise(moments)][:most]


def test_a_step_says_how_long_to_rest_and_zero_is_at_once() -> None:
    answers = iter([3.0, 0.0, 0.0, 7.0])
    assert rests_of(lambda: next(answers, 1.0), 3) == [3.0, 7.0, 1.0]


def test_a_wake_ends_the_rest() -> None:
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        return 3600

    with running(step) as loop:
        wait_until(lambda: len(steps) == 1)
        loop.wake()
        wait_until(lambda: len(steps) == 2)


def test_a_step_that_rests_for_ever_is_woken_and_never_by_time() -> None:
    clock, steps = SettableClock(datetime.fromisoformat("2026-11-22 12:00:00")), list[int]()

    def step() -> float:
        steps.append(1)
        return math.inf

    loop = Loop("duty", step, clock)
    loop.start()
    clock.advance(10**9)
    assert len(steps) == 1
    loop.wake()
    clock.advance(0)
    assert len(steps) == 2
    loop.stop()
    assert loop.join(10)


def test_a_wake_during_a_step_is_not_lost() -> None:
    inside, go_on, steps = threading.Event(), threading.Event(), []

    def step() -> float:
        steps.append(1)
        inside.set()
        go_on.wait(10)
        return 3600

    with running(step) as loop:
        assert inside.wait(10)
        loop.wake()
        go_on.set()
        wait_until(lambda: len(steps) == 2)


def test_it_stops_after_the_present_step_and_out_of_a_rest() -> None:
    inside, go_on, ended = threading.Event(), threading.Event(), []

    def step() -> float:
        inside.set()
        go_on.wait(10)
        ended.append(1)
        return 3600

    with running(step) as loop:
        assert inside.wait(10)
        loop.stop()
        assert not loop.join(0)
        go_on.set()
        assert loop.join(10)
    assert ended == [1]


@pytest.mark.parametrize("rest", [1e10, float("inf"), float(sys.maxsize)])
def test_a_rest_of_any_length_ends_with_a_wake(rest: float) -> None:
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        return rest

    with running(step) as loop:
        wait_until(lambda: len(steps) == 1)
        loop.wake()
        wait_until(lambda: len(steps) == 2)


def test_a_loop_that_was_never_started_can_be_stopped_and_joined() -> None:
    loop = Loop("duty", lambda: 0, HostTimer())
    loop.stop()
    assert loop.join(0)


def failing(times: int, then: float = 1.0) -> Callable[[], float]:
    left = iter(range(times))

    def step() -> float:
        if next(left, None) is not None:
            raise RuntimeError("the database is away")
        return then

    return step


def test_failures_back_off_longer_each_time_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.shared.loop.random.uniform", lambda shortest, longest: longest)
    rests = rests_of(failing(50), 50)
    assert rests[:5] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])
    assert set(rests[5:]) == {LONGEST_BACKOFF_SECONDS}


def test_a_duty_survives_an_outage_of_any_length() -> None:
    rests = rests_of(failing(1100, then=9.0), 1101)
    assert rests[-1] == 9.0


def test_a_duty_survives_a_step_that_exits() -> None:
    answers = iter([SystemExit(1)])

    def step() -> float:
        if (error := next(answers, None)) is not None:
            raise error
        return 7.0

    assert rests_of(step, 2)[-1] == 7.0


def test_after_a_success_the_backoff_begins_anew() -> None:
    raised = iter([True] * 20 + [False, True])

    def step() -> float:
        if next(raised, False):
            raise RuntimeError("away")
        return 1.0

    rests = rests_of(step, 22)
    assert rests[19] >= LONGEST_BACKOFF_SECONDS / 2
    assert rests[20] == 1.0
    assert rests[21] <= 0.2


def test_each_different_failure_is_logged_once_and_the_recovery_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    errors = iter([RuntimeError("a"), RuntimeError("a"), KeyError("b"), None, RuntimeError("a")])

    def step() -> float:
        if (error := next(errors, None)) is not None:
            raise error
        return 1.0

    rests_of(step, 6)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "duty: failed and will be tried again: RuntimeError: a",
        "duty: failed and will be tried again: KeyError: 'b'",
        "duty: works again after 3 failures",
        "duty: failed and will be tried again: RuntimeError: a",
        "duty: works again after 1 failures",
    ]


def test_the_pause_after_a_failure_is_not_ended_by_a_wake() -> None:
    """Or whoever may wake it could make it fail as often as they like."""
    failures: list[float] = []

    def fail() -> float:
        failures.append(time.monotonic())
        raise RuntimeError("meant to fail")

    with running(fail) as loop:
        wait_until(lambda: len(failures) >= 4, 30, "four failures")
        began = time.monotonic()
        while len(failures) < 5:
            loop.wake()
            time.sleep(0.001)
    assert time.monotonic() - began > 0.1
    assert failures[4] - failures[3] >= 0.8, "half of the pause after four failures"
