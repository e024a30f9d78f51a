"""What the guardian does on which thread."""

import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rota.shared.settings import Settings
from rota.worker_service.board import Board
from rota.worker_service.guardian import Guardian


class Locked:
    """A database that answers nothing while a table is locked."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()
        self.clock = SimpleNamespace(measure=lambda: None, at=lambda moment: None)

    def write(self, work: Callable[[Any], Any]) -> bool:
        self.asked.set()
        return self.free.wait(30)


@pytest.fixture
def locked() -> Iterator[Locked]:
    one = Locked()
    yield one
    one.free.set()


def test_no_heartbeat_waits_for_the_note_that_a_worker_is_blocked(locked: Locked) -> None:
    board = Board(1)
    guardian = Guardian(Settings.load(), board, os.getpid(), 0)
    guardian.__dict__["_database"], guardian._awake = locked, 0.0
    threading.Thread(target=guardian._mark, name="blocked", daemon=True).start()
    guardian._renewed(5.0)
    assert locked.asked.wait(10), "the note is written, but not by the heartbeat"
    assert (board.expires, locked.free.is_set()) == (5.0, False)
    guardian._renewed(6.0)
    assert board.expires == 6.0


@pytest.mark.parametrize(("late", "named"), [(1, [2]), (4, [2]), (99, [1, 2])])
def test_a_thread_that_a_busy_machine_lets_run_late_is_still_found(
    monkeypatch: pytest.MonkeyPatch, late: int, named: list[int]
) -> None:
    guardian = Guardian(Settings.load(), Board(1), os.getpid(), 0)
    monkeypatch.setattr(guardian._board, "entered", lambda: [(1, 11), (2, 22)])
    monkeypatch.setattr("rota.worker_service.guardian.SAMPLE_SECONDS", 0)
    looks = {11: 0, 22: 0}

    def ticks(thread: int) -> int:
        looks[thread] += 1
        return int(thread == 22 and looks[thread] > late)

    monkeypatch.setattr(guardian, "_ticks", ticks)
    assert guardian._blockers() == named


@pytest.mark.parametrize("sequence", [[(1, 10)], [(1, 0), (1, 3), (2, 8)], [(1, 1), (1, 4), (1, 4)]])
def test_a_thread_that_waits_for_pythons_lock_and_uses_the_processor_a_little_is_not_named(
    monkeypatch: pytest.MonkeyPatch, sequence: list[tuple[int, int]]
) -> None:
    """It was, if one of its few ticks fell into the look."""
    guardian = Guardian(Settings.load(), Board(1), os.getpid(), 0)
    monkeypatch.setattr(guardian._board, "entered", lambda: [(1, 11), (2, 22)])
    monkeypatch.setattr("rota.worker_service.guardian.SAMPLE_SECONDS", 0)
    looks = {11: 0, 22: 0}

    def ticks(thread: int) -> int:
        waits, holds = [(0, 0), *sequence][min(looks[thread], len(sequence))]
        looks[thread] += 1
        return waits if thread == 11 else holds

    monkeypatch.setattr(guardian, "_ticks", ticks)
    assert guardian._blockers() == [2]
