"""The fields of a task that code gives by keyword."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from rota.shared.domain.retry import RetryFields
from rota.shared.domain.triggers.combined import Member


class TaskFields(RetryFields, total=False):
    """The fields of ``TaskDefinition`` that code gives by keyword as they are, for type checkers."""

    every: float | timedelta | str | None
    fixed_delay: float | timedelta | str | None
    at: datetime | str | None
    any_of: Sequence[Member] | None
    all_of: Sequence[Member] | None
    after: str | Sequence[str] | Mapping[str, Literal["success", "failure", "always"]] | None
    jitter_seconds: int
    calendar: str | None
    calendar_days: int | str | None
    starts_at: datetime | str | None
    ends_at: datetime | str | None
    misfire_policy: Literal["fire_once", "skip", "fire_all"]
    misfire_grace_seconds: int
    misfire_window_seconds: int
    misfire_cap: int
    overlap_policy: Literal["skip", "queue", "replace", "allow"]
    max_instances: int | None
    max_waiting: int | None
    retries: int
    on_retry: Literal["resume", "restart"]
    on_worker_lost: Literal["retry", "fail"]
    timeout_seconds: int | None
    run_timeout_seconds: int | None
    priority: int
    required_labels: dict[str, str] | None
    description: str | None
    owner: str | None
    tags: list[str] | None
    task_group: str | None
    group_share: int
    limit_name: str | None
    pool: str | None
    weight: int
    shards: int | None
    spread: Literal["shards", "workers", "broadcast"] | None
