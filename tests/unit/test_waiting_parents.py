"""Which instances a scheduler keeps in mind that wait to run as their shards, and which it looks at."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.scheduler_service.waiting_parents import MOST, MOST_OF_ONE_TASK, OF_ONE_TASK, PUT_OFF_SECONDS, WaitingParents
from rota.shared.settable_clock import SettableClock
from rota.shared.store.pending import Pending

NOON = datetime.fromisoformat("2030-01-01T12:00:00")


def pending(numbers: Iterable[int], task: int = 1, due_at: datetime = NOON, priority: int = 100) -> list[Pending]:
    columns = {"task_id": task, "due_at": due_at, "priority": priority}
    return [cast("Pending", SimpleNamespace(id=number, **columns)) for number in numbers]


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


@pytest.fixture
def waiting(clock: Any) -> WaitingParents:
    return WaitingParents(clock)


def test_only_what_is_new_or_due_at_another_time_is_news(waiting: WaitingParents) -> None:
    assert waiting.note(pending([7, 8])) is True
    assert waiting.note(pending([7, 8])) is False
    assert waiting.note(pending([8], due_at=NOON + timedelta(seconds=5))) is True
    assert waiting.due(NOON) == [7]
    assert waiting.next_due(NOON) == NOON + timedelta(seconds=5)


def test_the_oldest_of_each_task_are_looked_at(waiting: WaitingParents) -> None:
    for number in range(100, 0, -1):
        waiting.note(pending([number], task=1, due_at=NOON - timedelta(seconds=200 - number)))
    waiting.note(pending([500], task=2))
    assert waiting.due(NOON) == [*range(1, OF_ONE_TASK + 1), 500]


def test_older_ones_that_can_wait_are_looked_at_last_and_make_room_first(waiting: WaitingParents) -> None:
    waiting.note(pending(range(MOST_OF_ONE_TASK), due_at=NOON - timedelta(hours=1), priority=200))
    waiting.note(pending([500], priority=100))
    assert waiting.due(NOON) == [500, *range(OF_ONE_TASK - 1)]
    assert waiting.note(pending([MOST_OF_ONE_TASK - 1], due_at=NOON - timedelta(hours=1), priority=200)) is False


def test_what_is_beyond_the_bound_of_its_task_is_no_news(waiting: WaitingParents) -> None:
    waiting.note(pending(range(MOST_OF_ONE_TASK)))
    assert waiting.note(pending([1000])) is False
    waiting.forget([0])
    assert waiting.note(pending([1000])) is True


def test_many_of_one_task_leave_room_for_others(waiting: WaitingParents) -> None:
    waiting.note(pending(range(MOST)))
    assert waiting.note(pending([MOST], task=2)) is True
    assert waiting.due(NOON) == [*range(OF_ONE_TASK), MOST]


def test_the_more_tasks_there_are_the_fewer_of_each_are_kept_and_none_is_left_out(waiting: WaitingParents) -> None:
    tasks = range(1, MOST // MOST_OF_ONE_TASK * 4)
    waiting_now = [pending(range(task * 100, task * 100 + MOST_OF_ONE_TASK), task) for task in tasks]
    for _ in range(2):
        for some in waiting_now:
            waiting.note(some)
    due = waiting.due(NOON)
    assert len(due) <= MOST
    assert {number // 100 for number in due} == set(tasks)
    assert not any(waiting.note(some) for some in waiting_now), "nothing is new for ever"


def test_beyond_so_many_tasks_the_others_wait_for_a_place(waiting: WaitingParents) -> None:
    for task in range(1, MOST + 1):
        waiting.note(pending([task], task))
    assert waiting.note(pending([MOST + 1], task=MOST + 1)) is False
    assert len(waiting.due(NOON)) == MOST
    waiting.forget([1])
    assert waiting.note(pending([MOST + 1], task=MOST + 1)) is True


def test_what_nobody_can_run_is_put_off_for_a_while(waiting: WaitingParents, clock: Any) -> None:
    waiting.note(pending(range(OF_ONE_TASK + 1)))
    waiting.put_off(range(OF_ONE_TASK))
    assert waiting.note(pending(range(OF_ONE_TASK))) is False
    assert waiting.due(NOON) == [OF_ONE_TASK]
    clock.advance(PUT_OFF_SECONDS)
    assert waiting.note(pending([0])) is True
    assert waiting.due(NOON) == [0, OF_ONE_TASK]


def test_what_is_put_off_is_bounded_too(waiting: WaitingParents) -> None:
    waiting.put_off(range(2 * MOST))
    assert waiting.note(pending([2 * MOST - 1])) is True
    assert waiting.note(pending([0])) is False
