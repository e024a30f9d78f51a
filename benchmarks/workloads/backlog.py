"""Backlog: stored runs of one task that runs one at a time, whose handler does nothing; 1 scheduler, 1 or 2 workers.

What bounds it is the way from one run's end to the next one's start, which no batch makes shorter.
"""

from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import WrongRun, check, middle_rate
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, Window, epoch, fresh_system, now, written

DEADLINE = 300.0


def cases(scale: Scale) -> list[Case]:
    """With one worker, and with two, of which one is to do all of it."""
    return [
        Case(
            "backlog", "rota", f"{workers} worker{'s' * (workers > 1)}", scale.rounds, partial(backlog, scale, workers)
        )
        for workers in (1, 2)
    ]


def backlog(scale: Scale, workers: int, lab: Lab) -> Outcome:
    """Runs of one ``queue`` task, inserted by SQL: each runs once, in order, never two at once."""
    count = scale.serial
    with fresh_system(lab) as rota:
        rota.start(workers=workers)
        last, window = now().replace(microsecond=0), Window(rota, lab.mariadb)
        rota.sql(
            "INSERT INTO schedule_task (name, type, trigger_kind, overlap_policy)"
            " VALUES ('serial', 'BENCH_NOOP', 'manual', 'queue')"
        )
        rota.sql(
            f"INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
            f" SELECT id, '{written(last)}' - INTERVAL {count} - seq SECOND FROM schedule_task JOIN seq_1_to_{count}"
        )
        rota.wait_drained(count, DEADLINE)
        figures = window.figures(count)
        starts = rota.records.starts()
        expected = [key_of("serial", epoch(last) - number) for number in reversed(range(count))]
        check(starts, expected)
        if [start.key for start in starts] != expected:
            raise WrongRun("the runs started in another order than that of their due times")
        _never_two_at_once(rota)
        seconds = starts[-1].entered - starts[0].entered
        return Outcome({"runs/s": count / seconds, "middle runs/s": middle_rate(starts), "seconds": seconds, **figures})


def _never_two_at_once(rota: System) -> None:
    """By what the worker reported: when each handler was entered and left."""
    ((overlapping,),) = rota.sql(
        "SELECT COUNT(*) FROM (SELECT gmt_started, LAG(gmt_completed) OVER (ORDER BY due_at, id) AS before_it"
        " FROM schedule_instance) AS runs WHERE gmt_started < before_it"
    )
    if overlapping:
        raise WrongRun(f"{overlapping:,} runs began before the one before them had ended")
