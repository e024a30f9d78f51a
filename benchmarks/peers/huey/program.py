"""Huey: the task and the periodic ones."""

import os

from huey import RedisHuey, crontab

from benchmarks.load import STORE, Load, ready
from benchmarks.record import record

huey = RedisHuey("bench", url=os.environ[STORE])
load = Load.given()


@huey.task(name="run")
def run(key: str, due: float) -> dict[str, bool]:
    """Note the start."""
    record(key, due)
    return {"ok": True}


@huey.on_startup()
def at_work() -> None:
    """Tell so, in each worker."""
    ready()


if load.workload == "registry":
    for name, _ in load.entries():
        huey.periodic_task(crontab(month="1", day="1", hour="0", minute="0"), name=name)(lambda: None)
