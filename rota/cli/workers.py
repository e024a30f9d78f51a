"""``rota worker`` runs a worker; ``rota worker list`` shows those that run."""

import logging
import sys
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Row

from rota.cli import logs
from rota.cli.options import WORKER_SETTINGS, settings_options, verbosity_options
from rota.cli.output import show_json, show_table
from rota.cli.parent import parent_option, watch_parent
from rota.cli.shell import Shell, database_option, json_option, pass_shell
from rota.cli.times import relative
from shared.store import workers

FIELDS = (
    "id", "name", "state", "host", "pid", "version", "capacity", "prefetch", "current_load", "labels", "node_types",
    "last_heartbeat", "liveness_seconds", "gmt_started", "gmt_dead", "reason",
)  # fmt: skip


@click.group(invoke_without_command=True)
@settings_options(WORKER_SETTINGS)
@verbosity_options
@click.option("--log-json", is_flag=True, help="Log one JSON object a line.")
@parent_option
@database_option
@pass_shell
def worker(shell: Shell, verbose: int, quiet: int, log_json: bool, parent_pipe: int | None, **options: Any) -> None:
    """Run a worker, or look at those that run.

    The app is found as Python finds modules, this folder first. Without one, the worker runs Rota's own task types.
    SIGTERM lets what runs finish within the grace time and hands the rest back; a second signal stops at once.

    \b
    Examples:
      rota worker --app jobs:app
      rota worker --app jobs:app --name eu-1 --capacity 20 --label region=eu --label gpu=a100
      rota worker --allow-shell
      rota worker list
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    settings = shell.settings(**options)
    logs.configure(logs.level_of(logging.INFO, verbose, quiet), as_json=log_json)
    watch_parent(parent_pipe, settings.grace_seconds)
    app = find_app(settings.app)
    with shell.database():  # a sentence and an exit code, where there is no usable database
        pass
    from worker_service.app import serve  # noqa: PLC0415 - worker list needs none of it

    raise SystemExit(serve(settings, app))


def find_app(path: str | None) -> Any:
    """The app that ``module:app`` names, looked for in this folder first.

    Raises ConfigurationError.
    """
    from worker_service.authoring import load_app  # noqa: PLC0415

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return load_app(path)


@worker.command("list")
@click.option("--all", "all_states", is_flag=True, help="Those that are dead, too.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@json_option
@database_option
@pass_shell
def list_(shell: Shell, all_states: bool, limit: int, as_json: bool) -> None:
    """Show workers, the newest first.

    \b
    Examples:
      rota worker list
      rota worker list --all --json
    """
    with shell.database() as database:
        rows = database.read(lambda connection: workers.listed(connection, limit, all_states=all_states))
        now = database.clock.now()
    if as_json:
        show_json([{name: getattr(row, name) for name in FIELDS} for row in rows])
        return
    columns = ("name", "state", "load", "capacity", "labels", "last heartbeat", "started", "host", "pid")
    show_table(columns, [_line(row, now) for row in rows], empty="no worker is live; start one with rota worker")


def _line(row: Row[Any], now: Any) -> tuple[Any, ...]:
    labels = ", ".join(f"{key}={value}" for key, value in sorted((row.labels or {}).items()))
    beat, started = relative(row.last_heartbeat, now), relative(row.gmt_started, now)
    return row.name, row.state, row.current_load, row.capacity, labels, beat, started, row.host, row.pid
