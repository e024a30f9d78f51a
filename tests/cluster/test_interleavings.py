"""The interleavings that matter, each staged: a transaction stands open just where another comes in between."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from rota.cli.shell import REFUSED
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.database.transactions import Database, opened
from rota.shared.domain.errors import NameTaken
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.store import locks, reports, runs, workers
from rota.shared.store.overlap import Waiting
from rota.shared.store.reports import InstanceReport, NodeReport, Report
from rota.shared.store.runs import Run
from rota.worker_service import registration
from rota.worker_service.rows import WorkerRows
from rota.worker_service.running.reporter import Reporter
from tests.harness import invariants
from tests.harness.databases import MariaDBServer, PrivateMariaDB, connect, run_sql
from tests.harness.lives import Life, Stage, stage_fires, stage_pending
from tests.harness.processes import RotaProcess, wait_until
from tests.harness.proxy import PARTS, LossyProxy, Part
from tests.harness.puller import Puller
from tests.harness.scenario import ended
from tests.harness.staging import (
    TYPE,
    Beside,
    Gate,
    Ran,
    add_task,
    add_worker,
    claim,
    database_second,
    ended_at,
    every_year_at,
    insert_row,
    quick_settings,
    scheduling,
    two_databases,
    wait_for_lock_wait,
    working,
)

Pair = tuple[Database, Database]
Duty = Callable[[Database], Any]


@pytest.fixture
def url(migrated_mariadb_url: str) -> Iterator[str]:
    """A database whose rows agree in the end, whatever came in between."""
    yield migrated_mariadb_url
    assert not list(invariants.rows_agree(migrated_mariadb_url, scheduled=False))


@pytest.fixture
def pair(url: str) -> Iterator[Pair]:
    """Two processes' views of one database."""
    with two_databases(url) as databases:
        yield databases


def instances(url: str, *columns: str) -> list[Any]:
    return run_sql(url, f"SELECT {', '.join(columns)} FROM schedule_instance ORDER BY schedule_datetime, id")


def materializer(database: Database) -> Materializer:
    return Materializer(database, quick_settings(str(database.url), lookahead_seconds=60))


def assigner(database: Database) -> Assigner:
    return Assigner(database, quick_settings(str(database.url), lookahead_seconds=60))


def frees_leases(text: str) -> bool:
    return text.startswith("UPDATE schedule_task_lock") and "locked_at" not in text.partition("WHERE")[0]


def advances_plans(text: str) -> bool:
    return "AS moved" in text or text.startswith("UPDATE schedule_task ")


def pins_nodes(text: str) -> bool:
    return "AS pinned" in text


def buries(text: str) -> bool:
    return "FROM schedule_worker_beat" in text and "FOR UPDATE" in text


def is_commit(text: str) -> bool:
    return text == "COMMIT"


def expire_leases(url: str) -> None:
    run_sql(url, "UPDATE schedule_task_lock SET locked_at = locked_at - INTERVAL 1 HOUR")


# Two schedulers on one task


def stage_three_fires(url: str) -> list[tuple[datetime, int]]:
    first = database_second(url) + timedelta(seconds=1)
    last = first + timedelta(seconds=2)
    add_task(url, "contended", cron="* * * * * *", starts_at=first, ends_at=last, next_fire_at=first)
    return [(first + timedelta(seconds=at), 0) for at in range(3)]


def stage_two_rows_for_a_fire_that_ran(url: str) -> list[tuple[datetime, int]]:
    task = add_task(url, "contended")
    moment = database_second(url) - timedelta(days=1)
    insert = {"schedule_task_id": task, "schedule_datetime": moment}
    insert_row(url, "schedule_instance", **insert, run_number=0, **ended_at(moment))
    insert_row(url, "schedule_instance", **insert)
    insert_row(url, "schedule_instance", **insert)
    return [(moment, 0), (moment, 1), (moment, 2)]


CONTENDED = [
    pytest.param(materializer, stage_three_fires, id="materializers"),
    pytest.param(assigner, stage_two_rows_for_a_fire_that_ran, id="assigners"),
]


@pytest.mark.parametrize("overtaken_first", [True, False])
@pytest.mark.parametrize(("duty", "stage"), CONTENDED)
def test_of_two_schedulers_past_their_locks_only_the_one_whose_lease_stands_writes(
    url: str, pair: Pair, duty: Duty, stage: Callable[[str], list[Any]], overtaken_first: bool
) -> None:
    add_worker(pair[0])
    wanted = stage(url)
    overtaken, owner = duty(pair[0]), duty(pair[1])
    with Gate(pair[0], frees_leases) as first_gate, Beside(overtaken.step) as first:
        first_gate.reached()
        before = instances(url, "id", "status", "run_number")
        expire_leases(url)
        with Gate(pair[1], frees_leases) as second_gate, Beside(owner.step) as second:
            second_gate.reached()
            if overtaken_first:
                first_gate.open()
                first.result()
                assert instances(url, "id", "status", "run_number") == before
            second_gate.open()
            second.result()
        first_gate.open()
    assert instances(url, "schedule_datetime", "run_number") == wanted
    assert run_sql(url, "SELECT is_locked FROM schedule_task_lock") == [(0,)]
    assert run_sql(url, "SELECT next_fire_at FROM schedule_task") == [(None,)]
    assert run_sql(url, "SELECT count(*) FROM schedule_task_node")[0][0] == len(
        [at for at in wanted if at[1]] or wanted
    )


def is_lock_of_pending(text: str) -> bool:
    """The assigner locks by it what it gives."""
    return "SKIP LOCKED" in text and "schedule_instance.id IN" in text


@pytest.mark.parametrize(("duty", "stage"), CONTENDED)
def test_even_two_schedulers_that_both_believe_to_hold_the_lease_write_each_run_once(
    url: str, pair: Pair, duty: Duty, stage: Callable[[str], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks are for speed, the key is for truth: here no lock holds."""
    add_worker(pair[0])
    wanted = stage(url)
    monkeypatch.setattr(locks, "release", lambda _connection, _token, task_ids, *_, **__: set(task_ids))
    writes = lambda text: "INTO schedule_instance" in text or is_lock_of_pending(text)  # noqa: E731
    with Gate(pair[0], writes) as first_gate, Beside(duty(pair[0]).step):
        first_gate.reached()
        expire_leases(url)
        with Gate(pair[1], writes) as second_gate, Beside(duty(pair[1]).step):
            second_gate.reached()
            first_gate.open()
            second_gate.open()

    def after_another_pass() -> list[Any]:
        expire_leases(url)
        duty(pair[0]).step()
        return sorted(instances(url, "schedule_datetime", "run_number"), key=str)

    wait_until(lambda: after_another_pass() == sorted(wanted, key=str), 10, "each row to have a run number of its own")
    nodes = run_sql(url, "SELECT count(*), count(DISTINCT schedule_instance_id) FROM schedule_task_node")[0]
    assert nodes == (len([at for at in wanted if at[1]] or wanted),) * 2
    assert run_sql(url, "SELECT next_fire_at FROM schedule_task") == [(None,)]


# A cron changed, and changed back, within the look-ahead


def set_cron(url: str, moment: datetime) -> None:
    run_sql(url, f"UPDATE schedule_task SET cron = '{every_year_at(moment)}'")


def test_a_fire_put_ahead_whose_cron_is_changed_and_changed_back_runs_once(url: str, pair: Pair) -> None:
    ran: list[Ran] = []
    with working(url, ran, lookahead_seconds=60) as worker:
        now = database_second(url)
        a, b = now + timedelta(seconds=4), now + timedelta(seconds=40)
        add_task(url, "edited", cron=every_year_at(a), next_fire_at=a)
        scheduler = materializer(pair[0])
        scheduler.step()
        wait_until(lambda: len(worker._engine._lanes.own.backlog), what="the worker to have it in its queue")
        for moment in (b, a):
            set_cron(url, moment)
            scheduler.step()
            assert instances(url, "schedule_datetime", "status") == [(moment, "assigned")]
        wait_until(lambda: instances(url, "status") == [("succeed",)], what="its run")
        scheduler.step()
    assert ran == [("edited", a, 0)]
    assert instances(url, "schedule_datetime", "run_number", "attempt") == [(a, 0, 1)]


def stage_a_fire_ahead(url: str, database: Database) -> tuple[Materializer, int, int, datetime, datetime]:
    """A task with one fire put ahead: (materializer, worker, instance, its moment, another moment)."""
    worker = add_worker(database)
    a, b = (database_second(url) + timedelta(seconds=ahead) for ahead in (20, 40))
    add_task(url, "edited", cron=every_year_at(a), next_fire_at=a)
    scheduler = materializer(database)
    scheduler.step()
    [(instance,)] = instances(url, "id")
    return scheduler, worker, instance, a, b


def test_a_claimed_fire_stays_and_is_not_put_ahead_again_when_its_cron_is_changed_and_changed_back(
    url: str, pair: Pair
) -> None:
    scheduler, worker, instance, a, b = stage_a_fire_ahead(url, pair[0])
    assert [run.id for run in claim(pair[1], worker, instance).runs] == [instance]
    set_cron(url, b)
    scheduler.step()
    assert instances(url, "schedule_datetime", "status") == [(a, "running"), (b, "assigned")]
    set_cron(url, a)
    scheduler.step()
    assert instances(url, "id", "schedule_datetime", "status", "attempt") == [(instance, a, "running", 1)]


def test_a_fire_that_is_being_claimed_while_its_plan_is_replaced_runs(
    url: str, pair: Pair, mariadb_server: MariaDBServer
) -> None:
    scheduler, worker, instance, a, b = stage_a_fire_ahead(url, pair[0])
    set_cron(url, b)
    with Gate(pair[1], is_commit) as gate, Beside(lambda: claim(pair[1], worker, instance)) as claiming:
        gate.reached()
        with Beside(scheduler.step):
            wait_for_lock_wait(mariadb_server, url)
            gate.open()
    assert [run.id for run in claiming.result().runs] == [instance]
    assert instances(url, "schedule_datetime", "status") == [(a, "running"), (b, "assigned")]
    assert run_sql(url, f"SELECT count(*) FROM schedule_task_node WHERE schedule_instance_id = {instance}") == [(1,)]


def test_a_fire_whose_plan_is_being_replaced_while_it_is_claimed_does_not_run(url: str, pair: Pair) -> None:
    """The claim passes over what is being deleted, rather than wait for it, and finds it gone the next time."""
    scheduler, worker, instance, a, b = stage_a_fire_ahead(url, pair[0])
    set_cron(url, b)
    with Gate(pair[0], advances_plans) as gate, Beside(scheduler.step):
        gate.reached()
        assert claim(pair[1], worker, instance) == runs.Claim(waiting=[Waiting(instance, a)])
        gate.open()
    assert claim(pair[1], worker, instance) == runs.Claim()
    assert instances(url, "schedule_datetime", "status") == [(b, "assigned")]


# Off between materializing and claim


def test_every_second_of_a_task_turned_off_and_on_has_a_row_or_is_counted(url: str) -> None:
    ran: list[Ran] = []
    with working(url, ran):
        first = database_second(url) + timedelta(seconds=1)
        add_task(url, "ticking", cron="* * * * * *", starts_at=first, next_fire_at=first)

        def turn(status: str) -> datetime:
            run_sql(url, f"UPDATE schedule_task SET status = '{status}'")
            return run_sql(url, "SELECT UTC_TIMESTAMP(6)")[0][0]  # type: ignore[no-any-return]

        with scheduling(url):
            wait_until(lambda: len(ran) >= 2, what="the first runs")
            off = turn("off")
            wait_until(lambda: held_back(url) >= 2, what="fires to be held back")
            assert not [row for row in instances(url, "gmt_started", "status") if row[0] and row[0] > off + CLAIM_AHEAD]
            canceled = [reason for status, reason in instances(url, "status", "reason") if status == "canceled"]
            assert set(canceled) == {"its task was off when it was due"}
            on = turn("on")
            wait_until(lambda: [fire for _, fire, _ in ran if fire > on], what="the next fire to run")
        wait_until(lambda: {status for (status,) in instances(url, "status")} <= ENDED, what="all to have ended")
    rows = instances(url, "schedule_datetime", "status")
    assert Counter(fire for _, fire, _ in ran) == Counter(moment for moment, status in rows if status == "succeed")
    [(after,)] = run_sql(url, "SELECT next_fire_at FROM schedule_task")
    assert len(rows) + held_back(url) == (after - first).total_seconds()


ENDED = {"succeed", "canceled"}
CLAIM_AHEAD = timedelta(milliseconds=100)


def held_back(url: str) -> int:
    return int(run_sql(url, "SELECT fires_held_back FROM schedule_task")[0][0])


# Rows inserted by SQL


@pytest.mark.parametrize("rows", [1, 2])
def test_a_row_by_sql_for_a_fire_that_ran_runs_under_the_next_number_and_the_old_row_stays_as_it_was(
    url: str, rows: int
) -> None:
    ran: list[Ran] = []
    moment = database_second(url) - timedelta(days=1)
    task = add_task(url, "asked", overlap_policy="skip")
    insert_row(
        url, "schedule_instance", schedule_task_id=task, schedule_datetime=moment, run_number=0,
        execution_result='{"old": 1}', **ended_at(moment),
    )  # fmt: skip
    old = run_sql(url, "SELECT * FROM schedule_instance")
    values = ", ".join([f"({task}, '{moment}')"] * rows)
    run_sql(url, f"INSERT INTO schedule_instance (schedule_task_id, schedule_datetime) VALUES {values}")
    with working(url, ran), scheduling(url):
        wait_until(lambda: instances(url, "status") == [("succeed",)] * (rows + 1), 20, "every row to have run")
    assert sorted(ran) == [("asked", moment, number) for number in range(1, rows + 1)]
    assert sorted(instances(url, "run_number", "attempt")) == [(number, 1) for number in range(rows + 1)]
    assert run_sql(url, "SELECT * FROM schedule_instance WHERE run_number = 0") == old


# A commit whose answer is lost, and one that is lost itself


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("stage", "to"),
    [
        pytest.param(stage_fires, "INSERT IGNORE INTO schedule_instance", id="materialize"),
        pytest.param(stage_pending, "AS given", id="assign"),
        pytest.param(stage_fires, "overlap_slot=", id="claim"),
        pytest.param(stage_fires, "execution_result=ELT(", id="report"),
    ],
)
def test_a_commit_that_breaks_loses_nothing_and_doubles_nothing(url: str, part: Part, stage: Stage, to: str) -> None:
    ran: list[Ran] = []
    with LossyProxy(url) as proxy, closing(connect(url)) as connection, working(proxy.url, ran):
        proxy.lose(part, to=to)
        life = Life(url, stage(url), ran, connection)
        with scheduling(proxy.url):
            life.wait_for_fires()
            life.wait_for_runs()
        assert proxy.lost.is_set()
        life.check()


@pytest.mark.parametrize("part", PARTS)
def test_a_hand_back_whose_commit_breaks_is_done_once(url: str, part: Part) -> None:
    ran: list[Ran] = []
    with LossyProxy(url) as proxy, opened(proxy.url) as database:
        worker = add_worker(database)
        moment = database_second(url) - timedelta(seconds=1)
        add_task(url, "handed", cron=every_year_at(moment), next_fire_at=moment)
        materializer(database).step()
        [(instance,)] = instances(url, "id")
        [run] = claim(database, worker, instance).runs
        proxy.lose(part, to="AS done")
        database.write(lambda c: reports.hand_back(c, worker, [(run.id, run.attempt)], "it stops"))
        assert proxy.lost.is_set()
        assert instances(url, "id", "status", "attempt", "schedule_worker_node_id") == [(instance, "pending", 1, None)]
        database.write(lambda c: workers.bury(c, [worker], "stopped", "test"))
    with working(url, ran), scheduling(url):
        wait_until(lambda: instances(url, "status") == [("succeed",)], what="its run by another")
    assert ran == [("handed", moment, 0)]
    assert instances(url, "attempt") == [(2,)]


@pytest.mark.parametrize("part", PARTS)
def test_a_worker_whose_registration_breaks_at_its_commit_is_registered_once_and_at_once(url: str, part: Part) -> None:
    with LossyProxy(url) as proxy:
        proxy.lose(part, to="INSERT INTO schedule_worker_node")
        with working(proxy.url, [], liveness_seconds=600):  # waiting for its own ghost to be silent would take as long
            assert proxy.lost.is_set()
            assert run_sql(url, "SELECT state FROM schedule_worker_node") == [("live",)]


# A worker's claim, and what it polled before


def test_what_a_worker_claims_while_its_poll_reads_is_not_claimed_again(url: str, pair: Pair) -> None:
    """Or it would be started once more, if it ended between the second claim's look and its commit."""
    database = pair[0]
    worker = add_worker(database)
    moment = database_second(url) - timedelta(seconds=1)
    add_task(url, "polled", cron=every_year_at(moment), next_fire_at=moment)
    materializer(database).step()
    puller = Puller(database, worker)
    puller.fetcher.fetch()

    def claim() -> None:
        puller.rows.meanwhile = lambda: None
        puller.claimer.claim()  # what the fetch before this one found

    puller.rows.meanwhile = claim
    puller.fetcher.fetch()
    assert len(puller.starter._queue) == 1
    assert not len(puller.backlog)
    assert not len(puller.backlog._queue)


# A worker declared dead while a scheduler assigns to it


@pytest.mark.parametrize(
    ("duty", "stage", "last"),
    [
        pytest.param(materializer, stage_three_fires, advances_plans, id="materializer"),
        pytest.param(assigner, stage_two_rows_for_a_fire_that_ran, pins_nodes, id="assigner"),
    ],
)
def test_what_is_assigned_to_a_worker_just_declared_dead_comes_back_with_the_next_pass(
    url: str, pair: Pair, duty: Duty, stage: Callable[[str], list[Any]], last: Callable[[str], bool]
) -> None:
    ran: list[Ran] = []
    dying = add_worker(pair[0], "dying")
    wanted = stage(url)
    reaper = Reaper(pair[1], quick_settings(url), "another scheduler")
    with Gate(pair[0], last) as gate, Beside(duty(pair[0]).step):
        gate.reached()  # after its assignments, before its commit
        run_sql(
            url, f"UPDATE schedule_worker_beat SET last_beat = '2000-01-01' WHERE schedule_worker_node_id = {dying}"
        )
        assert pair[1].write(lambda c: workers.bury_silent(c, [dying], "another scheduler")) == 1
        reaper.step()  # finds nothing as yet
        gate.open()
    assert (dying, "assigned") in instances(url, "schedule_worker_node_id", "status")
    reaper.step()
    assert "assigned" not in {status for (status,) in instances(url, "status")}
    with working(url, ran), scheduling(url):
        wait_until(lambda: instances(url, "status") == [("succeed",)] * 3, what="every run by another")
    assert instances(url, "schedule_datetime", "run_number") == wanted
    assert Counter((fire, number) for _, fire, number in ran) == Counter([at for at in wanted if at[1]] or wanted)


# A second worker of the same name

Starts = Callable[..., RotaProcess]
HERE = {"ROTA_HEARTBEAT_SECONDS": "0.5", "ROTA_WORKER_NAME": "twin"}


def test_a_second_worker_of_a_live_ones_name_is_refused_in_a_sentence(url: str, rota: Starts) -> None:
    first = rota("worker", database_url=url, environment=HERE)
    first.wait_for_log("started as #1", 30)
    second = rota("worker", database_url=url, environment=HERE)
    assert second.wait_exit(30) == REFUSED
    assert "a live worker is named 'twin'; give this one another --name, or stop that one" in second.log
    assert "Traceback" not in second.log
    assert first.alive
    assert run_sql(url, "SELECT id, state FROM schedule_worker_node") == [(1, "live")]


def test_a_worker_takes_over_at_once_from_a_namesake_whose_process_is_gone(url: str, rota: Starts) -> None:
    patient = {**HERE, "ROTA_LIVENESS_SECONDS": "600"}
    first = rota("worker", database_url=url, environment=patient)
    first.wait_for_log("started as #1", 30)
    first.kill()
    second = rota("worker", database_url=url, environment=patient)
    second.wait_for_log("started as #2", 30)
    states = run_sql(url, "SELECT state, reason FROM schedule_worker_node ORDER BY id")
    assert states == [("dead", "its process is gone"), ("live", None)]


def declaration(liveness_seconds: int) -> workers.WorkerDeclaration:
    return workers.WorkerDeclaration(
        name="twin", host="here", pid=2, process_identity="this-boot/2", version="0", capacity=1, prefetch=0,
        liveness_seconds=liveness_seconds, node_types=[TYPE],
    )  # fmt: skip


def test_a_worker_waits_for_the_limit_of_a_silent_namesake_on_another_host(url: str, pair: Pair) -> None:
    """For the namesake's own limit, which it was promised, and not for that of the worker that waits."""
    silent = add_worker(pair[0], "twin", liveness_seconds=4)
    taken, _ = registration.register(pair[1], declaration(liveness_seconds=2))
    query = (
        "SELECT s.state, n.state, n.gmt_started - INTERVAL 4 SECOND >= o.last_beat"
        f" FROM schedule_worker_node s, schedule_worker_beat o, schedule_worker_node n"
        f" WHERE s.id = {silent} AND o.schedule_worker_node_id = s.id AND n.id = {taken}"
    )
    assert run_sql(url, query) == [("dead", "live", 1)]


def test_a_namesake_that_beats_just_before_it_would_be_declared_dead_lives_on(url: str, pair: Pair) -> None:
    slow = add_worker(pair[0], "twin", liveness_seconds=2)
    register = lambda: registration.register(pair[1], declaration(liveness_seconds=2))  # noqa: E731
    with Gate(pair[1], buries) as gate, Beside(register) as registering:
        gate.reached()
        assert pair[0].write(lambda c: workers.heartbeat(c, slow, workers.Load()))
        gate.open()
        with pytest.raises(NameTaken):
            registering.result()
        registering.forgive()
    assert run_sql(url, "SELECT id, state FROM schedule_worker_node") == [(slow, "live")]


# A report batch with one bad row


def stage_running(url: str, database: Database, count: int) -> tuple[int, list[Run]]:
    worker = add_worker(database)
    first = database_second(url) - timedelta(seconds=count)
    last = first + timedelta(seconds=count - 1)
    add_task(url, "reported", cron="* * * * * *", starts_at=first, ends_at=last, next_fire_at=first)
    materializer(database).step()
    return worker, claim(database, worker, *(instance for (instance,) in instances(url, "id"))).runs


def succeeded(run: Run, result: str) -> Report:
    moment = run.due_at
    node = NodeReport(run.nodes[0].id, NodeStatus.SUCCEED, result, moment, moment)
    return Report(run.id, run.attempt, [node], InstanceReport(InstanceStatus.SUCCEED, result, None, moment, moment))


def write_reports(database: Database, worker: int, batch: list[Report]) -> dict[int, bool]:
    """Write them in one batch, as far as the database lets it; returns what each run was told."""
    told: dict[int, bool] = {}
    reporter = Reporter(WorkerRows(database, worker), database.clock)
    for report in batch:
        reporter.put(report, partial(told.__setitem__, report.instance_id))
    reporter.close()
    threading.Thread(target=reporter.run, daemon=True).start()
    assert reporter.flush(40), f"the reports still wait; told: {told}"
    return told


def check_that_one_failed_alone(url: str, told: dict[int, bool], culprit: int) -> None:
    assert told == {instance: instance != culprit for (instance,) in instances(url, "id")}
    for instance, status, reason, result in instances(url, "id", "status", "reason", "execution_result"):
        if instance == culprit:
            assert (status, reason.partition(":")[0]) == ("failed", "the result could not be stored")
        else:
            assert (status, reason, result) == ("succeed", None, '{"fine": 1}')
    query = "SELECT status FROM schedule_task_node ORDER BY schedule_instance_id"
    assert [status for (status,) in run_sql(url, query)].count("succeed") == len(told) - 1


def test_a_report_that_the_database_refuses_fails_alone_and_the_others_of_its_batch_are_written(
    url: str, mariadb_database: Database
) -> None:
    worker, claimed = stage_running(url, mariadb_database, 9)
    batch = [succeeded(run, '{"fine": 1}') for run in claimed]
    batch[5] = ended(claimed[5], InstanceStatus.FAILED)
    assert batch[5].instance is not None
    batch[5].instance.failures = -100_000  # less than its column holds
    check_that_one_failed_alone(url, write_reports(mariadb_database, worker, batch), claimed[5].id)


def test_a_result_too_large_for_the_server_fails_alone_and_the_others_of_its_batch_are_written(
    mariadb_template: list[str],
) -> None:
    with PrivateMariaDB("--max-allowed-packet=1M") as server:
        url = server.create_database()
        run_sql(url, *mariadb_template)
        with opened(url) as database:
            worker, claimed = stage_running(url, database, 5)
            large = f'{{"large": "{"x" * 2_000_000}"}}'
            batch = [succeeded(run, large if run is claimed[2] else '{"fine": 1}') for run in claimed]
            check_that_one_failed_alone(url, write_reports(database, worker, batch), claimed[2].id)
