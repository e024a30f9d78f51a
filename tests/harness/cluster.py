"""A cluster under test: a database, schedulers and workers as real processes, and what can be known about them.

Two witnesses see what happens besides Rota's own columns: the handlers' evidence file (``tests.harness.apps``), and a
journal that triggers of the test's own keep of each change of an instance's state.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
from pymysql.cursors import DictCursor

from tests.harness import tasks
from tests.harness.apps import EVIDENCE_FILE, GATE_FOLDER, SERVICE
from tests.harness.databases import connect, for_mysql, is_mariadb, run_sql
from tests.harness.processes import RotaProcess, wait_until

APP = "tests.harness.apps:app"

Row = dict[str, Any]

JOURNAL = (
    """CREATE TABLE test_journal (
        id BIGINT AUTO_INCREMENT PRIMARY KEY, at DATETIME(6) NOT NULL, instance BIGINT NOT NULL,
        was VARCHAR(15), becomes VARCHAR(15), attempt INT, worker BIGINT)""",
    """CREATE TRIGGER test_inserted AFTER INSERT ON schedule_instance FOR EACH ROW
        INSERT INTO test_journal VALUES
        (NULL, UTC_TIMESTAMP(6), NEW.id, NULL, NEW.status, NEW.attempt, NEW.schedule_worker_node_id)""",
    # The row is read again: after an UPDATE IGNORE that a unique key refused, NEW is what might have been.
    """CREATE TRIGGER test_updated AFTER UPDATE ON schedule_instance FOR EACH ROW
        INSERT INTO test_journal
        SELECT NULL, UTC_TIMESTAMP(6), id, OLD.status, status, attempt, schedule_worker_node_id
        FROM schedule_instance WHERE id = NEW.id AND (OLD.status <> status OR OLD.attempt <> attempt)""",
    """CREATE TRIGGER test_deleted AFTER DELETE ON schedule_instance FOR EACH ROW
        INSERT INTO test_journal VALUES
        (NULL, UTC_TIMESTAMP(6), OLD.id, OLD.status, NULL, OLD.attempt, OLD.schedule_worker_node_id)""",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the evidence file: a handler was entered (``enter``), returned (``exit``) or ``raised``."""

    event: str
    boottime: float
    pid: int
    service: str
    instance: int
    attempt: int
    node: str
    task: str
    fire: str


@dataclass
class Cluster:
    """Schedulers and workers over one migrated database; all end with the block.

    with Cluster(url, folder) as cluster:
        cluster.scheduler()
        cluster.worker("w1", "--capacity", "5")
    """

    url: str
    folder: Path
    reached_by: str | None = None
    """The URL that the processes are given, if it is another one."""

    processes: list[RotaProcess] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)
    """The services that the test killed or froze, children and all: what they ran may have run twice."""

    clocks_differ: timedelta = timedelta()
    """By how much the clocks of the database's servers differ: what starts on time by one may be early by another."""

    clocks_late: timedelta = timedelta()
    """By how much the clock of a process may be late after it has moved to another server: by what an answer took."""

    repeats_journal: bool = False
    """Whether the journal may tell of a change twice in a row. Galera's other nodes keep what a trigger wrote for a
    statement that was then refused, although it is gone on the node of the statement."""

    database_failed: bool = False
    """Whether the test took the database away: then processes may complain."""

    def __enter__(self) -> "Cluster":
        self._stack = ExitStack()
        (self.folder / "gates").mkdir(parents=True)
        self.evidence_file.touch()
        run_sql(self.url, *JOURNAL)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def evidence_file(self) -> Path:
        return self.folder / "evidence"

    # Processes

    def scheduler(self, *options: str, environment: Mapping[str, str] | None = None) -> RotaProcess:
        """Start a scheduler."""
        return self._start("scheduler", *options, environment=environment)

    def worker(
        self, name: str, *options: str, app: str = APP, environment: Mapping[str, str] | None = None
    ) -> RotaProcess:
        """Start a worker with the app of these tests."""
        return self._start("worker", "--app", app, "--name", name, *options, environment=environment)

    def _start(self, *arguments: str, environment: Mapping[str, str] | None) -> RotaProcess:
        service = f"{len(self.processes)}-{arguments[0]}"
        process = RotaProcess(
            *arguments,
            database_url=self.reached_by or self.url,
            environment={
                EVIDENCE_FILE: str(self.evidence_file),
                GATE_FOLDER: str(self.folder / "gates"),
                SERVICE: service,
                **(environment or {}),
            },
            log=self.folder / f"{service}.log",
        )
        self.processes.append(process)
        self._stack.callback(process.discard)
        return process.start()

    def discount(self, worker: RotaProcess) -> None:
        """What a worker runs may be cut short, and run again."""
        self.killed.add(worker.log_path.stem)

    def kill(self, worker: RotaProcess) -> None:
        """SIGKILL a worker's guardian, with which the kernel ends the worker."""
        self.discount(worker)
        process = psutil.Process(worker.worker_pid)
        worker.kill()
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, 5, "the worker's end")

    def freeze(self, worker: RotaProcess) -> None:
        """SIGSTOP a worker and its guardian, as the pause of a machine does."""
        self.discount(worker)
        os.kill(worker.worker_pid, signal.SIGSTOP)
        worker.stop_signal(signal.SIGSTOP)

    def thaw(self, worker: RotaProcess) -> None:
        """SIGCONT a worker and its guardian."""
        os.kill(worker.worker_pid, signal.SIGCONT)
        worker.stop_signal(signal.SIGCONT)

    @property
    def is_scheduled(self) -> bool:
        """Whether a scheduler runs."""
        return any(process.alive and process.arguments[0] == "scheduler" for process in self.processes)

    def wait_live(self, *names: str, deadline: float = 30) -> dict[str, int]:
        """Wait until workers of these names are live; returns their ids."""

        def live() -> dict[str, int] | None:
            rows = self.rows("SELECT name, id FROM schedule_worker_node WHERE state = 'live'")
            ids = {row["name"]: row["id"] for row in rows}
            return ids if set(names) <= set(ids) else None

        ids = wait_until(live, deadline, f"workers {', '.join(names)} to be live")
        assert ids is not None
        return ids

    def wait_scheduler(self, deadline: float = 30) -> None:
        """Wait until a scheduler has registered: from then on what is due is on time."""
        running = "SELECT id FROM schedule_scheduler_node WHERE is_deleted = 0"
        wait_until(lambda: self.rows(running), deadline, "a scheduler to have started")

    def open_gate(self, gate: str) -> None:
        """Let the handlers that hold at a gate go on."""
        (self.folder / "gates" / gate).touch()

    # The database, as an operator sees it

    def rows(self, query: str, *values: Any) -> list[Row]:
        """The rows of a query."""
        with closing(connect(self.url)) as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute(query, values)
            return list(cursor.fetchall())

    def row(self, query: str, *values: Any) -> Row:
        """The only row of a query."""
        (row,) = self.rows(query, *values)
        return row

    def execute(self, statement: str, *values: Any) -> int:
        """Run a statement; returns the id it made, if any."""
        with closing(connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(statement if is_mariadb(connection) else for_mysql(statement), values)
            return int(cursor.lastrowid or 0)

    def now(self) -> datetime:
        """The database's time, naive UTC."""
        moment: datetime = self.row("SELECT UTC_TIMESTAMP(6) AS now")["now"]
        return moment

    def boot(self) -> datetime:
        """The database's time when CLOCK_BOOTTIME was zero: to place evidence on the database's clock."""
        best: tuple[float, datetime] | None = None
        with closing(connect(self.url)) as connection, connection.cursor() as cursor:
            for _ in range(5):
                before = time.clock_gettime(time.CLOCK_BOOTTIME)
                cursor.execute("SELECT UTC_TIMESTAMP(6)")
                found = cursor.fetchone()
                after = time.clock_gettime(time.CLOCK_BOOTTIME)
                assert found is not None
                zero = found[0] - timedelta(seconds=(before + after) / 2)
                best = min(best or (after - before, zero), (after - before, zero))
        assert best is not None
        return best[1]

    def add_task(self, name: str, type: str, cron: str | None = None, **columns: Any) -> int:  # noqa: A002
        """Insert a task by SQL; a cron of six fields declares its seconds."""
        given = columns if cron is None else {"cron": cron, **columns}
        return tasks.add_task(self.url, name, type=type, **given)

    def add_instances(self, task: int, count: int = 1, seconds_apart: int = 1) -> list[int]:
        """Insert instances of a task by one statement, for moments that have passed: they are due at once."""
        moment = self.now().replace(microsecond=0) - timedelta(hours=1)
        values = [(task, moment + timedelta(seconds=seconds_apart * number)) for number in range(count)]
        marks = ", ".join(["(%s, %s)"] * count)
        first = self.execute(
            f"INSERT INTO schedule_instance (schedule_task_id, schedule_datetime) VALUES {marks}",
            *itertools.chain.from_iterable(values),
        )
        found = "SELECT id FROM schedule_instance WHERE id >= %s AND schedule_task_id = %s ORDER BY id LIMIT %s"
        return [row["id"] for row in self.rows(found, first, task, count)]

    def instance(self, instance_id: int) -> Row:
        """One instance."""
        return self.row("SELECT * FROM schedule_instance WHERE id = %s", instance_id)

    def instances_of(self, task: int) -> list[Row]:
        """The instances of a task, by their fires."""
        return self.rows(
            "SELECT * FROM schedule_instance WHERE schedule_task_id = %s ORDER BY schedule_datetime, id", task
        )

    def nodes_of(self, instance_id: int) -> list[Row]:
        """The nodes of an instance, in order."""
        return self.rows(
            "SELECT * FROM schedule_task_node WHERE schedule_instance_id = %s ORDER BY sequence", instance_id
        )

    def statuses(self, instance_ids: Sequence[int]) -> dict[int, str]:
        """The states of instances."""
        marks = ", ".join(["%s"] * len(instance_ids))
        rows = self.rows(f"SELECT id, status FROM schedule_instance WHERE id IN ({marks})", *instance_ids)
        return {row["id"]: row["status"] for row in rows}

    def wait_status(self, instance_ids: Sequence[int], *wanted: str, deadline: float = 60) -> None:
        """Wait until each of the instances is in one of these states."""
        seen: dict[int, str] = {}

        def all_there() -> bool:
            seen.clear()
            seen.update(self.statuses(instance_ids))
            return len(seen) == len(instance_ids) and set(seen.values()) <= set(wanted)

        try:
            wait_until(all_there, deadline, f"instances to be {' or '.join(wanted)}")
        except BaseException:
            print({i: s for i, s in seen.items() if s not in wanted})
            raise

    def wait_quiet(self, deadline: float = 30) -> None:
        """Turn every task off and wait until no instance waits or runs."""
        self.execute("UPDATE schedule_task SET status = 'off'")
        alive = "SELECT * FROM schedule_instance WHERE status IN ('pending', 'assigned', 'running')"
        wait_until(lambda: not self.rows(alive), deadline, "every instance to end")

    # The witnesses

    def evidence(self) -> list[Entry]:
        """What the handlers wrote, in the order it was written.

        A last line without an end is left out. The kernel writes a line that crosses a page of the file in two steps,
        and between these a reader may see half of it, or SIGKILL may end the writer.
        """
        *whole, _ = self.evidence_file.read_text().split("\n")
        return [Entry(**json.loads(line)) for line in whole]

    def entries(self, instance_id: int, event: str | None = None) -> list[Entry]:
        """What the handlers wrote about one instance."""
        return [e for e in self.evidence() if e.instance == instance_id and event in (None, e.event)]

    def journal(self) -> Iterator[Row]:
        """Every change of an instance's state, in the order it was made."""
        last: dict[int, tuple[Any, ...]] = {}
        for row in self.rows("SELECT * FROM test_journal ORDER BY id"):
            change = (row["was"], row["becomes"], row["attempt"])
            if not self.repeats_journal or last.get(row["instance"]) != change:
                yield row
            last[row["instance"]] = change

    def print_logs(self, lines: int = 100) -> None:
        """For a test that failed."""
        for process in self.processes:
            print(process.log_tail(lines))
