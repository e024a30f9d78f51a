"""Drain: many tasks due at once, one node each, 1 scheduler and 2 workers; from the first lock to the last ``succeed``.

The clock covers what the ceiling's covers: materializing, assigning, claiming, running, reporting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import WrongRun, check, middle_rate
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, Window, epoch, fresh_system, now, written
from tests.harness.databases import PrivateMariaDB

DEADLINE = 300.0


TUNED = {"ROTA_CAPACITY": "500", "ROTA_BATCH": "2000", "ROTA_PREFETCH": "50000"}

STORED_NOTE = (
    "One-off instances, inserted by SQL before the processes start, as the peers' jobs are; the rate of the middle"
    " eight tenths of starts."
)


@dataclass(frozen=True, slots=True)
class Herd:
    """So many fires of tasks with a prefix, due at one moment (naive UTC), and what their handlers write down."""

    due: datetime
    count: int
    expected: Sequence[str]
    prefix: str


def cases(scale: Scale) -> list[Case]:
    """Rota with its default settings; and with some that suit a drain, in a whole benchmark."""
    default = Case("drain", "rota", "", scale.rounds, partial(drain, count=scale.drain))
    note = ", ".join(f"{name}={value}" for name, value in TUNED.items())
    tuned = Case("drain", "rota, tuned", "", scale.rounds, partial(drain, count=scale.drain, settings=TUNED), note)
    before = Case("drain", "rota, stored before", "", scale.rounds, partial(stored, count=scale.drain), STORED_NOTE)
    return [default, tuned, before] if scale.rounds > 1 else [default]


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
    due = now().replace(microsecond=0)
    keys = [key_of(f"{prefix}{number}", epoch(due)) for number in range(count)]
    herd = Herd(due, count, [f"{key}/{node}" for key in keys for node in nodes] or keys, prefix)
    return timed(rota, server, herd, lambda: rota.fire_all(due, prefix))


def timed(rota: System, server: PrivateMariaDB, herd: Herd, fire: Callable[[], None]) -> Outcome:
    """One drain of what ``fire`` makes due."""
    ((before,),) = rota.sql("SELECT COALESCE(MAX(id), 0) FROM schedule_instance")
    earlier = rota.records.count()
    fire()
    window = Window(rota, server)
    rota.wait_drained(earlier + len(herd.expected), DEADLINE)
    figures = window.figures(herd.count)
    ((unsuccessful,),) = rota.sql(f"SELECT COUNT(*) FROM schedule_instance WHERE id > {before} AND status <> 'succeed'")
    if unsuccessful:
        raise WrongRun(f"{unsuccessful:,} instances did not end well")
    check([start for start in rota.records.starts() if start.key.startswith(herd.prefix)], herd.expected)
    ((seconds,),) = rota.sql(
        "SELECT TIMESTAMPDIFF(MICROSECOND,"
        f" (SELECT MIN(locked_at) FROM schedule_task_lock WHERE locked_at >= '{written(herd.due)}'),"
        f" (SELECT MAX(gmt_modified) FROM schedule_instance WHERE id > {before})) / 1000000"
    )
    return Outcome({"instances/s": herd.count / float(seconds), "seconds": float(seconds), **figures})


def stored(lab: Lab, count: int) -> Outcome:
    """Instances of one task that are there before the processes start."""
    with fresh_system(lab) as rota:
        last = now().replace(microsecond=0)
        rota.sql(
            "INSERT INTO schedule_task (name, type, trigger_kind, overlap_policy)"
            " VALUES ('stored', 'BENCH_NOOP', 'manual', 'allow')"
        )
        rota.sql(
            f"INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
            f" SELECT id, '{written(last)}' - INTERVAL seq SECOND FROM schedule_task JOIN seq_0_to_{count - 1}"
        )
        rota.start()
        rota.wait_drained(count, DEADLINE)
        starts = rota.records.starts()
        check(starts, {key_of("stored", epoch(last) - number) for number in range(count)})
        return Outcome({"instances/s": middle_rate(starts), "seconds": starts[-1].entered - starts[0].entered})
