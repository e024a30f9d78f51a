"""What a claim reads of a shard: one value, which is NULL for an instance that is none, as most are."""

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, String, case, func

from rota.shared.store.tables import schedule_instance

_instance = schedule_instance.c


@dataclass(frozen=True, slots=True)
class Shard:
    """Which shard of its fire an instance is, from 0 on, of how many."""

    parent_id: int | None = None
    """The instance that holds the overlap slot for all shards. None: it runs by itself, as a replay of one shard."""

    index: int = 0
    total: int = 1
    is_part: bool = False
    """Whether it is a shard at all, or the replay of one."""


WHOLE = Shard()
"""Of an instance that is no shard."""

_columns = (_instance.parent_id, _instance.shard_index, _instance.shard_total)
term: ColumnElement[Any] = case((_instance.shard_index.is_not(None), func.json_array(*_columns, type_=String())))
"""What ``read`` reads."""


def read(value: Any) -> Shard:
    """The shard. What SQL has made of a number counts as it would for a whole instance."""
    if value is None:
        return WHOLE
    parent_id, index, total = json.loads(value) if isinstance(value, str) else value
    is_counted = isinstance(index, int) and isinstance(total, int)
    index, total = (index, total) if is_counted else (0, 1)
    return Shard(parent_id if isinstance(parent_id, int) else None, index, total, is_part=True)
