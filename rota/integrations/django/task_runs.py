"""What a worker does with Django's tasks: it calls the function that the project declares, and no other."""

import os
import socket
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from rota.integrations.django import task_interface
from rota.integrations.django.backend import RotaBackend
from rota.integrations.django.task_interface import (
    TYPE,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    Work,
    task_backends,
    task_finished,
    task_started,
)
from rota.shared.domain.jsontext import json_text
from rota.worker_service.authoring import Rota
from rota.worker_service.context import NodeContext
from rota.worker_service.verdicts import Fail


def declare_in(app: Rota) -> None:
    """Declare the type of Django's tasks, if the project has a backend for them."""
    if any(isinstance(backend, RotaBackend) for backend in task_backends.all()):
        app.task(TYPE, param=Work)(run)


def run(ctx: NodeContext[Work]) -> Any:
    """Call the task that the param names. A coroutine runs on an event loop of its own.

    ``task_finished`` is sent at the end of each attempt, before Rota has stored it.
    """
    work = ctx.param
    known = task_interface.tasks()
    if work.task not in known:
        raise Fail(f"the project declares no task {work.task} in its tasks modules; there are {len(known)}")
    task = known[work.task].using(queue_name=work.queue, backend=work.backend)
    result = _result(task, work, ctx.attempt)
    sender = type(task_backends[work.backend])
    task_started.send(sender, task_result=result)
    given = [TaskContext(task_result=result)] if task.takes_context else []
    try:
        value = task.call(*given, *work.args, **work.kwargs)
        json_text(value, "the result")
    except BaseException:
        _end(sender, result, TaskResultStatus.FAILED)
        raise
    object.__setattr__(result, "_return_value", value)
    _end(sender, result, TaskResultStatus.SUCCESSFUL)
    return value


def _end(sender: Any, result: Any, status: Any) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", _now())
    task_finished.send(sender, task_result=result)


def _result(task: Any, work: Work, attempt: int) -> Any:
    now = _now()
    return TaskResult(
        task=task,
        id=work.result,
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=work.args,
        kwargs=work.kwargs,
        backend=work.backend,
        errors=[],
        worker_ids=[f"{socket.gethostname()}-{os.getpid()}"] * attempt,
    )


def _now() -> datetime:
    now: datetime = timezone.now()
    return now if settings.USE_TZ else now.replace(tzinfo=None)
