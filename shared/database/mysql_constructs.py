"""How the constructs of ``constructs`` are compiled for MariaDB and MySQL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Engine, Subquery, Table, TableValuedAlias, bindparam, func
from sqlalchemy.dialects.mysql.base import MySQLCompiler
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from rota.shared.database.column_checks import ColumnChecks
from rota.shared.database.constructs import (
    BigIdType,
    Build,
    InThisOrder,
    JsonRows,
    Listed,
    ListedValues,
    ListType,
    LongTextType,
    OrIgnore,
    Rows,
    SecondsBefore,
    UtcNow,
    UtcTimeType,
    among,
    columns_of,
    found_by,
    updates_rows,
)
from rota.shared.database.json_lists import Appended, HasText, TextAt
from rota.shared.database.questions import Answer, IntoAnswer
from rota.shared.database.stored_json import WHERE_SORTED, JsonBytes, MayListNodes, bytes_of_text, search_of_text

DIALECTS = ("mysql", "mariadb")


@compiles(BigIdType, *DIALECTS)
def _big_id(element: Any, compiler: Any, **kw: Any) -> str:
    return "BIGINT UNSIGNED"


@compiles(LongTextType, *DIALECTS)
def _long_text(element: Any, compiler: Any, **kw: Any) -> str:
    return "LONGTEXT"


@compiles(UtcTimeType, *DIALECTS)
def _utc_time(element: Any, compiler: Any, **kw: Any) -> str:
    return "DATETIME(6)"


@compiles(UtcNow, *DIALECTS)
def _utc_now(element: Any, compiler: Any, **kw: Any) -> str:
    return "(UTC_TIMESTAMP(6))"


@compiles(SecondsBefore, *DIALECTS)
def _seconds_before(element: Any, compiler: Any, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"TIMESTAMPADD(MICROSECOND, -1000000 * {seconds}, {moment})"


_SQL_TYPES = {
    "id": "BIGINT UNSIGNED",
    "int": "INT",
    "time": "DATETIME(6)",
    "str": "VARCHAR(1023)",
    "json": "LONGTEXT",
}


@compiles(JsonRows, *DIALECTS)
def _json_table(element: Any, compiler: Any, **kw: Any) -> str:
    rows = compiler.process(next(iter(element.clauses)), **kw)
    columns = ", ".join(f"{name} {_SQL_TYPES[kind]} PATH '$[{at}]'" for at, name, kind in columns_of(element))
    return f"JSON_TABLE({rows}, '$[*]' COLUMNS ({columns}))"


@compiles(Appended, *DIALECTS)
def _json_array_append(element: Any, compiler: Any, **kw: Any) -> str:
    listed, item, most = (compiler.process(clause, **kw) for clause in element.clauses)
    shortened = f"CASE WHEN JSON_LENGTH({listed}) >= {most} THEN JSON_REMOVE({listed}, '$[0]') ELSE {listed} END"
    kept = f"COALESCE(CASE WHEN JSON_VALID({listed}) THEN {shortened} END, JSON_ARRAY())"
    return f"JSON_ARRAY_APPEND({kept}, '$', JSON_EXTRACT({item}, '$'))"


@compiles(HasText, *DIALECTS)
def _in_json_table(element: Any, compiler: Any, **kw: Any) -> str:
    listed, wanted = (compiler.process(clause, **kw) for clause in element.clauses)
    valid = f"CASE WHEN JSON_VALID({listed}) THEN {listed} ELSE '[]' END"
    words = f"JSON_TABLE({valid}, '$[*]' COLUMNS (word VARCHAR(255) COLLATE utf8mb4_bin PATH '$'))"
    return f"({wanted} IN (SELECT listed.word FROM {words} AS listed))"


@compiles(TextAt, *DIALECTS)
def _unquoted(element: Any, compiler: Any, **kw: Any) -> str:
    value, path = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"CASE WHEN JSON_VALID({value}) THEN JSON_UNQUOTE(JSON_EXTRACT({value}, {path})) END"


@compiles(JsonBytes, *DIALECTS)
def _json_bytes(element: Any, compiler: Any, **kw: Any) -> str:
    if compiler.dialect.is_mariadb:
        return bytes_of_text(element, compiler, **kw)
    return f"json_storage_size{compiler.process(element.clause_expr, **kw)}"


@compiles(MayListNodes, *DIALECTS)
def _has_nodes(element: Any, compiler: Any, **kw: Any) -> str:
    if compiler.dialect.is_mariadb:
        return search_of_text(element, compiler, **kw)
    (value,) = element.clauses
    return str(compiler.process(func.json_contains_path(value, "one", "$.nodes"), **kw))


@compiles(InThisOrder, *DIALECTS)
def _straight_join(element: Any, compiler: Any, **kw: Any) -> str:
    return "STRAIGHT_JOIN"


@compiles(OrIgnore, *DIALECTS)
def _ignore(element: Any, compiler: Any, **kw: Any) -> str:
    return "IGNORE"


@compiles(IntoAnswer, *DIALECTS)
def _into(element: Any, compiler: Any, **kw: Any) -> str:
    return "INTO @rota_answer"


@compiles(Answer, *DIALECTS)
def _answer(element: Any, compiler: Any, **kw: Any) -> str:
    return "@rota_answer"


@compiles(ColumnChecks, *DIALECTS)
def _one_check(element: Any, compiler: Any, **kw: Any) -> str:
    """All CHECKs of a column as one, because MariaDB takes only one there, without a name.

    MariaDB's error names the column. MySQL's error names the CHECK, so the name stands in a comment that only MySQL
    reads.
    """
    rules = element.needed_by("mysql")
    conditions = ") AND (".join(condition for _, condition in rules)
    return f"/*!80016 CONSTRAINT {rules[0][0]} */CHECK (({conditions}))" if rules else ""


# Lists, which PyMySQL writes out


class _WrittenOut(ListType):
    def bind_processor(self, dialect: Any) -> Callable[[Any], Listed]:
        return lambda values: values if type(values) is Listed else Listed(values)


@compiles(ListedValues, *DIALECTS)
def _list(element: Any, compiler: Any, **kw: Any) -> str:
    return f"({compiler.process(next(iter(element.clauses)), **kw)})"


def quoted(text: str) -> str:
    """A text as SQL writes it: ``it's`` becomes ``'it\\'s'``. For a session without ``NO_BACKSLASH_ESCAPES``.

    Only the backslash and the quote itself must be escaped. PyMySQL escapes more, JSON's double quotes too, a character
    at a time, and takes twenty times as long.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def write_listed(values: Listed, _: Any) -> str:
    """The text of a ``Listed`` that PyMySQL writes into a statement.

    ``Listed([1, None, "it's"])`` becomes ``1,NULL,'it\\'s'``. Rota's sessions never have ``NO_BACKSLASH_ESCAPES``.
    """
    if values.text is None:
        texts = (str(value) if type(value) is int else "NULL" if value is None else quoted(value) for value in values)
        values.text = ",".join(texts) or "NULL"  # of an empty list: IN (NULL) matches nothing
    return values.text


class _Pick(FunctionElement[Any]):
    """``ELT(INTERVAL(id, ids…), values…)``: the value at the place of the row's id in an ascending list of ids.

    INTERVAL is a binary search. The row's id must be in the list, and less than 2**53.
    """

    inherit_cache = True
    name = "pick"


@compiles(_Pick, *DIALECTS)
def _elt(element: Any, compiler: Any, **kw: Any) -> str:
    key, ids, values = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"ELT(INTERVAL({key}, {ids}), {values})"


@updates_rows(*DIALECTS)
class ByLists:
    """Updates one table in place by lists.

    A join with JSON_TABLE would need a temporary table (docs/decisions/0009-updates-by-lists.md).
    """

    def __init__(self, table: Table, build: Build, kinds: Mapping[str, str]) -> None:
        self._names = list(kinds)
        ids = bindparam("ids", type_=ListType())
        picks: dict[str, ColumnElement[Any]] = {
            name: _Pick(table.c.id, ids, bindparam(f"{name}_listed", type_=ListType())) for name in kinds
        }
        self.statement = found_by(build(Rows(among(table.c.id), picks)))

    def parameters(self, ids: Listed, columns: Sequence[Listed]) -> dict[str, Any]:
        """The ids, and a list for each kind."""
        lists = {f"{name}_listed": column for name, column in zip(self._names, columns, strict=True)}
        return {"ids": ids, **lists}


FIRST = (TableValuedAlias, Subquery)
BY_PRIMARY = " FORCE INDEX (PRIMARY)"


class RowsFirst(MySQLCompiler):
    """Updates by ``json_rows`` or by a subquery: the server reads its rows first, then finds each by its primary key,
    or by the index of a hint.

    Without the hint the server estimates 40 rows for the parameter. It scans any table that it believes to be smaller,
    and locks all rows that it scans. So a frozen process that holds one row would make all others wait.
    """

    def update_tables_clause(self, update_stmt: Any, from_table: Any, extra_froms: Any, **kw: Any) -> str:
        kw["asfrom"] = True
        joined = [table for table in extra_froms if not isinstance(table, FIRST)]
        rows = [self.process(table, **kw) for table in extra_froms if isinstance(table, FIRST)]
        if extra_froms and update_stmt._hints:  # noqa: SLF001 - the hint is written behind the last table
            forced = [self.process(table, **kw) + BY_PRIMARY for table in joined]
            return " STRAIGHT_JOIN ".join([*rows, *forced, self.process(from_table, **kw)])
        by = BY_PRIMARY if extra_froms else ""
        return " STRAIGHT_JOIN ".join([*rows, *(self.process(t, **kw) + by for t in (from_table, *joined))])

    def delete_table_clause(self, delete_stmt: Any, from_table: Any, extra_froms: Any, **kw: Any) -> str:
        table = super().delete_table_clause(delete_stmt, from_table, extra_froms, **kw)
        return f"{table} USING {table}" if delete_stmt._hints else table  # noqa: SLF001 - no other DELETE takes hints

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        """The text of a hint; each of Rota's hints is the name of an index."""
        if text is not None and text.startswith(WHERE_SORTED):
            return None if self.dialect.is_mariadb else f"FORCE INDEX ({text.removeprefix(WHERE_SORTED)})"
        return f"FORCE INDEX ({text})"


def compile_for(engine: Engine) -> None:
    """Make the engine compile its statements as this module says."""
    engine.dialect.statement_compiler = RowsFirst
    engine.dialect.colspecs = {**engine.dialect.colspecs, ListType: _WrittenOut}
