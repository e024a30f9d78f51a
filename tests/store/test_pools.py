"""Pools of threads: who may be given an instance of a pool, how many, and what a worker polls for it."""

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.pool_places import PoolPlaces
from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.control import tasks, workers
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, NameTaken
from rota.shared.settings import Settings
from rota.shared.store import assignments, loads, polling
from rota.shared.store.polling import Queue
from rota.shared.store.pools import PoolLoad
from rota.shared.store.workers import Load, heartbeat
from rota.worker_service.authoring import Rota
from rota.worker_service.declarations import Declarations
from tests.harness.giving import Giving
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.statements import executed

ANN = Actor("ann", "cli")
HELD = "SELECT schedule_worker_node_id, COUNT(*) FROM schedule_instance WHERE status = 'assigned' GROUP BY 1"


class Pooled(Giving):
    """Workers with and without pools, a task that runs in a pool, and the duties of a scheduler."""

    def worker(self, name: str, pools: dict[str, int] | None = None, **fields: Any) -> int:
        return self.rows.worker(name, pools=pools or {}, **fields)

    def task(self, pool: str | None = "images", **fields: Any) -> int:
        """The task, whose pool SQL has written."""
        task = self.rows.task(overlap_policy="allow", **fields)
        self.rows.sql("UPDATE schedule_task SET pool = :pool WHERE id = :task", pool=pool, task=task)
        return task

    def given(self) -> dict[int, int]:
        return dict(map(tuple, self.rows.sql(HELD)))

    def polled(self, worker: int, pool: str | None) -> set[int]:
        horizon = self.rows.now() + timedelta(minutes=1)
        queue = Queue(worker, pools=("images", "mail")) if pool is None else Queue(worker, pool)
        found = self.database.read(lambda c: polling.poll(c, queue, horizon, 1000))
        return {instance for instance, _, _ in found.rows}


@pytest.fixture
def pooled(database: Database) -> Pooled:
    return Pooled(database)


def test_only_a_worker_with_the_pool_is_given_what_runs_in_it(pooled: Pooled) -> None:
    pooled.worker("without", capacity=1000)
    pooled.worker("other", {"mail": 9})
    worker = pooled.worker("with", {"images": 2})
    pooled.pending(pooled.task(), 3)
    pooled.step()
    assert pooled.given() == {worker: 3}


def test_a_pool_is_given_its_size_and_its_share_of_the_queue_and_the_slots_get_the_others(pooled: Pooled) -> None:
    worker = pooled.worker("with", {"images": 2}, capacity=10, prefetch=20)
    first = pooled.pending(pooled.task(), 10)
    plain = pooled.pending(pooled.task(None), 30)
    last = pooled.pending(pooled.task(), 1)
    pooled.step()
    pooled.step()
    assert pooled.held(worker) == {"images": PoolLoad(assigned=6)}, "2 threads, and 2 for each in the queue"
    statuses = Counter((i in first, i in plain, status) for i, status in pooled.rows.statuses().items())
    assert statuses[True, False, "assigned"] + statuses[False, False, "assigned"] == 6
    assert statuses[False, True, "assigned"] == 30, "a full pool holds up its own tasks alone"
    [waits, *_] = [i for i in (*first, *last) if pooled.rows.status(i) == "pending"]
    assert pooled.reason(waits) == "every worker that fits is full"


def test_the_pool_with_most_room_is_chosen_whatever_the_slots_of_its_worker_do(pooled: Pooled) -> None:
    busy = pooled.worker("busy", {"images": 4}, capacity=10, prefetch=10)
    idle = pooled.worker("idle", {"images": 1}, capacity=10, prefetch=10)
    for _ in range(10):
        pooled.rows.running(busy, pooled.task(None))
    pooled.pending(pooled.task(), 5)
    pooled.step()
    assert pooled.given() == {busy: 4, idle: 1}


def test_what_runs_in_a_pool_counts_for_it_and_not_for_the_slots(pooled: Pooled) -> None:
    worker = pooled.worker("with", {"images": 2}, capacity=2, prefetch=0)
    images = pooled.pending(pooled.task(), 2)
    pooled.step()
    runs = pooled.rows.claim(worker, *images).runs
    assert pooled.held(worker) == {"images": PoolLoad(running=2)}
    waiting = pooled.pending(pooled.task(), 1)
    plain = pooled.pending(pooled.task(None), 2)
    pooled.step()
    assert [pooled.rows.status(i) for i in (*waiting, *plain)] == ["pending", "assigned", "assigned"]
    pooled.rows.report(worker, ended(runs[0]))
    pooled.step()
    assert pooled.rows.status(waiting[0]) == "assigned"


def test_a_worker_polls_for_each_pool_and_for_its_slots_apart(pooled: Pooled) -> None:
    worker = pooled.worker("with", {"images": 5, "mail": 5}, capacity=10)
    images, mail = pooled.pending(pooled.task(), 3), pooled.pending(pooled.task("mail"), 2)
    plain = pooled.pending(pooled.task(None), 4)
    pooled.step()
    found = [pooled.polled(worker, pool) for pool in ("images", "mail", None)]
    assert found == [set(images), set(mail), set(plain)]


def test_the_pool_is_that_of_the_task_when_the_instance_was_given(pooled: Pooled) -> None:
    """What comes back is given anew: for the pool that its task has then, or for none."""
    worker = pooled.worker("with", {"images": 5, "mail": 5})
    task = pooled.task()
    [instance] = pooled.pending(task, 1)
    pooled.step()
    tasks.edit(pooled.database, ANN, pooled.rows.task_row(task).name, {"pool": "mail"})
    assert pooled.polled(worker, "images") == {instance}, "a worker has it already"
    [run] = pooled.rows.claim(worker, instance).runs
    pooled.rows.report(worker, to_retry(run, pooled.rows.now()))
    assert pooled.held(worker) == {}
    pooled.step()
    assert (pooled.polled(worker, "images"), pooled.polled(worker, "mail")) == (set(), {instance})
    tasks.edit(pooled.database, ANN, pooled.rows.task_row(task).name, {"pool": None})
    pooled.database.write(lambda c: assignments.take_back_assigned(c, worker, 10))
    pooled.step()
    assert (pooled.polled(worker, "mail"), pooled.polled(worker, None)) == (set(), {instance})
    assert pooled.held(worker) == {}


def test_a_worker_that_starts_again_without_the_pool_is_given_nothing_of_it(pooled: Pooled) -> None:
    first = pooled.worker("w", {"images": 2})
    task = pooled.task()
    [instance] = pooled.pending(task, 1)
    pooled.step()
    pooled.rows.bury(first)
    pooled.database.write(lambda c: assignments.take_back_assigned(c, first, 10))
    pooled.worker("v")
    pooled.step()
    assert pooled.rows.status(instance) == "pending"
    assert pooled.reason(instance) == "no live worker has the pool 'images'"
    second = pooled.worker("u", {"images": 1})
    pooled.step()
    assert pooled.given() == {second: 1}


def test_the_reason_tells_the_pool_from_the_type_and_the_labels(pooled: Pooled) -> None:
    pooled.worker("mailer", {"mail": 2}, node_types=[], type_versions={})
    pooled.worker("far", {"images": 2}, labels={"region": "us"})
    [mail] = pooled.pending(pooled.task("mail"), 1)
    [images] = pooled.pending(pooled.task(required_labels={"region": "eu"}), 1)
    pooled.step()
    assert pooled.reason(mail) == "no live worker that has the pool 'mail' can run REPORT"
    told = "no live worker that can run it and has the pool 'images' carries the labels region=eu"
    assert pooled.reason(images) == told


def test_without_any_worker_nobody_is_live(pooled: Pooled) -> None:
    [instance] = pooled.pending(pooled.task(), 1)
    pooled.step()
    assert pooled.reason(instance) == "no worker is live"


def test_a_fire_is_left_to_the_assigner_and_given_for_the_pool(pooled: Pooled) -> None:
    worker = pooled.worker("with", {"images": 2})
    pooled.rows.planned_task(cron="* * * * *", pool="images", overlap_policy="allow")
    Materializer(pooled.database, Settings.load(), pooled.fleet).step()
    assert set(pooled.rows.statuses().values()) == {"pending"}
    pooled.step()
    assert pooled.polled(worker, "images") == set(pooled.rows.statuses())


@pytest.mark.parametrize("spread", ["broadcast", "workers"])
def test_shards_go_to_the_workers_that_have_the_pool(pooled: Pooled, spread: str) -> None:
    pooled.worker("without")
    having = {pooled.worker(name, {"images": 2}) for name in ("a", "b")}
    name = pooled.rows.task_row(pooled.task(spread=spread)).name
    tasks.run(pooled.database, ANN, name)
    pooled.step()
    pooled.spreader.step()
    pooled.step()
    assert pooled.given() == dict.fromkeys(having, 1)
    assert all(len(pooled.polled(worker, "images")) == 1 for worker in having)


def test_a_task_with_an_unknown_pool_is_refused_and_nothing_is_changed(pooled: Pooled) -> None:
    pooled.task(None)  # its type is registered
    given = {"name": "thumbs", "type": "REPORT", "pool": "imagse"}
    with pytest.raises(InvalidInput, match="no worker has a pool 'imagse'; there is none; an app declares one"):
        tasks.add(pooled.database, ANN, given)
    dead = pooled.worker("dead", {"images": 2})
    pooled.rows.bury(dead)
    pooled.worker("live", {"mail": 1})
    known = r"no worker has a pool 'imagse' \(did you mean images\?\); there are: images, mail;"
    with pytest.raises(InvalidInput, match=known):
        tasks.add(pooled.database, ANN, given)
    tasks.add(pooled.database, ANN, {**given, "pool": "images"})
    with pytest.raises(InvalidInput, match=known):
        tasks.edit(pooled.database, ANN, "thumbs", {"pool": "imagse", "priority": 1})
    found = tasks.get(pooled.database, "thumbs")
    assert (found["pool"], found["priority"]) == ("images", 5)
    assert tasks.edit(pooled.database, ANN, "thumbs", {"pool": None}).document["pool"] is None


def test_code_names_a_pool_of_its_own_app_or_of_another_apps_workers(pooled: Pooled) -> None:
    app = Rota()
    app.pool("images", size=2)
    app.schedule("thumbs", "REPORT", pool="images")
    with pytest.raises(NameTaken, match="pool 'images' is declared twice"):
        app.pool("images", 3)
    pooled.task(None)
    declare = partial(Declarations, pooled.database, by="w", settings=Settings.load(), own_pools=app.pools)
    declare(definitions=app.schedules).declare()
    assert tasks.get(pooled.database, "thumbs")["pool"] == "images"
    other = Rota()
    other.schedule("letters", "REPORT", pool="mail")
    with pytest.raises(InvalidInput, match="task 'letters': no worker has a pool 'mail'; there are: images;"):
        declare(definitions=other.schedules).declare()
    assert pooled.rows.sql("SELECT name FROM schedule_task WHERE name = 'letters'") == []
    pooled.worker("mailer", {"mail": 1})
    declare(definitions=other.schedules).declare()
    assert tasks.get(pooled.database, "letters")["pool"] == "mail"


@pytest.mark.parametrize(
    ("name", "size", "fault"),
    [
        ("", 1, "a name has 1 to 63 characters"),
        (" x", 1, "no blank at its ends"),
        ("x" * 64, 1, "a name has 1 to 63 characters"),
        (7, 1, "pool 7: a name has"),
        ("x", 0, "pool 'x': size 0 must be a whole number from 1 to 10,000"),
        ("x", True, "size True must be"),
        ("x", 2.0, "size 2.0 must be"),
    ],
)
def test_a_pool_that_is_none_is_refused_where_it_is_declared(name: Any, size: Any, fault: str) -> None:
    app = Rota()
    with pytest.raises(InvalidInput, match=fault):
        app.pool(name, size)
    assert app.pools == {}


def test_workers_are_shown_with_what_their_pools_hold(pooled: Pooled) -> None:
    worker = pooled.worker("with", {"images": 2, "mail": 1})
    images = pooled.pending(pooled.task(), 3)
    pooled.step()
    pooled.rows.claim(worker, images[0])
    shown = {
        "images": {"size": 2, "assigned": 2, "running": 1, "taken": 1},
        "mail": {"size": 1, "assigned": 0, "running": 0, "taken": 0},
    }
    assert workers.show(pooled.database, "with")["pools"] == shown
    pooled.worker("without")
    assert [one["pools"] for one in workers.listed(pooled.database, 5)] == [{}, shown]


def test_the_doctor_tells_of_pools_that_no_live_worker_has(pooled: Pooled) -> None:
    pooled.worker("with", {"images": 2})
    pooled.task(name="thumbs")
    assert workers.check_pools(pooled.database).ok
    pooled.task("mail", name="letters")
    pooled.task("mail", name="bills")
    pooled.task("fax", name="off", status="off")
    check = workers.check_pools(pooled.database)
    assert (check.ok, check.found) == (None, "no live worker has 'mail', which 2 task(s) name: bills, …")


def test_the_rows_of_what_has_ended_are_deleted_and_no_others(pooled: Pooled) -> None:
    worker = pooled.worker("with", {"images": 5})
    kept, running, done, gone, again = pooled.pending(pooled.task(), 5)
    pooled.step()
    pooled.rows.claim(worker, running)
    for run in pooled.rows.claim(worker, done).runs:
        pooled.rows.report(worker, ended(run))
    pooled.rows.sql("DELETE FROM schedule_instance WHERE id = :gone", gone=gone)
    for run in pooled.rows.claim(worker, again).runs:
        pooled.rows.report(worker, to_retry(run, pooled.rows.now()))
    duty = PoolPlaces(pooled.database, Settings.load())
    assert duty.step() > 0
    left = {row[0] for row in pooled.rows.sql("SELECT schedule_instance_id FROM schedule_pool_place")}
    assert left == {kept, running}
    pooled.step()
    assert again in pooled.polled(worker, "images")
    duty.step()
    assert again in pooled.polled(worker, "images")


def test_what_sql_has_spoiled_of_a_workers_pools_counts_for_nothing(pooled: Pooled) -> None:
    worker = pooled.worker("with", {"images": 2})
    spoiled = '{"images": "2", "mail": 1, "fax": 0, "x": null}'
    pooled.rows.sql("UPDATE schedule_worker_node SET pools = :pools WHERE id = :id", pools=spoiled, id=worker)
    [found] = pooled.database.read(loads.fleet)
    assert found.pools == {"mail": 1}
    pooled.rows.sql("UPDATE schedule_worker_node SET pools = '[1]' WHERE id = :id", id=worker)
    [found] = pooled.database.read(loads.fleet)
    assert found.pools == {}


def test_where_no_worker_has_a_place_none_is_read_or_written(pooled: Pooled) -> None:
    pooled.worker("plain")
    pooled.pending(pooled.task(None), 3)
    with executed(pooled.database.engine) as statements:
        pooled.step()
    assert [one for one in statements if "schedule_pool_place.weight" in one or "INTO schedule_pool_place" in one] == []
    worker = pooled.worker("with", {"images": 2})
    pooled.pending(pooled.task(), 1)
    pooled.step()
    with executed(pooled.database.engine) as statements:
        pooled.step()
        assert pooled.held(worker)
    assert [one for one in statements if "schedule_pool_place.weight" in one] != []


def make_late(rows: Scenario) -> None:
    """What waits in workers was due, and given to them, long ago."""
    long_ago = rows.now() - timedelta(hours=1)
    for table in ("schedule_instance", "schedule_pool_place"):
        rows.sql(f"UPDATE {table} SET gmt_assigned = :at", at=f"{long_ago:%Y-%m-%d %H:%M:%S.%f}")


def taken_back(pooled: Pooled) -> set[int]:
    """What the reaper takes back now because its worker, which starts others, has not started it in time."""
    before = pooled.rows.statuses()
    alive = [worker.id for worker in pooled.database.read(loads.fleet)]
    for worker in alive:
        pooled.database.write(partial(heartbeat, worker_id=worker, load=Load(started=1_000 + len(alive))))
    Reaper(pooled.database, Settings.load(), "test")._take_back_unstarted(alive)
    after = pooled.rows.statuses()
    return {instance for instance in before if (before[instance], after[instance]) == ("assigned", "pending")}


def test_what_waits_for_a_slow_pool_is_taken_back_only_for_a_worker_whose_pool_is_free(pooled: Pooled) -> None:
    worker = pooled.worker("slow", {"images": 1})
    first, *waiting = pooled.pending(pooled.task(), 3)
    [plain] = pooled.pending(pooled.task(None), 1)
    pooled.step()
    pooled.rows.claim(worker, first)
    make_late(pooled.rows)
    pooled.worker("idle")
    pooled.worker("other", {"mail": 1})
    assert taken_back(pooled) == {plain}, "another worker would begin at once what needs no pool"
    pooled.worker("free", {"images": 1})
    assert taken_back(pooled) == set(waiting)


def test_what_needs_no_pool_is_not_taken_back_for_a_worker_of_which_only_a_pool_is_free(pooled: Pooled) -> None:
    worker = pooled.worker("slow", {"images": 1}, capacity=1, prefetch=9)
    images = pooled.pending(pooled.task(), 1)
    plain = pooled.pending(pooled.task(None), 2)
    pooled.step()
    pooled.rows.claim(worker, plain[0])
    other = pooled.worker("full", {"images": 1}, capacity=1)
    pooled.rows.running(other, pooled.task(None))
    make_late(pooled.rows)
    assert taken_back(pooled) == set(images)
