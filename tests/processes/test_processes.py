"""The tests' own tools: what they promise to the tests that rely on them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.harness.guard import kill_marked, marked_processes
from tests.harness.processes import ROOT, RotaProcess, gone, shifted_host_clock, wait_until

READ_CLOCKS = """
import json, threading, time
begin = time.monotonic()
with (condition := threading.Condition()):
    condition.wait(timeout=0.2)
waited = time.monotonic() - begin
clocks = {name: time.clock_gettime(getattr(time, name))
          for name in ("CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME")}
print(json.dumps({**clocks, "time": time.time(), "waited": waited}))
"""

# Starts a grandchild in a session of its own, as a shell task does, and says its pid.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


def python(code: str, log: Path, **environment: str) -> RotaProcess:
    return RotaProcess(log=log, environment=environment, command=(sys.executable, "-c", code))


def test_wait_until_returns_what_the_condition_gave() -> None:
    values = iter([None, 0, "here"])
    assert wait_until(lambda: next(values)) == "here"


def test_wait_until_fails_in_a_sentence_with_the_last_value() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"3 rows: not within 0\.02 s; the last value was \[\]"):
        wait_until(list, 0.02, "3 rows")


def test_a_shifted_host_clock_moves_the_wall_clock_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_CLOCKS],
        env={**os.environ, **shifted_host_clock("+1h")},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    seen = json.loads(done.stdout)
    assert seen["time"] - time.time() == pytest.approx(3600, abs=5)
    assert seen["CLOCK_REALTIME"] - time.time() == pytest.approx(3600, abs=5)
    for name in ("CLOCK_MONOTONIC", "CLOCK_BOOTTIME"):
        assert seen[name] - time.clock_gettime(getattr(time, name)) == pytest.approx(0, abs=5)
    assert 0.19 < seen["waited"] < 5


def test_a_process_sees_only_the_rota_settings_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_CAPACITY", "7")
    show = "import os; print(sorted(n for n in os.environ if n.startswith('ROTA_') and 'TEST' not in n))"
    with RotaProcess(
        database_url="sqlite:///x.db", log=tmp_path / "log", command=(sys.executable, "-c", show)
    ) as process:
        assert process.wait_exit() == 0
    assert process.log == "['ROTA_DATABASE_URL']\n"


def test_leaving_the_block_kills_descendants_in_other_sessions(tmp_path: Path) -> None:
    with python(PARENT, tmp_path / "log") as process:
        child = int(process.wait_for_log(r"^child (\d+)$")[1])
        assert not gone(child)
    assert not process.alive
    assert gone(child)


def test_kill_leaves_children_alive_as_a_real_kill_would(tmp_path: Path) -> None:
    with python(PARENT, tmp_path / "log") as process:
        child = int(process.wait_for_log(r"^child (\d+)$")[1])
        process.kill()
        assert process.returncode == -signal.SIGKILL
        assert not gone(child)


def test_a_process_can_be_frozen_and_thawed(tmp_path: Path) -> None:
    with python(PARENT, tmp_path / "log") as process:
        process.wait_for_log("child")
        process.stop_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        assert process.alive
        process.stop_signal(signal.SIGCONT)
        process.stop_signal(signal.SIGTERM)
        assert process.wait_exit() == -signal.SIGTERM


def test_wait_for_log_fails_at_once_with_the_log_when_the_process_has_ended(tmp_path: Path) -> None:
    with (
        python("raise SystemExit('no database')", tmp_path / "log") as process,
        pytest.raises(pytest.fail.Exception, match=r"ended with 1 before it logged 'ready'[\s\S]*no database"),
    ):
        process.wait_for_log("ready", deadline=60)


def test_a_killed_test_run_leaves_no_process_and_no_directory(tmp_path: Path) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.harness.processes import RUN_MARKER, RotaProcess, guard
Path("scratch").mkdir()
guard().remove(Path("scratch").resolve())
RotaProcess(log=Path("inner.log"), command=(sys.executable, "-c", {PARENT!r})).start().wait_for_log("child")
print("marker", RUN_MARKER, flush=True)
time.sleep(600)
"""
    with RotaProcess(log=tmp_path / "log", command=(sys.executable, "-c", code), cwd=tmp_path) as run:
        marker = run.wait_for_log(r"^marker (\S+)$")[1]
        assert len(list(marked_processes(marker))) == 2
        run.kill()
        wait_until(lambda: not (tmp_path / "scratch").exists(), 20, "the guard to delete the directory")
        assert list(marked_processes(marker)) == []


def test_kill_marked_spares_who_does_not_carry_the_mark(tmp_path: Path) -> None:
    with python(PARENT, tmp_path / "log") as process:
        kill_marked("ROTA_TEST_PROCESS=another")
        assert process.alive
