"""What all calls of a client share: the database, opened and checked at the first call, and who asks."""

import getpass
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import StrEnum
from typing import Any, overload
from weakref import WeakSet

from pydantic import BaseModel

from rota.migrations import head
from rota.shared.control.actor import Actor
from rota.shared.database.checks import require_usable
from rota.shared.database.problems import database_errors
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, RotaError
from rota.shared.domain.jsontext import json_text
from rota.shared.settings import Settings
from rota.shared.waking.schedulers import wake_schedulers
from rota.worker_service.param_json import json_of

LONGEST_NAME = 127
LARGEST_ID = 2**63 - 1
MOST_ROWS = 1_000_000
"""A list is read as a whole."""


class Session:
    """The database of a client, and its name.

    A process that is forked opens connections of its own, and leaves those of its parent alone.

        session = Session(Settings.load(database_url=url), "shop")
        with session.database() as database: ...
    """

    def __init__(self, settings: Settings | None, name: str | None) -> None:
        self._settings = settings
        self.actor = Actor(_checked_name(name), "code")
        self._opening = threading.Lock()
        self._opened: Database | None = None
        _sessions.add(self)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """The database; its errors become a DatabaseProblem.

        Raises DatabaseProblem also for a database that is not migrated, or that Rota cannot use as it is.
        """
        database = self._database()
        with database_errors(database.url):
            yield database

    @overload
    def as_text(self, moment: datetime | str) -> str: ...
    @overload
    def as_text(self, moment: datetime | str | None) -> str | None: ...
    def as_text(self, moment: datetime | str | None) -> str | None:
        """A time as control reads it: one without an offset is local time in the task's zone.

        Raises InvalidInput for what is no time.
        """
        if not isinstance(moment, datetime | str | None):
            raise InvalidInput(f"time {moment!r}: give a datetime, or a text such as 2026-11-19T03:00")
        return moment.isoformat() if isinstance(moment, datetime) else moment

    def joined(self, connection: Any) -> Any:
        """The connection of the caller's transaction: the one that is given, or that of a framework. None: no such."""
        return connection

    def now(self) -> datetime:
        """The database's time, naive UTC."""
        with self.database() as database:
            return database.clock.now()

    def wake(self) -> None:
        """Wake the schedulers that listen, as there may be work. It raises nothing: a wake-up may always be lost."""
        with suppress(RotaError), self.database() as database:
            wake_schedulers(database, database.clock.now())

    def wake_after_commit(self) -> None:
        """``wake``, unless the client has been closed meanwhile."""
        if self._opened is not None:
            self.wake()

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    def forget(self) -> None:
        """In a process that was just forked: leave alone what is its parent's.

        Also the lock: a thread of the parent may have held it, and nobody would free it here.
        """
        self._opening = threading.Lock()
        if self._opened is not None:
            self._opened.engine.dispose(close=False)
        self._opened = None

    def _database(self) -> Database:
        with self._opening:
            self._opened = self._opened or self._open()
            return self._opened

    def _open(self) -> Database:
        settings = self._settings or Settings.load()
        url = settings.database_url.get_secret_value()
        database = Database(url, call_timeout=settings.call_timeout_seconds)
        try:
            with database_errors(database.url):
                require_usable(database, head(), to_write=False)
        except BaseException:
            database.close()
            raise
        return database


_sessions: WeakSet[Session] = WeakSet()


def _forget_all() -> None:
    for session in list(_sessions):
        session.forget()


os.register_at_fork(after_in_child=_forget_all)


def as_json(param: Any) -> Any:
    """A param as JSON: a pydantic model becomes its fields. Raises InvalidInput for what is no JSON."""
    if isinstance(param, BaseModel):
        return json_of(param, "param")
    json_text(param, "param")
    return param


def type_name(task_type: Any) -> str:
    """The name of a task type. Raises InvalidInput for what is none."""
    name = getattr(task_type, "category", task_type)
    if not isinstance(name, str):
        raise InvalidInput(f"type {task_type!r}: give a task type of app.task_type, or its name, such as 'REPORT'")
    return name


def checked_id(number: int) -> int:
    """The id of a row. Raises InvalidInput for what is none."""
    if not isinstance(number, int) or not 0 < number <= LARGEST_ID:
        raise InvalidInput(f"id {number!r}: an id is a whole number from 1 to {LARGEST_ID:,}")
    return number


def checked_status(words: type[StrEnum], word: str | None) -> str | None:
    """A status by which a list is chosen. Raises InvalidInput for one that does not exist."""
    if word is not None and word not in list(words):
        raise InvalidInput(f"status {word!r}: there is no such status; there are: {', '.join(words)}")
    return word


def checked_limit(limit: int) -> int:
    """A limit of a list. Raises InvalidInput for one that is out of range."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST_ROWS:
        raise InvalidInput(f"limit {limit!r}: 1 to {MOST_ROWS:,} are right")
    return limit


def _checked_name(name: str | None) -> str:
    if name is None:
        try:
            return getpass.getuser()[:LONGEST_NAME]
        except (KeyError, OSError, ImportError):  # a container's user without a name
            return "client"
    if not name or len(name) > LONGEST_NAME:
        raise InvalidInput(f"name {name[:20]!r}: it has {len(name)} characters; 1 to {LONGEST_NAME} are right")
    return name
