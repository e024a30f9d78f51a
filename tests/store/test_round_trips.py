"""What the hot paths send: with a database in another zone, nothing that others wait for is locked over a round trip.

A transaction that writes is one packet, from BEGIN to COMMIT. What is read before or after it is read without locks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.clock import FAR_SECONDS
from rota.shared.database.transactions import CONNECTIONS_AHEAD, Database, opened
from rota.shared.domain.states import InstanceStatus
from rota.shared.settings import Settings
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.overlap import SkipCandidate
from rota.shared.store.reports import Report
from rota.shared.store.runs import Run
from rota.worker_service.rows import WorkerRows
from tests.harness import leases
from tests.harness.packets import Packets, verbs
from tests.harness.scenario import Scenario, ended, succeeded


def sent(packets: Packets, work: Callable[[], object]) -> list[list[str]]:
    packets.clear()
    work()
    return [verbs(packet) for packet in packets]


def assert_nothing_is_locked_over_a_round_trip(packets: Packets) -> None:
    """Each packet that writes or locks also commits."""
    for packet in packets:
        if any(word in packet for word in (b"UPDATE schedule", b"UPDATE JSON", b"UPDATE (", b"INSERT", b"DELETE")):
            assert "COMMIT" in verbs(packet), packet.decode()


def test_reports_of_plain_successes_take_one_round_trip(mariadb_rows: Scenario, packets: Packets) -> None:
    worker = mariadb_rows.worker()
    batch = [succeeded(mariadb_rows.running(worker)) for _ in range(3)]
    found = sent(packets, lambda: WorkerRows(mariadb_rows.database, worker).report(batch))
    assert found == [["BEGIN", "UPDATE", "SET", "UPDATE", "COMMIT"]]


@pytest.mark.parametrize("status", [InstanceStatus.SUCCEED, InstanceStatus.FAILED, InstanceStatus.CANCELED])
def test_other_reports_take_one_round_trip(mariadb_rows: Scenario, packets: Packets, status: InstanceStatus) -> None:
    worker = mariadb_rows.worker()
    batch = [ended(mariadb_rows.running(worker), status) for _ in range(3)]
    found = sent(packets, lambda: WorkerRows(mariadb_rows.database, worker).report(batch))
    assert (len(found), found[0][0], found[0][-1]) == (1, "BEGIN", "COMMIT")
    assert {mariadb_rows.status(report.instance_id) for report in batch} == {status.value}


@pytest.mark.parametrize("report", [succeeded, partial(ended, status=InstanceStatus.FAILED)])
def test_reports_are_written_without_that_of_a_run_that_the_worker_has_lost(
    mariadb_rows: Scenario, report: Callable[[Run], Report]
) -> None:
    worker = mariadb_rows.worker()
    lost, kept = mariadb_rows.running(worker), mariadb_rows.running(worker)
    mariadb_rows.sql("UPDATE schedule_instance SET attempt = 7 WHERE id = :id", id=lost.id)
    assert WorkerRows(mariadb_rows.database, worker).report([report(lost), report(kept)]) == {lost.id}
    assert mariadb_rows.status(lost.id) == "running"
    assert mariadb_rows.status(kept.id) in ("succeed", "failed")


def test_runs_are_handed_back_in_one_round_trip(mariadb_rows: Scenario, packets: Packets) -> None:
    worker = mariadb_rows.worker()
    held = [(run.id, run.attempt) for run in (mariadb_rows.running(worker), mariadb_rows.running(worker))]
    rows = WorkerRows(mariadb_rows.database, worker)
    found = sent(packets, lambda: rows.hand_back(held, "it stops", unstarted=True))
    assert (len(found), found[0][0], found[0][-1]) == (1, "BEGIN", "COMMIT")
    assert {mariadb_rows.status(instance) for instance, _ in held} == {"pending"}
    assert mariadb_rows.node_statuses(held[0][0]) == []


FROM_AFAR = [["BEGIN", "UPDATE", "UPDATE", "COMMIT", "SELECT"]]
NEARBY = [["SELECT"], ["BEGIN", "UPDATE", "UPDATE", "COMMIT"]]


@pytest.mark.parametrize(("round_trip", "expected"), [(FAR_SECONDS, FROM_AFAR), (FAR_SECONDS / 2, NEARBY)])
def test_new_runs_are_claimed_in_one_round_trip_or_two(
    mariadb_rows: Scenario,
    packets: Packets,
    monkeypatch: pytest.MonkeyPatch,
    round_trip: float,
    expected: list[list[str]],
) -> None:
    monkeypatch.setattr(mariadb_rows.database.clock, "round_trip", lambda: round_trip)
    worker = mariadb_rows.worker()
    ids = [mariadb_rows.assigned(worker) for _ in range(3)]
    rows = WorkerRows(mariadb_rows.database, worker)
    list(rows.claim([mariadb_rows.assigned(worker)], mariadb_rows.now()))  # it reads the names of the node types, once
    assert sent(packets, lambda: list(rows.claim(ids, mariadb_rows.now()))) == expected
    assert {mariadb_rows.status(instance) for instance in ids} == {"running"}


def claims_of(mariadb_rows: Scenario, worker: int) -> Iterator[tuple[int, dict[int, SkipCandidate]]]:
    """Instances of which more must be known than the policy of their task, and those that may be skipped."""
    for fields in ({"overlap_policy": "queue"}, {"overlap_policy": "allow", "max_instances": 2}):
        yield mariadb_rows.assigned(worker, mariadb_rows.task(**fields)), {}
    replaces = mariadb_rows.task(overlap_policy="replace")
    mariadb_rows.running(worker, replaces, mariadb_rows.start - timedelta(minutes=9))
    yield mariadb_rows.assigned(worker, replaces, mariadb_rows.start - timedelta(minutes=8)), {}
    skips = mariadb_rows.task()
    holder = mariadb_rows.running(worker, skips, mariadb_rows.start - timedelta(minutes=7))
    late = mariadb_rows.assigned(worker, skips, mariadb_rows.now() + timedelta(seconds=0.1))
    yield late, {late: SkipCandidate(holder.id, mariadb_rows.start)}


@pytest.mark.parametrize("round_trip", [FAR_SECONDS, FAR_SECONDS / 2])
def test_no_claim_locks_anything_over_a_round_trip(
    mariadb_rows: Scenario, packets: Packets, monkeypatch: pytest.MonkeyPatch, round_trip: float
) -> None:
    monkeypatch.setattr(mariadb_rows.database.clock, "round_trip", lambda: round_trip)
    worker = mariadb_rows.worker()
    rows = WorkerRows(mariadb_rows.database, worker)
    moment = mariadb_rows.now() + timedelta(seconds=2)
    for instance, candidates in claims_of(mariadb_rows, worker):
        packets.clear()
        list(rows.claim([instance], moment, candidates))
        assert any(b"UPDATE" in packet for packet in packets)
        assert_nothing_is_locked_over_a_round_trip(packets)
    assert Counter(mariadb_rows.statuses().values()) == {"running": 4, "assigned": 1, "canceled": 1}


def test_the_materializer_leases_a_batch_in_one_round_trip_and_writes_it_in_another(
    mariadb_rows: Scenario, packets: Packets
) -> None:
    mariadb_rows.worker()
    tasks = [mariadb_rows.planned_task(cron="@yearly") for _ in range(3)]
    mariadb_rows.sql("DELETE FROM schedule_task WHERE next_fire_at IS NULL")
    for verb in (partial(leases.acquire, lease_seconds=2), leases.release):
        mariadb_rows.database.write(partial(verb, token="earlier", task_ids=tasks))
    materializer = Materializer(mariadb_rows.database, Settings.load())
    writing = [some for some in sent(packets, materializer.step) if {"INSERT", "UPDATE"} & {*some}]
    assert writing[0] == ["BEGIN", "UPDATE", "COMMIT", "SELECT"]
    assert (writing[1][0], writing[1][-1], len(writing)) == ("BEGIN", "COMMIT", 2)
    assert set(mariadb_rows.statuses().values()) == {"assigned"}
    assert len(mariadb_rows.statuses()) == len(tasks)


def test_a_lease_that_another_scheduler_has_taken_over_keeps_only_its_own_task_from_being_written(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb_rows.worker()
    taken, mine = (mariadb_rows.planned_task(cron="@yearly") for _ in range(2))
    materializer = Materializer(mariadb_rows.database, Settings.load())
    decide = Materializer._decide

    def lose_one(self: Materializer, *given: Any, paused: bool) -> Any:
        mariadb_rows.sql("UPDATE schedule_task_lock SET locked_by = 'another' WHERE schedule_task_id = :id", id=taken)
        return decide(self, *given, paused=paused)

    monkeypatch.setattr(Materializer, "_decide", lose_one)
    materializer.step()
    assert [row.schedule_task_id for row in mariadb_rows.sql("SELECT schedule_task_id FROM schedule_instance")] == [
        mine
    ]
    assert mariadb_rows.task_row(taken).next_fire_at == mariadb_rows.start


def sessions(database: Database, times: int) -> set[int]:
    """The sessions on which so many reads ran, one after another."""
    return {database.read(lambda c: int(c.execute(text("SELECT CONNECTION_ID()")).scalar_one())) for _ in range(times)}


@pytest.mark.parametrize(("round_trip", "number"), [(FAR_SECONDS, CONNECTIONS_AHEAD), (FAR_SECONDS / 2, 1)])
def test_from_afar_connections_are_opened_ahead_and_used_in_turn(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch, round_trip: float, number: int
) -> None:
    """So the first transactions that run at the same time do not wait for a connection to be opened."""
    with opened(mariadb_url) as database:
        monkeypatch.setattr(database.clock, "round_trip", lambda: round_trip)
        database.connect_ahead()
        assert len(sessions(database, 3 * CONNECTIONS_AHEAD)) == number


def test_a_new_connection_is_prepared_in_one_round_trip(mariadb_rows: Scenario, packets: Packets) -> None:
    with mariadb_rows.database.engine.connect():
        packets.clear()
        with mariadb_rows.database.engine.connect():
            assert [verbs(packet)[-1] for packet in packets] == ["SET", "SET", "SHOW"]  # SET NAMES, twice, and Rota


def declared(*names: str, timeout: int = 5) -> list[NodeTypeDeclaration]:
    return [
        NodeTypeDeclaration(f"{name}_{part}", name, defaults={"timeout": timeout}) for name in names for part in "AB"
    ]


def test_node_types_are_registered_in_one_packet_and_what_is_there_is_not_written_again(
    mariadb_rows: Scenario, packets: Packets
) -> None:
    def register(declarations: list[NodeTypeDeclaration]) -> list[list[str]]:
        found = sent(packets, lambda: database.write(lambda c: node_types.register(c, declarations, "w")))
        assert_nothing_is_locked_over_a_round_trip(packets)
        return [one for one in found if one != ["SELECT"]]

    database, names = mariadb_rows.database, [f"ETL{number}" for number in range(20)]
    [new] = register(declared(*names))
    assert Counter(new) == {"BEGIN": 1, "INSERT": 2, "UPDATE": 20, "COMMIT": 1}
    assert register(declared(*names)) == []
    [changed] = register([*declared(*names[:-1]), *declared(names[-1], timeout=6)])
    assert Counter(changed) == {"BEGIN": 1, "UPDATE": 3, "INSERT": 1, "COMMIT": 1}
    assert database.read(lambda c: node_types.is_registered(c, declared(*names[:-1])))
