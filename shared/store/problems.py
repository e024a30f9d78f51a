"""A database's refusal, in a sentence that names the thing and says what to type."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from shared.domain.errors import DatabaseProblem
from shared.store.database import code, sentence, shown

NO_DATABASE, NOT_FOR_THIS_USER, ACCESS_DENIED = 1049, 1044, frozenset({1045, 1698})
COMMAND_DENIED = frozenset({1142, 1143, 1227})
READ_ONLY = frozenset({1290, 1792, 1836})
LOGS_STATEMENTS = 1665
UNREACHABLE = frozenset({2002, 2003, 2005})


def in_words(url: URL, error: BaseException) -> str:
    """The sentence for an error of the database behind the URL; neither password nor statement is in it.

    Takes what SQLAlchemy raised, or the DatabaseProblem in which ``Database`` wrapped it.

        in_words(make_url("mysql://rota@db/rota"), error)
        # mysql://rota@db/rota: Unknown database 'rota'; create it: CREATE DATABASE `rota` CHARACTER SET utf8mb4
    """
    if isinstance(error, DatabaseProblem):
        if not isinstance(error.__cause__, DBAPIError):
            return str(error)
        error = error.__cause__
    said = _sqlite(url, error) if url.get_backend_name() == "sqlite" else _server(url, error)
    return f"{named(url)}: {said}"


def named(url: URL) -> str:
    """The database as people write it: the URL without its password and driver."""
    return shown(url.set(drivername=url.get_backend_name()))


def missing_folder(url: URL) -> str | None:
    """The sentence for an SQLite file whose folder is not there; None where nothing is wrong."""
    file = sqlite_file(url)
    if file is None or file.parent.is_dir():
        return None
    return f"the folder {file.parent} does not exist; create it: mkdir -p '{file.parent}'"


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite URL; None for another database, or one that is given as a URI."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith("file:"):
        return None
    return Path(url.database)


@contextmanager
def told(url: URL) -> Iterator[None]:
    """Raise what the database refuses inside the block as a DatabaseProblem, in words."""
    try:
        yield
    except DBAPIError as error:
        raise DatabaseProblem(in_words(url, error)) from error


def _server(url: URL, error: BaseException) -> str:
    create = f"CREATE DATABASE `{url.database}` CHARACTER SET utf8mb4"
    grant = f"GRANT ALL ON `{url.database}`.* TO '{url.username}'@'%'"
    advice = {
        NO_DATABASE: f"create it: {create}",
        NOT_FOR_THIS_USER: f"it may not exist ({create}), or the user may not use it ({grant})",
        **dict.fromkeys(ACCESS_DENIED, "check the user and the password in the URL"),
        **dict.fromkeys(COMMAND_DENIED, f"as an administrator: {grant}"),
        **dict.fromkeys(READ_ONLY, "Rota writes: give it the URL of the primary, not of a replica"),
        LOGS_STATEMENTS: "SET GLOBAL binlog_format = ROW, and in the server's configuration",
        **dict.fromkeys(UNREACHABLE, f"no server answers at {url.host or 'localhost'}:{url.port or 3306}"),
    }
    number, said = code(error), sentence(error)
    return f"{said}; {advice[number]}" if number in advice else said


def _sqlite(url: URL, error: BaseException) -> str:
    if folder := missing_folder(url):
        return folder
    said = sentence(error)
    if "not a database" in said:
        return f"{said}; give Rota the path of a file that is new, or that is its own"
    if "readonly" in said or "unable to open" in said:
        return f"{said}; let this user write to the file and to its folder"
    return said
