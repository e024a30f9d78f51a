"""Whom the reaper declares dead, and when it only watches: outages of its own, and steps of the database's clock."""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Connection

from rota.scheduler_service.duties.reaper import ClockReading, Reaper
from rota.shared.database.constructs import written
from rota.shared.database.transactions import Database, opened
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import assignments, census, workers
from tests.harness.scenario import Scenario

NOON = datetime.fromisoformat("2026-11-22 12:00:00")


@pytest.fixture
def clock() -> SettableClock:
    """The time that the test sets; the database's sessions tell it, too."""
    return SettableClock(NOON)


@pytest.fixture
def rows(migrated_url: str, clock: SettableClock) -> Iterator[Scenario]:
    database = Database(migrated_url, clock=clock)
    yield Scenario(database)
    database.close()


def silence(rows: Scenario) -> None:
    """No worker was heard of for an hour."""
    before = (rows.start - timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
    rows.sql("UPDATE schedule_worker_beat SET last_beat = :before", before=before)


def state(rows: Scenario, worker: int) -> str:
    return str(rows.sql("SELECT state FROM schedule_worker_node WHERE id = :id", id=worker)[0][0])


def test_a_step_of_the_databases_clock_kills_no_worker(
    rows: Scenario, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = rows.worker()
    reaper = Reaper(rows.database, Settings.load(), "test")
    for _ in range(4):  # past the watch that follows a start
        clock.advance(6)
        rows.database.write(lambda c: workers.heartbeat(c, worker, workers.Load()))
        reaper.step()
    assert "clock step" not in caplog.text
    silence(rows)
    clock.set_to(clock.now() + timedelta(hours=1))
    with caplog.at_level(logging.WARNING):
        reaper.step()
    assert "clock step +3600.0 s" in caplog.text
    assert state(rows, worker) == "live"
    for _ in range(3):
        clock.advance(6)
        reaper.step()
    assert state(rows, worker) == "dead"


@pytest.mark.parametrize(("held_up", "liveness"), [("a step of the clock", 15), ("an outage", 15), ("an outage", 300)])
def test_what_nobody_could_start_in_time_is_not_taken_back(
    rows: Scenario, clock: SettableClock, held_up: str, liveness: int
) -> None:
    worker, _ = rows.worker(liveness_seconds=600), rows.worker(liveness_seconds=600)
    settings = Settings.load(assignment_timeout_seconds=10, liveness_seconds=liveness)
    reaper = Reaper(rows.database, settings, "test")
    reaper.step()
    given = rows.assigned(worker)
    rows.sql("UPDATE schedule_instance SET due_at = :now, gmt_assigned = :now", now=written(clock.now()))
    if held_up == "an outage":
        clock.advance(60)
    else:
        clock.set_to(clock.now() + timedelta(seconds=60))
    for _ in range(4):
        reaper.step()
        assert rows.status(given) == "assigned"
        clock.advance(3)
    reaper.step()
    assert rows.status(given) == "pending"


@pytest.mark.parametrize(
    ("step", "limits", "kills"),
    [(1.9, (15, 15), True), (2.1, (15, 15), False), (1.9, (15, 6), False), (0.6, (2, 2), False)],
)
def test_a_step_counts_from_2_seconds_on_or_a_quarter_of_the_liveness_limit(
    rows: Scenario, clock: SettableClock, step: float, limits: tuple[int, int], kills: bool
) -> None:
    limit, workers_limit = limits
    reaper = Reaper(rows.database, Settings.load(heartbeat_seconds=0.5, liveness_seconds=limit), "test")
    for _ in range(5):
        clock.advance(limit / 4)
        reaper.step()
    worker = rows.worker(liveness_seconds=workers_limit)
    silence(rows)
    clock.set_to(clock.now() - timedelta(seconds=step))
    reaper.step()
    assert state(rows, worker) == ("dead" if kills else "live")


def test_a_step_is_no_longer_than_the_answers_that_tell_of_it_leave_certain() -> None:
    look = ClockReading(100.0, NOON, 100.5)
    for asked, answered, passed, step in (
        (110.0, 110.1, 10, 0),
        (110.0, 110.1, 9.5, 0),
        (110.0, 110.1, 9.4, -0.1),
        (110.0, 113.0, 13, 0),
        (110.0, 113.0, 14, 1),
    ):
        later = ClockReading(asked, NOON + timedelta(seconds=passed), answered)
        assert later.step_since(look) == pytest.approx(step)


def test_nobody_is_declared_dead_who_was_not_watched_for_its_own_limit(rows: Scenario, clock: SettableClock) -> None:
    quick, patient = rows.worker(liveness_seconds=15), rows.worker(liveness_seconds=60)
    reaper = Reaper(rows.database, Settings.load(liveness_seconds=15), "test")
    silence(rows)
    seen = []
    for _ in range(13):
        clock.advance(5)
        reaper.step()
        seen.append((state(rows, quick), state(rows, patient)))
    assert seen == 2 * [("live", "live")] + 9 * [("dead", "live")] + 2 * [("dead", "dead")]


@pytest.mark.parametrize(("seconds", "dies"), [(7, True), (8, False)])
def test_an_outage_in_the_middle_of_a_pass_is_watched_after_like_any_other(
    rows: Scenario, clock: SettableClock, monkeypatch: pytest.MonkeyPatch, seconds: int, dies: bool
) -> None:
    worker, holder = rows.worker(), rows.worker()
    rows.assigned(holder)
    rows.bury(holder)
    reaper, take_back = Reaper(rows.database, Settings.load(), "test"), assignments.take_back_assigned
    for _ in range(4):
        clock.advance(3.7)
        reaper.step()

    def hanging(connection: Connection, **options: int) -> int:
        clock.advance(seconds)
        return take_back(connection, **options)

    rows.assigned(holder)
    monkeypatch.setattr(assignments, "take_back_assigned", hanging)
    reaper.step()
    silence(rows)
    clock.advance(1)
    reaper.step()
    assert state(rows, worker) == ("dead" if dies else "live")


@pytest.mark.parametrize(("tick", "liveness"), [(60, 15), (1, 2)])
def test_however_long_a_tick_is_the_silent_are_declared_dead_once_the_limit_has_passed(
    rows: Scenario, clock: SettableClock, tick: float, liveness: int
) -> None:
    worker = rows.worker(liveness_seconds=liveness)
    settings = Settings.load(tick_seconds=tick, lookahead_seconds=300, heartbeat_seconds=0.5, liveness_seconds=liveness)
    reaper, began = Reaper(rows.database, settings, "test"), clock.monotonic()
    silence(rows)
    while state(rows, worker) == "live" and clock.monotonic() < began + 10 * liveness:
        clock.advance(reaper.step() + 0.01)
    assert state(rows, worker) == "dead"
    assert liveness <= clock.monotonic() - began <= 1.6 * liveness


def beat(rows: Scenario, *worker_ids: int) -> None:
    for worker in worker_ids:
        rows.database.write(partial(workers.heartbeat, worker_id=worker, load=workers.Load()))


def test_a_worker_that_died_before_the_databases_clock_was_set_back_is_declared_dead(
    rows: Scenario, clock: SettableClock
) -> None:
    """Those that live beat once, or many times, and are spared."""
    dead, live = rows.worker(), rows.worker()
    reaper = Reaper(rows.database, Settings.load(), "test")
    for _ in range(4):
        clock.advance(6)
        beat(rows, dead, live)
        reaper.step()
    clock.set_to(clock.now() - timedelta(hours=1))
    seen = []
    for _ in range(6):
        reaper.step()
        seen.append((state(rows, dead), state(rows, live)))
        clock.advance(5)
        beat(rows, live)
    assert seen == 3 * [("live", "live")] + 3 * [("dead", "live")]


def test_a_beat_in_the_future_that_sql_wrote_kills_no_worker_that_beats_again(
    rows: Scenario, clock: SettableClock
) -> None:
    dead, live = rows.worker(), rows.worker()
    reaper = Reaper(rows.database, Settings.load(), "test")
    for _ in range(4):
        clock.advance(6)
        beat(rows, dead, live)
        reaper.step()
    rows.sql("UPDATE schedule_worker_beat SET last_beat = '2999-01-01 00:00:00.000000'")
    reaper.step()
    assert (state(rows, dead), state(rows, live)) == ("live", "live")
    for _ in range(4):
        clock.advance(5)
        beat(rows, live)
        reaper.step()
    assert (state(rows, dead), state(rows, live)) == ("dead", "live")


@pytest.mark.parametrize("moves", [0, 1])
def test_after_a_move_to_another_server_nobody_is_declared_dead_for_a_liveness_limit(
    rows: Scenario, clock: SettableClock, caplog: pytest.LogCaptureFixture, moves: int
) -> None:
    """Its clock may be ahead by less than what counts as a step; and it may show beats of before."""
    worker = rows.worker()
    reaper = Reaper(rows.database, Settings.load(), "test")
    for _ in range(4):
        clock.advance(6)
        beat(rows, worker)
        reaper.step()
    silence(rows)
    for _ in range(moves):
        rows.database.servers.moved(clock.monotonic(), clock.now(), clock.monotonic())
    seen = []
    for _ in range(4):
        reaper.step()
        seen.append(state(rows, worker))
        clock.advance(5)
    assert seen == (3 * ["live"] + ["dead"] if moves else 4 * ["dead"])
    assert caplog.text.count("moved to another server, whose clock differs by") == moves


def test_on_a_cluster_whose_clocks_differ_a_worker_is_dead_when_the_same_beat_was_seen_for_its_limit(
    rows: Scenario, clock: SettableClock
) -> None:
    """The worker beats at a server whose clock is behind the reaper's by more than the limit."""
    rows.database.servers.are_several = True
    dead, live = rows.worker(), rows.worker()
    reaper = Reaper(rows.database, Settings.load(), "test")
    for _ in range(6):
        clock.advance(4)
        beat(rows, dead, live)
        set_back(rows, dead, live)
        reaper.step()
    assert (state(rows, dead), state(rows, live)) == ("live", "live")
    seen = []
    for _ in range(5):
        clock.advance(4)
        beat(rows, live)
        set_back(rows, live)
        reaper.step()
        seen.append((state(rows, dead), state(rows, live)))
    assert seen == 3 * [("live", "live")] + 2 * [("dead", "live")]


def set_back(rows: Scenario, *worker_ids: int) -> None:
    """The beats were written by a clock that is 20 s behind."""
    for worker in worker_ids:
        (beaten,) = rows.sql(
            "SELECT last_beat FROM schedule_worker_beat WHERE schedule_worker_node_id = :id", id=worker
        )
        moment = beaten[0] if isinstance(beaten[0], datetime) else datetime.fromisoformat(beaten[0])
        before = (moment - timedelta(seconds=20)).strftime("%Y-%m-%d %H:%M:%S.%f")
        rows.sql(
            "UPDATE schedule_worker_beat SET last_beat = :at WHERE schedule_worker_node_id = :id", at=before, id=worker
        )


def test_who_says_by_sql_that_a_worker_is_dead_is_believed_when_its_lease_is_over(
    rows: Scenario, clock: SettableClock
) -> None:
    """Its process learns it at its next heartbeat. What it runs must not begin elsewhere before it has ended."""
    said, deleted, forgotten, live = rows.worker(), rows.worker(), rows.worker(), rows.worker()
    runs = {worker: rows.running(worker).id for worker in (said, deleted, forgotten, live)}
    given = rows.assigned(said)
    rows.sql("UPDATE schedule_worker_node SET state = 'dead' WHERE id = :id", id=said)
    rows.sql("DELETE FROM schedule_worker_node WHERE id = :id", id=deleted)
    rows.sql("DELETE FROM schedule_worker_beat WHERE schedule_worker_node_id = :id", id=forgotten)
    reaper = Reaper(rows.database, Settings.load(), "test")
    reaper.step()
    heard = [rows.database.write(partial(workers.heartbeat, worker_id=worker, load=workers.Load())) for worker in runs]
    assert heard == [False, False, False, True]
    assert [state(rows, worker) for worker in (said, forgotten, live)] == ["dead", "dead", "live"]
    assert rows.status(given) == "pending", "it had not begun"
    for _ in range(2):
        clock.advance(7)
        beat(rows, live)
        reaper.step()
        assert [rows.status(run) for run in runs.values()] == 4 * ["running"]
    clock.advance(2)
    beat(rows, live)
    reaper.step()
    assert [rows.status(run) for run in runs.values()] == 3 * ["pending"] + ["running"]


def test_what_a_condemned_worker_ran_begins_again_as_soon_as_its_guardian_says_that_it_has_ended(
    rows: Scenario,
) -> None:
    worker = rows.worker()
    run = rows.running(worker).id
    rows.sql("UPDATE schedule_worker_node SET state = 'dead' WHERE id = :id", id=worker)
    reaper = Reaper(rows.database, Settings.load(), "test")
    reaper.step()
    assert rows.status(run) == "running"
    ended = partial(workers.bury, worker_ids=[worker], reason="its process was killed", by="guardian")
    assert rows.database.write(ended) == 1
    assert rows.database.write(ended) == 0
    reaper.step()
    assert rows.status(run) == "pending"


def test_a_limit_that_is_no_number_stops_no_pass(emptied_sqlite_url: str) -> None:
    """SQLite takes a text for a number, if somebody turns its checks off."""
    with opened(emptied_sqlite_url) as database:
        rows = Scenario(database)
        worker = rows.worker(liveness_seconds=15)
        rows.database.write(
            lambda c: (
                c.exec_driver_sql("PRAGMA ignore_check_constraints = 1"),
                c.exec_driver_sql(
                    "UPDATE schedule_worker_beat SET liveness_seconds = 'soon', last_beat = '2000-01-01'"
                ),
            )
        )
        Reaper(database, Settings.load(liveness_seconds=15), "test").step()
        assert database.read(census.take).silent == {worker: census.UNREADABLE_LIMIT_SECONDS}
