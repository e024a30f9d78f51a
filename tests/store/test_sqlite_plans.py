"""On SQLite, too, a batch of rows drives its statement: each is looked up by its key, and nothing is scanned for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from rota.shared.store import assignments, strays
from tests.harness.batch_life import life
from tests.harness.scenario import Scenario


@contextmanager
def planned(rows: Scenario) -> Iterator[dict[str, list[str]]]:
    """The plans of the statements executed inside the block, by their texts."""
    engine = rows.database.engine
    plans: dict[str, list[str]] = {}

    def explain(connection: Any, cursor: Any, text: str, parameters: Any, _context: Any, executemany: bool) -> None:
        if text.startswith(("SELECT", "UPDATE", "INSERT", "DELETE")) and not executemany:
            asked = connection.connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters)
            plans[text] = [str(row[3]) for row in asked.fetchall()]

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def test_an_idle_assigner_reads_nothing_of_what_is_due_later(sqlite_rows: Scenario) -> None:
    with planned(sqlite_rows) as plans:
        sqlite_rows.database.read(lambda c: assignments.look(c, sqlite_rows.start))
    (plan,) = plans.values()
    searched = [step.partition("AND priority=? ")[2] for step in plan if "schedule_instance" in step]
    assert searched == ["AND due_at<?)", "AND due_at=?)"], plan


def test_slots_that_are_kept_for_no_thread_are_found_among_those_that_are_taken(sqlite_rows: Scenario) -> None:
    with planned(sqlite_rows) as plans:
        sqlite_rows.database.read(strays.find_slots)
    (plan,) = plans.values()
    assert not [step for step in plan if step.startswith("SCAN schedule_instance")], plan


def test_every_statement_of_a_batchs_life_looks_its_rows_up(sqlite_rows: Scenario) -> None:
    with planned(sqlite_rows) as plans:
        life(sqlite_rows, 10)
    driven = {text: plan for text, plan in plans.items() if "json_each" in text}
    assert len(driven) >= 10
    for text, plan in driven.items():
        told = "\n".join([text, *plan])
        made = {step.split()[1] for step in plan if step.startswith(("MATERIALIZE", "CO-ROUTINE"))}
        scans = [step.split()[1] for step in plan if step.startswith("SCAN")]
        assert all(table == "json_each" or table in made for table in scans), told
        for step in plan:
            if step.startswith("SEARCH schedule_instance"):
                assert "INTEGER PRIMARY KEY" in step or "schedule_task_id=? AND schedule_datetime=?" in step, told
