"""JSON from the database, whatever anybody wrote there."""

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
