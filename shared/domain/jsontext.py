"""How Rota writes JSON (compact, never NaN), and how it reads JSON that users may have written by SQL."""

import json
import sys
from dataclasses import dataclass
from typing import Any

from rota.shared.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class UnreadableJson:
    """Stands for JSON in the database that Python cannot read, so that one row fails and not its whole batch."""

    why: str

    def __str__(self) -> str:
        return f"JSON that cannot be read: {self.why}"


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text from the database; an ``UnreadableJson`` if Python cannot read the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return UnreadableJson(str(error))
    except RecursionError:
        return UnreadableJson("it is nested too deeply")
    except ValueError:  # Python refuses to convert very long integers, because that takes long
        return UnreadableJson(f"it holds an integer of more than {sys.get_int_max_str_digits():,} digits")


def object_in(value: Any) -> dict[str, Any]:
    """A JSON object as it was read; {} if SQL wrote anything else.

    object_in({"gpu": "a100"})   # {"gpu": "a100"}
    object_in(5)                 # {}
    """
    return value if isinstance(value, dict) else {}


def texts_in(value: Any) -> list[str]:
    """The texts of a JSON list as it was read, without what else SQL wrote; [] if it is no list.

    texts_in(["REPORT_SEND", [1]])   # ["REPORT_SEND"]
    """
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def json_text(value: Any) -> str:
    """A value as compact JSON text.

    Raises InvalidInput for a value that JSON does not have: a set, a date, NaN, half of a surrogate pair.
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
    """A text that UTF-8 can encode: characters that it cannot encode become escapes.

    Such characters come from a file name that is not UTF-8, for example.
    """
    return text.encode(errors="backslashreplace").decode()


def _named(value: Any) -> str:
    return f"a {type(value).__name__}"
