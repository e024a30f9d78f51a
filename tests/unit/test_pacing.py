"""When a worker asks again: the rules, each by its figures."""

import math
from datetime import datetime, timedelta

import pytest

from rota.worker_service.pulling import pacing
from rota.worker_service.pulling.pacing import ClaimPace, PollPace, claim_before, is_time_to_poll, next_try, retry_pause

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
CALM = 42.0
LOW_WATER = pacing.LOW_WATER


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@pytest.fixture
def pace() -> PollPace:
    """At noon it rests until the next phase: 42 s."""
    return PollPace(period=60.0, phase=CALM)


@pytest.mark.parametrize(
    ("late", "queued", "rest"),
    [(1, LOW_WATER - 1, pacing.CATCH_UP_SECONDS), (1, LOW_WATER, CALM), (0, 0, CALM)],
    ids=["late", "many queued", "nothing late"],
)
def test_a_poll_that_brought_what_was_late_and_left_few_is_soon_followed_by_another(
    pace: PollPace, late: int, queued: int, rest: float
) -> None:
    assert pace.rest(0.0, 0.0, NOON, late=late, queued=queued) == rest
    assert pace.rest(0.0, 0.0, NOON, late=0, queued=queued) == CALM, "it brought nothing new"


@pytest.mark.parametrize(("late", "hurries"), [(10, True), (9, False)])
def test_behind_a_piece_of_a_backlog_polls_hurry_for_a_period_though_they_bring_nothing(
    late: int, hurries: bool
) -> None:
    pace = PollPace(period=1.0, phase=0.75)
    rests = [pace.rest(at, at, NOON, late=late if at == 100.0 else 0, queued=0) for at in (100.0, 100.1, 100.9, 101.0)]
    soon = pacing.CATCH_UP_SECONDS
    assert rests == ([soon, soon, soon, 0.75] if hurries else [soon, 0.75, 0.75, 0.75])


@pytest.mark.parametrize(("took", "rest"), [(0.005, 0.1), (0.03, 0.3), (0.2, 0.5)])
def test_polls_that_take_long_hurry_less(pace: PollPace, took: float, rest: float) -> None:
    assert pace.rest(7.0, 7.0 + took, NOON, late=1, queued=0) == pytest.approx(rest)


def test_a_hurry_is_never_later_than_the_cadence() -> None:
    assert PollPace(period=1.0, phase=0.05).rest(0.0, 0.0, NOON, late=1, queued=0) == pytest.approx(0.05)


def test_workers_ask_a_little_after_the_schedulers_and_apart() -> None:
    phases = [PollPace.of_worker(worker, 1.0).phase for worker in range(16)]
    assert phases[0] == pacing.POLL_PHASE_SECONDS
    assert len(set(phases)) == 16
    assert max(phases) < pacing.POLL_PHASE_SECONDS + pacing.POLL_SPREAD_SECONDS


@pytest.mark.parametrize(
    ("before", "after", "now"),
    [
        (LOW_WATER, LOW_WATER - 1, True),
        (LOW_WATER, LOW_WATER, False),
        (LOW_WATER - 1, 0, False),
        (5 * LOW_WATER, 0, True),
    ],
)
def test_a_claim_asks_for_a_poll_when_little_is_left_of_much(before: int, after: int, now: bool) -> None:
    assert is_time_to_poll(before, after) is now


@pytest.mark.parametrize(
    ("took", "rested", "ahead"), [(0.001, 0.0, 0.1), (0.2, 0.0, 0.4), (60.0, 0.0, 0.5), (60.0, 0.53, 0.1)]
)
def test_where_claims_take_long_slots_are_expected_further_ahead_for_a_while(
    took: float, rested: float, ahead: float
) -> None:
    pace = ClaimPace()
    assert pace.ahead(1000.0) == 0.1
    pace.note(1000.0, 1000.0 + took)
    assert pace.ahead(1000.0 + took + rested) == pytest.approx(ahead)


@pytest.mark.parametrize(("took", "rest"), [(0.001, 0.02), (0.2, 0.2), (60.0, 0.5)])
def test_while_more_is_claimed_than_there_are_slots_claims_are_gathered(took: float, rest: float) -> None:
    pace = ClaimPace()
    pace.note(1000.0, 1000.0 + took)
    assert pace.rest(busy=51, capacity=50) == pytest.approx(rest)
    assert pace.rest(busy=50, capacity=50) == 0


@pytest.mark.parametrize(
    ("lasting", "rest"),
    [(math.inf, 0.2), (1.0, 0.2), (0.3, 0.1), (0.21, 0.02), (0.1, 0.02), (0.0, 0.02)],
)
def test_the_next_claim_begins_before_what_is_claimed_is_used_up(lasting: float, rest: float) -> None:
    pace = ClaimPace()
    pace.note(1000.0, 1000.2)
    assert pace.rest(51, 50, lasting) == pytest.approx(rest)


def test_what_is_due_and_cannot_be_claimed_is_tried_less_and_less_often() -> None:
    pauses = [retry_pause(tries) for tries in range(1, 8)]
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert retry_pause(10**9) == 0.5


@pytest.mark.parametrize(
    ("due_in", "skip_in", "moment"),
    [(-60, None, 0.3), (60, None, 60.3), (-60, 0.1, 0.1), (-60, 1, 0.3), (-60, 0, 0.3), (-60, -1, 0.3)],
)
def test_the_next_try_is_after_its_due_time_and_a_pause_or_when_it_may_be_skipped(
    due_in: float, skip_in: float | None, moment: float
) -> None:
    until = None if skip_in is None else NOON + s(skip_in)
    assert next_try(NOON + s(due_in), NOON, 0.3, until) == NOON + s(moment)


@pytest.mark.parametrize(("round_trip", "before"), [(0.0, 0.05), (0.01, 0.07), (0.1, 0.25)])
def test_the_farther_the_database_the_earlier_an_instance_is_claimed(round_trip: float, before: float) -> None:
    assert claim_before(round_trip) == s(before)


@pytest.mark.parametrize(
    ("due_in", "skip_in", "moment"),
    [(60, None, 60.2), (0.4, None, 0.6), (0.2, None, 0.4), (0.1, None, 0.3), (-60, None, 0.3), (60, 0.2, 0.2)],
)
def test_from_afar_the_next_try_begins_earlier_by_the_time_on_the_way_but_after_the_pause(
    due_in: float, skip_in: float | None, moment: float
) -> None:
    until = None if skip_in is None else NOON + s(skip_in)
    assert next_try(NOON + s(due_in), NOON, 0.3, until, round_trip=0.1) == NOON + s(moment)


@pytest.mark.parametrize(
    ("took", "ahead", "rest"),
    [(0.05, 0.3, 0.02), (0.15, 0.3, 0.05), (0.3, 0.6, 0.2), (60.0, 0.7, 0.5)],
    ids=["less than the way", "little more than the way", "long", "very long"],
)
def test_the_time_on_the_way_is_no_sign_of_a_busy_database_and_slots_are_expected_further_ahead_for_it(
    took: float, ahead: float, rest: float
) -> None:
    pace = ClaimPace()
    pace.note(1000.0, 1000.0 + took, round_trip=0.1)
    assert pace.ahead(1000.0 + took) == pytest.approx(ahead)
    assert pace.rest(busy=51, capacity=50) == pytest.approx(rest)
    assert pace.ahead(1000.0 + took + 0.53) == pytest.approx(0.3), "the database is as far away later"
