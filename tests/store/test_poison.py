"""A param that SQL wrote and Python cannot read ends its own instance, with the reason; all others go on."""

from datetime import timedelta
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.database.constructs import written
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.jsontext import UnreadableJson
from rota.shared.settings import Settings
from rota.shared.store import instances
from tests.harness.scenario import Scenario

pytestmark = pytest.mark.mariadb_only("its JSON takes no number beyond a double, and refuses what Python cannot read")

TOO_LONG = '{"n": ' + "9" * 4301 + "}"
WHY = "it holds an integer of more than 4,300 digits"
UNWRITABLE = '{"n": 1e999}'
"""Python reads it, as infinity, and cannot write it again."""


def spoil(rows: Scenario, table: str, row: int, column: str = "param", value: str = TOO_LONG) -> None:
    rows.sql(f"UPDATE {table} SET {column} = :value WHERE id = :id", id=row, value=value)


def materialize(rows: Scenario) -> None:
    Materializer(rows.database, Settings.load()).step()


def assign(rows: Scenario) -> None:
    Assigner(rows.database, Settings.load()).step()


def fires(rows: Scenario, task: int) -> list[Any]:
    found = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    return [rows.row(row.id) for row in found]


@pytest.mark.parametrize("poison", [TOO_LONG, UNWRITABLE])
def test_a_tasks_param_ends_its_fires_and_no_others_until_it_is_mended(rows: Scenario, poison: str) -> None:
    rows.worker()
    healthy, task = [rows.planned_task(), rows.planned_task()], rows.planned_task(param={"n": 1})
    spoil(rows, "schedule_task", task, value=poison)
    materialize(rows)
    for each in healthy:
        assert {fire.status for fire in fires(rows, each)} == {"assigned"}
    assert {fire.status for fire in fires(rows, task)} == {"pending"}
    assert all("JSON" in fire.reason for fire in fires(rows, task))
    assign(rows)
    ended = fires(rows, task)
    assert {fire.status for fire in ended} == {"canceled"}
    assert all("JSON" in fire.reason for fire in ended)
    planned = rows.task_row(task)
    assert (planned.plan_error, planned.next_fire_at is None) == (None, False)
    spoil(rows, "schedule_task", task, value='{"n": 2}')
    mended = rows.by_sql(task)
    assign(rows)
    assert (rows.status(mended), rows.row(mended).param) == ("assigned", {"n": 2})


@pytest.mark.parametrize("poison", [TOO_LONG, UNWRITABLE])
def test_what_is_asked_of_a_task_with_such_a_param_is_refused_alone(rows: Scenario, poison: str) -> None:
    rows.worker()
    task = rows.task()
    spoil(rows, "schedule_task", task, value=poison)
    healthy, poisoned = [rows.by_sql(rows.task()), rows.by_sql(rows.task())], rows.by_sql(task)
    assign(rows)
    assert [rows.status(i) for i in healthy] == ["assigned", "assigned"]
    assert rows.status(poisoned) == "canceled"
    assert "JSON" in rows.row(poisoned).reason


def test_an_instances_own_param_is_refused_alone_and_says_why(rows: Scenario) -> None:
    rows.worker()
    healthy, poisoned = rows.by_sql(rows.task()), rows.by_sql(rows.task())
    spoil(rows, "schedule_instance", poisoned)
    assign(rows)
    assert (rows.status(healthy), rows.status(poisoned)) == ("assigned", "canceled")
    assert rows.row(poisoned).reason == f"param: JSON that cannot be read: {WHY}"


def test_a_node_of_a_list_whose_param_cannot_be_written_is_refused_alone(rows: Scenario) -> None:
    rows.worker()
    healthy, poisoned = rows.by_sql(rows.task()), rows.by_sql(rows.task())
    listed = '{"nodes": [{"type": "REPORT_SEND", "param": {"n": 1e999}}]}'
    spoil(rows, "schedule_instance", poisoned, value=listed)
    assign(rows)
    assert (rows.status(healthy), rows.status(poisoned)) == ("assigned", "canceled")


def test_labels_that_cannot_be_read_hold_back_their_own_task(rows: Scenario) -> None:
    rows.worker()
    healthy, task = rows.by_sql(rows.task()), rows.task()
    poisoned = rows.by_sql(task)
    spoil(rows, "schedule_task", task, "required_labels")
    assign(rows)
    assert (rows.status(healthy), rows.status(poisoned)) == ("assigned", "canceled")
    assert WHY in rows.row(poisoned).reason


def test_a_worker_whose_labels_or_types_cannot_be_read_is_given_nothing(rows: Scenario) -> None:
    good, *bad = rows.worker(), rows.worker(), rows.worker(labels={"lane": "x"})
    spoil(rows, "schedule_worker_node", bad[0], "node_types")
    spoil(rows, "schedule_worker_node", bad[1], "labels")
    waiting, placed = rows.by_sql(rows.task(required_labels={"lane": "x"})), rows.by_sql(rows.task())
    assign(rows)
    assert (rows.status(waiting), rows.status(placed)) == ("pending", "assigned")
    assert rows.row(placed).schedule_worker_node_id in (good, bad[1])


def test_a_claim_wins_it_with_the_others_and_leaves_its_failure_to_the_runner(rows: Scenario) -> None:
    worker = rows.worker()
    healthy, poisoned = rows.assigned(worker, param={"n": 1}), rows.assigned(worker)
    spoil(rows, "schedule_instance", poisoned)
    claim = rows.claim(worker, healthy, poisoned)
    assert [run.id for run in claim.runs] == [healthy, poisoned]
    assert claim.runs[0].param == {"n": 1}
    assert claim.runs[1].param == UnreadableJson(WHY)


def test_it_cannot_be_replayed(rows: Scenario) -> None:
    instance = rows.ended()
    spoil(rows, "schedule_instance", instance)
    with pytest.raises(NotPossible, match=f"param of instance {instance}: JSON that cannot be read"):
        rows.database.write(lambda c: instances.replay(c, instance, "test"))


def test_a_param_that_is_too_large_to_be_written_again_sets_no_task_aside(mariadb_rows: Scenario) -> None:
    """Each of its quotes takes eight bytes in the statement that writes the fire, beyond max_allowed_packet."""
    rows = mariadb_rows
    rows.worker()
    healthy, task = rows.planned_task(), rows.planned_task()
    quotes = "JSON_OBJECT('text', REPEAT('\"', 3000000))"
    rows.sql(f"UPDATE schedule_task SET param = {quotes} WHERE id = :task", task=task)
    materialize(rows)
    assert {fire.status for fire in fires(rows, healthy)} == {"assigned"}
    [fire] = fires(rows, task)
    assert (fire.status, fire.param, "max_allowed_packet" in fire.reason) == ("canceled", None, True)
    planned = rows.task_row(task)
    assert (planned.plan_error, planned.next_fire_at > rows.start) == (None, True)
    spoil(rows, "schedule_task", task, value='{"n": 2}')
    rows.sql(
        "UPDATE schedule_task SET next_fire_at = :at WHERE id = :task",
        at=written(rows.start - timedelta(seconds=1)),
        task=task,
    )
    materialize(rows)
    assert "assigned" in {fire.status for fire in fires(rows, task)}
