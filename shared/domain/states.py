"""The states of tasks, instances, nodes, workers and schedulers, and the moves of an instance between its states.

Each state and each move is declared here once. The enum columns are made from the states. The guarded updates in
``rota.shared.store.transitions`` are made from the moves. Terminal states are final: no move leaves them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TaskStatus(StrEnum):
    """Whether a task's trigger fires. While a task is ``off``, its manual, replayed and SQL instances still run."""

    ON = "on"
    OFF = "off"


class TriggerKind(StrEnum):
    """What makes a task fire."""

    CRON = "cron"
    MANUAL = "manual"
    INTERVAL = "interval"
    ONCE = "once"
    FIXED_DELAY = "fixed_delay"
    COMBINED = "combined"
    AFTER = "after"


class MisfirePolicy(StrEnum):
    """What the scheduler does with fires that were missed while no scheduler ran.

    It runs the newest (``fire_once``), none (``skip``), or the newest so many of the last so many seconds
    (``fire_all``).
    """

    FIRE_ONCE = "fire_once"
    SKIP = "skip"
    FIRE_ALL = "fire_all"


class SkipReason(StrEnum):
    """Why fires of a task were not run, though no instance tells it.

    ``skip`` and ``fire_once``: they were missed, and the misfire policy has dropped them. ``window`` and ``cap``: they
    were missed, and ``fire_all`` reaches not so far. ``off``: they passed while the task was off. ``edited``: they
    passed before an edit or a deletion was seen. ``by_hand``: a person has skipped them.
    """

    SKIP = "skip"
    FIRE_ONCE = "fire_once"
    WINDOW = "window"
    CAP = "cap"
    OFF = "off"
    EDITED = "edited"
    BY_HAND = "by_hand"


class OverlapPolicy(StrEnum):
    """What a worker does with a fire if an earlier instance of the task still runs, on this or another worker."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"
    ALLOW = "allow"


class WorkerLostPolicy(StrEnum):
    """What the scheduler does with a running instance whose worker died: run it again, or fail it (at most once)."""

    RETRY = "retry"
    FAIL = "fail"


class Backoff(StrEnum):
    """How the delay between retries grows."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class OnRetry(StrEnum):
    """Where a further attempt of an instance begins: at the node that failed, or at the first one."""

    RESUME = "resume"
    RESTART = "restart"


class Spread(StrEnum):
    """How a fire runs as several instances, its shards: so many, as many as workers fit, or one on each that fits."""

    SHARDS = "shards"
    WORKERS = "workers"
    BROADCAST = "broadcast"


class Origin(StrEnum):
    """What created an instance: its task's trigger, a person's request, a replay, an INSERT by SQL, or a backfill.

    A ``shard`` is a part of another instance, which the scheduler has spread.

    ``cron`` is the word for each kind of trigger. Workers decide by it, those of older versions too, whether an
    instance waits while its task is off (docs/decisions/0043-origin-cron.md).
    """

    CRON = "cron"
    MANUAL = "manual"
    REPLAY = "replay"
    SQL = "sql"
    BACKFILL = "backfill"
    SHARD = "shard"


class FollowUp(StrEnum):
    """What follows the end of an instance: its task fires again after a delay."""

    FIXED_DELAY = "fixed_delay"


class OnEnd(StrEnum):
    """After which end of a run another task fires: when it has succeeded, when it has failed, or however it ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


REASON_LIMIT = 1000
"""The most characters of a reason that are kept. The columns hold 1,023."""


class InstanceStatus(StrEnum):
    """The states of an instance. ``MOVES`` says which state may follow which."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    RUNNING = "running"
    FAILED = "failed"
    CANCELED = "canceled"
    SUCCEED = "succeed"


class NodeStatus(StrEnum):
    """The states of one node of an instance. ``skipped``: a node before it has ended the run early, as a success."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEED = "succeed"
    FAILED = "failed"
    CANCELED = "canceled"
    SKIPPED = "skipped"


LEFT = (NodeStatus.PENDING, NodeStatus.RUNNING)
"""Nodes in these states are left to run. Behind one that has ended its run they run always (``always=True``)."""


class WorkerState(StrEnum):
    """The states of a worker.

    A ``draining`` worker finishes its running instances and takes no more. ``dead`` is final: a restarted worker gets
    a new row.
    """

    LIVE = "live"
    DRAINING = "draining"
    DEAD = "dead"


class SchedulerState(StrEnum):
    """The states of a scheduler. A ``paused`` one runs, but materializes nothing."""

    ACTIVE = "active"
    PAUSED = "paused"


class BackfillStatus(StrEnum):
    """The states of a backfill. A ``paused`` one writes no more until it is resumed; the last two are ends."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELED = "canceled"
    DONE = "done"


PLANNED_ORIGINS = (Origin.CRON,)
"""Instances of these origins do not run while their task is ``off``."""

TERMINAL = frozenset({InstanceStatus.FAILED, InstanceStatus.CANCELED, InstanceStatus.SUCCEED})

_PENDING, _ASSIGNED, _RUNNING = InstanceStatus.PENDING, InstanceStatus.ASSIGNED, InstanceStatus.RUNNING
_FAILED, _CANCELED, _SUCCEED = InstanceStatus.FAILED, InstanceStatus.CANCELED, InstanceStatus.SUCCEED

NodeMoves = Mapping[NodeStatus, NodeStatus]
"""The new state of a node, by its old state."""

_NEVER_RUN: NodeMoves = {NodeStatus.PENDING: NodeStatus.CANCELED}
_RUN_AGAIN: NodeMoves = {NodeStatus.RUNNING: NodeStatus.PENDING}
_ANEW: NodeMoves = {NodeStatus.SUCCEED: NodeStatus.PENDING, **_RUN_AGAIN}
_DONE: NodeMoves = {NodeStatus.RUNNING: NodeStatus.SUCCEED}
_FAIL: NodeMoves = {NodeStatus.RUNNING: NodeStatus.FAILED, **_NEVER_RUN}
_STOP: NodeMoves = {NodeStatus.RUNNING: NodeStatus.CANCELED, **_NEVER_RUN}


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """One arrow in the diagram of an instance's life (docs/architecture.md).

    Move("fail", (RUNNING,), FAILED, {RUNNING: FAILED, PENDING: CANCELED})

    An instance in one of the ``sources`` goes to ``target``. Its nodes whose state is a key of ``nodes`` go to the
    state beside it; then its first node that is left to run goes to ``first_node``. Other nodes stay as they are.
    """

    name: str
    sources: tuple[InstanceStatus, ...]
    target: InstanceStatus
    nodes: NodeMoves = field(default_factory=dict)
    first_node: NodeStatus | None = None


# The scheduler gives pending instances to workers, and takes back what a worker does not start.
GIVE = Move("give", (_PENDING,), _ASSIGNED)
TAKE_BACK = Move("take back", (_ASSIGNED,), _PENDING)

# Or it spreads one: that runs as its shards, and has no nodes of its own. When they have ended, it succeeds, fails or
# stops.
SPREAD = Move("spread", (_PENDING,), _RUNNING)

# The worker claims an instance, runs its nodes, each after those that it waits for, and reports how it ended.
CLAIM = Move("claim", (_ASSIGNED,), _RUNNING, first_node=NodeStatus.RUNNING)
BEGIN = Move("begin", (_RUNNING,), _RUNNING)  # before the first handler of what may run at most once is entered
RESTART = Move("restart", (_RUNNING,), _RUNNING, _ANEW, first_node=NodeStatus.RUNNING)
PROCEED = Move("proceed", (_RUNNING,), _RUNNING, _DONE, first_node=NodeStatus.RUNNING)
SUCCEED = Move("succeed", (_RUNNING,), _SUCCEED, _DONE)
FAIL = Move("fail", (_RUNNING,), _FAILED, _FAIL)
RETRY = Move("retry", (_RUNNING,), _PENDING, _RUN_AGAIN)
STOP = Move("stop", (_RUNNING,), _CANCELED, _STOP)
HAND_BACK = Move("hand back", (_RUNNING,), _PENDING, _RUN_AGAIN)

# A worker is lost. Its running instances run again; or fail for good (at most once, or poison); or are canceled, if
# somebody had asked for that.
RECOVER = Move("recover", (_RUNNING,), _PENDING, _RUN_AGAIN)
FAIL_LOST = Move("fail lost", (_RUNNING,), _FAILED, _FAIL)
CANCEL_LOST = Move("cancel lost", (_RUNNING,), _CANCELED, _FAIL)

# As "fail lost" or "cancel lost", but nodes that run always are left, pending: another worker runs them.
CLEAN_UP = Move("clean up", (_RUNNING,), _PENDING, _FAIL)

# Somebody asks for another time of what waits under a business key.
RESCHEDULE = Move("reschedule", (_PENDING,), _PENDING)

# An instance is canceled before it runs: by the scheduler, by the claim, by a person.
REFUSE = Move("refuse", (_PENDING,), _CANCELED, _NEVER_RUN)
SKIP = Move("skip", (_ASSIGNED,), _CANCELED, _NEVER_RUN)
CANCEL = Move("cancel", (_PENDING, _ASSIGNED), _CANCELED, _NEVER_RUN)

# Or it waits for another attempt, and has nodes that run always: they are left, pending, and a worker runs them.
CALL_OFF = Move("call off", (_PENDING, _ASSIGNED), _PENDING, _NEVER_RUN)

MOVES = (
    GIVE, TAKE_BACK, SPREAD, CLAIM, BEGIN, RESTART, PROCEED, SUCCEED, FAIL, RETRY, STOP, HAND_BACK,
    RECOVER, FAIL_LOST, CANCEL_LOST, CLEAN_UP, RESCHEDULE, REFUSE, SKIP, CANCEL, CALL_OFF,
)  # fmt: skip

TRANSITIONS: Mapping[InstanceStatus, frozenset[InstanceStatus]] = {
    status: frozenset(move.target for move in MOVES if status in move.sources) - {status} for status in InstanceStatus
}
"""The states that any move leads to, by the state that the move leaves."""
