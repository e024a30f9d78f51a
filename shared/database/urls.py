"""A database's URL: read from a text, with one host or several, and shown to people without its secrets.

In ``mysql://rota:…@a:3306,b,[::1]:3307/rota`` several hosts of one cluster stand where SQLAlchemy knows one. The URL
then keeps their list in ``host``, and has no ``port``.
"""

import re
from typing import NamedTuple

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from rota.shared.domain.errors import ConfigurationError

_BEFORE_HOSTS = re.compile(r"[\w+]+://(?:[^:/]*(?::[^@]*)?@)?")
"""The scheme, the user and the password, as SQLAlchemy reads them."""

_HAS_TWO_HOSTS = re.compile(r"[\w+]+://[^@]*@[^@]*/.*@")
"""What goes before the hosts has hosts itself, and a database: its last @ is of the password in an option."""

_HOST = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[^:]*))?")
_PLACE = "all-its-hosts"
_HIDDEN = "an-option-that-is-not-shown"
LARGEST_PORT = 65_535
RIGHT_FORM = "write mysql://user:password@a:3306,b,[::1]:3307/database"
NO_URL = "is not a database URL; write mysql://user:password@host/database, or sqlite:///rota.db"
SPLIT = (
    "has an @ in a place where none may be; percent-encode the user and the password: "
    "write @ as %40, / as %2F, : as %3A and % as %25"
)
ONE_TEXT = "has the user and the password as one text; percent-encode each alone, and write a plain : between them"

SHOWN_OPTIONS = frozenset(
    {"cache", "immutable", "mode", "ssl_ca", "ssl_capath", "ssl_cert", "ssl_check_hostname", "ssl_cipher"}
    | {"ssl_disabled", "unix_socket", "uri"}
)
"""The options of a URL that are no secrets. All others are masked: a misspelt ``pasword`` is one, too."""


class Address(NamedTuple):
    """A host of a URL, and its port; None is the port that the database usually has."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parsed(text: str) -> URL:
    """The URL of a text.

    Raises ConfigurationError for a text that is no URL, for one whose password holds an ``@``, and for a fault in a
    list of hosts. The error quotes nothing that may be a part of the password.

        parsed("mysql://rota:…@a:3306,b/rota").host   # 'a:3306,b'
    """
    start = _BEFORE_HOSTS.match(text)
    if start is None:
        return _made(text)
    after = text[start.end() :]
    is_file = after.startswith("/") and start.group().endswith("//")
    if ("@" in after and not is_file) or _HAS_TWO_HOSTS.match(start.group()):
        raise ConfigurationError(SPLIT)  # a part of the password would be taken for the host, or for the database
    hosts = re.split(r"[/?]", after, maxsplit=1)[0]
    if "," not in hosts:
        return _made(text)
    try:
        listed = [_address(one, hosts) for one in hosts.split(",")]
    except ConfigurationError:
        if start.group().endswith("@"):
            raise
        raise ConfigurationError(NO_URL) from None  # the @ is forgotten, and these are the user and the password
    for one in listed:
        if listed.count(one) > 1:
            raise ConfigurationError(f"names the host {one} twice; name each host of the cluster once")
    return _made(f"{start.group()}{_PLACE}{after[len(hosts) :]}").set(host=",".join(map(str, listed)))


def _made(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the text of the error may quote a part of the password as the port
        raise ConfigurationError(NO_URL) from None
    if ":" in (url.username or "") and url.password is None:
        raise ConfigurationError(ONE_TEXT)
    return url


def _address(text: str, hosts: str) -> Address:
    if not text.strip():
        raise ConfigurationError(f"has an empty host in {hosts!r}; {RIGHT_FORM}")
    found = _HOST.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"has the host {text!r}; write an IPv6 address in brackets, as [::1]:3306")
    host, port = found["host"].strip("[]"), found["port"]
    if not host or host != host.strip():
        raise ConfigurationError(f"has the host {text!r}; {RIGHT_FORM}")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) <= LARGEST_PORT):
        raise ConfigurationError(f"has the port {port!r} of the host {host!r}; a port is from 1 to {LARGEST_PORT}")
    return Address(host, None if port is None else int(port))


def addresses(url: URL) -> list[Address]:
    """The hosts of a URL, in their order; none for a database in a file.

    addresses(parsed("mysql://rota@a:3306,b/rota"))   # [Address('a', 3306), Address('b', None)]
    """
    if not url.host:
        return []
    if not has_several_hosts(url):
        return [Address(url.host, url.port)]
    return [_address(one, url.host) for one in url.host.split(",")]


def has_several_hosts(url: URL) -> bool:
    """Whether the URL names several hosts."""
    return "," in (url.host or "")


def shown(url: URL) -> str:
    """The URL without its password, and without the values of options that may be secrets.

    shown(parsed("mysql://rota:…@db/rota?passwd=…"))   # 'mysql://rota:***@db/rota?passwd=***'
    """
    masked = url.update_query_dict(dict.fromkeys(set(url.query) - SHOWN_OPTIONS, _HIDDEN))
    if has_several_hosts(url):
        masked = masked.set(host=_PLACE)
    text = masked.render_as_string(hide_password=True).replace(f"={_HIDDEN}", "=***")
    return text.replace(_PLACE, url.host or "", 1) if has_several_hosts(url) else text


def named(url: URL) -> str:
    """The database as people write it: the URL without its secrets and its driver."""
    return shown(url.set(drivername=url.get_backend_name()))
