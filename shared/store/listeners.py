"""Listeners: who tells each of what the rows say, and how far it has been told.

One process at a time holds a listener, by a lease in its row, also while it calls it. Before an event is told, the
holder has seen within the lease that it holds it; afterwards it writes how far it has told, if it still does. So an
event may be told twice, when a process is killed or frozen for longer than its lease, but it is not lost.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, delete, func, insert, literal_column, or_, select, update

from rota.shared.database.constructs import SecondsBefore, UtcNow, among, found_by, ignore_conflicts
from rota.shared.store.tables import schedule_listener

_listener = schedule_listener.c

LEASE_SECONDS = 20.0
"""A holder that has said nothing for so long has lost the listener to whoever asks next."""

FORGET_SECONDS = 90 * 86_400
"""The row of a listener that nobody has held for so long is removed, when another is added: 90 days."""

FORGET_LIMIT = 1000

_of_name = _listener.name == bindparam("listener")
_mine = and_(_listener.holder == bindparam("me"), _listener.held_at.is_not(None))
_held_now = _listener.held_at.between(SecondsBefore(UtcNow(), LEASE_SECONDS), SecondsBefore(UtcNow(), -LEASE_SECONDS))
"""A lease that begins far in the future counts as none, too: the clock was set back, or SQL wrote it."""

_free = or_(_listener.held_at.is_(None), ~_held_now, _mine)
_is_free = select(case((_free, literal_column("1")), else_=literal_column("0"))).where(_of_name)
_take = update(schedule_listener).where(_of_name, _free).values(holder=bindparam("me"), held_at=UtcNow())
_named = (
    update(schedule_listener)
    .with_hint("uq_schedule_listener_name")  # a scan would wait for rows of others that somebody has locked
    .where(among(_listener.name, "names"), _mine)
)
_renew = _named.values(held_at=UtcNow())
_release = _named.values(held_at=None, gmt_modified=UtcNow())
_names = select(_listener.name).where(among(_listener.name, "names"), _mine)
_keep = (
    update(schedule_listener)
    .where(_of_name, _mine)
    .values(held_at=UtcNow(), told=bindparam("by_event"), gmt_modified=UtcNow())
)
_told = select(_listener.told).where(_of_name, _mine)


def is_free(connection: Connection, name: str, holder: str) -> bool | None:
    """Whether no other process holds a listener; None if it has no row."""
    found = connection.scalar(_is_free, {"listener": name, "me": holder})
    return None if found is None else bool(found)


def add(connection: Connection, name: str, by: str) -> None:
    """Insert the row of a listener, unless it is there. It also removes those that nobody has held for 90 days."""
    old = func.coalesce(_listener.held_at, _listener.gmt_modified) < SecondsBefore(UtcNow(), FORGET_SECONDS)
    ids = connection.scalars(select(_listener.id).where(old).limit(FORGET_LIMIT)).all()
    if ids:
        connection.execute(found_by(delete(schedule_listener).where(_listener.id.in_(sorted(ids)), old)))
    connection.execute(ignore_conflicts(insert(schedule_listener)).values(name=name, creator=by, modifier=by))


def take(connection: Connection, name: str, holder: str) -> bool:
    """Take a listener; False if another process holds it, or if it has no row."""
    return connection.execute(_take, {"listener": name, "me": holder}).rowcount == 1


def told(connection: Connection, name: str, holder: str) -> Any:
    """How far a listener has been told, as it was written; None if this process does not hold it."""
    return connection.scalar(_told, {"listener": name, "me": holder})


def keep(connection: Connection, name: str, holder: str, told: Any) -> bool:
    """Write how far a listener has been told, and hold it on; False if another process holds it by now."""
    return connection.execute(_keep, {"listener": name, "me": holder, "by_event": told}).rowcount == 1


def renew(connection: Connection, names: Collection[str], holder: str) -> set[str]:
    """Hold these listeners on; returns those that this process still holds."""
    values = {"names": sorted(names), "me": holder}
    if connection.execute(_renew, values).rowcount == len(names):
        return set(names)
    return set(connection.scalars(_names, values))


def release(connection: Connection, names: Collection[str], holder: str) -> None:
    """Let other processes have these listeners at once."""
    connection.execute(_release, {"names": sorted(names), "me": holder})
