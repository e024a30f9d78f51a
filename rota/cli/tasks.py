"""``rota task``: add, show, change and run tasks."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy import Connection, Row

from rota.cli.options import JSON_VALUE
from rota.cli.output import note, show_json, show_table
from rota.cli.runs import report_run, wait_until_ended
from rota.cli.shell import Shell, database_option, json_option, pass_shell, user
from rota.cli.task_options import cleared_options, definition_options, given_fields, type_option
from rota.cli.task_view import list_line, saved_sentence, show_fires, show_task, task_document
from rota.cli.times import read_time, shown_local, zone_of
from shared.domain.errors import NotPossible
from shared.domain.states import TaskStatus
from shared.domain.task import TaskDefinition
from shared.store import instances, node_types, tasks

INSTANCES_SHOWN = 5


@click.group()
def task() -> None:
    """Add, show, change and run tasks.

    \b
    Examples:
      rota task add nightly --type CLEANUP_TEMP --cron "0 3 * * *" --timezone Europe/Berlin
      rota task show nightly
      rota task run nightly --at 2026-11-19T03:00 --wait
    """


@task.command()
@click.argument("name")
@type_option(required=True)
@definition_options
@click.option("--off", is_flag=True, help="Save it without letting it fire yet.")
@json_option
@database_option
@pass_shell
def add(shell: Shell, name: str, off: bool, as_json: bool, **options: Any) -> None:
    """Add a task, and show its next five fires.

    Times without an offset are in the task's zone. Without --cron it runs only when asked: rota task run.

    \b
    Examples:
      rota task add nightly --type CLEANUP_TEMP --cron "0 3 * * *" --timezone Europe/Berlin
      rota task add ping --type HTTP_REQUEST --param '{"url": "https://example.org"}' --cron "*/10 * * * * *" --seconds
      rota task add import --type REPORT --param @param.json --retries 3 --timeout 600
    """
    status = TaskStatus.OFF if off else TaskStatus.ON
    definition = TaskDefinition.of(name=name, status=status, **given_fields(options, None))
    with shell.database() as database:
        tasks.insert_into(database, lambda connection: [tasks.add(connection, definition, user())])
        _saved(database, name, as_json, "added")


@task.command("set")
@click.argument("name")
@click.option("--name", "rename", help="Its new name.")
@type_option(required=False)
@definition_options
@cleared_options
@click.option("--on/--off", "on", default=None, help="Let it fire, or not.")
@json_option
@database_option
@pass_shell
def set_(shell: Shell, name: str, rename: str | None, on: bool | None, as_json: bool, **options: Any) -> None:
    """Change a task: only what is given. Shows its next five fires.

    \b
    Examples:
      rota task set nightly --cron "30 3 * * *"
      rota task set nightly --no-cron --timeout 600
      rota task set nightly --param @param.json --off
    """
    with shell.database() as database:
        before = database.read(lambda connection: tasks.find(connection, name))
        changes = given_fields(options, before.timezone)
        if rename is not None:
            changes["name"] = rename
        if on is not None:
            changes["status"] = TaskStatus.ON if on else TaskStatus.OFF
        if not changes:
            raise click.UsageError("say what to change; rota task set --help lists the options")
        definition = database.write(lambda connection: tasks.edit(connection, name, changes, user()))
        _saved(database, definition.name, as_json, "changed")


def _saved(database: Any, name: str, as_json: bool, done: str) -> None:
    row = database.read(lambda connection: tasks.find(connection, name))
    now = database.clock.now()
    if as_json:
        show_json(task_document(row, now))
        return
    click.echo(saved_sentence(row, done))
    show_fires(row, now)


@task.command("list")
@click.option("--status", type=click.Choice([status.value for status in TaskStatus]), help="Only those on, or off.")
@click.option("--like", metavar="TEXT", help="Only those with this in their name.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@json_option
@database_option
@pass_shell
def list_(shell: Shell, status: str | None, like: str | None, limit: int, as_json: bool) -> None:
    """Show tasks by name, with their next fire in their own zone.

    \b
    Examples:
      rota task list --status on
      rota task list --like report --json
    """
    with shell.database() as database:
        rows = database.read(lambda connection: tasks.listed(connection, limit + 1, status=status, like=like))
        now = database.clock.now()
    if as_json:
        show_json([task_document(row, now, fires=False) for row in rows[:limit]])
        return
    columns = ("name", "status", "type", "trigger", "timezone", "next fire", "", "remark")
    show_table(columns, [list_line(row, now) for row in rows[:limit]], empty="no task; add one with rota task add")
    if len(rows) > limit:
        note(f"there are more than {limit}; raise --limit, or say --like")


@task.command()
@click.argument("name")
@json_option
@database_option
@pass_shell
def show(shell: Shell, name: str, as_json: bool) -> None:
    """Show all of a task: its fields, next five fires, last runs, and what did not run.

    \b
    Examples:
      rota task show nightly
      rota task show nightly --json
    """

    def read(connection: Connection) -> tuple[Row[Any], list[Row[Any]]]:
        row = tasks.find(connection, name)
        return row, instances.listed(connection, INSTANCES_SHOWN, task_id=row.id)

    with shell.database() as database:
        row, last = database.read(read)
        now = database.clock.now()
    show_task(row, last, now, as_json=as_json)


@task.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@database_option
@pass_shell
def on(shell: Shell, names: Sequence[str], as_json: bool) -> None:
    """Let tasks fire again, from their next time on.

    \b
    Example:
      rota task on nightly hourly
    """
    _switch(shell, names, TaskStatus.ON, as_json)


@task.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@database_option
@pass_shell
def off(shell: Shell, names: Sequence[str], as_json: bool) -> None:
    """Hold back tasks' cron fires, at once. What runs goes on; rota task run still works.

    \b
    Example:
      rota task off nightly hourly
    """
    _switch(shell, names, TaskStatus.OFF, as_json)


def _switch(shell: Shell, names: Sequence[str], status: TaskStatus, as_json: bool) -> None:
    def write(connection: Connection) -> dict[str, bool]:
        return {name: tasks.switch(connection, name, status, user()) for name in names}

    with shell.database() as database:
        changed = database.write(write)
    if as_json:
        show_json([{"name": name, "status": status, "changed": was} for name, was in changed.items()])
        return
    for name, was in changed.items():
        click.echo(f"{name} is {status}" if was else f"{name} was {status} already")


@task.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@database_option
@pass_shell
def remove(shell: Shell, name: str, yes: bool, as_json: bool) -> None:
    """Delete a task. It fires no more and its name is free; its history stays.

    \b
    Example:
      rota task remove nightly --yes
    """
    with shell.database() as database:
        database.read(lambda connection: tasks.find(connection, name))
        if not yes and not sys.stdin.isatty():
            raise NotPossible(f"nobody is here to be asked whether to remove {name!r}; say --yes")
        if not yes and not click.confirm(f"Remove {name}? It fires no more", err=True):
            raise NotPossible(f"{name!r} was not removed")
        task_id = database.write(lambda connection: tasks.remove(connection, name, user()))
    if as_json:
        show_json({"id": task_id, "name": name, "removed": True})
    else:
        click.echo(f"{name} is removed; its history stays (rota instance list)")


@task.command()
@click.argument("name")
@click.option("--at", metavar="TIME", help="For this time, as 2026-11-19T02:00; in the task's zone.  [default: now]")
@click.option("--param", type=JSON_VALUE, help="Instead of the task's own param.")
@click.option("--wait", is_flag=True, help="Wait until it has ended; exit code 0 if it succeeded, else 1.")
@json_option
@database_option
@pass_shell
def run(shell: Shell, name: str, *, at: str | None, param: Any, wait: bool, as_json: bool) -> None:
    """Run a task once, now, also while it is off; with --at as the run of that time.

    \b
    Examples:
      rota task run nightly
      rota task run nightly --at 2026-11-19T02:00 --wait
      rota task run nightly --param '{"region": "us"}' --wait --json
    """

    def ask(connection: Connection) -> list[int]:
        row = tasks.find(connection, name)
        if param is not None:
            node_types.catalog(connection).check(row.type, param)
        moment, _ = _nominal(at, row, now)
        return [instances.ask(connection, row, moment, user(), param=param)]

    with shell.database() as database:
        now = database.clock.now()
        row = database.read(lambda connection: tasks.find(connection, name))
        moment, remark = _nominal(at, row, now)
        if remark:
            note(remark)
        [instance_id] = instances.insert_into(database, ask)
        if not as_json:
            nominal = shown_local(moment, zone_of(row.timezone))
            click.echo(f"instance {instance_id} of {name} runs as soon as a worker has it, as the run of {nominal}")
        if wait:
            wait_until_ended(database, [instance_id])
        report_run(database, [instance_id], wait=wait, as_json=as_json)


def _nominal(at: str | None, row: Row[Any], now: datetime) -> tuple[datetime, str | None]:
    return (now, None) if at is None else read_time(at, zone_of(row.timezone))
