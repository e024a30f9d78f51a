"""``rota up`` and its worker end as a program does: what was printed is there, and the app's exit hooks have run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.harness.processes import ROOT, RotaProcess, wait_until
from tests.harness.up import gone

Start = Callable[..., RotaProcess]
APP = """
import atexit, os
from pathlib import Path
from rota import Rota

app = Rota()

@app.task("PRINTS", cron="* * * * * *", seconds=True)
def prints(ctx):
    print("no end of a line", end=" ")

@atexit.register
def note():
    with Path("hooks").open("a") as file:
        print(os.getpid(), file=file)
"""


def test_ctrl_c_ends_up_with_exit_code_0_all_output_and_the_exit_hooks(rota: Start, tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(APP)
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}  # so that stdout is not written at once
    process = rota("up", "--app", "printing:app", cwd=tmp_path, environment=environment)
    process.wait_for_log(r"prints .* succeed", 60)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to the whole group of the terminal
    assert process.wait_exit(60) == 0
    assert process.log.splitlines()[-1].endswith("all have stopped")
    assert "Traceback" not in process.log
    assert "no end of a line" in process.log
    assert len((tmp_path / "hooks").read_text().split()) == 2, "the worker, and up, which checks the app"


FORKS = """
import os, subprocess
from pathlib import Path
from rota import Rota

app = Rota()

@app.task("FORKS", cron="* * * * * *", seconds=True)
def forks(ctx):
    if not Path("pids").exists():
        forked = os.fork()
        if not forked:
            os.execvp("sleep", ["sleep", "600"])
        started = subprocess.Popen(["sleep", "600"])
        Path("pids").write_text(f"{forked} {started.pid}")
"""


def test_what_a_handler_has_started_does_not_outlive_up(rota: Start, tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(FORKS)
    process = rota("up", "--app", "forking:app", cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    process.wait_for_log(r"forks .* succeed", 60)
    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert not any(map(gone, started))
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait_exit(60) == 0
    wait_until(lambda: all(map(gone, started)), 10, "the processes of the handler to end")
