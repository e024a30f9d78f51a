"""What a cron expression means, what is refused and how, and how it is read aloud."""

import doctest
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rota.shared.domain.errors import InvalidCron, InvalidTimezone
from rota.shared.domain.triggers import base, zones
from rota.shared.domain.triggers.cron import Cron, syntax
from rota.shared.domain.triggers.cron import cron as cron_module
from rota.shared.domain.triggers.zones import load_zone

at = datetime.fromisoformat
UTC_ZONE = load_zone("UTC")
SECOND = timedelta(seconds=1)


def fires(expression: str, zone_name: str, start: str, end: str, *, seconds: bool = False) -> list[str]:
    """The fires in a stretch of UTC, as the zone's clock shows them, with its offset."""
    zone = load_zone(zone_name)
    every = Cron.parse(expression, seconds=seconds).fires_after(at(start), zone)
    return [shown(fire, zone) for fire in takewhile(lambda fire: fire <= at(end), every)]


def shown(fire: datetime, zone: ZoneInfo) -> str:
    return fire.replace(tzinfo=UTC).astimezone(zone).strftime("%d %H:%M%z")


@pytest.mark.parametrize("module", [base, cron_module, syntax, zones], ids=lambda module: module.__name__)
def test_the_examples_in_the_documentation_hold(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


# --- Fires ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("30 16 * * *", "2026-07-01 16:30:00", "2026-07-02 16:30:00"),
        ("30 16 * * *", "2026-07-01 16:29:59.999999", "2026-07-01 16:30:00"),
        ("0 12 * * *", "2026-07-01 11:59:59.5", "2026-07-01 12:00:00"),
        ("@hourly", "2026-07-01 23:00:00.000001", "2026-07-02 00:00:00"),
        ("@daily", "2026-07-01 12:00:00", "2026-07-02 00:00:00"),
        ("@midnight", "2026-07-01 12:00:00", "2026-07-02 00:00:00"),
        ("@weekly", "2026-07-01 12:00:00", "2026-07-05 00:00:00"),
        ("@monthly", "2026-07-01 00:00:00", "2026-08-01 00:00:00"),
        ("@yearly", "2026-07-01 00:00:00", "2027-01-01 00:00:00"),
        ("@Annually", "2026-07-01 00:00:00", "2027-01-01 00:00:00"),
        ("0 0 * * 0", "2026-07-01 00:00:00", "2026-07-05 00:00:00"),
        ("0 0 * * 7", "2026-07-01 00:00:00", "2026-07-05 00:00:00"),
        ("0 0 * * sun", "2026-07-01 00:00:00", "2026-07-05 00:00:00"),
        ("0 0 * * SAT-MON", "2026-07-01 00:00:00", "2026-07-04 00:00:00"),
        ("0 0 1 jan *", "2026-07-01 00:00:00", "2027-01-01 00:00:00"),
        ("0 0 29 2 *", "2026-07-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00:00", "2104-02-29 00:00:00"),  # 2100 is no leap year
        ("0 0 * 2 1#5", "2026-07-01 00:00:00", "2044-02-29 00:00:00"),
        ("0 0 13 * 5", "2026-07-05 00:00:00", "2026-07-10 00:00:00"),  # the Friday comes before the 13th
        ("0 0 13 * 5", "2026-07-10 00:00:00", "2026-07-13 00:00:00"),
        ("0 0 L * *", "2028-02-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 15,L * *", "2026-07-15 00:00:00", "2026-07-31 00:00:00"),
        ("0 0 15W * *", "2026-08-01 00:00:00", "2026-08-14 00:00:00"),  # the 15th is a Saturday
        ("0 0 1W * *", "2026-08-01 00:00:00", "2026-08-03 00:00:00"),  # never in another month
        ("0 0 * * 1#2", "2026-07-01 00:00:00", "2026-07-13 00:00:00"),
        ("0 0 * * L5", "2026-07-01 00:00:00", "2026-07-31 00:00:00"),
        ("0 22-2 * * *", "2026-07-01 23:30:00", "2026-07-02 00:00:00"),
        ("0 21-3/2 * * *", "2026-07-01 23:00:00", "2026-07-02 01:00:00"),  # croniter 7.0.0 goes on at 02:00
        ("*/60 * * * *", "2026-07-01 23:30:00", "2026-07-02 00:00:00"),
        ("0 0 */1 * 5", "2026-07-01 00:00:00", "2026-07-03 00:00:00"),  # */1 is *, and does not make it every day
    ],
)
def test_the_next_fire_is_strictly_after_the_moment(expression: str, after: str, expected: str) -> None:
    assert Cron.parse(expression).next_after(at(after), UTC_ZONE) == at(expected)


@pytest.mark.parametrize(
    ("expression", "moment", "expected"),
    [
        ("30 16 * * *", "2026-07-01 16:30:00", "2026-07-01 16:30:00"),
        ("30 16 * * *", "2026-07-01 16:29:59.999999", "2026-06-30 16:30:00"),
        ("*/5 * * * *", "2026-07-01 16:34:59", "2026-07-01 16:30:00"),
        ("0 0 29 2 *", "2027-07-01 00:00:00", "2024-02-29 00:00:00"),
        ("0 0 31 * *", "2026-07-30 00:00:00", "2026-05-31 00:00:00"),
        ("@yearly", "2026-12-31 23:59:59", "2026-01-01 00:00:00"),
        ("59 23 31 12 *", "2026-12-31 23:58:59", "2025-12-31 23:59:00"),
    ],
)
def test_the_latest_fire_is_at_or_before_the_moment(expression: str, moment: str, expected: str) -> None:
    assert Cron.parse(expression).latest_at_or_before(at(moment), UTC_ZONE) == at(expected)


def test_declared_seconds_come_first_as_in_quartz() -> None:
    cron = Cron.parse("0 15 10 * * *", seconds=True)
    assert list(islice(cron.fires_after(at("2026-07-01"), UTC_ZONE), 2)) == [
        at("2026-07-01 10:15"),
        at("2026-07-02 10:15"),
    ]
    every_ten = Cron.parse("*/10 * * * * *", seconds=True)
    assert every_ten.next_after(at("2026-07-01 00:00:50"), UTC_ZONE) == at("2026-07-01 00:01:00")
    assert every_ten.next_after(at("2026-07-01 00:00:49.999999"), UTC_ZONE) == at("2026-07-01 00:00:50")
    assert Cron.parse("@daily", seconds=True).next_after(at("2026-07-01"), UTC_ZONE) == at("2026-07-02")


def test_fires_are_in_the_zone_and_come_back_in_utc() -> None:
    assert Cron.parse("30 16 * * *").next_after(at("2026-07-01"), load_zone("Asia/Shanghai")) == at("2026-07-01 08:30")
    assert Cron.parse("0 0 1 * *").next_after(at("2026-07-02"), load_zone("Asia/Kolkata")) == at("2026-07-31 18:30")


@pytest.mark.parametrize("moment", ["0001-01-01", "0001-12-31", "9998-12-31 23:59:59", "9999-12-31 23:59:59.999999"])
@pytest.mark.parametrize("zone_name", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/New_York"])
def test_the_ends_of_the_calendar_are_no_error(moment: str, zone_name: str) -> None:
    for expression in ("* * * * *", "0 0 29 2 *", "30 16 * * *"):
        following = Cron.parse(expression).next_after(at(moment), load_zone(zone_name))
        latest = Cron.parse(expression).latest_at_or_before(at(moment), load_zone(zone_name))
        assert (following is None) == (at(moment).year > 9000)
        assert (latest is None) == (at(moment).year < 9000)


def test_a_moment_with_a_zone_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="naive UTC"):
        Cron.parse("* * * * *").next_after(datetime(2026, 7, 1, tzinfo=UTC), UTC_ZONE)


def test_threads_share_a_cron_without_disturbing_each_other() -> None:
    cron, zone = Cron.parse("*/7 1-3 * * *"), load_zone("America/New_York")

    def year(start: datetime) -> list[datetime]:
        return list(islice(cron.fires_after(start, zone), 300))

    starts = [at("2026-01-01") + timedelta(days=40 * n) for n in range(8)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        assert list(pool.map(year, starts)) == [year(start) for start in starts]


def test_an_expression_is_parsed_once() -> None:
    assert Cron.parse("1 2 3 4 5") is Cron.parse("1 2 3 4 5")
    assert Cron.parse("1 2 3 4 5") == Cron("1 2 3 4 5")


def test_white_space_is_normalised_and_nothing_else() -> None:
    assert Cron.parse("  0\t9-17  * *\nMON-FRI ").expression == "0 9-17 * * MON-FRI"


def test_a_cron_survives_pickling() -> None:
    cron = Cron.parse("*/5 * * * *")
    copied = pickle.loads(pickle.dumps(cron))
    assert copied == cron
    assert copied.next_after(at("2026-07-01"), UTC_ZONE) == at("2026-07-01 00:05")


# --- When clocks are moved -----------------------------------------------------------------------------------------


def test_a_fixed_time_fires_once_in_a_fold_at_the_first_pass() -> None:
    night = ("America/New_York", "2026-11-01 04:00", "2026-11-01 08:00")
    assert fires("30 1 * * *", *night) == ["01 01:30-0400"]
    assert fires("0,30 1-2 * * *", *night) == ["01 01:00-0400", "01 01:30-0400", "01 02:00-0500", "01 02:30-0500"]


def test_real_time_goes_on_in_a_fold() -> None:
    night = ("America/New_York", "2026-11-01 04:30", "2026-11-01 07:00")
    assert fires("*/30 1 * * *", *night) == ["01 01:00-0400", "01 01:30-0400", "01 01:00-0500", "01 01:30-0500"]
    assert fires("0 * * * *", *night) == ["01 01:00-0400", "01 01:00-0500", "01 02:00-0500"]


def test_a_fixed_time_in_a_gap_fires_at_the_first_instant_after_it() -> None:
    night = ("America/New_York", "2026-03-08 06:00", "2026-03-08 08:00")
    assert fires("30 2 * * *", *night) == ["08 03:00-0400"]
    assert fires("30 2 9 * *", *night) == []


def test_several_times_in_a_gap_and_the_one_at_its_end_are_one_fire() -> None:
    night = ("America/New_York", "2026-03-08 06:00", "2026-03-08 07:30")
    assert fires("0,15,45 2,3 * * *", *night) == ["08 03:00-0400", "08 03:15-0400"]
    assert fires("*/10 10 2,3 * * *", *night, seconds=True)[:2] == ["08 03:00-0400", "08 03:10-0400"]


def test_real_time_has_no_fire_in_a_gap() -> None:
    night = ("America/New_York", "2026-03-08 05:00", "2026-03-08 08:00")
    assert fires("0 */2 * * *", *night) == ["08 04:00-0400"]
    assert fires("*/30 2 * * *", *night) == []
    assert fires("30 * * * *", *night) == ["08 00:30-0500", "08 01:30-0500", "08 03:30-0400"]


def test_the_day_that_apia_skipped_is_a_gap_like_any_other() -> None:
    days = ("Pacific/Apia", "2011-12-29 12:00", "2011-12-31 20:00")
    assert fires("0 9 * * *", *days) == ["29 09:00-1000", "31 00:00+1400", "31 09:00+1400", "01 09:00+1400"]
    assert fires("0 9,17 30 12 *", *days) == ["31 00:00+1400"]
    assert fires("0 0 * * *", *days) == ["31 00:00+1400", "01 00:00+1400"]
    assert fires("0 */12 * * *", *days) == ["29 12:00-1000", "31 00:00+1400", "31 12:00+1400", "01 00:00+1400"]


def test_half_an_hour_at_lord_howe_is_a_fold_and_a_gap() -> None:
    fold = ("Australia/Lord_Howe", "2026-04-04 14:00", "2026-04-04 16:00")
    gap = ("Australia/Lord_Howe", "2026-10-03 15:00", "2026-10-03 16:00")
    assert fires("45 1 * * *", *fold) == ["05 01:45+1100"]
    assert fires("45 * * * *", *fold) == ["05 01:45+1100", "05 01:45+1030"]
    assert fires("15 2 * * *", *gap) == ["04 02:30+1100"]
    assert fires("15 * * * *", *gap) == []


def test_the_second_before_clocks_are_moved_is_found_from_both_sides() -> None:
    cron, zone = Cron.parse("59 59 * * * *", seconds=True), load_zone("America/New_York")
    for transition in (at("2026-03-08 07:00"), at("2026-11-01 06:00")):
        assert cron.latest_at_or_before(transition + 10 * SECOND, zone) == transition - SECOND
        assert cron.next_after(transition - 10 * SECOND, zone) == transition - SECOND


def moments_about(transition: datetime) -> Iterator[datetime]:
    return (transition + timedelta(seconds=offset) for offset in (-3601, -3600, -1, 0, 1, 1799, 1800, 3599, 3600, 3601))


@pytest.mark.parametrize("expression", ["30 1 * * *", "*/30 1 * * *", "0-59 0-23 * * *", "* * * * *", "0 0 1 1 *"])
def test_each_fire_is_after_the_moment_even_at_the_very_transition(expression: str) -> None:
    cron, zone = Cron.parse(expression), load_zone("America/New_York")
    for transition in (at("2026-03-08 07:00"), at("2026-11-01 06:00")):
        for moment in moments_about(transition):
            row = list(islice(cron.fires_after(moment, zone), 5))
            assert row == sorted({*row})
            assert row[0] > moment
            assert cron.latest_at_or_before(row[0] - SECOND, zone) == cron.latest_at_or_before(moment, zone)


# --- Refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "reason", "remedy"),
    [
        ("", "it is empty", "write five fields"),
        (" \t\n", "it is empty", "write five fields"),
        ("* * * *", "it has 4 fields", "minute hour day-of-month month day-of-week"),
        ("0 15 10 * * *", "seconds are not declared", "(`--seconds`, `seconds=True`, `cron_seconds = 1`)"),
        ("0 15 10 * * * 2026", "a year field is not supported", "window"),
        ("0 0 31 2 *", "day 31 never comes in February", "'L'"),
        ("0 0 30,31 2 *", "day 30 never comes in February", "'L'"),
        ("0 0 31 4,6,9,11 *", "day 31 never comes in April, June, September and November", "'L'"),
        ("0 0 31 2 5", "day 31 never comes in February", "'L'"),
        ("0 0 1 * 1#1", "'1#1' as day of week stands together with a day of month", "write '*' as the day of month"),
        ("0 0 13 * L5", "'L5' as day of week stands together with a day of month", "write '*' as the day of month"),
        ("0 0 L * L5", "'L5' as day of week stands together with a day of month", "two tasks"),
        ("0 0 15W * 1", "'15W' stands together with a day of week", "write '*' as the day of week"),
        ("0 0 15W,20 * *", "'15W' stands in a list", "write it alone"),
        ("0 0 32W * *", "the day-of-month field has '32W'", "from 1 through 31"),
        ("0 0 * * *,1#2", "mixes '1#2' with plain days", "two tasks"),
        ("0 0 * * 0-6,1#2", "mixes '1#2' with plain days", "two tasks"),
        ("5-5 * * * *", "'5-5' in the minute field begins where it ends", "write 5"),
        ("0 0 * jan-1 *", "'jan-1' in the month field begins where it ends", "write jan"),
        ("0 0 * * 7-0", "'7-0' in the day-of-week field begins where it ends", "write 7"),
        (
            "*/90 * * * *",
            "the step 90 in the minute field is longer",
            "write 0 if that is meant, or a step of at most 60",
        ),
        ("0 */25 * * *", "the step 25 in the hour field is longer", "at most 24"),
        (
            "50/15 * * * *",
            "the step 15 in the minute field is longer",
            "write 50 if that is meant, or a step of at most 9",
        ),
        ("0-10/20 * * * *", "the step 20 in the minute field is longer", "at most 10"),
        ("0 0 * * 6/1", "the step 1 in the day-of-week field is longer", "write 6"),
        ("*/0 * * * *", "the step in '*/0' is 0", "at least 1"),
        ("H * * * *", "the hashed or random 'h'", "jitter"),
        ("R(0-29)/5 * * * *", "the hashed or random 'r(0-29)/5'", "jitter"),
        ("0 0 ? * *", "Quartz's '?'", "write '*'"),
        ("0 0 * * 5L", "'5l' in the day-of-week field is not read", "write 'L5'"),
        ("0 0 LW * *", "'lw' in the day-of-month field is not read", "'15W'"),
        ("0 0 L-3 * *", "'l-3' in the day-of-month field is not read", "'L' (the last day)"),
        ("60 * * * *", "the minute field has 60", "from 0 through 59"),
        ("0 24 * * *", "the hour field has 24", "from 0 through 23"),
        ("0 0 0 * *", "the day-of-month field has 0", "from 1 through 31"),
        ("0 0 * 13 *", "the month field has 13", "from 1 through 12"),
        ("0 0 * * 8", "the day-of-week field has 8", "0 and 7 are Sunday"),
        ("0 0 * * foo", "the day-of-week field does not know 'foo'", "SUN, MON"),
        ("mon * * * *", "the minute field does not know 'mon'", "from 0 through 59"),
        ("-5 * * * *", "'-5' in the minute field is not read", "'1-5'"),
        ("1,,2 * * * *", "the minute field has an empty item", "remove the comma"),
        ("@reboot", "'@reboot' is not an alias", "@hourly, @daily"),
        ("@every 5m", "'@every' is not an alias", "@hourly, @daily"),
        ("0 0 * *\xa0*", "it holds the character '\\xa0'", "ASCII"),
        ("0 0 * * \u0663", "it holds the character '\\u0663'", "ASCII"),
        ("0 0 * * *\x00", "it holds the character '\\x00'", "ASCII"),
        ("\ud800 * * * *", "it holds the character '\\ud800'", "ASCII"),
        ("0-59," * 30 + "1 * * * *", "it has 159 characters", "at most 127"),
        ("1" * 100 + " * * * *", "the minute field has 111", "from 0 through 59"),
    ],
)
def test_what_is_ambiguous_or_wrong_is_refused_with_the_reason(expression: str, reason: str, remedy: str) -> None:
    with pytest.raises(InvalidCron) as refused:
        Cron.parse(expression)
    sentence = str(refused.value)
    assert sentence.startswith("The cron expression '")
    before, _, after = sentence.partition("; ")
    assert reason in before
    assert remedy in after


def test_the_sentence_names_the_expression() -> None:
    with pytest.raises(InvalidCron) as refused:
        Cron.parse("61 * * * *")
    assert str(refused.value) == (
        "The cron expression '61 * * * *' is refused: the minute field has 61; use a number from 0 through 59."
    )


@pytest.mark.parametrize("expression", ["0 0 * * *", "* * * * * * *", "0"])
def test_declared_seconds_ask_for_six_fields(expression: str) -> None:
    with pytest.raises(InvalidCron, match=r"seconds are declared|year field|six fields: second minute"):
        Cron.parse(expression, seconds=True)


def test_what_croniter_chokes_on_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def choke(*_: object, **__: object) -> None:
        raise AssertionError("an assertion within")

    monkeypatch.setattr(cron_module, "croniter", choke)
    forget_fields()
    with pytest.raises(InvalidCron, match=r"croniter does not read it \(an assertion within\)"):
        Cron("0 0 * * *")


# --- Descriptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "description"),
    [
        ("30 16 * * *", "every day at 16:30"),
        ("@daily", "every day at 00:00"),
        ("@hourly", "every hour"),
        ("@weekly", "at 00:00 on Sunday"),
        ("@monthly", "at 00:00 on the 1st of every month"),
        ("@yearly", "at 00:00 on the 1st of January"),
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0/5 * * * *", "every 5 minutes"),
        ("*/60 * * * *", "every hour"),
        ("5 * * * *", "every hour at minute 5"),
        ("0 */2 * * *", "every 2 hours"),
        ("15 */2 * * *", "every 2 hours from 00:15 through 22:15"),
        ("0 */5 * * *", "every day at 00:00, 05:00, 10:00, 15:00 and 20:00"),
        ("*/7 * * * *", "at minutes 0 through 56 in steps of 7 of every hour"),
        ("3,8 * * * *", "at minutes 3 and 8 of every hour"),
        ("15 10 * * 1-5", "at 10:15 on Monday through Friday"),
        ("15 10 * * MON,WED,SUN", "at 10:15 on Monday, Wednesday and Sunday"),
        ("0 9,17 * * *", "every day at 09:00 and 17:00"),
        ("0 9-17 * * 1-5", "every hour from 09:00 through 17:00 on Monday through Friday"),
        ("*/10 9-17 * * *", "every 10 minutes from 09:00 through 17:50"),
        ("* 5 * * *", "every minute from 05:00 through 05:59"),
        ("0-10 9 * * *", "every minute from 09:00 through 09:10"),
        ("* 3,5 * * *", "every minute of hours 3 and 5"),
        ("1-59/2 3,4,9-11 * 2 *", "at minutes 1 through 59 in steps of 2 of hours 3, 4 and 9 through 11 in February"),
        ("0 0 * 6-8 *", "every day in June through August at 00:00"),
        ("0 0 13 * 5", "at 00:00 on the 13th of every month or on Friday (either is enough)"),
        ("0 0 13 1 5", "at 00:00 on the 13th of January or on Friday in January (either is enough)"),
        ("0 0 1,15 1,7 *", "at 00:00 on the 1st and 15th of January and July"),
        ("0 0 2-4,23 * *", "at 00:00 on the 2nd through 4th and 23rd of every month"),
        ("0 0 31 * *", "at 00:00 on the 31st of every month (if the month has it)"),
        ("0 0 29 2 *", "at 00:00 on the 29th of February (if the month has it)"),
        ("0 0 31 1,3 *", "at 00:00 on the 31st of January and March"),
        ("0 0 L * *", "at 00:00 on the last day of every month"),
        ("0 0 15,L * *", "at 00:00 on the 15th and last day of every month"),
        ("0 0 15W * *", "at 00:00 on the weekday nearest to the 15th of every month"),
        (
            "0 0 31W * *",
            "at 00:00 on the weekday nearest to the 31st of every month (or to its last day, if it is shorter)",
        ),
        ("0 0 * * 1#2", "at 00:00 on the second Monday of every month"),
        ("0 0 * 3 L5", "at 00:00 on the last Friday of March"),
        ("0 0 * * 1#5,2#1", "at 00:00 on the fifth Monday and first Tuesday of every month (if the month has it)"),
        ("0 22-2 * * *", "every day at 00:00, 01:00, 02:00, 22:00 and 23:00"),
    ],
)
def test_an_expression_is_read_in_plain_english(expression: str, description: str) -> None:
    assert Cron.parse(expression).describe() == description


@pytest.mark.parametrize(
    ("expression", "description"),
    [
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("0 15 10 * * *", "every day at 10:15"),
        ("30 15 10 * * 1", "at 10:15:30 on Monday"),
        ("30 * * * * *", "at second 30 of every minute of every hour"),
        ("* 5 * * * *", "every second of minute 5 of every hour"),
        ("5,10 0 9-17 * * *", "at seconds 5 and 10 of minute 0 of hours 9 through 17"),
    ],
)
def test_an_expression_with_seconds_is_read_in_plain_english(expression: str, description: str) -> None:
    assert Cron.parse(expression, seconds=True).describe() == description


# --- Zones ---------------------------------------------------------------------------------------------------------


def test_a_zone_is_loaded_once() -> None:
    assert load_zone("Asia/Shanghai") is load_zone("Asia/Shanghai")
    assert load_zone("Asia/Shanghai").key == "Asia/Shanghai"


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("Asia/Shangai", "Asia/Shanghai"),
        ("shanghai", "Asia/Shanghai"),
        ("europe/berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("Mars/Olympus_Mons", "IANA"),
        ("", "IANA"),
        ("localtime", "IANA"),
        ("Factory", "IANA"),
        ("../../etc/passwd", "IANA"),
        ("/etc/passwd", "IANA"),
        ("America", "IANA"),
        ("posix/UTC\x00", "IANA"),
        ("\ud800" * 1000, "IANA"),
    ],
)
def test_an_unknown_zone_is_refused_with_names_that_are_spelt_alike(name: str, alike: str) -> None:
    with pytest.raises(InvalidTimezone) as refused:
        load_zone(name)
    assert ascii(name[:60]) in str(refused.value)
    assert alike in str(refused.value)
    assert str(refused.value).isascii()


def forget_fields() -> None:
    """As in a process that has just started."""
    for cached in (cron_module._parse, cron_module._expand_time, cron_module._expand_days):
        cached.cache_clear()


def test_of_thousands_of_expressions_croniter_expands_each_field_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expanded: list[str] = []
    real = vars(cron_module)["croniter"]

    def counted(text: str, **options: Any) -> Any:
        expanded.append(text)
        return real(text, **options)

    monkeypatch.setattr(cron_module, "croniter", counted)
    forget_fields()
    expressions = [f"{minute} {hour} * * {day}" for minute in range(60) for hour in range(24) for day in (1, 5)]
    assert len({Cron.parse(one).describe() for one in expressions}) == len(expressions)
    assert len(expanded) <= 60 + 24 + 2 + 2, "minutes, hours, days, and the seconds and months that all have"
