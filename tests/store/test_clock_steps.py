"""A worker whose clock is wrong, because the database's clock was set: it claims nothing early, and learns the time."""

from datetime import timedelta

import pytest

from rota.shared.clock import DatabaseClock
from rota.shared.database.transactions import database_time
from tests.harness.puller import Puller
from tests.harness.scenario import Scenario


def clock_of_before(rows: Scenario, step: float) -> DatabaseClock:
    """A clock that was measured before the database's was set by ``step`` seconds."""
    clock = DatabaseClock(lambda: rows.database.read(database_time) - timedelta(seconds=step))
    clock.calibrate()
    return clock


def error(clock: DatabaseClock, rows: Scenario) -> float:
    return abs((clock.now() - rows.database.read(database_time)).total_seconds())


@pytest.mark.parametrize("step", [-3600, -2, -0.4])
def test_after_a_step_back_of_the_databases_clock_nothing_starts_early(rows: Scenario, step: float) -> None:
    worker, clock = rows.worker(), clock_of_before(rows, step)
    far = rows.assigned(worker, due_at=rows.now() + timedelta(seconds=60))
    late = rows.assigned(worker)
    puller = Puller(rows.database, worker, clock, lookahead_seconds=300)
    puller.backlog.keep([(far, clock.now(), 5), (late, clock.now(), 5)])  # as if both were due
    puller.claimer.claim()
    assert (rows.status(far), rows.status(late)) == ("assigned", "running")
    assert error(clock, rows) < 0.2, "the claim told the time"
    assert len(puller.backlog) == 1
    assert puller.backlog._queue._clock.seconds_until(puller.backlog._queue._waiting[0][0]) > 50


def test_a_claim_tells_the_clock_that_it_was_set_forward(rows: Scenario) -> None:
    worker, clock = rows.worker(), clock_of_before(rows, 5)
    instance = rows.assigned(worker)
    puller = Puller(rows.database, worker, clock)
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert rows.status(instance) == "running"
    assert error(clock, rows) < 0.2
