"""Limits that tasks share: add, change, remove, list and show them; and declare them in code."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row

from rota.shared.control import audit
from rota.shared.control.actor import Actor
from rota.shared.control.acts import Act, perform
from rota.shared.control.documents import Document, limit_document, limit_holder_document, limit_waiter_document, plain
from rota.shared.database.transactions import Database
from rota.shared.domain.limits import LimitDefinition
from rota.shared.store import shared_limits

SHOWN = 20
"""How many of those that hold a limit, and of those that wait for it, are shown."""


def add(database: Database, actor: Actor, fields: Mapping[str, Any], why: str | None = None) -> Document:
    """Add a limit. ``fields`` are those of `LimitDefinition`.

    Raises InvalidInput with every fault, and NameTaken.

        add(database, Actor("ann", "cli"), {"name": "warehouse", "max_running": 4})
    """
    definition = LimitDefinition.of(**fields)

    def work(connection: Connection, act: Act) -> None:
        limit_id = shared_limits.add(connection, definition, actor.name)
        audit.on_limit(connection, act, "limit.add", (limit_id, definition.name), old=None, new=_given(definition))

    perform(database, actor, why, work)
    return get(database, definition.name)


def edit(database: Database, actor: Actor, name: str, changes: Mapping[str, Any], why: str | None = None) -> Document:
    """Change fields of a limit; None clears one. What runs goes on.

    Raises NotFound, InvalidInput.
    """

    def work(connection: Connection, act: Act) -> None:
        before = shared_limits.find(connection, name)
        definition = LimitDefinition.of(**{**_fields(before), **changes})
        written = {field: getattr(definition, field) for field in changes}
        shared_limits.change(connection, before, written, actor.name)
        _record_edit(connection, act, before, written)

    perform(database, actor, why, work)
    return get(database, name)


def remove(database: Database, actor: Actor, name: str, why: str | None = None) -> Document:
    """Delete a limit that no task names.

    Raises NotFound, and NotPossible while tasks name it.
    """

    def work(connection: Connection, act: Act) -> int:
        row = shared_limits.find(connection, name)
        shared_limits.remove(connection, row)
        old, new = {**_fields(row), "is_deleted": 0}, {"is_deleted": 1}
        audit.on_limit(connection, act, "limit.remove", (row.id, name), old=old, new=new)
        return int(row.id)

    return {"id": perform(database, actor, why, work), "name": name, "removed": True}


def declare(database: Database, actor: Actor, definition: LimitDefinition) -> None:
    """Insert or update, by name, a limit that code declares (``app.limit``).

    Raises what ``Database.write_if_free`` raises.
    """

    def work(connection: Connection, act: Act) -> None:
        declared = shared_limits.declare(connection, definition, actor.name)
        if declared.before is None:
            limit = (declared.limit_id, definition.name)
            audit.on_limit(connection, act, "limit.add", limit, old=None, new=_given(definition))
        elif declared.written:
            _record_edit(connection, act, declared.before, declared.written)

    perform(database, actor, None, work, waits=False)


def listed(database: Database, limit: int) -> list[Document]:
    """At most ``limit`` limits by name, with how many instances hold each, and how many tasks name it."""
    return [limit_document(row) for row in database.read(lambda c: shared_limits.listed(c, limit))]


def get(database: Database, name: str) -> Document:
    """A limit.

    Raises NotFound.
    """
    return limit_document(database.read(lambda c: shared_limits.find(c, name)))


def show(database: Database, name: str) -> Document:
    """A limit with those who hold it (``holders``) and those who wait for it (``waiting``; in all ``waiting_count``).

    Raises NotFound.
    """

    def read(connection: Connection) -> Document:
        row = shared_limits.find(connection, name)
        waiting, count = shared_limits.waiting(connection, name, SHOWN)
        return limit_document(row) | {
            "holders": [limit_holder_document(one) for one in shared_limits.holders(connection, name, SHOWN)],
            "waiting": [limit_waiter_document(one) for one in waiting],
            "waiting_count": count,
        }

    return database.read(read)


def _fields(row: Row[Any]) -> Document:
    return {name: getattr(row, name) for name in LimitDefinition.model_fields}


def _given(definition: LimitDefinition) -> Document:
    return {name: value for name, value in definition.columns().items() if value is not None and name != "name"}


def _record_edit(connection: Connection, act: Act, before: Row[Any], written: Mapping[str, Any]) -> None:
    """Record the fields whose values have changed; nothing if none has."""
    new = {name: plain(value) for name, value in written.items() if getattr(before, name) != value}
    if new:
        old = {name: plain(getattr(before, name)) for name in new}
        audit.on_limit(connection, act, "limit.set", (before.id, before.name), old=old, new=new)
