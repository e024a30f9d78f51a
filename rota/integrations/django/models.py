"""Rota's tables as Django models, to be read: tasks, instances, their nodes, and workers.

    Instance.objects.filter(task__name="nightly", status="failed").order_by("-id")[:20]

They never write, since Rota's own statements keep rules that Django's would not. Ask by ``client``.
"""

from datetime import UTC, datetime
from typing import Any, Never

from django.conf import settings
from django.db import models
from django.db.models.expressions import Col
from django.utils import timezone

from rota.integrations.django import project
from rota.shared.domain.errors import NotPossible
from rota.shared.domain.states import InstanceStatus, NodeStatus, TaskStatus, WorkerState


def _words(words: type[Any]) -> list[tuple[str, str]]:
    return [(word.value, word.value) for word in words]


def _refuse(*_: object, **__: object) -> Never:
    raise NotPossible(project.ASK)


class Moment(models.DateTimeField):
    """A time as Rota's columns have it: in UTC whatever the zone of the connection, and with microseconds.

    SQLite compares the texts.
    """

    def from_db_value(self, value: Any, expression: Any, *_: Any) -> Any:
        """The time as Django has it: aware with ``USE_TZ``, else local. What a function made of it stays as it is."""
        if not isinstance(value, datetime) or not isinstance(expression, Col):
            return value
        aware = value.replace(tzinfo=UTC)
        return aware if settings.USE_TZ else timezone.make_naive(aware)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """The time as the database takes it."""
        moment = value if prepared else self.get_prep_value(value)
        if not isinstance(moment, datetime):
            return super().get_db_prep_value(moment, connection, prepared=True)
        aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
        return aware.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


class Rows(models.QuerySet):
    """Rows of the database that has Rota's tables. What would write raises NotPossible."""

    create = bulk_create = get_or_create = update_or_create = update = bulk_update = delete = _refuse
    acreate = abulk_create = aget_or_create = aupdate_or_create = aupdate = abulk_update = adelete = _refuse
    _update = _raw_delete = _refuse


class RowsManager(models.Manager):
    """Reads from the database that ``ROTA`` in the settings names."""

    def get_queryset(self) -> Rows:
        """All rows, of that database."""
        return Rows(self.model, using=project.alias())


class ReadOnly(models.Model):
    """A row that is read, and never written."""

    id = models.BigAutoField(primary_key=True)

    objects = RowsManager()

    save = delete = save_base = asave = adelete = _refuse

    class Meta:
        """For each of them."""

        abstract = True
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)


class Task(ReadOnly):
    """A task: what runs, and when."""

    name = models.CharField(max_length=255)
    status = models.CharField(max_length=15, choices=_words(TaskStatus))
    type = models.CharField(max_length=127)
    param = models.JSONField(null=True)
    trigger_kind = models.CharField("trigger", max_length=31)
    cron = models.CharField(max_length=255, null=True)
    timezone = models.CharField(max_length=63)
    next_fire_at = Moment(null=True)
    misfires = models.BigIntegerField()
    plan_error = models.CharField(max_length=1023, null=True)
    description = models.CharField(max_length=1023, null=True)
    owner = models.CharField(max_length=127, null=True)
    task_group = models.CharField(max_length=127, null=True)
    is_deleted = models.SmallIntegerField()

    class Meta(ReadOnly.Meta):
        """The table."""

        abstract = False
        db_table = "schedule_task"

    def __str__(self) -> str:
        """Its name."""
        return str(self.name)


class Worker(ReadOnly):
    """A worker: a process that runs instances."""

    name = models.CharField(max_length=255)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    state = models.CharField(max_length=15, choices=_words(WorkerState))
    version = models.CharField(max_length=63)
    current_load = models.IntegerField("load")
    capacity = models.IntegerField()
    labels = models.JSONField(null=True)
    last_heartbeat = Moment()
    gmt_started = Moment("started")
    gmt_dead = Moment("dead", null=True)
    reason = models.CharField(max_length=1023, null=True)

    class Meta(ReadOnly.Meta):
        """The table."""

        abstract = False
        db_table = "schedule_worker_node"

    def __str__(self) -> str:
        """Its name."""
        return str(self.name)


class Instance(ReadOnly):
    """One run of a task for one time."""

    task = models.ForeignKey(
        Task, models.DO_NOTHING, db_column="schedule_task_id", db_constraint=False, related_name="instances"
    )
    status = models.CharField(max_length=15, choices=_words(InstanceStatus))
    schedule_datetime = Moment("fire")
    due_at = Moment(null=True)
    run_number = models.IntegerField(null=True)
    origin = models.CharField(max_length=15)
    priority = models.SmallIntegerField()
    param = models.JSONField(null=True)
    worker = models.ForeignKey(
        Worker, models.DO_NOTHING, db_column="schedule_worker_node_id", db_constraint=False, null=True, related_name="+"
    )
    attempt = models.IntegerField()
    failures = models.SmallIntegerField()
    worker_losses = models.SmallIntegerField()
    gmt_assigned = Moment("assigned", null=True)
    gmt_started = Moment("started", null=True)
    gmt_completed = Moment("completed", null=True)
    gmt_cancel_requested = Moment("cancel requested", null=True)
    reason = models.CharField(max_length=1023, null=True)
    execution_result = models.JSONField("result", null=True)
    failed_attempts = models.JSONField(null=True)
    replay_of = models.BigIntegerField(null=True)
    unsuccessful = models.CharField(max_length=15, null=True, editable=False)

    class Meta(ReadOnly.Meta):
        """The table, and who may replay."""

        abstract = False
        db_table = "schedule_instance"
        permissions = [("replay_instance", "Can replay instance")]

    def __str__(self) -> str:
        """The instance as the command line names it."""
        return f"instance {self.pk}"


class NodeType(ReadOnly):
    """A type of nodes."""

    type = models.CharField(max_length=255)
    category = models.CharField(max_length=127)

    class Meta(ReadOnly.Meta):
        """The table."""

        abstract = False
        db_table = "schedule_task_node_type"

    def __str__(self) -> str:
        """Its name."""
        return str(self.type)


class Node(ReadOnly):
    """One node of an instance."""

    instance = models.ForeignKey(
        Instance, models.DO_NOTHING, db_column="schedule_instance_id", db_constraint=False, related_name="nodes"
    )
    type = models.ForeignKey(
        NodeType, models.DO_NOTHING, db_column="schedule_task_node_type_id", db_constraint=False, related_name="+"
    )
    sequence = models.SmallIntegerField()
    status = models.CharField(max_length=15, choices=_words(NodeStatus))
    failures = models.SmallIntegerField()
    gmt_started = Moment("started", null=True)
    gmt_completed = Moment("completed", null=True)
    execution_result = models.JSONField("result", null=True)

    class Meta(ReadOnly.Meta):
        """The table."""

        abstract = False
        db_table = "schedule_task_node"
        ordering = ("sequence",)

    def __str__(self) -> str:
        """Its type."""
        return str(self.type)


class Request(ReadOnly):
    """What was asked for in a transaction, until a scheduler has done it; what it cannot do stays, with the reason."""

    what = models.CharField(max_length=15)
    type = models.CharField(max_length=127)
    code = models.CharField(max_length=64)
    number = models.CharField("key", max_length=128)
    due_at = Moment(null=True)
    param = models.JSONField(null=True)
    fire_key = models.CharField(max_length=63, null=True)
    reason = models.CharField(max_length=1023, null=True)
    gmt_create = Moment("asked")
    is_deleted = models.SmallIntegerField("refused")

    class Meta(ReadOnly.Meta):
        """The table."""

        abstract = False
        db_table = "schedule_request"

    def __str__(self) -> str:
        """What is asked for, of which key."""
        return f"{self.what} {self.type} {self.number}"
