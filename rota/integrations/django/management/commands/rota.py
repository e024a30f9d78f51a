"""``manage.py rota …`` is ``rota …`` with the project's database and tasks."""

import os
import subprocess
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from rota.beside import own_paths
from rota.integrations.django import project
from rota.shared.domain.errors import ConfigurationError

ROTA = (sys.executable, "-m", "rota")
RELOAD = "--reload"
SERVICES = {"up", "worker", "scheduler"}


class Command(BaseCommand):
    """Becomes the ``rota`` command by ``exec``: a worker must part itself in two before it imports the project."""

    help = (
        "Run a command of Rota with the database of this project's settings, and with what its tasks modules declare: "
        "rota up, rota worker, rota scheduler, rota task list. See rota --help. With --reload a service starts anew "
        "when the code changes."
    )
    requires_system_checks: Sequence[str] = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Whatever ``rota`` takes."""
        parser.add_argument("args", nargs=REMAINDER, metavar="…", help="the command, and its options")

    def run_from_argv(self, argv: list[str]) -> None:
        """Of a shell: become the command."""
        given = _without_djangos(argv[2:])
        try:
            environment = _environment()
        except ConfigurationError as error:
            self.stderr.write(self.style.ERROR(f"error: {error}"))
            sys.exit(1)
        if RELOAD in given:
            self._reload([one for one in given if one != RELOAD], environment)
            return
        sys.stdout.flush()
        os.execve(sys.executable, [*ROTA, *given], environment)  # noqa: S606 - our own command, and no shell

    def _reload(self, given: list[str], environment: dict[str, str]) -> None:
        if not SERVICES & {*given[:1]}:
            self.stderr.write(self.style.ERROR(f"error: {RELOAD} is for {', '.join(sorted(SERVICES))}"))
            sys.exit(2)
        from rota.integrations.django import reloading  # noqa: PLC0415 - few runs need it

        reloading.run([*ROTA, *given], environment)

    def handle(self, *args: Any, **_: Any) -> None:
        """Of ``call_command``: run the command, and raise CommandError with its exit code if it fails."""
        try:
            environment = _environment()
        except ConfigurationError as error:
            raise CommandError(str(error)) from None
        command = [*ROTA, *map(str, args)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
            for line in process.stdout or ():
                self.stdout.write(line, ending="")
        if process.returncode:
            raise CommandError(f"rota {' '.join(map(str, args))} has failed", returncode=process.returncode)


def _environment() -> dict[str, str]:
    return {**project.environment(), "PYTHONPATH": own_paths()}


def _without_djangos(given: Sequence[str]) -> list[str]:
    """The arguments without those that ``manage.py`` itself has read."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option)
    return parser.parse_known_args(given)[1]
