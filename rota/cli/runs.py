"""Runs that somebody asked for: wait until they have ended, and say what came of them."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from rota.cli.instance_view import instance_document, node_document, show_instance
from rota.cli.output import note, show_json
from shared.domain.states import TERMINAL, InstanceStatus
from shared.store import instances
from shared.store.database import Database

POLL_SECONDS = 0.2


def wait_until_ended(database: Database, instance_ids: Sequence[int]) -> None:
    """Return when all of them have ended; what they wait for meanwhile is said on stderr."""
    for instance_id in instance_ids:
        said = None
        while (row := database.read(partial(instances.find, instance_id=instance_id))).status not in TERMINAL:
            if row.reason and row.reason != said:
                note(f"instance {instance_id} is {row.status}: {row.reason}")
                said = row.reason
            time.sleep(POLL_SECONDS)


def _read(connection: Connection, instance_id: int) -> tuple[Row[Any], list[Row[Any]]]:
    return instances.find(connection, instance_id), instances.nodes(connection, instance_id)


def report_run(database: Database, instance_ids: Sequence[int], *, wait: bool, as_json: bool) -> None:
    """Show them; after a wait with all of each, and with exit code 1 if one did not succeed."""
    runs = [database.read(partial(_read, instance_id=instance_id)) for instance_id in instance_ids]
    if as_json:
        documents = [instance_document(row) | {"nodes": [node_document(n) for n in nodes]} for row, nodes in runs]
        show_json(documents[0] if len(documents) == 1 else documents)
    elif wait:
        now = database.clock.now()
        for row, nodes in runs:
            show_instance(row, nodes, now)
    if wait and any(row.status != InstanceStatus.SUCCEED for row, _ in runs):
        raise SystemExit(1)
