"""``rota health``: whether the process of this container beats. It needs no database."""

from typing import Any

import click

from rota.cli.options import settings_options
from rota.cli.shell import Shell, json_option, naming_options, pass_shell
from rota.cli.show.output import show_json
from rota.shared.clock import boottime
from rota.shared.domain.errors import ConfigurationError, NotPossible
from rota.shared.domain.times import span
from rota.shared.health import silent_seconds


@click.command()
@settings_options(("health_file", "liveness_seconds"))
@json_option
@pass_shell
def health(shell: Shell, as_json: bool, **options: Any) -> None:
    """Tell whether this container's process has beaten lately.

    Exit code 0 if the process of ROTA_HEALTH_FILE has beaten within ROTA_LIVENESS_SECONDS, else 1.

    \b
    Examples:
      rota health
      rota health --health-file /tmp/worker.beat --json
    """
    settings = shell.settings(**options)
    if settings.health_file is None:
        raise ConfigurationError("ROTA_HEALTH_FILE is not set, here and for the process that is to be asked about")
    with naming_options():
        silent = silence(settings.health_file)
    alive = silent is not None and silent <= settings.liveness_seconds
    words = None if silent is None else span(silent)
    if as_json:
        show_json({"alive": alive, "silent_seconds": silent, "liveness_seconds": settings.liveness_seconds})
    elif alive:
        click.echo(f"alive: it has beaten {words} ago")
    if not alive:
        when = f"has been silent for {words}" if words else "has never beaten"
        raise NotPossible(
            f"not alive: the process of {settings.health_file} {when} (limit {settings.liveness_seconds} s)"
        )


def silence(path: str) -> float | None:
    """Seconds since the last beat in the file ``path``; None: there was none.

    Raises ConfigurationError for a file that cannot be read.
    """
    try:
        return silent_seconds(path, boottime())
    except OSError as error:
        raise ConfigurationError(f"ROTA_HEALTH_FILE {path} cannot be read: {error.strerror}") from error
