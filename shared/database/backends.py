"""The databases on which Rota runs, by the scheme of their URLs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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

    options: frozenset[str]
    """The options that its URL may have."""

    instead: Mapping[str, str] = field(default_factory=dict)
    """What a user does instead of each option that the driver knows and Rota refuses."""


def _mysql() -> Backend:
    from rota.shared.database.mysql import MYSQL  # noqa: PLC0415

    return MYSQL


def _sqlite() -> Backend:
    from rota.shared.database.sqlite import SQLITE  # noqa: PLC0415

    return SQLITE


_MYSQL_OPTIONS = frozenset(
    {
        "autocommit",
        "bind_address",
        "binary_prefix",
        "client_flag",
        "collation",
        "connect_timeout",
        "database",
    }
    | {"db", "host", "init_command", "local_infile", "max_allowed_packet", "passwd", "password", "program_name"}
    | {"read_default_file", "read_default_group", "read_timeout", "server_public_key", "sql_mode", "ssl", "ssl_ca"}
    | {"ssl_capath", "ssl_cert", "ssl_check_hostname", "ssl_cipher", "ssl_disabled", "ssl_key", "ssl_key_password"}
    | {"ssl_verify_cert", "ssl_verify_identity", "unix_socket", "use_unicode", "user", "write_timeout"}
)
"""Those of PyMySQL that a text can give, and those that SQLAlchemy makes of them."""

_INSTEAD = {
    "charset": "leave it out: Rota itself sets utf8mb4",
    "port": "write the port after the host, as in mysql://user:password@host:3307/database",
}

_SQLITE_OPTIONS = frozenset(
    {"cache", "cached_statements", "check_same_thread", "detect_types", "immutable", "isolation_level", "mode"}
    | {"modeof", "nolock", "psow", "timeout", "uri", "vfs"}
)
"""Those of Python's sqlite3, and those of SQLite's own URIs."""

_NO_DATABASE = "names no database; write mysql://user:password@host/database"

BACKENDS: dict[str, Entry] = {
    "mysql": Entry(_mysql, _NO_DATABASE, _MYSQL_OPTIONS, _INSTEAD),
    "mariadb": Entry(_mysql, _NO_DATABASE, _MYSQL_OPTIONS, _INSTEAD),
    "sqlite": Entry(
        _sqlite, "names no file; processes meet in the database, so write sqlite:///rota.db", _SQLITE_OPTIONS
    ),
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
