"""Several cron expressions of one task against the literal scans of each, put together.

Everything random is derived from SEED and from what a failure's message shows.
"""

import random
from bisect import bisect_right
from datetime import datetime, timedelta
from itertools import islice, pairwise, takewhile

import pytest

from rota.shared.domain.errors import InvalidCron
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.triggers.inputs import TriggerInputs
from tests.harness.cron_scan import Meant, Tick, random_expression, scan, ticks
from tests.harness.examples import ALL, examples

SEED = 20261123
at = datetime.fromisoformat
DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)

TRANSITIONS = [
    ("Europe/Berlin", "2026-03-29 01:00"),
    ("Europe/Berlin", "2026-10-25 01:00"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("Pacific/Apia", "2011-04-02 14:00"),
    ("Pacific/Apia", "2011-12-30 10:00"),
    ("Atlantic/Azores", "2026-03-29 01:00"),
    ("Atlantic/Azores", "2026-10-25 01:00"),
    ("Antarctica/Troll", "2026-03-29 01:00"),
    ("Antarctica/Troll", "2026-10-25 01:00"),
    ("Pacific/Chatham", "2026-04-04 14:00"),
    ("Pacific/Chatham", "2026-09-26 14:00"),
    ("Asia/Kolkata", "2026-03-29 01:00"),
]
ZONES = sorted({zone for zone, _ in TRANSITIONS})


def several(rng: random.Random, window: list[Tick], *, seconds: bool = False) -> list[Meant]:
    near = window[len(window) // 2].wall
    return [random_expression(rng, near, seconds=seconds) for _ in range(rng.randint(2, 4))]


def check(meant: list[Meant], zone: str, window: list[Tick], told: str, *, warm_up: timedelta = DAY) -> None:
    """Compare all fires from ``warm_up`` after the window's start on; a fold's first pass may lie before that."""
    text = joined(meant)
    seconds = int(len(meant[0].text.split()) == 6)
    begin, end = window[0].instant + warm_up, window[-1].instant
    expected = sorted(fire for fire in {f for one in meant for f in scan(one, window)} if fire > begin)
    inputs = PlanInputs("cron", text, seconds, zone)
    fires = list(takewhile(lambda fire: fire <= end, islice(inputs.fires_after(begin), len(expected) + 1)))
    assert fires == expected, f"{text} in {zone} ({told})"
    assert all(a < b for a, b in pairwise(fires)), f"{text} in {zone} ({told})"
    rng = random.Random(told)
    for moment in [begin + (end - begin) * rng.random() for _ in range(6)]:
        before = bisect_right(expected, moment)
        latest = trigger_of(inputs).latest_at_or_before(moment)
        if before:
            assert latest == expected[before - 1], f"{text} in {zone} at {moment} ({told})"
        else:
            assert latest is None or latest <= begin, f"{text} in {zone} at {moment} ({told})"


def joined(meant: list[Meant]) -> str:
    return "; ".join(one.text for one in meant)


@pytest.mark.parametrize(("zone", "transition"), TRANSITIONS, ids=str)
def test_they_fire_as_the_scans_of_each_together_around_a_transition(zone: str, transition: str) -> None:
    middle = at(transition)
    window = ticks(zone, middle - 2 * DAY, middle + DAY, MINUTE)
    for number in range(examples(40)):
        told = f"seed {SEED}, {zone} {transition} {number}"
        check(several(random.Random(told), window), zone, window, told)


@pytest.mark.parametrize(("zone", "transition"), TRANSITIONS[::3], ids=str)
def test_they_fire_as_the_scans_by_seconds_around_a_transition(zone: str, transition: str) -> None:
    middle, hour = at(transition), timedelta(hours=1)
    window = ticks(zone, middle - 3 * hour, middle + 3 * hour, SECOND)
    for number in range(examples(16)):
        told = f"seed {SEED}, seconds {zone} {transition} {number}"
        check(several(random.Random(told), window, seconds=True), zone, window, told, warm_up=hour / 2)


@pytest.mark.parametrize("zone", ZONES)
def test_they_fire_as_the_scans_in_random_weeks(zone: str) -> None:
    for number in range(200 if ALL else 4):
        told = f"seed {SEED}, week {zone} {number}"
        rng = random.Random(told)
        start = at("1970-01-03") + timedelta(hours=rng.randrange(130 * 365 * 24))
        window = ticks(zone, start - DAY, start + 7 * DAY, MINUTE)
        if any(tick.again for tick in window[:1440]):  # its first pass may lie before the window
            continue
        check(several(rng, window), zone, window, told)


def test_fires_that_meet_at_an_instant_are_one() -> None:
    inputs = PlanInputs("cron", "0 9 * * *; 0 */3 * * *;0 9 * * mon-fri")
    fires = list(islice(inputs.fires_after(at("2026-11-23 05:00")), 3))
    assert fires == [at("2026-11-23 06:00"), at("2026-11-23 09:00"), at("2026-11-23 12:00")]


def test_each_expression_keeps_its_own_dst_rule() -> None:
    """At 02:30 the clocks have gone forward: the fixed time fires at the gap's end, the other one not at all."""
    begin, zone = at("2026-03-29 00:45"), "Europe/Berlin"
    fixed, moving = PlanInputs("cron", "30 2 * * *", 0, zone), PlanInputs("cron", "30 */2 * * *", 0, zone)
    both = PlanInputs("cron", "30 2 * * *; 30 */2 * * *", 0, zone)
    gap_end = at("2026-03-29 01:00")
    assert (fixed.next_after(begin), moving.next_after(begin)) == (gap_end, at("2026-03-29 02:30"))
    assert list(islice(both.fires_after(begin), 2)) == [gap_end, at("2026-03-29 02:30")]


def test_they_are_shown_in_words_and_in_one_form() -> None:
    trigger = trigger_of(TriggerInputs("cron", "0  9 * * mon-fri;@daily"))
    assert trigger.label() == "0 9 * * mon-fri; @daily"
    assert trigger.describe() == "at 09:00 on Monday through Friday; every day at 00:00"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 9 * * *; 61 * * * *", r"The cron expression '61 \* \* \* \*' is refused: the minute field has 61"),
        ("0 9 * * *; 0 0 31 2 *", r"'0 0 31 2 \*' is refused: day 31 never comes"),
        ("0 9 * * *; 0 0 9 * * *", r"'0 0 9 \* \* \*' is refused: it has six fields"),
        ("0 9 * * *;", "a ';' has no expression before or after it"),
        ("; 0 9 * * *", "a ';' has no expression before or after it"),
        ("0 9 * * *; ;0 12 * * *", "a ';' has no expression before or after it"),
        (";", "a ';' has no expression before or after it"),
        ("", "it is empty"),
    ],
)
def test_the_error_names_the_expression_that_is_wrong(text: str, said: str) -> None:
    with pytest.raises(InvalidCron, match=said):
        trigger_of(TriggerInputs("cron", text))
