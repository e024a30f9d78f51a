"""``rota audit``: who changed what, when and why."""

from typing import Any

import click

from rota.cli.numbers import ROW_ID
from rota.cli.options import limit_option
from rota.cli.shell import Shell, database_option, json_option, pass_shell
from rota.cli.show.output import cell, shortened, show_json_list
from rota.cli.show.table import show_table
from rota.cli.show.times import moment_of, shown_utc
from rota.shared.control import audit as control
from rota.shared.control.documents import Document

COLUMNS = ("when (UTC)", "who", "by", "what", "name", "id", "changed", "why")
LEAST = ("by", "id", "why", "changed", "when (UTC)")
"""The columns that a narrow terminal leaves out first."""

HIDDEN = "param"
"""A param may hold secrets. Its value is shown only by ``--json``."""

DERIVED = "trigger_kind"
"""It follows from the trigger, which somebody has typed: it stands last, where a long line is cut."""


@click.command()
@click.option(
    "--task", "task_name", metavar="NAME", help="Only the tasks of this name, deleted ones too, and their runs."
)
@click.option("--instance", "instance_id", type=ROW_ID, metavar="ID", help="Only this instance.")
@limit_option(20)
@json_option
@database_option
@pass_shell
def audit(shell: Shell, task_name: str | None, instance_id: int | None, limit: int, as_json: bool) -> None:
    """Show who changed what, when and why.

    The newest first. What SQL changes is not recorded. The values of a param are shown with --json only.

    \b
    Examples:
      rota audit
      rota audit --task nightly --limit 50
      rota audit --instance 17 --json
    """
    if task_name is not None and instance_id is not None:
        raise click.UsageError("--task and --instance exclude each other; give one of them")
    with shell.database(to_write=False) as database:
        if as_json:
            show_json_list(control.each_whole(database, limit, task=task_name, instance_id=instance_id))
            return
        acts = control.listed(database, limit, task=task_name, instance_id=instance_id)
    show_table(COLUMNS, [_line(act) for act in acts], empty="nothing is recorded", least=LEAST)


def _line(act: Document) -> tuple[Any, ...]:
    when = shown_utc(moment_of(act["gmt_create"]))
    changed = shortened(", ".join(_changes(act)))
    name = act["object_name"] or (act["new_values"] or {}).get("name")  # of an act on a worker
    who_and_what = (act["actor"], act["face"], act["action"], name, act["object_id"])
    return when, *who_and_what, changed, act["why"]


def _changes(act: Document) -> list[str]:
    """What the act changed, a part for each field: ``retries 0 → 2``."""
    old, new = act["old_values"], act["new_values"] or {}
    parts = []
    for name, value in sorted(new.items(), key=lambda field: field[0] == DERIVED):
        if name == HIDDEN:
            parts.append(name)
        elif old is None:
            parts.append(f"{name} {cell(value)}")
        elif old.get(name) != value:
            parts.append(f"{name} {cell(old.get(name)) or '-'} → {cell(value) or '-'}")
    return parts
