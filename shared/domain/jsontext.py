"""JSON as Rota writes it: once, compact, and never NaN; and as it reads what anybody may have written."""

import json
import sys
from dataclasses import dataclass
from typing import Any

from shared.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class UnreadableJson:
    """What stands for JSON that a database holds and Python cannot read, so that one row fails and not its batch."""

    why: str

    def __str__(self) -> str:
        return f"JSON that cannot be read: {self.why}"


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text from the database; ``UnreadableJson`` where there is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return UnreadableJson(str(error))
    except RecursionError:
        return UnreadableJson("it is nested too deeply")
    except ValueError:  # int() refuses it, for the time it would take
        return UnreadableJson(f"it holds an integer of more than {sys.get_int_max_str_digits():,} digits")


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def json_text(value: Any) -> str:
    """A value as compact JSON text.

    Raises InvalidInput, saying what in it is not JSON: a set, a date, NaN, half of a surrogate pair.
    """
    if isinstance(value, UnreadableJson):
        raise InvalidInput(str(value))
    try:
        text = _encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{_named(value)} is not JSON: {error}") from error
    return text


def storable(text: str) -> str:
    """A text as UTF-8 can hold it: what it cannot (the name of a file that is not UTF-8, say) is written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def _named(value: Any) -> str:
    return f"a {type(value).__name__}"
