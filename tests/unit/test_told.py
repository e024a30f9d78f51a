"""How far a listener has been told: rows are told in order, and those that were committed late are found."""

import json
from datetime import datetime, timedelta

import pytest

from rota.shared.domain import told as module
from rota.shared.domain.told import Entry, Told, text_of

NOON = datetime.fromisoformat("2026-11-25T12:00:00")


def entry(number: int, seconds: float = 0) -> Entry:
    return Entry((number, "noon"), number, NOON - timedelta(seconds=seconds))


def tell(told: Told, *entries: Entry) -> list[int]:
    """Tell what is new among the entries, all of which are there."""
    new = told.untold(sorted(entries))
    for one in new:
        told.add(one)
    told.settle(sorted(entries), NOON)
    return [one.row_id for one in new]


def test_what_is_new_is_told_once_and_in_order() -> None:
    told = Told((4, "noon"))
    assert tell(told, entry(4), entry(6), entry(5)) == [5, 6]
    assert tell(told, entry(4), entry(5), entry(6)) == []


def test_a_row_that_is_committed_after_its_younger_sister_is_told() -> None:
    told = Told((4, "noon"))
    assert tell(told, entry(6, 59)) == [6]
    assert told.place == (4, "noon")
    assert tell(told, entry(5, 59), entry(6, 59)) == [5]


def test_what_is_settled_and_told_is_not_remembered_one_by_one() -> None:
    told = Told((0, "noon"))
    tell(told, *(entry(number, 61) for number in range(1, 6)), entry(6, 59), entry(7, 61))
    assert (told.place, told.beyond) == ((5, "noon"), {(6, "noon"), (7, "noon")})


def test_what_is_not_told_yet_is_not_passed_over() -> None:
    told = Told((0, "noon"))
    entries = [entry(1, 90), entry(2, 90), entry(3, 90)]
    told.add(entries[0])
    told.add(entries[2])
    told.settle(entries, NOON)
    assert told.place == (1, "noon")
    assert [one.row_id for one in told.untold(entries)] == [2]


@pytest.mark.parametrize("written_at", [NOON + timedelta(days=1), "0000-00-00 00:00:00", None])
def test_a_row_whose_time_says_nothing_is_settled(written_at: object) -> None:
    told = Told((0, "noon"))
    assert tell(told, Entry((1, "noon"), 1, written_at)) == [1]
    assert told.place == (1, "noon")


@pytest.mark.parametrize("by_time", [False, True])
def test_where_not_all_were_read_it_moves_over_what_is_settled_alone(
    monkeypatch: pytest.MonkeyPatch, *, by_time: bool
) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 4)
    told = Told((text_of(NOON - timedelta(hours=1)), 0) if by_time else (0, "noon"))
    entries = [(changed if by_time else entry)(number, 90 - number) for number in range(1, 5)]
    assert tell(told, *entries) == [1, 2, 3, 4]
    assert (told.place, told.beyond) == (entries[3].place, set())
    young = [(changed if by_time else entry)(number, 30 - number) for number in range(5, 9)]
    assert tell(told, *young) == [5, 6, 7, 8]
    assert (told.place, len(told.beyond)) == (entries[3].place, 4)
    told.go_back(NOON)
    assert told.untold(young) == []


def test_what_is_not_there_any_more_is_not_remembered() -> None:
    told = Told((text_of(NOON - timedelta(minutes=5)), 0))
    for seconds in range(50, 0, -1):  # a row that changes each second
        tell(told, changed(1, seconds))
    assert told.beyond == {changed(1, 1).place}


def changed(row: int, seconds: float) -> Entry:
    """A row in the order of a time, which it has since so many seconds."""
    at = NOON - timedelta(seconds=seconds)
    return Entry((text_of(at), row), row, at)


def test_rows_in_the_order_of_a_time_are_told_again_when_they_have_changed() -> None:
    told = Told((text_of(NOON - timedelta(seconds=60)), 0))
    assert tell(told, changed(3, 2), changed(4, 2)) == [3, 4]
    assert tell(told, changed(4, 2), changed(3, 0.5)) == [3]


def test_in_the_order_of_a_time_the_place_stays_a_minute_behind() -> None:
    told = Told((text_of(NOON - timedelta(hours=1)), 0))
    assert tell(told, changed(1, 1800), changed(2, 30), changed(3, -3600)) == [1, 2, 3]
    assert told.place == (text_of(NOON - timedelta(seconds=60)), 0)
    assert told.beyond == {changed(2, 30).place, changed(3, -3600).place}


def test_it_goes_back_where_the_clock_was_set_back() -> None:
    told = Told((text_of(NOON), 0))
    told.go_back(NOON)
    assert told.place == (text_of(NOON - timedelta(seconds=60)), 0)
    told.go_back(NOON + timedelta(days=1))
    assert told.place == (text_of(NOON - timedelta(seconds=60)), 0)


@pytest.mark.parametrize(
    "told",
    [
        Told((17, "2026-11-25 12:00:00.000000"), {(18, "noon"), (19, "")}),
        Told(("2026-11-25 12:00:00.000000", 3), {("2026-11-25 12:00:01.000000", 3)}),
    ],
)
def test_it_is_read_as_it_was_written(told: Told) -> None:
    written = json.loads(json.dumps(told.as_json()))
    by_time = isinstance(told.place[0], str)
    assert Told.read(written, by_time=by_time) == told
    assert Told.read(written, by_time=not by_time) is None


@pytest.mark.parametrize(
    "spoiled",
    [
        None, 5, [], {}, {"place": [1, "x"]}, {"place": 1, "beyond": []}, {"place": [1], "beyond": []},
        {"place": [1, "x"], "beyond": [5]}, {"beyond": []}, {"place": [True, "x"], "beyond": []},
        {"place": [1, "x"], "beyond": [[1, 1]]}, {"place": [-1, "x"], "beyond": []},
        {"place": [2**63, "x"], "beyond": []}, {"place": ["", 1], "beyond": []},
        {"place": ["2026-11-25", 1], "beyond": []},
    ],
)  # fmt: skip
def test_what_sql_has_spoiled_is_not_read(spoiled: object) -> None:
    assert Told.read(spoiled, by_time=False) is None
    assert Told.read(spoiled, by_time=True) is None
