"""What many instances and their tasks have in common, as a claim reads it: one JSON text, parsed once."""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, String, type_coerce

from rota.shared.database.json_fields import fields_named
from rota.shared.domain.retry import RetryPolicy
from rota.shared.domain.states import PLANNED_ORIGINS, OverlapPolicy, TaskStatus
from rota.shared.store import params, retry_policies, shards
from rota.shared.store.overlap import slots_waited_for
from rota.shared.store.plans import TERMS_KEPT
from rota.shared.store.shards import Shard
from rota.shared.store.tables import schedule_instance, schedule_task

_instance = schedule_instance.c
_task = schedule_task.c


@dataclass(frozen=True, slots=True, eq=False)
class RunTerms:
    """The columns of an instance and its task that many instances have in common; these share one object."""

    status: str
    attempt: int
    run_number: int
    origin: str
    failures: int
    task_status: str
    is_deleted: int
    overlap_policy: str
    max_instances: int | None
    timezone: str
    retry: RetryPolicy
    on_worker_lost: str
    timeout_seconds: int | None
    run_timeout_seconds: int | None
    from_sequence: int | None
    limit_name: str | None
    weight: int
    shard: Shard
    large_param: int
    may_run: bool = field(init=False)
    """Whether the task is not deleted, and is on if the instance is a fire; and of a shard, whether its parent runs."""

    is_alone: bool = field(init=False)
    """Whether its task runs one at a time, those that wait in the order of their turns, and no limit bounds it."""

    is_plain: bool = field(init=False)
    """Whether the slot of the instance follows from the policy of its task, if it may run, and no limit bounds it."""

    def __post_init__(self) -> None:
        is_on = self.task_status == TaskStatus.ON or self.origin not in PLANNED_ORIGINS
        is_shard = self.shard.parent_id is not None
        is_free = is_shard or (self.overlap_policy == OverlapPolicy.ALLOW and self.max_instances is None)
        may_run = not self.is_deleted and is_on and self.shard.may_run
        object.__setattr__(self, "may_run", may_run)
        is_plain = may_run and self.limit_name is None and (is_free or self.overlap_policy == OverlapPolicy.SKIP)
        object.__setattr__(self, "is_plain", is_plain)
        slots = None if is_shard else slots_waited_for(self.overlap_policy, self.max_instances)
        object.__setattr__(self, "is_alone", slots == 1 and self.limit_name is None)


TERMS: dict[str, ColumnElement[Any]] = {
    "status": type_coerce(_instance.status, String),
    "attempt": _instance.attempt,
    "run_number": _instance.run_number,
    "origin": type_coerce(_instance.origin, String),
    "failures": _instance.failures,
    "task_status": type_coerce(_task.status, String),
    "is_deleted": _task.is_deleted,
    "overlap_policy": type_coerce(_task.overlap_policy, String),
    "max_instances": _task.max_instances,
    "timezone": _task.timezone,
    "retry": retry_policies.term,
    "on_worker_lost": type_coerce(_task.on_worker_lost, String),
    "timeout_seconds": _task.timeout_seconds,
    "run_timeout_seconds": _task.run_timeout_seconds,
    "from_sequence": _instance.from_sequence,
    "limit_name": _task.limit_name,
    "weight": _task.weight,
    "shard": shards.term,
    "large_param": params.bytes_of_large(_instance.param),
}
"""The fields of RunTerms by their names."""


@lru_cache(TERMS_KEPT)
def parsed_terms(text: str) -> RunTerms:
    """The terms of a row: ``TERMS`` as one JSON text, which is parsed once."""
    terms = fields_named(TERMS, json.loads(text))
    read = {"retry": retry_policies.read(terms["retry"]), "shard": shards.read(terms["shard"])}
    return RunTerms(**{**terms, **read})
