"""A worker and its guardian: whichever of them is killed, frozen or held up, work goes on, and nothing runs twice."""

import os
import signal
from functools import partial

import psutil
import pytest

from rota.worker_service.liveness import EXIT_LEASE_LOST
from tests.harness import invariants
from tests.harness.cluster import Cluster, Row
from tests.harness.processes import RotaProcess, gone, wait_until

QUICK = {"ROTA_LIVENESS_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1"}
ELSEWHERE_SECONDS = 4.0
"""Within so long what a killed worker held runs elsewhere: two passes of a second, and as much for this machine."""


def worker_row(cluster: Cluster, name: str) -> Row:
    return cluster.row("SELECT * FROM schedule_worker_node WHERE name = %s ORDER BY id DESC", name)


def is_dead(cluster: Cluster, name: str, reason: str) -> bool:
    """Whether the row says so. It shows a death at once, unless it was locked in that moment."""
    row = worker_row(cluster, name)
    return (row["state"], row["reason"]) == ("dead", reason)


def wait_guarded(cluster: Cluster, name: str) -> None:
    """Wait until the guardian holds the lease: the first beat of the row is the worker's, the next the guardian's."""
    worker = cluster.wait_live(name)[name]
    beat = "SELECT last_beat FROM schedule_worker_beat WHERE schedule_worker_node_id = %s"
    first = cluster.row(beat, worker)["last_beat"]
    wait_until(lambda: cluster.row(beat, worker)["last_beat"] > first, 5, "a beat of the guardian")


def started_elsewhere(cluster: Cluster, instances: list[int], worker: int) -> bool:
    rows = [cluster.instance(i) for i in instances]
    return all(r["schedule_worker_node_id"] == worker and r["status"] in ("running", "succeed") for r in rows)


def held_up(cluster: Cluster, seconds: float, **environment: str) -> tuple[RotaProcess, int]:
    """A worker one of whose handlers holds Python's lock, and another handler's run beside it."""
    lock = cluster.add_task("lock", "HOLD_LOCK", param={"seconds": seconds}, overlap_policy="allow")
    beside = cluster.add_task("beside", "HOLD_THREAD", param={"gate": "go"}, overlap_policy="allow")
    cluster.scheduler()
    worker = cluster.worker("w", environment={**QUICK, **environment})
    cluster.wait_live("w")
    cluster.wait_status(cluster.add_instances(beside), "running")
    (blocking,) = cluster.add_instances(lock)
    wait_until(lambda: cluster.entries(blocking, "enter"), 15, "the lock to be held")
    return worker, blocking


def test_what_a_worker_held_whose_process_is_killed_runs_elsewhere_after_two_passes(cluster: Cluster) -> None:
    held = cluster.add_task("held", "HOLD", param={"gate": "go"}, overlap_policy="allow")
    cluster.scheduler()
    victim = cluster.worker("victim")
    cluster.wait_live("victim")
    ids = cluster.add_instances(held, 5)
    cluster.wait_status(ids, "running")
    cluster.worker("other")
    other = cluster.wait_live("other")["other"]
    cluster.discount(victim)
    killed_at = cluster.now()
    os.kill(victim.worker_pid, signal.SIGKILL)
    wait_until(partial(started_elsewhere, cluster, ids, other), 20, "all to run elsewhere")
    cluster.open_gate("go")
    cluster.wait_status(ids, "succeed")
    waits = sorted((cluster.instance(i)["gmt_started"] - killed_at).total_seconds() for i in ids)
    print(f"started elsewhere {waits[0]:.2f} .. {waits[-1]:.2f} s after the kill")
    assert waits[-1] <= ELSEWHERE_SECONDS
    assert victim.wait_exit() == 128 + signal.SIGKILL
    wait_until(lambda: is_dead(cluster, "victim", "its process was killed by SIGKILL"), 3, "the row to say so")
    invariants.check(cluster)


def test_the_kernel_ends_a_worker_whose_guardian_is_killed_and_its_commands_end_too(cluster: Cluster) -> None:
    task = cluster.add_task("child", "HOLD_PROCESS", param={"gate": "go"}, overlap_policy="allow")
    cluster.scheduler()
    worker = cluster.worker("w", environment=QUICK)
    cluster.wait_live("w")
    (held,) = cluster.add_instances(task)
    (entry,) = wait_until(lambda: cluster.entries(held, "enter"), 15, "the child process to run")
    both = [psutil.Process(worker.worker_pid), psutil.Process(entry.pid)]
    worker.kill()
    wait_until(lambda: all(map(gone, both)), 5, "the end of the worker and its command")
    wait_until(lambda: worker_row(cluster, "w")["state"] == "dead", 15, "the worker to be declared dead")


def test_a_command_ends_with_its_worker_whose_guardian_is_killed(cluster: Cluster) -> None:
    file = cluster.folder / "command"
    line = f"echo $$ > {file}.new; mv {file}.new {file}; sleep 900"
    task = cluster.add_task("command", "SHELL_COMMAND", param={"command": line})
    cluster.scheduler()
    worker = cluster.worker("w", "--allow-shell")
    cluster.wait_live("w")
    cluster.add_instances(task)
    wait_until(file.exists, 15, "the command to run")
    command = psutil.Process(int(file.read_text()))
    everything = [command, *command.children(recursive=True), psutil.Process(worker.worker_pid)]
    worker.kill()
    wait_until(lambda: all(map(gone, everything)), 5, "the end of the worker and its command")


def test_a_frozen_worker_is_said_to_be_blocked_and_killed_after_blocked_seconds(cluster: Cluster) -> None:
    cluster.scheduler()
    worker = cluster.worker("w", environment={**QUICK, "ROTA_BLOCKED_SECONDS": "6"})
    wait_guarded(cluster, "w")
    os.kill(worker.worker_pid, signal.SIGSTOP)
    wait_until(lambda: worker_row(cluster, "w")["gmt_blocked"], 5, "the row to say that the worker is blocked")
    assert worker_row(cluster, "w")["state"] == "live"
    assert worker_row(cluster, "w")["blocked_by"] == "no run"
    assert worker.wait_exit(10) == EXIT_LEASE_LOST
    wait_until(lambda: is_dead(cluster, "w", "it did not answer for 6 s, blocked by no run"), 3, "the row to say so")


def test_a_worker_whose_guardian_is_frozen_ends_itself_when_its_lease_is_over(cluster: Cluster) -> None:
    cluster.scheduler()
    guardian = cluster.worker("w", environment=QUICK)
    cluster.wait_live("w")
    worker = psutil.Process(guardian.worker_pid)
    guardian.stop_signal(signal.SIGSTOP)
    wait_until(lambda: gone(worker), 4 + 1, "the worker to end before its liveness limit")
    assert "its guardian has not renewed its lease" in guardian.log
    guardian.stop_signal(signal.SIGCONT)
    assert guardian.wait_exit() == EXIT_LEASE_LOST


def test_a_worker_lives_through_a_handler_that_holds_pythons_lock_and_its_row_says_which(cluster: Cluster) -> None:
    worker, blocking = held_up(cluster, seconds=8)
    wait_until(lambda: worker_row(cluster, "w")["gmt_blocked"], 8, "the row to say that the worker is blocked")
    row = worker_row(cluster, "w")
    assert (row["state"], row["blocked_by"]) == ("live", f"instance {blocking}")
    assert row["gmt_blocked"] < cluster.now()
    cluster.wait_status([blocking], "succeed", deadline=40)
    wait_until(lambda: worker_row(cluster, "w")["gmt_blocked"] is None, 8, "the row to say that it answers again")
    assert cluster.instance(blocking)["attempt"] == 1
    assert worker.alive
    cluster.open_gate("go")
    cluster.wait_quiet()
    invariants.check(cluster)


def test_a_worker_is_killed_whose_handler_holds_pythons_lock_for_longer_than_blocked_seconds(cluster: Cluster) -> None:
    worker, blocking = held_up(cluster, seconds=60, ROTA_BLOCKED_SECONDS="5")
    cluster.discount(worker)
    assert worker.wait_exit(15) == EXIT_LEASE_LOST
    reason = f"it did not answer for 5 s, blocked by instance {blocking}"
    wait_until(lambda: is_dead(cluster, "w", reason), 3, "the row to say so")
    wait_until(lambda: cluster.instance(blocking)["status"] == "pending", 5, "the run to be taken back")
    losses = cluster.row("SELECT sum(worker_losses) AS all_, count(*) AS runs FROM schedule_instance")
    assert (losses["all_"], losses["runs"]) == (1, 2), "the run beside it has lost no worker"


def test_a_second_signal_ends_a_worker_that_does_not_answer(cluster: Cluster) -> None:
    worker, blocking = held_up(cluster, seconds=60)
    cluster.discount(worker)
    worker.stop_signal(signal.SIGTERM)
    wait_until(lambda: worker_row(cluster, "w")["gmt_blocked"], 8, "the row to say that the worker is blocked")
    worker.stop_signal(signal.SIGTERM)
    assert worker.wait_exit(5) == EXIT_LEASE_LOST
    reason = "it was asked twice to stop and did not answer"
    wait_until(lambda: is_dead(cluster, "w", reason), 3, "the row to say so")
    wait_until(lambda: cluster.instance(blocking)["status"] == "pending", 5, "the run to be taken back")
    assert cluster.instance(blocking)["worker_losses"] == 0


@pytest.mark.parametrize("kind", ["THREAD", "PROCESS"])
def test_a_handler_that_uses_sigalrm_disturbs_neither_of_them(cluster: Cluster, kind: str) -> None:
    task = cluster.add_task("alarm", f"ALARM_{kind}", overlap_policy="allow")
    cluster.scheduler()
    worker = cluster.worker("w", app="tests.harness.alarm_app:app", environment=QUICK)
    cluster.wait_live("w")
    ids = cluster.add_instances(task, 3)
    cluster.wait_status(ids, "succeed")
    assert {cluster.instance(i)["attempt"] for i in ids} == {1}
    worker.stop_signal(signal.SIGTERM)
    assert worker.wait_exit() == 0


def test_a_signal_that_reaches_both_processes_counts_once(cluster: Cluster) -> None:
    """As systemd sends it, to each process of the service."""
    held = cluster.add_task("held", "HOLD", param={"gate": "go"}, overlap_policy="allow")
    cluster.scheduler()
    worker = cluster.worker("w")
    cluster.wait_live("w")
    ids = cluster.add_instances(held, 2)
    cluster.wait_status(ids, "running")
    for pid in (worker.worker_pid, worker.pid):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: worker_row(cluster, "w")["state"] == "draining", 5, "the worker to drain")
    cluster.open_gate("go")
    cluster.wait_status(ids, "succeed")
    assert {cluster.instance(i)["attempt"] for i in ids} == {1}
    assert worker.wait_exit() == 0
    wait_until(lambda: is_dead(cluster, "w", "stopped"), 3, "the row to say so")
