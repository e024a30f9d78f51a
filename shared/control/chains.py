"""Chains: the tasks before and behind a run, each with its own run for the same time."""

from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control.documents import Document
from rota.shared.domain.chains import why_not
from rota.shared.domain.states import OnEnd
from rota.shared.domain.times import is_time
from rota.shared.store import chain_views


def of_instance(connection: Connection, instance: Row[Any]) -> list[Document]:
    """The chain of an instance: its own task and those before and behind it, each behind all that it follows.

    ``after`` has the tasks that it follows, with the ends; ``instance_id``, ``status`` and ``runs`` are those of its
    newest run for the time of this instance; without one, ``why`` says why it has none. Empty if there is no chain.
    """
    if instance.task_name is None or not is_time(instance.schedule_datetime):
        return []
    after = chain_views.connected(connection, instance.task_name)
    place = (instance.schedule_datetime, instance.fire_key)
    newest = chain_views.runs(connection, after, *place)
    ended = chain_views.ended(connection, after, *place)
    chain = []
    for name, ends in ((one, after[one]) for one in _in_order(after)):
        run = newest.get(name)
        chain.append(
            {
                "task": name,
                "after": ends,
                "instance_id": None if run is None else run.id,
                "status": None if run is None else run.status,
                "runs": 0 if run is None else run.runs,
                "why": why_not([(b, OnEnd(e)) for b, e in ends.items()], ended) if run is None and ends else None,
            }
        )
    return chain


def _in_order(after: dict[str, dict[str, str]]) -> list[str]:
    """The tasks, each behind those that it follows; a circle, which only SQL can write, comes last."""
    order: list[str] = []
    left = dict(after)
    while left:
        ready = [name for name, ends in left.items() if not (ends.keys() & left.keys())] or list(left)
        order += sorted(ready)
        left = {name: ends for name, ends in left.items() if name not in set(ready)}
    return order
