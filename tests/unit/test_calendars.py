"""Calendars: which days are working days, and that a task fires on these alone.

Everything random is derived from what hypothesis prints with a failure.
"""

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.shared.domain.calendars.calendar import Calendar
from rota.shared.domain.calendars.countries import public_days
from rota.shared.domain.calendars.days_asked import Which, begin_of, end_of
from rota.shared.domain.calendars.defining import Changes, changed, defined, worked_out
from rota.shared.domain.calendars.definition import dates_text, edition_of, read_calendar, weekend_of, weekend_text
from rota.shared.domain.counting import count
from rota.shared.domain.deciding import decide
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.planning import PlanInputs, TaskTerms
from rota.shared.domain.times import localized
from rota.shared.domain.triggers.combined import MOST_CANDIDATES
from rota.shared.domain.triggers.cron import CronTrigger
from rota.shared.domain.triggers.zones import load_zone
from tests.harness.examples import examples

DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)


def at(year: int, month: int, day: int, hour: int = 0) -> datetime:
    return datetime(year, month, day, hour)  # noqa: DTZ001 - naive UTC


def calendar(weekend: str = "sat,sun", off: Any = None, on: Any = None, **more: Any) -> Calendar:
    days = [weekend, more.get("country"), more.get("holidays"), more.get("makeup_days"), off, on]
    return read_calendar(
        "c", json.dumps([None if d is None else d if isinstance(d, str) else json.dumps(d) for d in days])
    )


def of_country(country: str, first_year: int, last_year: int) -> Calendar:
    days = public_days(country, None, first_year, last_year)
    holidays, makeup = dates_text(days.holidays), dates_text(days.makeup_days)
    return calendar(days.weekend, country=country, holidays=holidays, makeup_days=makeup)


def inputs(found: Calendar | InvalidInput, days: Any = None, *, cron: str = "0 9 * * *", **more: Any) -> PlanInputs:
    spec = {"calendar": "c", **({} if days is None else {"calendar_days": days})}
    return PlanInputs("cron", cron, trigger_spec=spec, **more).on({"c": found})


def days_of(fires: Iterator[datetime], number: int) -> list[str]:
    return [fire.date().isoformat() for fire in islice(fires, number)]


def test_each_working_day_at_9_in_china_has_the_make_up_days() -> None:
    fires = list(islice(inputs(of_country("CN", 2024, 2024), timezone="Asia/Shanghai").fires_after(at(2024, 9, 26)), 9))
    assert fires[0] == at(2024, 9, 26, 1)
    days = [localized(fire, load_zone("Asia/Shanghai")).date().isoformat()[5:] for fire in fires]
    # 29 September and 12 October 2024 were working weekend days; 1 to 7 October were off
    assert days == ["09-26", "09-27", "09-29", "09-30", "10-08", "10-09", "10-10", "10-11", "10-12"]


def test_the_last_working_day_of_a_month_in_germany() -> None:
    last = inputs(of_country("DE", 2024, 2024), "last", cron="0 18 * * *", timezone="Europe/Berlin")
    # Good Friday was on 29 March 2024
    assert days_of(last.fires_after(at(2024, 1, 1)), 12) == [
        "2024-01-31", "2024-02-29", "2024-03-28", "2024-04-30", "2024-05-31", "2024-06-28", "2024-07-31", "2024-08-30",
        "2024-09-30", "2024-10-31", "2024-11-29", "2024-12-31",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (None, ["2027-12-23", "2027-12-27", "2027-12-28"]),
        ("working", ["2027-12-23", "2027-12-27", "2027-12-28"]),
        ("off", ["2027-12-24", "2027-12-25", "2027-12-26"]),
        ("first", ["2028-01-03", "2028-02-01", "2028-03-01"]),
        (2, ["2028-01-04", "2028-02-02", "2028-03-02"]),
        ("-2", ["2027-12-30", "2028-01-28", "2028-02-28"]),
        (23, ["2028-03-31", "2028-05-31", "2028-08-31"]),
    ],
)
def test_what_a_task_asks_of_a_calendar(days: Any, expected: list[str]) -> None:
    found = inputs(calendar(off=["2027-12-24"]), days)
    assert days_of(found.fires_after(at(2027, 12, 22, 12)), 3) == expected


def test_a_calendar_may_have_named_dates_alone() -> None:
    paydays = inputs(calendar("all", on=["2027-01-29", "2027-02-26"]))
    assert days_of(paydays.fires_after(at(2026, 1, 1)), 3) == ["2027-01-29", "2027-02-26"]
    assert paydays.newest_until(at(2030, 1, 1)) == at(2027, 2, 26, 9)
    freeze = inputs(calendar("none", off=["2027-01-02"]))
    assert days_of(freeze.fires_after(at(2027, 1, 1)), 2) == ["2027-01-01", "2027-01-03"]
    assert days_of(inputs(calendar("none", off=["2027-01-02"]), "off").fires_after(at(2027, 1, 1)), 2) == ["2027-01-02"]


def test_plain_dates_go_before_make_up_days_and_those_before_holidays() -> None:
    saturday, monday, tuesday = "2027-01-02", "2027-01-04", "2027-01-05"
    found = calendar(
        holidays={monday: "A", tuesday: "B"}, makeup_days=[saturday, monday], off=[saturday], on=[tuesday], country="XX"
    )
    assert [found.is_working(date.fromisoformat(day)) for day in (saturday, monday, tuesday)] == [False, True, True]


@pytest.mark.parametrize(
    ("trigger", "days"),
    [
        ({"cron": "0 9 * * sun"}, None),
        ({"cron": "* * * * mon-fri"}, "off"),
        ({"cron": "0 9 29 2 *"}, 23),
        ({"cron": "0 9 * * *"}, 31),
        ({"cron": "0 9 1 * *"}, "last"),
        ({"trigger_kind": "once", "at": "2027-01-02T09:00"}, None),
        ({"trigger_kind": "interval", "every": "7d", "starts_at": at(2027, 1, 2)}, None),
        (
            {
                "trigger_kind": "interval",
                "every": 1,
                "starts_at": at(2027, 1, 2),
                "ends_at": at(2027, 1, 3),
            },
            None,
        ),
    ],
)
def test_a_search_for_a_fire_that_never_comes_ends(trigger: dict[str, Any], days: Any) -> None:
    kind = trigger.pop("trigger_kind", "cron")
    spec = {key: trigger.pop(key) for key in ("at", "every") if key in trigger}
    spec |= {"calendar": "c"} | ({} if days is None else {"calendar_days": days})
    found = PlanInputs(kind, trigger_spec=spec, **trigger).on({"c": calendar()})
    assert found.next_after(at(2026, 1, 1)) is None
    assert found.newest_until(at(2026, 1, 1)) is None


@pytest.mark.parametrize("find", [PlanInputs.next_after, PlanInputs.newest_until])
def test_a_search_for_combined_fires_on_a_calendar_is_bounded_as_a_whole(
    find: Callable[[PlanInputs, datetime], datetime | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [{"every": "601s"}, {"cron": "0 9 * * mon-fri"}]  # they meet after 1,200 fires, never on a day off
    either = {"any_of": [{"all_of": members}, {"cron": "0 8 * * wed"}]}
    asked = list[datetime]()
    for name in ("next_after", "latest_at_or_before"):
        monkeypatch.setattr(CronTrigger, name, counting(getattr(CronTrigger, name), asked))
    for spec in ({"all_of": members}, either):
        found = PlanInputs("combined", trigger_spec={**spec, "calendar": "c", "calendar_days": "off"})
        found.describe()  # reads it, which is a search of its own
        asked.clear()
        assert find(found.on({"c": calendar()}), at(2040, 1, 2)) is None
        assert len(asked) <= MOST_CANDIDATES


def counting(method: Callable[..., Any], asked: list[datetime]) -> Callable[..., Any]:
    def counted(self: CronTrigger, moment: datetime) -> Any:
        asked.append(moment)
        return method(self, moment)

    return counted


def test_a_calendar_without_any_day_ends_the_search_at_once() -> None:
    for weekend, days in (("all", None), ("none", "off"), ("all", "last")):
        found = inputs(calendar(weekend), days, cron="* * * * *")
        assert found.next_after(at(2026, 1, 1)) is None
        assert found.newest_until(at(2026, 1, 1)) is None


@pytest.mark.parametrize("zone", ["Pacific/Apia", "America/Havana", "America/St_Johns", "America/Sao_Paulo", "UTC"])
def test_a_day_begins_and_ends_at_its_first_and_last_instant(zone: str) -> None:
    zone_info = load_zone(zone)
    for day in (date(2011, 12, 29), date(2011, 12, 31), date(2010, 11, 6), date(2010, 11, 7), date(2016, 10, 16)):
        begin, end = begin_of(day, zone_info), end_of(day, zone_info)
        assert localized(begin, zone_info).date() == day
        assert localized(begin - TICK, zone_info).date() < day
        assert localized(end, zone_info).date() == day
        assert localized(end + TICK, zone_info).date() > day


def plain(found: PlanInputs) -> PlanInputs:
    return found.without_calendar()


WEEKENDS = st.sampled_from(["sat,sun", "fri", "none", "all", "mon,wed", "sun", "mon,tue,wed,thu,fri,sat"])
ZONES = st.sampled_from(
    ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/Havana", "America/St_Johns", "Pacific/Apia", "Asia/Kolkata",
     "Australia/Lord_Howe", "Atlantic/Azores", "Antarctica/Troll", "Pacific/Chatham"]
)  # fmt: skip
SPAN = 75


@st.composite
def cases(draw: Any) -> tuple[PlanInputs, datetime]:
    begin = draw(st.dates(date(1970, 2, 1), date(2150, 1, 1)))
    near = st.integers(-SPAN, SPAN).map(lambda days: (begin + days * DAY).isoformat())
    off = draw(st.sets(near, max_size=20))
    on = draw(st.sets(near, max_size=20)) - off
    days = draw(st.sampled_from([None, "off", "first", "last", 2, -3, 15]))
    spec: dict[str, Any] = {"calendar": "c"} | ({} if days is None else {"calendar_days": days})
    cron = draw(st.sampled_from([None, "0 9 * * *", "30 0 * * *", "0 */7 * * *", "0 12 * * tue,sat", "0 0 1,31 * *"]))
    every = draw(st.integers(3 * 3600, 100 * 3600))
    kind = "interval" if cron is None else "cron"
    made = PlanInputs(kind, cron, 0, draw(ZONES), spec | ({"every": every} if cron is None else {}))
    moment = datetime.combine(begin, datetime.min.time()) + timedelta(seconds=draw(st.integers(0, 86_399)))
    return made.on({"c": calendar(draw(WEEKENDS), off=sorted(off), on=sorted(on))}), moment


@settings(derandomize=True, max_examples=examples(1600), deadline=None, print_blob=True)
@given(case=cases())
def test_fires_with_a_calendar_are_those_of_the_fires_without_one_that_fall_on_its_days(
    case: tuple[PlanInputs, datetime],
) -> None:
    found, moment = case
    until = moment + SPAN * DAY
    expected = []
    for fire in plain(found).fires_after(moment):
        if fire > until:
            break
        if found.is_on_its_days(fire):
            expected.append(fire)
    fires = []
    for fire in found.fires_after(moment):
        if fire > until:
            break
        fires.append(fire)
    assert fires == expected
    backwards = []
    newest = found.newest_until(until)
    while newest is not None and newest > moment:
        backwards.append(newest)
        newest = found.newest_until(newest - TICK)
    assert backwards[::-1] == expected
    if 1 < len(expected) < 50:
        assert count(found, expected[0], expected[-1]) == len(expected)


@settings(derandomize=True, max_examples=examples(400), deadline=None, print_blob=True)
@given(case=cases(), nth=st.integers(-25, 25).filter(bool))
def test_the_nth_working_day_is_that_of_the_list_of_a_month(case: tuple[PlanInputs, datetime], nth: int) -> None:
    found, moment = case
    assert isinstance(found.calendar, Calendar)
    of_month = found.calendar.month(moment.year, moment.month)
    wanted = of_month[nth - 1 if nth > 0 else nth] if len(of_month) >= abs(nth) else None
    daily = inputs(found.calendar, nth)
    first = at(moment.year, moment.month, 1)
    got = daily.next_after(first - TICK)
    is_in_month = got is not None and (got.year, got.month) == (moment.year, moment.month)
    assert (got.date() if got is not None and is_in_month else None) == wanted


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"weekend": "saturday"}, "calendar 'c': weekend 'saturday': write days such as sat,sun"),
        ({"off": ["2027-13-01"]}, "days_off '2027-13-01': write a date from 1970-01-01 to 2199-12-31"),
        ({"off": ["2200-01-01"]}, "days_off '2200-01-01': write a date"),
        ({"off": [20270101]}, "days_off '20270101': write a date"),
        ({"off": "2027-01-01"}, "days_off is JSON that cannot be read"),
        ({"on": {}, "off": 5}, "days_off is 5; write a JSON list of dates"),
        ({"on": ["2027-01-01"], "off": ["2027-01-01"]}, "2027-01-01 is in days_off and in days_on"),
        ({"country": "DE"}, "the holidays of DE are not there yet; run rota calendar refresh c"),
        ({"on": ["2027-01-01"] * 4001}, "days_on has 4,001 dates; at most 4,000 are kept"),
    ],
)
def test_a_calendar_that_sql_wrote_wrong_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        calendar(**columns)
    assert said in str(refused.value)
    with pytest.raises(InvalidInput) as again:
        inputs(refused.value).next_after(at(2027, 1, 1))
    assert said in str(again.value)


def test_a_task_whose_calendar_is_not_there_is_refused() -> None:
    missing = PlanInputs("cron", "0 9 * * *", trigger_spec={"calendar": "xx"})
    for ask in (missing.next_after, missing.newest_until):
        with pytest.raises(InvalidInput, match="there is no calendar 'xx'; rota calendar list shows those there are"):
            ask(at(2027, 1, 1))


@pytest.mark.parametrize("wrong", ["", "sometimes", 0, 32, -32, True, 1.5, [], {"a": 1}, "1e3", "²"], ids=str)
def test_days_that_no_calendar_has_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="write working, off, first, last, or the number of a working day"):
        inputs(calendar(), wrong).next_after(at(2027, 1, 1))


@pytest.mark.parametrize("wrong", ["", 5, ["c"], True], ids=str)
def test_what_is_no_name_of_a_calendar_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="write the name of a calendar"):
        PlanInputs("cron", "0 9 * * *", trigger_spec={"calendar": wrong}).next_after(at(2027, 1, 1))


@pytest.mark.parametrize(
    ("days", "text", "words"),
    [
        (None, "working", "on working days of calendar de"),
        ("off", "off", "on days off of calendar de"),
        (1, "first", "on the first working day of each month in calendar de"),
        ("-1", "last", "on the last working day of each month in calendar de"),
        (3, "3", "on the 3rd working day of each month in calendar de"),
        ("-2", "-2", "on the 2nd last working day of each month in calendar de"),
        (12, "12", "on the 12th working day of each month in calendar de"),
    ],
)
def test_days_have_one_text_and_words(days: Any, text: str, words: str) -> None:
    which = Which.read(days)
    assert (which.text, which.describe("de")) == (text, words)
    assert Which.read(which.text) == which


def test_an_edition_tells_one_state_of_a_calendar_from_another() -> None:
    assert edition_of("[1]") == edition_of("[1]") != edition_of("[2]")


def test_a_weekend_is_written_as_it_is_read() -> None:
    for text in ("none", "all", "sat,sun", "fri", "mon,fri"):
        assert weekend_text(weekend_of(text)) == text
    assert weekend_text(weekend_of(" Sun, SAT ")) == "sat,sun"


def test_a_new_calendar_of_a_country_has_its_weekend_and_its_holidays_for_ten_years() -> None:
    columns = defined("ir", Changes(country="IR", off=["2027-12-24"]), 2026)
    assert (columns["weekend"], columns["first_year"], columns["last_year"]) == ("fri", 2025, 2036)
    assert columns["days_off"] == ["2027-12-24"]
    bavaria = defined("by", Changes(country="DE-BY", last_year=2027, weekend="sun"), 2026)
    assert (bavaria["country"], bavaria["subdivision"], bavaria["weekend"]) == ("DE", "BY", "sun")
    assert bavaria["holidays"]["2027-01-06"] == "Epiphany"
    assert max(bavaria["holidays"]) < "2028"
    assert defined("x", Changes(), 2026)["weekend"] == "sat,sun"


def test_changes_leave_alone_what_they_do_not_name() -> None:
    before = defined("de", Changes(country="DE", off=["2027-12-24"], on=["2027-01-02"], last_year=2027), 2026)
    after = changed("de", before, Changes(on=["2027-12-24"], forget=["2027-01-02"]), 2026)
    assert (after["days_off"], after["days_on"]) == (None, ["2027-12-24"])
    assert {name: after[name] for name in ("holidays", "weekend", "last_year")} == {
        name: before[name] for name in ("holidays", "weekend", "last_year")
    }
    alone = changed("de", after, Changes(country=""), 2026)
    assert [alone[name] for name in ("country", "holidays", "first_year", "last_year")] == [None] * 4
    longer = changed("de", after, Changes(last_year=2030), 2026)
    assert (longer["last_year"], max(longer["holidays"])[:4]) == (2030, "2030")
    assert worked_out(longer, 2026)[0]["last_year"] == 2036


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (Changes(country="Germany"), "country 'Germany': write a code of ISO 3166"),
        (Changes(country="de"), "country 'de' (did you mean DE?)"),
        (Changes(country="DE-ZZ"), "subdivision 'ZZ': of DE there are BB, BE"),
        (Changes(last_year=2030), "only the holidays of a country have a last year"),
        (Changes(country="DE", last_year=2100), "last_year 2100: write a year from 2026 to 2056"),
        (Changes(weekend=""), "weekend '': write days such as sat,sun"),
        (Changes(off=["tomorrow"]), "off 'tomorrow': write a date"),
        (Changes(off=["2027-01-01"], on=["2027-01-01"]), "2027-01-01 is given twice"),
    ],
)
def test_a_calendar_that_cannot_be_is_refused(changes: Changes, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        defined("x", changes, 2026)
    assert said in str(refused.value)


def terms(found: PlanInputs, **more: Any) -> TaskTerms:
    fields: dict[str, Any] = {
        "status": "on", "type": "NIGHT", "inputs": found, "inputs_text": "[]", "is_stale": False, "needs_replan": False,
        "is_deleted": False, "gmt_create": None, "misfire_policy": "fire_once", "misfire_grace_seconds": 10,
        "priority": 5, "required_labels": {}, **more,
    }  # fmt: skip
    return TaskTerms(**fields)


MONDAY = at(2027, 1, 4, 12)


def test_misfires_are_counted_and_caught_up_by_the_calendar() -> None:
    found = terms(inputs(calendar(off=["2027-01-07"])))
    decision = decide(found, at(2027, 1, 4, 9), at(2027, 1, 10, 12), at(2027, 1, 10, 12))
    assert decision.fires == [at(2027, 1, 8, 9)]  # the newest of 4, 5, 6 and 8 January
    assert (decision.misfires, decision.next_fire_at) == (3, at(2027, 1, 11, 9))


def test_an_edited_calendar_moves_the_next_fire_and_replays_nothing() -> None:
    edited = terms(inputs(calendar(off=["2027-01-05"], on=["2027-01-02"])), new_edition="x")
    decision = decide(edited, at(2027, 1, 5, 9), MONDAY, MONDAY)
    assert (decision.fires, decision.skipped, decision.next_fire_at) == ([], None, at(2027, 1, 6, 9))
    ended = decide(edited, None, MONDAY, MONDAY)
    assert ended.next_fire_at == at(2027, 1, 6, 9)


def test_what_was_missed_when_a_calendar_was_edited_goes_by_the_new_one() -> None:
    edited = terms(inputs(calendar(off=["2027-01-04"])), new_edition="x")
    decision = decide(edited, at(2027, 1, 4, 9), at(2027, 1, 6, 12), at(2027, 1, 6, 12))
    assert (decision.fires, decision.misfires) == ([at(2027, 1, 6, 9)], 1)
