"""JSON as Rota writes it: once, compact, and never NaN."""

import json
from typing import Any

from shared.domain.errors import InvalidInput


def json_text(value: Any) -> str:
    """A value as compact JSON text.

    Raises InvalidInput, saying what in it is not JSON: a set, a date, NaN.
    """
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{_named(value)} is not JSON: {error}") from error


def _named(value: Any) -> str:
    return f"a {type(value).__name__}"
