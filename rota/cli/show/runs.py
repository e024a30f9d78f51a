"""Shows runs that somebody asked for, and can wait until they have ended."""

from collections.abc import Sequence
from functools import partial

from rota.cli.show.instances import show_instance
from rota.cli.show.output import note, show_json
from rota.cli.show.waits import outlasting
from rota.shared.control import instances
from rota.shared.control.documents import Document
from rota.shared.database.transactions import Database
from rota.shared.domain.states import TERMINAL, InstanceStatus

POLL_SECONDS = 0.2


def wait_until_ended(database: Database, runs: Sequence[Document]) -> list[Document]:
    """Wait until all runs have ended, and return them. Meanwhile, print on stderr why a run waits."""
    for run in runs:
        said = None
        look = partial(instances.get, database, run["id"])
        while (seen := outlasting(look))["status"] not in TERMINAL:
            if seen["reason"] and seen["reason"] != said:
                said = seen["reason"]
                note(f"instance {run['id']} is {seen['status']}: {said}")
            database.clock.sleep(POLL_SECONDS)
    return [outlasting(partial(instances.show, database, run["id"])) for run in runs]


def report_runs(database: Database, runs: Sequence[Document], *, wait: bool, as_json: bool) -> None:
    """Print the runs. With ``wait``, first wait for their ends; exit with code 1 if one did not succeed."""
    if wait:
        runs = wait_until_ended(database, runs)
    if as_json:
        show_json(runs[0] if len(runs) == 1 else runs)
    elif wait:
        now = outlasting(database.clock.now)
        for run in runs:
            show_instance(run, now)
    if wait and any(run["status"] != InstanceStatus.SUCCEED for run in runs):
        raise SystemExit(1)
