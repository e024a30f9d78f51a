"""Tasks with a combined trigger: from the row to the instances, edits, declarations, wrong SQL."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.shared.control import tasks
from rota.shared.database.constructs import written
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.task import TaskDefinition
from tests.harness.kinds import add, by_sql, declare, dues, edit, fires, materialize
from tests.harness.scenario import Scenario

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
EPOCH = datetime.fromisoformat("1970-01-01")
TWO, THREE = {"every": 20}, {"every": "30s"}


@pytest.mark.parametrize(("spec", "distances"), [({"any_of": [TWO, THREE]}, (2, 3)), ({"all_of": [TWO, THREE]}, (6,))])
def test_what_sql_wrote_fires_at_the_union_or_where_all_meet(
    rows: Scenario, spec: Any, distances: tuple[int, ...]
) -> None:
    by_sql(rows, "combined", spec)
    materialize(rows, seconds=300)
    passed = (rows.start - EPOCH) // SECOND
    met = [n for n in range(passed + 2, passed + 298) if any(n % (10 * one) == 0 for one in distances)]
    expected = {EPOCH + n * SECOND for n in met}
    assert len(expected) > 3
    assert expected <= set(fires(rows))
    assert len(fires(rows)) == len(set(fires(rows))) <= len(expected) + 2


def test_jitter_and_the_window_are_the_tasks(rows: Scenario) -> None:
    first = rows.start + 100 * SECOND
    fields = {"all_of": [TWO, THREE], "starts_at": first, "ends_at": first + 150 * SECOND, "jitter_seconds": 30}
    task = add(rows, **fields)
    materialize(rows, seconds=300)
    made = dues(rows)
    assert [at for at, _ in made] == [first, first + MINUTE, first + 2 * MINUTE]
    inputs = TaskDefinition.of(name="poll", type="REPORT", **fields).inputs
    assert [due for _, due in made] == [inputs.due_at(task, at) for at, _ in made]
    assert rows.task_row(task).next_fire_at is None


@pytest.mark.parametrize(("policy", "runs", "skipped"), [("fire_once", 1, 4), ("skip", 0, 5)])
def test_missed_fires_go_by_the_misfire_policy(rows: Scenario, policy: str, runs: int, skipped: int) -> None:
    first = rows.start - 5 * HOUR + 20 * MINUTE
    members = [{"every": "20m"}, {"every": "30m"}]
    task = add(rows, all_of=members, starts_at=first, misfire_policy=policy)
    rows.sql("UPDATE schedule_task SET planned_inputs = plan_inputs, next_fire_at = :first", first=written(first))
    materialize(rows)
    row = rows.task_row(task)
    assert (len(fires(rows)), row.misfires) == (runs, skipped)
    assert fires(rows) == [first + 4 * HOUR][:runs]
    assert row.next_fire_at == first + 5 * HOUR


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"all_of": [{"cron": "0 9 * * *"}, {"cron": "0 10 * * *"}]},
            "all_of never fires: 0 9 * * * & 0 10 * * * have",
        ),
        ({"all_of": [TWO]}, "write a list of 2 to 20 triggers"),
        ({"any_of": [TWO, {"evry": 5}]}, "is no trigger of a combination"),
        (["all_of"], 'write {"all_of": [{"cron": "0 9 * * mon"}, {"every": "15m"}]}'),
        (None, "trigger_spec is None; for trigger_kind combined write"),
    ],
)
def test_a_wrong_spec_sets_its_task_aside_and_no_other(rows: Scenario, spec: Any, said: str) -> None:
    healthy, bad = rows.planned_task(), by_sql(rows, "combined", spec)
    materialize(rows, seconds=1)
    assert said in rows.task_row(bad).plan_error
    assert {rows.row(i).schedule_task_id for i in rows.statuses()} == {healthy}
    listed = {task["name"]: task["remark"] for task in tasks.listed(rows.database, 10)}
    assert said in listed["poll"]
    good = json.dumps({"any_of": [TWO, THREE]})
    rows.sql("UPDATE schedule_task SET trigger_spec = :good WHERE id = :bad", good=good, bad=bad)
    materialize(rows, seconds=1)
    assert (rows.task_row(bad).plan_error, rows.task_row(bad).next_fire_at is None) == (None, False)


def test_the_last_fire_is_made_though_no_other_is_found_behind_it(rows: Scenario) -> None:
    moment = rows.start + 3 * SECOND
    never = [{"cron": "0 9 * * *"}, {"any_of": [{"cron": "30 9 * * *"}, {"at": moment.isoformat()}]}]
    task = add(rows, any_of=[{"all_of": never}, {"at": moment.isoformat()}])
    materialize(rows)
    assert (fires(rows), rows.task_row(task).next_fire_at, rows.task_row(task).plan_error) == ([moment], None, None)


def test_what_is_refused_changes_nothing(rows: Scenario) -> None:
    add(rows, any_of=[TWO, THREE])
    before = tasks.get(rows.database, "poll")
    never = [{"every": "1h"}, {"cron": "30 * * * *"}]
    with pytest.raises(InvalidInput, match="all_of never fires: every 1h & 30"):
        edit(rows, all_of=never)
    with pytest.raises(InvalidInput, match="all_of never fires"):
        add(rows, name="other", all_of=never)
    assert tasks.get(rows.database, "poll") == before
    assert [task["name"] for task in tasks.listed(rows.database, 10)] == ["poll"]


def test_a_start_that_lets_intervals_miss_a_cron_is_refused(rows: Scenario) -> None:
    add(rows, all_of=[{"every": "1h"}, {"cron": "0 * * * *"}])
    with pytest.raises(InvalidInput, match="all_of never fires"):
        edit(rows, starts_at="2030-01-01T00:30")


def test_a_new_trigger_takes_the_place_of_the_old_one(rows: Scenario) -> None:
    add(rows, cron="0 3 * * *", jitter_seconds=60)

    def after(**changes: Any) -> tuple[Any, ...]:
        task = edit(rows, **changes)
        return tuple(task[name] for name in ("trigger_kind", "cron", "trigger_spec"))

    jitter = {"jitter_seconds": 60}
    two, three = {"every": 20}, {"every": 30}
    assert after(any_of=[TWO, THREE]) == ("combined", None, {"any_of": [two, three], **jitter})
    assert after(all_of=[TWO, THREE]) == ("combined", None, {"all_of": [two, three], **jitter})
    assert after(retries=1) == ("combined", None, {"all_of": [two, three], **jitter})
    assert after(every=60) == ("interval", None, {"every": 60, **jitter})
    assert after(all_of=[TWO, THREE]) == ("combined", None, {"all_of": [two, three], **jitter})
    assert after(all_of=None) == ("manual", None, jitter)


def test_code_declares_one_and_an_edit_survives(rows: Scenario) -> None:
    task = declare(rows, any_of=[{"every": timedelta(seconds=20)}, THREE])
    assert (task["trigger_kind"], task["trigger_spec"]) == ("combined", {"any_of": [{"every": 20}, {"every": 30}]})
    edit(rows, cron="0 9 * * *")
    assert declare(rows, any_of=[TWO, {"every": 30}], retries=1)["cron"] == "0 9 * * *"
    assert declare(rows, all_of=[TWO, THREE], retries=1)["trigger_spec"] == {"all_of": [{"every": 20}, {"every": 30}]}
