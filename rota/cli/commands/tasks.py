"""``rota task``: add, show, change and run tasks."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from rota.cli.groups import GuessingGroup
from rota.cli.options import JSON_OBJECT, limit_option, task_choice_options
from rota.cli.shell import Shell, actor, database_option, json_option, naming_options, pass_shell, why_option
from rota.cli.show.output import cell, note, show_json
from rota.cli.show.runs import report_runs
from rota.cli.show.steering import show_next
from rota.cli.show.tasks import (
    asked_sentence,
    note_remark,
    saved_sentence,
    show_fires,
    show_task,
    show_tasks,
)
from rota.cli.show.whys import show_why
from rota.cli.task_options import cleared_options, definition_options, given_fields, type_option
from rota.shared.control import schedulers, steering, tasks, whys
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task_filter import TaskFilter


@click.group(cls=GuessingGroup)
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
@why_option
@json_option
@database_option
@pass_shell
def add(shell: Shell, name: str, off: bool, why: str | None, as_json: bool, **options: Any) -> None:
    """Add a task, and show its next five fires.

    Times without an offset are in the task's zone. Without any of --cron, --every, --fixed-delay, --at, --any-of and
    --all-of it runs only when asked: rota task run.

    \b
    Examples:
      rota task add nightly --type CLEANUP_TEMP --cron "0 3 * * *" --timezone Europe/Berlin
      rota task add ping --type HTTP_REQUEST --param '{"url": "https://example.org"}' --cron "*/10 * * * * *" --seconds
      rota task add poll --type REPORT --every 15m
      rota task add queue --type REPORT --fixed-delay 10m
      rota task add first --type REPORT --all-of '[{"cron": "0 9 * * mon"}, {"cron": "0 9 1-7 * *"}]'
      rota task add import --type REPORT --param @param.json --retries 3 --timeout 600
    """
    fields = {"name": name, "status": TaskStatus.OFF if off else TaskStatus.ON, **given_fields(options)}
    with shell.database() as database, naming_options(untyped=True):
        _show_saved(database, tasks.add(database, actor(), fields, why), as_json, "added")


@task.command("set")
@click.argument("name")
@click.option("--name", "rename", help="Its new name.")
@type_option(required=False)
@definition_options
@cleared_options
@click.option("--on/--off", "on", default=None, help="Let it fire, or not.")
@why_option
@json_option
@database_option
@pass_shell
def set_(
    shell: Shell, name: str, *, rename: str | None, on: bool | None, why: str | None, as_json: bool, **options: Any
) -> None:
    """Change a task: only what is given. Shows its next five fires.

    \b
    Examples:
      rota task set nightly --cron "30 3 * * *"
      rota task set nightly --no-cron --timeout 600
      rota task set nightly --param @param.json --off
    """
    changes = given_fields(options)
    if rename is not None:
        changes["name"] = rename
    if on is not None:
        changes["status"] = TaskStatus.ON if on else TaskStatus.OFF
    if not changes:
        raise click.UsageError("say what to change; rota task set --help lists the options")
    with shell.database() as database, naming_options(untyped=True):
        _show_saved(database, tasks.edit(database, actor(), name, changes, why), as_json, "changed")


def _show_saved(database: Database, saved: tasks.Outcome, as_json: bool, done: str) -> None:
    for remark in saved.remarks:
        note(remark)
    note_remark(saved.document)
    if as_json:
        show_json(saved.document)
        return
    click.echo(saved_sentence(saved.document, done))
    show_fires(saved.document, database.clock.now())


@task.command("list")
@click.option("--status", type=click.Choice([status.value for status in TaskStatus]), help="Only those on, or off.")
@click.option("--like", metavar="TEXT", help="Only those with this in their name.")
@task_choice_options
@limit_option(100)
@json_option
@database_option
@pass_shell
def list_(shell: Shell, limit: int, as_json: bool, **wanted: Any) -> None:
    """Show tasks by name, with last run and next fire.

    With --json, a task whose param is larger than 4 KiB has no key "param", but "param_bytes", its size. rota task show
    has the param.

    \b
    Examples:
      rota task list --status on
      rota task list --like report --json
      rota task list --owner ann --tag finance --tag nightly
    """
    with shell.database(to_write=False) as database:
        found = tasks.listed(database, limit + 1, TaskFilter(**wanted))
        now = database.clock.now()
    if as_json:
        show_json(found[:limit])
        return
    show_tasks(found[:limit], now)
    if len(found) > limit:
        note(f"there are more than {limit}; raise --limit, or say --like")


@task.command()
@click.argument("name")
@json_option
@database_option
@pass_shell
def show(shell: Shell, name: str, as_json: bool) -> None:
    """Show all of a task, its next fires and its last runs.

    It shows also what did not run, and why.

    \b
    Examples:
      rota task show nightly
      rota task show nightly --json
    """
    with shell.database(to_write=False) as database:
        found = tasks.show(database, name)
        now = database.clock.now()
    note_remark(found)
    if as_json:
        show_json(found)
    else:
        show_task(found, now)


@task.command()
@click.argument("name")
@click.option(
    "--at", metavar="TIME", help="The fire of this time, in the task's zone.  [default: the newest that was due]"
)
@json_option
@database_option
@pass_shell
def why(shell: Shell, name: str, at: str | None, as_json: bool) -> None:
    """Tell what became of a fire.

    It ran, and how late; it waits, and for what; it was skipped, and why; or there was none. All of it is read from
    rows.

    \b
    Examples:
      rota task why nightly
      rota task why nightly --at 2026-11-19T03:00 --json
    """
    with shell.database(to_write=False) as database:
        found = whys.why(database, name, at)
        now = database.clock.now()
    for remark in found.remarks:
        note(remark)
    if as_json:
        show_json(found.document)
    else:
        show_why(found.document, now)


@task.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@why_option
@json_option
@database_option
@pass_shell
def on(shell: Shell, names: Sequence[str], why: str | None, as_json: bool) -> None:
    """Let tasks fire again, from their next time on.

    \b
    Example:
      rota task on nightly hourly
    """
    _switch(shell, names, TaskStatus.ON, why, as_json)


@task.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@why_option
@json_option
@database_option
@pass_shell
def off(shell: Shell, names: Sequence[str], why: str | None, as_json: bool) -> None:
    """Hold back tasks' cron fires. What runs goes on; rota task run still works.

    \b
    Example:
      rota task off nightly hourly --why "the source is down"
    """
    _switch(shell, names, TaskStatus.OFF, why, as_json)


def _switch(shell: Shell, names: Sequence[str], status: TaskStatus, why: str | None, as_json: bool) -> None:
    with shell.database() as database:
        switched = tasks.switch(database, actor(), names, status, why)
    if as_json:
        show_json(switched)
        return
    for one in switched:
        click.echo(f"{cell(one['name'])} {f'is {status}' if one['changed'] else f'was {status} already'}")


@task.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@why_option
@json_option
@database_option
@pass_shell
def remove(shell: Shell, name: str, yes: bool, why: str | None, as_json: bool) -> None:
    """Delete a task. It fires no more and its name is free; its history stays.

    \b
    Example:
      rota task remove nightly --yes
    """
    with shell.database() as database:
        tasks.get(database, name)
        if not yes and not sys.stdin.isatty():
            raise NotPossible(f"nobody is here to be asked whether to remove {name!r}; say --yes")
        if not yes and not click.confirm(f"Remove {cell(name)}? It fires no more", err=True):
            raise NotPossible(f"{name!r} was not removed")
        removed = tasks.remove(database, actor(), name, why)
    if as_json:
        show_json(removed)
    else:
        click.echo(f"{cell(name)} is removed; its history stays (rota instance list)")


@task.command("next")
@click.argument("name")
@click.option("--skip", is_flag=True, help="Skip the next fire that has not begun.")
@click.option("--at", metavar="TIME", help="Let that fire run at this time instead; in the task's zone.")
@click.option("--fire", metavar="TIME", help="Only if the fire planned for this time is the next.")
@why_option
@json_option
@database_option
@pass_shell
def next_(
    shell: Shell, name: str, *, skip: bool, at: str | None, fire: str | None, why: str | None, as_json: bool
) -> None:
    """Show when a task fires next; skip or move that fire.

    With --at the fire keeps its own time, as the run's time, and runs at the other. Fires of the plan up to then are
    skipped; after it the plan goes on.

    \b
    Examples:
      rota task next nightly
      rota task next nightly --skip --why "the source is down"
      rota task next nightly --skip --fire 2026-11-19T03:00
      rota task next nightly --at 2026-11-19T05:30
    """
    if skip and at is not None:
        raise click.UsageError("say --skip or --at, not both")
    if fire is not None and not skip and at is None:
        raise click.UsageError("--fire goes with --skip or --at")
    with shell.database(to_write=skip or at is not None) as database, naming_options(untyped=True):
        done = None
        if at is not None:
            done = steering.set_at(database, actor(), name, at, fire=fire, why=why)
        elif skip:
            done = steering.skip(database, actor(), name, fire=fire, why=why)
        for remark in done.remarks if done else ():
            note(remark)
        shown = done.document if done else steering.next_fires(database, name)
        now, paused = database.clock.now(), schedulers.paused(database)["paused"]
    show_next(shown, now, paused=paused, as_json=as_json)


@task.command()
@click.argument("name")
@click.option("--at", metavar="TIME", help="For this time, as 2026-11-19T02:00; in the task's zone.  [default: now]")
@click.option("--param", type=JSON_OBJECT, help="Instead of the task's own param.")
@click.option("--wait", is_flag=True, help="Wait until it has ended; exit code 0 if it succeeded, else 1.")
@why_option
@json_option
@database_option
@pass_shell
def run(shell: Shell, name: str, *, at: str | None, param: Any, wait: bool, why: str | None, as_json: bool) -> None:
    """Run a task once, now or as the run of a given time.

    It runs also while the task is off. A run for a time to come waits for that time.

    \b
    Examples:
      rota task run nightly
      rota task run nightly --at 2026-11-19T02:00 --wait
      rota task run nightly --param '{"region": "us"}' --wait --json
    """
    with shell.database() as database:
        asked = tasks.run(database, actor(), name, at=at, param=param, why=why)
        for remark in asked.remarks:
            note(remark)
        made = asked.document
        if not as_json:
            click.echo(asked_sentence(made, database.clock.now()))
        report_runs(database, [made], wait=wait, as_json=as_json)
