"""A long backlog of a task that runs one at a time: one worker is given a stretch of it, and the worker is killed."""

from itertools import pairwise

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

QUICK = {"ROTA_LIVENESS_SECONDS": "10", "ROTA_HEARTBEAT_SECONDS": "1"}
BACKLOG = 600


def test_the_rest_of_a_stretch_goes_on_elsewhere_when_its_worker_is_killed(cluster: Cluster) -> None:
    task = cluster.add_task("serial", "NOTE", overlap_policy="queue")
    workers = {name: cluster.worker(name, environment=QUICK) for name in ("first", "second")}
    ids = cluster.wait_live(*workers)
    names = {worker_id: name for name, worker_id in ids.items()}
    backlog = cluster.add_instances(task, BACKLOG)
    cluster.scheduler(environment=QUICK)

    def holders() -> list[int]:
        query = (
            "SELECT schedule_worker_node_id AS worker, COUNT(*) AS n FROM schedule_instance"
            " WHERE status IN ('assigned', 'running') GROUP BY 1"
        )
        long = [row["worker"] for row in cluster.rows(query) if row["n"] > 25]
        return long if len(cluster.evidence()) > 100 else []

    [holder] = wait_until(holders, 30, "a worker to have a stretch that it works off")
    cluster.kill(workers[names[holder]])
    ran = len(cluster.evidence())
    assert ran < BACKLOG, "the backlog was too short"
    other = next(worker for worker in ids.values() if worker != holder)
    cluster.wait_status(backlog, "succeed", deadline=60)
    entered = [entry for entry in cluster.evidence() if entry.event == "enter"]
    order = list(dict.fromkeys(entry.instance for entry in entered))
    assert order == backlog, "in the order of their due times"
    again = [entry.instance for entry in entered if entry.attempt > 1]
    assert len(again) <= 1, "only the one that ran when its worker was killed"
    assert len(entered) == BACKLOG + len(again) or len(entered) == BACKLOG
    held = "SELECT COUNT(*) AS n FROM schedule_instance WHERE schedule_worker_node_id = %s"
    assert cluster.row(held, other)["n"] > 0
    spans = cluster.rows("SELECT gmt_started, gmt_completed FROM schedule_instance ORDER BY due_at, id")
    for before, following in pairwise(spans):
        assert following["gmt_started"] >= before["gmt_completed"], "never two at once"
    cluster.wait_quiet()
    invariants.check(cluster)
