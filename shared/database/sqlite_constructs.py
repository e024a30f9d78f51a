"""How the constructs of ``constructs`` are compiled for SQLite."""

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import Integer
from sqlalchemy.dialects.sqlite import DATETIME
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.ext.compiler import compiles

from rota.shared.database.constructs import (
    BigIdType,
    JsonRows,
    ListedValues,
    ListType,
    OrIgnore,
    SecondsBefore,
    UtcNow,
    columns_of,
    stored_time,
    unindexed,
)
from rota.shared.database.json_fields import whole_number
from rota.shared.database.json_lists import Appended

_TIME = "%Y-%m-%d %H:%M:%f000"


@compiles(BigIdType, "sqlite")
def _big_id(element: Any, compiler: Any, **kw: Any) -> str:
    return "INTEGER"


@compiles(UtcNow, "sqlite")
def _utc_now(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(strftime('{_TIME}', 'now'))"


@compiles(SecondsBefore, "sqlite")
def _seconds_before(element: Any, compiler: Any, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime('{_TIME}', {moment}, (-1 * {seconds}) || ' seconds')"


@compiles(JsonRows, "sqlite")
def _json_each(element: Any, compiler: Any, **kw: Any) -> str:
    rows = compiler.process(next(iter(element.clauses)), **kw)
    columns = ", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name, _ in columns_of(element))
    return f"(SELECT {columns} FROM json_each({rows}))"


@compiles(Appended, "sqlite")
def _json_insert(element: Any, compiler: Any, **kw: Any) -> str:
    listed, item, most = (compiler.process(clause, **kw) for clause in element.clauses)
    shortened = f"CASE WHEN json_array_length({listed}) >= {most} THEN json_remove({listed}, '$[0]') ELSE {listed} END"
    return f"json_insert(coalesce(CASE WHEN json_valid({listed}) THEN {shortened} END, '[]'), '$[#]', json({item}))"


@compiles(ListedValues, "sqlite")
def _json_list(element: Any, compiler: Any, **kw: Any) -> str:
    return f"(SELECT value FROM json_each({compiler.process(next(iter(element.clauses)), **kw)}))"


@compiles(OrIgnore, "sqlite")
def _or_ignore(element: Any, compiler: Any, **kw: Any) -> str:
    return "OR IGNORE"


@compiles(unindexed, "sqlite")
def _unindexed(element: Any, compiler: Any, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


class AsJson(ListType):
    """A list travels as a JSON text."""

    def bind_processor(self, dialect: Any) -> Callable[[Any], str]:
        return lambda values: json.dumps(list(values))


class Time(DATETIME):
    """A text that is no time stays text, as on MariaDB, so that one row fails and not its whole batch."""

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[Any], Any]:
        return lambda value: stored_time(value) if isinstance(value, str) else value


class WholeNumber(Integer):
    """A value that is no whole number is read as one, so that one row fails and not its whole batch."""

    def result_processor(self, dialect: Any, coltype: Any) -> Callable[[Any], Any]:
        return lambda value: value if value is None or type(value) is int else whole_number(value)


class RowsFirst(SQLiteCompiler):
    """Updates by ``json_rows``: SQLite reads the rows of the parameter first, then finds each by its primary key.

    Without NOT INDEXED it would read all rows of a status, and the whole parameter again for each of them.
    """

    def update_tables_clause(self, update_stmt: Any, from_table: Any, extra_froms: Any, **kw: Any) -> str:
        table = self.process(from_table, asfrom=True, iscrud=True, **kw)
        by_primary_key = extra_froms and not update_stmt._hints  # noqa: SLF001
        return f"{table} NOT INDEXED" if by_primary_key else table  # it still finds rows by the primary key
