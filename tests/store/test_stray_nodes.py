"""A node is provably its instance's: ids that TRUNCATE lets be given again make no old node a new instance's.

Old nodes are passed over, and the sweeper deletes them.
"""

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.sweeper import PAGE_SECONDS, Sweeper
from rota.shared.database.sqlite import SQLITE
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import instances, node_types, recovery, stray_nodes
from rota.shared.store.node_types import NodeTypeDeclaration
from tests.harness.scenario import Scenario, ended

OTHER = ["OTHER_FIRST", "OTHER_SECOND", "OTHER_THIRD"]


@pytest.fixture
def other(rows: Scenario) -> int:
    """A task of another type than REPORT, with three nodes, and a worker that can run both types."""
    declared = [NodeTypeDeclaration(name, "OTHER", at) for at, name in enumerate(OTHER)]
    rows.database.write(lambda c: node_types.register(c, declared, "test"))
    return rows.planned_task(type="OTHER", overlap_policy="allow")


def worker(rows: Scenario) -> int:
    return rows.worker(node_types=["REPORT_EXTRACT", "REPORT_SEND", *OTHER])


def truncate(rows: Scenario, table: str = "schedule_instance") -> None:
    """TRUNCATE, also where the database does not know it: the ids begin anew."""
    if rows.database.backend is SQLITE:
        rows.sql(f"DELETE FROM {table}")
        rows.sql("DELETE FROM sqlite_sequence WHERE name = :table", table=table)
    else:
        rows.sql(f"TRUNCATE {table}")


def old_nodes(rows: Scenario, at: int, status: str) -> None:
    """Nodes that are left under the ids from 1 up to ``at``."""
    truncate(rows)
    for _ in range(at):
        match status:
            case "assigned":
                rows.assigned(worker(rows))
            case "succeed":
                rows.ended(worker=worker(rows))
    truncate(rows)


def node_types_of(rows: Scenario, instance: int) -> list[str]:
    return [node.type for node in rows.database.read(lambda c: instances.nodes(c, instance))]


def test_old_nodes_do_not_tell_that_a_run_has_begun(rows: Scenario) -> None:
    old_nodes(rows, 1, "succeed")
    holder = worker(rows)
    run = rows.running(holder, rows.task(on_worker_lost="fail"))
    assert run.id == 1, "the id is given again"
    rows.bury(holder)
    assert rows.database.write(lambda c: recovery.recover(c, holder, 10)) == 1
    assert rows.status(run.id) == "pending", "nobody has entered a handler of it: another worker may run it"


@pytest.mark.parametrize("status", ["assigned", "succeed"])
def test_after_truncate_an_instance_by_sql_runs_the_nodes_of_its_own_task(
    rows: Scenario, other: int, status: str
) -> None:
    old_nodes(rows, 2, status)
    able = worker(rows)
    instance = rows.by_sql(other)
    assert instance == 1
    Assigner(rows.database, Settings.load()).step()
    [run] = rows.claim(able, instance).runs or rows.claim(rows.row(instance).schedule_worker_node_id, instance).runs
    assert [node.type for node in run.nodes] == OTHER
    assert node_types_of(rows, instance) == OTHER
    assert rows.node_statuses(instance) == ["running", "pending", "pending"]


def test_after_truncate_a_fire_runs_the_nodes_of_its_own_task(rows: Scenario, other: int) -> None:
    old_nodes(rows, 3, "assigned")
    worker(rows)
    Materializer(rows.database, Settings.load()).step()
    found = rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=other)
    assert found
    assert min(rows.statuses()) == 1, "the ids began anew"
    for (instance,) in found:
        assert node_types_of(rows, instance) == OTHER


def test_after_truncate_what_comes_back_is_not_pinned_to_old_nodes(rows: Scenario, other: int) -> None:
    old_nodes(rows, 1, "assigned")
    instance = rows.by_sql(other)
    rows.sql("UPDATE schedule_instance SET reason = 'it waited' WHERE id = :id", id=instance)
    worker(rows)
    Assigner(rows.database, Settings.load()).step()
    assert (rows.status(instance), node_types_of(rows, instance)) == ("assigned", OTHER)


def test_the_moves_of_a_new_instance_leave_old_nodes_as_they_were(rows: Scenario) -> None:
    old_nodes(rows, 1, "assigned")
    able = worker(rows)
    run = rows.running(able)
    assert run.id == 1
    assert rows.report(able, ended(run, InstanceStatus.FAILED)) == set()
    rows.database.write(lambda c: instances.replay(c, run.id, "test"))
    left = rows.sql("SELECT status FROM schedule_task_node WHERE schedule_instance_id = 1 ORDER BY id")
    assert [status for (status,) in left] == ["pending", "pending", "failed", "failed"]


def test_the_sweeper_deletes_nodes_without_an_instance_and_no_others(rows: Scenario) -> None:
    old_nodes(rows, 2, "succeed")
    able = worker(rows)
    kept = [rows.assigned(able), rows.running(able).id, rows.ended(worker=able)]
    assert len(rows.broken()["node-instance"]) == 4
    assert Sweeper(rows.database, Settings.load()).step() == PAGE_SECONDS
    assert rows.broken() == {}
    assert all(len(node_types_of(rows, instance)) == 2 for instance in kept)
    assert rows.sql("SELECT count(*) FROM schedule_task_node") == [(6,)]


def test_the_sweeper_looks_at_one_page_at_a_time_and_begins_again_after_the_last(rows: Scenario) -> None:
    able = worker(rows)
    first, second, third = rows.assigned(able), rows.assigned(able), rows.assigned(able)
    sweeper = Sweeper(rows.database, Settings.load(batch=2))
    assert [sweeper.step() for _ in range(3)] == [PAGE_SECONDS] * 3
    rows.sql("DELETE FROM schedule_instance WHERE id IN (:a, :b)", a=first, b=second)
    assert all(sweeper.step() < 1 for _ in range(2))
    assert sweeper.step() == PAGE_SECONDS
    left = rows.sql("SELECT DISTINCT schedule_instance_id FROM schedule_task_node")
    assert left == [(third,)]


def test_what_is_no_stray_is_not_deleted_whoever_asks(rows: Scenario) -> None:
    instance = rows.assigned(worker(rows))
    nodes = [node for (node,) in rows.sql("SELECT id FROM schedule_task_node")]
    assert rows.database.write(lambda c: stray_nodes.remove(c, nodes)) == 0
    assert len(node_types_of(rows, instance)) == 2


def test_a_round_ends_though_nodes_are_made_faster_than_the_sweeper_looks_at_them(rows: Scenario) -> None:
    able = worker(rows)
    stray = rows.assigned(able)
    rows.assigned(able)
    sweeper = Sweeper(rows.database, Settings.load(batch=2))
    sweeper.step()
    rows.sql("DELETE FROM schedule_instance WHERE id = :stray", stray=stray)
    for _ in range(4):
        rows.assigned(able)
        rows.assigned(able)
        sweeper.step()
    assert rows.sql("SELECT count(*) FROM schedule_task_node WHERE schedule_instance_id = :stray", stray=stray) == [
        (0,)
    ]


def test_a_round_over_very_many_nodes_ends_within_a_day(rows: Scenario) -> None:
    able = worker(rows)
    rows.assigned(able)
    rows.assigned(able)
    [(newest,)] = rows.sql("SELECT max(id) FROM schedule_task_node")
    rows.sql("UPDATE schedule_task_node SET id = 100000000 WHERE id = :newest", newest=newest)
    sweeper = Sweeper(rows.database, Settings.load(batch=1000))
    assert sweeper.step() == PAGE_SECONDS, "all in one page"
    rest = Sweeper(rows.database, Settings.load(batch=2)).step()
    assert 0 < rest < PAGE_SECONDS / 2
