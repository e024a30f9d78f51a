"""Instances: list, show, cancel."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit, chains, shards
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, instance_document, instance_in_list, plain, values_of
from rota.shared.database.transactions import Database
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.task_filter import EVERY_TASK, TaskFilter
from rota.shared.store import instances, newest_instances, tasks, workers
from rota.shared.store.failed_attempts import workers_in
from rota.shared.store.transitions import run_again


def listed(
    database: Database,
    limit: int,
    *,
    task: str | None = None,
    status: str | None = None,
    parent: int | None = None,
    chosen: TaskFilter = EVERY_TASK,
) -> list[Document]:
    """At most ``limit`` instances, the newest first; those of one ``task`` by ``schedule_datetime``.

    Shards are left out; with ``parent`` it is the shards of that instance, in their order. ``chosen`` has those of its
    tasks alone; it does not go with the others. They come without large params and results
    (``documents.instance_in_list``). Raises NotFound for a task or a parent that does not exist.

        listed(database, 20, status="failed", chosen=TaskFilter(owner="ann"))
    """

    def read(connection: Connection) -> list[Row[Any]]:
        if parent is not None:
            return instances.shards(connection, instances.find(connection, parent), limit, status)
        if not chosen.is_every:
            ids = newest_instances.of_tasks(connection, chosen, limit, status)
            found = {row.id: row for row in instances.in_list(connection, ids)}
            return [found[number] for number in ids if number in found]
        task_id = None if task is None else tasks.find(connection, task).id
        return instances.listed(connection, limit, task_id=task_id, status=status)

    return [instance_in_list(row) for row in database.read(read)]


def get(database: Database, instance_id: int) -> Document:
    """An instance without its nodes, for a caller that waits for the instance's end.

    Raises NotFound.
    """
    return instance_document(database.read(lambda connection: instances.find(connection, instance_id)))


def show(database: Database, instance_id: int) -> Document:
    """An instance with its nodes; ``run_again_id`` is the run that its handler has asked for.

    ``chain`` has the tasks before and behind it, each with its run for the same time (``chains.of_instance``).
    ``shards`` has how many of its shards are in which state, and those that are to be looked at first.

    Raises NotFound.
    """

    def read(connection: Connection) -> Document:
        row = instances.find(connection, instance_id)
        following = {
            "run_again_id": run_again.of_instance(connection, row),
            "chain": chains.of_instance(connection, row),
            "shards": shards.of_instance(connection, row),
        }
        names = workers.names(connection, workers_in(row.failed_attempts))
        return instance_document(row, instances.nodes(connection, instance_id), names) | following

    return database.read(read)


def cancel(database: Database, actor: Actor, instance_ids: Sequence[int], why: str | None = None) -> list[Document]:
    """Cancel all of these instances, or none.

    An instance that waits is ``canceled`` at once. For one that runs, its worker is ``asked`` to stop it. Neither is
    true of one that waits for another attempt and has nodes that run always: it ends when these have. Of one that
    runs as its ``shards`` it is told how many they are; their workers are asked. Raises NotFound, or NotPossible if one
    has ended.
    """
    now = database.clock.now()

    def one(connection: Connection, act: Act, before: Row[Any]) -> Document:
        changed = instances.cancel(connection, before, now, actor.name)
        new = {name: plain(value) for name, value in changed.items() if getattr(before, name) != value}
        if new:
            audit.on_instance(connection, act, "instance.cancel", before, old=values_of(before, new), new=new)
        asked = before.status == InstanceStatus.RUNNING
        done = {"id": before.id, "canceled": "status" in changed, "asked": asked}
        has_shards = asked and before.shard_total is not None and before.shard_index is None
        return done | {"shards": before.shard_total} if has_shards else done

    def work(connection: Connection, act: Act) -> list[Document]:
        in_order = sorted(set(instance_ids))  # all acts lock in one order
        done = {row.id: one(connection, act, row) for row in instances.find_many(connection, in_order)}
        return [done[number] for number in dict.fromkeys(instance_ids)]

    return perform(database, actor, why, work)
