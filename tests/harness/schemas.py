"""What a database's schema is, as the database itself writes it down, made comparable."""

import contextlib
import re
import sqlite3
from typing import Any

from sqlalchemy import make_url

from tests.harness.databases import run_sql

BOOKKEEPING = {"rota_schema_version", "rota_migration_lock", "sqlite_sequence"}
"""What migrating leaves beside Rota's tables."""


def is_sqlite(url: str) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def typed(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run SQL as a person at a client would, past everything that is Rota's; return the last statement's rows."""
    if not is_sqlite(url):
        return run_sql(url, *statements)
    with contextlib.closing(sqlite3.connect(make_url(url).database or "", isolation_level=None)) as connection:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        return rows


def ddl(url: str) -> dict[str, str]:
    """Every table and index of ours, by name, with the statement that would make it again."""
    if is_sqlite(url):
        written = typed(url, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: _comparable(sql) for name, sql in written if name not in BOOKKEEPING}
    tables = [name for (name,) in run_sql(url, "SHOW TABLES") if name not in BOOKKEEPING]
    return {name: _comparable(run_sql(url, f"SHOW CREATE TABLE {name}")[0][1]) for name in tables}


def _comparable(sql: str) -> str:
    """Without the next id, and with keys and constraints, whose order means nothing, in one order.

    In a CHECK MySQL writes another character set before the same texts, once the table was altered.
    """
    sql = re.sub(r"\b_(latin1|utf8mb4)'", "'", re.sub(r" AUTO_INCREMENT=\d+", "", sql))
    elements = [" ".join(one.split()) for one in _elements(sql)]
    rules = [one for one in elements if re.match(r"(CONSTRAINT|(PRIMARY |UNIQUE )?KEY) ", one)]
    return "\n".join([one for one in elements if one not in rules] + sorted(rules))


def _elements(sql: str) -> list[str]:
    """The parts of a statement between its commas, but for those in inner brackets and in texts.

    SQLite puts an added column behind the last one, on the same line.
    """
    depth, begun, quoted, found = 0, 0, False, []
    for at, sign in enumerate(sql):
        quoted ^= sign == "'"
        depth += 0 if quoted else (sign == "(") - (sign == ")")
        if not quoted and (
            (sign == "," and depth == 1) or (sign == "(" and depth == 1) or (sign == ")" and depth == 0)
        ):
            found.append(sql[begun:at])
            begun = at + 1
    return [*found, sql[begun:]]


def statements(script: str) -> list[str]:
    """The statements of a script that ``rota migrate --sql`` printed."""
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";\n") if statement.strip()]
