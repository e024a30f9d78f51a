"""``rota instance``: look at runs, cancel them, replay them."""

from collections.abc import Sequence
from typing import Any

import click
from sqlalchemy import Connection, Row

from rota.cli.instance_view import instance_document, node_document, show_instance, show_instances
from rota.cli.output import note, show_json
from rota.cli.runs import report_run, wait_until_ended
from rota.cli.shell import Shell, database_option, json_option, pass_shell, user
from shared.domain.states import InstanceStatus
from shared.store import instances, tasks

ids_argument = click.argument("instance_ids", nargs=-1, type=int, required=True, metavar="ID...")


@click.group()
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
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="At most so many.")
@json_option
@database_option
@pass_shell
def list_(shell: Shell, task_name: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """Show instances, the newest first.

    \b
    Examples:
      rota instance list
      rota instance list --task nightly --status failed --json
    """

    def read(connection: Connection) -> list[Row[Any]]:
        task_id = None if task_name is None else tasks.find(connection, task_name).id
        return instances.listed(connection, limit, task_id=task_id, status=status)

    with shell.database() as database:
        rows = database.read(read)
    if as_json:
        show_json([instance_document(row) for row in rows])
    else:
        show_instances(rows)


@instance.command()
@click.argument("instance_id", type=int, metavar="ID")
@json_option
@database_option
@pass_shell
def show(shell: Shell, instance_id: int, as_json: bool) -> None:
    """Show all of an instance: why it is where it is, its nodes, their results.

    \b
    Examples:
      rota instance show 17
      rota instance show 17 --json
    """
    with shell.database() as database:
        row = database.read(lambda connection: instances.find(connection, instance_id))
        nodes = database.read(lambda connection: instances.nodes(connection, instance_id))
        now = database.clock.now()
    if as_json:
        show_json(instance_document(row) | {"nodes": [node_document(node) for node in nodes]})
    else:
        show_instance(row, nodes, now)


@instance.command()
@ids_argument
@json_option
@database_option
@pass_shell
def cancel(shell: Shell, instance_ids: Sequence[int], as_json: bool) -> None:
    """Cancel instances: at once those that wait; the workers of those that run are asked to stop them.

    \b
    Example:
      rota instance cancel 17 18
    """

    def write(connection: Connection) -> dict[int, bool]:
        return {i: instances.cancel(connection, i, user()) for i in dict.fromkeys(instance_ids)}

    with shell.database() as database:
        canceled = database.write(write)
    if as_json:
        show_json([{"id": i, "canceled": at_once, "asked": not at_once} for i, at_once in canceled.items()])
        return
    for i, at_once in canceled.items():
        click.echo(f"instance {i} is canceled" if at_once else f"instance {i} runs; its worker is asked to stop it")


@instance.command()
@ids_argument
@click.option("--wait", is_flag=True, help="Wait until all have ended; exit code 0 if all succeeded, else 1.")
@json_option
@database_option
@pass_shell
def replay(shell: Shell, instance_ids: Sequence[int], wait: bool, as_json: bool) -> None:
    """Run ended instances once more, each for its old time and with its old param.

    \b
    Examples:
      rota instance replay 17
      rota instance replay 17 18 --wait
    """

    def write(connection: Connection) -> list[int]:
        return [instances.replay(connection, i, user()) for i in instance_ids]

    with shell.database() as database:
        new_ids = instances.insert_into(database, write)
        if not as_json:
            for old, new in zip(instance_ids, new_ids, strict=True):
                note(f"instance {new} replays {old}")
        if wait:
            wait_until_ended(database, new_ids)
        report_run(database, new_ids, wait=wait, as_json=as_json)
