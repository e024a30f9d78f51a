"""The registered node types, and the versions of task types: workers write what is new, several at once."""

from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import Connection

from rota.scheduler_service import fleet
from rota.scheduler_service.fleet import FleetCache
from rota.shared.database.sqlite import SQLITE
from rota.shared.database.transactions import Database, opened
from rota.shared.domain.errors import InvalidParam
from rota.shared.domain.nodes import NodeType
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.worker_service import builtin
from rota.worker_service.registration import RegisteredTypes
from tests.harness.distance import far
from tests.harness.scenario import Scenario
from tests.harness.together import together

READ, LOAD, STORE = (NodeTypeDeclaration(f"ETL_{name}", "ETL", at) for at, name in enumerate(("READ", "LOAD", "STORE")))


def register(rows: Scenario, *declarations: NodeTypeDeclaration, by: str = "worker-7") -> None:
    rows.database.write(lambda c: node_types.register(c, declarations, by))


def types_of(rows: Scenario, category: str) -> list[list[str]]:
    """The node types of each version that counts, the best first."""
    return [[node.type for node in one.nodes] for one in rows.database.read(node_types.catalog).lists_of(category)]


def of_type(rows: Scenario, name: str) -> dict[str, object]:
    [row] = rows.sql("SELECT * FROM schedule_task_node_type WHERE type = :name", name=name)
    return dict(row._mapping)


def test_a_version_is_a_categorys_node_types_in_order(rows: Scenario) -> None:
    register(rows, NodeTypeDeclaration("ETL_LOAD", "ETL", 2), NodeTypeDeclaration("ETL_READ", "ETL", 1))
    catalog = rows.database.read(node_types.catalog)
    assert catalog.categories == ["ETL", "REPORT"]
    assert types_of(rows, "ETL") == [["ETL_READ", "ETL_LOAD"]]


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
    [found] = rows.database.read(node_types.catalog).planned(["ETL_READ"]) or []
    assert found.type_id == after["id"]


def test_a_deleted_type_is_unknown_until_it_is_declared_again(rows: Scenario) -> None:
    declaration = NodeTypeDeclaration("ETL_READ", "ETL")
    register(rows, declaration)
    rows.sql("UPDATE schedule_task_node_type SET is_deleted = 1 WHERE type = 'ETL_READ'")
    with pytest.raises(InvalidParam):
        rows.database.read(node_types.catalog).lists_of("ETL")
    register(rows, declaration)
    assert types_of(rows, "ETL") == [["ETL_READ"]]


def ids(rows: Scenario) -> dict[str, int]:
    found = rows.sql("SELECT type, id FROM schedule_task_node_type WHERE category = 'ETL'")
    return {row.type: row.id for row in found}


def test_after_truncate_each_type_has_the_id_that_it_had(rows: Scenario) -> None:
    """Workers remember what an id means, and nodes that wait name their types by it."""
    register(rows, READ, LOAD)
    before = ids(rows)
    rows.sql("DELETE FROM schedule_task_node_type")
    if rows.database.backend is SQLITE:
        rows.sql("DELETE FROM sqlite_sequence")
    else:
        rows.sql("TRUNCATE TABLE schedule_task_node_type")
    register(rows, STORE)
    register(rows, LOAD, READ)
    after = ids(rows)
    assert {name: after[name] for name in before} == before
    assert len(set(after.values())) == 3


def test_a_type_whose_id_is_another_types_gets_another_id(rows: Scenario) -> None:
    register(rows, READ)
    [taken] = ids(rows).values()
    rows.sql("UPDATE schedule_task_node_type SET type = 'ETL_OLD' WHERE id = :id", id=taken)
    register(rows, READ)
    assert ids(rows)["ETL_OLD"] == taken != ids(rows)["ETL_READ"]


DAMAGE = [
    "DELETE FROM schedule_task_node_type",
    "UPDATE schedule_task_node_type SET is_deleted = 1 WHERE type = 'ETL_LOAD'",
    "UPDATE schedule_task_node_type SET category = 'OTHER' WHERE type = 'ETL_LOAD'",
    "DELETE FROM schedule_task_type_version",
    "UPDATE schedule_task_type_version SET nodes = '[]'",
    "UPDATE schedule_task_type_version SET nodes = '5'",
    'UPDATE schedule_task_type_version SET nodes = \'[{"type": "ETL_LOAD"}]\'',
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_worker_registers_again_what_sql_has_deleted_or_changed(rows: Scenario, damage: str) -> None:
    register(rows, READ, LOAD)
    kept, others = RegisteredTypes(rows.database, [READ, LOAD], "w"), RegisteredTypes(rows.database, [], "w")
    types_before = rows.sql("SELECT * FROM schedule_task_node_type WHERE category = 'ETL'")
    for one in (kept, others):
        one.look()
    assert rows.sql("SELECT * FROM schedule_task_node_type WHERE category = 'ETL'") == types_before
    rows.worker(node_types=["ETL_READ", "ETL_LOAD"])
    rows.sql(damage)
    kept.look()
    assert types_of(rows, "ETL") == [["ETL_READ", "ETL_LOAD"]]
    nodes, needs = (snapshot := FleetCache(rows.database).current()).wanted("ETL", None, {})
    assert nodes is None
    assert snapshot.fleet.choose(needs) is not None


def test_a_list_that_was_read_while_it_was_spoiled_is_read_again(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LISTS_SECONDS", 0.0)
    monkeypatch.setattr(fleet, "SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(fleet, "SNAPSHOT_SHARE", 1e9)
    register(rows, READ, LOAD)
    worker, cache = rows.worker(node_types=["ETL_READ", "ETL_LOAD"]), FleetCache(rows.database)

    def planned() -> list[str]:
        return [node.type for node in cache.current().fleet.nodes_of(worker, "ETL")]

    rows.sql("""UPDATE schedule_task_type_version SET nodes = '[{"type": "ETL_LOAD"}]' WHERE category = 'ETL'""")
    assert planned() == ["ETL_LOAD"]
    RegisteredTypes(rows.database, [READ, LOAD], "w").look()
    assert planned() == ["ETL_READ", "ETL_LOAD"]


def test_nothing_declared_writes_nothing(rows: Scenario) -> None:
    register(rows)
    assert rows.database.read(node_types.catalog).categories == ["REPORT"]


def test_workers_that_register_at_once_agree(rows: Scenario) -> None:
    declared = [NodeTypeDeclaration(f"ETL_{n}", "ETL", n) for n in range(20)]
    together(*[partial(register, rows, *order) for order in (declared, declared[::-1], declared, declared[::-1])])
    assert types_of(rows, "ETL") == [[d.type for d in declared]]


def test_workers_far_away_that_register_much_at_once_do_not_wait_for_each_other(mariadb_rows: Scenario) -> None:
    declared = [NodeTypeDeclaration(f"FAR_{n}", f"FAR_{n}") for n in range(40)]
    with far(mariadb_rows.database.url.render_as_string(hide_password=False), 0.1) as url, ExitStack() as stack:
        databases = [stack.enter_context(closing(Database(url))) for _ in range(6)]

        def start(database: Database) -> None:
            database.write(lambda c: node_types.register(c, declared, "w"))

        together(*[partial(start, database) for database in databases])
    assert mariadb_rows.database.read(lambda c: node_types.is_registered(c, declared))


def test_a_list_without_a_node_is_a_version_of_its_own_and_leaves_the_other_as_it_was(rows: Scenario) -> None:
    register(rows, READ, LOAD)
    register(rows, READ, STORE)
    assert types_of(rows, "ETL") == [["ETL_READ", "ETL_STORE"]]
    register(rows, READ, LOAD)
    assert types_of(rows, "ETL") == [["ETL_READ", "ETL_LOAD"]]
    versions = rows.sql("SELECT version FROM schedule_task_type_version WHERE category = 'ETL'")
    assert {version for (version,) in versions} == {
        node_types.versions_of(declared)["ETL"] for declared in ([READ, LOAD], [READ, STORE])
    }


def test_while_live_workers_carry_a_task_type_only_their_versions_count(rows: Scenario) -> None:
    register(rows, READ, LOAD)
    old = rows.worker(node_types=["ETL_READ", "ETL_LOAD"])
    register(rows, READ, STORE)
    assert types_of(rows, "ETL") == [["ETL_READ", "ETL_LOAD"]]
    rows.worker(node_types=["ETL_READ", "ETL_STORE"], type_versions=node_types.versions_of([READ, STORE]))
    assert types_of(rows, "ETL") == [["ETL_READ", "ETL_STORE"], ["ETL_READ", "ETL_LOAD"]]
    rows.bury(old)
    assert types_of(rows, "ETL") == [["ETL_READ", "ETL_STORE"]]


def test_an_app_that_starts_is_checked_by_the_version_that_it_brings(rows: Scenario) -> None:
    strict = NodeTypeDeclaration("ETL_READ", "ETL", 0, param_schema={"required": ["source"]})
    register(rows, READ)
    rows.worker(node_types=["ETL_READ"])
    register(rows, strict)
    rows.database.read(node_types.catalog).check("ETL", {})
    own = rows.database.read(lambda c: node_types.catalog(c, node_types.versions_of([strict])))
    with pytest.raises(InvalidParam, match="'source' is a required property"):
        own.check("ETL", {})


def test_the_order_the_defaults_and_the_schema_are_part_of_a_version() -> None:
    lists = [
        [READ, LOAD],
        [replace(READ, sequence=5), LOAD],
        [replace(READ, defaults={"timeout": 5}), LOAD],
        [replace(READ, param_schema={"type": "object"}), LOAD],
        [READ],
    ]
    assert len({node_types.versions_of(declared)["ETL"] for declared in lists}) == len(lists)
    assert node_types.versions_of([LOAD, READ]) == node_types.versions_of([READ, LOAD])


@pytest.mark.parametrize("content", ["{}", '"x"', "[7]", '[{"type": 7}]', "[]"])
def test_a_version_that_sql_has_spoiled_is_as_if_nobody_carried_it(rows: Scenario, content: str) -> None:
    register(rows, READ)
    version = node_types.versions_of([READ])["ETL"]
    rows.worker(node_types=["ETL_READ"])
    rows.sql("UPDATE schedule_task_type_version SET nodes = :content WHERE category = 'ETL'", content=content)
    snapshot = FleetCache(rows.database).current()
    nodes, needs = snapshot.wanted("ETL", None, {})
    assert (nodes, snapshot.fleet.choose(needs), version) == (None, None, version)
    assert snapshot.fleet.why_not(needs) == "no live worker can run ETL"


def test_built_in_types_that_another_process_registers_meanwhile_are_no_crash(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ``rota up`` begin at once on a new database: one has read that there is nothing, then the other registers."""
    registered = node_types.registered

    def read_too_early(connection: Connection) -> list[NodeType]:
        found = registered(connection)
        monkeypatch.setattr(node_types, "registered", registered)
        with opened(database.url.render_as_string(hide_password=False)) as other:
            builtin.register(other, "the other")
        return found

    monkeypatch.setattr(node_types, "registered", read_too_early)
    builtin.register(database, "this one")
    assert {"HTTP_REQUEST", "SHELL_COMMAND"} <= {one.type for one in database.read(registered)}


@pytest.mark.mariadb_only("its JSON takes no half of a surrogate pair")
def test_a_version_that_sql_has_made_no_text_holds_up_nobody(rows: Scenario) -> None:
    """JSON can escape half of a surrogate pair. No statement takes that as a parameter."""
    spoiled, good = rows.worker(), rows.worker()
    rows.sql(
        "UPDATE schedule_worker_node SET type_versions = :versions WHERE id = :id",
        versions='{"REPORT": "\\ud800"}',
        id=spoiled,
    )
    seen = FleetCache(rows.database).current()
    _, needs = seen.wanted("REPORT", None, {})
    assert seen.fleet.fitting(needs) == [good]
