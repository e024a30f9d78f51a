"""Whatever the verbs are called with, and in whatever order, an instance makes no transition that is not declared."""

import random
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from shared.domain.errors import NotFound, NotPossible
from shared.domain.states import TERMINAL, TRANSITIONS, InstanceStatus, NodeStatus
from shared.store import assignments, instances, losses, overlap, plans, reports, runs
from shared.store.reports import InstanceReport, NodeReport, Report
from tests.store.scenario import Scenario

MINUTE = timedelta(minutes=1)
POLICIES = (("skip", None), ("queue", None), ("replace", None), ("allow", None), ("allow", 2))


class Player:
    """Calls the store's verbs at random, on instances and workers that may or may not be right for them."""

    def __init__(self, rows: Scenario, rng: random.Random, tasks: list[int], workers: list[int]) -> None:
        self._rows = rows
        self._rng = rng
        self._tasks = tasks
        self._workers = workers
        self._write = rows.database.write
        self.verbs: list[Callable[[], object]] = [
            self.fire,
            self.fire,
            self.insert,
            self.adopt,
            self.give,
            self.give,
            self.give,
            self.refuse,
            self.take_back,
            self.take_back_unstarted,
            self.claim,
            self.claim,
            self.claim,
            self.report,
            self.report,
            self.report,
            self.hand_back,
            self.recover,
            self.cancel,
            self.ask_to_cancel,
            self.replay,
            self.switch,
            self.drop_ahead,
        ]

    def play(self) -> str:
        """One verb; returns its name."""
        verb = self._rng.choice(self.verbs)
        verb()
        return verb.__name__

    def _some(self) -> list[int]:
        known = sorted(self._rows.statuses())
        return self._rng.sample(known, min(len(known), self._rng.randrange(1, 8)))

    def _worker(self) -> int:
        return self._rng.choice(self._workers)

    def fire(self) -> None:
        at = self._rows.start + MINUTE * self._rng.randrange(-5, 2)
        self._rows.fire(self._rng.choice(self._tasks), at, self._rng.choice([None, *self._workers]))

    def insert(self) -> None:
        self._rows.by_sql(self._rng.choice(self._tasks), self._rows.start + MINUTE * self._rng.randrange(-5, 2))

    def adopt(self) -> None:
        self._write(lambda c: assignments.adopt(c, 100))

    def give(self) -> None:
        self.adopt()
        given = [(i, self._worker(), self._rng.randrange(5), None) for i in self._some()]
        self._write(lambda c: assignments.give(c, given))

    def refuse(self) -> None:
        some = self._some()[:1]
        self._write(lambda c: assignments.refuse(c, dict.fromkeys(some, "test")))

    def take_back(self) -> None:
        self._write(lambda c: assignments.take_back_assigned(c, self._worker(), 3))

    def take_back_unstarted(self) -> None:
        cutoff = self._rows.now()
        self._write(lambda c: assignments.take_back_unstarted(c, self._workers, cutoff, 3))

    def claim(self) -> None:
        worker, some = self._worker(), self._some()
        now = self._rows.start + MINUTE * self._rng.randrange(3)
        doubts = {i: overlap.Doubt(self._rng.choice(some), self._rows.start + MINUTE) for i in some}
        self._write(lambda c: runs.claim(c, worker, some, now, self._rows.types, doubts=doubts))

    def _fences(self, worker: int) -> list[tuple[int, int]]:
        """What the worker holds, or some that it does not: (instance id, attempt)."""
        if self._rng.random() < 0.7:
            return [(i, attempt) for i, attempt, _ in self._rows.database.read(lambda c: runs.held(c, worker))]
        return [(i, self._rng.randrange(1, 4)) for i in self._some()]

    def report(self) -> None:
        worker = self._worker()
        batch = [self._report(*fence) for fence in self._fences(worker)[:3]]
        self._write(lambda c: reports.report(c, worker, batch))

    def _report(self, instance: int, attempt: int) -> Report:
        nodes = self._rows.database.read(lambda c: instances.nodes(c, instance))
        statuses = list(NodeStatus)
        said = [NodeReport(node.id, self._rng.choice(statuses), "1") for node in nodes]
        status = self._rng.choice([InstanceStatus.PENDING, *sorted(TERMINAL)])
        at = self._rows.start
        whole = InstanceReport(status, "1", None, at, None if status is InstanceStatus.PENDING else at, 1, at)
        return Report(instance, attempt, said, self._rng.choice([None, whole, whole]))

    def hand_back(self) -> None:
        worker = self._worker()
        fences = self._fences(worker)[:1]
        self._write(lambda c: reports.hand_back(c, worker, fences, "test"))

    def recover(self) -> None:
        worker = self._worker()
        self._write(lambda c: losses.recover(c, worker, 3))

    def cancel(self) -> None:
        for instance in self._some()[:1]:
            try:
                self._write(lambda c, i=instance: instances.cancel(c, i, "test"))  # type: ignore[misc]
            except (NotPossible, NotFound):
                continue

    def ask_to_cancel(self) -> None:
        some = self._some()
        self._write(lambda c: overlap.request_cancel(c, some, "test"))

    def replay(self) -> None:
        for instance in self._some()[:1]:
            try:
                self._write(lambda c, i=instance: instances.replay(c, i, "test"))  # type: ignore[misc]
            except (NotPossible, NotFound):
                continue

    def switch(self) -> None:
        self._rows.sql(
            "UPDATE schedule_task SET status = :status WHERE id = :task",
            task=self._rng.choice(self._tasks),
            status=self._rng.choice(["on", "on", "off"]),
        )

    def drop_ahead(self) -> None:
        self._write(lambda c: plans.drop_ahead(c, self._tasks, self._rows.start))


def stage(rows: Scenario) -> tuple[list[int], list[int]]:
    tasks = [rows.task(overlap_policy=policy, max_instances=most) for policy, most in POLICIES]
    return tasks, [rows.worker() for _ in range(3)]


def wrong(before: dict[int, str], after: dict[int, str]) -> list[str]:
    """What became of instances that the declared transitions do not allow."""
    return [
        f"instance {instance} went from {status} to {after[instance]}"
        for instance, status in before.items()
        if instance in after
        and after[instance] != status
        and InstanceStatus(after[instance]) not in TRANSITIONS[InstanceStatus(status)]
    ]


@pytest.mark.parametrize("seed", range(3))
def test_no_verb_makes_a_transition_that_is_not_declared(rows: Scenario, seed: int) -> None:
    print("seed", seed)
    player = Player(rows, random.Random(seed), *stage(rows))
    seen: set[tuple[str, str]] = set()
    before: dict[int, str] = {}
    for _ in range(150):
        verb = player.play()
        after = rows.statuses()
        assert wrong(before, after) == [], verb
        vanished = {before[i] for i in set(before) - set(after)}
        assert vanished <= ({"pending", "assigned"} if verb == "drop_ahead" else set()), verb
        born = {after[i] for i in set(after) - set(before)}
        assert born <= {"pending", "assigned"}, verb
        seen |= {(before[i], after[i]) for i in set(before) & set(after) if before[i] != after[i]}
        before = after
    assert len(seen) >= 6, f"the verbs were hardly tried: {seen}"


@pytest.mark.parametrize("seed", range(2))
def test_terminal_states_are_final_and_slots_are_single_while_all_play_at_once(rows: Scenario, seed: int) -> None:
    print("seed", seed)
    tasks, workers = stage(rows)
    of_task = dict(zip(tasks, POLICIES, strict=True))
    over = threading.Event()
    faults: list[str] = []

    def play(number: int) -> None:
        player = Player(rows, random.Random(seed * 100 + number), tasks, workers)
        for _ in range(40):
            player.play()

    def watch() -> None:
        final: dict[int, str] = {}
        while not over.is_set():
            now = rows.statuses()
            faults.extend(f"{i} was {was} and is {now.get(i)}" for i, was in final.items() if now.get(i) != was)
            final.update({i: status for i, status in now.items() if status in TERMINAL})
            running = rows.sql(
                "SELECT schedule_task_id, count(*) FROM schedule_instance"
                " WHERE status = 'running' GROUP BY schedule_task_id"
            )
            for task, number in map(tuple, running):
                policy, most = of_task[task]
                if (policy != "allow" and number > 1) or (most is not None and number > most):
                    faults.append(f"{number} instances of a task with {policy} ran at once")

    watcher = threading.Thread(target=watch)
    players = [threading.Thread(target=play, args=(number,)) for number in range(3)]
    for thread in (watcher, *players):
        thread.start()
    for thread in players:
        thread.join(60)
    over.set()
    watcher.join(60)
    assert not any(thread.is_alive() for thread in (watcher, *players))
    assert faults == []
