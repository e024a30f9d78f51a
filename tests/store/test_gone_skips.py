"""Old stretches of skipped fires are removed, and what tasks left whose rows SQL has deleted."""

from datetime import timedelta
from itertools import pairwise

import pytest

from rota.scheduler_service.duties.remover import Remover
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import gone
from tests.harness.scenario import Scenario

HOUR = timedelta(hours=1)


@pytest.fixture
def rows(database: Database) -> Scenario:
    return Scenario(database)


def remove(rows: Scenario) -> None:
    """Look once at each kind."""
    remover = Remover(rows.database, Settings.load())
    for _ in gone.KINDS:
        remover.step()


def skip(rows: Scenario, task: int, number: int, days_ago: int) -> None:
    """So many stretches of a task, which changed last so long ago."""
    for at in range(number):
        last = (rows.start - days_ago * 24 * HOUR - at * HOUR).strftime("%Y-%m-%d %H:%M:%S.%f")
        rows.sql(
            "INSERT INTO schedule_skip (schedule_task_id, reason, first_fire, last_fire, fires, gmt_modified)"
            " VALUES (:task, 'off', :last, :last, 1, :last)",
            task=task,
            last=last,
        )


def left(rows: Scenario, task: int) -> int:
    found: int = rows.sql("SELECT COUNT(*) AS n FROM schedule_skip WHERE schedule_task_id = :task", task=task)[0].n
    return found


def test_of_each_task_the_newest_stretches_stay_and_older_ones_for_some_days(rows: Scenario) -> None:
    many, old, new = rows.task(), rows.task(), rows.task()
    skip(rows, many, 130, days_ago=30)
    skip(rows, old, 20, days_ago=300)
    skip(rows, new, 120, days_ago=0)
    remove(rows)
    assert [left(rows, task) for task in (many, old, new)] == [gone.SKIPS_KEPT, 20, 120]
    oldest = rows.sql("SELECT MIN(last_fire) AS oldest FROM schedule_skip WHERE schedule_task_id = :task", task=many)[
        0
    ].oldest
    assert str(oldest)[:19] == str(rows.start - 30 * 24 * HOUR - 99 * HOUR)


def test_they_are_looked_at_a_page_at_a_time(rows: Scenario) -> None:
    task = rows.task()
    skip(rows, task, 130, days_ago=30)
    remover, found = Remover(rows.database, Settings.load(batch=20)), []
    for _ in range(20):
        remover.step()
        found.append(left(rows, task))
    assert (found[0], found[-1]) == (130, gone.SKIPS_KEPT)
    assert max(before - after for before, after in pairwise(found)) <= 20


def test_what_a_task_left_whose_row_sql_has_deleted_is_removed_and_no_other(rows: Scenario) -> None:
    gone_task, there, marked = rows.task(), rows.task(), rows.task()
    for task in (gone_task, there, marked):
        skip(rows, task, 2, days_ago=0)
        rows.sql(
            "INSERT INTO schedule_catch_up (schedule_task_id, next_fire, last_fire, plan_inputs)"
            " VALUES (:task, '2020-01-01 00:00:00.000000', '2020-01-02 00:00:00.000000', '[]')",
            task=task,
        )
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :id", id=marked)
    rows.sql("DELETE FROM schedule_task WHERE id = :id", id=gone_task)
    remove(rows)
    assert [left(rows, task) for task in (gone_task, there, marked)] == [0, 2, 2]
    stretches = rows.sql("SELECT schedule_task_id FROM schedule_catch_up ORDER BY 1")
    assert [row[0] for row in stretches] == [there, marked]
