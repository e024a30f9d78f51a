"""Commands for operation: migrate, doctor."""

from dataclasses import asdict
from typing import Any

import click

from rota import migrations
from rota.cli.options import DATABASE_SETTINGS, settings_options
from rota.cli.shell import DATABASE_PROBLEM, REFUSED, Shell, database_option, json_option, pass_shell
from rota.cli.show.output import note, show_json
from rota.cli.show.table import show_table
from rota.shared.control import invariants
from rota.shared.control.calendars import check_known
from rota.shared.control.schedulers import check_kinds, check_scheduling
from rota.shared.control.workers import check_pools, check_versions, check_weights
from rota.shared.database.checks import WRITABLE, run_checks


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

    click.echo(migrations.sql(shell.settings().database_url.get_secret_value()), nl=False)


def migrate_database(shell: Shell) -> Any:
    """Bring the tables and the built-in node types up to date. Returns a report of what was done.

    Raises DatabaseProblem.
    """
    from rota.worker_service import builtin  # noqa: PLC0415 - doctor needs none of it

    report = migrations.upgrade(shell.settings().database_url.get_secret_value())
    if not report.by_newer:
        with shell.database(to_write=False) as database:  # most often there is nothing to write
            builtin.register(database, by="migrate")
    return report


OF_READABLE = (check_scheduling, check_kinds, check_versions, check_pools, check_weights, check_known)
"""What ``doctor`` checks where Rota's tables can be read."""


@click.command()
@click.option("--data", is_flag=True, help="Check also whether the rows agree. It reads all instances and nodes.")
@click.option("--read-only", is_flag=True, help="Do not check that the database takes writes from this user.")
@settings_options(DATABASE_SETTINGS)
@json_option
@database_option
@pass_shell
def doctor(shell: Shell, *, data: bool, read_only: bool, as_json: bool, **options: Any) -> None:
    """Check the database, its tables and its clock, whether a scheduler is at work, and the workers' versions.

    Exit code 0 if Rota can work with it, else 3. With --read-only, 0 if this user can read what Rota writes there: for
    monitoring, by a user who may do no more.

    With --data, exit code 1 if rows are found that break a rule of Rota's. It may run at any time, beside schedulers
    and workers. For large tables set --call-timeout-seconds, the limit for one check.

    \b
    Examples:
      rota doctor --json
      rota doctor --data
      rota doctor --read-only
    """
    with shell.any_database(shell.settings(**options)) as database:
        checks = run_checks(database, migrations.head(), to_write=not read_only)
        wrong = {check.name for check in checks if check.ok is False}
        if readable := wrong <= {WRITABLE}:
            checks += [check(database) for check in OF_READABLE]
        findings = invariants.breaches(database) if data and readable else []
    fit, agree = not wrong, not any(finding["ids"] for finding in findings)
    if wrong == {WRITABLE}:
        note("if this user is to read only, ask with --read-only")
    if as_json:
        document = {"ok": fit and agree, "checks": [asdict(check) for check in checks]}
        show_json({**document, "data": findings} if data else document)
    else:
        marks = {True: "ok", False: "wrong", None: "note"}
        rows = [(marks[check.ok], check.name, check.found, check.wanted, check.help) for check in checks]
        show_table(("", "check", "found", "wanted", "what to do"), rows, empty="")
        show_breaches(findings)
    if not fit or not agree:
        raise SystemExit(REFUSED if fit else DATABASE_PROBLEM)


def show_breaches(findings: list[dict[str, Any]]) -> None:
    """Print each invariant, and the rows that break it."""
    if findings:
        rows = [
            ("wrong" if f["ids"] else "ok", f["name"], f["rule"], f"{f['table']} {f['ids']}" if f["ids"] else "")
            for f in findings
        ]
        click.echo()
        show_table(("", "invariant", "rule", "broken by"), rows, empty="")
