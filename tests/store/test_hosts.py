"""A URL with several hosts: which of them is used, what makes a process leave it, and what it learns of the clock."""

import logging
import signal
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, make_url

from rota.migrations import upgrade
from rota.shared.database import mysql_hosts
from rota.shared.database.mysql_connection import MySQLConnection
from rota.shared.database.transactions import Database, database_time, opened
from rota.shared.domain.errors import DatabaseAway, DatabaseProblem
from tests.harness.databases import PASSWORD, USER, PrivateMariaDB, run_sql
from tests.harness.processes import wait_until

NAME = "rota_test_hosts"
AHEAD_SECONDS = 2.0
CALL_SECONDS = 2.0


class Pair:
    """Two servers that know nothing of each other. Each says which it is; the clock of the second is ahead."""

    def __init__(self, first: PrivateMariaDB, second: PrivateMariaDB) -> None:
        self.first, self.second = first, second
        for server in (first, second):
            self.prepare(server)

    def prepare(self, server: PrivateMariaDB) -> None:
        run_sql(
            server.admin_url(),
            f"CREATE DATABASE {NAME}",
            f"CREATE TABLE {NAME}.who (port INT PRIMARY KEY)",
            f"INSERT INTO {NAME}.who VALUES ({server.port})",
        )

    def url(self, *servers: PrivateMariaDB) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers or (self.first, self.second))
        return f"mysql://{USER}:{PASSWORD}@{hosts}/{NAME}"


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with PrivateMariaDB() as first, PrivateMariaDB(clock=f"+{AHEAD_SECONDS}s") as second:
        yield Pair(first, second)


@pytest.fixture
def pair(servers: Pair) -> Iterator[Pair]:
    """Both run and take writes, before a test and after it."""
    yield servers
    for server in (servers.first, servers.second):
        if not server.alive:
            server.start()
        server.stop_signal(signal.SIGCONT)
        run_sql(server.admin_url(), "SET GLOBAL read_only = 0")


@pytest.fixture
def database(pair: Pair) -> Iterator[Database]:
    with opened(pair.url(), call_timeout=CALL_SECONDS) as one:
        yield one


def who(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT port FROM who").scalar_one())


def write(connection: Connection) -> int:
    connection.exec_driver_sql("UPDATE who SET port = port")
    return who(connection)


def closed(server: PrivateMariaDB, *, value: int = 1) -> None:
    run_sql(server.admin_url(), f"SET GLOBAL read_only = {value}")


def test_the_first_host_that_takes_writes_is_used(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with opened(pair.url()) as database:
        assert database.write(write) == pair.first.port
        assert (database.servers.are_several, database.servers.moves) == (True, 0)
    with opened(pair.url(pair.second, pair.first)) as database:
        assert database.write(write) == pair.second.port
    closed(pair.first)
    with opened(pair.url()) as database:
        assert database.write(write) == pair.second.port
        assert database.servers.moves == 0
    with opened(pair.url(pair.first)) as database:
        assert database.read(who) == pair.first.port, "a single host is not asked: its replica may be read"
        assert not database.servers.are_several


def test_when_the_host_is_killed_the_next_is_used_and_stays_so(
    pair: Pair, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    assert database.write(write) == pair.first.port
    pair.first.kill()
    assert database.write(write) == pair.second.port
    assert database.servers.moves == 1
    pair.first.start()
    database.engine.dispose()
    assert database.write(write) == pair.second.port
    assert database.servers.moves == 1
    (said,) = [m for m in caplog.messages if "is used at" in m]
    assert f"is used at 127.0.0.1:{pair.second.port} now, not at 127.0.0.1:{pair.first.port}: " in said
    pair.second.kill()
    assert database.write(write) == pair.first.port


def test_a_host_that_takes_no_writes_any_more_is_left_in_the_middle_of_a_transaction(
    pair: Pair, database: Database
) -> None:
    assert database.write(write) == pair.first.port
    closed(pair.first)
    assert database.write(write) == pair.second.port
    assert database.read(who) == pair.second.port


def test_a_host_that_hangs_is_left_when_one_call_has_timed_out(pair: Pair, database: Database) -> None:
    assert database.write(write) == pair.first.port
    pair.first.stop_signal(signal.SIGSTOP)
    assert database.write(write) == pair.second.port
    assert database.servers.moves == 1


def test_a_host_that_hangs_at_the_start_takes_its_share_of_the_time_alone(pair: Pair, database: Database) -> None:
    pair.first.stop_signal(signal.SIGSTOP)
    assert database.write(write) == pair.second.port


def test_all_connections_follow_each_when_it_is_used_next(pair: Pair, database: Database) -> None:
    with database.engine.connect() as one, database.engine.connect() as another:
        assert (who(one), who(another)) == 2 * (pair.first.port,)
    closed(pair.first)
    assert database.write(write) == pair.second.port
    with database.engine.connect() as one, database.engine.connect() as another:
        assert (who(one), who(another)) == 2 * (pair.second.port,)
    assert database.servers.moves == 1


def test_threads_that_meet_a_failover_at_once_move_once(pair: Pair, database: Database) -> None:
    met = threading.Barrier(5)
    seen: list[int] = []

    def work(connection: Connection) -> int:
        who(connection)
        if not seen and not met.broken:
            met.wait(10)
            pair.first.kill()
        return write(connection)

    threads = [threading.Thread(target=lambda: seen.append(database.write(work))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == 5 * [pair.second.port]
    assert database.servers.moves == 1


def test_a_thread_that_finds_another_host_follows_one_that_has_moved_before(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the two would use two hosts, and one would not see what the other has just committed."""
    arrives, goes_on = threading.Event(), threading.Event()
    ask = mysql_hosts._rows

    def slowly(connection: MySQLConnection, question: str) -> list[tuple[Any, ...]]:
        if threading.current_thread().name == "slow" and question == "SELECT UTC_TIMESTAMP(6)":
            arrives.set()
            goes_on.wait(10)
        return ask(connection, question)

    with PrivateMariaDB() as third:
        pair.prepare(third)
        with opened(pair.url(pair.first, pair.second, third), call_timeout=20) as database:
            assert database.write(write) == pair.first.port
            closed(pair.first)
            closed(pair.second)
            monkeypatch.setattr(mysql_hosts, "_rows", slowly)
            seen: list[int] = []
            slow = threading.Thread(name="slow", target=lambda: seen.append(database.write(write)))
            slow.start()
            assert arrives.wait(10), "the slow thread has found the third host"
            closed(pair.second, value=0)
            assert database.write(write) == pair.second.port
            goes_on.set()
            slow.join(20)
            assert seen == [pair.second.port]
            assert database.write(write) == pair.second.port
            assert database.servers.moves == 1


def test_the_clock_is_that_of_the_host_that_is_used(pair: Pair, database: Database) -> None:
    database.clock.calibrate()
    before = error(database)
    closed(pair.first)
    assert database.write(write) == pair.second.port
    assert (before, error(database)) == pytest.approx((0, 0), abs=0.2)
    closed(pair.second)
    closed(pair.first, value=0)
    assert database.write(write) == pair.first.port
    assert error(database) == pytest.approx(0, abs=0.2)
    assert ahead(pair) == pytest.approx(AHEAD_SECONDS, abs=0.2)


def error(database: Database) -> float:
    return (database.clock.now() - database.read(database_time)).total_seconds()


def ahead(pair: Pair) -> float:
    moments = [run_sql(one.admin_url(), "SELECT UTC_TIMESTAMP(6)")[0][0] for one in (pair.first, pair.second)]
    assert all(isinstance(moment, datetime) for moment in moments)
    return float((moments[1] - moments[0]).total_seconds())


def test_if_no_host_takes_writes_the_error_says_of_each_why(pair: Pair) -> None:
    closed(pair.first)
    pair.second.kill()
    with opened(pair.url()) as database:
        database._retry_seconds = 0.5
        with pytest.raises(DatabaseAway) as away:
            database.read(who)
    first, second = f"127.0.0.1:{pair.first.port}", f"127.0.0.1:{pair.second.port}"
    assert f"no host takes writes: {first}: it takes no writes (read_only = ON); {second}: Can't connect" in str(
        away.value
    )
    assert PASSWORD not in str(away.value).replace(f"{USER}:", "").replace(NAME, "")


def test_an_outage_of_all_hosts_passes_when_one_is_back(
    pair: Pair, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert database.write(write) == pair.first.port
    pair.second.kill()
    closed(pair.first)
    opening = threading.Thread(target=reopen, args=(pair, caplog))
    opening.start()
    assert database.write(write) == pair.first.port
    opening.join()
    assert database.servers.moves == 0


def reopen(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: "the database is away" in caplog.text, 10, "the outage to be said")
    closed(pair.first, value=0)


def test_doctor_says_of_each_host_whether_it_takes_writes(pair: Pair, database: Database) -> None:
    def hosts() -> tuple[bool | None, str]:
        check = database.backend.advisory_checks(database)["hosts"]()
        return check.ok, check.found

    first, second = f"127.0.0.1:{pair.first.port}", f"127.0.0.1:{pair.second.port}"
    assert hosts() == (True, f"{first} takes writes; {second} takes writes")
    closed(pair.second)
    assert hosts() == (None, f"{first} takes writes; {second}: it takes no writes (read_only = ON)")
    with opened(pair.url(pair.first)) as single:
        assert "hosts" not in single.backend.advisory_checks(single)


def test_a_wrong_password_is_told_at_once_and_is_no_outage(pair: Pair) -> None:
    with opened(pair.url().replace(f":{PASSWORD}@", ":wrong@")) as database:
        with pytest.raises(Exception, match="Access denied") as refused:
            database.read(who)
        assert not isinstance(refused.value, DatabaseProblem)


def test_a_migration_goes_to_the_host_that_takes_writes(pair: Pair) -> None:
    closed(pair.first)
    name = make_url(pair.second.create_database()).database
    run_sql(pair.first.admin_url(), f"CREATE DATABASE {name}")
    url = pair.url().replace(NAME, str(name))
    assert upgrade(url).after
    with opened(url) as database:
        assert database.read(lambda c: c.exec_driver_sql("SELECT COUNT(*) FROM schedule_task").scalar_one()) == 0
