"""Constructs for SQLAlchemy: types, the database's clock, many rows in one parameter, and the index to read by.

This module defines what each construct means. Each database's file defines how the construct is compiled for it.

With ``json_rows`` Rota writes many different values in one statement. The rows travel as one JSON parameter, and the
database reads them as a table. The SQL text does not depend on the rows, so SQLAlchemy compiles it once. Measured, it
is faster than CASE or executemany (docs/decisions/0002-batches-as-json.md).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import lt
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    DateTime,
    Delete,
    Integer,
    String,
    Table,
    TableValuedAlias,
    Text,
    Update,
    bindparam,
    column,
    func,
    literal_column,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from rota.shared.database.later import Later, execute_later


class BigIdType(BigInteger):
    """A row's ascending id, in the largest integer type that the database has for ids."""


class UtcTimeType(DateTime):
    """A naive UTC time with microseconds."""


class LongTextType(Text):
    """A text without a limit of its length."""


BigId = BigIdType()
UtcTime = UtcTimeType()
Json = JSON(none_as_null=True)
LongText = LongTextType()

TIME_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
"""The only written form of a time in the database, UTC."""


def written(moment: datetime | None) -> str | None:
    """A naive UTC time as the database writes it; None stays None.

    written(datetime(2026, 11, 21, 2))   # "2026-11-21 02:00:00.000000"
    """
    return None if moment is None else moment.isoformat(" ", "microseconds")


def stored_time(text: str) -> datetime | str:
    """Read a time that the database wrote. A text that is no time stays text: SQL may write a zero day or month."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


class UtcNow(FunctionElement[datetime]):
    """The database's clock, UTC, at the start of the statement."""

    inherit_cache = True
    type = UtcTime
    name = "utc_now"


class SecondsBefore(FunctionElement[datetime]):
    """``SecondsBefore(moment, seconds)``: the time so many seconds before a moment.

    ``seconds`` is a column or a number, and may be fractional.
    """

    inherit_cache = True
    type = UtcTime
    name = "seconds_before"


# Many rows in one parameter

_COLUMN_TYPES = {"id": BigId, "int": Integer(), "time": UtcTime, "str": None, "json": None}


class JsonRows(FunctionElement[Any]):
    """A table of the rows in a JSON text. Its clauses are the parameter and the columns, which ``columns_of`` reads."""

    inherit_cache = True
    name = "json_rows"


def columns_of(rows: JsonRows) -> list[tuple[int, str, str]]:
    """The columns of a ``JsonRows``: (place in a row from 0, name, kind)."""
    text: Any = list(rows.clauses)[1]
    return [(at, *part.split(":")) for at, part in enumerate(text.name.split(","))]


def json_rows(alias: str, /, **kinds: str) -> TableValuedAlias:
    """A table of the rows bound to the parameter ``rows``, with the named columns in the order given.

    Kinds: ``id``, ``int``, ``time`` (``TIME_FORMAT``), ``str`` (up to 1,023 characters), ``json`` (a JSON text).

        v = json_rows("v", id="id", status="str")
        update(table).where(table.c.id == v.c.id).values(status=v.c.status), {"rows": bound([(1, "on")])}
    """
    spec = ",".join(f"{name}:{kind}" for name, kind in kinds.items())
    columns = [column(name, _COLUMN_TYPES[kind]) for name, kind in kinds.items()]
    return JsonRows(bindparam("rows"), literal_column(spec)).table_valued(*columns, name=alias)


def bound(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the JSON text that ``json_rows`` reads; times become their written form.

    Raises TypeError for a value that JSON does not have.
    """
    return _encode(list(rows))


_written_again = lru_cache(maxsize=1024)(written)
"""For times of which many are equal: all fires of a herd are due at one time."""


def _written_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return _written_again(value)
    raise TypeError(f"a row holds {value!r}, which has no JSON form")


_encode = json.JSONEncoder(default=_written_value, separators=(",", ":")).encode


# Many values in one parameter


class Listed(tuple[Any, ...]):
    """Values (numbers, strings, None) that travel as one parameter of a statement."""

    text: str | None = None
    """The values as SQL text, for a driver that writes parameters into the statement. It is kept, so that a list which
    serves several statements of a batch is written only once."""

    @classmethod
    def of(cls, values: Iterable[Any]) -> "Listed":
        """A list of the values; times become their written form."""
        given = list(values)
        write = _written_again if given and given[0] == given[-1] else written
        return cls([write(value) if isinstance(value, datetime) else value for value in given])


class ListType(String):
    """The type of a parameter that is a list; each database's file says how the list travels."""


class ListedValues(FunctionElement[Any]):
    """The right side of an IN: the values of a list that is one parameter."""

    inherit_cache = True
    name = "listed_values"


def among(column: Any, parameter: str = "ids") -> Any:
    """``column IN (…)`` for the values bound to a parameter; compiled once for any number of values.

    select(table.c.name).where(among(table.c.id)), {"ids": [1, 2, 3]}
    """
    return column.op("IN", is_comparison=True)(ListedValues(bindparam(parameter, type_=ListType())))


def joined_ids(column: Any) -> Any:
    """All ids of a result, or of a group, as one text for ``split_ids``, because each row costs the client much.

    Rota's sessions allow a text of 1 MiB.
    """
    return func.group_concat(column, type_=String())


def split_ids(text: str | None) -> list[int]:
    """The ids in a text of ``joined_ids``; none for None: ``split_ids("1,2") == [1, 2]``."""
    return [] if text is None else list(map(int, text.split(",")))


# Updates of many rows


@dataclass(frozen=True)
class Rows:
    """How the statement of a ``RowsUpdate`` refers to a row: the condition that matches it, and its values by name."""

    match: ColumnElement[bool]
    c: Mapping[str, ColumnElement[Any]]


Build = Callable[[Rows], Update]


class RowsForm(Protocol):
    """A ``RowsUpdate`` in the form that is fastest on one database."""

    statement: Update

    def __init__(self, table: Table, build: Build, kinds: Mapping[str, str]) -> None: ...

    def parameters(self, ids: Listed, columns: Sequence[Listed]) -> dict[str, Any]:
        """The statement's parameters for these rows."""
        ...


class _ByJson:
    """The form for every database: a join with ``json_rows``."""

    def __init__(self, table: Table, build: Build, kinds: Mapping[str, str]) -> None:
        joined = json_rows("joined", id="id", **kinds)
        self.statement = build(Rows(table.c.id == joined.c.id, dict(joined.c)))

    def parameters(self, ids: Listed, columns: Sequence[Listed]) -> dict[str, Any]:
        return {"rows": bound(zip(ids, *columns, strict=True))}


_forms: dict[str, type[RowsForm]] = {}
Form = TypeVar("Form", bound=RowsForm)
Change = TypeVar("Change", Update, Delete)


def updates_rows(*dialects: str) -> Callable[[type[Form]], type[Form]]:
    """Make these dialects use the decorated class as their form of a ``RowsUpdate``."""

    def register(form: type[Form]) -> type[Form]:
        _forms.update(dict.fromkeys(dialects, form))
        return form

    return register


class RowsUpdate:
    """An UPDATE of rows by id, each with its own values, in the form that is fastest on the database.

    move = RowsUpdate(
        task, lambda rows: update(task).where(rows.match).values(next_fire_at=rows.c["next"]), next="time"
    )
    move(connection, Listed([1, 2]), Listed.of([moment, moment])).rowcount
    """

    def __init__(self, table: Table, build: Build, **kinds: str) -> None:
        self._table, self._build, self._kinds = table, build, kinds
        self._made: dict[str, RowsForm] = {}

    def __call__(self, connection: Connection, ids: Listed, *columns: Listed, **values: Any) -> CursorResult[Any]:
        """Update rows by their ids, with a list of values for each of the ``kinds``, in their order.

        The ids must ascend, and each list must be as long as the ids. Raises ValueError otherwise, because a row could
        get another row's value.
        """
        statement, parameters = self._of(connection, ids, columns)
        return connection.execute(statement, {**parameters, **values})

    def later(
        self, connection: Connection, ids: Listed, *columns: Listed, expected: int | None = None, **values: Any
    ) -> Later:
        """The same, executed ``later`` (``rota.shared.database.later``)."""
        statement, parameters = self._of(connection, ids, columns)
        return execute_later(connection, statement, {**parameters, **values}, expected=expected)

    def _of(self, connection: Connection, ids: Listed, columns: Sequence[Listed]) -> tuple[Update, dict[str, Any]]:
        if not all(map(lt, ids, ids[1:])) or any(len(values) != len(ids) for values in columns):
            raise ValueError("the ids of an update by lists must ascend, and each must have its values")
        form = self._made.get(connection.dialect.name) or self._make(connection.dialect.name)
        return form.statement, form.parameters(ids, columns)

    def _make(self, dialect: str) -> RowsForm:
        form = _forms.get(dialect, _ByJson)(self._table, self._build, self._kinds)
        return self._made.setdefault(dialect, form)


# Hints: the index to read by, and rows to leave out


class InThisOrder(FunctionElement[Any]):
    """Before the columns of a SELECT: the database joins the tables in the order written."""

    inherit_cache = True
    name = "in_this_order"


class OrIgnore(FunctionElement[Any]):
    """Behind INSERT or UPDATE: the database leaves out the rows whose unique key is taken."""

    inherit_cache = True
    name = "or_ignore"


class unindexed(FunctionElement[Any]):  # noqa: N801 - reads as SQL
    """``unindexed(column)``: the column, in a comparison for which the database must not use an index."""

    inherit_cache = True
    name = "unindexed"


@compiles(InThisOrder)
def _no_order(element: Any, compiler: Any, **kw: Any) -> str:
    return ""


@compiles(unindexed)
def _plain_column(element: Any, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


def read_by(statement: Any, table: Any, index: str = "PRIMARY") -> Any:
    """A SELECT that reads ``table`` by this index, whatever is estimated; ignored where the database has no hints."""
    return statement.with_hint(table, index)


def by_index(statement: Any, table: Any, index: str = "PRIMARY") -> Any:
    """A SELECT that reads ``table`` by this index, and joins the tables in the order written.

    It is for statements that lock, which lock the rows in the order in which they read them, and for ``json_rows``.
    """
    return read_by(statement.prefix_with(InThisOrder()), table, index)


def found_by(statement: Change, index: str = "PRIMARY") -> Change:
    """An UPDATE or DELETE of one table that finds its rows by this index, where the database has such hints.

    Each DELETE by a list needs it: it waits for each locked row that it scans, and MariaDB likes to scan small tables.
    """
    return statement.with_hint(index)


def ignore_conflicts(statement: Any) -> Any:
    """An INSERT or UPDATE that does not fail on a taken unique key, but leaves out that row."""
    return statement.prefix_with(OrIgnore())
