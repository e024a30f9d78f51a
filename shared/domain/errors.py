"""One tree of errors. Each is a sentence that names the thing, the value, and what would be right."""


class RotaError(Exception):
    """Anything that Rota refuses or cannot do, said in a sentence fit to be shown to the user."""


class InvalidInput(RotaError):
    """The caller gave a value that cannot be used; nothing was changed."""


class InvalidCron(InvalidInput):
    """A cron expression that is malformed, ambiguous, or never fires."""


class InvalidTimezone(InvalidInput):
    """A time zone that is not in the IANA database."""


class InvalidParam(InvalidInput):
    """A task's param that does not satisfy what its node types ask for."""


class UnknownType(InvalidParam):
    """A task type or node type that no worker has registered so far: one that is being deployed may do so yet."""


class NameTaken(InvalidInput):
    """A live task, or a live worker, has that name already."""


class NotFound(RotaError):
    """No row with that id or name."""


class NotPossible(RotaError):
    """The thing exists, but is in a state that does not allow what was asked."""


class DatabaseProblem(RotaError):
    """The database is unreachable, not migrated, or not set up as Rota needs it."""


class ConfigurationError(RotaError):
    """Settings that cannot be used; the text lists every fault."""
