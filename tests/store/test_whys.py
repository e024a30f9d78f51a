"""What became of a fire is told from the rows: on SQLite and on MariaDB."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import limits, steering, whys
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain.deciding import known_kinds
from rota.shared.domain.errors import InvalidInput, NotFound
from rota.shared.settings import Settings
from rota.shared.store import catch_ups, fire_rows, fires, instances, pauses, schedulers, skips
from rota.shared.store.fires import Fire
from tests.harness.scenario import Scenario, succeeded

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def rows(database: Database) -> Scenario:
    made = Scenario(database)
    at_work(made)
    return made


def at_work(rows: Scenario) -> int:
    """A scheduler that is at work; it does nothing by itself."""
    one = schedulers.SchedulerDeclaration("s", "host", 1, "0", 3600, known_kinds())
    return rows.database.write(lambda c: schedulers.register(c, one))


def told(rows: Scenario, task: int, at: datetime | None = None) -> dict[str, Any]:
    name = rows.task_row(task).name
    document = whys.why(rows.database, name, None if at is None else f"{at.isoformat()}Z").document
    json.dumps(document)
    return document


def answer(rows: Scenario, task: int, at: datetime | None = None) -> tuple[str, str]:
    found = told(rows, task, at)
    return found["outcome"], found["why"]


def minute(rows: Scenario, ago: int = 0) -> datetime:
    """A full minute, at which a task of the scenario fires."""
    return rows.start.replace(second=0) - ago * MINUTE


def old_task(rows: Scenario, **fields: Any) -> int:
    """A task of every minute that was made a day ago, and whose plan stands at the next minute."""
    task = rows.planned_task(minute(rows, -1), **fields)
    yesterday = (rows.start - timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
    rows.sql("UPDATE schedule_task SET gmt_create = :at WHERE id = :id", at=yesterday, id=task)
    return task


def test_a_fire_that_ran_is_told_with_its_worker_and_how_late_it_was(rows: Scenario) -> None:
    worker, task, fire = rows.worker("anna"), old_task(rows), minute(rows, 5)
    run = rows.running(worker, task, fire)
    rows.report(worker, succeeded(run))
    started = (fire + 2 * SECOND).strftime("%Y-%m-%d %H:%M:%S.%f")
    rows.sql("UPDATE schedule_instance SET gmt_started = :at WHERE id = :id", at=started, id=run.id)
    outcome, why = answer(rows, task, fire)
    [instance] = told(rows, task, fire)["instances"]
    assert (outcome, instance["status"], instance["worker"], instance["late_seconds"]) == ("ran", "succeed", "anna", 2)
    assert why.startswith(f"instance {run.id} succeeded on worker anna; it started 2 s late and took")


def test_the_start_of_a_later_attempt_is_not_told_as_that_of_the_fire(rows: Scenario) -> None:
    worker, task, fire = rows.worker("anna"), old_task(rows), minute(rows, 5)
    rows.report(worker, succeeded(rows.running(worker, task, fire)))
    started = (fire + 90 * SECOND).strftime("%Y-%m-%d %H:%M:%S.%f")
    rows.sql("UPDATE schedule_instance SET gmt_started = :at, attempt = 2, worker_losses = 1", at=started)
    _, why = answer(rows, task, fire)
    assert "succeeded on worker anna; its attempt 2 started 1 min 30 s late and took" in why
    assert told(rows, task, fire)["instances"][0]["attempt"] == 2


def test_a_run_that_a_handler_asked_for_is_told_of_a_task_that_runs_only_when_asked(rows: Scenario) -> None:
    task = rows.task(cron=None)
    first, second = (rows.by_sql(task, minute(rows, at)) for at in (1, 2))
    rows.sql("UPDATE schedule_instance SET follows_id = :first WHERE id = :second", first=first, second=second)
    rows.sql("UPDATE schedule_instance SET status = 'canceled', gmt_completed = gmt_create WHERE id = :id", id=first)
    due = minute(rows, 2).isoformat(timespec="microseconds")
    remark = told(rows, task)["remark"]
    assert remark.startswith(
        f"the task runs only when asked; a handler has asked for instance {second}, which is due at "
    )
    assert due[:19] in remark


def test_a_fire_that_failed_tells_why_and_its_replay_comes_first(rows: Scenario) -> None:
    task, fire = old_task(rows), minute(rows, 5)
    first = rows.pending(task, fire)
    rows.sql("UPDATE schedule_instance SET status = 'failed', reason = 'the disk is full' WHERE id = :id", id=first)
    assert answer(rows, task, fire)[1].endswith("the disk is full")
    replay = rows.by_sql(task, fire)
    found = told(rows, task, fire)
    assert (found["outcome"], [one["id"] for one in found["instances"]]) == ("waiting", [replay, first])


def test_what_runs_and_what_waits_for_it_name_each_other(rows: Scenario) -> None:
    worker, task = rows.worker("anna"), old_task(rows, overlap_policy="queue")
    running, waiting = rows.running(worker, task, minute(rows, 5)), rows.pending(task, minute(rows, 4))
    outcome, why = answer(rows, task, minute(rows, 5))
    assert (outcome, f"instance {running.id} runs on worker anna" in why) == ("running", True)
    outcome, why = answer(rows, task, minute(rows, 4))
    assert (outcome, f"waits for instance {running.id}, which runs" in why) == ("waiting", True)
    assert str(waiting) in why


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("status = 'off'", "its task is off"),
        ("priority = 3", "waits: no live worker can run REPORT"),
    ],
)
def test_what_waits_says_for_what(rows: Scenario, change: str, said: str) -> None:
    task, fire = old_task(rows), minute(rows, 4)
    instance = rows.pending(task, fire)
    rows.sql("UPDATE schedule_instance SET reason = 'no live worker can run REPORT' WHERE id = :id", id=instance)
    rows.sql(f"UPDATE schedule_task SET {change}")
    outcome, why = answer(rows, task, fire)
    assert (outcome, said in why) == ("waiting", True), why


def test_a_fire_on_a_worker_that_is_dead_or_has_it_in_its_queue_says_so(rows: Scenario) -> None:
    worker, task, fire = rows.worker("anna"), old_task(rows), minute(rows, 4)
    rows.assigned(worker, task, fire)
    assert "waits on worker anna for a slot" in answer(rows, task, fire)[1]
    rows.bury(worker)
    assert "it was given to worker anna, which is not live" in answer(rows, task, fire)[1]


@pytest.mark.parametrize(
    ("most", "said"), [(1, "waits for its limit 'warehouse': at most 1 at once"), (2, "waits on worker")]
)
def test_what_waits_for_a_limit_says_so_though_a_worker_has_it(rows: Scenario, most: int, said: str) -> None:
    limits.add(rows.database, Actor("ann", "cli"), {"name": "warehouse", "max_running": most})
    worker = rows.worker("anna")
    task = old_task(rows, overlap_policy="allow", limit_name="warehouse")
    rows.running(worker, task, minute(rows, 5))
    rows.assigned(worker, task, minute(rows, 4))
    assert said in answer(rows, task, minute(rows, 4))[1]
    rows.sql("UPDATE schedule_task SET limit_name = 'no such'")
    assert "there is no limit 'no such'" in answer(rows, task, minute(rows, 4))[1]


def test_what_waits_while_as_many_run_as_may_says_so_though_a_worker_has_it(rows: Scenario) -> None:
    worker, task = rows.worker("anna"), old_task(rows, overlap_policy="allow", max_instances=1)
    rows.running(worker, task, minute(rows, 5))
    rows.assigned(worker, task, minute(rows, 4))
    why = answer(rows, task, minute(rows, 4))[1]
    assert "waits for its turn: 1 of its task run, and max_instances is 1" in why


def test_a_retry_says_when_it_is_due(rows: Scenario) -> None:
    task, fire = old_task(rows), minute(rows, 4)
    later = (rows.now() + 5 * MINUTE).strftime("%Y-%m-%d %H:%M:%S.%f")
    instance = rows.pending(task, fire, attempt=1)
    rows.sql("UPDATE schedule_instance SET failures = 1, due_at = :at WHERE id = :id", at=later, id=instance)
    outcome, why = answer(rows, task, fire)
    assert (outcome, "is tried again in" in why, why.endswith("after 1 failure")) == ("waiting", True, True), why


def test_without_a_scheduler_what_waits_and_what_is_not_written_wait_for_one(rows: Scenario) -> None:
    task, late = old_task(rows), old_task(rows)
    rows.pending(task, minute(rows, 4))
    rows.sql("UPDATE schedule_task SET next_fire_at = :at WHERE id = :id", at=str(minute(rows, 1)) + ".000000", id=late)
    assert answer(rows, late, minute(rows, 1)) == ("waiting", "the scheduler has not written it yet")
    rows.sql("DELETE FROM schedule_scheduler_node")
    for one, fire in ((task, minute(rows, 4)), (late, minute(rows, 1))):
        outcome, why = answer(rows, one, fire)
        assert (outcome, "no scheduler is at work" in why) == ("waiting", True), why
    assert "no scheduler is at work" in told(rows, task)["remark"]


def test_a_scheduler_that_is_paused_or_does_not_know_the_kind_writes_nothing(rows: Scenario) -> None:
    task = old_task(rows)
    for change, said in (
        ("state = 'paused'", "every scheduler that is at work is paused"),
        ("state = 'active', kinds = '{}'", "no scheduler at work knows trigger_kind 'cron'"),
    ):
        rows.sql(f"UPDATE schedule_scheduler_node SET {change}")
        assert told(rows, task)["remark"] == said


def test_a_pause_of_all_scheduling_is_named_with_its_reason_and_who_began_it(rows: Scenario) -> None:
    task = old_task(rows)
    rows.sql("UPDATE schedule_task SET next_fire_at = :at", at=f"{minute(rows, 1)}.000000")
    rows.database.write(lambda c: pauses.begin(c, "the night shift", "ann"))
    said = "all scheduling is paused by ann: the night shift; rota scheduler resume ends that"
    assert answer(rows, task, minute(rows, 1)) == ("waiting", f"it is not written yet: {said}")
    assert told(rows, task)["remark"] == said


@pytest.mark.parametrize("status", ["off", "on"])
def test_fires_that_were_missed_or_held_back_tell_the_reason_of_their_stretch(rows: Scenario, status: str) -> None:
    task = rows.planned_task(minute(rows, 60), status=status)
    rows.sql("UPDATE schedule_task SET gmt_create = '2020-01-01 00:00:00.000000'")
    Materializer(rows.database, Settings.load()).step()
    outcome, why = answer(rows, task, minute(rows, 30))
    wanted = "its task was off" if status == "off" else "misfire_policy is fire_once"
    assert (outcome, wanted in why) == ("skipped", True), why
    assert answer(rows, task, minute(rows, 30) + SECOND)[0] == "no_fire"


def test_a_missed_fire_that_is_still_to_run_says_so(rows: Scenario) -> None:
    task = rows.planned_task(minute(rows, 60), misfire_policy="fire_all")
    Materializer(rows.database, Settings.load()).step()
    assert answer(rows, task, minute(rows, 30))[0] == "catching_up"


def test_a_fire_that_was_canceled_before_it_started_was_skipped(rows: Scenario) -> None:
    task, fire = old_task(rows), minute(rows, 4)
    instance = rows.pending(task, fire)
    said = "skipped: instance 3 was running when it was due"
    values = {"why": said, "id": instance}
    rows.sql("UPDATE schedule_instance SET status = 'canceled', reason = :why WHERE id = :id", **values)
    assert answer(rows, task, fire) == ("skipped", f"instance {instance} was canceled before it started: {said}")


def test_a_time_that_is_no_fire_says_between_which_it_lies(rows: Scenario) -> None:
    task = old_task(rows)
    found = told(rows, task, minute(rows, 5) + 30 * SECOND)
    assert (found["outcome"], found["why"]) == ("no_fire", "the task does not fire at that time")
    around = [found[name]["utc"] for name in ("before", "after")]
    assert around == [f"{minute(rows, ago).isoformat()}Z" for ago in (5, 4)]


def test_what_no_row_tells_is_not_guessed(rows: Scenario) -> None:
    task = old_task(rows)
    assert answer(rows, task, minute(rows, 5))[0] == "unknown"
    assert answer(rows, task, minute(rows, 5000)) == ("no_fire", "the task was made later")


def test_a_fire_to_come_is_not_due_yet(rows: Scenario) -> None:
    task, ahead = old_task(rows), minute(rows, -30)
    assert answer(rows, task, ahead) == ("not_due_yet", "the scheduler writes it in time")
    rows.sql("UPDATE schedule_task SET status = 'off'")
    assert "its task is off" in answer(rows, task, ahead)[1]
    assert told(rows, task)["remark"] == "the task is off"
    rows.sql("UPDATE schedule_task SET plan_error = 'a bad zone'")
    assert "set its task aside: a bad zone" in answer(rows, task, ahead)[1]


def test_without_a_time_it_is_the_newest_fire_that_was_due(rows: Scenario) -> None:
    task, asked, fresh = old_task(rows), rows.task(cron=None), rows.task(cron="0 0 1 1 *")
    assert told(rows, task)["fire"]["utc"] in {f"{minute(rows, ago).isoformat()}Z" for ago in (0, -1)}
    by_hand = rows.by_sql(asked, minute(rows, 7))
    found = told(rows, asked)
    assert [one["id"] for one in found["instances"]] == [by_hand]
    assert found["remark"] == "the task runs only when asked"
    assert told(rows, fresh)["fire"] is None


def test_the_next_fire_is_the_one_that_is_written_or_planned(rows: Scenario) -> None:
    task = old_task(rows)
    soon = minute(rows, -1)
    assert told(rows, task)["next_fire"]["utc"] == f"{soon.isoformat()}Z"
    rows.pending(task, soon)
    rows.sql("UPDATE schedule_task SET next_fire_at = :at", at=f"{minute(rows, -2)}.000000")
    assert told(rows, task)["next_fire"]["utc"] == f"{soon.isoformat()}Z"


@pytest.mark.parametrize("minutes", [-20, 40])
def test_a_fire_that_was_set_to_another_time_is_the_next_at_that_time(rows: Scenario, minutes: int) -> None:
    own = minute(rows, -60)
    task, at = rows.planned_task(own, starts_at=own), own + minutes * MINUTE
    steering.set_at(rows.database, Actor("ann", "cli"), rows.task_row(task).name, f"{at.isoformat()}Z")
    assert told(rows, task)["next_fire"]["utc"] == f"{at.isoformat()}Z"


def test_a_fire_that_was_set_to_a_later_time_is_the_next_also_when_its_own_time_has_passed(rows: Scenario) -> None:
    task, later = old_task(rows), rows.now().replace(microsecond=0) + timedelta(seconds=50)
    rows.pending(task, minute(rows, 30), due_at=later)
    for ago in range(30):
        skipped = rows.pending(task, minute(rows, ago))
        rows.sql("UPDATE schedule_instance SET status = 'canceled' WHERE id = :id", id=skipped)
    rows.sql("UPDATE schedule_task SET next_fire_at = :at", at=f"{minute(rows, -2)}.000000")
    assert told(rows, task)["next_fire"]["utc"] == f"{later.isoformat()}Z"


def test_a_retry_or_a_run_that_somebody_asked_for_is_no_next_fire(rows: Scenario) -> None:
    task, later = old_task(rows), rows.now() + timedelta(seconds=5)
    rows.pending(task, minute(rows, 1), due_at=later, attempt=1)
    rows.pending(task, minute(rows, 2), due_at=later, origin="manual")
    assert told(rows, task)["next_fire"]["utc"] == f"{minute(rows, -1).isoformat()}Z"


def test_without_a_time_a_fire_to_come_that_was_skipped_is_not_told(rows: Scenario) -> None:
    task = rows.planned_task(minute(rows, -60), starts_at=minute(rows, -60))
    steering.skip(rows.database, Actor("ann", "cli"), rows.task_row(task).name)
    assert told(rows, task)["fire"] is None


def test_who_does_not_exist_and_what_is_no_time_are_refused(rows: Scenario) -> None:
    rows.task("daily")
    with pytest.raises(NotFound, match="no task is named 'x'"):
        whys.why(rows.database, "x")
    with pytest.raises(InvalidInput, match="is not a time"):
        whys.why(rows.database, "daily", "noon")


def test_a_time_without_an_offset_is_in_the_zone_of_the_task(rows: Scenario) -> None:
    rows.task("daily", cron="0 9 * * *", timezone="Asia/Shanghai")
    found = whys.why(rows.database, "daily", "2040-01-01T09:00").document
    assert (found["fire"]["utc"], found["outcome"]) == ("2040-01-01T01:00:00Z", "not_due_yet")


def test_what_sql_wrote_into_a_task_or_a_run_is_told_and_no_error(rows: Scenario) -> None:
    task, fire = old_task(rows), minute(rows, 4)
    rows.pending(task, fire)
    for change in ("cron = '61 * * * *'", "timezone = 'Nowhere'", "trigger_kind = 'interval'"):
        rows.sql(f"UPDATE schedule_task SET {change}")
        for at in (None, fire, minute(rows, 3), minute(rows, -3)):
            assert told(rows, task, at)["task"] == rows.task_row(task).name


def test_it_reads_a_few_rows_however_long_the_history_is(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task, begin = old_task(rows), minute(rows)
    fired = [Fire(task, begin - at * SECOND, 5, None, None, ()) for at in range(3000)]
    rows.database.write(lambda c: fires.materialize(c, fired))
    stretches = [f"({task}, 'off', :at, :at - INTERVAL {n} SECOND, 1)" for n in range(500)]
    rows.sql(
        "INSERT INTO schedule_skip (schedule_task_id, reason, first_fire, last_fire, fires) VALUES "
        + ", ".join(stretches),
        at=str(begin),
    )

    def read(connection: Connection) -> int:
        def counted() -> int:
            return sum(int(row[1]) for row in connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'")))

        before = counted()
        assert fire_rows.newest_time(connection, task, begin) == begin
        fire_rows.next_written(connection, task, begin - 1500 * SECOND)
        fire_rows.holders(connection, task)
        instances.of_fire(connection, task, begin - 900 * SECOND, fire_rows.LOOKED_AT)
        skips.newest(connection, task, fire_rows.LOOKED_AT)
        skips.covering(connection, task, begin - 300 * SECOND)
        catch_ups.covering(connection, task, begin)
        return counted() - before

    assert rows.database.read(read) < 300
