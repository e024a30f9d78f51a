"""The history of the schema, and the functions that migrate a database to the newest revision.

    migrations.upgrade("mysql://rota:…@db/rota")   # what `rota migrate` does
    print(migrations.sql("mysql://rota@db/rota"))  # the same as SQL, for a DBA to run

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
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from rota.migrations.migration_lock import exclusive, is_race, migration_engine
from rota.shared.database.backends import backend_of
from rota.shared.database.checks import schema_revision
from rota.shared.database.problems import database_errors, database_file, missing_folder
from rota.shared.database.transactions import normalised
from rota.shared.database.urls import named
from rota.shared.domain.errors import DatabaseProblem, InvalidInput

_one_thread = threading.Lock()  # Alembic keeps its state in globals, so only one thread may use it


@dataclass(frozen=True)
class Report:
    """The result of an upgrade: the URL without its password, and the revisions before and after."""

    database: str
    before: str | None
    after: str

    @property
    def changed(self) -> bool:
        """Whether the upgrade had anything to do."""
        return self.before != self.after

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.database} is at {self.after} already"
        return f"{self.database} is migrated from {self.before or 'nothing'} to {self.after}"


def upgrade(url: str) -> Report:
    """Migrate the schema to ``head()``.

    Several processes may call this at the same time. If a process is killed while it migrates, the next call completes
    the migration. Raises DatabaseProblem if the database cannot be reached, does not exist, refuses a statement, or was
    migrated by a newer Rota.

        print(upgrade("sqlite:///rota.db"))  # sqlite:///rota.db is migrated from nothing to 0001
    """
    target = normalised(url)
    _require_folder(target)
    retrying = Retrying(
        retry=retry_if_exception(partial(is_race, target)),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        stop=stop_after_attempt(10),
        reraise=True,
    )
    engine = migration_engine(target)
    try:
        with database_errors(target):
            before = retrying(_upgrade, engine, target)
    except CommandError as error:
        raise DatabaseProblem(f"{named(target)}: {error}") from error
    finally:
        engine.dispose()
    return Report(named(target), before, head())


def _upgrade(engine: Engine, target: URL) -> str | None:
    """Migrate, and return the revision before."""
    with engine.connect() as connection:
        found = schema_revision(connection)
    if found == head():
        return found  # needs neither the lock nor any right to write
    with exclusive(engine) as connection, _one_thread:
        found = schema_revision(connection)
        _require_known(found, target)
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
    return config.output_buffer.getvalue()


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
    """The revision that this Rota needs: ``"0001"``."""
    return _revisions()[-1]


@cache
def _revisions() -> tuple[str, ...]:
    """Every revision, the oldest first."""
    scripts = ScriptDirectory(str(Path(__file__).parent)).walk_revisions()
    return tuple(reversed([script.revision for script in scripts]))


def _config(target: URL, **attributes: object) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes.update(url=target, transactional=backend_of(target).has_transactional_ddl, **attributes)
    return config


def _require_folder(target: URL) -> None:
    if problem := missing_folder(target):
        raise DatabaseProblem(f"{named(target)}: {problem}")


def _require_known(found: str | None, target: URL) -> None:
    if found is not None and found not in _revisions():
        raise DatabaseProblem(
            f"the schema in {named(target)} is at {found}, which this Rota (head {head()}) does not know: "
            f"a newer one migrated it; install that"
        )
