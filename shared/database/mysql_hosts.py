"""Several hosts in one URL: which of them a process uses, and whether that one is fit to write.

All connections of an engine lead to one host, so that its process has one clock and sees what it has written itself.
The first connection goes to the first host of the URL that is fit. A later one goes to the host that is used already,
and only if that one fails to the others, in the order of the URL. Then the other connections follow, each when it is
used next (docs/decisions/0036-several-hosts.md).
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pymysql
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import InvalidatePoolError

from rota.shared.clock import boottime
from rota.shared.database.mysql_connection import CAUSALLY, MySQLConnection, opened
from rota.shared.database.servers import Servers
from rota.shared.database.urls import Address, addresses

log = logging.getLogger(__name__)

DEFAULT_PORT = 3306
NO_HOST, UNFIT = 2003, 1836
LASTING = frozenset({1044, 1045, 1049, 1698})
"""Codes of what is wrong with the account or the database, and does not pass. They are told, and no outage."""

WSREP_ON = "wsrep_on"
"""The server is a node of Galera's."""

READ_ONLY = ("read_only", "super_read_only", "innodb_read_only")
SETTINGS = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {(WSREP_ON, *READ_ONLY)}"
GALERA = {"wsrep_ready": "ON", "wsrep_cluster_status": "Primary"}
"""The states of a node of Galera's that takes writes."""

STATES = f"SHOW GLOBAL STATUS WHERE Variable_name IN {tuple(GALERA)}"

CATCH_UP = f"{CAUSALLY}SELECT 1"
"""It is answered when the node has applied all that the cluster had committed when it was asked."""

ADDRESS, DOUBT = "address", "doubt"
"""In the info of a connection: the host to which it leads, and a function that says that this host does not answer."""


class Hosts:
    """The hosts of a URL, for one engine. ``seconds`` is how long one round over all of them may take to connect.

    hosts = Hosts(url, seconds=10, servers=servers)
    hosts.follow(engine)
    """

    def __init__(self, url: URL, seconds: float, servers: Servers) -> None:
        self._addresses = addresses(url)
        self._seconds = seconds / len(self._addresses)
        self._servers = servers
        self._lock = threading.Lock()
        self._used: Address | None = None
        self._doubted: str | None = None
        self._left_late = self._caught_up = 0
        servers.are_several = True

    def follow(self, engine: Engine) -> None:
        """Let the engine connect to these hosts, and leave the one that is not used any more."""
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "checkin", self._note_late)
        event.listen(engine, "checkout", self._leave)

    def doubt(self, address: Address, why: str) -> None:
        """This host does not answer in time, or takes no writes: the next connection tries the others first."""
        with self._lock:
            if address == self._used:
                self._doubted = self._doubted or why

    def _connect(self, dialect: object, record: Any, arguments: Any, options: Mapping[str, Any]) -> MySQLConnection:
        while True:
            left, order = self._in_order()
            failures: dict[Address, pymysql.err.MySQLError] = {}
            for address in order:
                try:
                    connection = self._opened(address, left, options, failures)
                except pymysql.err.MySQLError as error:
                    failures[address] = error
                    continue
                if connection is None:
                    break  # another thread has moved meanwhile: this one follows it
                record.info.update({ADDRESS: address, DOUBT: partial(self.doubt, address)})
                return connection
            else:
                raise _none_is_fit(failures)

    def _in_order(self) -> tuple[Address | None, list[Address]]:
        """The host that is used, and all in the order in which to try them: it comes first, or last if in doubt."""
        with self._lock:
            used = [one for one in self._addresses if one == self._used]
            others = [one for one in self._addresses if one != self._used]
            return self._used, others + used if self._doubted else used + others

    def _opened(
        self,
        address: Address,
        left: Address | None,
        options: Mapping[str, Any],
        failures: Mapping[Address, Exception],
    ) -> MySQLConnection | None:
        """A connection to a host that is fit, or pymysql.err.MySQLError. None: another thread moved to another host."""
        connection = _open(address, options, self._seconds)
        try:
            is_node = _require_fit(connection)
            if not self._arrive(address, left, connection, failures, is_node=is_node):
                connection.close()
                return None
            connection.limit(options.get("read_timeout"), options.get("write_timeout"))
        except BaseException:
            connection.close()
            raise
        return connection

    def _arrive(
        self,
        address: Address,
        left: Address | None,
        connection: MySQLConnection,
        failures: Mapping[Address, Exception],
        *,
        is_node: bool,
    ) -> bool:
        """From now on this host is used. If it is another one than before, it must show what was committed there.

        False, if another thread has moved to another host since the host ``left`` was seen in use: then two threads
        would use two hosts, and one would not see what the other has committed.
        """
        moves = left not in (None, address)
        if moves:
            if is_node:
                _rows(connection, CATCH_UP)
            asked = boottime()
            (time,) = _rows(connection, "SELECT UTC_TIMESTAMP(6)")[0]
            answered = boottime()
        with self._lock:
            used = self._used
            if used not in (left, address):
                return False
            why = None if left is None else failures.get(left, self._doubted)
            self._used, self._doubted = address, None
        if moves and used == left:
            self._servers.moved(asked, time, answered)
            log.warning("the database is used at %s now, not at %s: %s", address, left, _said(why))
        return True

    def _note_late(self, connection: MySQLConnection | None, record: Any) -> None:
        """A connection to a host that is used no more may just have committed there, after the move."""
        if connection is not None and record.info.get(ADDRESS) != self._used:
            with self._lock:
                self._left_late += 1

    def _catch_up(self, connection: MySQLConnection) -> None:
        """Let the host show what this process has committed on the host before, after it had moved."""
        seen = self._left_late
        if connection.is_node:
            try:
                _rows(connection, CATCH_UP)
            except pymysql.err.MySQLError as error:
                raise InvalidatePoolError from error
        with self._lock:
            self._caught_up = max(self._caught_up, seen)

    def _leave(self, connection: MySQLConnection, record: Any, proxy: Any) -> None:
        """Drop a connection to a host that is used no more, or is in doubt. One that was opened just now stays."""
        if "used" in record.info and (self._doubted or record.info[ADDRESS] != self._used):
            raise InvalidatePoolError
        if self._caught_up < self._left_late:
            self._catch_up(connection)


def unfit(options: Mapping[str, Any], hosts: Sequence[Address], seconds: float) -> dict[Address, str]:
    """Those of the hosts that take no writes now, and why; ``options`` are those of the driver.

    Each host may take so many seconds to connect, and for each answer.
    """
    found = {}
    for address in hosts:
        try:
            with closing(_open(address, options, seconds)) as connection:
                _require_fit(connection)
        except pymysql.err.MySQLError as error:
            found[address] = _said(error)
    return found


def timed_out(error: BaseException | None) -> bool:
    """Whether the driver raised this error because a call took too long. An idle server would have answered."""
    return error is not None and isinstance(error.__context__, TimeoutError)


def _open(address: Address, options: Mapping[str, Any], seconds: float) -> MySQLConnection:
    limits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
    return opened({**options, "host": address.host, "port": address.port or DEFAULT_PORT, **limits})


def _require_fit(connection: MySQLConnection) -> bool:
    """Whether the server is a node of Galera's. Raises pymysql.err.OperationalError if it takes no writes."""
    settings, states = (dict(_rows(connection, question)) for question in (SETTINGS, STATES))
    is_node: bool = settings.pop(WSREP_ON, "OFF") == "ON"
    closed = {name: value for name, value in settings.items() if value not in ("OFF", "0")}
    if is_node:
        closed |= {name: value for name, value in states.items() if value != GALERA[name]}
    if closed:
        said = ", ".join(f"{name} = {value}" for name, value in closed.items())
        raise pymysql.err.OperationalError(UNFIT, f"it takes no writes ({said})")
    return is_node


def _rows(connection: MySQLConnection, question: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return list(cursor.fetchall())


def _none_is_fit(failures: Mapping[Address, pymysql.err.MySQLError]) -> pymysql.err.MySQLError:
    """The error for all hosts: that of the account or the database, if one said so, else that none is there."""
    said = "; ".join(f"{address}: {_said(error)}" for address, error in failures.items())
    lasting = [error.args[0] for error in failures.values() if error.args and error.args[0] in LASTING]
    return pymysql.err.OperationalError(lasting[0] if lasting else NO_HOST, f"no host takes writes: {said}")


def _said(error: object) -> str:
    return str(error.args[-1]) if isinstance(error, Exception) and error.args else str(error)
