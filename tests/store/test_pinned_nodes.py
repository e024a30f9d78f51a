"""Nodes that an instance has from a worker bind it from the moment in which one of its handlers may have been entered.

Before, a deploy that renames or removes nodes changes them: otherwise the instance would wait for a worker for ever.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.placement import FULL
from rota.shared.settings import Settings
from rota.shared.store import assignments, fires, instances, node_types, reports, unstarted
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.runs import Run
from tests.harness.scenario import NODE_TYPES, Scenario
from tests.harness.statements import executed

OLD, NEW = list(NODE_TYPES), ["REPORT_EXTRACT", "REPORT_MAIL"]
NOBODY_CAN = "no live worker can run REPORT_EXTRACT, REPORT_SEND"


@pytest.fixture
def assign(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A pass of an assigner, which sees the workers as they are then."""
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    return Assigner(rows.database, Settings.load()).step


def deployed(rows: Scenario, **fields: Any) -> int:
    """A worker whose app has renamed REPORT_SEND to REPORT_MAIL."""
    declared = [NodeTypeDeclaration(name, "REPORT", at) for at, name in enumerate(NEW, 1)]
    rows.database.write(lambda c: node_types.register(c, declared, "test"))
    return rows.worker(node_types=NEW, type_versions=node_types.versions_of(declared), **fields)


def types(rows: Scenario, instance: int) -> list[str]:
    return [node.type for node in rows.database.read(lambda c: instances.nodes(c, instance))]


def take_back(rows: Scenario, worker: int) -> None:
    rows.database.write(lambda c: assignments.take_back_assigned(c, worker, 100))


def hand_back(rows: Scenario, worker: int, runs: Sequence[Run], *, unstarted: bool = False) -> None:
    fences = [(run.id, run.attempt) for run in runs]
    rows.database.write(lambda c: reports.hand_back(c, worker, fences, "it stops", unstarted=unstarted))


def taken_back(rows: Scenario, *numbers: int, **fields: Any) -> list[int]:
    """Fires of one task, so many minutes ago, that a worker was given, did not claim, and lost."""
    old, task = rows.worker(), rows.task(**fields)
    given = [rows.assigned(old, task, rows.start - timedelta(minutes=number)) for number in numbers or (1,)]
    take_back(rows, old)
    rows.bury(old)
    return given


def placed(rows: Scenario, instance: int) -> tuple[str, int | None, list[str]]:
    row = rows.row(instance)
    return row.status, row.schedule_worker_node_id, types(rows, instance)


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen once, between the page of the next pass and what it writes of that page."""
    give = Assigner._give

    def late(self: Assigner, chosen: Any) -> int:
        monkeypatch.setattr(Assigner, "_give", give)
        happens()
        return give(self, chosen)

    monkeypatch.setattr(Assigner, "_give", late)


# What no worker has claimed


@pytest.mark.parametrize("policy", ["allow", "queue", "skip", "replace"])
def test_what_was_never_claimed_gets_the_list_of_a_worker_that_can_run_it(
    rows: Scenario, assign: Callable[[], float], policy: str
) -> None:
    [instance] = taken_back(rows, overlap_policy=policy)
    new = deployed(rows)
    assign()
    assert placed(rows, instance) == ("assigned", new, NEW)
    [run] = rows.claim(new, instance).runs
    assert ([node.type for node in run.nodes], run.attempt) == (NEW, 1)
    assert rows.broken() == {}


def test_what_a_worker_did_not_start_in_time_gets_a_new_list(rows: Scenario, assign: Callable[[], float]) -> None:
    old = rows.worker()
    instance = rows.assigned(old, rows.task(overlap_policy="allow"))
    later = rows.now() + timedelta(minutes=1)
    rows.database.write(lambda c: unstarted.take_back(c, unstarted.Queue(old, 5), later, 10))
    rows.bury(old)
    new = deployed(rows)
    assign()
    assert placed(rows, instance) == ("assigned", new, NEW)


def test_a_fire_with_a_new_list_is_still_one_that_a_worker_has_had(rows: Scenario, assign: Callable[[], float]) -> None:
    both = taken_back(rows, 3, 2, overlap_policy="allow", misfire_grace_seconds=1)
    new = deployed(rows)
    assign()
    assert [placed(rows, instance) for instance in both] == [("assigned", new, NEW)] * 2


def test_nodes_that_another_live_worker_can_run_stay_though_it_is_full(
    rows: Scenario, assign: Callable[[], float]
) -> None:
    first, second = taken_back(rows, 2, 1, overlap_policy="allow")
    able = rows.worker(capacity=1, prefetch=0)
    deployed(rows)
    assign()
    assert placed(rows, first) == ("assigned", able, OLD)
    assert placed(rows, second) == ("pending", None, OLD)
    assert rows.row(second).reason == FULL


def test_what_nobody_can_run_in_any_list_keeps_its_nodes_and_waits(rows: Scenario, assign: Callable[[], float]) -> None:
    [instance] = taken_back(rows, overlap_policy="allow")
    rows.worker(node_types=["OTHER"])
    assign()
    assert placed(rows, instance) == ("pending", None, OLD)
    assert rows.row(instance).reason == NOBODY_CAN


def test_nodes_that_the_param_lists_stay(rows: Scenario, assign: Callable[[], float]) -> None:
    listed = {"nodes": ["REPORT_EXTRACT", "REPORT_SEND"]}
    old, task = rows.worker(), rows.task(overlap_policy="allow", param=listed)
    instance = rows.assigned(old, task, param=listed)
    take_back(rows, old)
    rows.bury(old)
    deployed(rows)
    assign()
    assert placed(rows, instance) == ("pending", None, OLD)
    assert rows.row(instance).reason == NOBODY_CAN


def test_nodes_without_a_reason_why_it_came_back_are_replaced_too(rows: Scenario, assign: Callable[[], float]) -> None:
    """Its reason was removed by SQL, so that the page does not ask whether it has nodes."""
    [instance] = taken_back(rows, overlap_policy="allow")
    rows.sql("UPDATE schedule_instance SET reason = NULL WHERE id = :id", id=instance)
    new = deployed(rows)
    assign()
    assert placed(rows, instance) == ("assigned", new, NEW)


def test_nodes_are_deleted_only_where_they_are_replaced(rows: Scenario, assign: Callable[[], float]) -> None:
    [instance] = taken_back(rows, overlap_policy="allow")
    able = rows.worker()
    with executed(rows.database.engine) as statements:
        assign()
    assert not [s for s in statements if s.startswith("DELETE")]
    assert placed(rows, instance) == ("assigned", able, OLD)


# What a worker has claimed


def test_what_was_claimed_once_keeps_its_nodes_and_waits(rows: Scenario, assign: Callable[[], float]) -> None:
    old = rows.worker()
    run = rows.running(old, rows.task(overlap_policy="allow"))
    hand_back(rows, old, [run])
    rows.bury(old)
    deployed(rows)
    assign()
    assert placed(rows, run.id) == ("pending", None, OLD)
    assert rows.row(run.id).reason == NOBODY_CAN


def test_what_was_claimed_and_came_back_before_the_assigner_wrote_keeps_its_nodes(
    rows: Scenario, assign: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    [instance] = taken_back(rows, overlap_policy="allow")
    deployed(rows)

    def claimed_and_back() -> None:
        worker = rows.worker()
        rows.give(worker, instance)
        hand_back(rows, worker, rows.claim(worker, instance).runs)
        rows.bury(worker)

    meanwhile(monkeypatch, claimed_and_back)
    assign()
    assert rows.row(instance).attempt == 1
    assert placed(rows, instance) == ("pending", None, OLD)
    assign()
    assert rows.row(instance).reason == NOBODY_CAN


def test_nodes_that_another_scheduler_has_replaced_meanwhile_are_for_the_next_pass(
    rows: Scenario, assign: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    [instance] = taken_back(rows, overlap_policy="allow")
    able = rows.worker()

    def replaced() -> None:
        new = deployed(rows)
        rows.bury(able)
        Assigner(rows.database, Settings.load()).step()
        take_back(rows, new)

    meanwhile(monkeypatch, replaced)
    assign()
    assert placed(rows, instance) == ("pending", None, NEW)


# What is handed back


def test_what_a_worker_claimed_and_did_not_start_gets_a_new_list(rows: Scenario, assign: Callable[[], float]) -> None:
    old = rows.worker()
    run = rows.running(old, rows.task(overlap_policy="allow"))
    hand_back(rows, old, [run], unstarted=True)
    assert placed(rows, run.id) == ("pending", None, [])
    assert rows.broken() == {}
    rows.bury(old)
    new = deployed(rows)
    assign()
    assert placed(rows, run.id) == ("assigned", new, NEW)
    [again] = rows.claim(new, run.id).runs
    assert ([node.type for node in again.nodes], again.attempt) == (NEW, 2)
    assert rows.broken() == {}


def test_what_is_handed_back_unstarted_at_a_later_attempt_keeps_its_nodes(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    hand_back(rows, worker, [run])
    rows.give(worker, run.id)
    [again] = rows.claim(worker, run.id).runs
    first = rows.running(worker)
    hand_back(rows, worker, [again, first], unstarted=True)
    assert (types(rows, run.id), types(rows, first.id)) == (OLD, [])
    assert {rows.status(run.id), rows.status(first.id)} == {"pending"}


def test_nodes_that_are_gone_since_the_page_was_read_are_pinned_by_the_next_pass_with_their_params(
    rows: Scenario, assign: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"nodes": [{"type": "REPORT_EXTRACT", "param": {"day": 1}}]}
    instance = rows.by_sql(rows.task(overlap_policy="allow", param=listed))
    worker = rows.worker()
    assign()
    take_back(rows, worker)

    def claimed_and_handed_back() -> None:
        rows.give(worker, instance)
        hand_back(rows, worker, rows.claim(worker, instance).runs, unstarted=True)

    meanwhile(monkeypatch, claimed_and_handed_back)
    assign()
    assert placed(rows, instance) == ("pending", None, [])
    assign()
    assert rows.status(instance) == "assigned"
    [node] = rows.claim(worker, instance).runs[0].nodes
    assert (node.type, node.param) == ("REPORT_EXTRACT", {"day": 1})


def test_what_had_started_and_is_handed_back_keeps_its_nodes(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    hand_back(rows, worker, [run])
    assert placed(rows, run.id) == ("pending", None, OLD)


def test_a_worker_that_lost_a_run_deletes_none_of_its_nodes(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    run = rows.running(worker)
    hand_back(rows, worker, [run])
    hand_back(rows, worker, [run], unstarted=True)
    assert types(rows, run.id) == OLD
    rows.give(other, run.id)
    hand_back(rows, worker, [run], unstarted=True)
    assert placed(rows, run.id) == ("assigned", other, OLD)


def test_only_a_pending_instance_of_that_attempt_loses_its_nodes(rows: Scenario) -> None:
    worker = rows.worker()
    [back] = taken_back(rows)
    others = [rows.assigned(worker), rows.running(worker).id, rows.ended(worker=worker)]
    rows.database.write(lambda c: fires.unpin(c, [back, *others], attempt=1))
    assert [types(rows, instance) for instance in (back, *others)] == [OLD] * 4
    rows.database.write(lambda c: fires.unpin(c, [back, *others], attempt=0))
    assert [types(rows, instance) for instance in (back, *others)] == [[], OLD, OLD, OLD]
