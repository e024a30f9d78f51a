"""One scheduler and two workers, steered by SQL and by hand: each test has tasks of its own in the same cluster.

tests/long/test_steering.py has what takes longer.
"""

import json
import os
import subprocess
import sys

import psutil

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import ROOT, wait_until


def test_a_retry_runs_the_nodes_that_failed_and_not_those_that_succeeded(steered: Cluster) -> None:
    task = steered.add_task("steps", "STEPS", param={"fail_until": 1}, retries=1, retry_delay_seconds=1)
    (stepped,) = steered.add_instances(task)
    steered.wait_status([stepped], "succeed", deadline=20)
    row = steered.instance(stepped)
    assert (row["attempt"], row["failures"]) == (2, 1)
    said = [(e.node, e.event, e.attempt) for e in steered.entries(stepped)]
    assert said == [
        ("STEPS_FIRST", "enter", 1),
        ("STEPS_FIRST", "exit", 1),
        ("STEPS_SECOND", "enter", 1),
        ("STEPS_SECOND", "raised", 1),
        ("STEPS_SECOND", "enter", 2),
        ("STEPS_SECOND", "exit", 2),
        ("STEPS_THIRD", "enter", 2),
        ("STEPS_THIRD", "exit", 2),
    ]
    assert json.loads(row["execution_result"]) == {"after": {"after": {"attempt": 1}}}


def test_of_a_task_that_fires_faster_than_it_runs_as_many_fires_wait_as_may(steered: Cluster) -> None:
    gate = {"gate": "bounded"}
    task = steered.add_task("bounded", "HOLD", "* * * * * *", param=gate, overlap_policy="queue", max_waiting=2)
    of_status = "SELECT COUNT(*) AS n FROM schedule_instance WHERE schedule_task_id = %s AND status "
    wait_until(lambda: steered.row(f"{of_status} = 'canceled'", task)["n"] >= 5, 30, "fires without a place")
    seen = {row["id"]: row for row in steered.instances_of(task)}
    steered.open_gate("bounded")
    first, *waited = [number for number, row in seen.items() if row["status"] in ("running", "assigned", "pending")]
    steered.wait_status([first, *waited[:2]], "succeed", deadline=30)
    steered.execute("UPDATE schedule_task SET status = 'off' WHERE id = %s", task)
    assert first < min(waited) < max(waited[:2]) < min(n for n, row in seen.items() if row["status"] == "canceled")
    reasons = {row["reason"] for row in seen.values() if row["status"] == "canceled"}
    assert reasons == {"overlap: as many fires of its task as max_waiting allows (2) waited before this one"}


def test_a_retry_that_restarts_runs_all_nodes_again(steered: Cluster) -> None:
    task = steered.add_task(
        "again", "STEPS", param={"fail_until": 1}, retries=1, retry_delay_seconds=0, on_retry="restart"
    )
    (stepped,) = steered.add_instances(task)
    steered.wait_status([stepped], "succeed", deadline=20)
    entered = [(e.node, e.attempt) for e in steered.entries(stepped, "enter")]
    assert entered == [
        ("STEPS_FIRST", 1), ("STEPS_SECOND", 1), ("STEPS_FIRST", 2), ("STEPS_SECOND", 2), ("STEPS_THIRD", 2),
    ]  # fmt: skip
    assert json.loads(steered.instance(stepped)["execution_result"]) == {"after": {"after": {"attempt": 2}}}


def test_a_handler_says_of_itself_whether_it_is_retried_wherever_it_runs(steered: Cluster) -> None:
    later, never = (
        [
            steered.add_instances(steered.add_task(f"{word} {kind}", kind, param={"say": word}, retries=3))[0]
            for kind in ("SAY", "SAY_THREAD", "SAY_PROCESS")
        ]
        for word in ("retry", "fail")
    )
    steered.wait_status(later, "succeed", deadline=20)
    steered.wait_status(never, "failed", deadline=20)
    for instance in later:
        row = steered.instance(instance)
        assert (row["attempt"], row["failures"]) == (2, 1)
    for instance in never:
        row = steered.instance(instance)
        assert (row["attempt"], row["failures"]) == (1, 1)
        assert row["reason"].endswith("failed: Fail: it is gone")


def test_a_running_instance_is_canceled_by_sql_and_a_process_by_the_command(steered: Cluster) -> None:
    (coroutine,) = steered.add_instances(steered.add_task("canceled", "HOLD", param={"gate": "never"}))
    child = steered.add_task("canceled process", "HOLD_PROCESS", param={"gate": "never"}, overlap_policy="skip")
    (running,) = steered.add_instances(child)
    (entry,) = wait_until(lambda: steered.entries(running, "enter"), 15, "the process to run")
    (waiting,) = steered.add_instances(child)
    steered.wait_status([coroutine, running], "running")
    assert psutil.pid_exists(entry.pid)
    steered.execute("UPDATE schedule_instance SET gmt_cancel_requested = UTC_TIMESTAMP(6) WHERE id = %s", coroutine)
    command = [sys.executable, "-m", "rota", "-d", steered.url, "instance", "cancel", str(running), str(waiting)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True, check=True)
    assert f"instance {running} runs; its worker is asked to stop it" in done.stdout
    assert f"instance {waiting} is canceled" in done.stdout
    steered.wait_status([coroutine, running, waiting], "canceled", deadline=10)
    reasons = {i: steered.instance(i)["reason"] for i in (coroutine, running, waiting)}
    assert reasons == {coroutine: "canceled", running: "canceled by hand", waiting: "canceled by hand"}
    assert [e.event for e in steered.entries(coroutine)] == ["enter", "raised"]
    assert [e.event for e in steered.entries(running)] == ["enter", "raised"], "SystemExit"
    wait_until(lambda: not psutil.pid_exists(entry.pid), 5, "the process to be gone")
    assert steered.entries(waiting) == []


def test_an_instance_that_sql_cancels_before_its_start_never_runs(steered: Cluster) -> None:
    task = steered.add_task("unwanted", "HOLD", param={"gate": "unwanted"}, overlap_policy="queue")
    steered.execute(  # at once, or the first may run before the second is given out, which then stays pending
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime) VALUES (%s, %s), (%s, %s)",
        *(task, "2026-11-19 02:00:00", task, "2026-11-19 03:00:00"),
    )
    both = [row["id"] for row in steered.instances_of(task)]
    wait_until(lambda: sorted(steered.statuses(both).values()) == ["assigned", "running"], 15, "one to wait for one")
    running, waiting = sorted(both, key=lambda instance: steered.statuses(both)[instance], reverse=True)
    steered.execute("UPDATE schedule_instance SET gmt_cancel_requested = UTC_TIMESTAMP(6) WHERE id = %s", waiting)
    steered.open_gate("unwanted")
    steered.wait_status([running, waiting], "succeed", "canceled")
    assert steered.instance(waiting)["reason"] == "canceled before it started"
    assert steered.entries(waiting) == []


def test_in_the_end_every_invariant_holds(steered: Cluster) -> None:
    steered.wait_quiet()
    invariants.check(steered)
