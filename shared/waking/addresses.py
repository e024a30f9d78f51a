"""Where a process listens for wake-ups: ``ROTA_WAKE_ADDRESS``, and the address that its row tells to others."""

import ipaddress
import socket
from importlib.util import find_spec
from typing import NamedTuple
from urllib.parse import urlsplit

from sqlalchemy.engine import URL

from rota.shared.database.urls import LARGEST_PORT, addresses

RIGHT_FORM = (
    "write host:port, as 10.0.0.5:7788; without the host, as :0, it is the address by which this machine reaches the "
    "database; port 0 is any free one"
)
REDIS_SCHEMES = ("redis", "rediss", "unix")
REDIS_FORM = (
    "write redis://:password@host:6379/0, rediss://… for TLS, or unix:///path; in a password, write @ / ? # and % as "
    "%40 %2F %3F %23 %25"
)
LONGEST = 63
"""The most characters of an address in a row."""


class WakeAddress(NamedTuple):
    """A host and a port. An empty host is the address by which this machine reaches the database; port 0: any."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parsed(text: str) -> WakeAddress:
    """The address of a text. Raises ValueError for what is none.

    parsed("[::1]:7788")   # WakeAddress('::1', 7788)
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit() and int(port) <= LARGEST_PORT):
        raise ValueError(RIGHT_FORM)
    if (":" in host) != is_bracketed or any(c.isspace() for c in host):
        raise ValueError(f"{RIGHT_FORM}; an IPv6 address stands in brackets, as [::1]:7788")
    host = host[1:-1] if is_bracketed else host
    if _is_every_interface(host):
        raise ValueError(f"nobody can send to {host}; {RIGHT_FORM}")
    return WakeAddress(host, int(port))


def _is_every_interface(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def checked_redis(url: str) -> str:
    """The URL of a Redis. Raises ValueError, which shows no password, for what is none; and if its library is missing.

    checked_redis("redis://cache:6379/0")
    """
    try:
        parts = urlsplit(url)
        is_there = bool(parts.hostname) and not (parts.path.strip("/") and not parts.path[1:].isdigit())
        if parts.scheme == "unix":
            is_there = bool(parts.path) and parts.port is None
        is_one = parts.scheme in REDIS_SCHEMES and is_there and parts.port != 0
    except ValueError:  # what it says may hold the password
        is_one = False
    if not is_one or "#" in url or "@" in parts.query:
        raise ValueError(REDIS_FORM)
    if find_spec("redis") is None:
        raise ValueError('the library of Redis is not installed; pip install "rota[redis]"')
    return url


def shown_redis(url: str) -> str:
    """A checked URL without its password.

    shown_redis("redis://:secret@cache:6379/0")   # 'redis://cache:6379/0'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def own_address(database: URL) -> str:
    """The numeric address by which this machine reaches a database. Nothing is sent to find it out.

    That of this machine alone for a database in a file, or behind a local socket. Raises OSError where there is no way.
    """
    hosts = addresses(database)
    if not hosts or "unix_socket" in database.query:
        return "127.0.0.1"
    family, kind, protocol, _, there = socket.getaddrinfo(hosts[0].host, hosts[0].port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asking:
        asking.connect(there)
        return str(asking.getsockname()[0])
