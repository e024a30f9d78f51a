"""The worker's lease: when it ends, and what ends with it. Boot time is set by the test."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from shared import health
from shared.domain.errors import DatabaseProblem
from shared.store.database import Database
from tests.processes import wait_until
from worker_service import lease as leases
from worker_service.lease import Lease

LIVENESS = 15.0
LASTS = LIVENESS - leases.MARGIN_SECONDS


class World:
    """A lease over a database that answers as the test says, at a boot time that the test sets."""

    def __init__(self, tmp_path: Path) -> None:
        self.uptime = 1000.0
        self.alive: bool | Exception = True
        self.takes = 0.0  # seconds of one renewal
        self.writes = self.measured = 0
        self.lost: list[str] = []
        self.health_file = str(tmp_path / "beat")
        self.clock = self
        self.lease = Lease(
            cast("Database", self),
            worker_id=1,
            heartbeat_seconds=0.005,
            liveness_seconds=LIVENESS,
            load=lambda: 3,
            health_file=self.health_file,
            lost=self.lost.append,
        )

    def boottime(self) -> float:
        return self.uptime

    def measure(self) -> None:
        self.measured += 1

    def write_one(self, work: Callable[[Any], bool]) -> bool:
        self.writes += 1
        self.uptime += self.takes
        if isinstance(self.alive, Exception):
            raise self.alive
        return self.alive

    def watched_at(self, uptime: float) -> list[str]:
        """What the watchdog says when it looks at this time."""
        self.uptime = uptime
        self.lease._stopping = cast("threading.Event", _Once())
        self.lease._watch()
        return self.lost


class _Once:
    """A stop event that is set after one wait."""

    def __init__(self) -> None:
        self._waited = False

    def wait(self, seconds: float) -> bool:
        before, self._waited = self._waited, True
        return before


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    uptime: list[World] = []
    for module in (leases, health):
        monkeypatch.setattr(module, "boottime", lambda: uptime[0].uptime if uptime else 1000.0)
    uptime.append(World(tmp_path))
    return uptime[0]


@pytest.mark.parametrize(("silent", "ended"), [(LASTS, False), (LASTS + 0.001, True)])
def test_a_lease_that_is_never_renewed_ends_before_the_liveness_limit(world: World, silent: float, ended: bool) -> None:
    assert bool(world.watched_at(1000 + silent)) is ended


def test_however_late_the_watchdog_looks_and_however_long_the_farewell_the_process_ends_in_time(world: World) -> None:
    latest = leases.WATCH_SECONDS + leases.SAYING_SECONDS
    assert world.watched_at(1000 + LIVENESS - latest) != []


def test_a_renewal_counts_from_its_start_and_not_from_the_answer(world: World) -> None:
    world.takes = 10
    world.lease.renew()
    assert world.watched_at(1000 + LASTS) == []
    assert world.watched_at(1000 + LASTS + 0.001) == ["it could not renew its lease for 14.5 s"]


def test_a_renewal_that_fails_renews_nothing(world: World) -> None:
    world.alive = DatabaseProblem("away")
    world.uptime = 1010
    with pytest.raises(DatabaseProblem):
        world.lease.renew()
    assert world.watched_at(1000 + LIVENESS + 1) != []


def test_an_answer_that_comes_after_the_end_does_not_save_a_process_that_slept(world: World) -> None:
    world.takes = LIVENESS + 1
    world.lease.renew()
    assert world.watched_at(world.uptime) != []


def test_a_worker_that_was_declared_dead_ends_at_its_next_heartbeat(world: World) -> None:
    world.alive = False
    world.lease.renew()
    assert world.lost == ["it was declared dead"]
    assert health.silent_seconds(world.health_file) is None


def test_a_worker_that_has_deregistered_does_not_end_itself_for_being_dead(world: World) -> None:
    world.alive = False
    world.lease.stop()
    world.lease.renew()
    assert world.lost == []


def test_a_heartbeat_is_seen_by_the_health_check(world: World) -> None:
    world.lease.renew()
    world.uptime += 4
    assert health.silent_seconds(world.health_file) == pytest.approx(4)


def test_it_goes_on_beating_after_failures_and_says_so_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.001)
    world.alive = DatabaseProblem("the database is away")
    world.lease.start()
    wait_until(lambda: world.writes >= 3)
    world.alive = True
    wait_until(lambda: health.silent_seconds(world.health_file) == 0)
    world.lease.stop()
    for thread in world.lease._threads:
        thread.join(10)
        assert not thread.is_alive()
    assert [record.getMessage() for record in caplog.records] == [
        "heartbeat: failed and will be tried again: the database is away"
    ]
    assert world.lost == []


def test_the_watchdog_ends_a_process_whose_heartbeat_hangs(world: World) -> None:
    hanging = threading.Event()

    def load() -> int:
        hanging.wait(10)
        return 0

    world.lease._load = load
    world.lease.start()
    world.uptime += LIVENESS + 1
    wait_until(lambda: world.lost, what="the watchdog to act")
    world.lease.stop()
    hanging.set()


def test_losing_the_lease_kills_the_children_and_then_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr("worker_service.children.kill_all", lambda: done.append("children"))
    monkeypatch.setattr("os._exit", done.append)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    leases.die("it was declared dead")
    assert done == ["children", leases.EXIT_LEASE_LOST]
