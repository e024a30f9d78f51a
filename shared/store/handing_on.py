"""Handing on: a run of a task that runs one at a time ends, and its slot goes to the next one in the same transaction.

The worker has read the next one before. The claim is guarded as any other, and asks besides whether the slots of the
task are free and whether it is the oldest that waits, wherever the others are assigned
(docs/decisions/0057-handing-a-turn-on.md).
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from rota.shared.database.later import Later
from rota.shared.domain.states import WorkerLostPolicy
from rota.shared.store import reports
from rota.shared.store.reports import Report
from rota.shared.store.runs import ASSIGNED, Wanted
from rota.shared.store.transitions.following import Following, claim_following, hand_on


def may_follow(row: Wanted) -> bool:
    """Whether a run that ends may hand its slot on to this instance, when its turn comes."""
    return row.terms.is_alone and row.terms.status == ASSIGNED and not row.large and row.first_node is not None


def report(
    connection: Connection, worker_id: int, batch: Collection[Report], following: Sequence[Wanted]
) -> list[Later]:
    """Write reports of runs that this worker holds, and claim those that follow; each result tells whether it was won.

    Raises Unexpected if the worker has lost one of the runs. Nothing is written then.
    """
    reports.report(connection, worker_id, batch, at_once=True)
    return claim_following(connection, worker_id, [_following(row) for row in following])


def is_one_turn(batch: Collection[Report], following: Sequence[Wanted]) -> bool:
    """Whether this is the success of one run, which ``succeed`` can write together with what follows."""
    if not len(batch) == len(following) == 1:
        return False
    (done,), (row,) = batch, following
    return done.is_plain_success and done.instance_id < row.id and not _may_run_once(row)


def succeed(connection: Connection, worker_id: int, batch: Collection[Report], following: Sequence[Wanted]) -> bool:
    """Write the success of one run, and claim what follows, by fewer statements than ``report``.

    Returns True. Raises Unexpected if not all of that can be done: then nothing is written, not the success either.
    """
    (success,), (row,) = reports.successes(batch), following
    hand_on(connection, worker_id, success, _following(row))
    return True


def _following(row: Wanted) -> Following:
    node = row.first_node or 0
    return Following(row.id, row.attempt, row.schedule_task_id, row.origin, node, _may_run_once(row))


def _may_run_once(row: Wanted) -> bool:
    return row.terms.on_worker_lost == WorkerLostPolicy.FAIL
