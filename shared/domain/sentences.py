"""Parts of the sentences that Rota tells people: a text that others wrote, on one line; and what to write instead."""

import math
import unicodedata
from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo


def is_shown(character: str) -> bool:
    """Whether a terminal just shows this character. It obeys others, such as an escape or a bidirectional mark."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def printable(text: str) -> str:
    r"""The text on one line, safe for a terminal and for a log: all characters that are not just shown are escapes.

    printable("a\nb\x1b[31m")   # r"a\nb\x1b[31m"
    """
    if text.isprintable():
        return text
    return "".join(c if is_shown(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def advice(value: Any) -> str:
    """What to write in place of a value that code has given, if it is a zone or a span; otherwise nothing.

    advice(timedelta(minutes=5))   # "; write 300"
    """
    if isinstance(value, ZoneInfo) and value.key:
        return f"; write {value.key!r}"
    if isinstance(value, timedelta):
        return f"; write {math.ceil(value.total_seconds())}"
    return ""


def close_to(word: str, known: Iterable[str]) -> str:
    """Which of the known words a wrong one may stand for: ``" (did you mean retries?)"``; nothing if none is close."""
    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
