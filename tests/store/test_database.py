"""Transactions that are retried whole, sessions as Rota needs them, and errors that tell no secrets."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pymysql
import pytest
from pymysql.constants import SERVER_STATUS
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from rota.shared.control import instances as on_instances
from rota.shared.control import replays as on_replays
from rota.shared.control import tasks as control
from rota.shared.control.actor import Actor
from rota.shared.database import mysql, mysql_session
from rota.shared.database.checks import check_reachable
from rota.shared.database.mysql import MYSQL
from rota.shared.database.mysql_connection import MySQLConnection
from rota.shared.database.mysql_session import IDLE_IN_TRANSACTION_SECONDS, IDLE_SECONDS, LOCK_WAIT_SECONDS
from rota.shared.database.transactions import Database, normalised, opened
from rota.shared.domain.errors import DatabaseProblem
from rota.shared.domain.states import TaskStatus
from rota.shared.store import fires, plans, recovery, reports, roster
from rota.shared.store.transitions import giving
from tests.harness import leases
from tests.harness.claims import claim_on
from tests.harness.databases import MariaDBServer, run_sql
from tests.harness.processes import wait_until
from tests.harness.scenario import Scenario, ended
from tests.harness.together import DEADLINE, together, uncommitted, wait_for_lock_wait

SECRET = "correct-horse-battery-staple"
DEADLOCK, LOST = 1213, 2013


def set_priority(connection: Connection, task: int, priority: int) -> None:
    connection.execute(
        text("UPDATE schedule_task SET priority = :priority WHERE id = :task"), {"priority": priority, "task": task}
    )


def raise_priority(connection: Connection, task: int) -> None:
    """Add one: what is done twice shows."""
    connection.execute(text("UPDATE schedule_task SET priority = priority + 1 WHERE id = :task"), {"task": task})


def session_id(connection: Connection) -> int:
    return int(connection.execute(text("SELECT CONNECTION_ID()")).scalar_one())


# Retries


def test_both_sides_of_a_deadlock_are_done(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    first, second = rows.task(priority=0), rows.task(priority=0)
    crossed = threading.Barrier(2, timeout=DEADLINE)
    attempts: list[str] = []

    def work(name: str, order: tuple[int, int]) -> Callable[[Connection], None]:
        def crossing(connection: Connection) -> None:
            attempts.append(name)
            raise_priority(connection, order[0])
            if attempts.count(name) == 1:
                crossed.wait()
            raise_priority(connection, order[1])

        return crossing

    together(
        lambda: rows.database.write(work("a", (first, second))),
        lambda: rows.database.write(work("b", (second, first))),
    )
    assert sorted(attempts) in (["a", "a", "b"], ["a", "b", "b"])
    assert [rows.task_row(task).priority for task in (first, second)] == [2, 2]


def test_a_lock_that_is_waited_for_too_long_is_tried_for_again(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    attempts: list[int] = []

    def work(connection: Connection) -> None:
        attempts.append(1)
        raise_priority(connection, task)

    with ThreadPoolExecutor(1) as pool:
        with uncommitted(rows.database, lambda c: set_priority(c, task, 5)):
            done = pool.submit(rows.database.write, work)
            wait_for_lock_wait(mariadb_server, done)
            wait_until(lambda: len(attempts) == 2, what="the wait to end and the work to begin again")
        done.result(DEADLINE)
    assert rows.task_row(task).priority == 6


def test_a_connection_killed_in_a_transaction_has_it_run_again(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    sessions: list[int] = []

    def work(connection: Connection) -> None:
        sessions.append(session_id(connection))
        raise_priority(connection, task)
        if len(sessions) == 1:
            run_sql(mariadb_server.admin_url(), f"KILL {sessions[0]}")
        raise_priority(connection, task)

    rows.database.write(work)
    assert len(set(sessions)) == 2
    assert rows.task_row(task).priority == 2


def test_a_connection_killed_before_the_commit_has_it_run_again(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)
    sessions: list[int] = []

    def work(connection: Connection) -> None:
        sessions.append(session_id(connection))
        raise_priority(connection, task)
        if len(sessions) == 1:
            run_sql(mariadb_server.admin_url(), f"KILL {sessions[0]}")

    rows.database.write(work)
    assert len(sessions) == 2
    assert rows.task_row(task).priority == 1


def test_connections_killed_while_they_were_idle_are_replaced(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer
) -> None:
    database = mariadb_rows.database
    sessions = together(*[lambda: database.read(session_id)] * 3)
    for session in set(sessions):
        run_sql(mariadb_server.admin_url(), f"KILL {session}")
    assert database.read(session_id) not in sessions


def test_a_connection_that_was_idle_for_long_is_tried_before_it_is_used(
    mariadb_rows: Scenario, mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, attempts = mariadb_rows.database, []

    def work(connection: Connection) -> int:
        attempts.append(1)
        return session_id(connection)

    killed = database.read(session_id)
    run_sql(mariadb_server.admin_url(), f"KILL {killed}")
    monkeypatch.setattr(mysql, "PING_AFTER_SECONDS", -1)
    assert database.read(work) != killed
    assert len(attempts) == 1
    monkeypatch.setattr(mysql, "PING_AFTER_SECONDS", 1000)
    run_sql(mariadb_server.admin_url(), f"KILL {database.read(session_id)}")
    database.read(work)
    assert len(attempts) == 3, "one that was lost before that is met by a second try"


def questions(connection: Connection) -> int:
    """How many statements this session was sent so far, this one among them."""
    return int(connection.execute(text("SHOW SESSION STATUS LIKE 'Questions'")).one()[1])


def test_a_read_is_its_statements_alone_and_a_write_begins_and_commits(mariadb_rows: Scenario) -> None:
    database = mariadb_rows.database

    def one(connection: Connection) -> int:
        return int(connection.execute(text("SELECT 1")).scalar_one())

    before = database.read(questions)
    assert database.read(questions) == before + 1
    database.read(one)
    assert database.read(questions) == before + 3
    database.write(one)
    assert database.read(questions) == before + 7
    database.write_one(one)
    assert database.read(questions) == before + 9


def test_a_lone_statement_is_committed(rows: Scenario) -> None:
    task = rows.task(priority=0)
    rows.database.write_one(lambda c: raise_priority(c, task))
    rows.database.close()
    assert rows.task_row(task).priority == 1


def test_a_read_leaves_no_transaction_open_and_one_that_fails_neither(mariadb_rows: Scenario) -> None:
    database, task = mariadb_rows.database, mariadb_rows.task(priority=0)

    def fail(connection: Connection) -> None:
        raise_priority(connection, task)
        raise KeyError("mine")

    with pytest.raises(KeyError):
        database.write(fail)
    assert [database.read(is_in_transaction), database.write(is_in_transaction)] == [False, True]
    assert not database.read(is_in_transaction)


def is_in_transaction(connection: Connection) -> bool:
    """What the server says of this session with the answer to a statement."""
    connection.execute(text("SELECT 1"))
    driver: Any = connection.connection.driver_connection
    return bool(driver.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


@contextmanager
def lost_answers(monkeypatch: pytest.MonkeyPatch, database: Database) -> Iterator[list[int]]:
    """The next commit of this process is done, but its answer does not arrive; the list counts such commits."""
    lost: list[int] = []
    commit = MySQLConnection.commit if database.backend is MYSQL else None

    def commit_and_lose(connection: Any) -> None:
        assert commit is not None
        commit(connection)
        if not lost:
            lost.append(1)
            connection._force_close()
            raise pymysql.err.OperationalError(LOST, "Lost connection to MySQL server during query")

    with monkeypatch.context() as patched:
        patched.setattr(MySQLConnection, "commit", commit_and_lose)
        yield lost


class Life:
    """One instance's life, a verb at a time, each in a transaction of its own."""

    def __init__(self, rows: Scenario) -> None:
        self.rows = rows
        self.task = rows.planned_task(rows.start, name="daily")
        self.worker = rows.worker()

    def run(self, disturbed: Callable[[], Any]) -> dict[str, Any]:
        """Everything it left behind; `disturbed` is a context for each transaction."""
        rows, start = self.rows, self.rows.start

        def write(work: Callable[[Connection], Any]) -> Any:
            with disturbed():
                return rows.database.write(work)

        assert write(lambda c: leases.acquire(c, "token", [self.task], 2)) == {self.task}
        [planned] = rows.database.read(lambda c: plans.locked(c, "token", [self.task]))

        def materialize(connection: Connection) -> None:
            if leases.release(connection, "token", [self.task]):
                fires.materialize(connection, [fires.Fire(self.task, start, 5, None, None, rows.nodes, "nobody")])
                advance = plans.Advance(planned, start + timedelta(minutes=1), misfires=1)
                plans.advance(connection, [advance])

        write(materialize)
        [instance] = rows.statuses()

        def give(connection: Connection) -> None:
            giving.give(connection, [(instance, self.worker, 0, None)])
            fires.pin_nodes(connection, [(instance, node) for node in rows.nodes])

        write(give)
        [run] = write(lambda c: claim_on(c, self.worker, [instance], rows.types))
        assert run.attempt == 1
        write(lambda c: recovery.recover(c, self.worker, 10))
        write(give)
        [run] = write(lambda c: claim_on(c, self.worker, [instance], rows.types))
        assert run.attempt == 2
        write(lambda c: reports.report(c, self.worker, [ended(run)]))
        row, task = rows.row(instance), rows.task_row(self.task)
        return {
            "instances": rows.statuses(),
            "row": (row.status, row.attempt, row.worker_losses, row.failures, row.execution_result, row.run_number),
            "nodes": rows.node_statuses(instance),
            "task": (task.next_fire_at, task.misfires, task.plan_stale),
            "locks": [tuple(r) for r in rows.sql("SELECT is_locked, locked_by FROM schedule_task_lock")],
        }


def test_a_life_in_which_every_commit_loses_its_answer_is_like_any_other(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[list[int]] = []

    @contextmanager
    def disturbed() -> Iterator[None]:
        with lost_answers(monkeypatch, mariadb_rows.database) as lost:
            yield
        counted.append(lost)

    left = Life(mariadb_rows).run(disturbed)
    assert counted == [[1]] * len(counted)
    assert len(counted) == 8
    [(instance, status)] = left["instances"].items()
    assert status == "succeed"
    assert left == {
        "instances": {instance: "succeed"},
        "row": ("succeed", 2, 1, 0, 42, 0),
        "nodes": ["succeed", "succeed"],
        "task": (mariadb_rows.start + timedelta(minutes=1), 1, None),
        "locks": [(0, "token")],
    }


def test_a_database_that_stays_away_is_given_up_in_a_sentence_without_the_password() -> None:
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and not listening: connections are refused
        url = f"mysql://rota:{SECRET}@127.0.0.1:{nobody.getsockname()[1]}/rota"
        database = Database(url, retry_seconds=0.2)
        with pytest.raises(DatabaseProblem) as raised:
            database.read(lambda c: c.execute(text("SELECT 1")).all())
    told = everything_told(raised.value)
    assert "127.0.0.1" in str(raised.value)
    assert SECRET not in told


def test_what_cannot_succeed_is_not_tried_again(rows: Scenario) -> None:
    attempts: list[int] = []

    def work(connection: Connection) -> None:
        attempts.append(1)
        connection.execute(text("SELECT * FROM no_such_table"))

    with pytest.raises((ProgrammingError, OperationalError)):
        rows.database.write(work)
    assert len(attempts) == 1


def test_an_exception_of_the_work_rolls_back_and_is_passed_on(rows: Scenario) -> None:
    task = rows.task(priority=0)

    def work(connection: Connection) -> None:
        raise_priority(connection, task)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rows.database.write(work)
    assert rows.task_row(task).priority == 0


def test_an_act_and_its_audit_row_are_there_once_though_the_answer_was_lost(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, ann = mariadb_rows.database, Actor("ann", "cli")
    ended_before = mariadb_rows.ended()
    acts: dict[str, Callable[[], Any]] = {
        "task.add": lambda: control.add(database, ann, {"name": "daily", "type": "REPORT"}).document["name"],
        "task.set": lambda: control.edit(database, ann, "daily", {"name": "nightly"}).document["name"],
        "task.off": lambda: control.switch(database, ann, ["nightly"], TaskStatus.OFF)[0]["changed"],
        "task.run": lambda: control.run(database, ann, "nightly").document["status"],
        "instance.cancel": lambda: on_instances.cancel(database, ann, [max(mariadb_rows.statuses())])[0]["canceled"],
        "instance.replay": lambda: on_replays.replay(database, ann, [ended_before])[0]["status"],
        "task.remove": lambda: control.remove(database, ann, "nightly")["removed"],
    }
    answers = {}
    for action, act in acts.items():
        with monkeypatch.context() as patched, lost_answers(patched, database) as lost:
            answers[action] = act()
        assert lost == [1]
    assert list(answers.values()) == ["daily", "nightly", True, "pending", True, "pending", True]
    recorded = mariadb_rows.sql("SELECT action FROM schedule_audit ORDER BY id")
    assert [row.action for row in recorded] == list(acts)
    assert sorted(mariadb_rows.statuses().values()) == ["canceled", "pending", "succeed"]


# Secrets


def everything_told(error: BaseException) -> str:
    """All that a log could show of an error and of what caused it."""
    told = []
    link: BaseException | None = error
    while link is not None:
        told += [str(link), repr(link)]
        link = link.__cause__ or link.__context__
    return "\n".join(told)


def test_an_error_tells_nothing_of_the_values(rows: Scenario) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text("INSERT INTO schedule_task (no_such_column) VALUES (:value)"), {"value": SECRET})

    with pytest.raises(DBAPIError) as raised:
        rows.database.write(work)
    assert SECRET not in everything_told(raised.value)


def test_a_param_that_is_refused_is_not_told(mariadb_rows: Scenario) -> None:
    def work(connection: Connection) -> None:
        fire = fires.Fire(1, mariadb_rows.start, 5, f'{{"password":"{SECRET}"}}', None, [], None)
        connection.execute(text("ALTER TABLE schedule_instance ADD COLUMN no_default INT NOT NULL"))
        fires.materialize(connection, [fire])
        connection.execute(text("SELECT :value FROM no_such_table"), {"value": SECRET})

    try:
        with pytest.raises(DBAPIError) as raised:
            mariadb_rows.database.write(work)
        assert SECRET not in everything_told(raised.value)
    finally:
        mariadb_rows.sql("ALTER TABLE schedule_instance DROP COLUMN no_default")


# Sessions


def variables(database: Database, *names: str) -> tuple[Any, ...]:
    asked = ", ".join(f"@@session.{name}" for name in names)
    return database.read(lambda c: tuple(c.execute(text(f"SELECT {asked}")).one()))


def on_mariadb(database: Database) -> bool:
    return bool(database.engine.dialect.is_mariadb)  # type: ignore[attr-defined]


def test_sessions_are_read_committed_in_utc_and_wait_shortly(mariadb_rows: Scenario) -> None:
    database = mariadb_rows.database
    isolation = "tx_isolation" if on_mariadb(database) else "transaction_isolation"
    assert variables(database, isolation, "time_zone") == ("READ-COMMITTED", "+00:00")
    timeouts = variables(database, "wait_timeout", "innodb_lock_wait_timeout")
    assert timeouts == (IDLE_SECONDS, LOCK_WAIT_SECONDS)
    if on_mariadb(database):
        assert variables(database, "idle_transaction_timeout") == (IDLE_IN_TRANSACTION_SECONDS,)


@pytest.mark.parametrize(
    ("constant", "value", "said"),
    [
        (
            "SQL_MODE",
            "NO_SUCH_MODE",
            "SET sql_mode = 'NO_SUCH_MODE', which Rota's sessions need: Variable 'sql_mode' can't",
        ),
        (
            "ISOLATION",
            "no_such_variable = 1",
            "SET no_such_variable = 1, which Rota's sessions need: Unknown system vari",
        ),
        ("LONGEST_IDS", "'x'", "SET group_concat_max_len = 'x', which Rota's sessions need: Incorrect argument type"),
    ],
)
def test_a_setting_that_the_server_refuses_is_named(
    migrated_mariadb_url: str, monkeypatch: pytest.MonkeyPatch, constant: str, value: str, said: str
) -> None:
    monkeypatch.setattr(mysql_session, constant, value)
    with opened(migrated_mariadb_url) as database:
        check = check_reachable(database)
    assert check.found.startswith(f"the server refuses {said}")
    assert check.found.endswith("let the server take it from this user, or connect past the proxy that refuses it")


def test_a_transaction_sees_what_others_commit_meanwhile(mariadb_rows: Scenario) -> None:
    rows = mariadb_rows
    task = rows.task(priority=0)

    def look_twice(connection: Connection) -> list[int]:
        seen = []
        for priority in (1, 2):
            together(partial(rows.database.write, partial(set_priority, task=task, priority=priority)))
            found = connection.execute(text("SELECT priority FROM schedule_task WHERE id = :task"), {"task": task})
            seen.append(int(found.scalar_one()))
        return seen

    assert rows.database.read(look_twice) == [1, 2]


def test_times_are_utc_whatever_the_server_thinks(mariadb_rows: Scenario, mariadb_server: MariaDBServer) -> None:
    """The private server lives nine hours east; what it writes by default, and what it tells, is UTC all the same."""
    rows = mariadb_rows
    task = rows.task_row(rows.task())
    worker = rows.worker()
    instance = rows.row(rows.running(worker).id)
    [(utc,)] = run_sql(mariadb_server.admin_url(), "SELECT UTC_TIMESTAMP(6)")
    for moment in (task.gmt_create, task.gmt_modified, instance.gmt_create, instance.gmt_started, rows.now()):
        assert abs(moment - utc) < timedelta(minutes=1)
    [seen] = rows.database.read(lambda c: roster.listed(c, 1))
    assert abs(seen.last_heartbeat - utc) < timedelta(minutes=1)


def test_a_row_inserted_by_sql_in_another_zone_has_utc_in_its_audit_columns(mariadb_rows: Scenario) -> None:
    url = mariadb_rows.database.url.render_as_string(hide_password=False)
    run_sql(
        url,
        "SET time_zone = '+09:00'",
        "INSERT INTO schedule_task (name, type, cron) VALUES ('by-sql', 'REPORT', '0 3 * * *')",
    )
    [(created,)] = mariadb_rows.sql("SELECT gmt_create FROM schedule_task WHERE name = 'by-sql'")
    assert abs(created - mariadb_rows.now()) < timedelta(minutes=1)


def test_a_process_that_is_frozen_in_a_transaction_frees_its_locks(mariadb_rows: Scenario) -> None:
    """After IDLE_IN_TRANSACTION_SECONDS on MariaDB; after IDLE_SECONDS on MySQL, which has no limit of its own."""
    rows = mariadb_rows
    task = rows.task(priority=0)
    url = rows.database.url.render_as_string(hide_password=False)
    patient = Database(url, retry_seconds=5 if on_mariadb(rows.database) else 2 * IDLE_SECONDS)
    with (
        closing(patient),
        rows.database.engine.execution_options(rota_write=True).connect() as frozen,
    ):
        raise_priority(frozen, task)
        patient.write(lambda c: raise_priority(c, task))  # it waits, is refused, and tries again
        with pytest.raises(DBAPIError):
            raise_priority(frozen, task)
    assert rows.task_row(task).priority == 1


def test_a_connection_reads_the_machines_certificates_only_to_verify_the_servers(
    migrated_mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ssl.SSLContext] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda context, *_: read.append(context))
    with opened(migrated_mariadb_url) as database, database.engine.connect(), database.engine.connect() as second:
        driver: Any = second.connection.driver_connection
        assert driver.ssl, "TLS is used where the server has it"
        assert driver.ctx.verify_mode is ssl.CERT_NONE
    assert read == []
    with (
        opened(f"{migrated_mariadb_url}?ssl_verify_cert=true") as database,
        pytest.raises(
            OperationalError, match=r"SSL is required but the server doesn't support it|certificate verify failed"
        ),
        database.engine.connect(),
    ):
        pass
    [verifying] = read
    assert verifying.verify_mode is ssl.CERT_REQUIRED


def test_the_driver_is_chosen_whatever_the_url_says() -> None:
    for scheme in ("mysql", "mariadb", "mysql+pymysql"):
        assert normalised(f"{scheme}://u:p@h/d").drivername == "mysql+pymysql"
    assert normalised("sqlite:///x.db").drivername == "sqlite"


# SQLite


def test_sqlite_is_durable_and_lets_readers_read_on(sqlite_rows: Scenario) -> None:
    database = sqlite_rows.database
    assert database.read(lambda c: c.execute(text("PRAGMA journal_mode")).scalar_one()) == "wal"
    assert database.read(lambda c: c.execute(text("PRAGMA synchronous")).scalar_one()) == 2
    task = sqlite_rows.task(priority=0)
    with uncommitted(database, lambda c: raise_priority(c, task)):
        assert sqlite_rows.task_row(task).priority == 0
    assert sqlite_rows.task_row(task).priority == 1


def test_writers_that_read_first_lose_no_write(rows: Scenario) -> None:
    """On SQLite a write begins as one at once, so that it never has to be given up when it comes to write."""
    task = rows.task(priority=0)

    def work(connection: Connection) -> None:
        found = text("SELECT priority FROM schedule_task WHERE id = :task")
        locked = text("SELECT priority FROM schedule_task WHERE id = :task FOR UPDATE")
        statement = locked if rows.database.backend is MYSQL else found
        set_priority(connection, task, int(connection.execute(statement, {"task": task}).scalar_one()) + 1)

    together(*[lambda: [rows.database.write(work) for _ in range(3)]] * 3)
    assert rows.task_row(task).priority == 9


def test_a_writer_that_finds_sqlite_locked_tries_again(sqlite_rows: Scenario) -> None:
    task = sqlite_rows.task(priority=0)
    refused = threading.Event()
    with opened(sqlite_rows.database.url.render_as_string(), call_timeout=0.01) as other:

        @event.listens_for(other.engine, "handle_error")
        def note(_context: object) -> None:
            refused.set()

        with ThreadPoolExecutor(1) as pool:
            with uncommitted(sqlite_rows.database, lambda c: raise_priority(c, task)):
                done = pool.submit(other.write, lambda c: raise_priority(c, task))
                assert refused.wait(DEADLINE)
                assert not done.done()
            done.result(DEADLINE)
    assert sqlite_rows.task_row(task).priority == 2
