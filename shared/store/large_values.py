"""Large params and results of what a worker claims: they are read apart from the rows, a few megabytes at a time.

An instance is read in one row with each of its nodes, so its param would come as many times as it has nodes.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from rota.shared.database.constructs import among
from rota.shared.store import params
from rota.shared.store.tables import schedule_instance, schedule_task_node

if TYPE_CHECKING:
    from rota.shared.store.runs import Wanted

_instance = schedule_instance.c
_node = schedule_task_node.c
_of_instances = select(_instance.id, _instance.param).where(among(_instance.id))
_of_nodes = select(_node.id, _node.param, _node.execution_result).where(among(_node.id))


def read(connection: Connection, rows: Iterable["Wanted"]) -> None:
    """Give these instances and their nodes their large params and results, if they have some."""
    for portion in params.in_portions((row for row in rows if row.large), lambda row: row.large):
        if instances := [row.id for row in portion if row.terms.large_param]:
            values = dict(connection.execute(_of_instances, {"ids": instances}).all())
            for row in portion:
                row.param = values.get(row.id, row.param)
        if large := sorted(node for row in portion for node in row.large_nodes):
            found = {node: (param, result) for node, param, result in connection.execute(_of_nodes, {"ids": large})}
            for one in (node for row in portion for node in row.nodes):
                one.param, one.result = found.get(one.id, (one.param, one.result))
