"""``rota up`` and its worker end as a program does: what was printed is there, and the app's exit hooks have run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.harness.processes import ROOT, RotaProcess

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
