"""A worker and its guardian on SQLite, and as the first process of a container without an init."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text

from rota.shared.database.transactions import opened
from rota.shared.store.workers import Load, WorkerDeclaration, register
from rota.worker_service.board import Board
from tests.harness.processes import RotaProcess, wait_until

Start = Callable[..., RotaProcess]
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def may_unshare() -> bool:
    """Whether this user may make a pid namespace."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0


def workers(url: str) -> list[Any]:
    with opened(url) as database:
        query = text("SELECT state, reason, pid FROM schedule_worker_node ORDER BY id")
        return [tuple(row) for row in database.read(lambda c: c.execute(query).all())]


def test_a_worker_is_marked_dead_as_soon_as_its_process_is_killed(rota: Start, migrated_sqlite_url: str) -> None:
    worker = rota("worker", database_url=migrated_sqlite_url)
    worker.wait_for_log("started as #1", 30)
    [(_, _, pid)] = workers(migrated_sqlite_url)
    assert pid == worker.worker_pid, "the row has the pid of the process that works"
    os.kill(worker.worker_pid, signal.SIGKILL)
    assert worker.wait_exit() == 128 + signal.SIGKILL
    assert workers(migrated_sqlite_url) == [("dead", "its process was killed by SIGKILL", pid)]


def test_the_guardian_exits_as_the_worker_does(rota: Start, migrated_sqlite_url: str) -> None:
    worker = rota("worker", "--app", "nothing:app", database_url=migrated_sqlite_url)
    assert worker.wait_exit(30) == 1
    assert worker.log.startswith("error: ")
    stopped = rota("worker", database_url=migrated_sqlite_url)
    stopped.wait_for_log("started as #1", 30)
    stopped.stop_signal(signal.SIGINT)
    assert stopped.wait_exit(30) == 0
    assert [row[:2] for row in workers(migrated_sqlite_url)] == [("dead", "stopped")]


def test_a_signal_ends_a_worker_that_waits_for_its_name(rota: Start, migrated_sqlite_url: str) -> None:
    namesake = WorkerDeclaration("w", "elsewhere", 1, "elsewhere", "0", 1, 0, 600, [])
    with opened(migrated_sqlite_url) as database:
        database.write(lambda c: register(c, namesake))
    worker = rota("worker", "--name", "w", database_url=migrated_sqlite_url)
    worker.wait_for_log("'w' is the name of worker #1; waits up to 600 s", 30)
    worker.stop_signal(signal.SIGTERM)
    assert worker.wait_exit(5) == 128 + signal.SIGTERM
    assert [row[0] for row in workers(migrated_sqlite_url)] == ["live"]


ENDS_AS_IT_BEGINS = """
import os, signal
from rota import Rota
from rota.worker_service.guarded import Guarded

app = Rota()
Guarded.begin = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_is_killed_before_it_tells_its_row_is_marked_dead(
    rota: Start, migrated_sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text(ENDS_AS_IT_BEGINS)
    worker = rota("worker", "--app", "ends:app", database_url=migrated_sqlite_url, cwd=tmp_path)
    assert worker.wait_exit(30) == 128 + signal.SIGKILL
    assert [row[:2] for row in workers(migrated_sqlite_url)] == [("dead", "its process is gone")]


def test_a_signal_that_is_no_request_to_stop_reaches_the_worker(rota: Start, migrated_sqlite_url: str) -> None:
    worker = rota("worker", database_url=migrated_sqlite_url)
    worker.wait_for_log("started as #1", 30)
    worker.stop_signal(signal.SIGUSR1)
    assert worker.wait_exit() == 128 + signal.SIGUSR1
    assert [row[:2] for row in workers(migrated_sqlite_url)] == [("dead", "its process was killed by SIGUSR1")]


@pytest.mark.skipif(not may_unshare(), reason="this user may not make pid namespaces (unshare --pid)")
def test_as_the_first_process_of_a_container_it_reaps_orphans_passes_signals_on_and_sees_a_death(
    tmp_path: Path, migrated_sqlite_url: str
) -> None:
    container = RotaProcess(
        "worker", "--app", "tests.harness.orphan_app:app", "--name", "w",
        command=(*UNSHARE, sys.executable, "-m", "rota"), database_url=migrated_sqlite_url, log=tmp_path / "log",
    )  # fmt: skip
    with container:
        container.wait_for_log("started as #1", 30)
        [guardian] = psutil.Process(container.pid).children()
        wait_until(lambda: (tmp_path / "log").read_text().count("left an orphan") >= 3, 20, "some orphans")
        wait_until(lambda: len(guardian.children()) == 1, 10, "the orphans to be reaped")
        guardian.send_signal(signal.SIGTERM)
        assert container.wait_exit(30) == 0
    assert [row[:2] for row in workers(migrated_sqlite_url)] == [("dead", "stopped")]
    with container:
        container.wait_for_log("started as #2", 30)
        [guardian] = psutil.Process(container.pid).children()
        guardian.children()[0].kill()
        assert container.wait_exit(30) == 128 + signal.SIGKILL
    assert workers(migrated_sqlite_url)[1][:2] == ("dead", "its process was killed by SIGKILL")


def test_what_a_fork_writes_its_parent_reads() -> None:
    board = Board(3)
    if os.fork() == 0:
        board.worker_id, board.load, board.answered = 2**63 - 1, Load(7, 8, 9), 1234.5
        os._exit(0)
    os.wait()
    assert (board.worker_id, board.load, board.answered) == (2**63 - 1, Load(7, 8, 9), 1234.5)
    assert (board.stops, board.expires) == (0, 0)
