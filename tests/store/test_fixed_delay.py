"""Tasks with a fixed delay: each fire follows the end of the run before it, once, whatever happens in between."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from rota.scheduler_service.duties.follower import Follower
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import instances as control
from rota.shared.control import replays, tasks
from rota.shared.control.actor import Actor
from rota.shared.database.constructs import written
from rota.shared.database.transactions import Database
from rota.shared.domain.states import InstanceStatus
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import follow_ups, recovery, skips
from rota.shared.store.runs import Run
from rota.shared.store.transitions import canceling
from rota.worker_service.running import endings
from tests.harness.scenario import Scenario, to_retry
from tests.harness.scenario import ended as report_of

ANN = Actor("ann", "cli")
NOW = datetime.fromisoformat("2031-02-03 04:05:30")
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
DELAY = 10 * MINUTE


class Delayed:
    """A task with a fixed delay of ten minutes, a worker, and the duties that make its plan, by a clock that is set."""

    def __init__(self, rows: Scenario, clock: SettableClock) -> None:
        self.rows, self.clock = rows, clock
        self.worker = rows.worker()
        self.task = 0

    def add(self, **fields: Any) -> None:
        given = {"name": "queue", "type": "REPORT", "fixed_delay": "10m", **fields}
        self.task = int(tasks.add(self.rows.database, ANN, given).document["id"])
        self.rows.sql("UPDATE schedule_task SET gmt_create = :now", now=written(self.clock.now()))

    def edit(self, **changes: Any) -> None:
        tasks.edit(self.rows.database, ANN, "queue", changes)

    def tick(self) -> None:
        """One tick of a scheduler that has just started, while the worker lives."""
        settings = Settings.load()
        self.rows.sql("UPDATE schedule_worker_beat SET last_beat = :now", now=written(self.clock.now()))
        Follower(self.rows.database, settings).step()
        Materializer(self.rows.database, settings).step()

    def wait(self, span: timedelta) -> None:
        self.clock.set_to(self.clock.now() + span)

    def begin(self) -> Run:
        """Let the worker claim what it was given, when it is due."""
        [given] = [i for i, status in self.rows.statuses().items() if status == "assigned"]
        self.wait(max(timedelta(0), self.rows.row(given).due_at - self.clock.now()))
        [run] = self.rows.claim(self.worker, given).runs
        return run

    def end(self, run: Run, status: str = "succeed") -> datetime:
        """Let it report the end of a run; returns when that was."""
        end = self.clock.now()
        assert self.rows.report(self.worker, report_of(run, InstanceStatus(status))) == set()
        self.rows.sql("UPDATE schedule_instance SET gmt_completed = :end WHERE id = :id", end=written(end), id=run.id)
        return end

    def run(self, status: str = "succeed", lasts: timedelta = MINUTE) -> datetime:
        """Let the worker run what it was given; returns when that has ended."""
        run = self.begin()
        self.wait(lasts)
        return self.end(run, status)

    @property
    def next(self) -> Any:
        return self.rows.task_row(self.task).next_fire_at

    @property
    def fires(self) -> list[datetime]:
        found = self.rows.sql("SELECT id FROM schedule_instance WHERE origin = 'cron' ORDER BY id")
        return [self.rows.row(one.id).schedule_datetime for one in found]

    @property
    def marks(self) -> int:
        return len(self.rows.sql("SELECT id FROM schedule_follow_up"))


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOW)


@pytest.fixture
def delayed(migrated_url: str, clock: SettableClock) -> Iterator[Delayed]:
    database = Database(migrated_url, clock=clock)
    yield Delayed(Scenario(database), clock)
    database.close()


def test_a_new_task_fires_at_once_and_then_so_long_after_the_end_of_each_run(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    assert (delayed.fires, delayed.next, delayed.marks) == ([NOW], None, 1)
    ends = [NOW - DELAY]
    for lasts in (MINUTE, 3 * HOUR, SECOND):
        ends.append(delayed.run(lasts=lasts))
        delayed.tick()
        assert (delayed.next, delayed.marks) == (ends[-1] + DELAY, 0)
        delayed.wait(DELAY - 2 * SECOND)
        delayed.tick()
        assert (delayed.next, delayed.marks) == (None, 1)
    assert delayed.fires == [end + DELAY for end in ends]


def test_nothing_fires_while_a_run_goes_on_however_often_the_scheduler_ticks(delayed: Delayed) -> None:
    delayed.add()
    for _ in range(5):
        delayed.tick()
        delayed.wait(HOUR)
    assert delayed.fires == [NOW]


@pytest.mark.parametrize("status", ["succeed", "failed", "canceled"])
def test_it_follows_each_end_whatever_its_status(delayed: Delayed, status: str) -> None:
    delayed.add()
    delayed.tick()
    end = delayed.run(status)
    delayed.tick()
    assert delayed.next == end + DELAY


def test_it_follows_the_end_of_the_last_attempt(delayed: Delayed) -> None:
    delayed.add(retries=1, retry_delay_seconds=30)
    delayed.tick()
    run = delayed.begin()
    again = delayed.clock.now() + 30 * SECOND
    delayed.rows.report(delayed.worker, to_retry(run, again))
    delayed.tick()
    assert (delayed.next, delayed.marks) == (None, 1)
    delayed.wait(31 * SECOND)
    delayed.rows.give(delayed.worker, run.id)
    end = delayed.run("failed")
    delayed.tick()
    assert delayed.next == end + DELAY


def test_it_follows_a_run_whose_worker_was_lost(delayed: Delayed) -> None:
    delayed.add(on_worker_lost="fail")
    delayed.tick()
    run = delayed.begin()
    delayed.rows.report(delayed.worker, endings.begun(run, run.nodes[0], delayed.clock.now()))
    delayed.wait(MINUTE)
    delayed.rows.bury(delayed.worker)
    delayed.rows.database.write(lambda c: recovery.recover(c, delayed.worker, 10))
    end = delayed.clock.now()
    delayed.tick()
    assert (delayed.rows.status(run.id), delayed.next) == ("failed", end + DELAY)


def test_it_follows_what_was_canceled_before_its_time_or_deleted_by_sql(delayed: Delayed) -> None:
    delayed.add(starts_at=NOW + 4 * SECOND)
    delayed.tick()
    [waiting] = delayed.rows.statuses()
    control.cancel(delayed.rows.database, ANN, [waiting])
    delayed.tick()
    assert delayed.next == NOW + 4 * SECOND + DELAY, "counted from its own time, which is later than its end"
    delayed.wait(DELAY)
    delayed.tick()
    assert delayed.marks == 1
    delayed.rows.sql("DELETE FROM schedule_task_node")
    delayed.rows.sql("DELETE FROM schedule_instance")
    delayed.tick()
    assert (delayed.next, delayed.marks) == (delayed.clock.now() + DELAY, 0)


def test_runs_by_hand_and_replays_do_not_shift_it(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    end = delayed.run()
    [first] = delayed.rows.statuses()
    delayed.tick()
    delayed.wait(MINUTE)
    tasks.run(delayed.rows.database, ANN, "queue")
    replays.replay(delayed.rows.database, ANN, [first])
    delayed.rows.sql("UPDATE schedule_instance SET status = 'canceled', gmt_completed = :t WHERE status = 'pending'",
                     t=written(delayed.clock.now()))  # fmt: skip
    delayed.tick()
    assert (delayed.next, delayed.marks) == (end + DELAY, 0)


def test_a_fire_that_comes_while_a_run_by_hand_goes_on_is_skipped_and_followed(delayed: Delayed) -> None:
    delayed.add(starts_at=NOW + DELAY)
    delayed.tick()
    delayed.rows.running(delayed.worker, delayed.task, origin="manual")
    delayed.wait(DELAY + 2 * SECOND)
    delayed.tick()
    [fire] = [i for i, status in delayed.rows.statuses().items() if status == "assigned"]
    delayed.rows.database.write(lambda c: canceling.skip(c, delayed.worker, {fire: "the previous still runs"}))
    end = delayed.clock.now()
    delayed.tick()
    assert delayed.next == end + DELAY


def test_while_it_is_off_its_plan_goes_on_as_if_each_fire_had_ended_at_once(delayed: Delayed) -> None:
    delayed.add(status="off", starts_at=NOW)
    delayed.tick()
    for _ in range(3):
        delayed.wait(DELAY)
        delayed.tick()
    assert (delayed.fires, delayed.next) == ([], NOW + 4 * DELAY)
    row = delayed.rows.task_row(delayed.task)
    [stretch] = delayed.rows.database.read(lambda c: skips.newest(c, delayed.task, 10))
    assert (row.fires_held_back, stretch.fires, stretch.first_fire) == (4, 4, NOW)
    delayed.edit(status="on")
    delayed.tick()
    assert (delayed.fires, delayed.next) == ([], NOW + 4 * DELAY)
    delayed.wait(DELAY)
    delayed.tick()
    assert delayed.fires == [NOW + 4 * DELAY]


def test_turned_off_while_it_runs_it_goes_on_after_that_end_when_it_is_on_again(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    run = delayed.begin()
    delayed.edit(status="off")
    end = delayed.end(run)
    delayed.tick()
    delayed.edit(status="on")
    delayed.tick()
    assert (delayed.next, delayed.rows.task_row(delayed.task).fires_held_back) == (end + DELAY, 0)


@pytest.mark.parametrize(
    ("policy", "runs", "skipped"),
    [("fire_once", True, 0), ("fire_all", True, 0), ("skip", False, 144)],
)
def test_a_scheduler_that_was_down_when_the_run_ended_goes_by_the_misfire_policy(
    delayed: Delayed, policy: str, runs: bool, skipped: int
) -> None:
    delayed.add(misfire_policy=policy)
    delayed.tick()
    end = delayed.run()
    delayed.wait(DAY + 5 * MINUTE)
    delayed.tick()
    row = delayed.rows.task_row(delayed.task)
    assert delayed.fires == [NOW, end + DELAY] if runs else [NOW]
    assert (row.misfires, delayed.next, delayed.marks) == (skipped, None if runs else end + 145 * DELAY, int(runs))
    assert delayed.rows.sql("SELECT * FROM schedule_catch_up") == []


def test_an_edit_moves_the_next_fire_and_counts_from_the_same_end(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    end = delayed.run()
    delayed.tick()
    for edited, expected in ((HOUR, end + HOUR), (20 * MINUTE, end + 20 * MINUTE)):
        delayed.edit(fixed_delay=edited)
        delayed.tick()
        assert delayed.next == expected
    delayed.edit(timezone="Asia/Kolkata")
    delayed.tick()
    assert delayed.next == end + 20 * MINUTE
    delayed.wait(15 * MINUTE)
    delayed.edit(fixed_delay="5m")
    delayed.tick()
    assert (delayed.fires, delayed.next) == ([NOW, delayed.clock.now()], None)


def test_an_edit_while_it_runs_counts_from_the_end_with_the_new_delay(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    delayed.edit(fixed_delay="1h")
    delayed.tick()
    assert (delayed.fires, delayed.next) == ([NOW], None)
    end = delayed.run()
    delayed.tick()
    assert delayed.next == end + HOUR


def test_an_edit_that_comes_with_the_end_counts_from_it(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    end = delayed.run()
    delayed.edit(fixed_delay="1h")
    delayed.tick()
    assert (delayed.next, delayed.marks) == (end + HOUR, 1)
    delayed.tick()
    assert (delayed.next, delayed.marks) == (end + HOUR, 0)


def test_an_edit_takes_back_a_fire_that_nobody_has_claimed(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    end = delayed.run()
    delayed.tick()
    delayed.wait(DELAY - 3 * SECOND)
    delayed.tick()
    assert delayed.fires == [NOW, end + DELAY]
    delayed.edit(fixed_delay="1h")
    delayed.tick()
    assert (delayed.fires, delayed.next) == ([NOW], end + HOUR)
    delayed.tick()
    assert (delayed.next, delayed.marks) == (end + HOUR, 0)


def test_another_trigger_and_back_again_leaves_one_chain_of_runs(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    delayed.edit(every="1d")
    delayed.tick()
    delayed.edit(fixed_delay="10m")
    delayed.tick()
    assert (delayed.fires, delayed.next) == ([NOW], None), "the first run still goes on"
    end = delayed.run()
    delayed.tick()
    assert (delayed.next, delayed.marks) == (end + DELAY, 0)


def test_a_task_that_becomes_one_fires_at_once(delayed: Delayed) -> None:
    delayed.add(fixed_delay=None, every="1d")
    delayed.tick()
    delayed.wait(MINUTE)
    delayed.edit(fixed_delay="10m")
    delayed.tick()
    assert delayed.fires == [NOW + MINUTE]


def test_a_deleted_task_is_followed_up_no_more(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    run = delayed.begin()
    tasks.remove(delayed.rows.database, ANN, "queue")
    delayed.end(run)
    delayed.tick()
    assert (delayed.next, delayed.marks) == (None, 0)


def test_it_fires_only_in_its_window(delayed: Delayed) -> None:
    delayed.add(starts_at=NOW + 4 * SECOND, ends_at=NOW + 15 * MINUTE)
    delayed.tick()
    assert delayed.fires == [NOW + 4 * SECOND]
    delayed.run()
    delayed.tick()
    delayed.wait(DELAY)
    delayed.tick()
    delayed.run()
    delayed.tick()
    assert (len(delayed.fires), delayed.next, delayed.marks) == (2, None, 0)
    document = tasks.show(delayed.rows.database, "queue")
    assert (document["next_fires"], document["remark"]) == ([], "it does not fire any more")
    delayed.edit(ends_at=NOW + HOUR)
    delayed.tick()
    assert delayed.fires[2:] == [delayed.clock.now()], "its time had passed while the window was over"


def test_it_can_have_a_jitter_which_moves_only_the_start(delayed: Delayed) -> None:
    delayed.add(jitter_seconds=300)
    delayed.tick()
    [first] = delayed.rows.statuses()
    row = delayed.rows.row(first)
    assert row.schedule_datetime == NOW < row.due_at < NOW + 5 * MINUTE


def test_a_next_fire_that_somebody_sets_while_a_run_goes_on_makes_no_second_one(delayed: Delayed) -> None:
    delayed.add(overlap_policy="allow")
    delayed.tick()
    delayed.rows.sql("UPDATE schedule_task SET next_fire_at = :now", now=written(NOW + MINUTE))
    delayed.wait(2 * MINUTE)
    delayed.tick()
    assert (delayed.fires, delayed.next, delayed.marks) == ([NOW], None, 1)
    end = delayed.run()
    delayed.tick()
    assert delayed.next == end + DELAY


def test_a_fire_that_the_database_refuses_is_followed_too(delayed: Delayed) -> None:
    delayed.add()
    delayed.rows.sql("UPDATE schedule_task SET param = '1'")
    delayed.tick()
    assert delayed.marks == 1


def test_marks_of_no_task_and_of_no_instance_are_removed(delayed: Delayed) -> None:
    delayed.add(starts_at=NOW + HOUR)
    delayed.tick()
    insert = (
        "INSERT INTO schedule_follow_up (schedule_task_id, schedule_instance_id, instance_gmt_create, what)"
        " VALUES (:task, 77, '2031-01-01 00:00:00.000000', 'fixed_delay')"
    )
    delayed.rows.sql(insert, task=delayed.task)
    delayed.rows.sql(insert.replace("77", "78"), task=4711)
    delayed.tick()
    assert (delayed.marks, delayed.next) == (0, NOW + HOUR)


WRONG = ['{"fixed_delay": 0}', '{"every": "10m"}', "[]", '{"fixed_delay": "soon"}', '"10m"']


@pytest.mark.parametrize("spec", WRONG)
def test_a_wrong_delay_fires_not_even_once(delayed: Delayed, spec: str) -> None:
    delayed.add()
    delayed.rows.sql("UPDATE schedule_task SET trigger_spec = :spec", spec=spec)
    delayed.tick()
    assert "fixed_delay" in delayed.rows.task_row(delayed.task).plan_error
    assert (delayed.fires, delayed.next) == ([], None)


def test_a_delay_that_sql_made_wrong_while_a_run_goes_on_is_said_at_once(delayed: Delayed) -> None:
    delayed.add()
    delayed.tick()
    delayed.rows.sql("UPDATE schedule_task SET trigger_spec = '[]'")
    delayed.tick()
    assert delayed.rows.task_row(delayed.task).plan_error
    delayed.rows.sql("""UPDATE schedule_task SET trigger_spec = '{"fixed_delay": 60}'""")
    delayed.tick()
    end = delayed.run()
    delayed.tick()
    assert (delayed.next, delayed.rows.task_row(delayed.task).plan_error) == (end + MINUTE, None)


@pytest.mark.parametrize("spec", WRONG)
def test_a_delay_that_sql_made_wrong_sets_its_task_aside_until_it_is_mended(delayed: Delayed, spec: str) -> None:
    delayed.add()
    delayed.tick()
    delayed.rows.sql("UPDATE schedule_task SET trigger_spec = :spec", spec=spec)
    delayed.run()
    delayed.tick()
    delayed.tick()
    assert delayed.rows.task_row(delayed.task).plan_error
    assert (delayed.next, delayed.marks) == (None, 0)
    delayed.rows.sql("""UPDATE schedule_task SET trigger_spec = '{"fixed_delay": 60}'""")
    delayed.tick()
    assert delayed.fires == [NOW, delayed.clock.now()]


def test_two_schedulers_that_follow_the_same_end_plan_one_fire(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed.add()
    delayed.tick()
    end = delayed.run()
    settings = Settings.load()
    slow, quick = (Follower(delayed.rows.database, settings) for _ in range(2))
    read = follow_ups.of_tasks
    interleaved: list[Any] = []

    def between(*args: Any) -> Any:
        found = read(*args)
        if not interleaved:
            interleaved.append("the slow one is frozen for longer than its lease")
            delayed.wait(5 * SECOND)
            quick.step()
            Materializer(delayed.rows.database, settings).step()
            assert delayed.next == end + DELAY
            delayed.wait(DELAY)
            Materializer(delayed.rows.database, settings).step()
            assert (delayed.next, delayed.marks) == (None, 1)
        return found

    monkeypatch.setattr(follow_ups, "of_tasks", between)
    slow.step()
    assert interleaved
    assert (delayed.fires, delayed.next, delayed.marks) == ([NOW, end + DELAY], None, 1)


def test_pages_of_which_nothing_has_ended_cost_a_tenth_of_the_time(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        delayed.rows.task(fixed_delay="10m", cron=None, overlap_policy="allow")
    delayed.tick()
    follower, page = Follower(delayed.rows.database, Settings.load(batch=2)), follow_ups.page

    def slow(connection: Connection, after_id: int, limit: int) -> follow_ups.Page:
        delayed.clock.advance(0.02)
        return page(connection, after_id, limit)

    monkeypatch.setattr(follow_ups, "page", slow)
    assert follower.step() == pytest.approx(0.18)


def test_a_page_of_marks_is_bounded_and_finds_what_has_ended_behind_what_runs(delayed: Delayed) -> None:
    rows = delayed.rows
    for _ in range(5):
        rows.task(fixed_delay="10m", cron=None, overlap_policy="allow")
    delayed.tick()
    last = max(rows.statuses())
    rows.sql("UPDATE schedule_instance SET status = 'canceled', gmt_completed = :now WHERE id = :last",
             now=written(NOW), last=last)  # fmt: skip
    follower = Follower(rows.database, Settings.load(batch=2))
    assert [follower.step() == 0 for _ in range(3)] == [True, True, False]
    task = rows.row(last).schedule_task_id
    assert rows.task_row(task).next_fire_at == NOW + DELAY
    assert delayed.marks == 4
