"""Tasks as people and code edit them: names, checks, and declarations that leave operators' edits alone."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Row

from rota.shared.control import tasks as control
from rota.shared.control.actor import Actor
from rota.shared.domain.errors import InvalidInput, InvalidParam, NameTaken, NotFound
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import TaskDefinition
from rota.shared.domain.task_filter import TaskFilter
from rota.shared.store import node_types, tasks
from tests.harness.databases import NO_JSON
from tests.harness.scenario import Scenario
from tests.harness.together import together


def declare(rows: Scenario, **fields: Any) -> None:
    definition = TaskDefinition.of(**{"name": "daily", "type": "REPORT", "cron": "0 3 * * *", **fields})
    # As if each were declared long after the other.
    control.declare(rows.database, Actor("worker-7", "code"), definition, liveness_seconds=-1)


def edit(rows: Scenario, **changes: Any) -> None:
    control.edit(rows.database, Actor("operator", "cli"), "daily", changes)


def switch(rows: Scenario, status: TaskStatus) -> bool:
    return rows.database.write(lambda c: tasks.switch(c, tasks.find(c, "daily"), status, "operator"))


def find(rows: Scenario, name: str = "daily") -> Row[Any]:
    return rows.database.read(lambda c: tasks.find(c, name))


def live(rows: Scenario) -> list[str]:
    return [row.name for row in rows.database.read(lambda c: tasks.listed(c, 100))]


# Names


def test_a_live_task_owns_its_name_and_a_deleted_one_frees_it(rows: Scenario) -> None:
    first = rows.task(name="daily")
    with pytest.raises(NameTaken, match="a task named 'daily' exists already"):
        rows.task(name="daily")
    rows.database.write(lambda c: tasks.remove(c, tasks.find(c, "daily"), "test"))
    with pytest.raises(NotFound, match="no task is named 'daily'"):
        find(rows)
    second = rows.task(name="daily")
    assert second != first
    rows.database.write(lambda c: tasks.remove(c, tasks.find(c, "daily"), "test"))
    assert [rows.task_row(task).name for task in (first, second)] == ["daily", "daily"]


def test_names_differ_by_case(rows: Scenario) -> None:
    rows.task(name="daily")
    rows.task(name="Daily")
    assert find(rows, "Daily").name == "Daily"


def test_an_edit_to_a_name_that_is_taken_is_refused_and_changes_nothing(rows: Scenario) -> None:
    rows.task(name="daily", priority=5)
    rows.task(name="weekly")
    with pytest.raises(NameTaken):
        edit(rows, name="weekly", priority=1)
    assert find(rows).priority == 5


def test_tasks_are_listed_by_name_status_and_part_of_the_name(rows: Scenario) -> None:
    for name in ("b_1", "a_1", "bX1", "gone"):
        rows.task(name=name)
    rows.database.write(lambda c: tasks.remove(c, tasks.find(c, "gone"), "test"))
    rows.database.write(lambda c: tasks.switch(c, tasks.find(c, "a_1"), TaskStatus.OFF, "test"))

    def listed(limit: int = 10, **chosen: Any) -> list[str]:
        return [row.name for row in rows.database.read(lambda c: tasks.listed(c, limit, TaskFilter(**chosen)))]

    assert sorted(listed()) == ["a_1", "bX1", "b_1"]
    assert listed() == sorted(listed())
    assert len(listed(limit=2)) == 2
    assert listed(status="off") == ["a_1"]
    assert listed(like="b_") == ["b_1"]


def test_tasks_are_listed_by_owner_group_and_tags(rows: Scenario) -> None:
    rows.task(name="a", owner="ann", task_group="night", tags=["finance", 'with "quotes"'])
    rows.task(name="b", owner="ann", tags=["finance"])
    rows.task(name="c", owner="bob", task_group="night", tags=["Finance", "ü", "%"])
    rows.task(name="d")

    def listed(**chosen: Any) -> list[str]:
        return [row.name for row in rows.database.read(lambda c: tasks.listed(c, 10, TaskFilter(**chosen)))]

    assert listed(owner="ann") == ["a", "b"]
    assert listed(owner="Ann") == []
    assert listed(group="night") == ["a", "c"]
    assert listed(owner="ann", group="night") == ["a"]
    assert listed(tags=["finance"]) == ["a", "b"]
    assert listed(tags=["finance", 'with "quotes"']) == ["a"]
    assert listed(tags=["ü"]) == listed(tags=["%"]) == ["c"]
    assert listed(tags=["fin"]) == []


@pytest.mark.parametrize("spoiled", [NO_JSON, '{"finance": 1}', '"finance"', "5", "[[1], null, 7]"])
def test_tags_that_sql_has_spoiled_concern_their_own_task_alone(rows: Scenario, spoiled: str) -> None:
    rows.task(name="a", tags=["finance"])
    bad = rows.task(name="b", tags=["x"])
    rows.sql("UPDATE schedule_task SET tags = :spoiled WHERE id = :bad", spoiled=spoiled, bad=bad)
    found = rows.database.read(lambda c: tasks.listed(c, 10, TaskFilter(tags=["finance"])))
    assert "a" in [row.name for row in found]


# Checks


def test_a_task_of_an_unknown_type_or_with_a_wrong_param_is_refused(rows: Scenario) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string"}}}
    declared = [node_types.NodeTypeDeclaration("CHECKED_RUN", "CHECKED", param_schema=schema)]
    rows.database.write(lambda c: node_types.register(c, declared, "test"))
    with pytest.raises(InvalidParam, match="no task type 'NONE' is registered"):
        rows.task(type="NONE")
    with pytest.raises(InvalidParam, match="region: 7 is not of type 'string'"):
        rows.task(type="CHECKED", param={"region": 7})
    rows.task(name="daily", type="CHECKED", param={"region": "eu"})
    with pytest.raises(InvalidParam):
        edit(rows, param={"region": 7})
    with pytest.raises(InvalidInput):
        edit(rows, cron="61 * * * *")
    assert find(rows).param == {"region": "eu"}


def test_an_edit_changes_what_it_names_and_says_who(rows: Scenario) -> None:
    rows.task(name="daily", retries=3)
    edit(rows, cron=None, priority=1)
    row = find(rows)
    assert (row.cron, row.trigger_kind, row.priority, row.retries) == (None, "manual", 1, 3)
    assert (row.creator, row.modifier) == ("test", "operator")


def test_a_task_is_switched_once(rows: Scenario) -> None:
    rows.task(name="daily")
    assert [switch(rows, TaskStatus.OFF), switch(rows, TaskStatus.OFF)] == [True, False]
    assert find(rows).status == "off"
    assert switch(rows, TaskStatus.ON)


# Declarations


def test_a_declared_task_is_on_and_as_declared(rows: Scenario) -> None:
    declare(rows, timezone="Asia/Shanghai", retries=3, param={"region": "eu"}, status="off")
    row = find(rows)
    assert (row.status, row.timezone, row.retries, row.param) == ("on", "Asia/Shanghai", 3, {"region": "eu"})
    assert (row.creator, row.plan_stale) == ("worker-7", 1)


def test_an_operators_edit_survives_restarts(rows: Scenario) -> None:
    declare(rows, retries=3)
    edit(rows, retries=7, cron="0 4 * * *")
    before = find(rows)
    declare(rows, retries=3)
    assert find(rows) == before


def test_a_deploy_writes_only_what_its_declaration_changed(rows: Scenario) -> None:
    declare(rows, retries=3, priority=5)
    edit(rows, retries=7, cron="0 4 * * *")
    declare(rows, retries=3, priority=1)
    row = find(rows)
    assert (row.retries, row.cron, row.priority) == (7, "0 4 * * *", 1)
    declare(rows, retries=4, priority=1)
    assert find(rows).retries == 4


def test_a_deploy_that_says_what_the_operator_said_and_then_something_else_is_written(rows: Scenario) -> None:
    declare(rows, retries=3)
    edit(rows, retries=7)
    declare(rows, retries=7)
    assert find(rows).retries == 7
    declare(rows, retries=3)
    assert find(rows).retries == 3


def test_a_declaration_never_touches_the_status(rows: Scenario) -> None:
    declare(rows)
    switch(rows, TaskStatus.OFF)
    declare(rows, priority=1, status="on")
    row = find(rows)
    assert (row.status, row.priority) == ("off", 1)


def test_a_declared_cron_that_is_taken_away_leaves_a_task_to_be_run_by_hand(rows: Scenario) -> None:
    declare(rows)
    declare(rows, cron=None)
    assert (find(rows).cron, find(rows).trigger_kind) == (None, "manual")
    declare(rows)
    assert (find(rows).cron, find(rows).trigger_kind) == ("0 3 * * *", "cron")


def test_a_declaration_that_leaves_the_plan_alone_leaves_it_as_it_is(rows: Scenario) -> None:
    task = rows.planned_task(rows.start + timedelta(days=1), name="daily", cron="0 3 * * *")
    declare(rows)
    declare(rows, priority=1)
    row = rows.task_row(task)
    assert (row.plan_stale, row.priority, row.next_fire_at) == (None, 1, rows.start + timedelta(days=1))


def test_workers_that_declare_one_task_at_once_make_one(rows: Scenario) -> None:
    for number in range(5):
        together(*[partial(declare, rows, name=f"task-{number}", retries=3)] * 4)
    assert live(rows) == [f"task-{number}" for number in range(5)]
    assert {find(rows, name).retries for name in live(rows)} == {3}
