"""Kills, freezes and a crash of the database in the midst of thousands that are due at once: every fire has its one
instance, and every instance its end."""

import random
import signal
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.cluster_fixtures import running
from tests.harness.databases import PrivateMariaDB, run_sql
from tests.harness.processes import wait_until

HERD = 1_500
"""Tasks that are due in one second: the materializers' part."""

ASKED = 1_500
"""Instances that SQL inserts to run in that second: the assigners' part."""

TICKING, SECONDS = 20, 20
"""Tasks that fire in every second, from that one on, and for how long."""

TOTAL = HERD + ASKED + TICKING * SECONDS
TYPE = "ELT(1 + seq % 3, 'NOTE', 'NOTE_THREAD', 'STEPS')"
LIVENESS = {"ROTA_LIVENESS_SECONDS": "10", "ROTA_HEARTBEAT_SECONDS": "2"}
SMALL_BATCHES = {**LIVENESS, "ROTA_BATCH": "20"}
"""So that a scheduler is killed between many."""

DEADLINE_SECONDS = 90

THERE = "SELECT COUNT(*) AS n FROM schedule_instance WHERE origin = 'cron' AND schedule_datetime = %s"
STARTS = "SELECT COUNT(*) AS n FROM test_journal WHERE becomes = 'running'"
ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"
OTHERS = (
    "SELECT status, origin, attempt, reason, schedule_worker_node_id, COUNT(*) AS n, MIN(schedule_task_id) AS a_task"
    " FROM schedule_instance WHERE status <> 'succeed' GROUP BY 1, 2, 3, 4, 5"
)
MISSED = "SELECT SUM(misfires) AS missed, SUM(fires_held_back) AS held_back FROM schedule_task"
LOST = "SELECT lost_by, worker_losses, COUNT(*) AS n FROM schedule_instance WHERE worker_losses > 0 GROUP BY 1, 2"


@pytest.mark.parametrize(("fault", "seed"), [("killed", 0), ("killed", 1), ("frozen", 2)])
def test_a_scheduler_and_a_worker_lost_under_load_lose_no_fire_and_double_none(
    cluster: Cluster, fault: str, seed: int
) -> None:
    print("seed", seed)
    chosen = random.Random(seed)
    workers = {f"w{number}": cluster.worker(f"w{number}", environment=LIVENESS) for number in range(3)}
    schedulers = [cluster.scheduler(environment=SMALL_BATCHES) for _ in range(2)]
    ids = cluster.wait_live(*workers, deadline=40)
    victim = chosen.choice(sorted(workers))
    fired, begun = round(HERD * chosen.uniform(0.05, 0.5)), round(TOTAL * chosen.uniform(0.1, 0.5))
    due = cluster.now().replace(microsecond=0) + timedelta(seconds=7)
    add_load(cluster, due)

    wait_until(lambda: cluster.row(THERE, due)["n"] >= fired, 30, f"{fired} fires to be materialized")
    scheduler = chosen.choice(schedulers)
    if fault == "killed":
        scheduler.kill()
    else:
        scheduler.stop_signal(signal.SIGSTOP)
    print(f"a scheduler was {fault} at {cluster.row(THERE, due)['n']} of {HERD + TICKING} fires of that second")
    wait_until(lambda: cluster.row(STARTS)["n"] >= begun, 30, f"{begun} instances to start")
    (cluster.kill if fault == "killed" else cluster.freeze)(workers[victim])
    lost_at = cluster.now()
    held = "SELECT status, COUNT(*) AS n FROM schedule_instance WHERE schedule_worker_node_id = %s GROUP BY 1"
    left = {row["status"]: row["n"] for row in cluster.rows(held, ids[victim])}
    print(f"worker {victim} was {fault} at {cluster.row(STARTS)['n']} starts of {TOTAL}, with {left}")
    assert left.keys() & {"assigned", "running"}, "it held some"

    if fault == "frozen":
        state = "SELECT state FROM schedule_worker_node WHERE id = %s"
        wait_until(lambda: cluster.row(state, ids[victim])["state"] == "dead", 30, "the worker to be declared dead")
        scheduler.stop_signal(signal.SIGCONT)
        scheduler.wait_for_log("heard nothing from the database for")
        print(f"the scheduler went on at {cluster.row(ENDED)['n']} ends of {TOTAL}")
    wait_for_all(cluster)
    print(f"all had succeeded {(cluster.now() - lost_at).total_seconds():.1f} s after that")
    if fault == "frozen":
        assert scheduler.alive
        cluster.thaw(workers[victim])
        assert workers[victim].wait_exit() == 70
    check_fires(cluster, due)
    assert [(row["lost_by"], row["worker_losses"]) for row in cluster.rows(LOST)] in ([], [(victim, 1)])
    invariants.check(cluster)


def test_a_database_that_crashes_under_load_loses_no_fire_and_doubles_none(
    own_mariadb: PrivateMariaDB, own_template: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = own_mariadb.create_database()
    run_sql(url, *own_template)
    with running(url, tmp_path / "cluster", request.session) as cluster:
        workers = {f"w{number}": cluster.worker(f"w{number}") for number in range(3)}
        schedulers = [cluster.scheduler(environment={"ROTA_BATCH": "20"}) for _ in range(2)]
        live = cluster.wait_live(*workers, deadline=40)
        due = cluster.now().replace(microsecond=0) + timedelta(seconds=7)
        add_load(cluster, due)
        cluster.database_failed = True
        for what, statement, values, all_of_it in (
            ("fires of that second", THERE, (due,), HERD + TICKING),
            ("starts", STARTS, (), TOTAL),
        ):
            wait_until(lambda: cluster.row(statement, *values)["n"] >= all_of_it // 4, 30, f"a quarter of the {what}")  # noqa: B023
            there = cluster.row(statement, *values)["n"]
            own_mariadb.kill()
            print(f"it crashed at {there} of {all_of_it} {what}")
            assert there < all_of_it
            own_mariadb.start()
        wait_for_all(cluster)
        assert all(process.alive for process in (*workers.values(), *schedulers))
        check_fires(cluster, due)
        assert cluster.wait_live(*workers) == live, "no worker was given up"
        assert cluster.rows(LOST) == []
        invariants.check(cluster)


def wait_for_all(cluster: Cluster) -> None:
    try:
        wait_until(lambda: cluster.row(ENDED)["n"] >= TOTAL, DEADLINE_SECONDS, f"{TOTAL} instances to succeed")
    except pytest.fail.Exception:
        print(*cluster.rows(OTHERS), cluster.row(MISSED), sep="\n")
        raise


def add_load(cluster: Cluster, due: datetime) -> None:
    """All that is to run: in the one second, and in each from then on. However slow the machine is, none is missed."""
    last = due + timedelta(seconds=SECONDS - 1)
    cron = f"{due.second} {due.minute} {due.hour} {due.day} {due.month} *"
    task = (
        "INSERT INTO schedule_task (name, type, cron, cron_seconds, trigger_kind, starts_at, ends_at, overlap_policy,"
        " misfire_grace_seconds)"
    )
    run_sql(
        cluster.url,
        "BEGIN",
        f"{task} SELECT CONCAT('herd ', seq), {TYPE}, '{cron}', 1, 'cron', NULL, NULL, 'skip', 3600"
        f" FROM seq_1_to_{HERD}",
        f"{task} SELECT CONCAT('ticking ', seq), {TYPE}, '* * * * * *', 1, 'cron', '{due}', '{last}', 'allow', 3600"
        f" FROM seq_1_to_{TICKING}",
        f"{task} SELECT CONCAT('asked ', seq), {TYPE}, NULL, 0, 'manual', NULL, NULL, 'allow', 3600 FROM seq_1_to_3",
        f"""INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at)
        SELECT t.id, '{due}' - INTERVAL seq SECOND, '{due}' FROM schedule_task t JOIN seq_1_to_{ASKED // 3}
        WHERE t.trigger_kind = 'manual'""",
        "COMMIT",
    )


def check_fires(cluster: Cluster, due: datetime) -> None:
    """Each of them has its one instance, and there are no others."""
    rows = cluster.rows(
        """SELECT SUBSTRING_INDEX(t.name, ' ', 1) AS kind, t.id AS task, i.schedule_datetime AS moment, i.run_number
        FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"""
    )
    assert Counter(row["kind"] for row in rows) == {"herd": HERD, "ticking": TICKING * SECONDS, "asked": ASKED}
    assert len({(row["task"], row["moment"]) for row in rows}) == TOTAL
    assert {row["moment"] for row in rows if row["kind"] == "herd"} == {due}
    seconds = Counter(row["moment"] for row in rows if row["kind"] == "ticking")
    assert seconds == {due + timedelta(seconds=n): TICKING for n in range(SECONDS)}
    assert {(row["kind"], row["run_number"]) for row in rows} == {("herd", 0), ("ticking", 0), ("asked", 1)}
    passed_over = cluster.row(MISSED)
    assert passed_over == {"missed": 0, "held_back": 0}
