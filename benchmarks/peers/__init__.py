"""The peers: what others use to run tasks on time, each in an environment of its own and over its own database.

A folder each: what it is made from (``requirements.txt`` or ``package.json``), its programs, and ``cases(scale)``.
"""

from benchmarks.cases import Case, Scale
from benchmarks.peers import apscheduler3, apscheduler4, celery, graphile_worker, huey, pg_boss, procrastinate

ALL = (apscheduler3, apscheduler4, celery, procrastinate, huey, graphile_worker, pg_boss)


def cases(scale: Scale) -> list[Case]:
    """What the peers do in a benchmark of this size: nothing in a quick one."""
    return [] if scale.rounds == 1 else [case for peer in ALL for case in peer.cases(scale)]
