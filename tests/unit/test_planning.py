"""What a tick decides for one task."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.shared.domain.counting import COUNTED_EXACTLY, count
from rota.shared.domain.deciding import FIRES_AT_ONCE, decide
from rota.shared.domain.errors import InvalidCron, InvalidInput, InvalidTimezone
from rota.shared.domain.planning import (
    Decision,
    Missed,
    PlanInputs,
    Planned,
    Skipped,
    TaskTerms,
)
from rota.shared.domain.states import SkipReason

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
AHEAD = timedelta(seconds=5)


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


EVERY_SECOND = PlanInputs("cron", "* * * * * *", cron_seconds=1)
EVERY_MINUTE = PlanInputs("cron", "* * * * *")


@dataclass(frozen=True)
class Plan:
    """What a decision is made from."""

    terms: TaskTerms
    next_fire_at: datetime | None


def task(inputs: PlanInputs = EVERY_SECOND, next_fire_at: datetime | None = NOON, **fields: object) -> Plan:
    terms = TaskTerms(
        status="on",
        type="NIGHT",
        inputs=inputs,
        inputs_text="[]",
        is_stale=False,
        needs_replan=False,
        is_deleted=False,
        gmt_create=None,
        misfire_policy="fire_once",
        misfire_grace_seconds=10,
        priority=5,
        required_labels={},
    )
    return Plan(replace(terms, **fields), next_fire_at)  # type: ignore[arg-type]


def at(task: Plan, now: datetime, ahead: timedelta = AHEAD) -> Decision:
    return decide(task.terms, task.next_fire_at, now, now + ahead)


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    inputs = replace(EVERY_MINUTE, starts_at=NOON, ends_at=NOON - s(1))
    for ask in (inputs.next_after, inputs.newest_until):
        with pytest.raises(InvalidInput, match="is before starts_at 2026-11-19 12:00:00: the task would never fire"):
            ask(NOON)


def test_fires_up_to_the_horizon_are_materialized_and_it_itself_is_one_of_them() -> None:
    decision = at(task(), NOON)
    assert decision.fires == [NOON + s(n) for n in range(6)]
    assert decision.next_fire_at == NOON + s(6)


def test_a_fire_beyond_the_horizon_is_left_for_later() -> None:
    later = NOON + s(60)
    assert at(task(EVERY_MINUTE, later), NOON) == Decision(next_fire_at=later)


def test_one_tick_materializes_a_bounded_number_and_the_next_goes_on_behind_it() -> None:
    long_grace = task(misfire_grace_seconds=3600)
    now = NOON + s(1000)
    first = at(long_grace, now)
    assert len(first.fires) == FIRES_AT_ONCE
    assert first.next_fire_at == first.fires[-1] + s(1)
    second = at(replace(long_grace, next_fire_at=first.next_fire_at), now)
    assert second.fires[0] == first.next_fire_at


@pytest.mark.parametrize(("late", "oldest", "misfires"), [(10, 0, 0), (10.000001, 10, 10)])
def test_a_fire_late_by_its_grace_is_late_and_one_late_by_more_is_missed(
    late: float, oldest: int, misfires: int
) -> None:
    decision = at(task(EVERY_SECOND), NOON + s(late))
    assert (decision.fires[0], decision.misfires) == (NOON + s(oldest), misfires)


def test_fires_missed_for_longer_than_the_grace_run_once_as_the_newest() -> None:
    decision = at(task(EVERY_MINUTE), NOON + s(600.5))
    assert decision.fires == [NOON + s(600)]
    assert decision.misfires == 10
    assert decision.next_fire_at == NOON + s(660)


def test_a_single_missed_fire_runs_and_counts_as_none_lost() -> None:
    decision = at(task(EVERY_MINUTE), NOON + s(30))
    assert (decision.fires, decision.misfires) == ([NOON], 0)


def test_after_a_misfire_the_fires_ahead_are_materialized_too() -> None:
    decision = at(task(), NOON + s(100))
    assert decision.fires == [NOON + s(100 + n) for n in range(6)]
    assert decision.misfires == 100


def test_skip_runs_no_fire_that_is_late_by_more_than_the_grace_and_every_other() -> None:
    decision = at(task(EVERY_SECOND, misfire_policy="skip"), NOON + s(100), s(2))
    assert decision.fires == [NOON + s(n) for n in range(90, 103)]
    assert decision.skipped == Skipped(SkipReason.SKIP, NOON, NOON + s(89), 90)
    assert (decision.misfires, decision.next_fire_at) == (90, NOON + s(103))


def test_fire_all_leaves_what_was_missed_to_the_catch_up_and_goes_on_with_the_plan() -> None:
    decision = at(task(EVERY_MINUTE, misfire_policy="fire_all"), NOON + timedelta(days=1) + s(20))
    assert decision == Decision(
        next_fire_at=NOON + timedelta(days=1) + s(60), missed=Missed(NOON, NOON + timedelta(days=1))
    )


@pytest.mark.parametrize("policy", ["fire_once", "skip", "fire_all"])
def test_a_fire_that_is_no_fire_of_the_trigger_counts_as_one_for_each_policy(policy: str) -> None:
    decision = at(task(EVERY_MINUTE, NOON + s(7), misfire_policy=policy), NOON + s(40))
    told = (decision.fires, decision.skipped and decision.skipped.number, decision.missed)
    assert (
        told
        == {
            "fire_once": ([NOON + s(7)], None, None),
            "skip": ([], 1, None),
            "fire_all": ([], None, Missed(NOON + s(7), NOON + s(7))),
        }[policy]
    )


def test_missed_fires_are_counted_one_by_one_where_they_are_few() -> None:
    irregular = PlanInputs("cron", "0 0,1,2,23 * * *")
    first = NOON - timedelta(hours=12)
    assert count(irregular, first, first) == 1
    assert count(irregular, first, first + timedelta(days=2)) == 9


@pytest.mark.parametrize("fires", [COUNTED_EXACTLY - 1, COUNTED_EXACTLY, COUNTED_EXACTLY + 1, 5_000_000])
def test_regular_fires_are_counted_right_however_many_there_are(fires: int) -> None:
    assert count(EVERY_SECOND, NOON, NOON + s(fires - 1)) == fires


def test_the_number_of_irregular_fires_is_estimated_from_their_span() -> None:
    two_an_hour = PlanInputs("cron", "0,10 * * * *")
    assert count(two_an_hour, NOON, NOON + timedelta(days=100)) == pytest.approx(4801, rel=0.02)


@pytest.mark.parametrize("missed", [0, 1, 99])
def test_off_holds_back_what_has_passed_and_counts_it(missed: int) -> None:
    now = NOON + s(missed)
    skipped = Skipped(SkipReason.OFF, NOON, now, missed + 1, after=NOON - s(1))
    assert at(task(status="off"), now) == Decision(next_fire_at=now + s(1), skipped=skipped)


def test_off_leaves_a_fire_that_is_still_to_come_so_that_on_again_before_it_fires() -> None:
    off = task(status="off", next_fire_at=NOON + s(2))
    held = at(off, NOON)
    assert held == Decision(next_fire_at=NOON + s(2))
    assert at(task(next_fire_at=held.next_fire_at), NOON + s(1)).fires[0] == NOON + s(2)


def test_on_again_after_a_long_time_off_is_no_misfire() -> None:
    off = at(task(status="off"), NOON + s(1000))
    on = at(task(next_fire_at=off.next_fire_at), NOON + s(1000))
    assert (on.misfires, on.fires[0]) == (0, NOON + s(1001))


def test_nothing_fires_before_the_window_and_its_first_instant_is_in_it() -> None:
    inputs = replace(EVERY_SECOND, starts_at=NOON + s(3))
    new = task(inputs, None, needs_replan=True)
    assert at(new, NOON).fires == [NOON + s(3), NOON + s(4), NOON + s(5)]
    assert at(new, NOON - s(60)) == Decision(next_fire_at=NOON + s(3))


def test_nothing_fires_after_the_window_and_its_last_instant_is_in_it() -> None:
    inputs = replace(EVERY_SECOND, ends_at=NOON + s(2))
    assert at(task(inputs), NOON) == Decision(next_fire_at=None, fires=[NOON, NOON + s(1), NOON + s(2)])


def test_missed_fires_count_to_the_end_of_the_window_and_no_further() -> None:
    inputs = replace(EVERY_MINUTE, ends_at=NOON + s(150))
    decision = at(task(inputs), NOON + s(6000))
    skipped = Skipped(SkipReason.FIRE_ONCE, NOON, NOON + s(60), 2)
    assert decision == Decision(next_fire_at=None, fires=[NOON + s(120)], skipped=skipped)


@pytest.mark.parametrize(("at", "newest"), [(-1, None), (0, 0), (59, 0), (60, 60), (6000, 120)])
def test_the_newest_fire_is_one_inside_the_window(at: int, newest: int | None) -> None:
    inputs = replace(EVERY_MINUTE, starts_at=NOON, ends_at=NOON + s(150))
    assert inputs.newest_until(NOON + s(at)) == (None if newest is None else NOON + s(newest))


def test_a_window_that_has_closed_leaves_nothing_to_plan() -> None:
    inputs = replace(EVERY_MINUTE, ends_at=NOON - s(1))
    assert at(task(inputs, None, needs_replan=True), NOON) == Decision(next_fire_at=None)


def test_an_edited_task_is_planned_from_now_and_replays_no_past() -> None:
    edited = task(EVERY_MINUTE, NOON - timedelta(days=3), needs_replan=True)
    assert at(edited, NOON + s(30)) == Decision(next_fire_at=NOON + s(60))


HOURLY = PlanInputs("cron", "0 * * * *")


@pytest.mark.parametrize(
    ("edit", "following"),
    [
        ({"inputs": HOURLY, "needs_replan": True}, NOON + s(3600)),
        ({"status": "off"}, NOON + s(720)),
        ({"status": "off", "inputs": HOURLY, "needs_replan": True}, NOON + s(3600)),
        ({"is_deleted": True}, None),
    ],
    ids=["cron", "off", "cron and off", "deleted"],
)
def test_fires_missed_before_an_edit_was_seen_are_counted_by_the_old_plan_and_none_runs(
    edit: dict[str, Any], following: datetime | None
) -> None:
    edited = task(**{"inputs": EVERY_MINUTE, "planned": Planned("on", False, EVERY_MINUTE), "is_stale": True, **edit})
    skipped = Skipped(SkipReason.EDITED, NOON, NOON + s(11 * 60), 12)
    decision = at(edited, NOON + s(12 * 60 - 30), s(0))
    assert (decision, decision.misfires) == (Decision(next_fire_at=following, skipped=skipped), 12)


def test_an_edit_that_changes_no_fire_that_has_passed_loses_none() -> None:
    late = NOON + s(3)
    once = PlanInputs("once", trigger_spec={"at": "2026-11-19T12:00:00Z"})
    for old, new in [
        (once, replace(once, timezone="Asia/Tokyo")),
        (once, replace(once, ends_at=NOON + timedelta(days=1))),
        (once, replace(once, trigger_spec={"at": "2026-11-19T13:00:00+01:00", "jitter_seconds": 60})),
        (EVERY_MINUTE, replace(EVERY_MINUTE, timezone="Asia/Tokyo")),
        (EVERY_MINUTE, HOURLY),
    ]:
        decision = at(task(new, planned=Planned("on", False, old), is_stale=True, needs_replan=True), late)
        assert decision == Decision(next_fire_at=new.next_after(late), fires=[NOON])


def test_of_what_was_missed_for_long_an_edit_that_changes_no_fire_leaves_the_choice_to_the_policy() -> None:
    tokyo = replace(EVERY_MINUTE, timezone="Asia/Tokyo")
    edited = task(tokyo, planned=Planned("on", False, EVERY_MINUTE), is_stale=True, needs_replan=True)
    decision = at(edited, NOON + timedelta(hours=2), s(0))
    assert decision.fires == [NOON + timedelta(hours=2)]
    assert decision.skipped == Skipped(SkipReason.FIRE_ONCE, NOON, NOON + s(119 * 60), 120)


@pytest.mark.parametrize(
    "new",
    [
        PlanInputs("once", trigger_spec={"at": "2026-11-19T12:00:01"}),
        PlanInputs("once", trigger_spec={"at": "2026-11-19T12:00:00"}, timezone="Asia/Tokyo"),
        PlanInputs("once", trigger_spec={"at": "2026-11-19T12:00:00"}, starts_at=NOON + s(1)),
        PlanInputs("manual"),
    ],
)
def test_a_time_that_passed_before_an_edit_took_it_away_is_counted_as_edited(new: PlanInputs) -> None:
    once = PlanInputs("once", trigger_spec={"at": "2026-11-19T12:00:00"})
    edited = task(new, planned=Planned("on", False, once), is_stale=True, needs_replan=True)
    counted = Skipped(SkipReason.EDITED, NOON, NOON, 1)
    assert at(edited, NOON + s(3)) == Decision(next_fire_at=None, skipped=counted)


@pytest.mark.parametrize("inputs", [EVERY_MINUTE, HOURLY])
def test_on_again_holds_back_what_passed_before_it_was_seen(inputs: PlanInputs) -> None:
    again = task(
        inputs,
        planned=Planned("off", False, EVERY_MINUTE),
        is_stale=True,
        needs_replan=inputs is HOURLY,
        misfire_grace_seconds=3600,
    )
    now = NOON + s(12 * 60 - 30)
    decision = at(again, now, s(0))
    assert (decision.held_back, decision.misfires, decision.fires) == (12, 0, [])
    assert decision.next_fire_at == inputs.next_after(now)


def test_a_plan_that_somebody_made_unreadable_is_replaced_and_nothing_is_counted() -> None:
    broken = Planned("on", False, PlanInputs("cron", "61 * * * *"))
    edited = task(EVERY_MINUTE, NOON, planned=broken, is_stale=True, needs_replan=True)
    assert at(edited, NOON + s(90)) == Decision(next_fire_at=NOON + s(120))


def test_a_task_never_planned_counts_from_its_creation() -> None:
    new = task(EVERY_MINUTE, None, needs_replan=True, gmt_create=NOON - s(90))
    decision = at(new, NOON)
    assert (decision.fires, decision.misfires) == ([NOON], 1)


def test_a_creation_time_that_lies_ahead_does_not_hold_back_the_plan() -> None:
    new = task(EVERY_MINUTE, None, needs_replan=True, gmt_create=NOON + timedelta(days=400))
    assert at(new, NOON).next_fire_at == NOON + s(60)


@pytest.mark.parametrize("status", ["on", "off"])
def test_a_deleted_task_plans_nothing(status: str) -> None:
    assert at(task(status=status, is_deleted=True), NOON + s(100)) == Decision(next_fire_at=None)


def test_a_manual_task_plans_nothing() -> None:
    manual = replace(EVERY_SECOND, trigger_kind="manual")
    assert at(task(manual, None, needs_replan=True), NOON) == Decision(next_fire_at=None)


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        (replace(EVERY_MINUTE, cron="61 * * * *"), InvalidCron, "61"),
        (replace(EVERY_MINUTE, cron=None), InvalidCron, "set cron, or trigger_kind manual"),
        (replace(EVERY_MINUTE, timezone="Mars/Base"), InvalidTimezone, "Mars/Base"),
    ],
)
def test_a_plan_that_sql_made_bad_is_refused_in_a_sentence(
    inputs: PlanInputs, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        at(task(inputs, None, needs_replan=True), NOON)


crons = st.sampled_from(["* * * * * *", "*/7 * * * * *", "30 */2 * * * *", "0 0 3 * * *", "0 30 1 29 2 *"])
moments = st.integers(-(10**6), 10**6).map(lambda n: NOON + timedelta(milliseconds=n))


@given(
    cron=crons,
    first=moments,
    now=moments,
    ahead=st.integers(0, 300),
    status=st.sampled_from(["on", "off"]),
    policy=st.sampled_from(["fire_once", "skip", "fire_all"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"]),
    grace=st.integers(1, 3600),
    stale=st.booleans(),
)
def test_a_decision_moves_on_and_fires_nothing_twice(
    *,
    cron: str,
    first: datetime,
    now: datetime,
    ahead: int,
    status: str,
    policy: str,
    zone: str,
    grace: int,
    stale: bool,
) -> None:
    inputs = PlanInputs("cron", cron, cron_seconds=1, timezone=zone)
    start = inputs.next_after(first)
    policies = {"misfire_policy": policy, "misfire_grace_seconds": grace}
    plan = task(inputs, start, status=status, needs_replan=stale, **policies)
    horizon = now + s(ahead)
    decision = decide(plan.terms, plan.next_fire_at, now, horizon)
    following = decision.next_fire_at
    assert following is not None
    assert all(earlier < later for earlier, later in pairwise([*decision.fires, following]))
    assert all(fire <= horizon for fire in decision.fires)
    if status == "off":
        assert (decision.fires, following > now) == ([], True)
    else:
        assert following > horizon or len(decision.fires) >= FIRES_AT_ONCE
    if decision.skipped is not None:
        assert decision.skipped.first <= decision.skipped.last < min([*decision.fires, following])
    if decision.missed is not None:
        assert decision.missed.first <= decision.missed.last < min([*decision.fires, following])
    again = decide(replace(plan.terms, needs_replan=False), following, now, horizon)
    assert not set(again.fires) & set(decision.fires)
    assert min([*again.fires, following]) == following
