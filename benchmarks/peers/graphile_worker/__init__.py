"""graphile-worker over PostgreSQL."""

from dataclasses import replace

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "graphile-worker"
WORKER = ("program.js", "work")
WORKERS = Peer("graphile_worker", stores.postgresql, processes=(WORKER, WORKER), fill=("program.js", "fill"))
LOCAL_QUEUE = replace(WORKERS, settings={"BENCH_LOCAL_QUEUE": "500"})

SETTINGS = "PostgreSQL, 2 processes, concurrency 10 each. Jobs added in batches; a job that ran is deleted."
RUN_AT = f"Jobs with a run_at, found at the next poll: 2 s by default. {SETTINGS}"


def cases(scale: Scale) -> list[Case]:
    """Timed jobs are its run-at jobs: its crontab knows whole minutes only, and belongs to a process."""
    local = f"localQueue of 500, completeJobBatchDelay of 0: jobs are taken and completed in batches. {SETTINGS}"
    crontab = "One process with a crontab of as many lines, which is its configuration and not rows."
    return [
        *measures.drains(scale, SUBJECT, WORKERS, 20_000, SETTINGS),
        *measures.drains(scale, f"{SUBJECT}, local queue", LOCAL_QUEUE, 100_000, local),
        *measures.herds(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.steadies(scale, SUBJECT, WORKERS, RUN_AT),
        *measures.runs_now(scale, SUBJECT, WORKERS, ("program.js", "ask"), f"Told by LISTEN and NOTIFY. {SETTINGS}"),
        *measures.registries(scale, SUBJECT, replace(WORKERS, processes=(WORKER,)), crontab),
    ]
