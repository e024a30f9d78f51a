"""What a process remembers for some seconds of what it has read from a database."""

from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from rota.shared.database.transactions import Database

T = TypeVar("T")


class _Noted(NamedTuple, Generic[T]):
    value: T
    until: float


class Remembered(Generic[T]):
    """One value for each database, for so many ``seconds``. Threads may share it, and it has no lock to be forked with.

    types = Remembered[Catalog](seconds=5)
    types.note(database, catalog); types.of(database)   # the catalog, and after five seconds None
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._noted: WeakKeyDictionary[Database, _Noted[T]] = WeakKeyDictionary()

    def of(self, database: Database) -> T | None:
        """The value that was noted last; None if there is none, or if it is too old."""
        noted = self._noted.get(database)
        return noted.value if noted is not None and database.clock.monotonic() < noted.until else None

    def note(self, database: Database, value: T) -> None:
        """Remember a value that was just read."""
        self._noted[database] = _Noted(value, database.clock.monotonic() + self._seconds)

    def forget(self, database: Database) -> None:
        """Forget the value, so that it is read anew."""
        self._noted.pop(database, None)
