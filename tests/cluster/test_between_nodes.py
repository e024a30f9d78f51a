"""Runs that have lent their slots while a node is reported: how many handlers run, and what goes on after a stop."""

import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster, Entry
from tests.harness.processes import wait_until

CAPACITY = 2
RUNS = 60
NODES = ("NAPS_FIRST", "NAPS_SECOND", "NAPS_THIRD")


def most_at_once(entries: Sequence[Entry]) -> int:
    """How many handlers ran at once at most."""
    now = most = 0
    for entry in sorted(entries, key=lambda e: e.boottime):
        now += 1 if entry.event == "enter" else -1
        most = max(most, now)
    return most


def most_begun(entries: Sequence[Entry]) -> int:
    """How many runs had begun and not ended at once at most."""
    ends = [e for e in entries if (e.node, e.event) in ((NODES[0], "enter"), (NODES[-1], "exit"))]
    return most_at_once(ends)


def add_naps(cluster: Cluster) -> list[int]:
    return cluster.add_instances(cluster.add_task("naps", "NAPS", overlap_policy="allow"), RUNS)


def test_slots_are_lent_between_nodes_and_no_more_handlers_run_at_once_than_there_are_slots(cluster: Cluster) -> None:
    cluster.worker("w", "--capacity", str(CAPACITY))
    cluster.wait_live("w")
    naps = add_naps(cluster)
    cluster.scheduler()
    cluster.wait_status(naps, "succeed", deadline=60)
    evidence = cluster.evidence()
    assert most_at_once(evidence) == CAPACITY
    assert most_begun(evidence) > CAPACITY
    assert Counter((e.instance, e.node) for e in evidence if e.event == "exit") == Counter(
        (instance, node) for instance in naps for node in NODES
    )


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_what_has_begun_beyond_the_slots_of_a_worker_that_ends_loses_no_node(cluster: Cluster, how: str) -> None:
    worker = cluster.worker("first", "--capacity", str(CAPACITY))
    cluster.wait_live("first")
    naps = add_naps(cluster)
    cluster.scheduler()
    wait_until(lambda: len(cluster.evidence()) > RUNS, 30, "some of them to run")
    if how == "stopped":
        worker.stop_signal(signal.SIGTERM)
    else:
        cluster.kill(worker)
    began = {e.instance for e in cluster.evidence()}
    cluster.worker("second", "--capacity", str(CAPACITY))
    cluster.wait_status(naps, "succeed", deadline=60)
    entries = Counter((e.instance, e.node) for e in cluster.evidence() if e.event == "enter")
    assert set(entries) == {(instance, node) for instance in naps for node in NODES}
    assert len(began) < RUNS
    if how == "stopped":
        assert set(entries.values()) == {1}, "it ends within its grace time what it has begun"
    else:
        twice = {instance for (instance, _), number in entries.items() if number > 1}
        assert twice <= began
    invariants.check(cluster)
