"""Several at once, on real connections: a race from one barrier, and a transaction that stands open meanwhile."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from rota.shared.database.mysql import MYSQL
from rota.shared.database.transactions import Database
from tests.harness.databases import MariaDBServer, run_sql
from tests.harness.processes import wait_until

T = TypeVar("T")

DEADLINE = 60.0


def together(*works: Callable[[], T]) -> list[T]:
    """Start the works at one moment, each on a thread of its own; returns what they return."""
    barrier = Barrier(len(works), timeout=DEADLINE)

    def run(work: Callable[[], T]) -> T:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(run, work) for work in works]
        return [future.result(DEADLINE) for future in futures]


def stays_open(connection: Connection) -> str:
    """The setting with which a server leaves the session's transaction open, however long it idles."""
    mariadb: bool = connection.dialect.is_mariadb  # type: ignore[attr-defined]
    return "wait_timeout = 3600, idle_transaction_timeout = 0" if mariadb else "wait_timeout = 3600"


@contextmanager
def uncommitted(database: Database, work: Callable[[Connection], T]) -> Iterator[T]:
    """What `work` returns, in a transaction that stands open until the end of the block, and commits then.

    So stands a process that is frozen before its commit; here the server does not end it for being idle.
    """
    with database.engine.execution_options(rota_write=True).connect() as connection:
        if database.backend is MYSQL:
            connection.execute(text(f"SET {stays_open(connection)}"))
            connection.commit()
        with connection.begin():
            done = work(connection)
            connection.execute(text("SELECT 1"))  # it takes along what waits to be sent
            yield done
        if database.backend is MYSQL:
            connection.invalidate()  # its session is not as others are


@contextmanager
def impatient(database: Database) -> Iterator[Database]:
    """The same database, for one who does not try again: a lock that had to be waited for fails at once."""
    other = Database(database.url.render_as_string(hide_password=False), retry_seconds=0)
    try:
        yield other
    finally:
        other.close()


def wait_for_lock_wait(server: MariaDBServer, future: "Future[T]") -> None:
    """Return when some transaction of the server waits for a lock; fails if `future` ends before."""

    def waits() -> bool:
        assert not future.done(), f"it did not wait: {future.result()!r}"
        [(number,)] = run_sql(
            server.admin_url(), "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        )
        return bool(number)

    wait_until(waits, what="a transaction to wait for a lock")


@contextmanager
def gap_locked(database: Database, table: str, where: str, **values: Any) -> Iterator[None]:
    """The same in a console as servers open them, at REPEATABLE READ: nobody can insert such a row, either."""
    with database.engine.connect() as console:
        console.execute(text(f"SET {stays_open(console)}"))
        console.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        console.exec_driver_sql("BEGIN")
        console.execute(text(f"SELECT * FROM {table} WHERE {where} FOR UPDATE"), values).all()
        yield
        console.exec_driver_sql("ROLLBACK")
        console.invalidate()  # its session is not as others are


@contextmanager
def locked(database: Database, table: str, where: str = "1 = 1", **values: Any) -> Iterator[None]:
    """Another session holds ``SELECT … FOR UPDATE`` on these rows."""
    with database.engine.execution_options(rota_write=True).begin() as console:
        console.execute(text(f"SET {stays_open(console)}"))
        console.execute(text(f"SELECT * FROM {table} WHERE {where} FOR UPDATE"), values).all()
        yield
