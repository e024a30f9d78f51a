"""A handler's result: what the next nodes see of it is what a retry reads from the database."""

import json
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from rota.shared.domain.errors import InvalidInput
from rota.worker_service.values import read_again, result_text


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Name(str):
    """A text of a class of its own."""


RESULTS = [
    None, True, False, 0, 1, -(10**30), "", "text", "Grüße, 世界", '"quoted"\n\u2028\x00', 1.0, 0.1, 1e300,
    [], {}, [1, [2]], (1, 2), {"rows": 42}, {1: "a", None: 2}, Colour.RED, Size.LARGE, Name("own"),
    {"nested": (Colour.RED, Size.LARGE)},
]  # fmt: skip


@pytest.mark.parametrize("result", RESULTS, ids=repr)
def test_a_result_is_read_as_its_json_is_and_with_its_types(result: Any) -> None:
    text = result_text("NODE", result, 1000)
    expected, seen = json.loads(text), read_again(result, text)
    assert (seen, repr(seen)) == (expected, repr(expected))
    assert type(seen) is type(expected)


@pytest.mark.parametrize(("text", "size"), [("x" * 8, 10), ("ü" * 4, 10), ("世" * 3, 11)])
def test_the_limit_of_a_result_counts_bytes(text: str, size: int) -> None:
    assert result_text("NODE", text, size) == json.dumps(text, ensure_ascii=False)
    with pytest.raises(InvalidInput, match=rf"returned {size} bytes of JSON; the limit is {size - 1} "):
        result_text("NODE", text, size - 1)
