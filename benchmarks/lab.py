"""Where the cases run: servers of their own, durable and with stated settings, and a folder for each run."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from benchmarks.environments import Environments
from benchmarks.evidence import Records
from benchmarks.servers import MARIADB_OPTIONS, PostgreSQL, Redis
from rota import migrations
from tests.harness.databases import PrivateMariaDB, fresh_database
from tests.harness.processes import guard


class Lab:
    """The servers are started when a case first asks for one; all ends with the block.

    with Lab(cache=Path(".bench")) as lab, lab.rota_database() as url: ...
    """

    def __init__(self, cache: Path) -> None:
        self.environments = Environments(cache)

    def __enter__(self) -> "Lab":
        self._stack = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="rota-bench-"))
        guard().remove(self.folder)
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._numbers = itertools.count(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def mariadb(self) -> PrivateMariaDB:
        """A durable MariaDB."""
        return self._stack.enter_context(PrivateMariaDB(*MARIADB_OPTIONS))

    @cached_property
    def redis(self) -> Redis:
        """A Redis that appends what it is told to a file."""
        return self._stack.enter_context(Redis(self.folder / "redis"))

    @cached_property
    def postgresql(self) -> PostgreSQL:
        """A durable PostgreSQL."""
        return self._stack.enter_context(PostgreSQL(self.folder / "postgresql"))

    @contextmanager
    def rota_database(self) -> Iterator[str]:
        """The URL of a fresh database with Rota's tables."""
        with fresh_database(self.mariadb) as url:
            migrations.upgrade(url)
            yield url

    def kept_database(self) -> str:
        """The same, kept until the lab ends: for what takes minutes to fill."""
        return self._stack.enter_context(self.rota_database())

    @contextmanager
    def records(self) -> Iterator[Records]:
        """A fresh folder for the handlers to write to."""
        records = Records(self.folder / f"records-{next(self._numbers)}")
        try:
            yield records
        finally:
            shutil.rmtree(records.folder)
