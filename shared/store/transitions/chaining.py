"""For which replay with its chain a run counts. It is no move: the run stays where it is."""

from collections.abc import Collection, Iterable

from sqlalchemy import Connection, update

from rota.shared.database.constructs import among, bound, json_rows
from rota.shared.database.later import execute_later
from rota.shared.store.tables import schedule_instance

_instance = schedule_instance.c

_moved = json_rows("moved", id="id", again_of="id")
_count_for = (
    update(schedule_instance)
    .where(_instance.id == _moved.c.id, _instance.again_of < _moved.c.again_of)
    .values(again_of=_moved.c.again_of)
)
_count_for_itself = update(schedule_instance).where(among(_instance.id)).values(again_of=_instance.id)


def count_for(connection: Connection, runs: Iterable[tuple[int, int]]) -> None:
    """Let runs, (instance id, replay), which were written for earlier replays, count for these as well."""
    if rows := sorted(runs):
        execute_later(connection, _count_for, {"rows": bound(rows)})


def count_for_itself(connection: Connection, instance_ids: Collection[int]) -> None:
    """Let these be replays that were asked for with their chains."""
    execute_later(connection, _count_for_itself, {"ids": sorted(instance_ids)})
