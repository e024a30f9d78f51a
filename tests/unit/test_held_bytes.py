"""Whatever becomes of a run, the worker has its room for large params and results back when the run has left it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rota.shared.domain.jsontext import UnreadableJson
from rota.shared.settable_clock import SettableClock
from rota.shared.store.runs import Run
from rota.worker_service.contents import Node
from rota.worker_service.executors.base import Call, Done, Failure, NoThread, Outcome
from rota.worker_service.pulling.slots import HELD_BYTES, Slots
from rota.worker_service.running.runner import Runner
from tests.harness.examples import examples
from tests.harness.runs import NOON, Reports, run

NODES = {f"REPORT_{name}": Node(f"REPORT_{name}", "REPORT", 1, print, "thread", timeout=60) for name in ("A", "B", "C")}
REFUSALS = (NoThread("no thread"), OSError("no process"), SystemExit(1))


@dataclass(eq=False)
class Running:
    """A call that runs until it is ended."""

    done: Done
    entered: float
    stopped: bool = False

    def stop(self, *, asks: bool = False) -> None:
        self.stopped = True

    def kill(self) -> None: ...

    def standing(self) -> None: ...


@dataclass
class Player:
    """Lets a runner do and suffer whatever may happen to it, at random."""

    rng: random.Random
    clock: SettableClock = field(default_factory=lambda: SettableClock(NOON))
    reports: Reports = field(default_factory=Reports)
    calls: list[Running] = field(default_factory=list)
    waiting: list[Run] = field(default_factory=list)
    claimed: int = 0

    def __post_init__(self) -> None:
        self.slots = Slots(3, 1000, self.clock)
        limits: dict[str, Any] = {"result_limit_bytes": 1000, "grace_seconds": 10}
        self.runner = Runner(NODES, {"thread": self}, self.reports, self.slots, self.clock, **limits)
        self.moves: list[Callable[[], object]] = [
            self.claim, self.claim, self.give_slots, self.give_slots, self.end, self.end, self.end, self.linger,
            self.cancel, self.time_out, self.commit, self.commit, self.commit, self.hand_back,
        ]  # fmt: skip

    def start(self, call: Call, done: Done, *, later: bool = False) -> Running:
        """The executor."""
        if self.rng.random() < 0.1:
            raise self.rng.choice(REFUSALS)
        running = Running(done, self.clock.monotonic())
        if self.rng.random() < 0.1:
            done(Outcome(running.entered, running.entered, 1))
        else:
            self.calls.append(running)
        return running

    def begin(self) -> None: ...

    def close(self) -> None: ...

    def claim(self) -> None:
        self.claimed += 1
        names = self.rng.choices(["A", "B", "C", "UNKNOWN"], [5, 5, 5, 1], k=self.rng.randint(1, 3))
        fields: dict[str, Any] = {
            "id": self.claimed,
            "large": self.rng.choice([0, 0, 5_000, 10**6]),
            "retries": self.rng.randint(0, 1),
            "on_worker_lost": self.rng.choice(["retry", "retry", "fail"]),
            "param": self.rng.choice([None, None, UnreadableJson("too deep")]),
            "timezone": self.rng.choice(["UTC", "UTC", "Mars/Base"]),
        }
        self.waiting += self.runner.accept([run(*names, **fields)])

    def give_slots(self) -> None:
        left = self.runner.start(self.waiting)
        self.waiting = [one for one in self.waiting if one.id in left]
        while (active := self.slots.next_in_line()) is not None:
            self.runner.proceeding._run_next(active)  # type: ignore[arg-type]

    def end(self) -> None:
        if self.calls:
            running, now = self.calls.pop(self.rng.randrange(len(self.calls))), self.clock.monotonic()
            failure = Failure.of(ValueError("no")) if self.rng.random() < 0.3 else None
            stopped = running.stopped and self.rng.random() < 0.8
            running.done(Outcome(running.entered, now, {"rows": 1}, failure, stopped))

    def linger(self) -> None:
        if stopped := [running for running in self.calls if running.stopped]:
            self.rng.choice(stopped).done(Outcome(0, self.clock.monotonic(), stopped=True, lingers=True))

    def cancel(self) -> None:
        self.runner.stop(self.rng.randint(1, self.claimed + 1), 1, "canceled", canceled=True)

    def time_out(self) -> None:
        self.clock.advance(self.rng.choice([1, 20, 70]))
        self.runner.stopping.expire()

    def commit(self) -> None:
        if self.reports.waiting:
            self.reports.commit(ours=self.rng.random() < 0.9)

    def hand_back(self) -> None:
        if self.waiting:
            self.runner.drop(self.waiting.pop().id)

    def stop(self) -> None:
        """As a worker that stops does."""
        self.runner.detach_unfinished()
        while self.calls:
            self.end()
        while self.reports.waiting:
            self.reports.commit()


@pytest.mark.parametrize("_number", range(examples(80)))
def test_whatever_becomes_of_a_run_its_bytes_are_counted_once_and_given_back(_number: int) -> None:
    seed = random.randrange(10**9)  # drawn here: all processes of a run of tests must collect the same ones
    player = Player(random.Random(seed))
    for _ in range(400):
        player.rng.choice(player.moves)()
        held = sum(active.large for active in player.runner._active.values())
        assert player.slots.room == HELD_BYTES - held, f"seed {seed}"
    if player.rng.random() < 0.5:  # it runs dry
        while len(player.runner):
            player.rng.choice([player.give_slots, player.end, player.commit, player.time_out])()
    player.stop()
    assert (player.slots.room, player.slots.busy, player.slots.line) == (HELD_BYTES, 0, 0), f"seed {seed}"
    assert (len(player.runner), len(player.runner.lingering)) == (0, 0), f"seed {seed}"
