"""The states of tasks, instances, nodes and workers, and the transitions an instance may make.

Each state is declared here once; the columns, the guarded updates in ``shared.store`` and the documentation
(docs/architecture.md) follow from it. Terminal states are final: no transition leaves them.
"""

from enum import StrEnum


class TaskStatus(StrEnum):
    """Whether a task's cron fires. ``off`` holds back cron fires; manual, replayed and SQL rows still run."""

    ON = "on"
    OFF = "off"


class TriggerKind(StrEnum):
    """What makes a task fire."""

    CRON = "cron"
    MANUAL = "manual"


class MisfirePolicy(StrEnum):
    """What becomes of fires that were missed while no scheduler ran."""

    FIRE_ONCE = "fire_once"


class OverlapPolicy(StrEnum):
    """What becomes of a fire while the task's previous one still runs, on whatever worker."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"
    ALLOW = "allow"


class WorkerLostPolicy(StrEnum):
    """What becomes of a running instance whose worker died: run it again, or fail it (at-most-once)."""

    RETRY = "retry"
    FAIL = "fail"


class Backoff(StrEnum):
    """How the delay between retries grows."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class Origin(StrEnum):
    """What asked for an instance."""

    CRON = "cron"
    MANUAL = "manual"
    REPLAY = "replay"
    SQL = "sql"


class InstanceStatus(StrEnum):
    """The life of an instance. ``TRANSITIONS`` says which follows which."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    RUNNING = "running"
    FAILED = "failed"
    CANCELED = "canceled"
    SUCCEED = "succeed"


class NodeStatus(StrEnum):
    """The life of one node of an instance."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEED = "succeed"
    FAILED = "failed"
    CANCELED = "canceled"


class WorkerState(StrEnum):
    """``draining`` finishes what runs and takes no more; ``dead`` is final: a restart is a new row."""

    LIVE = "live"
    DRAINING = "draining"
    DEAD = "dead"


PLANNED_ORIGINS = (Origin.CRON,)
"""Origins that a task's ``off`` holds back."""

TERMINAL = frozenset({InstanceStatus.FAILED, InstanceStatus.CANCELED, InstanceStatus.SUCCEED})

TRANSITIONS: dict[InstanceStatus, frozenset[InstanceStatus]] = {
    InstanceStatus.PENDING: frozenset({InstanceStatus.ASSIGNED, InstanceStatus.CANCELED}),
    InstanceStatus.ASSIGNED: frozenset({InstanceStatus.PENDING, InstanceStatus.RUNNING, InstanceStatus.CANCELED}),
    InstanceStatus.RUNNING: frozenset({InstanceStatus.PENDING, *TERMINAL}),
    InstanceStatus.FAILED: frozenset(),
    InstanceStatus.CANCELED: frozenset(),
    InstanceStatus.SUCCEED: frozenset(),
}
