"""Django's task interface: ``django.tasks`` of Django 6, or its backport ``django_tasks`` for older ones."""

from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from rota.integrations.django.declaring import tasks_modules

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # before Django 6
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = [
    "TYPE",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "Work",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
    "tasks",
    "tasks_in",
]

TYPE = "DJANGO_TASK"
"""The task type of all tasks that are enqueued by Django's interface."""


class Work(BaseModel):
    """The param of a run: which of the project's tasks, and what it is called with."""

    task: str
    """Where it is declared: ``shop.tasks.send_receipt``."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str = "default"
    backend: str = "default"
    result: str = ""
    """The id of the result."""


def tasks_in(modules: Iterable[ModuleType]) -> dict[str, Any]:
    """The tasks that modules hold, by where they are declared."""
    return {value.module_path: value for one in modules for value in vars(one).values() if isinstance(value, Task)}


@cache
def tasks() -> dict[str, Any]:
    """The tasks of the project's tasks modules: a worker runs no other function."""
    return tasks_in(tasks_modules())
