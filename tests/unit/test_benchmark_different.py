"""The benchmark's tasks that differ in everything fire together, once each."""

from datetime import datetime, timedelta

import pytest

from benchmarks.cases import FULL, PAIRS, QUICK
from benchmarks.different import KINDS, ZONES, DifferentTask, task
from benchmarks.rota_app import app
from benchmarks.workloads.different import cases, keys
from rota.shared.domain.triggers.cron.cron import Cron
from rota.shared.domain.triggers.zones import load_zone

MOMENTS = [
    datetime.fromisoformat(text)
    for text in ("2026-11-23T07:20:13", "2026-12-31T23:59:58", "2026-03-29T00:40:00", "2026-07-05T10:00:30")
]
RUN = timedelta(minutes=5)


def tasks(moment: datetime, number: int = 300) -> list[DifferentTask]:
    return [task(at, moment) for at in range(number)]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_they_all_fire_at_the_moment_and_not_again_during_a_run(moment: datetime) -> None:
    for one in tasks(moment):
        cron, zone = Cron.parse(one.columns["cron"], seconds=True), load_zone(one.columns["timezone"])
        assert cron.next_after(moment - timedelta(seconds=1), zone) == moment, one
        following = cron.next_after(moment, zone)
        assert following is not None
        assert following - moment > RUN, one


def test_no_two_are_alike_and_all_that_may_differ_does() -> None:
    many = tasks(MOMENTS[0], 10_000)
    assert len({(one.columns["cron"], one.columns["timezone"]) for one in many}) == len(many)
    assert {one.columns["type"] for one in many} == set(KINDS)
    assert {one.columns["timezone"] for one in many} == set(ZONES)
    assert {len(one.nodes) for one in many} == {1, 2, 3}
    assert {one.columns["overlap_policy"] for one in many} == {"skip", "allow", "queue", "replace"}
    for column in ("retries", "timeout_seconds", "on_worker_lost", "priority", "max_instances"):
        assert len({one.columns[column] for one in many}) > 1, column


def test_the_benchmarks_app_has_their_nodes_by_both_executors() -> None:
    for kind, names in KINDS.items():
        assert [node for node in app.nodes if node.startswith(f"{kind}_")] == [f"{kind}_{name}" for name in names]
    executions = {app.nodes[f"{kind}_N1"].execution for kind in KINDS}
    assert executions == {"async", "thread"}


def test_what_is_expected_is_each_node_of_each_task_once() -> None:
    many = tasks(MOMENTS[0])
    expected = keys(many, MOMENTS[0])
    assert len(expected) == len(set(expected)) == sum(len(one.nodes) for one in many)


def test_there_is_a_herd_and_a_drain_in_every_size_of_the_benchmark() -> None:
    for scale in (FULL, QUICK, PAIRS):
        (count,) = scale.different
        assert [case.variant for case in cases(scale)] == [f"herd of {count:,}", f"drain of {count:,}"]
