"""Rows in the state that a test needs, in one line each, made by the store's own verbs.

    rows = Scenario(database)
    worker = rows.worker()
    run = rows.running(worker)                       # a task of its own, fired, claimed
    waiting = rows.pending(rows.task(priority=1))
    assert rows.status(run.id) == "running"

Tasks are of type REPORT, whose nodes are REPORT_EXTRACT and REPORT_SEND. Times are the database's, naive UTC.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from rota.shared.database.sqlite import SQLITE
from rota.shared.database.transactions import Database
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.domain.task import TaskDefinition
from rota.shared.store import fires, instances, invariants, node_types, reports, runs, tasks, turns, workers
from rota.shared.store.overlap import SkipCandidate
from rota.shared.store.runs import NO_SKIP_CANDIDATES
from rota.shared.store.tables import schedule_instance, schedule_task
from rota.shared.store.transitions import giving
from rota.worker_service.running import endings
from tests.harness.claims import claim
from tests.harness.databases import for_mysql, run_sql, unchecked
from tests.harness.tasks import insert_tasks, note_planned

NODE_TYPES = ("REPORT_EXTRACT", "REPORT_SEND")
MYSQL_CHECK_VIOLATED = 3819


class Scenario:
    """A database with the task type REPORT, and what else a test adds."""

    is_far = False
    """Whether workers claim as from afar."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._numbers = itertools.count(1)
        self.types = node_types.NodeTypeNames()
        declared = [node_types.NodeTypeDeclaration(name, "REPORT", at) for at, name in enumerate(NODE_TYPES, 1)]
        database.write(lambda c: node_types.register(c, declared, "test"))
        self.nodes = database.read(node_types.catalog).planned(NODE_TYPES) or []
        database.clock.calibrate()  # one slow answer would make it count as far away
        self.start = database.clock.now().replace(microsecond=0)

    def now(self) -> datetime:
        """The database's time."""
        return self.database.clock.now()

    def task(self, name: str | None = None, **fields: Any) -> int:
        """A task that fires every minute; ``fields`` are those of `TaskDefinition`."""
        given = {"name": name or f"task-{next(self._numbers)}", "type": "REPORT", "cron": "* * * * *", **fields}
        return self.database.write(lambda c: tasks.add(c, TaskDefinition.of(**given), "test"))

    def tasks(self, number: int, **columns: Any) -> list[int]:
        """Many tasks at once, as SQL inserts them."""
        first = next(self._numbers)
        given = {"type": "REPORT", "cron": "* * * * *", **columns}
        return self.database.write(
            lambda c: insert_tasks(c, [{"name": f"many-{first}-{n}", **given} for n in range(number)])
        )

    def planned_task(self, next_fire_at: datetime | None = None, **fields: Any) -> int:
        """A task whose plan the scheduler has made: it stands at ``next_fire_at``, now by default."""
        task = self.task(**fields)
        self.database.write(lambda c: note_planned(c, [task], next_fire_at=next_fire_at or self.start))
        return task

    def worker(self, name: str | None = None, **fields: Any) -> int:
        """A live worker; ``fields`` are those of `WorkerDeclaration`.

        Unless they say otherwise it carries, of each task type, the first version that its node types make.
        """
        given: dict[str, Any] = {
            "name": name or f"worker-{next(self._numbers)}",
            "host": "host",
            "pid": 1,
            "process_identity": "identity",
            "version": "0",
            "capacity": 10,
            "prefetch": 10,
            "liveness_seconds": 15,
            "node_types": list(NODE_TYPES),
            **fields,
        }
        given.setdefault("type_versions", self._carried(given["node_types"]))
        return self.database.write(lambda c: workers.register(c, workers.WorkerDeclaration(**given)))

    def _carried(self, types: Sequence[str]) -> dict[str, str]:
        catalog = self.database.read(node_types.catalog)
        return {
            category: one.version
            for category in catalog.categories
            for one in reversed(catalog.lists_of(category))
            if {node.type for node in one.nodes} <= set(types)
        }

    def past(self) -> datetime:
        """A time in the past that no other instance of this scenario has."""
        return self.start - timedelta(minutes=next(self._numbers))

    def pending(self, task: int | None = None, at: datetime | None = None, **columns: Any) -> int:
        """An instance as the materializer leaves it where no worker fits, due in the past; ``columns`` are set."""
        return self._fired(task, at, None, columns)

    def assigned(self, worker: int, task: int | None = None, at: datetime | None = None, **columns: Any) -> int:
        """An instance given to a worker, due in the past, with its nodes; ``columns`` are set."""
        return self._fired(task, at, worker, columns)

    def queued(self, worker: int, number: int) -> None:
        """Many instances of one task, given to a worker, due in the past and without nodes."""
        task, first = self.task(overlap_policy="allow"), self.past()
        values = {"schedule_task_id": task, "status": "assigned", "schedule_worker_node_id": worker}
        times = {"schedule_datetime": first, "due_at": first, "gmt_assigned": self.now()}
        made = [{**values, **times, "run_number": n} for n in range(number)]
        self.database.write(lambda c: c.execute(insert(schedule_instance), made))

    def running(self, worker: int, task: int | None = None, at: datetime | None = None, **columns: Any) -> runs.Run:
        """An instance that the worker has claimed."""
        instance = self.assigned(worker, task, at, **columns)
        [run] = self.claim(worker, instance).runs
        return run

    def begun(self, worker: int, task: int | None = None, **columns: Any) -> runs.Run:
        """A running instance of which the worker has said that it begins, as of what may run at most once."""
        run = self.running(worker, task, **columns)
        assert self.report(worker, endings.begun(run, run.nodes[0], self.now())) == set()
        return run

    def ended(self, status: str = "succeed", worker: int | None = None, task: int | None = None) -> int:
        """An instance that has ended."""
        worker = worker or self.worker()
        run = self.running(worker, task)
        assert self.report(worker, ended(run, InstanceStatus(status))) == set()
        return run.id

    def fire(self, task: int, at: datetime, worker: int | None = None) -> None:
        """Materialize a fire, given to a worker or pending; it may be there already."""
        row = self.task_row(task)
        in_turn = turns.waits_in_turn(row.overlap_policy, row.max_instances)
        fire = fires.Fire(task, at, 5, None, worker, self.nodes, in_turn=in_turn)
        self.database.write(lambda c: fires.materialize(c, [fire]))

    def by_sql(self, task: int, at: datetime | None = None) -> int:
        """An instance as an operator inserts it."""
        at = at or self.past()
        self.sql(
            "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime) VALUES (:task, :at)",
            task=task,
            at=at.strftime("%Y-%m-%d %H:%M:%S.%f"),
        )
        [(instance,)] = self.sql("SELECT max(id) FROM schedule_instance")
        return int(instance)

    def give(self, worker: int, *instance_ids: int) -> None:
        """Assign pending instances that have their run numbers, and pin their nodes."""

        def give(connection: Connection) -> None:
            giving.give(connection, [(instance, worker, None, None) for instance in instance_ids])
            fires.pin_nodes(connection, [(instance, node) for instance in instance_ids for node in self.nodes])

        self.database.write(give)

    def claim(
        self,
        worker: int,
        *instance_ids: int,
        now: datetime | None = None,
        skip_candidates: Mapping[int, SkipCandidate] = NO_SKIP_CANDIDATES,
        room: float = math.inf,
    ) -> runs.Claim:
        """Claim instances, now if at no other time."""
        return claim(
            self.database,
            worker,
            instance_ids,
            self.types,
            now=now,
            skip_candidates=skip_candidates,
            from_afar=self.is_far,
            room=room,
        )

    def report(self, worker: int, *batch: reports.Report) -> set[int]:
        """Report; returns the instances that are not the worker's any more."""
        return self.database.write(lambda c: reports.report(c, worker, batch))

    def bury(self, worker: int, culprits: list[int] | None = None) -> None:
        """Declare a worker dead."""
        assert self.database.write(lambda c: workers.bury(c, [worker], "test", "test", culprits)) == 1

    def row(self, instance: int) -> Row[Any]:
        """An instance's row, with ``task_name`` and ``worker_name``."""
        return self.database.read(lambda c: instances.find(c, instance))

    def status(self, instance: int) -> str:
        return str(self.row(instance).status)

    def statuses(self) -> dict[int, str]:
        """The status of every instance."""
        statement = select(schedule_instance.c.id, schedule_instance.c.status)
        return self.database.read(lambda c: dict(list(c.execute(statement))))

    def node_statuses(self, instance: int) -> list[str]:
        """The statuses of an instance's nodes, in order."""
        return [node.status for node in self.database.read(lambda c: instances.nodes(c, instance))]

    def broken(self) -> dict[str, list[int]]:
        """The invariants that do not hold, with the ids of the rows that break them."""
        found = {i.name: self.database.read(partial(invariants.breaches, invariant=i)) for i in invariants.INVARIANTS}
        return {name: ids for name, ids in found.items() if ids}

    def task_row(self, task: int) -> Row[Any]:
        statement = select(schedule_task).where(schedule_task.c.id == task)
        return self.database.read(lambda c: c.execute(statement).one())

    @property
    def on_mysql(self) -> bool:
        """Whether the server to which the database is connected is MySQL, and not MariaDB."""
        dialect: Any = self.database.engine.dialect
        return dialect.name == "mysql" and not dialect.is_mariadb

    def sql(self, statement: str, **values: Any) -> Sequence[Row[Any]]:
        """Run plain SQL as an operator would who has turned the CHECKs off: Rota's own sessions do not check.

        On MySQL no session can do so. There the first statement that a CHECK refuses turns off those of the database.
        """

        def run(connection: Connection) -> Sequence[Row[Any]]:
            result = connection.execute(text(for_mysql(statement) if self.on_mysql else statement), values)
            return list(result) if result.returns_rows else []

        try:
            return self.database.write(run)
        except DBAPIError as error:
            if self.database.backend is SQLITE or error.orig is None or error.orig.args[0] != MYSQL_CHECK_VIOLATED:
                raise
        url = self.database.url.render_as_string(hide_password=False)
        run_sql(url, *unchecked(url))
        return self.database.write(run)

    def _fired(self, task: int | None, at: datetime | None, worker: int | None, columns: dict[str, Any]) -> int:
        task = task or self.task()
        at = at or self.past()
        self.fire(task, at, worker)
        its_fire = (schedule_instance.c.schedule_task_id == task, schedule_instance.c.schedule_datetime == at)
        instance = self.database.read(lambda c: c.scalar(select(schedule_instance.c.id).where(*its_fire)))
        assert instance is not None
        if columns:
            statement = update(schedule_instance).where(schedule_instance.c.id == instance).values(**columns)
            self.database.write(lambda c: c.execute(statement).rowcount)
        return int(instance)


def ended(run: runs.Run, status: InstanceStatus = InstanceStatus.SUCCEED, result: str = "42") -> reports.Report:
    """A report that ends a run, and all its nodes, so."""
    moment = run.due_at
    nodes = [reports.NodeReport(n.id, NodeStatus(status.value), result, moment, moment) for n in run.nodes]
    instance = reports.InstanceReport(status, result, None, moment, moment, run.failures)
    return reports.Report(run.id, run.attempt, nodes, instance)


def failed_while_its_thread_runs(run: runs.Run) -> reports.Report:
    """A report that ends a run as failed, whose thread has not returned: the run keeps its overlap slot."""
    report = ended(run, InstanceStatus.FAILED)
    assert report.instance is not None
    return replace(report, instance=replace(report.instance, lingers=True))


def stepped(run: runs.Run) -> reports.Report:
    """A report that the first node of two succeeded after a second, and that the second one has started."""
    first, second = run.nodes
    completed = run.due_at + timedelta(seconds=1)
    done = reports.NodeReport(first.id, NodeStatus.SUCCEED, '{"rows":42}', run.due_at, completed)
    return reports.Report(
        run.id, run.attempt, [done, reports.NodeReport(second.id, NodeStatus.RUNNING, gmt_started=completed)]
    )


def succeeded(run: runs.Run, result: str = "42") -> reports.Report:
    """A report that a run's last node, and so the run, succeeded."""
    moment = run.due_at
    node = reports.NodeReport(run.nodes[-1].id, NodeStatus.SUCCEED, result, moment, moment)
    instance = reports.InstanceReport(InstanceStatus.SUCCEED, result, None, moment, moment, run.failures)
    return reports.Report(run.id, run.attempt, [node], instance)


def to_retry(run: runs.Run, due_at: datetime, reason: str = "it failed") -> reports.Report:
    """A report of a run that failed and is to run again: its first node succeeded, its second is pending."""
    first, second = run.nodes
    nodes = [
        reports.NodeReport(first.id, NodeStatus.SUCCEED, "1", run.due_at, run.due_at),
        reports.NodeReport(second.id, NodeStatus.PENDING),
    ]
    instance = reports.InstanceReport(InstanceStatus.PENDING, None, reason, None, None, run.failures + 1, due_at)
    return reports.Report(run.id, run.attempt, nodes, instance)
