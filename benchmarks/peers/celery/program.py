"""Celery: the task, beat's schedules; ``program.py fill`` sends the jobs of a drain, ``program.py ask`` one by one."""

import os
import time
from datetime import datetime
from typing import Any

from celery import Celery, chain
from celery.schedules import BaseSchedule, crontab, schedstate
from celery.signals import beat_init, worker_ready

from benchmarks.load import STORE, Load, asked, ready
from benchmarks.record import record

HOUR = 3600.0
PASSED = 1_000
STEPS = 4
"""Before the last job of a chain."""

app = Celery("bench", broker=os.environ[STORE], backend=os.environ[STORE])
app.conf.worker_redirect_stdouts = False
app.conf.broker_connection_retry_on_startup = True


@app.task(name="run")
def run(key: str, due: float) -> dict[str, bool]:
    """Note the start."""
    record(key, due)
    return {"ok": True}


@app.task(name="step")
def step(passed: str = "") -> str:
    """A job of a chain before the last: it passes on 1 KB."""
    return "x" * PASSED


@app.task(name="last")
def last(passed: str, key: str, due: float) -> str:
    """The last job of a chain: note the start."""
    record(key, due)
    return passed


class Hourly(BaseSchedule):
    """Every hour from a moment on: beat's own crontab knows whole minutes only, its interval no first moment."""

    def __init__(self, due: float) -> None:
        super().__init__()
        self.due = due

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Whether it is due, and in how many seconds to ask again."""
        has_run = last_run_at.timestamp() >= self.due
        left = self.due + HOUR * has_run - time.time()
        return schedstate(is_due=left <= 0, next=left if left > 0 else HOUR)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hourly) and other.due == self.due

    def __hash__(self) -> int:
        return hash(self.due)

    def __reduce__(self) -> Any:
        return Hourly, (self.due,)


load = Load.given()


def schedule(due: float) -> BaseSchedule:
    """What beat is to have for a due time."""
    is_idle = load.workload == "registry"
    return crontab(minute=0, hour=0, day_of_month=1, month_of_year=1) if is_idle else Hourly(due)


QUEUED = ("drain", "pipeline", "run_now")
if load.workload not in QUEUED:
    app.conf.beat_schedule = {
        key: {"task": "run", "schedule": schedule(due), "args": (key, due)} for key, due in load.entries()
    }

worker_ready.connect(lambda **_: ready(), weak=False)
beat_init.connect(lambda **_: ready(), weak=False)

if __name__ == "__main__":
    for name, at in asked(load.count) if load.workload == "run_now" else load.entries():
        if load.workload == "pipeline":
            chain(*[step.s() for _ in range(STEPS)], last.s(name, at)).delay()
        else:
            run.delay(name, at)
