"""The client of a Django project: it asks in the transaction that Django has open."""

import sys
import threading
from datetime import datetime
from typing import Any

from django.db import connections
from django.utils import timezone
from django.utils.asyncio import async_unsafe

from rota.client.plain import Client
from rota.client.session import Session
from rota.integrations.django import project
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import ConfigurationError
from rota.shared.settings import Settings

NO_COROUTINE = "in a coroutine use rota.AsyncClient(database_url()), or asgiref's sync_to_async"


class DjangoSession(Session):
    """The database of the project's settings, in a test that of the test; and the transaction that Django has open."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(None, name)
        self._choosing = threading.Lock()
        self._url: str | None = None

    def as_text(self, moment: Any) -> Any:
        """A time as control reads it; a naive ``datetime`` is local time, as everywhere in Django."""
        is_naive = isinstance(moment, datetime) and timezone.is_naive(moment)
        return super().as_text(timezone.make_aware(moment) if is_naive else moment)

    def joined(self, connection: Any) -> Any:
        """The connection that is given, or Django's to Rota's database while a transaction is open there."""
        if connection is not None or (alias := project.alias()) is None:
            return connection
        ours = connections[alias]
        commits_itself = ours.settings_dict["AUTOCOMMIT"] if ours.connection is None else ours.autocommit
        return ours if ours.in_atomic_block or not commits_itself else None

    @async_unsafe(NO_COROUTINE)
    def _database(self) -> Database:
        url = project.database_url()
        if _is_a_test():
            _ask_django()
        with self._choosing:
            if url != self._url:
                self.close()
                self._settings = Settings.load(database_url=url)
                self._url = url
        return super()._database()

    def forget(self) -> None:
        """As of ``Session``; also this lock may have been held in the parent."""
        self._choosing = threading.Lock()
        super().forget()


class DjangoClient(Client):
    """``Client`` of the project's own database. Threads share one.

    While a transaction of Django is open on that database, in ``atomic``, ``once``, ``once_many`` and
    ``keys.cancel`` are a part of it: they insert a row, and a scheduler does what it says after the commit. After a
    rollback nothing was asked for. All other calls are done at once, as of ``Client``.

    A naive ``datetime`` is local time of Django's current zone.
    """

    def __init__(self, *, name: str | None = None) -> None:
        """``name`` says in ``rota audit`` who asked, by default the process's user."""
        self._use(DjangoSession(name))


def _is_a_test() -> bool:
    """Whether Django's test environment is set up."""
    utils = sys.modules.get("django.test.utils")
    return hasattr(getattr(utils, "_TestState", None), "saved_data")


def _ask_django() -> None:
    """Let Django refuse a database that a test may not use: Rota's own connections would go past it.

    Raises what Django raises, and ConfigurationError for a database of which no test has one of its own.
    """
    alias = project.alias()
    if alias is None:
        raise ConfigurationError(
            "ROTA['DATABASE_URL'] is the same in tests; there say an entry of DATABASES: "
            "@override_settings(ROTA={'DATABASE': 'default'})"
        )
    connections[alias].cursor().close()


client = DjangoClient()
"""The client for views, commands and handlers."""
