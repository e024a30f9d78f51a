"""The schema's history, and the way to bring a database up to it.

    migrations.upgrade("mysql://rota:…@db/rota")   # what `rota migrate` does
    print(migrations.sql("mysql://rota@db/rota"))  # the same as SQL, for a DBA to run

There is no way down: a step back would drop columns with what people wrote into them. Restore a backup instead.
"""

import threading
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from migrations.turn import exclusive, is_race, migration_engine
from shared.domain.errors import DatabaseProblem, InvalidInput
from shared.store.checks import schema_revision
from shared.store.database import normalised
from shared.store.problems import missing_folder, named, sqlite_file, told

_one_thread = threading.Lock()  # Alembic keeps what it is migrating in a module's globals


@dataclass(frozen=True)
class Report:
    """What an upgrade found and left: the URL without its password, and the revisions before and after."""

    database: str
    before: str | None
    after: str

    @property
    def changed(self) -> bool:
        """Whether there was anything to do."""
        return self.before != self.after

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.database} is at {self.after} already"
        return f"{self.database} is migrated from {self.before or 'nothing'} to {self.after}"


def upgrade(url: str) -> Report:
    """Bring the schema up to ``head()``. Several processes may call it at once; one that was killed is gone on with.

    Raises DatabaseProblem, in a sentence, where the database cannot be reached, is not there, refuses, or was
    migrated by a newer Rota.

        print(upgrade("sqlite:///rota.db"))  # sqlite:///rota.db is migrated from nothing to 0001
    """
    target = normalised(url)
    _require_folder(target)
    retrying = Retrying(
        retry=retry_if_exception(is_race),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        stop=stop_after_attempt(10),
        reraise=True,
    )
    engine = migration_engine(target)
    try:
        with told(target):
            before = retrying(_upgrade, engine, target)
    except CommandError as error:
        raise DatabaseProblem(f"{named(target)}: {error}") from error
    finally:
        engine.dispose()
    return Report(named(target), before, head())


def _upgrade(engine: Engine, target: URL) -> str | None:
    """Migrate, and return the revision that was found."""
    with engine.connect() as connection:
        found = schema_revision(connection)
    if found == head():
        return found  # without a lock, and with no right but to read
    with exclusive(engine) as connection, _one_thread:
        found = schema_revision(connection)
        _require_known(found, target)
        if engine.dialect.name != "sqlite":
            connection.commit()  # Alembic would take a transaction that is open for its caller's
        command.upgrade(_config(target, connection=connection), "head")
    return found


def sql(url: str, since: str | None = None) -> str:
    """The SQL that ``upgrade`` would run, for the URL's kind of database, without connecting to it.

    ``since`` is the revision that the database is at; None for an empty one. Raises InvalidInput for one that is not
    known.

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
    """The revision that the schema is at; None where it was never migrated. Creates nothing.

    Raises DatabaseProblem, in a sentence, where the database cannot be read.
    """
    target = normalised(url)
    _require_folder(target)
    file = sqlite_file(target)
    if file is not None and not file.exists():
        return None
    engine = migration_engine(target)
    try:
        with told(target), engine.connect() as connection:
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
    transactional = target.get_backend_name() == "sqlite"
    config.attributes.update(url=target, transactional=transactional, **attributes)
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
