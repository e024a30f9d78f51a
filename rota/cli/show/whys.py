"""Shows what became of a fire."""

from datetime import datetime

import click

from rota.cli.show.output import cell
from rota.cli.show.times import moment_of, relative, shown_local, shown_utc
from rota.shared.control.documents import Document
from rota.shared.domain.times import zone_of


def show_why(told: Document, now: datetime) -> None:
    """Print what became of a fire, the other instances of its time, and the next fire."""
    if told["fire"] is None:
        click.echo(f"{cell(told['task'])} has had no fire yet")
    else:
        click.echo(f"{cell(told['task'])}, fire of {_when(told['fire'], told)}")
        click.echo(f"{told['outcome'].replace('_', ' ')}: {cell(told['why'])}")
    for other in told["instances"][1:]:
        click.echo(f"before that: {cell(other['why'])}")
    for name, words in (("before", "the fire before"), ("after", "the fire after")):
        if told[name] is not None:
            click.echo(f"{words}: {_when(told[name], told)}")
    following = moment_of(told["next_fire"]["utc"]) if told["next_fire"] else None
    if following is None:
        click.echo(f"next fire: none; {cell(told['remark'])}")
        return
    click.echo(f"next fire: {_when(told['next_fire'], told)}  {relative(following, now)}")
    if told["remark"]:
        click.echo(f"but {cell(told['remark'])}")


def _when(fire: Document, told: Document) -> str:
    moment = moment_of(fire["utc"])
    return f"{shown_local(moment, zone_of(told['timezone']))}  {shown_utc(moment)}"
