"""Stray nodes: those whose instance is gone, because SQL has deleted it or has emptied the table of instances.

Nobody runs a stray node, whatever its id says (``tables.owns_node``). It only takes room.
"""

from collections.abc import Collection

from sqlalchemy import Connection, and_, bindparam, case, delete, exists, func, select

from rota.shared.database.constructs import among, by_index, found_by, joined_ids, split_ids
from rota.shared.store.tables import owns_node, schedule_instance, schedule_task_node

_instance = schedule_instance.c
_node = schedule_task_node.c

_page = (
    select(_node.id, _node.schedule_instance_id, _node.instance_gmt_create)
    .where(_node.id > bindparam("after"), _node.id <= bindparam("last"))
    .order_by(_node.id)
    .limit(bindparam("limit"))
).subquery("page")
_its_instance = and_(_instance.id == _page.c.schedule_instance_id, _instance.gmt_create == _page.c.instance_gmt_create)
_find = select(func.count(), func.max(_page.c.id), joined_ids(case((_instance.id.is_(None), _page.c.id)))).select_from(
    _page.outerjoin(schedule_instance, _its_instance)
)

_delete = found_by(
    delete(schedule_task_node).where(
        among(_node.id), ~exists(by_index(select(_instance.id), schedule_instance).where(owns_node))
    )
)


def newest(connection: Connection) -> int:
    """The greatest id of a node; 0 if there is none."""
    return connection.scalar(select(func.max(_node.id))) or 0


def find(connection: Connection, after: int, last: int, limit: int) -> tuple[list[int], int]:
    """Look at ``limit`` nodes after an id, up to ``last``; returns the strays among them, and the id to go on after.

    The id is 0 if these were the last nodes.
    """
    seen, reached, strays = connection.execute(_find, {"after": after, "last": last, "limit": limit}).one()
    return split_ids(strays), int(reached) if seen == limit and reached < last else 0


def remove(connection: Connection, ids: Collection[int]) -> int:
    """Delete those of these nodes that are strays; returns how many."""
    return connection.execute(_delete, {"ids": sorted(ids)}).rowcount
