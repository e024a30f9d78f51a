"""Adopting: take up the rows that SQL inserted without a due time, and cancel what can never run."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.notices import of_instance
from rota.shared.database.refusals import sentence
from rota.shared.database.transactions import Database
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.domain.times import is_time, why_no_time
from rota.shared.store import assignments
from rota.shared.store.transitions import canceling, giving
from rota.shared.surprises import Surprises

log = logging.getLogger(__name__)


def adopt(database: Database, limit: int, surprises: Surprises) -> int:
    """Adopt the rows that SQL inserted without a due time, at most ``limit``, or cancel them; returns how many.

    What somebody has locked waits for the next pass.
    """
    orphans = database.read(lambda c: assignments.orphans(c, limit))
    refused = {instance_id: why_no_time(moment) for instance_id, moment in orphans.items() if not is_time(moment)}
    refusal = partial(_refuse, database=database, surprises=surprises)
    adopted = [instance_id for instance_id in orphans if instance_id not in refused]
    held_up = database.write_by_halves(adopted, giving.adopt, refusal, of_instance)
    return len(orphans) - len(held_up) - len(_cancel(database, refused, surprises))


def refuse(database: Database, instance_id: int, error: DBAPIError, surprises: Surprises) -> None:
    """Cancel an instance whose own write the database refuses."""
    reason = f"the database refuses the instance: {sentence(error)}"[:REASON_LIMIT]
    log.warning("assigner: %s: %s", of_instance(instance_id), reason)
    _cancel(database, {instance_id: reason}, surprises)


def note(surprises: Surprises, instance_id: int, error: DBAPIError) -> None:
    """Log that the database refuses a write of an instance, which nobody expects."""
    surprises.say(of_instance(instance_id), error)


def _refuse(instance_id: int, error: DBAPIError, database: Database, surprises: Surprises) -> None:
    refuse(database, instance_id, error, surprises)


def _cancel(database: Database, reasons: Mapping[int, str], surprises: Surprises) -> Sequence[int]:
    """Cancel instances, each with its reason; returns those that somebody has locked."""

    def write(connection: Connection, some: Sequence[int]) -> None:
        canceling.refuse(connection, {i: reasons[i] for i in some})

    return database.write_by_halves(sorted(reasons), write, partial(note, surprises), of_instance)
