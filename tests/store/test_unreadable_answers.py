"""An answer of the server's that cannot be read is as good as none: its connection ends, and the work runs again."""

from io import BytesIO

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from tests.harness.later_writes import driver, priorities, set_later
from tests.harness.scenario import Scenario

GET_PRIORITY = text("SELECT priority FROM schedule_task WHERE id = :task")


def packets(*payloads: bytes) -> bytes:
    """An answer to a command, as the protocol frames it."""
    return b"".join(len(one).to_bytes(3, "little") + bytes([at]) + one for at, one in enumerate(payloads, 1))


END_OF_ROWS = b"\xfe\x00\x00\x02\x00"

UNREADABLE = {
    "a result without its columns": packets(b"\x01", END_OF_ROWS),
    "a result with a part of its columns": packets(b"\x02", b"\x03def\x00\x00\x00\x01a", END_OF_ROWS),
    "a packet that is not the next": packets(b"\x01", END_OF_ROWS)[:3] + b"\x07\x01",
    "an empty packet": packets(b""),
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
def test_work_whose_answer_cannot_be_read_runs_again_on_another_connection(
    mariadb_rows: Scenario, answer: bytes
) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    used: list[object] = []

    def work(connection: Connection) -> object:
        used.append(driver(connection))
        set_later(connection, task, len(used))
        if len(used) == 1:
            vars(driver(connection)).update(_rfile=BytesIO(answer))
        return connection.scalar(GET_PRIORITY, {"task": task})

    assert rows.database.write(work) == 2
    assert len(used) == 2
    assert used[0] is not used[1]
    assert priorities(rows, task) == [2]


def test_an_error_of_the_server_stays_the_servers(mariadb_rows: Scenario) -> None:
    """For a number below 1000 PyMySQL raises InternalError, as it does for what it cannot read."""
    rows = mariadb_rows
    used: list[object] = []

    def work(connection: Connection) -> None:
        used.append(driver(connection))
        connection.execute(text("SIGNAL SQLSTATE '23001' SET MYSQL_ERRNO = 999, MESSAGE_TEXT = 'no such thing'"))

    with pytest.raises(DBAPIError, match="no such thing"):
        rows.database.write(work)
    assert len(used) == 1
