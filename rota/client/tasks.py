"""``client.tasks``: add, change, switch, find, steer and run tasks, as ``rota task`` does."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pydantic import BaseModel

from rota.client.session import Session, as_json, checked_limit, checked_status, type_name
from rota.shared.control import steering, tasks, whys
from rota.shared.control.documents import Document
from rota.shared.control.tasks import Outcome
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task_fields import TaskFields
from rota.shared.domain.task_filter import TaskFilter

if TYPE_CHECKING:
    from rota.worker_service.jobs import OfType
    from rota.worker_service.signatures import P

log = logging.getLogger(__name__)

Documents = list[Document]


class TaskChanges(TaskFields, total=False):
    """What ``set`` can change. None clears a field."""

    name: str
    type: str
    cron: str | None
    seconds: bool
    timezone: str
    param: dict[str, Any] | BaseModel | None
    status: Literal["on", "off"]


class Tasks:
    """The tasks. Every function returns what ``rota task … --json`` prints, and raises a RotaError of one sentence.

    A time is a ``datetime`` or a text. Without an offset it is local time in the task's zone. ``why`` is for
    ``rota audit``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(
        self,
        name: str,
        type: "OfType[P]",  # noqa: A002 - the column's name
        *,
        cron: str | None = None,
        seconds: bool = False,
        timezone: str = "UTC",
        param: "P | dict[str, Any] | None" = None,
        on: bool = True,
        why: str | None = None,
        **fields: Unpack[TaskFields],
    ) -> Document:
        """Add a task; returns it with its next fires. ``fields`` are those of ``app.schedule``.

        Raises InvalidInput with every fault, InvalidParam, NameTaken.

            client.tasks.add("nightly", "CLEANUP_TEMP", cron="0 3 * * *", timezone="Europe/Berlin")
        """
        given = {
            "name": name,
            "type": type_name(type),
            "cron": cron,
            "cron_seconds": seconds,
            "timezone": timezone,
            "param": as_json(param),
            "status": TaskStatus.ON if on else TaskStatus.OFF,
            **_texts(self._session, fields),
        }
        with self._session.database() as database:
            return _said(tasks.add(database, self._session.actor, given, why), name)

    def set(self, name: str, /, *, why: str | None = None, **changes: Unpack[TaskChanges]) -> Document:
        """Change fields of a task; returns it with its next fires. None clears a field, ``name`` is its new name.

        Raises NotFound, InvalidInput, InvalidParam, NameTaken.

            client.tasks.set("nightly", cron="30 3 * * *", timeout_seconds=None)
        """
        given = _texts(self._session, changes)
        if "param" in given:
            given["param"] = as_json(given["param"])
        if "seconds" in given:
            given["cron_seconds"] = given.pop("seconds")
        with self._session.database() as database:
            return _said(tasks.edit(database, self._session.actor, name, given, why), name)

    def list(
        self,
        *,
        limit: int = 100,
        status: str | None = None,
        like: str | None = None,
        owner: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
    ) -> Documents:
        """At most ``limit`` tasks by name, each with its last run and its next fire; those for which all given holds.

        ``like`` is a part of the name. A large param is left out: then ``param_bytes`` is its size. Raises InvalidInput
        for a status that does not exist, and for a limit out of range.
        """
        with self._session.database() as database:
            return tasks.listed(
                database, checked_limit(limit), TaskFilter(checked_status(TaskStatus, status), like, owner, group, tags)
            )

    def show(self, name: str) -> Document:
        """A task with its next fires, its newest instances, and what did not run. Raises NotFound."""
        with self._session.database() as database:
            return tasks.show(database, name)

    def why(self, name: str, at: datetime | str | None = None) -> Document:
        """What became of a fire, by default of the newest that was due: it ran, waits, was skipped, or was none.

        Raises NotFound, and InvalidInput for a text that is no time.
        """
        with self._session.database() as database:
            return _said(whys.why(database, name, self._session.as_text(at)), name)

    def on(self, *names: str, why: str | None = None) -> Documents:
        """Let tasks fire again, all of them or none; says of each whether it was changed. Raises NotFound."""
        with self._session.database() as database:
            return tasks.switch(database, self._session.actor, names, TaskStatus.ON, why)

    def off(self, *names: str, why: str | None = None) -> Documents:
        """Hold back the fires of tasks, of all of them or of none. What runs goes on. Raises NotFound."""
        with self._session.database() as database:
            return tasks.switch(database, self._session.actor, names, TaskStatus.OFF, why)

    def remove(self, name: str, *, why: str | None = None) -> Document:
        """Delete a task: it fires no more, its name is free, its history stays. Raises NotFound."""
        with self._session.database() as database:
            return tasks.remove(database, self._session.actor, name, why)

    def run(
        self,
        name: str,
        *,
        param: dict[str, Any] | BaseModel | None = None,
        at: datetime | str | None = None,
        why: str | None = None,
    ) -> Document:
        """Run a task once, even if it is off; returns the new instance. ``param`` takes the place of the task's own.

        ``at`` is the nominal time, by default now. A time to come is waited for; for one that has passed the instance
        runs now. Raises NotFound, InvalidParam, InvalidInput.

            run = client.tasks.run("nightly", param={"region": "eu"})
            client.instances.wait(run["id"], timeout=60)["execution_result"]
        """
        with self._session.database() as database:
            when = self._session.as_text(at)
            asked = tasks.run(database, self._session.actor, name, at=when, param=as_json(param), why=why)
            return _said(asked, name)

    def next_fires(self, name: str) -> Document:
        """The next fires of a task, with those that were skipped or set by hand. Raises NotFound."""
        with self._session.database() as database:
            return steering.next_fires(database, name)

    def skip_next(self, name: str, *, fire: datetime | str | None = None, why: str | None = None) -> Document:
        """Skip the next fire that has not begun; returns the fires after it.

        ``fire``: its time. If another is the next, nothing is done. Raises NotFound, NotPossible, InvalidInput.
        """
        with self._session.database() as database:
            done = steering.skip(database, self._session.actor, name, fire=self._session.as_text(fire), why=why)
            return _said(done, name)

    def set_next(
        self, name: str, at: datetime | str, *, fire: datetime | str | None = None, why: str | None = None
    ) -> Document:
        """Let the next fire run at another time; fires of the plan up to that time are skipped.

        ``fire``: its time as planned. If another is the next, nothing is done. Raises NotFound, NotPossible,
        InvalidInput.
        """
        with self._session.database() as database:
            when, planned = self._session.as_text(at), self._session.as_text(fire)
            done = steering.set_at(database, self._session.actor, name, when, fire=planned, why=why)
            return _said(done, name)


def _texts(session: Session, fields: Any) -> dict[str, Any]:
    """Times without an offset as texts, which are read in the task's zone."""
    return {name: session.as_text(value) if isinstance(value, datetime) else value for name, value in fields.items()}


def _said(done: Outcome, name: str) -> Document:
    """The document. What its author should know, such as how an ambiguous time was read, is logged."""
    for remark in done.remarks:
        log.warning("task %r: %s", name, remark)
    return done.document
