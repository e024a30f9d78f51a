"""What interleavings are staged with: tasks and workers made by SQL, services in this process, gates at statements."""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import event, make_url

from rota.scheduler_service.app import Scheduler
from rota.shared.database.transactions import Database, opened
from rota.shared.settings import Settings
from rota.shared.store import node_types, workers
from rota.shared.store.node_types import NodeTypeDeclaration, NodeTypeNames
from rota.shared.store.runs import Claim
from rota.shared.store.workers import WorkerDeclaration
from rota.worker_service.app import Worker
from rota.worker_service.authoring import Rota
from rota.worker_service.context import NodeContext
from tests.harness import claims, tasks
from tests.harness.databases import MariaDBServer, run_sql
from tests.harness.processes import wait_until

T = TypeVar("T")

TYPE = "STAGED"
QUICK: Mapping[str, Any] = {
    "lookahead_seconds": 2,
    "tick_seconds": 0.25,
    "poll_seconds": 0.2,
    "lock_lease_seconds": 1,
    "heartbeat_seconds": 0.5,
    "liveness_seconds": 60,  # a worker in this process that lost its lease would end the tests with it
    "grace_seconds": 2,
    "capacity": 10,
}
"""Settings under which a test need not wait long."""

Ran = tuple[str, datetime, int]
"""One run of a handler: the task's name, the fire's own time (naive UTC), the run number."""


def quick_settings(url: str, **options: Any) -> Settings:
    return Settings.load(database_url=url, **{**QUICK, **options})


def staged_app(ran: list[Ran]) -> Rota:
    """An app with one task type, which writes down its runs."""
    app = Rota()

    @app.task(TYPE)
    def staged(ctx: NodeContext) -> dict[str, int]:
        fire = ctx.schedule_datetime.astimezone(UTC).replace(tzinfo=None)
        ran.append((ctx.task_name, fire, ctx.run_number))
        return {"attempt": ctx.attempt}

    return app


@contextmanager
def working(url: str, ran: list[Ran], **options: Any) -> Iterator[Worker]:
    """A worker in this process."""
    name = f"staged-{uuid.uuid4().hex[:8]}"
    worker = Worker(quick_settings(url, **{"worker_name": name, **options}), staged_app(ran))
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


@contextmanager
def scheduling(url: str, **options: Any) -> Iterator[Scheduler]:
    """A scheduler in this process."""
    with opened(url) as database:
        scheduler = Scheduler(database, quick_settings(url, **options))
        scheduler.start()
        try:
            yield scheduler
        finally:
            scheduler.stop()


def add_worker(database: Database, name: str = "staged", **fields: Any) -> int:
    """The row of a live worker that can run the staged type and never beats; returns its id."""
    declaration: dict[str, Any] = {
        "name": name,
        "host": "staged",
        "pid": 1,
        "process_identity": f"another-boot/{uuid.uuid4().hex}",
        "version": "0",
        "capacity": 50,
        "prefetch": 1000,
        "liveness_seconds": 3600,
        "node_types": [TYPE],
        "type_versions": node_types.versions_of([NodeTypeDeclaration(TYPE, TYPE)]),
        **fields,
    }
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration(TYPE, TYPE)], by="test"))
    return database.write(lambda c: workers.register(c, WorkerDeclaration(**declaration)))


def add_task(url: str, name: str, *, planned: bool = True, **columns: Any) -> int:
    """Insert a task of the staged type that is never late; `planned`: as if a scheduler had just planned it."""
    return tasks.add_task(
        url,
        name,
        planned=planned,
        **{"type": TYPE, "cron_seconds": 1, "overlap_policy": "allow", "misfire_grace_seconds": 3600, **columns},
    )


def insert_row(url: str, table: str, **values: Any) -> None:
    """INSERT one row; None is NULL."""
    run_sql(url, insertion(table, **values))


def insertion(table: str, **values: Any) -> str:
    """The statement that inserts one row; None is NULL."""
    written = ", ".join("NULL" if value is None else f"'{value}'" for value in values.values())
    return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({written})"


def ended_at(moment: datetime) -> dict[str, Any]:
    """The columns of a cron fire that succeeded at its own time."""
    times = dict.fromkeys(("due_at", "gmt_started", "gmt_completed"), moment)
    return {"origin": "cron", "status": "succeed", "attempt": 1, **times}


def database_second(url: str) -> datetime:
    """The database's clock, naive UTC, at the begin of its present second."""
    now: datetime = run_sql(url, "SELECT UTC_TIMESTAMP()")[0][0]
    return now


def every_year_at(moment: datetime) -> str:
    """A six-field cron that fires at this second of this day."""
    return f"{moment.second} {moment.minute} {moment.hour} {moment.day} {moment.month} *"


def claim(database: Database, worker_id: int, *ids: int) -> Claim:
    return claims.claim(database, worker_id, ids, NodeTypeNames())


def send_what_waits(connection: Any) -> None:
    """Send the statements that the connection has kept for the next one: the worst moment to be held up at."""
    with connection.connection.cursor() as cursor:
        cursor.execute("SELECT 1")


class Gate:
    """Holds whoever is about to say something to this database, until it is opened.

        with Gate(database, lambda text: "FOR UPDATE" in text) as gate, Thread(step) as stepping:
            gate.reached()    # the transaction stands open just before that statement
            gate.open()

    Only the first to come is held. `COMMIT` is said by `commit`, which is not a statement.
    """

    def __init__(self, database: Database, at: Callable[[str], bool]) -> None:
        self._engine = database.engine
        self._at = at
        self._lock = threading.Lock()
        self._was_reached = threading.Event()
        self._opened = threading.Event()

    def reached(self, deadline: float = 10.0) -> None:
        wait_until(self._was_reached.is_set, deadline, "the gate to be reached")

    def open(self) -> None:
        self._opened.set()

    def _statement(self, connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        self._hold(connection, text)

    def _commit(self, connection: Any) -> None:
        if connection.get_execution_options().get("rota_write"):
            self._hold(connection, "COMMIT")

    def _hold(self, connection: Any, text: str) -> None:
        with self._lock:
            if self._was_reached.is_set() or not self._at(" ".join(text.split())):
                return
            send_what_waits(connection)
            self._was_reached.set()
        assert self._opened.wait(30), "the gate was never opened"

    def __enter__(self) -> "Gate":
        event.listen(self._engine, "before_cursor_execute", self._statement)
        event.listen(self._engine, "commit", self._commit)
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        event.remove(self._engine, "before_cursor_execute", self._statement)
        event.remove(self._engine, "commit", self._commit)


class Beside:
    """`work` on a thread; leaving the block waits for its end and raises what it raised.

    with Beside(materializer.step) as stepping: ...
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._error: BaseException | None = None
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's thread
            self._error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(30)
        assert self.ended, "still at work after 30 s"
        if self._error is not None:
            raise self._error
        return self._result

    def forgive(self) -> None:
        """The test has seen what it raised."""
        self._error = None

    def __enter__(self) -> "Beside":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.result()


@contextmanager
def two_databases(url: str) -> Iterator[tuple[Database, Database]]:
    """Two processes' views of one database, their clocks measured."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(opened(url)) for _ in range(2))
        first.clock.calibrate()
        second.clock.calibrate()
        yield first, second


def wait_for_lock_wait(server: MariaDBServer, url: str, deadline: float = 5.0) -> None:
    """Wait until a statement of this database waits for a row lock."""
    waits = (
        "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p"
        f" ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = '{make_url(url).database}'"
    )
    wait_until(lambda: run_sql(server.admin_url(), waits)[0][0], deadline, "a statement to wait for a row lock")
