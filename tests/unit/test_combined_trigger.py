"""Combined triggers: how they are written, what is refused, and that every search ends.

Their fires against a scan by the minute: test_trigger_properties.
"""

import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from rota.shared.domain.errors import InvalidInput, RotaError
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.task import TaskDefinition
from rota.shared.domain.times import EARLIEST, LATEST
from rota.shared.domain.triggers.base import trigger_of
from rota.shared.domain.triggers.combined import MOST_CANDIDATES

at = datetime.fromisoformat
NOON = at("2026-11-19T12:00")
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
NINE, TEN = {"cron": "0 9 * * *"}, {"cron": "0 10 * * *"}
FIRST_MONDAY = {"all_of": [{"cron": "0 9 * * mon"}, {"cron": "0 9 1-7 * *"}]}
LONGEST_SEARCH_SECONDS = 10.0
"""Far more than a search takes, far less than one without a bound: of 8,000 years it would look at each day."""


def combined(spec: Any, zone: str = "UTC", **fields: Any) -> PlanInputs:
    return PlanInputs("combined", timezone=zone, trigger_spec=spec, **fields)


def first(spec: Any, number: int = 3, after: datetime = NOON, **fields: Any) -> list[datetime]:
    return list(islice(combined(spec, **fields).fires_after(after), number))


def test_all_of_fires_where_all_do_and_any_of_where_one_does() -> None:
    assert first(FIRST_MONDAY) == [at("2026-12-07T09:00"), at("2027-01-04T09:00"), at("2027-02-01T09:00")]
    assert combined(FIRST_MONDAY).newest_until(NOON) == at("2026-11-02T09:00")
    either = {"any_of": [NINE, {"every": "8h"}, {"at": "2026-11-19T16:00"}]}
    assert first(either) == [at("2026-11-19T16:00"), at("2026-11-20T00:00"), at("2026-11-20T08:00")]
    assert combined(either).newest_until(NOON) == at("2026-11-19T09:00")


def test_combinations_may_stand_in_each_other() -> None:
    nested = {"all_of": [{"any_of": [NINE, TEN]}, {"any_of": [{"cron": "* 10 * * *"}, {"at": "2026-11-21T09:00"}]}]}
    assert first(nested) == [at("2026-11-20T10:00"), at("2026-11-21T09:00"), at("2026-11-21T10:00")]


def test_intervals_count_from_starts_at_and_never_meet_between() -> None:
    spec = {"all_of": [{"every": "6d"}, {"every": "9d"}]}
    start = at("2026-11-01T06:30")
    assert first(spec, starts_at=start) == [start + 36 * DAY, start + 54 * DAY, start + 72 * DAY]
    assert first({"all_of": [{"every": "3650d"}, {"every": "315359999s"}]}, after=EARLIEST) == []


def test_a_member_may_have_a_zone_of_its_own() -> None:
    spec = {
        "any_of": [NINE, {**NINE, "timezone": "Asia/Shanghai"}, {"at": "2026-11-21T09:00", "timezone": "Asia/Tokyo"}]
    }
    assert first(spec, zone="Europe/Berlin") == [at("2026-11-20T01:00"), at("2026-11-20T08:00"), at("2026-11-21T00:00")]


def test_with_seconds_each_cron_has_six_fields() -> None:
    spec = {"all_of": [{"cron": "*/20 * * * * *"}, {"cron": "*/30 * * * * *"}]}
    assert first(spec, 2, cron_seconds=1) == [NOON + 60 * SECOND, NOON + 120 * SECOND]


@pytest.mark.parametrize(
    ("spec", "words", "label"),
    [
        (FIRST_MONDAY,
         "when all of [at 09:00 on Monday], [at 09:00 on the 1st through 7th of every month] fire together",
         "0 9 * * mon & 0 9 1-7 * *"),
        ({"any_of": [NINE, {"every": 5400}]}, "when any of [every day at 09:00], [every 1 hour and 30 minutes] fires",
         "0 9 * * * | every 1h30m"),
        ({"all_of": [{**NINE, "timezone": "Asia/Tokyo"}, {"any_of": [{"every": "7d"}, {"at": "2027-01-04T00:00Z"}]}]},
         ("when all of [every day at 09:00 Asia/Tokyo], "
          "[any of [every 7 days], [once, at 2027-01-04 00:00] fires] fire together"),
         "0 9 * * * Asia/Tokyo & (every 7d | at 2027-01-04 00:00)"),
    ],
)  # fmt: skip
def test_it_says_itself_in_words(spec: Any, words: str, label: str) -> None:
    trigger = trigger_of(combined(spec))
    assert (trigger.describe(), trigger.label()) == (words, label)


def deep(levels: int) -> Any:
    spec: Any = NINE
    for _ in range(levels):
        spec = {"any_of": [spec, TEN]}
    return spec


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, "trigger_spec is None; for trigger_kind combined write"),
        ({}, 'write {"all_of": [{"cron": "0 9 * * mon"}, {"every": "15m"}]}'),
        ({"any_of": [NINE, TEN], "all_of": [NINE, TEN]}, "for trigger_kind combined write"),
        ({"any_of": [NINE, TEN], "evry": 5}, "for trigger_kind combined write"),
        ({"any_of": 5}, "any_of 5: write a list of 2 to 20 triggers"),
        ({"any_of": [NINE]}, "write a list of 2 to 20 triggers"),
        ({"any_of": [NINE] * 21}, "write a list of 2 to 20 triggers"),
        ({"any_of": [NINE, 5]}, "5 is no trigger of a combination"),
        ({"any_of": [NINE, {}]}, "{} is no trigger of a combination"),
        ({"any_of": [NINE, {"cron": "0 9 * * *", "every": 5}]}, "is no trigger of a combination"),
        ({"any_of": [NINE, {"every": 60, "timezone": "UTC"}]}, "is no trigger of a combination"),
        ({"any_of": [NINE, {"cron": ["0 9 * * *"]}]}, "cron ['0 9 * * *']: write a cron expression"),
        ({"any_of": [NINE, {"cron": "0 9 * * *", "timezone": 5}]}, "timezone 5: write a name"),
        ({"any_of": [NINE, {"cron": "0 9 * * *", "timezone": "Mars/Base"}]}, "There is no time zone 'Mars/Base'"),
        ({"any_of": [NINE, {"cron": "61 9 * * *"}]}, "the minute field has 61"),
        ({"any_of": [NINE, {"every": 0}]}, "every 0: an interval is from 1s to 3650d"),
        ({"any_of": [NINE, {"at": "noon"}]}, "'noon' is not a time"),
        ({"any_of": [NINE, {"all_of": [TEN]}]}, "all_of [{'cron': '0 10 * * *'}]: write a list of 2 to 20 triggers"),
        ({"any_of": [{"any_of": [NINE] * 11}, {"any_of": [NINE] * 11}]}, "any_of has 22 triggers"),
        ({"all_of": [{"any_of": [NINE, TEN]}] * 5}, "which can fire in 32 ways; at most 20 of each are taken"),
        (deep(6), "at most 5 combinations may stand in each other"),
        (deep(400), "at most 5 combinations may stand in each other"),
        (deep(900), "at most 5 combinations may stand in each other"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_spec_that_sql_wrote_wrong_is_refused_by_each_question(spec: Any, said: str) -> None:
    inputs = combined(spec)
    for ask in (inputs.next_after, inputs.newest_until, lambda _: trigger_of(inputs).describe()):
        with pytest.raises(RotaError) as refused:
            ask(NOON)
        assert said in str(refused.value)
        assert len(str(refused.value)) < 300


def test_five_levels_are_taken() -> None:
    assert first(deep(5), 1) == [at("2026-11-20T09:00")]


NEVER = [
    {"all_of": [NINE, TEN]},
    {"all_of": [{"cron": "*/2 * * * *"}, {"cron": "1-59/2 * * * *"}]},
    {"all_of": [NINE, {"at": "2027-01-04T09:00:00.5"}]},
    {"all_of": [{"at": "2027-01-04T09:00"}, {"at": "2027-01-04T10:00"}]},
    {"all_of": [{"every": "1h"}, {"cron": "30 * * * *"}]},
    {"any_of": [{"all_of": [{"cron": f"1 {h} * * *"}, {"cron": f"2 {h} * * *"}]} for h in range(10)]},
]  # fmt: skip


@pytest.mark.parametrize("spec", NEVER, ids=range(len(NEVER)))
@pytest.mark.parametrize("zone", ["UTC", "Australia/Lord_Howe"])
def test_one_that_never_fires_is_refused_and_the_search_for_it_ends(spec: Any, zone: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidInput, match=r"never fires: .* have no fire in common"):
        combined(spec, zone).next_after(NOON)
    [name] = spec
    with pytest.raises(InvalidInput, match=f"{name} never fires"):
        TaskDefinition.of(name="n", type="N", timezone=zone, **spec)
    assert time.process_time() - began < LONGEST_SEARCH_SECONDS


@pytest.mark.parametrize("moment", [EARLIEST, NOON, LATEST - SECOND], ids=str)
def test_each_search_ends_where_it_fires_no_more(moment: datetime) -> None:
    """Its two crons meet at one instant alone, which hides among years of fires; after it none is found."""
    spec = {"all_of": [NINE, {"any_of": [TEN, {"at": "2027-01-04T09:00"}]}]}
    inputs, began = combined(spec), time.process_time()
    fire = at("2027-01-04T09:00")
    assert inputs.next_after(moment) == (fire if moment < fire else None)
    assert inputs.newest_until(moment) == (None if moment < fire else fire)
    assert time.process_time() - began < LONGEST_SEARCH_SECONDS


def test_rare_fires_are_found_in_few_steps() -> None:
    """29 February on a Monday comes each 28 years; the search goes from each 29 February to the next."""
    spec = {"all_of": [{"cron": "0 9 29 2 *"}, {"cron": "* * * * mon"}]}
    assert first(spec, 3) == [at("2044-02-29T09:00"), at("2072-02-29T09:00"), at("2112-02-29T09:00")]
    assert combined(spec).newest_until(NOON) == at("2016-02-29T09:00")


def test_a_search_goes_on_for_so_many_fires() -> None:
    """Every 1,999 minutes and at each full hour: they meet after 60 intervals; the sparser one leads the search."""
    far = {"all_of": [{"every": "1999m"}, {"cron": "0 * * * *"}]}
    assert first(far, 2, after=EARLIEST) == [EARLIEST + timedelta(minutes=1999 * 60 * n) for n in (1, 2)]


@pytest.mark.parametrize("seconds", [3607, 60 * MOST_CANDIDATES + 1])
def test_one_whose_second_fire_no_search_finds_is_refused(seconds: int) -> None:
    """They meet where the interval begins, and then only after more of their fires than a search looks at."""
    beyond = {"all_of": [{"every": f"{seconds}s"}, {"cron": "0 * * * *"}]}
    with pytest.raises(InvalidInput, match=r"all_of fires too seldom: .* no next one in 3,000 of their fires"):
        combined(beyond).next_after(EARLIEST)


def test_code_gives_times_and_distances_as_objects() -> None:
    given = [{"every": timedelta(minutes=15)}, {"any_of": [{"at": NOON.replace(tzinfo=UTC)}, {"cron": "0 9 * * *"}]}]
    definition = TaskDefinition.of(name="n", type="N", all_of=given)
    written = [{"every": 900}, {"any_of": [{"at": "2026-11-19T12:00:00+00:00"}, {"cron": "0 9 * * *"}]}]
    assert (definition.all_of, definition.trigger_kind) == (written, "combined")
    assert definition.columns_of(["all_of"])["trigger_spec"] == {"all_of": written}
    with pytest.raises(InvalidInput, match="at 5: write a time"):
        TaskDefinition.of(name="n", type="N", any_of=[NINE, {"at": 5}])
    with pytest.raises(InvalidInput, match="one trigger: give cron or all_of, and not both"):
        TaskDefinition.of(name="n", type="N", cron="0 9 * * *", all_of=[NINE, NINE])
    with pytest.raises(InvalidInput, match="one trigger: give any_of or all_of, and not both"):
        TaskDefinition.of(name="n", type="N", any_of=[NINE, TEN], all_of=[NINE, NINE])
