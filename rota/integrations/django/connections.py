"""Django's connections around a run: as around a request, and none that the server has closed meanwhile."""

import functools
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.cache import close_caches
from django.db import Error, close_old_connections, connections, reset_queries

from rota.worker_service.handlers import function_of

Handler = Callable[[Any], Any]


def renewed(handler: Handler) -> Handler:
    """The handler, with Django's connections renewed before it and closed after it, as ``CONN_MAX_AGE`` says.

    A coroutine has connections of its own, on a thread of its own, as a request has under ASGI; so the end of one
    closes none that another reads from. They are closed at its end.
    """

    async def on_loop(context: Any) -> Any:
        async with ThreadSensitiveContext():
            try:
                return await handler(context)
            finally:
                await sync_to_async(_let_go_of_all)()

    def on_thread(context: Any) -> Any:
        renew()
        try:
            return handler(context)
        finally:
            close_old_connections()
            close_caches()

    is_async = iscoroutinefunction(function_of(handler))
    return functools.wraps(handler)(on_loop if is_async else on_thread)


def renew() -> None:
    """Close this thread's connections that are too old, and those that the server has closed. Django opens new ones.

    Django itself would find out in the first query, which would fail, and the run with it.
    """
    reset_queries()
    close_old_connections()
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.in_atomic_block and not _answers(connection):
            connection.close()


def _let_go_of_all() -> None:
    connections.close_all()
    close_caches()


def _answers(connection: Any) -> bool:
    """Whether the server answers. (``is_usable`` would let PyMySQL connect anew, without Django's settings.)"""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return False
    return True
