"""The migration lock on MariaDB and MySQL: a row lock, so that one process migrates at a time.

DDL commits by itself, so the lock needs a connection of its own. That connection locks the only row of
``rota_migration_lock`` by SELECT … FOR UPDATE until the migration is over. When the connection ends, however the
process died, the server releases the lock at once; no lease has to expire.

A Galera cluster does not support GET_LOCK or LOCK TABLES, and keeps row locks on one node only. So the lock only saves
work, as elsewhere in Rota. Correctness rests on what all nodes agree on: DDL, which Galera puts into one order, and the
key of ``rota_schema_version``. If two processes migrate through two nodes, one of them gets "table exists", "duplicate
key" or a conflict at commit. That process has lost a race. It begins again, and every step leaves out what it finds
done (migrations/steps.py).
"""

from contextlib import ExitStack
from typing import Any

import pymysql
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect
from sqlalchemy.engine import URL

from rota.shared.database.mysql_connection import MySQLConnection, connect
from rota.shared.database.mysql_ddl import OTHERS_SECONDS, wait_briefly
from rota.shared.database.mysql_hosts import Hosts
from rota.shared.database.mysql_session import set_in_session
from rota.shared.database.servers import Servers
from rota.shared.database.urls import has_several_hosts

CONNECT_SECONDS = 5
SILENT, UNREACHABLE = (0, 2006, 2013), 2003
"""Codes of the driver: the connection was lost, and none could be made."""

LOCK_TABLE = "rota_migration_lock"
_CREATE_LOCK = (
    f"CREATE TABLE IF NOT EXISTS {LOCK_TABLE} (id SMALLINT NOT NULL PRIMARY KEY)"
    " ENGINE=InnoDB COMMENT='its row is locked by the process that migrates'"
)


def migration_engine(url: URL, turn_seconds: float, statement_seconds: float) -> Engine:
    """An engine whose statements may take ``statement_seconds``, and which waits ``turn_seconds`` for the lock."""
    engine = create_engine(
        url,
        poolclass=NullPool,
        isolation_level="READ COMMITTED",
        connect_args={
            "charset": "utf8mb4",
            **dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), CONNECT_SECONDS),
        },
    )

    def prepare(connection: Any, record: Any) -> None:
        """Keep the server from ending this session when it idles, because it may be the one that holds the lock."""
        settings = [
            "time_zone = '+00:00'",
            f"wait_timeout = {statement_seconds}",
            f"innodb_lock_wait_timeout = {turn_seconds}",
            f"lock_wait_timeout = {OTHERS_SECONDS}",
        ]
        if "mariadb" in connection.get_server_info().lower():
            settings.append("idle_transaction_timeout = 0")
        set_in_session(connection, settings)
        connection.limit(statement_seconds, statement_seconds)

    if has_several_hosts(url):
        Hosts(url, CONNECT_SECONDS, Servers(lambda *told: None)).follow(engine)
    else:
        event.listen(engine, "do_connect", _connect)
    event.listen(engine, "connect", prepare)
    wait_briefly(engine)
    return engine


def _connect(*arguments: Any) -> MySQLConnection:
    """A connection. A server that takes it and then says nothing is one that cannot be reached, not a lost connection:
    who migrates must see that at once."""
    try:
        return connect(*arguments)
    except pymysql.err.OperationalError as error:
        if error.args[0] not in SILENT:
            raise
        raise pymysql.err.OperationalError(UNREACHABLE, str(error.args[-1])) from error


def take_turn(engine: Engine, until_migrated: ExitStack) -> Connection:
    """Take the lock on a connection of its own, and return another connection on which to migrate."""
    holder = until_migrated.enter_context(engine.connect())
    _make_lock(holder)
    holder.exec_driver_sql(f"SELECT id FROM {LOCK_TABLE} WHERE id = 1 FOR UPDATE")
    return until_migrated.enter_context(engine.connect())


def _make_lock(holder: Connection) -> None:
    """Create the lock's table and its row. Each is committed at once; otherwise two processes could deadlock."""
    if not inspect(holder).has_table(LOCK_TABLE):
        holder.exec_driver_sql(_CREATE_LOCK)
    holder.exec_driver_sql(f"INSERT IGNORE INTO {LOCK_TABLE} (id) VALUES (1)")
    holder.commit()
