"""A worker that cannot do its work any more ends, so that others do it."""

import pytest

from rota.worker_service.liveness import EXIT_LEASE_LOST
from tests.harness.cluster import Cluster
from tests.harness.failing_apps import FAILING_THREAD

APP = "tests.harness.failing_apps:app"


@pytest.mark.parametrize("thread", ["report", "start"])
def test_a_worker_whose_report_or_start_thread_has_failed_ends_and_another_does_its_work(
    cluster: Cluster, thread: str
) -> None:
    task = cluster.add_task("noted", "NOTE", overlap_policy="allow")
    cluster.scheduler()
    broken = cluster.worker("broken", app=APP, environment={FAILING_THREAD: thread})
    ids = cluster.add_instances(task, 5)
    assert broken.wait_exit(20) == EXIT_LEASE_LOST
    assert f"its {thread} thread has failed: RuntimeError: nobody expects this" in broken.log
    cluster.worker("sound")
    cluster.wait_status(ids, "succeed", deadline=40)
