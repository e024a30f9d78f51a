"""A program asks for work, and waits for what a worker makes of it."""

import asyncio

import pytest

from rota import AsyncClient, Client
from rota.shared.domain.errors import NotEnded
from tests.harness.cluster import Cluster


@pytest.fixture
def at_work(cluster: Cluster) -> Cluster:
    """One scheduler and one worker, ``w``."""
    cluster.scheduler()
    cluster.worker("w")
    cluster.wait_live("w")
    return cluster


def test_a_run_is_asked_for_and_its_result_waited_for(at_work: Cluster) -> None:
    with Client(at_work.url, name="shop") as client:
        client.tasks.add("asked", "NOTE")
        ended = client.instances.wait(client.tasks.run("asked")["id"], timeout=30)
        assert (ended["status"], ended["execution_result"], ended["worker_name"]) == ("succeed", {"attempt": 1}, "w")
        client.tasks.add("held", "HOLD", param={"gate": "held"})
        run = client.tasks.run("held")
        with pytest.raises(NotEnded, match="has not ended within 2 s; it is "):
            client.instances.wait(run["id"], timeout=2)
        at_work.open_gate("held")
        assert client.instances.wait(run["id"], timeout=30)["status"] == "succeed"
        client.tasks.set("held", param={"gate": "never"})
        run = client.tasks.run("held")
        at_work.wait_status([run["id"]], "running")
        assert client.instances.cancel(run["id"], why="no more wanted") == [
            {"id": run["id"], "canceled": False, "asked": True}
        ]
        assert client.instances.wait(run["id"], timeout=30)["status"] == "canceled"


def test_many_are_asked_for_and_waited_for_by_one_loop(at_work: Cluster) -> None:
    async def main() -> list[object]:
        async with AsyncClient(at_work.url) as client:
            await client.tasks.add("asked", "NOTE", overlap_policy="allow")

            async def ask() -> object:
                run = await client.tasks.run("asked")
                return (await client.instances.wait(run["id"], timeout=60))["status"]

            return await asyncio.gather(*(ask() for _ in range(50)))

    assert asyncio.run(main()) == ["succeed"] * 50
    entered = [entry.instance for entry in at_work.evidence() if entry.event == "enter"]
    assert len(entered) == len(set(entered)) == 50
