"""Registry: many tasks that are not due, and 100 that are due every second; 1 scheduler, and 2 workers for the 100."""

import time
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.cpu import Meter, megabytes
from benchmarks.lab import Lab
from benchmarks.system import fresh_system, settle, sleep_until
from benchmarks.workloads.punctuality import punctuality
from benchmarks.workloads.steady import add_every_second
from tests.processes import wait_until

DUE = 100
DUE_SECONDS = 20
TICKING_SECONDS = 14.0
"""Less by the look-ahead: then all is materialized."""

DEADLINE = 120.0
MOST_ROUNDS = {100_000: 3, 1_000_000: 2}
NOTE = (
    f"A tick is the scheduler's CPU time per second while {DUE} tasks fire every second, and the database's, which also"
    " serves the workers; idle is before these tasks are there; start-up ends with the first tick."
)


def cases(scale: Scale) -> list[Case]:
    """A case for each size; fewer rounds of the largest, which take long to fill."""
    return [
        Case(
            "registry",
            "rota",
            f"{count:,}",
            min(scale.rounds, MOST_ROUNDS.get(count, scale.rounds)),
            partial(registry, count=count, idle_seconds=scale.idle_seconds),
            NOTE,
        )
        for count in scale.registered
    ]


def registry(lab: Lab, count: int, idle_seconds: int) -> Outcome:
    """All figures of one size."""
    with fresh_system(lab) as rota:
        rota.add_tasks(count, prefix="far")
        health = lab.folder / "scheduler-health"
        health.unlink(missing_ok=True)
        began = time.monotonic()
        scheduler = rota.scheduler({"ROTA_HEALTH_FILE": str(health)})
        wait_until(health.exists, DEADLINE, "the first tick")
        started = time.monotonic() - began
        settle()
        idle, idle_database = Meter([scheduler.pid]), Meter([lab.mariadb.pid])
        time.sleep(idle_seconds)
        figures = {
            "start-up s": started,
            "idle CPU % of a core": idle.seconds() / idle_seconds * 100,
            "database idle CPU % of a core": idle_database.seconds() / idle_seconds * 100,
        }
        rota.start_workers(2)
        first, expected = add_every_second(rota, DUE, DUE_SECONDS)
        sleep_until(first)
        tick, database = Meter([scheduler.pid]), Meter([lab.mariadb.pid])
        time.sleep(TICKING_SECONDS)
        figures |= {
            "tick ms": tick.seconds() / TICKING_SECONDS * 1000,
            "database ms per s": database.seconds() / TICKING_SECONDS * 1000,
            "memory MB": megabytes([scheduler.pid]),
        }
        rota.wait_drained(len(expected), DEADLINE)
        return punctuality(rota.records.starts(), expected, figures)
