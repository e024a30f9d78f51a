"""Which nodes a task runs, and what each is given: pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator

from shared.domain.errors import InvalidParam, UnknownType
from shared.domain.jsontext import UnreadableJson


@dataclass(frozen=True, slots=True)
class NodeType:
    """A node type as workers register it. ``type`` is CATEGORY_NODETYPE; a task's type is a category."""

    id: int
    type: str
    category: str
    sequence: int = 1
    defaults: Mapping[str, Any] | None = None
    param_schema: Mapping[str, Any] | None = None

    @property
    def short_name(self) -> str:
        """The type without its category: EXTRACT of REPORT_EXTRACT."""
        return self.type.removeprefix(f"{self.category}_")


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node of an instance, in order; ``param`` is its own, where the task lists its nodes."""

    type_id: int
    type: str
    sequence: int
    param: Any = None


class Catalog:
    """The registered node types, found by category or by type."""

    def __init__(self, types: Sequence[NodeType]) -> None:
        self._by_type = {t.type: t for t in types}
        self._by_category: dict[str, list[NodeType]] = {}
        for node_type in sorted(types, key=lambda t: (t.sequence, t.id)):
            self._by_category.setdefault(node_type.category, []).append(node_type)

    @property
    def categories(self) -> list[str]:
        """The task types there are, sorted."""
        return sorted(self._by_category)

    def nodes_of(self, task_type: str, param: Any) -> list[PlannedNode]:
        """The nodes of a task: those its param lists under ``nodes``, or those of its type, in order.

        Raises UnknownType when the type or a listed node is not registered, InvalidParam for a list that is none.
        """
        if isinstance(param, UnreadableJson):
            raise InvalidParam(f"param: {param}")
        listed = param.get("nodes") if isinstance(param, dict) else None
        if listed is not None:
            return [self._listed(at, item) for at, item in enumerate(self._list(listed), start=1)]
        types = self._by_category.get(task_type)
        if not types:
            known = ", ".join(self.categories) or "none yet: start a worker, it registers its types"
            raise UnknownType(f"no task type {task_type!r} is registered; there are: {known}")
        return [PlannedNode(t.id, t.type, at) for at, t in enumerate(types, start=1)]

    def check(self, task_type: str, param: Any) -> None:
        """Whether a task of that type and param can be saved.

        Raises InvalidParam with every fault.
        """
        if param is not None and not isinstance(param, dict):
            raise InvalidParam(f"param must be a JSON object, not {param!r}")
        faults: list[str] = []
        checked: list[tuple[object, Any]] = []
        for node in self.nodes_of(task_type, param):
            schema, given = self._by_type[node.type].param_schema, given_param(node.param, param)
            if (schema, given) in checked:  # the nodes of a category share its schema
                continue
            checked.append((schema, given))
            try:
                check_schema(schema, given, f"param of {node.type}")
            except InvalidParam as error:
                faults.append(str(error))
        if faults:
            raise InvalidParam("\n".join(faults))

    def _list(self, listed: Any) -> list[Any]:
        if not isinstance(listed, list) or not listed:
            raise InvalidParam(f'"nodes" in param must be a list of node types that is not empty, not {listed!r}')
        return listed

    def _listed(self, sequence: int, item: Any) -> PlannedNode:
        name, param = (item.get("type"), item.get("param")) if isinstance(item, dict) else (item, None)
        node_type = self._by_type.get(name) if isinstance(name, str) else None
        if node_type is None:
            known = ", ".join(sorted(self._by_type)) or "none yet"
            refusal = UnknownType if isinstance(name, str) else InvalidParam
            raise refusal(f'"nodes" in param names {name!r}, which is no registered node type; there are: {known}')
        return PlannedNode(node_type.id, node_type.type, sequence, param)


def given_param(own: Any, shared: Any) -> Any:
    """What a node is given: its own param, or the task's without its list of nodes; {} where there is none."""
    given = shared if own is None else own
    if own is None and isinstance(shared, dict):
        return {name: value for name, value in shared.items() if name != "nodes"}
    return {} if given is None else given


def check_schema(schema: Mapping[str, Any] | None, value: Any, what: str) -> None:
    """Check a value against a JSON schema (None: anything goes).

    Raises InvalidParam with every fault, the first three in words.
    """
    if schema is None:
        return
    errors = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda e: e.json_path)
    if not errors:
        return
    said = "; ".join(f"{e.json_path.removeprefix('$.') if e.path else 'it'}: {e.message}" for e in errors[:3])
    more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
    raise InvalidParam(f"{what}: {said}{more}")
