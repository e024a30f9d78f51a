"""The options for a task's fields, the same for ``task add`` and ``task set``."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import click

from rota.cli.options import JSON_OBJECT, KEY_VALUE, gathered
from rota.shared.domain.states import Backoff, OverlapPolicy, WorkerLostPolicy

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
"""The options that clear a field, each with its field."""


def _choice(states: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([state.value for state in states])


_OPTIONS = [
    click.option("--cron", help="When it fires: minute hour day month weekday, or @daily; ; between several."),
    click.option("--seconds/--no-seconds", "cron_seconds", default=None, help="The first of six fields is seconds."),
    click.option("--timezone", metavar="ZONE", help="IANA zone in which cron is read.  [default: UTC]"),
    click.option("--param", type=JSON_OBJECT, help="What its nodes get, a JSON object."),
    click.option(
        "--overlap", "overlap_policy", type=_choice(OverlapPolicy), help="While the previous runs.  [default: skip]"
    ),
    click.option("--max-instances", type=int, help="With --overlap allow: at most so many at once."),
    click.option("--retries", type=int, help="How often a node is retried, unless it says so itself.  [default: 0]"),
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
    """Add an option for each field. An option that is not given is None."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def cleared_options(command: F) -> F:
    """Add the options that clear fields."""
    for flag, name in reversed(CLEARABLE.items()):
        command = click.option(flag, f"no_{name}", is_flag=True, help=f"Clear {name}.")(command)
    return command


def type_option(*, required: bool) -> Decorator[Any]:
    """Add ``--type``."""
    return click.option("--type", "type", required=required, help="The task type: the category of its nodes.")


def given_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The fields that were given. A field to be cleared is None."""
    fields = {name: value for name, value in options.items() if value is not None and not name.startswith("no_")}
    for flag, name in CLEARABLE.items():
        if options.get(f"no_{name}"):
            if name in fields:
                raise click.UsageError(f"{flag} clears what another option sets; give one of them")
            fields[name] = None
    return fields
