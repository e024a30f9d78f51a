"""``client.schedulers``: look at schedulers, pause all scheduling, as ``rota scheduler`` does."""

from rota.client.session import Session, checked_limit
from rota.shared.control import schedulers
from rota.shared.control.documents import Document

Documents = list[Document]


class Schedulers:
    """The schedulers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, *, limit: int = 100) -> Documents:
        """At most ``limit`` schedulers that have not stopped, the one that ticked last first.

        Raises InvalidInput for a limit out of range.
        """
        with self._session.database() as database:
            return schedulers.listed(database, checked_limit(limit))

    def paused(self) -> Document:
        """Whether all scheduling is ``paused``, ``since`` when, ``by`` whom, and the ``reason``.

        ``ignored_by`` names schedulers at work that are older than pauses: they let fires begin all the same.
        """
        with self._session.database() as database:
            return schedulers.paused(database)

    def pause(self, *, reason: str | None = None) -> Document:
        """Pause all scheduling: no new fire begins, and what has begun goes on. ``changed``: whether it went on before.

        Raises InvalidInput for a reason that is too long.
        """
        with self._session.database() as database:
            return schedulers.pause(database, self._session.actor, reason)

    def resume(self, *, why: str | None = None) -> Document:
        """Let it go on: each task's misfire policy decides about what was missed.

        ``changed`` says whether it was paused.
        """
        with self._session.database() as database:
            return schedulers.resume(database, self._session.actor, why)
