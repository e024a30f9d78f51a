"""Shows tasks: the fields, the trigger in words, the next fires, the last runs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from rota.cli.show.instances import show_instances
from rota.cli.show.output import cell, note, show_fields
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, relative, shown_local, shown_utc
from rota.shared.control.documents import TASK_FIELDS, Document
from rota.shared.domain.states import TaskStatus, TriggerKind
from rota.shared.domain.times import zone_of

COLUMNS = (
    "name", "status", "type", "group", "owner", "tags", "trigger", "timezone", "next fire", "", "last run",
    "ran", "remark",
)  # fmt: skip
LEAST = ("timezone", "tags", "owner", "group", "type", "next fire", "trigger", "ran", "last run", "remark", "")
"""The columns that a narrow terminal leaves out first."""

DESCRIBING = ("group", "owner", "tags")
"""The columns that are shown only if one of the tasks says something there."""

TIMES = ("starts_at", "ends_at", "next_fire_at", "history_complete_from", "gmt_create", "gmt_modified")


def saved_sentence(task: Document, done: str) -> str:
    """A sentence about the task that was saved. ``done``: the verb, such as "added"."""
    off = "" if task["status"] == TaskStatus.ON else "; it is off, so these are held back"
    words = task["trigger_description"]
    when = f"fires {words}, {task['timezone']}" if words else "runs only when asked: rota task run"
    if task["trigger_kind"] == TriggerKind.AFTER:
        when = f"runs {words}"
    return cell(f"{task['name']} is {done}: {when}{off}")


def asked_sentence(instance: Document, now: datetime) -> str:
    """A sentence about the run that somebody asked for: whether it runs now, or for which time it waits."""
    nominal = moment_of(instance["schedule_datetime"])
    shown = shown_local(nominal, zone_of(instance["timezone"]))
    words = f"instance {instance['id']} of {cell(instance['task_name'])} runs"
    if nominal is not None and nominal > now:
        return f"{words} at {shown}, {relative(nominal, now)}"
    return f"{words} as soon as a worker has it, as the run of {shown}"


def show_fires(task: Document, now: datetime) -> None:
    """Print a task's next fires, in its zone and in UTC."""
    zone = zone_of(task["timezone"])
    moments = [moment_of(fire["utc"]) for fire in task["next_fires"]]
    if moments:
        lines = [(shown_local(moment, zone), shown_utc(moment), relative(moment, now)) for moment in moments]
        show_table((f"next fires ({zone.key})", "UTC", ""), lines, empty="", least=("UTC", ""))


def note_remark(task: Document) -> None:
    """Print on stderr why a task has no next fires."""
    if task["remark"]:
        note(task["remark"])


def show_tasks(tasks: Sequence[Document], now: datetime) -> None:
    """Print tasks, a line for each."""
    lines = [dict(zip(COLUMNS, list_line(task, now), strict=True)) for task in tasks]
    columns = [name for name in COLUMNS if name not in DESCRIBING or any(line[name] for line in lines)]
    shown = [[line[name] for name in columns] for line in lines]
    show_table(columns, shown, empty="no task; add one with rota task add", least=LEAST)


def list_line(task: Document, now: datetime) -> tuple[Any, ...]:
    """A task as a line of a table."""
    fire = moment_of(task["next_fire"]["utc"]) if task["next_fire"] else None
    when = shown_local(fire, zone_of(task["timezone"]))
    last = task["last_run"] or {"status": None, "gmt_started": None}
    return (
        task["name"],
        task["status"],
        task["type"],
        task["task_group"],
        task["owner"],
        ", ".join(task["tags"]) if task["tags"] else None,
        task["trigger"],
        task["timezone"],
        when,
        relative(fire, now),
        last["status"],
        relative(moment_of(last["gmt_started"]), now),
        task["remark"],
    )


def declaration_sentence(declaration: Document, now: datetime) -> str:
    """Which declaration of code is in force, and who carries it and others."""
    carried = ", ".join(declaration["carried_by"]) or "no live worker"
    since = relative(moment_of(declaration["declared_at"]), now)
    words = f"declared by code: version {declaration['version']} is in force since {since}; {carried} carries it"
    others = (f"{', '.join(names)} carries {version}" for version, names in sorted(declaration["others"].items()))
    return "; ".join([words, *others])


def show_not_run(task: Document) -> None:
    """Print the fires that were not run, with why, and the missed ones that are still to run."""
    zone = zone_of(task["timezone"])

    def moments(one: Document, *names: str) -> list[str | None]:
        return [shown_local(moment_of(one[name]), zone) for name in names]

    lines = [(one["reason"], one["fires"], *moments(one, "first_fire", "last_fire")) for one in task["skipped"]]
    lines += [("to run", one["fires_left"], *moments(one, "next_fire", "last_fire")) for one in task["catching_up"]]
    if lines:
        click.echo()
        show_table(("not run", "fires", f"from ({zone.key})", "to"), lines, empty="")


def show_task(task: Document, now: datetime) -> None:
    """Print all of a task."""
    zone = zone_of(task["timezone"])
    shown = {name: task[name] for name in TASK_FIELDS}
    for name in TIMES:
        if (moment := moment_of(shown[name])) is not None:
            shown[name] = f"{shown_local(moment, zone)}  {shown_utc(moment)}  {relative(moment, now)}"
    shown["cron_seconds"] = "yes" if task["cron_seconds"] else None
    show_fields(shown.items())
    if task["trigger_description"]:
        where = "" if task["trigger_kind"] == TriggerKind.AFTER else f" ({zone.key})"
        click.echo(f"\nfires {cell(task['trigger_description'])}{where}")
    if task["followed_by"]:
        click.echo(f"followed by {cell(', '.join(task['followed_by']))}")
    if task["status"] == TaskStatus.OFF:
        click.echo("it is off: its fires are held back")
    if task["declaration"]:
        click.echo(f"\n{cell(declaration_sentence(task['declaration'], now))}")
    show_fires(task, now)
    show_not_run(task)
    click.echo("\nlast runs" if task["instances"] else "\nit has not run yet")
    if task["instances"]:
        show_instances(task["instances"])
