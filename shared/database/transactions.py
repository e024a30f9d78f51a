"""The database: one engine for each process, and whole transactions, which are retried.

After a deadlock, a lock wait, a conflict at commit or a lost connection, Rota runs the transaction again from its
beginning, after a random delay. So every transaction in Rota may run twice: its writes are guarded, and the second run
finds by key the rows that a lost commit may have written already.
"""

import math
import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Table, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from tenacity import RetryError, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from rota.shared.clock import FAR_SECONDS, Clock, DatabaseClock
from rota.shared.database.backend import ErrorKind, Limits
from rota.shared.database.backends import backend_of
from rota.shared.database.constructs import UtcNow
from rota.shared.database.kept import KeptConnection
from rota.shared.database.outage import Outage
from rota.shared.database.refusals import is_locked, is_refusal, sentence
from rota.shared.database.servers import Servers
from rota.shared.database.urls import has_several_hosts, named, parsed, shown
from rota.shared.database.wariness import Wariness
from rota.shared.domain.errors import DatabaseAway, DatabaseProblem

T = TypeVar("T")
R = TypeVar("R")

FIRST_RETRY_SECONDS = 0.02

LAST_TRY_SECONDS = 0.1
"""A row that is locked is tried once more within this time: Rota's own locks last for less."""

PARTS = 32
"""Into so many parts a batch is parted where each lock is waited for, instead of halves: 1,000 rows in two steps."""

CONNECTIONS_AHEAD = 4
"""How many connections a service opens ahead: about as many threads use one at the same time."""

CROSSED = (ErrorKind.CONFLICT, ErrorKind.OUTAGE)
"""The errors after which a transaction may soon succeed."""

PASSING = (*CROSSED, ErrorKind.LOCKED)
"""The errors after which a transaction is run again."""


class Database:
    """An engine, the database's clock, and functions that read and write in transactions.

    with opened("mysql://rota:…@db/rota") as database:
        tasks = database.read(lambda connection: connection.execute(...).all())
    """

    def __init__(
        self,
        url: str,
        *,
        call_timeout: float = 10,
        connect_timeout: float | None = None,
        retry_seconds: float = 5,
        clock: Clock | None = None,
        outage: Outage | None = None,
    ) -> None:
        """``call_timeout`` limits one call, in seconds, and ``connect_timeout`` to connect, by default as long;
        transactions are retried for ``retry_seconds``.

        ``outage`` is that of another object for the same database, so that an outage is said once. ``clock`` is for
        simulations: sessions then use its time instead of the server's. Raises ConfigurationError for a database that
        Rota does not run on.
        """
        self.url = normalised(url)
        self.backend = backend_of(self.url)
        self.clock: Clock = clock or DatabaseClock(lambda: self.read(database_time))
        self.servers = Servers(self.clock.observe)
        self._limits = Limits(call_timeout, connect_timeout or call_timeout)
        self.engine = self.backend.engine(self.url, self._limits, self.servers)
        self._writer = self.engine.execution_options(rota_write=True)
        self._lone_writer = self.engine if self.backend.commits_lone_statements else self._writer
        self._retry_seconds = retry_seconds
        self.outage = outage or Outage(named(self.url), self.clock)
        self.wariness = Wariness(self.clock)
        self._making = threading.Lock()
        self._unwaiting: Engine | None = None
        """Its sessions wait for no lock. It is made when one was in the way."""

        self._is_simulated = clock is not None
        if self._is_simulated:
            self.backend.follow(self.engine, self.clock)

    def connect_ahead(self) -> None:
        """If the database is far away, open connections before threads need them: it takes several round trips.

        Connections are used in turn, so that none of these is idle for long. Raises DatabaseProblem as ``read`` does.
        """
        if self.clock.round_trip() >= FAR_SECONDS:
            self._hold(CONNECTIONS_AHEAD)

    def _hold(self, connections: int) -> None:
        self.read(lambda _: self._hold(connections - 1) if connections > 1 else None)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which only reads; a retry runs all of it again.

        Each statement has its own snapshot. If the database allows it, there is no transaction, and a single SELECT
        costs one round trip. Raises DatabaseProblem if the database stays away for ``retry_seconds``, and whatever
        ``work`` raises.
        """
        return self._run(self.engine, work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction and commit; a retry runs all of it again.

        Raises DatabaseProblem if the database stays away for ``retry_seconds``, and whatever ``work`` raises.
        """
        return self._run(self._writer, work)

    def kept(self) -> KeptConnection | None:
        """For ``write_undisturbed`` by one thread. None with several hosts: there the pool must see each commit."""
        return None if has_several_hosts(self.url) else KeptConnection(self._writer, self.clock.monotonic)

    def write_undisturbed(self, work: Callable[[Connection], T], kept: KeptConnection | None = None) -> T | None:
        """Run ``work`` in a transaction and commit; None if that failed for a lock, a conflict or an outage.

        Then it may have been committed all the same, if the answer was lost. It waits for no lock for a minute after a
        lock was in the way. Raises whatever else ``write`` raises.
        """
        try:
            return self.write_unless_locked(work, kept)
        except DBAPIError as error:
            if not is_locked(error):
                raise
            return None

    def write_unless_locked(self, work: Callable[[Connection], T], kept: KeptConnection | None = None) -> T | None:
        """``write_undisturbed``, but a lock raises DBAPIError (``is_locked``): nothing was committed."""
        if self.wariness.is_wary():
            if kept is not None:  # else it would be idle for as long as that lasts
                kept.give_back()
            return self._undisturbed(self._unwaiting_writer, work)
        try:
            return self._undisturbed(kept or self._writer, work)
        except DBAPIError as error:
            if is_locked(error):
                self.wariness.met()
            raise

    def read_undisturbed(self, work: Callable[[Connection], T]) -> T | None:
        """``read``, but it is not tried again: None if it failed for a conflict or an outage."""
        return self._undisturbed(self.engine, work)

    def _undisturbed(self, engine: Engine | KeptConnection, work: Callable[[Connection], T]) -> T | None:
        try:
            return _once(engine, work)
        except DBAPIError as error:
            if self.backend.kind_of(error) not in CROSSED:
                raise
            return None

    def write_one(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which is one statement that may run twice.

        If the database allows it, the statement commits itself, without a transaction. Raises as ``write`` does.
        """
        return self._run(self._lone_writer, work)

    def write_by_halves(
        self,
        rows: Sequence[R],
        work: Callable[[Connection, Sequence[R]], object],
        refused: Callable[[R, DBAPIError], object] | None,
        named: Callable[[R], str],
    ) -> list[R]:
        """Run ``work`` on the rows in one transaction. If the database refuses that, or if somebody else has locked
        what it writes, run it on each half of them.

        So one row that SQL wrote, or that an open transaction has locked, cannot stop the others. A row that is refused
        alone is given to ``refused`` with the error (None: that is raised). The rows of which nothing is written, since
        something of each is locked, are returned, and logged by the names that ``named`` gives. After the first lock,
        no transaction waits for one for a minute.

            held_up = database.write_by_halves([3, 4], cancel, log_refusal, lambda row: f"instance {row}")

        Raises DatabaseProblem as ``write`` does, and whatever ``work`` raises that is no refusal of data.
        """
        held_up = list(self._by_halves(rows, work, refused)) if rows else []
        if held_up and not self._least_wait:  # a lock of Rota's own is gone after that
            self.clock.sleep(random.uniform(FIRST_RETRY_SECONDS, LAST_TRY_SECONDS))  # noqa: S311 - no two at once
            held_up = [one for one in held_up if self._by_halves([one], work, refused)]
        self.wariness.passed_over(map(named, held_up))
        return held_up

    def write_what_is_free(self, rows: Sequence[R], work: Callable[[Connection, Sequence[R]], object]) -> Sequence[R]:
        """``write_by_halves`` for who tries again soon: what is held up is not tried once more, nor logged."""
        return self._by_halves(rows, work, None) if rows else ()

    def _by_halves(
        self,
        rows: Sequence[R],
        work: Callable[[Connection, Sequence[R]], object],
        refused: Callable[[R, DBAPIError], object] | None,
    ) -> Sequence[R]:
        try:
            self.write_if_free(lambda connection: work(connection, rows))
        except DBAPIError as error:
            if not is_locked(error) and not is_refusal(error):
                raise
            if len(rows) == 1 and is_locked(error):
                return rows
            if len(rows) == 1:
                if refused is None:
                    raise
                refused(rows[0], error)
                return ()
            size = math.ceil(len(rows) / (PARTS if self._least_wait and is_locked(error) else 2))
            parts = [rows[at : at + size] for at in range(0, len(rows), size)]
            if self._least_wait:  # there the time may be over before the last part: it is not always the same one
                random.shuffle(parts)
            return [one for part in parts for one in self._by_halves(part, work, refused)]
        return ()

    def write_if_free(self, work: Callable[[Connection], T]) -> T:
        """``write``, but a lock raises DBAPIError (``is_locked``): after one wait, and for a minute then at once."""
        if not self.wariness.is_wary():
            try:
                return self._run(self._writer, work, CROSSED)
            except DBAPIError as error:
                if not is_locked(error):
                    raise
                self.wariness.met()
                if self._least_wait:
                    raise
        return self._run(self._unwaiting_writer, work, CROSSED)

    @property
    def _least_wait(self) -> float:
        return self.backend.least_lock_wait(self.engine)

    @property
    def _unwaiting_writer(self) -> Engine:
        with self._making:
            if self._unwaiting is None:
                self._unwaiting = self.backend.engine(
                    self.url, self._limits._replace(waits_for_locks=False), self.servers
                )
                if self._is_simulated:
                    self.backend.follow(self._unwaiting, self.clock)
        return self._unwaiting.execution_options(rota_write=True)

    def insert(self, table: Table, work: Callable[[Connection], list[int]]) -> list[int]:
        """Run ``work``, which inserts rows without a unique key into ``table``, and return their ids.

        If the answer to the commit is lost, this looks for the ids of the first attempt, which the database never gives
        again. If they are there, it does not run ``work`` again. So each row is inserted once.

            database.insert(schedule_scheduler_node, lambda c: [schedulers.register(c, declaration)])
        """
        made: list[int] = []

        def once(connection: Connection) -> list[int]:
            if made and connection.scalar(select(table.c.id).where(table.c.id == made[0])) is not None:
                return list(made)
            made[:] = work(connection)
            return list(made)

        return self.write(once)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
        if self._unwaiting is not None:
            self._unwaiting.dispose()

    def _run(self, engine: Engine, work: Callable[[Connection], T], passing: Collection[ErrorKind] = PASSING) -> T:
        try:
            done = _once(engine, work)
        except DBAPIError as error:
            if self.backend.kind_of(error) not in passing:
                raise
            done = self._run_again(engine, work, passing)
        self.outage.over()
        return done

    def _run_again(self, engine: Engine, work: Callable[[Connection], T], passing: Collection[ErrorKind]) -> T:
        retrying = Retrying(
            retry=retry_if_exception(partial(self._passes, passing=passing)),
            wait=wait_random_exponential(multiplier=FIRST_RETRY_SECONDS, max=1),
            stop=stop_after_delay(self._retry_seconds),
            sleep=self.clock.sleep,
        )
        try:
            self.clock.sleep(random.uniform(0, FIRST_RETRY_SECONDS))  # noqa: S311 - so that transactions that collided do not again
            done: T = retrying(_once, engine, work)
        except RetryError as error:
            cause = error.last_attempt.exception()
            is_away = isinstance(cause, DBAPIError) and self.backend.kind_of(cause) is ErrorKind.OUTAGE
            problem = DatabaseAway if is_away else DatabaseProblem
            raise problem(f"{shown(self.url)}: {sentence(cause)}") from cause
        return done

    def _passes(self, error: BaseException, passing: Collection[ErrorKind]) -> bool:
        """Whether a transaction may succeed after this error. The second failure in a row is an outage that is said."""
        if not isinstance(error, DBAPIError):
            return False
        kind = self.backend.kind_of(error)
        if kind is ErrorKind.OUTAGE:
            self.outage.note(sentence(error))
        return kind in passing


def _once(engine: Engine | KeptConnection, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)


def database_time(connection: Connection) -> datetime:
    """The time of the database's clock, naive UTC."""
    moment: Any = connection.execute(select(UtcNow())).scalar_one()
    return moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)


def normalised(url: str) -> URL:
    """The URL with the driver that Rota uses: ``mysql+pymysql://…`` for ``mariadb://…``.

    Raises ConfigurationError for a database that Rota does not run on, and for a fault in a list of hosts.
    """
    given = parsed(url)
    return backend_of(given).with_driver(given)


@contextmanager
def opened(url: str, *, call_timeout: float = 10) -> Iterator[Database]:
    """A database by its URL, which is closed at the end of the block; ``call_timeout`` is in seconds."""
    database = Database(url, call_timeout=call_timeout)
    try:
        yield database
    finally:
        database.close()


def connect(url: str) -> Database:
    """A database by its URL, with the default limits; the caller closes it."""
    return Database(url)
