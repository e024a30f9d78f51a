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
    assert sorted(item for _, _, item in queue) == ["5 flood 1", "5 shop 2"]
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


# Shares and weights


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=2),
    st.integers(1, 200),
)
def test_while_all_wait_each_group_gets_by_its_share(groups: dict[str, tuple[int, int]], number: int) -> None:
    """Of any two that wait, none has had more than one item more than its share says (Goyal, Theorem 1)."""
    queue: FairQueue[str] = FairQueue()
    orders = iter(range(10_000))
    for group, (share, weight) in groups.items():
        for _ in range(number):
            queue.put(Rank(5, group, share), NOON, next(orders), group, weight=weight)
    had = dict.fromkeys(groups, 0)
    while len(queue):
        group = queue.take()
        had[group] += 1
        if had[group] == number:
            break  # from now on they do not all wait
        used = {one: had[one] * weight / share for one, (share, weight) in groups.items()}
        for one, (share, weight) in groups.items():
            for other, (other_share, other_weight) in groups.items():
                assert used[one] - used[other] <= weight / share + other_weight / other_share + 1e-9


def test_what_takes_several_slots_uses_up_as_many_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for order in range(3):
        queue.put(Rank(5, "large"), NOON, order, "L", weight=4)
    for order in range(3, 15):
        queue.put(Rank(5, "small"), NOON, order, "s")
    assert "".join(taken(queue)) == "LssssLssssLssss"


def test_a_group_of_which_one_waits_at_a_time_gets_no_second_turn_before_the_others() -> None:
    queue = filled(*(f"5 flood {number}" for number in range(100)), *(f"5 mail {number}" for number in range(100)))
    came = []
    for order in range(1000, 1030):
        queue.put(Rank(5, "shop"), NOON, order, "5 shop 0")
        while (one := queue.take()) != "5 shop 0":
            came.append(one.split()[1])
        came.append("shop")
    assert max(came.count(group) - came.count(other) for group in set(came) for other in set(came)) <= 1


def test_those_who_come_out_of_turn_are_put_back_by_one_turn_at_most() -> None:
    queue = filled(*(f"5 flood {number}" for number in range(100)), *(f"5 shop {number}" for number in range(60)))
    queue.take()
    for _ in range(50):
        queue.take_others(1, {"flood"}, lambda _: 1)
    assert sorted(queue.take() for _ in range(6)) == ["5 flood 1", "5 flood 2", "5 flood 3"] + [
        f"5 shop {number}" for number in (50, 51, 52)
    ]


def test_those_beside_a_crowd_take_turns_among_each_other() -> None:
    queue = filled(
        *(f"5 flood {number}" for number in range(9)), *(f"5 a {n}" for n in range(4)), *(f"5 b {n}" for n in range(4))
    )
    others = [one.split()[1] for _ in range(8) for one in queue.take_others(1, {"flood"}, lambda _: 1)]
    assert [sorted(pair) for pair in zip(others[::2], others[1::2], strict=True)] == [["a", "b"]] * 4


def test_of_groups_that_are_gone_little_is_kept() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.put(Rank(5, "stays"), NOON, 0, 0)
    for order in range(1, 20_000):
        queue.put(Rank(5, f"group {order}"), NOON, order, order)
        queue.take_others(1, {"stays"}, lambda _: 1)
    assert sum(len(kept) for kept in (queue._lines[5]._used, queue._lines[5]._next)) < 2_000
