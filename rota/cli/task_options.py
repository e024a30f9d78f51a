"""The options for a task's fields, the same for ``task add`` and ``task set``."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import click

from rota.cli.options import JSON_VALUE, KEY_VALUE, gathered
from rota.cli.output import note
from rota.cli.times import read_time
from shared.domain.states import Backoff, OverlapPolicy, WorkerLostPolicy
from shared.domain.triggers.zones import load_zone

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

CLEARABLE = {
    "--no-cron": "cron",
    "--no-param": "param",
    "--no-starts-at": "starts_at",
    "--no-ends-at": "ends_at",
    "--no-max-instances": "max_instances",
    "--no-timeout": "timeout_seconds",
    "--no-label": "required_labels",
}
"""Options that clear a field, and the field."""


def _choice(states: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([state.value for state in states])


_OPTIONS = [
    click.option("--cron", help="When it fires: minute hour day month weekday, or @daily."),
    click.option("--seconds/--no-seconds", "cron_seconds", default=None, help="The first of six fields is seconds."),
    click.option("--timezone", metavar="ZONE", help="IANA zone in which cron is read.  [default: UTC]"),
    click.option("--param", type=JSON_VALUE, help="What its nodes get, a JSON object."),
    click.option(
        "--overlap", "overlap_policy", type=_choice(OverlapPolicy), help="While the previous runs.  [default: skip]"
    ),
    click.option("--max-instances", type=int, help="With --overlap allow: at most so many at once."),
    click.option("--retries", type=int, help="How often a failed run is retried.  [default: 0]"),
    click.option("--retry-delay", "retry_delay_seconds", type=int, help="Seconds before a retry.  [default: 10]"),
    click.option(
        "--backoff", "retry_backoff", type=_choice(Backoff), help="How that delay grows.  [default: exponential]"
    ),
    click.option(
        "--on-worker-lost",
        type=_choice(WorkerLostPolicy),
        help="When its worker dies. retry: at least once; fail: at most once, with no retries.  [default: retry]",
    ),
    click.option("--timeout", "timeout_seconds", type=int, help="Seconds that one node may run."),
    click.option("--priority", type=int, help="0 first .. 9 last.  [default: 5]"),
    click.option(
        "--label", "required_labels", type=KEY_VALUE, multiple=True, callback=gathered,
        help="A label its worker must carry; may be repeated.",
    ),
    click.option("--starts-at", metavar="TIME", help="No fire before this."),
    click.option("--ends-at", metavar="TIME", help="No fire after this."),
    click.option(
        "--misfire-grace", "misfire_grace_seconds", type=int, help="Late by more seconds is missed.  [default: 10]"
    ),
]  # fmt: skip


def definition_options(command: F) -> F:
    """An option for each field; None where it is not given."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def cleared_options(command: F) -> F:
    """The options that clear fields."""
    for flag, name in reversed(CLEARABLE.items()):
        command = click.option(flag, f"no_{name}", is_flag=True, help=f"Clear {name}.")(command)
    return command


def type_option(*, required: bool) -> Decorator[Any]:
    """``--type``."""
    return click.option("--type", "type", required=required, help="The task type: the category of its nodes.")


def given_fields(options: dict[str, Any], zone: str | None) -> dict[str, Any]:
    """The fields that were given, cleared ones as None; times are read in the task's zone (``zone``, unless given)."""
    fields = {name: value for name, value in options.items() if value is not None and not name.startswith("no_")}
    for flag, name in CLEARABLE.items():
        if options.get(f"no_{name}"):
            if name in fields:
                raise click.UsageError(f"{flag} clears what another option sets; give one of them")
            fields[name] = None
    for name in ("starts_at", "ends_at"):
        if fields.get(name) is not None:
            fields[name], remark = read_time(fields[name], load_zone(fields.get("timezone") or zone or "UTC"))
            if remark:
                note(remark)
    return fields
