"""Strays: end the instances, and free the slots, that stand in a state at which nobody would ever look again."""

import logging
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.notices import of_instance
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.store import strays
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)


class Strays:
    """The duty: look for strays once a liveness limit; end each with a reason, and free slots kept for no thread."""

    def __init__(self, database: Database, liveness_seconds: float) -> None:
        self._database = database
        self._rest = liveness_seconds
        self._surprises = Surprises("strays")

    def step(self) -> float:
        """One look; returns the seconds to rest."""
        for instance_id, status in self._database.read(strays.find).items():
            log.warning("strays: instance %d was made %s by SQL, and nobody has it: it is ended", instance_id, status)
            try:
                self._database.write_by_halves([instance_id], partial(_end, status=status), None, of_instance)
            except (DatabaseProblem, DBAPIError) as error:  # the others should not wait for this one
                self._surprises.say(of_instance(instance_id), error)
            else:
                self._surprises.over(of_instance(instance_id))
        if slots := self._database.read(strays.find_slots):
            log.warning("strays: the ended instances %s keep slots for no thread, by SQL: they are freed", slots)
            self._database.write_by_halves(slots, strays.free_slots, None, of_instance)
        return self._rest


def _end(connection: Connection, instance_ids: Sequence[int], status: str) -> None:
    [instance_id] = instance_ids
    strays.end(connection, instance_id, status)
