"""Services that start while their database is away, on a server that the test stops and starts."""

import signal
from collections.abc import Callable

import pytest

from tests.harness.databases import PrivateMariaDB, run_sql
from tests.harness.processes import RotaProcess

Start = Callable[..., RotaProcess]


@pytest.fixture
def url(own_mariadb: PrivateMariaDB, own_template: list[str]) -> str:
    url = own_mariadb.create_database()
    run_sql(url, *own_template)
    return url


def test_services_that_start_during_an_outage_wait_for_its_end_and_sigterm_ends_the_wait(
    rota: Start, own_mariadb: PrivateMariaDB, url: str
) -> None:
    own_mariadb.kill()
    services = [rota(kind, "-v", database_url=url) for kind in ("worker", "scheduler")]
    ended = [rota(kind, database_url=url) for kind in ("worker", "scheduler")]
    for service in (*services, *ended):
        service.wait_for_log("the database is away: ", 30)
    for service in ended:
        service.stop_signal(signal.SIGTERM)
        assert service.wait_exit() == 128 + signal.SIGTERM
    assert rota("task", "list", database_url=url).wait_exit(30) == 3
    own_mariadb.start()
    services[0].wait_for_log("started as #1", 30)
    services[1].wait_for_log("scheduler: started", 30)
    for service in services:
        assert service.log.count("the database is away") == service.log.count("the database is back") == 1


def test_a_worker_waits_for_a_server_that_is_read_only(rota: Start, own_mariadb: PrivateMariaDB, url: str) -> None:
    run_sql(own_mariadb.admin_url(), "SET GLOBAL read_only = 1")
    worker = rota("worker", database_url=url)
    worker.wait_for_log("is read-only", 30)
    run_sql(own_mariadb.admin_url(), "SET GLOBAL read_only = 0")
    worker.wait_for_log("started as #1", 30)
    assert worker.log.count("is read-only") == 1
