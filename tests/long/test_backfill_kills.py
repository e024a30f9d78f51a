"""A backfill outlives kills of schedulers and workers: each fire runs once, and only a few of them wait at any time.

It is of so many fires as ``ROTA_TEST_FIRES`` says.
"""

import os
import random
from collections import Counter
from datetime import datetime, timedelta

import pytest

from rota.shared.control import backfills
from rota.shared.control.actor import Actor
from rota.shared.control.backfills import Wanted
from rota.shared.database.transactions import opened
from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import RotaProcess, wait_until

FIRES = int(os.environ.get("ROTA_TEST_FIRES", "10000"))
CONCURRENCY = 100
KILLS = 2
"""So many schedulers are killed, and as many workers."""

WORKERS = ["--capacity", "60"]
LIVENESS = {"ROTA_LIVENESS_SECONDS": "10", "ROTA_HEARTBEAT_SECONDS": "2"}
BEGIN = datetime.fromisoformat("2026-01-05T00:00:00")
PROGRESS = "SELECT status, succeeded, written, in_flight FROM schedule_backfill"
STARTS = "SELECT COUNT(*) AS n FROM test_journal WHERE becomes = 'running'"
HELD = "SELECT id FROM schedule_instance WHERE status = 'running' AND schedule_worker_node_id = %s LIMIT 1"
OWN = "SELECT * FROM schedule_instance WHERE origin = 'backfill'"


@pytest.mark.timeout(600 + FIRES // 10)
def test_each_fire_of_a_backfill_runs_once_whoever_is_killed(cluster: Cluster) -> None:
    seed = random.randrange(1000)
    print("seed", seed)
    chosen = random.Random(seed)
    workers = {name: cluster.worker(name, *WORKERS, environment=LIVENESS) for name in ("w0", "w1")}
    scheduler = cluster.scheduler(environment=LIVENESS)
    cluster.wait_live(*workers, deadline=40)
    end = BEGIN + timedelta(minutes=FIRES)  # long ago: it fires no more, and nothing runs while the rows are compared
    cluster.add_task("past", "NAPS", "* * * * *", cron_seconds=0, overlap_policy="allow", ends_at=end)
    start(cluster)
    marks = sorted(chosen.sample(range(FIRES // 10, FIRES * 8 // 10), 2 * KILLS))
    victims = chosen.sample(["scheduler", "worker"] * KILLS, 2 * KILLS)
    for mark, victim in zip(marks, victims, strict=True):
        wait_until(lambda: cluster.row(STARTS)["n"] >= mark, 60 + FIRES // 20, f"{mark} runs to start")  # noqa: B023
        print(f"a {victim} is killed at {cluster.row(PROGRESS)}")
        if victim == "scheduler":
            scheduler.kill()
            scheduler = cluster.scheduler(environment=LIVENESS)
        else:
            replace(cluster, workers, chosen.choice(sorted(workers)))
    began = cluster.now()
    wait_until(lambda: cluster.row(PROGRESS)["status"] == "done", 120 + FIRES // 20, "the backfill to be done")
    print(f"done {(cluster.now() - began).total_seconds():.1f} s after the last kill")
    check(cluster)


def start(cluster: Cluster) -> None:
    """Start the backfill, as the command does."""
    end = BEGIN + timedelta(minutes=FIRES - 1)
    with opened(cluster.url) as database:
        backfills.start(database, Actor("ann", "cli"), Wanted("past", str(BEGIN), str(end), CONCURRENCY))


def replace(cluster: Cluster, workers: dict[str, RotaProcess], name: str) -> None:
    """Kill a worker while it runs something, and start another of a new name."""
    worker_id = cluster.wait_live(name)[name]
    wait_until(lambda: cluster.rows(HELD, worker_id), 30, f"{name} to run something")
    cluster.kill(workers.pop(name))
    other = f"w{len(cluster.processes)}"
    workers[other] = cluster.worker(other, *WORKERS, environment=LIVENESS)


def check(cluster: Cluster) -> None:
    """Each fire has one instance, which succeeded; and few of them waited at any time."""
    rows = cluster.rows(OWN)
    assert sorted(row["schedule_datetime"] for row in rows) == [BEGIN + timedelta(minutes=n) for n in range(FIRES)]
    assert {(row["status"], row["fire_key"], row["run_number"]) for row in rows} == {("succeed", "backfill-1", 0)}
    counted = {"status": "done", "succeeded": FIRES, "written": FIRES, "in_flight": 0}
    assert cluster.row(PROGRESS) == counted
    lost = {row["id"] for row in rows if row["worker_losses"]}
    own = {row["id"] for row in rows}
    entries = (entry for entry in cluster.evidence() if entry.event == "enter" and entry.instance in own)
    entered = Counter((entry.instance, entry.node) for entry in entries)
    assert {number for number, _ in entered} == own
    assert {number for (number, _), times in entered.items() if times > 1} <= lost
    waiting, flying = most_at_once(cluster, own)
    print(f"at most {waiting} of {FIRES} had not begun, and {flying} had not ended; {len(lost)} lost their worker")
    assert waiting <= flying <= CONCURRENCY
    invariants.check(cluster)


def most_at_once(cluster: Cluster, own: set[int]) -> tuple[int, int]:
    """How many of the instances at most had not begun, and had not ended, by the journal."""
    waiting, flying = set[int](), set[int]()
    most_waiting = most_flying = 0
    for change in cluster.journal():
        number, becomes = change["instance"], change["becomes"]
        if number not in own:
            continue
        if change["was"] is None:
            waiting.add(number)
            flying.add(number)
        elif becomes not in ("pending", "assigned"):
            waiting.discard(number)
        if becomes in ("succeed", "failed", "canceled"):
            flying.discard(number)
        most_waiting, most_flying = max(most_waiting, len(waiting)), max(most_flying, len(flying))
    return most_waiting, most_flying
