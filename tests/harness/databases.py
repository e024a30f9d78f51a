"""Where tests get their databases: a MariaDB or MySQL of their own, in a container, or one that is there already.

`ROTA_TEST_MARIADB` chooses: `container`, a Docker image (`mysql:8.4`, `mariadb:11.4`), `private`, `private-mysql` (an
installed mysqld), or the URL of a server (`mysql+pymysql://root:…@host:3306`) on which databases named
rota_test_<uuid> may be created and dropped. Without it a container serves where a Docker engine and the image are
there, else a private mariadbd on a temporary directory.
"""

import contextlib
import functools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, cast

import docker  # type: ignore[import-untyped]
import docker.errors  # type: ignore[import-untyped]
import pymysql
import pytest
from pymysql.connections import Connection
from pymysql.cursors import Cursor
from sqlalchemy import URL, make_url
from testcontainers.core.container import DockerContainer

from rota.shared.database.mysql_connection import MySQLConnection
from tests.harness.ports import free_port
from tests.harness.processes import guard, marked_environment, shifted_host_clock, wait_until

DATABASES = ("sqlite", "mariadb")
"""What each test of a database runs on. For one more there are to be the fixtures <name>_url, migrated_<name>_url
(tests/conftest.py) and emptied_<name>_url (tests/store/conftest.py)."""

IMAGE = "mariadb:10.11"
IMAGES = re.compile(r"([\w./:-]+/)?(mariadb|mysql)(:[\w.-]+)?")
"""The Docker images that `ROTA_TEST_MARIADB` may name."""

PRIVATE_MYSQL = "private-mysql"
CHOSEN = os.environ.get("ROTA_TEST_MARIADB", "")
"""Read once, since tests hide the variable from Rota's command, which warns of a setting that it does not know."""

USER = "rota"
PASSWORD = "rota"
CLIENT_ERRORS = 2000  # and above: the server was not reached at all
# What a server is told beyond its place. Its zone is not UTC, so that a session which forgot to say UTC shows.
SERVER_OPTIONS = (
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=256M",
    "--loose-innodb-log-file-size=64M",  # loose: newer versions of MySQL do not know it
    "--max-allowed-packet=16M",  # MariaDB's default; MySQL's is 64M
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_general_ci",
    "--default-time-zone=+09:00",
    "--max-connections=300",
    "--skip-name-resolve",
)
MYSQL_OPTIONS = (
    "--tls-version=",  # proxies of tests read what is sent
    "--log-bin-trust-function-creators=1",  # for the journal's triggers, which an ordinary user makes
    "--cte-max-recursion-depth=1000000",  # tables of numbers
)
# Rota needs no privilege beyond its own database, so the tests give it no other.
GRANT = (
    f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
    rf"GRANT ALL ON `rota\_test\_%`.* TO '{USER}'@'%'",
)


MARIADB_INSTALLATION = (
    "mariadb-install-db",
    "--auth-root-authentication-method=normal",
    "--skip-test-db",
    "--force",  # even where the host cannot look up its own name
    "--skip-name-resolve",
    "--innodb-log-file-size=64M",
)


TAKES_JSON_ALONE = pytest.mark.mariadb_only("its JSON columns take no text that is no JSON")
NO_JSON = pytest.param("{not json", marks=TAKES_JSON_ALONE)

SEQUENCE = re.compile(r"\bseq_(\d+)_to_(\d+)\b")
RECURSION = (
    r"(WITH RECURSIVE numbers (seq) AS (SELECT \1 UNION ALL SELECT seq + 1 FROM numbers WHERE seq < \2)"
    r" SELECT seq FROM numbers) AS numbers"
)


class MariaDBServer(Protocol):
    """A server on which tests may make databases."""

    def url(self, database: str) -> str:
        """The URL by which Rota reaches `database`, with the rights of an ordinary user."""
        ...

    def admin_url(self) -> str:
        """The URL of a user who may do everything, without a database."""
        ...


def connect(url: str) -> "Connection[Cursor]":
    """A plain PyMySQL connection to a `mysql+pymysql://` URL, in autocommit, past every setting of Rota's."""
    parts = make_url(url)
    return MySQLConnection(
        host=parts.host or "127.0.0.1",
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.database,
        autocommit=True,
        connect_timeout=5,
        read_timeout=60,
    )


def run_sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run plain SQL as an operator would and return the rows of the last statement.

    MySQL gets MariaDB's tables of numbers, such as `seq_1_to_9`, as queries.
    """
    with contextlib.closing(connect(url)) as connection, connection.cursor() as cursor:
        for statement in statements:
            numbers = None if is_mariadb(connection) else SEQUENCE.search(statement)
            if numbers is not None:
                cursor.execute(f"SET SESSION cte_max_recursion_depth = {numbers[2]}")
            cursor.execute(for_mysql(statement) if numbers is not None else statement)
        return [tuple(row) for row in cursor.fetchall()]


def for_mysql(statement: str) -> str:
    """The statement with MariaDB's tables of numbers as queries."""
    return SEQUENCE.sub(RECURSION, statement)


NO_SUCH_SESSION = 1094


def kill_sessions(url: str) -> None:
    """Let the server close all other connections to the database of a URL. One may end by itself meanwhile."""
    mine = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    for (session,) in run_sql(url, mine):
        try:
            run_sql(url, f"KILL {session}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != NO_SUCH_SESSION:
                raise


def is_mariadb(connection: Any) -> bool:
    """Whether the server of a connection is MariaDB, and not MySQL."""
    return "mariadb" in connection.get_server_info().lower()


def is_mysql(url: str) -> bool:
    """Whether the server of a URL is MySQL, and not MariaDB."""
    if make_url(url).get_backend_name() == "sqlite":
        return False
    with contextlib.closing(connect(url)) as connection:
        return not is_mariadb(connection)


def create_database(server: MariaDBServer) -> str:
    """Create an empty database and return its URL."""
    name = f"rota_test_{uuid.uuid4().hex}"
    run_sql(server.admin_url(), f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return server.url(name)


def drop_database(server: MariaDBServer, url: str) -> None:
    """Drop the database, and first the connections whose open transactions would make the drop wait."""
    name = make_url(url).database
    sessions = run_sql(server.admin_url(), f"SELECT id FROM information_schema.processlist WHERE db = '{name}'")
    for (session,) in sessions:
        with contextlib.suppress(pymysql.err.MySQLError):  # it ended by itself
            run_sql(server.admin_url(), f"KILL {session}")
    run_sql(server.admin_url(), f"DROP DATABASE IF EXISTS {name}")


@contextlib.contextmanager
def fresh_database(server: MariaDBServer) -> Iterator[str]:
    """The URL of an empty database that is dropped in the end."""
    url = create_database(server)
    try:
        yield url
    finally:
        drop_database(server, url)


def tables_ddl(url: str) -> list[str]:
    """The statements that make the tables and rows of this database again: quicker than to migrate once more."""
    name = make_url(url).database
    with contextlib.closing(connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
        tables = [str(row[0]) for row in cursor.fetchall()]
        statements = []
        for table in tables:
            cursor.execute(f"SHOW CREATE TABLE `{table}`")
            ddl = str(cast("tuple[Any, ...]", cursor.fetchone())[1])
            # MySQL writes the tables' own collation at each column, too, and then shows it in more words.
            statements.append(ddl if is_mariadb(connection) else ddl.replace(" COLLATE utf8mb4_bin", ""))
        cursor.execute(
            "SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = %s"
            " UNION ALL SELECT count(*) FROM information_schema.views WHERE table_schema = %s",
            (name, name),
        )
        assert [row[0] for row in cursor.fetchall()] == [0, 0], "tables_ddl() copies no triggers and no views"
        for table in tables:
            statements += _rows_ddl(connection, table)
    return statements


def past_the_checks(url: str) -> list[str]:
    """The statements behind which a session may write what the CHECKs and the strict mode refuse."""
    checks = unchecked(url) if is_mysql(url) else ["SET check_constraint_checks = 0"]
    return ["SET sql_mode = ''", *checks]


def unchecked(url: str) -> list[str]:
    """The statements by which MySQL's tables check nothing any more."""
    checks = run_sql(
        url,
        "SELECT table_name, constraint_name FROM information_schema.table_constraints"
        " WHERE table_schema = DATABASE() AND constraint_type = 'CHECK'",
    )
    return [f"ALTER TABLE `{table}` ALTER CHECK `{check}` NOT ENFORCED" for table, check in checks]


def _rows_ddl(connection: "Connection[Cursor]", table: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE()"
            " AND table_name = %s AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position",
            (table,),
        )
        columns = ", ".join(f"`{row[0]}`" for row in cursor.fetchall())
        cursor.execute(f"SELECT {columns} FROM `{table}`")
        return [
            f"INSERT INTO `{table}` ({columns}) VALUES ({', '.join(map(connection.escape, row))})"
            for row in cursor.fetchall()
        ]


class PrivateMariaDB:
    """A mariadbd of its own on a temporary directory, to be killed, stopped and started at will.

    With `ROTA_TEST_MARIADB=private-mysql` it is a mysqld, so that the tests that need a server of their own try MySQL.

    `with PrivateMariaDB() as server:` starts it; the end of the block, or of the tests however they end, removes it.
    `options` are further options of mariadbd, such as `--max-connections=20`. `clock` is how far its clock is wrong,
    such as `+2s`.
    """

    def __init__(self, *options: str, clock: str | None = None) -> None:
        self._options = options
        self._clock = clock
        self._account = _account()
        self._directory = Path(tempfile.mkdtemp(prefix="rota-mariadb-"))
        guard().remove(self._directory)
        self.port = free_port()
        self.socket = self._directory / "s.sock"
        self.log_path = self._directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("this MariaDB is not running")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, database: str) -> str:
        return _url(USER, PASSWORD, "127.0.0.1", self.port, database)

    def admin_url(self) -> str:
        return _url("root", "", "127.0.0.1", self.port)

    def create_database(self) -> str:
        """Create an empty database; it goes with the server."""
        return create_database(self)

    def start(self) -> Self:
        """Start it on its data, made at the first start, and return when it answers."""
        if self.alive:
            raise RuntimeError("this MariaDB runs already")
        is_new = not (self._directory / "data").exists()
        if is_new:
            self._make_data()
        self._spawn()
        self.wait_ready()
        if is_new:
            run_sql(self.admin_url(), *GRANT)
        return self

    def wait_ready(self, deadline: float = 60.0) -> None:
        """Wait until it answers over TCP; fails with its log at the deadline, or at once if it ends."""

        def answers() -> bool:
            if not self.alive:
                raise RuntimeError(f"mariadbd ended while it started\n{self.log_tail()}")
            return _accepts_connections(self.admin_url())

        try:
            wait_until(answers, deadline, "MariaDB to answer")
        except pytest.fail.Exception:
            print(self.log_tail())
            raise

    def kill(self) -> None:
        """SIGKILL it: a crash. Committed data must survive `start()`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def stop(self, deadline: float = 30.0) -> None:
        """Stop it in an orderly way."""
        if self._process is not None and self.alive:
            self._process.terminate()
            self._process.wait(deadline)

    def restart(self) -> None:
        """Stop it in an orderly way and start it again on the same port."""
        self.stop()
        self.start()

    def stop_signal(self, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT: a database host that hangs and comes back."""
        os.kill(self.pid, number)

    def log_tail(self, lines: int = 40) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "--- the end of the log of MariaDB ---\n" + "\n".join(text.splitlines()[-lines:])

    def discard(self) -> None:
        """Kill it and delete its data."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.discard()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            print(self.log_tail())
        self.discard()

    def _make_data(self) -> None:
        shutil.copytree(_data_template(), self._directory / "data")
        for path in [self._directory, *self._directory.rglob("*")]:
            shutil.chown(path, self._account)

    def _wrong_clock(self) -> dict[str, str]:
        """What sets its clock wrong: the library in a place that its account may read."""
        if self._clock is None:
            return {}
        environment = shifted_host_clock(self._clock)
        library = shutil.copy(environment["LD_PRELOAD"], self._directory)
        return {**environment, "LD_PRELOAD": str(library)}

    def _spawn(self) -> None:
        command = self._command(*self._start_options())
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, **self._identity()
            )

    def _start_options(self) -> Sequence[str]:
        """Further options for the next start alone."""
        return ()

    def _command(self, *options: str) -> list[str]:
        return [
            _program("mysqld" if private_is_mysql() else "mariadbd"),
            "--no-defaults",  # must be first
            "--loose-mysqlx=OFF",
            *(MYSQL_OPTIONS if private_is_mysql() else ()),
            *_account_options(),
            f"--datadir={self._directory / 'data'}",
            f"--tmpdir={self._directory}",
            f"--secure-file-priv={self._directory}",
            f"--socket={self.socket}",
            f"--pid-file={self._directory / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-networking=0",
            *SERVER_OPTIONS,
            *self._options,
            *options,
        ]

    def _identity(self) -> dict[str, Any]:
        """As whom and where its programs run: arguments of subprocess."""
        as_root = os.geteuid() == 0
        return {
            "cwd": self._directory,
            "env": marked_environment({**os.environ, **self._wrong_clock()}),
            "stdin": subprocess.DEVNULL,
            "user": self._account if as_root else None,
            "group": pwd.getpwnam(self._account).pw_gid if as_root else None,
            "extra_groups": [] if as_root else None,
        }


class ContainerMariaDB:
    """A server in a container, by testcontainers. `image` is one of MariaDB's or of MySQL's."""

    def __init__(self, image: str = IMAGE) -> None:
        # The guard removes the container; testcontainers' own way to do so would need one more image.
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        self._container = (
            DockerContainer(image, command=" ".join(SERVER_OPTIONS))
            .with_env("MARIADB_ALLOW_EMPTY_ROOT_PASSWORD", "1")
            .with_env("MARIADB_ROOT_HOST", "%")
            .with_env("MYSQL_ALLOW_EMPTY_PASSWORD", "1")
            .with_env("MYSQL_ROOT_HOST", "%")
            .with_exposed_ports(3306)
        )

    def url(self, database: str) -> str:
        return _url(USER, PASSWORD, *self._address(), database)

    def admin_url(self) -> str:
        return _url("root", "", *self._address())

    def __enter__(self) -> Self:
        self._container.start()
        identity = self._container.get_wrapped_container().id
        guard().run("docker", "rm", "--force", "--volumes", str(identity))
        try:
            # The image first starts a server without a network to set itself up: an answer over TCP is the real one.
            wait_until(self._answers, 120, "MariaDB in its container to answer")
            run_sql(self.admin_url(), *GRANT)
        except BaseException:
            print(*(part.decode(errors="replace") for part in self._container.get_logs()))
            self._container.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._container.stop()

    def _address(self) -> tuple[str, int]:
        host = self._container.get_container_host_ip()
        return ("127.0.0.1" if host == "localhost" else host), int(self._container.get_exposed_port(3306))

    def _answers(self) -> bool:
        return _accepts_connections(self.admin_url())


class ExistingMariaDB:
    """A server that is there already; its user must be allowed to create databases named rota_test_<uuid>."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)

    def url(self, database: str) -> str:
        return self._url.set(database=database).render_as_string(hide_password=False)

    def admin_url(self) -> str:
        return self._url.set(database=None).render_as_string(hide_password=False)


@contextlib.contextmanager
def server_for_tests(wanted: str = CHOSEN) -> Iterator[MariaDBServer]:
    """The server that `ROTA_TEST_MARIADB` asks for, or the best that this machine has."""
    wanted = wanted or ("container" if image_is_here() else "private")
    if "://" in wanted:
        yield ExistingMariaDB(wanted)
    elif wanted == "container" or IMAGES.fullmatch(wanted):
        with ContainerMariaDB(IMAGE if wanted == "container" else wanted) as container:
            yield container
    elif wanted in ("private", PRIVATE_MYSQL):
        with PrivateMariaDB() as private:
            yield private
    else:
        pytest.fail(
            f"ROTA_TEST_MARIADB is {wanted!r}; it takes container, a Docker image such as mysql:8.4, private,"
            f" {PRIVATE_MYSQL} or mysql+pymysql://user:password@host"
        )


def private_is_mysql() -> bool:
    """Whether the servers that tests start for themselves are MySQL."""
    return CHOSEN == PRIVATE_MYSQL


def image_is_here() -> bool:
    """Whether a Docker engine answers and has the image, so that nothing needs to be downloaded."""
    try:
        client = docker.from_env(timeout=5)
    except docker.errors.DockerException:
        return False
    with contextlib.closing(client):
        try:
            client.images.get(IMAGE)
        except docker.errors.DockerException:
            return False
    return True


def _accepts_connections(url: str) -> bool:
    """Whether the server is up; raises what a server that is up answers instead, such as a refused password."""
    try:
        connect(url).close()
    except pymysql.err.OperationalError as error:
        if error.args[0] >= CLIENT_ERRORS:
            return False
        raise
    return True


def _url(user: str, password: str, host: str, port: int, database: str | None = None) -> str:
    url = URL.create("mysql+pymysql", user, password or None, host, port, database)
    return url.render_as_string(hide_password=False)


def _account() -> str:
    """Whose process mariadbd is: ours, or `mysql` if we are root and the account is there."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    try:
        return pwd.getpwnam("mysql").pw_name
    except KeyError:
        return "root"


def _account_options() -> Sequence[str]:
    """mariadbd refuses to run as root unless it is told to."""
    return ["--user=root"] if _account() == "root" else []


def _program(name: str) -> str:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin:/usr/libexec:/usr/local/libexec"
    found = shutil.which(name, path=path)
    if found is None:
        pytest.fail(f"{name} is not installed: run `make test`, or set ROTA_TEST_MARIADB to the URL of a server")
    return found


@functools.cache
def _data_template() -> Path:
    """A data directory fresh from the server's own installation, made once and copied for each server."""
    directory = Path(tempfile.mkdtemp(prefix="rota-mariadb-template-"))
    guard().remove(directory)
    account = _account()
    shutil.chown(directory, account)
    program, *options = _mysql_installation(directory) if private_is_mysql() else MARIADB_INSTALLATION
    done = subprocess.run(
        [
            _program(program),
            "--no-defaults",
            f"--datadir={directory / 'data'}",
            f"--tmpdir={directory}",  # at its start a server deletes what others have in a common one
            f"--user={account}",
            *options,
        ],
        env=marked_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{program} failed with {done.returncode}:\n{done.stdout[-4000:]}")
    return directory / "data"


def _mysql_installation(directory: Path) -> Sequence[str]:
    """The program that makes MySQL's data, and its options. Its root may come by TCP, too."""
    statements = directory / "root.sql"
    statements.write_text("CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n")
    return ("mysqld", "--initialize-insecure", f"--init-file={statements}", f"--secure-file-priv={directory}")


if __name__ == "__main__":  # tests/setup.sh asks whether a container can serve
    sys.exit(not image_is_here())
