"""``rota calendar``: add, show, change and refresh calendars, on whose days tasks fire."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rota.cli.groups import GuessingGroup
from rota.cli.options import limit_option
from rota.cli.shell import Shell, actor, database_option, json_option, naming_options, pass_shell, why_option
from rota.cli.show.calendars import saved_sentence, show_calendar, show_calendars
from rota.cli.show.output import cell, note, show_json
from rota.shared.control import calendars
from rota.shared.domain.calendars.defining import Changes

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=GuessingGroup)
def calendar() -> None:
    """Add, show and change calendars, on whose days tasks fire.

    A calendar says which days are working days: by the days of the week, by the public holidays of a country, and by
    plain dates.

    \b
    Examples:
      rota calendar add de --country DE
      rota calendar show de --year 2027
      rota task add report --type REPORT --cron "0 9 * * *" --calendar de
    """


def _code(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.UsageError(f"--country {value!r}: write a code such as DE, or DE-BY for a part of it")
    return value


_OPTIONS = [
    click.option(
        "--country", metavar="CODE", callback=_code, help="With its public holidays: DE, or DE-BY for a part of it."
    ),
    click.option(
        "--through", "last_year", metavar="YEAR", type=int, help="Know them through this year.  [default: in 10 years]"
    ),
    click.option("--weekend", metavar="DAYS", help="Days off in each week: sat,sun; none; or all."),
    click.option("--off", metavar="DATE", multiple=True, help="A day off, such as 2027-12-24; may be repeated."),
    click.option("--on", metavar="DATE", multiple=True, help="A working day; may be repeated."),
]


def day_options(command: F) -> F:
    """Add the options that say which days are working days."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@calendar.command()
@click.argument("name")
@day_options
@why_option
@json_option
@database_option
@pass_shell
def add(shell: Shell, name: str, why: str | None, as_json: bool, **given: Any) -> None:
    """Add a calendar.

    Without --weekend the days off of a week are those of the country; without --country, Saturday and Sunday.

    \b
    Examples:
      rota calendar add cn --country CN
      rota calendar add bavaria --country DE-BY --off 2027-12-24 --off 2027-12-31
      rota calendar add paydays --weekend all --on 2027-01-29 --on 2027-02-26
    """
    with shell.database() as database, naming_options():
        saved = calendars.add(database, actor(), name, Changes(**given), why)
    show_json(saved) if as_json else click.echo(saved_sentence(saved, "added"))


@calendar.command("set")
@click.argument("name")
@day_options
@click.option("--forget", metavar="DATE", multiple=True, help="Undo --off or --on; may be repeated.")
@click.option("--no-country", is_flag=True, help="Without public holidays.")
@why_option
@json_option
@database_option
@pass_shell
def set_(shell: Shell, name: str, *, no_country: bool, why: str | None, as_json: bool, **given: Any) -> None:
    """Change a calendar: only what is given. Within seconds the tasks that use it go by it.

    \b
    Examples:
      rota calendar set de --off 2027-12-24
      rota calendar set de --country DE-BY --through 2035
      rota calendar set de --forget 2027-12-24 --why "the shop is open"
    """
    if no_country and given["country"]:
        raise click.UsageError("--country and --no-country do not go together")
    if no_country:
        given["country"] = ""
    if not any(given.values()) and not no_country:
        raise click.UsageError("say what to change; rota calendar set --help lists the options")
    with shell.database() as database, naming_options():
        saved = calendars.edit(database, actor(), name, Changes(**given), why)
    show_json(saved) if as_json else click.echo(saved_sentence(saved, "changed"))


@calendar.command("list")
@limit_option(100)
@json_option
@database_option
@pass_shell
def list_(shell: Shell, limit: int, as_json: bool) -> None:
    """Show calendars by name.

    \b
    Examples:
      rota calendar list
      rota calendar list --json
    """
    with shell.database(to_write=False) as database:
        found = calendars.listed(database, limit + 1)
    if as_json:
        show_json(found[:limit])
        return
    show_calendars(found[:limit])
    if len(found) > limit:
        note(f"there are more than {limit}; raise --limit")


@calendar.command()
@click.argument("name")
@click.option("--year", type=click.IntRange(1970, 2199), help="The days of this year.  [default: this year]")
@json_option
@database_option
@pass_shell
def show(shell: Shell, name: str, year: int | None, as_json: bool) -> None:
    """Show a calendar, the tasks that use it, and its days in a year.

    It lists the days that differ from the others of their week.

    \b
    Examples:
      rota calendar show cn
      rota calendar show cn --year 2027 --json
    """
    with shell.database(to_write=False) as database:
        found = calendars.show(database, name, year)
    if found["remark"]:
        note(found["remark"])
    show_json(found) if as_json else show_calendar(found)


@calendar.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@why_option
@json_option
@database_option
@pass_shell
def refresh(shell: Shell, names: Sequence[str], why: str | None, as_json: bool) -> None:
    """Work out the public holidays of countries anew.

    Of all calendars, or of these; as the installed library "holidays" knows them. Do this once a year, and after an
    upgrade of that library, which learns of new holidays and make-up days. rota doctor says when it is time.

    \b
    Examples:
      rota calendar refresh
      rota calendar refresh cn --why "the make-up days of 2027 are known"
    """
    with shell.database() as database:
        done = calendars.refresh(database, actor(), names, why)
    if as_json:
        show_json(done)
        return
    if not done:
        note("no calendar is of a country")
    for one in done:
        days = f"{one['changed']} day{'' if one['changed'] == 1 else 's'} changed"
        click.echo(f"{cell(one['name'])}: {days}, known through {one['last_year']}")


@calendar.command()
@click.argument("name")
@why_option
@json_option
@database_option
@pass_shell
def remove(shell: Shell, name: str, why: str | None, as_json: bool) -> None:
    """Delete a calendar that no task uses.

    \b
    Example:
      rota calendar remove paydays
    """
    with shell.database() as database:
        removed = calendars.remove(database, actor(), name, why)
    show_json(removed) if as_json else click.echo(f"{cell(name)} is removed")
