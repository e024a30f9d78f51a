"""A worker's registration: its node types, and its own row, whose id fences all that it writes."""

import itertools
import logging
import os
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from rota.shared.database.transactions import Database
from rota.shared.domain.errors import NameTaken
from rota.shared.store import node_types, workers
from rota.shared.store.workers import WorkerDeclaration

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5

LOOK_SECONDS = 60.0
"""How often a worker looks whether its node types are still registered."""


def register(database: Database, declaration: WorkerDeclaration) -> tuple[int, float]:
    """Register a worker. Returns its id, and from when on its lease counts (the clock's ``monotonic``).

    First, workers of this machine whose processes are provably gone are declared dead. So their instances run again
    without waiting for the liveness limit.

    Then another worker may still be registered under this name. If it sends a heartbeat, it is alive, and NameTaken is
    raised. If it stays silent for its own liveness limit, it is declared dead.
    """
    bury_the_gone(database, by=declaration.name)
    seen, passed_over = None, itertools.count()
    since = database.clock.monotonic()
    while True:
        try:
            return _insert(database, declaration)
        except NameTaken:
            namesake = database.read(partial(workers.namesake, name=declaration.name))
            if namesake is None:
                pass
            elif namesake.last_beat is None or namesake.gmt_dead is not None:  # its row does not show yet that it died
                if next(passed_over) == 1:
                    log.warning("worker: waits for the row of worker #%d, dead, which somebody has locked", namesake.id)
                database.write(partial(workers.show, worker_ids=[namesake.id], by=declaration.name))
            elif seen is None:
                seen = namesake.last_beat
                who = (declaration.name, namesake.id, namesake.liveness_seconds)
                log.warning("worker: %r is the name of worker #%d; waits up to %d s to see whether that lives", *who)
            elif namesake.last_beat != seen:
                raise
            elif database.clock.monotonic() - since > namesake.liveness_seconds:
                database.write(partial(workers.bury_silent, worker_ids=[namesake.id], by=declaration.name))
        database.clock.sleep(RETRY_SECONDS)


def _insert(database: Database, declaration: WorkerDeclaration) -> tuple[int, float]:
    """Insert the worker's row and its first beat. Returns its id, and a moment that was before that beat.

    The transaction may be run again because the answer to its commit was lost. Then the row is there already.
    """
    asked: list[float] = []

    def insert(connection: Connection) -> int:
        mine = workers.own_row(connection, declaration) if asked else None
        if mine is not None:
            return mine
        asked.append(database.clock.monotonic())
        return workers.register(connection, declaration)

    return database.write(insert), asked[-1]


def bury_the_gone(database: Database, by: str) -> None:
    """Declare dead the workers whose processes ran on this machine since its last boot, and are gone."""
    for row in database.read(workers.alive):
        if is_gone(row.pid, row.process_identity):
            database.write(partial(workers.bury, worker_ids=[row.id], reason="its process is gone", by=by))


def process_identity(pid: int) -> str | None:
    """A text that identifies a process: the machine's boot, the pid namespace, its start time. None: it does not run.

    All are read from /proc: the kernel's boot id, ns/pid, and field 22 of stat (clock ticks since boot, proc(5)).
    """
    try:
        state, *_, start = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[:20]
        )
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or hidden (hidepid)
        return None
    return None if state in "ZX" else f"{_boot()}/{start}"


def _boot() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def is_gone(pid: int, identity: str) -> bool:
    """Whether the process is provably gone: it ran since this boot in this pid namespace, and is not there any more."""
    if not identity.startswith(f"{_boot()}/"):
        return False
    now = process_identity(pid)
    return not _exists(pid) if now is None else now != identity


def _exists(pid: int) -> bool:
    """Whether a process exists that /proc does not show: another user's (hidepid). One of our own is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False


class RegisteredTypes:
    """Registers a worker's node types again where SQL has deleted or changed them: fires of these types would wait.

    types = RegisteredTypes(database, declarations, by="worker-1")
    rest = types.look()
    """

    def __init__(self, database: Database, node_declarations: list[node_types.NodeTypeDeclaration], by: str) -> None:
        self._database = database
        self._declarations = node_declarations
        self._by = by

    def look(self) -> float:
        """Look once; returns the seconds to rest."""
        if not self._database.read(lambda c: node_types.is_registered(c, self._declarations)):
            log.warning("worker: SQL has deleted or changed its node types; it registers them again")
            self._database.write(lambda c: node_types.register(c, self._declarations, self._by))
        return LOOK_SECONDS
