"""Whatever the verbs are called with, and in whatever order, an instance makes no move that is not declared.

And every invariant holds at every moment, while others write.
"""

import contextlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Connection

from rota.shared.database.later import Unexpected
from rota.shared.domain.errors import NotFound, NotPossible
from rota.shared.domain.states import TERMINAL, TRANSITIONS, InstanceStatus, NodeStatus
from rota.shared.store import assignments, fires, instances, overlap, recovery, reports, unclaimed, unstarted
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.transitions import canceling, giving
from tests.harness.examples import examples
from tests.harness.scenario import Scenario

MINUTE = timedelta(minutes=1)
POLICIES = (("skip", None), ("queue", None), ("replace", None), ("allow", None), ("allow", 2))


class Player:
    """Calls the store's verbs at random, on instances and workers that may or may not be right for them.

    It claims and reports for its ``own`` workers alone: of one run nobody but its process reports.
    """

    def __init__(
        self, rows: Scenario, rng: random.Random, tasks: list[int], workers: list[int], own: list[int]
    ) -> None:
        self._rows = rows
        self._rng = rng
        self._tasks = tasks
        self._workers = workers
        self._own = own
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
            self.unpin,
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
        self._write(lambda c: giving.adopt(c, assignments.orphans(c, 100)))

    def give(self) -> None:
        self.adopt()  # as the assigner does, which gives no instance without a due time
        some = [i for i in self._some() if self._is_adopted(i)]
        given = [(i, self._worker(), self._rng.randrange(5), None) for i in some]

        def give(connection: Connection) -> None:
            giving.give(connection, given)
            fires.pin_nodes(connection, [(i, node) for i, *_ in given for node in self._rows.nodes])

        self._write(give)

    def _is_adopted(self, instance: int) -> bool:
        try:
            return self._rows.row(instance).due_at is not None
        except NotFound:  # another has dropped it since
            return False

    def refuse(self) -> None:
        some = self._some()[:1]
        self._write(lambda c: canceling.refuse(c, dict.fromkeys(some, "test")))

    def take_back(self) -> None:
        self._write(lambda c: assignments.take_back_assigned(c, self._worker(), 3))

    def take_back_unstarted(self) -> None:
        cutoff = self._rows.now()
        for queue in self._rows.database.read(lambda c: unstarted.late_queues(c, self._workers, cutoff)):
            self._write(partial(unstarted.take_back, queue=queue, cutoff=cutoff, limit=3))

    def claim(self) -> None:
        worker, some = self._rng.choice(self._own), self._some()
        now = self._rows.start + MINUTE * self._rng.randrange(3)
        skip_candidates = {i: overlap.SkipCandidate(self._rng.choice(some), self._rows.start + MINUTE) for i in some}
        self._rows.claim(worker, *some, now=now, skip_candidates=skip_candidates)

    def _fences(self, worker: int) -> list[tuple[int, int]]:
        """What the worker holds, or some that it does not: (instance id, attempt)."""
        if self._rng.random() < 0.7:
            return [(i, attempt) for i, attempt, _ in self._rows.database.read(lambda c: recovery.held(c, worker))]
        return [(i, self._rng.randrange(1, 4)) for i in self._some()]

    def report(self) -> None:
        worker = self._rng.choice(self._own)
        batch = [self._report(*fence) for fence in self._fences(worker)[:3]]
        self._write(lambda c: reports.report(c, worker, batch))

    def _report(self, instance: int, attempt: int) -> Report:
        """What a worker may say of the first node that has not succeeded; of one that it does not hold, too."""
        nodes = self._rows.database.read(lambda c: instances.nodes(c, instance))
        try:
            at = self._rows.row(instance).gmt_started or self._rows.start
        except NotFound:  # another has dropped it since
            at = self._rows.start
        left = [node for node in nodes if node.status != NodeStatus.SUCCEED]
        if not left:
            return Report(instance, attempt, [], InstanceReport(InstanceStatus.FAILED, "1", None, at, at, 1))
        status = self._rng.choice(
            [NodeStatus.PENDING, NodeStatus.FAILED, NodeStatus.CANCELED, *[NodeStatus.SUCCEED] * 3]
        )
        said = [NodeReport(left[0].id, status, "1", at, at)]
        if status is NodeStatus.SUCCEED and len(left) > 1:
            return Report(instance, attempt, [*said, NodeReport(left[1].id, NodeStatus.RUNNING, gmt_started=at)])
        ended = at if status is not NodeStatus.PENDING else None
        return Report(instance, attempt, said, InstanceReport(InstanceStatus(status), "1", None, ended, ended, 1, at))

    def hand_back(self) -> None:
        worker = self._rng.choice(self._own)
        fences = self._fences(worker)[:1]
        unstarted = self._rng.random() < 0.5
        self._write(lambda c: reports.hand_back(c, worker, fences, "test", unstarted=unstarted))

    def unpin(self) -> None:
        some = self._some()
        self._write(lambda c: fires.unpin(c, sorted(giving.free_pending(c, some)), attempt=0))

    def recover(self) -> None:
        worker = self._worker()
        self._write(lambda c: recovery.recover(c, worker, 3))

    def cancel(self) -> None:
        for instance in self._some()[:1]:
            try:
                row = self._rows.row(instance)
                self._write(partial(instances.cancel, instance=row, now=self._rows.start, by="test"))
            except (NotPossible, NotFound, Unexpected):
                continue

    def ask_to_cancel(self) -> None:
        for instance in self._some():
            with contextlib.suppress(Unexpected):  # it does not run
                self._write(
                    partial(canceling.request_cancel, instance_id=instance, now=self._rows.start, reason="test")
                )

    def replay(self) -> None:
        for instance in self._some()[:1]:
            try:
                self._write(partial(instances.replay, instance_id=instance, by="test"))
            except (NotPossible, NotFound):
                continue

    def switch(self) -> None:
        self._rows.sql(
            "UPDATE schedule_task SET status = :status WHERE id = :task",
            task=self._rng.choice(self._tasks),
            status=self._rng.choice(["on", "on", "off"]),
        )

    def drop_ahead(self) -> None:
        self._write(lambda c: unclaimed.drop(c, unclaimed.ahead(c, self._tasks, self._rows.start)))


def stage(rows: Scenario) -> tuple[list[int], list[int]]:
    tasks = [rows.task(overlap_policy=policy, max_instances=most) for policy, most in POLICIES]
    return tasks, [rows.worker(liveness_seconds=3600) for _ in range(3)]


def wrong(before: dict[int, str], after: dict[int, str]) -> list[str]:
    """What became of instances that the declared transitions do not allow."""
    return [
        f"instance {instance} went from {status} to {after[instance]}"
        for instance, status in before.items()
        if instance in after
        and after[instance] != status
        and InstanceStatus(after[instance]) not in TRANSITIONS[InstanceStatus(status)]
    ]


@pytest.mark.parametrize("seed", range(examples(3)))
def test_no_verb_makes_a_transition_that_is_not_declared(rows: Scenario, seed: int) -> None:
    print("seed", seed)
    tasks, workers = stage(rows)
    player = Player(rows, random.Random(seed), tasks, workers, own=workers)
    seen: set[tuple[str, str]] = set()
    before: dict[int, str] = {}
    for _ in range(150):
        verb = player.play()
        after = rows.statuses()
        assert wrong(before, after) == [], verb
        assert rows.broken() == {}, verb
        vanished = {before[i] for i in set(before) - set(after)}
        assert vanished <= ({"pending", "assigned"} if verb == "drop_ahead" else set()), verb
        born = {after[i] for i in set(after) - set(before)}
        assert born <= {"pending", "assigned"}, verb
        seen |= {(before[i], after[i]) for i in set(before) & set(after) if before[i] != after[i]}
        before = after
    assert len(seen) >= 6, f"the verbs were hardly tried: {seen}"


@pytest.mark.parametrize("seed", range(examples(2)))
def test_terminal_states_are_final_and_slots_are_single_while_all_play_at_once(rows: Scenario, seed: int) -> None:
    print("seed", seed)
    tasks, workers = stage(rows)
    of_task = dict(zip(tasks, POLICIES, strict=True))
    over = threading.Event()
    faults: list[str] = []

    def play(number: int) -> None:
        player = Player(rows, random.Random(seed * 100 + number), tasks, workers, own=workers[number : number + 1])
        for _ in range(40):
            player.play()

    def watch() -> None:
        final: dict[int, str] = {}
        while not over.is_set():
            faults.extend(f"{name} is broken by {ids}" for name, ids in rows.broken().items())
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

    with ThreadPoolExecutor(4) as pool:
        watching = pool.submit(watch)
        playing = [pool.submit(play, number) for number in range(3)]
        try:
            for each in playing:
                each.result(60)
        finally:
            over.set()
        watching.result(60)
    assert faults == []
