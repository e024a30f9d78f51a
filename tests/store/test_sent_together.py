"""Statements that wait for the next one: a transaction of them is one packet, and fails as a whole."""

import socket
from io import BufferedReader
from typing import Any

import pytest
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DataError, DBAPIError

from rota.shared.database.later import Later, Unexpected, execute_later, then_read
from rota.shared.database.mysql_connection import PACKET_SHARE, MySQLConnection
from tests.harness.later_writes import SET_PRIORITY, driver, in_transaction, priorities, set_later
from tests.harness.packets import Packets, verbs
from tests.harness.scenario import Scenario

SMALL_LIMIT = 4000
QUARTER = SMALL_LIMIT // PACKET_SHARE


class Stop(Exception):
    """The work ends here."""


def set_long(length: int) -> TextClause:
    """The same as ``SET_PRIORITY``, and so many bytes longer."""
    return text(f"{SET_PRIORITY.text} AND '{'x' * length}' <> ''")


def test_a_transaction_of_later_statements_is_one_packet(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    first, second = rows.task(priority=0), rows.task(priority=0)
    packets.clear()
    rows.database.write(lambda c: [set_later(c, first, 1), set_later(c, second, 2)])
    assert [verbs(packet) for packet in packets] == [["BEGIN", "UPDATE", "UPDATE", "COMMIT"]]
    assert priorities(rows, first, second) == [1, 2]


def test_the_results_are_told_in_order_at_the_commit(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    tasks = rows.tasks(3, priority=0)
    above = text("UPDATE schedule_task SET priority = 7 WHERE id >= :task")
    results = rows.database.write(
        lambda c: [execute_later(c, above, {"task": tasks[at]}) for at in (2, 1)] + [set_later(c, tasks[0], 7)]
    )
    assert [(one.rows, one.waits) for one in results] == [(1, True), (2, True), (1, True)]
    again = rows.database.write(lambda c: [set_later(c, 999_999, 1), execute_later(c, above, {"task": tasks[0]})])
    assert [one.rows for one in again] == [0, 3], "matched, though unchanged"


def test_a_statement_whose_result_is_read_takes_those_that_wait_along(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    packets.clear()

    def work(connection: Connection) -> tuple[int, int | None, int]:
        later = set_later(connection, task, 5)
        read = connection.scalar(text("SELECT priority FROM schedule_task WHERE id = :task"), {"task": task})
        known = later.rows
        set_later(connection, task, 6)
        return known, read, later.rows

    assert rows.database.write(work) == (1, 5, 1)
    assert [verbs(packet) for packet in packets] == [["BEGIN", "UPDATE", "SELECT"], ["UPDATE", "COMMIT"]]
    assert priorities(rows, task) == [6]


def test_a_later_statement_that_fails_raises_at_the_commit_and_nothing_is_committed(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    first, second = rows.task(priority=0), rows.task(priority=0)
    ended: list[str] = []

    def work(connection: Connection) -> None:
        set_later(connection, first, 1)
        execute_later(connection, text("UPDATE schedule_task SET id = :a WHERE id = :b"), {"a": first, "b": second})
        set_later(connection, second, 2)
        ended.append("the work")

    with pytest.raises(DBAPIError, match="Duplicate entry"):
        rows.database.write(work)
    assert ended == ["the work"]
    assert priorities(rows, first, second) == [0, 0]
    assert rows.database.read(in_transaction)[1] == 0


def test_a_statement_longer_than_a_quarter_of_a_packet_is_sent_at_once(
    mariadb_rows: Scenario, packets: Packets
) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    packets.clear()

    def work(connection: Connection) -> tuple[int, int]:
        driver(connection).packet_limit = SMALL_LIMIT
        result = execute_later(connection, set_long(QUARTER), {"task": task, "priority": 3})
        return len(packets), result.rows

    assert rows.database.write(work) == (1, 1)
    assert [verbs(packet) for packet in packets] == [["BEGIN", "UPDATE"], ["COMMIT"]]


def test_packets_are_filled_up_to_half_of_what_the_server_takes(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    tasks = rows.tasks(5, priority=0)
    packets.clear()

    def work(connection: Connection) -> list[Later]:
        driver(connection).packet_limit = SMALL_LIMIT
        statement = set_long(QUARTER - 150)
        return [execute_later(connection, statement, {"task": task, "priority": 1}) for task in tasks]

    assert [one.rows for one in rows.database.write(work)] == [1] * 5
    assert [verbs(packet) for packet in packets] == [
        ["BEGIN", "UPDATE", "UPDATE"],
        ["UPDATE", "UPDATE"],
        ["UPDATE", "COMMIT"],
    ]
    assert max(map(len, packets)) <= 2 * QUARTER
    assert priorities(rows, *tasks) == [1] * 5


def test_a_statement_longer_than_the_server_takes_is_refused_data(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)

    def work(connection: Connection) -> None:
        set_later(connection, task, 1)
        statement = set_long(driver(connection).packet_limit)
        execute_later(connection, statement, {"task": task, "priority": 2})

    with pytest.raises(DataError, match="max_allowed_packet"):
        rows.database.write(work)
    assert priorities(rows, task) == [0]


def test_work_that_ends_before_anything_was_sent_sends_nothing(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    packets.clear()
    used: list[MySQLConnection] = []

    def work(connection: Connection) -> None:
        used.append(driver(connection))
        set_later(connection, task, 9)
        raise Stop

    with pytest.raises(Stop):
        rows.database.write(work)
    assert packets == []
    assert rows.database.read(in_transaction) == (used[0], 0)
    rows.database.write(lambda c: set_later(c, task, 4))
    assert priorities(rows, task) == [4]


def test_a_read_after_a_write_that_was_rolled_back_is_in_no_transaction(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    used: list[MySQLConnection] = []

    def work(connection: Connection) -> None:
        own, inside = in_transaction(connection)
        assert inside == 1
        used.append(own)
        set_later(connection, task, 9)
        raise Stop

    with pytest.raises(Stop):
        rows.database.write(work)
    assert rows.database.read(in_transaction) == (used[0], 0)
    assert priorities(rows, task) == [0]


# What a transaction relies on


def test_a_statement_that_changes_what_is_expected_is_committed_with_the_others(rows: Scenario) -> None:
    first, second = rows.task(priority=0), rows.task(priority=0)
    results = rows.database.write(lambda c: [set_later(c, first, 1, 1), set_later(c, second, 2)])
    assert [one.rows for one in results] == [1, 1]
    assert priorities(rows, first, second) == [1, 2]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_statement_that_changes_fewer_rows_than_expected_undoes_its_transaction(rows: Scenario, place: int) -> None:
    tasks = rows.tasks(3, priority=0)
    asked = [999_999 if at == place else task for at, task in enumerate(tasks)]
    with pytest.raises(Unexpected):
        rows.database.write(lambda c: [set_later(c, task, 1, 1) for task in asked])
    assert priorities(rows, *tasks) == [0, 0, 0]
    assert rows.database.write(lambda c: set_later(c, tasks[0], 1, 1)).rows == 1, "the connection is good"
    assert priorities(rows, *tasks) == [1, 0, 0]


def test_an_update_that_changes_nothing_counts_the_rows_that_it_finds(rows: Scenario) -> None:
    task = rows.task(priority=0)
    assert rows.database.write(lambda c: set_later(c, task, 0, 1)).rows == 1


@pytest.mark.parametrize("lengths", [(QUARTER,), (QUARTER - 150, QUARTER - 150, QUARTER - 150)])
def test_what_is_expected_is_asked_also_of_statements_that_travel_alone(
    mariadb_rows: Scenario, lengths: tuple[int, ...]
) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)

    def work(connection: Connection) -> None:
        driver(connection).packet_limit = SMALL_LIMIT
        set_later(connection, task, 5)
        for length in lengths:
            execute_later(connection, set_long(length), {"task": 999_999, "priority": 3}, expected=1)

    with pytest.raises(Unexpected):
        rows.database.write(work)
    assert priorities(rows, task) == [0]
    assert rows.database.read(in_transaction)[1] == 0


def test_what_is_read_after_the_commit_travels_with_it_and_is_in_no_transaction(
    mariadb_rows: Scenario, packets: Packets
) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    packets.clear()
    inside = rows.database.write(then_read(lambda c: set_later(c, task, 6), in_transaction))[1]
    assert inside == 0
    assert [verbs(packet) for packet in packets] == [["BEGIN", "UPDATE", "COMMIT", "SELECT"]]
    assert priorities(rows, task) == [6]


def test_a_transaction_without_any_statement_sends_nothing(mariadb_rows: Scenario, packets: Packets) -> None:
    packets.clear()
    mariadb_rows.database.write(lambda c: None)
    assert packets == []


def test_a_large_answer_is_read_in_large_pieces(mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    row, number, small = 1_000, 1_000, 8 * 1024
    numbers = f"WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {number})"
    many = text(f"{numbers} SELECT REPEAT('x', {row}) FROM n")
    read, pieces = socket.SocketIO.readinto, []

    def answer(connection: Connection) -> int:
        connection.execute(text("SELECT 1"))
        reader = driver(connection)._rfile
        assert isinstance(reader, BufferedReader)

        def counted(self: socket.SocketIO, buffer: Any) -> int | None:
            size = read(self, buffer)
            if self is reader.raw:
                pieces.append(size)
            return size

        monkeypatch.setattr(socket.SocketIO, "readinto", counted)
        return len(connection.execute(many).all())

    assert mariadb_rows.database.read(answer) == number
    assert sum(size or 0 for size in pieces) > row * number
    assert len(pieces) < 0.8 * row * number / small, "Python's own buffer would need more"
