"""Steady: so many fires a second, spread within it or all on it, 1 scheduler and 2 workers with their default settings.

Cron has no fractions of a second. Spread fires are those of tasks whose plan (``next_fire_at``) was set off the second
by SQL, each task for one fire: they go the whole way of a cron fire, and only their moment is not one that cron names.
"""

from datetime import datetime, timedelta
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, Window, epoch, fresh_system, in_seconds, sleep_until
from benchmarks.workloads.punctuality import AHEAD_SECONDS, punctuality
from tests.harness.databases import PrivateMariaDB

DEADLINE = 60.0
LOOKAHEAD_SECONDS = 5
"""Rota's default."""

ON_THE_SECOND = 20
SPREAD_NOTE = "A task for each fire; its plan was set off the second by SQL, then it goes the way of every cron fire."
HERDS_NOTE = f"As many tasks, each due every second, for {ON_THE_SECOND} s: a herd every second."


def cases(scale: Scale) -> list[Case]:
    """A case for each rate; and the highest rate as a herd every second, where there is time."""
    found = [
        Case(
            "steady",
            "rota",
            f"{rate:,}/s",
            scale.rounds,
            partial(steady, rate=rate, seconds=scale.seconds),
            SPREAD_NOTE,
        )
        for rate in scale.rates
    ]
    if scale.seconds >= ON_THE_SECOND:
        highest = max(scale.rates)
        run = partial(herds, rate=highest, seconds=ON_THE_SECOND)
        found.append(Case("steady", "rota", f"{highest:,}/s on the second", scale.rounds, run, HERDS_NOTE))
    return found


def steady(lab: Lab, rate: int, seconds: int, round_trip_seconds: float = 0) -> Outcome:
    """One stretch of fires that are spread evenly, over an empty history in a database that is so far away."""
    with fresh_system(lab, round_trip_seconds) as rota:
        rota.add_tasks(rate * seconds)
        rota.start()
        return spread(rota, lab.mariadb, rate, seconds)


def spread(rota: System, server: PrivateMariaDB, rate: int, seconds: int, prefix: str = "t") -> Outcome:
    """One stretch of fires that are spread evenly, of tasks that are there, by processes that are at rest."""
    count = rate * seconds
    first = in_seconds(AHEAD_SECONDS + count / 20_000)
    rota.fire_spread(first, rate, prefix)
    return _watched(rota, server, first, seconds, spread_keys(prefix, first, rate, count))


def spread_keys(prefix: str, first: datetime, rate: int, count: int) -> set[str]:
    """The keys of spread fires."""
    steps = (timedelta(microseconds=number * 1_000_000 // rate) for number in range(count))
    return {key_of(f"{prefix}{number}", epoch(first + step)) for number, step in enumerate(steps)}


def herds(lab: Lab, rate: int, seconds: int, round_trip_seconds: float = 0) -> Outcome:
    """One stretch of tasks that all fire every second, with the database so far away."""
    with fresh_system(lab, round_trip_seconds) as rota:
        rota.start()
        first, expected = add_every_second(rota, rate, seconds)
        return _watched(rota, lab.mariadb, first, seconds, expected)


def add_every_second(rota: System, rate: int, seconds: int) -> tuple[datetime, set[str]]:
    """Add tasks that all fire every second, so many times; their first fire, and the keys of all."""
    first = in_seconds(AHEAD_SECONDS)
    fires = [first + timedelta(seconds=passed) for passed in range(seconds)]
    rota.add_tasks(rate, "* * * * * *", next_fire_at=first, ends_at=fires[-1])
    return first, {key_of(f"t{number}", epoch(fire)) for number in range(rate) for fire in fires}


def _watched(rota: System, server: PrivateMariaDB, first: datetime, seconds: int, expected: set[str]) -> Outcome:
    earlier = rota.records.count()
    sleep_until(first - timedelta(seconds=LOOKAHEAD_SECONDS))  # what prepares the first fires is part of the cost
    window = Window(rota, server)
    sleep_until(first + timedelta(seconds=seconds))
    shares = window.shares(seconds)
    rota.wait_drained(earlier + len(expected), DEADLINE)
    return punctuality(rota.records.starts()[earlier:], expected, shares)
