"""Instances as they are shown: a table, one with its nodes, and why each is where it is."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy import Row

from rota.cli.output import block, cell, coloured, shortened, show_fields, show_table
from rota.cli.times import between, relative, shown_local, shown_utc, span, zone_of
from shared.domain.states import TERMINAL, InstanceStatus

FIELDS = (
    "id", "schedule_task_id", "task_name", "timezone", "status", "reason", "schedule_datetime", "due_at", "run_number",
    "fire_key", "origin", "priority", "param", "schedule_worker_node_id", "worker_name", "attempt", "failures",
    "worker_losses", "lost_by", "gmt_assigned", "gmt_started", "gmt_completed", "gmt_cancel_requested",
    "execution_result", "creator", "modifier", "gmt_create", "gmt_modified",
)  # fmt: skip
NODE_FIELDS = ("sequence", "type", "status", "param", "gmt_started", "gmt_completed", "execution_result")
COLUMNS = ("id", "task", "status", "schedule time", "late", "took", "worker", "result")


def instance_document(row: Row[Any]) -> dict[str, Any]:
    """An instance as JSON: its columns by their names."""
    return {name: getattr(row, name) for name in FIELDS}


def node_document(row: Row[Any]) -> dict[str, Any]:
    """A node as JSON."""
    return {name: getattr(row, name) for name in NODE_FIELDS}


def lateness_ms(row: Row[Any]) -> float | None:
    """How long after it was due its handler was entered, in milliseconds."""
    if row.gmt_started is None or row.due_at is None:
        return None
    return float((row.gmt_started - row.due_at).total_seconds() * 1000)


def outcome(row: Row[Any], limit: int = 60) -> str:
    """What came of it, on one line: the reason if there is one, else the result."""
    if row.reason:
        return shortened(row.reason, limit)
    return "" if row.execution_result is None else shortened(row.execution_result, limit)


def show_instances(rows: Sequence[Row[Any]]) -> None:
    """Instances as a table."""
    show_table(COLUMNS, [_line(row) for row in rows], empty="no instance")


def _line(row: Row[Any]) -> tuple[Any, ...]:
    late = lateness_ms(row)
    return (
        str(row.id),
        row.task_name,
        row.status,
        shown_local(row.schedule_datetime, zone_of(row.timezone)),
        None if late is None else span(late / 1000),
        between(row.gmt_started, row.gmt_completed),
        row.worker_name,
        outcome(row),
    )


def explained(row: Row[Any], now: datetime) -> str:
    """Why an instance is where it is, in a sentence."""
    due = row.due_at or row.schedule_datetime
    when = f"it is due {relative(due, now)}" if due > now else f"it was due {relative(due, now)}"
    status = InstanceStatus(row.status)
    if status in TERMINAL:
        ended = f"it ended {relative(row.gmt_completed, now)}" if row.gmt_completed else "it has ended"
        return f"{ended}: {row.reason}" if row.reason else ended
    if row.gmt_cancel_requested is not None:
        return f"its worker was asked to stop it {relative(row.gmt_cancel_requested, now)}: {row.reason or 'no reason'}"
    if status is InstanceStatus.RUNNING:
        return f"it runs on {row.worker_name}, attempt {row.attempt}, started {relative(row.gmt_started, now)}"
    if status is InstanceStatus.ASSIGNED:
        return f"{when}; it was given to {row.worker_name}{f': {row.reason}' if row.reason else ''}"
    return f"{when}; it waits: {row.reason or 'the scheduler has not given it to a worker yet'}"


def show_instance(row: Row[Any], nodes: Sequence[Row[Any]], now: datetime) -> None:
    """All of an instance."""
    zone = zone_of(row.timezone)
    fields = instance_document(row)
    result = fields.pop("execution_result")
    for name, value in fields.items():
        if isinstance(value, datetime):
            fields[name] = f"{shown_local(value, zone)}  {shown_utc(value)}"
    fields["late"] = None if (late := lateness_ms(row)) is None else span(late / 1000)
    fields["took"] = between(row.gmt_started, row.gmt_completed)
    show_fields((name, value) for name, value in fields.items() if value != "")
    click.echo(f"\n{cell(explained(row, now))}")
    for node in nodes:
        took = between(node.gmt_started, node.gmt_completed)
        click.echo(f"\n{node.sequence}. {cell(node.type)}  {coloured(node.status)}{f'  {took}' if took else ''}")
        if node.execution_result is not None:
            click.echo(block(node.execution_result))
    if result is not None and not any(node.execution_result == result for node in nodes):
        click.echo(f"\nresult\n{block(result)}")
