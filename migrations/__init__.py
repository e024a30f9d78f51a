"""The history of the schema, and the functions that migrate a database to the newest revision.

    migrations.upgrade("mysql://rota:…@db/rota")   # what `rota migrate` does
    print(migrations.sql("mysql://rota@db/rota"))  # the same as SQL, for a DBA to run

Each migration states the oldest version of Rota that may run on the schema from then on (``oldest_version``). An older
Rota may go on with a schema that a newer one has migrated, as long as that states no newer version.

There is no downgrade, because it would drop columns with people's data. Restore a backup instead.
"""

import threading
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from rota.migrations.migration_lock import exclusive, is_race, migration_engine
from rota.shared.database.backends import backend_of
from rota.shared.database.checks import VERSION_TABLE, oldest_version, schema_revision, takes_this_rota
from rota.shared.database.problems import database_errors, database_file, missing_folder
from rota.shared.database.transactions import normalised
from rota.shared.database.urls import named
from rota.shared.domain.errors import DatabaseProblem, InvalidInput
from rota.shared.domain.releases import is_older, own_version
from rota.shared.store import processes

FOLDER = Path(__file__).parent
"""Where the migrations are."""

RACES_LOST = 10
"""How many races an upgrade loses before it gives up, as long as no other process moves the schema on."""

_one_thread = threading.Lock()  # Alembic keeps its state in globals, so only one thread may use it


@dataclass(frozen=True)
class Report:
    """The result of an upgrade: the URL without its password, and the revisions before and after."""

    database: str
    before: str | None
    after: str

    @property
    def by_newer(self) -> bool:
        """Whether a newer Rota has migrated the schema, so that nothing was done."""
        return self.after > head()

    @property
    def changed(self) -> bool:
        """Whether the upgrade had anything to do."""
        return self.before != self.after

    def __str__(self) -> str:
        if self.by_newer:
            newer = f"{self.after}: a newer Rota migrated it, and it takes this Rota {own_version()}, too"
            return f"{self.database} is at {newer}; nothing was changed"
        if not self.changed:
            return f"{self.database} is at {self.after} already"
        return f"{self.database} is migrated from {self.before or 'nothing'} to {self.after}"


def upgrade(url: str) -> Report:
    """Migrate the schema to ``head()``.

    Several processes may call this at the same time. If a process is killed while it migrates, the next call completes
    the migration. A schema that a newer Rota has migrated is left as it is.

    Raises DatabaseProblem if the database cannot be reached, does not exist, refuses a statement, or takes this Rota no
    more; or if schedulers or workers are at work that the migrated database would take no more.

        print(upgrade("sqlite:///rota.db"))  # sqlite:///rota.db is migrated from nothing to 0001
    """
    target = normalised(url)
    _require_folder(target)
    races = _Races()
    retrying = Retrying(
        retry=retry_if_exception(partial(is_race, target)),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        stop=races.are_lost,
        reraise=True,
    )
    engine = migration_engine(target)
    try:
        with database_errors(target):
            before = retrying(_upgrade, engine, target, races)
    except CommandError as error:
        raise DatabaseProblem(f"{named(target)}: {error}") from error
    finally:
        engine.dispose()
    return Report(named(target), before, max(before or "", head()))


@dataclass
class _Races:
    """The races that an upgrade has lost since it last saw the schema at a new revision.

    Whoever loses at each revision to others must not give up: the schema moves on, and the end is near.
    """

    revision: str | None = None
    lost: int = 0

    def saw(self, revision: str | None) -> None:
        if (revision or "") > (self.revision or ""):
            self.revision, self.lost = revision, 0

    def are_lost(self, _: RetryCallState) -> bool:
        self.lost += 1
        return self.lost >= RACES_LOST


def _upgrade(engine: Engine, target: URL, races: _Races) -> str | None:
    """Migrate, and return the revision before."""
    with engine.connect() as connection:
        found = schema_revision(connection)
        races.saw(found)
        if _needs_nothing(connection, found, target):
            return found  # needs neither the lock nor any right to write
    with exclusive(engine) as connection, _one_thread:
        found = schema_revision(connection)
        if _needs_nothing(connection, found, target):
            return found
        _require_nobody_older(connection, found, target)
        if found is not None:  # a row that another process inserted at the same time
            connection.exec_driver_sql(f"DELETE FROM {VERSION_TABLE} WHERE version_num < '{found}'")
        if not backend_of(target).has_transactional_ddl:
            connection.commit()  # otherwise Alembic would leave the open transaction to its caller
        command.upgrade(_config(target, connection=connection), "head")
    return found


def sql(url: str, since: str | None = None) -> str:
    """The SQL that ``upgrade`` would run on the URL's kind of database. It does not connect to the database.

    ``since`` is the database's present revision; None for an empty database. Raises InvalidInput for an unknown
    revision.

        sql("mysql://rota@db/rota")  # "CREATE TABLE rota_schema_version (…); …"
    """
    if since is not None and since not in _revisions():
        raise InvalidInput(f"there is no revision {since!r}; there are {', '.join(_revisions())}")
    config = _config(normalised(url))
    config.output_buffer = StringIO()
    with _one_thread:
        command.upgrade(config, f"{since}:head" if since else "head", sql=True)
    return backend_of(normalised(url)).script_head + config.output_buffer.getvalue()


def current(url: str) -> str | None:
    """The revision of the schema; None if it was never migrated. Creates no database file.

    Raises DatabaseProblem if the database cannot be read.
    """
    target = normalised(url)
    _require_folder(target)
    file = database_file(target)
    if file is not None and not file.exists():
        return None
    engine = migration_engine(target)
    try:
        with database_errors(target), engine.connect() as connection:
            return schema_revision(connection)
    finally:
        engine.dispose()


@cache
def head() -> str:
    """The newest revision that this Rota knows: ``"0001"``."""
    return _revisions()[-1]


@cache
def oldest_versions() -> dict[str, str]:
    """The oldest version of Rota that each revision takes, the oldest revision first: ``{"0001": "0.1.0"}``."""
    scripts = reversed(list(ScriptDirectory(str(FOLDER)).walk_revisions()))
    return {script.revision: script.module.oldest_version for script in scripts}


def _revisions() -> tuple[str, ...]:
    """Every revision, the oldest first."""
    return tuple(oldest_versions())


def _config(target: URL, **attributes: object) -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes.update(url=target, transactional=backend_of(target).has_transactional_ddl, **attributes)
    return config


def _require_folder(target: URL) -> None:
    if problem := missing_folder(target):
        raise DatabaseProblem(f"{named(target)}: {problem}")


def _needs_nothing(connection: Connection, found: str | None, target: URL) -> bool:
    """Whether the schema is at the head, or beyond it by a newer Rota.

    Raises DatabaseProblem if a newer one migrated it and it takes this Rota no more, or if the revision is none.
    """
    if found is None or found in _revisions():
        return found == head()
    taken = takes_this_rota(named(target), oldest_version(connection))
    if taken.ok is False:
        raise DatabaseProblem(f"{taken}; nothing was changed")
    if found < head():
        known = ", ".join(_revisions())
        raise DatabaseProblem(f"the schema in {named(target)} is at {found}, which is no revision; there are {known}")
    return True


def _require_nobody_older(connection: Connection, found: str | None, target: URL) -> None:
    """Raise DatabaseProblem if processes are at work that the migrations to come would take no more."""
    if found is None:
        return
    oldest = oldest_versions()[head()]
    older = [process for process in processes.at_work(connection) if is_older(process.version, oldest)]
    if older:
        raise DatabaseProblem(
            f"{named(target)}: {head()} takes no Rota older than {oldest}, and still at work are "
            f"{', '.join(map(str, older))}; stop them, or upgrade them to {oldest} first, and run rota migrate again; "
            "nothing was changed"
        )
