"""Things that wait for their moment, on a clock that stands still until the test moves it."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.clock import DatabaseClock, SettableClock
from tests.processes import wait_until
from worker_service.delay_queue import DelayQueue

NOON = datetime.fromisoformat("2026-11-19T12:00:00")


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class Taking:
    """A thread that waits in ``take``."""

    def __init__(self, queue: DelayQueue[str], most: int = 10) -> None:
        self.taken: Future[list[str]] = Future()
        threading.Thread(target=lambda: self.taken.set_result(queue.take(most)), daemon=True).start()
        # `take` waits in the queue's condition, or is through
        wait_until(lambda: queue._changed._waiters or self.taken.done(), what="the thread to wait")  # type: ignore[attr-defined]

    def result(self) -> list[str]:
        return self.taken.result(timeout=10)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


@pytest.fixture
def queue(clock: SettableClock) -> DelayQueue[str]:
    return DelayQueue(clock)


def test_what_is_due_comes_in_the_order_of_its_moments_and_then_of_its_coming(queue: DelayQueue[str]) -> None:
    for moment, thing in [(NOON, "b"), (NOON - s(2), "a"), (NOON, "c"), (NOON + s(0.000001), "later")]:
        queue.put(moment, thing)
    assert queue.take(10) == ["a", "b", "c"]
    assert len(queue) == 1


def test_at_most_so_many_come_and_the_rest_comes_next(queue: DelayQueue[str]) -> None:
    for thing in "abc":
        queue.put(NOON, thing)
    assert [queue.take(2), queue.take(2)] == [["a", "b"], ["c"]]


def test_nothing_comes_before_its_moment(clock: SettableClock, queue: DelayQueue[str]) -> None:
    queue.put(NOON + s(60), "a")
    taking = Taking(queue)
    clock.advance(59.999999)
    with queue._changed:
        queue._changed.notify()  # a spurious wake-up: it must look at the clock again
    wait_until(lambda: queue._changed._waiters)  # type: ignore[attr-defined]
    assert not taking.taken.done()
    clock.advance(0.000001)
    with queue._changed:
        queue._changed.notify()
    assert taking.result() == ["a"]


def test_ahead_gives_it_out_so_much_early_and_no_earlier(clock: SettableClock) -> None:
    queue: DelayQueue[str] = DelayQueue(clock, ahead_seconds=0.1)
    queue.put(NOON + s(0.1), "a")
    queue.put(NOON + s(0.100001), "b")
    assert queue.take(10) == ["a"]


def test_an_earlier_thing_ends_the_wait_for_a_later_one(queue: DelayQueue[str]) -> None:
    queue.put(NOON + s(3600), "later")
    taking = Taking(queue)
    queue.put(NOON, "now")
    assert taking.result() == ["now"]


def test_who_waits_on_an_empty_queue_gets_what_comes(queue: DelayQueue[str]) -> None:
    taking = Taking(queue)
    queue.put(NOON, "now")
    assert taking.result() == ["now"]


def test_a_real_clock_ends_the_wait_by_itself() -> None:
    clock = DatabaseClock(lambda: NOON)
    clock.calibrate()
    queue: DelayQueue[str] = DelayQueue(clock)
    moment = clock.now() + s(0.05)
    queue.put(moment, "a")
    assert queue.take(10) == ["a"]
    assert clock.now() >= moment


def test_a_wake_ends_a_wait_and_counts_for_the_next_where_nobody_waits(queue: DelayQueue[str]) -> None:
    taking = Taking(queue)
    queue.wake()
    assert taking.result() == []
    queue.put(NOON, "a")
    queue.wake()
    assert [queue.take(10), queue.take(10)] == [[], ["a"]]


@pytest.mark.parametrize("most", [0, -3])
def test_without_room_what_is_due_waits_until_somebody_wakes_it(queue: DelayQueue[str], most: int) -> None:
    queue.put(NOON, "a")
    taking = Taking(queue, most)
    assert not taking.taken.done()
    queue.wake()
    assert taking.result() == []
    assert queue.take(1) == ["a"]


def test_closing_ends_the_wait_and_returns_what_was_waiting(queue: DelayQueue[str]) -> None:
    queue.put(NOON + s(60), "b")
    queue.put(NOON + s(30), "a")
    taking = Taking(queue)
    assert sorted(queue.close()) == ["a", "b"]
    assert taking.result() == []
    assert queue.closed
    assert queue.take(10) == []
    assert queue.close() == []


def test_many_putters_and_takers_share_it_and_each_thing_comes_once(clock: SettableClock) -> None:
    queue: DelayQueue[int] = DelayQueue(clock)
    with ThreadPoolExecutor(8) as pool:
        for n in range(400):
            pool.submit(queue.put, NOON, n)
        taking = [pool.submit(queue.take, 2) for _ in range(200)]
        seen = [thing for take in taking for thing in take.result(10)] + queue.close()
    assert sorted(seen) == list(range(400))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9))), st.integers(1, 5))
def test_it_gives_out_each_thing_once_by_its_moment(rows: list[tuple[int, int]], most: int) -> None:
    clock = SettableClock(NOON)
    queue: DelayQueue[int] = DelayQueue(clock)
    for at, _ in rows:
        queue.put(NOON + s(at), at)
    seen: list[int] = []
    for second in range(51):
        while queue._heap and queue._heap[0][0] <= clock.now():
            seen += (taken := queue.take(most))
            assert all(at <= second for at in taken)
            assert 1 <= len(taken) <= most
        clock.advance(1)
    assert seen == sorted(at for at, _ in rows)
