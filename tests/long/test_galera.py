"""A Galera cluster of three nodes with writers on all of them: nodes are killed and join again, and nothing is lost or
doubled. The clock of one node is two seconds ahead of the others'.

Each node is killed once; with ``ROTA_TEST_FIRES``, in turn until there were so many fires.
"""

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count, cycle
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, make_url, text
from sqlalchemy.exc import IntegrityError

from rota.migrations import upgrade
from rota.shared.database.later import Later, execute_later
from rota.shared.database.mysql_hosts import DOUBT
from rota.shared.database.transactions import opened
from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.cluster_fixtures import running
from tests.harness.databases import connect, run_sql
from tests.harness.galera import GaleraCluster, GaleraNode, why_not
from tests.harness.processes import wait_until

FIRES = int(os.environ.get("ROTA_TEST_FIRES", "0"))
TASKS = 45
TYPES = ("NOTE", "STEPS", "NOTE_THREAD")
AHEAD_SECONDS = 2
LATE_SECONDS = 1
STALE_SECONDS = 1
CONFLICTS = 1_000
REST_SECONDS = 0.002
TABLES = ("schedule_instance", "schedule_task_node", "schedule_task", "schedule_kept_slot")
EXPLAINED = ("overlap: instance", "its task was off when it was due")


@pytest.mark.timeout(300 + FIRES // 10)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_nodes_that_are_killed_and_join_again_cost_no_worker_and_lose_and_double_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with GaleraCluster((f"-{AHEAD_SECONDS}s", f"-{AHEAD_SECONDS}s", None)) as galera:
        name = str(make_url(galera.nodes[0].create_database()).database)
        assert upgrade(galera.url(name)).changed
        with running(galera.nodes[0].url(name), tmp_path / "cluster", request.session) as cluster:
            cluster.database_failed = True
            cluster.repeats_journal = True
            cluster.clocks_differ = timedelta(seconds=AHEAD_SECONDS)
            cluster.clocks_late = timedelta(seconds=LATE_SECONDS)
            for number in range(len(galera.nodes)):
                cluster.reached_by = galera.url(name, first=number)
                cluster.worker(f"w{number}")
                cluster.scheduler()
            live = cluster.wait_live("w0", "w1", "w2", deadline=60)
            for number in range(TASKS):
                cluster.add_task(
                    f"each second {number}",
                    TYPES[number % 3],
                    "* * * * * *",
                    overlap_policy=("skip", "allow")[number % 2],
                )
            held = cluster.add_instances(
                cluster.add_task("held", "HOLD", param={"gate": "go"}, overlap_policy="allow"), 3
            )
            cluster.wait_status(held, "running")
            wait_for_more_runs(cluster)
            assert all(int(node.state("wsrep_replicated")) > 0 for node in galera.nodes), "all take writes"
            for kills, (node, other) in enumerate(
                cycle(zip(galera.nodes, galera.nodes[-1:] + galera.nodes[:-1], strict=True))
            ):
                if kills >= len(galera.nodes) and fired(cluster) >= FIRES:
                    break
                kill_and_join_again(cluster, node, other, name)
            check(cluster, held, live)
            wait_until(
                lambda: len({rows_of(node, name) for node in galera.nodes}) == 1, 10, "all nodes to have the same"
            )


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_what_commits_on_the_node_that_a_process_has_left_is_seen_on_the_next() -> None:
    """A worker's claim may be committed on the one while its other threads use the other already."""
    with GaleraCluster() as galera:
        name = str(make_url(galera.nodes[0].create_database()).database)
        run_sql(galera.nodes[0].url(name), "CREATE TABLE one (n INT PRIMARY KEY)", "INSERT INTO one VALUES (0)")
        behind = galera.nodes[1]
        with opened(galera.url(name)) as database:
            assert database.read(seen) == 0
            with closing(connect(behind.admin_url())) as admin, admin.cursor() as cursor:
                with database._writer.begin() as late:
                    late.exec_driver_sql("UPDATE one SET n = 1")
                    late.info[DOUBT]("a call timed out")
                    assert database.read(seen) == 0
                    assert database.servers.moves == 1
                    cursor.execute("FLUSH TABLES WITH READ LOCK")  # from now on it applies nothing
                assert run_sql(behind.url(name), "SELECT n FROM one") == [(0,)]
                unlock = threading.Timer(STALE_SECONDS, lambda: cursor.execute("UNLOCK TABLES"))
                unlock.start()
                assert database.read(seen) == 1
                unlock.join()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("asks", [False, True], ids=["writes", "asks_first"])
def test_a_transaction_that_another_node_ends_leaves_nothing_behind(asks: bool) -> None:
    """All nodes write one row. A transaction that loses it has written neither of its other two rows.

    What is told was committed. An answer may be lost, as ``write_undisturbed`` says: that is rare.
    """
    with GaleraCluster() as galera:
        first = galera.nodes[0]
        name = str(make_url(first.create_database()).database)
        run_sql(
            first.url(name),
            "CREATE TABLE contested (id INT PRIMARY KEY, n BIGINT)",
            "CREATE TABLE before_it (id BIGINT PRIMARY KEY)",
            "CREATE TABLE after_it (id BIGINT PRIMARY KEY)",
            "INSERT INTO contested VALUES (1, 0)",
        )
        told: set[int] = set()
        unanswered: dict[int, str] = {}
        ended = threading.Event()

        def write(number: int) -> None:
            with opened(galera.url(name, first=number)) as database:
                assert database.read(reruns) == 0
                said = ["nothing"]
                event.listen(database.engine, "handle_error", lambda error: said.append(str(error.original_exception)))
                for n in count(number + 1, len(galera.nodes)):
                    if ended.is_set():
                        return
                    with suppress(IntegrityError):  # a part of this transaction was committed: the sets below tell
                        done = database.write_undisturbed(partial(contest, n=n, asks=asks))
                        if done is None:
                            unanswered[n] = said[-1]
                        elif done.rows:
                            told.add(n)

        with ThreadPoolExecutor(len(galera.nodes)) as writers:
            done = [writers.submit(write, number) for number in range(len(galera.nodes))]
            try:
                wait_until(
                    lambda: sum(int(node.state("wsrep_local_bf_aborts")) for node in galera.nodes) >= CONFLICTS,
                    120,
                    f"{CONFLICTS} conflicts",
                )
            finally:
                ended.set()
            for one in done:
                one.result()
        before, after = (
            {n for (n,) in run_sql(first.url(name), f"SET STATEMENT wsrep_sync_wait = 1 FOR SELECT id FROM {table}")}
            for table in ("before_it", "after_it")
        )
        untold = {n: unanswered.get(n) for n in after - told}
        print(f"{len(after)} transactions were committed, {len(before ^ after)} in part; not told: {untold}")
        assert before == after
        assert told <= after
        assert untold.keys() <= unanswered.keys()
        assert len(untold) < CONFLICTS / 100


def contest(connection: Connection, n: int, *, asks: bool) -> Later:
    """Write three rows; the result tells whether the last was written.

    Every other transaction rests before that, or on a busy machine few would meet others. One that ``asks`` begins with
    a question, and writes only if nobody has locked the row.
    """
    new = "SELECT :n FROM DUAL WHERE @rota_answer = 1" if asks else "VALUES (:n)"
    if asks:
        question = "SELECT (SELECT 1 FROM contested WHERE id = 1 FOR UPDATE SKIP LOCKED) INTO @rota_answer"
        execute_later(connection, text(question), {})
    for statement in (
        f"INSERT INTO before_it {new}",
        "UPDATE contested SET n = :n WHERE id = 1" + " AND @rota_answer = 1" * asks,
        f"DO SLEEP({REST_SECONDS * (n % 2)})",
    ):
        execute_later(connection, text(statement), {"n": n})
    return execute_later(connection, text(f"INSERT INTO after_it {new}"), {"n": n})


def reruns(connection: Connection) -> int:
    """How often the node runs a statement again by itself."""
    return int(connection.exec_driver_sql("SELECT @@wsrep_retry_autocommit").scalar_one())


def seen(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT n FROM one").scalar_one())


def rows_of(node: GaleraNode, database: str) -> tuple[tuple[str, int], ...]:
    """The checksums of the tables that tell what has run."""
    tables = ", ".join(f"{database}.{table}" for table in TABLES)
    return tuple(run_sql(node.admin_url(), f"CHECKSUM TABLE {tables}"))


def kill_and_join_again(cluster: Cluster, node: GaleraNode, other: GaleraNode, name: str) -> None:
    """Kill a node under load, wait until all goes on without it, start it, and wait until all goes on with it."""
    cluster.url = other.url(name)
    since = cluster.now()
    node.kill()
    wait_for_more_runs(cluster)
    print(f"without the node: the latest start was {latest_start(cluster, since):.1f} s late")
    since = cluster.now()
    node.start()
    wait_for_more_runs(cluster)
    print(f"when it had joined: the latest start was {latest_start(cluster, since):.1f} s late")


def wait_for_more_runs(cluster: Cluster, fires: int = 3) -> None:
    """Wait until every task has run some fires that are due from now on."""
    now = cluster.now() + cluster.clocks_differ
    query = """SELECT COUNT(*) AS n FROM (
        SELECT schedule_task_id FROM schedule_instance WHERE origin = 'cron' AND status = 'succeed' AND due_at > %s
        GROUP BY schedule_task_id HAVING COUNT(*) >= %s) AS ran"""
    wait_until(lambda: cluster.row(query, now, fires)["n"] == TASKS, 60, "every task to run again")


def fired(cluster: Cluster) -> int:
    """How many fires there were."""
    return int(cluster.row("SELECT COUNT(*) AS n FROM schedule_instance WHERE origin = 'cron'")["n"])


def latest_start(cluster: Cluster, since: datetime) -> float:
    """How late the latest start was of what is due since then."""
    late = (
        "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, due_at, gmt_started)) AS late FROM schedule_instance WHERE due_at > %s"
    )
    return int(cluster.row(late, since)["late"]) / 1_000_000


def check(cluster: Cluster, held: list[int], live: dict[str, int]) -> None:
    """Nothing is lost or doubled, and no worker was given up."""
    cluster.open_gate("go")
    cluster.wait_status(held, "succeed")
    cluster.wait_quiet()
    assert all(process.alive for process in cluster.processes)
    assert cluster.wait_live(*live) == live, "no worker was given up"
    assert [cluster.instance(i)["attempt"] for i in held] == [1, 1, 1]
    rows = cluster.rows("SELECT status, reason, worker_losses FROM schedule_instance")
    print(f"instances: {dict(Counter(row['status'] for row in rows))}")
    for row in rows:
        assert row["status"] == "succeed" or row["reason"].startswith(EXPLAINED), row
        assert row["worker_losses"] == 0, row
    print(f"misfires counted: {cluster.row('SELECT SUM(misfires) AS n FROM schedule_task')['n']}")
    invariants.check(cluster)
