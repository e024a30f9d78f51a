"""The supervisor of ``rota up``, with children that are small programs."""

import os
import signal
import sys
from pathlib import Path

import pytest

from rota.supervise.supervisor import ending
from tests.harness.processes import RotaProcess, gone, wait_until

# A child says that it runs, leaves its pid, and stops in the way that its first argument names.
CHILD = """
import os, signal, sys, time
from pathlib import Path
from rota.supervise import parent
parent.LAST_SECONDS = 0.2
way, pids, pipe = sys.argv[1], Path(sys.argv[2]), int(sys.argv[4])
with pids.open("a") as file:
    file.write(f"{os.getpid()}\\n")
if way == "dies":
    sys.exit(7)
def stop(number, frame):
    print("child got", signal.Signals(number).name, flush=True)
    if way == "stops":
        sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
parent.AFTER_GRACE_SECONDS = 5
parent.watch_parent(pipe, float("0" if way == "deaf" else "30"))
print("child is ready", flush=True)
while True:
    time.sleep(60)
"""
SUPERVISOR = """
import os, sys
from rota.shared.clock import HostTimer
from rota.supervise import supervisor
supervisor.AFTER_GRACE_SECONDS = 0.2
way, pids, grace, child = sys.argv[1:]
children = [supervisor.Child("child", [sys.executable, "-c", child, way, pids], os.environ)]
it = supervisor.Supervisor(children, float(grace), lambda sentence: print(sentence, flush=True), HostTimer())
it.start()
it.run(lambda: None, 0.05)
print("all have stopped", flush=True)
"""


class Run:
    """A supervisor with one child."""

    def __init__(self, tmp_path: Path, way: str, grace: float = 30.0) -> None:
        self._pids = tmp_path / "pids"
        self.process = RotaProcess(
            log=tmp_path / "log",
            command=(sys.executable, "-c", SUPERVISOR, way, str(self._pids), str(grace), CHILD),
        )

    def __enter__(self) -> "Run":
        self.process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.discard()

    def pids(self) -> list[int]:
        return [int(line) for line in self._pids.read_text().split()] if self._pids.exists() else []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_child_as_one_sigterm_and_all_end(tmp_path: Path, number: signal.Signals) -> None:
    with Run(tmp_path, "stops") as run:
        run.process.wait_for_log("child is ready")
        os.killpg(run.process.pid, number)  # as Ctrl-C does: to the whole group of the terminal
        assert run.process.wait_exit() == 0
        assert run.process.log.count("child got") == run.process.log.count("child got SIGTERM") == 1
        assert "all have stopped" in run.process.log
        assert all(map(gone, run.pids()))


def test_a_second_signal_kills(tmp_path: Path) -> None:
    with Run(tmp_path, "deaf", grace=600) as run:
        run.process.wait_for_log("child is ready")
        run.process.stop_signal(signal.SIGINT)
        run.process.wait_for_log("child got SIGTERM")
        run.process.stop_signal(signal.SIGINT)
        assert run.process.wait_exit() == 0
        assert all(map(gone, run.pids()))


def test_a_child_that_outstays_its_grace_is_killed(tmp_path: Path) -> None:
    with Run(tmp_path, "deaf", grace=0) as run:
        run.process.wait_for_log("child is ready")
        run.process.stop_signal(signal.SIGTERM)
        assert run.process.wait_exit() == 0
        assert all(map(gone, run.pids()))


def test_a_child_that_dies_is_started_again_after_growing_pauses(tmp_path: Path) -> None:
    with Run(tmp_path, "dies") as run:
        run.process.wait_for_log(r"child \(\d+\) ended with exit code 7; it starts again in 0.5 s")
        run.process.wait_for_log(r"child \(\d+\) is started again")
        run.process.wait_for_log(r"child \(\d+\) ended with exit code 7; it starts again in 1 s")
        assert len(set(run.pids())) == 2


def test_a_child_that_was_killed_is_started_again_and_its_signal_named(tmp_path: Path) -> None:
    with Run(tmp_path, "stops") as run:
        run.process.wait_for_log("child is ready")
        os.kill(run.pids()[0], signal.SIGKILL)
        run.process.wait_for_log(r"child \(\d+\) ended with SIGKILL \(exit code -9\)")
        wait_until(lambda: len(run.pids()) == 2)


@pytest.mark.parametrize("way", ["stops", "deaf"])
def test_no_child_outlives_a_supervisor_that_is_killed(tmp_path: Path, way: str) -> None:
    with Run(tmp_path, way) as run:
        run.process.wait_for_log("child is ready")
        run.process.kill()
        wait_until(lambda: all(map(gone, run.pids())), 10, "the child to end")
        assert "child got SIGTERM" in run.process.log


def test_exit_codes_are_told_in_words() -> None:
    assert (ending(3), ending(-15)) == ("exit code 3", "SIGTERM (exit code -15)")
    assert ending(-40) == "signal 40 (exit code -40)"
