"""Which missed fires run late under fire_all, and which are skipped, and why."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.shared.domain.catching_up import FIRES_OF_TASK, CatchUp, CaughtUp, catch_up
from rota.shared.domain.planning import PlanInputs, Skipped, TaskTerms
from rota.shared.domain.states import SkipReason

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
MINUTE = timedelta(minutes=1)
EVERY_MINUTE = PlanInputs("cron", "* * * * *")
TERMS = TaskTerms(
    status="on",
    type="NIGHT",
    inputs=EVERY_MINUTE,
    inputs_text="[]",
    is_stale=False,
    needs_replan=False,
    is_deleted=False,
    gmt_create=None,
    misfire_policy="fire_all",
    misfire_grace_seconds=10,
    priority=5,
    required_labels={},
    overlap_policy="queue",
)


def missed(number: int, **fields: Any) -> CatchUp:
    """The last so many minutes before noon, noon among them."""
    given: dict[str, Any] = {"window_seconds": 86_400, "cap": 100, "fires_left": None, **fields}
    return CatchUp(1, 1, NOON - (number - 1) * MINUTE, NOON, missed_at=NOON, inputs=EVERY_MINUTE, **given)


def lived(
    stretch: CatchUp, terms: TaskTerms = TERMS, most: int = FIRES_OF_TASK
) -> tuple[list[datetime], list[Skipped]]:
    """All fires that are written for a stretch, step by step, and all that are skipped."""
    fires: list[datetime] = []
    skipped: list[Skipped] = []
    while True:
        step = catch_up(terms, stretch, most)
        fires += step.fires
        skipped += step.skipped
        assert len(step.fires) <= most
        if not step.fires_left:
            return fires, skipped
        assert step.next_fire is not None
        stretch = replace(stretch, next_fire=step.next_fire, fires_left=step.fires_left)


def test_all_run_in_their_order_within_the_window_and_the_cap() -> None:
    assert lived(missed(25)) == ([NOON - n * MINUTE for n in range(24, -1, -1)], [])


def test_of_more_than_the_cap_the_newest_run_and_the_others_are_counted() -> None:
    fires, skipped = lived(missed(1440, cap=30))
    assert fires == [NOON - n * MINUTE for n in range(29, -1, -1)]
    assert skipped == [Skipped(SkipReason.CAP, NOON - 1439 * MINUTE, NOON - 30 * MINUTE, 1410)]


def test_what_was_missed_before_the_window_does_not_run() -> None:
    fires, skipped = lived(missed(1440, window_seconds=3600))
    assert fires == [NOON - n * MINUTE for n in range(60, -1, -1)]
    assert skipped == [Skipped(SkipReason.WINDOW, NOON - 1439 * MINUTE, NOON - 61 * MINUTE, 1379)]


def test_window_and_cap_are_counted_apart() -> None:
    fires, skipped = lived(missed(1440, window_seconds=3600, cap=10))
    assert len(fires) == 10
    assert [(one.reason, one.number) for one in skipped] == [(SkipReason.WINDOW, 1379), (SkipReason.CAP, 51)]


def test_where_all_lie_before_the_window_none_runs() -> None:
    long_ago = replace(missed(5), missed_at=NOON + timedelta(days=2))
    assert catch_up(TERMS, long_ago) == CaughtUp(skipped=[Skipped(SkipReason.WINDOW, NOON - 4 * MINUTE, NOON, 5)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "off"}, SkipReason.OFF),
        ({"is_deleted": True}, SkipReason.EDITED),
        ({"inputs": PlanInputs("cron", "0 * * * *")}, SkipReason.EDITED),
        ({"misfire_policy": "skip"}, SkipReason.SKIP),
        ({"misfire_policy": "fire_once"}, SkipReason.FIRE_ONCE),
    ],
)
def test_what_is_left_is_skipped_when_the_task_is_changed(change: dict[str, Any], reason: SkipReason) -> None:
    left = missed(25, fires_left=25)
    assert catch_up(replace(TERMS, **change), left) == CaughtUp(skipped=[Skipped(reason, left.next_fire, NOON, 25)])


def test_an_edit_that_changes_none_of_the_missed_fires_ends_no_catch_up() -> None:
    for change in ({"timezone": "Asia/Tokyo"}, {"ends_at": NOON}, {"trigger_spec": {"jitter_seconds": 5}}):
        edited = replace(TERMS, inputs=replace(EVERY_MINUTE, **change))
        assert lived(missed(25), edited) == lived(missed(25))


@given(number=st.integers(1, 300), cap=st.integers(1, 60), window=st.integers(1, 20_000), most=st.integers(1, 12))
def test_each_missed_fire_runs_once_or_is_counted_once(number: int, cap: int, window: int, most: int) -> None:
    fires, skipped = lived(missed(number, cap=cap, window_seconds=window), most=most)
    assert len(fires) + sum(one.number for one in skipped) == number
    assert fires == sorted(set(fires))
    assert len(fires) <= cap
    assert all(NOON - fire <= timedelta(seconds=window) for fire in fires)
