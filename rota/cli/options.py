"""Options that several commands share: settings, key=value pairs, JSON values, verbosity."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from annotated_types import MaxLen
from pydantic.fields import FieldInfo

from rota.cli.numbers import WholeNumber
from rota.cli.show.output import shortened
from rota.shared.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

SETTING_FLAGS = {"worker_name": "--name", "labels": "--label", "start_paused": "--paused"}
"""Settings whose option has another name than the setting."""

DATABASE_SETTINGS = ("call_timeout_seconds",)
SCHEDULER_SETTINGS = (
    *DATABASE_SETTINGS, "lookahead_seconds", "tick_seconds", "batch", "lock_lease_seconds",
    "assignment_timeout_seconds", "overdue_seconds", "cancel_grace_seconds", "forget_days", "liveness_seconds",
    "wake_address", "health_file", "start_paused",
)  # fmt: skip
SHARED_WORKER_SETTINGS = (
    *DATABASE_SETTINGS, "app", "capacity", "prefetch", "labels", "heartbeat_seconds", "liveness_seconds",
    "blocked_seconds", "poll_seconds", "grace_seconds", "cancel_grace_seconds", "abandoned_seconds",
    "result_limit_bytes", "batch", "wake_address", "allow_http", "allow_shell",
)  # fmt: skip
WORKER_SETTINGS = (*SHARED_WORKER_SETTINGS, "lookahead_seconds", "worker_name", "health_file")
UP_SETTINGS = tuple(dict.fromkeys((*SHARED_WORKER_SETTINGS, *SCHEDULER_SETTINGS)))


MOST_ROWS = 1_000_000
"""The largest ``--limit``: a list is read as a whole."""


def limit_option(default: int) -> Callable[[F], F]:
    """Add ``--limit``."""
    kind = WholeNumber(1, MOST_ROWS)
    return click.option("--limit", type=kind, default=default, show_default=True, help="At most so many.")


def task_choice_options(command: F) -> F:
    """Add ``--owner``, ``--group`` and ``--tag``, by which tasks are chosen (``TaskFilter``)."""
    for option in (
        click.option("--tag", "tags", multiple=True, help="Only those with this tag; with all, if it is repeated."),
        click.option("--group", help="Only those of this group."),
        click.option("--owner", help="Only those of this owner."),
    ):
        command = option(command)
    return command


def discover_option(command: F) -> F:
    """Add ``--discover``, which is another way to say what ``--app`` says (``discovered``)."""
    words = "Run all jobs (rota.Job) and apps in a package or a module. It is another way to write --app PACKAGE:*"
    return click.option("--discover", metavar="PACKAGE", help=words)(command)


def discovered(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the package of ``--discover`` as the app. Raises UsageError if ``--app`` is given, too."""
    package = options.pop("discover")
    if package is None:
        return options
    if options["app"] is not None:
        raise click.UsageError("--app and --discover both say what the worker runs; give one of them")
    return {**options, "app": f"{package}:*"}


def settings_options(names: Sequence[str]) -> Callable[[F], F]:
    """Add an option for each of these settings. One that is not given is None, so that the environment decides."""

    def decorate(command: F) -> F:
        for name in reversed(names):
            command = _setting(name)(command)
        return command

    return decorate


def _setting(name: str) -> Callable[[F], F]:
    field = Settings.model_fields[name]
    flag = SETTING_FLAGS.get(name, f"--{name.replace('_', '-')}")
    default = "" if field.default in (None, False) or field.default_factory else f" [default: {field.default}]"
    words = f"{field.description}.{default}  [env: ROTA_{name.upper()}]"
    if field.annotation is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=words)
    if field.default_factory is dict:
        return click.option(flag, name, multiple=True, type=KEY_VALUE, callback=gathered, help=words)
    kind = field.annotation if field.annotation in (int, float) else _Text(field)
    return click.option(flag, name, type=kind, help=words)


class _Text(click.types.StringParamType):
    """A text that is not empty, and no longer than the setting may be."""

    def __init__(self, field: FieldInfo) -> None:
        self._most = next((rule.max_length for rule in field.metadata if isinstance(rule, MaxLen)), None)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a text that is empty or too long."""
        text = str(super().convert(value, param, ctx))
        if not text:
            self.fail("it is empty; leave the option out, or give it a value.", param, ctx)
        if self._most is not None and len(text) > self._most:
            self.fail(f"{len(text)} characters are too many; at most {self._most} are allowed.", param, ctx)
        return text


class _KeyValue(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """``key=value``."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key, text


KEY_VALUE = _KeyValue()


def gathered(_: click.Context, __: click.Parameter, pairs: Sequence[tuple[str, str]]) -> dict[str, str] | None:
    """The pairs as a dict. None: the option was not given."""
    return dict(pairs) if pairs else None


def listed(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[str] | None:
    """The values as a list. None: the option was not given."""
    return list(values) or None


class _Json(click.ParamType):  # type: ignore[type-arg]
    """JSON of a kind as text, ``@file``, or ``-`` for stdin."""

    name = "JSON|@file|-"

    def __init__(self, kind: type, said: str) -> None:
        self._kind, self._said = kind, said

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read and parse the value."""
        if not isinstance(value, str):
            return value
        try:
            parsed = json.loads(_text(value), parse_constant=_refuse_constant)
            if not isinstance(parsed, self._kind):
                self.fail(f"{shortened(json.dumps(parsed))} is not {self._said}.", param, ctx)
        except OSError as error:
            self.fail(f"cannot read {value[1:]}: {error.strerror}", param, ctx)
        except RecursionError:
            self.fail("is nested too deeply", param, ctx)
        except ValueError as error:
            self.fail(f"is not JSON: {error}", param, ctx)
        return parsed


JSON_OBJECT = _Json(dict, 'a JSON object; write one as {"region": "eu"}')
JSON_LIST = _Json(list, 'a JSON list; write one as [{"cron": "0 9 * * mon"}, {"every": "15m"}]')


def _text(value: str) -> str:
    if value == "-":
        return sys.stdin.read()
    return Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not in JSON")


def verbosity_options(command: F) -> F:
    """Add ``-v`` and ``-q``, which may be repeated."""
    command = click.option("-q", "--quiet", count=True, help="Log less; may be repeated.")(command)
    return click.option("-v", "--verbose", count=True, help="Log more; may be repeated.")(command)
