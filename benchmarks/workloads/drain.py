"""Drain: many tasks due at once, one node each, 1 scheduler and 2 workers; from the first lock to the last ``succeed``.

The clock covers what the ceiling's covers: materializing, assigning, claiming, running, reporting.
"""

from collections.abc import Mapping
from datetime import UTC

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import check
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, Window, now, settle

DEADLINE = 300.0


def cases(scale: Scale) -> list[Case]:
    """Rota with its default settings."""
    return [Case("drain", "rota", "", scale.rounds, lambda lab: drain(lab, scale.drain))]


def drain(
    lab: Lab, count: int, *, workers: int = 2, schedulers: int = 1, settings: Mapping[str, str] | None = None
) -> Outcome:
    """One drain over an empty history."""
    with lab.rota_database() as url, lab.records() as records, System(url, records) as rota:
        rota.add_tasks(count)
        for _ in range(schedulers):
            rota.scheduler(settings)
        rota.start_workers(workers, settings)
        settle()
        window = Window(rota, lab.mariadb)
        due = now().replace(microsecond=0)
        rota.fire_all(due)
        rota.wait_drained(count, DEADLINE)
        figures = window.figures(count)
        starts = records.starts()
        check(starts, {key_of(f"t{number}", due.replace(tzinfo=UTC).timestamp()) for number in range(count)})
        ((seconds,),) = rota.sql(
            "SELECT TIMESTAMPDIFF(MICROSECOND, (SELECT MIN(locked_at) FROM schedule_task_lock),"
            " (SELECT MAX(gmt_modified) FROM schedule_instance)) / 1000000"
        )
        return Outcome({"instances/s": count / float(seconds), "seconds": float(seconds), **figures})
