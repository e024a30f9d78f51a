"""The ceiling: the bare writes of an instance's whole life, as many as this database and this driver can take.

The same rows, columns, indexes and durability as Rota's: the instance and its nodes inserted, the task's plan advanced,
the instance and its first node ``running``; then each node ``succeed`` with a result, and the next one ``running``; in
the end the instance ``succeed``, too. For one node that is three transactions for each batch, and one more for each
further node. Three processes, each with its own tasks. No locks, no reads, no decisions, no handler: nothing that does
the work can reach it.
"""

import json
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from pymysql.connections import Connection

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.cpu import Meter
from benchmarks.lab import Lab
from benchmarks.system import System, now, written
from tests.harness.databases import connect

PROCESSES = 3
BATCH = 1000
BATCH_BYTES = 4 * 1024 * 1024
DEADLINE = 120.0
RESULT = {"ok": True}

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


def ceiling(lab: Lab, count: int, nodes: int = 1, result: object = RESULT) -> Outcome:
    """One run over an empty history: instances of so many nodes, each with this result."""
    context = multiprocessing.get_context("spawn")
    with lab.rota_database() as url, lab.records() as records, System(url, records) as rota:
        rota.add_tasks(count)
        moment = now().replace(microsecond=0)
        rota.fire_all(moment)
        ((first, last),) = rota.sql("SELECT MIN(id), MAX(id) FROM schedule_task")
        bounds = [first + (last + 1 - first) * part // PROCESSES for part in range(PROCESSES + 1)]
        ready, go = context.Semaphore(0), context.Event()
        life = (moment, nodes, json.dumps(result))
        lives = [
            context.Process(target=_live, daemon=True, args=(url, range(low, high), worker, life, (ready, go)))
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
            assert ended == [(count * nodes,)], ended
            return Outcome(figures)
        finally:
            for process in lives:
                process.kill()


def _live(url: str, tasks: range, worker: int, life: tuple[datetime, int, str], gate: tuple[Any, Any]) -> None:
    """The lives of one process's tasks, a batch at a time."""
    ready, go = gate
    moment, nodes, result = life
    size = max(1, min(BATCH, BATCH_BYTES // len(result)))
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SET time_zone = '+00:00', tx_isolation = 'READ-COMMITTED', autocommit = 0,"
            " in_predicate_conversion_threshold = 0"
        )
        ready.release()
        go.wait()
        for at in range(0, len(tasks), size):
            ids, first_nodes = _begin(connection, tasks[at : at + size], worker, moment, nodes)
            for number in range(nodes):
                _end(connection, ids, [node + number for node in first_nodes], result, is_last=number == nodes - 1)
        ready.release()
        time.sleep(600)  # its CPU seconds are read before it is killed


def _begin(
    connection: Connection, tasks: range, worker: int, moment: datetime, nodes: int
) -> tuple[range, Sequence[int]]:
    """Let the tasks fire and their instances start; returns the instances' ids and those of their first nodes."""
    row = INSERT_ROW.replace("{moment}", written(moment)).replace("{worker}", str(worker))
    with connection.cursor() as cursor:
        cursor.execute(INSERT + ", ".join(row.format(task) for task in tasks))
        ids = range(cursor.lastrowid, cursor.lastrowid + len(tasks))  # consecutive: innodb_autoinc_lock_mode = 1
        rows = (f"({i}, UTC_TIMESTAMP(6), 1, {n}, 'bench', 'bench')" for i in ids for n in range(1, nodes + 1))
        cursor.execute(INSERT_NODES + ", ".join(rows))
        first_nodes = range(cursor.lastrowid, cursor.lastrowid + nodes * len(tasks), nodes)
        following = written(moment + timedelta(days=1))
        cursor.execute(ADVANCE.format(listed(tasks), quoted([following] * len(tasks))))
        connection.commit()
        cursor.execute(START.format(listed(ids)))
        cursor.execute(START_NODES.format(listed(first_nodes)))
        connection.commit()
    return ids, first_nodes


def _end(connection: Connection, ids: range, nodes: Sequence[int], result: str, *, is_last: bool) -> None:
    """Let these nodes succeed; and then the next ones start, or the instances end."""
    times, results = quoted([written(now())] * len(ids)), quoted([result] * len(ids))
    with connection.cursor() as cursor:
        ended: list[tuple[str, Sequence[int], str]] = [("schedule_task_node", nodes, "")]
        if is_last:
            ended.append(("schedule_instance", ids, SIGNED))
        for table, keys, more in ended:
            cursor.execute(END.format(table=table, ids=listed(keys), results=results, times=times, more=more))
        if not is_last:
            cursor.execute(START_NODES.format(listed(node + 1 for node in nodes)))
        connection.commit()


def listed(numbers: Iterable[int]) -> str:
    """Numbers between commas."""
    return ", ".join(map(str, numbers))


def quoted(texts: Iterable[str]) -> str:
    """Texts that need no escapes, in quotes between commas."""
    return ", ".join(f"'{text}'" for text in texts)
