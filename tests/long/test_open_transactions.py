"""A caller's transaction that stays open for a minute, with work that it has asked for, makes nobody else late."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import create_engine

from rota import Client
from tests.harness.cluster import Cluster
from tests.harness.databases import is_mysql, run_sql
from tests.harness.processes import wait_until
from tests.harness.schemas import typed

OPEN_SECONDS = 60.0
LATEST_SECONDS = 1.0
"""Late by a lock would be late by the whole minute, or by a lock wait timeout."""


@contextmanager
def reading(url: str, snapshot: str) -> Iterator[Any]:
    """A connection under REPEATABLE READ, whose snapshot is made."""
    engine = create_engine(url, isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        if not is_mysql(url):
            connection.exec_driver_sql(f"SET SESSION innodb_snapshot_isolation = {snapshot}")
            connection.commit()
        connection.exec_driver_sql("SELECT * FROM orders").all()
        yield connection
    engine.dispose()


def test_transactions_that_stay_open_for_a_minute_make_nobody_else_late(cluster: Cluster) -> None:
    url = cluster.url
    run_sql(
        url,
        "CREATE TABLE orders (id INT PRIMARY KEY)",
        "INSERT INTO schedule_task (name, type, cron, cron_seconds, overlap_policy)"
        " VALUES ('tick', 'NOTE', '* * * * * *', 1, 'allow')",
    )
    cluster.scheduler()
    cluster.scheduler()
    for name in ("w1", "w2"):
        cluster.worker(name)
        cluster.wait_live(name)
    asked: list[int] = []
    with Client(url, name="shop") as client, ExitStack() as stack:
        slow = [stack.enter_context(reading(url, snapshot)) for snapshot in ("ON", "OFF")]
        quick = stack.enter_context(reading(url, "ON"))
        began = time.monotonic()
        for number, own in enumerate(slow):
            own.exec_driver_sql(f"INSERT INTO orders VALUES ({number})")
            client.once("NOTE", key=f"slow-{number}", connection=own)
            client.keys.cancel("NOTE", f"nothing-{number}", connection=own)
        [(opened,)] = typed(url, "SELECT UTC_TIMESTAMP(6)")
        while time.monotonic() - began < OPEN_SECONDS:
            quick.exec_driver_sql(f"INSERT INTO orders VALUES ({100 + len(asked)})")
            client.once("NOTE", key=f"quick-{len(asked)}", connection=quick)
            quick.commit()
            direct = client.once("NOTE", key=f"direct-{len(asked)}")
            assert client.instances.wait(direct["instance_id"], timeout=10)["status"] == "succeed"
            asked.append(direct["instance_id"])
            ran = f"quick-{len(asked) - 1}"
            wait_until(lambda: ended(url) >= 2 * len(asked), 10, f"{ran} to have run")
        for own in slow:
            own.commit()
        wait_until(lambda: ended(url) == 2 * len(asked) + 2, 10, "what was asked for in the open ones to run at last")
    late = lateness(url, opened)
    print(f"{len(late)} fires and {len(asked)} calls; the latest start was late by {max(late):.3f} s")
    assert len(late) >= OPEN_SECONDS - 5
    assert max(late) < LATEST_SECONDS
    assert len(asked) >= 10


def ended(url: str) -> int:
    """How many runs that were asked for have succeeded."""
    count = "SELECT count(*) FROM schedule_instance WHERE origin = 'manual' AND status = 'succeed'"
    return int(str(typed(url, count)[0][0]))


def lateness(url: str, since: object) -> list[float]:
    """By how much the fires of ``tick`` that were due since this time started late, in seconds."""
    rows = typed(
        url,
        "SELECT i.due_at, i.gmt_started FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
        f" WHERE t.name = 'tick' AND i.gmt_started IS NOT NULL AND i.due_at > '{since}'",
    )
    moments = [tuple(datetime.fromisoformat(str(moment)) for moment in row) for row in rows]
    return [(started - due).total_seconds() for due, started in moments]
