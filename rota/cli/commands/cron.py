"""``rota cron``: cron expressions in words, and their next fires. It needs a database for a calendar alone."""

from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

import click

from rota.cli.numbers import WholeNumber
from rota.cli.shell import Shell, database_option, json_option, naming_options, pass_shell
from rota.cli.show.output import note, show_json
from rota.cli.show.table import show_table
from rota.cli.show.times import relative, shown_local, shown_utc
from rota.shared.clock import host_now
from rota.shared.domain.planning import PlanInputs
from rota.shared.domain.times import read_time, written_local, written_utc
from rota.shared.domain.triggers.cron import CronTrigger
from rota.shared.domain.triggers.zones import load_zone


@click.command()
@click.argument("expression")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="IANA zone in which it is read.")
@click.option("--from", "since", metavar="TIME", help="Fires after this, as 2026-11-19T02:00; in the zone.  [now]")
@click.option("--count", type=WholeNumber(0, 10_000), default=5, show_default=True, help="So many fires.")
@click.option("--seconds", is_flag=True, help="The first of six fields is seconds.")
@click.option("--calendar", metavar="NAME", help="Only on the days of this calendar, which is in the database.")
@click.option("--calendar-days", metavar="WHICH", help="Which of its days, as of rota task add.  [default: working]")
@json_option
@database_option
@pass_shell
def cron(
    shell: Shell,
    expression: str,
    timezone: str,
    since: str | None,
    count: int,
    *,
    seconds: bool,
    calendar: str | None,
    calendar_days: str | None,
    as_json: bool,
) -> None:
    """Read a cron expression in words, with its next fires.

    \b
    Examples:
      rota cron "30 16 * * mon-fri" --timezone Asia/Shanghai
      rota cron "0 9 * * mon-fri; 0 12 * * sat"
      rota cron "*/10 * * * * *" --seconds
      rota cron "0 18 * * *" --timezone Europe/Berlin --calendar de --calendar-days last
      rota cron "30 2 * * *" --timezone Europe/Berlin --from 2027-03-27T12:00 --count 3 --json
    """
    zone = load_zone(timezone)
    inputs = PlanInputs("cron", expression, int(seconds), timezone)
    inputs.label()  # an expression that is wrong needs no database
    if calendar is not None:
        inputs = _on_days(shell, replace(inputs, trigger_spec=_spec(calendar, calendar_days)))
    elif calendar_days is not None:
        raise click.UsageError("--calendar-days goes with --calendar")
    now = host_now()
    start, remark = (now, None) if since is None else read_time(since, zone)
    if remark:
        note(remark)
    fires = list(islice(inputs.fires_after(start), count))
    if as_json:
        show_json(_document(inputs, fires))
        return
    click.echo(f"fires {inputs.describe()} ({timezone})")
    lines = [(shown_local(fire, zone), shown_utc(fire), relative(fire, now)) for fire in fires]
    show_table((f"local ({timezone})", "UTC", ""), lines, empty="no fire after that", least=("UTC", ""))


def _spec(calendar: str, days: str | None) -> dict[str, str]:
    return {"calendar": calendar} if days is None else {"calendar": calendar, "calendar_days": days}


def _on_days(shell: Shell, inputs: PlanInputs) -> PlanInputs:
    from rota.shared.control import calendars  # noqa: PLC0415 - SQLAlchemy takes longer than the rest

    with shell.database(to_write=False) as database, naming_options(untyped=True):
        return calendars.given(database, inputs)


def _document(inputs: PlanInputs, fires: list[datetime]) -> dict[str, Any]:
    zone = load_zone(inputs.timezone)
    return {
        "expression": CronTrigger.of(inputs).label(),
        "timezone": inputs.timezone,
        "description": inputs.describe(),
        "fires": [{"utc": written_utc(fire), "local": written_local(fire, zone)} for fire in fires],
    }
