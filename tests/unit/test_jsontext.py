"""JSON from the database, whatever anybody wrote there."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from rota.cli.show.output import block, cell
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import UnreadableJson, json_text, json_value


@pytest.mark.parametrize(("text", "value"), [('{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}), (b'"x"', "x"), ("0", 0)])
def test_json_is_read_as_it_is(text: str | bytes, value: Any) -> None:
    assert json_value(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9" * 4301, "it holds an integer of more than 4,300 digits"),
        ("[" * 100_000, "it is nested too deeply"),
        ("{'a': 1}", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_what_python_cannot_read_is_a_value_that_says_why(text: str, why: str) -> None:
    value = json_value(text)
    assert value == UnreadableJson(why)
    with pytest.raises(InvalidInput, match="JSON that cannot be read"):
        json_text(value)
    assert why in cell(value)
    assert why in block(value)


class Thing:
    def __repr__(self) -> str:
        return "thing"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": {"b": [1, float("nan")]}}, "a.b[1] is nan, a number that JSON does not have; write None or a text"),
        ([{"rate": float("-inf")}], "[0].rate is -inf, a number that JSON does not have"),
        ({"day": date(2026, 1, 2)}, "day is a date, which JSON does not have; write a text, such as '2026-01-02'"),
        (
            {"at": datetime(2026, 1, 2, tzinfo=UTC)},
            "at is a datetime, which JSON does not have; write a text, such as '2026-01-02T00:00:00+00:00'",
        ),
        ({"ids": {7}}, "ids is a set, which JSON does not have; write a list"),
        ({"price": Decimal("1.5")}, "price is a Decimal, which JSON does not have; write a float or a text"),
        ({"x": b"x"}, "x is bytes, which JSON does not have; write a text"),
        ({"wait": timedelta(1)}, "wait is a timedelta, which JSON does not have; write a number of seconds"),
        ({"x": (1, Thing())}, "x[1] is a Thing, which JSON does not have; write a dict, a list, a text, a number"),
        ({"x": {(1, 2): 3}}, "x has the key (1, 2), a tuple; keys in JSON are texts"),
        ({"a b": [{"": Thing()}]}, "['a b'][0][''] is a Thing"),
        ({"name": "caf\udce9.txt"}, "name holds half of a surrogate pair, which is no character: 'caf\\udce9.txt'"),
        ({"x": {"caf\udce9": 1}}, "x has the key 'caf\\udce9', which holds half of a surrogate pair"),
        ({1, 2}, "a set is not JSON; write a list"),
        (float("inf"), "inf is not JSON; write None or a text"),
    ],
)
def test_what_is_not_json_is_refused_by_its_key(value: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        json_text(value)
    assert said in str(refused.value)


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "é", [1, (2, 3)], {"a": {1: None, None: 2, 1.5: 3}}, {"": []}])
def test_what_json_has_is_text(value: Any) -> None:
    assert json.loads(json_text(value)) == json.loads(json.dumps(value))


def test_what_holds_itself_or_is_nested_too_deeply_is_named_from_outside() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    loop: dict[str, Any] = {}
    loop["a"] = loop
    for value in (deep, loop):
        with pytest.raises(InvalidInput, match="is nested too deeply, or holds itself"):
            json_text(value)
