"""``client.limits``: what tasks share, as ``rota limit`` does."""

from typing import TypedDict, Unpack

from rota.client.session import Session, checked_limit
from rota.shared.control import limits
from rota.shared.control.documents import Document
from rota.shared.domain.errors import InvalidInput

Documents = list[Document]


class LimitChanges(TypedDict, total=False):
    """What ``set`` can change. None clears a field: any number is allowed then."""

    max_running: int | None
    starts_per_minute: int | None


class Limits:
    """The limits. Every function returns what ``rota limit … --json`` prints."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, *, limit: int = 100) -> Documents:
        """At most ``limit`` limits by name, with what of each is taken.

        Raises InvalidInput for a number out of range.
        """
        with self._session.database() as database:
            return limits.listed(database, checked_limit(limit))

    def show(self, name: str) -> Document:
        """A limit, who holds it, and who waits for it. Raises NotFound."""
        with self._session.database() as database:
            return limits.show(database, name)

    def add(
        self,
        name: str,
        *,
        max_running: int | None = None,
        starts_per_minute: int | None = None,
        why: str | None = None,
    ) -> Document:
        """Add a limit: how many instances of its tasks run at once, and how many start in a minute.

        Tasks share it that name it. Raises InvalidInput, NameTaken.

            client.limits.add("warehouse", max_running=4)
            client.tasks.set("nightly", limit_name="warehouse")
        """
        fields = {"name": name, "max_running": max_running, "starts_per_minute": starts_per_minute}
        with self._session.database() as database:
            return limits.add(database, self._session.actor, fields, why)

    def set(self, name: str, *, why: str | None = None, **changes: Unpack[LimitChanges]) -> Document:
        """Change a limit: only what is given. What runs goes on. Raises NotFound, InvalidInput.

        client.limits.set("warehouse", max_running=2)
        """
        if not changes:
            raise InvalidInput("say what to change: max_running, starts_per_minute")
        with self._session.database() as database:
            return limits.edit(database, self._session.actor, name, changes, why)

    def remove(self, name: str, *, why: str | None = None) -> Document:
        """Delete a limit that no task names. Raises NotFound, and NotPossible while tasks name it."""
        with self._session.database() as database:
            return limits.remove(database, self._session.actor, name, why)
