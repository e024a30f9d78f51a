"""The statements of docs/sql.md that look for what is new or rare read it by an index, and not all of a long history.

MariaDB plans and runs them as the page writes them, on so many rows that an index is worth it. The ids of the instances
are ten apart: the 100,000 newest ids are 10,000 rows.
"""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from rota.shared.database.transactions import Database, opened
from tests.harness.databases import MariaDBServer, fresh_database, run_sql
from tests.harness.sql_page import blocks
from tests.harness.statements import Statement, explained

TASKS, MANUAL, SET_ASIDE = 100_000, 500, 20
INSTANCES, APART, NEWEST = 100_000, 10, 10_000
OF_ONE_TASK = 50_000
"""So many old ones are of one task."""

FAILED_IN = 20
"""One instance of so many has failed; the rest succeeded."""


@pytest.fixture(scope="module")
def long_history(mariadb_server: MariaDBServer, mariadb_template: list[str]) -> Iterator[Database]:
    """Tables with a long history, all of it of the last day, so that only the ids bound what is read."""
    with fresh_database(mariadb_server) as url:
        run_sql(
            url,
            *mariadb_template,
            f"""
            INSERT INTO schedule_task (name, type, trigger_kind, cron, next_fire_at, plan_error, misfires)
            SELECT CONCAT('task-', seq), 'REPORT', IF(seq <= {MANUAL}, 'manual', 'cron'),
                IF(seq <= {MANUAL}, NULL, '* * * * *'),
                IF(seq <= {MANUAL + SET_ASIDE}, NULL, UTC_TIMESTAMP(6) + INTERVAL seq SECOND),
                IF(seq > {MANUAL} AND seq <= {MANUAL + SET_ASIDE}, 'no plan', NULL), IF(seq % 1000 = 0, 1, 0)
            FROM seq_1_to_{TASKS}
            """,
            f"""
            INSERT INTO schedule_instance (id, schedule_task_id, status, schedule_datetime, due_at, run_number, origin,
                schedule_worker_node_id, gmt_started, gmt_completed)
            SELECT {APART} * seq, 1 + seq % {TASKS}, IF(seq % {FAILED_IN} = 0, 'failed', 'succeed'),
                UTC_TIMESTAMP(6) - INTERVAL 60 SECOND, UTC_TIMESTAMP(6) - INTERVAL 60 SECOND, 0, 'cron', 1,
                UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
            FROM seq_1_to_{INSTANCES}
            """,
            f"""
            INSERT INTO schedule_instance (id, schedule_task_id, status, schedule_datetime, due_at, run_number, origin,
                gmt_completed)
            SELECT {APART} * seq + 1, 3, IF(seq % {FAILED_IN} = 0, 'failed', 'succeed'),
                UTC_TIMESTAMP(6) - INTERVAL seq SECOND, UTC_TIMESTAMP(6), 0, 'cron', UTC_TIMESTAMP(6)
            FROM seq_1_to_{OF_ONE_TASK}
            """,
            "ANALYZE TABLE schedule_task, schedule_instance",
        )
        with opened(url) as database:
            yield database


def run(database: Database, name: str) -> tuple[Statement, int]:
    """Run a statement of the page for MariaDB; returns it with its plan, and how many rows it told."""
    [block] = [b for b in blocks() if b.name == name and b.only in (None, "mariadb")]
    changes = block.sql.startswith("INSERT")

    def told(connection: Connection) -> int:
        result = connection.exec_driver_sql(block.sql.replace("%", "%%"))
        return result.rowcount if changes else len(result.all())

    with explained(database.engine) as statements:
        rows = database.write(told) if changes else database.read(told)
    [statement] = [s for s in statements if s.text.startswith(("SELECT", "WITH", "INSERT"))]
    return statement, rows


def check(statement: Statement, table: str, key: str, rows: int) -> None:
    """Assert that the statement reads a table by this index, and no more than so many rows in all."""
    steps = [step for step in statement.plan if step.table == table or step.table == table[0]]
    keys = [key for step in steps for key in str(step.key).split(",")]  # MySQL may read what two indexes have in common
    assert "index" not in {step.type for step in statement.plan}, f"a whole index:\n{statement}"
    large = [step for step in statement.plan if not step.table.startswith("<")]
    assert all(step.type != "ALL" for step in large), f"a full scan:\n{statement}"
    assert statement.rows_read <= rows, f"too many rows:\n{statement}"
    assert key in keys, f"by another index:\n{statement}"


def test_what_failed_in_the_last_day_is_found_among_the_newest(long_history: Database) -> None:
    failed = NEWEST // FAILED_IN
    statement, told = run(long_history, "failed")
    print(statement)
    assert told == failed
    check(statement, "i", "ix_schedule_instance_unsuccessful", 5 * failed)


def test_the_lateness_of_starts_is_told_of_the_newest(long_history: Database) -> None:
    statement, told = run(long_history, "lateness")
    print(statement)
    assert told == NEWEST
    check(statement, "schedule_instance", "PRIMARY", 15 * NEWEST)


def test_the_counters_are_read_of_so_many_tasks(long_history: Database) -> None:
    statement, told = run(long_history, "counters")
    print(statement)
    assert told == 10
    check(statement, "schedule_task", "PRIMARY", 10_000 + 100)


def test_the_tasks_that_are_set_aside_are_found_among_those_without_a_next_fire(long_history: Database) -> None:
    statement, told = run(long_history, "set-aside")
    print(statement)
    assert told == SET_ASIDE
    check(statement, "schedule_task", "ix_schedule_task_due", 2 * (MANUAL + SET_ASIDE))


def test_the_fires_of_a_task_that_failed_are_found_among_the_newest(long_history: Database) -> None:
    statement, told = run(long_history, "replay-failed")
    print(statement)
    assert told == 0, "those that failed are older"
    check(statement, "f", "ix_schedule_instance_unsuccessful", 5 * NEWEST // FAILED_IN)


def test_history_that_is_kept_is_read_up_to_the_first_that_is_too_new(long_history: Database) -> None:
    statement, told = run(long_history, "old-history")
    print(statement)
    assert told == 1, "the two ids are NULL"
    assert "PRIMARY" in {step.key for step in statement.plan}
    assert statement.rows_read <= 5_000
