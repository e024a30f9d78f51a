"""Procrastinate: ``program.py fill`` makes its schema and defers jobs in batches, ``program.py work`` is a worker.

``program.py ask`` defers one job after the other.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Job

from benchmarks.load import STORE, Load, asked, moment, ready
from benchmarks.record import record

BATCH = 1_000
CONCURRENCY = 10
UNSTORED = ("registry", "run_now")

app = App(connector=PsycopgConnector(conninfo=os.environ[STORE]))
load = Load.given()


@app.task(name="run")
async def run(key: str, due: float) -> None:
    """Note the start."""
    record(key, due)


async def fill() -> None:
    """Defer all jobs; those of a registry are periodic tasks and not stored."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        jobs = [_job(key, due) for key, due in load.entries() if load.workload not in UNSTORED]
        for start in range(0, len(jobs), BATCH):
            await app.job_manager.batch_defer_jobs_async(jobs[start : start + BATCH])


async def ask() -> None:
    """Defer one job after the other."""
    async with app.open_async():
        for key, due in asked(load.count):
            await run.defer_async(key=key, due=due)


def _job(key: str, due: float) -> Job:
    return Job(
        id=None,
        queue="default",
        lock=None,
        queueing_lock=None,
        task_name="run",
        task_kwargs={"key": key, "due": due},
        scheduled_at=moment(due) if due else None,
    )


async def work() -> None:
    """Run what is due."""
    if load.workload == "registry":
        for key, due in load.entries():
            app.periodic(cron="0 0 1 1 *", periodic_id=key)(app.task(name=key)(_periodic(key, due)))
    async with app.open_async():
        ready()
        await app.run_worker_async(concurrency=CONCURRENCY)


def _periodic(key: str, due: float) -> Callable[[int], Awaitable[None]]:
    async def periodic(timestamp: int) -> None:
        record(key, due or timestamp)

    return periodic


if __name__ == "__main__":
    asyncio.run({"fill": fill, "work": work, "ask": ask}[sys.argv[1]]())
