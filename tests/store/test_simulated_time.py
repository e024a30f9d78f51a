"""Sessions of a database that was handed a clock tell the clock's time, in defaults and in statements."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from rota.shared.database.transactions import Database, database_time
from rota.shared.settable_clock import SettableClock
from tests.harness.scenario import Scenario

MOMENT = datetime.fromisoformat("2031-02-03 04:05:06.789012")


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(MOMENT)


@pytest.fixture
def rows(migrated_url: str, clock: SettableClock) -> Iterator[Scenario]:
    database = Database(migrated_url, clock=clock)
    yield Scenario(database)
    database.close()


def to_milliseconds(moment: datetime) -> datetime:
    """SQLite's clock has milliseconds."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def test_the_servers_time_is_the_clocks(rows: Scenario, clock: SettableClock) -> None:
    for _ in range(2):
        for use in (rows.database.read, rows.database.write, rows.database.write_one):
            assert to_milliseconds(use(database_time)) == to_milliseconds(clock.now())
        clock.advance(86_400.5)


def test_the_defaults_of_columns_are_the_clocks_time(rows: Scenario, clock: SettableClock) -> None:
    first = rows.task()
    clock.advance(3600)
    second = rows.task()
    created = [to_milliseconds(rows.task_row(task).gmt_create) for task in (first, second)]
    assert created == [to_milliseconds(MOMENT), to_milliseconds(MOMENT + timedelta(hours=1))]


def test_times_other_than_now_are_as_they_are(rows: Scenario) -> None:
    task = rows.task(starts_at=datetime.fromisoformat("2026-02-28 23:59:59.123456"))
    assert rows.task_row(task).starts_at == datetime.fromisoformat("2026-02-28 23:59:59.123456")
