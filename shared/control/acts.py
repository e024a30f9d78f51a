"""An act: what one person or program asks for at once. It happens once, though the answer to its commit is lost."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TypeVar

from sqlalchemy import Connection
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from rota.shared.control.actor import Actor
from rota.shared.database.later import Unexpected
from rota.shared.database.transactions import FIRST_RETRY_SECONDS, Database
from rota.shared.domain.errors import InvalidInput, NotPossible
from rota.shared.store import audit

T = TypeVar("T")

WHY_LIMIT = 1000
"""The most characters in a reason."""

TRIES = 10
"""How often an act is tried while others change what it has read."""


@dataclass(frozen=True, slots=True)
class Act:
    """Who acts, why, and the key that all audit rows of the act carry."""

    actor: Actor
    why: str | None
    key: str
    tries: int = 0
    """How often it has been tried before, in vain."""


def perform(
    database: Database,
    actor: Actor,
    why: str | None,
    work: Callable[[Connection, Act], T],
    *,
    waits: bool = True,
) -> T:
    """Run ``work`` in a transaction, and return what it returns.

    A transaction runs again when the answer to its commit was lost. If the audit then has the key of this act, the
    first run was committed, and its result is returned. An act that changed nothing has no such row, and runs again.

    ``work`` reads without locks, and its writes rely on what it has read (``execute_later``). If that was changed
    meanwhile, the act is tried again. So it holds no lock while it waits for an answer of the database.

    Raises InvalidInput for a reason that is too long, NotPossible if others keep changing what it reads, and whatever
    ``work`` raises. Unless it ``waits`` for what somebody has locked, it raises as ``Database.write_if_free`` does.
    """
    if why is not None and len(why) > WHY_LIMIT:
        raise InvalidInput(f"a reason of {len(why):,} characters is too long; at most {WHY_LIMIT:,} are kept")
    act = Act(actor, why or None, token_hex(16))
    results: list[T] = []
    tries = itertools.count()

    def once(connection: Connection) -> T:
        if not results or not audit.has_act(connection, act.key):
            results[:] = [work(connection, replace(act, tries=next(tries)))]
        return results[0]

    return _until_unchanged(database, database.write if waits else database.write_if_free, once)


def _until_unchanged(
    database: Database, write: Callable[[Callable[[Connection], T]], T], once: Callable[[Connection], T]
) -> T:
    retrying = Retrying(
        retry=retry_if_exception_type(Unexpected),
        wait=wait_random_exponential(multiplier=FIRST_RETRY_SECONDS, max=1),
        stop=stop_after_attempt(TRIES),
        sleep=database.clock.sleep,
    )
    try:
        done: T = retrying(write, once)
    except RetryError as error:
        said = f"others changed the same rows at each of {TRIES} tries, and nothing was done; try again"
        raise NotPossible(said) from error
    return done
