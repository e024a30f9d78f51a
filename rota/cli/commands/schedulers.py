"""``rota scheduler`` runs a scheduler; ``rota scheduler list`` shows those that run."""

import logging
from datetime import datetime
from typing import Any

import click

from rota.cli import logs
from rota.cli.options import SCHEDULER_SETTINGS, limit_option, settings_options, verbosity_options
from rota.cli.shell import Shell, database_option, json_option, pass_shell
from rota.cli.show.output import show_json, show_table
from rota.cli.show.times import moment_of, relative
from rota.shared.control import schedulers
from rota.shared.control.documents import Document
from rota.supervise.parent import parent_option, watch_parent


@click.group(invoke_without_command=True)
@settings_options(SCHEDULER_SETTINGS)
@verbosity_options
@click.option("--log-json", is_flag=True, help="Log one JSON object a line.")
@parent_option
@database_option
@pass_shell
def scheduler(shell: Shell, verbose: int, quiet: int, log_json: bool, parent_pipe: int | None, **options: Any) -> None:
    """Run a scheduler, or look at those that run.

    Several may run at once, on one machine or many: they share the work, and no fire happens twice.

    \b
    Examples:
      rota scheduler
      rota -d mysql://rota:secret@db/rota scheduler --tick-seconds 0.5 -v
      rota scheduler list
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    settings = shell.settings(**options)
    logs.configure(logs.level_of(logging.INFO, verbose, quiet), as_json=log_json)
    watch_parent(parent_pipe, settings.grace_seconds)
    shell.await_database()
    with shell.database():  # a sentence and an exit code, where there is no usable database
        pass
    from rota.scheduler_service.app import serve  # noqa: PLC0415 - scheduler list needs none of it

    raise SystemExit(serve(settings))


@scheduler.command("list")
@limit_option(100)
@json_option
@database_option
@pass_shell
def list_(shell: Shell, limit: int, as_json: bool) -> None:
    """Show the schedulers that have not stopped, those that ticked last first.

    One that is silent for longer than its liveness limit was killed, or cannot reach the database.

    \b
    Examples:
      rota scheduler list
      rota scheduler list --json
    """
    with shell.database(to_write=False) as database:
        found = schedulers.listed(database, limit)
        now = database.clock.now()
    if as_json:
        show_json(found)
        return
    columns = ("name", "state", "last tick", "started", "version", "host", "pid", "remark")
    show_table(columns, [_line(one, now) for one in found], empty="no scheduler runs; start one with rota scheduler")


def _line(found: Document, now: datetime) -> tuple[Any, ...]:
    ticked, started = (relative(moment_of(found[name]), now) for name in ("last_tick", "gmt_started"))
    remark = "silent" if found["silent"] else ""
    return found["name"], found["state"], ticked, started, found["version"], found["host"], found["pid"], remark
