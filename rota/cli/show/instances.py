"""Shows instances: many as a table, or one with its nodes and the reason for its status."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from rota.cli.show.chains import show_chain
from rota.cli.show.output import block, cell, coloured, shortened, show_fields
from rota.cli.show.table import show_table
from rota.cli.show.times import between, moment_of, relative, shown_local, shown_utc
from rota.shared.control.documents import Document
from rota.shared.domain.spreading import ITS_SHARDS
from rota.shared.domain.states import TERMINAL, InstanceStatus
from rota.shared.domain.times import zone_of

COLUMNS = ("id", "task", "status", "schedule time", "late", "took", "worker", "result")
LEAST = ("worker", "took", "late", "result", "schedule time")
"""The columns that a narrow terminal leaves out first."""

TIMES = (
    "schedule_datetime", "due_at", "gmt_assigned", "gmt_started", "gmt_completed", "gmt_cancel_requested",
    "run_again_at", "gmt_create", "gmt_modified",
)  # fmt: skip


FAILURE = ("reason", "error", "exit_code", "stdout", "stderr", "traceback")
"""What is shown of an attempt that failed."""


def late(instance: Document) -> str | None:
    """How late the first handler was entered after the due time, in words. None: it was not entered."""
    return between(moment_of(instance["due_at"]), moment_of(instance["gmt_started"]))


def took(document: Document) -> str | None:
    """How long an instance or a node ran, in words. None: it has not ended."""
    return between(moment_of(document["gmt_started"]), moment_of(document["gmt_completed"]))


def outcome(instance: Document, limit: int = 60) -> str:
    """The outcome on one line: the reason if there is one, else the result."""
    if instance["reason"]:
        return shortened(instance["reason"], limit)
    result = instance.get("result_begins") or instance["execution_result"]
    return "" if result is None else shortened(result, limit)


def worker_of(instance: Document) -> str | None:
    """The name of the worker that an instance was given to; of one whose row was removed, ``#7 (removed)``.

    An instance that is spread runs on ``its shards``.
    """
    if instance.get("schedule_worker_node_id") == ITS_SHARDS:
        return "its shards"
    if instance["worker_name"] is None and instance["schedule_worker_node_id"] is not None:
        return f"#{instance['schedule_worker_node_id']} (removed)"
    return None if instance["worker_name"] is None else str(instance["worker_name"])


def show_instances(instances: Sequence[Document]) -> None:
    """Print instances as a table."""
    show_table(COLUMNS, [_line(instance) for instance in instances], empty="no instance", least=LEAST)


def _line(instance: Document) -> tuple[Any, ...]:
    return (
        str(instance["id"]),
        instance["task_name"],
        instance["status"],
        shown_local(moment_of(instance["schedule_datetime"]), zone_of(instance["timezone"])),
        late(instance),
        took(instance),
        worker_of(instance),
        outcome(instance),
    )


def explained(instance: Document, now: datetime) -> str:
    """The reason for an instance's status, in a sentence."""

    def lies(name: str) -> str | None:
        return relative(moment_of(instance[name]), now)

    reason, worker, status = instance["reason"], worker_of(instance), InstanceStatus(instance["status"])
    due = moment_of(instance["due_at"] or instance["schedule_datetime"])
    when = f"it {'is' if due and due > now else 'was'} due {relative(due, now)}"
    if status in TERMINAL:
        ended = f"it ended {lies('gmt_completed')}" if instance["gmt_completed"] else "it has ended"
        return f"{ended}: {reason}" if reason else ended
    if instance["gmt_cancel_requested"] is not None:
        asked = "its shards are canceled, as was asked" if worker == "its shards" else "its worker was asked to stop it"
        return f"{asked} {lies('gmt_cancel_requested')}: {reason or 'no reason'}"
    if status is InstanceStatus.RUNNING and worker == "its shards":
        return f"it runs as its shards, started {lies('gmt_started')}"
    if status is InstanceStatus.RUNNING:
        return f"it runs on {worker}, attempt {instance['attempt']}, started {lies('gmt_started')}"
    if status is InstanceStatus.ASSIGNED:
        return f"{when}; it was given to {worker}{f': {reason}' if reason else ''}"
    return f"{when}; it waits: {reason or 'the scheduler has not given it to a worker yet'}"


def following(instance: Document, now: datetime) -> str | None:
    """What the instance's handler has asked for, in a sentence; None: nothing."""
    if (moment := moment_of(instance["run_again_at"])) is None:
        return None
    run = instance["run_again_id"]
    which = "which was deleted" if run is None else f"which is instance {run}"
    return f"its handler asked for one more run {relative(moment, now)}, {which}"


def _show_failed(attempt: Document, now: datetime) -> None:
    """Print how an attempt failed. SQL may have written anything there."""
    at = attempt.get("gmt_completed")
    ended = relative(moment_of(at), now) if isinstance(at, str) else None
    begun = attempt.get("gmt_started")
    ran = between(moment_of(begun), moment_of(at)) if isinstance(begun, str) and isinstance(at, str) else None
    worker, number = attempt.get("worker_name") or f"#{cell(attempt.get('worker_id'))}", attempt.get("attempt")
    when = f"{f' {ended}' if ended else ''}{f', after {ran}' if ran else ''}"
    click.echo(f"\nattempt {cell(number)} failed on worker {cell(worker)}{when}")
    click.echo(block({name: value for name, value in attempt.items() if name in FAILURE}))


def _show_shards(shards: Document, instance_id: int) -> None:
    """Print how many shards are in which state, and the first of them."""
    states = [f"{shards[status]} {coloured(status)}" for status in InstanceStatus if status in shards]
    click.echo(f"\n{shards['total']} shard{'' if shards['total'] == 1 else 's'}: {', '.join(states)}")
    rows = [
        (str(one["shard_index"]), str(one["id"]), one["status"], one["worker"], shortened(one["reason"] or "", 60))
        for one in shards["first"]
    ]
    show_table(("shard", "id", "status", "worker", "reason"), rows, empty="no shard")
    if len(rows) < shards["total"]:
        click.echo(f"rota instance list --parent {instance_id} shows all")


def _show_around(instance_id: int, chain: Sequence[Document], shards: Document | None) -> None:
    """Print the shards of an instance, and its chain, if it has any."""
    if shards:
        _show_shards(shards, instance_id)
    if chain:
        click.echo("\nchain")
        show_chain(chain, instance_id)


def show_instance(instance: Document, now: datetime) -> None:
    """Print all of an instance, with its nodes."""
    zone = zone_of(instance["timezone"])
    fields = dict(instance)
    result, nodes, failed = (fields.pop(name) for name in ("execution_result", "nodes", "failed_attempts"))
    chain, shards = fields.pop("chain"), fields.pop("shards")
    has_failed = instance["status"] in (InstanceStatus.FAILED, InstanceStatus.PENDING)
    for name in TIMES:
        if (moment := moment_of(fields[name])) is not None:
            fields[name] = f"{shown_local(moment, zone)}  {shown_utc(moment)}"
    fields["late"] = late(instance)
    fields["took"] = took(instance)
    fields["worker_name"] = worker_of(instance)
    show_fields((name, value) for name, value in fields.items() if value != "")
    click.echo(f"\n{cell(explained(instance, now))}")
    if (words := following(instance, now)) is not None:
        click.echo(words)
    for node in nodes:
        ran = took(node)
        words = f"{node['sequence']}. {cell(node['type'])}  {coloured(node['status'])}"
        click.echo(f"\n{words}{f'  {ran}' if ran else ''}")
        if node["execution_result"] is not None:
            click.echo(block(node["execution_result"]))
    for attempt in failed:  # the nodes show the end of the last one, unless the run goes on
        if isinstance(attempt, dict) and (attempt.get("attempt") != instance["attempt"] or not has_failed):
            _show_failed(attempt, now)
    if result is not None and not any(node["execution_result"] == result for node in nodes):
        click.echo(f"\nresult\n{block(result)}")
    _show_around(instance["id"], chain, shards)
