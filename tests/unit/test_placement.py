"""Which worker an instance is given to."""

from collections import Counter
from datetime import datetime
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.scheduler_service.floods import OTHERS_SECONDS, REMEMBERED_SECONDS, Floods
from rota.scheduler_service.placement import FULL, Fleet, needs_of
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.settable_clock import SettableClock
from rota.shared.store.loads import LiveWorker

NOON = datetime.fromisoformat("2026-11-27T12:00")
EXTRACT, SEND = PlannedNode(1, "REPORT_EXTRACT", 1), PlannedNode(2, "REPORT_SEND", 2)


def worker(
    number: int,
    *,
    capacity: int = 10,
    prefetch: int = 0,
    load: int = 0,
    types: tuple[str, ...] = ("REPORT_EXTRACT", "REPORT_SEND"),
    labels: dict[str, str] | None = None,
    said: int = 0,
    versions: dict[str, str] | None = None,
) -> LiveWorker:
    can_run = frozenset(types)
    return LiveWorker(number, f"w{number}", capacity, prefetch, load, labels or {}, can_run, said, versions or {})


def fleet_of(*arguments: Any, **options: Any) -> Fleet:
    options.setdefault("floods", Floods(SettableClock(NOON)))
    return Fleet(*arguments, **options)


def given_to(
    fleet: Fleet, times: int, avoid: str | None = None, *, late: bool = False, **labels: str
) -> list[int | None]:
    return [fleet.choose(needs_of([EXTRACT], labels), avoid, late=late) for _ in range(times)]


def test_the_least_loaded_by_share_of_its_capacity_is_chosen() -> None:
    fleet = fleet_of([worker(1, capacity=100, load=50), worker(2, capacity=10, load=6)])
    assert given_to(fleet, 1) == [1]


def test_a_worker_all_of_whose_threads_are_abandoned_is_given_nothing() -> None:
    fleet = fleet_of([worker(1, capacity=0, prefetch=1000, said=10), worker(2, prefetch=1000, load=10)])
    assert given_to(fleet, 100, late=True) == [2] * 100
    alone = fleet_of([worker(1, capacity=0, prefetch=1000, said=10)])
    assert given_to(alone, 1) == [None]
    assert not alone.has_room()
    assert alone.why_not(needs_of([EXTRACT], {})) == FULL


def test_a_load_is_what_the_worker_said_or_what_its_rows_say_whichever_is_more() -> None:
    fleet = fleet_of([worker(1, said=5, load=1, prefetch=100), worker(2, said=0, load=3, prefetch=100)])
    assert given_to(fleet, 2) == [2, 2]
    assert Counter(given_to(fleet, 12)) == {1: 8, 2: 4}, "each is given until both have the same load"


def test_a_batch_is_spread_by_capacity_and_counts_what_it_has_given_itself() -> None:
    fleet = fleet_of([worker(1, capacity=30), worker(2, capacity=10)])
    assert Counter(given_to(fleet, 40)) == {1: 30, 2: 10}


def test_what_is_late_and_has_to_wait_is_given_by_the_whole_capacity() -> None:
    fleet = fleet_of([worker(1, capacity=3, prefetch=100, load=3), worker(2, capacity=3, prefetch=100, load=3)])
    chosen = given_to(fleet, 12, late=True)
    assert [len(set(chosen[at : at + 3])) for at in (0, 3, 6, 9)] == [1, 1, 1, 1]
    assert Counter(chosen) == {1: 6, 2: 6}


def test_free_slots_are_filled_before_what_is_late_waits() -> None:
    fleet = fleet_of([worker(1, prefetch=100, load=10), worker(2, prefetch=100, load=8)])
    chosen = given_to(fleet, 12, late=True)
    assert chosen[:2] == [2, 2]
    assert len(set(chosen[2:])) == 1


def test_of_those_with_as_many_whole_capacities_to_go_the_least_loaded_is_filled_first() -> None:
    fleet = fleet_of([worker(1, prefetch=100, load=19), worker(2, prefetch=100, load=13)])
    assert given_to(fleet, 7, late=True) == [2] * 7
    assert given_to(fleet, 1, late=True) == [1]


def test_there_is_room_until_every_worker_has_its_capacity_and_its_prefetch() -> None:
    fleet = fleet_of([worker(1, capacity=2, prefetch=1), worker(2, capacity=1, load=1)])
    room = []
    for _ in range(4):
        room.append(fleet.has_room())
        fleet.choose(needs_of([EXTRACT], {}))
    assert room == [True, True, True, False]
    assert not fleet_of([]).has_room()


def test_what_is_prepared_ahead_is_spread_one_by_one_however_much_waits() -> None:
    fleet = fleet_of([worker(1, prefetch=100, load=30), worker(2, prefetch=100, load=30)])
    assert all(len(set(given_to(fleet, 2))) == 2 for _ in range(20))


def test_what_is_given_late_counts_for_what_is_prepared_ahead() -> None:
    fleet = fleet_of([worker(1, prefetch=100, load=10), worker(2, prefetch=100, load=10)])
    (first,) = set(given_to(fleet, 10, late=True))
    assert first not in given_to(fleet, 10)


def test_equal_workers_are_chosen_at_random_so_that_two_schedulers_do_not_pick_the_same() -> None:
    firsts = {fleet_of([worker(n) for n in range(1, 9)]).choose(needs_of([EXTRACT], {})) for _ in range(200)}
    assert len(firsts) > 1


def test_what_one_kind_of_task_took_counts_for_the_others() -> None:
    fleet = fleet_of([worker(1), worker(2, types=("REPORT_EXTRACT",))])
    assert [fleet.choose(needs_of([SEND], {})) for _ in range(4)] == [1] * 4
    assert given_to(fleet, 4) == [2] * 4


def test_room_is_capacity_and_prefetch_and_no_more() -> None:
    fleet = fleet_of([worker(1, capacity=2, prefetch=3, load=1)])
    assert given_to(fleet, 6) == [1, 1, 1, 1, None, None]


def test_only_a_worker_that_can_run_every_node_is_chosen() -> None:
    fleet = fleet_of([worker(1, types=("REPORT_EXTRACT",)), worker(2, load=9)])
    assert fleet.choose(needs_of([EXTRACT, SEND], {})) == 2


MAIL = PlannedNode(3, "REPORT_MAIL", 2)
OLD, NEW = [EXTRACT, SEND], [EXTRACT, MAIL]
LISTS = {("REPORT", "old"): OLD, ("REPORT", "new"): NEW}


def test_of_workers_with_different_versions_of_a_task_type_the_least_loaded_is_chosen() -> None:
    """Nine of the old version and one canary: the canary gets about a tenth."""
    crowd = [worker(n, prefetch=100, versions={"REPORT": "old"}) for n in range(1, 10)]
    canary = worker(10, prefetch=100, types=("REPORT_EXTRACT", "REPORT_MAIL"), versions={"REPORT": "new"})
    fleet = fleet_of([*crowd, canary], LISTS)
    chosen = [fleet.choose(needs_of((), {}, "REPORT")) for _ in range(500)]
    nodes = Counter(fleet.nodes_of(number, "REPORT")[1].type for number in chosen if number is not None)
    assert nodes == {"REPORT_SEND": 450, "REPORT_MAIL": 50}


def test_a_worker_that_does_not_carry_the_task_type_is_not_chosen_whatever_nodes_it_can_run() -> None:
    unfit = [
        worker(1),
        worker(2, versions={"REPORT": "gone"}),
        worker(3, types=(), versions={"REPORT": "old"}),
    ]
    needs = needs_of((), {}, "REPORT")
    assert fleet_of([*unfit, worker(4, load=9, versions={"REPORT": "old"})], LISTS).choose(needs) == 4
    nobody = fleet_of(unfit, LISTS)
    assert nobody.choose(needs) is None
    assert nobody.why_not(needs) == "no live worker can run REPORT"


def test_only_a_worker_that_carries_every_label_is_chosen() -> None:
    fleet = fleet_of(
        [worker(1), worker(2, labels={"gpu": "a100"}), worker(3, labels={"gpu": "a100", "zone": "x"}, load=9)]
    )
    assert given_to(fleet, 1, gpu="a100", zone="x") == [3]
    assert given_to(fleet, 1, gpu="h100") == [None]


def test_the_worker_that_lost_it_is_avoided_while_there_is_another() -> None:
    fleet = fleet_of([worker(1), worker(2, load=8)])
    assert given_to(fleet, 3, avoid="w1") == [2, 2, 1]


def test_an_avoided_worker_is_still_there_for_the_next() -> None:
    fleet = fleet_of([worker(1), worker(2, load=8)])
    assert given_to(fleet, 1, avoid="w1") + given_to(fleet, 1) == [2, 1]


@pytest.mark.parametrize(
    ("workers", "labels", "said"),
    [
        ([], {}, "no worker is live"),
        ([worker(1, types=("OTHER",))], {}, "no live worker can run REPORT_EXTRACT, REPORT_SEND"),
        # Together they could, but one worker runs the whole instance.
        ([worker(1, types=("REPORT_EXTRACT",)), worker(2, types=("REPORT_SEND",))], {}, "no live worker can run"),
        (
            [worker(1, labels={"gpu": "a"})],
            {"zone": "x", "gpu": "b"},
            "that can run it carries the labels gpu=b, zone=x",
        ),
        (
            [worker(1, labels={"gpu": "b"}, types=("OTHER",)), worker(2)],
            {"gpu": "b"},
            "that can run it carries the labels gpu=b",
        ),
        ([worker(1, load=10)], {}, "every worker that fits is full"),
    ],
)
def test_who_finds_nobody_is_told_why(workers: list[LiveWorker], labels: dict[str, str], said: str) -> None:
    fleet = fleet_of(workers)
    needs = needs_of([EXTRACT, SEND], labels)
    assert fleet.choose(needs) is None
    assert said in fleet.why_not(needs)


def test_the_reason_of_many_nodes_fits_into_a_row() -> None:
    nodes = [PlannedNode(at, f"REPORT_A_RATHER_LONG_NAME_{at:03}", at) for at in range(60)]
    assert len(fleet_of([worker(1)]).why_not(needs_of(nodes, {}))) == REASON_LIMIT
    labels = {f"label-{at:03}": "a-rather-long-value" for at in range(60)}
    assert len(fleet_of([worker(1)]).why_not(needs_of([EXTRACT], labels))) == REASON_LIMIT


@pytest.mark.parametrize("labels", [["gpu"], "gpu", {"gpu": ["a"]}, {"gpu": 1}])
def test_labels_that_sql_made_unusable_are_refused_in_a_sentence(labels: Any) -> None:
    with pytest.raises(InvalidInput, match="required_labels must be a JSON object of strings"):
        needs_of([EXTRACT], labels)


fleets = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(0, 30), st.booleans()), min_size=1, max_size=8
).map(
    lambda rows: [
        worker(at, capacity=capacity, prefetch=prefetch, load=load, labels={"gpu": "a"} if gpu else {})
        for at, (capacity, prefetch, load, gpu) in enumerate(rows, start=1)
    ]
)


@given(fleets, st.lists(st.tuples(st.booleans(), st.sampled_from([None, "w1", "w2"])), max_size=150))
def test_no_worker_gets_more_than_its_room_and_none_is_refused_while_there_is_room(
    workers: list[LiveWorker], asked: list[tuple[bool, str | None]]
) -> None:
    fleet = fleet_of(workers)
    room = {w.id: w.capacity + w.prefetch - w.load for w in workers}
    for gpu, avoid in asked:
        labels = {"gpu": "a"} if gpu else {}
        fitting = {w.id for w in workers if room[w.id] > 0 and (not gpu or w.labels)}
        others = {w.id for w in workers if w.id in fitting and w.name != avoid}
        chosen = fleet.choose(needs_of([EXTRACT], labels), avoid)
        assert (chosen in (others or fitting)) if fitting else chosen is None
        if chosen is not None:
            room[chosen] -= 1


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8), st.integers(0, 300), st.booleans())
def test_shares_differ_by_no_more_than_one_instance_and_where_late_ones_wait_by_one_capacity(
    capacities: list[int], times: int, late: bool
) -> None:
    workers = [worker(at, capacity=capacity, prefetch=10**6) for at, capacity in enumerate(capacities, start=1)]
    given_counts = Counter(given_to(fleet_of(workers), times, late=late))
    for one, other in combinations(workers, 2):
        difference = abs(given_counts[one.id] / one.capacity - given_counts[other.id] / other.capacity)
        bound = 1 if late and times > sum(capacities) else max(1 / one.capacity, 1 / other.capacity)
        assert difference <= bound + 1e-9


FLOOD, SHOP = "flood", "shop"


class Flooded:
    """Two workers of capacity 10 with a prefetch of 90, and the floods that their fleets share."""

    def __init__(self, *, load: int = 0) -> None:
        self.clock = SettableClock(NOON)
        self.floods = Floods(self.clock)
        self.load = load

    def fleet(self) -> Fleet:
        """A snapshot of the workers, as it is read anew."""
        workers = [worker(number, prefetch=90, load=self.load) for number in (1, 2)]
        return fleet_of(workers, floods=self.floods)


def give(fleet: Fleet, group: str | int | None, times: int) -> Counter[int | None]:
    """How many each worker got of so many; None: nobody."""
    return Counter(fleet.choose(needs_of([EXTRACT], {}), group=group) for _ in range(times))


def test_a_group_of_which_much_is_given_leaves_a_tenth_of_each_workers_room_to_others() -> None:
    fleet = Flooded().fleet()
    assert sum(give(fleet, SHOP, 2).values()) == 2
    assert give(fleet, FLOOD, 1000)[None] == 822
    assert sorted(fleet.load_of(number) or 0 for number in (1, 2)) == [90, 90]
    assert not fleet.has_room(floods=True)
    assert give(fleet, SHOP, 4) == {1: 2, 2: 2}
    assert fleet.has_room()


def test_a_group_of_which_little_is_given_may_take_what_is_kept() -> None:
    fleet = Flooded(load=95).fleet()
    assert give(fleet, SHOP, 10) == {1: 5, 2: 5}


def test_a_flood_gets_none_of_what_is_kept_until_it_is_forgotten() -> None:
    flooded = Flooded(load=95)
    flooded.floods.note(FLOOD)
    flooded.floods.see(SHOP)
    assert give(flooded.fleet(), FLOOD, 1) == {None: 1}
    assert give(flooded.fleet(), SHOP, 1).keys() <= {1, 2}
    flooded.clock.advance(REMEMBERED_SECONDS - 0.1)
    flooded.floods.note("another")
    assert give(flooded.fleet(), FLOOD, 1) == {None: 1}
    flooded.clock.advance(0.1)
    assert give(flooded.fleet(), FLOOD, 1).keys() <= {1, 2}
    assert flooded.floods.hold_back("another")


def test_a_group_that_has_been_alone_for_a_minute_gets_all_of_the_room() -> None:
    flooded = Flooded()
    flooded.floods.see(SHOP)
    fleet = flooded.fleet()
    assert give(fleet, FLOOD, 1000)[None] == 820
    flooded.clock.advance(OTHERS_SECONDS + 0.1)
    assert give(flooded.fleet(), FLOOD, 1000)[None] == 800
    assert flooded.fleet().has_room(floods=True)


def test_a_small_worker_keeps_no_room() -> None:
    fleet = fleet_of([worker(1, capacity=2, prefetch=7)])
    assert give(fleet, FLOOD, 20) == {1: 9, None: 11}
