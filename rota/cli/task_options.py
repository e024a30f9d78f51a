"""The options for a task's fields, the same for ``task add`` and ``task set``."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import click

from rota.cli.options import JSON_LIST, JSON_OBJECT, KEY_VALUE, gathered, listed
from rota.shared.domain.states import Backoff, MisfirePolicy, OnEnd, OnRetry, OverlapPolicy, Spread, WorkerLostPolicy

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

CLEARABLE = {
    "--no-cron": "cron",
    "--no-every": "every",
    "--no-fixed-delay": "fixed_delay",
    "--no-at": "at",
    "--no-any-of": "any_of",
    "--no-all-of": "all_of",
    "--no-after": "after",
    "--no-calendar": "calendar",
    "--no-param": "param",
    "--no-starts-at": "starts_at",
    "--no-ends-at": "ends_at",
    "--no-max-instances": "max_instances",
    "--no-max-waiting": "max_waiting",
    "--no-max-retry-delay": "max_retry_delay_seconds",
    "--no-retry-on": "retry_on",
    "--no-never-retry": "never_retry",
    "--no-timeout": "timeout_seconds",
    "--no-run-timeout": "run_timeout_seconds",
    "--no-label": "required_labels",
    "--no-description": "description",
    "--no-owner": "owner",
    "--no-tag": "tags",
    "--no-group": "task_group",
    "--no-limit": "limit_name",
    "--no-pool": "pool",
    "--no-spread": "spread",
}
"""The options that clear a field, each with its field."""


def _choice(states: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([state.value for state in states])


def _listed(_: click.Context, __: click.Parameter, given: Sequence[str]) -> list[str] | None:
    return list(given) or None


def _ends(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str] | None:
    """The tasks to follow, each with its end. The name of a task may have a = in it, too."""
    ends: dict[str, str] = {}
    for text in given:
        name, _sign, end = text.rpartition("=")
        name, end = (name, end) if name and end in set(OnEnd) else (text, OnEnd.SUCCESS.value)
        if ends.setdefault(name, end) != end:
            raise click.BadParameter(f"{name!r} is given with two ends, {ends[name]} and {end}; give one of them")
    return ends or None


_OPTIONS = [
    click.option("--cron", help="When it fires: minute hour day month weekday, or @daily; ; between several."),
    click.option("--every", metavar="SPAN", help="How often: 90s, 15m, 1h30m or 1d; from 1s on."),
    click.option("--fixed-delay", metavar="SPAN", help="So long after its last run has ended; from 1s on."),
    click.option("--at", metavar="TIME", help="Once, at this time."),
    click.option("--any-of", type=JSON_LIST, help="When any of these triggers fires, a JSON list."),
    click.option("--all-of", type=JSON_LIST, help="When all of these triggers fire together, a JSON list."),
    click.option(
        "--after", metavar="TASK[=END]", multiple=True, callback=_ends,
        help="When this task has ended; may be repeated. END: success, failure or always.  [default: success]",
    ),
    click.option("--seconds/--no-seconds", "cron_seconds", default=None, help="The first of six fields is seconds."),
    click.option("--timezone", metavar="ZONE", help="IANA zone in which --cron and --at are read.  [default: UTC]"),
    click.option("--param", type=JSON_OBJECT, help="What its nodes get, a JSON object."),
    click.option(
        "--overlap", "overlap_policy", type=_choice(OverlapPolicy), help="While the previous runs.  [default: skip]"
    ),
    click.option("--max-instances", type=int, help="With --overlap allow: at most so many at once."),
    click.option("--max-waiting", type=int, help="With --overlap queue, or --max-instances: so many wait at most."),
    click.option("--retries", type=int, help="How often a node is retried, unless it says so itself.  [default: 0]"),
    click.option("--retry-delay", "retry_delay_seconds", type=int, help="Seconds before a retry.  [default: 10]"),
    click.option(
        "--backoff", "retry_backoff", type=_choice(Backoff), help="How that delay grows.  [default: exponential]"
    ),
    click.option("--max-retry-delay", "max_retry_delay_seconds", type=int, help="Seconds up to which it grows."),
    click.option(
        "--retry-jitter", "retry_jitter_percent", type=int, help="Percent by which it is shortened.  [default: 0]"
    ),
    click.option(
        "--retry-on", metavar="EXCEPTION", multiple=True, callback=listed,
        help="Retry only this exception; may be repeated.",
    ),
    click.option(
        "--never-retry", metavar="EXCEPTION", multiple=True, callback=listed,
        help="Never retry this exception; may be repeated.",
    ),
    click.option(
        "--on-retry", type=_choice(OnRetry), help="Keep the nodes that succeeded, or run all again.  [default: resume]"
    ),
    click.option(
        "--on-worker-lost",
        type=_choice(WorkerLostPolicy),
        help="When its worker dies. retry: at least once; fail: at most once, with no retries.  [default: retry]",
    ),
    click.option("--timeout", "timeout_seconds", type=int, help="Seconds that one node may run."),
    click.option(
        "--run-timeout", "run_timeout_seconds", type=int, help="Seconds that a run may take, with all of its nodes."
    ),
    click.option("--priority", type=int, help="0 first .. 9 last.  [default: 5]"),
    click.option(
        "--label", "required_labels", type=KEY_VALUE, multiple=True, callback=gathered,
        help="A label its worker must carry; may be repeated.",
    ),
    click.option(
        "--jitter", "jitter_seconds", type=int, help="Spread its fires over so many seconds.  [default: 0]"
    ),
    click.option("--calendar", metavar="NAME", help="Only on the days of this calendar; rota calendar list."),
    click.option(
        "--calendar-days", metavar="WHICH",
        help="Its working days; off; or of each month the first, last, 3rd (3), 2nd last (-2) …  [default: working]",
    ),
    click.option("--description", metavar="TEXT", help="What it is for."),
    click.option("--owner", help="Who answers for it."),
    click.option("--group", "task_group", help="The group that it belongs to; where many wait, groups take turns."),
    click.option(
        "--group-share", type=int, help="How many of its instances count as one of another group.  [default: 1]"
    ),
    click.option("--tag", "tags", multiple=True, callback=_listed, help="A word to find it by; may be repeated."),
    click.option("--limit", "limit_name", metavar="NAME", help="The limit that it shares with others: rota limit."),
    click.option("--pool", metavar="NAME", help="The pool of threads that it runs in: rota worker list shows them."),
    click.option(
        "--weight", type=int, help="How many slots of its worker, or threads of its pool, a run takes.  [default: 1]"
    ),
    click.option("--shards", type=int, help="Run each fire as so many instances, up to 1000, beside each other."),
    click.option(
        "--spread", type=click.Choice([Spread.WORKERS.value, Spread.BROADCAST.value]),
        help="Run each fire as so many instances as live workers fit, or once on each of them.",
    ),
    click.option("--starts-at", metavar="TIME", help="No fire before this."),
    click.option("--ends-at", metavar="TIME", help="No fire after this."),
    click.option(
        "--misfire",
        "misfire_policy",
        type=_choice(MisfirePolicy),
        help="What was missed while no scheduler ran: its newest runs, none, or all.  [default: fire_once]",
    ),
    click.option(
        "--misfire-window", "misfire_window_seconds", type=int,
        help="With --misfire fire_all: only what was missed in the last so many seconds.  [default: 86400]",
    ),
    click.option("--misfire-cap", type=int, help="With --misfire fire_all: at most so many.  [default: 100]"),
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
    return click.option(
        "--type",
        "type",
        required=required,
        help="The task type, such as HTTP_REQUEST; rota worker show lists a worker's.",
    )


def given_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The fields that were given. A field to be cleared is None."""
    fields = {name: value for name, value in options.items() if value is not None and not name.startswith("no_")}
    for flag, name in CLEARABLE.items():
        if options.get(f"no_{name}"):
            if name in fields:
                raise click.UsageError(f"{flag} clears what another option sets; give one of them")
            fields[name] = None
    return fields
