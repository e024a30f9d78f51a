"""The databases on which Rota runs, by the scheme of their URLs."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.engine import URL

from rota.shared.database.backend import Backend
from rota.shared.domain.errors import ConfigurationError


@dataclass(frozen=True)
class Entry:
    """The database for one scheme of URLs."""

    load: Callable[[], Backend]
    """Imports the database's file and its driver, which is done only if a URL needs them."""

    without_database: str
    """The error text for a URL that names no database."""


def _mysql() -> Backend:
    from rota.shared.database.mysql import MYSQL  # noqa: PLC0415

    return MYSQL


def _sqlite() -> Backend:
    from rota.shared.database.sqlite import SQLITE  # noqa: PLC0415

    return SQLITE


_NO_DATABASE = "names no database; write mysql://user:password@host/database"

BACKENDS: dict[str, Entry] = {
    "mysql": Entry(_mysql, _NO_DATABASE),
    "mariadb": Entry(_mysql, _NO_DATABASE),
    "sqlite": Entry(_sqlite, "names no file; processes meet in the database, so write sqlite:///rota.db"),
}
"""The keys are the schemes of URLs, without the driver."""


def entry_of(url: URL) -> Entry:
    """The entry for the URL's scheme.

    Raises ConfigurationError for a database that Rota does not run on.
    """
    name = url.get_backend_name()
    if name not in BACKENDS:
        *most, last = BACKENDS
        raise ConfigurationError(f"names the database {name!r}; Rota runs on {', '.join(most)} and {last}")
    return BACKENDS[name]


def backend_of(url: URL) -> Backend:
    """The kind of database that the URL names.

    Raises ConfigurationError for one that Rota does not run on.

        backend_of(make_url("mariadb://rota@db/rota")).has_transactional_ddl   # False
    """
    return entry_of(url).load()


def all_backends() -> list[Backend]:
    """Each kind of database once: MySQL and MariaDB are one."""
    return list({id(backend): backend for backend in (entry.load() for entry in BACKENDS.values())}.values())
