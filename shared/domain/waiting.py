"""Which fires that waited for a worker run no more. Pure: the time is given.

The misfire policy decides about fires that waited for a worker as it does about those that waited for a scheduler
(``deciding.decide``): if the oldest is late by more than the task's grace, ``fire_once`` runs the newest in place of
all. ``skip`` runs none that is so late, and ``fire_all`` of these the newest ``misfire_cap``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rota.shared.domain.states import MisfirePolicy, OverlapPolicy

A_WORKER = "no worker could run it in time"
ITS_LIMIT = "its limit and the workers had no place for it in time"
"""What a fire has waited for that was missed."""


@dataclass(frozen=True, slots=True)
class WaitingFire:
    """A new fire that is due and that no worker has got yet; times are naive UTC."""

    id: int
    task_id: int
    schedule_datetime: datetime
    due_at: datetime
    grace_seconds: int
    overlap_policy: str | None
    misfire_policy: str | None = MisfirePolicy.FIRE_ONCE
    misfire_cap: int = 1
    waits_for: str = A_WORKER


def superseded(fires: Iterable[WaitingFire], now: datetime) -> dict[int, str]:
    """The fires that do not run any more, each with the reason.

    Under ``replace`` a newer fire that is due always runs in place of the older. Under the other overlap policies the
    misfire policy decides, if one of them was missed: late by more than its grace.
    """
    of_task: dict[int, list[WaitingFire]] = {}
    for fire in fires:
        of_task.setdefault(fire.task_id, []).append(fire)
    reasons: dict[int, str] = {}
    for task_fires in of_task.values():
        *older, newest = sorted(task_fires, key=lambda fire: (fire.schedule_datetime, fire.id))
        if newest.overlap_policy == OverlapPolicy.REPLACE:
            reasons |= {fire.id: f"replaced by instance {newest.id}, a newer fire of its task" for fire in older}
        elif missed := [fire for fire in (*older, newest) if (now - fire.due_at).total_seconds() > fire.grace_seconds]:
            reasons |= _missed(older, newest, missed)
    return reasons


def _missed(older: Sequence[WaitingFire], newest: WaitingFire, missed: Sequence[WaitingFire]) -> Mapping[int, str]:
    """What the misfire policy makes of the fires of a task, some of which were missed."""
    said = f"missed: {newest.waits_for}"
    if newest.misfire_policy == MisfirePolicy.SKIP:
        return {fire.id: f"{said}, and misfire_policy is skip" for fire in missed}
    if newest.misfire_policy == MisfirePolicy.FIRE_ALL:
        dropped = missed[: -newest.misfire_cap]
        return {fire.id: f"{said}; the newest {newest.misfire_cap} of those that were missed run" for fire in dropped}
    return {fire.id: f"{said}; instance {newest.id} runs" for fire in older}
