"""What people ask of instances, as functions: several at once are done all or none, each with its audit row."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.shared.control import audit, instances, replays
from rota.shared.control.actor import Actor
from rota.shared.database.constructs import written
from rota.shared.domain.errors import InvalidInput, NotFound, NotPossible
from rota.shared.domain.task_filter import TaskFilter
from rota.shared.store import newest_instances
from tests.harness.scenario import Scenario

ANN = Actor("ann", "cli")


def acts(rows: Scenario, instance_id: int) -> list[tuple[Any, ...]]:
    found = audit.listed(rows.database, 100, instance_id=instance_id)
    return [(act["action"], act["why"], act["old_values"], act["new_values"]) for act in found]


def test_documents_are_json_as_they_are_and_a_shown_one_has_its_nodes(rows: Scenario) -> None:
    worker, task = rows.worker("w"), rows.task("daily")
    run = rows.running(worker, task)
    shown = instances.show(rows.database, run.id)
    assert [node["type"] for node in shown["nodes"]] == ["REPORT_EXTRACT", "REPORT_SEND"]
    assert (shown["task_name"], shown["worker_name"], shown["status"]) == ("daily", "w", "running")
    got = instances.get(rows.database, run.id)
    more = {"nodes": shown["nodes"], "failed_attempts": [], "run_again_id": None, "chain": [], "shards": None}
    assert shown == got | more
    assert json.loads(json.dumps(shown)) == shown
    assert instances.listed(rows.database, 5, task="daily", status="running") == [got]
    with pytest.raises(NotFound, match="no task is named 'weekly'"):
        instances.listed(rows.database, 5, task="weekly")


def test_those_of_the_tasks_of_an_owner_a_group_or_a_tag_are_listed_the_newest_first(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_instances, "TASKS_IN_STATEMENT", 2)
    worker = rows.worker()
    anns = [rows.task(f"ann-{n}", owner="ann", task_group="night", tags=["a", "b"][: 1 + n % 2]) for n in range(5)]
    bobs = rows.task("bob", owner="bob", task_group="night")
    minute = timedelta(minutes=1)

    def ended(status: str, task: int, at: datetime) -> int:
        made = rows.ended(status, worker, task)
        update = "UPDATE schedule_instance SET schedule_datetime = :at WHERE id = :made"
        rows.sql(update, at=written(at), made=made)
        return made

    done = [ended("succeed", anns[n % 5], rows.start + n * minute) for n in range(15)]
    failed = [ended("failed", task, rows.start - minute) for task in (anns[0], bobs)]
    removed = ended("failed", rows.task("removed", owner="ann"), rows.start)
    running = rows.running(worker, anns[1]).id
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE name = 'removed'")

    def listed(limit: int = 100, status: str | None = None, **chosen: Any) -> list[int]:
        found = instances.listed(rows.database, limit, status=status, chosen=TaskFilter(**chosen))
        return [one["id"] for one in found]

    monkeypatch.setattr(newest_instances, "PAGE", 4)
    monkeypatch.setattr(newest_instances, "MANY_TASKS", 4)
    assert listed(status="succeed", owner="ann") == done[::-1], "by their ids"
    assert listed(4, owner="ann") == [running, failed[0], *done[:-3:-1]]
    monkeypatch.setattr(newest_instances, "MANY_TASKS", 1000)
    assert listed(status="succeed", owner="ann") == done[::-1]
    assert listed(4, "succeed", owner="ann") == done[:-5:-1]
    assert set(listed(owner="ann")) == {*done, failed[0], running}
    assert listed(status="failed", owner="ann") == failed[:1]
    assert listed(status="failed", group="night") == failed[::-1]
    assert listed(status="running", group="night") == [running]
    assert listed(status="succeed", tags=["b"]) == [one for n, one in enumerate(done) if n % 5 % 2][::-1]
    assert listed(owner="nobody") == []
    assert removed not in listed(owner="ann")
    with pytest.raises(InvalidInput, match=r"tags 'b': give a list of tags, \['b'\]"):
        listed(tags="b")


def test_what_waits_is_canceled_and_what_runs_is_asked_and_both_are_recorded(rows: Scenario) -> None:
    worker = rows.worker()
    waiting, running = rows.assigned(worker), rows.running(worker).id
    both = instances.cancel(rows.database, ANN, [waiting, running, waiting], "the source is down")
    assert both == [
        {"id": waiting, "canceled": True, "asked": False},
        {"id": running, "canceled": False, "asked": True},
    ]
    [(action, why, old, new)] = acts(rows, waiting)
    assert (action, why) == ("instance.cancel", "the source is down")
    assert (old["status"], new["status"]) == ("assigned", "canceled")
    [(_, _, old, new)] = acts(rows, running)
    assert (old["gmt_cancel_requested"], new["gmt_cancel_requested"][-1]) == (None, "Z")
    assert "status" not in new


def test_a_second_request_to_stop_what_runs_changes_nothing_and_is_not_recorded(rows: Scenario) -> None:
    running = rows.running(rows.worker()).id
    for _ in range(2):
        instances.cancel(rows.database, ANN, [running])
    assert len(acts(rows, running)) == 1


def test_a_replay_is_recorded_for_the_new_instance_and_names_the_old_one(rows: Scenario) -> None:
    task = rows.task("daily")
    old = [rows.ended("failed", task=task), rows.ended("succeed", task=task)]
    new = replays.replay(rows.database, ANN, old, "once more")
    assert [run["origin"] for run in new] == ["replay", "replay"]
    for before, run in zip(old, new, strict=True):
        [(action, why, values, made)] = acts(rows, run["id"])
        assert (action, why, values) == ("instance.replay", "once more", None)
        assert made == {
            "replays": before,
            "schedule_datetime": instances.get(rows.database, before)["schedule_datetime"],
        }
    assert len(audit.listed(rows.database, 100, task="daily")) == 2


def test_of_several_all_are_done_and_recorded_or_none(rows: Scenario) -> None:
    waiting, ended = rows.pending(), rows.ended("failed")
    before = rows.statuses()
    with pytest.raises(NotPossible, match=f"instance {ended} has ended already"):
        instances.cancel(rows.database, ANN, [waiting, ended])
    with pytest.raises(NotPossible, match=f"instance {waiting} is pending, not ended"):
        replays.replay(rows.database, ANN, [ended, waiting])
    with pytest.raises(NotFound):
        instances.cancel(rows.database, ANN, [waiting, 77_777])
    assert rows.statuses() == before
    assert audit.listed(rows.database, 100) == []
