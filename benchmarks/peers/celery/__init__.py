"""Celery with beat, over Redis."""

from dataclasses import replace

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "Celery"
APP = ("-m", "celery", "-A", "program")
WORKER = (*APP, "worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "WARNING")
BEAT = (*APP, "beat", "--loglevel", "WARNING", "--pidfile=")

WORKERS = Peer("celery", stores.redis, processes=(WORKER,))
WITH_BEAT = replace(WORKERS, processes=(WORKER, BEAT), fill=None)
EIGHT = replace(WORKERS, processes=(tuple("8" if one == "2" else one for one in WORKER),))
BEAT_ALONE = replace(WITH_BEAT, processes=(BEAT,))

SETTINGS = "Redis (appendfsync everysec), results kept there; one worker, prefork 2, prefetch 4, early acknowledgement."
SCHEDULES = (
    "beat with its default scheduler; its crontab knows whole minutes only, so the schedules are of a class of ours."
    " Schedules are code or configuration of beat, of which there can be one; it compares all of them in every tick."
)


def cases(scale: Scale) -> list[Case]:
    """Drain, chains and processes from the queue; all else through beat."""
    timed = f"{SETTINGS} {SCHEDULES}"
    return [
        *measures.drains(scale, SUBJECT, WORKERS, 10_000, SETTINGS),
        *measures.herds(scale, SUBJECT, WITH_BEAT, timed),
        *measures.steadies(scale, SUBJECT, WITH_BEAT, timed),
        *measures.distances(scale, SUBJECT, WITH_BEAT, timed),
        *measures.runs_now(scale, SUBJECT, replace(WORKERS, fill=None), ("program.py", "ask"), SETTINGS),
        *measures.pipelines(scale, SUBJECT, WORKERS, 2_000, f"chain() of five tasks. {SETTINGS}"),
        *measures.processes(scale, SUBJECT, EIGHT, 10_000, SETTINGS.replace("prefork 2", "prefork 8")),
        *measures.registries(scale, SUBJECT, BEAT_ALONE, "beat alone, crontab schedules; its worker is not counted."),
    ]
