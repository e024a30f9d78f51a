"""Columns that are read as one JSON list, and whole numbers that a database has not checked."""

from collections.abc import Mapping, Sequence
from math import modf
from typing import Any

from sqlalchemy import ColumnElement, Integer

LARGEST = 2**63 - 1
"""The largest whole number that a database keeps."""


def whole_number(value: Any) -> int:
    """The value, or a whole number in its place: the nearest one of 1.5 is 2, and a text is 0.

    SQLite keeps a value as it is, where its CHECKs are off.
    """
    if not isinstance(value, float):
        return value if isinstance(value, int) else 0
    rest, size = modf(abs(value)) if abs(value) < LARGEST else (0.0, LARGEST)
    nearest = int(size) + (rest >= 0.5)
    return nearest if value > 0 else -nearest


def fields_named(columns: Mapping[str, ColumnElement[Any]], values: Sequence[Any]) -> dict[str, Any]:
    """The values of a JSON list by the names of the columns that it was made from, in their order."""
    return {
        name: whole_number(value) if value is not None and isinstance(column.type, Integer) else value
        for (name, column), value in zip(columns.items(), values, strict=True)
    }
