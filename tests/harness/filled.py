"""A database with a row or two of all that commands show, written by the store."""

from typing import Any

from sqlalchemy import insert, select, update

from rota.shared.control import calendars, limits
from rota.shared.control import tasks as control
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import opened
from rota.shared.domain.calendars.defining import Changes
from rota.shared.domain.task import TaskDefinition
from rota.shared.store import backfills, instances, node_types, schedulers, tasks, workers
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.schedulers import SchedulerDeclaration
from rota.shared.store.tables import schedule_business_key, schedule_instance, schedule_task_node
from rota.shared.store.workers import WorkerDeclaration

DAILY = {"name": "daily", "type": "REPORT", "cron": "@daily", "timezone": "Europe/Berlin"}


def with_rows(url: str) -> None:
    """Write the task `daily`, with an instance and a backfill, the live worker `w`, a limit, a calendar and a key."""

    def write(connection: Any) -> None:
        node_types.register(connection, [NodeTypeDeclaration("REPORT_EXTRACT", "REPORT")], by="test")
        tasks.add(connection, TaskDefinition.of(**DAILY), by="test")
        workers.register(connection, WorkerDeclaration("w", "host", 7, "x", "1", 50, 100, 15, [], {}))
        daily, now = tasks.find(connection, "daily"), database.clock.now()
        instance = instances.ask(connection, daily, now, by="test")
        created = select(schedule_instance.c.gmt_create).where(schedule_instance.c.id == instance).scalar_subquery()
        key = {"type": "REPORT", "number": "product-42", "schedule_task_id": daily.id, "due_at": now}
        its_run = {"schedule_instance_id": instance, "instance_gmt_create": created}
        connection.execute(insert(schedule_business_key).values(**key, **its_run))
        backfills.add(connection, daily, "test", from_at=now, to_at=now, next_fire=now, fires=1)

    with opened(url) as database:
        database.write(write)
        limits.add(database, Actor("ann", "cli"), {"name": "warehouse", "max_running": 4})
        calendars.add(database, Actor("ann", "cli"), "feasts", Changes(off=["2027-12-25"]))


def with_all_rows(url: str) -> None:
    """Write more: a scheduler, an act; and instance 1, failed, with its node and an attempt."""
    with_rows(url)
    declared = SchedulerDeclaration("s", "host", 8, "1.0", 15)
    of_first = schedule_instance.c.id == 1
    created = select(schedule_instance.c.gmt_create).where(of_first).scalar_subquery()
    node = {"schedule_instance_id": 1, "schedule_task_node_type_id": 1, "sequence": 1, "status": "failed"}
    with opened(url) as database:
        schedulers.insert_into(database, lambda connection: [schedulers.register(connection, declared)])
        control.edit(database, Actor("ann", "cli"), "daily", {"retries": 1}, "it failed")

        def fail(connection: Any) -> None:
            now = database.clock.now()
            times = {"gmt_assigned": now, "gmt_started": now, "gmt_completed": now}
            failed = [{"attempt": 1, "worker_id": 1, "error": "no", "gmt_completed": "2026-11-21T02:00:00Z"}]
            values = {"attempt": 2, "failures": 2, "schedule_worker_node_id": 1, "failed_attempts": failed}
            ended = {"status": "failed", "reason": "no", "execution_result": {"error": "no"}}
            connection.execute(update(schedule_instance).where(of_first).values(**values, **ended, **times))
            connection.execute(
                insert(schedule_task_node).values(
                    **node, instance_gmt_create=created, execution_result={"error": "no", "traceback": "a\nb"}
                )
            )

        database.write(fail)
