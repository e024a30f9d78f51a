"""What is asked for in a transaction of the caller's."""

from collections.abc import Callable, Sequence
from typing import Any

from rota.client.session import Session, type_name
from rota.shared.control.documents import Document
from rota.shared.database import callers
from rota.shared.database.callers import Insert

Asking = Callable[..., tuple[Sequence[Insert], Document]]
"""A function of ``control.requests``."""


def asked(
    session: Session, asking: Asking, task_type: Any, what: Any, why: str | None
) -> tuple[Sequence[Insert], Document]:
    """The INSERTs of requests, and what is told of them. Raises what ``asking`` does."""
    with session.database() as database:
        return asking(database, session.actor, type_name(task_type), what, why)


def ask(session: Session, connection: Any, asking: Asking, *given: Any) -> Document:
    """Insert requests on a connection of the caller's; returns what is told of them.

    If the connection tells when it is committed, the schedulers are woken then.
    """
    inserts, told = asked(session, asking, *given)
    for insert in inserts:
        callers.execute(connection, insert)
    callers.after_commit(connection, session.wake_after_commit)
    return told
