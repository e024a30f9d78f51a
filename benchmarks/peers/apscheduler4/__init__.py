"""APScheduler 4, a pre-release, over PostgreSQL."""

from dataclasses import replace

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "APScheduler 4"
SCHEDULER = ("program.py", "schedule")
WORKER = ("program.py", "work")
ALL = Peer("apscheduler4", stores.postgresql, processes=(SCHEDULER, WORKER, WORKER), fill_seconds_per_1_000=8)

SETTINGS = (
    "Version 4.0.0a6, a pre-release. PostgreSQL with its event broker, for which MariaDB has nothing; 1 scheduler and 2"
    " workers. Jobs and schedules added one by one."
)


def cases(scale: Scale) -> list[Case]:
    """Small ones: it starts some 60 jobs in a second."""
    return [
        *measures.drains(scale, SUBJECT, ALL, 1_500, SETTINGS),
        *measures.herds(scale, SUBJECT, ALL, f"Cron triggers. {SETTINGS}", counts=(1_000,)),
        *measures.steadies(scale, SUBJECT, ALL, f"Interval triggers. {SETTINGS}", rates=(50,)),
        *measures.registries(
            scale,
            SUBJECT,
            replace(ALL, processes=(SCHEDULER,)),
            f"Cron triggers; the scheduler alone. {SETTINGS}",
            counts=(1_000,),
        ),
    ]
