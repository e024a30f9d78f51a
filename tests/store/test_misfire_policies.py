"""What each misfire policy makes of an outage: what runs, what is counted, and what goes first."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.catch_up import Catcher
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.fleet import FleetCache
from rota.shared.control import tasks
from rota.shared.database.transactions import Database
from rota.shared.domain.catching_up import FIRES_OF_TASK
from rota.shared.domain.errors import DatabaseAway
from rota.shared.domain.planning import CATCH_UP_PRIORITY
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import catch_ups, polling, skips
from tests.harness.scenario import Scenario, succeeded

MINUTE = timedelta(minutes=1)
DAY = 1440
Step = Callable[[], float]


NOW = datetime.fromisoformat("2031-02-03 04:05:30")
NEWEST = datetime.fromisoformat("2031-02-03 04:05:00")
"""The newest fire of a task of every minute; it is late by more than the grace."""


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOW)


@pytest.fixture
def rows(migrated_url: str, clock: SettableClock) -> Iterator[Scenario]:
    database = Database(migrated_url, clock=clock)
    yield Scenario(database)
    database.close()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    return Settings.load()


@pytest.fixture
def catch_up(rows: Scenario, settings: Settings) -> Step:
    return Catcher(rows.database, settings, FleetCache(rows.database)).step


def materialize(rows: Scenario, settings: Settings) -> None:
    Materializer(rows.database, settings).step()


def missed(rows: Scenario, minutes: int, **fields: Any) -> int:
    """A task of every minute that nobody has planned for so long. Its runs wait for each other."""
    return rows.planned_task(NEWEST - (minutes - 1) * MINUTE, **{"overlap_policy": "queue", **fields})


def fires(rows: Scenario, task: int) -> list[datetime]:
    """The fires of a task that were written."""
    found = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    return sorted(rows.row(one.id).schedule_datetime for one in found)


def skipped(rows: Scenario, task: int) -> dict[str, int]:
    """How many fires of a task are recorded as skipped, by the reason."""
    found: Counter[str] = Counter()
    for row in rows.database.read(lambda c: skips.newest(c, task, 100)):
        found[row.reason] += row.fires
    return dict(found)


def test_skip_runs_nothing_that_was_missed_and_counts_it(rows: Scenario, settings: Settings) -> None:
    task = missed(rows, DAY, misfire_policy="skip")
    materialize(rows, settings)
    assert fires(rows, task) == []
    assert (skipped(rows, task), rows.task_row(task).misfires) == ({"skip": DAY}, DAY)
    [stretch] = rows.database.read(lambda c: skips.newest(c, task, 10))
    assert (stretch.first_fire, stretch.last_fire) == (NEWEST - (DAY - 1) * MINUTE, NEWEST)


def test_fire_once_runs_the_newest_behind_what_is_due_and_counts_the_others(rows: Scenario, settings: Settings) -> None:
    task = missed(rows, DAY, priority=0)
    materialize(rows, settings)
    assert fires(rows, task) == [NEWEST]
    assert (skipped(rows, task), rows.task_row(task).misfires) == ({"fire_once": DAY - 1}, DAY - 1)
    [instance] = rows.sql("SELECT priority FROM schedule_instance")
    assert instance.priority == CATCH_UP_PRIORITY


def test_fire_all_runs_the_newest_up_to_the_cap_a_few_at_a_time(
    rows: Scenario, settings: Settings, catch_up: Step
) -> None:
    task = missed(rows, DAY, misfire_policy="fire_all", misfire_cap=25)
    worker = rows.worker(capacity=100)
    materialize(rows, settings)
    assert (fires(rows, task), rows.task_row(task).misfires) == ([], 0)
    for number in (FIRES_OF_TASK, 2 * FIRES_OF_TASK, 25):
        catch_up()
        assert fires(rows, task) == [NEWEST - n * MINUTE for n in range(24, 24 - number, -1)]
        catch_up()
        assert len(fires(rows, task)) == number, "the next follow when the last has begun"
        run_all(rows, worker, settings)
    catch_up()
    assert len(fires(rows, task)) == 25
    assert (skipped(rows, task), rows.task_row(task).misfires) == ({"cap": DAY - 25}, DAY - 25)
    assert rows.sql("SELECT * FROM schedule_catch_up") == []


def raise_away(*_: Any, **__: Any) -> None:
    raise DatabaseAway("the database refuses connections")


def run_all(rows: Scenario, worker: int, settings: Settings) -> None:
    """Let the worker run what waits, one after the other."""
    Assigner(rows.database, settings).step()
    while assigned := [instance for instance, status in rows.statuses().items() if status == "assigned"]:
        runs = rows.claim(worker, *assigned).runs
        assert runs
        for run in runs:
            rows.report(worker, succeeded(run))


def test_a_fire_that_is_late_because_the_scheduler_is_slow_keeps_its_priority(
    rows: Scenario, clock: SettableClock
) -> None:
    duty = Materializer(rows.database, Settings.load())

    def priority_of_a_fire(seconds_ago: int) -> int:
        fire = clock.now() - timedelta(seconds=seconds_ago)
        task = rows.planned_task(fire, cron="0 0 1 1 *", priority=3)
        duty.step()
        [instance] = rows.sql("SELECT priority FROM schedule_instance WHERE schedule_task_id = :task", task=task)
        return int(instance.priority)

    assert priority_of_a_fire(20) == CATCH_UP_PRIORITY, "it was due before the scheduler came"
    for _ in range(3):
        clock.advance(10)
        duty.step()
    assert priority_of_a_fire(20) == 3
    clock.advance(60)
    assert priority_of_a_fire(20) == CATCH_UP_PRIORITY, "the scheduler was away"


@pytest.mark.parametrize("refused", ["read", "write"])
def test_what_is_late_since_the_database_was_away_goes_behind_what_is_due(
    rows: Scenario, clock: SettableClock, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    duty = Materializer(rows.database, Settings.load())
    duty.step()
    rows.planned_task(clock.now(), cron="0 0 1 1 *")
    with monkeypatch.context() as away:
        away.setattr(rows.database, refused, raise_away)
        for _ in range(12):
            clock.advance(10)
            with pytest.raises(DatabaseAway):
                duty.step()
    task = rows.planned_task(clock.now() - timedelta(seconds=20), cron="0 0 1 1 *", priority=3)
    duty.step()
    [instance] = rows.sql("SELECT priority FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    assert instance.priority == CATCH_UP_PRIORITY


def test_what_was_missed_before_the_window_is_counted_apart(rows: Scenario, settings: Settings, catch_up: Step) -> None:
    task = missed(rows, DAY, misfire_policy="fire_all", misfire_window_seconds=600, misfire_cap=3)
    rows.worker()
    materialize(rows, settings)
    catch_up()
    assert len(fires(rows, task)) == 3
    assert skipped(rows, task) == {"window": DAY - 10, "cap": 7}


def test_catching_up_waits_for_a_worker_with_room(rows: Scenario, settings: Settings, catch_up: Step) -> None:
    task = missed(rows, 60, misfire_policy="fire_all")
    materialize(rows, settings)
    catch_up()
    assert fires(rows, task) == [], "no worker is live"
    worker = rows.worker(capacity=1, prefetch=3)
    for _ in range(2):
        rows.assigned(worker)
    catch_up()
    assert fires(rows, task) == [], "half of its room is left to what is due now"
    rows.worker()
    catch_up()
    assert len(fires(rows, task)) == FIRES_OF_TASK


def test_what_is_caught_up_leaves_half_of_the_room_and_what_is_due_now_goes_first(
    rows: Scenario, settings: Settings, catch_up: Step
) -> None:
    worker = rows.worker(capacity=2, prefetch=6)
    for _ in range(3):
        missed(rows, 60, misfire_policy="fire_all", overlap_policy="allow")
    materialize(rows, settings)
    catch_up()
    Assigner(rows.database, settings).step()
    assigned = rows.sql("SELECT id FROM schedule_instance WHERE status = 'assigned' AND priority = 9")
    assert len(assigned) == 4
    due = rows.planned_task(NOW, cron_seconds=True, cron="* * * * * *")
    materialize(rows, settings)
    given = rows.sql("SELECT status FROM schedule_instance WHERE schedule_task_id = :task", task=due)
    assert [row.status for row in given][:4] == ["assigned"] * 4
    first, *_ = rows.database.read(lambda c: polling.poll(c, polling.Queue(worker), NOW, 1)).rows
    assert rows.row(first[0]).schedule_task_id == due


@pytest.mark.parametrize(
    ("edit", "reason", "counter"),
    [
        ("status = 'off'", "off", "fires_held_back"),
        ("cron = '7 * * * *'", "edited", "misfires"),
        ("misfire_policy = 'skip'", "skip", "misfires"),
    ],
)
def test_an_edit_ends_the_catch_up_and_what_was_left_is_counted(
    rows: Scenario, settings: Settings, catch_up: Step, *, edit: str, reason: str, counter: str
) -> None:
    task = missed(rows, 60, misfire_policy="fire_all")
    rows.worker()
    materialize(rows, settings)
    catch_up()
    rows.sql(f"UPDATE schedule_task SET {edit} WHERE id = {task}")
    rows.sql("UPDATE schedule_catch_up SET written_fire = NULL")
    catch_up()
    assert len(fires(rows, task)) == FIRES_OF_TASK
    assert (skipped(rows, task), getattr(rows.task_row(task), counter)) == ({reason: 50}, 50)
    assert rows.sql("SELECT * FROM schedule_catch_up") == []


def test_a_stretch_that_goes_on_stays_one_row(rows: Scenario, settings: Settings, clock: SettableClock) -> None:
    task = missed(rows, 30, status="off")
    materialize(rows, settings)
    for number in (31, 32):
        clock.advance(60)
        materialize(rows, settings)
        [stretch] = rows.database.read(lambda c: skips.newest(c, task, 10))
        assert (stretch.reason, stretch.fires) == ("off", number)
        assert stretch.last_fire == NEWEST + (number - 30) * MINUTE
    assert rows.task_row(task).fires_held_back == 32


def test_two_schedulers_that_catch_up_write_each_fire_once(rows: Scenario, settings: Settings) -> None:
    task = missed(rows, 30, misfire_policy="fire_all")
    rows.worker()
    materialize(rows, settings)
    materialize(rows, settings)
    for _ in range(2):
        Catcher(rows.database, settings, FleetCache(rows.database)).step()
    assert fires(rows, task) == [NEWEST - n * MINUTE for n in range(29, 19, -1)]


@pytest.mark.parametrize("cap", [20, 5], ids=["it goes on", "it is over"])
def test_a_stretch_that_was_moved_on_since_it_was_read_is_counted_once(
    rows: Scenario, settings: Settings, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    """Another scheduler was quicker, or the answer to a commit was lost and the transaction runs again."""
    task = missed(rows, 30, misfire_policy="fire_all", misfire_cap=cap)
    rows.worker()
    materialize(rows, settings)
    page = rows.database.read(lambda c: catch_ups.page(c, 0, 10))
    monkeypatch.setattr(catch_ups, "page", lambda *_: page)
    for _ in range(2):
        Catcher(rows.database, settings, FleetCache(rows.database)).step()
    assert (skipped(rows, task), rows.task_row(task).misfires) == ({"cap": 30 - cap}, 30 - cap)
    assert len(fires(rows, task)) == min(cap, FIRES_OF_TASK)


def test_a_retry_of_the_last_fire_that_was_written_holds_up_no_other(
    rows: Scenario, settings: Settings, catch_up: Step
) -> None:
    task = missed(rows, 30, misfire_policy="fire_all", misfire_cap=20)
    rows.worker()
    materialize(rows, settings)
    catch_up()
    rows.sql("UPDATE schedule_instance SET attempt = 1")
    catch_up()
    assert len(fires(rows, task)) == 2 * FIRES_OF_TASK


def test_task_show_tells_what_was_skipped_and_what_is_still_to_run(
    rows: Scenario, settings: Settings, catch_up: Step
) -> None:
    missed(rows, 30, name="nightly", misfire_policy="fire_all", misfire_cap=20)
    rows.worker()
    materialize(rows, settings)
    catch_up()
    shown = tasks.show(rows.database, "nightly")
    [left], [gone] = shown["catching_up"], shown["skipped"]
    assert (left["fires_left"], left["last_fire"]) == (10, NEWEST.isoformat() + "Z")
    assert (gone["reason"], gone["fires"]) == ("cap", 10)
