"""The checks of ``rota doctor`` for MariaDB and MySQL: the server's version and settings, and Rota's own sessions."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from rota.shared.database.backend import Check, Checks, value_of, version_check
from rota.shared.database.mysql_hosts import unfit
from rota.shared.database.urls import addresses, has_several_hosts, named

if TYPE_CHECKING:
    from rota.shared.database.transactions import Database

MARIADB, MYSQL = (10, 6, 0), (8, 0, 19)
"""The oldest versions with the features that Rota's statements use, such as JSON_TABLE."""

MYSQL_TESTED = (9, 7)
"""The only version of MySQL on which the tests were run."""

PACKET_BYTES = 4 * 1024 * 1024
"""The length that a single result may have. Batches of results are kept shorter."""

HOST_SECONDS = 2.0
"""How long ``rota doctor`` waits for each answer of a host."""

SET_OTHERWISE = "something between Rota and the server (init_connect, a proxy) sets it otherwise"
LOSES_THE_LAST = (
    "faster, but a crash of the server's host loses the last commits: what they claimed or reported may run again, "
    "even where its task says on_worker_lost = fail"
)


def check_version(database: "Database") -> Check:
    """Check that the server is new enough; says so if Rota is untested on it."""
    said = str(value_of(database, "SELECT VERSION()"))
    if "mariadb" in said.lower():
        return version_check(database, "MariaDB", MARIADB, said)
    if "tidb" in said.lower():
        return Check("version", None, said, "MariaDB >= 10.6", "Rota is untested on TiDB")
    return version_check(database, "MySQL", MYSQL, said, MYSQL_TESTED)


def why_read_only(database: "Database") -> list[str]:
    """The settings because of which the server takes no writes, as ``name = value``; a replica has them."""
    settings = _variables(database, "read_only", "super_read_only", "innodb_read_only")
    return [f"{name} = {value}" for name, value in settings.items() if value not in ("OFF", "0")]


def essential(database: "Database", tables: Collection[str]) -> Checks:
    """The checks that a service needs."""
    return {
        "engine": lambda: check_engine(database, tables),
        "isolation": lambda: check_isolation(database),
        "time zone": lambda: check_time_zone(database),
    }


def advisory(database: "Database") -> Checks:
    """The checks that only inform."""
    several: Checks = {"hosts": lambda: check_hosts(database)} if has_several_hosts(database.url) else {}
    return {
        **several,
        "sql_mode": lambda: check_sql_mode(database),
        "max_allowed_packet": lambda: check_packet(database),
        "innodb_flush_log_at_trx_commit": lambda: check_durability(database),
        "sync_binlog": lambda: check_sync_binlog(database),
    }


def check_engine(database: "Database", tables: Collection[str]) -> Check:
    """Check that all of Rota's tables are InnoDB, because other engines such as MyISAM have no transactions."""
    rows = database.read(
        lambda connection: connection.exec_driver_sql(
            "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
        ).all()
    )
    others = sorted(f"{table} in {engine}" for table, engine in rows if table in tables and engine != "InnoDB")
    advice = "ALTER TABLE … ENGINE = InnoDB" if others else ""
    problem = f"{named(database.url)} has tables without transactions"
    return Check("engine", not others, ", ".join(others) or "InnoDB", "InnoDB", advice, problem)


def check_isolation(database: "Database") -> Check:
    """Check that Rota's sessions are READ COMMITTED, whatever the server's default is."""
    found = next(iter(_variables(database, "tx_isolation", "transaction_isolation").values()), "unknown")
    ok = found == "READ-COMMITTED"
    problem = f"sessions of {named(database.url)} are isolated otherwise"
    return Check("isolation", ok, found, "READ-COMMITTED", "" if ok else SET_OTHERWISE, problem)


def check_time_zone(database: "Database") -> Check:
    """Check that Rota's sessions are in UTC, whatever the server's zone is."""
    found = _variables(database, "time_zone")["time_zone"]
    ok = found in ("+00:00", "UTC")
    problem = f"sessions of {named(database.url)} are not in UTC"
    return Check("time zone", ok, found, "+00:00", "" if ok else SET_OTHERWISE, problem)


def check_hosts(database: "Database") -> Check:
    """Check that each host of the URL takes writes, so that each can take the place of another."""
    hosts = addresses(database.url)
    _, options = database.engine.dialect.create_connect_args(database.url)
    closed = unfit(options, hosts, HOST_SECONDS)
    states = [f"{host}: {closed[host]}" if host in closed else f"{host} takes writes" for host in hosts]
    advice = "while they are so, Rota uses the others" if closed else ""
    return Check("hosts", not closed or None, "; ".join(states), "each takes writes", advice)


def check_sql_mode(database: "Database") -> Check:
    """Check that the server refuses a value that does not fit, in the SQL that people type, and does not cut it.

    Rota's own sessions have a mode of their own.
    """
    found = str(value_of(database, "SELECT @@GLOBAL.sql_mode"))
    ok = "STRICT_TRANS_TABLES" in found or "STRICT_ALL_TABLES" in found
    advice = "" if ok else "without strict mode the server cuts a value that does not fit, instead of refusing it"
    return Check("sql_mode", ok or None, found or "none", "STRICT_TRANS_TABLES", advice)


def check_packet(database: "Database") -> Check:
    """Check that the largest result fits into one statement."""
    found = int(_variables(database, "max_allowed_packet")["max_allowed_packet"])
    ok = found >= PACKET_BYTES
    advice = "" if ok else f"SET GLOBAL max_allowed_packet = {PACKET_BYTES * 4}, and in the server's configuration"
    return Check("max_allowed_packet", ok or None, f"{found / 2**20:g} MiB", f">= {PACKET_BYTES // 2**20} MiB", advice)


def check_durability(database: "Database") -> Check:
    """Check that commits survive a crash of the server's host."""
    name = "innodb_flush_log_at_trx_commit"
    found = _variables(database, name)[name]
    ok = found in ("1", "3")  # MariaDB's 3 flushes once more
    return Check(name, ok or None, found, "1", "" if ok else LOSES_THE_LAST)


def check_sync_binlog(database: "Database") -> Check:
    """Check that the binary log, if there is one, is written at each commit.

    When the server recovers from a crash, it undoes the commits that are missing in its binary log.
    """
    found = _variables(database, "log_bin", "sync_binlog")
    if found.get("log_bin") != "ON":
        return Check("sync_binlog", ok=True, found="no binary log", wanted="1")
    value = found.get("sync_binlog", "unknown")
    return Check("sync_binlog", value == "1" or None, value, "1", "" if value == "1" else LOSES_THE_LAST)


def _variables(database: "Database", *names: str) -> dict[str, str]:
    """The values of those of these session variables that the server has, by their names."""
    listed = ", ".join(f"'{name}'" for name in names)
    rows = database.read(
        lambda connection: connection.exec_driver_sql(f"SHOW VARIABLES WHERE Variable_name IN ({listed})").all()
    )
    return {str(name).lower(): str(value) for name, value in rows}
