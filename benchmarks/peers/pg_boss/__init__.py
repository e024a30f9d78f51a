"""pg-boss over PostgreSQL."""

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "pg-boss"
WORKER = ("program.js", "work")
WORKERS = Peer("pg_boss", stores.postgresql, processes=(WORKER, WORKER), fill=("program.js", "fill"))

SETTINGS = (
    "Version 10, the last for Node 20. PostgreSQL, 2 processes, batchSize 1,000, a poll every 0.5 s (by default one job"
    " every 2 s): a whole batch is marked as started at once. Jobs inserted in batches."
)
RUN_AT = f"Jobs with a startAfter. {SETTINGS}"


def cases(scale: Scale) -> list[Case]:
    """No registry: a schedule of version 10 needs a queue of its own, and that a partition of the job table."""
    return [
        *measures.drains(scale, SUBJECT, WORKERS, 50_000, SETTINGS),
        *measures.herds(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.steadies(scale, SUBJECT, WORKERS, RUN_AT),
    ]
