"""``client.keys``: one-off work under business keys, as ``rota key`` asks for it, finds it and cancels it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from zoneinfo import ZoneInfo

from rota.client import own_transaction
from rota.client.session import Session, as_json, checked_limit, type_name
from rota.shared.control import business_keys, requests
from rota.shared.control.business_keys import Wanted
from rota.shared.control.documents import Document
from rota.shared.domain.business_keys import KeyFilter
from rota.shared.domain.times import read_time

if TYPE_CHECKING:
    from rota.worker_service.jobs import OfType
    from rota.worker_service.signatures import P

Documents = list[Document]
Param = TypeVar("Param")


@dataclass(frozen=True, slots=True)
class Once(Generic[Param]):
    """One piece of work of ``once_many``: its key, its time (None: now), and its param (None: that of the task)."""

    key: str
    at: datetime | str | None = None
    param: Param | dict[str, Any] | None = None
    code: str = ""


class Keys:
    """The business keys. Every function returns what ``rota key … --json`` prints.

    A time is a ``datetime`` or a text. Without an offset it is local time in the zone of the task, which is UTC unless
    somebody has changed that.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def once(
        self,
        type: "OfType[P]",  # noqa: A002 - the column's name
        *,
        key: str,
        code: str = "",
        at: datetime | str | None = None,
        param: "P | dict[str, Any] | None" = None,
        connection: Any = None,
        why: str | None = None,
    ) -> Document:
        """Run a task type once under a key, at a time or now, however many programs ask.

        What waits under the key is moved to this time and param: it may be another run that takes its place. What runs
        already goes on, and this call is kept as the next run, which begins after the end. ``done`` says which:
        ``added``, ``moved``, ``kept``; ``instance_id`` is the run, None for what is kept. The runs belong to a task
        named after the type (``END_PROMOTION``: ``end-promotion-once``), which is added if it is not there.

        ``connection`` is one of your own, to the same database server: a Session or Connection of SQLAlchemy (for
        AsyncClient an AsyncSession or AsyncConnection), or one of the driver. Then the call inserts one row there,
        into ``schedule_request``, and a scheduler does what it says once your transaction is committed. ``done``
        is ``asked``.

        Raises InvalidInput, InvalidParam, UnknownType for a type that no worker has registered.

            client.once("END_PROMOTION", key="product-42", at="2026-12-24T20:00+01:00", param={"product": 42})
        """
        wanted = Wanted(key, self._session.as_text(at), as_json(param), code)
        return ask_once(self._session, self._session.joined(connection), type, wanted, why)

    def once_many(
        self,
        type: "OfType[P]",  # noqa: A002 - the column's name
        work: "Iterable[Once[P]]",
        *,
        connection: Any = None,
        why: str | None = None,
    ) -> Document:
        """``once`` for many keys; returns how many were ``added``, ``moved`` and ``kept``.

        Of several for one key the last counts. All are checked before any is written; then each transaction writes
        1,000 keys, or fewer with large params. With a ``connection`` of your own, as of ``once``, all are in your
        transaction, by an INSERT each; it returns how many were ``asked`` for. Raises as ``once`` does.

            client.once_many("END_PROMOTION", [Once(f"product-{n}", at=end) for n in range(10_000)])
        """
        wanted = wanted_of(self._session, work)
        if (connection := self._session.joined(connection)) is not None:
            return own_transaction.ask(self._session, connection, requests.once_many, type, wanted, why)
        with self._session.database() as database:
            return business_keys.once_many(database, self._session.actor, type_name(type), wanted, why)

    def find(
        self,
        type: "OfType[P] | None" = None,  # noqa: A002 - the column's name
        *,
        code: str | None = None,
        begins: str | None = None,
        contains: str | None = None,
        from_at: datetime | str | None = None,
        to_at: datetime | str | None = None,
        limit: int = 100,
        after: Document | None = None,
    ) -> Documents:
        """At most ``limit`` keys that wait or run, or whose runs have just ended; those for which all given holds.

        By ``begins`` or ``contains`` they come in the order of their keys, of one type and of one ``code``, by default
        the empty one. Otherwise they come in the order of their times; ``from_at`` is the first, ``to_at`` is left
        out, and a text without an offset is UTC. ``after`` is the last of the page before. Raises InvalidInput.

            page = client.keys.find("END_PROMOTION", begins="product-", limit=1000)
            page = client.keys.find("END_PROMOTION", begins="product-", limit=1000, after=page[-1])
        """
        chosen = KeyFilter(
            None if type is None else type_name(type),
            code,
            begins,
            contains,
            _moment(self._session, from_at),
            _moment(self._session, to_at),
        )
        with self._session.database() as database:
            return business_keys.listed(database, chosen, checked_limit(limit), after)

    def cancel(
        self,
        type: "OfType[P]",  # noqa: A002 - the column's name
        key: str,
        *,
        code: str = "",
        connection: Any = None,
        why: str | None = None,
    ) -> Document:
        """Cancel what waits under a key, or ask the worker to stop what runs. What is kept as the next run is dropped.

        With a ``connection`` of your own, as of ``once``, a scheduler does so when your transaction has been committed.
        Raises NotFound if nothing waits or runs under the key.

            client.keys.cancel("END_PROMOTION", "product-42")
        """
        if (connection := self._session.joined(connection)) is not None:
            return own_transaction.ask(self._session, connection, requests.cancel, type, (code, key), why)
        with self._session.database() as database:
            return business_keys.cancel(database, self._session.actor, type_name(type), (code, key), why)

    def cancel_all(
        self,
        type: "OfType[P]",  # noqa: A002 - the column's name
        *,
        begins: str,
        code: str = "",
        dry_run: bool = False,
        why: str | None = None,
    ) -> Document:
        """Cancel all keys that begin so, 500 in each transaction.

        Returns how many were ``canceled``, how many workers were ``asked``, and the ``first`` keys that were found.
        With ``dry_run`` it changes nothing. Raises InvalidInput for an empty beginning, which would be every key.

            client.keys.cancel_all("END_PROMOTION", begins="product-", dry_run=True)["first"]
        """
        chosen = KeyFilter(type_name(type), code, begins)
        with self._session.database() as database:
            business_keys.checked_beginning(chosen)
            first = business_keys.listed(database, chosen, business_keys.SHOWN)
            done = {"canceled": 0, "asked": 0}
            if not dry_run:
                done = business_keys.cancel_all(database, self._session.actor, chosen, why)
        return {**done, "first": first}


def ask_once(session: Session, connection: Any, task_type: Any, wanted: Wanted, why: str | None = None) -> Document:
    """``once``, in the caller's transaction if there is a connection."""
    if connection is not None:
        return own_transaction.ask(session, connection, requests.once, task_type, wanted, why)
    with session.database() as database:
        return business_keys.once(database, session.actor, type_name(task_type), wanted, why)


def wanted_of(session: Session, work: "Iterable[Once[Any]]") -> list[Wanted]:
    """The work of ``once_many`` as control takes it. Raises InvalidInput for what is no time and no JSON."""
    return [Wanted(one.key, session.as_text(one.at), as_json(one.param), one.code) for one in work]


def _moment(session: Session, given: datetime | str | None) -> datetime | None:
    text = session.as_text(given)
    return None if text is None else read_time(text, ZoneInfo("UTC"))[0]
