"""APScheduler 4: ``program.py fill`` adds jobs or schedules one by one; ``schedule`` and ``work`` are its processes."""

import asyncio
import os
import sys
from datetime import UTC

from apscheduler import AsyncScheduler, SchedulerRole
from apscheduler.abc import Trigger
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.psycopg import PsycopgEventBroker
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.load import STORE, Load, moment, ready
from benchmarks.record import record


async def run(key: str, due: float) -> None:
    """Note the start."""
    record(key, due)


def scheduler(role: SchedulerRole) -> AsyncScheduler:
    """One over the store, with an event broker that wakes the others."""
    url = make_url(os.environ[STORE]).set(drivername="postgresql+psycopg")
    engine = create_async_engine(url)
    return AsyncScheduler(SQLAlchemyDataStore(engine), PsycopgEventBroker.from_async_sqla_engine(engine), role=role)


def trigger(workload: str, due: float) -> Trigger:
    """Hourly for a steady load, else daily."""
    at = moment(due)
    if workload == "steady":
        return IntervalTrigger(hours=1, start_time=at)
    return CronTrigger(hour=at.hour, minute=at.minute, second=at.second, start_time=at, timezone=UTC)


async def fill() -> None:
    """Add them one by one: it has no bulk call."""
    load = Load.given()
    async with scheduler(SchedulerRole.scheduler) as adding:
        await adding.configure_task("run", func=run)
        for key, due in load.entries():
            if load.workload == "drain":
                await adding.add_job("run", args=(key, due))
            else:
                await adding.add_schedule("run", trigger(load.workload, due), id=key, args=(key, due))


async def process(role: SchedulerRole) -> None:
    """Be the scheduler or a worker."""
    async with scheduler(role) as one:
        await one.configure_task("run", func=run)
        await one.start_in_background()
        ready()
        await one.wait_until_stopped()


if __name__ == "__main__":
    asyncio.run(
        {
            "fill": fill,
            "schedule": lambda: process(SchedulerRole.scheduler),
            "work": lambda: process(SchedulerRole.worker),
        }[sys.argv[1]]()
    )
