"""The version of this Rota, and which of two versions is older."""

import re
from importlib.metadata import version


def own_version() -> str:
    """The version of this Rota: ``"0.1.0"``."""
    return version("rota")


def is_older(one: str, other: str) -> bool:
    """Whether a version is older than another. Only their numbers count, so 0.2.0rc1 is no older than 0.2.0.

    >>> is_older("0.9.1", "0.10")
    True
    """
    return _numbers(one) < _numbers(other)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with, without zeros at the end: 0.2 is 0.2.0. None is the oldest of all."""
    begins = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(number) for number in begins[0].split(".")] if begins else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
