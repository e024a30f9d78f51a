"""``client.workers``: look at workers, drain and resume them, as ``rota worker`` does."""

from rota.client.session import Session, checked_limit
from rota.shared.control import workers
from rota.shared.control.documents import Document

Documents = list[Document]


class Workers:
    """The workers. Every function returns what ``rota worker … --json`` prints."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, *, limit: int = 100, all_states: bool = False) -> Documents:
        """At most ``limit`` workers, the newest first; without dead ones unless ``all_states``.

        Raises InvalidInput for a limit out of range.
        """
        with self._session.database() as database:
            return workers.listed(database, checked_limit(limit), all_states=all_states)

    def show(self, name: str) -> Document:
        """A worker that is not dead, with the task types that it carries. Raises NotFound."""
        with self._session.database() as database:
            return workers.show(database, name)

    def drain(self, name: str, *, why: str | None = None) -> Document:
        """Let a worker finish what it runs and take no more. Raises NotFound."""
        with self._session.database() as database:
            return workers.drain(database, self._session.actor, name, why)

    def resume(self, name: str, *, why: str | None = None) -> Document:
        """Let a draining worker take instances again. Raises NotFound, or NotPossible for one that stops."""
        with self._session.database() as database:
            return workers.resume(database, self._session.actor, name, why)
