"""Times as documents and people write them."""

from datetime import UTC, datetime

import pytest

from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.times import read_time, span, written_local, written_utc, zone_of
from rota.shared.domain.triggers.zones import load_zone

at = datetime.fromisoformat  # naive UTC

BERLIN = load_zone("Europe/Berlin")
NOON = at("2026-11-21 12:00:00")


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-19T02:00", at("2026-11-19 01:00:00")),
        ("2026-11-19 02:00:30", at("2026-11-19 01:00:30")),
        ("2026-07-01", at("2026-06-30 22:00:00")),
        ("2026-11-19T02:00Z", at("2026-11-19 02:00:00")),
        ("2026-11-19T02:00-05:00", at("2026-11-19 07:00:00")),
    ],
)
def test_a_time_is_in_the_zone_unless_it_carries_an_offset(text: str, utc: datetime) -> None:
    assert read_time(text, BERLIN) == (utc, None)


def test_a_time_that_occurs_twice_is_the_first_and_that_is_said() -> None:
    moment, remark = read_time("2026-10-25T02:30", BERLIN)
    assert moment == at("2026-10-25 00:30:00")
    assert remark == (
        "2026-10-25 02:30:00 occurs twice in Europe/Berlin; the first is taken, 2026-10-25T02:30:00+02:00 "
        "(write 2026-10-25T02:30:00+01:00 for the second)"
    )
    assert read_time("2026-10-25T02:30:00+01:00", BERLIN) == (at("2026-10-25 01:30:00"), None)


@pytest.mark.parametrize("text", ["2026-03-29T02:00", "2026-03-29T02:30", "2026-03-29T02:59:59"])
def test_a_time_that_does_not_occur_is_the_first_instant_after_the_gap_and_that_is_said(text: str) -> None:
    moment, remark = read_time(text, BERLIN)
    assert moment == at("2026-03-29 01:00:00")
    assert remark is not None
    assert "does not occur in Europe/Berlin; the first instant after the gap is taken" in remark
    assert "2026-03-29T03:00:00+02:00" in remark


def test_a_day_that_does_not_occur_is_the_first_instant_after_it() -> None:
    apia = load_zone("Pacific/Apia")
    moment, _ = read_time("2011-12-30T12:00", apia)
    assert written_local(moment, apia) == "2011-12-31T00:00:00+14:00"


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "02:00", "0001-01-01T00:00", "9999-12-31T23:59-12:00"])
def test_what_is_no_time_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a time; write it as|is too far from now"):
        read_time(text, load_zone("Asia/Shanghai"))


def test_written_times_can_be_read_back() -> None:
    for written in (written_utc(NOON), written_local(NOON, BERLIN)):
        assert datetime.fromisoformat(written) == NOON.replace(tzinfo=UTC)


def test_a_zone_that_sql_made_up_is_shown_as_utc() -> None:
    assert zone_of("Europe/Berln").key == zone_of(None).key == "UTC"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (1, "1 s"),
        (1.25, "1.2 s"),
        (59.94, "59.9 s"),
        (0.9996, "1 s"),
        (59.96, "1 min"),
        (60, "1 min"),
        (61.4, "1 min 1 s"),
        (3599.7, "1 h"),
        (3720, "1 h 2 min"),
        (90_000, "1 d 1 h"),
        (86_460, "1 d"),
        (-0.5, "-500 ms"),
    ],
)
def test_a_span_reads_in_at_most_two_units(seconds: float, words: str) -> None:
    assert span(seconds) == words
