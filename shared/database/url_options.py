"""The options of a database's URL: which there are, and which name files that must be there."""

import os
from difflib import get_close_matches

from sqlalchemy.engine import URL

from rota.shared.domain.errors import ConfigurationError

FILES = {"ssl_ca": os.path.isfile, "ssl_cert": os.path.isfile, "ssl_key": os.path.isfile, "ssl_capath": os.path.isdir}
"""The options whose values are paths, and what must be there."""


def check_options(url: URL, known: frozenset[str]) -> None:
    """Check that the database's driver knows each option of a URL, and that the files which they name are there.

    Raises ConfigurationError. It names the option, and never its value, which may be a misspelt password.
    """
    for option in sorted(set(url.query) - known):
        raise ConfigurationError(f"has the option {option!r}, which is not known; {_advice(option, known)}")
    for option, is_there in FILES.items():
        if not all(map(is_there, url.normalized_query.get(option, ()))):
            what = "a folder" if is_there is os.path.isdir else "a file"
            raise ConfigurationError(
                f"has the option {option!r}, and its value is not the path of {what} on this machine"
            )


def _advice(option: str, known: frozenset[str]) -> str:
    near = get_close_matches(option.lower(), sorted(known), n=1)
    return f"write {near[0]!r}" if near else f"known are {', '.join(sorted(known))}"
