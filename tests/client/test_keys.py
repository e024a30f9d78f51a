"""A program asks for one-off work under keys."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from rota import AsyncClient, Client, Once
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, InvalidParam
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario

AT = datetime(2099, 12, 24, 20, tzinfo=UTC)


class Region(BaseModel):
    region: str


@pytest.fixture
def rows(database: Database) -> Scenario:
    """Registers the task type ``REPORT``, and makes rows."""
    return Scenario(database)


def test_a_key_is_asked_for_found_moved_and_canceled(rows: Scenario, client: Client) -> None:
    added = client.once("REPORT", key="42", at=AT, param=Region(region="eu"), why="a customer asked")
    moved = client.once("REPORT", key="42", at=AT + timedelta(hours=1))
    assert [(one["done"], one["instance_id"]) for one in (added, moved)] == [("added", 1), ("moved", 1)]
    many = client.once_many("REPORT", [Once(f"p-{n}", at=AT, param=Region(region="eu")) for n in range(10)])
    assert (many["added"], many["moved"], many["kept"]) == (10, 0, 0)
    page = client.keys.find("REPORT", begins="p-", limit=6)
    rest = client.keys.find("REPORT", begins="p-", limit=6, after=page[-1])
    assert [one["key"] for one in [*page, *rest]] == [f"p-{n}" for n in range(10)]
    assert [one["key"] for one in client.keys.find(from_at=AT + timedelta(minutes=1))] == ["42"]
    seen = client.keys.cancel_all("REPORT", begins="p-", dry_run=True)
    assert (seen["canceled"], len(seen["first"])) == (0, 10)
    assert client.keys.cancel_all("REPORT", begins="p-")["canceled"] == 10
    assert client.keys.cancel("REPORT", "42")["canceled"] is True
    assert client.keys.find() == []


def test_what_is_wrong_is_refused(rows: Scenario, client: Client) -> None:
    with pytest.raises(InvalidInput, match="an empty beginning would be every key"):
        client.keys.cancel_all("REPORT", begins="", dry_run=True)
    with pytest.raises(InvalidInput, match="time 3: give a datetime"):
        client.once("REPORT", key="42", at=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidParam, match="key '42': param must be a JSON object"):
        client.once("REPORT", key="42", param=[1])  # type: ignore[arg-type]
    assert client.keys.find() == []


def test_many_coroutines_that_ask_at_once_make_one_run_of_a_key(rows: Scenario, migrated_url: str) -> None:
    async def main() -> list[str]:
        async with AsyncClient(migrated_url) as client:
            calls = [client.once("REPORT", key="42", at=AT + timedelta(seconds=n)) for n in range(40)]
            done = await asyncio.gather(*calls)
            assert len({one["instance_id"] for one in done}) == 1
            return [str(one["done"]) for one in done]

    done = asyncio.run(main())
    assert sorted(done) == ["added"] + ["moved"] * 39
    assert rows.sql("SELECT COUNT(*) FROM schedule_instance")[0][0] == 1


def test_a_key_runs_again_and_again_one_run_after_the_other(cluster: Cluster) -> None:
    cluster.scheduler()
    cluster.worker("w")
    cluster.wait_live("w")
    with Client(cluster.url, name="shop") as client:
        first = client.once("HOLD", key="42", param={"gate": "first"})
        cluster.wait_status([first["instance_id"]], "running")
        kept = client.once("HOLD", key="42", param={"gate": "second"})
        assert (kept["done"], kept["follows_id"]) == ("kept", first["instance_id"])
        cluster.open_gate("second")
        assert [one["instance_id"] for one in client.keys.find("HOLD")] == [first["instance_id"]]
        cluster.open_gate("first")
        wait_until(lambda: not client.keys.find("HOLD"), 30, "both runs to end")
        runs = cluster.rows("SELECT id, status, gmt_started, gmt_completed FROM schedule_instance ORDER BY id")
        assert [run["status"] for run in runs] == ["succeed", "succeed"]
        assert runs[0]["gmt_completed"] <= runs[1]["gmt_started"]


def test_many_threads_that_ask_for_one_key_without_a_pause_all_get_through(mariadb_database: Database) -> None:
    Scenario(mariadb_database)
    url = mariadb_database.url.render_as_string(hide_password=False)
    with Client(url, name="shop") as client, ThreadPoolExecutor(10) as threads:
        calls = [threads.submit(client.once, "REPORT", key="42", at=AT + timedelta(seconds=n)) for n in range(400)]
        done = [call.result()["done"] for call in calls]
        assert sorted(done) == ["added"] + ["moved"] * 399
        assert len(client.instances.list()) == 1
