"""What every command shares: the database it is told to use, and how it fails."""

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shared.domain.errors import DatabaseProblem, RotaError

if TYPE_CHECKING:
    from shared.settings import Settings
    from shared.store.database import Database

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

REFUSED, DATABASE_PROBLEM, INTERRUPTED = 1, 3, 130
RETRY_SECONDS = 2
"""How long a person waits for a database that does not answer."""


class Refusal(click.ClickException):
    """A RotaError at the terminal: ``error:`` and its sentence on stderr, and its exit code."""

    def __init__(self, error: RotaError) -> None:
        super().__init__(str(error))
        self._error = error

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """By the kind of error."""
        return DATABASE_PROBLEM if isinstance(self._error, DatabaseProblem) else REFUSED

    def show(self, file: Any = None) -> None:
        """Write it, each fault on a line of its own."""
        for line in self.message.splitlines():
            click.echo(f"{click.style('error:', fg='red')} {line}", err=True)


@dataclass
class Shell:
    """What the group was told, for its commands."""

    database_url: str | None = None
    debug: bool = False

    def settings(self, **options: Any) -> "Settings":
        """The settings, with what was given as options.

        Raises ConfigurationError with every fault.
        """
        from shared.settings import Settings  # noqa: PLC0415 - pydantic takes longer than --help may

        return Settings.load(database_url=self.database_url, **options)

    @contextmanager
    def database(self) -> Iterator["Database"]:
        """The migrated database, closed at the end of the block.

        Raises DatabaseProblem where there is none, or where it is not as Rota needs it.
        """
        from migrations import head  # noqa: PLC0415 - SQLAlchemy takes longer than --help may
        from shared.store.checks import require_usable  # noqa: PLC0415
        from shared.store.problems import sqlite_file  # noqa: PLC0415

        with self.any_database(self.settings()) as database:
            file = sqlite_file(database.url)
            if file is not None and not file.exists():  # connecting would create it, empty
                raise DatabaseProblem(f"no database at {file} yet: run rota migrate, or rota up")
            require_usable(database, head())
            yield database

    @contextmanager
    def any_database(self, settings: "Settings") -> Iterator["Database"]:
        """The database whether or not it is migrated. What it refuses becomes a DatabaseProblem."""
        from shared.store.database import Database  # noqa: PLC0415 - SQLAlchemy, too
        from shared.store.problems import told  # noqa: PLC0415

        url = settings.database_url.get_secret_value()
        database = Database(url, call_timeout=settings.call_timeout_seconds, retry_seconds=RETRY_SECONDS)
        try:
            with told(database.url):
                yield database
        finally:
            database.close()


def user() -> str:
    """Who does it, for the columns ``creator`` and ``modifier``."""
    try:
        return getpass.getuser()[:127]
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return "cli"


def pass_shell(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the Shell as its first argument."""
    return click.make_pass_decorator(Shell, ensure=True)(command)


def _remember(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Shell).database_url = value


def database_option(command: F) -> F:
    """``-d``: on the group, and on each command that uses a database."""
    option = click.option(
        "-d",
        "--database-url",
        metavar="URL",
        expose_value=False,
        callback=_remember,
        help="The database: mysql://user:password@host/database or sqlite:///file.  [env: ROTA_DATABASE_URL]",
    )
    return option(command)


def json_option(command: F) -> F:
    """``--json``: exactly one JSON document on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)
