"""What a worker fetches and claims, in what order; and the comparison of what stands running with what it runs."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from shared.settings import Settings
from shared.store import losses, overlap, runs
from shared.store.runs import Run
from tests.store.scenario import Scenario, ended
from tests.unit.test_runner import Reports
from worker_service import poller as pollers
from worker_service.delay_queue import DelayQueue
from worker_service.poller import Poller
from worker_service.runner import Runner


class Puller:
    """A poller with its runner, which starts nothing by itself."""

    def __init__(self, rows: Scenario, worker: int, **settings: Any) -> None:
        clock = rows.database.clock
        self.runner = Runner({}, {}, Reports(), clock, result_limit_bytes=1000, room_made=lambda: None)
        self.starts: DelayQueue[Run] = DelayQueue(clock)
        self.poller = Poller(
            rows.database,
            Settings.load(**settings),
            worker,
            runner=self.runner,
            starts=self.starts,
            busy=lambda: self.runner.occupied,
        )

    def claim(self) -> list[int]:
        """Claim once; returns what is to start, in the order in which it is to, and forgets it."""
        self.poller.claim()
        claimed = [run.id for run in self.starts.take(lambda: 1000)] if len(self.starts) else []
        for instance in claimed:
            self.runner.drop(instance)
        return claimed


def compared(rows: Scenario, worker: int, *accepted: Run) -> tuple[Poller, Runner]:
    """A poller of the worker, whose process runs what it has accepted."""
    puller = Puller(rows, worker)
    assert puller.runner.accept(accepted) == list(accepted)
    return puller.poller, puller.runner


@pytest.mark.parametrize(
    ("due_in", "few", "hurries"), [(-1, 10, True), (-1, 2, False), (60, 10, False)], ids=["late", "many", "ahead"]
)
def test_a_poll_that_brought_what_was_late_is_soon_followed_by_another(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, due_in: int, few: int, hurries: bool
) -> None:
    monkeypatch.setattr(pollers, "FEW", few)
    monkeypatch.setattr(pollers, "HURRY_SHARE", float("inf"))
    monkeypatch.setattr(pollers, "seconds_to_next", lambda *_: 42.0)
    worker = rows.worker()
    puller = Puller(rows, worker, lookahead_seconds=120)
    for number in range(2):
        rows.assigned(worker, at=rows.now() + timedelta(seconds=due_in + number / 10))
    assert puller.poller.poll() == (pollers.HURRY_SECONDS if hurries else 42.0)
    assert puller.poller.poll() == 42.0, "it brought nothing new"


def test_polls_come_often_enough_for_the_lookahead(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pollers, "seconds_to_next", lambda _, period, __: period)
    for poll, lookahead, heartbeat, rest in ((1, 5, 3, 1), (60, 5, 3, 1.875), (1, 3, 0.4, 0.25), (1, 0.4, 3, 0.125)):
        puller = Puller(
            rows, rows.worker(), poll_seconds=poll, lookahead_seconds=lookahead, heartbeat_seconds=heartbeat
        )
        assert puller.poller.poll() == rest


@pytest.mark.parametrize(("late", "hurries"), [(10, True), (9, False)])
def test_behind_a_piece_of_a_backlog_polls_hurry_for_a_period_though_they_bring_nothing(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, late: int, hurries: bool
) -> None:
    monkeypatch.setattr(pollers, "seconds_to_next", lambda *_: 42.0)
    worker = rows.worker()
    puller = Puller(rows, worker, poll_seconds=1)
    for number in range(late):
        rows.assigned(worker, at=rows.now() - timedelta(seconds=1 + number / 10))
    rests = []
    for moment in (100.0, 100.1, 100.9, 101.0):
        monkeypatch.setattr(pollers, "boottime", lambda at=moment: at)
        rests.append(puller.poller.poll())
    soon = pollers.HURRY_SECONDS
    assert rests == ([soon, soon, soon, 42.0] if hurries else [soon, 42.0, 42.0, 42.0])


@pytest.mark.parametrize(("took", "rest"), [(0.005, 0.1), (0.03, 0.3), (0.2, 0.5)])
def test_polls_that_take_long_hurry_less(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, took: float, rest: float
) -> None:
    seconds = iter([0.0, 0.0, took])
    worker = rows.worker()
    puller = Puller(rows, worker)
    puller.poller._compared = 1.0  # not now
    monkeypatch.setattr(pollers, "boottime", lambda: next(seconds))
    monkeypatch.setattr(pollers, "seconds_to_next", lambda *_: 42.0)
    rows.assigned(worker)
    assert puller.poller.poll() == pytest.approx(rest)


def test_where_claims_take_long_more_are_claimed_for_slots_to_come(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rows.worker()
    puller = Puller(rows, worker)
    moment, ahead = 1000.0, []

    def foreseen(free: int, seconds: float) -> int:
        ahead.append(seconds)
        return 0

    def claim_takes(seconds: float) -> None:
        nonlocal moment
        moment += seconds
        puller.starts.put_all([])

    monkeypatch.setattr(puller.runner, "foreseen", foreseen)
    monkeypatch.setattr(pollers, "boottime", lambda: moment)
    for took, rest in ((0.001, 0.0), (0.2, 0.0), (60.0, 0.0), (60.0, 60.0)):
        rows.assigned(worker)
        puller.poller.poll()
        monkeypatch.setattr(puller.poller, "_claim", lambda _, took=took: claim_takes(took))
        puller.poller.claim()
        moment += rest
        puller.poller._room()
    usual = pollers.CLAIM_AHEAD.total_seconds()
    assert ahead[1::2] == [usual, pytest.approx(0.4), pollers.LONGEST_PACE_SECONDS, usual]


def test_what_is_urgent_is_claimed_before_a_backlog_that_was_due_and_fetched_before_it(rows: Scenario) -> None:
    worker = rows.worker()
    backlog = [rows.assigned(worker, at=rows.start - timedelta(minutes=9 - n)) for n in range(3)]
    puller = Puller(rows, worker, capacity=2)
    puller.poller.poll()
    urgent = rows.assigned(worker, at=rows.start, priority=0)
    puller.poller.poll()
    assert puller.claim() == [urgent, backlog[0]]
    assert puller.claim() == backlog[1:]
    assert set(rows.statuses().values()) == {"running"}


def test_no_more_is_claimed_than_there_are_slots_or_ends_foreseen(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rows.worker()
    for _ in range(9):
        rows.assigned(worker)
    puller = Puller(rows, worker, capacity=3, batch=4)
    puller.poller.poll()
    asked: list[int] = []

    def foreseen(free: int, seconds: float) -> int:
        asked.append(free)
        return 2

    puller.poller.claim()
    assert puller.runner.occupied == 3
    monkeypatch.setattr(puller.runner, "foreseen", foreseen)
    puller.poller.claim()
    assert (puller.runner.occupied, asked) == (5, [0])


def test_what_is_not_due_is_claimed_a_moment_before_and_starts_when_it_is(rows: Scenario) -> None:
    worker = rows.worker()
    due = rows.now() + timedelta(seconds=0.3)
    instance = rows.assigned(worker, at=due)
    puller = Puller(rows, worker)
    puller.poller.poll()
    puller.poller.claim()
    claimed_at = rows.now()
    assert due - pollers.CLAIM_AHEAD <= claimed_at
    assert rows.row(instance).gmt_started == due
    assert [run.id for run in puller.starts.take(lambda: 1)] == [instance]
    assert rows.now() >= due


def test_what_was_taken_back_is_dropped_from_mind_and_claimed_again_only_if_it_comes_again(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    kept, taken = rows.assigned(worker), rows.assigned(worker)
    puller = Puller(rows, worker)
    puller.poller.poll()
    assert set(puller.poller._waiting) == {kept, taken}
    for new_owner in (other, worker):
        rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = :w WHERE id = :id", w=new_owner, id=taken)
        puller.poller.poll()
        assert set(puller.poller._waiting) == ({kept} if new_owner == other else {kept, taken})
    assert sorted(puller.claim()) == [kept, taken]
    assert (len(puller.poller._claims), puller.poller._waiting) == (0, {})


def test_what_was_taken_back_is_not_even_asked_for(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = rows.worker()
    kept, taken = rows.assigned(worker), rows.assigned(worker)
    puller = Puller(rows, worker)
    puller.poller.poll()
    rows.sql("UPDATE schedule_instance SET status = 'pending' WHERE id = :id", id=taken)
    puller.poller.poll()
    asked: list[list[int]] = []
    claim = runs.claim

    def noted(connection: Connection, worker_id: int, ids: list[int], *rest: Any, **more: Any) -> Any:
        asked.append(ids)
        return claim(connection, worker_id, ids, *rest, **more)

    monkeypatch.setattr(runs, "claim", noted)
    assert puller.claim() == [kept]
    assert asked == [[kept]]


@pytest.fixture
def behind(rows: Scenario) -> tuple[Puller, int, Run, int]:
    """A puller that has met a run of its fire's task: that run's worker, it, and the fire."""
    task, worker, other = rows.task(overlap_policy="skip"), rows.worker(), rows.worker()
    before = rows.running(other, task)
    rows.sql("UPDATE schedule_instance SET gmt_started = schedule_datetime WHERE id = :id", id=before.id)
    fire = rows.assigned(worker, task, rows.start)
    puller = Puller(rows, worker)
    puller.poller.poll()
    met = rows.now()
    assert puller.claim() == []
    (doubt,) = puller.poller._doubts.values()
    assert doubt.holder_id == before.id
    assert doubt.until >= met + overlap.REPORTED_WITHIN
    assert puller.claim() == []
    assert puller.poller._doubts == {fire: doubt}, "it is not put off again"
    return puller, other, before, fire


@pytest.mark.parametrize("skipped", [False, True], ids=["ended before", "ended after"])
def test_a_slow_report_tells_whether_a_fire_is_skipped(
    rows: Scenario, behind: tuple[Puller, int, Run, int], *, skipped: bool
) -> None:
    puller, other, before, fire = behind
    report = ended(before)
    assert report.instance is not None
    end = rows.start + timedelta(milliseconds=1 if skipped else -1)
    instance = replace(report.instance, gmt_started=rows.start - timedelta(seconds=9), gmt_completed=end)
    rows.report(other, replace(report, instance=instance))
    assert puller.claim() == ([] if skipped else [fire])
    assert rows.status(fire) == ("canceled" if skipped else "running")
    assert (puller.poller._waiting, puller.poller._tries, puller.poller._doubts) == ({}, {}, {})


def test_when_another_run_has_taken_the_slot_a_doubt_that_is_over_hurries_nothing(
    rows: Scenario, behind: tuple[Puller, int, Run, int]
) -> None:
    puller, other, before, fire = behind
    until, report = puller.poller._doubts[fire].until, ended(before)
    assert report.instance is not None
    end = rows.start - timedelta(milliseconds=1)
    instance = replace(report.instance, gmt_started=end, gmt_completed=end)
    rows.report(other, replace(report, instance=instance))
    replay = rows.running(other, rows.row(fire).schedule_task_id)
    while (now := rows.now()) < until:
        assert puller.claim() == []
    assert puller.claim() == []
    assert puller.poller._doubts[fire].until == until
    puller.poller._tries[fire] = 9
    assert puller.poller._next_try(fire, rows.start, now) == now + timedelta(seconds=pollers.LONGEST_RETRY_SECONDS)
    assert rows.status(fire) == "assigned"
    rows.report(other, ended(replay))
    assert puller.claim() == [fire]


def test_a_fire_is_skipped_once_its_predecessor_has_had_time_to_report(
    rows: Scenario, behind: tuple[Puller, int, Run, int]
) -> None:
    puller, _, _, fire = behind
    until = puller.poller._doubts[fire].until
    while fire in puller.poller._doubts:
        assert rows.status(fire) == "assigned"
        assert puller.claim() == []
    assert rows.status(fire) == "canceled"
    assert until <= rows.now() < until + timedelta(seconds=5)
    assert (puller.poller._waiting, puller.poller._tries) == ({}, {})


def test_what_waits_too_long_for_a_slot_is_handed_back_and_never_failed(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, once = rows.worker(), rows.task(on_worker_lost="fail")
    instances = [rows.assigned(worker, once), rows.assigned(worker)]
    puller = Puller(rows, worker)
    puller.poller.poll()
    puller.poller.claim()
    puller.poller._give_back()
    assert set(rows.statuses().values()) == {"running"}
    monkeypatch.setattr(pollers, "GIVE_BACK_AFTER", timedelta(0))
    puller.poller._give_back()
    assert rows.statuses() == dict.fromkeys(instances, "pending")
    assert {rows.row(i).reason for i in instances} == {"its worker had no slot for it"}
    assert (len(puller.starts), len(puller.runner)) == (0, 0)
    assert rows.node_statuses(instances[0]) == ["pending", "pending"]


def test_what_a_claim_won_when_its_worker_had_stopped_is_handed_back_and_never_failed(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker, rows.task(on_worker_lost="fail"))
    puller = Puller(rows, worker)
    puller.poller.poll()
    assert puller.starts.close() == []
    puller.poller.claim()
    assert (rows.status(instance), rows.row(instance).reason) == ("pending", "its worker stopped")
    assert (len(puller.starts), len(puller.runner)) == (0, 0)


def test_what_a_worker_holds_and_does_not_run_is_handed_back(rows: Scenario) -> None:
    worker = rows.worker()
    known, stranger = rows.running(worker), rows.running(worker)
    poller, _ = compared(rows, worker, known)
    poller.compare()
    assert rows.statuses() == {known.id: "running", stranger.id: "pending"}
    assert rows.row(stranger.id).reason == "its worker held it but did not run it"


def test_what_may_run_at_most_once_is_failed_and_not_handed_back(rows: Scenario) -> None:
    worker, once = rows.worker(), rows.task(on_worker_lost="fail", overlap_policy="allow")
    strangers = [rows.running(worker, once), rows.running(worker, once), rows.running(worker)]
    known = rows.running(worker, once)
    rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = due_at WHERE id = :id", id=strangers[1].id)
    compared(rows, worker, known)[0].compare()
    assert [rows.status(run.id) for run in (*strangers, known)] == ["failed", "canceled", "pending", "running"]
    row = rows.row(strangers[0].id)
    assert row.reason == "its worker held it but did not run it; its task says on_worker_lost = fail"
    assert (row.execution_result, row.modifier) == ({"error": row.reason}, "worker")
    assert rows.node_statuses(row.id) == ["failed", "canceled"]


def test_a_later_attempt_than_the_one_seen_is_left_alone(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    run = rows.running(worker, rows.task(on_worker_lost="fail"))
    held = [(run.id, run.attempt + 1)]
    assert rows.database.write(lambda c: losses.disown(c, worker, held, "test")) == 0
    assert rows.database.write(lambda c: losses.disown(c, other, [(run.id, run.attempt)], "test")) == 0
    assert rows.status(run.id) == "running"


def test_a_comparison_under_way_does_not_hand_back_what_the_stop_is_ending(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    poller, runner = compared(rows, worker, run)
    held = runs.held

    def stopped_meanwhile(connection: Connection, worker_id: int) -> Any:
        found = held(connection, worker_id)
        poller.close()
        runner.forsake()
        return found

    monkeypatch.setattr(runs, "held", stopped_meanwhile)
    poller.compare()
    assert rows.status(run.id) == "running"
