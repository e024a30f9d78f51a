"""The ceiling: the bare writes of an instance's whole life, as many as this database and this driver can take.

The same rows, columns, indexes and durability as Rota's: the instance and its node inserted, the task's plan advanced,
both ``running``, both ``succeed`` with a result; three transactions for each batch, three processes, each with its own
tasks. No locks, no reads, no decisions, no handler: nothing that does the work can reach it.
"""

import json
import multiprocessing
import time
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.cpu import Meter
from benchmarks.lab import Lab
from benchmarks.system import System, now, written
from tests.harness.databases import connect

PROCESSES = 3
BATCH = 1000
DEADLINE = 120.0
RESULT = json.dumps({"ok": True})

INSERT = (
    "INSERT INTO schedule_instance (schedule_task_id, status, schedule_datetime, due_at, run_number, origin, priority,"
    " schedule_worker_node_id, gmt_assigned, creator, modifier) VALUES"
)
INSERT_ROW = "({}, 'assigned', '{moment}', '{moment}', 0, 'cron', 5, {worker}, UTC_TIMESTAMP(6), 'bench', 'bench')"
INSERT_NODES = (
    "INSERT INTO schedule_task_node (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence,"
    " creator, modifier) VALUES"
)
ADVANCE = "UPDATE schedule_task FORCE INDEX (PRIMARY) SET next_fire_at = ELT(INTERVAL(id, {0}), {1}) WHERE id IN ({0})"
START = (
    "UPDATE schedule_instance FORCE INDEX (PRIMARY) SET status = 'running', attempt = attempt + 1, overlap_slot = 0,"
    " gmt_started = UTC_TIMESTAMP(6) WHERE id IN ({})"
)
START_NODES = (
    "UPDATE schedule_task_node FORCE INDEX (PRIMARY) SET status = 'running', gmt_started = UTC_TIMESTAMP(6)"
    " WHERE id IN ({})"
)
END = (
    "UPDATE {table} FORCE INDEX (PRIMARY)"
    " SET status = 'succeed', execution_result = ELT(INTERVAL(id, {ids}), {results}),"
    " gmt_started = ELT(INTERVAL(id, {ids}), {times}), gmt_completed = ELT(INTERVAL(id, {ids}), {times}){more}"
    " WHERE id IN ({ids})"
)
"""By lists, as Rota does: a join with JSON_TABLE, CASE and a derived table all measured worse."""

SIGNED = ", gmt_modified = UTC_TIMESTAMP(6), modifier = 'worker'"


def cases(scale: Scale) -> list[Case]:
    """As many instances as the drain has."""
    return [Case("ceiling", "database", "", scale.rounds, lambda lab: ceiling(lab, scale.drain))]


def ceiling(lab: Lab, count: int) -> Outcome:
    """One run over an empty history."""
    context = multiprocessing.get_context("spawn")
    with lab.rota_database() as url, lab.records() as records, System(url, records) as rota:
        rota.add_tasks(count)
        moment = now().replace(microsecond=0)
        rota.fire_all(moment)
        ((first, last),) = rota.sql("SELECT MIN(id), MAX(id) FROM schedule_task")
        bounds = [first + (last + 1 - first) * part // PROCESSES for part in range(PROCESSES + 1)]
        ready, go = context.Semaphore(0), context.Event()
        lives = [
            context.Process(target=_live, daemon=True, args=(url, range(low, high), worker, moment, (ready, go)))
            for worker, (low, high) in enumerate(pairwise(bounds), start=1)
        ]
        try:
            for process in lives:
                process.start()
            for _ in lives:
                assert ready.acquire(timeout=DEADLINE), "a process of the ceiling ended"
            server = Meter([lab.mariadb.pid])
            clients = Meter([process.pid for process in lives if process.pid is not None])
            began = time.perf_counter()
            go.set()
            for _ in lives:
                assert ready.acquire(timeout=DEADLINE), "a process of the ceiling ended"
            seconds = time.perf_counter() - began
            figures = {
                "instances/s": count / seconds,
                "seconds": seconds,
                "client CPU s per 1,000": clients.seconds() / count * 1000,
                "database CPU s per 1,000": server.seconds() / count * 1000,
            }
            ended = rota.sql(
                "SELECT COUNT(*) FROM schedule_instance i JOIN schedule_task_node n ON n.schedule_instance_id = i.id"
                " WHERE i.status = 'succeed' AND n.status = 'succeed'"
            )
            assert ended == [(count,)], ended
            return Outcome(figures)
        finally:
            for process in lives:
                process.kill()


def _live(url: str, tasks: range, worker: int, moment: datetime, gate: tuple[Any, Any]) -> None:
    """The lives of one process's tasks, a batch at a time."""
    ready, go = gate
    following = written(moment + timedelta(days=1))
    row = INSERT_ROW.replace("{moment}", written(moment)).replace("{worker}", str(worker))
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SET time_zone = '+00:00', tx_isolation = 'READ-COMMITTED', autocommit = 0,"
            " in_predicate_conversion_threshold = 0"
        )
        ready.release()
        go.wait()
        for at in range(0, len(tasks), BATCH):
            batch = tasks[at : at + BATCH]
            cursor.execute(INSERT + ", ".join(row.format(task) for task in batch))
            first = cursor.lastrowid
            ids = range(first, first + len(batch))  # consecutive: innodb_autoinc_lock_mode = 1
            cursor.execute(INSERT_NODES + ", ".join(f"({i}, UTC_TIMESTAMP(6), 1, 1, 'bench', 'bench')" for i in ids))
            nodes = range(cursor.lastrowid, cursor.lastrowid + len(batch))
            cursor.execute(ADVANCE.format(listed(batch), quoted([following] * len(batch))))
            connection.commit()
            cursor.execute(START.format(listed(ids)))
            cursor.execute(START_NODES.format(listed(nodes)))
            connection.commit()
            times, results = quoted([written(now())] * len(batch)), quoted([RESULT] * len(batch))
            for table, keys, more in (("schedule_task_node", nodes, ""), ("schedule_instance", ids, SIGNED)):
                cursor.execute(END.format(table=table, ids=listed(keys), results=results, times=times, more=more))
            connection.commit()
        ready.release()
        time.sleep(600)  # its CPU seconds are read before it is killed


def listed(numbers: Iterable[int]) -> str:
    """Numbers between commas."""
    return ", ".join(map(str, numbers))


def quoted(texts: Iterable[str]) -> str:
    """Texts that need no escapes, in quotes between commas."""
    return ", ".join(f"'{text}'" for text in texts)
