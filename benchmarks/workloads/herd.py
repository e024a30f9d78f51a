"""Herd: many cron tasks due at the same second, 1 scheduler and 2 workers with their default settings."""

from collections.abc import Mapping
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, epoch, fresh_system, in_seconds, sleep_until
from benchmarks.workloads.punctuality import AHEAD_SECONDS, punctuality

DEADLINE = 120.0
NOTE = "Cron tasks, planned before; default settings, so they are materialized up to 5 s ahead."


def cases(scale: Scale) -> list[Case]:
    """A case for each size."""
    return [Case("herd", "rota", f"{count:,}", scale.rounds, partial(herd, count=count), NOTE) for count in scale.herds]


def herd(lab: Lab, count: int, settings: Mapping[str, str] | None = None) -> Outcome:
    """One herd."""
    with fresh_system(lab) as rota:
        rota.add_tasks(count)
        rota.start(settings=settings)
        due = in_seconds(AHEAD_SECONDS)
        rota.fire_all(due)
        sleep_until(due)
        rota.wait_drained(count, DEADLINE)
        starts = rota.records.starts()
        expected = {key_of(f"t{number}", epoch(due)) for number in range(count)}
        figures = {"started within s": starts[-1].entered - epoch(due), "done after s": last_end(rota) - epoch(due)}
        return punctuality(starts, expected, figures)


def last_end(rota: System) -> float:
    """When the last instance ended, in seconds since the epoch."""
    ((last,),) = rota.sql("SELECT MAX(gmt_completed) FROM schedule_instance")
    return epoch(last)
