"""Reading what the server answers: MySQL's protocol as PyMySQL reads it, with fewer calls.

PyMySQL makes some objects for each packet and some calls for each value. Rota's processes read an answer to each
statement and a row for each instance, so that took much of their time
(docs/decisions/0078-answers-read-with-fewer-calls.md).
"""

import socket
import struct
from collections.abc import Callable, Sequence
from io import IOBase
from operator import methodcaller
from typing import Any, NamedTuple, cast

from pymysql.connections import MAX_PACKET_LEN, MySQLResult
from pymysql.connections import Connection as DriverConnection
from pymysql.constants import CR, SERVER_STATUS
from pymysql.err import InternalError, MySQLError, OperationalError
from pymysql.protocol import MysqlPacket

READ_BYTES = 256 * 1024
"""Python's own buffer has 8 KiB. Each time that it is filled, the thread gives up the interpreter's lock and waits for
it again, for 5 ms or longer while handlers compute. The answer to a claim of 1,000 instances has some 400 KiB. Over TLS
a piece has 16 KiB at most, one record."""

MALFORMED = (struct.error, LookupError, AssertionError, InternalError)
"""What is raised for an answer that cannot be read. Of these only InternalError may be the server's own error."""

OK, NULL, END, ERROR = 0x00, 0xFB, 0xFE, 0xFF
"""What a packet or a value begins with. An answer that begins with ``NULL`` asks for a file of this machine."""

SIZES = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""How many bytes a number has behind such a first byte. One below ``NULL`` is the number itself."""

END_BYTES = 9
"""A packet that begins with ``END`` and is not so long ends the rows. A longer one is a row with a huge first value."""

MOST_REMEMBERED = 100
"""Of so many different answers a connection remembers the columns."""

CLOSED = "the server has closed the connection"

Convert = Callable[[bytes], Any]


class Columns(NamedTuple):
    """The columns of an answer, as PyMySQL's cursors have them, and what makes the values of their bytes."""

    fields: Sequence[Any]
    description: tuple[Any, ...]
    converts: Sequence[Convert | None]
    """None: the value is the bytes."""


class AnsweredConnection(DriverConnection):
    """A connection that reads each answer as an ``Answer``, through a buffer of ``READ_BYTES``."""

    server_status: int
    _result: Any
    _sock: socket.socket | None
    _rfile: IOBase | None
    _next_seq_id: int
    _read_timeout: float | None
    _write_timeout: float | None
    _force_close: Callable[[], None]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._columns: dict[bytes, Columns] = {}
        super().__init__(*arguments, **options)

    def connect(self, sock: socket.socket | None = None) -> None:
        """Connect, and read from then on through the larger buffer."""
        super().connect(sock)
        if self._sock is not None and self._rfile is not None:
            self._rfile.close()  # all answers so far have been read
            self._rfile = self._sock.makefile("rb", READ_BYTES)

    def packet(self) -> bytes:
        """The next packet of an answer. Raises the error that it tells, if it does."""
        data = self._piece()
        if len(data) == MAX_PACKET_LEN:
            pieces = [data]
            while len(pieces[-1]) == MAX_PACKET_LEN:
                pieces.append(self._piece())
            data = b"".join(pieces)
        if data[0] == ERROR:
            MysqlPacket(data, self.encoding).raise_for_error()
        return data

    def _piece(self) -> bytes:
        read: Any = self._rfile.read  # type: ignore[union-attr]
        header = int.from_bytes(head := read(4), "little")
        size, number = header & MAX_PACKET_LEN, header >> 24
        if len(head) < 4 or number == 0 != self._next_seq_id:  # MariaDB's last word has number 0
            raise ConnectionResetError(CLOSED)
        if number != self._next_seq_id:
            raise InternalError(f"packet {number} came instead of {self._next_seq_id}")
        data: bytes = read(size)
        if len(data) < size:
            raise ConnectionResetError(CLOSED)
        self._next_seq_id = (number + 1) % 256
        return data

    def columns(self, packets: Sequence[bytes]) -> Columns:
        """The columns that these packets describe. The same statements are executed again and again."""
        described = b"".join(packets)
        if (columns := self._columns.get(described)) is None:
            if len(self._columns) >= MOST_REMEMBERED:
                self._columns.clear()
            columns = self._columns[described] = _columns(self, packets)
        return columns

    def _read_query_result(self, unbuffered: bool = False) -> int:
        """Read an answer. One that cannot be read ends the connection, as nothing behind it could be understood."""
        try:
            if unbuffered or self._read_timeout != self._write_timeout:  # PyMySQL sets the time limit for each packet
                return int(super()._read_query_result(unbuffered))  # type: ignore[misc]
            self._result = None
            answer = Answer(self)
        except MALFORMED as error:
            if isinstance(error, InternalError) and isinstance(error.args[0], int):
                raise
            self._force_close()
            raise OperationalError(CR.CR_SERVER_LOST, f"the server's answer cannot be read: {error}") from error
        except OSError as error:
            self._force_close()
            raise OperationalError(
                CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})"
            ) from error
        except MySQLError:
            raise
        except BaseException:  # a part of the answer is still to be read
            self._force_close()
            raise
        self._result = answer
        if answer.server_status is not None:
            self.server_status = answer.server_status
        return answer.affected_rows


class Answer:
    """The answer to one statement: how many rows it changed, or the rows that it found. PyMySQL's cursors read it."""

    affected_rows = 0
    insert_id: int | None = None
    server_status: int | None = None
    """None behind rows, as PyMySQL has it."""

    warning_count = 0
    has_next = False
    """Whether the answer to the next statement of the packet follows."""

    unbuffered_active = False
    fields: Sequence[Any] = ()
    description: tuple[Any, ...] | None = None
    rows: tuple[tuple[Any, ...], ...] | None = None

    def __init__(self, connection: AnsweredConnection) -> None:
        """Read all of it."""
        first = connection.packet()
        if first[0] == OK:
            self.affected_rows, at = _number(first, 1)
            self.insert_id, at = _number(first, at)
            self.server_status, self.warning_count = struct.unpack_from("<HH", first, at)
            self.has_next = bool(self.server_status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)
        elif first[0] == NULL:
            raise InternalError("the server asks for a file")
        elif first[0] == END:
            raise InternalError("the answer begins with its end")
        else:
            self._read_rows(connection, _number(first, 0)[0])

    def _read_rows(self, connection: AnsweredConnection, columns: int) -> None:
        packet = connection.packet
        described = [packet() for _ in range(columns + 1)]  # the last one ends them
        self.fields, self.description, converts = connection.columns(described)
        rows = []
        while (data := packet())[0] != END or len(data) >= END_BYTES:
            rows.append(_row(data, converts))
        self.warning_count, status = struct.unpack_from("<HH", data, 1)
        self.has_next = bool(status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)
        self.affected_rows, self.rows = len(rows), tuple(rows)


class _Given:
    """In place of a connection, for PyMySQL to read packets that are here."""

    def __init__(self, connection: Any, packets: Sequence[bytes]) -> None:
        self.use_unicode, self.encoding, self.decoders = (
            connection.use_unicode,
            connection.encoding,
            connection.decoders,
        )
        self._packets = iter(packets)

    def _read_packet(self, kind: type[MysqlPacket] = MysqlPacket) -> MysqlPacket:
        return kind(next(self._packets), self.encoding)


def _columns(connection: AnsweredConnection, packets: Sequence[bytes]) -> Columns:
    read: Any = MySQLResult(cast("Any", _Given(connection, packets)))
    read.field_count = len(packets) - 1
    try:
        read._get_descriptions()  # noqa: SLF001 - PyMySQL is to say which encoding and converter each column has
    except Exception as error:
        raise InternalError(f"columns: {type(error).__name__}: {error}") from error
    return Columns(read.fields, read.description, [_convert(*one) for one in read.converters])


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The number of a variable size that begins there, and where it ends."""
    first = data[at]
    if first < NULL:
        return first, at + 1
    end = at + 1 + SIZES[first]
    if end > len(data):
        raise InternalError(f"a number is cut off at byte {len(data)}")
    return int.from_bytes(data[at + 1 : end], "little"), end


def _row(data: bytes, converts: Sequence[Convert | None]) -> tuple[Any, ...]:
    row: list[Any] = []
    at = 0
    for convert in converts:
        size = data[at]
        if size == NULL:
            at += 1
            row.append(None)
            continue
        if size < NULL:
            at += 1
        else:
            size, at = _number(data, at)
        value = data[at : at + size]
        at += size
        row.append(value if convert is None else convert(value))
    if at != len(data):
        raise InternalError(f"a row of {len(data)} bytes has values of {at}")
    return tuple(row)


def _convert(encoding: str | None, converter: Callable[[Any], Any] | None) -> Convert | None:
    if encoding is None or converter in (int, float):  # these read ASCII's digits themselves
        return converter
    if converter is None:
        return methodcaller("decode", encoding)
    return lambda data: converter(data.decode(encoding))
