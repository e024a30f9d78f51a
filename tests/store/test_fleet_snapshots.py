"""What a duty places by: read again when it is too old, and counted on meanwhile."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

import pytest
from sqlalchemy import Connection

from rota.scheduler_service.fleet import SNAPSHOT_SECONDS, FleetCache
from rota.scheduler_service.placement import needs_of
from rota.shared.database.transactions import Database
from rota.shared.settable_clock import SettableClock
from rota.shared.store import loads
from tests.harness.scenario import Scenario
from tests.harness.statements import executed


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(datetime.fromisoformat("2026-11-22 12:00:00"))


@pytest.fixture
def rows(migrated_sqlite_url: str, clock: SettableClock) -> Iterator[Scenario]:
    database = Database(migrated_sqlite_url, clock=clock)
    yield Scenario(database)
    database.close()


def test_it_is_read_again_when_it_is_too_old_and_not_before(rows: Scenario, clock: SettableClock) -> None:
    known = FleetCache(rows.database)
    needs = needs_of(rows.nodes, {})
    assert known.current().fleet.choose(needs) is None
    worker = rows.worker()
    clock.advance(SNAPSHOT_SECONDS)
    with executed(rows.database.engine) as statements:
        assert known.current().fleet.choose(needs) is None
    assert statements == []
    clock.advance(0.001)
    assert known.current().fleet.choose(needs) == worker
    assert known.current().fleet.nodes_of(worker, "REPORT") == rows.nodes


@pytest.mark.parametrize(("took", "good_for"), [(0.001, 0.25), (0.02, 0.4), (10.0, 1.0)])
def test_a_look_that_took_long_is_good_for_longer_but_not_for_ever(
    rows: Scenario, clock: SettableClock, monkeypatch: pytest.MonkeyPatch, took: float, good_for: float
) -> None:
    known, look = FleetCache(rows.database), loads.fleet

    def slow(connection: Connection, counted: int) -> list[loads.LiveWorker]:
        clock.advance(took)
        return look(connection, counted)

    monkeypatch.setattr(loads, "fleet", slow)
    seen = known.current()
    assert known.seconds_good() == pytest.approx(good_for)
    clock.advance(good_for - 0.001)
    assert known.current() is seen
    clock.advance(0.002)
    assert known.seconds_good() == 0
    assert known.current() is not seen


def test_what_was_given_counts_until_it_is_read_again(rows: Scenario, clock: SettableClock) -> None:
    known = FleetCache(rows.database)
    worker = rows.worker(capacity=2, prefetch=1)
    needs = needs_of(rows.nodes, {})
    assert [known.current().fleet.choose(needs) for _ in range(4)] == [worker, worker, worker, None]
    for _ in range(2):
        rows.assigned(worker)
    clock.advance(SNAPSHOT_SECONDS + 0.001)
    assert [known.current().fleet.choose(needs) for _ in range(2)] == [worker, None]


def test_a_scheduler_sees_what_another_gives_to_a_long_queue(rows: Scenario, clock: SettableClock) -> None:
    """Both have seen the workers before, when their queues were empty."""
    first, second = (rows.worker(prefetch=10_000) for _ in range(2))
    known = FleetCache(rows.database)
    known.current()
    rows.queued(first, 4_000)
    rows.queued(second, 3_000)
    clock.advance(SNAPSHOT_SECONDS + 0.001)
    needs = needs_of(rows.nodes, {})
    given = Counter(known.current().fleet.choose(needs) for _ in range(1_200))
    assert given == {first: 100, second: 1_100}


def test_a_worker_is_given_no_more_than_it_may_hold_though_its_queue_is_long(
    rows: Scenario, clock: SettableClock
) -> None:
    worker = rows.worker(capacity=10, prefetch=5_000)
    needs = needs_of(rows.nodes, {})
    rows.queued(worker, 5_009)
    for _ in range(3):
        schedulers_first_look = FleetCache(rows.database).current().fleet
        assert [schedulers_first_look.choose(needs) for _ in range(2)] == [worker, None]
    known = FleetCache(rows.database)
    assert known.current().fleet.choose(needs) == worker
    rows.queued(worker, 1)
    for _ in range(3):
        clock.advance(SNAPSHOT_SECONDS + 0.001)
        assert known.current().fleet.choose(needs) is None


@pytest.mark.parametrize("column", ["schedule_worker_node.prefetch", "schedule_worker_beat.abandoned"])
def test_a_text_in_place_of_a_number_counts_as_none(sqlite_rows: Scenario, column: str) -> None:
    """SQLite keeps it, where its CHECKs are off."""
    sqlite_rows.worker()
    table, name = column.split(".")
    with closing(sqlite3.connect(sqlite_rows.database.url.database or "", isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE {table} SET {name} = 'many'")
    [worker] = sqlite_rows.database.read(loads.fleet)
    assert (worker.capacity > 0, worker.prefetch == 0) == (True, name == "prefetch")
