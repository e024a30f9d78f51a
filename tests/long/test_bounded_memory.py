"""However many tasks are registered, and however many instances a worker is handed: memory and reads stay bounded."""

from collections import Counter
from pathlib import Path

import pytest

from rota.scheduler_service.duties.materializer import FIRST_BATCH, Materializer
from rota.shared.database.transactions import opened
from rota.shared.settings import Settings
from rota.worker_service.pulling.pacing import QUEUE_LIMIT
from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.databases import is_mysql, run_sql
from tests.harness.processes import wait_until
from tests.harness.puller import Puller
from tests.harness.statements import Statement, explained

SCHEDULER_MB = 150
WORKER_MB = 150
"""The most memory that either may ever take, resident."""

REGISTERED = 1_000_000
AT_A_TIME = 250_000
FAR = "2099-01-01"

BATCH = 1_000
READS_PER_TASK = 16
"""What a batch reads and writes for each task that is due, in all its statements: its rows, and their index entries.

Five of them take the lease: the lock is read, put into the temporary table of those that are free, read there, and
changed. That spares a round trip (docs/decisions/0030-few-round-trips.md)."""

HERD = 10_000
"""So many of them are due at once, each with a cron expression of its own: as many as the scheduler's caches take."""

TICKING, SECONDS = 5, 10
"""Tasks that fire in every second, and how many seconds of theirs are waited for."""

HANDED = 100_000
DUE = 20_000
LOOKAHEAD_SECONDS = 300
DUE_IN_SECONDS = 250
"""The rest is not due while the test runs, but is near enough to be fetched."""

KEPT_IN_MIND = 3 * QUEUE_LIMIT
"""Two limits that are allowed to wait, and what one poll adds."""


@pytest.fixture(scope="module")
def million(shared_cluster: Cluster) -> Cluster:
    """A cluster with a million tasks, planned, each with a cron expression of its own; none is due."""
    month = shared_cluster.now().month
    cron = (
        f"CONCAT_WS(' ', seq % 60, seq DIV 60 % 60, seq DIV 3600 % 24, 1 + seq DIV 86400 % 28, {1 + (month + 5) % 12},"
        " '*')"
    )
    for first in range(1, REGISTERED, AT_A_TIME):
        run_sql(
            shared_cluster.url,
            "BEGIN",
            f"""INSERT INTO schedule_task (id, name, type, cron, cron_seconds, next_fire_at)
            SELECT seq, CONCAT('task ', seq), 'NOTE', {cron}, 1, '{FAR}' FROM seq_{first}_to_{first + AT_A_TIME - 1}""",
            f"UPDATE schedule_task SET planned_inputs = plan_inputs WHERE id >= {first}",
            "COMMIT",
        )
    return shared_cluster


def test_a_step_among_a_million_tasks_reads_those_that_are_due_and_no_others(million: Cluster) -> None:
    with opened(million.url) as database:
        materializer = Materializer(database, Settings.load(database_url=million.url, batch=BATCH))
        idle = watched(materializer, million)
        most = 12 if is_mysql(million.url) else 10
        assert sum(s.rows_read for s in idle) <= most, told(idle)
        run_sql(million.url, f"UPDATE schedule_task SET next_fire_at = UTC_TIMESTAMP() WHERE id <= {BATCH}")
        busy = [*watched(materializer, million), *watched(materializer, million)]  # a tick's first batch is a small one
        print(f"for a batch of {BATCH}: {sum(s.rows_read for s in busy)} rows read by {len(busy)} statements")
        assert million.row("SELECT COUNT(*) AS n FROM schedule_instance")["n"] == BATCH
        passed_over = FIRST_BATCH  # by the second batch, which finds those of the first one leased
        assert sum(s.rows_read for s in busy) <= READS_PER_TASK * (BATCH + passed_over), told(busy)


def test_a_scheduler_with_a_million_tasks_takes_no_more_memory_than_its_limit(million: Cluster) -> None:
    million.worker("w")
    million.wait_live("w")
    ticking = [million.add_task(f"ticking {n}", "NOTE", "* * * * * *", overlap_policy="allow") for n in range(TICKING)]
    run_sql(million.url, f"UPDATE schedule_task SET next_fire_at = UTC_TIMESTAMP() WHERE id % {REGISTERED // HERD} = 0")
    scheduler = million.scheduler()
    ran = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed' AND schedule_task_id"
    wait_until(lambda: million.row(f"{ran} <= %s", REGISTERED)["n"] >= HERD, 60, f"{HERD} instances to succeed")
    wait_until(
        lambda: million.row(f"{ran} IN %s", ticking)["n"] >= TICKING * SECONDS,
        SECONDS + 30,
        f"{TICKING * SECONDS} fires of the tasks that fire every second",
    )
    used = peak_megabytes(scheduler.pid)
    print(f"a scheduler with {REGISTERED:,} tasks: {used:.0f} MB at most")
    assert used <= SCHEDULER_MB
    million.execute("UPDATE schedule_task SET status = 'off' WHERE id IN %s", ticking)
    alive = "SELECT * FROM schedule_instance WHERE status IN ('pending', 'assigned', 'running')"
    wait_until(lambda: not million.rows(alive), 30, "every instance to end")
    invariants.check(million)


def test_a_worker_that_is_handed_100_000_instances_takes_no_more_memory_than_its_limit_and_runs_what_is_due(
    cluster: Cluster,
) -> None:
    handed = cluster.add_task("handed", "NOTE", overlap_policy="allow")
    worker = cluster.worker("w", environment={"ROTA_LOOKAHEAD_SECONDS": str(LOOKAHEAD_SECONDS)})
    worker_id = cluster.wait_live("w")["w"]
    hand_over(cluster, handed, worker_id)

    count = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = %s"
    wait_until(lambda: cluster.row(count, "succeed")["n"] >= DUE, 60, f"{DUE} instances to succeed")
    used = peak_megabytes(worker.worker_pid)
    print(f"a worker that was handed {HANDED:,} instances: {used:.0f} MB at most")
    assert used <= WORKER_MB
    assert cluster.row(count, "assigned")["n"] == HANDED - DUE
    runs = Counter(e.instance for e in cluster.evidence() if e.event == "enter")
    assert (len(runs), set(runs.values())) == (DUE, {1})

    cluster.kill(worker)
    check_queue(cluster, worker_id)


def watched(materializer: Materializer, cluster: Cluster) -> list[Statement]:
    with explained(materializer._database.engine) as statements:
        materializer.step()
    return statements


def told(statements: list[Statement]) -> str:
    return "\n".join(str(statement) for statement in statements)


def peak_megabytes(pid: int) -> float:
    """The most memory that a process has had resident so far."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    [peak] = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(peak) / 1024


def hand_over(cluster: Cluster, task: int, worker_id: int) -> None:
    """Assign all to the worker at once, a part due now, with their nodes."""
    run_sql(
        cluster.url,
        "BEGIN",
        f"""INSERT INTO schedule_instance (schedule_task_id, status, schedule_datetime, due_at, run_number, origin,
            param, schedule_worker_node_id, gmt_assigned)
        SELECT {task}, 'assigned', UTC_TIMESTAMP() - INTERVAL seq SECOND,
            UTC_TIMESTAMP() + INTERVAL IF(seq <= {DUE}, 0, {DUE_IN_SECONDS}) SECOND, 0, 'replay',
            CONCAT('{{"text": "', REPEAT('x', 500), '"}}'), {worker_id}, UTC_TIMESTAMP(6)
        FROM seq_1_to_{HANDED}""",
        """INSERT INTO schedule_task_node
            (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence)
        SELECT i.id, i.gmt_create, t.id, 1
        FROM schedule_instance i JOIN schedule_task_node_type t ON t.type = 'NOTE'""",
        "COMMIT",
    )


def check_queue(cluster: Cluster, worker_id: int) -> None:
    """What a poller keeps in mind while no slot is free and others of what waits become more urgent each time."""
    first = cluster.row("SELECT MIN(id) AS n FROM schedule_instance WHERE status = 'assigned'")["n"]
    urge = "UPDATE schedule_instance SET priority = %s WHERE status = 'assigned' AND id BETWEEN %s AND %s"
    with opened(cluster.url) as database:
        puller = Puller(database, worker_id, lookahead_seconds=LOOKAHEAD_SECONDS)
        puller.fetcher.fetch()
        assert len(puller.backlog) == QUEUE_LIMIT
        for priority in range(4, -1, -1):
            start = first + (4 - priority) * QUEUE_LIMIT
            cluster.execute(urge, priority, start, start + QUEUE_LIMIT - 1)
            puller.fetcher.fetch()
            assert QUEUE_LIMIT <= len(puller.backlog) <= KEPT_IN_MIND
