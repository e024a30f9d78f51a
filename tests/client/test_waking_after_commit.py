"""Work that is asked for in a program's own transaction wakes the schedulers when that is committed, and not before."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from rota import AsyncClient, Client
from rota.scheduler_service.app import declaration
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import schedulers
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario
from tests.harness.wake_ups import Receiver, receiver


@pytest.fixture
def woken(database: Database) -> Iterator[Receiver]:
    """Where the one scheduler listens."""
    with receiver() as made:
        listen(database, made)
        yield made


def listen(database: Database, woken: Receiver) -> None:
    Scenario(database)
    declared = replace(declaration(Settings.load()), wake_address=woken.address)
    database.write(lambda c: schedulers.register(c, declared))


@pytest.mark.parametrize("is_scoped", [False, True])
def test_a_session_wakes_them_once_at_its_commit(
    migrated_url: str, woken: Receiver, client: Client, is_scoped: bool
) -> None:
    engine = create_engine(migrated_url)
    session = scoped_session(sessionmaker(engine)) if is_scoped else Session(engine)
    for key in ("a", "b", "c"):
        client.once("REPORT", key=key, connection=session)
    with session.begin_nested():
        client.keys.cancel("REPORT", "a", connection=session)
    assert woken.taken() == 0
    session.commit()
    assert woken.taken() == 1
    session.commit()
    client.once("REPORT", key="d", connection=session)
    session.rollback()
    assert woken.taken() == 0
    client.once("REPORT", key="e", connection=session)
    session.commit()
    assert woken.taken() == 1
    session.close()
    engine.dispose()


def test_a_client_that_was_closed_before_is_not_opened_again(migrated_url: str, woken: Receiver) -> None:
    engine = create_engine(migrated_url)
    with Session(engine) as session:
        with Client(migrated_url) as client:
            client.once("REPORT", key="a", connection=session)
        session.commit()
    assert client._session._opened is None
    assert woken.taken() == 0
    engine.dispose()


def test_of_another_connection_the_program_tells_the_commit_itself(
    migrated_url: str, woken: Receiver, client: Client
) -> None:
    engine = create_engine(migrated_url)
    with engine.connect() as connection:
        client.once("REPORT", key="a", connection=connection)
        connection.commit()
    assert woken.taken() == 0
    client.wake()
    assert woken.taken() == 1
    engine.dispose()


def test_an_async_session_wakes_them_by_a_thread_of_the_client(mariadb_database: Database) -> None:
    url = mariadb_database.url

    async def main(woken: Receiver) -> None:
        engine = create_async_engine(url.set(drivername="mysql+aiomysql"))
        async with AsyncSession(engine) as session:
            async with AsyncClient(url.render_as_string(hide_password=False), name="shop") as client:
                await client.once("REPORT", key="a", connection=session)
                assert woken.taken() == 0
                await session.commit()
                wait_until(woken.taken, 10, "the wake-up")
                await client.wake()
                assert woken.taken() == 1
                await client.once("REPORT", key="b", connection=session)
            await session.commit()  # the client is closed
            assert woken.taken() == 0
        await engine.dispose()

    with receiver() as woken:
        listen(mariadb_database, woken)
        asyncio.run(main(woken))
