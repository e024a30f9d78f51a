"""Who is woken, and when: schedulers by those who commit urgent work, workers by the scheduler that gives it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError  # noqa: A004 - of the pool

from rota import Client
from rota.scheduler_service import placing
from rota.scheduler_service.app import Scheduler, declaration
from rota.scheduler_service.duties import assigner as assigner_module
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.business_keys import BusinessKeys
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.requests import Requests
from rota.scheduler_service.fleet import SNAPSHOT_SECONDS, FleetCache
from rota.scheduler_service.stretches import Stretches
from rota.shared.control import business_keys, replays, tasks
from rota.shared.control.actor import Actor
from rota.shared.control.business_keys import Wanted
from rota.shared.domain.errors import DatabaseAway
from rota.shared.domain.times import written_utc
from rota.shared.settings import Settings
from rota.shared.store import loads, schedulers, workers
from rota.shared.store.schedulers import MOST_WOKEN, Listening
from rota.shared.waking import schedulers as waking
from rota.shared.waking.pace import REST_SECONDS
from rota.shared.waking.schedulers import wake_schedulers
from rota.worker_service.rows import WorkerRows
from tests.harness.scenario import Scenario, succeeded, to_retry
from tests.harness.statements import executed
from tests.harness.wake_ups import Receiver, receiver

ANN = Actor("ann", "cli")
SECOND = timedelta(seconds=1)


@pytest.fixture
def woken() -> Iterator[Receiver]:
    """What somebody listens at."""
    with receiver() as made:
        yield made


def listens(rows: Scenario, address: str | None, lookahead: int | None = 5, silent: str | None = None) -> int:
    """A scheduler that has registered."""
    declared = replace(declaration(Settings.load()), wake_address=address, lookahead_seconds=lookahead)
    number = rows.database.write(lambda c: schedulers.register(c, declared))
    if silent:
        rows.sql("UPDATE schedule_scheduler_node SET last_tick = :at WHERE id = :id", at=silent, id=number)
    return number


def assign(rows: Scenario) -> None:
    Assigner(rows.database, Settings.load()).step()


def reads(statements: list[str]) -> int:
    return sum("wake_address" in statement for statement in statements)


# Schedulers


def test_the_schedulers_that_tick_and_listen_are_woken(rows: Scenario, woken: Receiver) -> None:
    listens(rows, None)
    listens(rows, woken.address, silent="2020-01-01 00:00:00.000000")
    stopped = listens(rows, woken.address)
    rows.database.write(lambda c: schedulers.leave(c, stopped, "vm-7"))
    wake_schedulers(rows.database, rows.now())
    assert woken.taken() == 0
    waking._known.forget(rows.database)
    listens(rows, woken.address)
    listens(rows, woken.address)
    wake_schedulers(rows.database, rows.now())
    assert woken.taken() == 2


def test_of_many_schedulers_those_are_woken_that_ticked_last(rows: Scenario) -> None:
    for number in range(MOST_WOKEN + 2):
        listens(rows, f"10.0.0.{number}:7", lookahead=number + 1)
    found = rows.database.read(schedulers.listening)
    newest = range(MOST_WOKEN + 1, 1, -1)
    assert found == [Listening(f"10.0.0.{number}:7", number + 1) for number in newest]


def test_a_scheduler_is_not_woken_for_what_is_beyond_its_look_ahead(rows: Scenario, woken: Receiver) -> None:
    listens(rows, woken.address, lookahead=5)
    listens(rows, woken.address, lookahead=60)
    listens(rows, woken.address, lookahead=None)
    taken = []
    for seconds in (-1000, 0, 4, 30, 70):
        wake_schedulers(rows.database, rows.now() + seconds * SECOND)
        taken.append(woken.taken())
    assert taken == [2, 2, 2, 1, 0]


def test_who_listens_is_read_once_in_a_few_seconds(
    rows: Scenario, woken: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens(rows, woken.address)
    monotonic = rows.database.clock.monotonic
    with executed(rows.database.engine) as statements:
        for _ in range(10):
            wake_schedulers(rows.database, rows.now())
        assert (reads(statements), woken.taken()) == (1, 10)
        monkeypatch.setattr(rows.database.clock, "monotonic", lambda: monotonic() + 6)
        wake_schedulers(rows.database, rows.now())
        assert reads(statements) == 2


def test_a_database_that_is_away_fails_nothing_that_is_committed(
    rows: Scenario, woken: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens(rows, woken.address)

    def away(_: object) -> None:
        raise DatabaseAway("it is away")

    monkeypatch.setattr(rows.database, "read_undisturbed", away)
    wake_schedulers(rows.database, rows.start)
    assert woken.taken() == 0


def test_who_asks_for_work_wakes_the_schedulers_once_it_is_committed(rows: Scenario, woken: Receiver) -> None:
    listens(rows, woken.address)
    ended = rows.ended("failed", task=rows.task("nightly"))
    soon, later = (written_utc(rows.now() + n * SECOND) for n in (2, 600))
    database = rows.database
    acts: list[tuple[Any, int]] = [
        (partial(tasks.run, database, ANN, "nightly"), 1),
        (partial(tasks.run, database, ANN, "nightly", at=later), 0),
        (partial(replays.replay, database, ANN, [ended]), 1),
        (partial(business_keys.once, database, ANN, "REPORT", Wanted("a")), 1),
        (partial(business_keys.once, database, ANN, "REPORT", Wanted("b", later)), 0),
        (partial(business_keys.once_many, database, ANN, "REPORT", [Wanted("c", later), Wanted("d", soon)]), 1),
        (partial(business_keys.once_many, database, ANN, "REPORT", [Wanted("e", later)]), 0),
    ]
    for act, woken_then in acts:
        act()
        assert woken.taken() == woken_then, act


def test_a_filtered_replay_wakes_them_too(rows: Scenario, woken: Receiver) -> None:
    listens(rows, woken.address)
    rows.ended("failed")
    found = replays.find(rows.database, replays.ReplayFilter())
    assert replays.replay_found(rows.database, ANN, replays.ReplayFilter(), found.last).done == 1
    assert woken.taken() == 1


def test_a_report_wakes_them_if_a_run_is_to_be_retried_within_their_look_ahead(rows: Scenario, woken: Receiver) -> None:
    listens(rows, woken.address)
    worker = rows.worker()
    own = WorkerRows(rows.database, worker)
    own.report([succeeded(rows.running(worker))])
    own.report([to_retry(rows.running(worker), rows.now() + 60 * SECOND)])
    assert woken.taken() == 0
    own.report([succeeded(rows.running(worker)), to_retry(rows.running(worker), rows.now() + SECOND)])
    assert woken.taken() == 1
    own.report_and_hand_on([to_retry(rows.running(worker), rows.now())], [])
    assert woken.taken() == 1


# After the commit of a program's own transaction


@pytest.mark.parametrize("error", [DatabaseAway("it is away"), TimeoutError("no connection of the pool")])
def test_after_a_commit_nothing_is_raised(rows: Scenario, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: object) -> None:
        raise error

    rows.task("nightly")
    monkeypatch.setattr(rows.database, "read_undisturbed", fail)
    assert tasks.run(rows.database, ANN, "nightly").document["status"] == "pending"


def test_client_wake_raises_nothing(rows: Scenario, woken: Receiver) -> None:
    listens(rows, woken.address)
    with Client(rows.database.url.render_as_string(hide_password=False)) as client:
        client.wake()
        assert woken.taken() == 1
    with Client("mysql://rota@127.0.0.1:1/rota") as client:
        client.wake()


# Workers


@pytest.mark.parametrize(
    ("columns", "is_urgent"),
    [
        ({"origin": "manual"}, True),
        ({"origin": "replay"}, True),
        ({"origin": "sql"}, True),
        ({"origin": "cron"}, False),
        ({"origin": "cron", "priority": 0}, True),
        ({"origin": "cron", "priority": 1}, True),
        ({"origin": "cron", "priority": 2}, False),
        ({"origin": "cron", "attempt": 1, "reason": "it failed"}, True),
        ({"origin": "backfill"}, False),
        ({"origin": "backfill", "priority": 0}, False),
    ],
)
def test_a_worker_is_woken_for_urgent_work_that_it_is_given(
    rows: Scenario, woken: Receiver, columns: dict[str, Any], is_urgent: bool
) -> None:
    worker = rows.worker(wake_address=woken.address)
    instance = rows.pending(at=rows.now(), **columns)
    assign(rows)
    assert (rows.row(instance).schedule_worker_node_id, woken.taken()) == (worker, int(is_urgent))


def test_a_worker_is_woken_once_for_all_that_it_is_given(rows: Scenario, woken: Receiver) -> None:
    rows.worker(wake_address=woken.address)
    for _ in range(5):
        rows.pending(origin="manual")
    assign(rows)
    assert woken.taken() == 1


def test_what_a_worker_polls_in_time_wakes_nobody(rows: Scenario, woken: Receiver) -> None:
    rows.worker(wake_address=woken.address)
    instance = rows.pending(at=rows.now() + 4 * SECOND, origin="manual")
    assign(rows)
    assert (rows.status(instance), woken.taken()) == ("assigned", 0)


def test_a_worker_whose_slots_are_taken_is_not_woken(rows: Scenario, woken: Receiver) -> None:
    worker = rows.worker(wake_address=woken.address, capacity=1)
    rows.running(worker)
    instance = rows.pending(origin="manual")
    assign(rows)
    assert (rows.status(instance), woken.taken()) == ("assigned", 0)


@pytest.mark.parametrize(("queued", "asked"), [(10, 1), (0, 10)])
def test_a_worker_with_free_slots_is_woken_whatever_waits_in_its_queue(
    rows: Scenario, woken: Receiver, queued: int, asked: int
) -> None:
    """Fires of the next seconds wait there, and more may be asked for at once than it can run at once."""
    worker = rows.worker(wake_address=woken.address, capacity=2, prefetch=100)
    if queued:
        rows.queued(worker, queued)
    for _ in range(asked):
        rows.pending(origin="manual")
    assign(rows)
    assert woken.taken() == 1


def test_a_worker_that_is_gone_since_it_was_chosen_holds_up_nothing(
    rows: Scenario, woken: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = rows.worker()
    assigner = Assigner(rows.database, Settings.load(batch=1))
    instances = [rows.pending(origin="manual") for _ in range(3)]
    place = placing.place

    def place_and_lose(*given: Any) -> Any:
        done = place(*given)
        monkeypatch.setattr(assigner_module, "place", place)
        rows.sql("UPDATE schedule_worker_node SET gmt_blocked = :now WHERE id = :gone", now=rows.now(), gone=gone)
        assigner._fleet_cache._good_until = 0.0
        return done

    monkeypatch.setattr(assigner_module, "place", place_and_lose)
    assigner.step()
    assert [rows.row(one).schedule_worker_node_id for one in instances] == [None, None, gone]


@pytest.mark.parametrize(("priority", "is_woken"), [(0, True), (1, True), (2, False)])
def test_a_fire_that_is_written_late_wakes_its_worker_if_it_is_urgent(
    rows: Scenario, woken: Receiver, priority: int, is_woken: bool
) -> None:
    worker = rows.worker(wake_address=woken.address)
    task = rows.planned_task(cron="@yearly", priority=priority, next_fire_at=rows.now())
    materializer = Materializer(rows.database, Settings.load(), FleetCache(rows.database))
    materializer.step()
    [row] = rows.sql("SELECT schedule_worker_node_id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    assert (row.schedule_worker_node_id, woken.taken()) == (worker, int(is_woken))


def test_workers_that_do_not_listen_are_given_work_as_ever(rows: Scenario) -> None:
    rows.worker()
    instance = rows.pending(origin="manual")
    assign(rows)
    assert rows.status(instance) == "assigned"


@pytest.mark.parametrize("spoiled", ["nobody", "", "256.0.0.1:5", "127.0.0.1:0", ":5", "rota.invalid:5"])
def test_an_address_that_sql_has_spoiled_holds_up_nothing(rows: Scenario, woken: Receiver, spoiled: str) -> None:
    worker = rows.worker(wake_address=spoiled)
    listens(rows, spoiled)
    listens(rows, woken.address)
    instance = rows.pending(origin="manual")
    assign(rows)
    wake_schedulers(rows.database, rows.now())
    assert (rows.row(instance).schedule_worker_node_id, woken.taken()) == (worker, 1)


def test_their_rows_tell_where_they_listen(rows: Scenario) -> None:
    rows.worker(wake_address="10.0.0.5:7788")
    assert [one.wake_address for one in rows.database.read(loads.fleet)] == ["10.0.0.5:7788"]
    listens(rows, "10.0.0.6:7788", lookahead=7)
    [seen] = rows.database.read(workers.alive)
    assert seen.wake_address == "10.0.0.5:7788"


# Duties of one scheduler wake each other


def test_the_assigner_is_woken_for_what_a_program_has_asked_for(rows: Scenario) -> None:
    calls: list[str] = []
    duty = Requests(rows.database, Settings.load(), lambda: calls.append("assign"))
    duty.step()
    assert calls == []
    rows.sql("INSERT INTO schedule_request (type, number, param) VALUES ('REPORT', 'a', '{}')")
    duty.step()
    assert calls == ["assign"]


def test_the_assigner_is_woken_for_the_next_run_of_a_key(rows: Scenario) -> None:
    calls: list[str] = []
    duty = BusinessKeys(rows.database, Settings.load(), lambda: calls.append("assign"))
    made = business_keys.once(rows.database, ANN, "REPORT", Wanted("a"))
    duty.step()
    assert calls == []
    worker = rows.worker()
    rows.give(worker, made["instance_id"])
    [run] = rows.claim(worker, made["instance_id"]).runs
    assert business_keys.once(rows.database, ANN, "REPORT", Wanted("a"))["done"] == "kept"
    rows.report(worker, succeeded(run))
    duty.step()
    assert calls == ["assign"]
    [row] = rows.sql("SELECT id FROM schedule_instance WHERE status = 'pending'")
    rows.give(worker, row.id)
    rows.report(worker, succeeded(rows.claim(worker, row.id).runs[0]))
    duty.step()
    assert calls == ["assign"], "nothing follows: the key is free"


def test_in_a_scheduler_both_make_the_assigner_look_at_everything(rows: Scenario) -> None:
    scheduler = Scheduler(rows.database, Settings.load())
    duties = {loop.name: loop._step for loop in scheduler._loops}
    rows.sql("INSERT INTO schedule_request (type, number, param) VALUES ('REPORT', 'a', '{}')")
    duties["requests"]()
    assert scheduler._assigner.is_woken
    worker = rows.worker()
    [row] = rows.sql("SELECT id FROM schedule_instance")
    rows.give(worker, row.id)
    [run] = rows.claim(worker, row.id).runs
    business_keys.once(rows.database, ANN, "REPORT", Wanted("a"))
    rows.report(worker, succeeded(run))
    scheduler._assigner.is_woken = False
    duties["business keys"]()
    assert scheduler._assigner.is_woken


def test_while_workers_are_full_a_scheduler_looks_more_rarely(rows: Scenario) -> None:
    scheduler = Scheduler(rows.database, Settings.load())
    assert scheduler._look_now() == REST_SECONDS
    scheduler._assigner.is_crowded = True
    assert scheduler._look_now() == SNAPSHOT_SECONDS


def test_a_scheduler_that_is_woken_gives_what_is_urgent_though_it_works_off_a_stretch(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.worker()
    assigner = Assigner(rows.database, Settings.load(tick_seconds=60, lookahead_seconds=300, liveness_seconds=300))
    assigner.step()
    monkeypatch.setattr(Stretches, "quick", [rows.task()])
    instance = rows.pending(origin="manual")
    assigner.step()
    assert rows.status(instance) == "pending"
    assigner.is_woken = True
    assigner.step()
    assert rows.status(instance) == "assigned"


def test_a_scheduler_without_an_address_listens_nowhere(rows: Scenario) -> None:
    scheduler = Scheduler(rows.database, Settings.load())
    assert scheduler._listener is None
    assert scheduler._presence._declaration.wake_address is None
