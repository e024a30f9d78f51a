"""An act: what one person or program asks for at once. It happens once, though the answer to its commit is lost."""

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import TypeVar

from sqlalchemy import Connection

from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput
from rota.shared.store import audit

T = TypeVar("T")

WHY_LIMIT = 1000
"""The most characters in a reason."""


@dataclass(frozen=True, slots=True)
class Act:
    """Who acts, why, and the key that all audit rows of the act carry."""

    actor: Actor
    why: str | None
    key: str


def perform(database: Database, actor: Actor, why: str | None, work: Callable[[Connection, Act], T]) -> T:
    """Run ``work`` in a transaction, and return what it returns.

    A transaction runs again when the answer to its commit was lost. If the audit then has the key of this act, the
    first run was committed, and its result is returned. An act that changed nothing has no such row, and runs again.

    Raises InvalidInput for a reason that is too long, and whatever ``work`` raises.
    """
    if why is not None and len(why) > WHY_LIMIT:
        raise InvalidInput(f"a reason of {len(why):,} characters is too long; at most {WHY_LIMIT:,} are kept")
    act = Act(actor, why or None, token_hex(16))
    results: list[T] = []

    def once(connection: Connection) -> T:
        if not results or not audit.has_act(connection, act.key):
            results[:] = [work(connection, act)]
        return results[0]

    return database.write(once)
