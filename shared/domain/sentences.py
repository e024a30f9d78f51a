"""Parts of the sentences that Rota tells people: a text that others wrote, on one line; and what to write instead."""

import math
from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo

ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    r"""The text on one line, safe for a terminal and for a log: control characters are escapes.

    printable("a\nb\x1b[31m")   # r"a\nb\x1b[31m"
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ESCAPES.get(c) or f"\\x{ord(c):02x}" for c in text)


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
