"""``rota up`` and its worker end as a program does: what was printed is there, and the app's exit hooks have run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.harness.processes import ROOT, RotaProcess, gone, wait_until

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


def test_what_a_handler_has_forked_does_not_outlive_a_second_ctrl_c(rota: Start, tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(FORKS + "    import time; time.sleep(600)")
    process = rota("up", "--app", "forking:app", cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    wait_until((tmp_path / "pids").exists, 60, "the processes of the handler")
    started = [int(pid) for pid in wait_until((tmp_path / "pids").read_text().split, 10, "their numbers")]
    os.killpg(process.pid, signal.SIGINT)
    process.wait_for_log("once more kills what still runs", 30)
    assert not any(map(gone, started))
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait_exit(15) == 0
    wait_until(lambda: all(map(gone, started)), 10, "the processes of the handler to end")


IN_PROCESSES = """
import atexit, os, sys
from pathlib import Path
from rota import Rota

app = Rota()

def note(what):
    with Path("hooks").open("a") as file:
        print(what, file=file)

def say(word):
    print(word, end=" ")

@app.task("FORKED", cron="* * * * * *", seconds=True, execution="process")
def forked(ctx):
    if not Path("begun").exists():
        Path("begun").touch()
        atexit.register(note, f"of the handler in {os.getpid()}")
        atexit.register(say, "said at the end")

@atexit.register
def note_import():
    note(f"of the import in {os.getpid()}")
"""


def test_exit_hooks_run_in_the_processes_of_nodes_when_their_worker_stops(rota: Start, tmp_path: Path) -> None:
    (tmp_path / "hooking.py").write_text(IN_PROCESSES)
    environment = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    process = rota("up", "--app", "hooking:app", cwd=tmp_path, environment=environment)
    process.wait_for_log(r"forked .* succeed", 60)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait_exit(60) == 0
    hooks = (tmp_path / "hooks").read_text().splitlines()
    [of_the_handler] = [line for line in hooks if line.startswith("of the handler")]
    assert of_the_handler.replace("handler", "import") not in hooks, "they are the worker's, and it goes on"
    assert len(hooks) - 1 == len({line for line in hooks if "import" in line}) >= 2, "the worker, and up"
    assert "said at the end" in process.log
