"""Instances that wait for their turn or for a worker, in a real cluster whose workers come and go."""

import os
import signal
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

QUICK = {"ROTA_LIVENESS_SECONDS": "5", "ROTA_HEARTBEAT_SECONDS": "1"}
MISSED = 60
EVERY_SECOND = "* * * * * *"


def plan_from(cluster: Cluster, task: int, moment: datetime) -> None:
    """Let a task's plan stand at a moment: what has passed since then is late, not missed."""
    cluster.execute(
        "UPDATE schedule_task SET next_fire_at = %s, planned_inputs = plan_inputs, misfire_grace_seconds = 3600"
        " WHERE id = %s",
        moment,
        task,
    )


def fires_run(cluster: Cluster, number: int = 8) -> None:
    """Wait until so many more handlers have been entered."""
    before = len(cluster.evidence())
    wait_until(lambda: len(cluster.evidence()) > before + 2 * number, 20, "fires to run")


@pytest.mark.parametrize(
    ("columns", "slots"),
    [({"overlap_policy": "queue"}, 1), ({"overlap_policy": "allow", "max_instances": 3}, 3)],
    ids=["queue", "max_instances"],
)
def test_after_an_outage_the_oldest_fire_runs_first_though_workers_come_and_go(
    cluster: Cluster, columns: dict[str, Any], slots: int
) -> None:
    task = cluster.add_task("late", "NOTE", EVERY_SECOND, **columns)
    began = cluster.now().replace(microsecond=0)
    plan_from(cluster, task, began - timedelta(seconds=MISSED))
    victim, _ = (cluster.worker(name, environment=QUICK) for name in ("victim", "other"))
    cluster.wait_live("victim", "other")
    cluster.scheduler(environment=QUICK)
    wait_until(lambda: len(cluster.evidence()) > 2 * MISSED // 4, 30, "some of them to have run")
    cluster.kill(victim)
    cluster.worker("third", environment=QUICK)

    def are_over() -> bool:
        fires = cluster.instances_of(task)
        return len(fires) > MISSED and {f["status"] for f in fires[:MISSED]} == {"succeed"}

    wait_until(are_over, 90, "the missed fires to have run")
    entered = list(dict.fromkeys(e.fire for e in cluster.evidence() if e.event == "enter" and e.attempt == 1))
    waiting = sorted(entered)
    for fire in entered:
        assert waiting.index(fire) < slots, f"{waiting[:slots]} wait, and {fire} runs before them"
        waiting.remove(fire)
    took = (cluster.now() - began).total_seconds()
    print(f"{len(entered)} fires in their order, {took:.0f} s after the outage")
    cluster.wait_quiet()
    invariants.check(cluster)


def test_of_fires_that_no_worker_could_run_one_runs_when_a_worker_comes(cluster: Cluster) -> None:
    task = cluster.add_task("stale", "NOTE", EVERY_SECOND, misfire_grace_seconds=3)
    cluster.scheduler()
    wait_until(lambda: len(cluster.instances_of(task)) > 20, 40, "fires to pile up")
    count = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'pending' AND due_at < %s"
    assert cluster.row(count, cluster.now() - timedelta(seconds=6))["n"] == 0, "they do not"
    came = cluster.now()
    cluster.worker("first")
    cluster.wait_live("first")
    wait_until(lambda: len(cluster.evidence()) > 6, 20, "fires to run")
    ran = {e.instance for e in cluster.evidence()}
    stale = [f for f in cluster.instances_of(task) if f["due_at"] < came - timedelta(seconds=6)]
    assert len(stale) > 5
    assert not ran & {f["id"] for f in stale}
    assert {f["status"] for f in stale} == {"canceled"}
    cluster.wait_quiet()
    invariants.check(cluster)


def test_what_was_claimed_ahead_and_may_run_at_most_once_runs_though_its_worker_is_killed_before_it_is_due(
    cluster: Cluster,
) -> None:
    tasks = [
        cluster.add_task(f"once {n}", "NOTE", EVERY_SECOND, on_worker_lost="fail", overlap_policy="allow")
        for n in range(10)
    ]
    cluster.scheduler(environment=QUICK)
    victim = cluster.worker("victim", environment=QUICK)
    cluster.wait_live("victim")
    wait_until(lambda: len(cluster.evidence()) > 20 * len(tasks), 30, "fires to run on time")
    ahead_of_now = "due_at > UTC_TIMESTAMP(6) + INTERVAL 0.03 SECOND"
    worker_pid = victim.worker_pid
    while not cluster.rows(f"SELECT id FROM schedule_instance WHERE status = 'running' AND {ahead_of_now}"):
        assert victim.alive  # it claims once a second, for less than 0.1 s ahead: no pause here
    os.kill(worker_pid, signal.SIGSTOP)  # at once: to kill it with its guardian takes longer than there is
    cluster.kill(victim)
    claimed = cluster.rows(
        "SELECT i.id, n.gmt_started FROM schedule_instance AS i"
        " JOIN schedule_task_node AS n ON n.schedule_instance_id = i.id WHERE i.status = 'running'"
    )
    ahead = [row["id"] for row in claimed if row["gmt_started"] is None]
    cluster.worker("heir", environment=QUICK)
    print(f"{len(ahead)} of {len(claimed)} had not begun when their worker was killed")
    assert ahead
    cluster.wait_status([row["id"] for row in claimed], "succeed", "failed", deadline=30)
    assert set(cluster.statuses(ahead).values()) == {"succeed"}
    entered = [e.instance for e in cluster.evidence() if e.event == "enter"]
    assert len(entered) == len(set(entered)), "none twice"
    cluster.wait_quiet()
    invariants.check(cluster)


def test_where_canceling_takes_longer_than_the_period_the_newest_fire_comes_next(cluster: Cluster) -> None:
    task = cluster.add_task(
        "replaced",
        "HOLD_THREAD",
        EVERY_SECOND,
        param={"gate": "slow"},
        overlap_policy="replace",
        misfire_grace_seconds=60,
    )
    for name in ("first", "second"):
        cluster.worker(name)
    cluster.wait_live("first", "second")
    cluster.scheduler()
    wait_until(cluster.evidence, 20, "the first fire to run")
    due = "SELECT id FROM schedule_instance WHERE status IN ('pending', 'assigned') AND due_at < %s"
    most = 0

    def ten_are_replaced() -> bool:
        nonlocal most
        most = max(most, len(cluster.rows(due, cluster.now() - timedelta(seconds=1))))
        return [f["status"] for f in cluster.instances_of(task)].count("canceled") >= 10

    wait_until(ten_are_replaced, 40, "ten fires to be replaced while the first does not end")
    print(f"{most} fires waited for longer than a second at most")
    assert most <= 2
    cluster.open_gate("slow")
    wait_until(lambda: len({e.instance for e in cluster.evidence()}) > 1, 20, "the next to run")
    cluster.wait_quiet()
    boot = cluster.boot()
    ages = [boot + timedelta(seconds=e.boottime) - datetime.fromisoformat(e.fire) for e in cluster.evidence()[1:]]
    entered = [age for age, e in zip(ages, cluster.evidence()[1:], strict=True) if e.event == "enter"]
    assert max(entered) < timedelta(seconds=3), "and none that has waited for longer"
    invariants.check(cluster)


def test_nothing_that_is_due_a_tenth_of_a_second_after_off_starts_and_on_makes_up_for_nothing(
    cluster: Cluster,
) -> None:
    for number in range(4):
        cluster.add_task(f"off {number}", "NOTE", EVERY_SECOND, overlap_policy="allow", misfire_grace_seconds=60)
    cluster.worker("first")
    cluster.wait_live("first")
    cluster.scheduler()
    quiet: list[tuple[datetime, datetime]] = []
    for before_due in (0.03, 0.2, 0.6):
        fires_run(cluster)
        now = cluster.now()
        cluster.row("SELECT SLEEP(%s)", (1 - before_due - now.microsecond / 1e6) % 1)
        cluster.execute("UPDATE schedule_task SET status = 'off'")
        off_at = cluster.now()
        cluster.row("SELECT SLEEP(2.4)")
        on_at = cluster.now()
        cluster.execute("UPDATE schedule_task SET status = 'on'")
        quiet.append((off_at, on_at))
    fires_run(cluster)
    fires = [datetime.fromisoformat(e.fire) for e in cluster.evidence() if e.event == "enter"]
    for off_at, on_at in quiet:
        started = [fire for fire in fires if off_at + timedelta(seconds=0.12) < fire <= on_at]
        assert started == [], f"off from {off_at} to {on_at}"
        late = [fire for fire in fires if off_at < fire <= off_at + timedelta(seconds=0.12)]
        print(f"{len(late)} fires started that were due within 0.12 s after off")
    cluster.wait_quiet()
    invariants.check(cluster)
