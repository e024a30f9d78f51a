"""A connection of PyMySQL that sends statements together, so that a transaction takes few round trips.

A statement that is executed ``later`` waits in the connection. It travels in one packet with the next statement whose
result is awaited, or with the COMMIT. So BEGIN takes no round trip of its own, nor does any write whose result nobody
reads. Where the database is in another zone, a round trip is what takes long, and the locks of a transaction are held
over each one (docs/decisions/0030-few-round-trips.md).
"""

import functools
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pymysql.constants import CLIENT, ER, SERVER_STATUS
from pymysql.err import OperationalError
from sqlalchemy import Engine
from sqlalchemy.util import asbool

from rota.shared.database.causal import CAUSAL_OPTION
from rota.shared.database.later import BEFORE, LATER, Later, Unexpected
from rota.shared.database.mysql_answers import AnsweredConnection
from rota.shared.database.mysql_constructs import quoted
from rota.shared.domain.errors import ConfigurationError

CAUSALLY = "SET STATEMENT wsrep_sync_wait = 1 FOR "
"""Before a SELECT: a node of Galera's answers it when it has applied all that the cluster had committed before."""

UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")

PACKET_SHARE = 4
"""A statement longer than the fourth part of ``max_allowed_packet`` waits for no other, and no packet gets longer than
two of them."""


BEGIN, COMMIT = b"BEGIN", b"COMMIT"
START = b"START TRANSACTION"
"""BEGIN within a compound statement, where that word has another meaning."""


class MySQLConnection(AnsweredConnection):
    """A connection whose statements may wait for the next one. If one of a packet fails, the server stops at it.

    A node of a Galera cluster does not always stop. When another node's transaction ends this one between two
    statements of a packet, the node executes the later ones all the same, and commits each by itself. So the connection
    sends a node one compound statement, which fails as a whole (docs/decisions/0059-packets-for-galera.md).

    It shares the settings of its TLS with the others, unless the URL has ``ssl_…``. PyMySQL alone reads all
    certificates of the machine at each connection, in up to 50 ms, and then verifies none.
    """

    packet_limit = 1024 * 1024
    """The server's ``max_allowed_packet``, in bytes."""

    is_node = False
    """Whether the server is a node of a Galera cluster of MariaDB's."""

    is_told = False
    """Whether somebody listens to the statements of the transaction: SQLAlchemy must execute each of them."""

    _unsent: Sequence[tuple[bytes, Later]] = ()
    _unsent_bytes = 0

    def later(self, sql: str, result: Later) -> None:
        """Send this statement, which finds no rows, with the next one. ``result`` is told how many rows it changed."""
        text = sql.encode(self.encoding)
        if len(text) > self._longest_kept:
            result.tell(self.query(text))
        else:
            self._make_room(len(text))
            self._keep(text, result)

    def keep(self, text: bytes, result: Later) -> bool:
        """``later``, as long as there is room for the statement; False if there is none. Sends nothing."""
        if len(text) > self._longest_kept or not self._has_room(len(text)):
            return False
        self._keep(text, result)
        return True

    def _keep(self, text: bytes, result: Later) -> None:
        self._unsent = [*self._unsent, (text, result)]
        self._unsent_bytes += len(text)

    @property
    def _longest_kept(self) -> int:
        return self.packet_limit // PACKET_SHARE

    def _has_room(self, length: int) -> bool:
        return not self._unsent or self._unsent_bytes + length <= 2 * self._longest_kept

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Send what waits and this statement; returns how many rows this one changed or found."""
        text = sql.encode(self.encoding) if isinstance(sql, str) else sql
        if self._unsent:
            self._make_room(len(text))
        unsent, self._unsent, self._unsent_bytes = self._unsent, (), 0
        if self.is_node and not _only_begins(unsent):
            commits = text == COMMIT
            self._query_as_one([*unsent, (COMMIT, Later())] if commits else unsent)
            return 0 if commits else int(super().query(text, unbuffered))
        statements = [part for one, result in unsent for part in _guarded(one, result)]
        with _expecting():
            rows = int(super().query(b";".join([*statements, text]), unbuffered))
            for _, result in unsent:
                result.rows, rows = rows, int(self.next_result(unbuffered))
                if result.expected is not None:
                    rows = int(self.next_result(unbuffered))
        return rows

    def _query_as_one(self, unsent: Sequence[tuple[bytes, Later]]) -> None:
        """Send these statements as one compound statement, and ask how many rows each has changed.

        The numbers are no answers of the compound statement itself: an answer that is on its way when another node's
        transaction ends this one may arrive without its middle part.
        """
        parts: list[bytes] = []
        counted: list[Later] = []
        for statement, result in unsent:
            parts += [START] if statement == BEGIN else _guarded(statement, result)
            if result.expected is not None:
                result.rows = result.expected
            elif statement not in (BEGIN, COMMIT):
                parts.append(b"SET @rota_rows_%d = ROW_COUNT()" % len(counted))
                counted.append(result)
        compound = b"BEGIN NOT ATOMIC %s; END" % b";".join(parts)
        count = b"SELECT " + b",".join(b"@rota_rows_%d" % at for at in range(len(counted)))
        has_ended = unsent[-1][0] == COMMIT
        self.server_status |= SERVER_STATUS.SERVER_STATUS_IN_TRANS  # an error does not say whether it is in one
        with _expecting():
            super().query(b"%s;%s" % (compound, count) if counted and has_ended else compound)
        if counted:
            self.next_result() if has_ended else super().query(count)
            for result, rows in zip(counted, self._result.rows[0], strict=True):
                result.rows = rows

    def commit(self) -> None:
        """Commit, with the statements that wait. A transaction without any statement is not even begun."""
        if self._unsent and _only_begins(self._unsent):
            self.forget()
        elif self._unsent:
            self.query(COMMIT)
        else:
            super().commit()

    @contextmanager
    def before_begin(self) -> Iterator[None]:
        """What is sent meanwhile does not belong to the transaction, if its BEGIN waits here alone."""
        if not (self._unsent and _only_begins(self._unsent)):
            yield
            return
        begin = (self._unsent, self._unsent_bytes)
        self.forget()
        try:
            yield
        finally:
            self._unsent, self._unsent_bytes = begin

    def forget(self) -> None:
        """Drop the statements that wait: the transaction is not to be committed."""
        self._unsent, self._unsent_bytes = (), 0

    def escape(self, obj: object, mapping: Any = None) -> str:
        """A value as SQL writes it."""
        if type(obj) is int:
            return str(obj)
        if isinstance(obj, str) and not self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES:
            return quoted(obj)
        return str(super().escape(obj, self.encoders if mapping is None else mapping))

    def limit(self, read_timeout: float | None, write_timeout: float | None) -> None:
        """From now on a call may wait so many seconds for the server to send, and to take what is sent."""
        self._read_timeout, self._write_timeout = read_timeout, write_timeout

    def _make_room(self, length: int) -> None:
        if not self._has_room(length):
            *unsent, (last, result) = self._unsent
            self._unsent = unsent
            self._unsent_bytes -= len(last)
            result.tell(self.query(last))

    @property
    def has_begun(self) -> bool:
        """Whether a transaction is open on the server, or statements of one wait here."""
        return bool(self._unsent or self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        return super()._create_ssl_ctx(sslp) if sslp else _unverified_tls()  # type: ignore[misc]


def opened(options: Mapping[str, Any]) -> MySQLConnection:
    """A connection of this kind.

    Raises pymysql.err.MySQLError, and ConfigurationError for an option of the URL that the driver does not take.
    """
    flags = options.get("client_flag", 0) | CLIENT.MULTI_STATEMENTS
    with _options_told(options):
        return MySQLConnection(**{**options, **_passwords(options), **_tls(options), "client_flag": flags})


@contextmanager
def _options_told(options: Mapping[str, Any]) -> Iterator[None]:
    """Raise ConfigurationError, which names the option, for one of the URL that the driver does not take."""
    if isinstance(options.get("ssl"), str):
        raise ConfigurationError("the database URL has the option 'ssl', which is no switch; write ssl_ca=FILE")
    try:
        yield
    except TypeError as error:
        unknown = UNKNOWN_OPTION.search(str(error))
        if unknown is None:
            raise
        told = f"the database URL has the option {unknown[1]!r}, which the driver does not know"
        raise ConfigurationError(told) from None
    except FileNotFoundError as error:
        raise ConfigurationError("a file that the options of the database URL name does not exist") from error


def _passwords(options: Mapping[str, Any]) -> dict[str, bytes]:
    """The password in the encoding in which the server has it from CREATE USER. PyMySQL's own is Latin-1."""
    given = {name: options.get(name) for name in ("password", "passwd")}
    return {name: password.encode() for name, password in given.items() if isinstance(password, str)}


def _tls(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of TLS that SQLAlchemy hands on as the text of the URL, as PyMySQL takes them beside ``ssl``."""
    tls, key_password = options.get("ssl"), options.get("ssl_key_password")
    if tls and key_password:
        tls = {**tls, "password": key_password}
    return {"ssl": tls, "ssl_disabled": asbool(options.get("ssl_disabled", False))}


def send_together(engine: Engine) -> None:
    """Make the engine, whose connections are of this kind, execute statements later that are marked so."""
    engine.dialect.do_execute = _execute  # type: ignore[method-assign]
    engine.dialect.do_commit = _commit_if_begun  # type: ignore[method-assign, assignment]
    engine.dialect.do_rollback = _rollback_if_begun  # type: ignore[method-assign, assignment]


def _only_begins(unsent: Sequence[tuple[bytes, Later]]) -> bool:
    """Whether nothing but BEGIN waits: the transaction has written nothing."""
    return all(statement == BEGIN for statement, _ in unsent)


@contextmanager
def _expecting() -> Iterator[None]:
    """Raise Unexpected if a statement changed another number of rows than its guard allows."""
    try:
        yield
    except OperationalError as error:
        if error.args[0] != ER.SUBQUERY_NO_1_ROW:
            raise
        raise Unexpected("a statement changed another number of rows than its transaction relies on") from None


def _guarded(statement: bytes, result: Later) -> list[bytes]:
    """The statement, and if it must change a certain number of rows, another one that fails if it did not.

    MySQL has no statement that raises an error on a condition, but this one does: its subquery has two rows.
    """
    if result.expected is None:
        return [statement]
    return [statement, b"SET @rota_expected = IF(ROW_COUNT() = %d, 1, (SELECT 1 UNION ALL SELECT 2))" % result.expected]


@functools.cache
def _unverified_tls() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    return tls


def connect(dialect: object, record: object, arguments: object, options: Mapping[str, Any]) -> MySQLConnection:
    """A connection to the one host of the URL: a listener for ``do_connect``."""
    return opened(options)


def _execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
    options = {} if context is None else context.execution_options
    if cursor.connection.is_node and options.get(CAUSAL_OPTION):
        statement = f"{CAUSALLY}{statement}"
    later = options.get(LATER)
    if options.get(BEFORE):
        with cursor.connection.before_begin():
            cursor.execute(statement, parameters)
    elif later is None:
        cursor.execute(statement, parameters)
    else:
        later.waits = True
        cursor.connection.later(cursor.mogrify(statement, parameters), later)


def _commit_if_begun(connection: Any) -> None:
    if connection.has_begun:
        connection.commit()


def _rollback_if_begun(connection: Any) -> None:
    connection.forget()
    if connection.has_begun:
        connection.rollback()
