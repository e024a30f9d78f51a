"""Steady: so many fires a second, spread within it or all on it, 1 scheduler and 2 workers with their default settings.

Cron has no fractions of a second. Spread fires are those of tasks whose plan (``next_fire_at``) was set off the second
by SQL, each task for one fire: they go the whole way of a cron fire, and only their moment is not one that cron names.
"""

from datetime import datetime, timedelta
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, Window, epoch, fresh_system, in_seconds, settle, sleep_until
from benchmarks.workloads.punctuality import AHEAD_SECONDS, punctuality
from tests.databases import PrivateMariaDB

DEADLINE = 60.0
ON_THE_SECOND = 20
SPREAD_NOTE = "A task for each fire; its plan was set off the second by SQL, then it goes the way of every cron fire."
HERDS_NOTE = f"As many tasks, each due every second, for {ON_THE_SECOND} s: a herd every second."


def cases(scale: Scale) -> list[Case]:
    """A case for each rate; and the highest rate as a herd every second."""
    short = min(scale.seconds, ON_THE_SECOND)
    highest = max(scale.rates)
    return [
        *(
            Case(
                "steady",
                "rota",
                f"{rate:,}/s",
                scale.rounds,
                partial(steady, rate=rate, seconds=scale.seconds),
                SPREAD_NOTE,
            )
            for rate in scale.rates
        ),
        Case(
            "steady",
            "rota",
            f"{highest:,}/s on the second",
            scale.rounds,
            partial(herds, rate=highest, seconds=short),
            HERDS_NOTE,
        ),
    ]


def steady(lab: Lab, rate: int, seconds: int) -> Outcome:
    """One stretch of fires that are spread evenly, over an empty history."""
    with fresh_system(lab) as rota:
        return spread(rota, lab.mariadb, rate, seconds)


def spread(rota: System, server: PrivateMariaDB, rate: int, seconds: int, prefix: str = "t") -> Outcome:
    """One stretch of fires that are spread evenly, by a system without processes."""
    count = rate * seconds
    rota.add_tasks(count, prefix=prefix)
    rota.scheduler()
    rota.start_workers(2)
    settle()
    first = in_seconds(AHEAD_SECONDS + count / 20_000)
    rota.fire_spread(first, rate, prefix)
    steps = (timedelta(microseconds=number * 1_000_000 // rate) for number in range(count))
    expected = {key_of(f"{prefix}{number}", epoch(first + step)) for number, step in enumerate(steps)}
    return _watched(rota, server, first, seconds, expected)


def herds(lab: Lab, rate: int, seconds: int) -> Outcome:
    """One stretch of tasks that all fire every second."""
    with fresh_system(lab) as rota:
        rota.scheduler()
        rota.start_workers(2)
        settle()
        first = in_seconds(AHEAD_SECONDS)
        fires = [first + timedelta(seconds=passed) for passed in range(seconds)]
        rota.add_tasks(rate, "* * * * * *", next_fire_at=first, ends_at=fires[-1])
        expected = {key_of(f"t{number}", epoch(fire)) for number in range(rate) for fire in fires}
        return _watched(rota, lab.mariadb, first, seconds, expected)


def _watched(rota: System, server: PrivateMariaDB, first: datetime, seconds: int, expected: set[str]) -> Outcome:
    sleep_until(first)
    window = Window(rota, server)
    sleep_until(first + timedelta(seconds=seconds))
    shares = window.shares()
    rota.wait_drained(len(expected), DEADLINE)
    return punctuality(rota.records.starts(), expected, shares)
