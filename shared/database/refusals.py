"""What an error of the database says of a statement: refused, or in the way of somebody's lock."""

from sqlalchemy.exc import DBAPIError

from rota.shared.database.backend import ErrorKind
from rota.shared.database.backends import all_backends


def is_refusal(error: DBAPIError) -> bool:
    """Whether the database refuses the data of a statement. Then a row is at fault, otherwise the server."""
    return any(one.kind_of(error) is ErrorKind.REFUSAL for one in all_backends())


def is_locked(error: DBAPIError) -> bool:
    """Whether a statement could not wait for as long as somebody else has a row locked."""
    return any(one.kind_of(error) is ErrorKind.LOCKED for one in all_backends())


def sentence(error: BaseException | None) -> str:
    """The database's own error text, without the statement and its values, because they may hold secrets."""
    original = getattr(error, "orig", error)
    arguments = getattr(original, "args", ())
    return str(arguments[-1] if arguments else original)
