"""The fixed delay: its words, what it refuses, and plans that follow ends against a small model.

Everything random is derived from what hypothesis prints with a failure.
"""

from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.shared.domain.after_ends import Flight, MarkedRun, follow_up
from rota.shared.domain.deciding import decide
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs, PlannedTask, TaskTerms
from rota.shared.domain.times import LATEST
from rota.shared.domain.triggers.base import trigger_of
from tests.harness.examples import examples

SECOND = timedelta(seconds=1)
NOON = datetime.fromisoformat("2026-11-19T12:00:00")
GRACE = 10


def delayed(value: Any, **fields: Any) -> PlanInputs:
    return PlanInputs("fixed_delay", trigger_spec={"fixed_delay": value}, **fields)


def terms(inputs: PlanInputs, policy: str = "fire_once", status: str = "on") -> TaskTerms:
    return TaskTerms(
        status=status, type="REPORT", inputs=inputs, inputs_text="", is_stale=False, needs_replan=False,
        is_deleted=False, gmt_create=None, misfire_policy=policy, misfire_grace_seconds=GRACE, priority=5,
        required_labels={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "words", "label"),
    [
        ("10m", "10 minutes after the end of its last run", "10m after its end"),
        (3600, "1 hour after the end of its last run", "1h after its end"),
        ("1h30m", "1 hour and 30 minutes after the end of its last run", "1h30m after its end"),
    ],
)
def test_its_words(value: Any, words: str, label: str) -> None:
    trigger = trigger_of(delayed(value))
    assert (trigger.describe(), trigger.label()) == (words, label)


@pytest.mark.parametrize("value", [0, -1, "soon", None, 0.5, True, "11y", [60]])
def test_what_is_no_delay_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^fixed_delay .*: an interval is from 1s to 3650d"):
        trigger_of(delayed(value))


def test_the_fire_after_an_end_lies_in_the_window_and_before_the_end_of_all_times() -> None:
    inputs = delayed(60, starts_at=NOON, ends_at=NOON + timedelta(hours=1))
    assert inputs.after_end(NOON - timedelta(days=1)) == NOON
    assert inputs.after_end(NOON) == NOON + 60 * SECOND
    assert inputs.after_end(NOON + timedelta(hours=1)) is None
    assert delayed("3650d").after_end(LATEST - SECOND) is None


@given(delay=st.integers(1, 100_000), start=st.integers(0, 10**6))
def test_the_fires_that_do_not_run_are_a_delay_apart(delay: int, start: int) -> None:
    first = NOON + start * SECOND
    fires = list(islice(delayed(delay).from_fire(first).fires_after(first - SECOND / 2), 5))
    assert fires == [first + n * delay * SECOND for n in range(5)]


LIVES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 900)), min_size=1, max_size=8)
"""How long each run takes, and how long no scheduler looks after its end, in seconds."""


@settings(max_examples=examples(200))
@given(delay=st.integers(1, 200), policy=st.sampled_from(["fire_once", "fire_all", "skip"]), lives=LIVES)
def test_each_end_is_followed_by_one_fire_as_a_model_says(delay: int, policy: str, lives: Any) -> None:
    plan = terms(delayed(delay), policy)
    now, fires, model = NOON, [], [NOON]
    task = PlannedTask(1, "queue", NOON, None, plan)
    for took, away in lives:
        decision = decide(plan, task.next_fire_at, now, now)
        while not decision.fires:  # the time of the next fire comes
            assert decision.next_fire_at is not None
            now = decision.next_fire_at
            decision = decide(plan, decision.next_fire_at, now, now)
        [fire] = decision.fires
        assert decision.next_fire_at is None
        fires.append(fire)
        running = MarkedRun(1, 1, fire, is_open=True, stays=True, gmt_completed=None)
        assert decide(plan, now, now, now, Flight.of([running], now)).fires == [], "no second one beside it"
        end = max(now, fire) + took * SECOND
        now = end + away * SECOND
        ended = MarkedRun(1, 1, fire, is_open=False, stays=True, gmt_completed=end)
        task.next_fire_at = None
        task.next_fire_at, marks = follow_up(task, [ended], now)
        assert (task.next_fire_at, marks) == (end + delay * SECOND, [1])
        model.append(in_model(end + delay * SECOND, now, delay, policy))
    assert fires == model[:-1]
    assert all(before < after for before, after in pairwise(fires))


def in_model(fire: datetime, now: datetime, delay: int, policy: str) -> datetime:
    """When it runs after an end: at its time, or if that was missed and is skipped, so many delays later."""
    while policy == "skip" and (now - fire).total_seconds() > GRACE:
        fire += delay * SECOND
    return fire


@given(delay=st.integers(1, 500), off=st.integers(0, 5000))
def test_what_is_held_back_is_counted_and_the_plan_goes_on(delay: int, off: int) -> None:
    now = NOON + off * SECOND
    decision = decide(terms(delayed(delay), status="off"), NOON, now, now)
    assert (decision.fires, decision.skipped is not None) == ([], True)
    assert decision.next_fire_at == NOON + (off // delay + 1) * delay * SECOND
    assert decision.held_back == pytest.approx(off // delay + 1, abs=1)
