"""``rota worker`` runs a worker; its subcommands show those that run, and drain them."""

import logging
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from rota.cli import logs
from rota.cli.groups import GuessingGroup
from rota.cli.options import (
    WORKER_SETTINGS,
    discover_option,
    discovered,
    limit_option,
    settings_options,
    verbosity_options,
)
from rota.cli.shell import Shell, actor, database_option, json_option, pass_shell, why_option
from rota.cli.show.output import cell, show_fields, show_json
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, relative, shown_utc
from rota.shared.control import workers
from rota.shared.control.documents import Document
from rota.supervise.parent import parent_option, watch_parent

COLUMNS = ("name", "state", "load", "capacity", "pools", "labels", "last heartbeat", "started", "host", "pid", "remark")
"""What is shown of a worker, without the pools where nobody has one."""

LEAST = ("pid", "host", "started", "capacity", "pools", "labels", "load", "last heartbeat", "remark")
"""The columns that a narrow terminal leaves out first."""

TIMES = ("last_heartbeat", "gmt_started", "gmt_dead", "gmt_blocked")


@click.group(cls=GuessingGroup, invoke_without_command=True)
@discover_option
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
      rota worker --discover mypackage.jobs
      rota worker --app jobs:app --name eu-1 --capacity 20 --label region=eu --label gpu=a100
      rota worker --allow-shell --no-allow-http
      rota worker list
      rota worker show eu-1
      rota worker drain eu-1
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    # As the first process of a container it would never see a signal that comes before the guardian waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    settings = shell.settings(**discovered(options))
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
    from rota.worker_service.loading import load_app  # noqa: PLC0415

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
    columns = [name for name in COLUMNS if name != "pools" or any(one["pools"] for one in found)]
    lines = [tuple(_facts(one, now)[name] for name in columns) for one in found]
    show_table(columns, lines, empty="no worker is live; start one with rota worker", least=LEAST)


@worker.command()
@click.argument("name")
@json_option
@database_option
@pass_shell
def show(shell: Shell, name: str, as_json: bool) -> None:
    """Show all of a worker, and the task types that it carries.

    Each task type has its nodes in order, in the version that this worker carries.

    \b
    Examples:
      rota worker show eu-1
      rota worker show eu-1 --json
    """
    with shell.database(to_write=False) as database:
        found = workers.show(database, name)
        now = database.clock.now()
    if as_json:
        show_json(found)
        return
    fields = {field: found[field] for field in found if field not in ("task_types", "node_types", "type_versions")}
    fields["pools"] = _pools(found)
    for field in TIMES:
        if (moment := moment_of(fields[field])) is not None:
            fields[field] = f"{shown_utc(moment)}  {relative(moment, now)}"
    show_fields(fields.items())
    click.echo()
    lines = [(one["type"], one["version"], ", ".join(one["nodes"])) for one in found["task_types"]]
    show_table(("task type", "version", "nodes"), lines, empty="it carries no task type")


@worker.command()
@click.argument("name")
@why_option
@json_option
@database_option
@pass_shell
def drain(shell: Shell, name: str, why: str | None, as_json: bool) -> None:
    """Let a worker finish what it runs and take no more. What it was assigned goes to other workers.

    Its process runs on, and rota worker resume lets it take more. To end it, send SIGTERM: then it drains by itself. A
    worker that starts again takes work.

    \b
    Examples:
      rota worker drain eu-1 --why "kernel update"
      rota worker drain eu-1 --json
    """
    with shell.database() as database:
        drained = workers.drain(database, actor(), name, why)
    if as_json:
        show_json(drained)
    elif drained["changed"]:
        click.echo(f"{cell(name)} takes no more; what it runs goes on (load {drained['load']})")
    elif drained["stopping"]:
        click.echo(f"{cell(name)} is stopping already: it takes no more, and ends (load {drained['load']})")
    else:
        click.echo(f"{cell(name)} was draining already (load {drained['load']})")


@worker.command()
@click.argument("name")
@why_option
@json_option
@database_option
@pass_shell
def resume(shell: Shell, name: str, why: str | None, as_json: bool) -> None:
    """Let a worker that was drained take work again.

    \b
    Example:
      rota worker resume eu-1
    """
    with shell.database() as database:
        resumed = workers.resume(database, actor(), name, why)
    if as_json:
        show_json(resumed)
    else:
        click.echo(f"{cell(name)} {'takes work again' if resumed['changed'] else 'was at work already'}")


def _pools(found: Document) -> str:
    """How much of each pool is used: ``images 1/2``."""
    return ", ".join(f"{name} {pool['taken']}/{pool['size']}" for name, pool in sorted(found["pools"].items()))


def _facts(found: Document, now: datetime) -> dict[str, Any]:
    """What is shown of a worker, by the columns."""
    labels = ", ".join(f"{key}={value}" for key, value in sorted((found["labels"] or {}).items()))
    beat, started = (relative(moment_of(found[name]), now) for name in ("last_heartbeat", "gmt_started"))
    remark = f"blocked by {found['blocked_by']}" if found["gmt_blocked"] else found["reason"]
    facts = (found["name"], found["state"], found["current_load"], found["capacity"], _pools(found), labels)
    return dict(zip(COLUMNS, (*facts, beat, started, found["host"], found["pid"], remark), strict=True))
