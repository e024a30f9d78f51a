"""How a worker comes to life in the database: its types, its app's tasks, and its row, which is its epoch."""

import itertools
import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row

from shared.clock import boottime
from shared.domain.errors import InvalidInput, NameTaken
from shared.store import node_types, tasks, workers
from shared.store.database import Database
from shared.store.workers import WorkerDeclaration
from worker_service.authoring import Rota

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5


def register(database: Database, declaration: WorkerDeclaration) -> int:
    """Register a worker and return its id.

    Workers of this machine whose processes are provably gone are declared dead at once, so what they held runs again
    without waiting for their liveness limit. A namesake that cannot be proven gone is watched: one that beats is alive,
    and this worker is refused; one that stays silent for its own limit, which is what it counts by, is dead.

    Raises NameTaken.
    """
    bury_the_gone(database, by=declaration.name)
    seen = None
    since = boottime()
    while True:
        try:
            return _insert(database, declaration)
        except NameTaken:
            namesake = _namesake(database, declaration.name)
            if namesake is None:
                continue
            if seen is None:
                seen = namesake.last_heartbeat
                log.warning("worker: another is registered as %r; waiting to see if it lives", declaration.name)
            elif namesake.last_heartbeat != seen:
                raise
            elif boottime() - since > namesake.liveness_seconds:
                database.write(partial(workers.bury_silent, worker_ids=[namesake.id], by=declaration.name))
        time.sleep(RETRY_SECONDS)


def _namesake(database: Database, name: str) -> Row[Any] | None:
    return next((row for row in database.read(workers.alive) if row.name == name), None)


def _insert(database: Database, declaration: WorkerDeclaration) -> int:
    """Insert the worker's row; what is there when a transaction is run again may be its own, whose answer was lost."""
    tries = itertools.count(1)

    def insert(connection: Connection) -> int:
        again = next(tries) > 1
        mine = workers.own_row(connection, declaration) if again else None
        return workers.register(connection, declaration) if mine is None else mine

    return database.write(insert)


def bury_the_gone(database: Database, by: str) -> None:
    """Declare dead the workers whose processes ran on this boot of this machine, and are gone."""
    gone = [row.id for row in database.read(workers.alive) if is_gone(row.pid, row.process_identity)]
    if gone:
        database.write(lambda c: workers.bury(c, gone, "its process is gone", by))


def process_identity(pid: int) -> str | None:
    """What tells a process from all others: the boot, the pid namespace, its start time; None if there is none.

    From /proc: the kernel's boot id, ns/pid, and field 22 of stat (clock ticks since boot, proc(5)).
    """
    try:
        state, *_, start = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[:20]
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else f"{_boot()}/{start}"


def _boot() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def is_gone(pid: int, identity: str) -> bool:
    """Whether the process is provably gone: it ran on this boot, in this pid namespace, and is not there any more."""
    if not identity.startswith(f"{_boot()}/"):
        return False
    now = process_identity(pid)
    return not _exists(pid) if now is None else now != identity


def _exists(pid: int) -> bool:
    """Whether there is such a process, be it hidden from /proc (hidepid) for being another user's; zombies are not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False


def declare(database: Database, app: Rota, node_declarations: list[node_types.NodeTypeDeclaration], by: str) -> None:
    """Register the app's node types and upsert the tasks it declares.

    Raises InvalidParam for a task of a type that nobody registers, or whose param does not fit.
    """
    database.write(lambda c: node_types.register(c, node_declarations, by))
    catalog = database.read(node_types.catalog)
    for definition in app.schedules:
        try:
            catalog.check(definition.type, definition.param)
        except InvalidInput as error:
            raise InvalidInput(f"task {definition.name!r}: {error}") from error
        database.write(lambda c, d=definition: tasks.declare(c, d, by))  # type: ignore[misc]
