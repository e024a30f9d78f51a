"""How Rota writes JSON (compact, never NaN), and how it reads JSON that users may have written by SQL."""

import json
import math
import reprlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
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


def is_text(value: Any) -> bool:
    """Whether a value that was read from JSON is a text that can be written again, or be a parameter of a statement.

    Half of a surrogate pair, which JSON can escape, is in no text that a database takes.

    is_text("1f2e3d")      # True
    is_text(chr(0xD800))   # False
    """
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def texts_in(value: Any) -> list[str]:
    """The texts of a JSON list as it was read, without what else SQL wrote; [] if it is no list.

    texts_in(["REPORT_SEND", [1]])   # ["REPORT_SEND"]
    """
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


def json_text(value: Any, name: str = "") -> str:
    """A value as compact JSON text.

    Raises InvalidInput for a value that JSON does not have: a set, a date, NaN, half of a surrogate pair. The error
    names the part, such as ``rows[3].day``; ``name`` goes before it.
    """
    if isinstance(value, UnreadableJson):
        raise InvalidInput(str(value))
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(_why_no_json(value, name) or f"{name or _a(value)} is not JSON: {error}") from error
    return text


def storable(text: str) -> str:
    """A text that UTF-8 can encode: characters that it cannot encode become escapes.

    Such characters come from a file name that is not UTF-8, for example.
    """
    return text.encode(errors="backslashreplace").decode()


def _why_no_json(value: Any, name: str) -> str | None:
    try:
        return next(_faults(value, name), None)
    except RecursionError:
        return f"{name or _a(value)} is not JSON where a part is nested too deeply, or holds itself"


def _faults(value: Any, at: str) -> Iterator[str]:
    """What of a value JSON does not have, in its order; ``at`` is where the value is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _faults_of_key(key, at or "a dict")
            yield from _faults(item, _below(at, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _faults(item, f"{at}[{index}]")
    elif isinstance(value, str):
        if not _is_text(value):
            yield f"{at or 'a text'} holds half of a surrogate pair, which is no character: {reprlib.repr(value)}"
    elif isinstance(value, float):
        if not math.isfinite(value):
            has = f"{at} is {value}, a number that JSON does not have" if at else f"{value} is not JSON"
            yield f"{has}; write None or a text"
    elif not isinstance(value, int | None):
        has = f"{at} is {_a(value)}, which JSON does not have" if at else f"{_a(value)} is not JSON"
        yield f"{has}; write {_instead_of(value)}"


def _faults_of_key(key: Any, at: str) -> Iterator[str]:
    if isinstance(key, str):
        if not _is_text(key):
            yield f"{at} has the key {reprlib.repr(key)}, which holds half of a surrogate pair"
    elif not isinstance(key, int | float | None) or (isinstance(key, float) and not math.isfinite(key)):
        yield f"{at} has the key {reprlib.repr(key)}, {_a(key)}; keys in JSON are texts"


def _below(at: str, key: Any) -> str:
    if isinstance(key, str) and key.replace("-", "_").isidentifier():
        return f"{at}.{key}" if at else key
    return f"{at}[{reprlib.repr(key)}]"


def _is_text(text: str) -> bool:
    return storable(text) == text


def _a(value: Any) -> str:
    name = type(value).__name__
    if name == "bytes":
        return name
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


def _instead_of(value: Any) -> str:
    if isinstance(value, date | datetime | time):
        return f"a text, such as {value.isoformat()!r}"
    if isinstance(value, timedelta):
        return "a number of seconds"
    if isinstance(value, set | frozenset):
        return "a list"
    if isinstance(value, Decimal):
        return "a float or a text"
    if isinstance(value, bytes):
        return "a text"
    return "a dict, a list, a text, a number, True, False or None"
