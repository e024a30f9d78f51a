"""The settings of Rota's sessions on MariaDB and MySQL, and the sentence for a server that refuses one of them."""

from collections.abc import Sequence
from typing import Any

import pymysql

from rota.shared.database.mysql_hosts import WSREP_ON
from rota.shared.database.servers import Servers

LOCK_WAIT_SECONDS = 2
"""So long a statement waits for a row that another transaction has locked."""

MYSQLS_SHORTEST_WAIT_SECONDS = 1
IDLE_IN_TRANSACTION_SECONDS = 3
"""After so long MariaDB ends the session of a process that is frozen inside a transaction, which frees its locks. MySQL
does so after ``wait_timeout``."""

IDLE_SECONDS = 10
"""``wait_timeout``: less than the liveness limit, so that a frozen worker loses its locks before it counts as dead."""

SQL_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
"""The same in each session, whatever the server's is. Without NO_ZERO_DATE (MySQL's default), because a zero date that
somebody wrote must not make Rota's own statements fail. Without NO_BACKSLASH_ESCAPES and ANSI_QUOTES, because Rota's
statements quote as the others do."""

LONGEST_IDS = 1024 * 1024
"""The most bytes in a text of ``joined_ids``. Three times 10,000 ids of 20 digits are less. MySQL's own limit of 1,024
would be too small."""

MOST_TO_SORT = 64 * 1024 * 1024
"""MySQL's ``sort_buffer_size``, in bytes, of which it takes what it needs. It sorts whole rows with their JSON, and
fails if not even some of them fit."""

ISOLATION = "SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

REFUSING = frozenset({1064, 1193, 1227, 1228, 1229, 1231, 1232, 1238})
"""Codes by which a server refuses a setting: not understood, not known, no right to set it, not this value."""

NO_RERUN = "wsrep_retry_autocommit = 0"
"""A node of Galera's that lost a row would run Rota's statement again by itself. Rota decides what runs again: it looks
first for the ids of what was inserted."""

SETTING_REFUSED = 20_000
"""Rota's own code for that, beyond all codes of servers and of PyMySQL."""


def prepare(connection: Any, record: Any, servers: Servers, *, waits: bool) -> None:
    """Give a new session Rota's settings, and note what its server is.

    ``waits``: whether its statements wait for locks. On MySQL they wait a second if not, which is the least it takes.

    Raises pymysql.err.OperationalError. With the code ``SETTING_REFUSED`` it names the setting that the server refuses.
    """
    is_mariadb = "mariadb" in connection.get_server_info().lower()
    shortest = 0 if is_mariadb else MYSQLS_SHORTEST_WAIT_SECONDS
    settings = [
        "time_zone = '+00:00'",
        f"sql_mode = '{SQL_MODE}'",
        f"wait_timeout = {IDLE_SECONDS}",
        f"innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS if waits else shortest}",
        f"group_concat_max_len = {LONGEST_IDS}",
    ]
    if is_mariadb:
        # Otherwise MariaDB turns an IN of 1,000 values or more into a join, and may then read by another index.
        # And it would check the whole row at each update: a row that was written past a CHECK could not be ended.
        settings += [
            f"idle_transaction_timeout = {IDLE_IN_TRANSACTION_SECONDS}",
            "in_predicate_conversion_threshold = 0",
            "check_constraint_checks = 0",
        ]
    else:
        settings.append(f"sort_buffer_size = {MOST_TO_SORT}")
    asked = f"SHOW VARIABLES WHERE Variable_name IN ('max_allowed_packet', '{WSREP_ON}')"
    found = dict(set_in_session(connection, [ISOLATION, ", ".join(settings)], asked))
    record.info["max_allowed_packet"] = connection.packet_limit = int(found["max_allowed_packet"])
    connection.is_node = found.get(WSREP_ON) == "ON"
    if connection.is_node:
        set_in_session(connection, [NO_RERUN])
    servers.are_several = servers.are_several or connection.is_node


def set_in_session(connection: Any, settings: Sequence[str], asked: str = "DO 0") -> Sequence[Any]:
    """Execute ``SET`` with each of these texts, in one packet with the question; returns the rows of its answer.

    Raises as ``prepare`` does.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute(";".join([*(f"SET {setting}" for setting in settings), asked]))
            while cursor.nextset():
                pass
            rows: Sequence[Any] = cursor.fetchall()
            return rows
    except pymysql.err.MySQLError as error:
        if not error.args or error.args[0] not in REFUSING:
            raise
        setting = _refused(connection, settings)
        if setting is None:
            raise
        told = f"the server refuses SET {setting}, which Rota's sessions need: {error.args[-1]}"
        raise pymysql.err.OperationalError(SETTING_REFUSED, told) from error


def _refused(connection: Any, settings: Sequence[str]) -> str | None:
    """The first of the settings that the server refuses by itself; None if there is none."""
    for setting in (one for listed in settings for one in listed.split(", ")):
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SET {setting}")
        except pymysql.err.MySQLError as error:
            return setting if error.args and error.args[0] in REFUSING else None
    return None
