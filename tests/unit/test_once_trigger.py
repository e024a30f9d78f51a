"""A single time: how it is written, what it refuses, and when it fires around the changes of the clocks."""

import random
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from rota.shared.domain.errors import InvalidInput, InvalidTimezone
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.triggers.once import time_text
from tests.harness.cron_scan import ticks
from tests.harness.examples import examples

SEED = 20261124
at = datetime.fromisoformat
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

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


def once(text: Any, zone: str = "UTC", **fields: Any) -> PlanInputs:
    return PlanInputs("once", timezone=zone, trigger_spec={"at": text}, **fields)


def test_a_time_without_an_offset_is_in_the_tasks_zone_and_one_with_is_not() -> None:
    assert once("2027-01-04T09:00", "Asia/Shanghai").next_after(at("2026-01-01")) == at("2027-01-04T01:00")
    assert once("2027-01-04T09:00+01:00", "Asia/Shanghai").next_after(at("2026-01-01")) == at("2027-01-04T08:00")


def test_it_fires_once_and_the_window_clips_it() -> None:
    moment = at("2027-01-04T09:00")
    inputs = once("2027-01-04 09:00")
    assert list(inputs.fires_after(at("1970-01-01"))) == [moment]
    assert (inputs.next_after(moment), inputs.newest_until(moment)) == (None, moment)
    assert inputs.newest_until(moment - MINUTE) is None
    assert once("2027-01-04 09:00", starts_at=moment + MINUTE).next_after(at("2026-01-01")) is None
    assert once("2027-01-04 09:00", ends_at=moment).next_after(at("2026-01-01")) == moment


def test_it_says_itself_in_local_time() -> None:
    trigger = trigger_of(once("2027-01-04T01:00Z", "Asia/Shanghai"))
    assert (trigger.describe(), trigger.label()) == ("once, at 2027-01-04 09:00", "at 2027-01-04 09:00")
    assert trigger_of(once("2027-01-04T01:00:30")).label() == "at 2027-01-04 01:00:30"


@pytest.mark.parametrize("spec", [None, 5, "2027-01-04", [], {}, {"at": 5}, {"at": None}, {"at": "soon"}, {"at": ""},
                                  {"at": "2027-02-30"}, {"at": "1969-12-31"}, {"at": "9999-12-31"}, {"at": [1]},
                                  {"at": "2027-01-04", "every": 5}], ids=str)  # fmt: skip
def test_a_spec_that_sql_wrote_wrong_is_refused_by_each_question(spec: Any) -> None:
    inputs = PlanInputs("once", trigger_spec=spec)
    for ask in (inputs.next_after, inputs.newest_until, lambda _: trigger_of(inputs).describe()):
        with pytest.raises(InvalidInput):
            ask(at("2026-11-19"))
    with pytest.raises(InvalidTimezone):
        once("2027-01-04", "Mars/Base").next_after(at("2026-11-19"))


def test_code_gives_a_datetime_or_a_text() -> None:
    moment = at("2027-01-04T09:00")
    assert time_text(moment) == "2027-01-04T09:00:00"
    assert time_text(moment.replace(tzinfo=UTC)) == "2027-01-04T09:00:00+00:00"
    assert time_text(moment.replace(tzinfo=timezone(timedelta(hours=8)))) == "2027-01-04T09:00:00+08:00"
    assert time_text(" 2027-01-04 ") == "2027-01-04"
    for wrong in (5, None, date(2027, 1, 4), [moment]):
        with pytest.raises(InvalidInput, match="write a time, such as"):
            time_text(wrong)


@pytest.mark.parametrize(("zone", "transition"), TRANSITIONS, ids=str)
def test_each_reading_fires_where_a_scan_by_the_minute_first_meets_it(zone: str, transition: str) -> None:
    middle = at(transition)
    window = ticks(zone, middle - 52 * HOUR, middle + 52 * HOUR, MINUTE)
    expected: dict[datetime, datetime] = {}
    for tick in window:
        for reading in (tick.wall, *tick.jumped):
            expected.setdefault(reading, tick.instant)
    near = [reading for reading, instant in expected.items() if abs(instant - middle) <= 2 * HOUR]
    rng = random.Random(f"{SEED} {zone} {transition}")
    for reading in rng.sample(near, min(len(near), examples(240))):
        inputs, told = once(reading.isoformat(), zone), f"{reading} in {zone} (seed {SEED})"
        fire = expected[reading]
        assert inputs.next_after(middle - 60 * HOUR) == fire, told
        assert (inputs.next_after(fire), inputs.newest_until(fire)) == (None, fire), told
