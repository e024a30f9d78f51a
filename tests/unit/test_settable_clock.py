"""Simulated time: it passes only while all wait, and then moment by moment."""

import threading
from datetime import datetime, timedelta
from functools import partial

import pytest

from rota.shared import settable_clock
from rota.shared.settable_clock import NotAtRest, SettableClock
from tests.harness.processes import wait_until

NOON = datetime.fromisoformat("2026-11-22T12:00:00")


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


def test_it_stands_still_until_it_is_moved(clock: SettableClock) -> None:
    began = clock.monotonic()
    assert clock.now() == clock.now() == NOON
    clock.advance(60)
    assert (clock.now(), clock.seconds_until(NOON), clock.monotonic() - began) == (NOON + timedelta(minutes=1), -60, 60)
    assert clock.at(began) == NOON


def test_a_database_clock_that_is_set_passes_no_time(clock: SettableClock) -> None:
    began = clock.monotonic()
    clock.set_to(NOON - timedelta(hours=1))
    assert (clock.now(), clock.monotonic()) == (NOON - timedelta(hours=1), began)


def test_whoever_waits_for_a_moment_goes_on_then_and_in_order(clock: SettableClock) -> None:
    seen: list[tuple[str, float]] = []

    def every(name: str, seconds: float) -> None:
        for _ in range(3):
            clock.sleep(seconds)
            seen.append((name, -clock.seconds_until(NOON)))

    for name, seconds in (("slow", 5.0), ("quick", 2.0)):
        clock.thread(name, partial(every, name, seconds)).start()
    clock.advance(100)
    assert seen == [("quick", 2), ("quick", 4), ("slow", 5), ("quick", 6), ("slow", 10), ("slow", 15)]
    assert clock.now() == NOON + timedelta(seconds=100)


def test_a_thread_that_is_notified_goes_on_before_time_does(clock: SettableClock) -> None:
    changed, box, seen = clock.condition(), list[str](), list[tuple[str, float]]()

    def take() -> None:
        with changed:
            changed.wait_for(lambda: bool(box), 1000)
            seen.append((box[0], -clock.seconds_until(NOON)))

    def put() -> None:
        clock.sleep(7)
        with changed:
            box.append("parcel")
            changed.notify()

    clock.thread("take", take).start()
    clock.thread("put", put).start()
    clock.advance(3600)
    assert seen == [("parcel", 7)]


def test_a_wait_ends_at_its_time(clock: SettableClock) -> None:
    event, condition = clock.event(), clock.condition()
    assert not event.wait(10)
    assert clock.now() == NOON + timedelta(seconds=10)
    with condition:
        assert not condition.wait(5)
        assert not condition.wait_for(lambda: False, 5)
    assert clock.now() == NOON + timedelta(seconds=20)
    event.set()
    assert event.wait(10)
    assert clock.now() == NOON + timedelta(seconds=20)


def test_the_tests_own_thread_lets_the_time_pass_while_it_waits(clock: SettableClock) -> None:
    done = clock.event()

    def work() -> None:
        for _ in range(24):
            clock.sleep(3600)
        done.set()

    clock.thread("work", work).start()
    assert done.wait()
    assert clock.now() == NOON + timedelta(days=1)


def test_no_time_passes_for_the_tests_own_thread_if_it_is_notified_before_all_rest(clock: SettableClock) -> None:
    told, never = clock.event(), clock.event()

    def work() -> None:
        wait_until(lambda: bool(clock._sleepers), what="the test's thread to wait")
        told.set()
        never.wait(3600)

    clock.thread("work", work).start()
    assert told.wait(60)
    assert clock.now() == NOON
    never.set()


def test_waiting_until_a_moment_ends_then_or_when_the_event_is_set(clock: SettableClock) -> None:
    event, began = clock.event(), clock.monotonic()
    assert not clock.wait_until(event, began + 10)
    assert clock.monotonic() == began + 10
    event.set()
    assert clock.wait_until(event, began + 20)
    assert clock.monotonic() == began + 10


def test_a_notification_is_not_spent_on_who_has_gone_on_already(clock: SettableClock) -> None:
    changed, woken = clock.condition(), []

    def wait(name: str, seconds: float | None) -> None:
        with changed:
            woken.append((name, changed.wait(seconds)))

    for name, seconds in (("first", 1.0), ("second", None)):
        clock.thread(name, partial(wait, name, seconds)).start()
        clock.advance(0)
    clock.advance(1)
    with changed:
        changed.notify()
    clock.advance(0)
    assert woken == [("first", False), ("second", True)]


def test_a_thread_that_blocks_elsewhere_is_named(clock: SettableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settable_clock, "AT_REST_SECONDS", 0.05)
    held = threading.Event()
    clock.thread("stubborn", held.wait).start()
    with pytest.raises(NotAtRest, match="stubborn"):
        clock.advance(1)
    held.set()
