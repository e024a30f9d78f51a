"""Registry: many tasks that are not due, and 100 that are due every second; 1 scheduler, and 2 workers for the 100."""

import time
from functools import partial

import psutil

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.cpu import Meter
from benchmarks.lab import Lab
from benchmarks.system import fresh_system, settle, sleep_until, write_out
from benchmarks.workloads.punctuality import punctuality
from benchmarks.workloads.steady import add_every_second
from tests.harness.processes import wait_until

DUE = 100
LOOKAHEAD_SECONDS = 6
"""So long (and a second) before the last fire, all fires are materialized, and the ticks have nothing left to do."""

DEADLINE = 120.0
NOTE = (
    "Idle, memory (RSS) and start-up are the scheduler's alone: start-up until its first tick, idle with 2 idle workers"
    f" beside it. A tick is its CPU time per second while {DUE} tasks fire every second; the database's serves the"
    " workers, too."
)


def cases(scale: Scale) -> list[Case]:
    """A case for each size."""
    return [
        Case(
            "registry",
            "rota",
            f"{count:,}",
            scale.rounds,
            partial(registry, count=count, seconds=scale.idle_seconds),
            NOTE,
        )
        for count in scale.registered
    ]


def registry(lab: Lab, count: int, seconds: int) -> Outcome:
    """All figures of one size."""
    with fresh_system(lab) as rota:
        rota.add_tasks(count, prefix="far")
        write_out(lab.mariadb)
        health = lab.folder / "scheduler-health"
        health.unlink(missing_ok=True)
        began = time.monotonic()
        scheduler = rota.scheduler({"ROTA_HEALTH_FILE": str(health)})
        wait_until(health.exists, DEADLINE, "the first tick")
        started = time.monotonic() - began
        rota.start_workers(2)
        settle()
        idle, idle_database = Meter([scheduler.pid]), Meter([lab.mariadb.pid])
        time.sleep(seconds)
        figures = {
            "start-up s": started,
            "idle CPU % of a core": idle.seconds() / seconds * 100,
            "database idle CPU % of a core": idle_database.seconds() / seconds * 100,
        }
        first, expected = add_every_second(rota, DUE, seconds + LOOKAHEAD_SECONDS)
        sleep_until(first)
        tick, database = Meter([scheduler.pid]), Meter([lab.mariadb.pid])
        time.sleep(seconds)
        figures |= {
            "tick ms": tick.seconds() / seconds * 1000,
            "database ms per s": database.seconds() / seconds * 1000,
            "memory MB": psutil.Process(scheduler.pid).memory_info().rss / 1e6,
        }
        rota.wait_drained(len(expected), DEADLINE)
        return punctuality(rota.records.starts(), expected, figures)
