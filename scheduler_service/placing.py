"""Placing: choose a worker for each instance, or say why it waits, or that it can never run."""

from collections.abc import Iterable, Mapping

from rota.scheduler_service.fitting import needed
from rota.scheduler_service.fleet import FleetSnapshot
from rota.scheduler_service.giving import Placed
from rota.scheduler_service.stretches import Line
from rota.shared.domain.errors import InvalidInput, UnknownType
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.planning import CATCH_UP_PRIORITY
from rota.shared.domain.states import REASON_LIMIT
from rota.shared.domain.times import is_time, why_no_time
from rota.shared.store.pending import Pending
from rota.shared.surprises import Surprises


def place(
    page: Iterable[Pending],
    snapshot: FleetSnapshot,
    bound: Mapping[int, list[PlannedNode]],
    line: Line,
    surprises: Surprises,
) -> tuple[list[Placed], list[tuple[Pending, str]], dict[int, str]]:
    """Those that have a worker now, those that wait, and those that can never run; ``bound``: nodes that some keep."""
    placed: list[Placed] = []
    waiting: list[tuple[Pending, str]] = []
    refused: dict[int, str] = {}
    for one in page:
        if (never := why_never(one)) is not None:
            refused[one.id] = never
            continue
        try:
            nodes, needs = needed(one, one.task_type or "", snapshot, bound.get(one.id))
            late, can_wait = one.due_at <= line.now, one.priority == CATCH_UP_PRIORITY
            turn = line.turn_of(one)
            fleet = snapshot.of_pool(one.pool)
            if one.only_worker_id is not None:
                worker = fleet.give_to(one.only_worker_id, needs)
            else:
                worker = fleet.choose(needs, one.lost_by, late=late, can_wait=can_wait, turn=turn, group=one.group)
            if worker is None:
                why = _waits_for_its_own(one) or fleet.why_not(needs)
                if not line.is_put_off(one, turn, why):
                    waiting.append((one, why))
            else:
                line.goes_to(one, worker)
                chosen = fleet.nodes_of(worker, one.task_type or "") if nodes is None else nodes
                placed.append(Placed(one, worker, chosen, keeps=one.id in bound))
        except UnknownType as error:
            waiting.append((one, str(error)[:REASON_LIMIT]))
        except InvalidInput as error:
            refused[one.id] = str(error)[:REASON_LIMIT]
        except Exception as error:  # noqa: BLE001 - perhaps a fault of Rota's: one row must not stop the others
            words = surprises.say(f"task type {one.task_type}", error)
            waiting.append((one, f"the instance could not be placed: {words}"[:REASON_LIMIT]))
    return placed, waiting, refused


def _waits_for_its_own(one: Pending) -> str | None:
    number = one.only_worker_id
    return None if number is None else f"waits for worker #{number}, the only one that may run it"


def why_never(one: Pending) -> str | None:
    """Why an instance can never run; None: it can."""
    if one.task_type is None:
        return f"there is no task {one.task_id}"
    if bad := [moment for moment in (one.schedule_datetime, one.due_at) if not is_time(moment)]:
        return why_no_time(bad[0])
    return "its task was deleted" if one.task_deleted else None
