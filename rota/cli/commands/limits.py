"""``rota limit``: limits that tasks share."""

from typing import Any

import click

from rota.cli.groups import GuessingGroup
from rota.cli.options import limit_option
from rota.cli.shell import Shell, actor, database_option, json_option, naming_options, pass_shell, why_option
from rota.cli.show.output import cell, note, show_fields, show_json
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, relative, shown_utc
from rota.shared.control import limits
from rota.shared.control.documents import LIMIT_FIELDS, Document
from rota.shared.domain.limits import in_words

COLUMNS = ("name", "max running", "running", "starts per minute", "started", "tasks")

_max_running = click.option(
    "--max-running", type=int, help="At most so many instances of all its tasks run at once; 0: none begins."
)
_starts_per_minute = click.option(
    "--starts-per-minute", type=int, help="At most so many of them start within 60 s; 0: none does."
)


@click.group(cls=GuessingGroup)
def limit() -> None:
    """Add, change and show limits that tasks share.

    \b
    Examples:
      rota limit add warehouse --max-running 4
      rota task set nightly --limit warehouse
      rota limit show warehouse
    """


@limit.command()
@click.argument("name")
@_max_running
@_starts_per_minute
@why_option
@json_option
@database_option
@pass_shell
def add(shell: Shell, name: str, *, why: str | None, as_json: bool, **given: int | None) -> None:
    """Add a limit. Tasks share it that name it: rota task set NAME --limit.

    \b
    Examples:
      rota limit add warehouse --max-running 4
      rota limit add mail --starts-per-minute 60 --why "the provider refuses more"
    """
    with shell.database() as database, naming_options(untyped=True):
        _show_saved(limits.add(database, actor(), {"name": name, **given}, why), as_json, "added")


@limit.command("set")
@click.argument("name")
@_max_running
@click.option("--no-max-running", is_flag=True, help="Let any number run at once.")
@_starts_per_minute
@click.option("--no-starts-per-minute", is_flag=True, help="Let any number start in a minute.")
@why_option
@json_option
@database_option
@pass_shell
def set_(shell: Shell, name: str, *, why: str | None, as_json: bool, **given: Any) -> None:
    """Change a limit: only what is given. What runs goes on.

    With a lower --max-running none begins until fewer run.

    \b
    Examples:
      rota limit set warehouse --max-running 2
      rota limit set warehouse --starts-per-minute 30 --no-max-running
    """
    changes = {field: given[field] for field in ("max_running", "starts_per_minute") if given[field] is not None}
    for field in ("max_running", "starts_per_minute"):
        if given[f"no_{field}"]:
            if field in changes:
                flag = f"--no-{field.replace('_', '-')}"
                raise click.UsageError(f"{flag} clears what another option sets; give one of them")
            changes[field] = None
    if not changes:
        raise click.UsageError("say what to change; rota limit set --help lists the options")
    with shell.database() as database, naming_options(untyped=True):
        _show_saved(limits.edit(database, actor(), name, changes, why), as_json, "changed")


@limit.command()
@click.argument("name")
@why_option
@json_option
@database_option
@pass_shell
def remove(shell: Shell, name: str, why: str | None, as_json: bool) -> None:
    """Delete a limit that no task names.

    \b
    Example:
      rota limit remove warehouse
    """
    with shell.database() as database:
        removed = limits.remove(database, actor(), name, why)
    if as_json:
        show_json(removed)
    else:
        click.echo(f"{cell(name)} is removed")


@limit.command("list")
@limit_option(100)
@json_option
@database_option
@pass_shell
def list_(shell: Shell, limit: int, as_json: bool) -> None:
    """Show limits by name: what each allows, and what of it is taken.

    \b
    Examples:
      rota limit list
      rota limit list --json
    """
    with shell.database(to_write=False) as database:
        found = limits.listed(database, limit + 1)
    if as_json:
        show_json(found[:limit])
        return
    lines = [[one[name.replace(" ", "_")] for name in COLUMNS] for one in found[:limit]]
    show_table(COLUMNS, lines, empty="no limit; add one with rota limit add", least=("tasks", "started"))
    if len(found) > limit:
        note(f"there are more than {limit}; raise --limit")


@limit.command()
@click.argument("name")
@json_option
@database_option
@pass_shell
def show(shell: Shell, name: str, as_json: bool) -> None:
    """Show a limit: which instances hold it, and which wait for it.

    Those that wait are looked for among 10,000 that are pending, and 10,000 that are assigned.

    \b
    Examples:
      rota limit show warehouse
      rota limit show warehouse --json
    """
    with shell.database(to_write=False) as database:
        found = limits.show(database, name)
        now = database.clock.now()
    if as_json:
        show_json(found)
        return
    fields = {field: found[field] for field in LIMIT_FIELDS}
    for field in ("gmt_create", "gmt_modified"):
        moment = moment_of(fields[field])
        fields[field] = f"{shown_utc(moment)}  {relative(moment, now)}"
    show_fields(fields.items())
    holders = [
        (one["slot"], one["id"], one["task_name"], relative(moment_of(one["gmt_started"]), now), one["worker_name"])
        for one in found["holders"]
    ]
    waiting = [
        (one["id"], one["task_name"], one["status"], relative(moment_of(one["due_at"]), now), one["worker_name"])
        for one in found["waiting"]
    ]
    if holders:
        click.echo()
        show_table(("slot", "holds it", "task", "began", "worker"), holders, empty="")
    if waiting:
        click.echo()
        show_table(("waits", "task", "status", "due", "worker"), waiting, empty="")
    if found["waiting_count"] > len(waiting):
        note(f"{found['waiting_count']} wait in all")


def _show_saved(saved: Document, as_json: bool, done: str) -> None:
    if as_json:
        show_json(saved)
        return
    words = in_words(saved["max_running"], saved["starts_per_minute"])
    click.echo(f"{cell(saved['name'])} is {done}: {words}")
