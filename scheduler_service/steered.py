"""What a person has decided of the fires that were missed. A batch in which no task missed several pays nothing."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rota.shared.database.transactions import Database
from rota.shared.domain.planning import PlannedTask, TaskTerms
from rota.shared.domain.states import MisfirePolicy
from rota.shared.domain.times import is_time
from rota.shared.store import steering


def give(database: Database, tasks: Sequence[PlannedTask], now: datetime) -> None:
    """Give the tasks of which one missed fire is to run for several, which of these a person has skipped or set."""
    plans = {(task.terms, task.next_fire_at) for task in tasks}
    several = {plan for plan in plans if _runs_one_for_several(*plan, now)}
    missed = {t.id: t.next_fire_at for t in tasks if t.next_fire_at and (t.terms, t.next_fire_at) in several}
    put = database.read(lambda c: steering.put_among(c, missed, now)) if missed else {}
    for task in tasks if put else ():
        if task.id in put:
            task.terms = replace(task.terms, put_by_hand=put[task.id])


def _runs_one_for_several(terms: TaskTerms, first: datetime | None, now: datetime) -> bool:
    """Whether a task missed its next fire and another one since then, and runs one for all."""
    if terms.misfire_policy != MisfirePolicy.FIRE_ONCE or not is_time(first):
        return False
    if (now - first).total_seconds() <= terms.misfire_grace_seconds:
        return False
    try:
        second = None if terms.inputs.follows_ends else terms.inputs.next_after(first)
    except Exception:  # noqa: BLE001 - of inputs of which no plan can be made ``decide`` says why
        return False
    return second is not None and second <= now
