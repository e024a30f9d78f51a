"""Edit: the time zone of very many tasks is changed by one statement, while other tasks fire every second.

What is told is how late those fires start, how long the statement takes, and how long the scheduler takes to plan all
of the edited tasks anew.
"""

import time
from datetime import timedelta
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import epoch, fresh_system, in_seconds, sleep_until, write_out
from benchmarks.workloads.punctuality import AHEAD_SECONDS, punctuality

FIRING = 10
SECONDS = 90
EDIT_AFTER_SECONDS = 5
DEADLINE = 300.0
LOOK_SECONDS = 2.0
NOTE = (
    f"{FIRING} tasks fire every second for {SECONDS} s; the edit comes {EDIT_AFTER_SECONDS} s after the first fire. 1"
    " scheduler, and 2 workers."
)


def cases(scale: Scale) -> list[Case]:
    """A case for each number of edited tasks."""
    return [
        Case("edit", "rota", f"{count:,}", scale.rounds, partial(edit, count=count), NOTE) for count in scale.edited
    ]


def edit(lab: Lab, count: int) -> Outcome:
    """One edit of so many tasks."""
    with fresh_system(lab) as rota:
        rota.add_tasks(count, prefix="far")
        write_out(lab.mariadb)
        rota.start()
        first = in_seconds(AHEAD_SECONDS)
        fires = [first + timedelta(seconds=passed) for passed in range(SECONDS)]
        rota.add_tasks(FIRING, "* * * * * *", next_fire_at=first, ends_at=fires[-1])
        sleep_until(first + timedelta(seconds=EDIT_AFTER_SECONDS))
        began = time.monotonic()
        rota.sql("UPDATE schedule_task SET timezone = 'Europe/Berlin' WHERE live_name LIKE 'far%'")
        edited = time.monotonic() - began
        stale = "SELECT COUNT(*) FROM schedule_task WHERE plan_stale = 1"
        while rota.sql(stale) != [(0,)]:  # rarely, as it reads what is stale
            time.sleep(LOOK_SECONDS)
        figures = {"statement s": edited, "planned anew s": time.monotonic() - began}
        expected = {key_of(f"t{number}", epoch(fire)) for number in range(FIRING) for fire in fires}
        rota.wait_drained(len(expected), DEADLINE)
        return punctuality(rota.records.starts(), expected, figures)
