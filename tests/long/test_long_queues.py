"""What a scheduler reads to know its workers does not grow with what is assigned to them."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest

from rota.scheduler_service.fleet import FleetCache
from rota.scheduler_service.long_queues import ROWS_AT_ONCE
from rota.shared.database.transactions import Database, opened
from rota.shared.store import census, unstarted
from tests.harness.databases import MariaDBServer, fresh_database, run_sql
from tests.harness.statements import Statement, explained

WORKERS = 3
WORK = "ix_schedule_instance_work"


def fill(url: str, assigned: int) -> None:
    """Three workers with as much room as the settings allow, to which all is assigned; as much has ended.

    What has ended ran on a worker of its own each. So the statistics say that a worker has two instances.
    """
    instances = "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at, run_number, status,"
    run_sql(
        url,
        """
        INSERT INTO schedule_worker_node (id, name, host, pid, process_identity, version, capacity, prefetch,
            node_types)
        SELECT seq, CONCAT('worker-', seq), 'host', seq, 'x', '0', 50, 100000, '[]' FROM seq_1_to_3
        """,
        "INSERT INTO schedule_worker_beat (schedule_worker_node_id, liveness_seconds) SELECT seq, 3600 FROM seq_1_to_3",
        f"""
        {instances} schedule_worker_node_id)
        SELECT seq, UTC_TIMESTAMP(), UTC_TIMESTAMP(), 0, IF(seq % 2, 'assigned', 'succeed'),
            IF(seq % 2, 1 + seq DIV 2 % {WORKERS}, {WORKERS} + seq)
        FROM seq_1_to_{2 * assigned}
        """,
        "ANALYZE TABLE schedule_instance, schedule_worker_node, schedule_worker_beat",
    )


@pytest.fixture(params=[30_000, 300_000])
def filled(
    request: pytest.FixtureRequest, mariadb_server: MariaDBServer, mariadb_template: list[str]
) -> Iterator[Database]:
    with fresh_database(mariadb_server) as url:
        run_sql(url, *mariadb_template)
        fill(url, request.param)
        with opened(url) as database:
            yield database


@pytest.mark.parametrize("minutes_ago", [0, 5])
def test_a_look_for_what_is_overdue_reads_a_page_of_each_queue(filled: Database, minutes_ago: int) -> None:
    assigned = filled.clock.now() - timedelta(minutes=minutes_ago)
    run_sql(
        filled.url.render_as_string(hide_password=False),
        f"""
        UPDATE schedule_instance
        SET gmt_assigned = '{assigned}', due_at = due_at - INTERVAL 1 HOUR WHERE status = 'assigned'
        """,
    )
    cutoff = filled.clock.now() - timedelta(minutes=1)
    with explained(filled.engine) as statements:
        queues = filled.read(lambda c: unstarted.late_queues(c, [1, 2, 3], cutoff))
        first, place = filled.read(lambda c: unstarted.overdue(c, queues[0], cutoff, 100))
        second, _ = filled.read(lambda c: unstarted.overdue(c, queues[0], cutoff, 100, place))
    assert queues == [(1, 5), (2, 5), (3, 5)]
    assert [len(first), len(second)] == ([100, 100] if minutes_ago else [0, 0])
    assert not {*first} & {*second}
    assert {step.key for one in statements for step in one.plan if step.table == "schedule_instance"} == {WORK}
    assert read(statements) <= 6 * 100


def read(statements: list[Statement]) -> int:
    return sum(statement.rows_read for statement in statements)


def test_a_snapshot_of_the_fleet_reads_no_more_than_its_bound(filled: Database) -> None:
    known = FleetCache(filled)
    with explained(filled.engine) as statements:
        known.current()
    of_queues = [statement for statement in statements if any(step.key == WORK for step in statement.plan)]
    assert len(of_queues) == 2, "all queues up to a limit, and further those whose turn it is"
    assert all("Using index" in step.extra for one in of_queues for step in one.plan if step.key == WORK)
    assert read(statements) <= 3 * ROWS_AT_ONCE


def test_the_census_reads_one_entry_of_each_holder_whatever_the_statistics_say(filled: Database) -> None:
    known = filled.read(census.take).known
    with explained(filled.engine) as statements:
        assert filled.read(partial(census.take, known=known)).holders == {1, 2, 3}
    [statement] = [one for one in statements if one.text != "BEGIN"]
    assert {step.key for step in statement.plan if "is_" in step.table or step.table == "schedule_instance"} == {WORK}
    assert statement.rows_read <= 60
