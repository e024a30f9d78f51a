"""Crowds: very many instances of one group hold up those of others neither in a worker nor in the scheduler."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from rota.scheduler_service import behind, fleet
from rota.scheduler_service.duties import assigner as assigner_module
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.fleet import FleetCache
from rota.shared.database.transactions import Database
from rota.shared.domain.groups import Group, Member, crowds_of, group_of
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import crowds, polling
from rota.shared.store.crowds import NOBODY, Beside
from rota.shared.store.polling import Queue
from rota.shared.store.tables import schedule_instance
from rota.worker_service.pulling.fair_queue import Rank
from tests.harness.puller import Puller
from tests.harness.scenario import Scenario
from tests.harness.statements import executed

FLOOD = 120
SHOP, MAIL = "shop", "mail"


@pytest.fixture
def rows(database: Database) -> Scenario:
    return Scenario(database)


def task(rows: Scenario, group: str | None) -> int:
    return rows.task(overlap_policy="allow", task_group=group)


def flood(rows: Scenario, task_id: int, number: int = FLOOD, *, worker: int | None = None, priority: int = 5) -> None:
    """Instances of a task that are due for an hour, pending or assigned to a worker."""
    status = "pending" if worker is None else "assigned"
    begin = rows.start - timedelta(hours=1)
    values = [
        {
            "schedule_task_id": task_id,
            "schedule_datetime": begin + timedelta(seconds=n),
            "due_at": begin + timedelta(seconds=n),
            "run_number": 0,
            "status": status,
            "schedule_worker_node_id": worker,
            "priority": priority,
        }
        for n in range(number)
    ]
    rows.database.write(lambda c: c.execute(insert(schedule_instance), values).rowcount)


# Which groups are crowds


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([], set()),
        (["a"], set()),
        (["a", "a"], {"a"}),
        (range(10), set()),
        (["a"] * 95 + ["b"] * 5, {"a"}),
        (["a"] * 90 + ["b"] * 10, {"a", "b"}),
        (["a"] * 30 + list(range(70)), set()),
        (["a"] * 50 + list(range(50)), {"a"}),
        (range(100), set()),
    ],
)
def test_a_crowd_is_a_tenth_of_what_waits_where_crowds_are_half_of_it(groups: list[Group], found: set[Group]) -> None:
    assert crowds_of(groups) == found


def test_a_task_without_a_group_is_one_of_its_own() -> None:
    assert [group_of("7", 7), group_of(None, 7), group_of("", 7)] == ["7", 7, 7]


# What a worker reads


def beside(rows: Scenario, queue: Queue, priority: int = 5) -> Beside:
    polled = rows.database.read(lambda c: polling.poll(c, queue, rows.start, FLOOD)).rows
    waiting = [instance for instance, _, of_it in polled if of_it == priority]
    horizon = rows.start + timedelta(seconds=5)
    return rows.database.read(lambda c: crowds.beside(c, queue, waiting, priority, horizon))


def groups_of(found: Beside) -> dict[int, Group]:
    return {instance: member.group for instance, member in found.members.items()}


def test_what_waits_behind_a_crowd_is_read_with_its_groups(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    alone = task(rows, None)
    due = rows.assigned(worker, task(rows, SHOP), rows.start)
    soon = rows.assigned(worker, alone, rows.start + timedelta(seconds=4))
    rows.assigned(worker, task(rows, SHOP), rows.start + timedelta(seconds=6))
    rows.assigned(worker, task(rows, SHOP), rows.start, priority=6)
    rows.assigned(other, task(rows, SHOP), rows.start)
    rows.pending(task(rows, SHOP), rows.start)
    found = beside(rows, Queue(worker))
    times = ((due, rows.row(due).due_at, 5), (soon, rows.row(soon).due_at, 5))
    assert found == Beside(frozenset({None, "flood"}), times, {due: Member(SHOP), soon: Member(alone)})


def test_one_task_can_be_a_crowd_beside_others_of_no_group(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, None), worker=worker)
    other = task(rows, None)
    due = rows.assigned(worker, other, rows.start)
    assert groups_of(beside(rows, Queue(worker))) == {due: other}


def test_of_several_crowds_each_instance_has_its_group(rows: Scenario) -> None:
    worker = rows.worker()
    first, second = task(rows, "first"), task(rows, "second")
    flood(rows, first, FLOOD // 2, worker=worker)
    flood(rows, second, FLOOD // 2, worker=worker)
    due = rows.assigned(worker, task(rows, SHOP), rows.start)
    found = beside(rows, Queue(worker))
    assert found.crowds == {None, "first", "second"}
    of_group = {g: sum(1 for one in groups_of(found).values() if one == g) for g in ("first", "second", SHOP)}
    assert of_group == {"first": FLOOD // 2, "second": FLOOD // 2, SHOP: 1}
    assert [one for one, _, _ in found.rows] == [due]


def test_crowds_that_are_alone_take_turns_and_have_all_slots(rows: Scenario) -> None:
    worker = rows.worker()
    for group in ("first", "second"):
        flood(rows, task(rows, group), FLOOD // 2, worker=worker)
    found = beside(rows, Queue(worker))
    assert (found.crowds, found.rows) == (frozenset(), ())
    assert set(groups_of(found).values()) == {"first", "second"}
    puller = Puller(rows.database, worker, SettableClock(rows.start), capacity=20)
    puller.fetcher.fetch()
    assert puller.starter._room() == 20
    claimed = puller.claim()
    of_first = sum(1 for one in claimed if groups_of(found)[one] == "first")
    assert (len(claimed), of_first) == (20, 10)


@pytest.mark.parametrize(("groups", "statements_sent"), [(1, 2), (FLOOD, 1)], ids=["one group alone", "no crowd"])
def test_where_nobody_is_held_up_nothing_is_found(rows: Scenario, groups: int, statements_sent: int) -> None:
    worker = rows.worker()
    for number in range(groups):
        flood(rows, task(rows, f"group {number}"), FLOOD // groups, worker=worker)
    with executed(rows.database.engine) as statements:
        assert beside(rows, Queue(worker)) == NOBODY
    assert len([one for one in statements if "schedule_task" in one]) == statements_sent


def test_a_pool_has_crowds_of_its_own(rows: Scenario) -> None:
    worker = rows.worker(pools={"images": 5})
    images, plain = task(rows, "flood"), task(rows, SHOP)
    flood(rows, images, worker=worker)
    rows.sql(
        "INSERT INTO schedule_pool_place (schedule_instance_id, schedule_worker_node_id, pool, gmt_assigned)"
        " SELECT id, :w, 'images', '2026-01-01 00:00:00' FROM schedule_instance",
        w=worker,
    )
    rows.sql("UPDATE schedule_instance SET gmt_assigned = '2026-01-01 00:00:00'")
    due = rows.assigned(worker, plain, rows.start)
    assert beside(rows, Queue(worker, "images")) == NOBODY, "the other one is not of the pool"
    rows.sql("DELETE FROM schedule_pool_place WHERE schedule_instance_id < :i", i=due)
    assert groups_of(beside(rows, Queue(worker, pools=("images",)))) == {due: SHOP}


def test_what_waits_in_the_midst_of_a_crowd_is_found(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, "flood"), 4 * FLOOD, worker=worker)
    due = rows.assigned(worker, task(rows, SHOP), rows.start - timedelta(hours=1, seconds=-2 * FLOOD - 0.5))
    assert groups_of(beside(rows, Queue(worker))) == {due: SHOP}


def test_who_waits_behind_two_floods_is_found_behind_the_second_one(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "OTHERS_READ", 20)
    worker = rows.worker()
    flood(rows, task(rows, "first"), worker=worker)
    second = task(rows, "second")
    later = [rows.assigned(worker, second, rows.start - timedelta(seconds=60 - n)) for n in range(40)]
    due = rows.assigned(worker, task(rows, SHOP), rows.start)
    found = beside(rows, Queue(worker))
    assert found.crowds == {None, "first", "second"}
    assert groups_of(found) == {**dict.fromkeys(later[:20], "second"), due: SHOP}


def test_two_floods_beside_which_nobody_waits_have_all_slots(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "OTHERS_READ", 20)
    worker = rows.worker()
    flood(rows, task(rows, "first"), worker=worker)
    second = task(rows, "second")
    for number in range(40):
        rows.assigned(worker, second, rows.start - timedelta(seconds=60 - number))
    found = beside(rows, Queue(worker))
    assert (found.crowds, set(groups_of(found).values())) == (frozenset(), {"second"})


def test_the_shares_come_with_the_groups_and_the_crowd_has_that_of_most(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    due = rows.assigned(worker, task(rows, SHOP), rows.start)
    rows.sql("UPDATE schedule_task SET group_share = CASE task_group WHEN 'flood' THEN 3 ELSE 7 END")
    found = beside(rows, Queue(worker))
    assert (found.rest, found.members) == (Member(None, 3), {due: Member(SHOP, 7)})
    rows.sql("UPDATE schedule_task SET group_share = 0")
    found = beside(rows, Queue(worker))
    assert (found.rest, found.members) == (Member(), {due: Member(SHOP)})


# What a worker does


def test_what_falls_due_behind_a_flood_that_fills_the_queue_is_claimed_next(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    behind = [rows.assigned(worker, task(rows, group), rows.start) for group in (SHOP, MAIL)]
    puller = Puller(rows.database, worker, SettableClock(rows.start), limit=60, capacity=6)
    puller.fetcher.fetch()
    claimed = puller.claim()
    assert len(claimed) == 6
    assert set(behind) <= set(claimed[:3])


def test_what_was_fetched_before_the_flood_came_takes_its_turn_all_the_same(rows: Scenario) -> None:
    worker = rows.worker()
    behind = rows.assigned(worker, task(rows, SHOP), rows.start)
    puller = Puller(rows.database, worker, SettableClock(rows.start), capacity=6)
    puller.fetcher.fetch()
    assert puller.backlog._waiting[behind].group is None
    flood(rows, task(rows, "flood"), worker=worker)
    puller.fetcher.fetch()
    assert behind in puller.claim()[:2]


def test_a_crowd_that_is_claimed_far_ahead_keeps_no_other_from_its_claim(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    puller = Puller(rows.database, worker, SettableClock(rows.start), capacity=6)
    puller.slots.expects = 50
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert puller.slots.busy > 50
    puller.slots.expects = 0
    behind = rows.assigned(worker, task(rows, SHOP), rows.start)
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert rows.status(behind) == "running"


def test_others_are_claimed_beyond_the_free_slots_only_where_the_crowd_was_claimed_before_them(
    rows: Scenario,
) -> None:
    """Else they could be claimed without end, and the crowd never."""
    worker = rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    rows.assigned(worker, task(rows, SHOP), rows.start)
    puller = Puller(rows.database, worker, SettableClock(rows.start), capacity=20)
    puller.fetcher.fetch()
    assert puller.claimer._others(0).room == 2, "the slots that are theirs"
    puller.claimer.claim()
    assert puller.claimer._others(0).room == 20, "what was claimed of the crowd waits for slots"


def room_and_others(puller: Puller) -> tuple[int, int, Any]:
    """The starter's room in turn and beside that, and who has no part in the latter, while one of one slot is first."""
    first: Any = SimpleNamespace(weight=1)
    others = puller.starter._others((puller.starter._clock.now(), first, Rank(5)))
    return puller.starter._room(), others.room, others.but


def test_a_tenth_of_the_slots_is_kept_from_a_crowd_while_others_wait(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    rows.assigned(worker, task(rows, SHOP), rows.start + timedelta(seconds=4))
    puller = Puller(rows.database, worker, SettableClock(rows.start), capacity=20)
    assert room_and_others(puller) == (20, 0, ())
    puller.fetcher.fetch()
    assert room_and_others(puller) == (18, 2, frozenset({None, "flood"}))
    rows.sql("DELETE FROM schedule_instance WHERE due_at <= :now", now=rows.start)
    puller.fetcher.fetch()
    assert room_and_others(puller) == (20, 0, ())


def test_the_slots_that_were_kept_are_free_for_the_crowd_as_soon_as_nobody_else_waits(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    other = rows.assigned(worker, task(rows, SHOP), rows.start + timedelta(seconds=4))
    puller = Puller(rows.database, worker, SettableClock(rows.start), capacity=20)
    puller.fetcher.fetch()
    told: list[int] = []
    puller.slots.on_free(lambda: told.append(puller.starter._room()))
    rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=other)
    puller.fetcher.fetch()
    assert told == [20]


def test_no_more_of_a_crowd_is_claimed_than_it_may_start(rows: Scenario) -> None:
    worker = rows.worker()
    flood(rows, task(rows, "flood"), worker=worker)
    rows.assigned(worker, task(rows, SHOP), rows.start + timedelta(seconds=4))
    puller = Puller(rows.database, worker, SettableClock(rows.start), capacity=20)
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert puller.slots.busy == 18


# What a scheduler gives


BATCH = 10


class Flooded:
    """A worker, an assigner of small pages and a materializer, which share what they know of the fleet."""

    def __init__(self, database: Database, rows: Scenario) -> None:
        self.rows, settings = rows, Settings.load(batch=BATCH)
        self.worker = rows.worker(capacity=50, prefetch=50)
        self.fleet = FleetCache(database)
        self.assigner = Assigner(database, settings, self.fleet)
        self.materializer = Materializer(database, Settings.load(), self.fleet)

    def see(self, group: str) -> None:
        """Let an instance of a group be given, and end."""
        instance = self.rows.pending(task(self.rows, group), self.rows.start)
        self.assigner.step()
        assert self.rows.status(instance) == "assigned"
        self.rows.sql("DELETE FROM schedule_instance")

    def given(self) -> int:
        ((number,),) = self.rows.sql("SELECT COUNT(*) FROM schedule_instance WHERE status = 'assigned'")
        return int(number)


@pytest.fixture
def flooded(database: Database, rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> Flooded:
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    monkeypatch.setattr(assigner_module, "ROWS", 20 * BATCH)
    return Flooded(database, rows)


def until_crowded(flooded: Flooded) -> None:
    for _ in range(FLOOD // BATCH):
        flooded.assigner.step()


def test_a_group_that_is_alone_is_given_all_of_the_room(flooded: Flooded) -> None:
    flood(flooded.rows, task(flooded.rows, "flood"))
    until_crowded(flooded)
    assert flooded.given() == 100


def test_a_flood_leaves_room_for_the_fires_of_others(flooded: Flooded) -> None:
    flooded.see(SHOP)
    flood(flooded.rows, task(flooded.rows, "flood"))
    until_crowded(flooded)
    assert flooded.given() == 90
    shop = flooded.rows.planned_task(flooded.rows.now(), task_group=SHOP)
    flooded.materializer.step()
    found = flooded.rows.sql("SELECT status FROM schedule_instance WHERE schedule_task_id = :t", t=shop)
    assert {status for (status,) in found} == {"assigned"}


def test_what_is_asked_for_behind_a_flood_is_given_by_the_next_pass(flooded: Flooded) -> None:
    flooded.see(MAIL)
    flood(flooded.rows, task(flooded.rows, "flood"))
    until_crowded(flooded)
    behind = flooded.rows.pending(task(flooded.rows, SHOP), flooded.rows.start)
    flooded.assigner.step()
    assert flooded.rows.status(behind) == "assigned"


def test_behind_a_flood_that_takes_many_passes_nobody_waits_for_the_last(
    flooded: Flooded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigner_module, "ROWS", 3 * BATCH)
    flood(flooded.rows, task(flooded.rows, "flood"))
    behind = flooded.rows.pending(task(flooded.rows, SHOP), flooded.rows.start)
    flooded.assigner.step()
    assert flooded.given() == 3 * BATCH + 1
    assert flooded.rows.status(behind) == "assigned"


def test_where_there_is_no_crowd_the_order_is_that_of_due_times(
    flooded: Flooded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigner_module, "ROWS", 3 * BATCH)
    ids = [flooded.rows.pending(task(flooded.rows, None), flooded.rows.past()) for _ in range(5 * BATCH)]
    due = [i for (i,) in flooded.rows.sql("SELECT id FROM schedule_instance ORDER BY due_at, id")]
    flooded.assigner.step()
    assert [i for i in due if flooded.rows.status(i) == "assigned"] == due[: 3 * BATCH]
    assert len(ids) == 5 * BATCH


def test_two_floods_leave_room_for_a_third_group_and_are_given_by_due_time(
    flooded: Flooded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behind, "NEWEST", 20)
    flooded.see(SHOP)
    flood(flooded.rows, task(flooded.rows, "first"))
    second = task(flooded.rows, "second")
    for number in range(3 * BATCH):
        flooded.rows.pending(second, flooded.rows.start - timedelta(seconds=60 - number), origin="manual")
    until_crowded(flooded)
    assert flooded.given() == 90
    due = flooded.rows.sql("SELECT status FROM schedule_instance ORDER BY due_at, id LIMIT 90")
    assert {status for (status,) in due} == {"assigned"}
    third = flooded.rows.pending(task(flooded.rows, SHOP), flooded.rows.start)
    flooded.assigner.step()
    assert flooded.rows.status(third) == "assigned"


def test_a_flood_that_came_slowly_is_held_back_when_it_finds_no_room(flooded: Flooded) -> None:
    flooded.see(MAIL)
    first = task(flooded.rows, "flood")
    for number in range(21):
        for more in range(5):
            due = flooded.rows.start - timedelta(minutes=60 - number, seconds=more)
            flooded.rows.pending(first, due, origin="manual")
        flooded.assigner.step()
    assert flooded.given() == 100
    behind_it = flooded.rows.pending(task(flooded.rows, SHOP), flooded.rows.start)
    [(one,)] = flooded.rows.sql("SELECT MIN(id) FROM schedule_instance WHERE status = 'assigned'")
    flooded.rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=one)
    flooded.assigner.step()
    assert flooded.rows.status(behind_it) == "assigned"


def test_fires_of_a_flood_leave_room_as_well(flooded: Flooded) -> None:
    flooded.see(SHOP)
    now = flooded.rows.now()
    for _ in range(FLOOD):
        flooded.rows.planned_task(now, task_group="flood")
    step: Callable[[], float] = flooded.materializer.step
    while not step():
        pass
    assert flooded.given() == 90
