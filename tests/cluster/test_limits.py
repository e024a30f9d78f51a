"""A limit that tasks share, between two workers: the handlers' own records say how many ran at once."""

from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

LIMIT, INSTANCES = 4, 40
ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"


def test_the_handlers_of_two_workers_never_exceed_a_limit_of_four(cluster: Cluster) -> None:
    cluster.execute("INSERT INTO schedule_limit (name, max_running) VALUES ('warehouse', %s)", LIMIT)
    for name in "ab":
        cluster.worker(name)
    cluster.scheduler()
    cluster.wait_live("a", "b")
    cluster.execute(
        "INSERT INTO schedule_task (name, type, trigger_kind, overlap_policy, param, limit_name)"
        " VALUES ('limited', 'REST', 'manual', 'allow', '{\"seconds\": 0.2}', 'warehouse')"
    )
    cluster.execute(
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
        " SELECT t.id, UTC_TIMESTAMP() - INTERVAL seq SECOND FROM schedule_task t JOIN seq_1_to_40"
    )
    wait_until(lambda: cluster.row(ENDED)["n"] == INSTANCES, 60, f"{INSTANCES} instances to end")
    evidence = sorted(cluster.evidence(), key=lambda entry: entry.boottime)
    running = most = 0
    for entry in evidence:
        running += 1 if entry.event == "enter" else -1
        most = max(most, running)
    assert (most, running) == (LIMIT, 0)
    assert len({entry.pid for entry in evidence}) == 2, "both workers ran some"
