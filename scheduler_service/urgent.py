"""Urgent work: the scheduler tells the workers to which it has just given some, so that they do not poll too late.

It also tells a worker that has run all that it was given of a line, and is given more.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from rota.scheduler_service.fleet import FleetSnapshot
from rota.scheduler_service.giving import Placed
from rota.scheduler_service.placement import Fleet
from rota.shared.domain.states import Origin
from rota.shared.store.pending import Pending
from rota.shared.waking.sending import send

URGENT_PRIORITY = 1
"""The fires of a task are urgent with this priority or a better one (0)."""


class Given(NamedTuple):
    """What a worker was given, and when it is due (naive UTC)."""

    worker: int | None
    due_at: datetime


def wake_workers(urgent: Iterable[Given], fleet: Fleet, before: datetime) -> None:
    """Wake the workers that were given urgent work due ``before`` this moment (naive UTC), and have free slots.

    The work is committed. What is due later, the workers poll in time.
    """
    send(fleet.wake_addresses({one.worker for one in urgent if one.worker is not None and one.due_at < before}))


def wake_for(placed: Sequence[Placed], dry: Collection[int], snapshot: FleetSnapshot, before: datetime) -> None:
    """Wake the workers that were given these, if the work is urgent and due ``before`` this moment, or if its task is
    ``dry``: then the worker has run all that it had of the task, and waits for more."""
    for pool in {p.instance.pool for p in placed}:
        fleet, mine = snapshot.of_pool(pool), [p for p in placed if p.instance.pool == pool]
        waiting = {p.worker for p in mine if p.instance.task_id in dry}
        send(fleet.wake_addresses(waiting, also_full=True))
        others = (p for p in mine if p.worker not in waiting and is_urgent(p.instance))
        wake_workers((Given(p.worker, p.instance.due_at) for p in others), fleet, before)


def is_urgent(one: Pending) -> bool:
    """Whether somebody waits for an instance that a worker is given: it is no plain fire, and no part of a backfill."""
    is_plain = one.is_planned and one.attempt == 0 and one.priority > URGENT_PRIORITY
    return one.origin != Origin.BACKFILL and not is_plain
