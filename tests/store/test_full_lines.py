"""`max_waiting`: so many fires of a task wait for their turn at most. A fire that comes behind them is canceled."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.full_lines import FullLines
from rota.shared.settings import Settings
from rota.shared.store import assignments, full_lines
from rota.shared.store.full_lines import NEWEST, without_a_place
from rota.shared.store.transitions import canceling
from rota.shared.surprises import Surprises
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.statements import executed, explained
from tests.harness.together import locked

MINUTE = timedelta(minutes=1)
REASON = "overlap: as many fires of its task as max_waiting allows (2) waited before this one"


def assign(rows: Scenario) -> None:
    Assigner(rows.database, Settings.load()).step()


def line(rows: Scenario, task: int, number: int, **columns: Any) -> list[int]:
    """Fires that are due, a minute apart, and that no worker has; the oldest first."""
    return [rows.pending(task, rows.start - n * MINUTE, **columns) for n in range(number, 0, -1)]


def canceled(rows: Scenario) -> list[int]:
    return sorted(instance for instance, status in rows.statuses().items() if status == "canceled")


def queue(rows: Scenario, **fields: Any) -> int:
    return rows.task(overlap_policy="queue", **{"max_waiting": 2, **fields})


def test_fires_behind_as_many_as_may_wait_are_canceled(rows: Scenario) -> None:
    worker, task = rows.worker(), queue(rows)
    run = rows.running(worker, task, rows.start - 10 * MINUTE)
    *waiting, fourth, fifth = line(rows, task, 4)
    assign(rows)
    assert canceled(rows) == [fourth, fifth]
    assert {rows.row(one).reason for one in (fourth, fifth)} == {REASON}
    assert rows.broken() == {}
    rows.report(worker, ended(run))
    assign(rows)
    assert [rows.status(one) for one in waiting] == ["assigned", "assigned"]


@pytest.mark.parametrize(
    ("fields", "running", "places"),
    [
        ({"overlap_policy": "queue"}, 0, 3),
        ({"overlap_policy": "queue"}, 1, 2),
        ({"overlap_policy": "allow", "max_instances": 2}, 0, 4),
        ({"overlap_policy": "allow", "max_instances": 2}, 1, 3),
        ({"overlap_policy": "allow", "max_instances": 2}, 2, 2),
    ],
)
def test_what_has_a_free_slot_does_not_wait(rows: Scenario, fields: dict[str, Any], running: int, places: int) -> None:
    worker, task = rows.worker(), rows.task(max_waiting=2, **fields)
    for number in range(running):
        rows.running(worker, task, rows.start - (10 + number) * MINUTE)
    fires = line(rows, task, 6)
    assign(rows)
    assert canceled(rows) == fires[places:]


def test_those_that_a_worker_has_wait_too_and_are_canceled_too(rows: Scenario) -> None:
    worker, task = rows.worker(), queue(rows)
    rows.running(worker, task, rows.start - 10 * MINUTE)
    given = [rows.assigned(worker, task, rows.start - n * MINUTE) for n in (5, 4, 3)]
    fires = line(rows, task, 2)
    assign(rows)
    assert canceled(rows) == [given[2], *fires]
    assert rows.claim(worker, given[2]).runs == []


def test_those_that_are_all_at_workers_are_looked_at_too(rows: Scenario) -> None:
    worker, task = rows.worker(), queue(rows)
    given = [rows.assigned(worker, task, rows.start - n * MINUTE) for n in range(6, 0, -1)]
    assign(rows)
    assert canceled(rows) == given[3:]


@pytest.mark.parametrize("origin", ["manual", "replay", "backfill", "sql"])
def test_what_somebody_asked_for_takes_no_place_and_is_left(rows: Scenario, origin: str) -> None:
    worker, task = rows.worker(), queue(rows)
    rows.running(worker, task, rows.start - 20 * MINUTE)
    [rows.pending(task, rows.start - (10 + n) * MINUTE, origin=origin) for n in range(4)]
    fires = line(rows, task, 3)
    assign(rows)
    assert canceled(rows) == fires[2:]


def test_missed_fires_that_are_caught_up_take_no_place_and_are_left(rows: Scenario) -> None:
    task, last = queue(rows), queue(rows, priority=9)
    for one in (task, last):
        rows.running(rows.worker(), one, rows.start - 20 * MINUTE)
    [rows.pending(task, rows.start - (10 + n) * MINUTE, priority=9) for n in range(4)]
    fires = line(rows, task, 3)
    of_last = line(rows, last, 3, priority=9)
    assign(rows)
    assert canceled(rows) == [fires[2], of_last[2]]


def test_a_run_that_is_tried_again_takes_no_place_and_is_left(rows: Scenario) -> None:
    worker, task = rows.worker(), queue(rows)
    again = rows.running(worker, task, rows.start - 20 * MINUTE)
    rows.report(worker, to_retry(again, rows.start - 5 * MINUTE))
    rows.running(worker, task, rows.start - 10 * MINUTE)
    fires = line(rows, task, 3)
    assign(rows)
    assert canceled(rows) == fires[2:]


def test_while_scheduling_is_paused_nothing_is_canceled(rows: Scenario) -> None:
    task = queue(rows)
    fires = line(rows, task, 5)
    rows.sql("INSERT INTO schedule_pause (creator) VALUES ('ann')")
    assign(rows)
    assert canceled(rows) == []
    rows.sql("UPDATE schedule_pause SET is_deleted = 1")
    assign(rows)
    assert canceled(rows) == fires[3:]


def test_a_fire_that_is_not_due_is_left(rows: Scenario) -> None:
    task = queue(rows, max_waiting=1)
    rows.running(rows.worker(), task, rows.start - 10 * MINUTE)
    fires = line(rows, task, 2)
    later = rows.pending(task, rows.now() + timedelta(seconds=3))
    Assigner(rows.database, Settings.load(lookahead_seconds=10)).step()
    assert canceled(rows) == fires[1:]
    assert rows.status(later) == "pending"


@pytest.mark.parametrize("policy", ["skip", "replace", "allow"])
def test_what_sql_left_there_counts_only_where_fires_wait(rows: Scenario, policy: str) -> None:
    task = rows.task(overlap_policy=policy)
    rows.running(rows.worker(), task, rows.start - 10 * MINUTE)
    rows.sql("UPDATE schedule_task SET max_waiting = 2")
    fires = line(rows, task, 4, overlap_slot=0)  # as they were written under queue
    assign(rows)
    assert REASON not in {rows.row(one).reason for one in fires}


def test_without_a_bound_nothing_is_asked_and_with_one_three_statements_for_all(rows: Scenario) -> None:
    for _ in range(3):
        line(rows, rows.task(overlap_policy="queue"), 1)
    with executed(rows.database.engine) as statements:
        assign(rows)
    assert not [one for one in statements if "waiting.turn_key" in one]
    rows.sql("UPDATE schedule_task SET max_waiting = 10")
    lines = FullLines(rows.database, Settings.load(), Surprises("test"))
    with executed(rows.database.engine) as statements:
        lines.shorten()
        lines.shorten()  # within the same tick
    assert len([one for one in statements if one != "BEGIN"]) == 3


def test_a_tick_that_comes_a_little_early_is_not_left_out(rows: Scenario) -> None:
    settings = Settings.load()
    lines = FullLines(rows.database, settings, Surprises("test"))
    lines.shorten()
    lines._looked_at -= 0.9 * settings.tick_period
    with executed(rows.database.engine) as statements:
        lines.shorten()
    assert [one for one in statements if "max_waiting" in one]


def test_what_is_claimed_while_the_lines_are_read_costs_no_fire(rows: Scenario) -> None:
    worker, task = rows.worker(), queue(rows)
    first, *_ = [rows.assigned(worker, task, rows.start - n * MINUTE) for n in (3, 2, 1)]

    def look(connection: Connection) -> dict[int, str]:
        event.listen(connection, "after_cursor_execute", claim_between)
        return without_a_place(connection, rows.now()).reasons

    seen: list[str] = []

    def claim_between(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        seen.append(text)
        if len(seen) == 2:
            assert rows.claim(worker, first).runs

    assert rows.database.read(look) == {}
    assert len(seen) == 3


@pytest.mark.parametrize("limit", [{"MOST_TASKS": 1}, {"MOST_FIRES": 6}, {"MOST_FIRES": 4}])
def test_where_lines_are_many_it_goes_on_at_the_next_tick(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    for name, most in limit.items():
        monkeypatch.setattr(full_lines, name, most)
    behind = []
    for _ in range(3):
        task = queue(rows)
        rows.running(rows.worker(), task, rows.start - 10 * MINUTE)
        behind += line(rows, task, 5)[2:]
    lines = FullLines(rows.database, Settings.load(tick_seconds=0.1), Surprises("test"))
    for _ in range(8):
        lines._looked_at = float("-inf")
        lines.shorten()
    assert canceled(rows) == behind


def test_of_a_line_the_newest_are_looked_at(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_lines, "NEWEST", 4)
    task = queue(rows)
    rows.running(rows.worker(), task, rows.start - 20 * MINUTE)
    fires = line(rows, task, 8)
    surplus = rows.database.read(lambda c: without_a_place(c, rows.now()))
    assert sorted(surplus.reasons) == fires[-3:], "of the five newest two have places"


def test_no_more_are_canceled_at_once_than_a_batch(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    task = queue(rows)
    fires = line(rows, task, 10)
    sizes: list[int] = []
    pass_over = canceling.pass_over

    def counted(connection: Connection, reasons: Mapping[int, str]) -> None:
        sizes.append(len(reasons))
        pass_over(connection, reasons)

    monkeypatch.setattr(canceling, "pass_over", counted)
    FullLines(rows.database, Settings.load(batch=3), Surprises("test")).shorten()
    assert sizes == [3, 3, 1]
    assert canceled(rows) == fires[3:]


def test_a_locked_fire_is_canceled_later_and_the_others_now(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = queue(rows)
    rows.running(rows.worker(), task, rows.start - 10 * MINUTE)
    fires = line(rows, task, 5)
    with locked(rows.database, "schedule_instance", "id = :id", id=fires[3]):
        assign(rows)
        assert canceled(rows) == [fires[2], fires[4]]
    assign(rows)
    assert canceled(rows) == fires[2:]


def test_whether_any_task_has_a_bound_is_asked_without_reading_tasks(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    rows.sql("INSERT INTO schedule_task (name, type) SELECT CONCAT('t', seq), 'REPORT' FROM seq_1_to_500")
    with explained(rows.database.engine) as statements:
        seen = rows.database.read(lambda c: assignments.look(c, rows.now()))
    assert not seen.any_bound
    [look] = statements
    assert {step.key for step in look.plan if step.table == "schedule_task"} == {"ix_schedule_task_max_waiting"}
    assert look.rows_read < 20, str(look)


def test_of_a_long_line_a_bounded_part_is_read(mariadb_rows: Scenario) -> None:
    """Its newest instances, by the index. Most of what waits here was asked for."""
    rows = mariadb_rows
    tasks = [queue(rows), queue(rows, max_waiting=None)]
    rows.sql(
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at, origin, overlap_slot)"
        " SELECT id, '2026-11-19' + INTERVAL seq SECOND, '2026-11-19' + INTERVAL seq SECOND,"
        " IF(seq > 4990, 'cron', 'manual'), 0 FROM schedule_task JOIN seq_1_to_5000"
    )
    with explained(rows.database.engine) as statements:
        behind = rows.database.read(lambda c: without_a_place(c, rows.now())).reasons
    ids = [
        row[0] for row in rows.sql(f"SELECT id FROM schedule_instance WHERE schedule_task_id = {tasks[0]} ORDER BY id")
    ]
    assert sorted(behind) == ids[-7:]
    keys = {step.key for one in statements for step in one.plan if step.table in ("waiting", "schedule_task")}
    assert keys == {"ix_schedule_instance_turn", "ix_schedule_task_max_waiting"}
    bounded, _, fires = statements
    assert bounded.rows_read < NEWEST + 20
    assert fires.rows_read < 5000 + NEWEST + 50  # entries of the index of that line, and rows of its newest part
