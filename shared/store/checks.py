"""Whether a database is what Rota needs: for ``rota doctor`` to show, and for a service to refuse to start without.

The essential checks are True or False, and no service starts on a False. The others only inform: True where things are
as they should be, None where somebody may want to know, with advice in ``help`` if there is any.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, false, inspect, update
from sqlalchemy.exc import DBAPIError

from shared.clock import boottime
from shared.domain.errors import DatabaseProblem
from shared.store.database import Database
from shared.store.problems import in_words, named, sqlite_file
from shared.store.tables import metadata, schedule_task

VERSION_TABLE = "rota_schema_version"
"""Where Alembic notes the schema's revision."""

MARIADB, MYSQL, SQLITE = (10, 6, 0), (8, 0, 19), (3, 38, 0)
"""The oldest versions that have what Rota's statements use; JSON_TABLE above all, and json_each on SQLite."""

PACKET_BYTES = 4 * 1024 * 1024
"""Batches of results are cut to fit into less; a single result may be this long."""

CLOCK_SAMPLES = 5

LOSES_THE_LAST = (
    "faster, but a crash of the server's host loses the last commits: what they claimed or reported may run again, "
    "even where its task says on_worker_lost = fail"
)


@dataclass(frozen=True)
class Check:
    """What one check found. ``ok`` is None where nothing was required.

    Check("migrated", ok=False, found="nothing", wanted="0001", help="run rota migrate")
    """

    name: str
    ok: bool | None
    found: str
    wanted: str
    help: str = ""
    problem: str = ""
    """What to say first where it is not ok: "the schema in mysql://rota@db/rota is not migrated"."""

    def __str__(self) -> str:
        facts = f"{self.problem or self.name} (found {self.found}, wanted {self.wanted})"
        return f"{facts}: {self.help}" if self.help else facts


def run_checks(database: Database, head: str) -> list[Check]:
    """Every check, for ``rota doctor``; only the first where the database does not answer. Raises nothing.

    ``head`` is the revision that this Rota needs (``migrations.head()``).

        for check in run_checks(database, head): print(check.name, check.ok, check.found)
    """
    return _run(database, {**_essential(database, head), **_advisory(database)})


def require_usable(database: Database, head: str) -> None:
    """Return if a service can start on this database.

    Raises DatabaseProblem with a sentence for each essential check that fails, a line each.
    """
    failed = [str(check) for check in _run(database, _essential(database, head)) if check.ok is False]
    if failed:
        raise DatabaseProblem("\n".join(failed))


def schema_revision(connection: Connection) -> str | None:
    """The revision the schema is at; None where it was never migrated."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalars().all()
    return ", ".join(sorted(map(str, found))) or None


Checks = dict[str, Callable[[], Check]]


def _essential(database: Database, head: str) -> Checks:
    checks: Checks = {
        "version": lambda: check_version(database),
        "migrated": lambda: check_migrated(database, head),
        "writable": lambda: check_writable(database),
    }
    if not database.is_sqlite:
        checks |= {
            "engine": lambda: check_engine(database),
            "isolation": lambda: check_isolation(database),
            "time zone": lambda: check_time_zone(database),
        }
    return checks


def _advisory(database: Database) -> Checks:
    if database.is_sqlite:
        return {}
    return {
        "clock": lambda: check_clock(database),
        "sql_mode": lambda: check_sql_mode(database),
        "max_allowed_packet": lambda: check_packet(database),
        "innodb_flush_log_at_trx_commit": lambda: check_durability(database),
        "sync_binlog": lambda: check_sync_binlog(database),
    }


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
    """Whether it answers. A missing SQLite file is not made."""
    url = named(database.url)
    file = sqlite_file(database.url)
    problem = f"{url} cannot be used"
    if file is not None and file.parent.is_dir() and not file.exists():
        return Check("reachable", False, f"no file {file}", "a migrated database", "run rota migrate", problem)
    try:
        database.read(lambda connection: connection.exec_driver_sql("SELECT 1").all())
    except (DBAPIError, DatabaseProblem) as error:
        said = in_words(database.url, error).removeprefix(f"{url}: ")
        return Check("reachable", False, said, "an answer", problem=problem)
    return Check("reachable", ok=True, found="an answer", wanted="an answer")


def check_version(database: Database) -> Check:
    """Whether the server is new enough. What Rota was not run on is said to be untested."""
    if database.is_sqlite:
        return _version(database, "SQLite", SQLITE, str(_value(database, "SELECT sqlite_version()")))
    said = str(_value(database, "SELECT VERSION()"))
    if "mariadb" in said.lower():
        return _version(database, "MariaDB", MARIADB, said)
    if "tidb" in said.lower():
        return Check("version", None, said, "MariaDB >= 10.6", "Rota is untested on TiDB")
    return _version(database, "MySQL", MYSQL, said, untested=True)


def _version(database: Database, product: str, oldest: tuple[int, ...], said: str, *, untested: bool = False) -> Check:
    found = tuple(int(number) for number in re.findall(r"\d+", said)[:3])
    wanted = f"{product} >= {'.'.join(map(str, oldest))}"
    if found < oldest:
        problem = f"{product} of {named(database.url)} is too old"
        return Check("version", False, said, wanted, f"install {wanted}", problem)
    advice = f"Rota is untested on {product}" if untested else ""
    return Check("version", None if untested else True, said, wanted, advice)


def check_migrated(database: Database, head: str) -> Check:
    """Whether the schema is at ``head``, and all its tables are there."""
    found = database.read(schema_revision) or "nothing"
    missing = sorted(
        set(metadata.tables) - database.read(lambda connection: set(inspect(connection).get_table_names()))
    )
    schema = f"the schema in {named(database.url)}"
    if found == head and missing:
        lacking = f"{found} without {', '.join(missing)}"
        return Check("migrated", False, lacking, head, "restore them from a backup", f"{schema} is incomplete")
    if found != "nothing" and found > head:
        newer = "a newer Rota migrated it; install that one"
        return Check("migrated", False, found, head, newer, f"{schema} is not this Rota's")
    return Check(
        "migrated", found == head, found, head, _unless(found == head, "run rota migrate"), f"{schema} is not migrated"
    )


def check_writable(database: Database) -> Check:
    """Whether it is the primary and takes writes.

    A server that logs statements does not take them under READ COMMITTED (error 1665), and an account may not write.
    """
    url = named(database.url)
    settings = {} if database.is_sqlite else _variables(database, "read_only", "super_read_only", "innodb_read_only")
    closed = [f"{name} = {value}" for name, value in settings.items() if value not in ("OFF", "0")]
    if closed:
        advice = "connect to the primary, not to a replica"
        return Check("writable", False, ", ".join(closed), "writable", advice, f"{url} is read-only")
    try:
        database.write(_attempt_write)
    except (DBAPIError, DatabaseProblem) as error:
        said = in_words(database.url, error).removeprefix(f"{url}: ")
        return Check("writable", False, said, "writable", problem=f"{url} takes no writes of Rota's")
    return Check("writable", ok=True, found="writable", wanted="writable")


def _attempt_write(connection: Connection) -> None:
    """What will not be written is refused even where it is no row."""
    if inspect(connection).has_table(schedule_task.name):
        connection.execute(update(schedule_task).where(false()).values(status=schedule_task.c.status))


def check_engine(database: Database) -> Check:
    """Whether all our tables are InnoDB: a transaction is nothing to MyISAM."""
    rows = database.read(
        lambda connection: connection.exec_driver_sql(
            "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
        ).all()
    )
    others = sorted(f"{table} in {engine}" for table, engine in rows if table in metadata.tables and engine != "InnoDB")
    advice = _unless(not others, "ALTER TABLE … ENGINE = InnoDB")
    problem = f"{named(database.url)} has tables without transactions"
    return Check("engine", not others, ", ".join(others) or "InnoDB", "InnoDB", advice, problem)


def check_isolation(database: Database) -> Check:
    """Whether our sessions are READ COMMITTED, whatever the server's default is."""
    found = next(iter(_variables(database, "tx_isolation", "transaction_isolation").values()), "unknown")
    ok = found == "READ-COMMITTED"
    advice = _unless(ok, "something between Rota and the server (init_connect, a proxy) sets it otherwise")
    return Check(
        "isolation", ok, found, "READ-COMMITTED", advice, f"sessions of {named(database.url)} are isolated otherwise"
    )


def check_time_zone(database: Database) -> Check:
    """Whether our sessions are in UTC, whatever the server's zone is."""
    found = _variables(database, "time_zone")["time_zone"]
    ok = found in ("+00:00", "UTC")
    advice = _unless(ok, "something between Rota and the server (init_connect, a proxy) sets it otherwise")
    return Check("time zone", ok, found, "+00:00", advice, f"sessions of {named(database.url)} are not in UTC")


def check_clock(database: Database) -> Check:
    """How far the host's clock is from the database's, in ms. Rota goes by the database's, so nothing is required."""
    round_trips = []
    for _ in range(CLOCK_SAMPLES):
        before = boottime()
        database.clock.measure()
        round_trips.append(boottime() - before)
    offset = database.clock.host_offset_seconds()
    side = "ahead of" if offset >= 0 else "behind"
    found = f"host {abs(offset) * 1000:.1f} ms {side} the database, round trip {min(round_trips) * 1000:.1f} ms"
    advice = _unless(
        abs(offset) < 1, "Rota goes by the database's clock; the host's, in its logs, is off: is NTP running?"
    )
    return Check("clock", None, found, "any", advice)


def check_sql_mode(database: Database) -> Check:
    """Whether what does not fit is refused, not cut, in the SQL that people type."""
    found = _variables(database, "sql_mode")["sql_mode"]
    ok = "STRICT_TRANS_TABLES" in found or "STRICT_ALL_TABLES" in found
    advice = _unless(ok, "without strict mode the server cuts a value that does not fit, instead of refusing it")
    return Check("sql_mode", ok or None, found or "none", "STRICT_TRANS_TABLES", advice)


def check_packet(database: Database) -> Check:
    """Whether the largest result fits into one statement."""
    found = int(_variables(database, "max_allowed_packet")["max_allowed_packet"])
    ok = found >= PACKET_BYTES
    advice = _unless(ok, f"SET GLOBAL max_allowed_packet = {PACKET_BYTES * 4}, and in the server's configuration")
    return Check("max_allowed_packet", ok or None, f"{found / 2**20:g} MiB", f">= {PACKET_BYTES // 2**20} MiB", advice)


def check_durability(database: Database) -> Check:
    """Whether what was committed survives a crash of the database's host."""
    name = "innodb_flush_log_at_trx_commit"
    found = _variables(database, name)[name]
    ok = found in ("1", "3")  # MariaDB's 3 flushes once more
    advice = _unless(ok, LOSES_THE_LAST)
    return Check(name, ok or None, found, "1", advice)


def check_sync_binlog(database: Database) -> Check:
    """Whether it survives where there is a binary log: what the log has lost, the server undoes when it recovers."""
    found = _variables(database, "log_bin", "sync_binlog")
    if found.get("log_bin") != "ON":
        return Check("sync_binlog", ok=True, found="no binary log", wanted="1")
    value = found.get("sync_binlog", "unknown")
    return Check("sync_binlog", value == "1" or None, value, "1", _unless(value == "1", LOSES_THE_LAST))


def _unless(ok: bool, advice: str) -> str:
    return "" if ok else advice


def _value(database: Database, statement: str) -> object:
    return database.read(lambda connection: connection.exec_driver_sql(statement).scalar_one())


def _variables(database: Database, *names: str) -> dict[str, str]:
    """The session's variables of these names, as far as the server knows them."""
    listed = ", ".join(f"'{name}'" for name in names)
    rows = database.read(
        lambda connection: connection.exec_driver_sql(f"SHOW VARIABLES WHERE Variable_name IN ({listed})").all()
    )
    return {str(name).lower(): str(value) for name, value in rows}
