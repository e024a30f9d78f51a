"""Limits that tasks share: never more run at once, and never more start in a minute, than the limit's row says."""

import random
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from rota.shared.store import limit_slots, recovery
from rota.shared.store.claims import Claims
from rota.shared.store.limit_slots import Taking
from rota.shared.store.runs import Claim, Run
from tests.harness.examples import examples
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.statements import explained

LIMIT = "INSERT INTO schedule_limit (name, max_running) VALUES ('warehouse', {})"
RATE = "INSERT INTO schedule_limit (name, starts_per_minute) VALUES ('warehouse', {})"
HELD = """SELECT s.slot FROM schedule_limit_slot s JOIN schedule_instance i
    ON i.id = s.schedule_instance_id AND i.attempt = s.attempt WHERE i.status = 'running' ORDER BY s.slot"""


@pytest.fixture(autouse=True, params=["nearby", "from afar"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test once for each way to claim."""
    monkeypatch.setattr(Scenario, "is_far", request.param == "from afar")


def waiting(rows: Scenario, number: int, worker: int, **columns: Any) -> list[int]:
    """Instances of so many tasks with the limit, given to a worker."""
    given = {"overlap_policy": "allow", "limit_name": "warehouse", **columns}
    return [rows.assigned(worker, task) for task in rows.tasks(number, **given)]


def ran(claim: Claim) -> list[int]:
    return sorted(run.id for run in claim.runs)


def left(claim: Claim) -> list[int]:
    return sorted(one.id for one in claim.waiting)


def held(rows: Scenario) -> list[int]:
    return [slot for (slot,) in rows.sql(HELD)]


def test_so_many_run_at_once_as_the_limit_says_whichever_task_and_worker(rows: Scenario) -> None:
    rows.sql(LIMIT.format(3))
    a, b = rows.worker(), rows.worker()
    first, second = waiting(rows, 2, a), waiting(rows, 2, b, overlap_policy="skip")
    one = rows.claim(a, *first)
    other = rows.claim(b, *second)
    assert (ran(one), len(ran(other)), len(left(other))) == (first, 1, 1)
    assert held(rows) == [0, 1, 2]
    assert {waits.limit_name for waits in other.waiting} == {"warehouse"}


def test_the_slots_of_a_limit_go_to_those_that_were_asked_for_first(rows: Scenario) -> None:
    rows.sql(LIMIT.format(2))
    worker = rows.worker()
    first, second, urgent = waiting(rows, 3, worker)
    assert ran(rows.claim(worker, urgent, first, second)) == [first, urgent]


def test_a_slot_is_free_as_soon_as_its_run_ended(rows: Scenario) -> None:
    rows.sql(LIMIT.format(1))
    worker = rows.worker()
    first, second = waiting(rows, 2, worker)
    [run] = rows.claim(worker, first).runs
    assert left(rows.claim(worker, second)) == [second]
    rows.report(worker, ended(run))
    assert ran(rows.claim(worker, second)) == [second]


@pytest.mark.parametrize("end", ["lost", "by SQL", "deleted", "handed back", "retried"])
def test_nothing_that_ends_a_run_leaks_its_slot(rows: Scenario, end: str) -> None:
    rows.sql(LIMIT.format(1))
    worker, other = rows.worker(), rows.worker()
    [first], [second] = waiting(rows, 1, worker, retries=3), waiting(rows, 1, other)
    [run] = rows.claim(worker, first).runs
    assert left(rows.claim(other, second)) == [second]
    if end == "lost":
        rows.bury(worker)
        rows.database.write(lambda c: recovery.recover(c, worker, 10))
    elif end == "by SQL":
        rows.sql("UPDATE schedule_instance SET status = 'canceled' WHERE id = :id", id=first)
    elif end == "deleted":
        rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=first)
    elif end == "retried":
        rows.report(worker, to_retry(run, rows.start))
    else:
        rows.sql("UPDATE schedule_instance SET status = 'assigned' WHERE id = :id", id=first)
    assert ran(rows.claim(other, second)) == [second]
    if end == "handed back":
        assert left(rows.claim(worker, first)) == [first], "its old slot is another's"


def test_a_slot_that_was_freed_and_taken_again_belongs_to_the_new_holder(rows: Scenario) -> None:
    rows.sql(LIMIT.format(1))
    worker = rows.worker()
    first, second = waiting(rows, 2, worker, retries=3)
    [run] = rows.claim(worker, first).runs
    rows.report(worker, to_retry(run, rows.start))
    [other] = rows.claim(worker, second).runs
    rows.give(worker, first)
    assert left(rows.claim(worker, first)) == [first]
    rows.report(worker, ended(other))
    assert ran(rows.claim(worker, first)) == [first]


def test_a_lower_limit_lets_none_begin_until_fewer_run(rows: Scenario) -> None:
    rows.sql(LIMIT.format(4))
    worker = rows.worker()
    instances = waiting(rows, 8, worker)
    runs = {run.id: run for run in rows.claim(worker, *instances[:4]).runs}
    assert len(runs) == 4
    rows.sql("UPDATE schedule_limit SET max_running = 2")
    for _ in range(2):
        assert ran(rows.claim(worker, *instances[4:])) == []
        rows.report(worker, ended(runs.popitem()[1]))
    assert ran(rows.claim(worker, *instances[4:])) == []
    rows.report(worker, ended(runs.popitem()[1]))
    [begun] = ran(rows.claim(worker, *instances[4:]))
    rows.sql("UPDATE schedule_limit SET max_running = 9")
    assert len(ran(rows.claim(worker, *(i for i in instances[4:] if i != begun)))) == 3


def test_a_limit_of_none_lets_none_begin(rows: Scenario) -> None:
    rows.sql(LIMIT.format(0))
    worker = rows.worker()
    instances = waiting(rows, 2, worker)
    assert left(rows.claim(worker, *instances)) == instances


def test_a_limit_that_is_not_there_lets_none_begin(rows: Scenario) -> None:
    worker = rows.worker()
    [instance] = waiting(rows, 1, worker)
    assert left(rows.claim(worker, instance)) == [instance]
    rows.sql(LIMIT.format(1))
    assert ran(rows.claim(worker, instance)) == [instance]


def test_what_has_no_limit_runs_beside_it(rows: Scenario) -> None:
    rows.sql(LIMIT.format(1))
    worker = rows.worker()
    limited, free = waiting(rows, 2, worker), rows.assigned(worker)
    claim = rows.claim(worker, *limited, free)
    assert len(ran(claim)) == 2
    assert free in ran(claim)


def test_the_overlap_policy_of_the_task_holds_beside_its_limit(rows: Scenario) -> None:
    rows.sql(LIMIT.format(4))
    worker = rows.worker()
    task = rows.task(overlap_policy="queue", limit_name="warehouse")
    first, second = rows.assigned(worker, task), rows.assigned(worker, task)
    claim = rows.claim(worker, first, second)
    assert (len(ran(claim)), len(left(claim)), len(held(rows))) == (1, 1, 1)


def test_of_two_claims_that_read_the_same_slot_one_takes_it(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second claims between the first's look at the slots and its packet."""
    rows.sql(LIMIT.format(1))
    a, b = rows.worker(), rows.worker()
    [first], [second] = waiting(rows, 1, a), waiting(rows, 1, b)
    chosen, claims = limit_slots.choose, list[Claim]()

    def choose(connection: Connection, wanted: Any) -> Taking:
        taking = chosen(connection, wanted)
        monkeypatch.setattr(limit_slots, "choose", chosen)
        claims.append(rows.claim(b, second))
        return taking

    monkeypatch.setattr(limit_slots, "choose", choose)
    assert (ran(rows.claim(a, first)), ran(claims[0])) == ([], [second])


@pytest.mark.parametrize("change", ["max_running = 1", "starts_per_minute = 0", "is_deleted = 1"])
@pytest.mark.parametrize("limit", [LIMIT, RATE])
def test_a_change_of_the_limit_since_it_was_read_holds(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, limit: str, change: str
) -> None:
    rows.sql(limit.format(2))
    worker = rows.worker()
    instances = waiting(rows, 2, worker)
    chosen = limit_slots.choose

    def choose(connection: Connection, wanted: Any) -> Taking:
        taking = chosen(connection, wanted)
        rows.sql(f"UPDATE schedule_limit SET {change}")
        return taking

    with monkeypatch.context() as patched:
        patched.setattr(limit_slots, "choose", choose)
        assert ran(rows.claim(worker, *instances)) == []


def test_a_task_that_gets_a_limit_starts_nothing_without_it(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.sql(LIMIT.format(0))
    worker = rows.worker()
    [instance] = waiting(rows, 1, worker, limit_name=None)
    wins = Claims._wins

    def edited(self: Claims, *given: Any) -> bool | None:
        rows.sql("UPDATE schedule_task SET limit_name = 'warehouse'")
        return wins(self, *given)

    monkeypatch.setattr(Claims, "_wins", edited)
    if rows.is_far:
        rows.sql("UPDATE schedule_task SET limit_name = 'warehouse'")
    assert ran(rows.claim(worker, instance)) == []


def test_so_many_start_in_a_minute_as_the_limit_says(rows: Scenario) -> None:
    rows.sql(RATE.format(3))
    a, b = rows.worker(), rows.worker()
    first, second = waiting(rows, 2, a), waiting(rows, 2, b)
    before = rows.now()
    claims = rows.claim(a, *first), rows.claim(b, *second)
    assert [len(ran(one)) for one in claims] == [2, 1]
    for run in (*claims[0].runs, *claims[1].runs):
        rows.report(a if run.id in first else b, ended(run))
    [last] = left(claims[1])
    [waits] = rows.claim(b, last).waiting
    assert timedelta(seconds=2) <= waits.due_at - before <= timedelta(seconds=6), "somebody may raise the rate"
    rows.sql("UPDATE schedule_limit SET recent_starts = '[[1, 3]]'")
    assert ran(rows.claim(b, last)) == [last]


@pytest.mark.parametrize("written", ["'5'", "'[[1]]'", "'[[\"a\", 2], [9999999999, 9]]'", "NULL"])
def test_what_sql_writes_into_recent_starts_stops_nobody(rows: Scenario, written: str) -> None:
    rows.sql(RATE.format(1))
    worker = rows.worker()
    instances = waiting(rows, 2, worker)
    rows.sql(f"UPDATE schedule_limit SET recent_starts = {written}")
    assert len(ran(rows.claim(worker, *instances))) == 1


def test_a_limit_may_bound_both(rows: Scenario) -> None:
    rows.sql("INSERT INTO schedule_limit (name, max_running, starts_per_minute) VALUES ('warehouse', 2, 3)")
    worker = rows.worker()
    instances = waiting(rows, 4, worker)
    claim = rows.claim(worker, *instances)
    assert (len(ran(claim)), held(rows)) == (2, [0, 1])
    for run in claim.runs:
        rows.report(worker, ended(run))
    assert len(ran(rows.claim(worker, *left(claim)))) == 1


@pytest.mark.parametrize("seed", range(examples(16)))
def test_random_claims_ends_and_edits_never_run_more_than_the_limit_says(rows: Scenario, seed: int) -> None:
    chosen = random.Random(seed)
    for table in ("schedule_limit", "schedule_limit_slot", "schedule_instance", "schedule_task_node"):
        rows.sql(f"DELETE FROM {table}")
    rows.sql(LIMIT.format(3))
    most, runs, workers = 3, dict[int, tuple[int, Run]](), [rows.worker() for _ in range(3)]
    ready = {instance: worker for worker in workers for instance in waiting(rows, 6, worker, retries=99)}
    for _ in range(30):
        before = len(runs)
        match chosen.choice(["claim", "claim", "claim", "end", "retry", "limit"]):
            case "claim":
                worker = chosen.choice(workers)
                wanted = [i for i, its in ready.items() if its == worker]
                claim = rows.claim(worker, *chosen.sample(wanted, min(len(wanted), chosen.randint(1, 4))))
                runs |= {run.id: (worker, run) for run in claim.runs}
                for run in claim.runs:
                    del ready[run.id]
                assert len(runs) <= max(most, before)
            case "end" if runs:
                worker, run = runs.pop(chosen.choice(sorted(runs)))
                rows.report(worker, ended(run))
            case "retry" if runs:
                worker, run = runs.pop(chosen.choice(sorted(runs)))
                rows.report(worker, to_retry(run, rows.start))
                rows.give(worker, run.id)
                ready[run.id] = worker
            case "limit":
                most = chosen.randint(0, 5)
                rows.sql("UPDATE schedule_limit SET max_running = :most", most=most)
        assert len(held(rows)) == len(runs)


def test_the_slots_of_a_limit_are_read_and_taken_by_their_keys(mariadb_rows: Scenario) -> None:
    rows, number = mariadb_rows, 40
    rows.sql("INSERT INTO schedule_limit (name, max_running) SELECT CONCAT('other ', seq), 50 FROM seq_1_to_40")
    rows.sql(LIMIT.format(50))
    worker = rows.worker(capacity=number)
    rows.sql(
        "INSERT INTO schedule_limit_slot (limit_name, slot, schedule_instance_id, attempt)"
        " SELECT l.name, seq, 1, 7 FROM schedule_limit l JOIN seq_0_to_49"
    )
    rows.queued(worker, 5_000)
    rows.sql("ANALYZE TABLE schedule_limit, schedule_limit_slot, schedule_instance, schedule_task")
    instances = waiting(rows, number, worker)
    with explained(rows.database.engine) as statements:
        assert ran(rows.claim(worker, *instances)) == instances
    ours = [one for one in statements if "schedule_limit" in one.text]
    steps = [step for one in ours for step in one.plan if step.table.startswith("schedule_")]
    assert {(step.table, step.key) for step in steps} <= {
        ("schedule_limit", "uq_schedule_limit_name"),
        ("schedule_limit_slot", "PRIMARY"),
        ("schedule_limit_slot", "ix_schedule_limit_slot_holder"),
        ("schedule_instance", "PRIMARY"),
        ("schedule_task", "PRIMARY"),
    }
    assert max(one.rows_read for one in ours) <= 8 * number + 50
