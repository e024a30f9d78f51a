"""Waking the schedulers, by whoever has written urgent work and committed it."""

from datetime import datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError

from rota.shared.database.remembered import Remembered
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import RotaError
from rota.shared.store import schedulers
from rota.shared.store.schedulers import Listening
from rota.shared.waking.sending import send

_known = Remembered[list[Listening]](seconds=5)
"""The schedulers that listen. A new one is woken by nobody for at most so long."""


def wake_schedulers(database: Database, due_at: datetime) -> None:
    """Tell the schedulers that listen that there is work due at ``due_at`` (naive UTC), which is committed.

    Work that is due only after a scheduler's look-ahead is none of its concern yet. Every few seconds this reads who
    listens. It raises nothing: without the wake-up the work is found at the next tick.

        wake_schedulers(database, database.clock.now())
    """
    now = database.clock.now()
    send(one.address for one in _listening(database) if due_at <= now + timedelta(seconds=one.lookahead_seconds))


def _listening(database: Database) -> list[Listening]:
    known = _known.of(database)
    if known is None:
        try:
            known = database.read_undisturbed(schedulers.listening) or []
        except (RotaError, SQLAlchemyError):  # also that no connection of the pool became free
            known = []
        _known.note(database, known)
    return known
