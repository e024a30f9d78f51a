"""Procrastinate over PostgreSQL."""

from dataclasses import replace

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "Procrastinate"
WORKER = ("program.py", "work")
WORKERS = Peer("procrastinate", stores.postgresql, processes=(WORKER, WORKER))

SETTINGS = "PostgreSQL, 2 workers, concurrency 10 each. Jobs deferred in batches."
RUN_AT = f"Jobs with a scheduled_at, found at the next poll: 5 s by default. {SETTINGS}"


def cases(scale: Scale) -> list[Case]:
    """Timed jobs are its run-at jobs: its periodic tasks are the code of a worker, and all of one second."""
    periodic = (
        "One worker with as many periodic tasks, which are its code and not rows; a cron is checked by each worker."
    )
    return [
        *measures.drains(scale, SUBJECT, WORKERS, 10_000, SETTINGS),
        *measures.herds(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.steadies(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.distances(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.runs_now(scale, SUBJECT, WORKERS, ("program.py", "ask"), f"Told by LISTEN and NOTIFY. {SETTINGS}"),
        *measures.registries(scale, SUBJECT, replace(WORKERS, processes=(WORKER,)), periodic),
    ]
