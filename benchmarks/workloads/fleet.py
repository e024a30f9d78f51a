"""Fleet: the drain by more workers and by more schedulers, and what idle workers ask the database."""

import time
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.system import Window, fresh_system, settle
from benchmarks.workloads.drain import drain, drained
from benchmarks.workloads.tuning import Tuned

IDLE_SECONDS = 10
"""At most."""

WORKERS_NOTE = "1 scheduler, which is started after the workers have been idle for a while."
POOL = "--thread-handling=pool-of-threads"
POOL_NOTE = f"{POOL}, on a server that was just started."
SCHEDULERS_NOTE = "2 workers."


def cases(scale: Scale) -> list[Case]:
    """A case for each number of workers with one scheduler, and of schedulers, from 2 on, with two workers."""
    of_workers = [
        Case("fleet", "rota", _called(count, "worker"), scale.rounds, partial(_workers, scale, count), WORKERS_NOTE)
        for count in scale.workers
    ]
    of_schedulers = [
        Case(
            "fleet",
            "rota",
            _called(count, "scheduler"),
            scale.rounds,
            partial(drain, count=scale.drain, schedulers=count),
            SCHEDULERS_NOTE,
        )
        for count in scale.schedulers
        if count > 1  # one is the case of 2 workers
    ]
    pooled = [
        Case(
            "fleet",
            "rota, thread pool",
            _called(count, "worker"),
            scale.rounds,
            partial(_pooled, scale, count),
            POOL_NOTE,
        )
        for count in scale.workers[-1:]
        if scale.rounds > 1
    ]
    return [*of_workers, *pooled, *of_schedulers]


def _called(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count > 1 else "")


def _pooled(scale: Scale, count: int, lab: Lab) -> Outcome:
    with Tuned((POOL,)) as own:
        return _workers(scale, count, own)


def _workers(scale: Scale, count: int, lab: Lab) -> Outcome:
    seconds = min(IDLE_SECONDS, scale.idle_seconds)
    with fresh_system(lab) as rota:
        rota.add_tasks(scale.drain)
        rota.start(workers=count, schedulers=0)
        window = Window(rota, lab.mariadb)
        time.sleep(seconds)
        idle = window.counted()["Questions"] / seconds / count
        rota.scheduler()
        settle()
        outcome = drained(rota, lab.mariadb, scale.drain)
        return Outcome({**outcome.figures, "statements/s per idle worker": idle})
