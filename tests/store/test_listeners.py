"""What the rows say is told to listeners: each event, by one process, and by another when that one is gone."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota import Rota
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import schedulers as control_schedulers
from rota.shared.control import steering
from rota.shared.control import tasks as control_tasks
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain import told as domain_told
from rota.shared.domain.events import ROW_EVENTS, FiresEvent, SchedulerEvent, TaskEvent, WorkerEvent, name_of
from rota.shared.domain.planning import Skipped
from rota.shared.domain.states import SkipReason, TaskStatus
from rota.shared.domain.told import SETTLED
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import feeds, listeners, schedulers, skips, workers
from rota.shared.store.feeds import FEEDS
from rota.shared.store.listeners import FORGET_SECONDS, LEASE_SECONDS
from rota.shared.store.schedulers import SchedulerDeclaration
from rota.shared.telling import hearing
from rota.shared.telling.hearing import ASK_SECONDS, CHECK_SECONDS, LOOK_SECONDS
from rota.shared.telling.teller import RENEW_SECONDS, Teller
from tests.harness.databases import connect
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario
from tests.harness.statements import executed
from tests.harness.tasks import note_planned

MOMENT = datetime.fromisoformat("2031-02-03 04:05:06.789")
ANN = Actor("ann", "cli")


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(MOMENT)


@pytest.fixture
def rows(migrated_url: str, clock: SettableClock) -> Iterator[Scenario]:
    database = Database(migrated_url, clock=clock)
    yield Scenario(database)
    database.close()


class Ear:
    """An app with one listener, ``ear.hear``, and what processes that have loaded it hear."""

    def __init__(self, database: Database, clock: SettableClock, *events: str) -> None:
        self.database = database
        self.clock = clock
        self.heard: list[Any] = []
        self.during: Callable[[Any], None] | None = None
        self.events = events or tuple(sorted(ROW_EVENTS))

    def process(self) -> Teller:
        app = Rota()

        @app.on(*self.events)
        def hear(event: Any) -> None:
            self.heard.append(event)
            if self.during is not None:
                self.during(event)

        return Teller(self.database, app.listeners)

    def look(self, *processes: Teller, seconds: float = ASK_SECONDS) -> list[str]:
        """What is heard at the next look of these processes: the names of the events."""
        before = len(self.heard)
        self.clock.advance(seconds)
        for process in processes:
            step(process)
        return [event.event for event in self.heard[before:]]


def step(process: Teller) -> float:
    """One look of each of its listeners; returns the shortest rest."""
    return min(hearing.step() for hearing in process.hearings)


def broken(_: Any) -> None:
    raise ValueError("the listener broke")


def add(rows: Scenario, name: str) -> None:
    control_tasks.add(rows.database, ANN, {"name": name, "type": "REPORT", "cron": "* * * * *"})


def start_scheduler(rows: Scenario, name: str) -> None:
    mine = SchedulerDeclaration(name, "host", 7, "1.2.3", 15)
    schedulers.insert_into(rows.database, lambda c: [schedulers.register(c, mine)])


def test_each_event_comes_from_one_feed() -> None:
    assert sorted(event for feed in FEEDS for event in feed.events) == sorted(ROW_EVENTS)


def test_what_happened_before_the_first_look_is_not_told(rows: Scenario, clock: SettableClock) -> None:
    add(rows, "early")
    rows.bury(rows.worker())
    start_scheduler(rows, "early")
    ear = Ear(rows.database, clock)
    one = ear.process()
    assert ear.look(one) == []
    add(rows, "later")
    assert ear.look(one) == ["task_added"]
    assert ear.look(one) == []


def test_acts_on_tasks_are_told_with_what_was_changed(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "task_added", "task_changed", "task_removed")
    ear.look(one := ear.process())
    add(rows, "nightly")
    control_tasks.edit(rows.database, ANN, "nightly", {"priority": 1}, "it is urgent")
    control_tasks.switch(rows.database, ANN, ["nightly"], TaskStatus.OFF)
    control_tasks.remove(rows.database, ANN, "nightly")
    assert ear.look(one) == ["task_added", "task_changed", "task_changed", "task_removed"]
    added, edited, switched, _ = ear.heard
    assert isinstance(added, TaskEvent)
    assert (added.task_name, added.actor, added.face, added.action) == ("nightly", "ann", "cli", "task.add")
    assert (added.new["type"], added.at.tzinfo) == ("REPORT", UTC)
    assert (edited.old, edited.new, edited.why) == ({"priority": 5}, {"priority": 1}, "it is urgent")
    assert (switched.action, switched.new) == ("task.off", {"status": "off"})
    assert {event.task_id for event in ear.heard} == {added.task_id}


def test_workers_are_told_that_join_and_leave_and_are_lost(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "worker_joined", "worker_left", "worker_lost")
    ear.look(one := ear.process())
    leaver, lost, silent = rows.worker("leaver"), rows.worker("lost", version="1.2.3"), rows.worker("silent")
    assert ear.look(one) == ["worker_joined"] * 3
    rows.database.write(lambda c: workers.leave(c, leaver))
    rows.bury(leaver)
    clock.advance(0.01)
    rows.bury(lost)
    clock.advance(30)
    assert rows.database.write(lambda c: workers.bury_silent(c, [silent], "test")) == 1
    assert ear.look(one) == ["worker_left", "worker_lost", "worker_lost"]
    left, gone, was_silent = ear.heard[3:]
    assert isinstance(left, WorkerEvent)
    assert (left.worker, left.reason) == ("leaver", "stopped")
    assert (gone.worker, gone.worker_id, gone.host, gone.version, gone.reason) == (
        "lost",
        lost,
        "host",
        "1.2.3",
        "test",
    )
    assert was_silent.reason.startswith("silent for longer")


def test_a_worker_whose_row_sql_has_deleted_is_told_by_its_id(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "worker_lost")
    worker = rows.worker()
    ear.look(one := ear.process())
    rows.bury(worker)
    rows.sql("DELETE FROM schedule_worker_node")
    assert ear.look(one) == ["worker_lost"]
    assert (ear.heard[0].worker_id, ear.heard[0].worker) == (worker, None)


def test_schedulers_are_told_that_start_and_are_paused(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "scheduler_started", "scheduler_paused", "scheduler_resumed")
    ear.look(one := ear.process())
    start_scheduler(rows, "eu-1")
    assert ear.look(one) == ["scheduler_started"]
    control_schedulers.pause(rows.database, ANN, "the database moves")
    control_schedulers.resume(rows.database, ANN, "it has moved")
    assert ear.look(one) == ["scheduler_paused", "scheduler_resumed"]
    started, paused, resumed = ear.heard
    assert isinstance(started, SchedulerEvent)
    assert (started.actor, started.host, started.pid, started.version) == ("eu-1", "host", 7, "1.2.3")
    assert (paused.actor, paused.why, resumed.why) == ("ann", "the database moves", "it has moved")


def test_missed_fires_are_told_as_a_stretch_and_again_when_it_goes_on(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    first = clock.now().replace(second=0, microsecond=0) - timedelta(hours=1)
    task = rows.planned_task(first, name="hourly", misfire_policy="skip")
    off = rows.task()
    rows.sql("UPDATE schedule_task SET status = 'off' WHERE id = :off", off=off)
    rows.database.write(lambda c: note_planned(c, [off], next_fire_at=first))
    ear.look(one := ear.process())
    Materializer(rows.database, Settings.load()).step()
    assert ear.look(one) == ["missed"]
    [missed] = ear.heard
    assert isinstance(missed, FiresEvent)
    assert (missed.task_id, missed.task_name, missed.reason, missed.instance_id) == (task, "hourly", "skip", None)
    assert missed.first_fire == first.replace(tzinfo=UTC)
    last, minute = missed.last_fire.replace(tzinfo=None), timedelta(minutes=1)
    more = Skipped(SkipReason.SKIP, last + minute, last + 3 * minute, 3, after=last)
    rows.database.write(lambda c: skips.record(c, [(task, more)]))
    assert ear.look(one) == ["missed"]
    assert (ear.heard[1].first_fire, ear.heard[1].fires) == (missed.first_fire, missed.fires + 3)


def test_a_fire_that_a_person_skips_is_told(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "skipped")
    rows.planned_task(name="nightly", cron="0 2 * * *")
    ear.look(one := ear.process())
    steering.skip(rows.database, ANN, "nightly")
    assert ear.look(one) == ["skipped"]
    assert (ear.heard[0].reason, ear.heard[0].fires, ear.heard[0].first_fire.hour) == ("by_hand", 1, 2)


def test_one_process_tells_and_another_goes_on_when_it_has_stopped(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    one, other = ear.process(), ear.process()
    ear.look(one, other)
    add(rows, "first")
    assert ear.look(one, other) == ["task_added"]
    one.stop()
    add(rows, "second")
    assert ear.look(other) == ["task_added"]


def test_what_a_killed_process_has_not_told_is_told_when_its_lease_is_over(
    rows: Scenario, clock: SettableClock
) -> None:
    ear = Ear(rows.database, clock)
    killed, other = ear.process(), ear.process()
    ear.look(killed, other)
    add(rows, "nightly")
    assert ear.look(other) == []
    assert ear.look(other, seconds=LEASE_SECONDS) == ["task_added"]


def test_a_process_that_was_frozen_tells_no_more_once_it_has_lost_its_lease(
    rows: Scenario, clock: SettableClock
) -> None:
    ear = Ear(rows.database, clock)
    frozen, other = ear.process(), ear.process()
    ear.look(frozen)
    add(rows, "nightly")
    assert ear.look(other, frozen, seconds=LEASE_SECONDS + 1) == ["task_added"]
    assert ear.look(frozen) == []


def test_a_lease_that_is_lost_during_a_call_ends_the_telling(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    slow, other = ear.process(), ear.process()
    ear.look(slow)
    add(rows, "first")
    add(rows, "second")

    def freeze(_: Any) -> None:
        ear.during = None
        assert ear.look(other, seconds=LEASE_SECONDS + 1) == ["task_added", "task_added"]

    ear.during = freeze
    clock.advance(LOOK_SECONDS)
    step(slow)
    assert ear.look(slow, seconds=LOOK_SECONDS) == []
    names = [event.task_name for event in ear.heard]
    assert names == ["first", "first", "second"], "the frozen process told the first one, and the other one both"


def test_a_listener_that_takes_long_is_held_meanwhile_and_told_once(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    slow, other = ear.process(), ear.process()
    ear.look(slow)
    add(rows, "first")
    add(rows, "second")

    def take_long(_: Any) -> None:
        for _ in range(10):
            clock.advance(RENEW_SECONDS)
            assert slow.renew() == RENEW_SECONDS
            step(other)

    ear.during = take_long
    clock.advance(LOOK_SECONDS)
    step(slow)
    assert [event.task_name for event in ear.heard] == ["first", "second"]
    slow.stop()
    assert ear.look(other) == []


@pytest.mark.parametrize("events", [("worker_lost",), ("task_added", "worker_lost")])
def test_what_is_written_while_a_listener_takes_long_is_told(
    rows: Scenario, clock: SettableClock, events: tuple[str, ...]
) -> None:
    ear = Ear(rows.database, clock, *events)
    first, second = rows.worker(), rows.worker("second")
    ear.look(slow := ear.process())
    if "task_added" in events:
        add(rows, "nightly")
    else:
        rows.bury(first)

    def take_long(_: Any) -> None:
        ear.during = None
        for number in range(20):
            clock.advance(RENEW_SECONDS)
            slow.renew()
            if number == 1:
                rows.bury(second)

    ear.during = take_long
    assert len(ear.look(slow)) == 1
    assert ear.look(slow) == ["worker_lost"]
    assert ear.heard[-1].worker == "second"


def test_an_act_that_is_committed_late_while_a_listener_takes_long_is_told(
    rows: Scenario, clock: SettableClock
) -> None:
    ear = Ear(rows.database, clock)
    ear.look(slow := ear.process())
    add(rows, "first")
    add(rows, "second")
    [[late]] = rows.sql("SELECT min(id) FROM schedule_audit")
    rows.sql("UPDATE schedule_audit SET id = 1000000 - id WHERE id = :late", late=late)

    def take_long(_: Any) -> None:
        ear.during = None
        for _ in range(15):
            clock.advance(RENEW_SECONDS)
            slow.renew()
        rows.sql("UPDATE schedule_audit SET id = :late WHERE id = 1000000 - :late", late=late)

    ear.during = take_long
    ear.look(slow, seconds=LOOK_SECONDS)
    assert ear.look(slow) == ["task_added"]
    assert [event.task_name for event in ear.heard] == ["second", "first", "first"]


def test_more_than_are_read_at_once_are_each_told_once(
    rows: Scenario, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MOST_OPEN", 20)
    monkeypatch.setattr(domain_told, "MOST_OPEN", 20)
    ear = Ear(rows.database, clock, "missed", "task_added")
    ear.look(one := ear.process())
    for number in range(30):
        task = rows.task(f"missed-{number}")
        add(rows, f"added-{number}")
        fire = Skipped(SkipReason.SKIP, clock.now(), clock.now(), 1)
        rows.database.write(partial(skips.record, skipped=[(task, fire)]))
        clock.advance(0.01)
    for _ in range(5):
        ear.look(one)
    assert len(ear.heard) == 40, "the first twenty of each"
    one.stop()
    other = ear.process()
    for _ in range(4):
        ear.look(other, seconds=SETTLED.total_seconds() + 1)
    told = Counter((event.event, event.task_name) for event in ear.heard)
    assert (len(told), set(told.values())) == (60, {1})


def test_a_process_that_was_frozen_goes_on_behind_what_others_have_told(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    frozen, other = ear.process(), ear.process()
    ear.look(frozen)
    add(rows, "first")
    assert ear.look(other, seconds=LEASE_SECONDS + 1) == ["task_added"]
    other.stop()
    assert ear.look(frozen, seconds=LOOK_SECONDS) == []
    add(rows, "second")
    assert ear.look(frozen, seconds=LOOK_SECONDS) == ["task_added"]


def test_an_answer_that_comes_late_changes_nothing(rows: Scenario, clock: SettableClock) -> None:
    [hearing] = Ear(rows.database, clock).process().hearings
    hearing.seen(5, is_held=False)
    hearing.seen(4, is_held=True)
    assert not hearing.is_held


def test_each_listener_is_told_by_itself(rows: Scenario, clock: SettableClock) -> None:
    app, heard = Rota(), []

    @app.on("task_added")
    def deaf(event: TaskEvent) -> None:
        heard.append(("deaf", event.task_name))
        raise ValueError("it broke")

    @app.on("task_added", "task_changed")
    def hears(event: TaskEvent) -> None:
        heard.append(("hears", event.task_name))

    one = Teller(rows.database, app.listeners)
    step(one)
    add(rows, "nightly")
    clock.advance(LOOK_SECONDS)
    step(one)
    assert sorted(heard) == [("deaf", "nightly"), ("hears", "nightly")]
    names = [row.name for row in rows.sql("SELECT name FROM schedule_listener ORDER BY name")]
    assert [name.rsplit(".", 1)[-1] for name in names] == ["deaf", "hears"]
    assert names[0].startswith("tests.store.test_listeners.")


def test_what_a_listener_raises_is_logged_once_and_not_told_again(
    rows: Scenario, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    ear = Ear(rows.database, clock)
    ear.look(one := ear.process())
    ear.during = broken
    add(rows, "first")
    add(rows, "second")
    with caplog.at_level(logging.ERROR):
        assert ear.look(one) == ["task_added", "task_added"]
        assert ear.look(one) == []
    [record] = caplog.records
    said = "listeners: Ear.process.<locals>.hear has raised ValueError: the listener broke; the event is not told again"
    assert record.getMessage().splitlines()[0] == said


def test_an_act_that_is_committed_after_a_later_one_is_told(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    ear.look(one := ear.process())
    add(rows, "first")
    add(rows, "second")
    [[late]] = rows.sql("SELECT min(id) FROM schedule_audit")
    rows.sql("UPDATE schedule_audit SET id = 1000000 - id WHERE id = :late", late=late)
    add(rows, "third")
    assert ear.look(one, seconds=SETTLED.total_seconds() / 2) == ["task_added"] * 3
    rows.sql("UPDATE schedule_audit SET id = :late WHERE id = 1000000 - :late", late=late)
    assert ear.look(one) == ["task_added"]
    assert [event.task_name for event in ear.heard] == ["second", "first", "third", "first"]


def test_a_burst_is_told_in_parts(rows: Scenario, clock: SettableClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "MOST_AT_ONCE", 3)
    ear = Ear(rows.database, clock, "task_added", "worker_lost")
    worker = rows.worker()
    ear.look(one := ear.process())
    for number in range(8):
        add(rows, f"task-{number}")
    rows.bury(worker)
    assert ear.look(one) == [*["task_added"] * 3, "worker_lost"], "one table holds up no other"
    assert step(one) == 0.0
    assert step(one) > 0
    added = [event.task_name for event in ear.heard if event.event == "task_added"]
    assert added == [f"task-{number}" for number in range(8)]


def test_an_idle_listener_costs_one_read_a_look(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "missed", "worker_lost")
    ear.look(one := ear.process(), seconds=CHECK_SECONDS)
    clock.advance(LOOK_SECONDS)
    with executed(rows.database.engine) as statements:
        step(one)
    assert sum(statement.startswith("SELECT") for statement in statements) == 2, statements
    assert not any(statement.startswith(("UPDATE", "INSERT")) for statement in statements)


def test_a_row_that_sql_has_deleted_is_there_again(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    ear.look(one := ear.process())
    rows.sql("DELETE FROM schedule_listener")
    ear.look(one, seconds=LEASE_SECONDS)
    add(rows, "nightly")
    assert ear.look(one) == ["task_added"]


SPOILED = [
    *("5", "[]", '{"task_added": 5}', '{"task_added": {"place": ["x", 1], "beyond": []}, "worker_lost": 5}'),
    *('{"worker_lost": {"place": ["", 1], "beyond": []}}', '{"worker_lost": {"place": ["2026", 1], "beyond": []}}'),
    '{"task_added": {"place": [-99999999999999999999, "x"], "beyond": []}}',
]


@pytest.mark.parametrize("spoiled", [*SPOILED, None])
def test_what_sql_has_spoiled_begins_anew(rows: Scenario, clock: SettableClock, spoiled: str | None) -> None:
    ear = Ear(rows.database, clock, "task_added", "worker_lost")
    early, late = rows.worker(), rows.worker()
    ear.look(ear.process())
    rows.sql("UPDATE schedule_listener SET told = :spoiled, held_at = NULL", spoiled=spoiled)
    add(rows, "unheard")
    rows.bury(early)
    ear.look(other := ear.process())
    del ear.heard[:]
    add(rows, "nightly")
    rows.bury(late)
    assert sorted(ear.look(other)) == ["task_added", "worker_lost"]
    assert ear.heard[0].task_name == "nightly"


def test_a_locked_row_of_one_listener_holds_up_no_other(mariadb_rows: Scenario) -> None:
    rows, app, heard = mariadb_rows, Rota(), []

    @app.on("task_added")
    def locked(event: TaskEvent) -> None:
        heard.append("locked")

    @app.on("task_added")
    def other(event: TaskEvent) -> None:
        heard.append("other")

    one = Teller(rows.database, app.listeners)
    one.start()
    count = "SELECT count(*) FROM schedule_listener WHERE held_at IS NOT NULL"
    locking = f"SELECT id FROM schedule_listener WHERE name = '{name_of(locked)}' FOR UPDATE"
    wait_until(lambda: rows.sql(count) == [(2,)], 10, "it to hold both")
    with closing(connect(rows.database.url.render_as_string(hide_password=False))) as locker:
        locker.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        locker.begin()
        locker.cursor().execute(locking)
        add(rows, "nightly")
        wait_until(lambda: "other" in heard, 30, "the other to hear")
    one.stop()


def test_a_process_stops_though_a_listener_does_not_return(
    mariadb_rows: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    rows, app, returns = mariadb_rows, Rota(), threading.Event()

    @app.on("task_added")
    def hangs(event: TaskEvent) -> None:
        returns.wait(60)

    one = Teller(rows.database, app.listeners)
    one.start()
    count = "SELECT count(*) FROM schedule_listener WHERE held_at IS NOT NULL"
    wait_until(lambda: rows.sql(count) == [(1,)], 10, "it to hold it")
    add(rows, "nightly")
    wait_until(lambda: one.hearings[0].called_at is not None, 10, "it to be called")
    one.stop()
    assert "hangs did not return; another process tells the event again" in caplog.text
    assert rows.sql(count) == [(1,)], "its lease ends by itself"
    returns.set()


def test_a_process_that_has_stopped_tells_nothing_though_the_database_was_slow(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, app, heard = mariadb_rows, Rota(), list[str]()
    reached, answers = threading.Event(), threading.Event()

    @app.on("task_added")
    def hear(event: TaskEvent) -> None:
        heard.append(event.task_name)

    one = Teller(rows.database, app.listeners)
    one.start()
    count = "SELECT count(*) FROM schedule_listener WHERE held_at IS NOT NULL"
    wait_until(lambda: rows.sql(count) == [(1,)], 10, "it to hold it")
    keep = listeners.keep

    def slow(connection: Connection, name: str, holder: str, told: Any) -> bool:
        reached.set()
        answers.wait(30)
        return keep(connection, name, holder, told)

    monkeypatch.setattr(listeners, "keep", slow)
    monkeypatch.setattr(hearing, "LOOK_SECONDS", 0)
    for name in ("first", "second", "third"):
        add(rows, name)
    assert reached.wait(10)
    before = len(heard)
    one.stop()
    assert rows.sql(count) == [(1,)], "it may still call"
    answers.set()
    wait_until(lambda: not any("listener" in thread.name for thread in threading.enumerate()), 10, "its end")
    assert len(heard) == before


def test_a_held_at_that_sql_has_spoiled_counts_as_none(sqlite_rows: Scenario) -> None:
    rows, heard = sqlite_rows, list[str]()
    app = Rota()

    @app.on("task_added")
    def hear(event: TaskEvent) -> None:
        heard.append(event.task_name)

    step(Teller(rows.database, app.listeners))
    rows.sql("UPDATE schedule_listener SET held_at = 'x'")
    add(rows, "nightly")
    step(Teller(rows.database, app.listeners))
    assert heard == ["nightly"]


def test_another_version_of_a_listener_keeps_what_this_one_does_not_hear(rows: Scenario, clock: SettableClock) -> None:
    old = Ear(rows.database, clock, "task_added")
    new = Ear(rows.database, clock, "task_added", "task_removed", "worker_joined")
    new.look(two := new.process())
    two.stop()
    old.look(one := old.process())
    rows.worker("w")
    add(rows, "nightly")
    control_tasks.remove(rows.database, ANN, "nightly")
    assert old.look(one) == ["task_added"]
    one.stop()
    assert sorted(new.look(new.process())) == ["task_removed", "worker_joined"]


def test_a_table_that_gives_its_ids_anew_is_told_from_its_beginning(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    ear.look(one := ear.process())
    for name in ("first", "second"):
        add(rows, name)
    ear.look(one, seconds=SETTLED.total_seconds() + 1)
    ear.look(one)
    rows.sql("DELETE FROM schedule_audit")
    add(rows, "third")
    rows.sql("UPDATE schedule_audit SET id = 1")
    assert ear.look(one, seconds=CHECK_SECONDS) == ["task_added"]
    assert ear.heard[-1].task_name == "third"


def test_an_act_under_the_id_of_one_that_was_told_is_told(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    ear.look(one := ear.process())
    add(rows, "first")
    ear.look(one)
    [[told]] = rows.sql("SELECT max(id) FROM schedule_audit")
    rows.sql("DELETE FROM schedule_audit")
    add(rows, "second")
    rows.sql("UPDATE schedule_audit SET id = :told", told=told)
    assert ear.look(one) == ["task_added"]


def test_acts_that_are_deleted_after_they_were_told_hide_no_others(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock)
    ear.look(one := ear.process())
    for name in ("first", "second"):
        add(rows, name)
    ear.look(one)
    [[newest]] = rows.sql("SELECT max(id) FROM schedule_audit")
    rows.sql("DELETE FROM schedule_audit WHERE id = :newest", newest=newest)
    assert ear.look(one, seconds=CHECK_SECONDS) == []
    add(rows, "third")
    assert ear.look(one) == ["task_added"]


FAR = "2039-01-01 00:00:00.000000"


def test_a_time_in_the_future_hides_nothing_that_comes_after_it(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "worker_lost")
    ahead, lost, later = rows.worker(), rows.worker(), rows.worker("later")
    ear.look(one := ear.process())
    rows.sql(f"UPDATE schedule_worker_beat SET gmt_dead = '{FAR}' WHERE schedule_worker_node_id = {ahead}")
    assert ear.look(one) == ["worker_lost"]
    rows.bury(lost)
    assert ear.look(one) == ["worker_lost"]
    one.stop()
    rows.bury(later)
    assert ear.look(ear.process(), seconds=2 * SETTLED.total_seconds()) == ["worker_lost"]
    assert ear.heard[-1].worker == "later"


@pytest.mark.parametrize("step_back", [10, 3600])
def test_what_is_written_after_the_clock_was_set_back_is_told(
    rows: Scenario, clock: SettableClock, step_back: float
) -> None:
    ear = Ear(rows.database, clock, "worker_lost")
    lost, later = rows.worker(), rows.worker("later")
    ear.look(one := ear.process())
    ear.look(one, seconds=2 * SETTLED.total_seconds())
    clock.set_to(clock.now() - timedelta(seconds=step_back))
    rows.bury(lost)
    assert ear.look(one, seconds=CHECK_SECONDS) == ["worker_lost"]
    clock.set_to(clock.now() + timedelta(seconds=step_back))
    rows.bury(later)
    assert ear.look(one, seconds=CHECK_SECONDS) == ["worker_lost"]


def test_what_is_not_told_is_not_remembered_for_long(rows: Scenario, clock: SettableClock) -> None:
    """A stretch that goes on each second, of a task that is off, and one that is told."""
    ear = Ear(rows.database, clock, "missed")
    task, off = rows.task(), rows.task()
    ear.look(one := ear.process())
    last = clock.now()
    for number in range(200):
        first, last = last, last + timedelta(seconds=1)
        after = None if number == 0 else first
        more = [
            (task, Skipped(SkipReason.SKIP, last, last, 1, after=after)),
            (off, Skipped(SkipReason.OFF, last, last, 1, after=after)),
        ]
        rows.database.write(partial(skips.record, skipped=more))
        ear.look(one, seconds=1)
    [row] = rows.sql("SELECT told FROM schedule_listener")
    told = json.loads(row.told) if isinstance(row.told, str) else row.told
    assert len(ear.heard) == 200
    assert len(told["missed"]["beyond"]) <= 1


def test_listeners_that_nobody_has_held_for_long_are_forgotten(rows: Scenario, clock: SettableClock) -> None:
    old = "INSERT INTO schedule_listener (name, held_at) VALUES ('jobs.old', '2030-01-01 00:00:00.000000')"
    rows.sql(old)
    rows.sql("INSERT INTO schedule_listener (name, held_at) VALUES ('jobs.new', '2031-02-01 00:00:00.000000')")
    stopped, app = Ear(rows.database, clock), Rota()
    stopped.look(one := stopped.process())
    one.stop()

    @app.on("missed")
    def newer(event: FiresEvent) -> None: ...

    clock.advance(FORGET_SECONDS - 86_400)
    step(Teller(rows.database, app.listeners))
    names = [row.name.rpartition(".")[2] for row in rows.sql("SELECT name FROM schedule_listener ORDER BY id")]
    assert names == ["hear", "newer"]


def test_the_row_says_how_far_it_was_told(rows: Scenario, clock: SettableClock) -> None:
    ear = Ear(rows.database, clock, "task_added")
    ear.look(one := ear.process())
    add(rows, "nightly")
    ear.look(one)
    [row] = rows.sql("SELECT told, holder, held_at FROM schedule_listener")
    told = json.loads(row.told) if isinstance(row.told, str) else row.told
    [[newest]] = rows.sql("SELECT max(id) FROM schedule_audit")
    assert [number for number, _ in told["task_added"]["beyond"]] == [newest]
    assert None not in (row.holder, row.held_at)
    assert rows.database.read(lambda c: c.scalar(text("SELECT count(*) FROM schedule_listener"))) == 1
