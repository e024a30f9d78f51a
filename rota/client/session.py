"""What all calls of a client share: the database, opened and checked at the first call, and who asks."""

import getpass
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import Any, overload

from pydantic import BaseModel

from rota.migrations import head
from rota.shared.control.actor import Actor
from rota.shared.database.checks import require_usable
from rota.shared.database.problems import database_errors
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_text
from rota.shared.settings import Settings
from rota.worker_service.param_json import json_of

LONGEST_NAME = 127
LARGEST_ID = 2**63 - 1
MOST_ROWS = 1_000_000
"""A list is read as a whole."""


class Session:
    """The database of a client, and its name.

    A process that is forked after the first call opens connections of its own, and leaves those of its parent alone.

        session = Session(url, "shop")
        with session.database() as database: ...
    """

    def __init__(self, database_url: str | None, name: str | None) -> None:
        self._settings = Settings.load(database_url=database_url)
        self.actor = Actor(_checked_name(name), "code")
        self._opening = threading.Lock()
        self._opened: Database | None = None
        self._opened_by = 0

    @contextmanager
    def database(self) -> Iterator[Database]:
        """The database; its errors become a DatabaseProblem.

        Raises DatabaseProblem also for a database that is not migrated, or that Rota cannot use as it is.
        """
        with self._opening:
            if self._opened is None or self._opened_by != os.getpid():
                self._open()
            database = self._opened
        assert database is not None  # noqa: S101 - for the type checker
        with database_errors(database.url):
            yield database

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        with self._opening:
            if self._opened is not None and self._opened_by == os.getpid():
                self._opened.close()
            self._opened = None

    def _open(self) -> None:
        if self._opened is not None:
            self._opened.engine.dispose(close=False)  # they are the parent's
            self._opened = None
        url = self._settings.database_url.get_secret_value()
        database = Database(url, call_timeout=self._settings.call_timeout_seconds)
        try:
            with database_errors(database.url):
                require_usable(database, head(), to_write=False)
        except BaseException:
            database.close()
            raise
        self._opened, self._opened_by = database, os.getpid()


@overload
def as_text(moment: datetime | str) -> str: ...
@overload
def as_text(moment: datetime | str | None) -> str | None: ...
def as_text(moment: datetime | str | None) -> str | None:
    """A time as control reads it: one without an offset is local time in the task's zone."""
    return moment.isoformat() if isinstance(moment, datetime) else moment


def as_json(param: Any) -> Any:
    """A param as JSON: a pydantic model becomes its fields. Raises InvalidInput for what is no JSON."""
    if isinstance(param, BaseModel):
        return json_of(param, "param")
    json_text(param, "param")
    return param


def checked_id(number: int) -> int:
    """The id of a row. Raises InvalidInput for what is none."""
    if not isinstance(number, int) or not 0 < number <= LARGEST_ID:
        raise InvalidInput(f"id {number!r}: an id is a whole number from 1 to {LARGEST_ID:,}")
    return number


def known(words: type[StrEnum], word: str | None) -> str | None:
    """A status by which a list is chosen. Raises InvalidInput for one that does not exist."""
    if word is not None and word not in list(words):
        raise InvalidInput(f"status {word!r}: there is no such status; there are: {', '.join(words)}")
    return word


def counted(limit: int) -> int:
    """A limit of a list. Raises InvalidInput for one that is out of range."""
    if not 1 <= limit <= MOST_ROWS:
        raise InvalidInput(f"limit {limit}: 1 to {MOST_ROWS:,} are right")
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
