"""Wake-ups between real processes that otherwise look only once a minute, and under a flood of forged ones.

With these periods only a wake-up can start within seconds what is asked for now.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from rota import Client
from rota.shared.waking import redis as waking_by_redis
from rota.shared.waking.pace import REST_SECONDS
from tests.harness.cluster import Cluster
from tests.harness.cluster_fixtures import running
from tests.harness.databases import PrivateMariaDB, connect, run_sql
from tests.harness.processes import marked_environment, wait_until
from tests.harness.redis_server import private_redis
from tests.harness.wake_ups import flooded

ONCE_A_MINUTE = {
    "ROTA_TICK_SECONDS": "60",
    "ROTA_POLL_SECONDS": "60",
    "ROTA_HEARTBEAT_SECONDS": "60",
    "ROTA_LIVENESS_SECONDS": "300",
    "ROTA_LOOKAHEAD_SECONDS": "300",
    "ROTA_WAKE_ADDRESS": ":0",
}
STATEMENTS = 2
"""A look of an idle scheduler takes one, and so does one of an idle worker."""

SOON = 20.0
"""Far less than a minute, and much more than a wake-up takes."""


@pytest.fixture
def asking(cluster: Cluster) -> Iterator[Client]:
    """A program that asks a scheduler and a worker for work."""
    with at_work(cluster) as client:
        yield client


@contextmanager
def at_work(cluster: Cluster) -> Iterator[Client]:
    """A scheduler and a worker that listen, and a program that asks for work."""
    cluster.scheduler(environment=ONCE_A_MINUTE)
    cluster.worker("w", environment=ONCE_A_MINUTE)
    cluster.wait_live("w")
    wait_until(lambda: addresses(cluster), 30, "both to listen")
    with Client(cluster.url, name="shop") as client:
        yield client


def addresses(cluster: Cluster) -> list[str]:
    """Where the scheduler and the worker listen; empty until both do."""
    found = [
        row["wake_address"]
        for table in ("schedule_scheduler_node", "schedule_worker_node")
        for row in cluster.rows(f"SELECT wake_address FROM {table} WHERE wake_address IS NOT NULL")
    ]
    return found if len(found) == 2 else []


def test_what_is_asked_for_now_starts_now(cluster: Cluster, asking: Client) -> None:
    asking.tasks.add("note", "NOTE")
    asking.tasks.add("steps", "STEPS", param={"fail_until": 1}, retries=1, retry_delay_seconds=1)
    ends: list[Callable[[], int]] = [
        lambda: asking.tasks.run("note")["id"],
        lambda: asking.tasks.run("steps")["id"],
        lambda: asking.instances.replay(1)[0]["id"],
        lambda: int(asking.once("NOTE", key="a")["instance_id"]),
        lambda: int(asking.once("NOTE", key="b")["instance_id"]),
    ]
    for ask in ends:
        assert asking.instances.wait(ask(), timeout=SOON)["status"] == "succeed"
    assert [entry.attempt for entry in cluster.entries(2, "enter") if entry.node == "STEPS_SECOND"] == [1, 2]


def test_by_a_redis_too_what_is_asked_for_now_starts_now(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a command, which ends at once, and after the Redis was away."""
    with private_redis(tmp_path) as server:
        environment = {**ONCE_A_MINUTE, "ROTA_WAKE_ADDRESS": "", "ROTA_WAKE_REDIS": server.url}
        monkeypatch.setenv("ROTA_WAKE_REDIS", server.url)
        waking_by_redis.publisher.cache_clear()
        cluster.scheduler(environment=environment)
        cluster.worker("w", environment=environment)
        cluster.wait_live("w")
        wait_until(lambda: server.subscribers() == 2, 30, "both to listen")
        with Client(cluster.url, name="shop") as client:
            client.tasks.add("note", "NOTE")
            assert client.instances.wait(client.tasks.run("note")["id"], timeout=SOON)["status"] == "succeed"
            server.kill()
            server.start()
            wait_until(lambda: server.subscribers() == 2, 30, "both to listen again")
            asked = subprocess.run(
                [sys.executable, "-m", "rota", "-d", cluster.url, "task", "run", "note", "--json"],
                env=marked_environment({**os.environ, "ROTA_WAKE_REDIS": server.url}),
                capture_output=True,
                check=True,
            )
            assert client.instances.wait(json.loads(asked.stdout)["id"], timeout=SOON)["status"] == "succeed"
        shown = str(cluster.rows("SELECT * FROM schedule_worker_node")) + "".join(p.log for p in cluster.processes)
        assert server.password not in shown
    waking_by_redis.publisher.cache_clear()


def test_what_a_session_asks_for_starts_at_its_commit_and_not_before(cluster: Cluster, asking: Client) -> None:
    asking.once("NOTE", key="first")  # the task of the type is there
    engine = create_engine(cluster.url)

    def ended() -> int:
        return sum(one["status"] == "succeed" for one in asking.instances.list())

    wait_until(lambda: ended() == 1, SOON, "the first run")
    with Session(engine) as session:
        for number in (2, 3):
            with session.begin_nested():
                asking.once("NOTE", key=f"order-{number}", connection=session)
            session.rollback()
            asking.once("NOTE", key=f"order-{number}", connection=session)
            session.commit()
            wait_until(lambda: ended() == number, SOON, f"run {number}")  # noqa: B023
    with engine.connect() as connection:
        asking.once("NOTE", key="order-4", connection=connection)
        connection.commit()
        asking.wake()
        wait_until(lambda: ended() == 4, SOON, "the run after client.wake()")
    engine.dispose()


def test_a_flood_of_forged_wake_ups_makes_nobody_ask_the_database_more_often_than_the_limit(
    own_mariadb: PrivateMariaDB, own_template: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On a server of its own, whose counter counts nobody else."""
    url = own_mariadb.create_database()
    run_sql(url, *own_template)
    with (
        running(url, tmp_path / "flooded", request.session) as cluster,
        at_work(cluster) as client,
        closing(connect(url)) as connection,
        connection.cursor() as cursor,
    ):

        def questions() -> int:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int((cursor.fetchone() or ("", "0"))[1])

        scheduler, worker = addresses(cluster)
        with flooded(scheduler) as sent, flooded(worker) as sent_too:
            began, before = time.monotonic(), questions()
            wait_until(lambda: time.monotonic() - began > 5, 30, "five seconds of the flood")
            took, asked = time.monotonic() - began, questions() - before
            client.tasks.add("note", "NOTE")
            run = client.tasks.run("note")
            assert client.instances.wait(run["id"], timeout=SOON)["status"] == "succeed"
        assert min(sent[0], sent_too[0]) > 5_000 * took, "there was a flood"
    looks = took / REST_SECONDS + 2
    assert asked < STATEMENTS * looks + 50
