"""The INSERT that another program's connection executes, whatever the database is called."""

import sqlite3

import pytest
from sqlalchemy import URL

from rota.shared.database.backends import backend_of
from rota.shared.database.callers import Insert, execute
from rota.shared.domain.errors import InvalidInput


class Noting:
    """A connection of a driver that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[object, ...]]] = []

    def cursor(self) -> "Noting":
        return self

    def execute(self, sql: str, values: tuple[object, ...]) -> None:
        self.told.append((sql, values))

    def close(self) -> None:
        """Nothing is open."""


def insert_into(url: URL) -> Insert:
    return Insert(backend_of(url), url, "schedule_request", ("type", "number"), ("REPORT", "42"))


def test_a_table_on_a_server_is_named_with_its_database_and_no_part_of_that_is_a_mark() -> None:
    insert = insert_into(URL.create("mysql+pymysql", host="db", database="a`b:c%d"))
    noting = Noting()
    execute(noting, insert)
    assert noting.told == [
        ("INSERT INTO `a``b:c%%d`.schedule_request (type, number) VALUES (%s, %s)", ("REPORT", "42"))
    ]
    sql, values = insert.named()
    assert sql == r"INSERT INTO `a``b\:c%d`.schedule_request (type, number) VALUES (:type, :number)"
    assert values == {"type": "REPORT", "number": "42"}


def test_in_a_file_it_is_the_table_alone() -> None:
    insert = insert_into(URL.create("sqlite", database="rota.db"))
    own = sqlite3.connect(":memory:")
    own.execute("CREATE TABLE schedule_request (type TEXT, number TEXT)")
    execute(own, insert)
    assert own.execute("SELECT * FROM schedule_request").fetchall() == [("REPORT", "42")]
    own.close()
    wrapper = Noting()
    execute(wrapper, insert)
    assert wrapper.told[0][0] == "INSERT INTO schedule_request (type, number) VALUES (%s, %s)"


@pytest.mark.parametrize("wrong", [None, "mysql://db", 3])
def test_what_is_no_connection_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="give a Session or a Connection of SQLAlchemy, or one of the driver"):
        execute(wrong, insert_into(URL.create("sqlite", database="rota.db")))
