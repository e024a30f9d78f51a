"""Limits that tasks share, as people and code keep them; and what the scheduler gives to workers of them."""

from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.limit_places import Given
from rota.shared.control import limits, tasks
from rota.shared.control.actor import Actor
from rota.shared.domain.errors import InvalidInput, NameTaken, NotFound, NotPossible, RotaError
from rota.shared.domain.limits import AHEAD, LimitDefinition
from rota.shared.settings import Settings
from rota.worker_service.authoring import Rota
from rota.worker_service.declarations import Declarations
from tests.harness.scenario import Scenario, ended
from tests.harness.statements import executed

ANN = Actor("ann", "cli")
WAREHOUSE = {"name": "warehouse", "max_running": 4}


def acts(rows: Scenario) -> list[Any]:
    found = rows.sql("SELECT action, old_values, new_values FROM schedule_audit ORDER BY id")
    return [tuple(row) for row in found]


def test_a_limit_is_added_changed_and_removed_and_each_act_is_recorded(rows: Scenario) -> None:
    added = limits.add(rows.database, ANN, WAREHOUSE)
    changed = limits.edit(rows.database, ANN, "warehouse", {"max_running": 2, "starts_per_minute": 60}, "slow")
    assert (added["max_running"], changed["max_running"], changed["starts_per_minute"]) == (4, 2, 60)
    limits.edit(rows.database, ANN, "warehouse", {"max_running": 2})
    assert limits.remove(rows.database, ANN, "warehouse")["removed"] is True
    assert limits.listed(rows.database, 10) == []
    assert [action for action, *_ in acts(rows)] == ["limit.add", "limit.set", "limit.remove"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "x"}, "it limits nothing: give max_running, or starts_per_minute, or both"),
        ({"name": "x", "max_running": -1}, "max_running -1: Input should be greater than or equal to 0"),
        ({"name": "", "max_running": 1}, "name '': a name has 1 to 63 characters, and no blank at its ends"),
        (
            {"name": "x", "max_running": 1, "starts_per_minute": 10**6},
            "starts_per_minute 1000000: Input should be less",
        ),
    ],
)
def test_a_limit_that_cannot_be_is_refused(rows: Scenario, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        limits.add(rows.database, ANN, fields)
    assert str(refused.value).startswith(said)
    assert rows.sql("SELECT * FROM schedule_limit") == []


def test_what_is_refused_changes_nothing(rows: Scenario) -> None:
    limits.add(rows.database, ANN, WAREHOUSE)
    rows.task(name="pick", limit_name="warehouse")
    refused: list[tuple[type[RotaError], str, Any]] = [
        (NameTaken, "a limit named 'warehouse' exists already", lambda: limits.add(rows.database, ANN, WAREHOUSE)),
        (NotFound, "there is no limit 'x'; there are: warehouse", lambda: limits.edit(rows.database, ANN, "x", {})),
        (NotFound, "there is no limit 'x'", lambda: limits.remove(rows.database, ANN, "x")),
        (NotPossible, "limit 'warehouse' is named by pick;", lambda: limits.remove(rows.database, ANN, "warehouse")),
        (
            InvalidInput,
            "it limits nothing",
            lambda: limits.edit(rows.database, ANN, "warehouse", {"max_running": None}),
        ),
        (
            InvalidInput,
            "there is no limit 'warehose' (did you mean warehouse?); there are: warehouse",
            lambda: tasks.edit(rows.database, ANN, "pick", {"limit_name": "warehose"}),
        ),
        (
            InvalidInput,
            "there is no limit 'x'",
            lambda: tasks.add(rows.database, ANN, {"name": "new", "type": "REPORT", "limit_name": "x"}),
        ),
    ]
    before = rows.sql("SELECT name, limit_name FROM schedule_task"), rows.sql("SELECT * FROM schedule_limit")
    for kind, said, act in refused:
        with pytest.raises(kind) as error:
            act()
        assert str(error.value).startswith(said), said
    after = rows.sql("SELECT name, limit_name FROM schedule_task"), rows.sql("SELECT * FROM schedule_limit")
    assert after == before


def test_code_declares_a_limit_and_an_operators_edit_survives(rows: Scenario) -> None:
    code = Actor("w", "code")

    def declared(**fields: Any) -> tuple[Any, Any]:
        limits.declare(rows.database, code, LimitDefinition.of(name="warehouse", **fields))
        [found] = limits.listed(rows.database, 2)
        return found["max_running"], found["starts_per_minute"]

    assert declared(max_running=4) == (4, None)
    limits.edit(rows.database, ANN, "warehouse", {"max_running": 2})
    assert declared(max_running=4) == (2, None)
    assert declared(max_running=4, starts_per_minute=60) == (2, 60)
    assert declared(max_running=5, starts_per_minute=60) == (5, 60)


def test_a_worker_declares_the_limits_of_its_app_before_its_tasks(rows: Scenario) -> None:
    app = Rota()
    app.limit("warehouse", 4)
    app.schedule("pick", "REPORT", limit_name="warehouse")
    with pytest.raises(NameTaken):
        app.limit("warehouse", 5)
    with pytest.raises(InvalidInput, match="limit 'x': it limits nothing"):
        app.limit("x")
    rows.task()
    settings = Settings.load()
    Declarations(rows.database, app.schedules, "w", settings, own_limits=app.limits).declare()
    assert limits.get(rows.database, "warehouse")["tasks"] == 1
    other = Rota()
    other.schedule("pack", "REPORT", limit_name="harbour")
    with pytest.raises(InvalidInput, match="task 'pack': there is no limit 'harbour'"):
        Declarations(rows.database, other.schedules, "w", settings).declare()
    assert rows.sql("SELECT name FROM schedule_task WHERE name = 'pack'") == []


def test_who_holds_a_limit_and_who_waits(rows: Scenario) -> None:
    limits.add(rows.database, ANN, {"name": "warehouse", "max_running": 1})
    worker = rows.worker("w")
    task = rows.task(name="pick", overlap_policy="allow", limit_name="warehouse")
    run = rows.running(worker, task)
    given, pending = rows.assigned(worker, task), rows.pending(task)
    rows.pending()
    found = limits.show(rows.database, "warehouse")
    assert [(one["id"], one["task_name"], one["worker_name"]) for one in found["holders"]] == [(run.id, "pick", "w")]
    assert ([one["id"] for one in found["waiting"]], found["waiting_count"]) == ([given, pending], 2)
    assert (found["running"], found["tasks"]) == (1, 1)
    rows.report(worker, ended(run))
    assert limits.get(rows.database, "warehouse")["running"] == 0


def test_the_materializer_leaves_fires_with_a_limit_to_the_assigner(rows: Scenario) -> None:
    limits.add(rows.database, ANN, WAREHOUSE)
    rows.worker()
    limited = rows.planned_task(cron="* * * * *", limit_name="warehouse")
    free = rows.planned_task(cron="* * * * *")
    Materializer(rows.database, Settings.load()).step()
    found = rows.sql("SELECT schedule_task_id, status FROM schedule_instance ORDER BY id")
    assert {tuple(row) for row in found} == {(limited, "pending"), (free, "assigned")}


def test_the_assigner_gives_a_few_more_than_may_start_and_says_why_the_others_wait(rows: Scenario) -> None:
    limits.add(rows.database, ANN, WAREHOUSE)
    rows.worker(capacity=1000)
    rows.worker(capacity=1000)
    task = rows.task(overlap_policy="allow", limit_name="warehouse")
    instances = [rows.by_sql(task) for _ in range(40)]
    behind = rows.by_sql(rows.task(overlap_policy="allow"))
    assigner = Assigner(rows.database, Settings.load())
    for _ in range(2):
        assigner.step()
    statuses = rows.statuses()
    assert sum(statuses[i] == "assigned" for i in instances) == 4 + AHEAD
    assert statuses[behind] == "assigned", "what has no limit goes by"
    reasons = {rows.row(i).reason for i in instances if statuses[i] == "pending"}
    assert reasons == {"waits for its limit 'warehouse': at most 4 at once"}


def test_what_waits_for_full_workers_takes_no_places_of_its_limit(rows: Scenario) -> None:
    limits.add(rows.database, ANN, {"name": "warehouse", "max_running": 1})
    rows.worker(capacity=1, prefetch=1, labels={"zone": "a"})
    rows.worker(capacity=1000, labels={"zone": "b"})
    full, free = (
        rows.task(overlap_policy="allow", limit_name="warehouse", required_labels={"zone": zone}) for zone in "ab"
    )
    behind, first = [rows.by_sql(free) for _ in range(60)], [rows.by_sql(full) for _ in range(60)]  # each is older
    Assigner(rows.database, Settings.load()).step()
    given = [sum(rows.status(i) == "assigned" for i in some) for some in (first, behind)]
    assert given == [2, 1 + AHEAD - 2]
    reasons = [{rows.row(i).reason for i in some if rows.status(i) == "pending"} for some in (first, behind)]
    assert reasons == [{"every worker that fits is full"}, {"waits for its limit 'warehouse': at most 1 at once"}]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("('warehouse', 0, NULL)", "waits for its limit 'warehouse': at most 0 at once"),
        ("('other', 1, NULL)", "waits: there is no limit 'warehouse'"),
    ],
)
def test_what_may_not_start_at_all_is_given_to_nobody(rows: Scenario, columns: str, reason: str) -> None:
    rows.sql(f"INSERT INTO schedule_limit (name, max_running, starts_per_minute) VALUES {columns}")
    rows.worker()
    instance = rows.by_sql(rows.task(limit_name=None))
    rows.sql("UPDATE schedule_task SET limit_name = 'warehouse'")
    Assigner(rows.database, Settings.load()).step()
    assert (rows.status(instance), rows.row(instance).reason) == ("pending", reason)


def test_of_a_slow_rate_few_wait_at_workers(rows: Scenario) -> None:
    limits.add(rows.database, ANN, {"name": "mail", "starts_per_minute": 5})
    rows.worker(capacity=1000)
    task = rows.task(overlap_policy="allow", limit_name="mail")
    instances = [rows.by_sql(task) for _ in range(30)]
    Assigner(rows.database, Settings.load()).step()
    assert sum(rows.status(i) == "assigned" for i in instances) == 6


def test_fires_that_wait_for_their_limit_are_missed_as_those_that_wait_for_a_worker(rows: Scenario) -> None:
    limits.add(rows.database, ANN, {"name": "warehouse", "max_running": 0})
    rows.worker()
    task = rows.task(limit_name="warehouse", cron="* * * * *")
    newer, older = rows.pending(task, origin="cron"), rows.pending(task, origin="cron")
    Assigner(rows.database, Settings.load()).step()
    assert (rows.status(newer), rows.status(older)) == ("pending", "canceled")
    assert rows.row(older).reason == (
        f"missed: its limit and the workers had no place for it in time; instance {newer} runs"
    )


def test_the_more_is_claimed_between_two_looks_the_more_is_given_ahead() -> None:
    given = Given(20, {1, 2, 3, 4}, at=0.0)
    given.look({4}, 20, 0.1)
    assert (given.ahead, given.ids) == (40, {4})
    given.look({4}, 20, 0.2)
    assert given.ahead == 40, "workers may not have polled yet"
    given.look({4}, 20, 5.0)
    assert given.ahead == 20
    given.look({4}, 20, 9.0)
    assert given.ahead == 20


def test_what_was_given_and_waits_for_something_else_takes_no_places_of_the_limit() -> None:
    given = Given(20, {1, 2, 3, 4}, at=0.0)
    given.look({1, 2, 3, 4}, 20, 0.5, has_room=True)
    assert given.ids == {1, 2, 3, 4}, "workers may not have polled yet"
    given.look({1, 2, 3, 4}, 20, 5.0, has_room=False)
    assert given.ids == {1, 2, 3, 4}
    given.look({1, 2, 3, 4}, 20, 5.0, has_room=True)
    assert given.ids == set()


def test_without_a_limit_the_assigner_asks_nothing_more(rows: Scenario) -> None:
    rows.worker()
    assigner = Assigner(rows.database, Settings.load())
    counts = []
    for limit in (None, "warehouse"):
        if limit:
            limits.add(rows.database, ANN, WAREHOUSE)
        rows.by_sql(rows.task(overlap_policy="allow", limit_name=limit))
        with executed(rows.database.engine) as texts:
            assigner.step()
        counts.append(sum("schedule_limit" in one for one in texts))
    assert counts == [0, 1]


def test_a_claim_without_a_limit_asks_nothing_more(rows: Scenario) -> None:
    limits.add(rows.database, ANN, WAREHOUSE)
    worker = rows.worker()
    counts = []
    for limit in (None, "warehouse"):
        instance = rows.assigned(worker, rows.task(overlap_policy="allow", limit_name=limit))
        with executed(rows.database.engine) as texts:
            assert [run.id for run in rows.claim(worker, instance).runs] == [instance]
        counts.append(sum("schedule_limit" in one for one in texts))
    assert counts == [0, 5], "the limit with its slots is read; new slots, take, claim, and empty what was not used"
