"""The peers: what others use to run tasks on time, each in an environment of its own and over its own database.

A folder each: what it is made from (``requirements.txt`` or ``package.json``), its programs, and ``cases(scale)``.
"""

from benchmarks.cases import Case, Scale
from benchmarks.peers import (
    apscheduler3,
    apscheduler4,
    celery,
    graphile_worker,
    huey,
    measures,
    pg_boss,
    procrastinate,
)

ALL = (apscheduler3, apscheduler4, celery, procrastinate, huey, graphile_worker, pg_boss)


LEFT_OUT = (
    ("all", "a herd of 1,000, and 50 and 1,000/s", "10,000 and 200/s tell them apart, and all of it takes hours"),
    ("all", "the cost of a tick, and more than 10,000 registered", "it takes hours, and what a tick is differs"),
    (
        "all",
        "tasks that differ in everything, and an edit of many tasks",
        "none has cron, zone, overlap, retry and timeout of each task in rows that one statement can edit",
    ),
    ("all but Celery, Procrastinate and pg-boss", "distance", "it takes hours; 10 and 200 ms neither"),
    ("Procrastinate, pg-boss", "pipelines and processes", "a job is not a chain of several, and runs in no process"),
    ("all", "60 s of a steady load", f"{measures.STEADY_SECONDS} s tell them apart; more would find rarer stalls"),
    ("APScheduler 3, Huey", "their stores in memory and in SQLite", "what they keep is gone, or one machine's"),
    (
        "APScheduler 4",
        "a herd of 10,000, 200/s, 10,000 registered",
        "it starts some 60 a second, and adds one at a time",
    ),
    ("pg-boss", "registry", "a schedule of version 10 needs a queue of its own, and that a partition of the job table"),
)
"""Who was not asked for what, and why."""


def cases(scale: Scale) -> list[Case]:
    """What the peers do in a benchmark of this size: nothing in a quick one."""
    return [] if scale.rounds == 1 else [case for peer in ALL for case in peer.cases(scale)]
