"""A database's URL without its password, for people to see."""

from sqlalchemy.engine import URL


def shown(url: URL) -> str:
    """The URL without its password."""
    return url.render_as_string(hide_password=True)


def named(url: URL) -> str:
    """The database as people write it: the URL without its password and driver."""
    return shown(url.set(drivername=url.get_backend_name()))
