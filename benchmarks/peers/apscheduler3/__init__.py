"""APScheduler 3 over MariaDB: one process is its scheduler and its workers."""

from dataclasses import replace

from benchmarks.cases import Case, Scale
from benchmarks.peers import measures, stores
from benchmarks.peers.running import Peer

SUBJECT = "APScheduler 3"
SCHEDULER = Peer("apscheduler3", stores.mariadb, processes=(("program.py", "work"),))
DEFAULT_GRACE = replace(SCHEDULER, settings={"BENCH_GRACE": "default"}, drops_late=True)

SETTINGS = (
    "SQLAlchemyJobStore on the MariaDB that Rota has, one process with 10 threads: it cannot have a second one over the"
    " same jobs, and keeps no record of a run. Jobs inserted in bulk."
)
NO_GRACE = f"misfire_grace_time=None, or it drops what is more than 1 s late. {SETTINGS}"


def cases(scale: Scale) -> list[Case]:
    """With no limit to lateness, and one herd with its default limit of 1 s."""
    return [
        *measures.drains(scale, SUBJECT, SCHEDULER, 10_000, NO_GRACE),
        *measures.herds(scale, SUBJECT, SCHEDULER, f"Cron triggers. {NO_GRACE}"),
        *measures.herds(
            scale,
            f"{SUBJECT}, default grace",
            DEFAULT_GRACE,
            f"Cron triggers. misfire_grace_time=1, the default: what is later is dropped. {SETTINGS}",
            counts=(10_000,),
        ),
        *measures.steadies(scale, SUBJECT, SCHEDULER, f"Interval triggers. {NO_GRACE}"),
        *measures.registries(scale, SUBJECT, SCHEDULER, f"Cron triggers. {NO_GRACE}"),
    ]
