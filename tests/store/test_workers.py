"""Workers: a row for each start; heartbeat, drain and death are guarded updates."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Row, select

from rota.shared.database.constructs import written
from rota.shared.database.mysql import MYSQL
from rota.shared.database.transactions import database_time
from rota.shared.domain.errors import NameTaken
from rota.shared.offset import RESOLUTION
from rota.shared.store import census, loads, roster, workers
from rota.shared.store.tables import schedule_worker_beat, schedule_worker_node
from rota.shared.store.workers import Load
from rota.worker_service import registration
from tests.harness.scenario import Scenario
from tests.harness.together import together

MINUTE = timedelta(minutes=1)
IDLE = Load()


def row(rows: Scenario, worker: int) -> Row[Any]:
    statement = select(schedule_worker_node).where(schedule_worker_node.c.id == worker)
    return rows.database.read(lambda c: c.execute(statement).one())


def beat_row(rows: Scenario, worker: int) -> Row[Any]:
    statement = select(schedule_worker_beat).where(schedule_worker_beat.c.schedule_worker_node_id == worker)
    return rows.database.read(lambda c: c.execute(statement).one())


def beat(rows: Scenario, worker: int, load: Load = IDLE) -> bool:
    return rows.database.write(lambda c: workers.heartbeat(c, worker, load))


def bury_silent(rows: Scenario, *worker_ids: int) -> int:
    return rows.database.write(lambda c: workers.bury_silent(c, worker_ids, "test"))


def silence(rows: Scenario, worker: int, since: str = "2020-01-01 00:00:00.000000") -> None:
    rows.sql(
        "UPDATE schedule_worker_beat SET last_beat = :moment WHERE schedule_worker_node_id = :worker",
        worker=worker,
        moment=since,
    )


def test_a_worker_registers_with_all_that_it_says(rows: Scenario) -> None:
    worker = rows.worker(name="worker-7", labels={"zone": "a"}, capacity=3, prefetch=4, liveness_seconds=20)
    found = row(rows, worker)
    assert (found.name, found.state, found.capacity, found.prefetch) == ("worker-7", "live", 3, 4)
    assert (found.labels, found.node_types) == ({"zone": "a"}, ["REPORT_EXTRACT", "REPORT_SEND"])
    assert abs(found.last_heartbeat - rows.now()) < MINUTE
    assert found.creator == "worker-7"


def test_a_second_live_worker_of_one_name_is_refused(rows: Scenario) -> None:
    rows.worker(name="worker-7")
    with pytest.raises(NameTaken, match="a live worker is named 'worker-7'"):
        rows.worker(name="worker-7")


@pytest.mark.parametrize("end", ["bury", "bury after drain"])
def test_a_name_is_free_once_its_worker_is_dead_and_the_next_is_another_epoch(rows: Scenario, end: str) -> None:
    first = rows.worker(name="worker-7")
    if end == "bury after drain":
        assert rows.database.write(lambda c: workers.drain(c, first, "test", "test"))
        with pytest.raises(NameTaken):
            rows.worker(name="worker-7")
    rows.bury(first)
    assert rows.worker(name="worker-7") != first


def test_of_workers_that_register_one_name_at_once_one_wins(rows: Scenario) -> None:
    def register() -> int | None:
        try:
            return rows.worker(name="worker-7")
        except NameTaken:
            return None

    won = [worker for worker in together(*[register] * 4) if worker is not None]
    assert len(won) == 1
    assert rows.database.read(census.take).alive == {won[0]: "live"}


def test_a_heartbeat_renews_the_lease_and_tells_the_load(rows: Scenario) -> None:
    worker = rows.worker()
    silence(rows, worker)
    assert beat(rows, worker, Load(busy=3, abandoned=1, started=7))
    found = beat_row(rows, worker)
    assert (found.busy, found.abandoned, found.started) == (3, 1, 7)
    assert abs(found.last_beat - rows.now()) < MINUTE


def test_a_worker_makes_progress_when_it_tells_that_it_has_started_more(rows: Scenario) -> None:
    worker = rows.worker()
    assert beat(rows, worker)
    assert beat_row(rows, worker).gmt_progress is None
    assert beat(rows, worker, Load(started=7))
    first = beat_row(rows, worker)
    assert first.gmt_progress == first.last_beat
    assert beat(rows, worker, Load(started=7))
    assert beat_row(rows, worker).gmt_progress == first.gmt_progress


def test_a_workers_row_shows_its_beat_within_a_few_seconds(rows: Scenario) -> None:
    worker = rows.worker()
    assert beat(rows, worker, Load(busy=3))
    assert rows.database.read(census.take).unshown == set()
    rows.sql("UPDATE schedule_worker_node SET last_heartbeat = '2020-01-01 00:00:00.000000'")
    assert rows.database.read(census.take).unshown == {worker}
    rows.database.write(lambda c: workers.show(c, [worker], "test"))
    found, said = row(rows, worker), beat_row(rows, worker)
    assert (found.state, found.current_load, found.last_heartbeat) == ("live", 3, said.last_beat)
    assert rows.database.read(census.take).unshown == set()


def test_the_list_of_workers_tells_their_newest_beats(rows: Scenario) -> None:
    worker = rows.worker(liveness_seconds=20)
    assert beat(rows, worker, Load(busy=3))
    [listed] = rows.database.read(lambda c: roster.listed(c, 10))
    assert (listed.current_load, listed.liveness_seconds) == (3, 20)
    assert listed.last_heartbeat == beat_row(rows, worker).last_beat


def test_a_draining_worker_beats_on_and_a_dead_one_does_not(rows: Scenario) -> None:
    worker = rows.worker()
    assert rows.database.write(lambda c: workers.drain(c, worker, "deploy", "operator"))
    assert not rows.database.write(lambda c: workers.drain(c, worker, "again", "operator"))
    assert beat(rows, worker)
    found = row(rows, worker)
    assert (found.state, found.reason, found.modifier) == ("draining", "deploy", "operator")
    rows.bury(worker)
    silence(rows, worker)
    assert not beat(rows, worker)
    assert beat_row(rows, worker).last_beat.year == 2020
    assert not rows.database.write(lambda c: workers.drain(c, worker, "again", "operator"))


def test_death_is_final_and_counted_once(rows: Scenario) -> None:
    worker = rows.worker()
    buried = partial(workers.bury, worker_ids=[worker], reason="its process is gone", by="test")
    assert [rows.database.write(buried), rows.database.write(buried)] == [1, 0]
    found = row(rows, worker)
    assert (found.state, found.reason) == ("dead", "its process is gone")
    assert found.gmt_dead is not None
    assert rows.database.write(lambda c: workers.bury(c, [], "test", "test")) == 0


def test_only_who_was_silent_for_longer_than_its_own_limit_is_declared_dead(rows: Scenario) -> None:
    silent, draining, patient, live = (
        rows.worker(),
        rows.worker(liveness_seconds=20),
        rows.worker(liveness_seconds=31_536_000),
        rows.worker(),
    )
    rows.database.write(lambda c: workers.drain(c, draining, "test", "test"))
    for worker in (silent, draining):
        silence(rows, worker)
    silence(rows, patient, str(written(rows.now() - 5 * MINUTE)))
    everyone = (silent, draining, patient, live)
    assert rows.database.read(census.take).silent == {silent: 15, draining: 20}
    assert [bury_silent(rows), bury_silent(rows, draining), bury_silent(rows, *everyone)] == [0, 1, 1]
    assert rows.database.read(census.take).silent == {}
    assert bury_silent(rows, *everyone) == 0
    assert rows.database.read(census.take).alive == {patient: "live", live: "live"}
    assert row(rows, silent).reason == "silent for longer than its liveness limit"


def test_the_census_tells_the_time_where_nobody_is(rows: Scenario) -> None:
    before = rows.database.read(database_time)
    seen = rows.database.read(census.take)
    assert (seen.alive, seen.silent, seen.holders) == ({}, {}, set())
    assert before <= seen.time <= rows.database.read(database_time)


def test_of_a_heartbeat_and_a_burial_at_once_one_wins_and_both_know(rows: Scenario) -> None:
    for _ in range(10):
        worker = rows.worker()
        silence(rows, worker)
        renewed, buried = together(partial(beat, rows, worker), partial(bury_silent, rows, worker))
        assert (renewed, buried) in ((True, 0), (False, 1))
        assert row(rows, worker).state == ("live" if renewed else "dead")


def test_whoever_holds_something_is_counted_among_the_holders_the_dead_too(rows: Scenario) -> None:
    live, dead, idle = rows.worker(), rows.worker(), rows.worker()
    rows.assigned(live)
    rows.running(live)
    rows.ended(worker=live)
    rows.pending()
    rows.running(dead)
    rows.bury(dead)
    assert [(found.id, found.load) for found in rows.database.read(loads.fleet)] == [(live, 2), (idle, 0)]
    seen = rows.database.read(census.take)
    assert (seen.holders, seen.known) == ({live, dead}, {live, dead, idle})
    for known in ([live], [dead], [idle, 2**40], [live, dead, idle]):
        assert rows.database.read(partial(census.take, known=known)).holders == {live, dead}


def test_a_holder_that_nobody_knows_is_among_the_holders_also_between_those_that_are_known(rows: Scenario) -> None:
    first = rows.worker()
    holders = {first, first + 500, first + 1000, first + 5000, 2**62}
    for holder in sorted(holders):
        given = {"holder": holder, "id": rows.assigned(first)}
        rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = :holder WHERE id = :id", **given)
    assert rows.database.read(census.take).holders == holders
    for known in ([first], [first + 1000], range(first, first + 2000), sorted(holders)):
        assert rows.database.read(partial(census.take, known=known)).holders == holders


def test_a_holder_that_is_no_number_stops_no_census(sqlite_rows: Scenario) -> None:
    worker = sqlite_rows.worker()
    sqlite_rows.assigned(worker)
    spoiled = sqlite_rows.assigned(worker)
    sqlite_rows.sql("UPDATE schedule_instance SET schedule_worker_node_id = 'many' WHERE id = :id", id=spoiled)
    assert sqlite_rows.database.read(census.take).holders == {worker}


def test_the_fleet_is_who_is_live_and_was_heard_of(rows: Scenario) -> None:
    live, draining, dead, silent = rows.worker(labels={"zone": "a"}), rows.worker(), rows.worker(), rows.worker()
    rows.database.write(lambda c: workers.drain(c, draining, "test", "test"))
    rows.bury(dead)
    silence(rows, silent)
    rows.assigned(live)
    [found] = rows.database.read(loads.fleet)
    assert (found.id, found.load, found.capacity, found.prefetch) == (live, 1, 10, 10)
    assert found.labels == {"zone": "a"}
    assert found.node_types == {"REPORT_EXTRACT", "REPORT_SEND"}


def test_workers_are_listed_the_newest_first_and_the_dead_on_request(rows: Scenario) -> None:
    first, dead, last = rows.worker(), rows.worker(name="dead"), rows.worker(name="last")
    rows.bury(dead)
    assert [w.id for w in rows.database.read(lambda c: roster.listed(c, 10))] == [last, first]
    assert [w.id for w in rows.database.read(lambda c: roster.listed(c, 2, all_states=True))] == [last, dead]
    assert sorted(w.id for w in rows.database.read(workers.alive)) == [first, last]


def test_after_the_workers_were_truncated_no_id_comes_again(rows: Scenario) -> None:
    first = rows.worker()
    if rows.database.backend is MYSQL:
        rows.sql("TRUNCATE TABLE schedule_worker_node")
    else:
        rows.sql("DELETE FROM schedule_worker_node")
        rows.sql("DELETE FROM sqlite_sequence WHERE name = 'schedule_worker_node'")
    second, third = rows.worker(), rows.worker()
    assert first < second < third
    assert {w.id for w in rows.database.read(workers.alive)} == {second, third}


def test_the_lease_of_a_worker_counts_from_before_its_first_beat(rows: Scenario) -> None:
    declared = workers.WorkerDeclaration("w", "host", 1, "identity", "0", 1, 0, 15, [])
    worker, asked = registration.register(rows.database, declared)
    beat = rows.database.read(lambda c: roster.find(c, "w")).last_heartbeat
    assert worker > 0
    assert rows.database.clock.at(asked) <= beat + RESOLUTION
