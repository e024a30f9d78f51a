"""Tables as they are after a year: 100,000 tasks and 1,000,000 instances, made by the server itself in seconds.

Most instances have ended. What is live is small, as in life: some 5,000 pending, 4,000 assigned, 500 running. Ten tasks
run all the time and own a fifth of the history; the others share the rest.
"""

from datetime import datetime

from tests.harness.databases import run_sql

TASKS = 100_000
DEAD_WORKERS, LIVE_WORKERS = 1_000, 10
INSTANCES = 1_000_000
PENDING, ASSIGNED, RUNNING = 5_000, 4_000, 500
ENDED = INSTANCES - PENDING - ASSIGNED - RUNNING
"""Ids go in this order: first what has ended, then pending, assigned, running."""

BUSY_TASK = 1
"""One of those that own much of the history."""


def fill(url: str) -> datetime:
    """Fill migrated, empty tables of a MariaDB database and let it count them; returns the time they are made for."""
    [(now,)] = run_sql(url, "SELECT UTC_TIMESTAMP()")
    keys = _keys_of_instances(url)
    run_sql(
        url,
        "SET unique_checks = 0",
        *_types_and_workers(now),
        *_tasks(now),
        *(f"ALTER TABLE schedule_instance DROP KEY `{name}`" for name in keys),
        *_instances(now),
        f"ALTER TABLE schedule_instance {', '.join(f'ADD {definition}' for definition in keys.values())}",
        *_nodes(),
        "ANALYZE TABLE schedule_task, schedule_instance, schedule_task_node, schedule_task_node_type,"
        " schedule_worker_node, schedule_worker_beat, schedule_task_lock",
    )
    assert isinstance(now, datetime)
    return now


def _keys_of_instances(url: str) -> dict[str, str]:
    """The secondary keys of the instances, as the server writes them: it builds them faster when the rows are there."""
    [(_, ddl)] = run_sql(url, "SHOW CREATE TABLE schedule_instance")
    lines = [line.strip().rstrip(",") for line in str(ddl).splitlines()]
    return {line.split("`")[1]: line for line in lines if line.startswith(("KEY ", "UNIQUE KEY "))}


def _types_and_workers(now: datetime) -> list[str]:
    return [
        """
        INSERT INTO schedule_task_node_type (type, category, sequence) VALUES
            ('REPORT_EXTRACT', 'REPORT', 1), ('REPORT_SEND', 'REPORT', 2), ('CLEANUP_TEMP', 'CLEANUP', 1)
        """,
        f"""
        INSERT INTO schedule_worker_node (id, name, host, last_heartbeat, state, pid, process_identity, version,
            capacity, prefetch, node_types)
        SELECT seq, CONCAT('worker-', seq), 'host', '{now}', IF(seq <= {DEAD_WORKERS}, 'dead', 'live'), seq, 'x', '0',
            1000, 1000, '["REPORT_EXTRACT","REPORT_SEND","CLEANUP_TEMP"]'
        FROM seq_1_to_{DEAD_WORKERS + LIVE_WORKERS}
        """,
        f"""
        INSERT INTO schedule_worker_beat (schedule_worker_node_id, last_beat, liveness_seconds, gmt_dead)
        SELECT seq, '{now}', 3600, IF(seq <= {DEAD_WORKERS}, '{now}', NULL)
        FROM seq_1_to_{DEAD_WORKERS + LIVE_WORKERS}
        """,
    ]


def _tasks(now: datetime) -> list[str]:
    """All have a plan. 1,000 are due, 10 of them off; 50 were edited since; some allow overlap, some with a maximum."""
    return [
        f"""
        INSERT INTO schedule_task (id, name, status, type, cron, next_fire_at, overlap_policy, max_instances, priority)
        SELECT seq, CONCAT('task-', seq), IF(seq % 10000 = 7, 'off', 'on'), 'REPORT', '30 16 * * *',
            '{now}' + INTERVAL IF(seq % 100 = 7, 0, 60 + seq) SECOND,
            ELT(1 + seq % 4, 'skip', 'queue', 'replace', 'allow'), IF(seq % 8 = 3, 2, NULL), 5
        FROM seq_1_to_{TASKS}
        """,
        "UPDATE schedule_task SET planned_inputs = plan_inputs",
        "UPDATE schedule_task SET cron = '0 0 * * *' WHERE id % 2000 = 9",
        f"""
        INSERT INTO schedule_task_lock (schedule_task_id, locked_by, locked_at, is_locked)
        SELECT seq, NULL, '{now}' - INTERVAL 1 DAY, 0 FROM seq_1_to_{TASKS}
        """,
    ]


def _instances(now: datetime) -> list[str]:
    task = f"IF(seq % 5 = 0, {BUSY_TASK} + (seq DIV 5) % 10, 1 + (seq * 7919) % {TASKS})"
    live_worker = f"{DEAD_WORKERS + 1} + seq % {LIVE_WORKERS}"
    return [
        # nine in ten succeeded, one in a thousand was canceled
        f"""
        INSERT INTO schedule_instance (id, schedule_task_id, status, schedule_datetime, due_at, run_number, origin,
            priority, schedule_worker_node_id, attempt, gmt_assigned, gmt_started, gmt_completed, execution_result)
        SELECT seq, {task}, IF(seq % 1000 = 0, 'canceled', IF(seq % 10 = 1, 'failed', 'succeed')),
            '{now}' - INTERVAL {ENDED} - seq + 60 SECOND, '{now}' - INTERVAL {ENDED} - seq + 60 SECOND, 0, 'cron',
            seq % 10, 1 + seq % {DEAD_WORKERS + LIVE_WORKERS}, 1, '{now}', '{now}',
            '{now}' - INTERVAL {ENDED} - seq + 60 SECOND, '{{"rows":42}}'
        FROM seq_1_to_{ENDED}
        """,
        # a tenth as SQL inserts them, without due_at and run_number; a third not due for an hour; most are retries
        f"""
        INSERT INTO schedule_instance (id, schedule_task_id, status, schedule_datetime, due_at, run_number, origin,
            priority, attempt, failures)
        SELECT {ENDED} + seq, 1 + (seq * 17) % {TASKS}, 'pending', '{now}' - INTERVAL seq SECOND,
            IF(seq % 10 = 0, NULL, '{now}' - INTERVAL 60 SECOND + INTERVAL IF(seq % 3 = 0, 3600, seq % 60) SECOND),
            IF(seq % 10 = 0, NULL, 0), IF(seq % 10 = 0, 'sql', 'cron'), seq DIV 10 % 10,
            IF(seq % 10 = 0, 0, seq % 4), IF(seq % 10 = 0, 0, seq % 4)
        FROM seq_1_to_{PENDING}
        """,
        f"""
        INSERT INTO schedule_instance (id, schedule_task_id, status, schedule_datetime, due_at, run_number, origin,
            priority, schedule_worker_node_id, gmt_assigned, creator)
        SELECT {ENDED + PENDING} + seq, 1 + (seq * 23) % {TASKS}, 'assigned', '{now}' + INTERVAL seq % 5 SECOND,
            '{now}' + INTERVAL seq % 5 SECOND, 0, 'cron', seq DIV 10 % 10, {live_worker}, '{now}', 'scheduler'
        FROM seq_1_to_{ASSIGNED}
        """,
        f"""
        INSERT INTO schedule_instance (id, schedule_task_id, status, schedule_datetime, due_at, run_number, origin,
            priority, schedule_worker_node_id, attempt, overlap_slot, gmt_assigned, gmt_started)
        SELECT {INSTANCES - RUNNING} + seq, 1 + (seq * 29) % {TASKS}, 'running', '{now}' - INTERVAL 60 SECOND,
            '{now}' - INTERVAL 60 SECOND, 0, 'cron', seq DIV 10 % 10, {live_worker}, 1,
            IF((seq * 29) % 4 = 2, NULL, 0), '{now}', '{now}'
        FROM seq_1_to_{RUNNING}
        """,
    ]


def _nodes() -> list[str]:
    """Two of each active instance, and of the newest tenth of those that have ended."""
    ended = ENDED // 10
    return [
        f"""
        INSERT INTO schedule_task_node (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence,
            status, execution_result)
        SELECT i.id, i.gmt_create, 1 + (seq + 1) % 2, 1 + (seq + 1) % 2, 'succeed', '{{"rows":42}}'
        FROM seq_1_to_{2 * ended} JOIN schedule_instance i ON i.id = {ENDED - ended} + (seq + 1) DIV 2
        """,
        f"""
        INSERT INTO schedule_task_node (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence,
            status)
        SELECT i.id, i.gmt_create, 1 + (seq + 1) % 2, 1 + (seq + 1) % 2,
            IF((seq + 1) DIV 2 > {ASSIGNED} AND seq % 2 = 1, 'running', 'pending')
        FROM seq_1_to_{2 * (ASSIGNED + RUNNING)} JOIN schedule_instance i ON i.id = {ENDED + PENDING} + (seq + 1) DIV 2
        """,
    ]
