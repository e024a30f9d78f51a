"""However large params and results are, Rota's processes take them from the database a few megabytes at a time."""

import json
import os
from contextlib import redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from rota.cli.show.instances import outcome
from rota.cli.show.output import show_json_list
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import audit, instances, replays, tasks
from rota.shared.control.actor import Actor
from rota.shared.control.documents import Document
from rota.shared.control.following import Follower
from rota.shared.control.replays import Again
from rota.shared.database.constructs import written
from rota.shared.settings import Settings
from rota.shared.store import params, runs
from rota.shared.store.tables import schedule_instance
from rota.worker_service.pulling import slots
from tests.harness.memory import peak, peak_beyond
from tests.harness.puller import Puller
from tests.harness.scenario import Scenario
from tests.harness.statements import executed

ANN = Actor("ann", "cli")
PARAM = {"rows": [[n, f"row {n}"] for n in range(15_000)]}
TEXT = json.dumps(PARAM, separators=(",", ":"))
MB = 1_000_000
BOUND = 100 * MB
"""A portion of 4 MiB is there as text, as values, and as the statements that read and write it."""

WAITING = 1_000
OWN = 100


def waiting(rows: Scenario, task: int, number: int, param: Any = None) -> None:
    """Runs of a task that somebody asked for, due in the past."""
    moments = [rows.past() for _ in range(number)]
    made = [
        {"schedule_task_id": task, "schedule_datetime": at, "due_at": at, "origin": "manual", "param": param}
        for at in moments
    ]
    for first in range(0, number, 20):
        rows.database.write(partial(insert_runs, made=made[first : first + 20]))


def insert_runs(connection: Connection, made: list[dict[str, Any]]) -> None:
    connection.execute(insert(schedule_instance), made)


def given(rows: Scenario) -> int:
    return list(rows.statuses().values()).count("assigned")


@pytest.mark.parametrize("room", [0, 100])
def test_a_thousand_runs_of_a_task_with_a_large_param_take_little_memory(rows: Scenario, room: int) -> None:
    rows.worker(capacity=max(room, 1), prefetch=0)
    if not room:
        rows.sql("UPDATE schedule_worker_node SET capacity = 0")
    task = rows.task(param=PARAM, overlap_policy="allow")
    waiting(rows, task, WAITING)
    assigner = Assigner(rows.database, Settings.load())
    most = peak(assigner.step)
    print(f"{most / MB:.0f} MB")
    assert most <= BOUND
    assert given(rows) == room
    if room:
        [(instance, *_), *_] = rows.sql("SELECT id FROM schedule_instance WHERE status = 'assigned'")
        assert rows.row(instance).param == PARAM


@pytest.mark.parametrize("nodes", [None, "listed"])
@pytest.mark.parametrize("room", [0, 50])
def test_runs_that_were_given_large_params_take_little_memory(rows: Scenario, room: int, nodes: str | None) -> None:
    rows.worker(capacity=max(room, 1), prefetch=0)
    if not room:
        rows.sql("UPDATE schedule_worker_node SET capacity = 0")
    listed = {"nodes": [{"type": "REPORT_SEND", "param": PARAM}]}
    waiting(rows, rows.task(overlap_policy="allow"), OWN, PARAM if nodes is None else listed)
    assigner = Assigner(rows.database, Settings.load())
    most = peak(assigner.step)
    print(f"{most / MB:.0f} MB")
    assert most <= BOUND
    assert given(rows) == room
    if room and nodes:
        found = rows.sql("SELECT DISTINCT sequence, length(param) FROM schedule_task_node")
        of_mysql = json.dumps(PARAM)  # its JSON is no text: it writes one with blanks
        assert [tuple(row) for row in found] in ([(1, len(TEXT))], [(1, len(of_mysql))])


def test_tasks_with_large_params_are_planned_with_little_memory(rows: Scenario) -> None:
    rows.worker(capacity=1_000)
    tasks = [rows.planned_task(param={"text": "x" * len(TEXT)}) for _ in range(250)]
    rows.sql("UPDATE schedule_task SET next_fire_at = :at", at=written(rows.start - timedelta(seconds=1)))
    duty = Materializer(rows.database, Settings.load(lock_lease_seconds=60))
    most = max(peak(duty.step) for _ in range(2))  # a tick's first batch is a small one
    print(f"{most / MB:.0f} MB")
    assert most <= 50 * MB
    assert len(rows.statuses()) >= len(tasks)


def test_params_are_read_only_of_what_is_given_or_may_list_nodes(rows: Scenario) -> None:
    rows.worker(capacity=3, prefetch=0)
    waiting(rows, rows.task(overlap_policy="allow"), 10, {"day": 1})
    assigner = Assigner(rows.database, Settings.load())
    assigner.step()
    assert given(rows) == 3
    with executed(rows.database.engine) as statements:
        assigner.step()
    assert [s for s in statements if ("json_contains_path" if rows.on_mysql else "replace") in s]
    assert not [s for s in statements if s.startswith("SELECT schedule_instance.id, schedule_instance.param")]


@pytest.mark.parametrize(
    ("param", "lists"),
    [
        ('{"nodes":["REPORT_SEND"]}', True),
        (r'{"\u006eodes":["REPORT_SEND"]}', True),
        ('{"day":1}', False),
        ("5", False),
    ],
)
def test_a_param_that_lists_nodes_is_known_however_sql_wrote_it(rows: Scenario, param: str, lists: bool) -> None:
    worker, task = rows.worker(), rows.task()
    rows.sql("UPDATE schedule_task SET param = :param WHERE id = :task", param=param, task=task)
    instance = rows.by_sql(task)
    Assigner(rows.database, Settings.load()).step()
    assert rows.row(instance).schedule_worker_node_id == worker
    assert len(rows.node_statuses(instance)) == (1 if lists else 2)


def test_a_claim_reads_a_large_param_once_and_a_few_at_a_time(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    given = [rows.assigned(worker, task, param=PARAM) for _ in range(60)]
    claimed: list[runs.Claim] = []
    beyond = peak_beyond(lambda: claimed.append(rows.claim(worker, *given)))
    print(f"{beyond / MB:.0f} MB")
    assert beyond <= 30 * MB
    assert [run.id for run in claimed[0].runs] == given
    assert all(run.param == PARAM for run in claimed[0].runs)


@pytest.mark.parametrize("character", ['"', "\\"])
def test_a_claim_reads_a_large_param_of_characters_that_json_escapes(rows: Scenario, character: str) -> None:
    """Each layer of JSON around such a text doubles it, up to and beyond what the server takes in one packet."""
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    param = {"text": character * 3_000_000}
    given = [rows.assigned(worker, task, param=param) for _ in range(2)]
    assert [run.param == param for run in rows.claim(worker, *given).runs] == [True, True]


@pytest.mark.parametrize("character", ['"', "\\"])
def test_a_run_with_such_a_param_is_given_and_claimed(rows: Scenario, character: str) -> None:
    worker = rows.worker()
    param = {"text": character * 3_000_000}
    waiting(rows, rows.task(), 1, param)
    Assigner(rows.database, Settings()).step()
    [(instance, *_)] = rows.sql("SELECT id FROM schedule_instance")
    assert rows.status(instance) == "assigned"
    assert [run.param == param for run in rows.claim(worker, instance).runs] == [True]


@pytest.fixture(params=["nearby", "from afar"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test once for each way to claim."""
    monkeypatch.setattr(Scenario, "is_far", request.param == "from afar")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("policy", ["allow", "queue"])
def test_a_claim_takes_as_many_large_params_as_there_is_room_for(rows: Scenario, policy: str) -> None:
    worker = rows.worker()
    task = rows.task(overlap_policy=policy)
    tasks = [task if policy == "allow" else rows.task(overlap_policy=policy) for _ in range(60)]
    large = [rows.assigned(worker, task, param=PARAM) for task in tasks]
    small = rows.assigned(worker, rows.task(overlap_policy=policy), param={"day": 1})
    claimed: list[runs.Claim] = []
    sizes = select(params.size(schedule_instance.c.param)).where(schedule_instance.c.id == large[0])
    room = 3.5 * (rows.database.read(lambda c: c.scalar(sizes)) or 0)
    most = peak(lambda: claimed.append(rows.claim(worker, *reversed(large), small, room=room)))
    print(f"{most / MB:.0f} MB")
    assert most <= 40 * MB
    assert {run.id for run in claimed[0].runs} == {*large[-4:], small}, "the first ones, and what takes no room"
    assert all(run.param == PARAM for run in claimed[0].runs if run.id != small)
    assert {one.id for one in claimed[0].waiting} == {*large[:-4]}
    assert [rows.status(instance) for instance in large] == ["assigned"] * 56 + ["running"] * 4
    again = rows.claim(worker, *large[:-4], small, room=0)
    assert [run.id for run in again.runs] == [small], "it runs under this worker already"


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("of_node", ["param", "execution_result"])
def test_a_retry_with_large_results_waits_for_room(rows: Scenario, of_node: str) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    retries = [rows.assigned(worker, task) for _ in range(3)]
    for instance in retries:
        rows.sql("UPDATE schedule_instance SET attempt = 1 WHERE id = :id", id=instance)
        rows.sql(
            f"UPDATE schedule_task_node SET status = 'succeed', {of_node} = :text"
            " WHERE schedule_instance_id = :id AND sequence = 1",
            text=TEXT,
            id=instance,
        )
    claimed = rows.claim(worker, *retries, room=1)
    assert [run.id for run in claimed.runs] == retries[:1]
    [first, *_] = claimed.runs[0].nodes
    assert (first.param if of_node == "param" else first.result) == PARAM
    assert {one.id for one in claimed.waiting} == {*retries[1:]}


def test_a_worker_holds_so_many_large_params_at_once_and_goes_on_when_one_has_ended(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "HELD_BYTES", 3 * len(TEXT) // 2)
    worker = rows.worker()
    large = [rows.assigned(worker, rows.task(), param=PARAM) for _ in range(5)]
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert {run for run, _ in puller.runner.held} == {*large[-2:]}, "those that were due first"
    puller.runner.drop(large[-1])
    while len(puller.runner.held) < 2:
        puller.claimer.claim()
    assert large[-2] in {run for run, _ in puller.runner.held}
    assert list(rows.statuses().values()).count("running") == 3, "one of them has only left this process"


def test_a_run_gets_all_that_is_large_and_all_that_is_not(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    plain, large = rows.assigned(worker, task, param={"day": 1}), rows.assigned(worker, task, param=PARAM)
    first, second = (node for (node,) in rows.sql("SELECT id FROM schedule_task_node ORDER BY id DESC LIMIT 2"))
    result = "UPDATE schedule_task_node SET status = 'succeed', execution_result = :text WHERE id = :node"
    rows.sql(result, text=TEXT, node=second)
    rows.sql("UPDATE schedule_task_node SET param = :text WHERE id = :node", text=TEXT, node=first)
    found = {run.id: run for run in rows.claim(worker, plain, large).runs}
    assert [(node.param, node.result) for node in found[large].nodes] == [(None, PARAM), (PARAM, None)]
    assert [(node.param, node.result) for node in found[plain].nodes] == [(None, None), (None, None)]
    assert (found[plain].param, found[large].param) == ({"day": 1}, PARAM)


def test_a_claim_reads_apart_only_what_is_large(rows: Scenario) -> None:
    worker, task = rows.worker(), rows.task(overlap_policy="allow")
    of_params = "SELECT schedule_instance.id, schedule_instance.param"
    for param, number in (({"text": "x" * 3_000}, 0), (PARAM, 1)):
        three = [rows.assigned(worker, task, param=param) for _ in range(3)]
        with executed(rows.database.engine) as statements:
            assert [run.param for run in rows.claim(worker, *three).runs] == [param] * 3
        assert len([text for text in statements if text.startswith(of_params)]) == number


@pytest.mark.parametrize("follows", [False, True], ids=["list", "follower"])
def test_a_page_of_instances_with_large_params_and_results_takes_little_memory(
    rows: Scenario, *, follows: bool
) -> None:
    task = rows.task(overlap_policy="allow")
    follower = Follower(rows.database)
    waiting(rows, task, OWN, PARAM)
    rows.sql("UPDATE schedule_instance SET status = 'succeed', execution_result = param")
    look = follower.ended if follows else partial(instances.listed, rows.database, OWN)
    most = peak(look)
    print(f"{most / MB:.0f} MB")
    assert most <= 5 * MB


@pytest.mark.parametrize("new", [None, PARAM], ids=["their own", "a new one"])
def test_a_replay_of_many_large_params_takes_little_memory_and_says_how_large_they_are(
    rows: Scenario, new: dict[str, Any] | None
) -> None:
    task = rows.task(overlap_policy="allow")
    waiting(rows, task, 60, PARAM)
    rows.sql("UPDATE schedule_instance SET status = 'succeed', execution_result = param")
    old = sorted(rows.statuses(), reverse=True)
    made: list[Document] = []
    most = peak(lambda: made.extend(replays.replay(rows.database, ANN, old, again=Again(new))))
    print(f"{most / MB:.0f} MB")
    assert most <= 15 * MB
    assert [one["replay_of"] for one in made] == old
    assert "param" not in made[0]
    assert made[0]["param_bytes"] > params.LARGE
    assert rows.row(made[0]["id"]).param == PARAM


def test_a_cancel_of_many_large_params_takes_little_memory(rows: Scenario) -> None:
    waiting(rows, rows.task(overlap_policy="allow"), 60, PARAM)
    most = peak(lambda: instances.cancel(rows.database, ANN, [*rows.statuses()]))
    print(f"{most / MB:.0f} MB")
    assert most <= 5 * MB
    assert set(rows.statuses().values()) == {"canceled"}


def test_a_list_shows_small_values_and_the_beginning_of_a_large_result(rows: Scenario) -> None:
    task = rows.task(overlap_policy="allow")
    for param, result in (({"day": 1}, '{"rows":42}'), (PARAM, TEXT)):
        waiting(rows, task, 1, param)
        rows.sql("UPDATE schedule_instance SET status = 'succeed', execution_result = :result", result=result)
        [found] = instances.listed(rows.database, 1)
        if param is PARAM:
            assert not {"param", "execution_result"} & found.keys()
            assert min(found["param_bytes"], found["result_bytes"]) > params.LARGE
            assert outcome(found) in {TEXT[:59] + "…", json.dumps(PARAM)[:59] + "…"}  # MySQL writes blanks
        else:
            assert (found["param"], found["execution_result"]) == (param, {"rows": 42})
            assert not {"param_bytes", "result_bytes", "result_begins"} & found.keys()


def test_a_list_of_tasks_with_large_params_takes_little_memory(rows: Scenario) -> None:
    for _ in range(30):
        rows.task(param=PARAM)
    rows.task(name="small", param={"day": 1})
    listed: list[list[Document]] = []
    most = peak(lambda: listed.append(tasks.listed(rows.database, 100)))
    print(f"{most / MB:.0f} MB")
    assert most <= 5 * MB
    assert [one["param"] for one in listed[0] if one["name"] == "small"] == [{"day": 1}]
    assert not any("param_bytes" in one for one in listed[0] if one["name"] == "small")
    assert not any("param" in one for one in listed[0] if one["name"] != "small"), "null would say that there is none"
    in_mysqls_own_form = 363_922
    size = in_mysqls_own_form if rows.on_mysql else len(json.dumps(PARAM))
    assert {one["param_bytes"] for one in listed[0] if one["name"] != "small"} == {size}
    [large, *_] = (one["name"] for one in listed[0] if one["name"] != "small")
    assert tasks.get(rows.database, large)["param"] == PARAM


def test_the_table_of_acts_with_large_params_takes_little_memory(rows: Scenario) -> None:
    tasks.add(rows.database, ANN, {"name": "large", "type": "REPORT", "param": PARAM})
    for retries in range(1, 16):
        tasks.edit(rows.database, ANN, "large", {"param": {**PARAM, "n": retries}, "retries": retries})
    listed: list[list[Document]] = []
    most = peak(lambda: listed.append(audit.listed(rows.database, 20)))
    print(f"{most / MB:.0f} MB")
    assert most <= 5 * MB
    [newest, *_, first] = listed[0]
    assert (newest["old_values"], newest["new_values"]) == (
        {"param": None, "retries": 14}, {"param": None, "retries": 15}
    )  # fmt: skip
    assert (first["old_values"], "param" in first["new_values"]) == (None, True)


def test_acts_with_large_params_are_printed_as_json_one_by_one(
    rows: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks.add(rows.database, ANN, {"name": "large", "type": "REPORT", "param": PARAM})
    for retries in range(1, 6):
        tasks.edit(rows.database, ANN, "large", {"param": {**PARAM, "n": retries}, "retries": retries})
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        one, most = (peak(lambda n=n: show_json_list(audit.each_whole(rows.database, n))) for n in (1, 20))  # type: ignore[misc]
    show_json_list(audit.each_whole(rows.database, 20))
    printed = json.loads(capsys.readouterr().out)
    print(f"{one / MB:.0f} MB for one act, {most / MB:.0f} MB for 6")
    assert [act["new_values"]["retries"] for act in printed] == [*range(5, -1, -1)]
    assert all(act["new_values"]["param"]["n"] == act["new_values"]["retries"] for act in printed[:-1])
    assert most <= one + 5 * MB


def test_a_portion_is_bounded_in_bytes_and_a_larger_row_is_alone() -> None:
    assert list(params.in_portions([3, 3, 3, 20, 1, 9, 1], lambda n: n, 10)) == [[3, 3, 3], [20], [1, 9], [1]]
    assert list(params.in_portions([], len)) == []
