"""Schedulers' rows: one for each start, written seldom, marked when it stops, and removed when it is long gone."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError

from rota.scheduler_service.app import Scheduler
from rota.scheduler_service.duties.presence import BEAT_SECONDS, Presence
from rota.shared.control import schedulers as control
from rota.shared.settings import Settings
from rota.shared.store import schedulers
from rota.shared.store.schedulers import FORGET_LIMIT, SchedulerDeclaration
from tests.harness.scenario import Scenario
from tests.harness.statements import executed
from tests.harness.tasks import note_planned

ONE = SchedulerDeclaration("vm-7", "vm", 7, "1.0", 15)
LONG_AGO = "2020-01-01 00:00:00.000000"


def register(rows: Scenario, name: str = "vm-7") -> int:
    declared = replace(ONE, name=name)
    [number] = schedulers.insert_into(rows.database, lambda c: [schedulers.register(c, declared)])
    return number


def names(rows: Scenario) -> list[str]:
    return [row["name"] for row in control.listed(rows.database, 10)]


def silence(rows: Scenario, number: int, since: str = LONG_AGO) -> None:
    rows.sql("UPDATE schedule_scheduler_node SET last_tick = :since WHERE id = :id", since=since, id=number)


def test_a_scheduler_that_registers_is_seen_with_what_it_is(rows: Scenario) -> None:
    register(rows)
    [seen] = control.listed(rows.database, 10)
    assert {name: seen[name] for name in ("name", "host", "pid", "version", "state", "silent")} == {
        "name": "vm-7",
        "host": "vm",
        "pid": 7,
        "version": "1.0",
        "state": "active",
        "silent": False,
    }


def test_those_that_ticked_last_come_first_and_the_silent_are_known(rows: Scenario) -> None:
    first, second = register(rows, "first"), register(rows, "second")
    silence(rows, second)
    assert [(row["name"], row["silent"]) for row in control.listed(rows.database, 10)] == [
        ("first", False),
        ("second", True),
    ]
    now = rows.now()
    assert rows.database.write(lambda c: schedulers.tick(c, second, now))
    assert names(rows) == ["second", "first"]
    assert [row["silent"] for row in control.listed(rows.database, 10)] == [False, False]
    assert len(control.listed(rows.database, 1)) == 1
    assert first != second


def test_one_that_stops_is_seen_no_more_and_its_row_stays_for_a_day(rows: Scenario) -> None:
    number = register(rows)
    assert rows.database.write(lambda c: schedulers.leave(c, number, "vm-7"))
    assert names(rows) == []
    assert not rows.database.write(lambda c: schedulers.leave(c, number, "vm-7"))
    assert not rows.database.write(lambda c: schedulers.tick(c, number, rows.now()))
    register(rows, "next")
    assert len(rows.sql("SELECT id FROM schedule_scheduler_node")) == 2


def test_who_registers_removes_what_is_silent_for_more_than_a_day(rows: Scenario) -> None:
    old, stopped, lately = (register(rows, name) for name in ("old", "stopped", "lately"))
    rows.database.write(lambda c: schedulers.leave(c, stopped, "test"))
    for number in (old, stopped):
        silence(rows, number)
    silence(rows, lately, (rows.now().replace(microsecond=1)).strftime("%Y-%m-%d %H:%M:%S.%f"))
    register(rows, "new")
    assert [row.name for row in rows.sql("SELECT name FROM schedule_scheduler_node ORDER BY id")] == ["lately", "new"]


def test_no_more_than_a_thousand_are_removed_at_once(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FORGET_LIMIT == 1000
    monkeypatch.setattr(schedulers, "FORGET_LIMIT", 2)
    for number in [register(rows, f"old-{n}") for n in range(3)]:
        silence(rows, number)
    register(rows, "new")
    assert len(rows.sql("SELECT id FROM schedule_scheduler_node")) == 2


# The check of rota doctor


def test_somebody_schedules_while_an_active_scheduler_ticks(rows: Scenario) -> None:
    nobody = control.check_scheduling(rows.database)
    assert (nobody.ok, nobody.found) == (None, "0 schedulers at work")
    assert "start rota scheduler" in nobody.help
    number = register(rows)
    at_work = control.check_scheduling(rows.database)
    assert (at_work.ok, at_work.found, at_work.help) == (True, "1 scheduler at work", "")
    rows.sql("UPDATE schedule_scheduler_node SET state = 'paused'")
    assert control.check_scheduling(rows.database).ok is None
    rows.sql("UPDATE schedule_scheduler_node SET state = 'active'")
    silence(rows, number)
    assert control.check_scheduling(rows.database).ok is None


# The duty


def test_a_scheduler_writes_its_row_only_where_it_has_ticked_since(rows: Scenario) -> None:
    presence = Presence(rows.database, ONE, 1.0)
    assert presence.step() == BEAT_SECONDS
    silence(rows, control.listed(rows.database, 10)[0]["id"])  # its clock and the database's are not quite the same
    [before] = control.listed(rows.database, 10)
    with executed(rows.database.engine) as texts:
        presence.step()
    assert texts == [], "a materializer that hangs is not seen to tick"
    presence.ticked()
    with executed(rows.database.engine) as texts:
        presence.step()
        presence.step()
    sent = [one.split()[0] for one in texts if not one.startswith("BEGIN")]
    assert sent == ["UPDATE", "SELECT"], "the tick, and whether it is paused"
    [after] = control.listed(rows.database, 10)
    assert after["last_tick"] > before["last_tick"]


def test_a_scheduler_that_sql_pauses_materializes_nothing_until_it_is_active_again(rows: Scenario) -> None:
    scheduler = Scheduler(rows.database, Settings.load())
    ticking = rows.task(cron="* * * * * *", cron_seconds=True)

    def fires_after(state: str) -> int:
        rows.sql("UPDATE schedule_scheduler_node SET state = :state", state=state)
        scheduler._presence.ticked()
        scheduler._presence.step()
        before = len(rows.statuses())
        past = rows.now() - timedelta(seconds=2)
        rows.database.write(lambda c: note_planned(c, [ticking], next_fire_at=past))
        scheduler._materialize()
        return len(rows.statuses()) - before

    scheduler._presence.step()
    assert fires_after("paused") == 0
    assert fires_after("active") > 0


def test_it_beats_well_within_a_short_liveness_limit(rows: Scenario) -> None:
    assert Presence(rows.database, replace(ONE, liveness_seconds=2), 1.0).step() == 0.5


def test_a_scheduler_whose_row_was_removed_registers_again(rows: Scenario) -> None:
    presence = Presence(rows.database, ONE, 1.0)
    presence.step()
    rows.sql("DELETE FROM schedule_scheduler_node")
    presence.ticked()
    presence.step()
    assert names(rows) == []
    presence.step()
    assert names(rows) == ["vm-7"]


def test_a_scheduler_that_stops_marks_its_row_and_a_database_that_is_away_does_not_hinder_it(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    presence, other = Presence(rows.database, ONE, 1.0), Presence(rows.database, replace(ONE, name="vm-8"), 1.0)
    presence.leave()  # it never registered
    presence.step()
    other.step()
    presence.leave()
    assert names(rows) == ["vm-8"]

    def refuse(*_: object) -> None:
        raise OperationalError("UPDATE", {}, Exception("away"))

    monkeypatch.setattr(rows.database, "write_one", refuse)
    other.leave()
    assert "could not be marked as stopped: away" in caplog.text
