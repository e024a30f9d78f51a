"""What all commands share: the database to use, the actor, the common options, and how an error is shown."""

import getpass
import logging
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from rota.cli.show.output import colour_choice
from rota.shared.control.actor import Actor
from rota.shared.domain.errors import ConfigurationError, DatabaseProblem, InvalidInput, RotaError
from rota.shared.domain.sentences import printable

if TYPE_CHECKING:
    from rota.shared.database.transactions import Database
    from rota.shared.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

REFUSED, DATABASE_PROBLEM, INTERRUPTED = 1, 3, 130
CONNECT_SECONDS, RETRY_SECONDS = 3, 2
"""How long a person waits for a server that takes no connection, at each try; and how long Rota tries again."""


class Refusal(click.ClickException):
    """A RotaError as the command shows it: ``error:`` and its sentence on stderr, and its exit code."""

    def __init__(self, error: RotaError) -> None:
        super().__init__(str(error))
        self._error = error

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """3 for a problem with the database, else 1."""
        return DATABASE_PROBLEM if isinstance(self._error, DatabaseProblem) else REFUSED

    def show(self, file: Any = None) -> None:
        """Print the error, each fault on a line of its own."""
        for line in self.message.splitlines():
            click.echo(f"{click.style('error:', fg='red')} {printable(line)}", err=True, color=colour_choice())


@dataclass
class Shell:
    """The options of the group, for its commands."""

    database_url: str | None = None
    debug: bool = False

    def settings(self, **options: Any) -> "Settings":
        """The settings. ``options`` that are given override the environment.

        Raises ConfigurationError, which names every fault.
        """
        from rota.shared.settings import Settings  # noqa: PLC0415 - pydantic takes longer than --help may

        with naming_options():
            return Settings.load(database_url=self.database_url, **options)

    @contextmanager
    def database(self, *, to_write: bool = True) -> Iterator["Database"]:
        """The migrated database, closed at the end of the block.

        Without ``to_write`` it is enough that this user may read it. Raises DatabaseProblem if there is no database, or
        if Rota cannot use it as it is.
        """
        from rota.migrations import head  # noqa: PLC0415 - SQLAlchemy takes longer than --help may
        from rota.shared.database.checks import require_usable  # noqa: PLC0415
        from rota.shared.database.problems import database_file  # noqa: PLC0415

        with self.any_database(self.settings()) as database:
            file = database_file(database.url)
            if file is not None and not file.exists():  # connecting would create it, empty
                raise DatabaseProblem(f"no database at {file} yet: run rota migrate, or rota up")
            require_usable(database, head(), to_write=to_write)
            yield database

    def await_database(self) -> None:
        """Return when a service can start on the database. SIGTERM ends the wait for one that is away.

        SystemExit, raised by a signal's handler, is lost where code in C clears errors. So the wait also asks itself.
        Raises DatabaseProblem for what does not pass by itself: a wrong password, no such database, no tables.
        """
        from rota.shared.database.checks import wait_for  # noqa: PLC0415
        from rota.shared.database.problems import database_file  # noqa: PLC0415

        asked: list[int] = []

        def end(number: int, frame: FrameType | None) -> None:
            asked.append(number)
            raise SystemExit(128 + number)

        before = signal.signal(signal.SIGTERM, end)  # the first process of a container has no other end
        try:
            with self.any_database(self.settings(), logs_outages=True) as database:
                if database_file(database.url) is None:
                    wait_for(database, lambda: bool(asked))
        finally:
            signal.signal(signal.SIGTERM, before)
        if asked:
            raise SystemExit(128 + asked[0])

    @contextmanager
    def any_database(self, settings: "Settings", *, logs_outages: bool = False) -> Iterator["Database"]:
        """The database, migrated or not. An error of the database becomes a DatabaseProblem.

        Unless it ``logs_outages``, that error alone says that the database is away.
        """
        from rota.shared.database.problems import database_errors  # noqa: PLC0415
        from rota.shared.database.transactions import Database  # noqa: PLC0415 - SQLAlchemy, too

        url = settings.database_url.get_secret_value()
        limit = settings.call_timeout_seconds
        may_wait = logs_outages or "call_timeout_seconds" in settings.model_fields_set
        connect_limit = limit if may_wait else min(limit, CONNECT_SECONDS)
        database = Database(url, call_timeout=limit, connect_timeout=connect_limit, retry_seconds=RETRY_SECONDS)
        log = logging.getLogger("rota.shared.database.outage")
        level = log.level
        log.setLevel(level if logs_outages else logging.ERROR)
        try:
            with database_errors(database.url):
                yield database
        finally:
            log.setLevel(level)
            database.close()


@contextmanager
def naming_options(*, untyped: bool = False) -> Iterator[None]:
    """Name in an error the options that were typed, in place of the settings and fields that they set.

    With ``untyped``, name also those options of the command that were not typed.
    """
    try:
        yield
    except (ConfigurationError, InvalidInput) as error:
        error.args = (_in_options(str(error), untyped),)
        raise


def _in_options(text: str, untyped: bool) -> str:
    ctx = click.get_current_context(silent=True)
    while ctx is not None:
        for option in ctx.command.params:
            name = str(option.name)
            is_named = untyped or ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if is_named and isinstance(option, click.Option):
                # "name = 1" is SQL, and a name in quotes is what somebody wrote. A name without _ is also a word. It is
                # a field's where a fault begins with it: "retries -1: ...".
                field = rf"(?<!['\"])\b{name}\b(?! = |['\"])" if "_" in name else rf"^{name}(?= \S+: )"
                if not option.multiple:  # such an option is not written as its variable is: --label gpu=a100
                    field = rf"\bROTA_{name.upper()}\b|{field}"
                text = re.sub(field, option.opts[-1], text, flags=re.MULTILINE)
        ctx = ctx.parent
    return text


def actor() -> Actor:
    """Who acts: the user of this process."""
    try:
        return Actor(getpass.getuser()[:127], "cli")
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return Actor("cli", "cli")


def pass_shell(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the Shell as its first argument."""
    return click.make_pass_decorator(Shell, ensure=True)(command)


def _remember(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Shell).database_url = value


def database_option(command: F) -> F:
    """Add ``-d``, to the group and to each command that uses a database."""
    option = click.option(
        "-d",
        "--database-url",
        metavar="URL",
        expose_value=False,
        callback=_remember,
        help="The database: mysql://user:password@host/database or sqlite:///file. Percent-encode the password: "
        "@ is %40.  [env: ROTA_DATABASE_URL]",
    )
    return option(command)


def json_option(command: F) -> F:
    """Add ``--json``: the command prints exactly one JSON document on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def why_option(command: F) -> F:
    """Add ``--why``: the reason that ``rota audit`` shows."""
    return click.option("--why", metavar="TEXT", help="The reason, for rota audit.")(command)
