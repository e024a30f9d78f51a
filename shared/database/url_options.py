"""The options of a database's URL: which there are, what their values are, and which name files."""

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from sqlalchemy.engine import URL
from sqlalchemy.util import asbool

from rota.shared.domain.errors import ConfigurationError

FILES = {"ssl_ca": os.path.isfile, "ssl_cert": os.path.isfile, "ssl_key": os.path.isfile, "ssl_capath": os.path.isdir}
"""The options whose values are paths, and what must be there."""

_WHOLE_NUMBERS = (
    "cached_statements", "client_flag", "connect_timeout", "detect_types", "max_allowed_packet", "read_timeout",
    "write_timeout",
)  # fmt: skip
_SWITCHES = ("check_same_thread", "local_infile", "ssl_check_hostname", "uri", "use_unicode")
VALUES: Mapping[str, tuple[Callable[[str], object], str]] = {
    **dict.fromkeys(_WHOLE_NUMBERS, (int, "a whole number")),
    **dict.fromkeys(_SWITCHES, (asbool, "true or false")),
    "timeout": (float, "a number"),
}
"""The options whose values SQLAlchemy reads, how it does, and what a value must be."""


def check_options(url: URL, known: frozenset[str], instead: Mapping[str, str]) -> None:
    """Check that the options of a URL are known to the database's driver, once each, and that their values can work.

    ``instead`` says of options that the driver knows and Rota refuses what a user does instead.
    Raises ConfigurationError. It names the option, and never its value, which may be a misspelt password.
    """
    for option in sorted(set(url.query) & set(instead)):
        raise ConfigurationError(f"has the option {option!r}; {instead[option]}")
    for option in sorted(set(url.query) - known):
        raise ConfigurationError(f"has the option {option!r}, which is not known; {_advice(option, known)}")
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


def _advice(option: str, known: frozenset[str]) -> str:
    near = get_close_matches(option.lower(), sorted(known), n=1)
    return f"write {near[0]!r}" if near else f"known are {', '.join(sorted(known))}"
