"""Shows backfills: what one would run, how far they are."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from rota.cli.show.output import cell, note, on_terminal, show_fields
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, relative, shown_local, shown_utc
from rota.cli.show.waits import outlasting
from rota.shared.control import backfills
from rota.shared.control.documents import Document
from rota.shared.database.transactions import Database
from rota.shared.domain.states import BackfillStatus
from rota.shared.domain.times import span, zone_of

COLUMNS = ("id", "task", "status", "from", "to", "ended", "failed", "left", "by", "remark")
LEAST = ("by", "remark", "left", "to", "from", "failed")
"""The columns that a narrow terminal leaves out first."""

POLL_SECONDS = 0.5
LINE = 79
"""The line of progress on a terminal is filled up to so many characters."""

TIMES = ("from_at", "to_at", "next_fire", "gmt_create", "gmt_running", "gmt_completed")
OVER = (BackfillStatus.DONE, BackfillStatus.CANCELED)


def _fires(number: int) -> str:
    return f"{number:,} {'fire' if number == 1 else 'fires'}"


def _order(document: Document) -> str:
    order = "the newest first" if document["newest_first"] else "the oldest first"
    return f"{order}, {document['concurrency']} at a time"


def show_preview(preview: Document) -> None:
    """Print what a backfill would run: how many fires, the first and the last of them."""
    zone = zone_of(preview["timezone"])
    about = "" if preview["is_exact"] else "about "
    click.echo(cell(f"{preview['task_name']} would run {about}{_fires(preview['fires'])}, {_order(preview)}"))
    if preview["only_missing"]:
        least = "" if preview["is_exact"] else "at least "
        click.echo(f"{least}{_fires(preview['not_missing'])} would be passed over: they are not missing")
    shown = [*preview["first"], None, *preview["last"]]
    if preview["fires"] <= len(shown) - 1:
        shown.remove(None)
    times = [None if one is None else moment_of(one["utc"]) for one in shown]
    lines = [("...", "...") if one is None else (shown_local(one, zone), shown_utc(one)) for one in times]
    show_table((f"fires ({zone.key})", "UTC"), lines, empty="nothing is missing")


def started_sentence(document: Document) -> str:
    """A sentence about a backfill that was started, and how to look at it."""
    name, number = document["task_name"], document["id"]
    return cell(
        f"backfill {number} of {name}: {_fires(document['fires'])}, {_order(document)}; rota backfill show {number}"
    )


def done_sentence(document: Document) -> str:
    """A sentence about what a backfill does now."""
    said = {
        BackfillStatus.RUNNING: "goes on",
        BackfillStatus.PAUSED: "is paused; what it has written still runs",
        BackfillStatus.CANCELED: "is canceled; what runs goes on",
        BackfillStatus.DONE: "is done",
    }[BackfillStatus(document["status"])]
    return cell(f"backfill {document['id']} of {document['task_name']} {said}: {_progress(document)}")


def _progress(document: Document) -> str:
    """How far a backfill is, in words."""
    words = [f"{document['ended']:,} of {_fires(document['fires'])} ended"]
    words += [f"{document[name]:,} {name}" for name in ("failed", "canceled") if document[name]]
    if document["not_missing"]:
        words.append(f"{document['not_missing']:,} not missing")
    return ", ".join(words)


def _left(document: Document) -> str | None:
    return None if document["seconds_left"] is None else f"about {span(document['seconds_left'])}"


def show_backfills(found: Sequence[Document]) -> None:
    """Print backfills as a table."""
    show_table(COLUMNS, [_line(one) for one in found], empty="no backfill; rota backfill --help", least=LEAST)


def _line(one: Document) -> tuple[Any, ...]:
    zone = zone_of(one["timezone"])
    times = (shown_local(moment_of(one[name]), zone) for name in ("from_at", "to_at"))
    ended = f"{one['ended']:,} of {one['fires']:,}"
    failed = one["failed"] or None
    return (
        str(one["id"]),
        one["task_name"],
        one["status"],
        *times,
        ended,
        failed,
        _left(one),
        one["creator"],
        one["reason"],
    )


def show_backfill(document: Document, now: datetime) -> None:
    """Print all of a backfill."""
    zone = zone_of(document["timezone"])
    fields = dict(document)
    for name in TIMES:
        if (moment := moment_of(fields[name])) is not None:
            fields[name] = f"{shown_local(moment, zone)}  {shown_utc(moment)}  {relative(moment, now)}"
    for name in ("newest_first", "only_missing"):
        fields[name] = "yes" if document[name] else None
    del fields["seconds_left"]
    show_fields(fields.items())
    click.echo(f"\n{_progress(document)}")
    if left := _left(document):
        click.echo(f"it ends in {left}, if it goes on as it did")


def follow(database: Database, backfill_id: int) -> Document:
    """Wait until a backfill has ended and none of its fires is in flight; returns it.

    Meanwhile its progress is one line of a terminal, or a line on stderr each time it has changed. Ctrl-C leaves the
    backfill as it is.
    """
    said = None
    try:
        while True:
            seen = outlasting(lambda: backfills.show(database, backfill_id), line_end="\n" * on_terminal())
            words = f"{_progress(seen)}, {seen['status']}"
            if words != said or on_terminal():
                _say(words if seen["seconds_left"] is None else f"{words}, {_left(seen)} left")
                said = words
            if seen["status"] in OVER and not seen["in_flight"]:
                break
            database.clock.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        note(f"\nbackfill {backfill_id} goes on; rota backfill show {backfill_id} tells how far it is")
        raise
    if on_terminal():
        click.echo(err=True)
    return seen


def _say(words: str) -> None:
    if on_terminal():
        click.echo(f"\r{words.ljust(LINE)}", nl=False, err=True)
    else:
        note(words)
