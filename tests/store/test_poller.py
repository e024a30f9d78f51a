"""What a worker fetches and claims, in what order; and the comparison of what stands running with what it runs."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from rota.shared.domain.errors import DatabaseAway
from rota.shared.settable_clock import SettableClock
from rota.shared.store import overlap, recovery
from rota.shared.store.crowds import Beside
from rota.shared.store.runs import Run
from rota.worker_service.pulling.pacing import (
    CATCH_UP_SECONDS,
    CLAIM_AHEAD,
    GIVE_BACK_AFTER,
    LONGEST_PACE_SECONDS,
    LONGEST_RETRY_SECONDS,
)
from tests.harness.puller import Puller
from tests.harness.scenario import Scenario, ended


def compared(rows: Scenario, worker: int, *accepted: Run) -> Puller:
    """The puller of a worker whose process runs what it has accepted."""
    puller = Puller(rows.database, worker)
    assert puller.runner.accept(accepted) == list(accepted)
    return puller


SLOW: dict[str, Any] = {"poll_seconds": 60, "lookahead_seconds": 120, "heartbeat_seconds": 60, "liveness_seconds": 300}
"""A worker that rests long between its polls."""


@pytest.mark.parametrize(("due_in", "hurries"), [(-1, True), (60, False)], ids=["late", "ahead"])
def test_a_poll_that_brought_what_was_late_is_soon_followed_by_another(
    rows: Scenario, due_in: int, hurries: bool
) -> None:
    worker = rows.worker()
    clock = SettableClock(rows.start)
    puller = Puller(rows.database, worker, clock, **SLOW)
    clock.advance(puller.until_the_next_tick() + 1)
    for number in range(2):
        rows.assigned(worker, at=clock.now() + timedelta(seconds=due_in + number / 10))
    calm = puller.until_the_next_tick()
    assert calm > 10
    assert puller.fetcher.fetch() == (CATCH_UP_SECONDS if hurries else calm)
    assert puller.fetcher.fetch() == calm, "it brought nothing new"


def test_polls_come_often_enough_for_the_lookahead(rows: Scenario) -> None:
    for poll, lookahead, heartbeat, rest in ((1, 5, 3, 1), (60, 5, 3, 1.875), (1, 3, 0.4, 0.25), (1, 0.4, 3, 0.125)):
        clock = SettableClock(rows.start)
        puller = Puller(
            rows.database,
            rows.worker(),
            clock,
            poll_seconds=poll,
            lookahead_seconds=lookahead,
            heartbeat_seconds=heartbeat,
        )
        clock.advance(puller.fetcher.fetch())
        assert puller.fetcher.fetch() == pytest.approx(rest, abs=1e-5)


@pytest.mark.parametrize(("late", "hurries"), [(10, True), (9, False)])
def test_behind_a_piece_of_a_backlog_polls_hurry_for_a_period_though_they_bring_nothing(
    rows: Scenario, late: int, hurries: bool
) -> None:
    clock, worker = SettableClock(rows.start), rows.worker()
    puller = Puller(rows.database, worker, clock, poll_seconds=1)
    for number in range(late):
        rows.assigned(worker, at=rows.start - timedelta(seconds=1 + number / 10))
    hurried = []
    for passes in (0.1, 0.8, 0.1, 0):
        rest = puller.fetcher.fetch()
        assert rest in (CATCH_UP_SECONDS, puller.until_the_next_tick())
        hurried.append(rest == CATCH_UP_SECONDS)
        clock.advance(passes)
    assert hurried == ([True, True, True, False] if hurries else [True, False, False, False])


def test_a_look_for_crowds_takes_a_small_part_of_the_time(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, worker = SettableClock(rows.start), rows.worker()
    puller = Puller(rows.database, worker, clock, capacity=1)
    for _ in range(4):
        rows.assigned(worker)
    queue, looks = puller.rows.queue(), []

    def slow(*asked: Any) -> Beside:
        looks.append(clock.monotonic())
        clock.advance(0.03)
        return queue.beside(*asked)

    monkeypatch.setattr(puller.fetcher._queue, "beside", slow)
    for _ in range(30):
        puller.fetcher.fetch()
        clock.advance(0.1)
    between = [later - one for one, later in pairwise(looks)]
    assert min(between) >= 1.0
    assert max(between) <= 1.2


def test_polls_that_take_long_hurry_less(rows: Scenario) -> None:
    clock, worker = SettableClock(rows.start), rows.worker()
    puller = Puller(rows.database, worker, clock, **SLOW)
    clock.advance(puller.until_the_next_tick() + 1)
    puller.rows.meanwhile = lambda: clock.advance(0.03)
    rows.assigned(worker)
    assert puller.fetcher.fetch() == pytest.approx(0.3)


def test_where_claims_take_long_more_are_claimed_for_slots_to_come(rows: Scenario) -> None:
    clock, worker = SettableClock(rows.start), rows.worker()
    puller = Puller(rows.database, worker, clock)
    ahead = []
    for took, rest in ((0.001, 0.0), (0.2, 0.0), (60.0, 0.0), (60.0, 60.0)):
        rows.assigned(worker)
        puller.rows.meanwhile = lambda: None
        puller.fetcher.fetch()
        puller.rows.meanwhile = partial(clock.advance, took)
        puller.claimer.claim()
        clock.advance(rest)
        puller.claimer._room()
        ahead.append(puller.slots.asked[-1])
    usual = CLAIM_AHEAD.total_seconds()
    assert ahead == [usual, pytest.approx(0.4), LONGEST_PACE_SECONDS, usual]


def test_what_is_urgent_is_claimed_before_a_backlog_that_was_due_and_fetched_before_it(rows: Scenario) -> None:
    worker = rows.worker()
    backlog = [rows.assigned(worker, at=rows.start - timedelta(minutes=9 - n)) for n in range(3)]
    puller = Puller(rows.database, worker, capacity=2)
    puller.slots.expects = 0
    puller.fetcher.fetch()
    urgent = rows.assigned(worker, at=rows.start, priority=0)
    puller.fetcher.fetch()
    assert puller.claim() == [urgent, backlog[0]]
    assert puller.claim() == backlog[1:]
    assert set(rows.statuses().values()) == {"running"}


def test_no_more_is_claimed_than_there_are_slots_or_ends_expected(rows: Scenario) -> None:
    worker = rows.worker()
    for _ in range(9):
        rows.assigned(worker)
    puller = Puller(rows.database, worker, capacity=3, batch=4)
    puller.slots.expects = 0
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert puller.slots.busy == 3
    puller.slots.asked.clear()
    puller.slots.expects = 2
    puller.claimer.claim()
    assert (puller.slots.busy, len(puller.slots.asked)) == (5, 1)


def test_what_is_not_due_is_claimed_a_moment_before_and_starts_when_it_is(rows: Scenario) -> None:
    worker = rows.worker()
    puller = Puller(rows.database, worker)
    for _ in range(20):
        due = rows.now() + timedelta(seconds=0.3)
        instance = rows.assigned(worker, at=due)
        puller.fetcher.fetch()
        puller.claimer.claim()
        claimed_at = rows.now()
        assert due - CLAIM_AHEAD <= claimed_at
        if claimed_at < due:  # else the machine stood still meanwhile
            break
        puller.starter._queue.take(lambda: 1)
    assert rows.row(instance).gmt_started == due
    assert [run.id for _, run, _ in puller.starter._queue.take(lambda: 1)] == [instance]
    assert rows.now() >= due


def test_what_was_taken_back_is_dropped_from_mind_and_claimed_again_only_if_it_comes_again(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    kept, taken = rows.assigned(worker), rows.assigned(worker)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    assert set(puller.backlog._waiting) == {kept, taken}
    for new_owner in (other, worker):
        rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = :w WHERE id = :id", w=new_owner, id=taken)
        puller.fetcher.fetch()
        assert set(puller.backlog._waiting) == ({kept} if new_owner == other else {kept, taken})
    assert sorted(puller.claim()) == [kept, taken]
    assert (len(puller.backlog._queue), puller.backlog._waiting) == (0, {})


def test_what_was_taken_back_is_not_even_asked_for(rows: Scenario) -> None:
    worker = rows.worker()
    kept, taken = rows.assigned(worker), rows.assigned(worker)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    rows.sql("UPDATE schedule_instance SET status = 'pending' WHERE id = :id", id=taken)
    puller.fetcher.fetch()
    assert puller.claim() == [kept]
    assert puller.rows.asked == [[kept]]


@pytest.fixture
def behind(rows: Scenario) -> tuple[Puller, int, Run, int]:
    """A puller that has met a run of its fire's task: that run's worker, it, and the fire."""
    task, worker, other = rows.task(overlap_policy="skip"), rows.worker(), rows.worker()
    before = rows.running(other, task)
    rows.sql("UPDATE schedule_instance SET gmt_started = schedule_datetime WHERE id = :id", id=before.id)
    fire = rows.assigned(worker, task, rows.start)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    met = rows.now()
    assert puller.claim() == []
    (candidate,) = puller.backlog._skip_candidates.values()
    assert candidate.holder_id == before.id
    assert candidate.until >= met + overlap.REPORTED_WITHIN
    assert puller.claim() == []
    assert puller.backlog._skip_candidates == {fire: candidate}, "it is not put off again"
    return puller, other, before, fire


Looking = tuple[Puller, int, SettableClock]


@pytest.fixture
def looking(rows: Scenario) -> Looking:
    """A puller that has fetched a fire whose task runs on another worker: it, the fire, and its clock."""
    task, worker, other = rows.task(overlap_policy="skip"), rows.worker(), rows.worker()
    before = rows.running(other, task)
    rows.sql("UPDATE schedule_instance SET gmt_started = schedule_datetime WHERE id = :id", id=before.id)
    fire = rows.assigned(worker, task, rows.start)
    clock = SettableClock(rows.now())
    puller = Puller(rows.database, worker, clock)
    puller.fetcher.fetch()
    return puller, fire, clock


def test_a_hold_up_counts_half_of_the_second_in_which_the_run_in_the_way_may_report(
    rows: Scenario, looking: Looking
) -> None:
    puller, fire, clock = looking
    assert puller.claim() == []
    for hold_up in (30, 0.4):
        clock.advance(hold_up)
        assert puller.claim() == []
        assert rows.status(fire) == "assigned"
    looks = 0
    while rows.status(fire) == "assigned" and looks < 9:
        clock.advance(0.4)
        puller.claim()
        looks += 1
    assert rows.status(fire) == "canceled"


@pytest.mark.parametrize("seconds", [1.5, 600])
def test_a_fire_for_which_a_worker_looks_rarely_is_skipped_at_the_third_look(
    rows: Scenario, looking: Looking, seconds: float
) -> None:
    puller, fire, clock = looking
    looks = [rows.status(fire)]
    while rows.status(fire) == "assigned" and len(looks) < 9:
        puller.claim()
        looks.append(rows.status(fire))
        clock.advance(seconds)
    assert looks == ["assigned"] * (len(looks) - 1) + ["canceled"]
    assert 4 <= len(looks) <= 5


def test_a_claim_that_fails_counts_nothing_of_the_second(rows: Scenario, looking: Looking) -> None:
    puller, fire, clock = looking
    puller.claim()

    def away() -> None:
        clock.advance(10)
        raise DatabaseAway("the database refuses connections")

    puller.rows.meanwhile = away
    for _ in range(3):
        clock.advance(0.02)
        with pytest.raises(DatabaseAway):
            puller.claimer.claim()
        puller.rows.meanwhile = lambda: None
        puller.fetcher.fetch()
        puller.rows.meanwhile = away
    puller.rows.meanwhile = lambda: None
    puller.claim()
    assert rows.status(fire) == "assigned"


def test_a_hold_up_of_a_claim_counts_little_of_the_second(rows: Scenario, looking: Looking) -> None:
    puller, fire, clock = looking
    puller.claim()
    clock.advance(0.1)
    puller.rows.meanwhile = lambda: clock.advance(30)
    puller.claim()
    puller.rows.meanwhile = lambda: None
    puller.claim()
    assert rows.status(fire) == "assigned"


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
    assert (puller.backlog._waiting, puller.backlog._tries, puller.backlog._skip_candidates) == ({}, {}, {})


def test_when_another_run_has_taken_the_slot_a_doubt_that_is_over_hurries_nothing(
    rows: Scenario, behind: tuple[Puller, int, Run, int]
) -> None:
    puller, other, before, fire = behind
    until, report = puller.backlog._skip_candidates[fire].until, ended(before)
    assert report.instance is not None
    end = rows.start - timedelta(milliseconds=1)
    instance = replace(report.instance, gmt_started=end, gmt_completed=end)
    rows.report(other, replace(report, instance=instance))
    replay = rows.running(other, rows.row(fire).schedule_task_id)
    while (now := rows.now()) < until:
        assert puller.claim() == []
    assert puller.claim() == []
    assert puller.backlog._skip_candidates[fire].until == until
    puller.backlog._tries[fire] = 9
    assert puller.backlog._next_try(fire, rows.start, now) == now + timedelta(seconds=LONGEST_RETRY_SECONDS)
    assert rows.status(fire) == "assigned"
    rows.report(other, ended(replay))
    assert puller.claim() == [fire]


def test_a_fire_is_skipped_once_its_predecessor_has_had_time_to_report(
    rows: Scenario, behind: tuple[Puller, int, Run, int]
) -> None:
    puller, _, _, fire = behind
    until = puller.backlog._skip_candidates[fire].until
    while fire in puller.backlog._skip_candidates:
        assert rows.status(fire) == "assigned"
        assert puller.claim() == []
    assert rows.status(fire) == "canceled"
    assert until <= rows.now() < until + timedelta(seconds=5)
    assert (puller.backlog._waiting, puller.backlog._tries) == ({}, {})


def test_what_waits_too_long_for_a_slot_is_handed_back_and_never_failed(rows: Scenario) -> None:
    clock = SettableClock(rows.now())
    worker, once = rows.worker(), rows.task(on_worker_lost="fail")
    instances = [rows.assigned(worker, once), rows.assigned(worker)]
    puller = Puller(rows.database, worker, clock)
    puller.fetcher.fetch()
    puller.claimer.claim()
    clock.advance(GIVE_BACK_AFTER.total_seconds())
    puller.starter.give_back_late()
    assert set(rows.statuses().values()) == {"running"}
    clock.advance(0.000001)
    puller.starter.give_back_late()
    assert rows.statuses() == dict.fromkeys(instances, "pending")
    assert {rows.row(i).reason for i in instances} == {"its worker had no slot for it"}
    assert (len(puller.starter._queue), len(puller.runner)) == (0, 0)
    assert rows.node_statuses(instances[0]) == []  # no handler was entered: it runs the list of its next worker


def test_what_is_canceled_while_it_waits_for_a_slot_is_handed_back_at_once_and_ends(rows: Scenario) -> None:
    worker, heir = rows.worker(), rows.worker()
    canceled, other = rows.assigned(worker, rows.task(weight=2)), rows.assigned(worker, rows.task(weight=2))
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert set(rows.statuses().values()) == {"running"}
    rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = gmt_create WHERE id = :id", id=canceled)
    puller.runner.stop(canceled, 1, "canceled", canceled=True)
    puller.starter.give_back_late()
    assert (rows.status(canceled), rows.status(other)) == ("pending", "running")
    rows.give(heir, canceled)
    assert rows.claim(heir, canceled).runs == []
    assert (rows.status(canceled), rows.broken()) == ("canceled", {})


def test_what_a_claim_won_when_its_worker_had_stopped_is_handed_back_and_never_failed(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker, rows.task(on_worker_lost="fail"))
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    assert puller.starter._queue.close() == []
    puller.claimer.claim()
    assert (rows.status(instance), rows.row(instance).reason) == ("pending", "its worker stopped")
    assert (len(puller.starter._queue), len(puller.runner)) == (0, 0)


def test_what_a_worker_holds_and_does_not_run_is_handed_back(rows: Scenario) -> None:
    worker = rows.worker()
    known, stranger = rows.running(worker), rows.running(worker)
    compared(rows, worker, known).reconciler.compare()
    assert rows.statuses() == {known.id: "running", stranger.id: "pending"}
    assert rows.row(stranger.id).reason == "its worker held it but did not run it"


def test_what_may_run_at_most_once_is_failed_and_not_handed_back(rows: Scenario) -> None:
    worker, once = rows.worker(), rows.task(on_worker_lost="fail", overlap_policy="allow")
    strangers = [rows.begun(worker, once), rows.begun(worker, once), rows.running(worker)]
    known = rows.running(worker, once)
    rows.sql("UPDATE schedule_instance SET gmt_cancel_requested = due_at WHERE id = :id", id=strangers[1].id)
    compared(rows, worker, known).reconciler.compare()
    assert [rows.status(run.id) for run in (*strangers, known)] == ["failed", "canceled", "pending", "running"]
    row = rows.row(strangers[0].id)
    assert row.reason == "its worker held it but did not run it; its task says on_worker_lost = fail"
    assert (row.execution_result, row.modifier) == ({"error": row.reason}, "worker")
    assert rows.node_statuses(row.id) == ["failed", "canceled"]


def test_what_may_run_at_most_once_and_has_not_begun_is_handed_back(rows: Scenario) -> None:
    worker, once = rows.worker(), rows.task(on_worker_lost="fail")
    stranger = rows.running(worker, once)
    compared(rows, worker).reconciler.compare()
    assert (rows.status(stranger.id), rows.row(stranger.id).worker_losses) == ("pending", 0)


def test_a_later_attempt_than_the_one_seen_is_left_alone(rows: Scenario) -> None:
    worker, other = rows.worker(), rows.worker()
    run = rows.begun(worker, rows.task(on_worker_lost="fail"))
    held = [(run.id, run.attempt + 1)]
    assert rows.database.write(lambda c: recovery.disown(c, worker, held, "test")) == set()
    assert rows.database.write(lambda c: recovery.disown(c, other, [(run.id, run.attempt)], "test")) == set()
    assert rows.status(run.id) == "running"


def test_a_comparison_under_way_does_not_hand_back_what_the_stop_is_ending(rows: Scenario) -> None:
    worker = rows.worker()
    run = rows.running(worker)
    puller = compared(rows, worker, run)

    def stop() -> None:
        puller.backlog.close()
        puller.runner.detach_unfinished()

    puller.rows.meanwhile = stop
    puller.reconciler.compare()
    assert rows.status(run.id) == "running"


def test_what_a_comparison_gives_up_is_not_begun_by_a_claim_beside_it(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim was committed and its answer lost: the instance waits for its next claim, and its row is running."""
    worker = rows.worker()
    instance = rows.assigned(worker)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    assert [run.id for run in rows.claim(worker, instance).runs] == [instance]
    disown = puller.rows.disown

    def beside(*given: Any) -> tuple[int, int]:
        if len(puller.backlog):
            puller.claimer.claim()
        return disown(*given)

    monkeypatch.setattr(puller.rows, "disown", beside)
    puller.reconciler.compare()
    assert (rows.status(instance), puller.runner.held) == ("pending", set())


def test_what_a_comparison_gives_up_is_not_kept_by_a_fetch_that_had_read_it(rows: Scenario) -> None:
    """The fetch of another lane is under way meanwhile."""
    instance = rows.assigned(rows.worker())
    backlog = Puller(rows.database, rows.worker()).backlog
    backlog.begin_fetch()
    assert backlog.give_up({instance}) == {instance}
    assert backlog.keep([(instance, rows.start, 5)]) == []
    backlog.begin_fetch()
    assert len(backlog.keep([(instance, rows.start, 5)])) == 1


def test_what_is_in_a_claim_is_no_stranger(rows: Scenario) -> None:
    worker = rows.worker()
    instance = rows.assigned(worker)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    taken = puller.backlog.take(lambda: 1)
    assert [run.id for run in rows.claim(worker, instance).runs] == [instance]
    puller.reconciler.compare()
    assert rows.status(instance) == "running"
    puller.backlog.release(taken)
    puller.reconciler.compare()
    assert rows.status(instance) == "pending"


def test_the_rows_are_compared_on_their_own_cadence(rows: Scenario) -> None:
    clock, worker = SettableClock(rows.start), rows.worker()
    puller, looks = Puller(rows.database, worker, clock, heartbeat_seconds=3), list[float]()
    puller.rows.meanwhile = lambda: looks.append(clock.monotonic())
    began = clock.monotonic()
    for _ in range(8):
        puller.reconciler.compare_when_due()
        clock.advance(1)
    assert looks == [began, began + 3, began + 6]


def test_a_poll_is_asked_for_when_a_claim_fails(rows: Scenario) -> None:
    worker = rows.worker()
    rows.assigned(worker)
    puller = Puller(rows.database, worker)
    puller.fetcher.fetch()
    puller.claimer.claim()
    assert puller.polls_asked_for == []
    rows.assigned(worker)
    puller.fetcher.fetch()

    def fail() -> None:
        raise DatabaseAway("the database is away")

    puller.rows.meanwhile = fail
    with pytest.raises(DatabaseAway):
        puller.claimer.claim()
    assert puller.polls_asked_for == ["now"]
    assert puller.backlog.give_up({*rows.statuses()}) == {*rows.statuses()}, "none is in a claim"
