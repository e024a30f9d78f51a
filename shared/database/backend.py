"""The protocol of a database: everything that differs between the databases on which Rota runs.

Each database has one file. It holds a class with these members, and compiles each construct of ``constructs``.
``backends`` finds the file by the URL.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sqlalchemy import CheckConstraint, Column, Connection, Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from rota.shared.clock import Clock
from rota.shared.database.servers import Servers
from rota.shared.database.urls import named
from rota.shared.domain.times import EARLIEST, LATEST

if TYPE_CHECKING:
    from rota.shared.database.transactions import Database


@dataclass(frozen=True)
class Check:
    """The result of one check. ``ok`` is None if the check only informs.

    Check("migrated", ok=False, found="nothing", wanted="0001", help="run rota migrate")
    """

    name: str
    ok: bool | None
    found: str
    wanted: str
    help: str = ""
    problem: str = ""
    """The start of the sentence if ``ok`` is False: "the schema in mysql://rota@db/rota is not migrated".

    It may be the whole sentence, which then says what was found."""

    def __str__(self) -> str:
        if self.problem.endswith(self.found):
            return self.problem
        facts = f"{self.problem or self.name} (found {self.found}, wanted {self.wanted})"
        return f"{facts}: {self.help}" if self.help else facts


Checks = dict[str, Callable[[], Check]]
"""Functions that make a check, by the check's name."""


class ErrorKind(Enum):
    """What an error of the database means for the transaction in which it came up."""

    CONFLICT = "another transaction was in the way, or this one was cut: it may succeed at once"
    LOCKED = "another transaction has a row locked, for longer than a statement waits: nobody knows until when"
    OUTAGE = "the database is away, or takes no work for now: it may succeed when the database is back"
    REFUSAL = "the database refuses the data: a row is at fault, and the same transaction never succeeds"
    OTHER = "any other: a fault of Rota's, or of how the database is set up"


class Limits(NamedTuple):
    """How long a database may take, in seconds: for one call, and to connect; and whether a statement waits for a row
    that another transaction has locked."""

    call: float
    connect: float
    waits_for_locks: bool = True


class Backend(Protocol):
    """One kind of database, with everything in which it differs from the others."""

    # Connections

    commits_lone_statements: bool
    """Whether a statement outside of a transaction commits itself, and is safe while others write."""

    def with_driver(self, url: URL) -> URL:
        """The URL with the driver that Rota uses."""
        ...

    def engine(self, url: URL, limits: Limits, servers: Servers) -> Engine:
        """An engine whose sessions have the settings that Rota needs.

        The limit to connect holds however many hosts the URL names. The engine tells ``servers`` what it finds out.

        With the execution option ``rota_write`` a connection begins transactions that may write.
        """
        ...

    def least_lock_wait(self, engine: Engine) -> float:
        """The shortest lock wait that the server takes, in seconds; 0: a statement can fail at once.

        It is known when the engine has connected.
        """
        ...

    def follow(self, engine: Engine, clock: Clock) -> None:
        """Make every session of the engine use the clock's time, in statements and in the defaults of columns."""
        ...

    def file(self, url: URL) -> Path | None:
        """The database's file; None if the database is on a server, or in memory."""
        ...

    def qualified(self, url: URL, table: str) -> str:
        """A table of Rota's, as a statement names it on a connection of another program's."""
        ...

    def mark_of(self, connection: Any) -> str:
        """How a statement marks a value, on a connection of another program's."""
        ...

    # Errors

    def kind_of(self, error: DBAPIError) -> ErrorKind:
        """What an error means. The driver may give it any class."""
        ...

    def advice(self, url: URL, error: BaseException, said: str) -> str | None:
        """What a person can do about an error; ``said`` is the database's text. None if no advice is known."""
        ...

    # Tables

    table_options: Mapping[str, Any]
    """Keyword arguments for each of Rota's tables."""

    def column_checks(self, column: Column[Any]) -> list[CheckConstraint]:
        """The CHECKs that hold a column to values that Rota can read, as far as its type does not; only for this
        database."""
        ...

    # Checks of rota doctor

    has_own_clock: bool
    """Whether the database's clock may differ from this host's."""

    def essential_checks(self, database: "Database", tables: Collection[str]) -> Checks:
        """Checks that a service needs, beside those for every database; ``tables`` are the names of Rota's tables."""
        ...

    def advisory_checks(self, database: "Database") -> Checks:
        """Checks that only inform."""
        ...

    def check_version(self, database: "Database") -> Check:
        """Whether the database's version has the features that Rota's statements use."""
        ...

    def why_read_only(self, database: "Database") -> list[str]:
        """The settings that make the database read-only, as ``name = value``; empty if it takes writes."""
        ...

    # Migrating

    has_transactional_ddl: bool
    """Whether DDL is part of a transaction. If not, each DDL statement commits by itself."""

    script_head: str
    """What the database's own shell must be told before it runs printed migrations."""

    def words_added(
        self, table: str, column: str, words: tuple[Sequence[str], Sequence[str]], rest: str
    ) -> Sequence[str]:
        """The statements that let a column of one of a few words hold more of them, without a rebuild of the table.

        ``words``: those before, and those after. ``rest``: the column's definition behind its type. To run them twice
        does no harm.
        """
        ...

    def migration_engine(self, url: URL, turn_seconds: float, statement_seconds: float) -> Engine:
        """An engine for migrations.

        It waits up to ``turn_seconds`` for another process that migrates. A statement may take up to
        ``statement_seconds``.
        """
        ...

    def take_turn(self, engine: Engine, until_migrated: ExitStack) -> Connection:
        """Wait until no other process migrates, take the migration lock, and return a connection of the engine.

        The end of ``until_migrated`` releases the lock.
        """
        ...

    def is_turn_refused(self, error: DBAPIError) -> bool:
        """Whether ``take_turn`` failed because another process has held the migration lock for too long."""
        ...

    def is_race(self, error: DBAPIError) -> bool:
        """Whether a migration failed because another process made the same step first, or the connection broke."""
        ...


def version_check(
    database: "Database", product: str, oldest: tuple[int, ...], said: str, tested: tuple[int, ...] = ()
) -> Check:
    """Check that a database's version, in the text that it ``said``, is at least the oldest that Rota can use.

    ``tested`` is the only version on which Rota's tests were run, such as (9, 7); without it no version is untested.

    version_check(database, "MariaDB", (10, 6, 0), "10.5.29-MariaDB-log").ok   # False
    """
    found = tuple(int(number) for number in re.findall(r"\d+", said)[:3])
    wanted = f"{product} >= {'.'.join(map(str, oldest))}"
    if found < oldest:
        problem = f"{product} of {named(database.url)} is too old"
        return Check("version", False, said, wanted, f"install {wanted}", problem)
    is_untested = found[: len(tested)] != tested
    advice = f"Rota is untested on {product}, but for {'.'.join(map(str, tested))}" if is_untested else ""
    return Check("version", None if is_untested else True, said, wanted, advice)


def value_of(database: "Database", statement: str) -> object:
    """The single value that a statement selects."""
    return database.read(lambda connection: connection.exec_driver_sql(statement).scalar_one())


def range_name(column: Column[Any]) -> str:
    """The name of the CHECK that holds a time to its range."""
    return f"{column.name}_from_{EARLIEST.year}_to_{LATEST.year}"


def is_of_data(error: DBAPIError) -> bool:
    """Whether the class of an error says that the database refuses data."""
    return isinstance(error, DataError | IntegrityError)
