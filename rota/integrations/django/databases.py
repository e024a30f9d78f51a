"""A database of Django's ``DATABASES`` as the URL that Rota takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import connections
from sqlalchemy import URL

from rota.shared.domain.errors import ConfigurationError

TLS = {"ca": "ssl_ca", "capath": "ssl_capath", "cert": "ssl_cert", "key": "ssl_key", "cipher": "ssl_cipher"}
"""The options of MySQL's drivers in Django's OPTIONS, and those of Rota's URL."""

HARMLESS = {
    *("charset", "init_command", "isolation_level", "sql_mode", "autocommit", "connect_timeout", "read_timeout"),
    *("write_timeout", "conv", "use_unicode", "local_infile", "ssl", "unix_socket"),
}
"""The options that do not say which server is meant, or that are read here."""

IN_MEMORY = "an in-memory database is of one process; give it a file: DATABASES['default']['TEST'] = {'NAME': …}"


def url_of(name: str) -> str:
    """The URL of the database of this alias; in a test that of the test.

    Raises ConfigurationError for a kind of database that Rota does not use, and for options that it cannot follow.
    """
    connection = connections[name]
    fields = connection.settings_dict
    if connection.vendor == "sqlite":
        return _sqlite_url(str(fields["NAME"]))
    if connection.vendor != "mysql":
        raise ConfigurationError(
            f"DATABASES[{name!r}] is {connection.display_name}; Rota needs MariaDB or MySQL: name another one by "
            "ROTA = {'DATABASE': …} or {'DATABASE_URL': 'mysql://…'} in the settings"
        )
    return _mysql_url(name, fields)


def _sqlite_url(path: str) -> str:
    if path == ":memory:" or "mode=memory" in path:
        raise ConfigurationError(f"the database is {path}: {IN_MEMORY}")
    if path.startswith("file:"):
        raise ConfigurationError(f"the database is {path}: name the file by its path, not by a URI")
    return URL.create("sqlite", database=str(Path(path).absolute())).render_as_string()


def _mysql_url(name: str, fields: Mapping[str, Any]) -> str:
    options = dict(fields.get("OPTIONS", {}))
    user = options.pop("user", None) or fields.get("USER")
    password = options.pop("password", None) or options.pop("passwd", None) or fields.get("PASSWORD")
    database = options.pop("database", None) or options.pop("db", None) or fields.get("NAME")
    if not database:
        raise ConfigurationError(f"DATABASES[{name!r}] has no NAME: Rota needs a database")
    host = options.pop("host", None) or fields.get("HOST") or "localhost"
    port = options.pop("port", None) or fields.get("PORT")
    if others := sorted(options.keys() - HARMLESS):
        raise ConfigurationError(
            f"DATABASES[{name!r}]['OPTIONS'] has {others[0]!r}, which Rota cannot follow; "
            "say its database by ROTA = {'DATABASE_URL': 'mysql://…'} in the settings"
        )
    query = {TLS[key]: str(value) for key, value in _tls(name, options).items()}
    socket = options.get("unix_socket") or (host if host.startswith("/") else None)
    if socket is not None:
        query["unix_socket"] = str(socket)
        host = "localhost"
    url = URL.create("mysql", user or None, password or None, host, int(port) if port else None, str(database), query)
    return url.render_as_string(hide_password=False)


def _tls(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    tls = options.get("ssl") or {}
    if not isinstance(tls, Mapping) or (others := sorted(tls.keys() - TLS.keys())):
        what = "is no dict" if not isinstance(tls, Mapping) else f"has {others[0]!r}, which Rota cannot follow"
        raise ConfigurationError(
            f"DATABASES[{name!r}]['OPTIONS']['ssl'] {what}; say the database by ROTA = {{'DATABASE_URL': "
            "'mysql://…?ssl_ca=…'} in the settings"
        )
    return tls
