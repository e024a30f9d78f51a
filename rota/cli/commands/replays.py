"""``rota instance replay``: run ended instances once more, by their ids or all that a filter finds."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from rota.cli.numbers import ROW_ID, CommandOnIds
from rota.cli.options import JSON_OBJECT, task_choice_options
from rota.cli.shell import Shell, actor, database_option, json_option, naming_options, pass_shell, why_option
from rota.cli.show.instances import show_instances
from rota.cli.show.output import note, show_json
from rota.cli.show.runs import report_runs
from rota.shared.clock import Timer
from rota.shared.control import replays
from rota.shared.control.replays import Again, Found, Replayed, ReplayFilter
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.task_filter import TaskFilter

MANY = 10
"""More than so many are replayed only when somebody has said yes."""

PROGRESS_SECONDS = 1.0

OF_TASKS = ("owner", "group", "tags")
STATUSES = (InstanceStatus.FAILED.value, InstanceStatus.CANCELED.value, InstanceStatus.SUCCEED.value)


@click.command(cls=CommandOnIds)
@click.argument("instance_ids", nargs=-1, type=ROW_ID, metavar="[ID]...")
@click.option("--status", type=click.Choice(STATUSES), help="Without IDs: all that ended so.  [default: failed]")
@click.option("--task", metavar="NAME", help="Without IDs: all of this task.")
@click.option("--since", metavar="TIME", help="Without IDs: all for this time or later; in the task's zone, or in UTC.")
@click.option("--until", metavar="TIME", help="Without IDs: all for a time before this one.")
@task_choice_options
@click.option("--from-node", metavar="NODE", help="Keep the results of the nodes before this one, and begin with it.")
@click.option("--param", type=JSON_OBJECT, help="Instead of their own params.")
@click.option("--chain", is_flag=True, help="What follows runs once more, too. --wait does not wait for it.")
@click.option("--dry-run", is_flag=True, help="Without IDs: show how many there are and the first; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask, however many there are.")
@click.option("--wait", is_flag=True, help="Wait until all have ended; exit code 0 if all succeeded, else 1.")
@why_option
@json_option
@database_option
@pass_shell
def replay(
    shell: Shell,
    instance_ids: Sequence[int],
    *,
    from_node: str | None,
    param: Any,
    chain: bool,
    dry_run: bool,
    yes: bool,
    wait: bool,
    why: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Run ended instances once more: these, or those of a filter.

    Each runs for its old time, and with its old param unless --param is given. The old ones stay as history. Of many,
    each fire is replayed whose newest run ended so; if you interrupt the command, type it again, and it goes on.

    \b
    Examples:
      rota instance replay 17 18 --chain --wait
      rota instance replay 17 --from-node SEND --param '{"region": "us"}'
      rota instance replay --status failed --task nightly --since 2026-11-19T00:00 --dry-run
    """
    given = {name: value for name, value in chosen.items() if value not in (None, ())}
    again = Again(param, from_node, chain)
    if not instance_ids:
        _refuse_what_is_for_ids(given, wait)
        with shell.database(to_write=not dry_run) as database, naming_options():
            _replay_found(database, _filter(given), again, why=why, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    _refuse_what_is_for_many(given, dry_run)
    with shell.database() as database, naming_options():
        instance_ids = list(dict.fromkeys(instance_ids))
        runs = replays.replay(database, actor(), instance_ids, why, again=again)
        if not as_json:
            for old, run in zip(instance_ids, runs, strict=True):
                note(f"instance {run['id']} replays {old}")
        report_runs(database, runs, wait=wait, as_json=as_json)


def _filter(given: Mapping[str, Any]) -> ReplayFilter:
    of_tasks = {name: value for name, value in given.items() if name in OF_TASKS}
    others = {name: value for name, value in given.items() if name not in OF_TASKS}
    return ReplayFilter(**others, of_tasks=TaskFilter(**of_tasks))


def _refuse_what_is_for_ids(given: Mapping[str, Any], wait: bool) -> None:
    if not given:
        options = "--status, --task, --owner, --group, --tag, --since or --until"
        raise click.UsageError(f"say which instances: their ids, or {options}")
    if wait:
        raise click.UsageError("--wait goes with ids; rota instance list shows what has become of many")


def _refuse_what_is_for_many(given: Mapping[str, Any], dry_run: bool) -> None:
    if given or dry_run:
        option = f"--{next(iter(given), 'dry-run')}".replace("--tags", "--tag")
        raise click.UsageError(f"{option} goes with a choice of many, and not with ids; leave one of them out")


def _replay_found(
    database: Any, chosen: ReplayFilter, again: Again, *, why: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    found = replays.find(database, chosen, again)
    done = Replayed(first=found.first, left_out=found.left_out, why=found.why)
    if found.number and not dry_run:
        if found.number > MANY and not yes:
            _ask(found)
        tell = _progress(database.clock, found.number)
        done = replays.replay_found(database, actor(), chosen, found.last, why, again=again, progress=tell)
    if as_json:
        counts = {"found": found.number, "replayed": done.done, "left_out": done.left_out, "dry_run": dry_run}
        show_json(counts | {"first": done.first})
        return
    number = found.number if dry_run else done.done
    if done.first:
        show_instances(done.first)
    if number > len(done.first):
        click.echo(f"and {number - len(done.first):,} more")
    if done.left_out:
        note(f"{_counted(done.left_out)} left out: {done.why}")
    click.echo(f"{_counted(number)} {'would be replayed' if dry_run else 'replayed'}")


def _ask(found: Found) -> None:
    if not sys.stdin.isatty():
        raise NotPossible(f"nobody is here to be asked whether to replay {found.number:,} instances; say --yes")
    show_instances(found.first)
    if not click.confirm(f"Replay {_counted(found.number)}?", err=True):
        raise NotPossible("nothing was replayed")


def _progress(timer: Timer, number: int) -> Callable[[Replayed], None]:
    """Tells, once a second at most, how many of many are replayed."""
    told = timer.monotonic()

    def tell(done: Replayed) -> None:
        nonlocal told
        if (now := timer.monotonic()) - told >= PROGRESS_SECONDS:
            told = now
            note(f"{done.done:,} of {number:,} replayed")

    return tell


def _counted(number: int) -> str:
    return f"{number:,} instance{'' if number == 1 else 's'}"
