"""One scheduler and two workers, steered by SQL, in what takes some ticks: each test has tasks of its own.

tests/cluster/test_steering.py has what takes less.
"""

from datetime import timedelta
from itertools import accumulate

from tests.harness import invariants
from tests.harness.cluster import Cluster, Row
from tests.harness.processes import RotaProcess, wait_until

TICK_SECONDS = 1


def pass_ticks(cluster: Cluster, ticks: int = 3) -> None:
    """Let the scheduler place some instances one after another: so many of its passes are over."""
    for _ in range(ticks):
        names = cluster.row("SELECT COUNT(*) AS n FROM schedule_task")["n"]
        cluster.wait_status(cluster.add_instances(cluster.add_task(f"pass {names}", "NOTE")), "succeed")


def test_an_instance_that_no_worker_fits_waits_and_the_log_says_so_once(
    steered: Cluster, scheduler: RotaProcess
) -> None:
    task = steered.add_task("needs a gpu", "NOTE", required_labels={"gpu": "a100"})
    reason = "no live worker that can run it carries the labels gpu=a100"
    (waiting,) = steered.add_instances(task)
    wait_until(lambda: steered.instance(waiting)["reason"] == reason, 10, "the reason to be written")
    pass_ticks(steered)
    assert steered.instance(waiting)["status"] == "pending"
    assert scheduler.log.count(reason) == 1

    steered.worker("c", "--label", "gpu=a100")
    steered.wait_status([waiting], "succeed", deadline=20)
    scheduler.wait_for_log(f"over: task type NOTE: {reason}")
    assert steered.instance(waiting)["reason"] is None


def test_a_task_whose_type_no_worker_has_registered_yet_waits_for_one(steered: Cluster) -> None:
    task = steered.add_task("early", "LATECOMER", "* * * * * *")
    (waiting,) = steered.add_instances(task)
    pass_ticks(steered)
    assert steered.instance(waiting)["status"] == "pending"
    assert "LATECOMER" in steered.instance(waiting)["reason"]

    steered.worker("late", app="tests.harness.apps:late_app")
    steered.wait_status([waiting], "succeed", deadline=20)
    wait_until(
        lambda: [row for row in steered.instances_of(task) if (row["origin"], row["status"]) == ("cron", "succeed")],
        10,
        "its cron to fire",
    )
    steered.execute("UPDATE schedule_task SET status = 'off' WHERE id = %s", task)


def test_assignments_that_are_not_started_in_time_go_to_another_worker(steered: Cluster) -> None:
    lane: Row = {"required_labels": {"lane": "x"}, "overlap_policy": "allow"}
    held = steered.add_task("holds the lane", "HOLD", param={"gate": "lane"}, **lane)
    noted = steered.add_task("waits in the lane", "NOTE", **lane)
    steered.worker("narrow", "--capacity", "1", "--label", "lane=x")
    narrow = steered.wait_live("narrow")["narrow"]
    holding = steered.add_instances(held)
    steered.wait_status(holding, "running")
    waiting = steered.add_instances(noted, 3)
    steered.wait_status(waiting, "assigned")
    assert {steered.instance(i)["schedule_worker_node_id"] for i in waiting} == {narrow}
    steered.worker("wide", "--label", "lane=x")
    steered.wait_status(waiting, "succeed", deadline=20)
    assert {steered.instance(i)["schedule_worker_node_id"] for i in waiting} == {steered.wait_live("wide")["wide"]}
    assert steered.statuses(holding) == {holding[0]: "running"}
    steered.open_gate("lane")
    steered.wait_status(holding, "succeed")


def test_off_by_sql_stops_fires_at_once_and_an_edited_cron_is_followed_within_two_ticks(steered: Cluster) -> None:
    task = steered.add_task("edited", "NOTE", "* * * * * *")
    ran = "SELECT COUNT(*) AS n FROM schedule_instance WHERE schedule_task_id = %s AND status = 'succeed'"
    wait_until(lambda: steered.row(ran, task)["n"] >= 2, 15, "two fires")
    steered.execute("UPDATE schedule_task SET status = 'off' WHERE id = %s", task)
    off = steered.now()
    canceled = "SELECT * FROM schedule_instance WHERE schedule_task_id = %s AND status = 'canceled'"
    wait_until(lambda: len(steered.rows(canceled, task)) >= 2, 10, "fires that were put ahead to be canceled")
    assert {row["reason"] for row in steered.rows(canceled, task)} == {"its task was off when it was due"}

    steered.execute("UPDATE schedule_task SET status = 'on', cron = '*/2 * * * * *' WHERE id = %s", task)
    on = steered.now()
    in_time = on + timedelta(seconds=2 * TICK_SECONDS)
    started = "SELECT * FROM schedule_instance WHERE schedule_task_id = %s AND due_at > %s AND status = 'succeed'"
    wait_until(lambda: len(steered.rows(started, task, in_time)) >= 2, 15, "two fires of the new cron")
    steered.execute("UPDATE schedule_task SET cron = '0 0 0 1 1 *' WHERE id = %s", task)
    edited = steered.now()
    wait_until(
        lambda: (
            not steered.rows(
                "SELECT id FROM schedule_instance WHERE schedule_task_id = %s AND status IN ('pending', 'assigned')",
                task,
            )
        ),
        2 * TICK_SECONDS + 1,
        "what the old cron had put ahead to be gone",
    )
    assert steered.row("SELECT next_fire_at FROM schedule_task WHERE id = %s", task)["next_fire_at"].month == 1
    claimed_ahead = timedelta(seconds=0.2)
    for row in steered.instances_of(task):
        due, second = row["due_at"], row["due_at"].second
        if row["status"] == "succeed":
            assert not off + claimed_ahead < due < on, "off stops what is not claimed yet"
            assert not (due > in_time and second % 2), "the new cron knows even seconds only"
            assert due < edited + timedelta(seconds=2 * TICK_SECONDS)


def test_a_fire_replaces_the_run_before_it_where_its_task_says_so(steered: Cluster) -> None:
    task = steered.add_task("replaced", "HOLD", param={"gate": "replaced"}, overlap_policy="replace")
    fire = (  # as the scheduler materializes one
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at, run_number, origin)"
        " VALUES (%s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, 'cron')"
    )
    before = steered.execute(fire, task)
    steered.wait_status([before], "running")
    (asked_for,) = steered.add_instances(task)
    pass_ticks(steered)
    assert steered.statuses([before]) == {before: "running"}, "what SQL asked for waits"
    after = steered.execute(fire, task)
    steered.wait_status([before], "canceled")
    assert steered.instance(before)["reason"] == "replaced by its task's next fire"
    steered.open_gate("replaced")
    steered.wait_status([after, asked_for], "succeed", "canceled")
    assert steered.instance(after)["status"] == "succeed"


def test_overlap_is_decided_for_the_cluster_whichever_worker_an_instance_is_given_to(steered: Cluster) -> None:
    skips = steered.add_task("skips", "HOLD", "* * * * * *", param={"gate": "skips"}, overlap_policy="skip")
    queues = steered.add_task("queues", "HOLD", param={"gate": "queues"}, overlap_policy="queue")
    queued = steered.add_instances(queues, 6)

    def skipped_by_both() -> bool:
        rows = steered.instances_of(skips)
        return len({r["schedule_worker_node_id"] for r in rows if r["status"] == "canceled"}) >= 2

    wait_until(skipped_by_both, 30, "fires given to both workers to be skipped")
    rows = steered.instances_of(skips)
    (running,) = (row["id"] for row in rows if row["status"] == "running")
    assert {r["reason"] for r in rows if r["status"] == "canceled"} == {
        f"overlap: instance {running} still ran when this instance was due"
    }
    steered.execute("UPDATE schedule_task SET status = 'off' WHERE id = %s", skips)
    steered.open_gate("skips")
    assert sorted(steered.statuses(queued).values()).count("running") == 1
    steered.open_gate("queues")
    steered.wait_status(queued, "succeed", deadline=30)
    entries = [e for e in steered.evidence() if e.instance in queued]
    assert [e.event for e in entries] == ["enter", "exit"] * len(queued), "one after the other"


def test_no_more_run_on_all_workers_together_than_their_task_allows(steered: Cluster) -> None:
    pairs = steered.add_task("pairs", "HOLD", param={"gate": "pairs"}, overlap_policy="allow", max_instances=2)
    asked = steered.add_instances(pairs, 12)

    def running() -> list[int]:
        return [i for i, status in steered.statuses(asked).items() if status == "running"]

    wait_until(lambda: len(running()) == 2, 30, "as many to run as may")
    pass_ticks(steered)
    assert len(running()) == 2
    steered.open_gate("pairs")
    steered.wait_status(asked, "succeed", deadline=30)
    entries = [e for e in steered.evidence() if e.instance in asked]
    most = max(accumulate(1 if e.event == "enter" else -1 for e in sorted(entries, key=lambda e: e.boottime)))
    assert most == 2
    assert len({e.service for e in entries}) >= 2, "on more than one worker"


def test_in_the_end_every_invariant_holds(steered: Cluster) -> None:
    steered.wait_quiet()
    invariants.check(steered)
