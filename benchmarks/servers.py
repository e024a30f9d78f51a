"""The servers of a run: private, durable, on temporary directories, with the settings that the report states."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

from tests.harness.ports import free_port
from tests.harness.processes import guard, marked_environment, wait_until

MARIADB_OPTIONS = (
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=2G",
    "--innodb-log-file-size=1G",
    "--innodb-flush-method=O_DIRECT",
    "--skip-log-bin",  # so sync_binlog has nothing to sync
    "--performance-schema=OFF",
)
"""Later options win over those of ``tests.harness.databases``."""

POSTGRESQL_SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB", "max_connections": "200"}
REDIS_OPTIONS = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


class Server:
    """A server process on a folder of its own; it ends with the block, its folder with the tests' guard at the latest.

    with Redis(folder) as redis: redis.url
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make its data, before it is started."""

    def answers(self) -> bool:
        """Whether it takes connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        guard().remove(self.folder)
        self.folder.mkdir(parents=True)
        self.prepare()
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd="/",
                stdout=log,
                stderr=log,
                env=marked_environment(os.environ),
                user=self.account,
            )
        try:
            wait_until(self.answers, 30, f"{type(self).__name__} to answer")
        except BaseException:
            self.__exit__()
            shutil.rmtree(self.folder)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def account(self) -> str | None:
        """Whose process it is to be; None: ours."""
        return None


class Redis(Server):
    """A Redis that appends what it is told to a file, and may lose its last second."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """What starts it."""
        place = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        return [program("redis-server"), *place, *REDIS_OPTIONS]

    def answers(self) -> bool:
        """Whether it takes connections."""
        ping = [program("redis-cli"), "-p", str(self.port), "ping"]
        return subprocess.run(ping, capture_output=True, check=False).stdout == b"PONG\n"


class PostgreSQL(Server):
    """A PostgreSQL with its default durability."""

    @property
    def url(self) -> str:
        """Where its empty database is."""
        return f"postgresql://bench@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        """Make its data."""
        if self.account is not None:
            shutil.chown(self.folder, self.account)
            self.folder.parent.chmod(0o755)
        data = ["-D", str(self.folder / "data"), "-U", "bench", "--auth=trust", "--no-sync"]
        subprocess.run([postgresql("initdb"), *data], check=True, capture_output=True, cwd="/", user=self.account)

    def command(self) -> list[str]:
        """What starts it."""
        settings = [part for name, value in POSTGRESQL_SETTINGS.items() for part in ("-c", f"{name}={value}")]
        place = ["-D", str(self.folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder)]
        return [postgresql("postgres"), *place, *settings]

    def answers(self) -> bool:
        """Whether it takes connections."""
        asked = [postgresql("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    @property
    def account(self) -> str | None:
        """Whose process it is to be: PostgreSQL does not run as root."""
        return "postgres" if os.geteuid() == 0 else None


def program(name: str) -> str:
    """The path of a server's program; raises FileNotFoundError that names it."""
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not installed, and the peers of this benchmark need it")
    return path


def postgresql(name: str) -> str:
    """The path of one of PostgreSQL's programs: Debian keeps them out of PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(places[-1]) if places else program(name)
