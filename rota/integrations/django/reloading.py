"""``manage.py rota up --reload``: services that begin anew when the project's code changes, for development."""

import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence

from django.utils import autoreload

from rota.integrations.django.declaring import tasks_modules


def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a service beside Django's autoreloader, as ``runserver`` runs; it ends with this process.

    A service that cannot start, as of code with an error, is started again after the next change.
    """
    autoreload.run_with_reloader(_run, list(command), dict(environment))


def _run(command: list[str], environment: dict[str, str]) -> None:
    """On a thread of the process that watches: it ends this process when a file has changed."""
    try:
        autoreload.check_errors(lambda: list(tasks_modules()))()  # what is imported is watched
    except Exception:  # noqa: BLE001 - a person is to read it, and to mend the code
        traceback.print_exc()
    lifeline, held = os.pipe()
    with subprocess.Popen(  # noqa: S603 - our own command, and no shell
        [*command, "--parent-pipe", str(lifeline)], env=environment, pass_fds=[lifeline]
    ) as service:
        os.close(lifeline)
    os.close(held)
    print(f"rota has ended (exit code {service.returncode}); it starts again after a change", file=sys.stderr)  # noqa: T201
