"""The database's time, told from boot time and an offset."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.shared import clock as clocks
from rota.shared import offset
from rota.shared.clock import (
    CALIBRATION_SECONDS,
    FAR_SECONDS,
    WATCH_SECONDS,
    DatabaseClock,
    HostTimer,
    boottime,
)
from rota.shared.offset import CALIBRATIONS, SAMPLES

EPOCH = datetime.fromisoformat("1970-01-01T00:00:00")
NOON = datetime.fromisoformat("2026-11-19T12:00:00")


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class World:
    """A host and a database: boot time, the database's true time, and how long each way between them takes."""

    def __init__(self) -> None:
        self.uptime = 5000.0
        self.ahead = NOON - s(5000)  # the database's time at the host's boot
        self.there = self.back = 0.0

    def boottime(self) -> float:
        return self.uptime

    @property
    def true_time(self) -> datetime:
        return self.ahead + s(self.uptime)

    def read(self) -> datetime:
        self.uptime += self.there
        told = self.true_time
        self.uptime += self.back
        return told


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock(world: World, monkeypatch: pytest.MonkeyPatch) -> DatabaseClock:
    """A clock without caution, so that its measurements show."""
    monkeypatch.setattr(offset, "MOST_CAUTION_SECONDS", 0.0)
    return DatabaseClock(world.read, monotonic=world.boottime, host_now=lambda: EPOCH)


def error(clock: DatabaseClock, world: World) -> float:
    return abs((clock.now() - world.true_time).total_seconds())


def test_the_offset_is_the_middle_of_the_round_trip(clock: DatabaseClock, world: World) -> None:
    world.there = world.back = 0.2
    clock.measure()
    world.uptime += 1000
    assert error(clock, world) == 0


@pytest.mark.parametrize(("way", "late"), [(0.0001, 0.0001), (0.0008, 0.0008), (0.05, 0.001), (0.1, 0.001)])
def test_it_is_a_little_late_rather_than_early(world: World, way: float, late: float) -> None:
    """By half of the round trip, and a millisecond at most: one way may take so much longer than the other."""
    world.there = world.back = way
    clock = DatabaseClock(world.read, monotonic=world.boottime)
    clock.measure()
    assert (world.true_time - clock.now()).total_seconds() == pytest.approx(late, abs=1e-6)


@given(st.floats(0, 0.001), st.floats(0, 0.001))
def test_it_is_never_early_by_a_database_that_is_near(there: float, back: float) -> None:
    world = World()
    world.there, world.back = there, back
    clock = DatabaseClock(world.read, monotonic=world.boottime)
    clock.measure()
    assert clock.now() <= world.true_time + timedelta(microseconds=1), "a microsecond: how exactly times are written"


def test_it_is_wrong_by_no_more_than_half_the_round_trip(clock: DatabaseClock, world: World) -> None:
    world.there = 0.3
    clock.measure()
    assert error(clock, world) == pytest.approx(0.15)


@pytest.mark.parametrize("order", [[0.4, 0.0, 0.4], [0.0, 0.4, 0.4], [0.4, 0.4, 0.0]])
def test_the_measurement_with_the_shortest_round_trip_is_believed(
    clock: DatabaseClock, world: World, order: list[float]
) -> None:
    for world.there in order:
        clock.measure()
    assert error(clock, world) == 0


def test_an_old_measurement_is_given_up_so_that_drift_does_not_add_up(clock: DatabaseClock, world: World) -> None:
    clock.measure()
    world.there = world.back = 0.01
    world.ahead += s(0.3)  # the database's clock ran fast, by too little to be a step
    for _ in range(SAMPLES):
        clock.measure()
    assert error(clock, world) == 0


@pytest.mark.parametrize(("age", "wrong_by"), [(10, 0), (60, 0.0005)])
def test_an_exact_measurement_counts_until_the_clocks_may_have_drifted_by_more(
    clock: DatabaseClock, world: World, age: float, wrong_by: float
) -> None:
    clock.measure()
    world.uptime += age
    world.there = 0.001
    clock.measure()
    assert error(clock, world) == pytest.approx(wrong_by)


def test_many_measurements_under_load_do_not_displace_an_exact_one(clock: DatabaseClock, world: World) -> None:
    clock.measure()
    world.there = 0.02
    for _ in range(SAMPLES // 2):
        world.uptime += 6
        clock.measure()
    assert error(clock, world) == 0


@pytest.mark.parametrize("step", [3600, -3600, 2, 0.45, -0.45, 0.06, -0.06])
def test_a_step_of_the_databases_clock_is_followed_at_once(clock: DatabaseClock, world: World, step: float) -> None:
    clock.calibrate()
    world.ahead += s(step)
    world.there = world.back = 0.05  # worse than all that is remembered
    clock.measure()
    assert clock.now() == world.true_time - s(0.05), "one way may have taken all the time"
    world.there = world.back = 0.0
    clock.measure()
    assert error(clock, world) == 0


def test_a_slow_round_trip_is_not_taken_for_a_step(clock: DatabaseClock, world: World) -> None:
    clock.measure()
    world.there = 3
    clock.measure()
    assert error(clock, world) == 0


def test_a_database_that_answers_late_at_first_does_not_count_as_far_away(clock: DatabaseClock, world: World) -> None:
    began, world.there, read = world.uptime, 2 * FAR_SECONDS, world.read

    def read_later() -> datetime:
        world.there = 0.0 if world.uptime > began + CALIBRATION_SECONDS / 2 else world.there
        return read()

    clock._read = read_later
    clock.calibrate()
    assert clock.round_trip() < FAR_SECONDS


@pytest.mark.parametrize(
    ("way", "times"), [(0.0, 5), (FAR_SECONDS, CALIBRATION_SECONDS / FAR_SECONDS), (CALIBRATION_SECONDS, 5)]
)
def test_it_is_measured_for_a_moment_and_no_longer(
    clock: DatabaseClock, world: World, way: float, times: float
) -> None:
    began, world.there = world.uptime, way
    clock.calibrate()
    assert (world.uptime - began) == pytest.approx(way * times, abs=1.1 * way)


def observe(clock: DatabaseClock, world: World, seconds: float, *, waits: float = 0.0) -> None:
    """A statement begins after it has waited so long, tells the time, and is answered so many seconds after."""
    asked = world.uptime
    world.uptime += waits
    told = world.true_time
    world.uptime += seconds
    clock.observe(asked, told, world.uptime)


def test_times_that_slow_statements_tell_do_not_displace_what_was_measured(clock: DatabaseClock, world: World) -> None:
    clock.calibrate()
    for _ in range(10 * SAMPLES):
        observe(clock, world, 0.005)
    assert error(clock, world) == 0


def test_a_step_is_followed_at_once_that_a_statement_tells_of(clock: DatabaseClock, world: World) -> None:
    clock.calibrate()
    world.ahead -= s(2)
    observe(clock, world, 0.005)
    assert clock.now() == world.true_time - s(0.005), "late by what it took at most, and not early"


@pytest.mark.parametrize("step", [2, -2])
@pytest.mark.parametrize(("waits", "takes"), [(0.2, 0.0), (0.1, 0.1), (0.0, 0.2)])
def test_after_a_step_it_is_not_early_though_the_statement_that_told_of_it_was_slow(
    clock: DatabaseClock, world: World, step: float, waits: float, takes: float
) -> None:
    """A new connection, a busy server: the statement may have waited for nearly all of that time, and then told it."""
    world.there = world.back = 0.0005
    clock.calibrate()
    world.ahead += s(step)
    observe(clock, world, takes + 0.0005, waits=waits + 0.0005)
    assert s(0) <= world.true_time - clock.now() <= s(takes + 0.001)
    clock.measure()
    assert error(clock, world) == 0


def test_after_two_steps_in_a_row_it_is_not_early_either(clock: DatabaseClock, world: World) -> None:
    clock.calibrate()
    for _ in range(2):
        world.ahead += s(2)
        observe(clock, world, 0.0, waits=0.2)
        assert clock.now() <= world.true_time


def test_a_wide_measurement_from_before_a_step_does_not_outlive_it(clock: DatabaseClock, world: World) -> None:
    clock.calibrate()
    world.there = world.back = 0.03
    clock.measure()
    world.ahead -= s(0.22)
    observe(clock, world, 0.0, waits=0.2)
    assert clock.now() <= world.true_time


def test_a_quick_statement_makes_it_exact_again_after_a_slow_one(clock: DatabaseClock, world: World) -> None:
    clock.calibrate()
    world.ahead += s(2)
    observe(clock, world, 0.2)
    observe(clock, world, 0.005)
    assert s(0) <= world.true_time - clock.now() <= s(0.005)


def test_quick_statements_do_not_tell_how_far_away_the_database_is(clock: DatabaseClock, world: World) -> None:
    clock.calibrate()
    world.ahead += s(2)
    for number in range(2 * CALIBRATIONS):
        observe(clock, world, 0.0, waits=0.2 - number / 1000)
        assert clock.now() <= world.true_time


def test_the_database_is_not_taken_for_far_away_by_one_slow_statement(clock: DatabaseClock, world: World) -> None:
    clock.calibrate()
    world.ahead += s(2)
    observe(clock, world, 0.2)
    assert clock.round_trip() < FAR_SECONDS


def test_a_slow_statement_from_before_a_step_does_not_undo_what_was_measured_after_it(
    clock: DatabaseClock, world: World
) -> None:
    clock.calibrate()
    asked, told = world.uptime, world.true_time
    world.uptime += 0.3
    world.ahead -= s(2)
    clock.measure()
    world.uptime += 0.2
    clock.observe(asked, told, world.uptime)
    assert clock.now() <= world.true_time


def test_after_a_move_to_a_database_far_away_it_is_exact_again_when_that_is_known(
    clock: DatabaseClock, world: World
) -> None:
    clock.calibrate()
    world.ahead += s(2)
    world.there = world.back = 0.05
    for _ in range(CALIBRATIONS - 1):
        clock.measure()
        assert clock.now() == world.true_time - s(0.05), "one way may have taken all the time"
    clock.measure()
    assert error(clock, world) == 0


def test_it_measures_by_itself_when_it_is_first_asked(clock: DatabaseClock, world: World) -> None:
    assert clock.now() == world.true_time


def test_time_asked_for_a_boot_time_moment_is_the_databases_then(clock: DatabaseClock, world: World) -> None:
    clock.measure()
    then, began = world.true_time, world.uptime
    world.uptime += 90
    assert clock.at(began) == then
    assert clock.seconds_until(then) == -90


def test_the_hosts_clock_changes_nothing(clock: DatabaseClock, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "host_now", lambda: EPOCH)
    clock.measure()
    assert clock.now() == world.true_time
    assert clock.host_offset_seconds() == (EPOCH - world.true_time).total_seconds()


@pytest.mark.parametrize(
    ("moment", "period", "phase", "seconds"),
    [
        ("00:00:00.25", 1, 0, 0.75),
        ("00:00:00", 1, 0, 1),
        ("00:00:00.999999", 1, 0, 0.000001),
        ("00:00:00.02", 1, 0.05, 0.03),
        ("00:00:00.05", 1, 0.05, 1),
        ("00:00:00.06", 1, 0.05, 0.99),
        ("00:00:07", 5, 0.1, 3.1),
        ("00:00:00.3", 0.2, 0, 0.1),
    ],
)
def test_the_next_moment_of_a_period_is_ahead_and_no_further_than_it_is_long(
    moment: str, period: float, phase: float, seconds: float
) -> None:
    now = datetime.fromisoformat(f"2026-11-19T{moment}")
    assert clocks.seconds_to_next(now, period, phase) == pytest.approx(seconds, abs=1e-5)


@given(st.integers(-(10**14), 10**14), st.sampled_from([0.05, 0.5, 1, 5]), st.floats(0, 0.1))
def test_whoever_asks_whenever_is_sent_to_the_same_moments(at: int, period: float, phase: float) -> None:
    now = NOON + timedelta(microseconds=at)
    seconds = clocks.seconds_to_next(now, period, phase)
    assert 0 < seconds <= period
    later = now + timedelta(seconds=seconds)
    past = ((later - clocks.EPOCH).total_seconds() - phase) % period
    assert min(past, period - past) < 1e-5


class Suspending(HostTimer):
    """A host that was suspended, which its threads' waits do not count."""

    slept = 0.0

    def __init__(self) -> None:
        super().__init__(lambda: boottime() + self.slept)


def test_a_moment_that_comes_during_a_suspend_is_noticed_soon_after_it() -> None:
    timer = Suspending()
    never, moment = timer.event(), timer.monotonic() + 3600
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(timer.wait_until, never, moment)
        assert not waiting.done()
        timer.slept = 3601
        assert waiting.result(WATCH_SECONDS + 10) is False
    assert timer.monotonic() < moment + 60


def test_waiting_until_a_moment_ends_when_the_event_is_set() -> None:
    timer = HostTimer()
    event = timer.event()
    assert timer.wait_until(event, timer.monotonic() + 0.01) is False
    event.set()
    assert timer.wait_until(event, timer.monotonic() + 3600) is True
