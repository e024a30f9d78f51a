"""Group commit of reports, over a database whose answers the test holds back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import cast

import pymysql
import pytest
from sqlalchemy.exc import DataError, OperationalError

from rota.shared.domain.errors import DatabaseProblem
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.settable_clock import SettableClock
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.worker_service.pulling.successors import Successors
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.reporter import (
    BATCH_ROWS,
    IDLE_SECONDS,
    LONGEST_REST_SECONDS,
    PACE_SECONDS,
    RETRY_SECONDS,
    Reporter,
)

NOON = datetime.fromisoformat("2026-11-19T12:00:00")
TOO_LONG = DataError("INSERT …", {}, Exception(1406, "Data too long"))
Answer = Callable[[list[Report]], set[int]]


def report(number: int, result: str | None = "1") -> Report:
    nodes = [NodeReport(number * 10, NodeStatus.SUCCEED, result, NOON, NOON)]
    return Report(number, 1, nodes, InstanceReport(InstanceStatus.SUCCEED, None, None, NOON, NOON))


class Told:
    """Waits by the clock for what a report's ``written`` is told."""

    def __init__(self, clock: SettableClock) -> None:
        self._told = clock.event()
        self._ours: list[bool] = []

    def __call__(self, ours: bool) -> None:
        self._ours.append(ours)
        self._told.set()

    @property
    def done(self) -> bool:
        return self._told.is_set()

    def result(self) -> bool:
        """Let the time pass until it is told, if it must."""
        assert self._told.wait(10)
        [ours] = self._ours
        return ours


class World:
    """A reporter on a thread of its own, and rows that answer as the test says, in simulated time."""

    def __init__(self) -> None:
        self.clock = SettableClock(NOON)
        self.batches: list[list[Report]] = []
        self.began: list[float] = []
        self.answer: Answer = lambda batch: set()
        self.held_by_others: set[int] = set()
        self.locks_noted = 0
        self.inside, self.go_on = self.clock.event(), self.clock.event()
        self.go_on.set()
        self.told: dict[int, Told] = {}
        self.reporter = Reporter(cast("WorkerRows", self), self.clock)

    def report(self, batch: list[Report]) -> set[int]:
        self.batches.append(batch)
        self.began.append(self.clock.monotonic())
        self.inside.set()
        assert self.go_on.wait(10)
        return self.answer(batch)

    def locked(self, instance_ids: set[int]) -> set[int]:
        return self.held_by_others & instance_ids

    def note_lock(self) -> None:
        self.locks_noted += 1

    def lock(self, *instance_ids: int) -> None:
        """Let each batch with one of these wait in vain for their rows."""
        self.held_by_others = set(instance_ids)

        def answer(batch: list[Report]) -> set[int]:
            if self.held_by_others & {one.instance_id for one in batch}:
                raise DatabaseProblem("Lock wait timeout exceeded")
            return set()

        self.answer = answer

    def put(self, *reports: Report) -> None:
        for one in reports:
            told = self.told[one.instance_id] = Told(self.clock)
            self.reporter.put(one, told)

    def ids(self) -> list[list[int]]:
        return [[one.instance_id for one in batch] for batch in self.batches]

    def result(self, number: int) -> bool:
        return self.told[number].result()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = self.clock.thread("report", self.reporter.run)
        thread.start()
        try:
            yield
        finally:
            self.go_on.set()
            self.reporter.close()
            thread.join(10)
            assert not thread.is_alive()

    @contextmanager
    def no_time_passing(self) -> Iterator[None]:
        before = self.clock.monotonic()
        yield
        assert self.clock.monotonic() == before


@pytest.fixture
def world() -> World:
    return World()


def test_a_lone_report_waits_for_nobody_and_what_comes_meanwhile_is_the_next_batch(world: World) -> None:
    world.go_on.clear()
    with world.running():
        world.put(report(1))
        assert world.inside.wait(10)
        world.put(report(2), report(3), report(4))
        assert not world.told[1].done
        world.go_on.set()
        assert [world.result(n) for n in (1, 2, 3, 4)] == [True] * 4
    assert world.ids() == [[1], [2, 3, 4]]


def many(first: int, number: int = 20) -> list[Report]:
    return [report(number) for number in range(first, first + number)]


def step(number: int) -> Report:
    """A node that another waits for."""
    return Report(number, 1, report(number).nodes)


def test_ends_that_come_soon_after_others_are_gathered(world: World) -> None:
    with world.running():
        world.put(*many(1))
        assert world.result(1)
        began = world.clock.monotonic()
        world.put(report(101))
        world.put(report(102))
        assert world.result(102)
        assert world.clock.monotonic() - began == pytest.approx(PACE_SECONDS)
    assert world.ids()[-1] == [101, 102]


def test_the_time_on_the_way_to_a_far_database_is_no_reason_to_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.clock, "round_trip", lambda: 0.05)

    def from_afar(batch: list[Report]) -> set[int]:
        world.clock.sleep(0.05)
        return set()

    world.answer = from_afar
    with world.running():
        world.put(*many(1))
        assert world.result(1)
        began = world.clock.monotonic()
        world.put(report(101))
        assert world.result(101)
    assert world.clock.monotonic() - began == pytest.approx(PACE_SECONDS + 0.05)


def test_what_a_node_waits_for_is_not_held_up(world: World) -> None:
    world.go_on.clear()
    world.put(*many(1))
    with world.running(), world.no_time_passing():
        assert world.inside.wait(10)
        world.put(report(101), step(102))
        world.go_on.set()
        assert world.result(102)


def taking(world: World, seconds: float) -> None:
    def answer(batch: list[Report]) -> set[int]:
        world.clock.sleep(seconds)
        return set()

    world.answer = answer


def let_go(world: World, *numbers: int) -> None:
    """Let so many runs go on at their next node."""
    taking(world, 0.01)
    world.put(*(step(number) for number in numbers))
    for number in numbers:
        assert world.result(number)


def test_runs_that_were_let_go_together_stay_together_while_their_nodes_are_quick(world: World) -> None:
    with world.running():
        let_go(world, 1, 2, 3)
        world.put(step(1))
        world.clock.advance(0.005)
        world.put(report(2))
        world.clock.advance(0.004)
        world.put(step(3))
        assert world.result(3)
    assert world.ids()[-1] == [1, 2, 3]


def test_a_node_that_takes_long_holds_up_the_others_no_longer_than_their_batch_took(world: World) -> None:
    with world.running():
        let_go(world, 1, 2, 3)
        world.clock.advance(1)
        began = world.clock.monotonic()
        world.put(step(1), step(2))
        assert world.result(2)
        assert world.clock.monotonic() - began <= 0.01 + 0.01 + 0.001
    assert [1, 2, 3] not in world.ids()[1:]


def test_a_lone_run_waits_for_nobody_between_its_nodes(world: World) -> None:
    with world.running():
        let_go(world, 1)
        taking(world, 0)
        with world.no_time_passing():
            world.put(step(1))
            assert world.result(1)


def test_a_batch_that_took_an_outage_is_not_followed_by_a_rest_as_long(world: World) -> None:
    def after_an_hour(batch: list[Report]) -> set[int]:
        world.clock.sleep(3600)
        return set()

    world.answer = after_an_hour
    with world.running():
        world.put(report(1))
        world.clock.advance(3600)
        assert world.told[1].done
        world.put(report(2))
        world.clock.advance(3601)
        assert world.told[2].done
    assert world.began[1] - world.began[0] - 3600 == pytest.approx(LONGEST_REST_SECONDS)


def test_a_full_batch_is_not_held_up(world: World) -> None:
    world.put(*many(1, 2 * BATCH_ROWS))
    with world.running(), world.no_time_passing():
        assert world.result(2 * BATCH_ROWS)


def test_a_batch_that_fills_while_the_reporter_rests_is_not_held_up(world: World) -> None:
    world.put(report(1))
    with world.running(), world.no_time_passing():
        assert world.result(1)
        world.clock.advance(0)  # until it rests
        world.put(*many(2, BATCH_ROWS - 1))
        world.clock.advance(0)
        assert not world.told[2].done
        world.put(report(BATCH_ROWS + 1))
        assert world.result(BATCH_ROWS + 1)


@pytest.mark.parametrize(
    ("results", "batches"),
    [
        (["x" * 100] * 3, [[0, 1, 2]]),
        (["x" * 900_000] * 3, [[0, 1], [2]]),
        (["x" * 2_500_000, "x", "x"], [[0], [1, 2]]),
        (["x", "x" * 2_500_000, "x"], [[0], [1], [2]]),
        ([None] * (BATCH_ROWS + 3), [list(range(BATCH_ROWS)), [BATCH_ROWS, BATCH_ROWS + 1, BATCH_ROWS + 2]]),
    ],
    ids=["small", "two at a time", "large first", "large between", "many"],
)
def test_a_batch_is_bounded_in_bytes_and_rows(
    world: World, results: list[str | None], batches: list[list[int]]
) -> None:
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


def test_what_somebody_has_locked_holds_up_no_other_report(world: World) -> None:
    world.lock(2)
    world.put(report(1), report(2), report(3))
    with world.running():
        assert [world.result(1), world.result(3)] == [True, True]
        world.put(report(4))
        assert world.result(4)
        assert not world.told[2].done
        world.held_by_others.clear()
        assert world.result(2)
    assert world.ids() == [[1, 2, 3], [1, 3], [4], [2]]


def test_a_lock_that_nobody_can_ask_for_is_noted_as_long_as_it_stands(world: World) -> None:
    locks: list[Exception] = [
        OperationalError("", {}, pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"))
    ]

    def answer(batch: list[Report]) -> set[int]:
        if locks and any(one.instance_id == 2 for one in batch):
            raise locks[0]
        return set()

    world.answer = answer
    world.put(report(1), report(2))
    with world.running():
        assert world.result(1)
        world.clock.advance(0)  # until it rests
        assert world.locks_noted == 0, "it may have been a lock of milliseconds"
        for _ in range(3):
            world.clock.advance(RETRY_SECONDS)
        assert world.locks_noted > 1
        locks.clear()
        assert world.result(2)


def test_the_reports_of_one_instance_keep_their_order_when_it_is_locked(world: World) -> None:
    world.lock(1)
    world.reporter.put(step(1), first := Told(world.clock))
    with world.running():
        world.put(report(2))
        assert world.result(2)
        world.put(report(1), report(3))
        assert world.result(3)
        assert (first.done, world.told[1].done) == (False, False)
        world.held_by_others.clear()
        assert world.result(1)
        assert first.done
    told = [one for batch in world.batches[1:] for one in batch if one.instance_id == 1]
    assert [one.is_over for one in told] == [False, True]


def test_a_stop_does_not_wait_for_what_is_locked(world: World) -> None:
    world.lock(1)
    world.put(report(1), report(2))
    with world.running():
        assert world.result(2)
        assert not world.reporter.flush(1)


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


def test_an_error_of_the_server_is_logged_once_although_it_comes_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([OperationalError("", {}, Exception(1, "disk full"))] * 6)

    def answer(batch: list[Report]) -> set[int]:
        if (failure := next(failures, None)) is not None:
            raise failure
        return set()

    world.answer = answer
    world.put(report(1))
    with world.running():
        assert world.result(1)
    assert [record.getMessage() for record in caplog.records] == ["reporter: disk full; reports wait"]


def test_a_report_that_fails_by_no_error_of_the_database_fails_alone(world: World) -> None:
    def answer(batch: list[Report]) -> set[int]:
        if any(one.instance_id == 7 and one.nodes[0].status is NodeStatus.SUCCEED for one in batch):
            raise TypeError("7 cannot be written")
        return set()

    world.answer = answer
    world.put(*many(1))
    with world.running():
        assert [world.result(number) for number in range(1, 21)] == [number != 7 for number in range(1, 21)]
    [failure] = [one for batch in world.batches for one in batch if one.nodes[0].status is NodeStatus.FAILED]
    assert failure.instance_id == 7
    assert "7 cannot be written" in str(failure.nodes[0].result)


def test_an_error_that_meets_every_report_ends_the_thread_which_ends_the_worker(world: World) -> None:
    def answer(batch: list[Report]) -> set[int]:
        raise TypeError("nothing can be written")

    world.answer = answer
    world.put(*many(1))
    with pytest.raises(TypeError, match="nothing can be written"):
        world.reporter.run()


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
        assert world.told[1].done


def test_closing_lets_it_write_what_is_queued_first(world: World) -> None:
    world.put(report(1), report(2))
    world.reporter.close()
    with world.running():
        assert world.result(2)


class Handing(World):
    """Each run hands its slot on."""

    def __init__(self) -> None:
        super().__init__()
        self.given_back = 0
        self.reporter = Reporter(cast("WorkerRows", self), self.clock, cast("Successors", self))

    def wait(self, report: Report) -> bool:
        return True

    def take(self, batch: list[Report]) -> list[tuple[object, None]]:
        return [(object(), None) for one in batch if one.turn_of is not None]

    def settle(self, taken: object, claimed: object) -> None:
        pass

    def report_and_hand_on(self, batch: list[Report], following: object) -> tuple[set[int], set[int]]:
        return self.report(batch), set()

    def give_back(self) -> None:
        self.given_back += 1

    def hand_on(self, *numbers: int) -> None:
        for number in numbers:
            self.put(replace(report(number), turn_of=7))
            assert self.result(number)


def test_the_connection_that_hands_turns_on_is_given_back_once_when_no_report_follows() -> None:
    world = Handing()
    with world.running():
        world.hand_on(1, 2, 3)
        assert world.given_back == 0
        world.clock.advance(1)
        assert world.given_back == 1
        world.clock.advance(10)
    assert (world.given_back, world.ids()) == (1, [[1], [2], [3]])


def test_it_is_given_back_though_other_reports_come_all_the_time() -> None:
    world = Handing()
    with world.running():
        world.hand_on(1)
        for number in range(2, 20):
            world.clock.advance(IDLE_SECONDS / 4)
            world.put(report(number))
            assert world.result(number)
        assert world.given_back == 1
        world.hand_on(20)
        assert world.given_back == 1


def test_it_is_given_back_when_the_reporter_is_closed() -> None:
    world = Handing()
    with world.running():
        world.hand_on(1)
        assert world.given_back == 0
    assert world.given_back == 1


def test_closing_ends_an_idle_reporter(world: World) -> None:
    with world.running():
        assert world.reporter.flush(10)
    assert world.batches == []
