"""The next fire of a task, skipped or set by hand: exactly that fire, whatever schedulers, edits and outages do."""

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import audit, schedulers, steering, tasks
from rota.shared.control.actor import Actor
from rota.shared.control.acts import perform
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, NotFound, NotPossible
from rota.shared.domain.states import TaskStatus
from rota.shared.settings import Settings
from rota.shared.store import skips
from tests.harness.scenario import Scenario, ended

ANN, BOB = Actor("ann", "cli"), Actor("bob", "cli")
EACH = timedelta(seconds=30)


@pytest.fixture(autouse=True)
def fresh_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)


def step(rows: Scenario, lookahead: float = 5) -> None:
    settings = Settings.load(lookahead_seconds=lookahead)
    Materializer(rows.database, settings).step()
    Assigner(rows.database, settings).step()


def half_minutely(rows: Scenario, **fields: Any) -> tuple[int, list[datetime]]:
    """A task of every 30 s, planned; and its next fires, none within the next 30 s."""
    first = rows.now().replace(second=0, microsecond=0) + 4 * EACH
    task = rows.planned_task(first, name="each", starts_at=first, cron="*/30 * * * * *", cron_seconds=True, **fields)
    return task, [first + n * EACH for n in range(6)]


def fires(rows: Scenario, task: int) -> dict[datetime, str]:
    """What the scheduler has written, or a person: the status of each fire."""
    found = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    return {row.schedule_datetime: row.status for row in (rows.row(one.id) for one in found)}


def shown(rows: Scenario) -> list[str]:
    """When the task fires next, as it is shown."""
    found = steering.next_fires(rows.database, "each")["next_fires"]
    return [one["due"]["utc"] for one in found if one["status"] != "canceled"]


def utc(*moments: datetime) -> list[str]:
    return [moment.isoformat() + "Z" for moment in moments]


def counted(rows: Scenario, task: int) -> list[tuple[str, datetime, datetime, int]]:
    found = rows.database.read(lambda c: skips.newest(c, task, 10))
    return [(row.reason, row.first_fire, row.last_fire, row.fires) for row in found]


def far(moment: datetime, rows: Scenario) -> float:
    """A look-ahead that reaches up to a moment."""
    return (moment - rows.now()).total_seconds() + 1


def test_a_fire_that_is_skipped_does_not_run_and_is_counted(rows: Scenario) -> None:
    rows.worker()
    task, (first, second, *_) = half_minutely(rows)
    done = steering.skip(rows.database, ANN, "each", why="the source is down").document
    assert (done["changed"], done["fire"]["utc"]) == (True, first.isoformat() + "Z")
    assert rows.task_row(task).next_fire_at == second
    assert shown(rows)[0] == second.isoformat() + "Z"
    assert tasks.listed(rows.database, 9)[0]["next_fire"]["utc"] == second.isoformat() + "Z"
    step(rows, far(second, rows))
    assert fires(rows, task) == {first: "canceled", second: "assigned"}
    assert counted(rows, task) == [("by_hand", first, first, 1)]
    [act] = audit.listed(rows.database, 9)
    assert (act["action"], act["why"], act["object_name"]) == ("task.skip", "the source is down", "each")
    assert rows.broken() == {}
    assert tasks.show(rows.database, "each")["last_run"] is None


def test_a_fire_that_is_written_ahead_is_skipped_and_one_that_has_begun_is_not(rows: Scenario) -> None:
    worker = rows.worker()
    task, (first, second, *_) = half_minutely(rows)
    step(rows, far(second, rows))
    assert fires(rows, task) == {first: "assigned", second: "assigned"}
    begun = next(i for i in rows.statuses() if rows.row(i).schedule_datetime == first)
    rows.sql("UPDATE schedule_instance SET due_at = gmt_create WHERE id = :id", id=begun)
    [run] = rows.claim(worker, begun).runs
    steering.skip(rows.database, ANN, "each")
    assert fires(rows, task) == {first: "running", second: "canceled"}
    assert counted(rows, task) == [("by_hand", second, second, 1)]
    assert rows.report(worker, ended(run)) == set()
    assert rows.broken() == {}


def test_each_further_skip_skips_one_more(rows: Scenario) -> None:
    task, (first, second, third, *_) = half_minutely(rows)
    for _ in range(2):
        assert steering.skip(rows.database, ANN, "each").document["changed"]
    step(rows, far(third, rows))
    assert fires(rows, task) == {first: "canceled", second: "canceled", third: "pending"}


def test_two_people_who_skip_the_same_fire_skip_one(rows: Scenario) -> None:
    task, (first, *_) = half_minutely(rows)
    for actor, changed in ((ANN, True), (BOB, False)):
        done = steering.skip(rows.database, actor, "each", fire=first.isoformat() + "Z").document
        assert (done["changed"], done["fire"]["utc"]) == (changed, first.isoformat() + "Z")
    assert fires(rows, task) == {first: "canceled"}
    assert len(audit.listed(rows.database, 9)) == 1
    assert [one[3] for one in counted(rows, task)] == [1]


def test_two_who_skip_at_the_same_moment_without_a_time_skip_one(
    rows: Scenario, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the same next fire before either writes."""
    task, (first, *_) = half_minutely(rows)
    both_have_read = threading.Barrier(2)

    def met(*given: Any) -> Any:
        both_have_read.wait(10)
        return perform(*given)

    monkeypatch.setattr("rota.shared.control.steering.perform", met)
    done: list[bool] = []

    def skip(actor: Actor) -> None:
        database = Database(rows.database.url.render_as_string(hide_password=False))
        done.append(steering.skip(database, actor, "each").document["changed"])
        database.close()

    people = [threading.Thread(target=skip, args=(actor,)) for actor in (ANN, BOB)]
    for one in people:
        one.start()
    for one in people:
        one.join(20)
    assert sorted(done) == [False, True]
    assert fires(rows, task) == {first: "canceled"}


def test_another_fire_than_the_next_is_refused_and_nothing_is_changed(rows: Scenario) -> None:
    task, (_, second, *_) = half_minutely(rows)
    with pytest.raises(NotPossible, match=r"that has not begun is .*; nothing was changed"):
        steering.skip(rows.database, ANN, "each", fire=second.isoformat() + "Z")
    assert (fires(rows, task), audit.listed(rows.database, 9)) == ({}, [])


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("spans", [-1, 0.5, 3.5], ids=["earlier", "later", "behind others"])
def test_a_fire_that_is_set_runs_at_that_time_as_itself_and_the_plan_goes_on_after_it(
    rows: Scenario, spans: float, *, is_written: bool
) -> None:
    rows.worker()
    task, moments = half_minutely(rows, overlap_policy="allow")
    first, last = moments[0], moments[5]
    if is_written:
        step(rows, far(first, rows))
    at = max(first + spans * EACH, rows.now().replace(microsecond=0) + timedelta(seconds=20))
    steering.set_at(rows.database, ANN, "each", at.isoformat() + "Z")
    later = [moment for moment in moments if moment > max(at, first)]
    assert shown(rows)[:3] == utc(at, *later[:2])
    step(rows, far(last, rows))
    between = [moment for moment in moments[1:] if moment <= at]
    assert fires(rows, task) == {
        first: "assigned", **dict.fromkeys(between, "canceled"), **dict.fromkeys(later, "assigned")
    }  # fmt: skip
    [moved] = [rows.row(i) for i in rows.statuses() if rows.row(i).schedule_datetime == first]
    assert (moved.due_at, moved.run_number, moved.origin) == (at, 0, "cron")
    assert counted(rows, task) == ([("by_hand", between[0], between[-1], len(between))] if between else [])
    assert rows.broken() == {}


def test_what_was_set_or_skipped_survives_an_edit_and_off_and_on(rows: Scenario) -> None:
    rows.worker()
    task, (first, second, third, *_) = half_minutely(rows)
    steering.skip(rows.database, ANN, "each")
    at = second + timedelta(seconds=7)
    steering.set_at(rows.database, ANN, "each", at.isoformat() + "Z")
    tasks.edit(rows.database, ANN, "each", {"cron": "0,30 * * * * *", "starts_at": None})
    tasks.switch(rows.database, ANN, ["each"], TaskStatus.OFF)
    step(rows)
    tasks.switch(rows.database, ANN, ["each"], TaskStatus.ON)
    step(rows)
    assert utc(at, third) == [one for one in shown(rows) if one > first.isoformat()][:2]
    step(rows, far(third, rows))
    found = fires(rows, task)
    assert {moment: found[moment] for moment in (first, second, third)} == {
        first: "canceled", second: "assigned", third: "assigned"
    }  # fmt: skip


def test_what_was_set_survives_a_pause(rows: Scenario) -> None:
    rows.worker()
    task, (first, second, *_) = half_minutely(rows)
    at = first + timedelta(seconds=7)
    steering.set_at(rows.database, ANN, "each", at.isoformat() + "Z")
    step(rows, far(second, rows))
    schedulers.pause(rows.database, ANN)
    step(rows)
    step(rows)
    assert fires(rows, task) == {first: "pending"}
    schedulers.resume(rows.database, ANN)
    step(rows, far(second, rows))
    assert fires(rows, task) == {first: "assigned", second: "assigned"}


def missed_hourly(rows: Scenario, **fields: Any) -> tuple[int, list[datetime]]:
    """An hourly task all of whose four fires were missed, the newest half an hour ago."""
    first = rows.now().replace(microsecond=0) - timedelta(hours=3, minutes=30)
    task = rows.planned_task(first, name="each", cron=None, every=3600, starts_at=first, **fields)
    return task, [first + n * timedelta(hours=1) for n in range(4)]


def skip_by_hand(rows: Scenario, task: int, *moments: datetime) -> None:
    for moment in moments:
        rows.sql(
            "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at, status, run_number, origin,"
            " creator) VALUES (:task, :at, :at, 'canceled', 0, 'cron', 'ann')",
            task=task, at=f"{moment:%F %T.%f}",
        )  # fmt: skip


def test_of_missed_fires_the_newest_runs_that_nobody_has_skipped(rows: Scenario) -> None:
    rows.worker()
    task, (first, second, third, newest) = missed_hourly(rows)
    skip_by_hand(rows, task, third, newest)
    step(rows)
    assert fires(rows, task) == {second: "assigned", third: "canceled", newest: "canceled"}
    assert counted(rows, task) == [("fire_once", first, first, 1)]
    assert rows.task_row(task).next_fire_at == newest + timedelta(hours=1)


def test_where_each_missed_fire_was_skipped_none_runs(rows: Scenario) -> None:
    rows.worker()
    task, missed = missed_hourly(rows)
    skip_by_hand(rows, task, *missed)
    step(rows)
    assert fires(rows, task) == dict.fromkeys(missed, "canceled")
    assert counted(rows, task) == []
    assert rows.task_row(task).next_fire_at == missed[-1] + timedelta(hours=1)


def test_a_fire_that_was_set_can_be_set_again_and_skipped(rows: Scenario) -> None:
    task, (first, second, *_) = half_minutely(rows)
    for seconds in (7, 9):
        at = first + timedelta(seconds=seconds)
        steering.set_at(rows.database, ANN, "each", at.isoformat() + "Z")
        assert shown(rows)[:2] == utc(at, second)
    steering.skip(rows.database, ANN, "each")
    assert (fires(rows, task), shown(rows)[0]) == ({first: "canceled"}, second.isoformat() + "Z")


def test_while_it_is_off_a_fire_that_was_set_does_not_run(rows: Scenario) -> None:
    rows.worker()
    task, (first, *_) = half_minutely(rows)
    steering.set_at(rows.database, ANN, "each", (first + timedelta(seconds=7)).isoformat() + "Z")
    rows.sql("UPDATE schedule_instance SET due_at = gmt_create")
    tasks.switch(rows.database, ANN, ["each"], TaskStatus.OFF)
    step(rows)
    assert fires(rows, task) == {first: "canceled"}


def test_what_cannot_be_is_refused_in_a_sentence_and_nothing_is_changed(rows: Scenario) -> None:
    rows.task("asked", cron=None)
    task, (first, *_) = half_minutely(rows)
    refused = [
        ("asked", {"at": "2031-01-01T00:00"}, NotPossible, "'asked' has no next fire"),
        ("nobody", {"at": "2031-01-01T00:00"}, NotFound, "nobody"),
        ("each", {"at": "2020-01-01T00:00"}, InvalidInput, "it has passed"),
        ("each", {"at": "soon"}, InvalidInput, "'soon' is not a time"),
        ("each", {"at": "2031-01-01T00:00"}, InvalidInput, "more than 100 fires"),
        ("each", {"at": (first + EACH).isoformat(), "fire": "2031-01-01T00:00"}, NotPossible, "not begun is"),
    ]
    for name, given, error, words in refused:
        with pytest.raises(error, match=words):
            steering.set_at(rows.database, ANN, name, **given)
    with pytest.raises(NotPossible, match="no next fire"):
        steering.skip(rows.database, ANN, "asked")
    assert (fires(rows, task), audit.listed(rows.database, 9)) == ({}, [])


def test_a_scheduler_that_decided_before_writes_nothing_of_a_fire_that_was_skipped(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.worker()
    task, (first, second, *_) = half_minutely(rows)
    settings = Settings.load(lookahead_seconds=far(second, rows))
    materializer = Materializer(rows.database, settings)
    decide = materializer._decide

    def late(*given: Any, **more: Any) -> Any:
        decided = decide(*given, **more)
        steering.skip(rows.database, ANN, "each")
        return decided

    monkeypatch.setattr(materializer, "_decide", late)
    materializer.step()
    monkeypatch.undo()
    step(rows, far(second, rows))
    assert fires(rows, task) == {first: "canceled", second: "assigned"}
