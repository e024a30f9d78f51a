"""A pending instance, as the assigner reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rota.shared.domain.errors import RotaError
from rota.shared.domain.groups import Group, group_of
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.states import PLANNED_ORIGINS, OverlapPolicy
from rota.shared.domain.waiting import A_WORKER, ITS_LIMIT, WaitingFire
from rota.shared.domain.weights import weight_in
from rota.shared.store import overlap, turns
from rota.shared.store.run_numbers import FireKey

Cursor = tuple[int, datetime, int]
"""The last instance that a scan of the pending instances has read: (priority, due_at, id)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending instance with the columns needed to assign it; ``task_type`` is None if its task does not exist.

    It comes without its param, of which a thousand may be gigabytes.
    """

    id: int
    task_id: int
    schedule_datetime: datetime
    due_at: datetime
    run_number: int | None
    fire_key: str
    priority: int
    has_own_param: bool
    param_size: int | None
    """About how many bytes its param has, or else its task's; None if there is neither."""

    may_list_nodes: bool
    """Whether that param may list its own nodes."""

    reason: str | None
    lost_by: str | None
    task_type: str | None
    task_deleted: int | None
    required_labels: dict[str, str] | None
    origin: str
    attempt: int
    overlap_policy: str | None
    max_instances: int | None
    overlap_slot: int | None
    task_status: str | None
    misfire_grace_seconds: int | None
    misfire_policy: str | None
    misfire_cap: int | None
    from_sequence: int | None
    limit_name: str | None
    run_timeout_seconds: int | None
    parent_id: int | None
    shard_index: int | None
    shard_total: int | None
    only_worker_id: int | None
    spread: str | None
    shards: int | None
    gmt_cancel_requested: datetime | None
    pool: str | None
    task_group: str | None
    task_weight: Any
    listed: Sequence[PlannedNode] | RotaError | None = None
    """The nodes that its param lists, or why that is a bad list. ``pending`` leaves it None."""

    @property
    def may_have_nodes(self) -> bool:
        """Whether it may have nodes already. Whatever comes back has a reason."""
        return self.attempt > 0 or self.reason is not None or self.from_sequence is not None

    @property
    def is_planned(self) -> bool:
        """Whether the instance is a fire of its task's plan, with times that SQL has not made unreadable."""
        is_dated = isinstance(self.schedule_datetime, datetime) and isinstance(self.due_at, datetime)
        return is_dated and self.task_type is not None and self.origin in PLANNED_ORIGINS

    @property
    def waiting_fire(self) -> WaitingFire:
        """The instance as a fire that waits for a worker."""
        grace = self.misfire_grace_seconds or 0
        policies = (self.overlap_policy, self.misfire_policy, self.misfire_cap or 1)
        waits_for = A_WORKER if self.limit_name is None else ITS_LIMIT
        return WaitingFire(self.id, self.task_id, self.schedule_datetime, self.due_at, grace, *policies, waits_for)

    @property
    def is_out_of_line(self) -> bool:
        """Whether the instance may wait for others of its task, and has no place in the order of their turns.

        The assigner has not seen it before, or no live worker could run it.
        """
        is_in_line = self.overlap_slot is not None or self.parent_id is not None
        return not is_in_line and turns.waits_in_turn(self.overlap_policy, self.max_instances)

    @property
    def slots(self) -> int | None:
        """How many instances of the task may run at once, if this instance waits for a free slot; otherwise None.

        A fire that may be skipped, or that replaces its predecessor, does not wait: the claim decides about it. Nor
        does a shard, whose parent has the slot.
        """
        if self.parent_id is not None:
            return None
        is_no_new_fire = self.attempt > 0 or self.origin not in PLANNED_ORIGINS
        if is_no_new_fire and self.overlap_policy in (OverlapPolicy.SKIP, OverlapPolicy.REPLACE):
            return 1
        return overlap.slots_waited_for(self.overlap_policy, self.max_instances)

    @property
    def is_to_spread(self) -> bool:
        """Whether it is to run as its shards. What has begun as a whole goes on as a whole."""
        is_new = self.spread is not None and self.attempt == 0 and self.from_sequence is None
        return self.shard_index is None and (is_new or self.has_shards)

    @property
    def has_shards(self) -> bool:
        """Whether it has run as its shards, and somebody has put it back: SQL, or a scheduler of an older version."""
        return self.shard_index is None and self.shard_total is not None

    @property
    def weight(self) -> int:
        """How many slots it takes."""
        return weight_in(self.task_weight)

    @property
    def group(self) -> Group:
        """The group whose instances take turns with those of others."""
        return group_of(self.task_group, self.task_id)

    @property
    def schedule_task_id(self) -> int:
        """``task_id``, as those who contend for a slot call it."""
        return self.task_id

    @property
    def fire(self) -> FireKey:
        """The fire of this instance; instances of one fire differ in their run numbers."""
        return (self.task_id, self.schedule_datetime, self.fire_key)

    @property
    def cursor(self) -> Cursor:
        """The cursor with which a scan continues after this instance."""
        return (self.priority, self.due_at, self.id)
