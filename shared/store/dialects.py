"""What differs between MariaDB, MySQL and SQLite, in one place: types, the clock, and many rows in one parameter.

``json_rows`` is how Rota writes many differing values in one statement: the rows travel as one JSON parameter and the
database reads them as a table (JSON_TABLE; json_each on SQLite). The SQL text is constant, so it is compiled once,
and it measured faster than CASE or executemany (docs/decisions/0002-batches-as-json.md).
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Integer,
    TableValuedAlias,
    bindparam,
    column,
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
    return None if moment is None else moment.strftime(TIME_FORMAT)


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


def bound(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the JSON text that ``json_rows`` reads; times become their written form."""
    return json.dumps(list(rows), default=_written_value, separators=(",", ":"))


def _written_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime(TIME_FORMAT)
    raise TypeError(f"a row holds {value!r}, which has no JSON form")


class RowsFirst(MySQLCompiler):
    """Updates by ``json_rows``: read the rows first, then find each by its primary key.

    Left to itself the server takes the parameter for 40 rows, scans any table that it believes to be smaller, and locks
    what it scans: so the frozen holder of one row would make everybody wait.
    """

    def update_tables_clause(self, update_stmt: Any, from_table: Any, extra_froms: Any, **kw: Any) -> str:
        kw["asfrom"] = True
        tables = [self.process(table, **kw) for table in (*extra_froms, from_table)]
        return " STRAIGHT_JOIN ".join(tables) + (" FORCE INDEX (PRIMARY)" if extra_froms else "")


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
