"""The order of instances that wait for each other: the oldest runs first, and of `replace` only the newest."""

import random
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import assignments, overlap, recovery, turns
from rota.shared.store.runs import Claim, Run
from tests.harness.examples import examples
from tests.harness.puller import Puller
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.statements import executed, explained

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)

LIMITED = [{"overlap_policy": "queue"}, {"overlap_policy": "allow", "max_instances": 1}]


@pytest.fixture(autouse=True, params=["nearby", "from afar"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test once for each way to claim."""
    monkeypatch.setattr(Scenario, "is_far", request.param == "from afar")


def ran(claim: Claim) -> list[int]:
    return [run.id for run in claim.runs]


def waiting(claim: Claim) -> list[int]:
    return sorted(instance for instance, *_ in claim.waiting)


def test_a_place_in_a_long_line_is_found_without_reading_the_line(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    queued, replaced = rows.task(overlap_policy="queue"), rows.task(overlap_policy="replace")
    rows.sql(
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at, origin, overlap_slot)"
        " SELECT id, '2026-11-19' + INTERVAL seq SECOND, '2026-11-19' + INTERVAL seq SECOND, 'cron', 0"
        " FROM schedule_task JOIN seq_1_to_500"
    )
    with explained(rows.database.engine) as statements:
        last = rows.database.read(lambda c: turns.last_in_turn(c, {queued: 2, replaced: 2}))
        newest = rows.database.read(lambda c: turns.newest_fires(c, [queued, replaced], rows.now()))
    assert [{moment[17:19] for moment, _ in places.values()} for places in (last, newest)] == [{"02"}, {"20"}]
    assert all(one.rows_read <= 30 for one in statements), [str(one) for one in statements]


@pytest.mark.parametrize("task_fields", LIMITED, ids=["queue", "max_instances"])
def test_the_oldest_fire_runs_first_whichever_worker_has_it(rows: Scenario, task_fields: dict[str, Any]) -> None:
    task, a, b = rows.task(**task_fields), rows.worker(), rows.worker()
    newer = rows.assigned(b, task, rows.start - MINUTE)
    older = rows.assigned(a, task, rows.start - 2 * MINUTE)
    assert (ran(rows.claim(b, newer)), waiting(rows.claim(b, newer))) == ([], [newer])
    [run] = rows.claim(a, older).runs
    assert waiting(rows.claim(b, newer)) == [newer]
    rows.report(a, ended(run))
    assert ran(rows.claim(b, newer)) == [newer]


@pytest.mark.parametrize("task_fields", LIMITED, ids=["queue", "max_instances"])
def test_a_fire_waits_for_an_older_one_that_has_no_worker(rows: Scenario, task_fields: dict[str, Any]) -> None:
    task, worker = rows.task(**task_fields), rows.worker()
    older, newer = rows.pending(task, rows.start - 2 * MINUTE), rows.assigned(worker, task, rows.start - MINUTE)
    assert waiting(rows.claim(worker, newer)) == [newer]
    rows.give(worker, older)
    assert (ran(claim := rows.claim(worker, newer, older)), waiting(claim)) == ([older], [newer])


def test_as_many_of_the_oldest_may_run_as_slots_are_free(rows: Scenario) -> None:
    task, a, b = rows.task(overlap_policy="allow", max_instances=3), rows.worker(), rows.worker()
    held = rows.running(a, task, rows.start - 9 * MINUTE)
    first, second, third = (rows.assigned(b, task, rows.start - n * MINUTE) for n in (3, 2, 1))
    assert waiting(rows.claim(b, third)) == [third], "two slots are free, and two older ones wait"
    assert ran(rows.claim(b, second)) == [second]
    assert waiting(rows.claim(b, third)) == [third]
    assert ran(rows.claim(b, first)) == [first]
    rows.report(a, ended(held))
    assert ran(rows.claim(b, third)) == [third]


def test_in_one_batch_the_oldest_come_first_whatever_their_ids(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="allow", max_instances=2), rows.worker()
    newest, middle, oldest = (rows.assigned(worker, task, rows.start - n * MINUTE) for n in (1, 2, 3))
    claim = rows.claim(worker, newest, middle, oldest)
    assert (sorted(ran(claim)), waiting(claim)) == ([middle, oldest], [newest])


def test_what_a_dead_worker_held_runs_before_what_is_newer(rows: Scenario) -> None:
    task, dead, worker = rows.task(overlap_policy="queue"), rows.worker(), rows.worker()
    run = rows.running(dead, task, rows.start - 2 * MINUTE)
    newer = rows.assigned(worker, task, rows.start - MINUTE)
    rows.bury(dead)
    rows.database.write(lambda c: recovery.recover(c, dead, 10))
    assert waiting(rows.claim(worker, newer)) == [newer]
    rows.give(worker, run.id)
    assert ran(rows.claim(worker, newer, run.id)) == [run.id]


def test_a_retry_that_is_not_due_yet_lets_the_next_fire_run(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="queue", retries=3), rows.worker()
    run = rows.running(worker, task, rows.start - 2 * MINUTE)
    newer = rows.assigned(worker, task, rows.start - MINUTE)
    rows.report(worker, to_retry(run, rows.start + MINUTE))
    assert ran(rows.claim(worker, newer)) == [newer]


def test_rows_of_sql_take_their_places_when_the_scheduler_sees_them(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="queue"), rows.worker()
    newer = rows.assigned(worker, task, rows.start - MINUTE)
    older = rows.by_sql(task, rows.start - 2 * MINUTE)
    Assigner(rows.database, Settings.load()).step()
    assert rows.status(older) == "assigned"
    assert waiting(rows.claim(worker, newer)) == [newer]
    assert ran(rows.claim(worker, newer, older)) == [older]


def test_the_oldest_is_given_out_though_more_urgent_newer_ones_fill_the_line(rows: Scenario) -> None:
    task = rows.task(overlap_policy="queue")
    rows.worker(capacity=100)
    oldest = rows.pending(task, rows.start - timedelta(hours=2), priority=9)
    for n in range(40):
        rows.pending(task, rows.start - (n + 1) * MINUTE, priority=0)
    Assigner(rows.database, Settings.load()).step()
    assert rows.status(oldest) == "assigned"


def test_a_policy_that_is_changed_lets_what_waits_run(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="queue"), rows.worker()
    rows.pending(task, rows.start - 2 * MINUTE)
    newer = rows.assigned(worker, task, rows.start - MINUTE)
    rows.sql("UPDATE schedule_task SET overlap_policy = 'allow'")
    assert ran(rows.claim(worker, newer)) == [newer]


@pytest.mark.parametrize("seed", range(examples(3)))
@pytest.mark.parametrize(("fields", "slots"), [({"overlap_policy": "queue"}, 1), ({"max_instances": 3}, 3)])
def test_after_an_outage_the_fires_run_in_their_order_whatever_comes(
    rows: Scenario, seed: int, fields: dict[str, Any], slots: int
) -> None:
    """Workers that claim in any order, die, hand back and fail; fires that come late, by SQL, and again."""
    print("seed", seed)
    rng = random.Random(seed)
    task = rows.task(**{"overlap_policy": "allow", **fields})
    workers = [rows.worker(capacity=100) for _ in range(3)]
    for n in rng.sample(range(30), 30):
        rows.assigned(rng.choice(workers), task, rows.start - timedelta(hours=1) + n * SECOND)
    running: list[tuple[int, Run]] = []
    due: list[str] = []
    while len(due) < 30:
        worker, seen = rng.choice(workers), rows.sql(SEEN)
        mine = [row.id for row in seen if (row.status, row.worker) == ("assigned", worker)]
        if mine and rng.random() < 0.7:
            claim = rows.claim(worker, *rng.sample(mine, min(len(mine), rng.randrange(1, 12))))
            wait = {row.id: str(row.due_at) for row in seen if row.status in ("pending", "assigned")}
            for instance in ran(claim):
                wait_still = [other for other in wait if other not in ran(claim) and wait[other] < wait[instance]]
                assert len(wait_still) < slots, f"{instance} runs before {wait_still}"
            due += sorted(wait[instance] for instance in ran(claim))
            running += [(worker, run) for run in claim.runs]
        elif rng.random() < 0.1:
            rows.database.write(partial(assignments.take_back_assigned, worker_id=worker, limit=3))
            for row in rows.sql(SEEN):
                if row.status == "pending":
                    rows.give(rng.choice(workers), row.id)
        elif running:
            owner, run = running.pop(rng.randrange(len(running)))
            rows.report(owner, ended(run))
    if slots == 1:
        assert due == sorted(due)


SEEN = "SELECT id, status, schedule_worker_node_id AS worker, due_at FROM schedule_instance"


def test_the_order_costs_a_batch_one_statement_and_tasks_without_turns_none(rows: Scenario) -> None:
    worker = rows.worker()
    queued = [rows.assigned(worker, rows.task(overlap_policy="queue")) for _ in range(3)]
    others = [rows.assigned(worker, rows.task(overlap_policy=policy)) for policy in ("skip", "allow")]
    with executed(rows.database.engine) as statements:
        assert sorted(ran(rows.claim(worker, *others))) == others
    assert not [s for s in statements if "turn_key" in s]
    with executed(rows.database.engine) as statements:
        assert sorted(ran(rows.claim(worker, *queued))) == queued
    assert len([s for s in statements if "turn_key" in s]) == 1


def test_the_key_of_a_turn_is_there_while_an_instance_waits_for_others(rows: Scenario) -> None:
    worker = rows.worker()
    keys = {}
    for policy, most in (("skip", None), ("queue", None), ("replace", None), ("allow", None), ("allow", 2)):
        task = rows.task(overlap_policy=policy, max_instances=most)
        instance = rows.pending(task)
        keys[policy, most] = rows.row(instance).turn_key == task
        rows.give(worker, instance)
        rows.claim(worker, instance)
        assert rows.row(instance).turn_key is None
    assert keys == {(p, m): turns.waits_in_turn(p, m) for p, m in keys}
    assert sum(keys.values()) == 3


@pytest.mark.parametrize(
    ("change", "slots"), [("max_instances = 2", 2), ("overlap_policy = 'queue', max_instances = NULL", 1)]
)
def test_after_fewer_may_run_at_once_nothing_starts_before_fewer_run(rows: Scenario, change: str, slots: int) -> None:
    task, worker = rows.task(overlap_policy="allow", max_instances=5), rows.worker()
    runs = [rows.running(worker, task) for _ in range(5)]
    for run in runs[:2]:
        rows.report(worker, ended(run))
    rows.sql(f"UPDATE schedule_task SET {change}")
    older, newer = (rows.assigned(worker, task, rows.start - n * SECOND) for n in (2, 1))
    assert waiting(rows.claim(worker, older, newer)) == [older, newer], "three run still, in the slots 2 to 4"
    assert rows.database.read(lambda c: overlap.full(c, {task: slots})) == {task}
    for run in runs[2 : 6 - slots]:
        rows.report(worker, ended(run))
    assert (ran(claim := rows.claim(worker, newer, older)), waiting(claim)) == ([older], [newer])


# replace


def test_a_newer_due_fire_supersedes_those_that_wait(rows: Scenario) -> None:
    task, a, b = rows.task(overlap_policy="replace"), rows.worker(), rows.worker()
    run = rows.running(a, task, rows.start - 9 * MINUTE)
    waits = [rows.assigned(a if n % 2 else b, task, rows.start - n * MINUTE) for n in (4, 3, 2, 1)]
    for _ in range(2):
        rows.claim(a, waits[1], waits[3])
        rows.claim(b, waits[0], waits[2])
    assert [rows.status(i) for i in waits] == ["canceled"] * 3 + ["assigned"]
    assert rows.row(waits[0]).reason == f"replaced by instance {waits[3]}, a newer fire of its task"
    assert rows.node_statuses(waits[0]) == ["canceled"] * 2
    assert rows.row(run.id).gmt_cancel_requested is not None
    rows.report(a, ended(run))
    assert ran(rows.claim(a, waits[3])) == [waits[3]]


def test_a_fire_that_comes_late_behind_a_newer_one_that_runs_is_superseded_too(rows: Scenario) -> None:
    task, a, b = rows.task(overlap_policy="replace"), rows.worker(), rows.worker()
    older, newer = rows.assigned(a, task, rows.start - 2 * MINUTE), rows.assigned(b, task, rows.start - MINUTE)
    [run] = rows.claim(b, newer).runs
    assert rows.claim(a, older).waiting == []
    assert (rows.status(older), rows.row(run.id).gmt_cancel_requested) == ("canceled", None)


@pytest.mark.parametrize("change", ["origin = 'sql'", "attempt = 1"])
def test_what_somebody_asked_for_or_has_begun_is_not_superseded(rows: Scenario, change: str) -> None:
    task, a, b = rows.task(overlap_policy="replace"), rows.worker(), rows.worker()
    older, newer = rows.assigned(a, task, rows.start - 2 * MINUTE), rows.assigned(b, task, rows.start - MINUTE)
    rows.sql(f"UPDATE schedule_instance SET {change} WHERE id = {older}")
    assert ran(rows.claim(a, older)) == [older]
    assert waiting(rows.claim(b, newer)) == [newer]


def test_a_fire_that_is_not_due_yet_supersedes_nothing(rows: Scenario) -> None:
    task, worker = rows.task(overlap_policy="replace"), rows.worker()
    older, newer = rows.assigned(worker, task, rows.start - MINUTE), rows.assigned(worker, task, rows.start + MINUTE)
    assert ran(rows.claim(worker, older, newer)) == [older]


# Within a worker


def test_when_a_run_has_ended_the_oldest_that_waits_for_its_turn_is_tried_at_once(rows: Scenario) -> None:
    worker, task, other = rows.worker(), rows.task(overlap_policy="queue"), rows.task(overlap_policy="queue")
    clock = SettableClock(rows.now())
    fires = [rows.assigned(worker, task, rows.start - n * MINUTE) for n in (3, 2, 1)]
    puller = Puller(rows.database, worker, clock)
    puller.fetcher.fetch()
    for _ in range(8):  # each failing try is followed by a longer pause
        puller.claimer.claim()
    [held] = [active.run for active in puller.runner._active.values()]
    assert held.id == fires[0]
    asked = len(puller.rows.asked)
    rows.report(worker, ended(held))
    puller.runner.drop(held.id)
    for ended_task in (other, task):
        puller.backlog.turn_over(ended_task)
    puller.claimer.claim()
    assert puller.rows.asked[asked:] == [[fires[1]]]
    assert rows.status(fires[1]) == "running"
