"""The client for ``async`` code: the same functions as the plain one, none of which holds up the event loop."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rota import AsyncClient, Client
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseProblem, NotEnded, NotFound
from tests.harness.scenario import Scenario
from tests.harness.together import locked

GROUPS = ("tasks", "instances", "backfills", "workers", "keys", "limits", "calendars", "schedulers")


@pytest.fixture
def rows(database: Database) -> Scenario:
    """Registers the task type ``REPORT``, and makes rows."""
    return Scenario(database)


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url, name="shop") as client:
        yield client


def functions_of(group: object) -> dict[str, Callable[..., Any]]:
    """The public functions of a group of a client."""
    return {name: getattr(group, name) for name in dir(group) if not name.startswith("_")}


@pytest.mark.parametrize("group", GROUPS)
def test_it_has_the_same_functions_documented_alike(group: str) -> None:
    plain, made = Client("sqlite:///none.db"), AsyncClient("sqlite:///none.db")
    own, others = functions_of(getattr(plain, group)), functions_of(getattr(made, group))
    assert own.keys() == others.keys()
    for name, function in others.items():
        assert inspect.iscoroutinefunction(function), name
        assert function.__name__ == name
        assert name == "wait" or inspect.getdoc(function) == inspect.getdoc(own[name])
    assert inspect.signature(others["wait"]) == inspect.signature(own["wait"]) if "wait" in own else True


def test_what_it_does_and_refuses_is_what_the_plain_client_does(rows: Scenario, migrated_url: str) -> None:
    async def main() -> None:
        async with asking(migrated_url) as client:
            await client.tasks.add("nightly", "REPORT", cron="0 3 * * *")
            run = await client.tasks.run("nightly", param={"region": "eu"})
            with pytest.raises(NotFound, match="nobody"):
                await client.tasks.show("nobody")
            with pytest.raises(NotEnded, match="is pending"):
                await client.instances.wait(run["id"], timeout=0.01)
            await client.instances.cancel(run["id"])
            ended = await client.instances.wait(run["id"], timeout=0)
            with Client(migrated_url) as plain:
                assert ended == plain.instances.show(run["id"])
                assert await client.tasks.list() == plain.tasks.list()

    asyncio.run(main())


def test_the_loop_goes_on_while_the_database_keeps_a_call_waiting(mariadb_database: Database) -> None:
    rows = Scenario(mariadb_database)
    url = mariadb_database.url.render_as_string(hide_password=False)

    async def main() -> None:
        async with asking(url) as client:
            await client.tasks.add("nightly", "REPORT")
            with locked(mariadb_database, "schedule_task", "name = :name", name="nightly"):
                call = asyncio.create_task(client.tasks.set("nightly", priority=1))
                done, _ = await asyncio.wait({call}, timeout=0.5)  # it waits for a lock that only this function frees
                assert not done
            assert (await call)["priority"] == 1

    asyncio.run(main())
    assert rows.sql("SELECT priority FROM schedule_task WHERE name = 'nightly'") == [(1,)]


def test_many_wait_at_once_and_others_are_still_served(rows: Scenario, migrated_url: str) -> None:
    async def main() -> None:
        async with asking(migrated_url) as client:
            await client.tasks.add("asked", "REPORT")
            runs = await asyncio.gather(*(client.tasks.run("asked") for _ in range(40)))
            ids = [run["id"] for run in runs]
            waiting = [asyncio.create_task(client.instances.wait(one)) for one in ids]
            assert len(await client.instances.list(limit=100)) == 40
            await client.instances.cancel(*ids)
            ended = await asyncio.wait_for(asyncio.gather(*waiting), 60)
            assert [(one["id"], one["status"]) for one in ended] == [(one, "canceled") for one in ids]

    asyncio.run(main())


def test_a_wait_that_is_canceled_asks_no_more(rows: Scenario, migrated_url: str) -> None:
    async def main() -> None:
        async with asking(migrated_url) as client:
            await client.tasks.add("asked", "REPORT")
            run = await client.tasks.run("asked")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.instances.wait(run["id"])
            assert (await client.instances.get(run["id"]))["status"] == "pending"

    asyncio.run(main())


def test_a_closed_client_refuses_and_its_errors_are_sentences(database_url: str) -> None:
    async def main() -> None:
        async with asking(database_url) as client:
            with pytest.raises(DatabaseProblem, match="rota migrate"):
                await client.tasks.list()
        with pytest.raises(RuntimeError):
            await client.tasks.list()

    asyncio.run(main())
