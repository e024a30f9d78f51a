"""A task as it is shown: its fields, its cron in words, its next fires, its last runs."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from itertools import islice
from typing import Any

import click
from sqlalchemy import Row

from rota.cli.instance_view import instance_document, show_instances
from rota.cli.output import cell, note, show_fields, show_json, show_table
from rota.cli.times import relative, shown_local, shown_utc, written_local, written_utc, zone_of
from shared.domain.errors import RotaError
from shared.domain.planning import PlanInputs
from shared.domain.states import TaskStatus, TriggerKind
from shared.domain.triggers.cron import Cron

FIRES_SHOWN = 5
FIELDS = (
    "id", "name", "type", "status", "trigger_kind", "cron", "cron_seconds", "timezone", "param", "starts_at", "ends_at",
    "next_fire_at", "misfire_policy", "misfire_grace_seconds", "overlap_policy", "max_instances", "retries",
    "retry_delay_seconds", "retry_backoff", "on_worker_lost", "timeout_seconds", "priority", "required_labels",
    "misfires", "fires_held_back", "plan_error", "creator", "modifier", "gmt_create", "gmt_modified",
)  # fmt: skip


def task_document(row: Row[Any], now: datetime, *, fires: bool = True) -> dict[str, Any]:
    """A task as JSON: its columns by their names, its cron in words, its next fires."""
    document = {name: getattr(row, name) for name in FIELDS}
    document |= {"cron_seconds": bool(row.cron_seconds), "description": reading(row)}
    if fires:
        zone = zone_of(row.timezone)
        document["next_fires"] = [
            {"utc": written_utc(fire), "local": written_local(fire, zone)} for fire in next_fires(row, now)
        ]
    return document


def reading(row: Row[Any]) -> str | None:
    """Its cron in words; None if it has none, or one that SQL made invalid."""
    if row.trigger_kind != TriggerKind.CRON or not row.cron:
        return None
    try:
        return Cron.parse(row.cron, seconds=bool(row.cron_seconds)).describe()
    except RotaError:
        return None


def plan_of(row: Row[Any]) -> PlanInputs:
    """What its plan is made from."""
    return PlanInputs(**{field.name: getattr(row, field.name) for field in fields(PlanInputs)})


def next_fires(row: Row[Any], now: datetime) -> list[datetime]:
    """Its next fires, as its fields say; it is said why there are none."""
    try:
        fires = list(islice(plan_of(row).fires_after(now), FIRES_SHOWN))
    except RotaError as error:
        note(f"it cannot fire: {error}")
        return []
    if not fires and row.trigger_kind == TriggerKind.CRON:
        note("it does not fire any more")
    return fires


def saved_sentence(row: Row[Any], done: str) -> str:
    """What was saved, in words."""
    off = "" if row.status == TaskStatus.ON else "; it is off, so these are held back"
    words = reading(row)
    when = f"fires {words}, {row.timezone}" if words else "runs only when asked: rota task run"
    return cell(f"{row.name} is {done}: {when}{off}")


def show_fires(row: Row[Any], now: datetime) -> None:
    """Its next fires in its zone and in UTC."""
    zone = zone_of(row.timezone)
    fires = [(shown_local(fire, zone), shown_utc(fire), relative(fire, now)) for fire in next_fires(row, now)]
    if fires:
        show_table((f"next fires ({zone.key})", "UTC", ""), fires, empty="")


def list_line(row: Row[Any], now: datetime) -> tuple[Any, ...]:
    """A task as a line of a table."""
    trigger = row.cron if row.trigger_kind == TriggerKind.CRON else "when asked"
    fire, remark = None, row.plan_error
    if row.status == TaskStatus.ON and remark is None:
        try:
            fire = plan_of(row).next_after(now)
        except RotaError as error:
            remark = str(error)
    when = shown_local(fire, zone_of(row.timezone))
    return row.name, row.status, row.type, trigger, row.timezone, when, relative(fire, now), remark


def show_task(row: Row[Any], last: Sequence[Row[Any]], now: datetime, *, as_json: bool) -> None:
    """All of a task."""
    if as_json:
        show_json(task_document(row, now) | {"instances": [instance_document(i) for i in last]})
        return
    zone = zone_of(row.timezone)
    times = {"starts_at", "ends_at", "next_fire_at", "gmt_create", "gmt_modified"}
    shown = {name: getattr(row, name) for name in FIELDS}
    for name in times:
        if (moment := shown[name]) is not None:
            shown[name] = f"{shown_local(moment, zone)}  {shown_utc(moment)}  {relative(moment, now)}"
    shown["cron_seconds"] = "yes" if row.cron_seconds else None
    show_fields(shown.items())
    if words := reading(row):
        click.echo(f"\nfires {words} ({zone.key})")
    if row.status == TaskStatus.OFF:
        click.echo("it is off: its fires are held back")
    show_fires(row, now)
    click.echo("\nlast runs" if last else "\nit has not run yet")
    if last:
        show_instances(last)
