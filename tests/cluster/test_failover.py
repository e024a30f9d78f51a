"""A database that is reached by two hosts: one hangs, one is gone, and schedulers, workers and guardians go on."""

import signal
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.cluster_fixtures import running
from tests.harness.distance import relay
from tests.harness.processes import RotaProcess, wait_until

LIVENESS = {"ROTA_LIVENESS_SECONDS": "12", "ROTA_HEARTBEAT_SECONDS": "1"}


def test_a_host_that_hangs_and_one_that_is_gone_cost_no_worker_and_no_fire(
    migrated_mariadb_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    parts = make_url(migrated_mariadb_url)
    with relay(migrated_mariadb_url) as (first, first_port), relay(migrated_mariadb_url) as (second, second_port):
        hosts = f"127.0.0.1:{first_port},127.0.0.1:{second_port}"
        url = f"mysql://{parts.username}:{parts.password}@{hosts}/{parts.database}"
        with running(migrated_mariadb_url, tmp_path / "cluster", request.session, url) as cluster:
            cluster.database_failed = True
            worker, scheduler = cluster.worker("w", environment=LIVENESS), cluster.scheduler(environment=LIVENESS)
            live = cluster.wait_live("w")
            cluster.add_task("each second", "NOTE", "* * * * * *", overlap_policy="allow")
            held = cluster.add_instances(cluster.add_task("held", "HOLD", param={"gate": "go"}), 1)
            cluster.wait_status(held, "running")
            wait_for_runs(cluster)

            first.send_signal(signal.SIGSTOP)
            wait_for_moves(second_port, worker, scheduler)
            wait_for_runs(cluster)
            second.kill()
            first.send_signal(signal.SIGCONT)
            wait_for_moves(first_port, worker, scheduler)
            wait_for_runs(cluster)

            cluster.open_gate("go")
            cluster.wait_status(held, "succeed")
            cluster.wait_quiet()
            assert (worker.alive, scheduler.alive, cluster.wait_live("w")) == (True, True, live)
            assert cluster.instance(held[0])["attempt"] == 1
            scheduler.wait_for_log("reaper: moved to another server")
            invariants.check(cluster)


def wait_for_moves(port: int, worker: RotaProcess, scheduler: RotaProcess) -> None:
    """Until the scheduler has moved, and the worker and its guardian, which beats for it."""
    said = f"the database is used at 127.0.0.1:{port} now"
    for process, times in ((scheduler, 1), (worker, 2)):
        wait_until(lambda: process.log.count(said) >= times, 60, f"{process} to use {port}")  # noqa: B023


def wait_for_runs(cluster: Cluster, fires: int = 2) -> None:
    """Wait until some fires that are due from now on have run."""
    query = "SELECT COUNT(*) AS n FROM schedule_instance WHERE origin = 'cron' AND status = 'succeed' AND due_at > %s"
    now = cluster.now()
    wait_until(lambda: cluster.row(query, now)["n"] >= fires, 20, "more runs")
