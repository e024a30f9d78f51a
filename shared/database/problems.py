"""Errors of a database as sentences, which name the database and say what a person can do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoneFree

from rota.shared.database.backends import backend_of
from rota.shared.database.refusals import sentence
from rota.shared.database.urls import named
from rota.shared.domain.errors import DatabaseProblem


def in_words(url: URL, error: BaseException) -> str:
    """The sentence for an error of the URL's database. It holds neither the password nor the statement.

    ``error`` is an error of SQLAlchemy, or the DatabaseProblem in which ``Database`` has wrapped one.

        in_words(make_url("mysql://rota@db/rota"), error)
        # mysql://rota@db/rota: Unknown database 'rota'; create it: CREATE DATABASE `rota` CHARACTER SET utf8mb4
    """
    if isinstance(error, DatabaseProblem):
        if not isinstance(error.__cause__, DBAPIError):
            return str(error)
        error = error.__cause__
    said = sentence(error)
    advice = backend_of(url).advice(url, error, said)
    return f"{named(url)}: {missing_folder(url) or (f'{said}; {advice}' if advice else said)}"


def missing_folder(url: URL) -> str | None:
    """The sentence for a database file whose folder does not exist; None if it exists, or there is no file."""
    file = database_file(url)
    if file is None or file.parent.is_dir():
        return None
    return f"the folder {file.parent} does not exist; create it: mkdir -p '{file.parent}'"


def database_file(url: URL) -> Path | None:
    """The database's file; None if the database is on a server, or in memory."""
    return backend_of(url).file(url)


@contextmanager
def database_errors(url: URL) -> Iterator[None]:
    """Raise each error of the database inside the block as a DatabaseProblem with a sentence."""
    try:
        yield
    except DBAPIError as error:
        raise DatabaseProblem(in_words(url, error)) from error
    except NoneFree as error:
        raise DatabaseProblem(
            f"{named(url)}: no connection became free in time; too many threads ask at once"
        ) from error
