"""Replays: of many by a filter, each once; from a node on, with the results before it; and never over a newer run."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.control import replays
from rota.shared.control.actor import Actor
from rota.shared.control.replays import Again, Replayed, ReplayFilter
from rota.shared.database.transactions import opened
from rota.shared.domain.errors import InvalidInput, InvalidParam, NotFound, NotPossible
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.task_filter import TaskFilter
from rota.shared.settings import Settings
from rota.shared.store import instances, params, reports
from rota.shared.store import replays as store
from rota.shared.store.runs import Run
from rota.shared.store.tables import schedule_instance, schedule_task_node
from rota.worker_service.running import endings
from tests.harness.scenario import Scenario, ended, stepped, succeeded, to_retry

ANN = Actor("ann", "cli")
FAILED = ReplayFilter()
MINUTE = timedelta(minutes=1)


def failed(rows: Scenario, task: int, times: list[datetime], **columns: Any) -> list[int]:
    """Fires of a task that have failed."""
    values = {
        "schedule_task_id": task, "status": "failed", "run_number": 0, "origin": "cron", "attempt": 1,
        "gmt_completed": rows.start, "gmt_started": rows.start, **columns,
    }  # fmt: skip
    made = [{**values, "schedule_datetime": at, "due_at": at} for at in times]
    rows.database.write(lambda c: c.execute(insert(schedule_instance), made))
    its = select(schedule_instance.c.id).where(schedule_instance.c.schedule_task_id == task)
    return rows.database.read(lambda c: sorted(c.scalars(its)))


def minutes(rows: Scenario, number: int) -> list[datetime]:
    """Times that no fire of the scenario has."""
    return [rows.start - MINUTE * n - timedelta(seconds=30) for n in range(number, 0, -1)]


def replayed(rows: Scenario) -> Counter[int]:
    """How often each instance was replayed."""
    column = schedule_instance.c.replay_of
    return Counter(rows.database.read(lambda c: c.scalars(select(column).where(column.is_not(None))).all()))


def everything(rows: Scenario, chosen: ReplayFilter = FAILED, **given: Any) -> Replayed:
    found = replays.find(rows.database, chosen)
    return replays.replay_found(rows.database, ANN, chosen, found.last, **given)


def failed_at_the_second(rows: Scenario, worker: int, task: int | None = None) -> Run:
    """A run whose first node has the result {"rows": 42}, and whose second failed."""
    run = rows.running(worker, task)
    assert rows.report(worker, stepped(run)) == set()
    end = ended(run, InstanceStatus.FAILED)
    assert rows.report(worker, replace(end, nodes=end.nodes[1:])) == set()
    return run


# Many


def test_a_filter_finds_the_newest_runs_that_ended_so_of_a_task_in_a_time(rows: Scenario) -> None:
    task = rows.task("daily", timezone="Asia/Shanghai")
    times = minutes(rows, 4)
    first, second, third, fourth = failed(rows, task, times)
    other = failed(rows, rows.task("other"), times[:1])
    rows.ended("succeed", task=task)
    canceled = rows.ended("canceled", task=task)
    gone = failed(rows, rows.task("gone"), times[:1])
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE name = 'gone'")
    again = rows.database.write(lambda c: instances.replay(c, second, "bob"))

    def found(**chosen: Any) -> list[int]:
        return [row["id"] for row in replays.find(rows.database, ReplayFilter(**chosen)).first]

    assert found() == [first, third, fourth, *other]
    assert found(task="daily") == [first, third, fourth]
    assert found(task="daily", status="canceled") == found(status="canceled") == [canceled]
    assert found(task="daily", since=f"{times[2].isoformat()}Z") == [third, fourth]
    shanghai = (times[3] + timedelta(hours=8)).isoformat()
    assert found(task="daily", since=shanghai) == [fourth]
    assert found(task="daily", until=shanghai) == [first, third]
    assert len(found(task="daily", status="succeed")) == 1
    assert {*gone, second, again}.isdisjoint(found())
    with pytest.raises(NotFound, match="no task is named 'weekly'"):
        found(task="weekly")
    with pytest.raises(InvalidInput, match="status succeed: say of which task"):
        found(status="succeed")
    with pytest.raises(InvalidInput, match="yesterday"):
        found(since="yesterday")


def test_a_filter_finds_those_of_an_owners_tasks(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAGE", 3)
    first, second = (rows.task(name, owner="ann", tags=[name]) for name in ("first", "second"))
    other = rows.task("other", owner="bob")
    times = minutes(rows, 4)
    firsts, seconds, _ = (failed(rows, task, times) for task in (first, second, other))
    succeeded = [rows.ended("succeed", task=task) for task in (first, second, other)]
    ann = TaskFilter(owner="ann")

    def found(of_tasks: TaskFilter, **chosen: str) -> set[int]:
        return {row["id"] for row in replays.find(rows.database, ReplayFilter(**chosen, of_tasks=of_tasks)).first}

    assert found(ann) == {*firsts, *seconds}
    assert found(ann, since=f"{times[2].isoformat()}Z") == {*firsts[2:], *seconds[2:]}
    assert found(ann, status="succeed") == set(succeeded[:2])
    assert found(TaskFilter(tags=["second"])) == set(seconds)
    assert found(TaskFilter(owner="nobody")) == set()
    with pytest.raises(InvalidInput, match="task 'first' says which alone"):
        found(ann, task="first")
    assert everything(rows, ReplayFilter(of_tasks=ann)).done == 8
    assert set(replayed(rows)) == {*firsts, *seconds}


@pytest.mark.parametrize("task", [None, "daily"])
def test_many_are_read_in_pages_and_written_in_batches_and_each_is_replayed_once(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, task: str | None
) -> None:
    monkeypatch.setattr(store, "PAGE", 7)
    monkeypatch.setattr(store, "BATCH", 3)
    number = rows.task("daily")
    ids = failed(rows, number, minutes(rows, 20))
    shards = [{"fire_key": f"s{n}"} for n in range(9)]  # more of one time than a page has
    for shard in shards:
        ids = failed(rows, number, [rows.start], **shard)
    told: list[int] = []
    done = everything(rows, ReplayFilter(task=task), progress=lambda done: told.append(done.done))
    assert (done.done, done.left_out) == (29, 0)
    assert len(told) > 9
    assert replayed(rows) == dict.fromkeys(ids, 1)
    assert everything(rows, ReplayFilter(task=task)).done == 0
    assert rows.broken() == {}


def test_what_is_interrupted_goes_on_when_it_is_asked_for_again(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BATCH", 4)
    ids = failed(rows, rows.task(), minutes(rows, 10))

    def interrupted(done: Replayed) -> None:
        if done.done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        everything(rows, progress=interrupted)
    assert replayed(rows) == dict.fromkeys(ids[:8], 1)
    assert everything(rows).done == 2
    assert replayed(rows) == dict.fromkeys(ids, 1)


def test_two_that_replay_the_same_at_once_replay_each_once(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH", 2)
    ids = failed(rows, rows.task(), minutes(rows, 60))
    last = ids[-1]
    with opened(rows.database.url.render_as_string(hide_password=False)) as other, ThreadPoolExecutor(2) as two:
        runs = [two.submit(replays.replay_found, each, ANN, FAILED, last) for each in (rows.database, other)]
        assert sum(run.result().done for run in runs) == 60
    assert replayed(rows) == dict.fromkeys(ids, 1)


def test_a_replay_that_failed_meanwhile_is_left_to_the_next_command(rows: Scenario) -> None:
    task = rows.task()
    [first, *_] = failed(rows, task, minutes(rows, 2))
    found = replays.find(rows.database, FAILED)
    again = rows.database.write(lambda c: instances.replay(c, first, "bob"))
    rows.sql("UPDATE schedule_instance SET status = 'failed', attempt = 1, run_number = 1 WHERE id = :i", i=again)
    assert replays.replay_found(rows.database, ANN, FAILED, found.last).done == 1
    assert first not in [row["id"] for row in replays.find(rows.database, FAILED).first]
    assert again in [row["id"] for row in replays.find(rows.database, FAILED).first]


def test_the_audit_has_a_row_for_each_of_many(rows: Scenario) -> None:
    ids = failed(rows, rows.task("daily"), minutes(rows, 3))
    done = everything(rows, why="the source was down", again=Again({"region": "us"}))
    acts = rows.sql("SELECT object_id, why, new_values FROM schedule_audit ORDER BY object_id")
    assert [(act.object_id, act.why) for act in acts] == [(row["id"], "the source was down") for row in done.first]
    assert all(
        f'"replays": {old}' in act.new_values and '"us"' in act.new_values for old, act in zip(ids, acts, strict=True)
    )
    assert [row["param"] for row in done.first] == [{"region": "us"}] * 3
    assert [row["origin"] for row in done.first] == ["replay"] * 3


def test_large_params_are_copied_a_few_at_a_time(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.shared.store.params.BYTES_AT_ONCE", 10_000)
    monkeypatch.setattr("rota.shared.store.params.in_portions", partial(params.in_portions, most=10_000))
    ids = failed(rows, rows.task(), minutes(rows, 4), param={"text": "x" * 6_000})
    assert rows.database.read(partial(store.portions, ids=ids)) == [[one] for one in ids]
    assert everything(rows).done == 4


def test_a_large_new_param_is_written_a_few_times_in_each_transaction(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.shared.store.params.in_portions", partial(params.in_portions, most=1_000_000))
    failed(rows, rows.task(), minutes(rows, 6))
    last, wanted = rows.database.read(instances.newest_id), ReplayFilter()
    told: list[int] = []
    again = Again({"text": "é" * 200_000})  # two bytes each
    replays.replay_found(rows.database, ANN, wanted, last, again=again, progress=lambda done: told.append(done.done))
    assert told == [2, 4, 6]


# From a node on


@pytest.mark.parametrize("name", ["REPORT_SEND", "SEND", "2"])
def test_a_replay_from_a_node_keeps_the_results_before_it_and_runs_the_rest(rows: Scenario, name: str) -> None:
    worker = rows.worker()
    old = failed_at_the_second(rows, worker)
    [new] = replays.replay(rows.database, ANN, [old.id], again=Again({"region": "us"}, name))
    assert (new["replay_of"], new["from_sequence"], new["param"]) == (old.id, 2, {"region": "us"})
    Assigner(rows.database, Settings.load()).step()
    [run] = rows.claim(worker, new["id"]).runs
    assert [(node.type, node.status, node.result) for node in run.nodes] == [
        ("REPORT_EXTRACT", "succeed", {"rows": 42}),
        ("REPORT_SEND", "pending", None),
    ]
    assert rows.report(worker, succeeded(run)) == set()
    assert (rows.status(old.id), rows.status(run.id)) == ("failed", "succeed")
    assert rows.broken() == {}


def test_a_replay_from_a_node_is_refused_in_a_sentence_and_changes_nothing(rows: Scenario) -> None:
    worker = rows.worker()
    old, canceled = failed_at_the_second(rows, worker).id, rows.ended("canceled", worker)
    never = rows.pending()
    rows.sql("UPDATE schedule_instance SET status = 'canceled', gmt_completed = due_at WHERE id = :i", i=never)
    before = rows.statuses()
    for instance, name, error, sentence in (
        (old, "MAIL", InvalidInput, "'MAIL' is no node of instance .*; it has: REPORT_EXTRACT, REPORT_SEND"),
        (old, "SENT", InvalidInput, r"did you mean SEND\?"),
        (canceled, "SEND", NotPossible, "REPORT_EXTRACT, which runs before it, is canceled and left no result"),
        (never, "SEND", NotPossible, "has no nodes: no worker has had it"),
    ):
        with pytest.raises(error, match=sentence):
            replays.replay(rows.database, ANN, [old, instance], again=Again(from_node=name))
    with pytest.raises(InvalidInput, match="a param that lists its nodes"):
        replays.replay(rows.database, ANN, [old], again=Again({"nodes": ["REPORT_SEND"]}, "SEND"))
    with pytest.raises(InvalidParam):
        replays.replay(rows.database, ANN, [old], again=Again({"nodes": []}))
    assert rows.statuses() == before


def test_of_many_those_without_the_results_before_the_node_are_left_out_and_counted(rows: Scenario) -> None:
    worker = rows.worker()
    good = failed_at_the_second(rows, worker).id
    rows.ended("failed", worker)
    never = failed(rows, rows.task(), minutes(rows, 1))
    again = Again(from_node="SEND")
    found = replays.find(rows.database, FAILED, again)
    assert (found.number, found.left_out, [row["id"] for row in found.first]) == (1, 2, [good])
    done = replays.replay_found(rows.database, ANN, FAILED, found.last, again=again)
    assert (done.done, done.left_out) == (1, 2)
    assert "REPORT_EXTRACT, which runs before it, is failed" in str(done.why)
    assert replayed(rows) == {good: 1}
    assert never


def test_a_replay_from_a_node_keeps_its_nodes_whoever_can_run_them(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    worker = rows.worker()
    old = failed_at_the_second(rows, worker)
    [new] = replays.replay(rows.database, ANN, [old.id], again=Again(from_node="SEND"))
    rows.bury(worker)
    rows.worker(node_types=["REPORT_EXTRACT"])
    assign = Assigner(rows.database, Settings.load()).step
    assign()
    assert (rows.status(new["id"]), rows.row(new["id"]).reason) == ("pending", "no live worker can run REPORT_SEND")
    late = rows.worker()
    assign()
    [run] = rows.claim(late, new["id"]).runs
    fences = [(run.id, run.attempt)]
    rows.database.write(lambda c: reports.hand_back(c, late, fences, "it stops", unstarted=True))
    assert rows.node_statuses(run.id) == ["succeed", "pending"]


def test_a_large_result_that_is_kept_is_there_for_the_nodes_after_it(rows: Scenario) -> None:
    worker = rows.worker()
    old = failed_at_the_second(rows, worker)
    large = {"text": "x" * 10_000}
    first = update(schedule_task_node).where(schedule_task_node.c.id == old.nodes[0].id)
    rows.database.write(lambda c: c.execute(first.values(execution_result=large)).rowcount)
    for is_far in (False, True):
        rows.is_far = is_far
        [new] = replays.replay(rows.database, ANN, [old.id], again=Again(from_node="SEND"))
        Assigner(rows.database, Settings.load()).step()
        [run] = rows.claim(worker, new["id"]).runs
        assert run.nodes[0].result == large
        rows.report(worker, succeeded(run))


def test_a_retry_of_a_replay_runs_what_was_kept_no_more_even_where_a_task_restarts(rows: Scenario) -> None:
    worker = rows.worker()
    old = failed_at_the_second(rows, worker, rows.task(on_retry="restart", retries=1))
    [new] = replays.replay(rows.database, ANN, [old.id], again=Again(from_node="SEND"))
    Assigner(rows.database, Settings.load()).step()
    [run] = rows.claim(worker, new["id"]).runs
    assert not endings.restarts(run)
    [whole] = replays.replay(rows.database, ANN, [old.id], again=Again(from_node="EXTRACT"))
    rows.report(worker, succeeded(run))
    Assigner(rows.database, Settings.load()).step()
    [run] = rows.claim(worker, whole["id"]).runs
    rows.report(worker, to_retry(run, rows.start))
    Assigner(rows.database, Settings.load()).step()
    [run] = rows.claim(worker, whole["id"]).runs
    assert endings.restarts(run)
    assert [node.status for node in endings.anew(run).nodes] == ["pending", "pending"]


# Beside a newer run


@pytest.mark.parametrize("what", ["replay", "retry"])
@pytest.mark.parametrize(
    "policy", [{"overlap_policy": p} for p in ("skip", "queue", "replace", "allow")] + [
        {"overlap_policy": "allow", "max_instances": 1}
    ],
)  # fmt: skip
def test_neither_a_replay_nor_a_retry_cancels_a_newer_run(rows: Scenario, policy: dict[str, Any], what: str) -> None:
    worker, task = rows.worker(), rows.task(**policy)
    old = rows.running(worker, task, rows.start - 5 * MINUTE)
    if what == "replay":
        rows.report(worker, ended(old, InstanceStatus.FAILED))
        again = replays.replay(rows.database, ANN, [old.id])[0]["id"]
    else:
        rows.report(worker, to_retry(old, rows.start - MINUTE))
        again = old.id
    newer = rows.running(worker, task, rows.start - 2 * MINUTE)
    assign = Assigner(rows.database, Settings.load()).step
    assign()
    beside = policy == {"overlap_policy": "allow"}
    assert [run.id for run in rows.claim(worker, again).runs] == ([again] if beside else [])
    rows.claim(worker, again)
    row = rows.row(newer.id)
    assert (row.status, row.gmt_cancel_requested) == ("running", None)
    assert rows.status(again) in (("running",) if beside else ("assigned", "pending"))
    rows.report(worker, ended(newer))
    if not beside:
        assign()
        assert [run.id for run in rows.claim(worker, again).runs] == [again]
