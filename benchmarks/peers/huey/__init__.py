"""Huey over Redis."""

from dataclasses import replace

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "Huey"
CONSUMER = ("-m", "huey.bin.huey_consumer", "program.huey", "--workers", "2", "--worker-type", "process", "--quiet")
CONSUMERS = Peer("huey", stores.redis, processes=(CONSUMER,), fill=("fill.py",))

SETTINGS = (
    "Redis (appendfsync everysec), results kept there, 2 worker processes."
    " A job is removed before it runs: a crash loses it."
)
RUN_AT = f"Jobs with an eta, looked for once a second: its cron knows whole minutes only. {SETTINGS}"


def cases(scale: Scale) -> list[Case]:
    """Timed jobs are its jobs with an eta."""
    periodic = "The consumer and 2 workers with as many periodic tasks, which are its code and not rows."
    return [
        *measures.drains(scale, SUBJECT, CONSUMERS, 20_000, SETTINGS),
        *measures.herds(scale, SUBJECT, CONSUMERS, RUN_AT),
        *measures.steadies(scale, SUBJECT, CONSUMERS, RUN_AT),
        *measures.registries(scale, SUBJECT, replace(CONSUMERS, fill=None), periodic),
    ]
