"""The columns of a node that many nodes have in common: they are read as one JSON text."""

import json
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, type_coerce

from rota.shared.database.json_fields import fields_named
from rota.shared.store import params
from rota.shared.store.plans import TERMS_KEPT
from rota.shared.store.tables import schedule_task_node

_node = schedule_task_node.c


class NodeTerms(NamedTuple):
    """The columns of a node that many nodes have in common."""

    type_id: int
    sequence: int
    status: str
    failures: int
    large: int


NODE_TERMS: dict[str, ColumnElement[Any]] = {
    "type_id": _node.schedule_task_node_type_id,
    "sequence": _node.sequence,
    "status": type_coerce(_node.status, String),
    "failures": _node.failures,
    "large": params.bytes_of_large(_node.param, _node.execution_result),
}
"""The fields of NodeTerms by their names."""


@lru_cache(TERMS_KEPT)
def parsed_node(text: str) -> NodeTerms:
    """Read the terms of a node from their JSON text; each text is parsed once."""
    return NodeTerms(**fields_named(NODE_TERMS, json.loads(text)))
