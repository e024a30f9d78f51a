"""A backend for Django's tasks.

    TASKS = {"default": {"BACKEND": "rota.integrations.django.backend.RotaBackend"}}

What is enqueued inside ``atomic`` exists exactly if that is committed.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.utils import timezone

from rota.client.keys import ask_once
from rota.integrations.django import project
from rota.integrations.django.asking import DjangoSession
from rota.integrations.django.models import Request
from rota.integrations.django.task_interface import (
    TYPE,
    BaseTaskBackend,
    InvalidTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    Work,
    task_enqueued,
    tasks,
)
from rota.shared.control import business_keys
from rota.shared.control.business_keys import Wanted
from rota.shared.control.documents import Document
from rota.shared.domain.states import InstanceStatus

STATUSES = {
    InstanceStatus.RUNNING.value: TaskResultStatus.RUNNING,
    InstanceStatus.SUCCEED.value: TaskResultStatus.SUCCESSFUL,
    InstanceStatus.FAILED.value: TaskResultStatus.FAILED,
    InstanceStatus.CANCELED.value: TaskResultStatus.FAILED,
}
"""What Django calls the statuses of an instance; the others are READY."""

_WRITTEN = "%Y%m%dT%H%M%S%f"


class RotaBackend(BaseTaskBackend):
    """Runs Django's tasks on Rota's workers, each as one run of the type ``DJANGO_TASK``.

    They may be deferred (``run_after``) and be coroutines; their results are found as long as Rota keeps the instance.
    There are no priorities. A queue is a name, and all workers take from all queues. A task has to be declared in a
    tasks module: an app's ``tasks.py``, or one that ``ROTA["TASKS"]`` lists.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._session = DjangoSession()

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Ask for a run, at once or after ``run_after``, and as a part of the transaction that is open.

        Raises InvalidTask for a task that no worker would find, and a RotaError for what Rota refuses.
        """
        self.validate_task(task)
        if task.module_path not in tasks():
            raise InvalidTask(
                f"{task.module_path} is in no tasks module: declare it in an app's tasks.py, or list its module in "
                "ROTA['TASKS']"
            )
        key = uuid4().hex
        at = self._session.now() if task.run_after is None else _utc(task.run_after)
        result = self._result(task, _id(at, key), list(args), dict(kwargs), enqueued_at=_aware(self._session.now()))
        work = Work(
            task=task.module_path,
            args=result.args,
            kwargs=result.kwargs,
            queue=task.queue_name,
            backend=self.alias,
            result=result.id,
        )
        wanted = Wanted(key, f"{at.isoformat()}+00:00", work.model_dump(), fire_key=key)
        ask_once(self._session, self._session.joined(None), TYPE, wanted)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result of a task that was enqueued. Raises TaskResultDoesNotExist."""
        at, key = _read(result_id)
        run, asked = self._run_of(at, key), None
        if run is None and project.alias() is not None:
            asked = Request.objects.filter(fire_key=key).first()
            run = self._run_of(at, key) if asked is None else None  # it may have been done between the two
        if run is not None:
            return self._result_of(run, result_id)
        if asked is None:
            raise TaskResultDoesNotExist(result_id)
        task, work = self._task_of(asked.param, result_id)
        result = self._result(task, result_id, work.args, work.kwargs, enqueued_at=asked.gmt_create)
        if asked.is_deleted:
            _set(result, status=TaskResultStatus.FAILED)
        return result

    def _run_of(self, at: datetime, key: str) -> Document | None:
        with self._session.database() as database:
            return business_keys.run_of(database, TYPE, at, key)

    def _result_of(self, run: Document, result_id: str) -> Any:
        task, work = self._task_of(run["param"], result_id)
        result = self._result(task, result_id, work.args, work.kwargs, enqueued_at=_time(run["gmt_create"]))
        failed = [one for one in run["failed_attempts"] or [] if isinstance(one, dict)]
        workers = [str(one.get("worker_name")) for one in failed]
        status = STATUSES.get(run["status"], TaskResultStatus.READY)
        if status is not TaskResultStatus.READY and run["worker_name"] is not None and len(workers) < run["attempt"]:
            workers.append(run["worker_name"])
        _set(
            result,
            status=status,
            started_at=_time(run["gmt_started"]),
            last_attempted_at=_time(run["gmt_started"]),
            finished_at=_time(run["gmt_completed"]),
            errors=[_error(one) for one in failed],
            worker_ids=workers,
        )
        if status is TaskResultStatus.SUCCESSFUL:
            _set(result, _return_value=run["execution_result"])
        return result

    def _task_of(self, param: Any, result_id: str) -> tuple[Any, Work]:
        try:
            work = Work.model_validate(param)
            task = tasks()[work.task]
        except (ValueError, KeyError):
            raise TaskResultDoesNotExist(result_id) from None
        return task.using(queue_name=work.queue, backend=work.backend), work

    def _result(self, task: Any, result_id: str, args: list[Any], kwargs: dict[str, Any], enqueued_at: Any) -> Any:
        return TaskResult(
            task=task,
            id=result_id,
            status=TaskResultStatus.READY,
            enqueued_at=enqueued_at,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # as Django's own backends do: a result is frozen


def _error(attempt: Mapping[str, Any]) -> Any:
    """How an attempt failed. The last line of a traceback has the whole name of the exception."""
    kind, traceback = str(attempt.get("type", "Exception")), str(attempt.get("traceback", ""))
    named: Sequence[str] = re.findall(rf"^((?:\w+\.)+{re.escape(kind)})(?::|$)", traceback, re.MULTILINE)
    path = named[-1] if named else f"builtins.{kind}"
    return TaskError(exception_class_path=path, traceback=traceback or str(attempt.get("error", "")))


def _id(at: datetime, key: str) -> str:
    """The id of a result: the time and the fire key, by which an index finds the run."""
    return f"{at.strftime(_WRITTEN)}-{key}"


def _read(result_id: str) -> tuple[datetime, str]:
    time, _, key = str(result_id).partition("-")
    if not re.fullmatch("[0-9a-f]{32}", key):
        raise TaskResultDoesNotExist(result_id)
    try:
        return datetime.strptime(time, _WRITTEN), key  # noqa: DTZ007 - naive UTC, as the database has it
    except ValueError:
        raise TaskResultDoesNotExist(result_id) from None


def _utc(moment: datetime) -> datetime:
    aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return aware.astimezone(UTC).replace(tzinfo=None)


def _time(text: str | None) -> datetime | None:
    """A time of a document as Django has it: aware with ``USE_TZ``, else local."""
    return None if text is None else _aware(datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None))


def _aware(moment: datetime) -> datetime:
    aware = moment.replace(tzinfo=UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)
