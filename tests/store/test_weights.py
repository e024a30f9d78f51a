"""Weights: a run that takes several slots counts as so many, for the scheduler and for the worker that has it."""

import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest

from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.pool_places import PoolPlaces
from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.control import tasks, workers
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, TooHeavy
from rota.shared.settings import Settings
from rota.shared.store import loads, polling
from rota.shared.store.polling import Polled, Queue
from rota.shared.store.pools import OWN_SLOTS, PoolLoad
from rota.shared.store.workers import Load, heartbeat
from rota.worker_service.authoring import Rota
from rota.worker_service.declarations import Declarations
from tests.harness.giving import Giving
from tests.harness.processes import wait_until
from tests.harness.puller import Puller
from tests.harness.scenario import ended, to_retry
from tests.harness.statements import executed

ANN = Actor("ann", "cli")


class Weighed(Giving):
    """Workers, tasks that take several slots, and the duties of a scheduler."""

    def task(self, weight: int = 1, pool: str | None = None, **fields: Any) -> int:
        """A task, whose weight and pool SQL has written."""
        task = self.rows.task(**{"overlap_policy": "allow", **fields})
        self.rows.sql(
            "UPDATE schedule_task SET weight = :weight, pool = :pool WHERE id = :task",
            weight=weight,
            pool=pool,
            task=task,
        )
        return task

    def given(self) -> dict[int, list[int]]:
        """The weights of what each worker was given."""
        found = self.rows.sql(
            "SELECT i.schedule_worker_node_id, t.weight FROM schedule_instance i"
            " JOIN schedule_task t ON t.id = i.schedule_task_id WHERE i.status = 'assigned'"
        )
        weights: dict[int, list[int]] = {}
        for row in found:
            weights.setdefault(row.schedule_worker_node_id, []).append(row.weight)
        return {worker: sorted(some) for worker, some in weights.items()}

    def polled(self, queue: Queue) -> Polled:
        horizon = self.rows.now() + timedelta(minutes=1)
        return self.database.read(lambda c: polling.poll(c, queue, horizon, 1000))


@pytest.fixture
def weighed(database: Database) -> Weighed:
    return Weighed(database)


# What the scheduler gives


def test_only_a_worker_with_so_many_slots_is_given_it_and_else_it_says_why(weighed: Weighed) -> None:
    weighed.rows.worker("small", capacity=4, prefetch=100)
    [instance] = weighed.pending(weighed.task(5))
    weighed.step()
    assert weighed.reason(instance) == "no live worker that can run it has 5 slots"
    large = weighed.rows.worker("large", capacity=5, prefetch=100)
    weighed.step()
    assert weighed.given() == {large: [5]}


def test_it_counts_as_so_many_slots_while_it_waits_in_its_worker_and_while_it_runs(weighed: Weighed) -> None:
    one = weighed.rows.worker("one", capacity=5, prefetch=0)
    [heavy] = weighed.pending(weighed.task(3))
    weighed.step()
    assert weighed.held(one) == {OWN_SLOTS: PoolLoad(assigned=1, assigned_more=2)}
    [run] = weighed.rows.claim(one, heavy).runs
    assert run.weight == 3
    assert weighed.held(one) == {OWN_SLOTS: PoolLoad(running=1, running_more=2)}
    plain = weighed.pending(weighed.task(), 3)
    weighed.step()
    assert Counter(weighed.rows.status(i) for i in plain) == {"assigned": 2, "pending": 1}
    weighed.rows.report(one, ended(run))
    weighed.step()
    assert Counter(weighed.rows.status(i) for i in plain) == {"assigned": 3}
    assert weighed.held(one) == {}


def test_the_worker_with_fewest_slots_taken_is_chosen_whatever_the_number_of_its_runs(weighed: Weighed) -> None:
    few, many = (weighed.rows.worker(name, capacity=10, prefetch=10) for name in ("few", "many"))
    weighed.rows.running(many, weighed.task())
    weighed.rows.running(many, weighed.task())
    weighed.pending(weighed.task(9))
    weighed.step()
    assert weighed.given() == {few: [9]}
    weighed.pending(weighed.task(), 7)
    weighed.step()
    assert weighed.given() == {few: [9], many: [1] * 7}


def test_in_a_pool_it_takes_so_many_threads_of_that(weighed: Weighed) -> None:
    worker = weighed.rows.worker("w", capacity=10, prefetch=0, pools={"images": 3})
    images = weighed.pending(weighed.task(2, pool="images"), 1)
    weighed.step()
    assert weighed.held(worker) == {"images": PoolLoad(assigned=1, assigned_more=1)}
    assert weighed.polled(Queue(worker, "images")) == ([(images[0], *_due(weighed, images[0]))], {images[0]: 2})
    assert weighed.polled(Queue(worker, pools=("images",))).rows == []
    plain = weighed.pending(weighed.task(), 11)
    weighed.step()
    assert Counter(weighed.rows.status(i) for i in plain) == {"assigned": 10, "pending": 1}
    weighed.rows.claim(worker, *images)
    assert workers.show(weighed.database, "w")["pools"] == {
        "images": {"size": 3, "assigned": 0, "running": 1, "taken": 2}
    }


def _due(weighed: Weighed, instance: int) -> tuple[Any, int]:
    row = weighed.rows.row(instance)
    return row.due_at, row.priority


def test_a_fire_is_left_to_the_assigner_and_given_with_its_weight(weighed: Weighed) -> None:
    worker = weighed.rows.worker("w", capacity=10)
    weighed.rows.planned_task(cron="* * * * *", weight=3, overlap_policy="allow")
    Materializer(weighed.database, Settings.load(), weighed.fleet).step()
    assert set(weighed.rows.statuses().values()) == {"pending"}
    weighed.step()
    assert set(weighed.polled(Queue(worker)).weights.values()) == {3}


def test_the_weight_is_that_of_the_task_when_the_instance_was_given(weighed: Weighed) -> None:
    worker = weighed.rows.worker("w", capacity=10)
    task = weighed.task(3)
    [instance] = weighed.pending(task)
    weighed.step()
    tasks.edit(weighed.database, ANN, weighed.rows.task_row(task).name, {"weight": 1})
    assert weighed.polled(Queue(worker)).weights == {instance: 3}
    [run] = weighed.rows.claim(worker, instance).runs
    weighed.rows.report(worker, to_retry(run, weighed.rows.now()))
    weighed.step()
    assert weighed.polled(Queue(worker)).weights == {}
    assert weighed.rows.status(instance) == "assigned"


def test_a_broadcast_runs_where_there_are_so_many_slots(weighed: Weighed) -> None:
    weighed.rows.worker("small", capacity=2)
    large = {weighed.rows.worker(name, capacity=4) for name in ("a", "b")}
    tasks.run(weighed.database, ANN, weighed.rows.task_row(weighed.task(3, spread="broadcast")).name)
    weighed.step()
    weighed.spreader.step()
    weighed.step()
    assert weighed.given() == {worker: [3] for worker in large}


def test_the_row_of_what_has_ended_is_deleted(weighed: Weighed) -> None:
    worker = weighed.rows.worker("w", capacity=10)
    gone, kept = weighed.pending(weighed.task(3), 2)
    weighed.step()
    [run] = weighed.rows.claim(worker, gone).runs
    weighed.rows.report(worker, ended(run))
    PoolPlaces(weighed.database, Settings.load()).step()
    [left] = weighed.rows.sql("SELECT schedule_instance_id, pool, weight FROM schedule_pool_place")
    assert tuple(left) == (kept, OWN_SLOTS, 3)


def test_what_is_known_of_a_long_queue_does_not_grow_by_the_weights(weighed: Weighed) -> None:
    worker = weighed.rows.worker("w", capacity=100, prefetch=1000)
    task = weighed.task(50)
    weighed.pending(task, 4)
    weighed.step()
    for number in range(3):
        weighed.fleet._good_until = 0
        snapshot = weighed.fleet.current()
        assert (snapshot.load_of(worker), snapshot.fleet.load_of(worker)) == (4 + number, 200 + 50 * number)
        weighed.pending(task)
        weighed.assigner.step()
        assert snapshot.load_of(worker) == 5 + number


def test_what_waits_in_a_slow_worker_is_taken_back_for_one_with_as_many_free_slots(weighed: Weighed) -> None:
    worker = weighed.rows.worker("slow", capacity=4, prefetch=100)
    first, waits = weighed.pending(weighed.task(4), 2)
    weighed.step()
    weighed.rows.claim(worker, first)
    long_ago = f"{weighed.rows.now() - timedelta(hours=1):%Y-%m-%d %H:%M:%S.%f}"
    for table in ("schedule_instance", "schedule_pool_place"):
        weighed.rows.sql(f"UPDATE {table} SET gmt_assigned = :at", at=long_ago)
    other = weighed.rows.worker("other", capacity=4, prefetch=100, pools={"images": 1})
    for one in (worker, other):
        weighed.database.write(partial(heartbeat, worker_id=one, load=Load(started=1_000)))
    busy = weighed.rows.running(other, weighed.task())
    reaper = Reaper(weighed.database, Settings.load(), "test")
    reaper._take_back_unstarted([worker, other])
    assert weighed.rows.status(waits) == "assigned", "the other one has but three free slots"
    weighed.rows.report(other, ended(busy))
    reaper._take_back_unstarted([worker, other])
    assert weighed.rows.status(waits) == "pending"
    weighed.step()
    assert weighed.given() == {other: [4]}


def test_what_takes_one_slot_has_no_row(weighed: Weighed) -> None:
    worker = weighed.rows.worker("w", capacity=10)
    weighed.pending(weighed.task(), 3)
    with executed(weighed.database.engine) as statements:
        weighed.step()
    assert not any("INTO schedule_pool_place" in one for one in statements)
    with executed(weighed.database.engine) as statements:
        assert len(weighed.polled(Queue(worker)).rows) == 3
    assert [one for one in statements if one.startswith("SELECT")] == [ANY]


# What a worker claims


@pytest.mark.parametrize(
    ("weights", "claimed"), [([4] * 5, 2), ([10, 1], 1), ([1, 10, 1], 1), ([8, 1, 1, 1], 3), ([1] * 12, 10)]
)
def test_a_worker_claims_what_its_slots_hold(weighed: Weighed, weights: list[int], claimed: int) -> None:
    worker = weighed.rows.worker("w", capacity=10)
    past = weighed.rows.past()
    moments = [past + timedelta(seconds=number) for number in range(len(weights))]
    instances = [
        weighed.rows.pending(weighed.task(weight), moment, origin="manual")
        for weight, moment in zip(weights, moments, strict=True)
    ]
    weighed.step()
    puller = Puller(weighed.database, worker, capacity=10)
    puller.slots.expects = 0  # a database that answers slowly counts as far away: then more is claimed ahead
    puller.fetcher.fetch()
    puller.claimer.claim()
    running = [weighed.rows.status(i) == "running" for i in instances]
    assert running == [True] * claimed + [False] * (len(weights) - claimed)


@pytest.mark.parametrize(("overlap", "status"), [("skip", "canceled"), ("replace", "assigned")])
def test_it_is_skipped_for_a_run_or_replaces_one_although_too_few_slots_are_free_for_it(
    weighed: Weighed, overlap: str, status: str
) -> None:
    worker = weighed.rows.worker("w", capacity=10)
    task = weighed.task(6, overlap_policy=overlap)
    first = weighed.rows.assigned(worker, task, weighed.rows.start - timedelta(seconds=30))
    weighed.rows.claim(worker, first)
    fire = weighed.rows.assigned(worker, task, weighed.rows.start)
    small = weighed.rows.assigned(worker, weighed.task(), weighed.rows.start + timedelta(seconds=1))
    weighed.rows.sql("UPDATE schedule_instance SET gmt_started = due_at WHERE id = :id", id=first)
    puller = Puller(weighed.database, worker, capacity=10)
    puller.slots.abandon(+6)  # as many as the first run takes
    claiming = threading.Thread(target=_claim_until_closed, args=[puller], daemon=True)
    puller.fetcher.fetch()
    claiming.start()

    def is_settled() -> bool:
        puller.fetcher.fetch()
        asked = weighed.rows.row(first).gmt_cancel_requested is not None
        return weighed.rows.status(small) == "running" and (asked or weighed.rows.status(fire) == "canceled")

    try:
        wait_until(is_settled, 20, "the fire to be judged, and the small one to run beside it")
        assert weighed.rows.status(fire) == status
    finally:
        puller.backlog.close()
        claiming.join(10)


def _claim_until_closed(puller: Puller) -> None:
    while not puller.backlog.closed:
        puller.claimer.claim()


# What is refused


def test_a_weight_beyond_every_worker_is_refused_and_nothing_is_changed(weighed: Weighed) -> None:
    weighed.task()  # its type is registered
    given = {"name": "scan", "type": "REPORT", "weight": 60}
    tasks.add(weighed.database, ANN, {**given, "name": "before any worker"})
    weighed.rows.bury(weighed.rows.worker("dead", capacity=50))
    weighed.rows.worker("live", capacity=20, pools={"images": 2})
    beyond = "weight 60: no worker has so many slots; the largest has 50"
    with pytest.raises(TooHeavy, match=beyond):
        tasks.add(weighed.database, ANN, given)
    tasks.add(weighed.database, ANN, {**given, "weight": 50})
    with pytest.raises(TooHeavy, match=beyond):
        tasks.edit(weighed.database, ANN, "scan", {"weight": 60, "priority": 1})
    in_pool = "weight 50: no worker has so many threads in its pool 'images'; the largest has 2"
    with pytest.raises(TooHeavy, match=in_pool):
        tasks.edit(weighed.database, ANN, "scan", {"pool": "images"})
    found = tasks.get(weighed.database, "scan")
    assert (found["weight"], found["pool"], found["priority"]) == (50, None, 5)
    assert tasks.edit(weighed.database, ANN, "scan", {"weight": 2, "pool": "images"}).document["weight"] == 2
    with pytest.raises(InvalidInput, match="weight"):
        tasks.edit(weighed.database, ANN, "scan", {"weight": 0})


@pytest.mark.parametrize("weight", [0, -3, 10_001])
def test_what_sql_has_made_no_weight_counts_as_one_slot(weighed: Weighed, weight: int) -> None:
    """As somebody writes it whose session does not check: the CHECK refuses it otherwise."""
    worker = weighed.rows.worker("w", capacity=10)
    task = weighed.task(weight)
    [instance] = weighed.pending(task)
    Materializer(weighed.database, Settings.load(), weighed.fleet).step()
    weighed.step()
    assert weighed.polled(Queue(worker)).weights == {}
    [run] = weighed.rows.claim(worker, instance).runs
    assert run.weight == 1
    assert workers.check_weights(weighed.database).ok


def test_code_that_asks_for_more_than_any_worker_has_waits_for_a_larger_one(
    weighed: Weighed, caplog: pytest.LogCaptureFixture
) -> None:
    app = Rota()
    app.pool("images", size=2)
    app.schedule("scan", "REPORT", weight=8)
    app.schedule("thumbs", "REPORT", weight=3, pool="images")
    app.schedule("small", "REPORT", weight=4)
    weighed.task()
    settings = Settings.load(capacity=4)
    declared = Declarations(weighed.database, app.schedules, "w", settings, own_pools=app.pools)
    declared.declare()
    names = "SELECT name FROM schedule_task WHERE name IN ('scan', 'thumbs', 'small') ORDER BY name"
    assert weighed.rows.sql(names) == [("small",)]
    assert "task 'scan': weight 8: no worker has so many slots; the largest has 4; it is declared when" in caplog.text
    assert "task 'thumbs': weight 3: no worker has so many threads in its pool 'images'; the largest" in caplog.text
    weighed.rows.worker("large", capacity=8, pools={"images": 3})
    declared.look()
    assert weighed.rows.sql(names) == [("scan",), ("small",), ("thumbs",)]


def test_the_doctor_tells_of_weights_that_no_live_worker_can_hold(weighed: Weighed) -> None:
    weighed.rows.worker("w", capacity=5, pools={"images": 2})
    weighed.task(5, name="fits")
    weighed.task(2, name="fits the pool", pool="images")
    assert workers.check_weights(weighed.database).ok
    weighed.task(6, name="b")
    weighed.task(6, name="a")
    weighed.task(9, name="off", status="off")
    weighed.task(3, name="thumbs", pool="images")
    check = workers.check_weights(weighed.database)
    assert check.ok is None
    assert check.found.split("; ") == [
        "no live worker has 6 slots, which 2 task(s) take: a, …",
        "no live worker has 3 threads in its pool 'images', which 1 task(s) take: thumbs",
    ]
    assert [one.id for one in weighed.database.read(loads.fleet)]
