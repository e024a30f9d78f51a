"""The shards of an instance, in short."""

from collections import Counter
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control.documents import Document
from rota.shared.domain.states import InstanceStatus
from rota.shared.store import spreading

SHOWN = 20
"""So many shards are shown; ``rota instance list --parent`` has all."""

_FIRST = (
    InstanceStatus.FAILED, InstanceStatus.CANCELED, InstanceStatus.RUNNING, InstanceStatus.ASSIGNED,
    InstanceStatus.PENDING, InstanceStatus.SUCCEED,
)  # fmt: skip


def of_instance(connection: Connection, instance: Row[Any]) -> Document | None:
    """How many shards are in which state, and ``first``: those that failed, then those that have not ended.

    None for an instance that has no shards.
    """
    if instance.shard_total is None or instance.shard_index is not None:
        return None
    shards = spreading.shards_of(connection, [instance.id])[instance.id]
    counts = Counter(one.status for one in shards)
    first = sorted(shards, key=lambda one: (_place(one.status), one.index))[:SHOWN]
    shown = [
        {"id": one.id, "shard_index": one.index, "status": one.status, "worker": one.worker, "reason": one.reason}
        for one in first
    ]
    return {"total": instance.shard_total, **counts, "first": shown}


def _place(status: str) -> int:
    return _FIRST.index(InstanceStatus(status)) if status in set(InstanceStatus) else 0
