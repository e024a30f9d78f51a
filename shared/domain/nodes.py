"""Which nodes a task runs, and which param each node gets. Pure."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from referencing.exceptions import Unresolvable

from rota.shared.domain.errors import InvalidInput, InvalidParam, UnknownType
from rota.shared.domain.jsontext import UnreadableJson, json_text
from rota.shared.domain.node_order import checked_after
from rota.shared.domain.sentences import close_to


@dataclass(frozen=True, slots=True)
class NodeType:
    """A node type as workers register it. A task's ``type`` is the ``category`` of its node types.

    NodeType(1, "REPORT_EXTRACT", "REPORT")   # a task of type REPORT runs it
    """

    id: int
    type: str
    category: str
    sequence: int = 1
    defaults: Mapping[str, Any] | None = None
    param_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node of an instance; ``param`` is set only if the task's param lists its nodes and gives this one a param."""

    type_id: int
    type: str
    sequence: int
    param: Any = None


@dataclass(frozen=True, slots=True)
class NodeList:
    """One version of a task type: the ordered list of its node types, as one app declares it."""

    category: str
    version: str
    nodes: Sequence[NodeType]


class Catalog:
    """The registered node types, and the versions of the task types by which params are checked.

    ``lists`` holds for each task type the versions that count, the best first. ``types`` may be registered without a
    version that counts. A node type in a version stands for the registered one.

        types = [NodeType(1, "REPORT_EXTRACT", "REPORT")]
        Catalog(types, [NodeList("REPORT", "1f2e3d", types)]).check("REPORT", {"region": "eu"})
    """

    def __init__(self, types: Iterable[NodeType], lists: Sequence[NodeList] = ()) -> None:
        self._by_type = {t.type: t for t in types}
        self._lists: dict[str, list[NodeList]] = {t.category: [] for t in self._by_type.values()}
        for one in lists:
            self._lists.setdefault(one.category, []).append(one)
        for one in reversed(lists):  # the best last, so that it stays
            self._by_type.update({node.type: node for node in one.nodes})

    @property
    def categories(self) -> list[str]:
        """The registered task types, sorted."""
        return sorted(self._lists)

    def lists_of(self, task_type: str) -> Sequence[NodeList]:
        """The versions of a task type that count, the best first.

        Raises UnknownType for a task type that is not registered.
        """
        lists = self._lists.get(task_type)
        if lists is None:
            known = ", ".join(self.categories)
            none = "none yet: start a worker, it registers its types"
            there = f"{known}; a worker registers those of its app" if known else none
            near = close_to(task_type, self._lists)
            raise UnknownType(f"no task type {task_type!r} is registered{near}; there are: {there}")
        return lists

    def listed(self, param: Any) -> list[PlannedNode] | None:
        """The nodes that a param lists under ``nodes``, in order. None: it lists none, so its task's type says them.

        Raises UnknownType if a listed node is not registered. Raises InvalidParam if ``nodes`` is no list, if a node
        is ``after`` one that does not stand before it, or runs always and has an ``after``, or if the param is JSON
        that Python cannot read.
        """
        if isinstance(param, UnreadableJson):
            raise InvalidParam(f"param: {param}")
        listed = param.get("nodes") if isinstance(param, dict) else None
        if listed is None:
            return None
        items = _node_list(listed)
        nodes = [self._listed_node(at, item) for at, item in enumerate(items, start=1)]
        for at, item in enumerate(items):
            if isinstance(item, dict):
                _check_after(self._by_type[nodes[at].type], item.get("after"), [node.type for node in nodes[:at]])
        return nodes

    def planned(self, types: Iterable[str]) -> list[PlannedNode] | None:
        """The nodes of these types, in this order; None if one of them is not registered."""
        found = [self._by_type.get(name) for name in types]
        nodes = [PlannedNode(t.id, t.type, at) for at, t in enumerate(found, start=1) if t is not None]
        return nodes if len(nodes) == len(found) else None

    def check(self, task_type: str, param: Any) -> None:
        """Check that a task of this type and with this param can be saved: that the param fits one of the versions.

        Raises InvalidParam with every fault by the best version, and UnknownType for a type that is not registered.
        """
        if param is not None and not isinstance(param, dict):
            raise InvalidParam(f"param must be a JSON object, not {param!r}")
        listed = self.listed(param)
        if listed is not None:
            choices = [[(self._by_type[node.type], node.param) for node in listed]]
        else:
            choices = [[(node, None) for node in one.nodes] for one in self.lists_of(task_type)]
        faults = [_faults(nodes, param) for nodes in choices]
        if faults and all(faults):
            raise InvalidParam("\n".join(faults[0]))

    def _listed_node(self, sequence: int, item: Any) -> PlannedNode:
        name, param = (item.get("type"), item.get("param")) if isinstance(item, dict) else (item, None)
        node_type = self._by_type.get(name) if isinstance(name, str) else None
        if node_type is None:
            known = ", ".join(sorted(self._by_type)) or "none yet"
            error, near = (UnknownType, close_to(name, self._by_type)) if isinstance(name, str) else (InvalidParam, "")
            raise error(f'"nodes" in param names {name!r}, which is no registered node type{near}; there are: {known}')
        return PlannedNode(node_type.id, node_type.type, sequence, param)


def _faults(nodes: Iterable[tuple[NodeType, Any]], param: Any) -> list[str]:
    """What is wrong with the param that each of these nodes gets: its own, or else the task's."""
    faults: list[str] = []
    checked: list[tuple[object, Any]] = []
    for node, own in nodes:
        if (node.param_schema, own) in checked:  # node types of one category often have the same schema
            continue
        checked.append((node.param_schema, own))
        try:
            check_schema(node.param_schema, given_param(own, param), f"param of {node.type}")
        except InvalidParam as error:
            faults.append(str(error))
    return faults


def _check_after(node: NodeType, after: Any, before: Sequence[str]) -> None:
    try:
        checked_after(
            f'"nodes" in param: {node.type}', after, before, always=(node.defaults or {}).get("always") is True
        )
    except InvalidInput as error:
        raise InvalidParam(str(error)) from None


def _node_list(listed: Any) -> list[Any]:
    if not isinstance(listed, list) or not listed:
        raise InvalidParam(f'"nodes" in param must be a list of node types that is not empty, not {listed!r}')
    return listed


def given_param(own: Any, shared: Any) -> Any:
    """The param that a node gets: its own; otherwise the task's without ``nodes``; otherwise {}.

    given_param(None, {"region": "eu", "nodes": ["REPORT_EXTRACT"]})   # {"region": "eu"}
    """
    value = shared if own is None else own
    if own is None and isinstance(shared, dict):
        return {name: item for name, item in shared.items() if name != "nodes"}
    return {} if value is None else value


def _fault(error: ValidationError) -> str:
    """What is wrong at one place of a value: of several schemas, by that which comes closest."""
    closest = best_match([error])
    message = closest.message
    if closest.validator in ("anyOf", "oneOf") and all(one.validator == "type" for one in closest.context):
        message = (
            f"{closest.instance!r:.200} is none of {', '.join(str(one.validator_value) for one in closest.context)}"
        )
    if closest.validator == "pattern" and (wanted := closest.schema.get("description")):
        message = f"{closest.instance!r:.200} is wrong: it must be {wanted}"
    return f"{error.json_path.removeprefix('$.')}: {message}" if error.path else message


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    """The validator of a schema, which is a JSON text. To make one takes far longer than to check a param."""
    read = json.loads(schema)
    Draft202012Validator.check_schema(read)
    return Draft202012Validator(read)


def check_schema(schema: Mapping[str, Any] | None, value: Any, what: str) -> None:
    """Check a value against a JSON schema. ``what`` names the value in the error.

    None allows any value, and so does a schema that is none, which SQL wrote: the worker checks the param once more.
    Raises InvalidParam, which describes the first three faults and counts the others.
    """
    if schema is None:
        return
    try:
        errors = sorted(_validator(json_text(schema)).iter_errors(value), key=lambda e: e.json_path)
    except (SchemaError, Unresolvable, re.error):  # a pattern may be one of pydantic's and none of Python's
        return
    if not errors:
        return
    said = "; ".join(map(_fault, errors[:3]))
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    raise InvalidParam(f"{what}: {said}{more}")
