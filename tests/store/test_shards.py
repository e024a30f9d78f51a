"""Shards and broadcasts: one fire runs as several instances, and ends when all of them have."""

import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rota.scheduler_service.duties.chains import Chains
from rota.scheduler_service.duties.spreader import Spreader
from rota.shared.control import instances, replays, tasks
from rota.shared.control.replays import Again, ReplayFilter
from rota.shared.database.constructs import written
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, NotPossible
from rota.shared.domain.spreading import RIGHT
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import assignments, settling, strays
from rota.shared.store.overlap import REPORTED_WITHIN
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario, to_retry
from tests.harness.spreading import ANN, Spread
from tests.harness.statements import executed


@pytest.fixture
def spread(database: Database) -> Spread:
    return Spread(Scenario(database))


def test_a_fire_runs_as_its_shards_and_ends_after_the_last(spread: Spread) -> None:
    spread.add(shards=3)
    parent = spread.start()
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, row.schedule_worker_node_id, row.shard_total) == ("running", 0, 3)
    runs = spread.claim()
    each = sorted((run.shard.index, run.shard.total) for some in runs.values() for run in some)
    assert each == [(0, 3), (1, 3), (2, 3)]
    first, *others = [(worker, run) for worker, some in runs.items() for run in some]
    for worker, run in others:
        spread.end({worker: [run]})
    spread.step()
    assert spread.rows.row(parent).status == "running", "one of its shards has not ended"
    spread.end({first[0]: [first[1]]})
    spread.step()
    row = spread.rows.row(parent)
    assert row.status == "succeed"
    assert [(one["shard"], one["result"]) for one in row.execution_result] == [(0, 42), (1, 42), (2, 42)]


def test_a_broadcast_runs_once_on_each_worker_that_is_live(spread: Spread) -> None:
    spread.add(spread="broadcast")
    parent = spread.start()
    spread.step()
    runs = spread.claim()
    assert [len(some) for some in runs.values()] == [1, 1]
    spread.end(runs)
    spread.step()
    result = spread.rows.row(parent).execution_result
    assert [(one["worker"], one["status"]) for one in result] == [("w0", "succeed"), ("w1", "succeed")]


def test_the_next_fire_is_skipped_while_shards_of_the_one_before_run(spread: Spread) -> None:
    spread.add(shards=2)
    first = spread.start()
    spread.step()
    runs = spread.claim()
    late = spread.rows.pending(spread.task(first), spread.rows.now(), origin="cron")
    spread.step()
    assert spread.rows.row(late).status == "pending", "the end of the one before may only not be written yet"
    wait_until(lambda: spread.rows.now() > spread.rows.row(late).due_at + REPORTED_WITHIN, 5, "it to be sure")
    wait_until(lambda: spread.stepped().row(late).status == "canceled", 5, "it to be skipped")
    assert spread.rows.row(late).reason == f"overlap: instance {first} still ran when this instance was due"
    assert {run.shard.parent_id for some in runs.values() for run in some} == {first}


@pytest.mark.parametrize("held_up", ["between two looks", "in a look"])
def test_a_hold_up_counts_half_of_the_second_in_which_the_shards_in_the_way_may_report(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch, held_up: str
) -> None:
    clock = SettableClock(datetime.now(UTC).replace(tzinfo=None))
    with closing(Database(migrated_url, clock=clock)) as database:
        spread = Spread(Scenario(database))
        spread.add(shards=2)
        first = spread.start()
        clock.advance(5)  # so that it is behind no time that the database has written
        spread.step()
        spread.claim()
        late = spread.rows.pending(spread.task(first), clock.now() + timedelta(milliseconds=50), origin="cron")
        clock.advance(0.25)
        spread.step()
        clock.advance(0.25)
        if held_up == "in a look":
            judge = settling.judge

            def slow(*given: Any) -> Any:
                clock.advance(7)
                return judge(*given)

            with monkeypatch.context() as patch:
                patch.setattr(settling, "judge", slow)
                spread.step()
            clock.advance(0.1)
        else:
            spread.step()
            clock.advance(7)
        spread.step()
        assert spread.rows.status(late) == "pending"
        for _ in range(6):
            clock.advance(0.25)
            spread.step()
        assert spread.rows.status(late) == "canceled"


def test_a_report_that_comes_late_skips_no_fire_that_was_due_after_the_shards_had_ended(spread: Spread) -> None:
    spread.add(shards=2)
    first = spread.start()
    spread.step()
    runs = spread.claim()
    last = spread.rows.now()
    following = spread.rows.pending(spread.task(first), last + timedelta(milliseconds=1), origin="cron")
    wait_until(lambda: spread.rows.now() > spread.rows.row(following).due_at, 5, "the next fire to be due")
    spread.step()
    assert spread.rows.row(following).status == "pending"
    spread.end(runs)
    spread.rows.sql(
        "UPDATE schedule_instance SET gmt_completed = :last WHERE parent_id = :first", last=written(last), first=first
    )
    wait_until(lambda: spread.stepped().row(following).status != "pending", 5, "the next fire to be decided")
    assert spread.rows.row(first).gmt_completed == last
    assert spread.rows.row(following).status == "running"


def test_where_sql_has_ended_a_shard_the_end_is_when_that_is_seen(spread: Spread) -> None:
    spread.add(shards=2)
    first = spread.start()
    spread.step()
    spread.end(spread.claim())
    early = spread.rows.row(first).gmt_started + timedelta(milliseconds=1)
    wait_until(lambda: spread.rows.now() > early + timedelta(milliseconds=200), 5, "some time to pass")
    spread.rows.sql("UPDATE schedule_instance SET gmt_completed = :early WHERE shard_index = 0", early=written(early))
    spread.rows.sql("UPDATE schedule_instance SET gmt_completed = NULL WHERE shard_index = 1")
    before = spread.rows.now()
    spread.step()
    assert spread.rows.row(first).gmt_completed > before - timedelta(milliseconds=100)


@pytest.mark.parametrize("end", ["2021-01-01", "2099-01-01"])
def test_an_end_of_its_shards_before_it_has_started_or_to_come_is_none(spread: Spread, end: str) -> None:
    """SQL has revived it alone, or a clock was wrong."""
    spread.add(shards=2)
    first = spread.start()
    spread.step()
    spread.end(spread.claim())
    spread.rows.sql("UPDATE schedule_instance SET gmt_completed = :end WHERE parent_id = :first", end=end, first=first)
    spread.step()
    row = spread.rows.row(first)
    assert row.gmt_started <= row.gmt_completed <= spread.rows.now()


def test_shards_of_a_queued_task_run_beside_each_other_and_its_fires_after_each_other(spread: Spread) -> None:
    spread.add(shards=3, overlap_policy="queue")
    parents = [spread.start(), spread.start()]
    spread.step()
    assert [spread.rows.row(one).status for one in parents] == ["running", "pending"]
    assert spread.rows.row(parents[1]).reason == "waits for its turn: its task runs one at a time"
    runs = spread.claim()
    assert sum(map(len, runs.values())) == 3
    spread.end(runs)
    spread.step()
    spread.step()
    assert [spread.rows.row(one).status for one in parents] == ["succeed", "running"]


def test_so_many_fires_run_beside_each_other_as_may(spread: Spread) -> None:
    spread.add(shards=2, overlap_policy="allow", max_instances=2)
    parents = [spread.start() for _ in range(3)]
    spread.step()
    assert sorted(spread.rows.row(one).status for one in parents) == ["pending", "running", "running"]


def test_a_newer_fire_replaces_the_one_before_with_its_shards(spread: Spread) -> None:
    spread.add(shards=2, overlap_policy="replace")
    task = spread.task(spread.start())
    spread.step()
    older = spread.rows.pending(task, spread.rows.start - timedelta(minutes=2), origin="cron")
    spread.rows.sql("UPDATE schedule_instance SET status = 'canceled' WHERE id <> :older", older=older)
    spread.step()
    assert spread.rows.row(older).status == "running"
    runs = spread.claim()
    newer = spread.rows.pending(task, spread.rows.start - timedelta(minutes=1), origin="cron")
    spread.step()
    assert spread.rows.row(older).gmt_cancel_requested is not None
    spread.step()
    asked = [one.gmt_cancel_requested is not None for one in spread.shards(older)]
    assert asked == [True, True]
    spread.end(runs, "canceled")
    spread.step()
    assert (spread.rows.row(older).status, spread.rows.row(newer).status) == ("canceled", "running")


def test_to_cancel_the_parent_cancels_what_waits_and_asks_for_the_end_of_what_runs(spread: Spread) -> None:
    spread.add(shards=2)
    parent = spread.start()
    spread.step()
    _, running = spread.shards(parent)
    [run] = spread.rows.claim(running.schedule_worker_node_id, running.id).runs
    instances.cancel(spread.database, ANN, [parent])
    spread.step()
    waiting, running = spread.shards(parent)
    assert (waiting.status, running.status) == ("canceled", "running")
    assert running.gmt_cancel_requested is not None
    spread.end({running.schedule_worker_node_id: [run]}, "canceled")
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, row.reason) == ("canceled", "canceled by hand")
    assert [one["status"] for one in row.execution_result] == ["canceled", "canceled"]


def test_a_shard_that_fails_for_good_fails_its_parent_which_names_it(spread: Spread) -> None:
    spread.add(shards=3)
    parent = spread.start()
    spread.step()
    runs = spread.claim()
    [(worker, bad)] = [(w, r) for w, some in runs.items() for r in some if r.shard.index == 1]
    spread.end({worker: [bad]}, "failed")
    spread.end({w: [r for r in some if r is not bad] for w, some in runs.items()})
    spread.step()
    row = spread.rows.row(parent)
    assert row.status == "failed"
    assert row.reason.startswith(f"1 of 3 shards failed; the first is shard 1, instance {bad.id}")
    assert [one["status"] for one in row.execution_result] == ["succeed", "failed", "succeed"]


def test_nobody_else_gets_the_shard_of_a_worker_that_is_gone(spread: Spread) -> None:
    spread.add(spread="broadcast")
    parent = spread.start()
    spread.step()
    gone, other = spread.workers
    spread.rows.bury(gone)
    spread.database.write(lambda c: assignments.take_back_assigned(c, gone, 10))
    spread.end({other: spread.claim()[other]})
    spread.step()
    spread.step()
    row = spread.rows.row(parent)
    said = {one["worker"]: (one["status"], one.get("reason")) for one in row.execution_result}
    assert said == {"w0": ("canceled", "it was for worker 'w0', which is dead"), "w1": ("succeed", None)}
    assert row.status == "failed"


def test_what_needs_a_worker_first_waits_until_there_is_one(database: Database) -> None:
    rows = Scenario(database)
    spread = Spread(rows, workers=0)
    spread.add("workers", spread="workers")
    spread.add("everywhere", spread="broadcast")
    parents = [spread.start("workers"), spread.start("everywhere")]
    spread.step()
    assert [rows.row(one).reason for one in parents] == ["no worker is live"] * 2
    rows.worker("w", capacity=1000, prefetch=1000)
    wait_until(lambda: spread.stepped().row(parents[0]).status == "running", 5, "a look at the fleet")
    assert [len(spread.shards(one)) for one in parents] == [1, 1]


def test_two_schedulers_that_spread_the_same_instance_write_its_shards_once(spread: Spread) -> None:
    spread.add(shards=5)
    parent = spread.start()
    spread.assigner.step()
    other = Spreader(spread.database, Settings.load(), spread.fleet)
    other.note(spread.database.read(lambda c: assignments.pending_of(c, [parent], spread.rows.now())))
    both = [threading.Thread(target=one.step) for one in (spread.spreader, other)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.shard_index for one in spread.shards(parent)] == list(range(5))
    assert spread.rows.row(parent).attempt == 1


def test_a_replay_of_the_parent_runs_all_shards_and_one_of_a_shard_that_alone(spread: Spread) -> None:
    spread.add(shards=2, overlap_policy="allow")
    parent = spread.start()
    spread.step()
    spread.end(spread.claim(), "failed")
    spread.step()
    [again] = replays.replay(spread.database, ANN, [parent])
    [alone] = replays.replay(spread.database, ANN, [spread.shards(parent)[1].id])
    spread.step()
    [run] = [r for some in spread.claim().values() for r in some if r.id == alone["id"]]
    assert (run.shard.parent_id, run.shard.index, run.shard.total) == (None, 1, 2)
    assert [one.shard_index for one in spread.shards(again["id"])] == [0, 1]
    spread.end({spread.rows.row(run.id).schedule_worker_node_id: [run]})
    found = replays.find(spread.database, ReplayFilter())
    assert [one["id"] for one in found.first] == [], "a shard is replayed with its parent, which has a newer run"
    with pytest.raises(NotPossible, match="a shard; its chain follows its parent"):
        replays.replay(spread.database, ANN, [alone["id"]], again=Again(chain=True))


def test_the_part_of_a_broadcast_is_replayed_with_its_parent(spread: Spread) -> None:
    spread.add(spread="broadcast")
    parent = spread.start()
    spread.step()
    spread.end(spread.claim())
    spread.step()
    with pytest.raises(NotPossible, match=f"replay instance {parent}, its parent"):
        replays.replay(spread.database, ANN, [spread.shards(parent)[0].id])


def test_what_follows_the_task_follows_the_parent_and_no_shard(spread: Spread) -> None:
    spread.add(shards=2)
    spread.add("after", after="all", overlap_policy="allow")
    parent = spread.start()
    spread.step()
    chains = Chains(spread.database, Settings.load())
    marks = "SELECT schedule_instance_id FROM schedule_chain_run"
    assert [one[0] for one in spread.rows.sql(marks)] == [parent]
    spread.end(spread.claim())
    spread.step()
    while chains.step() == 0:
        pass
    of_after = "SELECT i.id FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
    assert len(spread.rows.sql(f"{of_after} WHERE t.name = 'after'")) == 1


def test_lists_have_parents_and_the_shards_of_one_when_asked(spread: Spread) -> None:
    spread.add(shards=3)
    parent = spread.start()
    spread.step()
    assert [one["id"] for one in instances.listed(spread.database, 10)] == [parent]
    assert [one["id"] for one in instances.listed(spread.database, 10, task="all")] == [parent]
    assert [one["shard_index"] for one in instances.listed(spread.database, 10, parent=parent)] == [0, 1, 2]
    assert tasks.show(spread.database, "all")["last_run"]["id"] == parent
    shown = instances.show(spread.database, parent)["shards"]
    assert (shown["total"], shown["assigned"]) == (3, 3)
    assert instances.show(spread.database, spread.shards(parent)[0].id)["shards"] is None


def test_what_sql_makes_of_a_spread_is_refused_with_what_would_be_right(spread: Spread) -> None:
    spread.add(shards=2)
    spread.rows.sql("UPDATE schedule_task SET shards = NULL WHERE name = 'all'")
    parent = spread.start()
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, row.reason) == (
        "canceled",
        f"its task has spread 'shards' with shards None; {RIGHT}",
    )


def test_shards_that_sql_has_removed_do_not_hold_up_the_end(spread: Spread) -> None:
    spread.add(shards=2)
    parent = spread.start()
    spread.step()
    spread.rows.sql("DELETE FROM schedule_instance WHERE parent_id = :parent", parent=parent)
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, row.reason) == ("failed", "the rows of 2 of 2 shards are gone")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"shards": 0}, "greater than or equal to 1"),
        ({"shards": 1_000_000}, "less than or equal to 1000"),
        ({"spread": "shards"}, "say how many with shards, from 1 to 1000"),
        ({"spread": "broadcast", "shards": 3}, "shards goes with spread shards, not broadcast"),
        ({"spread": "everywhere"}, "'shards', 'workers' or 'broadcast'"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(spread: Spread, given: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        spread.add(**given)
    assert spread.rows.sql("SELECT id FROM schedule_task") == []


def test_an_edit_of_the_one_sets_the_other(spread: Spread) -> None:
    spread.add(shards=2)

    def kept(**changes: Any) -> tuple[str | None, int | None]:
        tasks.edit(spread.database, ANN, "all", changes)
        [row] = spread.rows.sql("SELECT spread, shards FROM schedule_task")
        return row.spread, row.shards

    assert kept(spread="broadcast") == ("broadcast", None)
    assert kept(shards=7) == ("shards", 7)
    assert kept(spread=None) == (None, None)


def test_what_has_begun_as_a_whole_goes_on_as_a_whole(spread: Spread) -> None:
    spread.add()
    instance = spread.start()
    spread.step()
    [(worker, run)] = [(w, r) for w, some in spread.claim().items() for r in some]
    tasks.edit(spread.database, ANN, "all", {"shards": 2})
    assert spread.rows.report(worker, to_retry(run, spread.rows.now())) == set()
    spread.rows.sql("UPDATE schedule_instance SET due_at = schedule_datetime")
    spread.step()
    assert spread.shards(instance) == []
    assert spread.rows.row(instance).status == "assigned"


def test_why_a_fire_waits_is_written_once(spread: Spread) -> None:
    spread.add(shards=1, overlap_policy="queue")
    for _ in range(2):
        spread.start()
    spread.step()
    spread.step()
    with executed(spread.database.engine) as statements:
        spread.step()
    assert [one for one in statements if one.startswith(("UPDATE schedule_instance", "UPDATE OR IGNORE"))] == []


def test_params_that_would_be_too_much_for_all_shards_are_refused(spread: Spread) -> None:
    spread.add(shards=1000)
    parent = spread.start(param={"data": "x" * 70_000})
    spread.step()
    row = spread.rows.row(parent)
    assert (row.status, spread.shards(parent)) == ("canceled", [])
    assert "bytes in each of 1000 shards would be more than 67,108,864 bytes" in row.reason


def test_what_sql_has_assigned_to_no_worker_is_ended_and_a_parent_is_not(spread: Spread) -> None:
    spread.add(shards=1)
    parent = spread.start()
    spread.step()
    assigned = spread.rows.assigned(spread.workers[0])
    spread.rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = 0 WHERE id = :id", id=assigned)
    assert spread.database.read(strays.find) == {assigned: "assigned"}
    spread.database.write(lambda c: strays.end(c, assigned, "assigned"))
    assert (spread.rows.status(assigned), spread.rows.status(parent)) == ("canceled", "running")
