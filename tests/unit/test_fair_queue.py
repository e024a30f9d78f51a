"""What is due and waits for room: by priority, then the groups in turn, then by time."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.worker_service.pulling.fair_queue import FairQueue, Rank

NOON = datetime.fromisoformat("2026-11-27T12:00")


def filled(*items: str) -> FairQueue[str]:
    """A queue of items like ``5 shop 3``: priority, group, moment in seconds after noon."""
    queue: FairQueue[str] = FairQueue()
    for order, item in enumerate(items):
        priority, group, moment = item.split()
        queue.put(Rank(int(priority), group), NOON + timedelta(seconds=float(moment)), order, item)
    return queue


def taken(queue: FairQueue[str]) -> list[str]:
    return [queue.take() for _ in range(len(queue))]


def test_groups_take_turns_and_within_a_group_time_decides() -> None:
    queue = filled("5 flood 3", "5 flood 1", "5 flood 2", "5 shop 9", "5 shop 8", "5 mail 7")
    assert taken(queue) == ["5 flood 1", "5 shop 8", "5 mail 7", "5 flood 2", "5 shop 9", "5 flood 3"]


def test_what_comes_behind_a_flood_waits_for_one_of_it_at_most() -> None:
    queue = filled(*(f"5 flood {number}" for number in range(1000)))
    assert [queue.take(), queue.take()] == ["5 flood 0", "5 flood 1"]
    queue.put(Rank(5, "shop"), NOON + timedelta(hours=1), 1000, "shop")
    assert "shop" in [queue.take(), queue.take()]


def test_priorities_come_before_turns() -> None:
    queue = filled("5 flood 0", "0 flood 9", "0 flood 8", "5 shop 1")
    assert taken(queue) == ["0 flood 8", "0 flood 9", "5 flood 0", "5 shop 1"]


def test_of_one_moment_the_first_to_come_is_first() -> None:
    queue = filled("5 shop 1", "5 shop 1.0", "5 shop 1.00")
    assert taken(queue) == ["5 shop 1", "5 shop 1.0", "5 shop 1.00"]


def test_what_is_not_kept_is_gone_and_so_is_its_groups_turn() -> None:
    queue = filled("5 flood 0", "5 flood 1", "5 shop 2", "3 mail 3")
    queue.keep(lambda moment, order: moment != NOON and order != 3)
    assert len(queue) == 2
    assert sorted(entry[-1] for entry in queue) == ["5 flood 1", "5 shop 2"]
    assert taken(queue) == ["5 flood 1", "5 shop 2"]


def test_nothing_can_be_taken_from_an_empty_queue() -> None:
    with pytest.raises(ValueError, match="empty"):
        FairQueue[str]().take()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", "c", None]), st.integers(0, 20)), max_size=60))
def test_each_comes_out_once_and_of_a_group_none_is_passed_by(items: list[tuple[int, str | None, int]]) -> None:
    queue: FairQueue[int] = FairQueue()
    for order, (priority, group, moment) in enumerate(items):
        queue.put(Rank(priority, group), NOON + timedelta(seconds=moment), order, order)
    came = [queue.take() for _ in range(len(queue))]
    assert sorted(came) == list(range(len(items)))
    assert [items[one][0] for one in came] == sorted(priority for priority, _, _ in items)
    for rank in {(priority, group) for priority, group, _ in items}:
        of_group = [(items[one][2], one) for one in came if items[one][:2] == rank]
        assert of_group == sorted(of_group)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 10), min_size=1))
def test_no_group_gets_a_second_turn_before_each_other_has_had_one(numbers: dict[str, int]) -> None:
    queue: FairQueue[str] = FairQueue()
    orders = iter(range(1000))
    for group, number in numbers.items():
        for _ in range(number):
            queue.put(Rank(5, group), NOON, next(orders), group)
    left = dict(numbers)
    while len(queue):
        waiting = [group for group, number in left.items() if number]
        turn = [queue.take() for _ in waiting]
        assert sorted(turn) == sorted(waiting)
        for group in turn:
            left[group] -= 1
