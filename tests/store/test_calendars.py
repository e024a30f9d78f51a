"""Calendars: what an edit of one does to the plans that were made with it, by whichever way it was edited."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota.scheduler_service import plan_calendars
from rota.scheduler_service.duties.backfiller import Backfiller
from rota.scheduler_service.duties.catch_up import Catcher
from rota.scheduler_service.duties.edited_calendars import EditedCalendars
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.fleet import FleetCache
from rota.shared.control import audit as control_audit
from rota.shared.control import backfills, calendars, tasks
from rota.shared.control.actor import Actor
from rota.shared.control.backfills import Wanted
from rota.shared.database.transactions import Database
from rota.shared.domain.calendars.defining import Changes
from rota.shared.domain.errors import InvalidInput, NameTaken, NotFound, NotPossible
from rota.shared.domain.task import TaskDefinition
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from tests.harness.scenario import Scenario
from tests.harness.together import uncommitted

ANN = Actor("ann", "cli")
MONDAY = datetime.fromisoformat("2031-02-03 04:05:30")
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(MONDAY)


@pytest.fixture
def rows(migrated_url: str, clock: SettableClock) -> Iterator[Scenario]:
    database = Database(migrated_url, clock=clock)
    yield Scenario(database)
    database.close()


@pytest.fixture
def schedule(rows: Scenario) -> Callable[[], None]:
    """What schedulers do within some seconds."""
    look = EditedCalendars(rows.database, Settings.load())

    def run() -> None:
        look.step()
        Materializer(rows.database, Settings.load()).step()

    return run


def add(rows: Scenario, name: str = "daily", **fields: Any) -> int:
    given = {"name": name, "type": "REPORT", "cron": "0 9 * * *", "calendar": "c", **fields}
    return int(tasks.add(rows.database, ANN, given).document["id"])


def calendar(rows: Scenario, name: str = "c", **changes: Any) -> None:
    calendars.add(rows.database, ANN, name, Changes(**changes))


def edit(rows: Scenario, name: str = "c", **changes: Any) -> None:
    calendars.edit(rows.database, ANN, name, Changes(**changes))


def next_fire(rows: Scenario, task: int) -> str | None:
    fire = rows.task_row(task).next_fire_at
    return None if fire is None else str(fire)[:16]


def uses(rows: Scenario) -> list[tuple[int, str]]:
    found = rows.sql("SELECT schedule_task_id, calendar FROM schedule_calendar_use ORDER BY schedule_task_id")
    return [tuple(row) for row in found]


def stale(rows: Scenario) -> set[int]:
    return {row.id for row in rows.sql("SELECT id FROM schedule_task WHERE plan_stale = 1")}


def test_a_task_is_planned_on_the_days_of_its_calendar(rows: Scenario, schedule: Callable[[], None]) -> None:
    calendar(rows, off=["2031-02-03", "2031-02-04"])
    task, off = add(rows), add(rows, "feasts", calendar_days="off")
    schedule()
    assert (next_fire(rows, task), next_fire(rows, off)) == ("2031-02-05 09:00", "2031-02-03 09:00")
    assert uses(rows) == [(task, "c"), (off, "c")]
    shown = tasks.show(rows.database, "daily")
    assert shown["trigger_description"] == "every day at 09:00, on working days of calendar c"
    assert [fire["utc"][:10] for fire in shown["next_fires"]][:3] == ["2031-02-05", "2031-02-06", "2031-02-07"]
    [listed, _] = tasks.listed(rows.database, 10)
    assert (listed["trigger"], listed["next_fire"]["utc"][:10]) == ("0 9 * * *, c", "2031-02-05")


@pytest.mark.parametrize("by_sql", [False, True], ids=["command", "SQL"])
def test_an_edit_of_a_calendar_replans_the_tasks_that_use_it_and_no_others(
    rows: Scenario, schedule: Callable[[], None], *, by_sql: bool
) -> None:
    calendar(rows)
    calendar(rows, "other")
    task, other, without = add(rows), add(rows, "other", calendar="other"), add(rows, "plain", calendar=None)
    schedule()
    assert next_fire(rows, task) == "2031-02-03 09:00"
    if by_sql:
        rows.sql("UPDATE schedule_calendar SET days_off = :days WHERE name = 'c'", days=json.dumps(["2031-02-03"]))
    else:
        edit(rows, off=["2031-02-03"])
    EditedCalendars(rows.database, Settings.load()).step()
    assert stale(rows) == {task}
    schedule()
    assert stale(rows) == set()
    assert [next_fire(rows, one) for one in (task, other, without)] == [
        "2031-02-04 09:00", "2031-02-03 09:00", "2031-02-03 09:00",
    ]  # fmt: skip
    edit(rows, forget=["2031-02-03"])
    schedule()
    assert next_fire(rows, task) == "2031-02-03 09:00", "the new day is found, too"
    schedule()
    assert stale(rows) == set()


def test_an_edit_replays_nothing_that_has_passed(
    rows: Scenario, schedule: Callable[[], None], clock: SettableClock
) -> None:
    calendar(rows, off=["2031-02-03", "2031-02-04"])
    task = add(rows)
    schedule()
    clock.advance(30 * 3600)  # Tuesday, 10:05
    edit(rows, forget=["2031-02-03", "2031-02-04"])
    schedule()
    assert rows.statuses() == {}
    assert (next_fire(rows, task), rows.task_row(task).misfires) == ("2031-02-05 09:00", 0)


def test_what_an_outage_made_a_task_miss_goes_by_the_calendar_as_it_is_then(
    rows: Scenario, schedule: Callable[[], None], clock: SettableClock
) -> None:
    calendar(rows)
    task = add(rows)
    schedule()
    clock.advance(4 * 86_400)  # Friday; nobody was there on Monday, Tuesday, Wednesday, Thursday
    edit(rows, off=["2031-02-03", "2031-02-06"])
    schedule()
    [instance] = rows.statuses()
    assert str(rows.row(instance).schedule_datetime) == "2031-02-05 09:00:00"
    assert (next_fire(rows, task), rows.task_row(task).misfires) == ("2031-02-07 09:00", 1)


def test_fires_that_were_put_ahead_are_taken_back_if_the_calendar_excludes_them_now(
    rows: Scenario, schedule: Callable[[], None], clock: SettableClock
) -> None:
    calendar(rows)
    task = add(rows, cron="6 4 * * *")
    clock.advance(27)
    schedule()
    assert (len(rows.statuses()), next_fire(rows, task)) == (1, "2031-02-04 04:06")
    edit(rows, off=["2031-02-03"])
    schedule()
    assert (rows.statuses(), next_fire(rows, task)) == ({}, "2031-02-04 04:06")
    edit(rows, forget=["2031-02-03"])
    schedule()
    assert (len(rows.statuses()), next_fire(rows, task)) == (1, "2031-02-04 04:06")


def test_a_scheduler_that_read_the_calendar_before_the_edit_and_writes_after_it_is_found(
    rows: Scenario, schedule: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar(rows)
    task = add(rows)
    give = plan_calendars.given

    def then_edited(*arguments: Any) -> Any:
        found = give(*arguments)
        edit(rows, off=["2031-02-03"])
        EditedCalendars(rows.database, Settings.load()).step()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(plan_calendars, "given", then_edited)
        Materializer(rows.database, Settings.load()).step()
    assert next_fire(rows, task) == "2031-02-03 09:00"
    schedule()
    assert next_fire(rows, task) == "2031-02-04 09:00"


def test_a_calendar_that_sql_names_and_that_is_not_there_sets_the_task_aside_until_it_is_added(
    rows: Scenario, schedule: Callable[[], None]
) -> None:
    healthy = rows.planned_task()
    [task] = rows.tasks(1, cron="0 9 * * *", trigger_spec={"calendar": "c"})
    schedule()
    assert rows.task_row(task).plan_error == "there is no calendar 'c'; rota calendar list shows those there are"
    assert {rows.row(one).schedule_task_id for one in rows.statuses()} == {healthy}
    [listed] = [one for one in tasks.listed(rows.database, 10) if one["id"] == task]
    assert listed["remark"] == rows.task_row(task).plan_error
    calendar(rows, off=["2031-02-03"])
    schedule()
    assert (rows.task_row(task).plan_error, next_fire(rows, task)) == (None, "2031-02-04 09:00")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("days_off", '["2031-02-30"]', "calendar 'c': days_off '2031-02-30': write a date"),
        ("days_on", "{nonsense", "calendar 'c': days_on is JSON that cannot be read"),
        ("weekend", "never", "calendar 'c': weekend 'never': write days such as sat,sun"),
        ("country", "DE", "the holidays of DE are not there yet; run rota calendar refresh c"),
    ],
)
def test_a_calendar_that_sql_spoils_concerns_its_tasks_alone_until_it_is_mended(
    rows: Scenario, schedule: Callable[[], None], column: str, value: str, said: str
) -> None:
    calendar(rows)
    calendar(rows, "other")
    task, other = add(rows), add(rows, "other", calendar="other")
    schedule()
    try:
        rows.sql(f"UPDATE schedule_calendar SET {column} = :value WHERE name = 'c'", value=value)
    except Exception:  # noqa: BLE001 - MySQL takes no text that is no JSON
        pytest.skip("this database does not take it")
    schedule()
    assert said in rows.task_row(task).plan_error
    assert rows.task_row(other).plan_error is None
    assert said in calendars.show(rows.database, "c")["remark"]
    assert said in calendars.check_known(rows.database).found
    assert [one["remark"] is None for one in tasks.listed(rows.database, 10)] == [False, True]
    good = "sat,sun" if column == "weekend" else None
    rows.sql(f"UPDATE schedule_calendar SET {column} = :good WHERE name = 'c'", good=good)
    schedule()
    assert (rows.task_row(task).plan_error, next_fire(rows, task)) == (None, "2031-02-03 09:00")


def test_a_calendar_without_a_day_left_ends_the_plan_and_a_new_day_begins_it_again(
    rows: Scenario, schedule: Callable[[], None]
) -> None:
    calendar(rows, weekend="all", on=["2031-02-03"])
    task = add(rows)
    schedule()
    edit(rows, forget=["2031-02-03"])
    schedule()
    assert (next_fire(rows, task), rows.task_row(task).plan_error) == (None, None)
    assert tasks.show(rows.database, "daily")["remark"] == "it does not fire any more"
    edit(rows, on=["2031-03-01"])
    schedule()
    assert next_fire(rows, task) == "2031-03-01 09:00"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"calendar": "cc"}, "there is no calendar 'cc' (did you mean c?); rota calendar list"),
        ({"cron": "0 9 * * sun"}, "the task would never fire: at 09:00 on Sunday, on working days of calendar c"),
        ({"calendar_days": "never"}, "calendar_days 'never': write working, off"),
        ({"calendar": None, "calendar_days": "off"}, "calendar_days 'off' goes with calendar"),
        ({"calendar": "bad"}, "calendar 'bad': weekend 'x'"),
    ],
)
def test_a_task_with_a_bad_calendar_is_refused_and_nothing_is_changed(
    rows: Scenario, fields: dict[str, Any], said: str
) -> None:
    calendar(rows)
    rows.sql("INSERT INTO schedule_calendar (name, weekend) VALUES ('bad', 'x')")
    with pytest.raises(InvalidInput) as refused:
        add(rows, **fields)
    assert said in str(refused.value)
    assert rows.sql("SELECT id FROM schedule_task") == []
    add(rows)
    before = tasks.get(rows.database, "daily")
    with pytest.raises(InvalidInput) as refused:
        tasks.edit(
            rows.database, ANN, "daily", fields if fields.get("calendar", "c") else {**fields, "cron": "0 8 * * *"}
        )
    assert said in str(refused.value)
    assert tasks.get(rows.database, "daily") == before
    definition = {"name": "new", "type": "REPORT", "cron": "0 9 * * *", "calendar": "c", **fields}
    with pytest.raises(InvalidInput) as refused:
        tasks.declare(rows.database, ANN, TaskDefinition.of(**definition), liveness_seconds=0)
    assert said in str(refused.value)
    assert len(rows.sql("SELECT id FROM schedule_task")) == 1


def test_an_edit_of_another_field_asks_nothing_of_the_calendar(rows: Scenario) -> None:
    calendar(rows, weekend="all", on=["2031-02-03"])
    add(rows)
    edit(rows, forget=["2031-02-03"])
    assert tasks.edit(rows.database, ANN, "daily", {"owner": "bob"}).document["owner"] == "bob"
    with pytest.raises(InvalidInput, match="would never fire"):
        tasks.edit(rows.database, ANN, "daily", {"cron": "0 8 * * *"})


def test_a_task_changes_and_drops_its_calendar(rows: Scenario, schedule: Callable[[], None]) -> None:
    calendar(rows, off=["2031-02-03"])
    calendar(rows, "other", off=["2031-02-03", "2031-02-04"])
    task = add(rows, every="1d", cron=None, calendar_days="off", jitter_seconds=5)
    spec = tasks.edit(rows.database, ANN, "daily", {"calendar": "other", "calendar_days": None}).document[
        "trigger_spec"
    ]
    assert spec == {"every": 86_400, "jitter_seconds": 5, "calendar": "other"}
    schedule()
    assert next_fire(rows, task) == "2031-02-05 00:00"
    tasks.edit(rows.database, ANN, "daily", {"calendar_days": "last"})
    spec = tasks.edit(rows.database, ANN, "daily", {"calendar": None}).document["trigger_spec"]
    assert spec == {"every": 86_400, "jitter_seconds": 5}
    schedule()
    assert next_fire(rows, task) == "2031-02-04 00:00"
    edit(rows, "other", off=["2031-02-10"])
    schedule()
    assert (uses(rows), stale(rows)) == ([], set()), "what is not used any more is forgotten"


def test_a_calendar_that_is_used_is_not_removed(rows: Scenario, schedule: Callable[[], None]) -> None:
    calendar(rows)
    add(rows)
    with pytest.raises(NotPossible, match="calendar 'c' is used by daily; first give them another, or --no-calendar"):
        calendars.remove(rows.database, ANN, "c")
    schedule()
    assert calendars.show(rows.database, "c")["tasks"] == ["daily"]
    tasks.remove(rows.database, ANN, "daily")
    assert calendars.remove(rows.database, ANN, "c")["removed"]
    with pytest.raises(NotFound, match="no calendar is named 'c'"):
        calendars.show(rows.database, "c")
    calendar(rows)
    with pytest.raises(NameTaken, match="a calendar named 'c' exists already"):
        calendar(rows)


def test_a_refresh_writes_what_the_library_knows_and_only_then(
    rows: Scenario, schedule: Callable[[], None], clock: SettableClock
) -> None:
    calendar(rows, country="DE", last_year=2031)
    calendar(rows, "plain")
    task = add(rows, cron="0 9 1 5 *", calendar_days="off")
    schedule()
    assert calendars.check_known(rows.database).found == "c: known through 2031"
    rows.sql(
        "UPDATE schedule_calendar SET holidays = :days, last_year = 2041 WHERE name = 'c'", days='{"2031-05-02": "x"}'
    )
    schedule()
    assert next_fire(rows, task) == "2032-05-01 09:00", "a Saturday"
    assert "days differ from the installed library of holidays" in calendars.check_known(rows.database).found
    [done] = calendars.refresh(rows.database, ANN)
    assert (done["name"], done["last_year"], done["changed"] > 100) == ("c", 2041, True)
    assert calendars.refresh(rows.database, ANN, ["c"]) == [{"name": "c", "changed": 0, "last_year": 2041}]
    assert calendars.check_known(rows.database).ok
    schedule()
    assert next_fire(rows, task) == "2031-05-01 09:00"
    with pytest.raises(InvalidInput, match="calendar 'plain' is of no country"):
        calendars.refresh(rows.database, ANN, ["plain"])
    clock.advance(86_400 * 365)
    [done] = calendars.refresh(rows.database, ANN)
    assert done["last_year"] == 2042


def test_what_was_done_to_a_calendar_is_in_the_audit(rows: Scenario) -> None:
    calendars.add(rows.database, ANN, "c", Changes(off=["2031-02-03"]), "feast")
    edit(rows, on=["2031-02-03"])
    edit(rows, on=["2031-02-03"])
    calendars.remove(rows.database, ANN, "c")
    found = [(one["action"], one["why"], one["new_values"]) for one in control_audit.listed(rows.database, 10)][::-1]
    assert found == [
        ("calendar.add", "feast", {"name": "c", "weekend": "sat,sun", "days_off": ["2031-02-03"]}),
        ("calendar.set", None, {"name": "c", "days_off": None, "days_on": ["2031-02-03"]}),
        ("calendar.remove", None, {"name": "c", "is_deleted": 1}),
    ]


def test_missed_fires_are_caught_up_on_the_days_of_the_calendar(
    rows: Scenario, schedule: Callable[[], None], clock: SettableClock
) -> None:
    calendar(rows, off=["2031-02-05"])
    task = add(rows, misfire_policy="fire_all", misfire_window_seconds=864_000, overlap_policy="queue")
    schedule()
    clock.advance(7 * 86_400)
    rows.worker()
    schedule()
    Catcher(rows.database, Settings.load(), FleetCache(rows.database)).step()
    made = sorted(str(rows.row(one).schedule_datetime)[:10] for one in rows.statuses())
    assert made == ["2031-02-03", "2031-02-04", "2031-02-06", "2031-02-07"]
    assert next_fire(rows, task) == "2031-02-10 09:00"


def test_what_was_left_of_a_catch_up_is_counted_once_its_calendar_is_gone(
    rows: Scenario, schedule: Callable[[], None], clock: SettableClock
) -> None:
    calendar(rows)
    task = add(rows, misfire_policy="fire_all")
    schedule()
    clock.advance(3 * 86_400)
    rows.worker()
    schedule()
    rows.sql("UPDATE schedule_task SET trigger_spec = NULL WHERE id = :task", task=task)
    rows.sql("UPDATE schedule_calendar SET is_deleted = 1")
    Catcher(rows.database, Settings.load(), FleetCache(rows.database)).step()
    assert rows.sql("SELECT id FROM schedule_catch_up") == []
    assert rows.task_row(task).misfires == 1


def test_many_edits_of_a_calendar_mark_a_bounded_number_of_plans_at_a_time(rows: Scenario) -> None:
    calendar(rows)
    many = rows.tasks(7, cron="0 9 * * *", trigger_spec={"calendar": "c"})
    while Materializer(rows.database, Settings.load()).step() == 0:
        pass
    assert len(uses(rows)) == 7
    rows.sql("DELETE FROM schedule_task WHERE id = :task", task=many[0])
    edit(rows, off=["2031-02-03"])
    look = EditedCalendars(rows.database, Settings.load(batch=3))
    marked = []
    while look.step() == 0:
        marked.append(len(stale(rows)))
    assert marked == sorted(marked)
    assert (len(stale(rows)), len(uses(rows))) == (6, 6)


def test_a_plan_that_somebody_has_locked_is_marked_later(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    calendar(rows)
    first, second = add(rows, "first"), add(rows, "second")
    while Materializer(rows.database, Settings.load()).step() == 0:
        pass
    edit(rows, off=["2031-02-03"])

    def lock(connection: Connection) -> None:
        connection.execute(text("UPDATE schedule_task SET priority = 6 WHERE id = :id"), {"id": first})

    with uncommitted(rows.database, lock):
        EditedCalendars(rows.database, Settings.load()).step()
        assert stale(rows) == {second}
    EditedCalendars(rows.database, Settings.load()).step()
    assert stale(rows) == {first, second}


def test_a_backfill_runs_the_fires_on_the_days_of_the_calendar(rows: Scenario, schedule: Callable[[], None]) -> None:
    calendar(rows, off=["2031-01-29"])
    add(rows)
    schedule()
    backfills.start(rows.database, ANN, Wanted("daily", "2031-01-27", "2031-02-02", 20))
    rows.worker()
    Backfiller(rows.database, Settings.load()).step()
    made = sorted(str(rows.row(one).schedule_datetime)[:10] for one in rows.statuses())
    assert made == ["2031-01-27", "2031-01-28", "2031-01-30", "2031-01-31"]
