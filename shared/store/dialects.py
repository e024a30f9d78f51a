"""What differs between MariaDB, MySQL and SQLite, in one place: types, the clock, and many rows in one parameter.

``json_rows`` is how Rota writes many differing values in one statement: the rows travel as one JSON parameter and the
database reads them as a table (JSON_TABLE; json_each on SQLite). The SQL text is constant, so it is compiled once,
and it measured faster than CASE or executemany (docs/decisions/0002-batches-as-json.md).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import lt
from typing import Any

from pymysql.converters import escape_string
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    DateTime,
    Integer,
    String,
    Table,
    TableValuedAlias,
    TypeDecorator,
    Update,
    bindparam,
    column,
    func,
    literal_column,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.mysql.base import MySQLCompiler
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

BigId = BigInteger().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb").with_variant(Integer(), "sqlite")
UtcTime = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
Json = JSON(none_as_null=True)

TIME_FORMAT = "%Y-%m-%d %H:%M:%S.%f"
"""The one written form of a time in the database, UTC."""

_SQLITE_TIME = "%Y-%m-%d %H:%M:%f000"


def written(moment: datetime | None) -> str | None:
    """A naive UTC time in the form the database holds."""
    return None if moment is None else moment.isoformat(" ", "microseconds")


def stored_time(text: str) -> datetime | str:
    """A time as the database wrote it; what is none (MariaDB takes a zero day or month from SQL) stays text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


class UtcNow(FunctionElement[datetime]):
    """The database's clock, UTC, at the start of the statement."""

    inherit_cache = True
    type = UtcTime
    name = "utc_now"


@compiles(UtcNow)
def _utc_now(element: Any, compiler: Any, **kw: Any) -> str:
    return "(UTC_TIMESTAMP(6))"


@compiles(UtcNow, "sqlite")
def _utc_now_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(strftime('{_SQLITE_TIME}', 'now'))"


class SecondsBefore(FunctionElement[datetime]):
    """``SecondsBefore(moment, seconds)``: a time so many seconds (a column or a number, may be fractional) before."""

    inherit_cache = True
    type = UtcTime
    name = "seconds_before"


@compiles(SecondsBefore)
def _seconds_before(element: Any, compiler: Any, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"TIMESTAMPADD(MICROSECOND, -1000000 * {seconds}, {moment})"


@compiles(SecondsBefore, "sqlite")
def _seconds_before_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime('{_SQLITE_TIME}', {moment}, (-1 * {seconds}) || ' seconds')"


_SQL_TYPES = {
    "id": "BIGINT UNSIGNED",
    "int": "INT",
    "time": "DATETIME(6)",
    "str": "VARCHAR(1023)",
    "json": "LONGTEXT",
}
_COLUMN_TYPES = {"id": BigId, "int": Integer(), "time": UtcTime, "str": None, "json": None}


class _JsonRows(FunctionElement[Any]):
    inherit_cache = True
    name = "json_rows"


def _spec(element: Any) -> list[tuple[int, str, str]]:
    text = list(element.clauses)[1].name
    return [(at, *part.split(":")) for at, part in enumerate(text.split(","))]


@compiles(_JsonRows)
def _json_table(element: Any, compiler: Any, **kw: Any) -> str:
    rows = compiler.process(next(iter(element.clauses)), **kw)
    columns = ", ".join(f"{name} {_SQL_TYPES[kind]} PATH '$[{at}]'" for at, name, kind in _spec(element))
    return f"JSON_TABLE({rows}, '$[*]' COLUMNS ({columns}))"


@compiles(_JsonRows, "sqlite")
def _json_each(element: Any, compiler: Any, **kw: Any) -> str:
    rows = compiler.process(next(iter(element.clauses)), **kw)
    columns = ", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name, _ in _spec(element))
    return f"(SELECT {columns} FROM json_each({rows}))"


def json_rows(alias: str, /, **kinds: str) -> TableValuedAlias:
    """A table of the rows bound to the parameter ``rows``, with the named columns in the order given.

    Kinds: ``id``, ``int``, ``time`` (``TIME_FORMAT``), ``str`` (up to 1,023 characters), ``json`` (a JSON text).

        v = json_rows("v", id="id", status="str")
        update(table).where(table.c.id == v.c.id).values(status=v.c.status), {"rows": bound([(1, "on")])}
    """
    spec = ",".join(f"{name}:{kind}" for name, kind in kinds.items())
    columns = [column(name, _COLUMN_TYPES[kind]) for name, kind in kinds.items()]
    return _JsonRows(bindparam("rows"), literal_column(spec)).table_valued(*columns, name=alias)


class Listed(tuple[Any, ...]):
    """Values that a statement lists, as one parameter: numbers, quoted strings, NULL; between commas.

    ``str(Listed([1, None, "it's"]))`` is ``1,NULL,'it\\'s'``: quoted with backslashes, for no session of Rota's has
    ``NO_BACKSLASH_ESCAPES``. What several statements of a batch list is written out once.
    """

    _text: str | None = None

    @classmethod
    def of(cls, values: Iterable[Any]) -> "Listed":
        """A list of these; times become their written form."""
        return cls([written(value) if isinstance(value, datetime) else value for value in values])

    def __str__(self) -> str:
        if self._text is None:
            texts = (
                str(value) if type(value) is int else "NULL" if value is None else f"'{escape_string(value)}'"
                for value in self
            )
            self._text = ",".join(texts) or "NULL"  # of none: nothing is among it
        return self._text


def write_listed(values: Listed, _: Any) -> str:
    """A ``Listed`` as PyMySQL is to write it into a statement."""
    return str(values)


class _List(TypeDecorator[Any]):
    """A list as one parameter: PyMySQL writes it out; SQLite reads it as JSON."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        if dialect.name == "sqlite":
            return json.dumps(list(value))
        return value if type(value) is Listed else Listed(value)


class _IdList(FunctionElement[Any]):
    inherit_cache = True
    name = "id_list"


@compiles(_IdList)
def _list(element: Any, compiler: Any, **kw: Any) -> str:
    return f"({compiler.process(next(iter(element.clauses)), **kw)})"


@compiles(_IdList, "sqlite")
def _json_list(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(next(iter(element.clauses)), **kw)}))"


def among(column: Any, parameter: str = "ids") -> Any:
    """``column IN (…)`` for the ids bound to a parameter; compiled once, however many.

    select(table.c.name).where(among(table.c.id)), {"ids": [1, 2, 3]}
    """
    return column.op("IN", is_comparison=True)(_IdList(bindparam(parameter, type_=_List())))


def joined_ids(column: Any) -> Any:
    """All ids of a result, or of a group, as one text for ``split_ids``: rows cost the client more than anything else.

    Sessions are told to let it be as long as need be (``group_concat_max_len``).
    """
    return func.group_concat(column, type_=String())


def split_ids(text: str | None) -> list[int]:
    """The ids of a ``joined_ids``; None: there were none."""
    return [] if text is None else list(map(int, text.split(",")))


class _Pick(FunctionElement[Any]):
    """``ELT(INTERVAL(id, ids…), values…)``: the value at the place that the row's id has in a sorted list of ids.

    INTERVAL searches by halves. Ids must be among the list, and below 2**53.
    """

    inherit_cache = True
    name = "pick"


@compiles(_Pick)
def _elt(element: Any, compiler: Any, **kw: Any) -> str:
    key, ids, values = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"ELT(INTERVAL({key}, {ids}), {values})"


@dataclass(frozen=True)
class Rows:
    """The rows of a ``RowsUpdate`` as its statement sees them: the condition that finds one, and its values."""

    match: ColumnElement[bool]
    c: Mapping[str, ColumnElement[Any]]


class RowsUpdate:
    """An UPDATE of rows found by id, each with values of its own, in the form that the database does best.

    On MariaDB and MySQL one table is updated in place by lists, with no temporary table between (which a join with
    JSON_TABLE takes, docs/decisions/0009-updates-by-lists.md); SQLite joins with ``json_rows``.

        move = RowsUpdate(
            task, lambda rows: update(task).where(rows.match).values(next_fire_at=rows.c["next"]), next="time"
        )
        move(connection, Listed([1, 2]), Listed.of([moment, moment])).rowcount
    """

    def __init__(self, table: Table, build: Callable[[Rows], Update], **kinds: str) -> None:
        self._names = list(kinds)
        ids = bindparam("ids", type_=_List())
        picks: dict[str, ColumnElement[Any]] = {
            name: _Pick(table.c.id, ids, bindparam(f"{name}_listed", type_=_List())) for name in kinds
        }
        by_lists = build(Rows(among(table.c.id), picks))
        self._by_lists = by_lists.with_hint("FORCE INDEX (PRIMARY)", dialect_name="mysql")
        joined = json_rows("joined", id="id", **kinds)
        self._by_json = build(Rows(table.c.id == joined.c.id, dict(joined.c)))

    def __call__(self, connection: Connection, ids: Listed, *columns: Listed, **values: Any) -> CursorResult[Any]:
        """Update rows by their ids, which ascend, with a list of values for each of the kinds in their order.

        Raises ValueError for lists that would give a row another's value.
        """
        if not all(map(lt, ids, ids[1:])) or any(len(values) != len(ids) for values in columns):
            raise ValueError("the ids of an update by lists must ascend, and each must have its values")
        if connection.dialect.name == "sqlite":
            return connection.execute(self._by_json, {"rows": bound(zip(ids, *columns, strict=True)), **values})
        lists = {f"{name}_listed": column for name, column in zip(self._names, columns, strict=True)}
        return connection.execute(self._by_lists, {"ids": ids, **lists, **values})


def bound(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the JSON text that ``json_rows`` reads; times become their written form."""
    return _encode(list(rows))


def _written_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return written(value)
    raise TypeError(f"a row holds {value!r}, which has no JSON form")


_encode = json.JSONEncoder(default=_written_value, separators=(",", ":")).encode


class RowsFirst(MySQLCompiler):
    """Updates by ``json_rows``: read the rows first, then find each by its primary key.

    Left to itself the server takes the parameter for 40 rows, scans any table that it believes to be smaller, and locks
    what it scans: so the frozen holder of one row would make everybody wait.
    """

    def update_tables_clause(self, update_stmt: Any, from_table: Any, extra_froms: Any, **kw: Any) -> str:
        kw["asfrom"] = True
        joined = [table for table in extra_froms if not isinstance(table, TableValuedAlias)]
        rows = [self.process(table, **kw) for table in extra_froms if isinstance(table, TableValuedAlias)]
        forced = " FORCE INDEX (PRIMARY)" if extra_froms else ""
        return " STRAIGHT_JOIN ".join([*rows, *(self.process(t, **kw) + forced for t in (from_table, *joined))])


class RowsFirstOnSQLite(SQLiteCompiler):
    """The same on SQLite, which would go through all rows of a status, and through the parameter again for each."""

    def update_tables_clause(self, update_stmt: Any, from_table: Any, extra_froms: Any, **kw: Any) -> str:
        table = self.process(from_table, asfrom=True, iscrud=True, **kw)
        return f"{table} NOT INDEXED" if extra_froms else table  # by the primary key: it is no index there


class unindexed(FunctionElement[Any]):  # noqa: N801 - reads as SQL
    """``unindexed(column)``: the column, in a comparison by which SQLite shall not look for rows."""

    inherit_cache = True
    name = "unindexed"


@compiles(unindexed)
def _as_it_is(element: Any, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(unindexed, "sqlite")
def _unindexed_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


def by_index(statement: Any, table: Any, index: str = "PRIMARY") -> Any:
    """A SELECT that reads ``table`` by this index, and joins in the order written, whatever MariaDB and MySQL estimate.

    For what locks (rows are locked in the order they are read), and for joins with ``json_rows`` (see ``RowsFirst``).
    """
    return statement.prefix_with("STRAIGHT_JOIN", dialect="mysql").with_hint(table, f"FORCE INDEX ({index})", "mysql")


def ignore_conflicts(statement: Any) -> Any:
    """An INSERT or UPDATE that leaves out the rows whose unique key is taken, instead of failing."""
    return statement.prefix_with("IGNORE", dialect="mysql").prefix_with("OR IGNORE", dialect="sqlite")
