"""The client for ``async`` code: each function of the plain client, awaited while a thread of its own does it."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from rota.client import own_transaction
from rota.client.backfills import Backfills
from rota.client.calendars import Calendars
from rota.client.instances import Instances, Looks
from rota.client.keys import Keys, Once, wanted_of
from rota.client.limits import Limits
from rota.client.own_transaction import Asking
from rota.client.plain import Client
from rota.client.schedulers import Schedulers
from rota.client.session import Session, as_json
from rota.client.tasks import Tasks
from rota.client.workers import Workers
from rota.shared.control import requests
from rota.shared.control.business_keys import Wanted
from rota.shared.control.documents import Document
from rota.shared.database import callers

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    from rota.worker_service.jobs import OfType
    from rota.worker_service.signatures import P

G = TypeVar("G")
T = TypeVar("T")
Given = ParamSpec("Given")

THREADS = 8
"""So many calls of one client are made at once, below the number of connections that it may open; others wait."""


class AsyncGroup(Generic[G]):
    """A group of functions of the plain client, which run on the client's threads."""

    def __init__(self, group: G, threads: ThreadPoolExecutor) -> None:
        self._group = group
        self._threads = threads

    async def _call(self, function: Callable[[], T]) -> T:
        """Call it on a thread, in the caller's context."""
        work = partial(contextvars.copy_context().run, function)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class Awaited(Generic[G, Given, T]):
    """A function of a group of the plain client, as a coroutine function of the same signature."""

    def __init__(self, function: Callable[Concatenate[G, Given], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...
    @overload
    def __get__(self, group: AsyncGroup[G], owner: type) -> Callable[Given, Coroutine[Any, Any, T]]: ...
    def __get__(self, group: AsyncGroup[G] | None, owner: type) -> Self | Callable[Given, Coroutine[Any, Any, T]]:
        """The coroutine function of one client."""
        if group is None:
            return self

        async def awaited(*args: Given.args, **given: Given.kwargs) -> T:
            return await group._call(partial(self._function, group._group, *args, **given))  # noqa: SLF001 - one unit

        awaited.__name__ = getattr(self._function, "__name__", "awaited")
        awaited.__doc__ = self.__doc__
        return awaited


class AsyncTasks(AsyncGroup[Tasks]):
    """The tasks: the functions of ``Tasks``, to be awaited."""

    add = Awaited(Tasks.add)
    set = Awaited(Tasks.set)
    list = Awaited(Tasks.list)
    show = Awaited(Tasks.show)
    why = Awaited(Tasks.why)
    on = Awaited(Tasks.on)
    off = Awaited(Tasks.off)
    remove = Awaited(Tasks.remove)
    run = Awaited(Tasks.run)
    next_fires = Awaited(Tasks.next_fires)
    skip_next = Awaited(Tasks.skip_next)
    set_next = Awaited(Tasks.set_next)


class AsyncInstances(AsyncGroup[Instances]):
    """The instances: the functions of ``Instances``, to be awaited."""

    list = Awaited(Instances.list)
    show = Awaited(Instances.show)
    get = Awaited(Instances.get)
    cancel = Awaited(Instances.cancel)
    replay = Awaited(Instances.replay)
    replay_found = Awaited(Instances.replay_found)

    async def wait(self, instance_id: int, *, timeout: float | None = None) -> Document:  # noqa: ASYNC109 - as the plain one
        """Wait until an instance has ended, as ``Instances.wait`` does. It holds no thread between two looks."""
        looks = Looks(instance_id, timeout, asyncio.get_running_loop().time)
        for pause in looks.pauses():
            if looks.has_ended(await self.get(instance_id)):
                return await self.show(instance_id)
            await asyncio.sleep(pause)
        raise looks.in_vain()


class AsyncBackfills(AsyncGroup[Backfills]):
    """The backfills: the functions of ``Backfills``, to be awaited."""

    preview = Awaited(Backfills.preview)
    start = Awaited(Backfills.start)
    list = Awaited(Backfills.list)
    show = Awaited(Backfills.show)
    pause = Awaited(Backfills.pause)
    resume = Awaited(Backfills.resume)
    cancel = Awaited(Backfills.cancel)


class AsyncWorkers(AsyncGroup[Workers]):
    """The workers: the functions of ``Workers``, to be awaited."""

    list = Awaited(Workers.list)
    show = Awaited(Workers.show)
    drain = Awaited(Workers.drain)
    resume = Awaited(Workers.resume)


class AsyncLimits(AsyncGroup[Limits]):
    """The limits: the functions of ``Limits``, to be awaited."""

    list = Awaited(Limits.list)
    show = Awaited(Limits.show)
    add = Awaited(Limits.add)
    set = Awaited(Limits.set)
    remove = Awaited(Limits.remove)


class AsyncCalendars(AsyncGroup[Calendars]):
    """The calendars: the functions of ``Calendars``, to be awaited."""

    list = Awaited(Calendars.list)
    show = Awaited(Calendars.show)
    add = Awaited(Calendars.add)
    set = Awaited(Calendars.set)
    refresh = Awaited(Calendars.refresh)
    remove = Awaited(Calendars.remove)


class AsyncSchedulers(AsyncGroup[Schedulers]):
    """The schedulers: the functions of ``Schedulers``, to be awaited."""

    list = Awaited(Schedulers.list)
    paused = Awaited(Schedulers.paused)
    pause = Awaited(Schedulers.pause)
    resume = Awaited(Schedulers.resume)


class AsyncKeys(AsyncGroup[Keys]):
    """The business keys: the functions of ``Keys``, to be awaited."""

    find = Awaited(Keys.find)
    cancel_all = Awaited(Keys.cancel_all)

    @property
    def _session(self) -> Session:
        return self._group._session  # noqa: SLF001 - one unit

    async def once(
        self,
        type: "OfType[P]",  # noqa: A002 - as the plain one
        *,
        key: str,
        code: str = "",
        at: datetime | str | None = None,
        param: "P | dict[str, Any] | None" = None,
        connection: "AsyncSession | AsyncConnection | None" = None,
        why: str | None = None,
    ) -> Document:
        if connection is None:
            return await self._call(partial(self._group.once, type, key=key, code=code, at=at, param=param, why=why))
        wanted = Wanted(key, self._session.as_text(at), as_json(param), code)
        return await self._ask(connection, requests.once, type, wanted, why)

    async def once_many(
        self,
        type: "OfType[P]",  # noqa: A002 - as the plain one
        work: "Iterable[Once[P]]",
        *,
        connection: "AsyncSession | AsyncConnection | None" = None,
        why: str | None = None,
    ) -> Document:
        if connection is None:
            return await self._call(partial(self._group.once_many, type, work, why=why))
        return await self._ask(connection, requests.once_many, type, wanted_of(self._session, work), why)

    async def cancel(
        self,
        type: "OfType[P]",  # noqa: A002 - as the plain one
        key: str,
        *,
        code: str = "",
        connection: "AsyncSession | AsyncConnection | None" = None,
        why: str | None = None,
    ) -> Document:
        if connection is None:
            return await self._call(partial(self._group.cancel, type, key, code=code, why=why))
        return await self._ask(connection, requests.cancel, type, (code, key), why)

    async def _ask(self, connection: Any, asking: Asking, *given: Any) -> Document:
        inserts, told = await self._call(partial(own_transaction.asked, self._session, asking, *given))
        for insert in inserts:
            await callers.execute_async(connection, insert)
        callers.after_commit(connection, self._wake)
        return told

    def _wake(self) -> None:
        """On a thread, since the event loop commits."""
        with suppress(RuntimeError):  # the client has been closed meanwhile
            self._threads.submit(self._session.wake_after_commit)


for _name in ("once", "once_many", "cancel"):
    getattr(AsyncKeys, _name).__doc__ = getattr(Keys, _name).__doc__


class AsyncClient:
    """``Client`` for ``async`` code: the same functions, to be awaited. They never block the event loop.

        async with AsyncClient("mysql://shop:…@db/rota") as client:
            run = await client.tasks.run("nightly")
            print((await client.instances.wait(run["id"], timeout=60))["status"])

    A call that is canceled goes on in its thread to its end: what it asks for may happen.
    """

    def __init__(self, database_url: str | None = None, *, name: str | None = None) -> None:
        """As of ``Client``."""
        self._client = Client(database_url, name=name)
        self._threads = ThreadPoolExecutor(THREADS, "rota-client")
        self.tasks = AsyncTasks(self._client.tasks, self._threads)
        self.instances = AsyncInstances(self._client.instances, self._threads)
        self.backfills = AsyncBackfills(self._client.backfills, self._threads)
        self.workers = AsyncWorkers(self._client.workers, self._threads)
        self.keys = AsyncKeys(self._client.keys, self._threads)
        self.limits = AsyncLimits(self._client.limits, self._threads)
        self.calendars = AsyncCalendars(self._client.calendars, self._threads)
        self.schedulers = AsyncSchedulers(self._client.schedulers, self._threads)
        self.once = self.keys.once
        self.once_many = self.keys.once_many

    async def wake(self) -> None:
        """As of ``Client``."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._client.wake)

    async def close(self) -> None:
        """Let the calls end that have begun, and close the connections. The client cannot be used any more."""
        await asyncio.to_thread(self._threads.shutdown)
        self._client.close()

    async def __aenter__(self) -> Self:
        """Use the client in an ``async with`` block, which closes it at its end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()
