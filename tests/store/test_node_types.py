"""The registered node types: workers write what is new or declared otherwise, several at once."""

from functools import partial

import pytest

from shared.domain.errors import InvalidParam
from shared.store import node_types
from shared.store.node_types import NodeTypeDeclaration
from tests.store.scenario import Scenario
from tests.store.together import together


def register(rows: Scenario, *declarations: NodeTypeDeclaration, by: str = "worker-7") -> None:
    rows.database.write(lambda c: node_types.register(c, declarations, by))


def of_type(rows: Scenario, name: str) -> dict[str, object]:
    [row] = rows.sql("SELECT * FROM schedule_task_node_type WHERE type = :name", name=name)
    return dict(row._mapping)


def test_a_category_is_its_node_types_in_order(rows: Scenario) -> None:
    register(rows, NodeTypeDeclaration("ETL_LOAD", "ETL", 2), NodeTypeDeclaration("ETL_READ", "ETL", 1))
    catalog = rows.database.read(node_types.catalog)
    assert catalog.categories == ["ETL", "REPORT"]
    assert [node.type for node in catalog.nodes_of("ETL", None)] == ["ETL_READ", "ETL_LOAD"]


def test_what_is_declared_again_is_not_written_again(rows: Scenario) -> None:
    declaration = NodeTypeDeclaration("ETL_READ", "ETL", defaults={"timeout": 60}, param_schema={"type": "object"})
    register(rows, declaration)
    before = of_type(rows, "ETL_READ")
    register(rows, declaration, by="another")
    assert of_type(rows, "ETL_READ") == before


def test_what_is_declared_otherwise_is_written_under_its_old_id(rows: Scenario) -> None:
    register(rows, NodeTypeDeclaration("ETL_READ", "ETL", 1))
    before = of_type(rows, "ETL_READ")
    register(rows, NodeTypeDeclaration("ETL_READ", "ETL", 3, {"timeout": 60}, {"type": "object"}), by="another")
    after = of_type(rows, "ETL_READ")
    assert (after["id"], after["sequence"], after["modifier"]) == (before["id"], 3, "another")
    [found] = rows.database.read(node_types.catalog).nodes_of("ETL", None)
    assert found.type_id == after["id"]


def test_a_deleted_type_is_unknown_until_it_is_declared_again(rows: Scenario) -> None:
    declaration = NodeTypeDeclaration("ETL_READ", "ETL")
    register(rows, declaration)
    rows.sql("UPDATE schedule_task_node_type SET is_deleted = 1 WHERE type = 'ETL_READ'")
    with pytest.raises(InvalidParam):
        rows.database.read(node_types.catalog).nodes_of("ETL", None)
    register(rows, declaration)
    assert len(rows.database.read(node_types.catalog).nodes_of("ETL", None)) == 1


def test_nothing_declared_writes_nothing(rows: Scenario) -> None:
    register(rows)
    assert rows.database.read(node_types.catalog).categories == ["REPORT"]


def test_workers_that_register_at_once_agree(rows: Scenario) -> None:
    declared = [NodeTypeDeclaration(f"ETL_{n}", "ETL", n) for n in range(20)]
    together(*[partial(register, rows, *order) for order in (declared, declared[::-1], declared, declared[::-1])])
    nodes = rows.database.read(node_types.catalog).nodes_of("ETL", None)
    assert [node.type for node in nodes] == [d.type for d in declared]
