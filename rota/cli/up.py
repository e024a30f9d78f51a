"""``rota up``: a scheduler and workers on this machine, and each fire as it ends."""

import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import click
from sqlalchemy import Row

from rota.cli.following import Follower
from rota.cli.instance_view import lateness_ms, outcome
from rota.cli.options import UP_SETTINGS, settings_options, verbosity_options
from rota.cli.output import COLOURS, cell, note, on_terminal
from rota.cli.services import migrate_database
from rota.cli.shell import Shell, database_option, pass_shell
from rota.cli.supervisor import Child, Supervisor
from rota.cli.times import between, localized, zone_of
from rota.cli.workers import find_app
from shared.domain.errors import DatabaseProblem
from shared.settings import Settings
from shared.store.database import Database
from shared.store.problems import named

ROTA = (sys.executable, "-m", "rota")
POLL_SECONDS = 0.5
LINES_AT_ONCE = 200
CHILD_FLAGS = {-1: ["-qq"], 0: ["-q"], 1: [], 2: ["-v"]}
"""The children's own flags, by how many more ``-v`` than ``-q`` were given here: WARNING by default."""


@click.command()
@click.option("--workers", type=click.IntRange(0, 64), default=1, show_default=True, help="How many workers.")
@settings_options(UP_SETTINGS)
@verbosity_options
@database_option
@pass_shell
def up(shell: Shell, workers: int, verbose: int, quiet: int, **options: Any) -> None:
    """Run a scheduler and workers on this machine, and show each fire as it ends.

    Migrates the database first. A process that dies is started again. Ctrl-C lets what runs finish within the grace
    time; a second Ctrl-C kills it.

    \b
    Examples:
      rota up --app examples.jobs:app
      rota up --app jobs:app --workers 4 --capacity 20 -v
      rota -d mysql://rota:secret@db/rota up
    """
    settings = shell.settings(**options)
    find_app(settings.app)
    migrate_database(shell)
    flags = CHILD_FLAGS[min(max(verbose - quiet, -1), 2)]
    with shell.database() as database:
        children = planned(shell, workers, flags, options)
        supervisor = Supervisor(children, settings.grace_seconds, note)
        screen = Screen(database)
        supervisor.start()
        click.echo(banner(settings, database, children))
        supervisor.run(screen.show, POLL_SECONDS)
    note("all have stopped")


def planned(shell: Shell, workers: int, flags: list[str], options: Mapping[str, Any]) -> list[Child]:
    """The children, with what was given as options in their environment, where ps does not show a password."""
    given = {f"ROTA_{name.upper()}": _written(value) for name, value in options.items() if value is not None}
    environment = os.environ | given
    if shell.database_url is not None:
        environment["ROTA_DATABASE_URL"] = shell.database_url
    children = [Child("scheduler", [*ROTA, "scheduler", *flags], environment)]
    environment = {name: value for name, value in environment.items() if name != "ROTA_HEALTH_FILE"}
    for number in range(1, workers + 1):
        # The same at each start: a worker takes over at once what its dead predecessor of that name held.
        name = f"{environment.get('ROTA_WORKER_NAME', f'{socket.gethostname()}-{os.getpid()}')}-{number}"
        children.append(Child(f"worker {number}", [*ROTA, "worker", *flags], environment | {"ROTA_WORKER_NAME": name}))
    return children


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def banner(settings: Settings, database: Database, children: list[Child]) -> str:
    """What runs, and where."""
    lines = {
        "database": named(database.url),
        "app": settings.app or "none: Rota's own task types",
        **{child.name: f"pid {child.pid}" for child in children},
    }
    width = max(map(len, lines))
    shown = "\n".join(f"  {name.ljust(width)}  {value}" for name, value in lines.items())
    return f"Rota is up; Ctrl-C stops it\n{shown}"


class Screen:
    """Prints each instance when it has ended."""

    def __init__(self, database: Database) -> None:
        self._follower = Follower(database)
        self._away = False

    def show(self) -> None:
        """Print those that have ended since; a database that is away is said once."""
        try:
            rows = self._follower.ended()
        except DatabaseProblem as problem:
            if not self._away:
                note(f"{problem}; waiting for it")
            self._away = True
            return
        if self._away:
            note("the database answers again")
        self._away = False
        for row in rows[:LINES_AT_ONCE]:
            click.echo(line(row))
        if len(rows) > LINES_AT_ONCE:
            click.echo(f"… and {len(rows) - LINES_AT_ONCE} more")
        sys.stdout.flush()


def line(row: Row[Any]) -> str:
    """One fire: when it ended, its task and schedule time, how it ended, where, how late, how long, with what."""
    zone = zone_of(row.timezone)
    ended = (row.gmt_completed or row.gmt_modified).strftime("%H:%M:%SZ")
    status = row.status.ljust(8)
    if on_terminal():
        status = click.style(status, fg=COLOURS[row.status])
    late = lateness_ms(row)
    words = (
        ended,
        cell(row.task_name).ljust(20),
        localized(row.schedule_datetime, zone).isoformat(" ", "seconds"),
        status,
        cell(row.worker_name or "-"),
        "-" if late is None else f"{late:+.0f} ms",
        between(row.gmt_started, row.gmt_completed) or "-",
        outcome(row),
    )
    return "  ".join(words)
