"""Clusters for these tests. The logs of their processes are printed if a test failed meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.databases import MariaDBServer, fresh_database, run_sql
from tests.harness.processes import RotaProcess

ASSIGNMENT_TIMEOUT_SECONDS = 3


@contextmanager
def running(url: str, folder: Path, session: pytest.Session, reached_by: str | None = None) -> Iterator[Cluster]:
    """A cluster whose rows agree in the end, whatever its test did; its logs are printed if a test failed in it."""
    failures = session.testsfailed
    with Cluster(url, folder, reached_by) as cluster:
        try:
            yield cluster
            if session.testsfailed == failures:
                assert not list(invariants.rows_agree(cluster.url, scheduled=cluster.is_scheduled))
        except BaseException:  # of a test that has it as a block, not as a fixture
            cluster.print_logs()
            raise
        if session.testsfailed > failures:
            cluster.print_logs()


@pytest.fixture
def cluster(migrated_mariadb_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster on a database of its own, without processes as yet."""
    with running(migrated_mariadb_url, tmp_path / "cluster", request.session) as one:
        yield one


@pytest.fixture(scope="module")
def shared_cluster(
    mariadb_server: MariaDBServer,
    mariadb_template: list[str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    """A cluster that the tests of a module share."""
    with fresh_database(mariadb_server) as url:
        run_sql(url, *mariadb_template)
        with running(url, tmp_path_factory.mktemp("cluster") / "cluster", request.session) as one:
            yield one


@pytest.fixture(scope="module")
def scheduler(shared_cluster: Cluster) -> RotaProcess:
    """The scheduler of the cluster, which two workers, ``a`` and ``b``, have joined."""
    for name in ("a", "b"):
        shared_cluster.worker(name)
    process = shared_cluster.scheduler("--assignment-timeout-seconds", str(ASSIGNMENT_TIMEOUT_SECONDS))
    shared_cluster.wait_live("a", "b")
    return process


@pytest.fixture
def steered(shared_cluster: Cluster, scheduler: RotaProcess) -> Cluster:
    """The cluster, running."""
    assert scheduler.alive
    return shared_cluster
