"""Shows the next fires of a task, with what a person has made of them."""

from datetime import datetime

import click

from rota.cli.show.output import cell, note, show_json
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, relative, shown_local, shown_utc
from rota.shared.control.documents import Document
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.times import zone_of


def show_next(task: Document, now: datetime, *, paused: bool, as_json: bool) -> None:
    """Print what was done, if anything was, and the next fires in the task's zone and in UTC."""
    if task["remark"]:
        note(task["remark"])
    if paused:
        note("all scheduling is paused: rota scheduler resume ends it")
    if task["status"] == TaskStatus.OFF:
        note("the task is off: its fires are held back")
    if as_json:
        show_json(task)
        return
    zone = zone_of(task["timezone"])
    if "changed" in task:
        click.echo(_done(task))
    lines = []
    for one in task["next_fires"]:
        due, planned = (moment_of(one[name]["utc"]) for name in ("due", "fire"))
        reason = one["reason"]
        if due != planned:
            reason = f"{one['reason']}, planned for {shown_local(planned, zone)}"
        lines.append((shown_local(due, zone), shown_utc(due), one["status"], reason, relative(due, now)))
    columns = (f"next fires ({zone.key})", "UTC", "status", "remark", "")
    if lines:
        show_table(columns, lines, empty="", least=("UTC", "", "status"))


def _done(task: Document) -> str:
    zone = zone_of(task["timezone"])
    fire = shown_local(moment_of(task["fire"]["utc"]), zone)
    if not task["changed"]:
        return cell(f"the fire of {fire} of {task['name']} was skipped already")
    if task["at"] is None:
        return cell(f"the fire of {fire} of {task['name']} is skipped")
    return cell(f"the fire of {fire} of {task['name']} runs at {shown_local(moment_of(task['at']['utc']), zone)}")
