"""The interval: how it is written, what it refuses, and its fires against a scan by the second.

Everything random is derived from what hypothesis prints with a failure.
"""

from datetime import datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.shared.domain.counting import count
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.times import EARLIEST, LATEST
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.triggers.interval import LONGEST_SECONDS, interval_seconds
from tests.harness.examples import examples

at = datetime.fromisoformat
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
NOON = at("2026-11-19T12:00:00")


def every(value: Any, **fields: Any) -> PlanInputs:
    return PlanInputs("interval", trigger_spec={"every": value}, **fields)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (1, 1), (90.0, 90), ("90", 90), ("90s", 90), ("15m", 900), ("15 min", 900), ("1h30m", 5400), ("1H 30M", 5400),
        ("1d12h", 129_600), ("0h1m", 60), (timedelta(minutes=15), 900), (LONGEST_SECONDS, LONGEST_SECONDS),
    ],
)  # fmt: skip
def test_an_interval_is_written_as_seconds_a_timedelta_or_text(written: Any, seconds: int) -> None:
    assert interval_seconds(written) == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        0, -5, 0.5, 1.5, "0", "0s", "", "m", "soon", "1h30", "30m1h", "1.5h", "-1h", "٣s", "9" * 5000, 10**400, True,
        None, [60],
        {"seconds": 60}, float("nan"), float("inf"), timedelta(0), timedelta(milliseconds=1500), LONGEST_SECONDS + 1,
        "99999d",
    ],
    ids=lambda wrong: f"{wrong!r:.20}",
)  # fmt: skip
def test_what_is_no_interval_is_refused_in_a_short_sentence(wrong: Any) -> None:
    with pytest.raises(
        InvalidInput, match="an interval is from 1s to 3650d; write whole seconds, or a text"
    ) as refused:
        interval_seconds(wrong)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "spec",
    [None, 5, True, "15m", [], {}, ["every"], {"seconds": 60}, {"every": 60, "evry": 60},
     {"every": None}, {"every": {}}, {"every": "0s"}],
    ids=str,
)  # fmt: skip
def test_a_spec_that_sql_wrote_wrong_is_refused_by_each_question(spec: Any) -> None:
    inputs = PlanInputs("interval", trigger_spec=spec)
    for ask in (inputs.next_after, inputs.newest_until, lambda _: trigger_of(inputs).describe()):
        with pytest.raises(InvalidInput, match="every"):
            ask(NOON)


@pytest.mark.parametrize(
    ("value", "words", "label"),
    [
        (1, "every second", "every 1s"),
        (45, "every 45 seconds", "every 45s"),
        ("15m", "every 15 minutes", "every 15m"),
        ("1h", "every hour", "every 1h"),
        (5400, "every 1 hour and 30 minutes", "every 1h30m"),
        ("7d", "every 7 days", "every 7d"),
    ],
)
def test_it_says_itself_in_words(value: Any, words: str, label: str) -> None:
    trigger = trigger_of(every(value))
    assert (trigger.describe(), trigger.label()) == (words, label)


def test_it_counts_from_the_epoch_or_from_starts_at() -> None:
    assert every("1d").next_after(NOON) == at("2026-11-20T00:00:00")
    anchored = every("1d", starts_at=at("2026-11-18T06:30:00.250000"))
    assert anchored.next_after(NOON) == at("2026-11-20T06:30:00.250000")
    assert anchored.next_after(at("2020-01-01")) == anchored.starts_at
    assert anchored.newest_until(at("2026-11-18T06:30:00")) is None


def test_no_zone_shifts_it() -> None:
    for zone in ("UTC", "Europe/Berlin", "Pacific/Apia", "Australia/Lord_Howe"):
        night = every("1h", timezone=zone).fires_after(at("2026-10-24T22:00:00"))
        assert [b - a for a, b in pairwise(islice(night, 30))] == [HOUR] * 29


def test_it_ends_with_the_times_that_rota_takes() -> None:
    assert every("10d").next_after(LATEST) is None
    assert every("1s").next_after(LATEST - SECOND) == LATEST.replace(microsecond=0)
    assert every(LONGEST_SECONDS, starts_at=LATEST).next_after(LATEST - SECOND) == LATEST


def test_missed_fires_cost_the_same_however_many_they_are() -> None:
    inputs = every(1)
    assert inputs.newest_until(at("9999-01-01")) == at("9999-01-01")
    assert count(inputs, EARLIEST, at("2026-01-01")) == (at("2026-01-01") - EARLIEST) // SECOND + 1


instants = st.datetimes(at("1970-01-01"), at("2100-01-01"))


@settings(derandomize=True, max_examples=examples(800), deadline=None, print_blob=True)
@given(
    seconds=st.one_of(st.integers(1, 90), st.integers(1, 20_000), st.sampled_from([60, 900, 3600, 86_400])),
    starts_at=st.one_of(st.none(), instants),
    ends_after=st.one_of(st.none(), st.integers(0, 9000)),
    begin=instants,
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"]),
)
def test_its_fires_are_those_of_a_scan_by_the_second(
    *, seconds: int, starts_at: datetime | None, ends_after: int | None, begin: datetime, zone: str
) -> None:
    begin = begin if starts_at is None else max(begin, starts_at - 2 * MINUTE)
    ends_at = None if ends_after is None else max(begin, starts_at or begin) + ends_after * SECOND
    inputs = every(seconds, starts_at=starts_at, ends_at=ends_at, timezone=zone)
    anchor, end = starts_at or EARLIEST, begin + 2 * HOUR
    expected = scanned(anchor, seconds, begin, min(end, ends_at or end))
    fires = list(takewhile(lambda fire: fire <= end, inputs.fires_after(begin)))
    assert fires == expected
    assert all(a < b for a, b in pairwise(fires))
    if fires:
        assert inputs.newest_until(end) == fires[-1]
        assert inputs.newest_until(fires[0]) == fires[0]
        assert count(inputs, fires[0], end) == len(fires)


def scanned(anchor: datetime, seconds: int, begin: datetime, end: datetime) -> list[datetime]:
    """Look at each second that is whole seconds from the anchor, and not before it."""
    moment = begin.replace(microsecond=anchor.microsecond) - SECOND
    found = []
    while moment <= end:
        passed = round((moment - anchor).total_seconds())
        if begin < moment and passed >= 0 and passed % seconds == 0:
            found.append(moment)
        moment += SECOND
    return found
