"""Answers of a MySQL server are read as PyMySQL reads them, and what is no answer ends the connection."""

import socket
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysql.connections import MAX_PACKET_LEN, Connection
from pymysql.constants import CR, FIELD_TYPE, SERVER_STATUS
from pymysql.err import OperationalError, ProgrammingError

from rota.shared.database import mysql_answers
from rota.shared.database.mysql_answers import AnsweredConnection
from tests.harness.examples import examples

MORE = SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS
BINARY, UTF8MB4 = 63, 45
END = b"\xfe\x00\x00\x02\x00"
LETTERS = "a'\\\0é漢😀"
KINDS: dict[tuple[int, int], st.SearchStrategy[bytes]] = {
    (FIELD_TYPE.LONGLONG, BINARY): st.integers(-(2**63), 2**64 - 1).map(lambda n: str(n).encode()),
    (FIELD_TYPE.TINY, BINARY): st.sampled_from([b"0", b"1", b"-128"]),
    (FIELD_TYPE.DOUBLE, BINARY): st.floats(allow_nan=False, allow_infinity=False).map(lambda f: repr(f).encode()),
    (FIELD_TYPE.NEWDECIMAL, BINARY): st.decimals(-10_000, 10_000, places=6).map(lambda d: str(d).encode()),
    (FIELD_TYPE.DATETIME, BINARY): st.sampled_from(
        [b"2026-11-28 16:14:24.123456", b"2026-02-30 00:00:00", b"0000-00-00"]
    ),
    (FIELD_TYPE.TIME, BINARY): st.sampled_from([b"-838:59:59", b"00:00:01.5"]),
    (FIELD_TYPE.VAR_STRING, UTF8MB4): st.text(LETTERS, max_size=300).map(str.encode),
    (FIELD_TYPE.BLOB, BINARY): st.binary(max_size=300),
    (FIELD_TYPE.BLOB, UTF8MB4): st.text(LETTERS, max_size=20).map(str.encode),
    (FIELD_TYPE.JSON, BINARY): st.just(b'{"a": [1, null, "\xc3\xa9"]}'),
}
"""The types of columns, with their character sets, and the bytes of their values."""


def number(value: int) -> bytes:
    """A number of a variable size."""
    for first, size in ((b"", 1), (b"\xfc", 2), (b"\xfd", 3), (b"\xfe", 8)):
        if value < (251 if not first else 256**size):
            return first + value.to_bytes(size, "little")
    raise ValueError(value)


def string(value: bytes | None) -> bytes:
    return b"\xfb" if value is None else number(len(value)) + value


def packets(*payloads: bytes) -> bytes:
    """An answer to a command, as the protocol frames it."""
    pieces = []
    for payload in payloads:
        pieces += [payload[at : at + MAX_PACKET_LEN] for at in range(0, len(payload) + 1, MAX_PACKET_LEN)]
    return b"".join(len(one).to_bytes(3, "little") + bytes([at % 256]) + one for at, one in enumerate(pieces, 1))


def column(name: str, kind: int, charset: int) -> bytes:
    words = [b"def", b"rota", b"t", b"schedule_task", name.encode(), b"name"]
    length = (1020).to_bytes(4, "little")
    rest = charset.to_bytes(2, "little") + length + bytes([kind]) + (1).to_bytes(2, "little") + b"\x06\x00\x00"
    return b"".join(map(string, words)) + b"\x0c" + rest


def changed(rows: int, insert_id: int, status: int, warnings: int) -> bytes:
    return b"\x00" + number(rows) + number(insert_id) + status.to_bytes(2, "little") + warnings.to_bytes(2, "little")


def found(columns: Sequence[tuple[int, int]], rows: Sequence[Sequence[bytes | None]], status: int) -> list[bytes]:
    described = [column(f"c{at}", *kind) for at, kind in enumerate(columns)]
    values = [b"".join(map(string, row)) for row in rows]
    return [number(len(columns)), *described, END, *values, b"\xfe\x03\x00" + status.to_bytes(2, "little")]


def opened(answer: Any, kind: Any = AnsweredConnection) -> Any:
    """A connection without a server, which has sent a command."""
    connection: Any = kind(defer_connect=True, charset="utf8mb4", ssl_disabled=True)
    connection._next_seq_id = 1
    connection._current_timeout = None
    connection._sock = socket.socket()  # PyMySQL sets its time limit
    connection._rfile = BytesIO(answer) if isinstance(answer, bytes) else answer
    connection.server_status = 0
    return connection


def read(connection: Any, answers: int) -> list[tuple[Any, ...]]:
    """What cursors are told of so many answers."""
    told = []
    for _ in range(answers):
        count = connection.next_result()
        one = connection._result
        rows = (count, one.affected_rows, one.insert_id, one.description, one.rows)
        told.append((*rows, one.warning_count, bool(one.has_next), connection.server_status))
    return told


@st.composite
def answers(draw: st.DrawFn) -> list[list[bytes]]:
    """The packets of some answers to one packet of statements."""
    some = []
    for _ in range(draw(st.integers(1, 4))):
        status = draw(st.sampled_from([2, 2 | MORE, 3 | MORE]))
        if draw(st.booleans()):
            numbers = st.integers(0, 2**63)
            some.append([changed(draw(numbers), draw(numbers), status, draw(st.integers(0, 2**15 - 1)))])
            continue
        columns = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
        row = st.tuples(*(st.none() | KINDS[one] for one in columns))
        some.append(found(columns, draw(st.lists(row, max_size=4)), status))
    return some


@settings(derandomize=True, max_examples=examples(1600), deadline=None, print_blob=True)
@given(answers())
def test_answers_are_read_as_pymysql_reads_them(some: list[list[bytes]]) -> None:
    answer = packets(*(packet for one in some for packet in one))
    ours = opened(answer)
    assert read(ours, len(some)) == read(opened(answer, Connection), len(some))
    assert ours._rfile.read() == b""


@pytest.mark.parametrize(
    "size", [250, 251, 2**16 - 1, 2**16, MAX_PACKET_LEN - 5, MAX_PACKET_LEN - 4, 2 * MAX_PACKET_LEN]
)
def test_a_value_may_have_any_size(size: int) -> None:
    value = b"\xff" * size
    answer = packets(*found([(FIELD_TYPE.BLOB, BINARY)] * 2, [[value, b"x"]], 2))
    ours = opened(answer)
    assert ours.next_result() == 1
    assert ours._result.rows == ((value, b"x"),)
    assert ours._next_seq_id == opened_and_read(answer)._next_seq_id


def opened_and_read(answer: bytes) -> Any:
    theirs = opened(answer, Connection)
    theirs.next_result()
    return theirs


def test_an_error_between_rows_is_the_servers_and_the_connection_goes_on() -> None:
    head, rows = found([(FIELD_TYPE.LONG, BINARY)], [[b"1"]], 2)[:-1], b"\xff\x28\x04#42000no such thing"
    ours = opened(packets(*head, rows))
    with pytest.raises(ProgrammingError, match="no such thing"):
        ours.next_result()
    assert ours._rfile is not None


ROW = found([(FIELD_TYPE.LONG, BINARY)], [[b"12"]], 2)
UNREADABLE = {
    "a row with a byte too many": [*ROW[:3], ROW[3] + b"x", ROW[4]],
    "a row that is cut off": [*ROW[:3], ROW[3][:-1], ROW[4]],
    "a row without a value": [*ROW[:2], column("c", FIELD_TYPE.LONG, BINARY), *ROW[2:]],
    "a number that is none": [b"\x00\xff\x00\x02\x00\x00\x00"],
    "a question for a file": [b"\xfb/etc/passwd"],
    "nothing about rows": [b"\x00\x01"],
    "its end alone": [b"\xfe"],
    "a number that is cut off": [b"\xfc\x01"],
    "a column without a name": [ROW[0], column("c", FIELD_TYPE.LONG, BINARY).replace(string(b"c"), b"\xfb"), *ROW[2:]],
    "a column whose name is no text": [ROW[0], ROW[1].replace(b"c0", b"\xff\xff"), *ROW[2:]],
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_ends_the_connection(answer: list[bytes]) -> None:
    ours = opened(packets(*answer))
    with pytest.raises(OperationalError) as raised:
        ours.next_result()
    assert raised.value.args[0] == CR.CR_SERVER_LOST
    assert ours._rfile is None


def test_behind_a_wrong_packet_number_nothing_more_is_awaited() -> None:
    ours = opened(Broken(TimeoutError("timed out"), b"\x64\x00\x00\x07"))
    with pytest.raises(OperationalError, match="packet 7 came instead of 1"):
        ours.next_result()


def test_a_server_that_closes_the_connection_is_lost() -> None:
    answer = packets(*ROW)
    for length in range(len(answer)):
        ours = opened(answer[:length])
        with pytest.raises(OperationalError, match="Lost connection") as raised:
            ours.next_result()
        assert raised.value.args[0] == CR.CR_SERVER_LOST
        assert ours._rfile is None


class Broken(BytesIO):
    """Fails behind what it has to say."""

    def __init__(self, error: BaseException, said: bytes = packets(*ROW[:2])) -> None:
        super().__init__(said)
        self.error = error

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() == len(self.getvalue()):
            raise self.error
        return super().read(size)


def test_a_call_that_takes_too_long_says_so() -> None:
    """``mysql_hosts.timed_out`` asks for the error behind it."""
    ours = opened(Broken(TimeoutError("timed out")))
    with pytest.raises(OperationalError, match="timed out") as raised:
        ours.next_result()
    assert isinstance(raised.value.__context__, TimeoutError)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_a_connection_whose_answer_was_not_read_to_its_end_is_closed(error: BaseException) -> None:
    ours = opened(Broken(error))
    with pytest.raises(type(error)):
        ours.next_result()
    assert ours._rfile is None


def test_a_value_that_python_cannot_convert_ends_the_connection() -> None:
    ours = opened(packets(*found([(FIELD_TYPE.LONG, BINARY)], [[b"twelve"], [b"12"]], 2)))
    with pytest.raises(ValueError, match="twelve"):
        ours.next_result()
    assert ours._rfile is None


def test_a_connection_remembers_a_bounded_number_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_answers, "MOST_REMEMBERED", 3)
    kinds = [(FIELD_TYPE.LONG, BINARY)]
    many = [packet for n in range(1, 8) for packet in found(kinds * n, [[b"1"] * n], 2 | MORE)]
    ours = opened(packets(*many))
    for n in range(1, 8):
        assert ours.next_result() == 1
        assert ours._result.rows == ((1,) * n,)
        assert 1 <= len(ours._columns) <= 3
