"""Cron against other readings of the same rule: a literal scan of the clock, croniter, cronsim, and any text at all.

Everything random is derived from SEED and from what a failure's message shows. `make test` takes a part of the
examples, `make test-long` all of them (tests/harness/examples.py).
"""

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim, CronSimError
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.shared.domain.errors import InvalidCron, InvalidTimezone
from rota.shared.domain.triggers.cron import Cron
from rota.shared.domain.triggers.zones import load_zone
from tests.harness.cron_scan import Tick, random_expression, scan, ticks
from tests.harness.examples import ALL, examples

pytestmark = pytest.mark.timeout(1200)
"""All examples are minutes of calculation, and several times as many on a slow machine that does other work, too."""

SEED = 20260308
at = datetime.fromisoformat
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)

TRANSITIONS = [
    ("America/New_York", "2026-03-08 07:00"),
    ("America/New_York", "2026-11-01 06:00"),
    ("Europe/Berlin", "2026-03-29 01:00"),
    ("Europe/Berlin", "2026-10-25 01:00"),
    ("Europe/Dublin", "2026-03-29 01:00"),  # winter time is its "daylight saving time", with a negative offset
    ("Europe/Dublin", "2026-10-25 01:00"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),  # half an hour
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("America/Sao_Paulo", "2018-11-04 03:00"),  # at midnight
    ("America/Sao_Paulo", "2019-02-17 02:00"),
    ("Antarctica/Troll", "2026-03-29 01:00"),  # two hours
    ("Antarctica/Troll", "2026-10-25 01:00"),
    ("Africa/Casablanca", "2026-02-15 02:00"),  # Ramadan
    ("Africa/Casablanca", "2026-03-22 02:00"),
    ("Pacific/Apia", "2011-04-02 14:00"),
    ("Pacific/Apia", "2011-12-30 10:00"),  # a day that never was
    ("Pacific/Kwajalein", "1969-09-30 13:00"),  # a day that was twice, but for an hour
    ("Pacific/Kwajalein", "1993-08-21 12:00"),
    ("Asia/Kolkata", "2026-03-29 01:00"),  # no transitions here
    ("UTC", "2026-03-29 01:00"),
]
AROUND = {"Pacific/Apia": timedelta(hours=52), "Pacific/Kwajalein": timedelta(hours=52)}
EXPRESSIONS_PER_WINDOW = examples(170)


def disagreements(
    cron: Cron, zone: ZoneInfo, expected: list[datetime], window: list[Tick], rng: random.Random
) -> Iterator[str]:
    """Where ``cron`` and the scan differ: at random moments, mostly near the window's middle, and in a row."""
    start, end = window[0].instant, window[-1].instant
    middle = start + (end - start) / 2
    moments = [start + (end - start) * rng.random() for _ in range(8)]
    moments += [middle + timedelta(hours=rng.uniform(-3, 3)) for _ in range(8)]
    moments += [rng.choice(window).instant for _ in range(4)] + rng.sample(expected, min(4, len(expected)))
    for moment in moments:
        after, upto = bisect_right(expected, moment), bisect_right(expected, moment)
        following = cron.next_after(moment, zone)
        if after < len(expected) and following != expected[after]:
            yield f"next_after({moment}) is {following}, not {expected[after]}"
        if after == len(expected) and following is not None and following <= end:
            yield f"next_after({moment}) is {following}, where there is none"
        latest = cron.latest_at_or_before(moment, zone)
        if upto > 0 and latest != expected[upto - 1]:
            yield f"latest_at_or_before({moment}) is {latest}, not {expected[upto - 1]}"
        if upto == 0 and latest is not None and latest >= start:
            yield f"latest_at_or_before({moment}) is {latest}, where there is none"
    begin = max(start, middle - timedelta(hours=rng.uniform(0, 4)))
    wanted = expected[bisect_right(expected, begin) :][:20]
    row = list(takewhile(lambda fire: fire <= end, islice(cron.fires_after(begin, zone), 20)))
    if row != wanted:
        yield f"fires_after({begin}) gives {row}, not {wanted}"


@pytest.mark.parametrize(("zone_name", "transition"), TRANSITIONS, ids=str)
def test_fires_as_a_literal_scan_around_a_transition(zone_name: str, transition: str) -> None:
    middle, around = at(transition), AROUND.get(zone_name, timedelta(hours=30))
    window = ticks(zone_name, middle - around, middle + around, MINUTE)
    zone = load_zone(zone_name)
    for number in range(EXPRESSIONS_PER_WINDOW):
        rng = random.Random(f"{SEED} {zone_name} {transition} {number}")
        meant = random_expression(rng, window[len(window) // 2].wall)
        cron = Cron.parse(meant.text)
        wrong = list(disagreements(cron, zone, scan(meant, window), window, rng))
        assert not wrong, f"{meant.text} in {zone_name} (seed {SEED}, number {number}): {wrong[:3]}"


@pytest.mark.parametrize(("zone_name", "transition"), TRANSITIONS[:12:2], ids=str)
def test_fires_as_a_literal_scan_by_seconds_around_a_transition(zone_name: str, transition: str) -> None:
    middle, around = at(transition), timedelta(hours=3)
    window = ticks(zone_name, middle - around, middle + around, SECOND)
    zone = load_zone(zone_name)
    for number in range(12):
        rng = random.Random(f"{SEED} {zone_name} {transition} {number}")
        meant = random_expression(rng, window[len(window) // 2].wall, seconds=True)
        cron = Cron.parse(meant.text, seconds=True)
        wrong = list(disagreements(cron, zone, scan(meant, window), window, rng))
        assert not wrong, f"{meant.text} in {zone_name} (seed {SEED}, number {number}): {wrong[:3]}"


def test_fires_as_a_literal_scan_anywhere_in_any_zone() -> None:
    zones = sorted({name for name, _ in TRANSITIONS})
    for number in range(examples(150)):
        rng = random.Random(f"{SEED} anywhere {number}")
        zone_name = rng.choice(zones)
        start = at("2000-01-01") + timedelta(hours=rng.randrange(37 * 365 * 24))
        window = ticks(zone_name, start, start + timedelta(hours=40), MINUTE)
        meant = random_expression(rng, window[len(window) // 2].wall)
        if any(tick.again for tick in window[:1440]):  # its first pass may lie before the window
            continue
        wrong = list(disagreements(Cron.parse(meant.text), load_zone(zone_name), scan(meant, window), window, rng))
        assert not wrong, f"{meant.text} in {zone_name} (seed {SEED}, number {number}): {wrong[:3]}"


# --- Over years ----------------------------------------------------------------------------------------------------


def random_calendar(rng: random.Random) -> str:
    """An expression that restricts days, months and weekdays in every way that is read; some are refused."""
    day = rng.choice(["*", "*", "L", "15,L", "31", "29", "30,31", "15W", "1W", "31W", "*/2", "1-7", "28-3"])
    weekday = rng.choice(
        ["*", "*", "1#1", "1#5", "5#2,3#4", "L5", "L0", "L7,L1", "0", "7", "MON-FRI", "fri-mon", "*/2"]
    )
    month = rng.choice(["*", "*", "2", "2,4", "jan-mar", "nov-feb", "*/3", "11-4/2"])
    return f"{rng.randrange(60)} {rng.choice(['*', '3', '5,17', '22-2'])} {day} {month} {weekday}"


def test_without_a_zone_the_readings_are_those_of_croniter_forwards_and_backwards() -> None:
    utc, compared = load_zone("UTC"), 0
    for number in range(examples(2000)):
        rng = random.Random(f"{SEED} calendar {number}")
        text = random_calendar(rng)
        moment = at("1980-01-01") + timedelta(seconds=rng.randrange(60 * 365 * 86400))
        try:
            cron = Cron.parse(text)
        except InvalidCron:
            continue
        compared += 1
        shown = f"{text} from {moment} (seed {SEED}, number {number})"
        theirs = croniter(text.replace("11-4/2", "11,1,3"), moment)
        forwards = [theirs.get_next(datetime) for _ in range(3)]
        assert list(islice(cron.fires_after(moment, utc), 3)) == forwards, shown
        theirs.set_current(moment)
        latest = theirs.get_prev(datetime)
        assert cron.latest_at_or_before(moment - SECOND, utc) == latest, shown
    assert compared > examples(800)


def test_the_latest_fire_and_the_next_one_are_neighbours() -> None:
    zones = sorted({name for name, _ in TRANSITIONS})
    for number in range(examples(1500)):
        rng = random.Random(f"{SEED} neighbours {number}")
        zone, text = load_zone(rng.choice(zones)), random_calendar(rng)
        moment = at("1970-01-01") + timedelta(microseconds=rng.randrange(100 * 365 * 86400 * 10**6))
        try:
            cron = Cron.parse(text)
        except InvalidCron:
            continue
        latest, following = cron.latest_at_or_before(moment, zone), cron.next_after(moment, zone)
        shown = f"{text} in {zone} at {moment} (seed {SEED}, number {number})"
        assert latest is not None, shown
        assert following is not None, shown
        assert latest <= moment < following, shown
        assert cron.next_after(latest, zone) == following, shown
        assert cron.latest_at_or_before(following, zone) == following, shown
        assert cron.latest_at_or_before(following - SECOND, zone) == latest, shown


def cronsim_differs(text: str) -> bool:
    """Where its rule is another one, rather than its result.

    Like Debian's cron it asks for both days where one field only begins with ``*`` (``*/2``), where croniter and Rota
    take either; and an open step among weekdays (``3/2``) goes on to 7, Sunday, where croniter's ends at 6. It knows no
    ranges that wrap around, and says so itself.
    """
    _, _, day, _, weekday = text.split()
    both = day != "*" and weekday != "*" and (day.startswith("*") or weekday.startswith("*"))
    return both or (weekday[1:2] == "/" and weekday[0] != "*")


# It loses half an hour at Lord Howe; and where a gap begins at midnight it lands inside, and fires when nothing is due
# or misses what is.
CRONSIM_IS_WRONG = {
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
    ("America/Sao_Paulo", "2018-11-04 03:00"),
    ("Pacific/Apia", "2011-12-30 10:00"),
    ("Pacific/Kwajalein", "1993-08-21 12:00"),
}


@pytest.mark.parametrize(
    ("zone_name", "transition"), [case for case in TRANSITIONS if case not in CRONSIM_IS_WRONG], ids=str
)
def test_fires_as_cronsim_where_its_rule_is_the_same(zone_name: str, transition: str) -> None:
    zone, middle, compared = load_zone(zone_name), at(transition), 0
    start, end = middle - timedelta(hours=5), middle + timedelta(hours=7)
    for number in range(examples(100)):
        rng = random.Random(f"{SEED} cronsim {zone_name} {transition} {number}")
        text = random_expression(rng, start.replace(tzinfo=UTC).astimezone(zone)).text
        try:
            theirs = CronSim(text, start.replace(tzinfo=UTC).astimezone(zone))
        except CronSimError:
            continue
        if cronsim_differs(text):
            continue
        compared += 1
        instants = (fire.astimezone(UTC).replace(tzinfo=None) for fire in theirs)
        expected = dict.fromkeys(takewhile(lambda fire: fire <= end, instants))  # it repeats the end of a gap
        fires = list(takewhile(lambda fire: fire <= end, Cron.parse(text).fires_after(start, zone)))
        assert fires == list(expected), f"{text} in {zone_name} (seed {SEED}, number {number})"
    assert compared > (50 if ALL else 4)


# --- Any text, and what is said about it ---------------------------------------------------------------------------

FRAGMENTS = [*"0123456789*/,-#@?LWHR()", "*", "*", " ", " ", " ", "60", "31", "JAN", "feb", "MON", "sun", "\t", "\xa0"]
FIELD = st.lists(st.sampled_from([f for f in FRAGMENTS if f.strip()]), min_size=1, max_size=6).map("".join)
TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(), min_size=100, max_size=400),
    st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join),
    st.lists(FIELD, min_size=5, max_size=7).map(" ".join),
    st.tuples(*[st.one_of(st.sampled_from(["*", "0", "1-5"]), FIELD)] * 5).map(" ".join),
)


@settings(derandomize=True, max_examples=examples(2000), deadline=None)
@given(TEXTS, st.booleans())
def test_any_text_is_a_cron_that_fires_or_is_refused_in_one_sentence(text: str, seconds: bool) -> None:
    try:
        cron = Cron.parse(text, seconds=seconds)
    except InvalidCron as refused:
        sentence = str(refused)
        assert sentence.isascii()
        assert sentence.isprintable()
        assert sentence.startswith(("The cron expression '", 'The cron expression "'))
        assert " is refused: " in sentence
        assert sentence.endswith(".")
        assert len(sentence) < 1000
    else:
        fire = cron.next_after(at("2026-01-01"), load_zone("UTC"))
        assert fire is not None
        assert cron.latest_at_or_before(fire, load_zone("UTC")) == fire
        assert cron.describe().isprintable()
        assert Cron.parse(cron.expression, seconds=seconds) == cron


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(max_size=100))
def test_any_text_is_a_time_zone_or_is_refused_in_one_sentence(text: str) -> None:
    try:
        assert load_zone(text).key == text
    except InvalidTimezone as refused:
        sentence = str(refused)
        assert sentence.isprintable()


def test_one_description_never_stands_for_two_schedules() -> None:
    meanings, described = defaultdict(set), 0
    for number in range(examples(6000)):
        rng = random.Random(f"{SEED} description {number}")
        seconds = rng.random() < 0.3
        text = random_calendar(rng) if number % 3 == 0 else random_expression(rng, at("2026-01-01")).text
        if seconds:
            text = f"{rng.choice(['*', '*/10', '0', '30', '5-7', '1,2,9'])} {text}"
        try:
            cron = Cron.parse(text, seconds=seconds)
        except InvalidCron:
            continue
        described += 1
        meanings[cron.describe()].add(cron._clock)
    assert described > examples(4000)
    assert {phrase: clocks for phrase, clocks in meanings.items() if len(clocks) > 1} == {}
