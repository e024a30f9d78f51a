"""The registered node types, and the versions of the task types: each app registers its ordered lists whole."""

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from rota.shared.database.constructs import UtcNow, ignore_conflicts
from rota.shared.database.later import execute_later, read_before
from rota.shared.domain.jsontext import is_text, object_in
from rota.shared.domain.nodes import Catalog, NodeList, NodeType
from rota.shared.domain.states import WorkerState
from rota.shared.domain.versions import version_of
from rota.shared.store.tables import (
    schedule_task_node_type,
    schedule_task_type_version,
    schedule_worker_beat,
    schedule_worker_node,
)

_type = schedule_task_node_type.c
_version = schedule_task_type_version.c
_worker = schedule_worker_node.c
_beat = schedule_worker_beat.c

Version = tuple[str, str]
"""A version of a task type: (category, version)."""

ID_BITS = 53
"""Of the ids of node types, so that each program reads them as whole numbers."""

NO_VERSIONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeTypeDeclaration:
    """A node type as code declares it. ``defaults`` holds its timeout in seconds, its retries and its executor."""

    type: str
    category: str
    sequence: int = 1
    defaults: Mapping[str, Any] | None = None
    param_schema: Mapping[str, Any] | None = None

    def columns(self) -> dict[str, Any]:
        """The columns of ``schedule_task_node_type`` and their values."""
        return {"category": self.category, "sequence": self.sequence, **self.content()}

    def content(self) -> dict[str, Any]:
        """The node type as it stands in its category's list."""
        return {
            "type": self.type,
            "defaults": dict(self.defaults) if self.defaults else None,
            "param_schema": dict(self.param_schema) if self.param_schema else None,
        }


class NodeTypeNames:
    """The type and category of node types by id. Each is read once, because the meaning of an id never changes.

    names = NodeTypeNames()
    names.of(connection, 1)   # ("REPORT_EXTRACT", "REPORT")
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str]] = {}

    def of(self, connection: Connection, type_id: int) -> tuple[str, str]:
        """The type and the category of a node type; for an unknown id a type that says so, and no category."""
        known = self._known.get(type_id)
        if known is None:
            row = connection.execute(select(_type.type, _type.category).where(_type.id == type_id)).one_or_none()
            known = (f"a node type {type_id} that is not registered", "") if row is None else (row.type, row.category)
            if row is not None:
                self._known[type_id] = known
        return known


def registered(connection: Connection) -> list[NodeType]:
    """Every registered node type, as it was declared last."""
    statement = select(_type.id, _type.type, _type.category, _type.sequence, _type.defaults, _type.param_schema)
    return [NodeType(*row) for row in read_before(connection, statement.where(_type.is_deleted == 0), {})]


def catalog(connection: Connection, own: Mapping[str, str] = NO_VERSIONS) -> Catalog:
    """The registered node types, and the versions by which a param is checked.

    Of a task type in ``own``, it is that version: an app's tasks fit the app. Of a task type that live workers carry,
    these are their versions, the newest first. Of any other it is the version that was registered last.
    """
    types = {one.type: one for one in registered(connection)}
    carried: dict[str, set[str]] = {}
    for versions in read_before(connection, _carried_by_the_live, {}).scalars():
        for category, version in read_versions(versions).items():
            carried.setdefault(category, set()).add(version)
    carried.update({category: {version} for category, version in own.items()})
    found = _read_lists(connection, types, {version for versions in carried.values() for version in versions})
    are_carried = {one.category for one in found if one.version in carried.get(one.category, ())}
    counting = [one for one in found if one.category not in are_carried or one.version in carried[one.category]]
    return Catalog(types.values(), counting)


_carried_by_the_live = (
    select(_worker.type_versions)
    .join_from(schedule_worker_node, schedule_worker_beat, _beat.schedule_worker_node_id == _worker.id)
    .where(_worker.state == WorkerState.LIVE.value, _beat.gmt_dead.is_(None))
)


_newest = select(_version.category, func.max(_version.gmt_modified).label("at")).group_by(_version.category)


def _read_lists(connection: Connection, types: Mapping[str, NodeType], versions: Collection[str]) -> list[NodeList]:
    """The versions of these names, and of each task type the one registered last; the newest first."""
    newest = _newest.subquery("newest")
    statement = (
        select(_version.category, _version.version, _version.nodes)
        .join(newest, newest.c.category == _version.category)
        .where(or_(_version.gmt_modified == newest.c.at, _version.version.in_(sorted(versions))))
        .order_by(_version.gmt_modified.desc(), _version.id.desc())
    )
    lists = []
    for category, version, content in read_before(connection, statement, {}):
        known = [(types.get(str(node.get("type"))), node) for node in _nodes_in(content)]
        if known and all(known_type is not None for known_type, _ in known):
            nodes = [
                NodeType(t.id, t.type, category, at, node.get("defaults"), node.get("param_schema"))
                for at, (t, node) in enumerate(known, start=1)
                if t is not None
            ]
            lists.append(NodeList(category, version, nodes))
    return lists


def _nodes_in(content: Any) -> Sequence[Mapping[str, Any]]:
    """The nodes in a version's content; none if SQL has spoiled it."""
    return content if isinstance(content, list) and all(isinstance(node, dict) for node in content) else []


def lists(connection: Connection, wanted: Collection[Version]) -> dict[Version, list[str]]:
    """The node types of these versions, in order; without those that are not registered."""
    if not wanted:
        return {}
    statement = select(_version.category, _version.version, _version.nodes).where(
        _version.version.in_(sorted({version for _, version in wanted}))
    )
    return {
        (category, version): types
        for category, version, content in connection.execute(statement)
        if (category, version) in wanted and (types := [str(node.get("type")) for node in _nodes_in(content)])
    }


def read_versions(stored: Any) -> dict[str, str]:
    """The versions in ``schedule_worker_node.type_versions``, by task type; none if SQL has spoiled them."""
    return {category: version for category, version in object_in(stored).items() if is_text(version)}


def versions_of(declarations: Iterable[NodeTypeDeclaration]) -> dict[str, str]:
    """The version of each task type that these declarations make, by the content of its list.

    versions_of([NodeTypeDeclaration("REPORT_EXTRACT", "REPORT")])   # {"REPORT": "3b1f0c9a7e42"}
    """
    return {category: version_of(nodes) for category, nodes in _by_category(declarations).items()}


def _by_category(declarations: Iterable[NodeTypeDeclaration]) -> dict[str, list[dict[str, Any]]]:
    content: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(declarations, key=lambda d: (d.category, d.sequence)):
        content.setdefault(one.category, []).append(one.content())
    return content


def register(connection: Connection, declarations: Iterable[NodeTypeDeclaration], by: str) -> None:
    """Register node types and the lists that they make; several workers may do so at once.

    It writes the node types that are new or whose declaration has changed, and a version for each list that is new. Of
    a list that is there, it notes that it was registered again, unless it was the last of its task type, and
    writes its nodes, which SQL may have changed. All of it is read before the transaction, which is one packet then.
    """
    declared = list(declarations)
    if not declared:
        return
    types = {one.type: one.columns() for one in declared}
    lists = {(category, version_of(nodes)): nodes for category, nodes in _by_category(declared).items()}
    known = _known_types(connection, types)
    ids = _new_ids(connection, sorted(types.keys() - known.keys()))
    last = _last_lists(connection, lists)
    _write_types(connection, types, known, ids, by)
    _write_lists(connection, {one: lists[one] for one in sorted(lists.keys() - last)}, by)


def is_registered(connection: Connection, declarations: Collection[NodeTypeDeclaration]) -> bool:
    """Whether these node types, and the lists that they make, are there as they were registered."""
    categories = {one.type: one.category for one in declarations}
    found = select(_type.type, _type.category).where(_type.type.in_(sorted(categories)), _type.is_deleted == 0)
    versions = versions_of(declarations)
    stored = select(_version.category, _version.version, _version.nodes).where(
        _version.version.in_(sorted(versions.values()))
    )
    return dict(connection.execute(found).all()) == categories and versions.items() <= {
        (category, version)
        for category, version, nodes in connection.execute(stored)
        if version_of(_nodes_in(nodes)) == version
    }


def _known_types(connection: Connection, types: Collection[str]) -> dict[str, dict[str, Any]]:
    """What the rows of these types say, of those that have one."""
    fields = ("type", "category", "sequence", "defaults", "param_schema", "is_deleted")
    statement = select(*(_type[name] for name in fields)).where(_type.type.in_(sorted(types)))
    return {row["type"]: dict(row) for row in read_before(connection, statement, {}).mappings()}


def _new_ids(connection: Connection, names: Collection[str]) -> dict[str, int]:
    """Ids for new node types: a hash of the name, so that no id is given to another type, not even after TRUNCATE.

    Workers remember what an id means. If the hash is another type's already, it is the next hash of the name.
    """
    ids: dict[str, int] = {}
    for attempt in itertools.count():
        tried = {_hashed(f"{name}/{attempt}"): name for name in names if name not in ids}
        if not tried:
            break
        statement = select(_type.id, _type.type).where(_type.id.in_(sorted(tried)))
        taken = {number for number, name in read_before(connection, statement, {}) if name != tried[number]}
        ids.update({name: number for number, name in tried.items() if number not in taken})
    return ids


def _hashed(text: str) -> int:
    return max(1, int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - ID_BITS))


def _last_lists(connection: Connection, versions: Collection[Version]) -> set[Version]:
    """Of these versions those that were the last of their task types to be registered, with these nodes."""
    newest = _newest.where(_version.category.in_(sorted({category for category, _ in versions}))).subquery("newest")
    statement = (
        select(_version.category, _version.version, _version.nodes)
        .join(newest, newest.c.category == _version.category)
        .where(_version.gmt_modified == newest.c.at, _version.version.in_(sorted({version for _, version in versions})))
    )
    found = read_before(connection, statement, {})
    return {(category, version) for category, version, nodes in found if version_of(_nodes_in(nodes)) == version}


def _write_types(
    connection: Connection,
    types: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, Mapping[str, Any]],
    ids: Mapping[str, int],
    by: str,
) -> None:
    new = [{"id": number, **types[name], "creator": by, "modifier": by} for name, number in sorted(ids.items())]
    if new:
        execute_later(connection, ignore_conflicts(insert(schedule_task_node_type).values(new)), {})
    for name in sorted(known):
        if known[name] != {**types[name], "is_deleted": 0}:
            changed = update(schedule_task_node_type).where(_type.type == name)
            values = {**types[name], "is_deleted": 0, "modifier": by, "gmt_modified": UtcNow()}
            execute_later(connection, changed.values(values), {})


def _write_lists(connection: Connection, lists: Mapping[Version, list[dict[str, Any]]], by: str) -> None:
    """Note that these lists were registered now. The update comes first: it locks a row before the insert passes it."""
    for (category, version), nodes in lists.items():
        there = update(schedule_task_type_version).where(_version.category == category, _version.version == version)
        execute_later(connection, there.values(nodes=nodes, gmt_modified=UtcNow(), modifier=by), {})
    new = [
        {"category": category, "version": version, "nodes": nodes, "creator": by, "modifier": by}
        for (category, version), nodes in lists.items()
    ]
    if new:
        execute_later(connection, ignore_conflicts(insert(schedule_task_type_version).values(new)), {})
