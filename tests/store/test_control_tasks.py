"""What people ask of tasks, as functions: documents come out; each change has its audit row, or neither is there."""

import json
from datetime import datetime
from typing import Any

import pytest

from rota.shared.control import audit, tasks
from rota.shared.control.actor import Actor
from rota.shared.domain.errors import InvalidInput, InvalidParam, NameTaken, NotFound
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import TaskDefinition
from rota.shared.store import audit as store_audit
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from tests.harness.scenario import Scenario

ANN = Actor("ann", "cli")
LIMIT = 15
NIGHTLY = {"name": "nightly", "type": "REPORT", "cron": "0 3 * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
def nightly(rows: Scenario) -> Scenario:
    tasks.add(rows.database, ANN, NIGHTLY)
    return rows


def acts(rows: Scenario, **chosen: Any) -> list[dict[str, Any]]:
    """The audit, the newest first."""
    return audit.listed(rows.database, 100, **chosen)


def facts(rows: Scenario, **chosen: Any) -> list[tuple[Any, ...]]:
    return [(act["action"], act["old_values"], act["new_values"]) for act in acts(rows, **chosen)]


def changed(rows: Scenario) -> tuple[Any, ...]:
    """All that an act may change."""
    return tuple(rows.sql(f"SELECT * FROM {t} ORDER BY id") for t in ("schedule_task", "schedule_instance"))


# Documents


def test_every_document_is_json_as_it_is(nightly: Scenario) -> None:
    run = tasks.run(nightly.database, ANN, "nightly", param={"region": "eu"})
    made = [tasks.show(nightly.database, "nightly"), tasks.listed(nightly.database, 9), run.document, acts(nightly)]
    assert json.loads(json.dumps(made)) == made
    assert run.document["schedule_datetime"].endswith("Z")


def test_a_saved_task_comes_with_its_next_fires_in_utc_and_in_its_zone(rows: Scenario) -> None:
    saved = tasks.add(rows.database, ANN, {**NIGHTLY, "starts_at": "2027-03-28T00:00"})
    assert saved.document["next_fires"][0] == {"utc": "2027-03-28T01:00:00Z", "local": "2027-03-28T03:00:00+02:00"}
    assert (len(saved.document["next_fires"]), saved.document["trigger_description"]) == (5, "every day at 03:00")
    assert (saved.document["remark"], saved.remarks) == (None, [])


def test_times_are_read_in_the_tasks_zone_and_what_is_special_of_them_is_said(nightly: Scenario) -> None:
    saved = tasks.edit(nightly.database, ANN, "nightly", {"ends_at": "2027-10-31T02:30"})
    assert saved.document["ends_at"] == "2027-10-31T00:30:00Z"
    [remark] = saved.remarks
    assert "occurs twice in Europe/Berlin; the first is taken" in remark
    ran = tasks.run(nightly.database, ANN, "nightly", at="2026-03-29T02:30")
    assert ran.document["schedule_datetime"] == "2026-03-29T01:00:00Z"
    assert "does not occur in Europe/Berlin" in ran.remarks[0]


def test_a_task_without_fires_says_why(nightly: Scenario) -> None:
    tasks.edit(nightly.database, ANN, "nightly", {"ends_at": "2026-01-01T00:00"})
    assert tasks.show(nightly.database, "nightly")["remark"] == "it does not fire any more"
    nightly.sql("UPDATE schedule_task SET cron = '61 * * * *'")
    assert tasks.show(nightly.database, "nightly")["remark"].startswith("it cannot fire: ")
    [listed] = tasks.listed(nightly.database, 9)
    assert (listed["next_fire"], "the minute field has 61" in listed["remark"]) == (None, True)


# Each change and its audit row


def test_each_act_on_a_task_says_who_by_what_why_and_what_it_changed(nightly: Scenario) -> None:
    database = nightly.database
    bob = Actor("bob", "api")
    tasks.edit(database, bob, "nightly", {"retries": 2, "priority": 5, "cron": None}, "it failed")
    tasks.switch(database, bob, ["nightly"], TaskStatus.OFF, "the source is down")
    tasks.switch(database, bob, ["nightly"], TaskStatus.ON)
    tasks.remove(database, bob, "nightly", "not needed")
    assert facts(nightly)[:-1] == [
        ("task.remove", {"is_deleted": 0}, {"is_deleted": 1}),
        ("task.on", {"status": "off"}, {"status": "on"}),
        ("task.off", {"status": "on"}, {"status": "off"}),
        (
            "task.set",
            {"retries": 0, "cron": "0 3 * * *", "trigger_kind": "cron"},
            {"retries": 2, "cron": None, "trigger_kind": "manual"},
        ),
    ]
    assert [act["why"] for act in acts(nightly)] == ["not needed", None, "the source is down", "it failed", None]
    assert {(act["object_type"], act["object_name"]) for act in acts(nightly)} == {("schedule_task", "nightly")}
    assert [(act["actor"], act["face"]) for act in acts(nightly)] == [("bob", "api")] * 4 + [("ann", "cli")]


def test_a_new_task_is_recorded_with_all_that_it_was_given(rows: Scenario) -> None:
    given = {"type": "REPORT", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "param": {"region": "eu"}}
    tasks.add(rows.database, ANN, {"name": "nightly", **given, "starts_at": "2027-01-01T00:00"})
    [(action, old, new)] = facts(rows)
    assert (action, old, acts(rows)[0]["object_name"]) == ("task.add", None, "nightly")
    assert {name: new[name] for name in (*given, "starts_at")} == {**given, "starts_at": "2026-12-31T23:00:00Z"}


def test_a_run_is_recorded_for_the_instance_that_it_made(nightly: Scenario) -> None:
    made = tasks.run(nightly.database, ANN, "nightly", at="2026-11-19T03:00", param={"a": 1}, why="it was missed")
    [act] = acts(nightly, instance_id=made.document["id"])
    assert (act["action"], act["object_type"], act["why"]) == ("task.run", "schedule_instance", "it was missed")
    assert act["new_values"] == {"schedule_datetime": "2026-11-19T02:00:00Z", "param": {"a": 1}}
    assert [one["action"] for one in acts(nightly, task="nightly")] == ["task.run", "task.add"]


def test_what_changes_nothing_is_not_recorded(nightly: Scenario) -> None:
    assert not tasks.switch(nightly.database, ANN, ["nightly"], TaskStatus.ON)[0]["changed"]
    tasks.edit(nightly.database, ANN, "nightly", {"cron": "0 3 * * *", "cron_seconds": False})
    assert [act["action"] for act in acts(nightly)] == ["task.add"]


REFUSED: dict[str, tuple[type[Exception], Any]] = {
    "a name that is taken": (NameTaken, lambda d: tasks.add(d, ANN, NIGHTLY)),
    "an unknown type": (InvalidParam, lambda d: tasks.add(d, ANN, {**NIGHTLY, "name": "x", "type": "NONE"})),
    "an unknown field": (InvalidInput, lambda d: tasks.edit(d, ANN, "nightly", {"crom": "* * * * *"})),
    "a bad cron": (InvalidInput, lambda d: tasks.edit(d, ANN, "nightly", {"cron": "61 * * * *"})),
    "a bad time": (InvalidInput, lambda d: tasks.edit(d, ANN, "nightly", {"ends_at": "soon"})),
    "a name of another": (NameTaken, lambda d: tasks.edit(d, ANN, "nightly", {"name": "other"})),
    "one of two": (NotFound, lambda d: tasks.switch(d, ANN, ["nightly", "nobody"], TaskStatus.OFF)),
    "nobody removed": (NotFound, lambda d: tasks.remove(d, ANN, "nobody")),
    "nobody run": (NotFound, lambda d: tasks.run(d, ANN, "nobody")),
    "a param that does not fit": (InvalidParam, lambda d: tasks.run(d, ANN, "other", param={"region": 5})),
    "too long a reason": (InvalidInput, lambda d: tasks.switch(d, ANN, ["nightly"], TaskStatus.OFF, "x" * 1001)),
    "too long a reason to run": (InvalidInput, lambda d: tasks.run(d, ANN, "nightly", why="x" * 1001)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing_and_leaves_no_audit_row(nightly: Scenario, case: str) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string"}}}
    checked = [NodeTypeDeclaration("CHECKED_RUN", "CHECKED", param_schema=schema)]
    nightly.database.write(lambda c: node_types.register(c, checked, "test"))
    tasks.add(nightly.database, ANN, {"name": "other", "type": "CHECKED"})
    before, recorded = changed(nightly), acts(nightly)
    error, ask = REFUSED[case]
    with pytest.raises(error):
        ask(nightly.database)
    assert changed(nightly) == before
    assert acts(nightly) == recorded


ACTS: dict[str, Any] = {
    "add": lambda d: tasks.add(d, ANN, {**NIGHTLY, "name": "new"}),
    "edit": lambda d: tasks.edit(d, ANN, "nightly", {"retries": 1}),
    "switch": lambda d: tasks.switch(d, ANN, ["nightly"], TaskStatus.OFF),
    "remove": lambda d: tasks.remove(d, ANN, "nightly"),
    "run": lambda d: tasks.run(d, ANN, "nightly"),
    "declare": lambda d: tasks.declare(d, ANN, TaskDefinition.of(**{**NIGHTLY, "retries": 1}), liveness_seconds=LIMIT),
}


@pytest.mark.parametrize("name", ACTS)
def test_an_act_that_cannot_be_recorded_is_not_done(
    nightly: Scenario, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = changed(nightly)

    def fail(*_: Any) -> None:
        raise InvalidInput("no audit today")

    with monkeypatch.context() as patched:
        patched.setattr(store_audit, "record", fail)
        with pytest.raises(InvalidInput, match="no audit today"):
            ACTS[name](nightly.database)
    assert changed(nightly) == before
    ACTS[name](nightly.database)
    assert changed(nightly) != before


# Finding


def test_the_acts_on_a_name_go_on_after_it_was_freed_and_given_again(nightly: Scenario) -> None:
    tasks.remove(nightly.database, ANN, "nightly")
    assert [act["action"] for act in acts(nightly, task="nightly")] == ["task.remove", "task.add"]
    tasks.add(nightly.database, Actor("bob", "cli"), NIGHTLY)
    assert [act["actor"] for act in acts(nightly, task="nightly")] == ["bob", "ann", "ann"]
    with pytest.raises(NotFound, match="no task is named 'nobody'"):
        acts(nightly, task="nobody")


def test_the_acts_on_a_task_that_was_renamed_are_found_by_its_new_name(nightly: Scenario) -> None:
    tasks.edit(nightly.database, ANN, "nightly", {"name": "nocturne"})
    tasks.run(nightly.database, ANN, "nocturne")
    assert [act["action"] for act in acts(nightly, task="nocturne")] == ["task.run", "task.set", "task.add"]
    assert acts(nightly, task="nocturne")[1]["new_values"] == {"name": "nocturne"}
    assert len(audit.listed(nightly.database, 2, task="nocturne")) == 2


# Declared by code


def test_what_code_declares_is_recorded_where_it_changes_something(rows: Scenario) -> None:
    worker = Actor("w-1", "code")

    def declare(**fields: Any) -> None:
        definition = TaskDefinition.of(**{**NIGHTLY, **fields})
        assert tasks.declare(rows.database, worker, definition, liveness_seconds=LIMIT)

    declare()
    declare()
    declare(retries=2)
    tasks.edit(rows.database, ANN, "nightly", {"priority": 1})
    declare(retries=2, priority=1)  # the operator has said so already
    assert [(act["actor"], act["face"], act["action"], act["new_values"]) for act in acts(rows)][:2] == [
        ("ann", "cli", "task.set", {"priority": 1}),
        ("w-1", "code", "task.set", {"retries": 2}),
    ]
    assert [act["action"] for act in acts(rows)] == ["task.set", "task.set", "task.add"]


def test_the_time_of_an_act_is_the_databases(nightly: Scenario) -> None:
    said = datetime.fromisoformat(acts(nightly)[0]["gmt_create"]).replace(tzinfo=None)
    assert abs((nightly.now() - said).total_seconds()) < 60
