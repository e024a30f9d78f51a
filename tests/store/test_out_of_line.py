"""What no live worker can run leaves the line of its task to the others, and takes its place again when one can."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rota.scheduler_service import fleet
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.stretches import AHEAD
from rota.shared.settings import Settings
from rota.shared.store import node_types, reports
from rota.shared.store.node_types import NodeTypeDeclaration
from tests.harness.scenario import Scenario
from tests.harness.statements import executed

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LIMITED = pytest.mark.parametrize(
    "task_fields",
    [{"overlap_policy": "queue"}, {"overlap_policy": "allow", "max_instances": 1}],
    ids=["queue", "max_instances"],
)


@pytest.fixture
def assign(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A pass of an assigner, which sees the workers as they are then."""
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    return Assigner(rows.database, Settings.load()).step


def rename_send(rows: Scenario) -> None:
    """A deploy renames REPORT_SEND to REPORT_MAIL."""
    renamed = NodeTypeDeclaration("REPORT_MAIL", "REPORT", 2)
    rows.database.write(lambda c: node_types.register(c, [renamed], "test"))
    rows.sql("UPDATE schedule_task_node_type SET is_deleted = 1 WHERE type = 'REPORT_SEND'")


@LIMITED
def test_an_instance_whose_pinned_nodes_nobody_can_run_holds_up_no_other_of_its_task(
    rows: Scenario, assign: Callable[[], float], task_fields: dict[str, Any]
) -> None:
    task, old = rows.task(**task_fields), rows.worker()
    pinned = rows.running(old, task, rows.start - 3 * MINUTE).id
    rename_send(rows)
    rows.database.write(lambda c: reports.hand_back(c, old, [(pinned, 1)], "it stops"))
    rows.bury(old)
    new = rows.worker(node_types=["REPORT_EXTRACT", "REPORT_MAIL"])
    fires = [rows.pending(task, rows.start - n * SECOND) for n in (3, 2)]
    assign()
    assert [rows.status(i) for i in (pinned, *fires)] == ["pending", "assigned", "assigned"]
    assert rows.row(pinned).reason == "no live worker can run REPORT_EXTRACT, REPORT_SEND"
    assert [run.id for run in rows.claim(new, *fires).runs] == fires[:1]
    rows.sql("UPDATE schedule_instance SET status = 'succeed' WHERE id = :id", id=fires[0])
    with executed(rows.database.engine) as statements:
        assign()
    assert not [s for s in statements if s.startswith("UPDATE schedule_instance")], "it is written once"

    able = rows.worker()
    assign()
    assert (rows.status(pinned), rows.row(pinned).schedule_worker_node_id) == ("assigned", able)
    assert not rows.claim(new, fires[1]).runs, "the older one has its place again"
    assert [run.id for run in rows.claim(able, pinned).runs] == [pinned]


def test_rows_whose_param_lists_what_nobody_can_run_hold_up_no_other_however_many_they_are(
    rows: Scenario, assign: Callable[[], float]
) -> None:
    task, worker = rows.task(overlap_policy="queue"), rows.worker()
    wrong = [rows.by_sql(task, rows.start - (n + 2) * MINUTE) for n in range(AHEAD + 9)]
    rows.sql("UPDATE schedule_instance SET param = :param", param='{"nodes": ["TYPO"]}')
    right = rows.by_sql(task, rows.start - MINUTE)
    assign()
    assert {rows.status(i) for i in wrong} == {"pending"}
    assert {rows.row(i).turn_key for i in wrong} == {None}
    assert "TYPO" in str(rows.row(wrong[0]).reason)
    assert [run.id for run in rows.claim(worker, right).runs] == [right]


def test_fires_behind_one_that_nobody_can_run_are_not_missed(rows: Scenario, assign: Callable[[], float]) -> None:
    task = rows.task(overlap_policy="queue")
    rows.worker()
    rows.sql("UPDATE schedule_task SET misfire_grace_seconds = 0")
    wrong = rows.pending(task, rows.start - MINUTE)
    rows.sql("UPDATE schedule_instance SET param = :param", param='{"nodes": ["TYPO"]}')
    assign()
    fires = [rows.pending(task, rows.now()) for _ in range(3)]
    assign()
    assert [rows.status(i) for i in (wrong, *fires)] == ["pending", *["assigned"] * 3]
