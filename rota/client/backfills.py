"""``client.backfills``: run the fires of a range that did not run, as ``rota backfill`` does."""

from datetime import datetime
from typing import Any, TypedDict, Unpack

from pydantic import BaseModel

from rota.client.session import Session, as_json, checked_id, checked_limit, checked_status
from rota.shared.control import backfills
from rota.shared.control.backfills import Wanted
from rota.shared.control.documents import Document
from rota.shared.domain.states import BackfillStatus

Documents = list[Document]


class BackfillFields(TypedDict, total=False):
    """How a backfill runs what it runs. ``param`` takes the place of the task's own."""

    concurrency: int
    priority: int
    newest_first: bool
    only_missing: bool
    param: dict[str, Any] | BaseModel | None


class Backfills:
    """The backfills. Every function returns what ``rota backfill … --json`` prints.

    A time is a ``datetime`` or a text. Without an offset it is local time in the task's zone.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def preview(
        self,
        task: str,
        from_at: datetime | str,
        to_at: datetime | str | None = None,
        **fields: Unpack[BackfillFields],
    ) -> Document:
        """What a backfill would run; nothing is written. ``to_at`` is by default now.

        Raises as ``start`` does.
        """
        with self._session.database() as database:
            return backfills.preview(database, _wanted(self._session, task, from_at, to_at, fields))[0]

    def start(
        self,
        task: str,
        from_at: datetime | str,
        to_at: datetime | str | None = None,
        *,
        why: str | None = None,
        **fields: Unpack[BackfillFields],
    ) -> Document:
        """Start a backfill of the fires from ``from_at`` to ``to_at``, by default to now; returns it.

        The scheduler writes its instances as they are needed. Raises NotFound, InvalidParam, and InvalidInput for a
        range that is backwards, not over yet, without a fire or with too many.

            client.backfills.start("nightly", "2026-10-01", "2026-10-31", concurrency=4, only_missing=True)
        """
        with self._session.database() as database:
            wanted = _wanted(self._session, task, from_at, to_at, fields)
            return backfills.start(database, self._session.actor, wanted, why)[0]

    def list(self, *, limit: int = 20, task: str | None = None, status: str | None = None) -> Documents:
        """At most ``limit`` backfills, the newest first.

        Raises NotFound for a task that does not exist, and InvalidInput for a status that does not, and a limit out of
        range.
        """
        with self._session.database() as database:
            return backfills.listed(
                database, checked_limit(limit), task=task, status=checked_status(BackfillStatus, status)
            )

    def show(self, backfill_id: int) -> Document:
        """A backfill, with its param and how far it is. Raises NotFound."""
        with self._session.database() as database:
            return backfills.show(database, checked_id(backfill_id))

    def pause(self, backfill_id: int, *, why: str | None = None) -> Document:
        """Let a backfill write no more; what it has written runs. Raises NotFound, NotPossible."""
        with self._session.database() as database:
            return backfills.pause(database, self._session.actor, checked_id(backfill_id), why)

    def resume(self, backfill_id: int, *, why: str | None = None) -> Document:
        """Let a paused backfill go on. Raises NotFound, NotPossible."""
        with self._session.database() as database:
            return backfills.resume(database, self._session.actor, checked_id(backfill_id), why)

    def cancel(self, backfill_id: int, *, why: str | None = None) -> Document:
        """End a backfill: what has not begun is canceled, what runs goes on. Raises NotFound, NotPossible."""
        with self._session.database() as database:
            return backfills.cancel(database, self._session.actor, checked_id(backfill_id), why)


def _wanted(
    session: Session, task: str, from_at: datetime | str, to_at: datetime | str | None, fields: BackfillFields
) -> Wanted:
    given: dict[str, Any] = {**fields, "param": as_json(fields.get("param"))}
    return Wanted(task, session.as_text(from_at), session.as_text(to_at), **given)
