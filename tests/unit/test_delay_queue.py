"""Things that wait for their moment, on a clock that stands still until the test moves it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.shared.clock import DatabaseClock
from rota.shared.settable_clock import SettableClock
from rota.worker_service.pulling.delay_queue import DelayQueue, Others
from rota.worker_service.pulling.fair_queue import Rank

NOON = datetime.fromisoformat("2026-11-19T12:00:00")


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def room(number: int) -> Callable[[], int]:
    return lambda: number


ENOUGH = room(10)


class Taking:
    """A thread of the simulation that takes once."""

    def __init__(self, clock: SettableClock, queue: DelayQueue[str], room: Callable[[], int] = ENOUGH) -> None:
        self.taken: Future[list[str]] = Future()
        clock.thread("taking", lambda: self.taken.set_result(queue.take(room))).start()
        clock.advance(0)  # until it waits, or is through

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
    assert queue.take(ENOUGH) == ["a", "b", "c"]
    assert len(queue) == 1


def test_at_most_so_many_come_and_the_rest_comes_next(queue: DelayQueue[str]) -> None:
    for thing in "abc":
        queue.put(NOON, thing)
    assert [queue.take(room(2)), queue.take(room(2))] == [["a", "b"], ["c"]]


def test_nothing_comes_before_its_moment(clock: SettableClock, queue: DelayQueue[str]) -> None:
    queue.put(NOON + s(60), "a")
    taking = Taking(clock, queue)
    clock.advance(59.999999)
    with queue._changed:
        queue._changed.notify()  # a spurious wake-up: it must look at the clock again
    clock.advance(0)
    assert not taking.taken.done()
    clock.advance(0.000001)
    assert taking.result() == ["a"]


EARLY = s(0.05)


@pytest.fixture
def early_queue(clock: SettableClock) -> DelayQueue[str]:
    """What is put into it may go along a little early."""
    return DelayQueue(clock, EARLY)


def test_what_may_go_early_goes_along_with_what_is_due_and_no_earlier(early_queue: DelayQueue[str]) -> None:
    things = [(NOON, "due"), (NOON + EARLY, "along"), (NOON + EARLY + s(0.000001), "later")]
    early_queue.put_all(((moment, thing, Rank(0)) for moment, thing in things), early=EARLY)
    early_queue.put(NOON + EARLY, "punctual")
    assert early_queue.take(ENOUGH) == ["due", "along"]
    assert len(early_queue) == 2


def test_what_may_go_early_ends_no_wait_before_its_moment(clock: SettableClock, early_queue: DelayQueue[str]) -> None:
    early_queue.put(NOON + EARLY, "a", early=EARLY)
    taking = Taking(clock, early_queue)
    clock.advance(0.049999)
    assert not taking.taken.done()
    early_queue.put(NOON, "b")
    assert sorted(taking.result()) == ["a", "b"]


def test_of_those_that_are_due_the_lowest_rank_comes_first_however_late_the_others_are(
    clock: SettableClock, queue: DelayQueue[str]
) -> None:
    queue.put_all((NOON - s(60 - n), f"backlog {n}", Rank(5)) for n in range(3))
    queue.put(NOON, "urgent", rank=Rank(0))
    queue.put(NOON + s(1), "urgent, and not due", rank=Rank(0))
    assert queue.take(room(2)) == ["urgent", "backlog 0"]
    clock.advance(1)
    assert queue.take(room(2)) == ["urgent, and not due", "backlog 1"]
    assert queue.take(room(2)) == ["backlog 2"]


def test_within_a_rank_the_moments_count_and_then_the_order_of_coming(queue: DelayQueue[str]) -> None:
    for moment, thing, rank in [(NOON, "b", 1), (NOON, "c", 1), (NOON - s(1), "a", 1), (NOON - s(9), "d", 2)]:
        queue.put(moment, thing, rank=Rank(rank))
    assert queue.take(ENOUGH) == ["a", "b", "c", "d"]


def test_putting_nothing_is_nothing(queue: DelayQueue[str]) -> None:
    queue.put_all([])
    assert len(queue) == 0


def test_an_earlier_thing_ends_the_wait_for_a_later_one(clock: SettableClock, queue: DelayQueue[str]) -> None:
    queue.put(NOON + s(3600), "later")
    taking = Taking(clock, queue)
    queue.put(NOON, "now")
    assert taking.result() == ["now"]


def test_who_waits_on_an_empty_queue_gets_what_comes(clock: SettableClock, queue: DelayQueue[str]) -> None:
    taking = Taking(clock, queue)
    queue.put(NOON, "now")
    assert taking.result() == ["now"]


def test_a_real_clock_ends_the_wait_by_itself() -> None:
    clock = DatabaseClock(lambda: NOON)
    clock.calibrate()
    queue: DelayQueue[str] = DelayQueue(clock)
    moment = clock.now() + s(0.05)
    queue.put(moment, "a")
    assert queue.take(ENOUGH) == ["a"]
    assert clock.now() >= moment


@pytest.mark.parametrize("most", [0, -3])
def test_without_room_what_is_due_waits(clock: SettableClock, queue: DelayQueue[str], most: int) -> None:
    queue.put(NOON, "a")
    taking = Taking(clock, queue, room(most))
    assert not taking.taken.done()
    assert queue.close() == ["a"]
    assert taking.result() == []


class Room:
    """Room that a test makes; it counts how often it was asked for."""

    def __init__(self, number: int = 0) -> None:
        self.number, self.asked = number, 0

    def __call__(self) -> int:
        self.asked += 1
        return self.number


def test_room_that_is_made_ends_the_wait_for_it_and_bounds_what_comes(
    clock: SettableClock, queue: DelayQueue[str]
) -> None:
    for thing in "abc":
        queue.put(NOON, thing)
    room = Room()
    taking = Taking(clock, queue, room)
    assert not taking.taken.done()
    room.number = 2
    queue.room_made()
    assert taking.result() == ["a", "b"]


def test_room_that_is_made_while_the_queue_looks_for_it_is_not_missed(
    clock: SettableClock, queue: DelayQueue[str]
) -> None:
    """It is told on another thread, which cannot come in before the look has ended."""
    queue.put(NOON, "a")
    told = threading.Event()

    def tell() -> None:
        queue.room_made()
        told.set()

    class JustMade(Room):
        def __call__(self) -> int:
            if not super().__call__():
                self.number = 1
                threading.Thread(target=tell, daemon=True).start()
                return 0
            return self.number

    assert Taking(clock, queue, JustMade()).result() == ["a"]
    assert told.wait(10)


def test_room_that_is_made_while_nobody_lacks_it_disturbs_nobody(clock: SettableClock, queue: DelayQueue[str]) -> None:
    queue.put(NOON + s(60), "later")
    room = Room(1)
    taking = Taking(clock, queue, room)
    queue.room_made()
    queue.put(NOON, "now")
    assert taking.result() == ["now"]
    assert room.asked == 2


def test_room_is_asked_for_anew_when_something_is_due(clock: SettableClock, queue: DelayQueue[str]) -> None:
    room = Room(1)
    taking = Taking(clock, queue, room)
    room.number = 2
    queue.put_all((NOON, thing, Rank(0)) for thing in "abc")
    assert taking.result() == ["a", "b"]


def test_where_there_is_no_room_some_of_other_groups_come_all_the_same(queue: DelayQueue[str]) -> None:
    for number in range(5):
        queue.put(NOON, f"crowd {number}", rank=Rank(5, "crowd"))
        queue.put(NOON, f"shop {number}", rank=Rank(5, "shop"))
    queue.put(NOON, "urgent", rank=Rank(0, "mail"))
    assert queue.take(room(0), lambda _: Others(3, {"crowd"})) == ["urgent", "shop 0", "shop 1"]
    assert queue.groups == {"crowd", "shop"}
    assert queue.take(ENOUGH) == ["crowd 0", "shop 2", "crowd 1", "shop 3", "crowd 2", "shop 4", "crowd 3", "crowd 4"]


def test_what_of_another_group_falls_due_comes_at_its_moment_though_there_is_no_room(
    clock: SettableClock, queue: DelayQueue[str]
) -> None:
    queue.put(NOON, "crowd", rank=Rank(5, "crowd"))
    queue.put(NOON + s(2), "later", rank=Rank(5, "crowd"))
    queue.put(NOON + s(3), "shop", rank=Rank(5, "shop"))
    taken: Future[list[str]] = Future()
    clock.thread("taking", lambda: taken.set_result(queue.take(room(0), lambda _: Others(1, {"crowd"})))).start()
    clock.advance(2.9)
    assert not taken.done()
    clock.advance(0.1)
    assert taken.result(timeout=10) == ["shop"]


def test_what_is_put_is_seen_though_something_before_it_is_overdue_and_has_no_room(
    clock: SettableClock, queue: DelayQueue[str]
) -> None:
    queue.put(NOON, "heavy", rank=Rank(5))
    queue.put(NOON + s(1), "overdue", rank=Rank(5))
    taken: Future[list[str]] = Future()

    def others(first: str) -> Others[str]:
        return Others() if first == "heavy" else Others(1)

    clock.thread("taking", lambda: taken.set_result(queue.take(room(0), others))).start()
    clock.advance(2)
    assert not taken.done()
    queue.put(NOON + s(1.5), "urgent", rank=Rank(0))
    clock.advance(0)
    assert taken.result(timeout=10) == ["urgent"]


def test_closing_ends_the_wait_and_returns_what_was_waiting(clock: SettableClock, queue: DelayQueue[str]) -> None:
    for moment, thing in [(NOON + s(60), "b"), (NOON + s(30), "a"), (NOON, "taken"), (NOON, "left")]:
        queue.put(moment, thing)
    assert queue.take(room(1)) == ["taken"]
    taking = Taking(clock, queue, room(0))
    assert sorted(queue.close()) == ["a", "b", "left"]
    assert taking.result() == []
    assert queue.closed
    assert queue.take(ENOUGH) == []
    assert queue.close() == []


def test_many_putters_and_takers_share_it_and_each_thing_comes_once(clock: SettableClock) -> None:
    queue: DelayQueue[int] = DelayQueue(clock)
    with ThreadPoolExecutor(8) as pool:
        for n in range(400):
            pool.submit(queue.put, NOON, n)
        taking = [pool.submit(queue.take, room(2)) for _ in range(200)]
        seen = [thing for take in taking for thing in take.result(10)] + queue.close()
    assert sorted(seen) == list(range(400))


def test_what_lacks_room_for_too_long_is_taken_out_and_the_rest_stays(
    clock: SettableClock, queue: DelayQueue[str]
) -> None:
    for at, thing in [(0, "a"), (1, "b"), (2, "c"), (9, "later")]:
        queue.put(NOON + s(at), thing, rank=Rank(-at))
    clock.advance(2)
    assert queue.take(room(1)) == ["c"]
    queue.put(NOON, "not looked at yet")
    assert queue.remove(lambda moment, _: moment < NOON) == []
    assert sorted(queue.remove(lambda moment, _: moment < NOON + s(1))) == ["a", "not looked at yet"]
    assert len(queue) == 2
    assert queue.take(ENOUGH) == ["b"]
    assert queue.close() == ["later"]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 3))), st.integers(1, 5))
def test_it_gives_out_each_thing_once_from_its_moment_by_its_rank(rows: list[tuple[int, int, int]], most: int) -> None:
    clock = SettableClock(NOON)
    queue: DelayQueue[tuple[int, int, int]] = DelayQueue(clock, s(3))
    for at, rank, early in rows:
        queue.put(NOON + s(at), (at, rank, early), early=s(early), rank=Rank(rank))
    left, seen = list(rows), 0
    for second in range(51):
        while any(at <= second for at, _, _ in left):
            taken = queue.take(room(most))
            assert 1 <= len(taken) <= most
            for thing in taken:
                left.remove(thing)
            seen += len(taken)
            assert all(at - early <= second for at, _, early in taken)
            assert [rank for _, rank, _ in taken] == sorted(rank for _, rank, _ in taken)
            last = max(rank for _, rank, _ in taken)
            assert not any(at <= second and rank < last for at, rank, _ in left)
        clock.advance(1)
    assert (seen, len(queue)) == (len(rows), 0)


def test_of_what_was_put_twice_only_the_second_entry_stays_also_where_the_first_was_due_before(
    clock: SettableClock, queue: DelayQueue[str]
) -> None:
    for item in ("a", "b", "c"):
        queue.put(NOON, item, rank=Rank(5))
    assert queue.take(room(1)) == ["a"]  # so the others are known to be due
    queue.put(NOON, "b", rank=Rank(5, "shop"))
    queue.put(NOON, "d", rank=Rank(5, "shop"))
    queue.retain({"b", "d"})
    assert len(queue) == 2
    assert queue.take(ENOUGH) == ["b", "d"]
    assert queue.groups == set()
    queue.put(NOON, "c", rank=Rank(5))
    queue.put(NOON + s(5), "c", rank=Rank(5))
    queue.retain({"c"})
    clock.advance(4)
    assert len(queue) == 1
    assert not queue.is_due
