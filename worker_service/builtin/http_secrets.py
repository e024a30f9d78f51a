"""The secrets that a request carries. They are collected here, and taken out of every text that is shown."""

import base64
import re
from collections.abc import Mapping

SECRET_HEADER = re.compile(r"auth|cookie|key|pass|secret|session|sign|token", re.IGNORECASE)
SHORTEST = 6
"""Shorter values stay in the text: hiding them would also hide unrelated text that looks alike."""

HIDDEN = "***"


class Secrets:
    """The credentials of one request.

    secrets = Secrets()
    secrets.add_headers({"Authorization": "Bearer abcdef123"})
    secrets.hide("you sent abcdef123")   # "you sent ***"
    """

    def __init__(self) -> None:
        self._values: set[str] = set()

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Note the values of headers that may be credentials, and their parts: ``Bearer abc`` and ``abc``."""
        for name, value in headers.items():
            if SECRET_HEADER.search(name):
                parts = re.split(r"[\s;,]+", value)
                self._values |= {value, *parts, *(part.partition("=")[2] for part in parts)}

    def basic(self, user: str, password: str) -> str:
        """The Authorization header for a user and a password, both noted."""
        self._values.add(password)
        return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    def hide(self, text: str) -> str:
        """The text with ``***`` in place of the secrets, where it holds them exactly as they were sent."""
        for value in sorted(self._values, key=len, reverse=True):
            if len(value) >= SHORTEST:
                text = text.replace(value, HIDDEN)
        return text
