"""``rota worker`` runs a worker; ``rota worker list`` and ``rota worker show`` show those that run."""

import logging
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from rota.cli import logs
from rota.cli.options import WORKER_SETTINGS, limit_option, settings_options, verbosity_options
from rota.cli.shell import Shell, database_option, json_option, pass_shell
from rota.cli.show.output import show_fields, show_json, show_table
from rota.cli.show.times import moment_of, relative
from rota.shared.control import workers
from rota.shared.control.documents import Document
from rota.supervise.parent import parent_option, watch_parent


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

    The command is two processes: the worker, and its guardian, which beats for the worker and ends with it.

    \b
    Examples:
      rota worker --app jobs:app
      rota worker --app jobs:app --name eu-1 --capacity 20 --label region=eu --label gpu=a100
      rota worker --allow-shell --no-allow-http
      rota worker list
      rota worker show eu-1
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    # As the first process of a container it would never see a signal that comes before the guardian waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    settings = shell.settings(**options)
    logs.configure(logs.level_of(logging.INFO, verbose, quiet), as_json=log_json)
    from rota.worker_service import guardian  # noqa: PLC0415 - worker list needs none of it

    guarded = guardian.part(settings)  # from here on in the worker: the guardian imports no more
    from rota.worker_service.executors.fork_server import ForkServer  # noqa: PLC0415

    fork_server = ForkServer.forked()  # before any thread, and before the app
    watch_parent(parent_pipe, settings.grace_seconds)
    app = find_app(settings.app)
    fork_server.prepare(app)
    shell.await_database()
    with shell.database():  # a sentence and an exit code, where there is no usable database
        pass
    from rota.worker_service.app import serve  # noqa: PLC0415

    fork_server.wait()
    raise SystemExit(serve(settings, app, guarded, fork_server))


def find_app(path: str | None) -> Any:
    """The app that ``module:app`` names, looked for in this folder first.

    Raises ConfigurationError.
    """
    from rota.worker_service.authoring import load_app  # noqa: PLC0415

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return load_app(path)


@worker.command("list")
@click.option("--all", "all_states", is_flag=True, help="Those that are dead, too.")
@limit_option(100)
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
    with shell.database(to_write=False) as database:
        found = workers.listed(database, limit, all_states=all_states)
        now = database.clock.now()
    if as_json:
        show_json(found)
        return
    columns = ("name", "state", "load", "capacity", "labels", "last heartbeat", "started", "host", "pid")
    show_table(columns, [_line(one, now) for one in found], empty="no worker is live; start one with rota worker")


@worker.command()
@click.argument("name")
@json_option
@database_option
@pass_shell
def show(shell: Shell, name: str, as_json: bool) -> None:
    """Show all of a worker: its fields, and the nodes of each task type in the version that it carries.

    \b
    Examples:
      rota worker show eu-1
      rota worker show eu-1 --json
    """
    with shell.database(to_write=False) as database:
        found = workers.show(database, name)
    if as_json:
        show_json(found)
        return
    show_fields((field, found[field]) for field in found if field not in ("task_types", "node_types", "type_versions"))
    click.echo()
    lines = [(one["type"], one["version"], ", ".join(one["nodes"])) for one in found["task_types"]]
    show_table(("task type", "version", "nodes"), lines, empty="it carries no task type")


def _line(found: Document, now: datetime) -> tuple[Any, ...]:
    labels = ", ".join(f"{key}={value}" for key, value in sorted((found["labels"] or {}).items()))
    beat, started = (relative(moment_of(found[name]), now) for name in ("last_heartbeat", "gmt_started"))
    state = f"{found['state']}, blocked by {found['blocked_by']}" if found["gmt_blocked"] else found["state"]
    facts = (found["name"], state, found["current_load"], found["capacity"])
    return *facts, labels, beat, started, found["host"], found["pid"]
