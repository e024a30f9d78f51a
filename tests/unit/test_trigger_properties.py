"""Every kind of trigger against a scan by the minute that calls none of its code (tests/harness/trigger_scan.py).

Next fires strictly grow; none is missing, and none is extra: in the 48 hours around the transitions of zones with odd
ones (there also by the second), and in random weeks, from 1970 to 2100. Everything random is derived from SEED and from
what a failure's message shows. `make test` takes a part, `make test-long` each transition and 200 weeks for each zone.
"""

import random
from bisect import bisect_right
from datetime import datetime
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.states import TriggerKind
from tests.harness.examples import ALL, examples
from tests.harness.trigger_scan import CASES, DAY, EPOCH, HOUR, ZONES, Case, Window, random_case, transitions

pytestmark = pytest.mark.timeout(1200)
"""All examples are minutes of calculation, and several times as many on a slow machine that does other work, too."""

SEED = 20261123
COMPARED = 12_000
"""More than the minutes of a week, so of what fires by the minute all fires in a window are compared. Of what fires by
the second so many in a row, in half of the cases those in the window's middle."""

NOT_BY_THE_CLOCK = {"manual", "fixed_delay", "after"}
CHANGING = [zone for zone in ZONES if zone != "Asia/Kolkata"]


def check(case: Case, window: Window, told: str) -> None:
    """Compare all fires in the window, and the two questions at some moments."""
    told = f"{case.kind} {dict(case.columns)} ({told})"
    inputs = PlanInputs(case.kind, **case.columns)
    expected = sorted(fire for fire in case.fires if window.begin < fire <= window.end)
    rng = random.Random(told)
    match refusal(inputs):
        case "never":  # fixed times may meet where a gap ends, seldom: a search may end before that
            assert set(expected) <= {moment for zone in ZONES for moment in transitions(zone)}, told
            return
        case "too seldom":
            assert len(expected) <= 1, told
            return
    begin = window.begin
    if len(expected) > COMPARED:
        middle = bisect_right(expected, window.middle)
        begin = expected[max(0, min(rng.choice([middle, rng.randrange(len(expected))]), len(expected)) - COMPARED // 2)]
    wanted = expected[bisect_right(expected, begin) :][:COMPARED]
    fires = list(takewhile(lambda fire: fire <= window.end, islice(inputs.fires_after(begin), len(wanted) + 1)))
    assert fires[:COMPARED] == wanted, told
    assert all(a < b for a, b in pairwise(fires)), told
    moments = [window.begin + (window.end - window.begin) * rng.random() for _ in range(3)]
    for moment in [*moments, *rng.sample(expected, min(2, len(expected)))]:
        place = bisect_right(expected, moment)
        following, latest = inputs.next_after(moment), inputs.newest_until(moment)
        if place < len(expected):
            assert following == expected[place], f"after {moment}: {told}"
        else:
            assert following is None or following > window.end, f"after {moment}: {told}"
        if place:
            assert latest == expected[place - 1], f"until {moment}: {told}"
        else:
            assert latest is None or latest <= window.begin, f"until {moment}: {told}"


def refusal(inputs: PlanInputs) -> str | None:
    """Whether it is refused because its members never meet, or so seldom that no search finds the next time."""
    try:
        inputs.next_after(EPOCH)
    except InvalidInput as refused:
        return next((word for word in ("never", "too seldom") if word in str(refused)), None)
    return None


def around(transition: datetime) -> Window:
    return Window(transition - DAY, transition + DAY, transition)


def test_each_kind_that_fires_by_the_clock_is_compared() -> None:
    assert {kind.partition(" ")[0] for kind in CASES} | NOT_BY_THE_CLOCK == set(TriggerKind)


def test_the_zones_have_transitions_of_all_kinds() -> None:
    counts = {zone: len(transitions(zone)) for zone in ZONES}
    assert counts.pop("Asia/Kolkata") == 0
    assert min(counts.values()) > 10, counts
    assert sum(counts.values()) > 1000, counts


@pytest.mark.parametrize("zone", CHANGING)
def test_fires_as_the_scan_in_48_hours_around_each_transition(zone: str) -> None:
    every = transitions(zone)
    chosen = every if ALL else random.Random(SEED).sample(every, 3)
    for transition in chosen:
        window = around(transition)
        for kind in ("cron", "cron by second", "once", "combined"):
            told = f"seed {SEED}, {zone} {transition}, {kind}"
            check(random_case(random.Random(told), kind, window, zone), window, told)


@pytest.mark.parametrize("zone", ZONES)
def test_fires_as_the_scan_in_random_weeks(zone: str) -> None:
    for number in range(200 if ALL else 1):
        rng = random.Random(f"seed {SEED}, {zone}, week {number}")
        begin = EPOCH + 2 * DAY + HOUR * rng.randrange((130 * 365 - 9) * 24)
        window = Window(begin, begin + 7 * DAY, begin + HOUR * rng.randrange(7 * 24))
        for kind in ("cron", "interval", "once", "combined"):
            told = f"seed {SEED}, {zone}, week {number}, {kind}"
            check(random_case(random.Random(told), kind, window, zone), window, told)


@settings(derandomize=True, max_examples=examples(400), deadline=None, print_blob=True)
@given(
    kind=st.sampled_from(sorted(CASES)),
    zone=st.sampled_from(CHANGING),
    transition=st.integers(0, 39),
    number=st.integers(0, 1_000_000),
)
def test_fires_as_the_scan_of_whatever_hypothesis_draws(kind: str, zone: str, transition: int, number: int) -> None:
    known = transitions(zone)
    window = around(known[transition % len(known)])
    check(random_case(random.Random(number), kind, window, zone), window, f"number {number}")
