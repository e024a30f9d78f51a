"""Which fires a backfill has, in which order it runs them, and what only_missing leaves out."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.shared.domain.backfilling import (
    COUNTED_FIRES,
    MOST_FIRES,
    Backfill,
    Past,
    Step,
    finish,
    fires_in,
    go_on,
    settled,
    to_look_at,
)
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.states import BackfillStatus

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
MINUTE = timedelta(minutes=1)
EVERY_MINUTE = PlanInputs("cron", "* * * * *")
NIGHTLY = PlanInputs("cron", "30 2 * * *", timezone="Europe/Berlin")
RUNNING, PAUSED, CANCELED, DONE = BackfillStatus


def backfill(number: int, **fields: Any) -> Backfill:
    """A backfill of the last so many minutes before noon, noon among them."""
    first = NOON - (number - 1) * MINUTE
    newest_first = fields.get("newest_first", False)
    given: dict[str, Any] = {
        "status": RUNNING,
        "next_fire": NOON if newest_first else first,
        "inputs": EVERY_MINUTE,
        "newest_first": False,
        "only_missing": False,
        "concurrency": 3,
        "in_flight": [],
        **fields,
    }
    return Backfill(1, 1, from_at=first, to_at=NOON, revision=0, **given)


def stepped(one: Backfill, statuses: dict[datetime, str], past: Past | None = None) -> Step:
    """A step as the scheduler takes it."""
    step = settled(one, statuses)
    room = one.concurrency - len(step.in_flight)
    if step.status == RUNNING:
        go_on(step, room, to_look_at(one, room), past)
    finish(step)
    return step


def after(one: Backfill, step: Step) -> Backfill:
    return replace(one, status=step.status, next_fire=step.next_fire, in_flight=[*step.in_flight, *step.fires])


def test_a_range_has_both_of_its_ends() -> None:
    found = fires_in(EVERY_MINUTE, NOON - 10 * MINUTE, NOON, NOON)
    assert (found.number, found.is_exact) == (11, True)
    assert (found.counted[0], found.counted[-1], found.last) == (NOON - 10 * MINUTE, NOON, NOON)


def test_the_window_of_the_task_clips_the_range() -> None:
    clipped = replace(EVERY_MINUTE, starts_at=NOON - 3 * MINUTE, ends_at=NOON - MINUTE)
    assert fires_in(clipped, NOON - 10 * MINUTE, NOON, NOON).number == 3


def test_where_clocks_go_back_a_nightly_task_has_one_fire() -> None:
    day = datetime.fromisoformat("2026-10-24T22:00:00")
    assert fires_in(NIGHTLY, day, day + timedelta(days=1), NOON).number == 1


def test_many_fires_are_estimated_by_those_that_were_counted() -> None:
    found = fires_in(EVERY_MINUTE, NOON - 100_000 * MINUTE, NOON, NOON)
    assert (found.number, found.is_exact, len(found.counted)) == (100_001, False, COUNTED_FIRES)


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (NOON, NOON - MINUTE, "from_at 2026-11-19 12:00:00 is after to_at 2026-11-19 11:59:00 "),
        (NOON, NOON + MINUTE, "to_at 2026-11-19 12:01:00 .* is still to come"),
        (NOON - 2 * MINUTE / 3, NOON - MINUTE / 3, "the task has no fire from"),
        (NOON - 2 * MOST_FIRES * MINUTE, NOON, r"there are about 2,000,001 fires .* at most 1,000,000"),
    ],
)
def test_a_range_that_cannot_be_is_refused(begin: datetime, end: datetime, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        fires_in(EVERY_MINUTE, begin, end, NOON)


def test_a_billion_fires_are_refused_at_once() -> None:
    each_second = PlanInputs("interval", trigger_spec={"every": "1s"})
    with pytest.raises(InvalidInput, match="about 1,000,000,001 fires"):
        fires_in(each_second, NOON - timedelta(seconds=1_000_000_000), NOON, NOON)


@given(
    number=st.integers(1, 60),
    concurrency=st.integers(1, 12),
    newest_first=st.booleans(),
    ends=st.lists(st.sampled_from(["succeed", "failed", "canceled", "running", "pending"]), min_size=1),
)
def test_each_fire_is_written_once_in_its_order_and_never_more_than_may_be_in_flight(
    number: int, concurrency: int, newest_first: bool, ends: list[str]
) -> None:
    one = backfill(number, concurrency=concurrency, newest_first=newest_first)
    written: list[datetime] = []
    ended = 0
    for turn in range(500):
        say = ends[turn % len(ends)] if turn < 100 else "succeed"
        statuses = {fire: say if at % 2 else "succeed" for at, fire in enumerate(one.in_flight)}
        step = stepped(one, statuses)
        ended += sum(step.ended.values())
        written += step.fires
        one = after(one, step)
        assert len(one.in_flight) <= concurrency
        if one.status == DONE:
            break
    assert one.status == DONE
    assert ended == number
    assert sorted(written) == [NOON - n * MINUTE for n in range(number - 1, -1, -1)]
    assert written == sorted(written, reverse=newest_first)


def test_a_paused_one_writes_nothing_and_goes_on_counting() -> None:
    one = backfill(10, status=PAUSED, in_flight=[NOON - 9 * MINUTE], next_fire=NOON - 8 * MINUTE)
    step = stepped(one, {NOON - 9 * MINUTE: "failed"})
    assert (step.status, step.fires, step.ended) == (PAUSED, [], {"failed": 1})


def test_a_paused_one_of_which_all_have_ended_is_done() -> None:
    one = backfill(1, status=PAUSED, in_flight=[NOON], next_fire=None)
    assert stepped(one, {NOON: "succeed"}).status == DONE
    assert stepped(replace(one, status=CANCELED), {NOON: "succeed"}).status == CANCELED


def test_an_instance_that_somebody_deleted_counts_as_canceled() -> None:
    assert stepped(backfill(1, in_flight=[NOON], next_fire=None), {}).ended == {"canceled": 1}


def test_only_missing_passes_over_what_ran() -> None:
    one = backfill(6, only_missing=True)
    ran = {NOON - n * MINUTE for n in (5, 3, 0)}
    step = stepped(one, {}, Past(ran=ran))
    assert step.fires == [NOON - n * MINUTE for n in (4, 2, 1)]
    assert (step.not_missing, step.next_fire) == (2, NOON)
    step = stepped(after(one, step), dict.fromkeys(step.fires, "succeed"), Past(ran=ran))
    assert (step.not_missing, step.status) == (1, DONE)


@pytest.mark.parametrize(
    "past",
    [Past(planned_until=NOON - 2 * MINUTE), Past(catching_up=[(NOON - 2 * MINUTE, NOON - MINUTE)])],
    ids=["the plan", "the catch-up"],
)
def test_only_missing_waits_for_a_fire_that_somebody_else_may_write(past: Past) -> None:
    step = stepped(backfill(5, only_missing=True), {}, past)
    assert step.fires == [NOON - 4 * MINUTE, NOON - 3 * MINUTE]
    assert (step.next_fire, step.status) == (NOON - 2 * MINUTE, RUNNING)


def test_only_missing_pauses_where_the_history_is_not_complete_any_more() -> None:
    step = stepped(backfill(5, only_missing=True, newest_first=True), {}, Past(complete_from=NOON - MINUTE))
    assert step.fires == [NOON, NOON - MINUTE]
    assert (step.status, step.next_fire) == (PAUSED, NOON - 2 * MINUTE)
    assert step.reason is not None
    assert "complete only from 2026-11-19 11:59:00" in step.reason
