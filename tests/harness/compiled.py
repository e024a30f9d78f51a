"""Compiled statements, kept for all tests of a process.

SQLAlchemy keeps them for each engine, and nearly every test has an engine of its own. So each test compiled each of its
statements anew, which took it a third of its time. Here the engines of like dialects share what was compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import URL
from sqlalchemy.util import LRUCache

from rota.shared.database.backend import Backend, Limits
from rota.shared.database.mysql import MySQL
from rota.shared.database.servers import Servers
from rota.shared.database.sqlite import SQLite

STATEMENTS = 5_000


@contextmanager
def statements_shared() -> Iterator[None]:
    """Let the engines that are made in the block share their compiled statements."""
    compiled: LRUCache[Any, Any] = LRUCache(STATEMENTS)
    with ExitStack() as patches:
        for backend, dialect in ((MySQL, MySQLDialect_pymysql), (SQLite, SQLiteDialect_pysqlite)):
            patches.enter_context(patch.object(backend, "engine", _sharing(backend.engine, compiled)))
            patches.enter_context(patch.object(dialect, "__eq__", _compile_alike))
            patches.enter_context(patch.object(dialect, "__hash__", lambda dialect: hash(type(dialect))))
        yield


def _sharing(
    make: Callable[[Any, URL, Limits, Servers], Engine], compiled: "LRUCache[Any, Any]"
) -> Callable[[Backend, URL, Limits, Servers], Engine]:
    def engine(self: Backend, url: URL, limits: Limits, servers: Servers) -> Engine:
        made = make(self, url, limits, servers)
        made._compiled_cache = compiled
        return made

    return engine


def _compile_alike(one: object, other: object) -> bool:
    """Whether two dialects make the same text of a statement: they are of one kind and met the same server."""
    return one is other or (type(one) is type(other) and _traits(one) == _traits(other))


def _traits(dialect: Any) -> tuple[object, ...]:
    """What the text of statements depends on: what the server told, and what a test has set."""
    server = ("server_version_info", "is_mariadb", "_backslash_escapes", "_server_ansiquotes")
    own = ("paramstyle", "positional", "statement_compiler")
    return tuple(getattr(dialect, name, None) for name in (*server, *own))
