"""A minute of a task that fires each second, while elsewhere a coroutine blocks its event loop."""

from datetime import timedelta
from statistics import median

from tests.harness import invariants
from tests.harness.cluster import Cluster, Row
from tests.harness.processes import wait_until

FIRES = 60
BLOCKED_SECONDS = 25
HEARTBEAT_SECONDS = 3


def test_a_task_of_each_second_runs_60_times_in_a_minute_and_a_blocked_event_loop_does_not_make_a_worker_look_dead(
    cluster: Cluster,
) -> None:
    cluster.worker("punctual", "--label", "role=punctual")
    blocked_worker = cluster.worker("blocked", "--label", "role=blocked")
    cluster.scheduler()
    ids = cluster.wait_live("punctual", "blocked")
    there: Row = {"required_labels": {"role": "blocked"}}
    tick = cluster.add_task(
        "tick", "NOTE", "*/1 * * * * *", required_labels={"role": "punctual"}, overlap_policy="allow"
    )
    threads = cluster.add_task("threads", "NOTE_THREAD", "* * * * * *", overlap_policy="allow", **there)
    block = cluster.add_task("block", "BLOCK", param={"seconds": BLOCKED_SECONDS}, **there)
    note = cluster.add_task("note", "NOTE", overlap_policy="allow", **there)
    wait_until(lambda: cluster.instances_of(tick), 15, "the first fire")

    (blocking,) = cluster.add_instances(block)
    wait_until(lambda: cluster.entries(blocking, "enter"), 15, "the event loop to be blocked")
    behind, unwanted = cluster.add_instances(note, 2)
    cluster.wait_status([behind, unwanted], "running")
    cluster.execute("UPDATE schedule_instance SET gmt_cancel_requested = UTC_TIMESTAMP(6) WHERE id = %s", unwanted)
    beats = set()

    def unblocked() -> bool:
        row = cluster.row("SELECT * FROM schedule_worker_beat WHERE schedule_worker_node_id = %s", ids["blocked"])
        assert row["gmt_dead"] is None
        beats.add(row["last_beat"])
        return bool(cluster.entries(blocking, "exit"))

    wait_until(unblocked, BLOCKED_SECONDS + 15, "the event loop to go on")
    cluster.wait_status([blocking, behind], "succeed")
    cluster.wait_status([unwanted], "canceled")
    assert cluster.entries(unwanted) == []
    (entered,), (left,) = (cluster.entries(blocking, event) for event in ("enter", "exit"))
    assert left.boottime - entered.boottime >= BLOCKED_SECONDS
    assert len(beats) >= BLOCKED_SECONDS / HEARTBEAT_SECONDS - 2
    assert cluster.instance(blocking)["attempt"] == 1
    meanwhile = [e for e in cluster.evidence() if e.task == "threads" and entered.boottime < e.boottime < left.boottime]
    assert len([e for e in meanwhile if e.event == "exit"]) >= BLOCKED_SECONDS - 2, "handlers on threads go on"
    assert {e.pid for e in meanwhile} == {blocked_worker.worker_pid}

    ran = """SELECT COUNT(*) AS n FROM schedule_instance
        WHERE schedule_task_id = %s AND status = 'succeed' AND gmt_create < due_at"""
    wait_until(lambda: cluster.row(ran, tick)["n"] >= FIRES, 60, f"{FIRES} fires to have run")
    cluster.wait_quiet()
    for task in (tick, threads):
        rows = cluster.instances_of(task)
        fires = [row["schedule_datetime"] for row in rows]
        assert fires == [fires[0] + timedelta(seconds=n) for n in range(len(fires))], "60 in a row, each once"
        ahead = [row for row in rows if row["gmt_create"] < row["due_at"]]  # not the first, due as the task was added
        done = [row for row in ahead if row["status"] == "succeed"][:FIRES]
        assert [row["schedule_datetime"] for row in done] == fires[-len(ahead) :][: len(done)]
        assert [len(cluster.entries(row["id"])) for row in done] == [2] * len(done)
        late = sorted((row["gmt_started"] - row["due_at"]).total_seconds() * 1000 for row in done)
        print(
            f"{len(done)} starts of {'a coroutine' if task == tick else 'a thread beside a blocked event loop'}, ms "
            f"after due: min {late[0]:.2f}, median {median(late):.2f}, p95 {late[int(len(late) * 0.95)]:.2f}, "
            f"p99 {late[int(len(late) * 0.99)]:.2f}, max {late[-1]:.2f}"
        )
        assert late[0] >= 0
        assert len(done) == FIRES or task != tick
    invariants.check(cluster)
