"""The worker's lease: when it ends, and what ends with it."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from rota.shared import health
from rota.shared.clock import WATCH_SECONDS
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store.workers import Load
from rota.worker_service import liveness as leases
from rota.worker_service.liveness import Lease

LIVENESS = 15
LASTS = LIVENESS - leases.MARGIN_SECONDS
AWAY = DatabaseProblem("the database is away")
Answer = bool | Exception


class World:
    """A lease over a database that answers as the test says, in simulated time; its last answer stays."""

    def __init__(self, health_file: Path) -> None:
        self.clock = SettableClock(datetime.fromisoformat("2026-11-19T12:00:00"))
        self.answers: list[Answer] = [True]
        self.takes = 0.0  # seconds of one renewal
        self.writes = 0
        self.lost: list[str] = []
        self.health_file = str(health_file)
        self.hanging = self.clock.event()
        self.hanging.set()
        settings = Settings.load(liveness_seconds=LIVENESS, health_file=self.health_file)
        expires = self.clock.monotonic() + LASTS
        self.lease = Lease(cast("Database", self), 1, settings, self.load, self.lost.append, expires=expires)

    def load(self) -> Load:
        self.hanging.wait()
        return Load(busy=3)

    def write_one(self, work: Callable[[Any], bool]) -> bool:
        self.writes += 1
        self.clock.sleep(self.takes)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def silent_seconds(self) -> float | None:
        return health.silent_seconds(self.health_file, self.clock.monotonic())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "beat")
    yield world
    world.lease.stop()
    world.hanging.set()
    world.clock.advance(world.takes)


@pytest.mark.parametrize(("silent", "ended"), [(LASTS - 0.001, False), (LASTS, True)])
def test_a_lease_that_is_never_renewed_ends_before_the_liveness_limit(world: World, silent: float, ended: bool) -> None:
    world.answers = [AWAY]
    world.lease.start()
    world.clock.advance(silent)
    assert bool(world.lost) is ended


def test_however_late_the_watchdog_looks_and_however_long_the_farewell_the_process_ends_in_time(world: World) -> None:
    world.answers = [AWAY]
    world.lease.start()
    world.clock.advance(LIVENESS - WATCH_SECONDS - leases.LAST_LOG_SECONDS)
    assert world.lost != []


def test_a_lease_that_is_renewed_lasts(world: World) -> None:
    world.lease.start()
    world.clock.advance(10 * LIVENESS)
    assert world.lost == []


def test_a_renewal_counts_from_its_start_and_not_from_the_answer(world: World) -> None:
    world.takes, world.answers = 10, [True, AWAY]
    world.lease.start()
    world.clock.advance(LASTS - 0.001)
    assert world.lost == []
    world.clock.advance(0.001)
    assert world.lost == ["it could not renew its lease for 14.5 s"]


def test_a_renewal_that_fails_renews_nothing(world: World) -> None:
    world.answers = [AWAY]
    world.clock.advance(10)
    with pytest.raises(DatabaseProblem):
        world.lease.renew()
    world.lease.start()
    world.clock.advance(LASTS - 10)
    assert world.lost != []


def test_an_answer_that_comes_after_the_end_does_not_save_a_process_that_slept(world: World) -> None:
    world.takes, world.answers = LIVENESS + 1, [True, AWAY]
    world.lease.renew()
    world.lease.start()
    world.clock.advance(0)
    assert world.lost != []


def test_a_worker_that_was_declared_dead_ends_at_its_next_heartbeat(world: World) -> None:
    world.answers = [False]
    world.lease.renew()
    assert world.lost == ["it was declared dead"]
    assert world.silent_seconds is None


def test_a_worker_that_has_deregistered_does_not_end_itself_for_being_dead(world: World) -> None:
    world.answers = [False]
    world.lease.stop()
    world.lease.renew()
    assert world.lost == []


def test_a_heartbeat_is_seen_by_the_health_check(world: World) -> None:
    world.lease.renew()
    world.clock.advance(4)
    assert world.silent_seconds == pytest.approx(4)


def test_it_goes_on_beating_after_failures_and_says_so_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.answers = [AWAY, AWAY, True]
    world.lease.start()
    world.clock.advance(2 * leases.RETRY_SECONDS)
    assert (world.writes, world.silent_seconds) == (3, 0)
    world.lease.stop()
    for thread in world.lease._threads:
        thread.join(10)
        assert not thread.is_alive()
    assert [record.getMessage() for record in caplog.records] == [
        "heartbeat: failed and will be tried again: the database is away"
    ]
    assert world.lost == []


def test_the_watchdog_ends_a_process_whose_heartbeat_hangs(world: World) -> None:
    world.hanging.clear()
    world.lease.start()
    world.clock.advance(LASTS)
    assert world.lost != []


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a process does at its end, which is not its end here."""
    done: list[object] = []
    monkeypatch.setattr("rota.worker_service.process_groups.kill_all", lambda: done.append("children"))
    monkeypatch.setattr("os._exit", done.append)
    monkeypatch.setattr(leases.log, "critical", lambda message, reason: done.append(reason))
    return done


def test_losing_the_lease_says_why_and_kills_the_children_just_before_the_process(ending: list[object]) -> None:
    leases.die("it was declared dead")
    assert ending == ["it was declared dead", "children", leases.EXIT_LEASE_LOST]


def test_a_process_that_can_start_no_thread_ends_all_the_same(
    ending: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    leases.die("it was declared dead")
    assert ending == ["children", leases.EXIT_LEASE_LOST]


def test_a_process_whose_children_cannot_be_killed_ends_all_the_same(
    ending: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError

    monkeypatch.setattr("rota.worker_service.process_groups.kill_all", fail)
    with pytest.raises(OSError):  # noqa: PT011
        leases.die("it was declared dead")
    assert ending[-1] == leases.EXIT_LEASE_LOST
