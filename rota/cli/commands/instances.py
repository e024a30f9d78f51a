"""``rota instance``: look at runs, cancel them, replay them."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from rota.cli.commands.replays import replay
from rota.cli.groups import GuessingGroup
from rota.cli.numbers import ROW_ID, CommandOnIds
from rota.cli.options import limit_option, task_choice_options
from rota.cli.shell import Shell, actor, database_option, json_option, pass_shell, why_option
from rota.cli.show.instances import show_instance, show_instances
from rota.cli.show.output import show_json
from rota.shared.control import instances
from rota.shared.domain.states import InstanceStatus
from rota.shared.domain.task_filter import TaskFilter

ids_argument = click.argument("instance_ids", nargs=-1, type=ROW_ID, required=True, metavar="ID...")


@click.group(cls=GuessingGroup)
def instance() -> None:
    """Look at runs, cancel them, replay them.

    \b
    Examples:
      rota instance list --task nightly
      rota instance show 17
      rota instance replay 17 --wait
    """


@instance.command("list")
@click.option("--task", "task_name", metavar="NAME", help="Only those of this task.")
@click.option("--status", type=click.Choice([status.value for status in InstanceStatus]), help="Only in this state.")
@click.option("--parent", type=ROW_ID, metavar="ID", help="The shards of this instance.")
@task_choice_options
@limit_option(20)
@json_option
@database_option
@pass_shell
def list_(
    shell: Shell,
    *,
    task_name: str | None,
    status: str | None,
    parent: int | None,
    limit: int,
    as_json: bool,
    **of_tasks: Any,
) -> None:
    """Show instances, the newest first; shards only with --parent.

    --owner, --group and --tag choose those of the tasks that have them now.

    With --json, an instance whose param or result is larger than 4 KiB has no key "param" or "execution_result", but
    "param_bytes" or "result_bytes", its size. rota instance show has them.

    \b
    Examples:
      rota instance list
      rota instance list --task nightly --status failed --json
      rota instance list --owner ann --status failed
    """
    if parent is not None and task_name is not None:
        raise click.UsageError("--parent names one instance, of one task; leave out --task")
    chosen = TaskFilter(**of_tasks)
    if not chosen.is_every and (named := "--task" if task_name else "--parent" if parent else None):
        raise click.UsageError(f"{named} says which alone; leave it out, or else --owner, --group and --tag")
    with shell.database(to_write=False) as database:
        found = instances.listed(database, limit, task=task_name, status=status, parent=parent, chosen=chosen)
    if as_json:
        show_json(found)
    else:
        show_instances(found)


@instance.command(cls=CommandOnIds)
@click.argument("instance_id", type=ROW_ID, metavar="ID")
@json_option
@database_option
@pass_shell
def show(shell: Shell, instance_id: int, as_json: bool) -> None:
    """Show all of an instance, and why it is where it is.

    It shows each node with its result or traceback, how earlier attempts failed, and the runs of the tasks that it
    follows and that follow it.

    \b
    Examples:
      rota instance show 17
      rota instance show 17 --json
    """
    with shell.database(to_write=False) as database:
        found = instances.show(database, instance_id)
        now = database.clock.now()
    if as_json:
        show_json(found)
    else:
        show_instance(found, now)


@instance.command(cls=CommandOnIds)
@ids_argument
@why_option
@json_option
@database_option
@pass_shell
def cancel(shell: Shell, instance_ids: Sequence[int], why: str | None, as_json: bool) -> None:
    """Cancel instances that wait or run.

    Those that wait are canceled at once. The workers of those that run are asked to stop them.

    \b
    Example:
      rota instance cancel 17 18 --why "the source is down"
    """
    with shell.database() as database:
        canceled = instances.cancel(database, actor(), instance_ids, why)
    if as_json:
        show_json(canceled)
        return
    for one in canceled:
        click.echo(f"instance {one['id']} {_what_comes(one)}")


def _what_comes(canceled: Mapping[str, Any]) -> str:
    if canceled["canceled"]:
        return "is canceled"
    if not canceled["asked"]:
        return "ends when its nodes that run always have"
    if "shards" in canceled:
        return f"runs as {canceled['shards']} shards; their workers are asked to stop them"
    return "runs; its worker is asked to stop it"


instance.add_command(replay)
