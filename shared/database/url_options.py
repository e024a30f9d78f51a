"""The options of a database's URL: which there are, what their values are, and which name files."""

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from sqlalchemy.engine import URL
from sqlalchemy.util import asbool

from rota.shared.database.backends import Entry
from rota.shared.domain.errors import ConfigurationError

FILES = {"ssl_ca": os.path.isfile, "ssl_cert": os.path.isfile, "ssl_key": os.path.isfile, "ssl_capath": os.path.isdir}
"""The options whose values are paths, and what must be there."""

_WHOLE_NUMBERS = ("cached_statements", "client_flag", "max_allowed_packet")
_SWITCHES = ("binary_prefix", "local_infile", "ssl_check_hostname", "ssl_disabled", "uri")
VALUES: Mapping[str, tuple[Callable[[str], object], str]] = {
    **dict.fromkeys(_WHOLE_NUMBERS, (int, "a whole number")),
    **dict.fromkeys(_SWITCHES, (asbool, "true or false")),
}
"""The options whose values are read, how, and what a value must be."""

PASSWORDS = frozenset({"passwd", "password", "ssl_key_password"})
IN_MEMORY = (":memory:", "file::memory:")


def check_options(url: URL, entry: Entry) -> None:
    """Check that the options of a URL are known to its database, once each, and that their values can work.

    Raises ConfigurationError. It names the option, and never its value, which may be a misspelt password.
    """
    known = entry.options | entry.uri_options
    for option in sorted(set(url.query) & set(entry.instead)):
        raise ConfigurationError(f"has the option {option!r}; {entry.instead[option]}")
    for option in url.query:
        if option not in known:
            raise ConfigurationError(_unknown(url, option, known))
    for option, values in sorted(url.normalized_query.items()):
        if len(values) > 1:
            raise ConfigurationError(f"has the option {option!r} more than once; give it once")
        read, wanted = VALUES.get(option, (str, ""))
        try:
            read(values[0])
        except ValueError:
            raise ConfigurationError(f"has the option {option!r}, and its value is not {wanted}") from None
    for option, is_there in FILES.items():
        if not all(map(is_there, url.normalized_query.get(option, ()))):
            what = "a folder" if is_there is os.path.isdir else "a file"
            raise ConfigurationError(
                f"has the option {option!r}, and its value is not the path of {what} on this machine"
            )
    _check_tls(url)
    if entry.uri_options:
        _check_file(url, entry)


def _unknown(url: URL, option: str, known: frozenset[str]) -> str:
    if PASSWORDS & set(url.query):  # an unescaped & would make an option of a part of it
        return "has, beside a password, an option that is not known; in a password write & as %26"
    return f"has the option {option!r}, which is not known; {_advice(option, known)}"


def _check_tls(url: URL) -> None:
    if asbool(url.query.get("ssl_disabled", False)):
        for option in sorted(option for option in url.query if option.startswith("ssl_") and option != "ssl_disabled"):
            raise ConfigurationError(
                f"has ssl_disabled and {option!r}, which exclude each other; leave one of them out"
            )


def _check_file(url: URL, entry: Entry) -> None:
    if url.host or url.username:
        raise ConfigurationError("names a host; a file has three slashes before its path: sqlite:///rota.db")
    if url.database in IN_MEMORY or url.query.get("mode") == "memory":
        raise ConfigurationError(entry.without_database)
    is_uri = asbool(url.query.get("uri", False))
    of_uris = sorted(set(url.query) & entry.uri_options)
    if is_uri != (url.database or "").startswith("file:") or (of_uris and not is_uri):
        told = f"the option {of_uris[0]!r}, which belongs to a URI" if of_uris else "one half of a URI"
        raise ConfigurationError(f"has {told}; write sqlite:///file:/srv/rota.db?mode=ro&uri=true")


def _advice(option: str, known: frozenset[str]) -> str:
    near = get_close_matches(option.lower(), sorted(known), n=1)
    return f"write {near[0]!r}" if near else f"known are {', '.join(sorted(known))}"
