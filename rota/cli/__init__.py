"""The ``rota`` command.

Each command lives in a module of its own, which is imported when the command is run. So ``rota --help`` is quick. Exit
codes: 0 done, 1 refused or failed, 2 not understood, 3 a problem with the database, 130 interrupted.
"""

from rota.cli import beginning as beginning  # isort: skip - first: the others take a while

import errno
import io
import logging
import os
import select
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

import click

from rota.cli import logs
from rota.cli.groups import GuessingGroup
from rota.cli.shell import INTERRUPTED, REFUSED, Refusal, Shell, database_option
from rota.cli.show.output import colour_choice
from rota.shared.domain.errors import RotaError
from rota.shared.domain.jsontext import storable
from rota.shared.domain.sentences import printable

COMMANDS: Mapping[str, tuple[str, str]] = {
    "up": ("rota.cli.commands.up:up", "Run a scheduler and workers on this machine, and show each fire as it ends."),
    "migrate": ("rota.cli.commands.services:migrate", "Create or update Rota's tables."),
    "scheduler": (
        "rota.cli.commands.schedulers:scheduler",
        "Run a scheduler, look at those that run, or pause all of them.",
    ),
    "worker": ("rota.cli.commands.workers:worker", "Run a worker, or look at those that run."),
    "task": ("rota.cli.commands.tasks:task", "Add, show, change and run tasks."),
    "instance": ("rota.cli.commands.instances:instance", "Look at runs, cancel them, replay them."),
    "key": ("rota.cli.commands.keys:key", "Ask for one-off work under a key, look for it, cancel it."),
    "backfill": ("rota.cli.commands.backfills:backfill", "Run a task's past fires, a few at a time."),
    "limit": ("rota.cli.commands.limits:limit", "Add, change and show limits that tasks share."),
    "calendar": (
        "rota.cli.commands.calendars:calendar",
        "Add, show and change calendars, on whose days tasks fire.",
    ),
    "audit": ("rota.cli.commands.audit:audit", "Show who changed what, when and why."),
    "cron": ("rota.cli.commands.cron:cron", "Read a cron expression in words, with its next fires."),
    "config": ("rota.cli.commands.config:config", "Show every setting, its value and where it came from."),
    "doctor": (
        "rota.cli.commands.services:doctor",
        "Check the database, its tables and its clock, whether a scheduler is at work, and the workers' versions.",
    ),
    "health": ("rota.cli.commands.health:health", "Tell whether this container's process has beaten lately."),
}
"""Every command: its module, and its line in ``rota --help``, which is the first of its own help (a test holds it)."""

OUTPUT_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors by which the system refuses what is written to stdout. They name no file."""


class RotaGroup(GuessingGroup):
    """Finds commands in the table above, and turns an error into a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. None: there is no command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse what no database can store: bytes that are no UTF-8, which Python reads as halves of surrogates."""
        for text in args:
            if text != storable(text):
                ctx.fail(f"'{printable(text)}' is not UTF-8; Rota takes no other text.")
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands and their lines, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except RotaError as error:
            if ctx.ensure_object(Shell).debug:
                raise
            raise Refusal(error) from error
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            if not reader_left():
                raise
            drop_output()
            raise click.exceptions.Exit(0) from None


def drop_output() -> None:
    """Send to nowhere what is still in the buffer of stdout: Python writes it when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_left() -> bool:
    """Whether stdout is a pipe that nobody reads any more, as in ``rota instance list | head -1``."""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, ValueError):  # it is no file, or is closed
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


@click.group(cls=RotaGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("rota"), prog_name="rota")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@database_option
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Rota schedules tasks on a database you already have.

    \b
    Examples:
      rota up --app examples.jobs:app
      rota task add nightly --type CLEANUP_TEMP --cron "0 3 * * *" --timezone Europe/Berlin
      rota -d mysql://rota:secret@db/rota task list

    The database is ROTA_DATABASE_URL, or rota.db (SQLite) in this folder. rota config shows every setting.
    """
    ctx.ensure_object(Shell).debug = debug
    ctx.color = colour_choice()


def main() -> None:
    """Run the command of this process. Only warnings are logged; a service then sets its own level."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may know fewer characters than the database
            stream.reconfigure(errors="backslashreplace")
    logs.configure(logging.WARNING)
    try:
        cli(prog_name="rota")
    except OSError as error:
        if error.errno not in OUTPUT_FAILS or error.filename is not None:
            raise
        drop_output()
        Refusal(RotaError(f"cannot write to stdout: {error.strerror}")).show()
        sys.exit(REFUSED)
