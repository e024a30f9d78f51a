"""One tree of errors. The text of each is a sentence: it names the thing, the value, and what would be right."""

from collections.abc import Iterable
from typing import Any


class RotaError(Exception):
    """Rota refuses something or cannot do it; the text is a sentence that the user may see."""


class DetailedError(RotaError):
    """A failure of which more is to be kept than its sentence: ``details``, a JSON object of bounded size.

    DetailedError("the command ended with exit code 3, where 0 is expected", {"exit_code": 3})
    """

    def __init__(self, sentence: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.details = details or {}


class InvalidInput(RotaError):
    """The caller gave a value that Rota cannot use; nothing was changed."""


class UnknownKind(InvalidInput):
    """A word in a column of a task that this Rota does not know. If the database takes the word, a newer Rota does.

    UnknownKind("trigger_kind", "solar", ["cron", "manual"])
    """

    def __init__(self, column: str, word: str, known: Iterable[str]) -> None:
        super().__init__(f"{column} {word!r} is not known to this Rota; there are: {', '.join(known)}")
        self.column, self.word = column, word


class InvalidCron(InvalidInput):
    """A cron expression that is malformed, ambiguous, or never fires."""


class InvalidTimezone(InvalidInput):
    """A time zone that is not in the IANA database."""


class InvalidParam(InvalidInput):
    """A task's param that does not match the schemas of its node types."""


class UnknownTask(InvalidInput):
    """A task that another is to follow is not there."""


class TooHeavy(InvalidInput):
    """A task takes more slots than any registered worker has; a larger worker may still register."""


class UnknownType(InvalidParam):
    """A task type or node type that no worker has registered yet; a worker that is being deployed may still do so."""


class NameTaken(InvalidInput):
    """Another live task, or another live worker, has that name already."""


class NotFound(RotaError):
    """No row with that id or name."""


class NotPossible(RotaError):
    """The row exists, but its state does not allow what was asked."""


class NotEnded(RotaError, TimeoutError):
    """An instance has not ended within the time for which somebody wanted to wait. It is left as it is."""


class DatabaseProblem(RotaError):
    """The database is unreachable, not migrated, or not set up as Rota needs it."""


class DatabaseAway(DatabaseProblem):
    """The database is unreachable, or takes no work for now. That is logged where it begins and where it ends."""


class ConfigurationError(RotaError):
    """Settings that Rota cannot use; the text lists every fault."""
