"""Whose declaration of a task is in force: the newest that a live worker carries, or carried a limit ago."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.shared.control import limits, tasks
from rota.shared.control.actor import Actor
from rota.shared.database.constructs import written
from rota.shared.domain.errors import DatabaseProblem, InvalidInput
from rota.shared.domain.limits import LimitDefinition
from rota.shared.domain.task import TaskDefinition
from rota.shared.domain.versions import version_of
from rota.shared.settings import Settings
from rota.shared.store import declarations, node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.worker_service.declarations import Declarations
from tests.harness.databases import NO_JSON
from tests.harness.scenario import Scenario
from tests.harness.together import gap_locked, locked

LIMIT = 15
OLD, NEW, NEWEST = "0 3 * * *", "0 4 * * *", "0 5 * * *"


def definition(cron: str) -> TaskDefinition:
    return TaskDefinition.of(name="daily", type="REPORT", cron=cron)


def declare(rows: Scenario, cron: str) -> bool:
    """As a worker declares it that starts; True if its declaration is in force."""
    return tasks.declare(rows.database, Actor("w", "code"), definition(cron), liveness_seconds=LIMIT)


def carrier(rows: Scenario, cron: str, **fields: Any) -> int:
    """A live worker whose app declares that cron."""
    return rows.worker(schedules={"daily": version_of(definition(cron).declared())}, **fields)


def cron_in_force(rows: Scenario) -> str:
    return str(tasks.get(rows.database, "daily")["cron"])


def pass_time(rows: Scenario, seconds: float) -> None:
    """All that has happened is so much longer ago."""
    beats = ("schedule_worker_beat", "schedule_worker_node_id")
    for (table, key), column in ((beats, "last_beat"), (beats, "gmt_dead"), (("schedule_task", "id"), "declared_at")):
        for row in rows.sql(f"SELECT {key} AS id, {column} AS moment FROM {table} WHERE {column} IS NOT NULL"):
            at = datetime.fromisoformat(str(row.moment)) - timedelta(seconds=seconds)
            rows.sql(f"UPDATE {table} SET {column} = :at WHERE {key} = :id", at=written(at), id=row.id)


def test_an_older_version_that_restarts_does_not_declare_its_cron_again_over_the_newer(rows: Scenario) -> None:
    assert declare(rows, OLD)
    old = carrier(rows, OLD)
    assert declare(rows, NEW)
    carrier(rows, NEW)
    rows.bury(old)
    pass_time(rows, 3600)
    assert not declare(rows, OLD)
    assert cron_in_force(rows) == NEW


def test_an_older_declaration_applies_when_no_worker_has_carried_a_newer_one_for_a_liveness_limit(
    rows: Scenario,
) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    new = carrier(rows, NEW)
    rows.bury(new)
    pass_time(rows, LIMIT - 5)
    assert not declare(rows, OLD)
    pass_time(rows, 6)
    assert declare(rows, OLD)
    assert cron_in_force(rows) == OLD


def test_a_declaration_that_has_just_come_into_force_counts_before_its_worker_is_registered(rows: Scenario) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    assert not declare(rows, OLD)
    pass_time(rows, LIMIT + 1)
    assert declare(rows, OLD)


def test_after_a_rollback_the_newer_version_is_deployed_again_at_once(rows: Scenario) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    pass_time(rows, LIMIT + 1)
    declare(rows, OLD)
    carrier(rows, OLD)
    assert declare(rows, NEW)
    assert cron_in_force(rows) == NEW


def test_it_yields_to_any_newer_one_that_is_carried_not_only_to_that_in_force(rows: Scenario) -> None:
    for cron in (OLD, NEW, NEWEST):
        assert declare(rows, cron)
    carrier(rows, NEW)
    pass_time(rows, LIMIT + 1)
    assert not declare(rows, OLD)
    assert declare(rows, NEW)
    assert cron_in_force(rows) == NEW


def test_a_declaration_that_was_never_seen_is_the_newest(rows: Scenario) -> None:
    declare(rows, OLD)
    carrier(rows, OLD)
    assert declare(rows, NEW)
    assert cron_in_force(rows) == NEW


def test_what_an_operator_edited_stays_when_a_rollback_says_nothing_else(rows: Scenario) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    tasks.edit(rows.database, Actor("ann", "cli"), "daily", {"retries": 7})
    pass_time(rows, LIMIT + 1)
    assert declare(rows, OLD)
    assert tasks.get(rows.database, "daily")["retries"] == 7


@pytest.mark.parametrize("spoiled", ["{}", '"x"', "7", "[[1]]", '[{"a": 1}, 5]'])
def test_versions_that_sql_has_spoiled_are_as_if_only_that_in_force_were_known(rows: Scenario, spoiled: str) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    rows.sql("UPDATE schedule_task SET declared_versions = :spoiled", spoiled=spoiled)
    rows.sql("UPDATE schedule_worker_node SET schedules = :spoiled", spoiled=spoiled)
    assert declare(rows, OLD)


@pytest.mark.parametrize("spoiled", ["5", "[[1]]", '"x"', "true", NO_JSON, '{"cron": [[1]]}'])
def test_a_declaration_that_sql_has_spoiled_is_declared_anew_and_stops_no_worker(rows: Scenario, spoiled: str) -> None:
    declare(rows, OLD)
    rows.sql("UPDATE schedule_task SET declared = :spoiled", spoiled=spoiled)
    assert tasks.show(rows.database, "daily")["declaration"]["carried_by"] == []
    watching(rows, NEW).declare()
    assert cron_in_force(rows) == NEW


def test_of_versions_that_sql_has_spoiled_the_texts_count(rows: Scenario) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    carrier(rows, NEW)
    old, new = (version_of(definition(cron).declared()) for cron in (OLD, NEW))
    rows.sql("UPDATE schedule_task SET declared_versions = :spoiled", spoiled=json.dumps([old, [1], new, {"a": 1}]))
    assert not declare(rows, OLD)
    assert cron_in_force(rows) == NEW


def watching(rows: Scenario, cron: str) -> Declarations:
    return Declarations(rows.database, [definition(cron)], "w", Settings.load(liveness_seconds=LIMIT))


def test_a_worker_whose_declaration_yielded_declares_it_until_it_is_in_force(rows: Scenario) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    new, old = carrier(rows, NEW), watching(rows, OLD)
    pass_time(rows, 1)
    old.declare()
    assert old.look() == Settings.load().heartbeat_seconds
    assert cron_in_force(rows) == NEW
    rows.bury(new)
    pass_time(rows, LIMIT + 1)
    assert old.look() == LIMIT
    assert cron_in_force(rows) == OLD


def test_when_a_canary_stops_what_it_declared_goes_back(rows: Scenario) -> None:
    """The other workers were there before it, and are not started again."""
    crowd = watching(rows, OLD)
    crowd.declare()
    carrier(rows, OLD)
    assert declare(rows, NEW)
    canary = carrier(rows, NEW)
    assert crowd.look() == LIMIT
    rows.bury(canary)
    pass_time(rows, LIMIT + 1)
    crowd.look()
    assert cron_in_force(rows) == OLD


def test_a_worker_that_sees_no_version_go_declares_nothing_again(rows: Scenario) -> None:
    worker = watching(rows, OLD)
    worker.declare()
    carrier(rows, OLD)
    carrier(rows, NEW)
    worker.look()
    before = rows.sql("SELECT * FROM schedule_task")
    worker.look()
    assert rows.sql("SELECT * FROM schedule_task") == before


def test_task_show_says_which_declaration_is_in_force_and_who_carries_it(rows: Scenario) -> None:
    declare(rows, OLD)
    declare(rows, NEW)
    carrier(rows, OLD, name="old-1")
    carrier(rows, NEW, name="new-1")
    said = tasks.show(rows.database, "daily")["declaration"]
    old, new = (version_of(definition(cron).declared()) for cron in (OLD, NEW))
    assert (said["version"], said["carried_by"], said["others"]) == (new, ["new-1"], {old: ["old-1"]})
    assert said["declared_at"] is not None
    rows.task("by-hand")
    assert tasks.show(rows.database, "by-hand")["declaration"] is None


def test_the_oldest_versions_are_forgotten(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "VERSIONS_KEPT", 2)
    for cron in (OLD, NEW, NEWEST):
        declare(rows, cron)
    [(kept,)] = rows.sql("SELECT declared_versions FROM schedule_task")
    assert str(kept).count(",") == 1
    assert declare(rows, OLD)


def of_type(name: str, task_type: str, param: Any = None) -> TaskDefinition:
    return TaskDefinition.of(name=name, type=task_type, param=param)


def test_a_task_of_an_unknown_type_is_told_at_load_holds_up_no_other_and_waits_for_its_type(
    rows: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [
        of_type("daily", "REPROT"),
        of_type("listed", "REPORT", {"nodes": ["LATER_A"]}),
        of_type("good", "REPORT"),
    ]
    worker = Declarations(rows.database, wanted, "w", Settings.load(liveness_seconds=LIMIT))
    worker.declare()
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "task 'daily': no task type 'REPROT' is registered (did you mean REPORT?); there are: REPORT" in told
    assert "it is declared when a worker has registered its type" in told
    assert """task 'listed': "nodes" in param names 'LATER_A', which is no registered node type""" in told
    assert [task["name"] for task in tasks.listed(rows.database, 10)] == ["good"]
    assert worker.look() == LIMIT
    rows.database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("REPROT", "REPROT")], "other"))
    worker.look()
    worker.look()
    assert [task["name"] for task in tasks.listed(rows.database, 10)] == ["daily", "good"]
    assert len(caplog.records) == 2, "each is told once"


def test_a_task_whose_param_does_not_fit_a_registered_type_ends_its_worker_with_a_sentence(rows: Scenario) -> None:
    schema = {"type": "object", "required": ["region"]}
    declared = [NodeTypeDeclaration("MAIL", "MAIL", param_schema=schema)]
    rows.database.write(lambda c: node_types.register(c, declared, "other"))
    worker = Declarations(rows.database, [of_type("daily", "MAIL")], "w", Settings.load(liveness_seconds=LIMIT))
    with pytest.raises(InvalidInput, match="task 'daily': param of MAIL: 'region' is a required property"):
        worker.declare()
    assert tasks.listed(rows.database, 10) == []


def test_a_worker_starts_though_somebody_has_locked_what_it_declares_and_declares_that_later(
    mariadb_rows: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    rows = mariadb_rows
    assert declare(rows, OLD)
    rows.sql("INSERT INTO schedule_limit (name, max_running) VALUES ('mine', 1)")
    other = TaskDefinition.of(name="other", type="REPORT", cron=NEW)
    limit = LimitDefinition.of(name="mine", max_running=5)
    declared = Declarations(rows.database, [definition(NEW), other], "w", Settings.load(), own_limits=[limit])
    with locked(rows.database, "schedule_task", "name = 'daily'"), locked(rows.database, "schedule_limit"):
        declared.declare()
        assert declared.look() == Settings.load().heartbeat_seconds, "it looks again soon"
    assert (cron_in_force(rows), tasks.get(rows.database, "other")["cron"]) == (OLD, NEW)
    said = [one.message for one in caplog.records]
    assert [" ".join(one.split()[:6]) for one in said] == [
        "the declaration of limit 'mine' waits:",
        "the declaration of task 'daily' waits:",
    ]
    assert declared.look() == LIMIT
    assert cron_in_force(rows) == NEW
    assert rows.sql("SELECT max_running FROM schedule_limit") == [(5,)]


def test_what_needs_a_new_task_or_limit_whose_place_somebody_has_locked_is_declared_after_it(
    mariadb_rows: Scenario,
) -> None:
    rows = mariadb_rows
    first = TaskDefinition.of(name="first", type="REPORT", cron=NEW, limit_name="mine")
    second = TaskDefinition.of(name="second", type="REPORT", after="first")
    limit = LimitDefinition.of(name="mine", max_running=5)
    declared = Declarations(rows.database, [first, second], "w", Settings.load(), own_limits=[limit])
    with gap_locked(rows.database, "schedule_task", "1 = 1"), gap_locked(rows.database, "schedule_limit", "1 = 1"):
        declared.declare()
        declared.look()
    for _ in range(3):
        declared.look()
    names = {row.name for row in rows.sql("SELECT name FROM schedule_task")}
    assert {"first", "second"} <= names


@pytest.mark.parametrize("fails", ["the task", "a limit"])
@pytest.mark.parametrize("after", [None, "first"])
def test_what_is_to_be_declared_later_is_not_forgotten_when_that_fails(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch, after: str | None, fails: str
) -> None:
    """It waits for a lock, or for the task that it follows."""
    rows = mariadb_rows
    one = TaskDefinition.of(name="one", type="REPORT", **({"after": after} if after else {"cron": NEW}))
    limit = LimitDefinition.of(name="mine", max_running=5)
    declared = Declarations(rows.database, [one], "w", Settings.load(), own_limits=[limit])
    with gap_locked(rows.database, "schedule_task", "1 = 1"), gap_locked(rows.database, "schedule_limit", "1 = 1"):
        declared.declare()
    rows.task("first")

    def fail(*_: Any, **__: Any) -> bool:
        raise DatabaseProblem("too many conflicts")

    with monkeypatch.context() as patched:
        patched.setattr(tasks if fails == "the task" else limits, "declare", fail)
        for _ in range(2):
            with pytest.raises(DatabaseProblem):
                declared.look()
    declared.look()
    assert [row.name for row in rows.sql("SELECT name FROM schedule_task WHERE name = 'one'")] == ["one"]
