"""The command as a process: what it imports, its signals, its output in a pipe."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import ROOT, RotaProcess


def test_help_needs_neither_a_database_nor_what_takes_long_to_import() -> None:
    code = """
import sys, types
package = types.ModuleType("rota"); package.__path__ = [sys.argv[1]]; sys.modules["rota"] = package
from rota.cli import cli
cli(["--help"], standalone_mode=False)
heavy = {"sqlalchemy", "pydantic", "alembic", "rich", "rota.worker_service", "rota.scheduler_service"}
heavy &= set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code, str(ROOT / "rota")], check=True, cwd=ROOT, capture_output=True)


def test_python_m_rota_is_the_same_command() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "rota", "--version"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert shown.stdout.startswith("rota, version ")


def test_ctrl_c_while_waiting_is_exit_code_130(tmp_path: Path) -> None:
    fifo = tmp_path / "param"
    os.mkfifo(fifo)
    with RotaProcess("task", "add", "x", "--type", "T", "--param", f"@{fifo}", log=tmp_path / "log") as process:
        with fifo.open("w"):  # returns when the command has opened it to read
            process.stop_signal(signal.SIGINT)
            assert process.wait_exit() == 130
        assert process.log == "interrupted\n"


INTERRUPTED_AT = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from rota.cli import main
main()
"""


@pytest.mark.parametrize("module", ["click", "rota.cli.groups", "rota.shared.domain.errors"])
def test_ctrl_c_while_the_command_is_imported_shows_no_traceback(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, module], cwd=ROOT, capture_output=True, check=False, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "interrupted\n")


@pytest.mark.parametrize("arguments", [("task", "list"), ("migrate",), ("doctor",)])
def test_that_the_database_is_away_is_said_once(arguments: tuple[str, ...], tmp_path: Path) -> None:
    url = "mysql://rota@127.0.0.1:1/rota"
    with RotaProcess(*arguments, database_url=url, log=tmp_path / "log") as process:
        assert process.wait_exit(30) == 3
        assert process.log.count("Can't connect") == 1
        assert "WARNING" not in process.log


def test_it_runs_in_a_pipe_without_colour() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "rota", "cron", "@daily"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert "\x1b" not in shown.stdout
    assert shown.stdout.startswith("fires every day at 00:00 (UTC)\n")


def test_a_worker_of_an_unmigrated_database_ends_with_exit_code_3_and_says_what_to_do(
    database_url: str, tmp_path: Path
) -> None:
    with RotaProcess("worker", database_url=database_url, log=tmp_path / "log") as process:
        assert process.wait_exit() == 3
        assert process.log.startswith("error: ")
        assert "run rota migrate" in process.log


def test_a_worker_of_a_wrong_app_ends_with_exit_code_1_and_a_sentence(migrated_sqlite_url: str, tmp_path: Path) -> None:
    with RotaProcess(
        "worker", "--app", "nowhere:app", database_url=migrated_sqlite_url, log=tmp_path / "log"
    ) as process:
        assert process.wait_exit() == 1
        assert process.log.startswith("error: app 'nowhere:app': there is no module 'nowhere'")
