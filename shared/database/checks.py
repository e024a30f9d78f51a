"""Checks that a database is as Rota needs it. ``rota doctor`` shows them all; a service requires the essential ones.

The essential checks are True or False, and no service starts if one is False. The advisory checks only inform: they are
True if all is well, otherwise None, with advice in ``help`` if there is any.
"""

import logging
from collections.abc import Callable

from sqlalchemy import Connection, false, inspect, update
from sqlalchemy.exc import DBAPIError

from rota.shared.database.backend import Check, Checks
from rota.shared.database.problems import database_file, in_words
from rota.shared.database.transactions import Database
from rota.shared.database.urls import named
from rota.shared.domain.errors import DatabaseAway, DatabaseProblem
from rota.shared.domain.releases import is_older, own_version
from rota.shared.domain.times import span
from rota.shared.store.tables import metadata, schedule_task

log = logging.getLogger(__name__)

VERSION_TABLE = "rota_schema_version"
"""The table in which Alembic writes the schema's revision. Its column ``oldest_version`` is Rota's own."""

WRITABLE = "writable"
"""The name of the one check that a database may fail which is only read."""

CLOCK_SAMPLES = 5
WAIT_SECONDS = 1.2
"""How often a service that starts asks whether the database is back: rarer than ``outage.CALM_SECONDS``."""


def run_checks(database: Database, head: str, *, to_write: bool = True) -> list[Check]:
    """Make every check, for ``rota doctor``; only the first if the database does not answer. Raises no error.

    ``head`` is the newest revision that this Rota knows (``migrations.head()``). ``to_write`` is whether to check that
    the database takes writes.

        for check in run_checks(database, head): print(check.name, check.ok, check.found)
    """
    return _run(database, {**_essential(database, head, to_write=to_write), **_advisory(database)})


def require_usable(database: Database, head: str, *, to_write: bool = True) -> None:
    """Return if a service can start on this database; ``head`` is the newest revision that this Rota knows.

    Without ``to_write`` it is enough that the database can be read, as a replica and a user with SELECT alone can.

    Raises DatabaseProblem with a line for each essential check that fails.
    """
    essential = _essential(database, head, to_write=to_write)
    failed = [str(check) for check in _run(database, essential) if check.ok is False]
    if failed:
        raise DatabaseProblem("\n".join(failed))


def wait_for(database: Database, stopping: Callable[[], bool] = lambda: False) -> None:
    """Return when a database on a server answers and takes writes, when it refuses this service for good, or when
    ``stopping``.

    An outage and a failover pass, and a supervisor could only start the service again. The log says when the wait
    begins and when it ends.
    """
    said = None
    while not stopping() and ((closed := _closed(database)) is not None or database.outage.lasts):
        if closed and closed != said:
            log.warning("%s is read-only (%s): connect to the primary; waits for it", named(database.url), closed)
            said = closed
        database.clock.sleep(WAIT_SECONDS)
    if said is not None and not stopping():
        log.info("%s takes writes", named(database.url))


def _closed(database: Database) -> str | None:
    """Why the database is read-only; empty if it is away, which is logged already. None: nothing to wait for."""
    try:
        return ", ".join(database.backend.why_read_only(database)) or None
    except DatabaseAway:
        return ""
    except DBAPIError:  # require_usable says it
        return None


def schema_revision(connection: Connection) -> str | None:
    """The revision of the schema; None if it was never migrated.

    Where row locks do not reach, on two nodes of a cluster, each of two processes may insert the first revision, and
    one of them go on. Then there are several rows, and the newest is true.
    """
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalars().all()
    return max(map(str, found), default=None)


def oldest_version(connection: Connection) -> str | None:
    """The oldest version of Rota that may run on the schema; None if it was never migrated."""
    if schema_revision(connection) is None:
        return None
    return stated_oldest_version(connection)


def stated_oldest_version(connection: Connection) -> str | None:
    """The oldest version of Rota that may run on a schema that has been migrated."""
    newest_first = f"SELECT oldest_version FROM {VERSION_TABLE} ORDER BY version_num DESC"
    return connection.exec_driver_sql(newest_first).scalars().first()


def _essential(database: Database, head: str, *, to_write: bool) -> Checks:
    writable: Checks = {WRITABLE: lambda: check_writable(database)} if to_write else {}
    return {
        "version": lambda: database.backend.check_version(database),
        "oldest version": lambda: check_oldest_version(database),
        "migrated": lambda: check_migrated(database, head),
        **writable,
        **database.backend.essential_checks(database, metadata.tables),
    }


def _advisory(database: Database) -> Checks:
    clock: Checks = {"clock": lambda: check_clock(database)} if database.backend.has_own_clock else {}
    return {**clock, **database.backend.advisory_checks(database)}


def _run(database: Database, checks: Checks) -> list[Check]:
    first = check_reachable(database)
    if not first.ok:
        return [first]
    return [first, *(_answer(database, name, check) for name, check in checks.items())]


def _answer(database: Database, name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (DBAPIError, DatabaseProblem) as error:
        return Check(name, ok=False, found=in_words(database.url, error), wanted="an answer")


def check_reachable(database: Database) -> Check:
    """Check that the database answers. A missing file is not created."""
    url = named(database.url)
    file = database_file(database.url)
    if file is not None and file.parent.is_dir() and not file.exists():
        problem = f"{url} cannot be used"
        return Check("reachable", False, f"no file {file}", "a migrated database", "run rota migrate", problem)
    try:
        database.read(lambda connection: connection.exec_driver_sql("SELECT 1").all())
    except (DBAPIError, DatabaseProblem) as error:
        said = in_words(database.url, error)
        return Check("reachable", False, said.removeprefix(f"{url}: "), "an answer", problem=said)
    return Check("reachable", ok=True, found="an answer", wanted="an answer")


def check_oldest_version(database: Database) -> Check:
    """Check that the schema takes this version of Rota: a migration may state the oldest one that it does."""
    return takes_this_rota(named(database.url), database.read(oldest_version))


def takes_this_rota(url: str, oldest: str | None) -> Check:
    """Whether the database at ``url`` (without the password) takes this Rota; ``oldest`` is the version it states."""
    own = own_version()
    if oldest is None or not is_older(own, oldest):
        return Check("oldest version", True, f"Rota {own}", f"{oldest} or newer" if oldest else "any")
    advice = f"install Rota {oldest} or newer for this process"
    problem = f"{url} takes no Rota older than {oldest}"
    return Check("oldest version", False, f"Rota {own}", f"{oldest} or newer", advice, problem)


def check_migrated(database: Database, head: str) -> Check:
    """Check that the schema is at the revision ``head`` with all its tables, or that a newer Rota migrated it.

    A newer schema has all that this Rota needs, or it states that it takes this Rota no more.
    """
    found = database.read(schema_revision) or "nothing"
    if found != "nothing" and found > head:
        return Check("migrated", True, f"{found}, by a newer Rota", f"{head} or newer")
    missing = sorted(
        set(metadata.tables) - database.read(lambda connection: set(inspect(connection).get_table_names()))
    )
    schema = f"the schema in {named(database.url)}"
    if found == head and missing:
        lacking = f"{found} without {', '.join(missing)}"
        return Check("migrated", False, lacking, head, "restore them from a backup", f"{schema} is incomplete")
    return Check(
        "migrated", found == head, found, head, _unless(found == head, "run rota migrate"), f"{schema} is not migrated"
    )


def check_writable(database: Database) -> Check:
    """Check that the database takes writes.

    A server may refuse writes because of its settings (a replica does), or because the account has no right to write.
    """
    url = named(database.url)
    closed = database.backend.why_read_only(database)
    if closed:
        advice = "connect to the primary, not to a replica"
        return Check(WRITABLE, False, ", ".join(closed), "writable", advice, f"{url} is read-only")
    try:
        database.write(_attempt_write)
    except (DBAPIError, DatabaseProblem) as error:
        said = in_words(database.url, error).removeprefix(f"{url}: ")
        return Check(WRITABLE, False, said, "writable", problem=f"{url} takes no writes of Rota's: {said}")
    return Check(WRITABLE, ok=True, found="writable", wanted="writable")


def _attempt_write(connection: Connection) -> None:
    """Try an UPDATE that matches no row: a database that takes no writes refuses it too."""
    if inspect(connection).has_table(schedule_task.name):
        connection.execute(update(schedule_task).where(false()).values(status=schedule_task.c.status))


def check_clock(database: Database) -> Check:
    """Measure in ms how far the host's clock differs from the database's.

    It only informs, because Rota uses the database's clock.
    """
    round_trips = []
    for _ in range(CLOCK_SAMPLES):
        before = database.clock.monotonic()
        database.clock.measure()
        round_trips.append(database.clock.monotonic() - before)
    offset = database.clock.host_offset_seconds()
    side = "ahead of" if offset >= 0 else "behind"
    found = f"host {span(abs(offset))} {side} the database, round trip {min(round_trips) * 1000:.1f} ms"
    advice = _unless(
        abs(offset) < 1, "Rota goes by the database's clock; the host's, in its logs, is off: is NTP running?"
    )
    return Check("clock", None, found, "any", advice)


def _unless(ok: bool, advice: str) -> str:
    return "" if ok else advice
