"""What is asked for in a transaction of the caller's."""

from collections.abc import Callable
from typing import Any

from rota.client.session import Session, type_name
from rota.shared.control.documents import Document
from rota.shared.database import callers
from rota.shared.database.callers import Insert

Asking = Callable[..., tuple[Insert, Document]]
"""A function of ``control.requests``."""


def asked(session: Session, asking: Asking, task_type: Any, what: Any, why: str | None) -> tuple[Insert, Document]:
    """The INSERT of a request, and what is told of it. Raises what ``asking`` does."""
    with session.database() as database:
        return asking(database, session.actor, type_name(task_type), what, why)


def ask(session: Session, connection: Any, asking: Asking, *given: Any) -> Document:
    """Insert a request on a connection of the caller's; returns what is told of it."""
    insert, told = asked(session, asking, *given)
    callers.execute(connection, insert)
    return told
