"""Weights: a run starts when so many slots are free as it takes, and holds its place until then."""

from collections.abc import Callable, Iterator, Sequence, Set
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from rota.scheduler_service.floods import Floods
from rota.scheduler_service.placement import FULL, Fleet, Needs, needs_of
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.groups import Group
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.task import TaskDefinition
from rota.shared.domain.weights import too_heavy
from rota.shared.settable_clock import SettableClock
from rota.shared.store.loads import LiveWorker
from rota.shared.store.pools import OWN_SLOTS, PoolLoad
from rota.shared.store.runs import Run
from rota.worker_service.pulling.delay_queue import DelayQueue
from rota.worker_service.pulling.fair_queue import NO_ROOM, Rank
from rota.worker_service.pulling.slot import BETWEEN, CLAIMED, GONE, STARTED, Slot
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.pulling.starter import Starter, patience
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.listeners import Listeners
from rota.worker_service.running.runner import Runner
from tests.harness.runs import NOON, run

EXTRACT = PlannedNode(1, "REPORT_EXTRACT", 1)


def heavy(weight: int, group: Group = None) -> Slot:
    slot = Slot(group=group)
    slot.weight = weight
    return slot


@pytest.fixture
def slots() -> Slots:
    return Slots(10, 1000, SettableClock(NOON))


def claimed(slots: Slots, *weights: int) -> list[Slot]:
    some = [heavy(weight) for weight in weights]
    slots.claim(some)
    return some


# The slots


def test_a_run_takes_as_many_slots_as_it_weighs_until_it_has_ended(slots: Slots) -> None:
    [first, second] = claimed(slots, 4, 5)
    assert (slots.busy, slots.claimable(0), slots.idle()) == (9, 1, 10)
    assert slots.start([first, second]) == [first, second]
    assert (slots.idle(), slots.started) == (1, 2)
    slots.end(first)
    assert (slots.busy, slots.idle()) == (5, 5)
    slots.leave(first)
    slots.leave(second)
    assert (slots.busy, slots.claimable(0), slots.idle()) == (0, 10, 10)


def test_what_comes_behind_one_that_waits_for_its_slots_waits_too(slots: Slots) -> None:
    some = claimed(slots, 4, 7, 1)
    assert slots.start(some) == some[:1]
    slots.end(some[0])
    assert slots.start(some) == some[1:]


def test_one_that_weighs_more_than_there_are_slots_runs_alone(slots: Slots) -> None:
    small, large, last = claimed(slots, 1, 25, 1)
    assert slots.start([small, large]) == [small]
    slots.end(small)
    assert slots.start([large, last]) == [large]
    slots.end(large)
    assert slots.start([last]) == [last]


def test_slots_that_abandoned_threads_take_are_not_waited_for(slots: Slots) -> None:
    [large] = claimed(slots, 10)
    slots.abandon(+3)
    assert slots.takes(10) == 7
    assert slots.start([large]) == [large]


def test_between_two_nodes_it_lends_all_of_its_slots_and_gets_all_of_them_again(slots: Slots) -> None:
    large, small, other = claimed(slots, 8, 2, 5)
    slots.start([large, small])
    slots.lend(large, 0)
    assert slots.start([other]) == [other]
    assert not slots.take_back(large)
    assert (slots.line, slots.idle()) == (1, 10 - 7 - 8)
    slots.end(small)
    assert slots.next_in_line() is None, "eight are not free yet"
    slots.end(other)
    assert slots.next_in_line() is large
    assert (slots.line, slots.idle(), large.stage) == (0, 2, STARTED)


def test_who_leaves_the_line_holds_up_nobody(slots: Slots) -> None:
    large, small = claimed(slots, 8, 5)
    slots.start([large])
    slots.lend(large, 0)
    slots.start([small])
    assert not slots.take_back(large)
    assert slots.leave_line(large)
    assert (slots.line, large.stage) == (0, BETWEEN)
    slots.end(large)
    assert slots.idle() == 5


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["claim", "start", "lend", "take back", "serve", "end", "leave"]), st.integers(0, 99)),
    max_size=60,
)


def operate(slots: Slots, what: str, slot: Slot, known: Sequence[Slot]) -> None:
    match what:
        case "start":
            slots.start([one for one in known if one.stage == CLAIMED])
        case "lend":
            slots.lend(slot, 0)
        case "take back":
            slots.take_back(slot)
        case "serve":
            slots.next_in_line()
        case "end":
            slots.end(slot)
        case "leave":
            slots.leave(slot)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), OPERATIONS)
def test_never_do_those_that_run_take_more_than_there_are_unless_one_is_alone(
    weights: list[int], operations: list[tuple[str, int]]
) -> None:
    slots = Slots(10, 1000, SettableClock(NOON))
    some = [heavy(weight, str(number)) for number, weight in enumerate(weights)]
    known: list[Slot] = []
    for what, which in operations:
        slot = some[which % len(some)]
        note(f"{what} {which % len(some)}")
        if what == "claim" and slot not in known:
            slots.claim([slot])
            known.append(slot)
        elif slot in known and slot.stage != GONE:
            operate(slots, what, slot, known)
        running = [one.weight for one in known if one.stage == STARTED]
        assert sum(running) <= 10 or len(running) == 1
        assert slots.busy == sum(one.weight for one in known if one.stage in (CLAIMED, STARTED, BETWEEN))
    for slot in known:
        slots.leave(slot)
    assert (slots.busy, slots.idle(), slots.line, slots.kept_from([])) == (0, 10, 0, 1)


# What is kept from a crowd


def test_others_that_run_have_the_kept_slots_and_the_rest_goes_by_turns() -> None:
    slots = Slots(20, 1000, SettableClock(NOON))
    crowd, shop = heavy(5, "crowd"), heavy(1, "shop")
    slots.claim([crowd, shop])
    slots.start([crowd])
    assert slots.kept_from(["crowd"]) == 2
    slots.start([shop])
    assert slots.kept_from(["crowd"]) == 1
    assert slots.kept_from(["crowd", "shop"]) == 2
    slots.end(shop)
    assert slots.kept_from(["crowd"]) == 2


# The queues


def queue_of(clock: SettableClock) -> DelayQueue[str]:
    """Items whose last figure is what they weigh."""
    return DelayQueue(clock, weigh=lambda item: int(item[-1]))


def having(room: list[int]) -> Callable[[str], int]:
    """What an item needs that must have all of its room."""
    return lambda item: int(item[-1]) if int(item[-1]) <= room[0] else NO_ROOM


@pytest.mark.parametrize(
    ("room", "taken"), [(1, ["a1"]), (3, ["a1"]), (4, ["a1", "b3"]), (5, ["a1", "b3"]), (6, ["a1", "b3", "c2"])]
)
def test_as_many_are_taken_as_there_is_room_for(room: int, taken: list[str]) -> None:
    queue = queue_of(SettableClock(NOON))
    for item in ("a1", "b3", "c2"):
        queue.put(NOON, item)
    assert queue.take(lambda: room, needs=having([room])) == taken


def test_the_next_one_is_taken_though_it_takes_more_than_is_counted() -> None:
    queue = queue_of(SettableClock(NOON))
    for item in ("a9", "b1"):
        queue.put(NOON, item)
    assert queue.take(lambda: 3) == ["a9"], "a batch is smaller than it, and its slots are free"


def test_what_is_first_and_needs_more_room_holds_its_place_until_there_is_enough() -> None:
    clock = SettableClock(NOON)
    queue, room, taken = queue_of(clock), [2], list[str]()
    for item in ("large3", "small1"):
        queue.put(NOON, item)
    clock.thread("taking", lambda: taken.extend(queue.take(lambda: room[0], needs=having(room)))).start()
    clock.advance(60)
    assert taken == []
    room[0] = 3
    queue.room_made()
    clock.advance(0)
    assert taken == ["large3"]


def test_what_is_more_urgent_and_falls_due_meanwhile_comes_before_it() -> None:
    clock = SettableClock(NOON)
    queue, taken = queue_of(clock), list[str]()
    queue.put(NOON, "large3", rank=Rank(5))
    queue.put(NOON + 5 * (clock.at(1) - clock.at(0)), "urgent1", rank=Rank(0))
    clock.thread("taking", lambda: taken.extend(queue.take(lambda: 2, needs=having([2])))).start()
    clock.advance(4)
    assert taken == []
    clock.advance(1)
    assert taken == ["urgent1"]


# The starter


class World:
    """A starter of 20 slots; the test ends what runs. ``crowds``: the groups beside which others wait."""

    def __init__(self) -> None:
        self.clock = SettableClock(NOON)
        self.slots = Slots(20, 1000, self.clock)
        self.crowds: set[Group] = set()
        self.held: dict[int, Slot] = {}
        self.tries = 0
        self.handed_back: list[tuple[int, int]] = []
        self.canceled: set[int] = set()
        self.starter = Starter(
            cast("WorkerRows", self),
            cast("Runner", self),
            self.slots,
            self.clock,
            Listeners({}, self.clock, worker="w"),
            crowds=lambda: self.crowds,
        )
        self.clock.thread("start", self.starter.run).start()

    def __contains__(self, instance_id: int) -> bool:
        return instance_id in self.held

    def accept(self, runs: Sequence[Run], slots: Slots, groups: dict[int, Group]) -> list[Run]:
        self.held |= {one.id: heavy(one.weight, groups.get(one.id)) for one in runs}
        slots.claim([self.held[one.id] for one in runs])
        return list(runs)

    def start(self, runs: Sequence[Run]) -> set[int]:
        self.tries += 1
        self.slots.start([self.held[one.id] for one in runs])
        return {one.id for one in runs if self.held[one.id].stage == CLAIMED}

    def put(self, weights: dict[int, int], group: Group = None, priority: int = 5) -> None:
        """Runs that are due, by their ids."""
        runs = [run(id=number, weight=weight) for number, weight in weights.items()]
        self.starter.put(runs, NOON, {one.id: Rank(priority, group) for one in runs})
        self.clock.advance(1)

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.slots.end(self.held[number])
            self.slots.leave(self.held[number])
        self.clock.advance(1)

    def is_to_stop(self, instance_id: int) -> bool:
        return instance_id in self.canceled

    def drop(self, instance_id: int) -> None:
        self.slots.leave(self.held[instance_id])

    def hand_back(self, held: Sequence[tuple[int, int]], reason: str, *, unstarted: bool, waits: bool = False) -> int:
        self.handed_back += held
        return len(held)

    @property
    def running(self) -> Set[int]:
        return {number for number, slot in self.held.items() if slot.stage == STARTED}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.starter.close()


def test_a_run_that_takes_many_slots_starts_as_soon_as_they_are_free_and_before_what_came_later(world: World) -> None:
    world.put({1: 8, 2: 8})
    world.put({3: 15})
    world.put({4: 1, 5: 1})
    assert world.running == {1, 2}
    world.end(1)
    assert world.running == {2}, "12 are free: it holds its place"
    world.end(2)
    assert world.running == {3, 4, 5}


def test_of_a_crowd_and_others_each_gets_its_slots_however_many_they_take(world: World) -> None:
    world.crowds = {"crowd", None}
    world.put(dict.fromkeys(range(1, 8), 3), "crowd")
    assert world.running == {1, 2, 3, 4, 5, 6}, "of 20 slots two are kept"
    world.put({11: 1, 12: 1, 13: 1}, "shop")
    assert world.running == {1, 2, 3, 4, 5, 6, 11, 12}, "no more than the kept ones"
    world.end(1)
    assert world.running == {2, 3, 4, 5, 6, 7, 11, 12}, "what the crowd had while it was alone does not count"
    world.end(2)
    assert world.running == {3, 4, 5, 6, 7, 11, 12, 13}


def test_one_of_a_crowd_that_takes_all_slots_gets_them_though_others_never_cease(world: World) -> None:
    world.crowds = {"crowd", None}
    world.put({1: 1, 2: 1}, "shop")
    world.put({3: 20, 4: 1}, "crowd")
    world.put({5: 1, 6: 1}, "shop")
    assert world.running == {1, 2}, "it holds its place, from those of the shop, too"
    tries = world.tries
    world.end(1)
    assert (world.running, world.tries) == ({2}, tries), "it is not tried before all are free"
    world.end(2)
    assert world.running == {3}
    world.end(3)
    assert world.running == {4, 5, 6}


def test_beside_one_of_a_crowd_that_waits_for_its_slots_others_run_in_theirs(world: World) -> None:
    world.crowds = {"crowd", None}
    world.put(dict.fromkeys(range(1, 4), 6), "crowd")
    world.put({4: 6}, "crowd")
    world.put({5: 1, 6: 1, 7: 1}, "shop")
    assert world.running == {1, 2, 3, 5, 6}
    world.end(5)
    assert world.running == {1, 2, 3, 6, 7}


def test_a_worker_whose_threads_hang_keeps_no_more_than_a_tenth_of_what_is_left(world: World) -> None:
    world.crowds = {"crowd", None}
    world.slots.abandon(+18)
    world.put({1: 1, 2: 1}, "crowd")
    world.put({3: 1}, "shop")
    assert world.running == {1, 2}
    world.end(1)
    assert world.running == {2, 3}


def test_those_who_wait_for_room_are_told_when_fewer_slots_are_kept(world: World) -> None:
    world.crowds = {"crowd", None}
    world.put(dict.fromkeys(range(1, 18), 1), "crowd")
    world.put({20: 1}, "shop")
    asked: list[int] = []
    world.slots.on_free(lambda: asked.append(world.slots.kept_from(world.crowds)))
    world.put({21: 1}, "mail")
    assert asked == [0]


@pytest.mark.parametrize(("weight", "attempt", "seconds"), [(1, 1, 1), (1, 9, 1), (2, 1, 30), (2, 2, 60), (9, 4, 240)])
def test_one_that_takes_several_slots_waits_longer_for_them_and_each_time_twice_as_long(
    world: World, weight: int, attempt: int, seconds: int
) -> None:
    world.put({1: 20})
    waits = run(id=2, weight=weight, attempt=attempt)
    world.starter.put([waits], NOON, {})
    world.clock.advance(seconds - 2)  # a second has passed since noon
    world.starter.give_back_late()
    assert world.handed_back == []
    world.clock.advance(1.1)
    world.starter.give_back_late()
    assert world.handed_back == [(2, attempt)]


def test_one_that_is_canceled_while_it_waits_for_its_slots_is_handed_back_at_once(world: World) -> None:
    world.put({1: 20})
    world.starter.put([run(id=2, weight=2, attempt=1), run(id=3, weight=2, attempt=1)], NOON, {})
    world.canceled.add(2)
    world.starter.give_back_late()
    assert world.handed_back == [(2, 1)]


def test_no_wait_is_longer_than_a_day_or_than_the_limit_of_the_run() -> None:
    assert patience(run(weight=2, attempt=1000)) == timedelta(days=1)
    assert patience(run(weight=2, attempt=1000, run_timeout_seconds=90)) == timedelta(seconds=90)
    assert patience(run(weight=2, attempt=1, run_timeout_seconds=90)) == timedelta(seconds=30)


# Placing


def worker(number: int, capacity: int, *, prefetch: int = 0, load: int = 0) -> LiveWorker:
    return LiveWorker(number, f"w{number}", capacity, prefetch, load, {}, frozenset([EXTRACT.type]))


def fleet_of(*workers: LiveWorker, pool: str | None = None) -> Fleet:
    return Fleet(workers, pool=pool, floods=Floods(SettableClock(NOON)))


def of_weight(weight: int) -> Needs:
    return needs_of([EXTRACT], {}, weight=weight)


def test_only_a_worker_with_so_many_slots_is_given_it() -> None:
    fleet = fleet_of(worker(1, 4), worker(2, 10, load=9, prefetch=10))
    assert [fleet.choose(of_weight(5)) for _ in range(3)] == [2, 2, 2], "19, and 20 of 20 with what is over"
    assert fleet.choose(of_weight(5)) is None
    assert fleet.why_not(of_weight(5)) == FULL
    assert fleet.why_not(of_weight(11)) == "no live worker that can run it has 11 slots"
    assert fleet.fitting(of_weight(5)) == [2]
    assert fleet.give_to(1, of_weight(5)) is None


def test_a_pool_that_is_too_small_is_named() -> None:
    fleet = fleet_of(worker(1, 2), pool="images")
    assert fleet.why_not(of_weight(3)) == "no live worker that can run it has 3 threads in the pool 'images'"


def test_what_takes_several_slots_counts_for_its_worker_as_so_many() -> None:
    fleet = fleet_of(worker(1, 10), worker(2, 10))
    assert fleet.choose(of_weight(9)) in (1, 2)
    given = [fleet.choose(of_weight(1)) for _ in range(9)]
    assert len(set(given)) == 1, "all go to the other one"
    assert {fleet.load_of(1), fleet.load_of(2)} == {9}


def test_what_is_given_is_known_in_slots_and_in_instances() -> None:
    fleet = fleet_of(worker(1, 100))
    for weight in (50, 1, 3):
        fleet.choose(of_weight(weight))
    assert (fleet.load_of(1), fleet.more_given(1)) == (54, 51)


def test_the_load_of_a_worker_is_that_of_its_slots_alone_with_all_that_each_takes() -> None:
    one = LiveWorker(1, "w", 10, 10, 7, {}, frozenset(), running=4, pools={"images": 2})
    held = {OWN_SLOTS: PoolLoad(1, 2, 3, 5), "images": PoolLoad(1, 1, 0, 1)}
    own, pool = one.beside(held), one.in_pool("images", held["images"])
    assert (own.load, own.running) == (7 - 2 + 8, 4 - 1 + 5)
    assert (pool.load, pool.running) == (3, 2)


# Definitions


@pytest.mark.parametrize("weight", [0, -1, 10_001, 1.5, "x"])
def test_a_weight_that_is_none_is_refused(weight: Any) -> None:
    with pytest.raises(InvalidInput, match="weight"):
        TaskDefinition.of(name="x", type="REPORT", weight=weight)


def test_the_sentence_says_what_is_the_largest() -> None:
    assert too_heavy(60, 50) == "weight 60: no worker has so many slots; the largest has 50"
    assert (
        too_heavy(3, 2, "images") == "weight 3: no worker has so many threads in its pool 'images'; the largest has 2"
    )
