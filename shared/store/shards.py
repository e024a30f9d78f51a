"""What a claim reads of a shard: one value, which is NULL for an instance that is none, as most are."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, String, case, exists, func, literal_column, select

from rota.shared.domain.states import InstanceStatus
from rota.shared.store.tables import schedule_instance

_instance = schedule_instance.c
_parent = schedule_instance.alias("parent")

parent_runs: ColumnElement[bool] = exists(
    select(_parent.c.id)
    .where(_parent.c.id == _instance.parent_id, _parent.c.status == InstanceStatus.RUNNING.value)
    .correlate(schedule_instance)
)
"""Whether the instance of which this one is a shard runs. SQL may have ended it, or put it back."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which shard of its fire an instance is, from 0 on, of how many."""

    parent_id: int | None = None
    """The instance that holds the overlap slot for all shards. None: it runs by itself, as a replay of one shard."""

    index: int = 0
    total: int = 1
    is_part: bool = False
    """Whether it is a shard at all, or the replay of one."""

    may_run: bool = True
    """Whether its parent ran when it was read, or it has none."""


WHOLE = Shard()
"""Of an instance that is no shard."""

_may_run: ColumnElement[int] = case(
    (_instance.parent_id.is_(None), literal_column("1")), (parent_runs, literal_column("1")), else_=literal_column("0")
)
_columns = (_instance.parent_id, _instance.shard_index, _instance.shard_total, _may_run)
term: ColumnElement[Any] = case((_instance.shard_index.is_not(None), func.json_array(*_columns, type_=String())))
"""What ``read`` reads."""


def read(value: Any) -> Shard:
    """The shard. What SQL has made of a number counts as it would for a whole instance."""
    if value is None:
        return WHOLE
    parent_id, index, total, may_run = json.loads(value) if isinstance(value, str) else value
    is_counted = isinstance(index, int) and isinstance(total, int)
    index, total = (index, total) if is_counted else (0, 1)
    parent = parent_id if isinstance(parent_id, int) else None
    return Shard(parent, index, total, is_part=True, may_run=bool(may_run))
