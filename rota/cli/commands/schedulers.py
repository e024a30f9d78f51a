"""``rota scheduler`` runs a scheduler, shows those that run, and pauses and resumes all scheduling."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from rota.cli import logs
from rota.cli.commands.workers import find_app
from rota.cli.groups import GuessingGroup
from rota.cli.options import SCHEDULER_SETTINGS, limit_option, settings_options, verbosity_options
from rota.cli.shell import Shell, actor, database_option, json_option, pass_shell, why_option
from rota.cli.show.output import cell, note, show_json
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, relative
from rota.shared.control import schedulers
from rota.shared.control.documents import Document
from rota.shared.domain.errors import NotPossible
from rota.supervise.parent import parent_option, watch_parent

COLUMNS = ("name", "state", "last tick", "started", "version", "host", "pid", "remark")
LEAST = ("pid", "host", "version", "started", "last tick", "remark")
"""The columns that a narrow terminal leaves out first."""


@click.group(cls=GuessingGroup, invoke_without_command=True)
@settings_options(SCHEDULER_SETTINGS)
@verbosity_options
@click.option("--log-json", is_flag=True, help="Log one JSON object a line.")
@click.option(
    "--app",
    "listening",
    metavar="MODULE:APP",
    help="Tell the listeners (@app.on) of this app what the rows say, as its workers do.",
)
@parent_option
@database_option
@pass_shell
def scheduler(
    shell: Shell,
    verbose: int,
    quiet: int,
    *,
    log_json: bool,
    listening: str | None,
    parent_pipe: int | None,
    **options: Any,
) -> None:
    """Run a scheduler, look at those that run, or pause all of them.

    Several may run at once, on one machine or many: they share the work, and no fire happens twice.

    \b
    Examples:
      rota scheduler
      rota -d mysql://rota:secret@db/rota scheduler --tick-seconds 0.5 -v
      rota scheduler --app jobs:app
      rota scheduler list
      rota scheduler pause --reason "the database moves"
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    settings = shell.settings(**options)
    logs.configure(logs.level_of(logging.INFO, verbose, quiet), as_json=log_json)
    watch_parent(parent_pipe, settings.grace_seconds)
    listeners = find_app(listening).listeners if listening else {}
    shell.await_database()
    with shell.database() as database:  # a sentence and an exit code, where there is no usable database
        if settings.start_paused:
            schedulers.pause(database, actor(), "a scheduler started with --paused")
    from rota.scheduler_service.app import serve  # noqa: PLC0415 - scheduler list needs none of it

    code = serve(settings, listeners)
    if listening:
        from rota.worker_service.leaving import leave  # noqa: PLC0415

        leave(code)  # threads of the app may run for ever
    raise SystemExit(code)


@scheduler.command("list")
@limit_option(100)
@json_option
@database_option
@pass_shell
def list_(shell: Shell, limit: int, as_json: bool) -> None:
    """Show the schedulers that have not stopped.

    Those that ticked last come first. One that is silent for longer than its liveness limit was killed, or cannot
    reach the database.

    \b
    Examples:
      rota scheduler list
      rota scheduler list --json
    """
    with shell.database(to_write=False) as database:
        found = schedulers.listed(database, limit)
        pause = schedulers.paused(database)
        now = database.clock.now()
    if as_json:
        show_json([one | {"all_paused": pause["paused"]} for one in found])
        return
    if pause["paused"]:
        note(_paused_sentence(pause, now))
    lines = [_line(one, now, pause["ignored_by"]) for one in found]
    show_table(COLUMNS, lines, empty="no scheduler runs; start one with rota scheduler", least=LEAST)


@scheduler.command()
@click.option("--reason", "--why", "reason", metavar="TEXT", help="Why: for the audit, and for those who ask.")
@json_option
@database_option
@pass_shell
def pause(shell: Shell, reason: str | None, as_json: bool) -> None:
    """Pause all scheduling: no new fire of any task begins.

    What has begun goes on, with its retries, and so do runs by hand. On rota scheduler resume the misfire policy of
    each task decides about the fires that were missed.

    Exit code 1 if a scheduler at work is so old that it heeds no pause: fires begin until you stop it.

    \b
    Examples:
      rota scheduler pause --reason "the database moves"
      rota scheduler pause --json
    """
    with shell.database() as database:
        paused = schedulers.pause(database, actor(), reason)
        now = database.clock.now()
    others = ", ".join(paused["ignored_by"])
    if as_json:
        show_json(paused)
    elif paused["changed"] and not others:
        click.echo(
            "all scheduling is paused: no new fire begins, what has begun goes on; rota scheduler resume ends it"
        )
    elif not others:
        click.echo(_paused_sentence(paused, now))
    if others:
        told = f"{others}, which is older than pauses"
        raise NotPossible(f"all scheduling is paused, but fires begin all the same: stop {told}")


@scheduler.command()
@why_option
@json_option
@database_option
@pass_shell
def resume(shell: Shell, why: str | None, as_json: bool) -> None:
    """Let all scheduling go on after rota scheduler pause.

    The misfire policy of each task decides about the fires that were missed meanwhile.

    \b
    Examples:
      rota scheduler resume
      rota scheduler resume --json
    """
    with shell.database() as database:
        resumed = schedulers.resume(database, actor(), why)
    if as_json:
        show_json(resumed)
    elif resumed["changed"]:
        click.echo("scheduling goes on; the misfire policies decide about what was missed")
    else:
        click.echo("scheduling was not paused")


def _paused_sentence(pause: Document, now: datetime) -> str:
    since = relative(moment_of(pause["since"]), now)
    reason = f": {pause['reason']}" if pause["reason"] else ""
    return cell(f"{pause['by']} paused all scheduling {since}{reason}; rota scheduler resume ends it")


def _line(found: Document, now: datetime, ignoring: Sequence[str]) -> tuple[Any, ...]:
    ticked, started = (relative(moment_of(found[name]), now) for name in ("last_tick", "gmt_started"))
    remark = "silent" if found["silent"] else ""
    if found["name"] in ignoring:
        remark = "fires all the same: older than pauses"
    return found["name"], found["state"], ticked, started, found["version"], found["host"], found["pid"], remark
