"""``rota backfill``: run a task's past fires, a few at a time."""

from collections.abc import Callable
from typing import Any

import click

from rota.cli.groups import GuessingGroup
from rota.cli.numbers import ROW_ID, CommandOnIds, WholeNumber
from rota.cli.options import JSON_OBJECT, limit_option
from rota.cli.shell import Shell, actor, database_option, json_option, naming_options, pass_shell, why_option
from rota.cli.show.backfills import done_sentence, follow, show_backfill, show_backfills, show_preview, started_sentence
from rota.cli.show.output import note, show_json
from rota.shared.control import backfills
from rota.shared.control.actor import Actor
from rota.shared.control.backfills import Wanted
from rota.shared.control.documents import Document
from rota.shared.database.transactions import Database
from rota.shared.domain.backfilling import MOST_AT_ONCE
from rota.shared.domain.states import BackfillStatus

Act = Callable[[Database, Actor, int, str | None], Document]

START = "start"


class StartingGroup(GuessingGroup):
    """A group whose first word may also be the name of a task: then ``start`` is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``start`` before what is no command and does not ask for help."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [START, *args]
        return super().parse_args(ctx, args)


@click.group(cls=StartingGroup)
def backfill() -> None:
    """Run a task's past fires, a few at a time.

    rota backfill NAME ... is short for rota backfill start NAME ...

    \b
    Examples:
      rota backfill nightly --from 2026-10-01 --to 2026-10-31 --dry-run
      rota backfill nightly --from 2026-10-01 --to 2026-10-31 --concurrency 4
      rota backfill list
      rota backfill pause 3
    """


@backfill.command(START)
@click.argument("name")
@click.option(
    "--from", "from_at", metavar="TIME", required=True, help="The fires from this time on; in the task's zone."
)
@click.option("--to", "to_at", metavar="TIME", help="Up to this time.  [default: now]")
@click.option(
    "--concurrency",
    type=WholeNumber(1, MOST_AT_ONCE),
    default=1,
    show_default=True,
    help="At most so many of them wait or run at once.",
)
@click.option("--newest-first", is_flag=True, help="Begin with the newest fire, not with the oldest.")
@click.option("--only-missing", is_flag=True, help="Pass over the fires that have run, failed, or wait.")
@click.option("--param", type=JSON_OBJECT, help="Instead of the task's own param.")
@click.option(
    "--priority", type=WholeNumber(0, 9), default=9, show_default=True, help="Of its runs: 0 goes first, 9 last."
)
@click.option("--dry-run", is_flag=True, help="Show how many fires there are, the first and the last; run nothing.")
@click.option("--wait", is_flag=True, help="Wait until it has ended; exit code 0 if all fires succeeded, else 1.")
@why_option
@json_option
@database_option
@pass_shell
def start(shell: Shell, *, dry_run: bool, wait: bool, why: str | None, as_json: bool, **options: Any) -> None:
    """Start a backfill, or only show what it would run.

    The scheduler writes its runs as earlier ones end, behind what is due now. Ctrl-C ends --wait, and not the backfill.

    \b
    Examples:
      rota backfill start nightly --from 2026-10-01 --to 2026-10-31 --dry-run
      rota backfill start nightly --from 2026-10-01T03:00 --newest-first --only-missing
      rota backfill start nightly --from 2026-10-01 --param '{"region": "us"}' --concurrency 8 --wait
    """
    with shell.database(to_write=not dry_run) as database, naming_options(untyped=True):
        wanted = Wanted(**options)
        if dry_run:
            document, remarks = backfills.preview(database, wanted)
        else:
            document, remarks = backfills.start(database, actor(), wanted, why)
        for remark in remarks:
            note(remark)
        if dry_run and not as_json:
            show_preview(document)
        elif not dry_run:
            _report(database, document, wait=wait, as_json=as_json)
        else:
            show_json(document)


def _report(database: Database, document: Document, *, wait: bool, as_json: bool) -> None:
    if not as_json:
        click.echo(started_sentence(document))
    if wait:
        document = follow(database, document["id"])
    if as_json:
        show_json(document)
    elif wait:
        click.echo(done_sentence(document))
    if wait and (document["status"] != BackfillStatus.DONE or document["failed"] or document["canceled"]):
        raise SystemExit(1)


@backfill.command("list")
@click.option("--task", "task_name", metavar="NAME", help="Only those of this task.")
@click.option("--status", type=click.Choice([status.value for status in BackfillStatus]), help="Only in this state.")
@limit_option(20)
@json_option
@database_option
@pass_shell
def list_(shell: Shell, task_name: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """Show backfills, the newest first.

    \b
    Examples:
      rota backfill list --status running
      rota backfill list --task nightly --json
    """
    with shell.database(to_write=False) as database:
        found = backfills.listed(database, limit, task=task_name, status=status)
    if as_json:
        show_json(found)
    else:
        show_backfills(found)


id_argument = click.argument("backfill_id", type=ROW_ID, metavar="ID")


@backfill.command(cls=CommandOnIds)
@id_argument
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@json_option
@database_option
@pass_shell
def show(shell: Shell, backfill_id: int, wait: bool, as_json: bool) -> None:
    """Show all of a backfill, and how far it is.

    \b
    Examples:
      rota backfill show 3
      rota backfill show 3 --wait
    """
    with shell.database(to_write=False) as database:
        found = follow(database, backfill_id) if wait else backfills.show(database, backfill_id)
        now = database.clock.now()
    if as_json:
        show_json(found)
    else:
        show_backfill(found, now)


@backfill.command(cls=CommandOnIds)
@id_argument
@why_option
@json_option
@database_option
@pass_shell
def pause(shell: Shell, backfill_id: int, why: str | None, as_json: bool) -> None:
    """Let a backfill begin no more fires. What it has written still runs.

    \b
    Example:
      rota backfill pause 3 --why "the source is down"
    """
    _switch(shell, backfills.pause, backfill_id, why, as_json)


@backfill.command(cls=CommandOnIds)
@id_argument
@why_option
@json_option
@database_option
@pass_shell
def resume(shell: Shell, backfill_id: int, why: str | None, as_json: bool) -> None:
    """Let a paused backfill go on.

    \b
    Example:
      rota backfill resume 3
    """
    _switch(shell, backfills.resume, backfill_id, why, as_json)


@backfill.command(cls=CommandOnIds)
@id_argument
@why_option
@json_option
@database_option
@pass_shell
def cancel(shell: Shell, backfill_id: int, why: str | None, as_json: bool) -> None:
    """End a backfill. What waits is canceled; what runs goes on.

    \b
    Example:
      rota backfill cancel 3 --why "wrong param"
    """
    _switch(shell, backfills.cancel, backfill_id, why, as_json)


def _switch(shell: Shell, act: Act, backfill_id: int, why: str | None, as_json: bool) -> None:
    with shell.database() as database:
        document = act(database, actor(), backfill_id, why)
    if as_json:
        show_json(document)
    else:
        click.echo(done_sentence(document))
