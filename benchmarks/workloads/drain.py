"""Drain: many tasks due at once, one node each, 1 scheduler and 2 workers; from the first lock to the last ``succeed``.

The clock covers what the ceiling's covers: materializing, assigning, claiming, running, reporting.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import WrongRun, check
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, Window, epoch, fresh_system, now, written
from tests.harness.databases import PrivateMariaDB

DEADLINE = 300.0


TUNED = {"ROTA_CAPACITY": "500", "ROTA_BATCH": "2000", "ROTA_PREFETCH": "50000"}


def cases(scale: Scale) -> list[Case]:
    """Rota with its default settings; and with some that suit a drain, in a whole benchmark."""
    default = Case("drain", "rota", "", scale.rounds, partial(drain, count=scale.drain))
    note = ", ".join(f"{name}={value}" for name, value in TUNED.items())
    tuned = Case("drain", "rota, tuned", "", scale.rounds, partial(drain, count=scale.drain, settings=TUNED), note)
    return [default, tuned] if scale.rounds > 1 else [default]


def drain(
    lab: Lab, count: int, *, workers: int = 2, schedulers: int = 1, settings: Mapping[str, str] | None = None
) -> Outcome:
    """One drain over an empty history."""
    with fresh_system(lab) as rota:
        rota.add_tasks(count)
        rota.start(workers=workers, schedulers=schedulers, settings=settings)
        return drained(rota, lab.mariadb, count)


def drained(rota: System, server: PrivateMariaDB, count: int, prefix: str = "t", nodes: Sequence[str] = ()) -> Outcome:
    """One drain of tasks that are there, by processes that are at rest."""
    ((before,),) = rota.sql("SELECT COALESCE(MAX(id), 0) FROM schedule_instance")
    earlier = rota.records.count()
    due = now().replace(microsecond=0)
    rota.fire_all(due, prefix)
    window = Window(rota, server)
    keys = [key_of(f"{prefix}{number}", epoch(due)) for number in range(count)]
    expected = [f"{key}/{node}" for key in keys for node in nodes] or keys
    rota.wait_drained(earlier + len(expected), DEADLINE)
    figures = window.figures(count)
    ((unsuccessful,),) = rota.sql(f"SELECT COUNT(*) FROM schedule_instance WHERE id > {before} AND status <> 'succeed'")
    if unsuccessful:
        raise WrongRun(f"{unsuccessful:,} instances did not end well")
    check([start for start in rota.records.starts() if start.key.startswith(prefix)], expected)
    ((seconds,),) = rota.sql(
        "SELECT TIMESTAMPDIFF(MICROSECOND,"
        f" (SELECT MIN(locked_at) FROM schedule_task_lock WHERE locked_at >= '{written(due)}'),"
        f" (SELECT MAX(gmt_modified) FROM schedule_instance WHERE id > {before})) / 1000000"
    )
    return Outcome({"instances/s": count / float(seconds), "seconds": float(seconds), **figures})
