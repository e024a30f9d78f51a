"""``client.instances``: look at runs, wait for them, cancel and replay them, as ``rota instance`` does."""

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from rota.client.session import Session, as_json, checked_id, checked_limit, checked_status
from rota.shared.control import instances, replays
from rota.shared.control.documents import Document
from rota.shared.control.replays import Again, ReplayFilter
from rota.shared.domain.errors import InvalidInput, NotEnded
from rota.shared.domain.states import TERMINAL, InstanceStatus
from rota.shared.domain.task_filter import TaskFilter

Documents = list[Document]

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
"""Who waits for an end asks so often: soon at first, and more rarely for a run that takes long."""


class Instances:
    """The instances. Every function returns what ``rota instance … --json`` prints."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(
        self,
        *,
        limit: int = 20,
        task: str | None = None,
        status: str | None = None,
        parent: int | None = None,
        owner: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
    ) -> Documents:
        """At most ``limit`` instances, the newest first; those of one ``task`` by ``schedule_datetime``.

        Shards are left out; with ``parent`` it is the shards of that instance, in their order. ``owner``, ``group`` and
        ``tags`` choose those of the tasks that have them now. Large params and results are left out: then
        ``param_bytes`` and ``result_bytes`` are their sizes. Raises NotFound for a task or a parent that does not
        exist. Raises InvalidInput for a status that does not, for a limit out of range, and if more than one of
        ``task``, ``parent`` and the choice of tasks is given.

            client.instances.list(status="failed", owner="ann")
        """
        chosen = TaskFilter(owner=owner, group=group, tags=tags)
        if sum((task is not None, parent is not None, not chosen.is_every)) > 1:
            raise InvalidInput("task, parent, or owner, group and tags: give one of these, since each says which alone")
        with self._session.database() as database:
            return instances.listed(
                database,
                checked_limit(limit),
                task=task,
                status=checked_status(InstanceStatus, status),
                parent=None if parent is None else checked_id(parent),
                chosen=chosen,
            )

    def show(self, instance_id: int) -> Document:
        """All of an instance, with its nodes. Raises NotFound."""
        with self._session.database() as database:
            return instances.show(database, checked_id(instance_id))

    def get(self, instance_id: int) -> Document:
        """An instance without its nodes, for a program that looks again and again. Raises NotFound."""
        with self._session.database() as database:
            return instances.get(database, checked_id(instance_id))

    def wait(self, instance_id: int, *, timeout: float | None = None) -> Document:
        """Wait until an instance has ended, and return it with its nodes. ``timeout`` is in seconds; None: no limit.

        It returns also what has failed or was canceled: look at ``status``. Raises NotFound, and NotEnded (also a
        TimeoutError) if it has not ended in time; the instance is left alone. InvalidInput for a negative timeout.

            ended = client.instances.wait(17, timeout=60)
            ended["status"], ended["execution_result"]
        """
        with self._session.database() as database:
            clock = database.clock
        looks = Looks(instance_id, timeout, clock.monotonic)
        for pause in looks.pauses():
            if looks.has_ended(self.get(instance_id)):
                return self.show(instance_id)
            clock.sleep(pause)
        raise looks.in_vain()

    def cancel(self, *instance_ids: int, why: str | None = None) -> Documents:
        """Cancel all of these instances, or none: at once where they wait, and where they run by asking the worker.

        Raises NotFound, or NotPossible if one has ended.
        """
        with self._session.database() as database:
            return instances.cancel(database, self._session.actor, [checked_id(one) for one in instance_ids], why)

    def replay(
        self,
        *instance_ids: int,
        param: dict[str, Any] | BaseModel | None = None,
        from_node: str | None = None,
        chain: bool = False,
        why: str | None = None,
    ) -> Documents:
        """Run all of these ended instances once more, or none; returns the new instances in the same order.

        With ``chain``, what follows their tasks then runs once more, too. The new instances come as in ``list``,
        without large params. Raises NotFound, InvalidParam, and NotPossible if one has not ended, or if a node before
        ``from_node`` has not succeeded.
        """
        again = Again(as_json(param), from_node, chain)
        with self._session.database() as database:
            return replays.replay(
                database, self._session.actor, [checked_id(one) for one in instance_ids], why, again=again
            )

    def replay_found(
        self,
        *,
        status: str = InstanceStatus.FAILED.value,
        task: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        owner: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        param: dict[str, Any] | BaseModel | None = None,
        from_node: str | None = None,
        chain: bool = False,
        dry_run: bool = False,
        why: str | None = None,
    ) -> Document:
        """Run once more what a filter finds: the newest run of each fire, from ``since`` on and before ``until``.

        ``owner``, ``group`` and ``tags`` choose those of the tasks that have them now, in place of ``task``.

        Returns ``replayed``, how many (with ``dry_run``: how many would be); ``first``, the first of them;
        ``left_out``, how many cannot be; and ``why``, what is said of the first of those. It writes some in each
        transaction. Interrupted and begun again it replays nothing twice.
        ``chain`` is as of ``replay``. Raises NotFound, InvalidParam, InvalidInput.
        """
        checked_status(InstanceStatus, status)
        of_tasks = TaskFilter(owner=owner, group=group, tags=tags)
        chosen = ReplayFilter(status, task, self._session.as_text(since), self._session.as_text(until), of_tasks)
        again = Again(as_json(param), from_node, chain)
        with self._session.database() as database:
            found = replays.find(database, chosen, again)
            if dry_run:
                return _told(found.number, found.first, found.left_out, found.why)
            done = replays.replay_found(database, self._session.actor, chosen, found.last, why, again=again)
        return _told(done.done, done.first, done.left_out, done.why)


class Looks:
    """The looks at an instance of one that waits for its end: how long to rest after each, and what is said at last."""

    def __init__(self, instance_id: int, timeout: float | None, monotonic: Callable[[], float]) -> None:
        if timeout is not None and not timeout >= 0:
            raise InvalidInput(f"timeout {timeout}: give 0 or more seconds, or None for no limit")
        self._instance_id, self._timeout, self._monotonic = instance_id, timeout, monotonic
        self._seen: Document = {}

    def pauses(self) -> Iterator[float]:
        """The seconds to rest after each look. After the last one, when the time is over, there are none left."""
        until = math.inf if self._timeout is None else self._monotonic() + self._timeout
        pause = FIRST_PAUSE_SECONDS
        while True:
            left = until - self._monotonic()
            yield max(min(pause, left), 0.0)
            if left <= 0:
                return
            pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)

    def has_ended(self, seen: Document) -> bool:
        """Whether the instance, as it was seen, has ended."""
        self._seen = seen
        return seen["status"] in TERMINAL

    def in_vain(self) -> NotEnded:
        """The error that the instance has not ended in time."""
        because = f": {reason}" if (reason := self._seen["reason"]) else ""
        status = self._seen["status"]
        return NotEnded(
            f"instance {self._instance_id} has not ended within {self._timeout:g} s; it is {status}{because}"
        )


def _told(number: int, first: Documents, left_out: int, why: str | None) -> Document:
    return {"replayed": number, "first": first, "left_out": left_out, "why": why}
