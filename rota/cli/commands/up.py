"""``rota up``: a scheduler and workers on this machine, and each fire as it ends."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from rota.cli.commands.services import migrate_database
from rota.cli.commands.workers import find_app
from rota.cli.numbers import WholeNumber
from rota.cli.options import MOST_ROWS, UP_SETTINGS, discover_option, discovered, settings_options, verbosity_options
from rota.cli.shell import Shell, database_option, pass_shell
from rota.cli.show.instances import late, outcome, took, worker_of
from rota.cli.show.output import COLOURS, cell, note, on_terminal
from rota.cli.show.times import moment_of, shown_local
from rota.shared.clock import HostTimer
from rota.shared.control import workers as roster
from rota.shared.control.documents import Document
from rota.shared.control.following import Follower
from rota.shared.database.transactions import Database
from rota.shared.database.urls import named
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.domain.times import zone_of
from rota.shared.settings import Settings, variables
from rota.supervise.parent import parent_option, watch_parent
from rota.supervise.supervisor import KILLS_FIRST_SECONDS, MOST_WORKERS, PARENT_GONE, Child, Supervisor

ROTA = (sys.executable, "-m", "rota")
POLL_SECONDS = 0.5
LINES_AT_ONCE = 200
CHILD_FLAGS = {-1: ["-qq"], 0: ["-q"], 1: [], 2: ["-v"]}
"""The flags of the children, by the number of ``-v`` minus the number of ``-q``. Children log warnings by default."""


@click.command()
@click.option("--workers", type=WholeNumber(0, MOST_WORKERS), default=1, show_default=True, help="How many workers.")
@discover_option
@settings_options(UP_SETTINGS)
@verbosity_options
@click.option("--fires/--no-fires", default=True, show_default=True, help="Show each fire as it ends.")
@click.option("--ready-pipe", type=int, hidden=True)
@parent_option
@database_option
@pass_shell
def up(shell: Shell, workers: int, verbose: int, quiet: int, *, fires: bool, **options: Any) -> None:
    """Run a scheduler and workers on this machine, and show each fire as it ends.

    Migrates the database first. A process that dies is started again. Ctrl-C lets what runs finish within the grace
    time; a second Ctrl-C kills it.

    \b
    Examples:
      rota up --app examples.jobs:app
      rota up --discover mypackage.jobs
      rota up --app jobs:app --workers 4 --capacity 20 -v
      rota -d mysql://rota:secret@db/rota up
    """
    ready_pipe, parent_pipe = options.pop("ready_pipe"), options.pop("parent_pipe")
    options = discovered(options)
    settings = shell.settings(**options)
    watch_parent(parent_pipe, settings.grace_seconds + KILLS_FIRST_SECONDS, PARENT_GONE)
    from rota.worker_service.declarations import check_tasks  # noqa: PLC0415 - it takes long to import

    app = find_app(settings.app)
    shell.await_database()
    migrate_database(shell)
    flags = CHILD_FLAGS[min(max(verbose - quiet, -1), 2)]
    with shell.database() as database:
        if workers:
            check_tasks(database, app, "up", settings)
        children = planned(shell, workers, flags, options)
        supervisor = Supervisor(children, settings.grace_seconds, note, HostTimer())
        ready = Readiness(database, ready_pipe, [child.environment["ROTA_WORKER_NAME"] for child in children[1:]])
        supervisor.start()
        click.echo(banner(settings, database, children))
        supervisor.run(partial(_step, ready, Screen(database) if fires else None), POLL_SECONDS)
    note("all have stopped")


def _step(ready: "Readiness", screen: "Screen | None") -> None:
    ready.look()
    if screen is not None:
        screen.show()


class Readiness:
    """Tells ``rota.embedded`` once, by a pipe, that all workers are live: then their tasks are declared."""

    def __init__(self, database: Database, pipe: int | None, names: Sequence[str]) -> None:
        """To be made before the workers start: those that are there already are others, whatever their names."""
        self._database = database
        self._pipe = pipe
        self._names = set(names)
        before = [] if pipe is None else roster.listed(database, 1, all_states=True)
        self._newest_before = max((one["id"] for one in before), default=0)

    def look(self) -> None:
        """Tell it if it is so, and nobody has been told."""
        if self._pipe is None:
            return
        with suppress(DatabaseProblem):
            found = roster.listed(self._database, MOST_ROWS)
            if self._names <= {one["name"] for one in found if one["id"] > self._newest_before}:
                pipe, self._pipe = self._pipe, None
                with suppress(OSError):  # nobody waits for it any more
                    os.write(pipe, b"1")
                os.close(pipe)


def planned(shell: Shell, workers: int, flags: list[str], options: Mapping[str, Any]) -> list[Child]:
    """The children. They get the options through their environment, so that ps shows no password.

    Raises ConfigurationError for a worker's name that is too long with its number.
    """
    environment = os.environ | variables(options)
    if shell.database_url is not None:
        environment["ROTA_DATABASE_URL"] = shell.database_url
    children = [Child("scheduler", [*ROTA, "scheduler", *flags], environment)]
    environment = {name: value for name, value in environment.items() if name != "ROTA_HEALTH_FILE"}
    for number in range(1, workers + 1):
        # The same name at each start: a worker recovers at once what its dead predecessor of that name held.
        name = f"{environment.get('ROTA_WORKER_NAME') or f'{socket.gethostname()}-{os.getpid()}'}-{number}"
        shell.settings(worker_name=name)
        children.append(Child(f"worker {number}", [*ROTA, "worker", *flags], environment | {"ROTA_WORKER_NAME": name}))
    return children


def banner(settings: Settings, database: Database, children: list[Child]) -> str:
    """The lines that say which processes run, with which app and database."""
    lines = {
        "database": named(database.url),
        "app": cell(settings.app or "none: Rota's own task types"),
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
        """Print the instances that have ended since the last call. A database that is away is noted once."""
        try:
            ended = self._follower.ended()
        except DatabaseProblem as problem:
            if not self._away:
                note(f"{problem}; waiting for it")
            self._away = True
            return
        if self._away:
            note("the database answers again")
        self._away = False
        for instance in ended[:LINES_AT_ONCE]:
            click.echo(line(instance))
        if len(ended) > LINES_AT_ONCE:
            click.echo(f"… and {len(ended) - LINES_AT_ONCE} more")
        sys.stdout.flush()


def line(instance: Document) -> str:
    """One fire on a line: its end, task, schedule time, status, worker, lateness, duration and outcome."""
    ended = moment_of(instance["gmt_completed"] or instance["gmt_modified"])
    nominal = shown_local(moment_of(instance["schedule_datetime"]), zone_of(instance["timezone"]))
    status = instance["status"].ljust(8)
    if on_terminal():
        status = click.style(status, fg=COLOURS[instance["status"]])
    delay = late(instance) or "-"
    words = (
        f"{ended:%H:%M:%SZ}",
        cell(instance["task_name"]).ljust(20),
        str(nominal),
        status,
        cell(worker_of(instance) or "-"),
        delay if delay.startswith("-") else f"+{delay}",
        took(instance) or "-",
        outcome(instance),
    )
    return "  ".join(words)
