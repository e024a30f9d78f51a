"""Params are read and written in portions that are bounded in bytes: SQL may write one of many megabytes."""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, String, case, func, literal_column, select, type_coerce

from rota.shared.database.constructs import among
from rota.shared.database.stored_json import JsonBytes, MayListNodes
from rota.shared.store.tables import schedule_instance, schedule_task

T = TypeVar("T")

BYTES_AT_ONCE = 4 * 1024 * 1024
"""How many bytes of params one statement reads or writes: below ``max_allowed_packet``, whose default is 16 MiB. A
single larger param is read alone."""

LARGE = 4096
"""A param of more bytes than this is read by a statement of its own portion, and not with the rest of its row."""

_of_instances, _of_tasks = (
    select(table.c.id, type_coerce(table.c.param, String)).where(among(table.c.id))
    for table in (schedule_instance, schedule_task)
)


def of_instances(connection: Connection, ids: Collection[int]) -> dict[int, str | None]:
    """The own params of these instances as JSON texts, by id; None for an instance without one."""
    return _read(connection, _of_instances, ids)


def of_tasks(connection: Connection, ids: Collection[int]) -> dict[int, str | None]:
    """The params of these tasks as JSON texts, by id; None for a task without one."""
    return _read(connection, _of_tasks, ids)


def _read(connection: Connection, statement: Any, ids: Collection[int]) -> dict[int, str | None]:
    if not ids:
        return {}
    rows = connection.execute(statement, {"ids": sorted(ids)})
    return {row_id: None if param is None else str(param) for row_id, param in rows}  # a number in SQLite


def size(param: ColumnElement[Any]) -> ColumnElement[int | None]:
    """The length of a param in bytes (SQLite: in characters); NULL if there is none."""
    return JsonBytes(param)


def small(param: ColumnElement[Any]) -> ColumnElement[Any]:
    """The text of a param that is not large, otherwise NULL."""
    return case((size(param) <= literal_column(str(LARGE)), param))


def size_if_large(param: ColumnElement[Any]) -> ColumnElement[Any]:
    """The size of a large param, otherwise NULL."""
    return case((size(param) > literal_column(str(LARGE)), size(param)))


def bytes_of_large(*values: ColumnElement[Any]) -> ColumnElement[int]:
    """How many bytes those of these JSON values have that are large; 0 if none is."""
    return reduce(operator.add, (func.coalesce(size_if_large(value), literal_column("0")) for value in values))


def may_list_nodes(param: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a param may list nodes; it may be no JSON."""
    return MayListNodes(param)


def in_portions(rows: Iterable[T], size_of: Callable[[T], int], most: int = BYTES_AT_ONCE) -> Iterator[list[T]]:
    """The rows in their order, as many at a time as are ``most`` bytes together; a larger one alone."""
    portion: list[T] = []
    total = 0
    for row in rows:
        more = size_of(row)
        if portion and total + more > most:
            yield portion
            portion, total = [], 0
        portion.append(row)
        total += more
    if portion:
        yield portion
