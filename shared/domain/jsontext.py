"""JSON as Rota writes it: once, compact, and never NaN."""

import json
from typing import Any

from shared.domain.errors import InvalidInput


def json_text(value: Any) -> str:
    """A value as compact JSON text.

    Raises InvalidInput, saying what in it is not JSON: a set, a date, NaN, half of a surrogate pair.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{_named(value)} is not JSON: {error}") from error
    return text


def storable(text: str) -> str:
    """A text as UTF-8 can hold it: what it cannot (the name of a file that is not UTF-8, say) is written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _named(value: Any) -> str:
    return f"a {type(value).__name__}"
