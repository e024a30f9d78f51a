"""Rota in the admin: tasks, instances and workers, to be looked at; instances can be replayed."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html

from rota.integrations.django import project
from rota.integrations.django.asking import DjangoClient
from rota.integrations.django.models import Instance, Node, Task, Worker
from rota.shared.domain.errors import ConfigurationError, RotaError
from rota.shared.domain.states import InstanceStatus

COUNTED = 10_000
"""A list counts no further: there may be millions of rows."""

REPLAYED = 1_000
"""So many instances are replayed at once."""

UNSUCCESSFUL = (InstanceStatus.FAILED.value, InstanceStatus.CANCELED.value)


class BoundedPaginator(Paginator):
    """Counts ``COUNTED`` rows at most."""

    @cached_property
    def count(self) -> int:
        """How many there are, or ``COUNTED``."""
        found: int = self.object_list.order_by()[:COUNTED].count()
        return found


class Newest(ChangeList):
    """The newest rows first, whatever the address asks for: by another column the database would sort all rows."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str]:
        """By the primary key."""
        return ["-pk"]


class LookedAt(admin.ModelAdmin):
    """Rows that nobody adds, changes or removes in the admin."""

    actions: Sequence[str] | None = None
    ordering = ("-id",)
    sortable_by = ()
    list_select_related = ()
    paginator = BoundedPaginator
    show_full_result_count = False

    def get_changelist(self, request: HttpRequest, **_: Any) -> type[ChangeList]:
        """The list."""
        return Newest

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False


class StatusFilter(admin.SimpleListFilter):
    """By the status, with the index that finds the newest of each."""

    title = parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """All statuses."""
        return [(word.value, word.value) for word in InstanceStatus]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of the status that is chosen."""
        chosen = self.value()
        if chosen is None:
            return queryset
        return queryset.filter(**{"unsuccessful" if chosen in UNSUCCESSFUL else "status": chosen})


class NodesInline(admin.TabularInline):
    """The nodes of an instance."""

    model = Node
    fields = ("type", "status", "failures", "gmt_started", "gmt_completed", "execution_result")
    readonly_fields = fields
    can_delete = False
    extra = 0

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False


class InstanceAdmin(LookedAt):
    """The instances; an action replays those that are chosen."""

    actions = ("replay",)
    list_display = ("id", "task", "schedule_datetime", "status", "worker", "gmt_started", "gmt_completed", "reason")
    list_filter = (StatusFilter,)
    search_fields = ("=task__name",)
    search_help_text = "the whole name of a task"
    exclude = ("unsuccessful",)
    inlines = (NodesInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The newest rows by the primary key: a join would have the database sort all of them."""
        of_task = Prefetch("task", Task.objects.defer("param"))
        found: QuerySet[Any] = super().get_queryset(request).prefetch_related(of_task, "worker")
        return found.defer("param", "execution_result", "failed_attempts")

    def lookup_allowed(self, lookup: str, value: Any, *more: Any) -> bool:
        """By the task, too, for the link from it."""
        return lookup == "task__id__exact" or bool(super().lookup_allowed(lookup, value, *more))

    def has_replay_permission(self, request: HttpRequest) -> bool:
        """Who has ``rota.replay_instance``."""
        return bool(request.user.has_perm("rota.replay_instance"))

    @admin.action(description="Replay the selected instances", permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Run all of them once more, or none."""
        ids = sorted(queryset.values_list("pk", flat=True)[: REPLAYED + 1])
        if len(ids) > REPLAYED:
            said = f"more than {REPLAYED} are selected, and none is replayed; see manage.py rota instance replay --help"
            self.message_user(request, said, messages.ERROR)
            return
        client = DjangoClient(name=f"{request.user.get_username()[:100]} (admin)")
        try:
            new = client.instances.replay(*ids)
        except RotaError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            said = ", ".join(f"{old} as {one['id']}" for old, one in zip(ids[:20], new, strict=False))
            self.message_user(request, f"replayed: {said}{' …' if len(ids) > 20 else ''}", messages.SUCCESS)
        finally:
            client.close()


class TaskAdmin(LookedAt):
    """The tasks, with a link to their instances."""

    list_display = ("name", "type", "status", "trigger_kind", "cron", "next_fire_at", "misfires", "runs")
    list_filter = ("status", "trigger_kind")
    search_fields = ("^name",)  # by an index, as LIKE without BINARY

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Without those that were removed."""
        found: QuerySet[Any] = super().get_queryset(request).filter(is_deleted=0)
        return found.defer("param")

    @admin.display(description="instances")
    def runs(self, task: Task) -> str:
        """A link to its instances."""
        where = reverse(f"{self.admin_site.name}:rota_instance_changelist")
        link: str = format_html('<a href="{}?task__id__exact={}">instances</a>', where, task.pk)
        return link


class WorkerAdmin(LookedAt):
    """The workers."""

    list_display = ("name", "state", "current_load", "capacity", "last_heartbeat", "gmt_started", "host", "version")
    list_filter = ("state",)
    search_fields = ("^name",)  # by an index, as LIKE without BINARY


with suppress(ConfigurationError):  # manage.py check says it
    if project.alias() is not None:  # Django has no other way to the tables
        admin.site.register(Task, TaskAdmin)
        admin.site.register(Instance, InstanceAdmin)
        admin.site.register(Worker, WorkerAdmin)
