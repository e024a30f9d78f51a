"""A flood of one group, and a worker killed in it: those of another group start nearly at once, and each runs once."""

from datetime import datetime, timedelta

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.databases import run_sql
from tests.harness.processes import wait_until

FLOOD = 4_000
"""Instances that are due at once. Each takes 0.1 s, and the two workers have 40 slots: ten seconds."""

PARAM = '{"seconds": 0.1}'

FIRING, SECONDS = 5, 6
"""Tasks of another group that fire in every second meanwhile, and for how long."""

PASSED_BY = FLOOD // 8
"""So many of the flood may start between the due time of one of the others and its start. Without turns nearly all of
those that are left do."""

SMALL = {"ROTA_CAPACITY": "20", "ROTA_LIVENESS_SECONDS": "6", "ROTA_HEARTBEAT_SECONDS": "1"}
ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"
STARTED = (
    "SELECT i.due_at, i.gmt_started FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
    " WHERE t.task_group = %s AND i.gmt_started < %s ORDER BY i.gmt_started"
)


def test_a_flood_holds_up_no_other_group_and_loses_and_doubles_nothing(cluster: Cluster) -> None:
    workers = {name: cluster.worker(name, environment=SMALL) for name in ("w1", "w2")}
    cluster.scheduler(environment=SMALL)
    cluster.wait_live(*workers, deadline=40)
    first = cluster.now().replace(microsecond=0) + timedelta(seconds=8)
    add_load(cluster, first)
    of_others = "SELECT COUNT(*) AS n FROM schedule_instance i JOIN schedule_task t ON t.id = schedule_task_id"
    begun = f"{of_others} WHERE t.task_group = 'shop' AND i.gmt_started IS NOT NULL"
    wait_until(lambda: cluster.row(begun)["n"] >= FIRING * SECONDS // 2, 30, "half of the others to start")
    killed_at = cluster.now()
    cluster.kill(workers["w1"])
    left = FLOOD - cluster.row(f"{of_others} WHERE t.task_group = 'flood' AND i.gmt_started IS NOT NULL")["n"]
    print(f"a worker was killed when {left} of the flood had not started")
    assert left > 0, "the others started beside the flood"

    started = [row["gmt_started"] for row in cluster.rows(STARTED, "flood", killed_at)]
    for row in cluster.rows(STARTED, "shop", killed_at):
        passed = sum(row["due_at"] <= moment < row["gmt_started"] for moment in started)
        assert passed <= PASSED_BY, f"one that was due at {row['due_at']} waited for {passed} of the flood"
    total = FLOOD + FIRING * SECONDS
    wait_until(lambda: cluster.row(ENDED)["n"] >= total, 90, f"{total} instances to succeed")
    invariants.check(cluster)


def add_load(cluster: Cluster, first: datetime) -> None:
    """The flood, a second before the first of the other group's fires."""
    last, due = first + timedelta(seconds=SECONDS - 1), first - timedelta(seconds=1)
    task = (
        "INSERT INTO schedule_task (name, type, param, cron, cron_seconds, trigger_kind, starts_at, ends_at,"
        " overlap_policy, misfire_grace_seconds, task_group)"
    )
    run_sql(
        cluster.url,
        "BEGIN",
        f"{task} VALUES ('flood', 'REST', '{PARAM}', NULL, 0, 'manual', NULL, NULL, 'allow', 3600, 'flood')",
        f"{task} SELECT CONCAT('shop ', seq), 'NOTE', NULL, '* * * * * *', 1, 'cron', '{first}', '{last}', 'allow',"
        f" 3600, 'shop' FROM seq_1_to_{FIRING}",
        f"""INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at)
        SELECT t.id, '{due}' - INTERVAL seq SECOND, '{due}' FROM schedule_task t JOIN seq_1_to_{FLOOD}
        WHERE t.trigger_kind = 'manual'""",
        "COMMIT",
    )
