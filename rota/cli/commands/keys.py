"""``rota key``: one-off work under business keys."""

import sys
from typing import Any
from zoneinfo import ZoneInfo

import click

from rota.cli.groups import GuessingGroup
from rota.cli.options import JSON_OBJECT, limit_option
from rota.cli.shell import Shell, actor, database_option, json_option, naming_options, pass_shell, why_option
from rota.cli.show.output import cell, note, show_json
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, relative, shown_utc
from rota.shared.control import business_keys
from rota.shared.control.business_keys import Wanted
from rota.shared.control.documents import Document
from rota.shared.domain.business_keys import KeyFilter
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.times import read_time

COLUMNS = ("type", "code", "key", "status", "at", "", "next", "instance")

_code = click.option("--code", metavar="CODE", default="", help="What kind of key it is.  [default: none]")


@click.group(cls=GuessingGroup)
def key() -> None:
    """Ask for one-off work under a key, look for it, cancel it.

    Under a key of a task type there is never more than one run that waits or runs.

    \b
    Examples:
      rota key once END_PROMOTION product-42 --at 2026-12-24T20:00
      rota key list END_PROMOTION --begins product-
      rota key cancel END_PROMOTION product-42
    """


@key.command()
@click.argument("task_type", metavar="TYPE")
@click.argument("number", metavar="KEY")
@_code
@click.option("--at", metavar="TIME", help="When; without an offset in the zone of the task.  [default: now]")
@click.option("--param", type=JSON_OBJECT, help="Its param, instead of the task's.")
@why_option
@json_option
@database_option
@pass_shell
def once(
    shell: Shell, task_type: str, number: str, *, code: str, at: str | None, param: Any, why: str | None, as_json: bool
) -> None:
    """Run a task type once under a key, at a time or now.

    What waits under the key is moved to this time and param. What runs already goes on, and this call is kept as the
    next run, which begins after the end.

    \b
    Examples:
      rota key once END_PROMOTION product-42 --at 2026-12-24T20:00 --param '{"product": 42}'
      rota key once REBUILD_REPORT eu
    """
    with shell.database() as database, naming_options():
        done = business_keys.once(database, actor(), task_type, Wanted(number, at, param, code), why)
        now = database.clock.now()
    if as_json:
        show_json(done)
        return
    when = moment_of(done["at"])
    at_that = f"{shown_utc(when)}  {relative(when, now)}"
    sentences = {
        "added": f"instance {done['instance_id']} is added: {at_that}",
        "moved": f"it is moved, and runs as instance {done['instance_id']}: {at_that}",
        "kept": f"instance {done['follows_id']} has begun; this run is kept, and begins after it: {at_that}",
    }
    click.echo(cell(f"{number}: {sentences[done['done']]}"))


@key.command("list")
@click.argument("task_type", metavar="[TYPE]", required=False)
@click.option("--code", metavar="CODE", help="Only those of this code.")
@click.option("--begins", metavar="TEXT", help="Only keys that begin so, in their order; give a TYPE, too.")
@click.option("--contains", metavar="TEXT", help="Only keys with this part, in their order; give a TYPE, too.")
@click.option("--since", metavar="TIME", help="Only those for this time or later, in UTC.")
@click.option("--until", metavar="TIME", help="Only those for a time before this one, in UTC.")
@limit_option(100)
@json_option
@database_option
@pass_shell
def list_(
    shell: Shell,
    task_type: str | None,
    *,
    since: str | None,
    until: str | None,
    limit: int,
    as_json: bool,
    **given: str | None,
) -> None:
    """Show the keys under which something waits or runs, by their times.

    By --begins and --contains they come in the order of the keys, and are of one code, by default none.

    \b
    Examples:
      rota key list
      rota key list END_PROMOTION --begins product-
      rota key list END_PROMOTION --since 2026-12-24 --until 2026-12-25
    """
    times = [None if text is None else read_time(text, ZoneInfo("UTC"))[0] for text in (since, until)]
    chosen = KeyFilter(task_type, **given, from_at=times[0], to_at=times[1])
    with shell.database(to_write=False) as database:
        found = business_keys.listed(database, chosen, limit + 1)
        now = database.clock.now()
    if as_json:
        show_json(found[:limit])
        return
    _show(found[:limit], now)
    if len(found) > limit:
        note(f"there are more than {limit}; raise --limit")


@key.command()
@click.argument("task_type", metavar="TYPE")
@click.argument("number", metavar="[KEY]", required=False)
@_code
@click.option("--begins", metavar="TEXT", help="Instead of a KEY: all that begin so.")
@click.option("--dry-run", is_flag=True, help="With --begins: show the first of them; change nothing.")
@click.option("--yes", is_flag=True, help="With --begins: do not ask.")
@why_option
@json_option
@database_option
@pass_shell
def cancel(
    shell: Shell,
    task_type: str,
    number: str | None,
    *,
    code: str,
    begins: str | None,
    dry_run: bool,
    yes: bool,
    why: str | None,
    as_json: bool,
) -> None:
    """Cancel what waits or runs under a key.

    The worker of what runs is asked to stop it. What is kept as the next run is dropped.

    \b
    Examples:
      rota key cancel END_PROMOTION product-42
      rota key cancel END_PROMOTION --begins product- --dry-run
    """
    if (number is None) == (begins is None):
        raise click.UsageError("give a KEY, or --begins; one of them")
    if number is not None and (dry_run or yes):
        raise click.UsageError("--dry-run and --yes go with --begins")
    if number is None:
        _cancel_all(shell, KeyFilter(task_type, code, begins), dry_run=dry_run, yes=yes, why=why, as_json=as_json)
        return
    with shell.database() as database:
        done = business_keys.cancel(database, actor(), task_type, (code, number), why)
    if as_json:
        show_json(done)
    else:
        said = "its worker is asked to stop it" if done["asked"] else "is canceled"
        click.echo(cell(f"{number}: instance {done['instance_id']}: {said}"))


def _cancel_all(shell: Shell, chosen: KeyFilter, *, dry_run: bool, yes: bool, why: str | None, as_json: bool) -> None:
    with shell.database(to_write=not dry_run) as database, naming_options():
        business_keys.checked_beginning(chosen)
        first = business_keys.listed(database, chosen, business_keys.SHOWN)
        done = {"canceled": 0, "asked": 0}
        if not as_json:
            _show(first, database.clock.now())
        if first and not dry_run:
            if not yes:
                _ask(chosen)
            tell = (lambda number: None) if as_json else (lambda number: note(f"{number:,} canceled"))
            done = business_keys.cancel_all(database, actor(), chosen, why, progress=tell)
    if as_json:
        show_json({**done, "first": first, "dry_run": dry_run})
    elif not dry_run and first:
        click.echo(f"{done['canceled']:,} canceled, {done['asked']:,} workers asked to stop a run")


def _ask(chosen: KeyFilter) -> None:
    what = f"all keys of {chosen.type} that begin with {chosen.begins!r}"
    if not sys.stdin.isatty():
        raise NotPossible(f"nobody is here to be asked whether to cancel {what}; say --yes")
    if not click.confirm(f"Cancel {what}? These are the first of them.", err=True):
        raise NotPossible("nothing was canceled")


def _show(keys: list[Document], now: Any) -> None:
    lines = []
    for one in keys:
        at, following = moment_of(one["at"]), one["next_at"]
        then = None if following is None else relative(moment_of(following), now)
        told = (one["type"], one["code"], one["key"], one["status"], shown_utc(at), relative(at, now), then)
        lines.append((*told, one["instance_id"]))
    show_table(COLUMNS, lines, empty="nothing waits or runs under a key", least=("next", "", "code"))
