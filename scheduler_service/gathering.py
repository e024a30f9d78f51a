"""Gathering: end the instances that run as their shards when these have ended, and stop the shards of what is canceled.

All is decided by the rows, and several schedulers may do it at once: what has ended stays so, and no shard is added.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from rota.scheduler_service.notices import of_instance
from rota.shared.database.transactions import Database
from rota.shared.domain.spreading import MOST_SHARDS, gathered
from rota.shared.store import params, spreading
from rota.shared.store.spreading import Running, Unstopped
from rota.shared.store.transitions import spreading as moves
from rota.shared.surprises import Surprises

PAGE = 200

SHARDS_AT_ONCE = 5_000
"""So many shards are read with their results at once, each up to 4 KiB."""


def gather(database: Database, surprises: Surprises) -> bool:
    """Look at all that runs as its shards; returns whether any of it goes on."""
    after, some_run = 0, False
    while True:
        page = database.read(partial(spreading.running, after_id=after, limit=PAGE))
        going_on = [one for one in page if one.is_open]
        some_run |= bool(going_on)
        for some in _portions(one for one in going_on if one.gmt_cancel_requested is not None):
            stop_shards(database, [one.id for one in some], surprises)
        for some in _portions(one for one in page if not one.is_open):
            _end(database, some, surprises)
        if len(page) < PAGE:
            return some_run
        after = page[-1].id


def stop_shards(database: Database, parent_ids: Collection[int], surprises: Surprises) -> Collection[int]:
    """Cancel the shards of these instances, or ask their workers to stop them, as far as nobody has done so.

    Returns the instances that had such shards. What somebody has locked is left to a later look.
    """
    shards = database.read(lambda c: spreading.unstopped(c, parent_ids))

    def refused(shard_id: int, error: DBAPIError) -> None:
        surprises.say(of_instance(shard_id), error)

    database.write_by_halves(
        [*shards.waiting, *shards.running], partial(_stop_some, shards=shards), refused, of_instance
    )
    return shards.parents


def _stop_some(connection: Connection, shard_ids: Sequence[int], shards: Unstopped) -> None:
    some = set(shard_ids)
    waiting, running = ([one for one in ids if one in some] for ids in (shards.waiting, shards.running))
    spreading.stop(connection, shards._replace(waiting=waiting, running=running))


def _end(database: Database, parents: Sequence[Running], surprises: Surprises) -> None:
    shards = database.read(lambda c: spreading.shards_of(c, [one.id for one in parents], results=True))
    ends = []
    for one in parents:
        is_canceled = one.gmt_cancel_requested is not None
        how = gathered(shards[one.id], one.total, is_cancel_requested=is_canceled, reason=one.reason)
        ends.append((one.id, one.attempt, how))

    def refused(end: moves.End, error: DBAPIError) -> None:
        surprises.say(f"the end of instance {end[0]}", error)

    database.write_by_halves(ends, moves.end, refused, lambda end: f"the end of instance {end[0]}")


def _portions(parents: Iterable[Running]) -> Iterator[Sequence[Running]]:
    return params.in_portions(parents, lambda one: one.total or MOST_SHARDS, SHARDS_AT_ONCE)
