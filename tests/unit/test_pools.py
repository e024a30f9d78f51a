"""Pools in a worker: their slots are theirs alone, their functions run on their threads, and none beyond their size."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.shared.clock import HostTimer
from rota.shared.domain.pools import queue_of, sizes_in
from rota.shared.loop import Loop
from rota.shared.settable_clock import SettableClock
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import Call, Done, Outcome
from rota.worker_service.executors.threads import PooledThreads, ThreadExecutor
from rota.worker_service.pulling.ends import FEWEST_ENDS
from rota.worker_service.pulling.lane import Lane, Lanes
from rota.worker_service.pulling.slot import Slot
from rota.worker_service.pulling.slots import Slots
from rota.worker_service.running.runner import Runner
from tests.harness.runs import NOON, Reports, run
from tests.harness.told import Told

NODES = {name: Node(name, "REPORT", 1, lambda ctx: None, "thread") for name in ("REPORT_EXTRACT", "REPORT_SEND")}


@dataclass
class Running:
    """A call that runs until the test ends it."""

    call: Call
    done: Done
    timer: SettableClock
    entered: float | None
    stopped: bool = False

    def stop(self, *, asks: bool = False) -> None:
        self.stopped = True

    def kill(self) -> None: ...

    def standing(self) -> str | None:
        return None

    def end(self, result: Any = None, *, stopped: bool = False, lingers: bool = False) -> None:
        now = self.timer.monotonic()
        self.done(Outcome(now, now, result, stopped=stopped, lingers=lingers))


class Pooled:
    """A runner of a worker with two slots and a pool of one thread; the test ends its calls."""

    def __init__(self) -> None:
        self.clock, self.reports = SettableClock(NOON), Reports()
        self.calls: list[Running] = []
        self.slots, self.pool = Slots(2, 1000, self.clock), Slots(1, 1000, self.clock, pool="images")
        limits: dict[str, Any] = {"result_limit_bytes": 1000, "grace_seconds": 10}
        self.runner = Runner(NODES, {"thread": self}, self.reports, self.slots, self.clock, **limits)
        self.runner.proceeding.serve(self.pool)

    # It is its own executor

    def start(self, call: Call, done: Done, *, later: bool = False) -> Running:
        self.calls.append(Running(call, done, self.clock, self.clock.monotonic()))
        return self.calls[-1]

    def begin(self) -> None: ...

    def close(self) -> None: ...

    # What the test does

    def start_plain(self, *ids: int) -> set[int]:
        runs = [run("EXTRACT", id=number) for number in ids]
        self.runner.accept(runs)
        return self.runner.start(runs)

    def start_in_pool(self, *ids: int) -> set[int]:
        runs = [run("EXTRACT", "SEND", id=number) for number in ids]
        self.runner.accept(runs, self.pool)
        return self.runner.start(runs)

    @property
    def taken(self) -> tuple[int, int]:
        return self.slots.busy, self.pool.busy


@pytest.fixture
def pooled() -> Pooled:
    return Pooled()


def test_a_pool_that_has_run_next_to_nothing_is_not_hopeful() -> None:
    pooled, own = (Slots(2, 1000, SettableClock(NOON), pool=pool) for pool in ("images", None))
    assert pooled.claimable(0.1, hopeful=True) == 2
    assert own.claimable(0.1, hopeful=True) > 2


def test_what_runs_in_a_pool_takes_its_slots_and_none_of_the_workers(pooled: Pooled) -> None:
    assert pooled.start_in_pool(1, 2) == {2}, "it waits for the pool"
    assert pooled.taken == (0, 2)
    pooled.start_plain(3, 4)
    assert (pooled.taken, pooled.slots.idle(), pooled.pool.idle()) == ((2, 2), 0, 0)
    assert [running.call.pool for running in pooled.calls] == ["images", None, None]


def test_a_run_of_a_pool_gets_its_next_slot_there_whatever_the_worker_does(pooled: Pooled) -> None:
    pooled.start_plain(3, 4)
    pooled.start_in_pool(1)
    pooled.calls[-1].end(1)
    pooled.reports.commit()
    assert [running.call.node.type for running in pooled.calls][3:] == ["REPORT_SEND"]
    assert pooled.calls[3].call.pool == "images"
    pooled.calls[-1].end(2)
    pooled.reports.commit()
    assert pooled.taken == (2, 0)


def test_a_thread_of_a_pool_that_does_not_return_takes_its_slot_and_none_of_the_workers(pooled: Pooled) -> None:
    """It lingers, and is given up after its grace: the run ends, and the thread goes on."""
    lingering = replace(run("EXTRACT", id=1), timeout_seconds=1)
    pooled.runner.accept([lingering], pooled.pool)
    pooled.runner.start([lingering])
    for _ in range(4):
        pooled.clock.advance(60)
        pooled.runner.stopping.expire()
        if pooled.calls[0].stopped:
            pooled.calls[0].end(stopped=True, lingers=True)
    pooled.reports.commit()
    assert len(pooled.runner) == 0
    assert (pooled.taken, pooled.runner.lingering.within(pooled.slots)) == ((0, 1), 0)
    assert (pooled.pool.idle(), pooled.runner.lingering.within(pooled.pool)) == (0, 1)
    pooled.calls[0].end(stopped=True)
    assert (pooled.taken, pooled.pool.idle()) == ((0, 0), 1)


def test_a_worker_that_stops_detaches_the_runs_of_all_pools(pooled: Pooled) -> None:
    pooled.start_plain(3)
    pooled.start_in_pool(1, 2)
    assert sorted(active.run.id for active in pooled.runner.detach_unfinished()) == [1, 2, 3]
    assert pooled.taken == (0, 0)


@pytest.mark.parametrize(("pool", "lent"), [("images", False), (None, True)])
def test_a_pool_lends_nothing_while_a_report_is_written(pool: str | None, *, lent: bool) -> None:
    clock = SettableClock(NOON)
    slots = Slots(2, 1000, clock, pool=pool)
    for _ in range(2 * FEWEST_ENDS):
        slot = Slot()
        slots.claim([slot])
        slots.start([slot])
        clock.advance(0.001)
        slots.end(slot)
        slots.leave(slot)
    between = [Slot(), Slot()]
    slots.claim(between)
    slots.start(between)
    for slot in between:
        slots.lend(slot, 0)
    clock.advance(60)
    assert (slots.idle() > 0, slots.claimable(0) > 0) == (lent, lent)


@pytest.fixture
def threads() -> Iterator[PooledThreads]:
    timer = HostTimer()
    of_pools = {"images": ThreadExecutor(2, timer, name="images")}
    executor = PooledThreads(ThreadExecutor(1, timer), of_pools)
    yield executor
    executor.close()


def test_a_function_runs_on_a_thread_of_its_pool_while_all_others_are_taken(threads: PooledThreads) -> None:
    leave = threading.Event()
    held, named = Told(), Told()
    wait = Node("T_N", "T", 1, lambda _: leave.wait(10), "thread")
    name = Node("T_N", "T", 1, lambda _: threading.current_thread().name, "thread")
    threads.start(Call(wait, NodeContext(param={})), held)
    threads.start(Call(name, NodeContext(param={}), "images"), named)
    assert named.one.result == "images-1"
    leave.set()
    assert held.one.result is True


@pytest.mark.parametrize(
    ("size", "capacity", "prefetch", "queue"),
    [(2, 50, 10_000, 400), (2, 50, 0, 0), (100, 50, 10_000, 10_000), (1, 50, 20, 0), (3, 0, 5, 5)],
)
def test_each_thread_of_a_pool_has_as_long_a_queue_as_a_slot(
    size: int, capacity: int, prefetch: int, queue: int
) -> None:
    assert queue_of(size, capacity, prefetch) == queue


def test_only_sizes_are_read_from_a_workers_row() -> None:
    assert sizes_in({"images": 2, "mail": "2", "fax": 0, "tape": True, "film": None}) == {"images": 2}
    assert sizes_in(None) == sizes_in([1]) == sizes_in("x") == {}


class HungLoop:
    """A loop whose thread does not end."""

    def __init__(self, clock: SettableClock) -> None:
        self._clock = clock

    def join(self, seconds: float) -> bool:
        self._clock.advance(seconds)
        return False


def test_a_worker_that_stops_waits_for_all_loops_as_long_as_for_one() -> None:
    clock = SettableClock(NOON)
    hung = [cast("Lane", SimpleNamespace(poll_loop=HungLoop(clock), claim_loop=HungLoop(clock))) for _ in range(9)]
    began = clock.monotonic()
    lanes = Lanes(hung[0], hung[1:], clock)
    lanes.join_claims(5)
    assert clock.monotonic() == began + 5
    lanes.join_polls(5, cast("Loop", HungLoop(clock)))
    assert clock.monotonic() == began + 10
