"""Writes that wait in their connection, for the tests of how they are sent."""

from pymysql.constants import SERVER_STATUS
from sqlalchemy import Connection, text

from rota.shared.database.later import Later, execute_later
from rota.shared.database.mysql_connection import MySQLConnection
from tests.harness.scenario import Scenario

SET_PRIORITY = text("UPDATE schedule_task SET priority = :priority WHERE id = :task")


def set_later(connection: Connection, task: int, priority: int, expected: int | None = None) -> Later:
    return execute_later(connection, SET_PRIORITY, {"task": task, "priority": priority}, expected=expected)


def priorities(rows: Scenario, *tasks: int) -> list[int]:
    return [rows.task_row(task).priority for task in tasks]


def driver(connection: Connection) -> MySQLConnection:
    own = connection.connection.driver_connection
    assert isinstance(own, MySQLConnection)
    return own


def in_transaction(connection: Connection) -> tuple[MySQLConnection, int]:
    """The session's connection, and whether the server says with an answer that it is in a transaction."""
    connection.execute(text("SELECT 1"))
    used = driver(connection)
    return used, int(bool(used.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS))
