"""A duty rests longer after a look that took long; but a look also takes as long as the database is slow or away."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import pytest
from sqlalchemy import Connection

from rota.scheduler_service.duties.business_keys import BusinessKeys
from rota.scheduler_service.duties.chains import Chains
from rota.scheduler_service.duties.follower import Follower
from rota.scheduler_service.duties.spreader import Spreader
from rota.scheduler_service.duties.sweeper import PAGE_SECONDS, Sweeper
from rota.scheduler_service.fleet import FleetCache
from rota.shared.control import business_keys
from rota.shared.control.actor import Actor
from rota.shared.control.business_keys import Wanted
from rota.shared.database.transactions import Database
from rota.shared.loop import LONGEST_SPARING_SECONDS
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from tests.harness.scenario import Scenario

T = TypeVar("T")

NOW = datetime.fromisoformat("2031-02-03 04:05:30")
HELD_UP_SECONDS = 30.0


class Duty(Protocol):
    def step(self) -> float: ...


def chains(database: Database, rows: Scenario) -> Duty:
    """A run that another task follows goes on."""
    first = rows.by_sql(rows.task())
    rows.sql(
        "INSERT INTO schedule_chain_run (schedule_instance_id, instance_gmt_create)"
        " SELECT id, gmt_create FROM schedule_instance WHERE id = :first",
        first=first,
    )
    return Chains(database, Settings.load())


def follower(database: Database, rows: Scenario) -> Duty:
    """The first page of two is full of runs that go on."""
    task = rows.task()
    for _ in range(2):
        rows.sql(
            "INSERT INTO schedule_follow_up (schedule_task_id, schedule_instance_id, instance_gmt_create, what)"
            " SELECT schedule_task_id, id, gmt_create, 'fixed_delay' FROM schedule_instance WHERE id = :id",
            id=rows.by_sql(task),
        )
    return Follower(database, Settings.load(batch=1))


def keys(database: Database, rows: Scenario) -> Duty:
    """The first page of two is full of keys that are due and whose runs go on."""
    past = (NOW - timedelta(hours=1)).isoformat()
    business_keys.once_many(database, Actor("ann", "cli"), "REPORT", [Wanted(f"k{n}", past) for n in range(2)])
    return BusinessKeys(database, Settings.load(batch=1))


def spreader(database: Database, rows: Scenario) -> Duty:
    return Spreader(database, Settings.load(), FleetCache(database))


def sweeper(database: Database, rows: Scenario) -> Duty:
    return Sweeper(database, Settings.load())


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOW)


@pytest.fixture
def database(migrated_url: str, clock: SettableClock) -> Iterator[Database]:
    with closing(Database(migrated_url, clock=clock)) as database:
        yield database


@pytest.mark.parametrize(
    ("of", "longest"),
    [
        (chains, LONGEST_SPARING_SECONDS),
        (follower, LONGEST_SPARING_SECONDS),
        (keys, LONGEST_SPARING_SECONDS),
        (spreader, LONGEST_SPARING_SECONDS),
        (sweeper, PAGE_SECONDS),
    ],
)
def test_a_look_that_was_held_up_is_not_followed_by_a_long_rest(
    database: Database,
    clock: SettableClock,
    monkeypatch: pytest.MonkeyPatch,
    of: Callable[[Database, Scenario], Duty],
    longest: float,
) -> None:
    rows = Scenario(database)
    rows.worker()
    duty, read = of(database, rows), database.read

    def held_up(work: Callable[[Connection], T], **options: Any) -> T:
        clock.advance(HELD_UP_SECONDS)
        return read(work, **options)

    monkeypatch.setattr(database, "read", held_up)
    assert 0 < duty.step() <= longest
