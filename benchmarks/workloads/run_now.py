"""Run now: an instance asked for by hand in an idle system, from its insert's commit to its handler.

1 scheduler and 1 worker with their default settings.
"""

import random
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import Start, check, curve, lateness
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import epoch, fresh_system
from tests.harness.databases import connect
from tests.harness.processes import wait_until

DEADLINE = 30.0
SEED = 1
PAUSE_SECONDS = 0.3
PERIOD_SECONDS = 1.0
"""The tick's and the poll's, so that instances are asked for at all moments between two of them alike."""

NOTE = (
    "By pull alone. 1 scheduler, 1 worker; a row (schedule_task_id, schedule_datetime) inserted by SQL, each"
    f" {PAUSE_SECONDS:g} to {PAUSE_SECONDS + PERIOD_SECONDS:g} s after the last one ran (evenly spaced, in the random"
    f" order of seed {SEED}); of so few p99 is the largest. The first after the start, for which nothing is compiled"
    " yet, is told apart."
)


def cases(scale: Scale) -> list[Case]:
    """One case."""
    return [Case("run_now", "rota", "", scale.rounds, partial(run_now, count=scale.asked), NOTE)]


def run_now(lab: Lab, count: int, settings: Mapping[str, str] | None = None) -> Outcome:
    """So many instances, one after the other."""
    pauses = [PAUSE_SECONDS + PERIOD_SECONDS * (step + 0.5) / count for step in range(count)]
    random.Random(SEED).shuffle(pauses)
    committed: dict[str, float] = {}
    with fresh_system(lab) as rota:
        rota.add_tasks(1)
        rota.start(workers=1, settings=settings)
        ((task,),) = rota.sql("SELECT id FROM schedule_task")
        with closing(connect(rota.url)) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            for number, pause in enumerate([0.0, *pauses], start=1):
                time.sleep(pause)
                cursor.execute(
                    "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
                    f" VALUES ({task}, UTC_TIMESTAMP(6))"
                )
                moment = time.time()
                cursor.execute(f"SELECT schedule_datetime FROM schedule_instance WHERE id = {cursor.lastrowid}")
                (fire,) = cursor.fetchone() or (None,)
                committed[key_of("t0", epoch(fire))] = moment
                wait_until(lambda: rota.records.count() >= number, DEADLINE, f"instance {number}")  # noqa: B023
        rota.wait_drained(count + 1, DEADLINE)
        starts = [Start(start.key, committed.get(start.key, 0.0), start.entered) for start in rota.records.starts()]
    check(starts, committed)
    first, *rest = starts
    return Outcome({**lateness(rest), "first ms": first.late * 1000}, curve(rest))
