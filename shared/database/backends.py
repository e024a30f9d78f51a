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

    uri_options: frozenset[str] = frozenset()
    """The options that belong to a file which is given as a URI (``file:…``)."""


def _mysql() -> Backend:
    from rota.shared.database.mysql import MYSQL  # noqa: PLC0415

    return MYSQL


def _sqlite() -> Backend:
    from rota.shared.database.sqlite import SQLITE  # noqa: PLC0415

    return SQLITE


_MYSQL_OPTIONS = frozenset(
    {"bind_address", "binary_prefix", "client_flag", "collation", "init_command", "local_infile"}
    | {"max_allowed_packet", "passwd", "password", "program_name", "read_default_file", "read_default_group"}
    | {"server_public_key", "ssl_ca", "ssl_capath", "ssl_cert", "ssl_check_hostname", "ssl_cipher", "ssl_disabled"}
    | {"ssl_key", "ssl_key_password", "unix_socket"}
)
"""Those of PyMySQL that a text can give, and those that SQLAlchemy makes of them."""

_LIMITED = "leave it out, and set ROTA_CALL_TIMEOUT_SECONDS: it limits each call and each connecting"
_OWN = "leave it out: Rota itself sets it"
_BEFORE = "write it before the ?, as in mysql://user:password@host/database"
_VERIFIED = (
    "leave it out: ssl_ca=FILE verifies the certificate and its host, "
    "and ssl_check_hostname=false beside that the certificate alone"
)

_MYSQL_INSTEAD = {
    "charset": "leave it out: Rota itself sets utf8mb4",
    "port": "write the port after the host, as in mysql://user:password@host:3307/database",
    "ssl": "it is no switch; write ssl_ca=FILE",
    **dict.fromkeys(("autocommit", "sql_mode", "use_unicode"), _OWN),
    **dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), _LIMITED),
    **dict.fromkeys(("database", "db", "host", "user"), _BEFORE),
    **dict.fromkeys(("ssl_verify_cert", "ssl_verify_identity"), _VERIFIED),
}

_SQLITE_OPTIONS = frozenset({"cached_statements", "uri"})
"""Those of Python's sqlite3."""

_SQLITE_INSTEAD = {
    "timeout": _LIMITED,
    **dict.fromkeys(("check_same_thread", "detect_types", "isolation_level"), _OWN),
}

_SQLITE_URI_OPTIONS = frozenset({"cache", "immutable", "mode", "modeof", "nolock", "psow", "vfs"})

_NO_DATABASE = "names no database; write mysql://user:password@host/database"

BACKENDS: dict[str, Entry] = {
    "mysql": Entry(_mysql, _NO_DATABASE, _MYSQL_OPTIONS, _MYSQL_INSTEAD),
    "mariadb": Entry(_mysql, _NO_DATABASE, _MYSQL_OPTIONS, _MYSQL_INSTEAD),
    "sqlite": Entry(
        _sqlite,
        "names no file; processes meet in the database, so write sqlite:///rota.db",
        _SQLITE_OPTIONS,
        _SQLITE_INSTEAD,
        _SQLITE_URI_OPTIONS,
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
