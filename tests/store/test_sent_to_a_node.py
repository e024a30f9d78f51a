"""What waits in a connection to a node of Galera's is sent as one statement, which fails as a whole.

The server of these tests is no node, but a connection takes it for one.
"""

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from rota.shared.database.later import Later, Unexpected, execute_later, then_read
from rota.shared.database.mysql_connection import MySQLConnection
from rota.shared.store import census, workers
from tests.harness.later_writes import driver, in_transaction, priorities, set_later
from tests.harness.packets import Packets, verbs
from tests.harness.scenario import Scenario

pytestmark = pytest.mark.mariadb_only("it has no compound statement outside of a program")

GET_PRIORITY = text("SELECT priority FROM schedule_task WHERE id = :task")
NOBODY = 999_999

Work = Callable[[Connection], object]


def to_node(work: Work) -> Work:
    """The work, on a connection that takes its server for a node."""

    def to(connection: Connection) -> object:
        driver(connection).is_node = True
        return work(connection)

    return to


def test_a_transaction_is_one_statement(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    first, second = rows.task(priority=0), rows.task(priority=0)
    packets.clear()
    work = to_node(lambda c: [set_later(c, first, 1), set_later(c, second, 2, expected=1)])
    rows.database.write(work)
    assert [verbs(packet) for packet in packets] == [
        ["BEGIN", "UPDATE", "SET", "UPDATE", "SET", "COMMIT", "END", "SELECT"],
    ]
    assert packets[0].startswith(b"BEGIN NOT ATOMIC START TRANSACTION;")
    assert priorities(rows, first, second) == [1, 2]


def test_each_result_is_told(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    tasks = rows.tasks(3, priority=0)
    above = text("UPDATE schedule_task SET priority = 7 WHERE id >= :task")

    def work(connection: Connection) -> list[Later]:
        return [
            execute_later(connection, above, {"task": tasks[1]}),
            set_later(connection, NOBODY, 1),
            set_later(connection, tasks[0], 3, expected=1),
        ]

    results = rows.database.write(to_node(work))
    assert isinstance(results, list)
    assert [one.rows for one in results] == [2, 0, 1]
    assert priorities(rows, *tasks) == [3, 7, 7]


def test_a_read_sees_what_was_written_before_it(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    packets.clear()

    def work(connection: Connection) -> tuple[int, int | None]:
        later = set_later(connection, task, 5)
        read = connection.scalar(GET_PRIORITY, {"task": task})
        set_later(connection, task, 6)
        return later.rows, read

    assert rows.database.write(to_node(work)) == (1, 5)
    assert [b"SELECT priority" in packet for packet in packets].count(True) == 1
    assert priorities(rows, task) == [6]


def test_a_lone_read_travels_with_its_begin(mariadb_rows: Scenario, packets: Packets) -> None:
    rows = mariadb_rows
    task = rows.task(priority=4)
    packets.clear()
    read = to_node(lambda c: c.scalar(GET_PRIORITY, {"task": task}))
    assert rows.database.write(read) == 4
    assert [verbs(packet) for packet in packets] == [["BEGIN", "SELECT"], ["COMMIT"]]


@pytest.mark.parametrize(
    "read", [census.take, partial(workers.may_still_run, worker_id=1)], ids=["the reaper's", "of a dead worker"]
)
def test_a_read_that_must_not_be_stale_waits_for_what_was_committed_elsewhere(
    mariadb_rows: Scenario, packets: Packets, read: Work
) -> None:
    mariadb_rows.worker()
    packets.clear()
    mariadb_rows.database.read(to_node(read))
    assert [packet.startswith(b"SET STATEMENT wsrep_sync_wait = 1 FOR") for packet in packets] == [True]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_statement_that_fails_undoes_its_transaction(mariadb_rows: Scenario, place: int) -> None:
    rows = mariadb_rows
    tasks = rows.tasks(3, priority=0)
    taken = text("UPDATE schedule_task SET id = :other WHERE id = :task")

    used: list[MySQLConnection] = []

    def work(connection: Connection) -> None:
        used.append(driver(connection))
        for at, task in enumerate(tasks):
            if at == place:
                execute_later(connection, taken, {"task": task, "other": tasks[at - 1]})
            else:
                set_later(connection, task, 1)

    with pytest.raises(DBAPIError, match="Duplicate entry"):
        rows.database.write(to_node(work))
    assert rows.database.read(in_transaction) == (used[0], 0)
    assert priorities(rows, *tasks) == [0, 0, 0]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_statement_that_changes_fewer_rows_than_expected_undoes_its_transaction(
    mariadb_rows: Scenario, place: int
) -> None:
    rows = mariadb_rows
    tasks = rows.tasks(3, priority=0)
    asked = [NOBODY if at == place else task for at, task in enumerate(tasks)]
    used: list[MySQLConnection] = []

    def work(connection: Connection) -> None:
        used.append(driver(connection))
        for task in asked:
            set_later(connection, task, 1, expected=1)

    with pytest.raises(Unexpected):
        rows.database.write(to_node(work))
    assert rows.database.read(in_transaction) == (used[0], 0)
    assert priorities(rows, *tasks) == [0, 0, 0]


def test_what_is_read_after_the_commit_is_in_no_transaction(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    read = then_read(lambda c: set_later(c, task, 6), in_transaction)
    inside = rows.database.write(to_node(lambda c: read(c)[1]))
    assert inside == 0
    assert priorities(rows, task) == [6]
