"""Tasks with an interval or a single time: from the row to the instances, edits, declarations, wrong SQL."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.shared.control import tasks
from rota.shared.database.constructs import written
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.task import TaskDefinition
from tests.harness.kinds import ANN, add, by_sql, declare, dues, edit, fires, materialize
from tests.harness.scenario import Scenario

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.mark.parametrize("every", [60, "60s", "1m"])
def test_an_interval_that_sql_wrote_fires_at_its_distance(rows: Scenario, every: Any) -> None:
    task = by_sql(rows, "interval", {"every": every}, starts_at=written(rows.start + 30 * SECOND))
    materialize(rows, seconds=300)
    first = rows.start + 30 * SECOND
    made = fires(rows)
    assert made == [first + number * MINUTE for number in range(len(made))]
    assert len(made) in (5, 6)
    assert rows.task_row(task).next_fire_at == made[-1] + MINUTE


def test_a_restart_and_an_edit_of_another_field_shift_no_fire_of_an_interval(rows: Scenario) -> None:
    task = add(rows, every="7m", misfire_grace_seconds=30)
    materialize(rows)
    planned = rows.task_row(task).next_fire_at
    edit(rows, retries=3, timezone="Asia/Kolkata")
    materialize(rows)
    rows.sql("UPDATE schedule_task SET planned_inputs = NULL")  # as of a plan that nobody knows
    materialize(rows)
    assert rows.task_row(task).next_fire_at == planned
    assert (planned - datetime.fromisoformat("1970-01-01")) % (7 * MINUTE) == timedelta(0)


def test_an_interval_catches_up_with_the_newest_of_its_missed_fires(rows: Scenario) -> None:
    first = rows.start - 5 * HOUR - 20 * MINUTE
    task = add(rows, every="1h", starts_at=first)
    rows.sql("UPDATE schedule_task SET planned_inputs = plan_inputs, next_fire_at = :first", first=written(first))
    materialize(rows)
    row = rows.task_row(task)
    assert (fires(rows), row.misfires) == ([rows.start - 20 * MINUTE], 5)
    assert row.next_fire_at == rows.start + 40 * MINUTE


def test_a_single_time_fires_once_and_stays_as_history(rows: Scenario) -> None:
    moment = rows.start + 3 * SECOND
    task = add(rows, at=moment.isoformat())
    materialize(rows)
    materialize(rows)
    row = rows.task_row(task)
    assert (fires(rows), row.next_fire_at, row.status, row.is_deleted) == ([moment], None, "on", 0)
    edit(rows, retries=3)
    materialize(rows)
    assert fires(rows) == [moment]


def test_a_single_time_that_is_missed_fires_when_a_scheduler_comes(rows: Scenario) -> None:
    task = add(rows, at=(rows.start + HOUR).isoformat())
    materialize(rows)
    assert (fires(rows), rows.task_row(task).next_fire_at) == ([], rows.start + HOUR)
    missed = rows.start - HOUR
    spec = json.dumps({"at": missed.isoformat()})
    rows.sql("UPDATE schedule_task SET trigger_spec = :spec, next_fire_at = :at", spec=spec, at=written(missed))
    rows.sql("UPDATE schedule_task SET planned_inputs = plan_inputs")  # it was planned so, and nobody was there
    materialize(rows)
    row = rows.task_row(task)
    assert (fires(rows), row.next_fire_at, row.misfires) == ([missed], None, 0)


def test_an_edit_never_replays_a_time_that_has_passed(rows: Scenario) -> None:
    ahead = rows.start + HOUR
    task = add(rows, at=ahead.isoformat())
    materialize(rows)
    for past in (rows.start - HOUR, rows.start - SECOND):
        edit(rows, at=past.isoformat())
        materialize(rows)
        assert (fires(rows), rows.task_row(task).next_fire_at) == ([], None)
    edit(rows, at=ahead.isoformat())
    materialize(rows)
    assert rows.task_row(task).next_fire_at == ahead


def test_a_time_that_had_passed_before_its_task_was_made_does_not_fire(rows: Scenario) -> None:
    saved = tasks.add(rows.database, ANN, {"name": "poll", "type": "REPORT", "at": "2020-01-01T00:00"})
    assert saved.document["remark"] == "it does not fire any more"
    materialize(rows)
    assert fires(rows) == []


def test_a_time_moved_while_its_fire_is_prepared_fires_at_the_new_time_alone(rows: Scenario) -> None:
    add(rows, at=(rows.start + 200 * SECOND).isoformat())
    materialize(rows, seconds=300)
    assert fires(rows) == [rows.start + 200 * SECOND]
    edit(rows, at=(rows.start + 250 * SECOND).isoformat())
    materialize(rows, seconds=300)
    assert fires(rows) == [rows.start + 250 * SECOND]


def test_what_falls_due_while_its_task_is_off_is_held_back(rows: Scenario) -> None:
    task = add(rows, at=(rows.start - HOUR).isoformat(), status="off")
    rows.sql(
        "UPDATE schedule_task SET planned_inputs = plan_inputs, next_fire_at = :at WHERE id = :task",
        at=written(rows.start - HOUR),
        task=task,
    )
    materialize(rows)
    row = rows.task_row(task)
    assert (fires(rows), row.fires_held_back, row.next_fire_at) == ([], 1, None)


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("interval", {"every": 0}, "every 0: an interval is from 1s to 3650d"),
        ("interval", {"every": "soon"}, "every 'soon': an interval"),
        ("interval", {"evry": 5}, 'write {"every": "15m"}'),
        ("interval", 5, "trigger_spec is 5; for trigger_kind interval write"),
        ("interval", None, "trigger_spec is None; for trigger_kind interval write"),
        ("once", {"at": 5}, "at 5: write a time"),
        ("once", {"at": "noon"}, "'noon' is not a time"),
        ("once", ["2027-01-04"], 'write {"at": "2027-01-04T09:00"}'),
    ],
)
def test_a_spec_that_sql_wrote_wrong_sets_its_task_aside_and_no_other(
    rows: Scenario, kind: str, spec: Any, said: str
) -> None:
    healthy, bad = rows.planned_task(), by_sql(rows, kind, spec)
    materialize(rows, seconds=1)
    assert said in rows.task_row(bad).plan_error
    assert {rows.row(i).schedule_task_id for i in rows.statuses()} == {healthy}
    listed = {task["name"]: task["remark"] for task in tasks.listed(rows.database, 10)}
    assert said in listed["poll"]
    rows.sql("UPDATE schedule_task SET trigger_kind = 'interval', trigger_spec = :good", good='{"every": "1m"}')
    materialize(rows, seconds=1)
    assert rows.task_row(bad).plan_error is None
    assert rows.task_row(bad).next_fire_at is not None


@pytest.mark.parametrize("spec", ['{"jiter_seconds": 5}', '{"every": "15m"}', "[]", "5"])
def test_a_cron_with_a_key_that_nobody_reads_sets_its_task_aside(rows: Scenario, spec: str) -> None:
    add(rows, cron="* * * * *")
    rows.sql("UPDATE schedule_task SET trigger_spec = :spec", spec=spec)
    materialize(rows)
    [found] = rows.sql("SELECT id, plan_error FROM schedule_task")
    wanted = (
        "for trigger_kind cron write NULL, or an object with some of the keys calendar, calendar_days, jitter_seconds"
    )
    assert found.plan_error == f"trigger_spec is {json.loads(spec)}; {wanted}"
    rows.sql("UPDATE schedule_task SET trigger_spec = NULL")
    materialize(rows)
    planned = rows.task_row(found.id)
    assert (planned.plan_error, planned.next_fire_at is not None) == (None, True)


def test_a_new_trigger_takes_the_place_of_the_old_one(rows: Scenario) -> None:
    add(rows, cron="0 3 * * *")
    trigger = ("trigger_kind", "cron", "trigger_spec")

    def after(**changes: Any) -> tuple[Any, ...]:
        task = edit(rows, **changes)
        return tuple(task[name] for name in trigger)

    assert after(every="15m") == ("interval", None, {"every": 900})
    assert after(retries=1) == ("interval", None, {"every": 900})
    assert after(at="2030-01-01T09:00") == ("once", None, {"at": "2030-01-01T09:00"})
    assert after(cron="0 4 * * *") == ("cron", "0 4 * * *", None)
    assert after(every=60) == ("interval", None, {"every": 60})
    assert after(every=None) == ("manual", None, None)
    with pytest.raises(InvalidInput, match="one trigger: give cron or every, and not both"):
        edit(rows, cron="0 3 * * *", every="15m")


def test_an_edit_of_another_field_keeps_what_sql_wrote_of_a_trigger(rows: Scenario) -> None:
    by_sql(rows, "interval", {"every": "15m"})
    task = edit(rows, retries=2)
    assert (task["trigger_kind"], task["trigger_spec"], task["retries"]) == ("interval", {"every": "15m"}, 2)
    rows.sql("UPDATE schedule_task SET trigger_kind = 'cron', cron = '0 3 * * *'")
    task = edit(rows, retries=3)
    assert (task["trigger_kind"], task["cron"], task["trigger_spec"]) == ("cron", "0 3 * * *", {"every": "15m"})


def test_a_declaration_that_changes_the_trigger_writes_all_of_it(rows: Scenario) -> None:
    declare(rows, cron="0 3 * * *")
    task = declare(rows, every="15m")
    assert (task["trigger_kind"], task["cron"], task["trigger_spec"]) == ("interval", None, {"every": 900})
    edit(rows, at="2030-01-01")
    task = declare(rows, every="15m", retries=1)
    assert (task["trigger_kind"], task["retries"]) == ("once", 1), "the operator's edit survives"
    task = declare(rows, cron="0 4 * * *", retries=1)
    assert (task["trigger_kind"], task["cron"], task["trigger_spec"]) == ("cron", "0 4 * * *", None)


def test_a_declaration_of_an_older_rota_that_knew_fewer_fields_leaves_an_edit_alone(rows: Scenario) -> None:
    declare(rows, cron="0 3 * * *")
    edit(rows, cron="30 5 * * *")
    declared = json.loads(rows.sql("SELECT declared FROM schedule_task")[0][0])
    older = json.dumps({name: value for name, value in declared.items() if name not in ("every", "at")})
    rows.sql("UPDATE schedule_task SET declared = :older", older=older)
    assert declare(rows, cron="0 3 * * *")["cron"] == "30 5 * * *"
    assert json.loads(rows.sql("SELECT declared FROM schedule_task")[0][0]) == declared
    assert declare(rows, cron="0 4 * * *")["cron"] == "0 4 * * *"


@pytest.mark.parametrize("policy", ["skip", "queue"])
def test_jitter_makes_the_start_later_and_leaves_the_fire_its_time(rows: Scenario, policy: str) -> None:
    task, plain = add(rows, every=30, jitter_seconds=20, overlap_policy=policy), rows.tasks(1, cron="* * * * *")[0]
    inputs = TaskDefinition.of(name="poll", type="REPORT", every=30, jitter_seconds=20).inputs
    materialize(rows, seconds=300)
    rows.sql(
        "DELETE FROM schedule_instance WHERE schedule_task_id = :plain AND due_at = schedule_datetime", plain=plain
    )
    made = dues(rows)
    assert len(made) >= 9
    assert made == [(fire, inputs.due_at(task, fire)) for fire, _ in made]
    assert len({due - fire for fire, due in made}) == len(made)


def test_a_fire_that_jitter_makes_due_behind_the_look_ahead_burdens_no_worker_before(rows: Scenario) -> None:
    rows.worker(capacity=1000)
    for seconds in range(100, 300, 5):  # so that their last fires lie at different distances from the horizon
        add(rows, name=f"poll {seconds}", every=seconds, jitter_seconds=seconds - 1)
    before = rows.now()
    materialize(rows, seconds=300)
    horizon = [moment + timedelta(seconds=300) for moment in (before, rows.now())]
    made = rows.sql("SELECT due_at AS due, schedule_worker_node_id AS worker FROM schedule_instance")
    given = [row.worker for row in made if datetime.fromisoformat(str(row.due)) <= horizon[0]]
    later = [row.worker for row in made if datetime.fromisoformat(str(row.due)) > horizon[1]]
    assert given
    assert None not in given
    assert later
    assert set(later) == {None}


def test_an_edit_of_the_jitter_moves_what_nobody_has_claimed(rows: Scenario) -> None:
    add(rows, every=30, jitter_seconds=20)
    materialize(rows, seconds=300)
    before = dict(dues(rows))
    edit(rows, jitter_seconds=0)
    materialize(rows, seconds=300)
    after = dict(dues(rows))
    ahead = [fire for fire in after if fire > rows.now()]
    assert ahead
    assert all(after[fire] == fire for fire in ahead)
    assert before.keys() <= after.keys()


def test_a_declaration_of_the_jitter_leaves_an_edited_cron_alone(rows: Scenario) -> None:
    declare(rows, cron="0 3 * * *")
    edit(rows, cron="30 5 * * *")
    task = declare(rows, cron="0 3 * * *", jitter_seconds=60)
    assert (task["cron"], task["trigger_spec"]) == ("30 5 * * *", {"jitter_seconds": 60})
    task = declare(rows, every="15m", jitter_seconds=60)
    assert (task["trigger_kind"], task["trigger_spec"]) == ("interval", {"every": 900, "jitter_seconds": 60})


def test_a_declaration_of_the_jitter_leaves_an_edited_cron_alone_also_in_a_row_that_sql_has_spoiled(
    rows: Scenario,
) -> None:
    declare(rows, cron="0 3 * * *")
    edit(rows, cron="30 5 * * *")
    rows.sql("UPDATE schedule_task SET timezone = 'Nowhere/At-all'")
    task = declare(rows, cron="0 3 * * *", jitter_seconds=60)
    assert (task["cron"], task["trigger_spec"]) == ("30 5 * * *", {"jitter_seconds": 60})
    task = declare(rows, cron="0 3 * * *")
    assert (task["cron"], task["trigger_spec"]) == ("30 5 * * *", None)
    task = declare(rows, cron="0 4 * * *")
    assert task["cron"] == "0 4 * * *", "a trigger that is declared anew takes the place of any"


def test_a_window_that_sql_wrote_backwards_sets_its_task_aside(rows: Scenario) -> None:
    task = add(rows, every="1m")
    rows.sql(
        "UPDATE schedule_task SET starts_at = :later, ends_at = :sooner",
        later=written(rows.start + HOUR),
        sooner=written(rows.start),
    )
    materialize(rows)
    assert "the task would never fire" in rows.task_row(task).plan_error
