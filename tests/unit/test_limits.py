"""What a limit allows at a moment: never more are claimed within 60 s than its rate says, however they come."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rota.shared.domain.limits import COUNTED_SECONDS, LimitState, counted, noted, second_of, starts_in

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
MINUTE = timedelta(seconds=60)


def state(recent: object = (), **fields: int | None) -> LimitState:
    given: dict[str, int | None] = {"max_running": None, "starts_per_minute": 3, **fields}
    return LimitState("mail", given["max_running"], given["starts_per_minute"], recent=starts_in(recent))


@given(st.lists(st.tuples(st.integers(0, 90_000_000), st.integers(1, 9)), max_size=60), st.integers(1, 9))
def test_never_more_start_within_a_minute_than_the_rate_says(asked: list[tuple[int, int]], rate: int) -> None:
    """``asked``: after how many microseconds somebody wants to start how many, one after another."""
    now, recent, started = NOON, starts_in(None), list[datetime]()
    for pause, number in asked:
        now += timedelta(microseconds=pause)
        may = min(number, LimitState("mail", None, rate, recent=recent).allowed(now))
        if may:
            recent = noted(recent, now, may)
            started += [now + timedelta(seconds=1)] * may  # at the latest
    for first in started:
        assert sum(first <= other < first + MINUTE for other in started) <= rate


@given(st.lists(st.integers(0, 30_000_000), min_size=1, max_size=30), st.integers(1, 5))
def test_when_the_next_may_start_is_told_exactly(pauses: list[int], rate: int) -> None:
    now, recent = NOON, starts_in(None)
    for pause in pauses:
        now += timedelta(microseconds=pause)
        limit = LimitState("mail", None, rate, recent=recent)
        free = limit.free_again(now)
        if free is None:
            recent = noted(recent, now, limit.allowed(now))
            continue
        assert limit.allowed(free) > 0
        assert limit.allowed(free - timedelta(seconds=1)) == 0


def test_a_minutes_starts_may_come_all_at_once() -> None:
    assert state().allowed(NOON) == 3
    assert state([[second_of(NOON), 2]]).allowed(NOON) == 1
    assert state([[second_of(NOON), 3]]).allowed(NOON + timedelta(seconds=COUNTED_SECONDS - 1)) == 0
    assert state([[second_of(NOON), 3]]).allowed(NOON + timedelta(seconds=COUNTED_SECONDS)) == 3


def test_starts_of_a_time_to_come_count_no_more() -> None:
    assert list(counted([(second_of(NOON) + 3600, 9)], NOON)) == [], "the clock was set back by an hour"


def test_both_bounds_hold() -> None:
    assert LimitState("x", 4, 3, running=3).allowed(NOON) == 1
    assert LimitState("x", 2, 3, running=5).allowed(NOON) == 0, "the limit was lowered"
    assert LimitState("x", 0, None).allowed(NOON) == 0
