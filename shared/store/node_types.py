"""The registered node types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from shared.domain.nodes import Catalog, NodeType
from shared.store.dialects import UtcNow, ignore_conflicts
from shared.store.tables import schedule_task_node_type

_type = schedule_task_node_type.c


@dataclass(frozen=True, slots=True)
class NodeTypeDeclaration:
    """A node type as code declares it. ``defaults``: timeout (s), retries, executor."""

    type: str
    category: str
    sequence: int = 1
    defaults: Mapping[str, Any] | None = None
    param_schema: Mapping[str, Any] | None = None

    def columns(self) -> dict[str, Any]:
        """Its columns and their values."""
        return {
            "type": self.type,
            "category": self.category,
            "sequence": self.sequence,
            "defaults": dict(self.defaults) if self.defaults else None,
            "param_schema": dict(self.param_schema) if self.param_schema else None,
        }


class NodeTypeNames:
    """The (type, category) of node types by their ids, which never change their meaning: read once each.

    names = NodeTypeNames()
    names.of(connection, 1)   # ("REPORT_EXTRACT", "REPORT")
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str]] = {}

    def of(self, connection: Connection, type_id: int) -> tuple[str, str]:
        """The type and the category."""
        known = self._known.get(type_id)
        if known is None:
            row = connection.execute(select(_type.type, _type.category).where(_type.id == type_id)).one_or_none()
            known = (f"a node type {type_id} that is not registered", "") if row is None else (row.type, row.category)
            if row is not None:
                self._known[type_id] = known
        return known


def catalog(connection: Connection) -> Catalog:
    """Every registered node type."""
    statement = select(_type.id, _type.type, _type.category, _type.sequence, _type.defaults, _type.param_schema)
    return Catalog([NodeType(*row) for row in connection.execute(statement.where(_type.is_deleted == 0))])


def register(connection: Connection, declarations: Iterable[NodeTypeDeclaration], by: str) -> None:
    """Write the node types that are new or declared otherwise than before; several workers may do so at once."""
    wanted = {d.type: d.columns() for d in declarations}
    if not wanted:
        return
    fields = ("type", "category", "sequence", "defaults", "param_schema", "is_deleted")
    statement = select(*(_type[name] for name in fields)).where(_type.type.in_(sorted(wanted)))
    there = {row["type"]: dict(row) for row in connection.execute(statement).mappings()}
    missing = [{**columns, "creator": by, "modifier": by} for name, columns in wanted.items() if name not in there]
    if missing:
        connection.execute(ignore_conflicts(insert(schedule_task_node_type)), missing)
    for name, columns in wanted.items():
        if name in there and there[name] != {**columns, "is_deleted": 0}:
            connection.execute(
                update(schedule_task_node_type)
                .where(_type.type == name)
                .values(**columns, is_deleted=0, modifier=by, gmt_modified=UtcNow())
            )
