"""A handler that is canceled or times out has a grace to tidy up. While one of its processes is left, its run goes on.

Each task runs one at a time, and a second run waits: it shows when the first has really ended.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

from rota.shared.clock import boottime
from rota.supervise.parent import AFTER_GRACE_SECONDS
from tests.harness.cluster import Cluster
from tests.harness.processes import gone, wait_until

GRACE_SECONDS = 3
TIDIES = "trap 'touch $FILES.told; until [ -e $FILES.go ]; do sleep 0.05; done; echo bye > $FILES.bye; exit' TERM"
IGNORES = "trap '' TERM"
GRANDCHILD = "(exec sh -c 'echo $$ >> $FILES.pids; while :; do sleep 0.05; done') &"
WAITS = "echo $$ >> $FILES.pids; while :; do sleep 0.05; done"


@pytest.fixture
def alone(cluster: Cluster) -> Cluster:
    """One scheduler and one worker, ``w``."""
    cluster.scheduler()
    options = ("--heartbeat-seconds", "1", "--cancel-grace-seconds", str(GRACE_SECONDS), "--abandoned-seconds", "60")
    cluster.worker("w", "--allow-shell", *options)
    cluster.wait_live("w")
    return cluster


def two_runs(cluster: Cluster, kind: str, **columns: Any) -> tuple[int, int]:
    """One that runs, and one that waits for its end."""
    first, second = cluster.add_instances(cluster.add_task(kind, kind, overlap_policy="queue", **columns), 2)
    cluster.wait_status([first], "running")
    return first, second


def command(tmp_path: Path, *words: str, **more: Any) -> dict[str, Any]:
    return {"param": {"command": "; ".join(words).replace("&;", "&"), "env": {"FILES": str(tmp_path / "x")}, **more}}


def pids(tmp_path: Path, count: int) -> list[int]:
    file = tmp_path / "x.pids"
    wait_until(lambda: file.exists() and len(file.read_text().split()) >= count, 15, "the command to run")
    return [int(pid) for pid in file.read_text().split()][:count]


def alive(processes: list[int]) -> list[int]:
    return [pid for pid in processes if not gone(pid)]


def cancel(cluster: Cluster, instance: int) -> None:
    cluster.execute("UPDATE schedule_instance SET gmt_cancel_requested = UTC_TIMESTAMP(6) WHERE id = %s", instance)


def test_a_command_that_tidies_up_ends_when_it_has(alone: Cluster, tmp_path: Path) -> None:
    first, second = two_runs(alone, "SHELL_COMMAND", **command(tmp_path, TIDIES, WAITS))
    (leader,) = pids(tmp_path, 1)
    cancel(alone, first)
    wait_until((tmp_path / "x.told").exists, 10, "SIGTERM")
    assert alone.statuses([first, second]) == {first: "running", second: "assigned"}
    assert alive([leader])
    (tmp_path / "x.go").touch()
    alone.wait_status([first], "canceled")
    assert not alive([leader])
    assert (tmp_path / "x.bye").read_text() == "bye\n"
    assert alone.instance(first)["reason"] == "canceled"
    wait_until(lambda: len(pids(tmp_path, 2)) == 2, 10, "the next run")
    cancel(alone, second)
    alone.wait_status([second], "canceled")


@pytest.mark.parametrize("how", ["cancel", "timeout", "run timeout", "timeout of its own"])
def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_with_what_it_started(
    alone: Cluster, tmp_path: Path, how: str
) -> None:
    columns = {"timeout": {"timeout_seconds": 1}, "run timeout": {"run_timeout_seconds": 1}}.get(how, {})
    own = {"timeout_seconds": 1} if how == "timeout of its own" else {}
    first, second = two_runs(alone, "SHELL_COMMAND", **command(tmp_path, IGNORES, GRANDCHILD, WAITS, **own), **columns)
    both = pids(tmp_path, 2)
    if how == "cancel":
        cancel(alone, first)
    wait_until(lambda: alone.statuses([first])[first] != "running" or not alive(both), 20, "its end")
    alone.wait_status([first], "canceled" if how == "cancel" else "failed")
    assert alive(both) == []
    row = alone.instance(first)
    assert (row["gmt_completed"] - row["gmt_started"]).total_seconds() > GRACE_SECONDS
    assert "still ran" not in row["reason"]
    pids(tmp_path, 4)
    cancel(alone, second)
    alone.wait_status([second], "canceled", "failed", deadline=20)


@pytest.mark.parametrize(
    ("kind", "grace", "events"), [("HOLD_PROCESS", 20, ["enter", "raised"]), ("IGNORE_PROCESS", 3, ["enter"])]
)
def test_a_process_tidies_up_or_is_killed_after_the_grace(
    cluster: Cluster, kind: str, grace: int, events: list[str]
) -> None:
    cluster.scheduler()
    options = ("--heartbeat-seconds", "1", "--cancel-grace-seconds", str(grace), "--abandoned-seconds", "90")
    cluster.worker("w", *options)
    cluster.wait_live("w")
    first, second = two_runs(cluster, kind, param={"gate": "go"})
    (entry,) = wait_until(lambda: cluster.entries(first, "enter"), what="the process to run")
    began = cluster.now()
    cancel(cluster, first)
    cluster.wait_status([first], "canceled")
    assert not alive([entry.pid])
    assert [e.event for e in cluster.entries(first)] == events
    waited = (cluster.instance(first)["gmt_completed"] - began).total_seconds()
    assert (waited > grace) == (kind == "IGNORE_PROCESS")
    wait_until(lambda: cluster.entries(second, "enter"), what="the next run")
    cluster.open_gate("go")
    cluster.wait_status([second], "succeed")


def test_a_thread_that_obeys_within_its_grace_ends_as_canceled(alone: Cluster) -> None:
    first, second = two_runs(alone, "HEED_THREAD", param={"gate": "go"})
    wait_until(lambda: alone.entries(first, "enter"), 10, "the handler to be entered")
    cancel(alone, first)
    wait_until(lambda: alone.entries(first, "told"), 10, "the thread to see it")
    assert alone.statuses([first]) == {first: "running"}
    alone.open_gate("go")
    alone.wait_status([first], "canceled")
    row = alone.instance(first)
    assert (row["reason"], row["slot_kept"]) == ("canceled", 0)
    wait_until(lambda: alone.entries(second, "enter"), 10, "the next run")
    cancel(alone, second)
    alone.wait_status([second], "canceled")


@pytest.mark.parametrize(("kind", "what"), [("HOLD_THREAD", "thread"), ("SWALLOW", "coroutine")])
@pytest.mark.parametrize("given", [None, "by hand, for a test"])
def test_what_does_not_obey_is_said_to_run_on_and_its_result_is_not_recorded(
    alone: Cluster, kind: str, what: str, given: str | None
) -> None:
    first, second = two_runs(alone, kind, param={"gate": "go"})
    wait_until(lambda: alone.entries(first, "enter"), 10, "the handler to be entered")
    if given:
        alone.execute("UPDATE schedule_instance SET reason = %s WHERE id = %s", given, first)
    cancel(alone, first)
    alone.wait_status([first], "canceled", deadline=20)
    row = alone.instance(first)
    words = f"; its {what} did not end within the grace and still ran on worker 'w'"
    assert row["reason"] == (given or "canceled") + words
    assert row["slot_kept"] == 1
    beat = "SELECT abandoned FROM schedule_worker_beat"
    wait_until(lambda: alone.row(beat)["abandoned"] == 1, 5, "the worker to say that a slot is taken")
    assert alone.entries(second) == []
    alone.open_gate("go")
    alone.wait_status([second], "succeed")
    wait_until(lambda: alone.instance(first)["slot_kept"] == 0, 5, "the slot to be free")
    after = alone.instance(first)
    assert [e.event for e in alone.entries(first)] == ["enter", "exit"]
    changes = ("slot_kept", "overlap_key", "gmt_modified")
    assert {**after, **{name: row[name] for name in changes}} == row


@pytest.mark.parametrize("kind", ["HOLD_PROCESS", "IGNORE_PROCESS", "SHELL_COMMAND"])
def test_a_worker_that_stops_hands_back_what_ignores_it_and_takes_no_longer_than_it_says(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    cluster.scheduler()
    worker = cluster.worker("w", "--allow-shell", "--grace-seconds", "1", "--cancel-grace-seconds", "20")
    cluster.wait_live("w")
    columns = command(tmp_path, IGNORES, WAITS) if kind == "SHELL_COMMAND" else {"param": {"gate": "never"}}
    (instance,) = cluster.add_instances(cluster.add_task("held", kind, **columns))
    if kind == "SHELL_COMMAND":
        (pid,) = pids(tmp_path, 1)
    else:
        pid = wait_until(lambda: cluster.entries(instance, "enter"), 15, "the process to run")[0].pid
    began = boottime()
    worker.stop_signal(signal.SIGTERM)
    cluster.wait_status([instance], "pending", deadline=20)
    assert not alive([pid])
    assert cluster.instance(instance)["worker_losses"] == 0
    assert worker.wait_exit(30) == 0
    assert boottime() - began < 1 + AFTER_GRACE_SECONDS


@pytest.mark.parametrize("on_worker_lost", ["retry", "fail"])
def test_a_cancel_is_seen_while_the_worker_lets_its_runs_end(cluster: Cluster, on_worker_lost: str) -> None:
    cluster.scheduler()
    worker = cluster.worker("w", "--heartbeat-seconds", "1", "--grace-seconds", "120")
    cluster.wait_live("w")
    task = cluster.add_task("heeds", "HEED_THREAD", on_worker_lost=on_worker_lost, param={"gate": "go"})
    (instance,) = cluster.add_instances(task)
    wait_until(lambda: cluster.entries(instance, "enter"), 15, "the handler to be entered")
    worker.stop_signal(signal.SIGTERM)
    worker.wait_for_log("stopping; running work has 120 s")
    state = "SELECT state FROM schedule_worker_node"
    wait_until(lambda: cluster.row(state)["state"] == "draining", 15, "the worker to take no more")
    cluster.execute("UPDATE schedule_instance SET reason = 'not needed' WHERE id = %s", instance)
    cancel(cluster, instance)
    wait_until(lambda: cluster.entries(instance, "told"), 15, "the thread to see it")
    cluster.open_gate("go")
    assert worker.wait_exit(30) == 0
    row = cluster.instance(instance)
    assert (row["status"], row["reason"]) == ("canceled", "not needed")


@pytest.mark.parametrize("on_worker_lost", ["retry", "fail"])
def test_what_is_to_be_canceled_as_its_worker_stops_is_canceled(cluster: Cluster, on_worker_lost: str) -> None:
    cluster.scheduler()
    options = ("--heartbeat-seconds", "1", "--grace-seconds", "1", "--cancel-grace-seconds", "20")
    worker = cluster.worker("w", *options, "--abandoned-seconds", "60")
    cluster.wait_live("w")
    task = cluster.add_task("heeds", "HEED_THREAD", on_worker_lost=on_worker_lost, param={"gate": "go"})
    (instance,) = cluster.add_instances(task)
    wait_until(lambda: cluster.entries(instance, "enter"), what="the handler to be entered")
    cluster.execute("UPDATE schedule_instance SET reason = 'not needed' WHERE id = %s", instance)
    cancel(cluster, instance)
    wait_until(lambda: cluster.entries(instance, "told"), what="the thread to see it")
    worker.stop_signal(signal.SIGTERM)
    worker.wait_for_log("stops with 1 instances still running")
    cluster.open_gate("go")
    assert worker.wait_exit() == 0
    cluster.wait_status([instance], "canceled")
    assert cluster.instance(instance)["reason"].startswith("not needed; worker 'w' ")
