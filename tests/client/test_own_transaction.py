"""A program asks for one-off work in a transaction of its own: it is asked for exactly if that is committed."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql
import pytest
from sqlalchemy import create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from rota import AsyncClient, Client
from rota.scheduler_service.duties.requests import Requests
from rota.shared.control import requests as control
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseAway, InvalidInput, InvalidParam, NotPossible, UnknownType
from rota.shared.settings import Settings
from rota.shared.store import requests
from tests.harness.cluster import Cluster
from tests.harness.databases import is_mysql
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario

AT = datetime(2099, 12, 24, 20, tzinfo=UTC)


@pytest.fixture
def rows(database: Database) -> Scenario:
    """Registers the task type ``REPORT``, and makes rows."""
    return Scenario(database)


def step(rows: Scenario) -> None:
    Requests(rows.database, Settings.load()).step()


def asked(rows: Scenario) -> int:
    return int(rows.sql("SELECT COUNT(*) FROM schedule_request")[0][0])


def keys(client: Client) -> list[tuple[str, str]]:
    return [(one["key"], one["at"]) for one in client.keys.find()]


@contextmanager
def by_sqlalchemy(url: str) -> Iterator[Any]:
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def by_session(url: str) -> Iterator[Any]:
    engine = create_engine(url)
    with Session(engine) as session:
        yield session
    engine.dispose()


@contextmanager
def by_driver(url: str) -> Iterator[Any]:
    parts = make_url(url)
    if parts.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(parts.database))) as connection:
            yield connection
    else:  # another database of the same server
        port, password = int(parts.port or 3306), str(parts.password or "")
        with closing(
            pymysql.connect(host=parts.host, port=port, user=str(parts.username), password=password, charset="utf8mb4")
        ) as connection:
            yield connection


@pytest.mark.parametrize("opened", [by_sqlalchemy, by_session, by_driver])
def test_it_is_asked_for_exactly_if_the_transaction_is_committed(
    rows: Scenario, client: Client, migrated_url: str, opened: Callable[[str], Any]
) -> None:
    with opened(migrated_url) as own:
        for is_committed in (False, True):
            done = client.once("REPORT", key="größe", at=AT, param={"region": "€u"}, connection=own, why="an order")
            assert (done["done"], done["instance_id"], done["at"]) == ("asked", None, "2099-12-24T20:00:00Z")
            own.commit() if is_committed else own.rollback()
            step(rows)
            assert keys(client) == ([("größe", "2099-12-24T20:00:00Z")] if is_committed else [])
        assert client.instances.show(1)["param"] == {"region": "€u"}
        assert (client.instances.show(1)["creator"], asked(rows)) == ("shop", 0)
        client.keys.cancel("REPORT", "größe", connection=own)
        own.commit()
    step(rows)
    assert (keys(client), asked(rows)) == ([], 0)


def test_requests_are_done_in_their_order(rows: Scenario, client: Client, migrated_url: str) -> None:
    with by_sqlalchemy(migrated_url) as own:
        for key in ("a", "b", "a"):
            client.once("REPORT", key=key, at=AT, param={"region": key}, connection=own)
        client.keys.cancel("REPORT", "b", connection=own)
        client.once("REPORT", key="c", at=AT, connection=own, param={"region": "c"})
        client.once("REPORT", key="b", at=AT + timedelta(hours=1), connection=own, param={"region": "new"})
        client.keys.cancel("REPORT", "nobody", connection=own)
        own.commit()
    step(rows)
    assert keys(client) == [("a", "2099-12-24T20:00:00Z"), ("c", "2099-12-24T20:00:00Z"), ("b", "2099-12-24T21:00:00Z")]
    assert [one["status"] for one in client.instances.list()].count("canceled") == 1
    assert asked(rows) == 0


def test_one_row_is_inserted_and_nothing_else_is_done_on_the_connection(
    rows: Scenario, client: Client, migrated_url: str
) -> None:
    seen: list[str] = []
    with by_sqlalchemy(migrated_url) as own:

        def note(_: object, __: object, statement: str, *rest: object) -> None:
            seen.append(statement)

        event.listen(own, "before_cursor_execute", note)
        client.once("REPORT", key="a", at=AT, connection=own)
        assert [statement.split()[:2] for statement in seen] == [["INSERT", "INTO"]]


def test_what_is_wrong_is_refused_at_the_call_and_inserts_nothing(
    rows: Scenario, client: Client, migrated_url: str
) -> None:
    with by_sqlalchemy(migrated_url) as own:
        with pytest.raises(InvalidParam):
            client.once("REPORT", key="a", param=[1], connection=own)  # type: ignore[arg-type]
        with pytest.raises(UnknownType):
            client.once("REPRT", key="a", connection=own)
        with pytest.raises(InvalidInput, match="a reason of 1,001 characters is too long"):
            client.once("REPORT", key="a", connection=own, why="x" * 1001)
        own.commit()
    with pytest.raises(InvalidInput, match="give a Session or a Connection of SQLAlchemy"):
        client.once("REPORT", key="a", connection="mysql://")
    assert asked(rows) == 0


def test_what_cannot_be_done_later_is_kept_with_its_reason_and_the_others_are_done(
    rows: Scenario, client: Client
) -> None:
    rows.sql(
        "INSERT INTO schedule_request (type, number, due_at) VALUES ('REPORT', 'a', NULL), ('REPORT', 'b', NULL),"
        " ('REPORT', ' ', NULL), ('REPORT', 'c', NULL), ('NOBODY', 'd', NULL)"
    )
    step(rows)
    assert {key for key, _ in keys(client)} == {"a", "b", "c"}
    kept = rows.sql("SELECT number, reason FROM schedule_request WHERE is_deleted = 1 ORDER BY id")
    reasons = {row.number: row.reason for row in kept}
    assert list(reasons) == [" ", "d"]
    assert "no blank at its ends" in reasons[" "]
    assert "'NOBODY'" in reasons["d"]
    step(rows)
    assert asked(rows) == 2


@pytest.mark.parametrize("error", [DatabaseAway("it is away"), NotPossible("others changed the same rows")])
def test_what_may_pass_refuses_no_request(
    rows: Scenario, client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rows.sql("INSERT INTO schedule_request (type, number) VALUES ('REPORT', 'a')")

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(control, "perform", fail)
        with pytest.raises(type(error)):
            step(rows)
    assert rows.sql("SELECT is_deleted FROM schedule_request") == [(0,)]
    step(rows)
    assert (len(keys(client)), asked(rows)) == (1, 0)


def test_what_the_database_refuses_holds_up_no_other(rows: Scenario, client: Client) -> None:
    rows.sql("INSERT INTO schedule_request (type, number, why) VALUES ('REPORT', 'a', 'x'), ('REPORT', 'b', 'x')")
    rows.sql("INSERT INTO schedule_request (type, number, why) VALUES ('REPORT', 'c', 'x')")
    raises = "SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = 'no b'"
    body = f"IF NEW.number = 'b' THEN {raises}; END IF"
    if rows.database.backend.file(rows.database.url):
        body = "BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed: no b') WHERE NEW.number = 'b'; END"
    rows.sql(f"CREATE TRIGGER test_refuses BEFORE INSERT ON schedule_business_key FOR EACH ROW {body}")
    step(rows)
    assert {key for key, _ in keys(client)} == {"a", "c"}
    [kept] = rows.sql("SELECT number, reason FROM schedule_request")
    assert (kept.number, "no b" in kept.reason) == ("b", True)


def test_of_two_schedulers_who_have_read_a_request_one_does_it(rows: Scenario, client: Client) -> None:
    rows.sql("INSERT INTO schedule_request (type, number, param) VALUES ('REPORT', 'a', '{}'), ('REPORT', 'b', '{}')")
    found = rows.database.read(lambda c: requests.waiting(c, 10))
    assert len(found) == 2
    told: list[object] = []
    for _ in range(2):
        control.apply(rows.database, found, lambda *given: told.append(given), control.HeldUp())
    assert (told, len(client.instances.list())) == ([], 2)


def test_a_scheduler_that_has_read_more_does_what_the_other_has_left_in_order(rows: Scenario, client: Client) -> None:
    rows.sql(
        "INSERT INTO schedule_request (what, type, number) VALUES"
        " ('once', 'REPORT', 'a'), ('once', 'REPORT', 'b'), ('cancel', 'REPORT', 'b'), ('cancel', 'REPORT', 'a')"
    )
    found = rows.database.read(lambda c: requests.waiting(c, 10))
    for some in (found[:1], found):
        control.apply(rows.database, some, lambda *_: None, control.HeldUp())
    assert (keys(client), asked(rows)) == ([], 0)
    assert [one["status"] for one in client.instances.list()] == ["canceled", "canceled"]


@pytest.mark.mariadb_only("its JSON takes no number beyond a double")
def test_a_param_that_python_cannot_read_is_refused(rows: Scenario, client: Client) -> None:
    rows.sql(
        "INSERT INTO schedule_request (type, number, param) VALUES ('REPORT', 'a', :long), ('REPORT', 'b', NULL)",
        long=f'{{"n": {"9" * 5000}}}',
    )
    step(rows)
    [kept] = rows.sql("SELECT number, reason FROM schedule_request")
    assert (kept.number, "digits" in kept.reason, len(keys(client))) == ("a", True, 1)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(
    "snapshot", [pytest.param("ON", marks=pytest.mark.mariadb_only("it has no innodb_snapshot_isolation")), "OFF"]
)
def test_a_transaction_that_stays_open_makes_nobody_else_late(
    mariadb_database: Database, isolation: str, snapshot: str
) -> None:
    """What others ask for meanwhile is done, though they have higher ids; what it asks for is done at its end."""
    rows = Scenario(mariadb_database)
    url = mariadb_database.url.render_as_string(hide_password=False)
    rows.sql("CREATE TABLE orders (id INT PRIMARY KEY)")
    with Client(url, name="shop") as client, by_sqlalchemy(url) as slow, by_sqlalchemy(url) as quick:
        for own in (slow, quick):
            if not is_mysql(url):
                own.exec_driver_sql(f"SET SESSION innodb_snapshot_isolation = {snapshot}")
            own.exec_driver_sql(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
            own.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1")
            own.commit()
        slow.exec_driver_sql("SELECT * FROM orders").all()
        client.once("REPORT", key="slow", at=AT, connection=slow)
        for number in range(3):
            client.once("REPORT", key=f"quick-{number}", at=AT, connection=quick)
            quick.commit()
            before = mariadb_database.clock.monotonic()
            step(rows)
            assert mariadb_database.clock.monotonic() - before < 1, "nobody waits for a lock"
            assert [key for key, _ in keys(client)] == [f"quick-{n}" for n in range(number + 1)]
        client.once("REPORT", key="slow-2", at=AT, connection=slow)
        slow.commit()
        step(rows)
        assert {key for key, _ in keys(client)} == {"slow", "slow-2", "quick-0", "quick-1", "quick-2"}


def test_an_async_session_takes_it_too(mariadb_database: Database) -> None:
    rows = Scenario(mariadb_database)
    url = mariadb_database.url

    async def main() -> None:
        engine = create_async_engine(url.set(drivername="mysql+aiomysql"))
        async with AsyncClient(url.render_as_string(hide_password=False), name="shop") as client:
            for is_committed in (False, True):
                async with AsyncSession(engine) as session:
                    done = await client.once("REPORT", key="a", at=AT, connection=session)
                    assert done["done"] == "asked"
                    await (session.commit() if is_committed else session.rollback())
                assert asked(rows) == int(is_committed)
            with pytest.raises(InvalidInput, match="give an AsyncSession or an AsyncConnection"):
                await client.keys.cancel("REPORT", "a", connection=object())  # type: ignore[arg-type]
            async with engine.begin() as connection:
                await client.keys.cancel("REPORT", "a", connection=connection)
        await engine.dispose()

    asyncio.run(main())
    assert asked(rows) == 2


def test_at_work_it_runs_when_the_transaction_is_committed(cluster: Cluster) -> None:
    cluster.scheduler()
    cluster.worker("w")
    cluster.wait_live("w")
    with Client(cluster.url, name="shop") as client, by_session(cluster.url) as session:
        client.once("NOTE", key="order-1", connection=session)
        assert client.keys.find() == client.instances.list() == []
        session.commit()
        wait_until(lambda: [one["status"] for one in client.instances.list()] == ["succeed"], 30, "the run to end")
