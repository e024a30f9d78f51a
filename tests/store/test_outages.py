"""What an error of the database means, in one place; and how an outage is waited for, and said."""

import logging
import threading
from contextlib import closing
from datetime import datetime

import pymysql
import pytest
from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError, OperationalError

from rota.shared.database.backend import ErrorKind
from rota.shared.database.mysql import MYSQL, code
from rota.shared.database.outage import Outage
from rota.shared.database.refusals import is_refusal
from rota.shared.database.transactions import database_time, opened
from rota.shared.settable_clock import SettableClock
from rota.shared.store.tables import schedule_task_lock
from tests.harness.databases import PrivateMariaDB, connect, private_is_mysql, run_sql
from tests.harness.processes import wait_until


def error_of(number: int) -> OperationalError:
    return OperationalError("UPDATE", {}, pymysql.err.OperationalError(number, "so it said"))


@pytest.mark.parametrize("number", [1213, 1020, 1467, 1317, 3101])
def test_a_conflict_is_known_by_its_number(number: int) -> None:
    assert MYSQL.kind_of(error_of(number)) is ErrorKind.CONFLICT
    assert code(error_of(number)) == number


def test_a_lock_that_was_waited_for_in_vain_is_known_by_its_number() -> None:
    assert MYSQL.kind_of(error_of(1205)) is ErrorKind.LOCKED


@pytest.mark.parametrize("number", [2006, 2013, 1053, 1927, 4031, 1290, 1836, 1047, 1040, 1203, 1226])
def test_an_outage_is_known_by_its_number(number: int) -> None:
    assert MYSQL.kind_of(error_of(number)) is ErrorKind.OUTAGE


@pytest.mark.parametrize("number", [1045, 1049, 1146])
def test_what_will_not_succeed_again_is_known_by_its_number(number: int) -> None:
    assert MYSQL.kind_of(error_of(number)) is ErrorKind.OTHER


@pytest.mark.parametrize("number", [1406, 3819, 4025, 1690])
def test_a_refusal_of_data_is_known_by_its_number(number: int) -> None:
    assert MYSQL.kind_of(error_of(number)) is ErrorKind.REFUSAL
    assert is_refusal(error_of(number))
    duplicate = IntegrityError("INSERT", {}, pymysql.err.IntegrityError(1062, "Duplicate entry"))
    assert MYSQL.kind_of(duplicate) is ErrorKind.REFUSAL


def test_an_outage_is_one_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = SettableClock(datetime.fromisoformat("2026-11-22 12:00:00"))
    outage = Outage("mysql://rota@db/rota", clock)
    outage.over()
    for _ in range(3):
        outage.note("Too many connections")
        outage.over()  # on a connection that was open before
        clock.advance(2)
    outage.over()
    outage.over()
    assert caplog.messages == [
        "the database is away: mysql://rota@db/rota: Too many connections",
        "the database is back: mysql://rota@db/rota, after 6 s",
    ]


only_mysql = pytest.mark.skipif(not private_is_mysql(), reason="MariaDB has no offline mode")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("read_only", "--read-only option"),
        ("max_user_connections", "max_user_connections"),
        pytest.param("offline_mode", "offline mode", marks=only_mysql),
    ],
)
def test_a_server_that_takes_no_work_for_now_is_waited_for(
    own_template: list[str],
    caplog: pytest.LogCaptureFixture,
    setting: str,
    said: str,
) -> None:
    caplog.set_level(logging.INFO)
    with PrivateMariaDB("--max-user-connections=100") as server:
        url, admin = server.create_database(), server.admin_url()
        run_sql(url, *own_template)
        with opened(url) as database, closing(connect(url)):
            run_sql(admin, f"SET GLOBAL {setting} = 1")
            mending = threading.Thread(target=mend, args=(admin, setting, caplog))
            mending.start()
            database.engine.dispose()
            assert database.write(insert_a_lock) == 1
            mending.join()
            assert said in caplog.text
            wait_until(lambda: database.read(database_time) and "is back" in caplog.text, 10, "its end to be said")
            assert len([m for m in caplog.messages if m.startswith("the database is")]) == 2


def insert_a_lock(connection: Connection) -> int:
    return connection.execute(insert(schedule_task_lock).values(schedule_task_id=1)).rowcount


def mend(admin: str, setting: str, caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: "the database is away" in caplog.text, 10, "the outage to be said")
    run_sql(admin, f"SET GLOBAL {setting} = {100 if setting == 'max_user_connections' else 0}")
