"""A batch: what is written for some due tasks, decided and placed. It writes nothing itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from rota.scheduler_service.fleet import FleetSnapshot
from rota.scheduler_service.placement import Needs
from rota.scheduler_service.writing import TaskWrite, bounded
from rota.shared.domain.after_ends import NO_FLIGHT, Flight
from rota.shared.domain.deciding import decide
from rota.shared.domain.errors import InvalidInput
from rota.shared.domain.jsontext import json_text, json_value
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.planning import CATCH_UP_PRIORITY, Decision, PlannedTask, TaskTerms
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.store import overlap, turns
from rota.shared.store.fires import Fire
from rota.shared.store.plans import Advance
from rota.shared.surprises import Surprises

NO_FLIGHTS: Mapping[int, Flight] = MappingProxyType({})


class Batch:
    """The decisions of one batch. Tasks with equal terms, as in a herd, share one decision.

    ``full``: the tasks whose overlap slots are all taken, each with the number of its slots. Their fires stay pending,
    so that they fill no worker's queue. ``flights``: of tasks whose plans follow ends. ``at_work_since``: what was due
    since then is late, but was not missed.
    """

    def __init__(
        self,
        snapshot: FleetSnapshot,
        full: Mapping[int, int],
        now: datetime,
        horizon: datetime,
        surprises: Surprises,
        *,
        flights: Mapping[int, Flight] = NO_FLIGHTS,
        at_work_since: datetime,
        paused: bool = False,
    ) -> None:
        self._flights = flights
        self._snapshot = snapshot
        self._full = full
        self._now = now
        self._horizon = horizon
        self._surprises = surprises
        self._paused = paused
        self._at_work_since = at_work_since
        self._decisions: dict[tuple[TaskTerms, datetime | None, Flight], Decision] = {}
        self._works: dict[TaskTerms, Work] = {}

    def write_of(self, task: PlannedTask) -> TaskWrite:
        """What is written for a task.

        Raises InvalidInput for inputs of which no plan can be made, and no other error but one that is not expected.
        """
        write = self._write_of(task)
        if write.fires and task.terms.inputs.jitter_seconds:
            for fire in write.fires:
                fire.due_at = task.terms.inputs.due_at(task.id, fire.schedule_datetime)
        return write

    def _write_of(self, task: PlannedTask) -> TaskWrite:
        decision = bounded(self._decision(task), task.param)
        advance = Advance.of(task, decision)
        if not decision.fires:
            return TaskWrite(advance)
        # The plan is good whatever the param is: fires that cannot be placed are left to the assigner.
        try:
            value = _readable(task.param)
        except InvalidInput as error:
            return TaskWrite(advance, self._pending(task, decision.fires, None, str(error)))
        if task.id in self._full:
            reason = overlap.in_turn(self._full[task.id])
            return TaskWrite(advance, self._pending(task, decision.fires, task.param, reason))
        try:
            work = self._work(task.terms, value)
            return TaskWrite(advance, [self._placed(task, moment, work) for moment in decision.fires])
        except InvalidInput as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - it concerns a worker, or Rota itself: the plan is good all the same
            reason = f"the fire could not be placed: {self._surprises.say(f'the fires of task {task.name!r}', error)}"
        return TaskWrite(advance, self._pending(task, decision.fires, task.param, reason))

    def _decision(self, task: PlannedTask) -> Decision:
        flight = self._flights.get(task.id, NO_FLIGHT)
        alike = (task.terms, task.next_fire_at, flight)
        decision = self._decisions.get(alike)
        if decision is None:
            decision = decide(task.terms, task.next_fire_at, self._now, self._horizon, flight, paused=self._paused)
            self._decisions[alike] = decision
        return decision

    def _placed(self, task: PlannedTask, moment: datetime, work: "Work") -> Fire:
        fleet = self._snapshot.fleet
        priority = self._priority(task.terms, moment)
        due_at = task.terms.inputs.due_at(task.id, moment) if task.terms.inputs.jitter_seconds else None
        terms = task.terms
        is_later = due_at is not None and due_at > self._horizon
        if is_later or terms.weight != 1 or not (terms.limit_name is terms.pool is terms.spread is None):
            return Fire(task.id, moment, priority, task.param, None, (), None, work.in_turn)  # the assigner assigns it
        late, can_wait = moment <= self._now, priority == CATCH_UP_PRIORITY
        worker = fleet.choose(work.needs, late=late, can_wait=can_wait, group=task.group)
        reason = fleet.why_not(work.needs) if worker is None else None
        nodes = work.nodes or ()
        if worker is not None and work.nodes is None:
            nodes = fleet.nodes_of(worker, task.terms.type)
        return Fire(task.id, moment, priority, task.param, worker, nodes, reason, work.in_turn)

    def _pending(self, task: PlannedTask, moments: Iterable[datetime], param: str | None, reason: str) -> list[Fire]:
        said, terms = reason[:REASON_LIMIT], task.terms
        return [
            Fire(task.id, moment, self._priority(terms, moment), param, None, (), said, _in_turn(terms))
            for moment in moments
        ]

    def _priority(self, terms: TaskTerms, moment: datetime) -> int:
        """The priority of a fire: one that was missed goes behind what is due now."""
        if moment >= self._at_work_since or (self._now - moment).total_seconds() <= terms.misfire_grace_seconds:
            return terms.priority
        return CATCH_UP_PRIORITY

    def _work(self, terms: TaskTerms, param: Any) -> "Work":
        work = self._works.get(terms) if param is None else None
        if work is None:
            nodes, needs = self._snapshot.wanted(
                terms.type, self._snapshot.catalog.listed(param), terms.required_labels
            )
            work = Work(nodes, needs, _in_turn(terms))
            if param is None:
                self._works[terms] = work
        return work


@dataclass(frozen=True, slots=True)
class Work:
    """What fires with equal terms and no param have in common: their nodes, and what they need of a worker.

    With ``nodes`` None, the worker's version of the task type says them. ``in_turn``: as of ``Fire``.
    """

    nodes: Sequence[PlannedNode] | None
    needs: Needs
    in_turn: bool


def slots_of(terms: TaskTerms) -> int | None:
    return overlap.slots_waited_for(terms.overlap_policy, terms.max_instances)


def _in_turn(terms: TaskTerms) -> bool:
    return turns.waits_in_turn(terms.overlap_policy, terms.max_instances)


def _readable(param: str | None) -> Any:
    """The value of a param.

    Raises InvalidInput for one that Python cannot read, or could not write again: it reads 1e999 as infinity.
    """
    value = None if param is None else json_value(param)
    if value is not None:
        json_text(value)
    return value
