"""Which fires that waited for a worker run no more, because a newer one runs in their place. Pure: the time is given.

The misfire policy decides about fires that waited for a worker as it does about those that waited for a scheduler
(``planning.decide``): if the oldest is late by more than the task's grace, the newest runs in place of all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rota.shared.domain.states import OverlapPolicy


@dataclass(frozen=True, slots=True)
class WaitingFire:
    """A new fire that is due and that no worker has got yet; times are naive UTC."""

    id: int
    task_id: int
    schedule_datetime: datetime
    due_at: datetime
    grace_seconds: int
    overlap_policy: str | None


def superseded(fires: Iterable[WaitingFire], now: datetime) -> dict[int, str]:
    """The fires that do not run because a newer one of their task does, each with the reason.

    Under ``replace`` a newer fire that is due always runs in place of the older. Under the other policies it does if
    one of them was missed: late by more than its grace.
    """
    of_task: dict[int, list[WaitingFire]] = {}
    for fire in fires:
        of_task.setdefault(fire.task_id, []).append(fire)
    reasons: dict[int, str] = {}
    for task_fires in of_task.values():
        newest = max(task_fires, key=lambda fire: (fire.schedule_datetime, fire.id))
        older = [fire for fire in task_fires if fire is not newest]
        if newest.overlap_policy == OverlapPolicy.REPLACE:
            reasons |= {fire.id: f"replaced by instance {newest.id}, a newer fire of its task" for fire in older}
        elif any(now - fire.due_at > timedelta(seconds=fire.grace_seconds) for fire in older):
            reasons |= {fire.id: f"missed: no worker could run it in time; instance {newest.id} runs" for fire in older}
    return reasons
