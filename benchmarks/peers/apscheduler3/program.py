"""APScheduler 3: ``program.py fill`` puts jobs into its table in one go, ``program.py work`` is the scheduler."""

import os
import pickle
import sys
import time
from datetime import UTC, datetime

from apscheduler.job import Job
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from apscheduler.util import datetime_to_utc_timestamp

from benchmarks.load import STORE, Load, moment, ready
from benchmarks.record import record

DEFAULT_GRACE = 1


def run(key: str, due: float) -> None:
    """Note the start."""
    record(key, due)


def trigger(workload: str, at: datetime) -> BaseTrigger:
    """Once for a drain, daily for a herd, hourly for a steady load."""
    if workload == "drain":
        return DateTrigger(at)
    if workload == "steady":
        return IntervalTrigger(hours=1, start_date=at, timezone=UTC)
    return CronTrigger(hour=at.hour, minute=at.minute, second=at.second, timezone=UTC)


def fill(store: SQLAlchemyJobStore) -> None:
    """Insert the jobs as ``add_job`` would, in one transaction."""
    load = Load.given()
    grace = DEFAULT_GRACE if os.environ.get("BENCH_GRACE") == "default" else None
    scheduler = BackgroundScheduler(timezone=UTC)
    store.start(scheduler, "default")
    rows = []
    for key, due in load.entries():
        at = moment(due)
        job = Job(
            scheduler,
            id=key,
            func=run,
            trigger=trigger(load.workload, at),
            executor="default",
            args=(key, due),
            kwargs={},
            name=key,
            misfire_grace_time=grace,
            coalesce=True,
            max_instances=1,
            next_run_time=at,
        )
        state = pickle.dumps(job.__getstate__(), store.pickle_protocol)
        rows.append({"id": key, "next_run_time": datetime_to_utc_timestamp(at), "job_state": state})
    with store.engine.begin() as connection:
        connection.execute(store.jobs_t.insert(), rows)


def work(store: SQLAlchemyJobStore) -> None:
    """Schedule and run."""
    scheduler = BackgroundScheduler(timezone=UTC, jobstores={"default": store})
    scheduler.start()
    ready()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    {"fill": fill, "work": work}[sys.argv[1]](SQLAlchemyJobStore(os.environ[STORE]))
