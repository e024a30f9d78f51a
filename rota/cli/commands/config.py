"""``rota config``: every setting, its value, and where it came from."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click
from pydantic import SecretStr

from rota.cli.options import settings_options
from rota.cli.shell import Shell, database_option, json_option, pass_shell
from rota.cli.show.output import note, show_json
from rota.cli.show.table import show_table
from rota.shared.database.urls import parsed, shown
from rota.shared.settings import SECRETS, Settings
from rota.shared.waking.addresses import shown_redis

PREFIX = "ROTA_"
ALL_BUT_SECRETS = tuple(name for name in Settings.model_fields if name not in SECRETS)


@click.command()
@settings_options(ALL_BUT_SECRETS)
@json_option
@database_option
@pass_shell
def config(shell: Shell, as_json: bool, **options: Any) -> None:
    """Show every setting, its value and where it came from.

    Passwords are not shown. Every fault is reported, with exit code 1.

    \b
    Examples:
      rota config
      ROTA_CAPACITY=20 rota config --label gpu=a100 --json
    """
    unknown = unknown_variables(os.environ)
    for name, meant in unknown.items():
        advice = f"did you mean {meant}?" if meant else "rota config lists those there are"
        note(f"warning: {name} is set, but there is no such setting; {advice}")
    settings = shell.settings(**options)
    given = {name for name, value in options.items() if value is not None}
    if shell.database_url is not None:
        given.add("database_url")
    rows = [
        (f"{PREFIX}{name.upper()}", shown_value(name, getattr(settings, name)), source(name, given), field.description)
        for name, field in Settings.model_fields.items()
    ]
    if as_json:
        keys = ("name", "value", "source", "description")
        show_json({"settings": [dict(zip(keys, row, strict=True)) for row in rows], "unknown": unknown})
    else:
        show_table(("setting", "value", "from", "what it is"), rows, empty="")


def source(name: str, given: set[str]) -> str:
    """Where a setting's value came from: an option, the environment, or the default."""
    if name in given:
        return "option"
    variables = {variable.upper() for variable in os.environ}
    return "environment" if f"{PREFIX}{name.upper()}" in variables else "default"


def shown_value(name: str, value: Any) -> Any:
    """A setting's value without its secrets."""
    if not isinstance(value, SecretStr):
        return value
    return shown(parsed(value.get_secret_value())) if name == "database_url" else shown_redis(value.get_secret_value())


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables that start with ROTA_ but are no settings, each with the setting that was probably meant."""
    known = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    strange = sorted(name for name in environment if name.upper().startswith(PREFIX) and name.upper() not in known)
    return {name: next(iter(get_close_matches(name.upper(), known, n=1)), None) for name in strange}
