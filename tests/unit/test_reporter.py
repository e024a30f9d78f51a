"""Group commit of reports, over a database whose answers the test holds back."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

import pytest
from sqlalchemy.exc import DataError, OperationalError

from shared.domain.errors import DatabaseProblem
from shared.domain.states import InstanceStatus, NodeStatus
from shared.store import reports as stored
from shared.store.database import Database
from shared.store.reports import InstanceReport, NodeReport, Report
from worker_service import reporter as reporters
from worker_service.reporter import Reporter

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
TOO_LONG = DataError("INSERT …", {}, Exception(1406, "Data too long"))
Answer = Callable[[list[Report]], set[int]]


def report(number: int, result: str | None = "1") -> Report:
    nodes = [NodeReport(number * 10, NodeStatus.SUCCEED, result, NOON, NOON)]
    return Report(number, 1, nodes, InstanceReport(InstanceStatus.SUCCEED, None, None, NOON, NOON))


class World:
    """A reporter on a thread of its own, and a database that answers as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[Report]] = []
        self.answer: Answer = lambda batch: set()
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.told: dict[int, Future[bool]] = {}
        monkeypatch.setattr(stored, "report", self._report)
        self.reporter = Reporter(cast("Database", self), worker_id=1)

    def write(self, work: Callable[[Any], set[int]]) -> set[int]:
        return work(None)

    def _report(self, connection: Any, worker_id: int, batch: list[Report]) -> set[int]:
        self.batches.append(batch)
        self.inside.set()
        assert self.go_on.wait(10)
        return self.answer(batch)

    def put(self, *reports: Report) -> None:
        for one in reports:
            future = self.told[one.instance_id] = Future[bool]()
            self.reporter.put(one, future.set_result)

    def ids(self) -> list[list[int]]:
        return [[one.instance_id for one in batch] for batch in self.batches]

    def result(self, number: int) -> bool:
        return self.told[number].result(timeout=10)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            thread = pool.submit(self.reporter.run)
            try:
                yield
            finally:
                self.go_on.set()
                self.reporter.close()
                thread.result(timeout=10)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_lone_report_waits_for_nobody_and_what_comes_meanwhile_is_the_next_batch(world: World) -> None:
    world.go_on.clear()
    with world.running():
        world.put(report(1))
        assert world.inside.wait(10)
        world.put(report(2), report(3), report(4))
        assert not world.told[1].done()
        world.go_on.set()
        assert [world.result(n) for n in (1, 2, 3, 4)] == [True] * 4
    assert world.ids() == [[1], [2, 3, 4]]


def many(first: int) -> list[Report]:
    return [report(number) for number in range(first, first + 20)]


def step(number: int) -> Report:
    """A node that another waits for."""
    return Report(number, 1, report(number).nodes)


def test_ends_that_come_soon_after_others_are_gathered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "PACE_SECONDS", 1000)
    monkeypatch.setattr(reporters, "LONGEST_REST_SECONDS", 1000)
    with world.running():
        world.put(*many(1))
        assert world.result(1)
        world.put(report(101))
        world.put(report(102))
        world.reporter.close()
        assert world.result(102)
    assert world.ids()[-1] == [101, 102]


def test_what_a_node_waits_for_is_not_held_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "PACE_SECONDS", 1000)
    monkeypatch.setattr(reporters, "LONGEST_REST_SECONDS", 1000)
    world.go_on.clear()
    world.put(*many(1))
    with world.running():
        assert world.inside.wait(10)
        world.put(report(101), step(102))
        world.go_on.set()
        assert world.result(102)


def test_a_batch_that_took_an_outage_is_not_followed_by_a_rest_as_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(reporters, "boottime", lambda: next(hours))
    with world.running():
        world.put(report(1))
        assert world.result(1)
        world.put(report(2))
        assert world.result(2)


def test_a_full_batch_is_not_held_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "PACE_SECONDS", 1000)
    monkeypatch.setattr(reporters, "LONGEST_REST_SECONDS", 1000)
    monkeypatch.setattr(reporters, "BATCH_ROWS", 10)
    world.put(*many(1))
    with world.running():
        assert world.result(20)


def test_a_batch_that_fills_while_the_reporter_rests_is_not_held_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporters, "PACE_SECONDS", 1000)
    monkeypatch.setattr(reporters, "LONGEST_REST_SECONDS", 1000)
    monkeypatch.setattr(reporters, "BATCH_ROWS", 10)
    resting, rest = threading.Event(), world.reporter._changed.wait_for

    def noted(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        resting.set()  # under the lock that ``put`` wants: it has looked before anything more is put
        return rest(predicate, timeout)

    monkeypatch.setattr(world.reporter._changed, "wait_for", noted)
    world.put(report(1))
    with world.running():
        assert world.result(1)
        assert resting.wait(10)
        world.put(*many(2))
        assert world.result(11)


@pytest.mark.parametrize(
    ("results", "batches"),
    [
        (["x" * 100] * 3, [[0, 1, 2]]),
        (["x" * 400] * 3, [[0, 1], [2]]),
        (["x" * 5000, "x", "x"], [[0], [1, 2]]),
        (["x", "x" * 5000, "x"], [[0], [1], [2]]),
        ([None] * 7, [[0, 1, 2, 3], [4, 5, 6]]),
    ],
)
def test_a_batch_is_bounded_in_bytes_and_rows(
    world: World, monkeypatch: pytest.MonkeyPatch, results: list[str | None], batches: list[list[int]]
) -> None:
    monkeypatch.setattr(reporters, "BATCH_BYTES", 3000)
    monkeypatch.setattr(reporters, "BATCH_ROWS", 4)
    world.put(*(report(number, result) for number, result in enumerate(results)))
    with world.running():
        assert world.reporter.flush(10)
    assert world.ids() == batches


def test_each_is_told_whether_it_still_was_ours(world: World) -> None:
    world.answer = lambda batch: {2}
    world.put(report(1), report(2), report(3))
    with world.running():
        assert [world.result(n) for n in (1, 2, 3)] == [True, False, True]


def test_a_batch_refused_once_is_written_again_whole(world: World) -> None:
    refusals = iter([True])

    def answer(batch: list[Report]) -> set[int]:
        if next(refusals, False):
            raise TOO_LONG
        return set()

    world.answer = answer
    world.put(report(1), report(2))
    with world.running():
        assert world.result(1)
    assert world.ids() == [[1, 2], [1, 2]]


def culprit(number: int) -> Answer:
    """Refuses each batch with this instance's result in it."""

    def answer(batch: list[Report]) -> set[int]:
        if any(one.instance_id == number and one.nodes and one.nodes[0].result == '"bad"' for one in batch):
            raise TOO_LONG
        return set()

    return answer


def test_what_is_refused_twice_is_halved_until_the_culprit_fails_alone(world: World) -> None:
    world.answer = culprit(3)
    following = NodeReport(31, NodeStatus.RUNNING, gmt_started=NOON)
    nodes = [*report(3, '"bad"').nodes, following]
    world.put(report(1), report(2), Report(3, 5, nodes), report(4))
    with world.running():
        assert [world.result(n) for n in (1, 2, 3, 4)] == [True, True, False, True]
    assert world.ids() == [*[[1, 2, 3, 4]] * 2, [1, 2], *[[3, 4]] * 2, *[[3]] * 2, [3], [4]]
    told = world.batches[-2][0]
    assert told.attempt == 5
    assert [(n.id, n.status.value, n.gmt_started) for n in told.nodes] == [(30, "failed", NOON), (31, "canceled", None)]
    assert told.instance is not None
    assert told.instance.status is InstanceStatus.FAILED
    assert told.instance.reason == "the result could not be stored: Data too long"


def test_where_not_even_the_failure_is_stored_the_run_is_dropped_and_the_next_goes_on(world: World) -> None:
    def answer(batch: list[Report]) -> set[int]:
        if any(one.instance_id == 1 for one in batch):
            raise TOO_LONG
        return set()

    world.answer = answer
    world.put(report(1), report(2))
    with world.running():
        assert [world.result(1), world.result(2)] == [False, True]


def test_a_report_without_nodes_that_is_refused_ends_no_thread(world: World) -> None:
    ended = InstanceReport(InstanceStatus.FAILED, '"bad"', None, NOON, NOON)

    def answer(batch: list[Report]) -> set[int]:
        if any(one.instance is ended for one in batch):
            raise TOO_LONG
        return set()

    world.answer = answer
    with world.running():
        world.put(Report(1, 1, [], ended))
        assert world.result(1) is False
        world.put(report(2))
        assert world.result(2)


@pytest.mark.parametrize("first", [DatabaseProblem("the database is away")])
def test_while_the_database_is_away_reports_are_kept_and_tried_again(world: World, first: Exception) -> None:
    failures = iter([first] * 3)

    def answer(batch: list[Report]) -> set[int]:
        if (failure := next(failures, None)) is not None:
            raise failure
        return set()

    world.answer = answer
    world.put(report(1), report(2))
    with world.running():
        assert [world.result(1), world.result(2)] == [True, True]
    assert world.ids() == [[1, 2]] * 4


def test_a_database_that_goes_away_between_two_tries_fails_nobody(world: World) -> None:
    failures: Iterator[Exception] = iter([TOO_LONG, DatabaseProblem("away"), OperationalError("", {}, Exception(1))])

    def answer(batch: list[Report]) -> set[int]:
        if (failure := next(failures, None)) is not None:
            raise failure
        return set()

    world.answer = answer
    world.put(report(1))
    with world.running():
        assert world.result(1)


def test_what_follows_a_report_may_fail_and_the_others_are_told_all_the_same(world: World) -> None:
    def explode(ours: bool) -> None:
        raise RuntimeError("the next node could not be started")

    world.reporter.put(report(1), explode)
    world.put(report(2))
    with world.running():
        assert world.result(2)
        world.put(report(3))
        assert world.result(3)


def test_flush_waits_for_what_is_being_written_and_gives_up_in_time(world: World) -> None:
    world.go_on.clear()
    with world.running():
        world.put(report(1))
        assert world.inside.wait(10)
        assert not world.reporter.flush(0.01)
        world.go_on.set()
        assert world.reporter.flush(10)
        assert world.told[1].done()


def test_closing_lets_it_write_what_is_queued_first(world: World) -> None:
    world.put(report(1), report(2))
    world.reporter.close()
    with world.running():
        assert world.result(2)


def test_closing_ends_an_idle_reporter(world: World) -> None:
    with world.running():
        assert world.reporter.flush(10)
    assert world.batches == []
