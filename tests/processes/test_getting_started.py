"""docs/getting-started.md, typed command by command in a folder of one's own, on SQLite and then on MariaDB."""

import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.harness.databases import MariaDBServer, run_sql
from tests.harness.processes import ROOT, marked_environment
from tests.harness.up import Start

PAGE = (ROOT / "docs" / "getting-started.md").read_text()
FILE = re.compile(r"^```python\n(# (\S+\.py)\n.*?)^```$", re.M | re.S)
SQL = re.compile(r"^```sql\n(.*?)^```$", re.M | re.S)
SERVICES = ("up", "scheduler", "worker")
COMMAND_SECONDS = 60


@dataclass(frozen=True)
class Typed:
    """A command of the page, and the first line that the page shows of its output."""

    arguments: tuple[str, ...]
    shown: str | None

    @property
    def is_service(self) -> bool:
        return self.arguments[0] in SERVICES and self.arguments[1:2] != ("list",)


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def commands(heading: str) -> Iterator[Typed]:
    lines = re.findall(r"^    (.*)$", section(heading), re.M)
    for line, following in zip(lines, [*lines[1:], "$"], strict=True):
        if line.startswith("$ rota "):
            yield Typed(tuple(shlex.split(line)[2:]), None if following.startswith("$") else following)


def shape(line: str) -> str:
    """A line with neither the figures nor the widths that differ from run to run."""
    return re.sub(r"\d+", "0", " ".join(re.sub(r"mysql://\S+", "URL", line).split()))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    for text, name in FILE.findall(PAGE):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "acme_jobs" / "__init__.py").touch()
    return tmp_path


def run(module: str, *arguments: str, folder: Path, url: str | None = None) -> str:
    """Run a module's command in the project; returns what it says, on stdout and on stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    if url is not None:
        environment["ROTA_DATABASE_URL"] = url
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=marked_environment(environment),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert (done.returncode == 0) is not done.stderr.startswith("error: "), f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def check(typed: Typed, folder: Path, url: str | None = None) -> None:
    said = run("rota", *typed.arguments, folder=folder, url=url)
    if typed.shown is not None:
        assert shape(said.splitlines()[0]) == shape(typed.shown)


def test_the_page_runs_on_sqlite(project: Path, rota: Start) -> None:
    up, *others = commands("Run it")
    assert up.is_service
    assert len(others) == 4
    process = rota(*up.arguments, cwd=project)
    process.wait_for_log(r'count-orders .* succeed .*"orders": 3', deadline=60)
    for typed in others:
        check(typed, project)


def test_the_test_of_the_page_passes(project: Path) -> None:
    assert "1 passed" in run("pytest", "-q", "-p", "no:cacheprovider", "test_tasks.py", folder=project)


@pytest.fixture
def own_url(mariadb_server: MariaDBServer) -> Iterator[str]:
    """The URL of the page for the database and the user that the page makes, under names of their own."""
    own = f"page{uuid.uuid4().hex[:12]}"
    admin = make_url(mariadb_server.admin_url())
    [sql] = SQL.findall(PAGE)
    [url] = re.findall(r"^    \$ export ROTA_DATABASE_URL='(.*)'$", PAGE, re.M)
    statements = [re.sub(r"\bacme\b", own, s) for s in sql.split(";\n") if s.strip()]
    try:
        run_sql(mariadb_server.admin_url(), *statements)
        yield re.sub(r"\bacme\b", own, url).replace("@127.0.0.1/", f"@{admin.host}:{admin.port or 3306}/")
    finally:
        run_sql(mariadb_server.admin_url(), f"DROP DATABASE IF EXISTS {own}", f"DROP USER IF EXISTS {own}@'%'")


def test_the_page_runs_on_mariadb_as_services(project: Path, rota: Start, own_url: str) -> None:
    typed = list(commands("Run it as services, on MariaDB"))
    assert sum(one.is_service for one in typed) == 2
    for one in typed:
        if one.is_service:
            rota(*one.arguments, database_url=own_url, cwd=project).wait_for_log(": started|': started")
        else:
            check(one, project, own_url)
