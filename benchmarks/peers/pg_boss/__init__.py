"""pg-boss over PostgreSQL."""

from dataclasses import replace

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "pg-boss"
WORKER = ("program.js", "work")
WORKERS = Peer("pg_boss", stores.postgresql, processes=(WORKER, WORKER), fill=("program.js", "fill"))
FETCHERS = replace(WORKERS, processes=(("program.js", "fetch"),) * 2)

COMMON = (
    "Version 10, the last for Node 20. PostgreSQL, 2 processes, batchSize 1,000: a whole batch is marked as started at"
    " once. Jobs inserted in batches."
)
SETTINGS = (
    f"{COMMON} work() with a poll every 0.5 s (default: one job every 2 s), so it does some 4,000/s, 5,000 at most."
)
FETCH = f"{COMMON} No work(): a loop around fetch() and complete(), which pauses only when there was nothing."
RUN_AT = f"Jobs with a startAfter. {SETTINGS}"


def cases(scale: Scale) -> list[Case]:
    """No registry: a schedule of version 10 needs a queue of its own, and that a partition of the job table."""
    return [
        *measures.drains(scale, SUBJECT, WORKERS, 50_000, SETTINGS),
        *measures.drains(scale, f"{SUBJECT}, fetch loop", FETCHERS, 50_000, FETCH),
        *measures.herds(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.steadies(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.runs_now(scale, SUBJECT, WORKERS, ("program.js", "ask"), SETTINGS),
        *measures.distances(scale, SUBJECT, WORKERS, RUN_AT),
    ]
