"""Commands for the machines: migrate, scheduler, doctor, health."""

import logging
from dataclasses import asdict
from typing import Any

import click

from rota.cli import logs
from rota.cli.options import DATABASE_SETTINGS, SCHEDULER_SETTINGS, settings_options, verbosity_options
from rota.cli.output import show_json, show_table
from rota.cli.parent import parent_option, watch_parent
from rota.cli.shell import DATABASE_PROBLEM, Shell, database_option, json_option, pass_shell
from shared.domain.errors import ConfigurationError, NotPossible


@click.command()
@click.option("--sql", is_flag=True, help="Print the statements instead of running them.")
@json_option
@database_option
@pass_shell
def migrate(shell: Shell, *, sql: bool, as_json: bool) -> None:
    """Create or update Rota's tables.

    It may be run again at any time, also while schedulers and workers run.

    \b
    Examples:
      rota migrate
      rota -d mysql://rota:secret@db/rota migrate
      rota migrate --sql > schema.sql
    """
    if not sql:
        report = migrate_database(shell)
        if as_json:
            show_json(asdict(report))
        else:
            click.echo(str(report))
        return
    import migrations  # noqa: PLC0415 - Alembic takes long to import

    click.echo(migrations.sql(shell.settings().database_url.get_secret_value()), nl=False)


def migrate_database(shell: Shell) -> Any:
    """Bring the database up to date, the tables and the node types that Rota brings; returns what was done, in words.

    Raises DatabaseProblem.
    """
    import migrations  # noqa: PLC0415
    from shared.store import node_types  # noqa: PLC0415
    from worker_service.builtin import DECLARATIONS  # noqa: PLC0415

    report = migrations.upgrade(shell.settings().database_url.get_secret_value())
    with shell.database() as database:
        database.write(lambda connection: node_types.register(connection, DECLARATIONS, by="migrate"))
    return report


@click.command()
@settings_options(SCHEDULER_SETTINGS)
@verbosity_options
@click.option("--log-json", is_flag=True, help="Log one JSON object a line.")
@parent_option
@database_option
@pass_shell
def scheduler(shell: Shell, verbose: int, quiet: int, log_json: bool, parent_pipe: int | None, **options: Any) -> None:
    """Run a scheduler.

    Several may run at once, on one machine or many: they share the work, and no fire happens twice.

    \b
    Examples:
      rota scheduler
      rota -d mysql://rota:secret@db/rota scheduler --tick-seconds 0.5 -v
    """
    settings = shell.settings(**options)
    logs.configure(logs.level_of(logging.INFO, verbose, quiet), as_json=log_json)
    watch_parent(parent_pipe, settings.grace_seconds)
    with shell.database():  # a sentence and an exit code, where there is no usable database
        pass
    from scheduler_service.app import serve  # noqa: PLC0415

    raise SystemExit(serve(settings))


@click.command()
@settings_options(DATABASE_SETTINGS)
@json_option
@database_option
@pass_shell
def doctor(shell: Shell, as_json: bool, **options: Any) -> None:
    """Check the database, its tables and its clock.

    Exit code 0 if Rota can work with it, else 3.

    \b
    Examples:
      rota doctor
      rota doctor --json
    """
    from migrations import head  # noqa: PLC0415
    from shared.store.checks import run_checks  # noqa: PLC0415

    with shell.any_database(shell.settings(**options)) as database:
        checks = run_checks(database, head())
    fit = all(check.ok is not False for check in checks)
    if as_json:
        show_json({"ok": fit, "checks": [asdict(check) for check in checks]})
    else:
        marks = {True: "ok", False: "wrong", None: "note"}
        rows = [(marks[check.ok], check.name, check.found, check.wanted, check.help) for check in checks]
        show_table(("", "check", "found", "wanted", "what to do"), rows, empty="")
    if not fit:
        raise SystemExit(DATABASE_PROBLEM)


@click.command()
@click.option("--health-file", help="The file that the process touches as it beats.  [env: ROTA_HEALTH_FILE]")
@json_option
@pass_shell
def health(shell: Shell, health_file: str | None, as_json: bool) -> None:
    """Tell whether this container's process has beaten lately.

    Exit code 0 if the process of ROTA_HEALTH_FILE has beaten within ROTA_LIVENESS_SECONDS, else 1.

    \b
    Examples:
      rota health
      rota health --health-file /tmp/worker.beat --json
    """
    from shared.health import silent_seconds  # noqa: PLC0415

    settings = shell.settings(health_file=health_file)
    if settings.health_file is None:
        raise ConfigurationError("ROTA_HEALTH_FILE is not set, here and for the process that is to be asked about")
    silent = silent_seconds(settings.health_file)
    alive = silent is not None and silent <= settings.liveness_seconds
    if as_json:
        show_json({"alive": alive, "silent_seconds": silent, "liveness_seconds": settings.liveness_seconds})
    elif alive:
        click.echo(f"alive: it has beaten {silent:.1f} s ago")
    if not alive:
        when = "has never beaten" if silent is None else f"has been silent for {silent:.1f} s"
        raise NotPossible(
            f"not alive: the process of {settings.health_file} {when} (limit {settings.liveness_seconds} s)"
        )
