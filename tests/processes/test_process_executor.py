"""Functions in processes of their own: what crosses, how they are killed, and that nothing outlives its parent."""

import inspect
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest

from rota.shared.clock import HostTimer, boottime
from rota.worker_service import process_groups
from rota.worker_service.authoring import Rota
from rota.worker_service.context import NodeContext
from rota.worker_service.executors import process
from rota.worker_service.executors.base import Call, NoThread
from rota.worker_service.executors.process import ProcessExecutor
from rota.worker_service.loading import load_app
from rota.worker_service.verdicts import EndRun, RunAgain
from tests.harness import process_app
from tests.harness.processes import ROOT, gone, marked_environment, wait_until
from tests.harness.told import DEADLINE, Told

LIMIT = 2000

PARENT = """
import sys, threading
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import Call, NoThread
from rota.worker_service.executors.process import ProcessExecutor
from rota.worker_service.verdicts import RunAgain
from rota.worker_service.loading import load_app
from rota.shared.clock import HostTimer

app = load_app("tests.harness.process_app:app")
executor = ProcessExecutor("tests.harness.process_app:app", 2, 1000, HostTimer())
param = {"file": sys.argv[1], "hold_the_lock": sys.argv[2] == "lock"}
executor.start(Call(app.nodes["PLAIN_HANG"], NodeContext(param=param)), print)
threading.Event().wait()
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rota:
    monkeypatch.syspath_prepend(tmp_path)
    return load_app("tests.harness.process_app:app")


@pytest.fixture
def executor(app: Rota) -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor(app.target, 2, LIMIT, HostTimer())
    yield executor
    executor.close()
    wait_until(lambda: not process_groups._groups, DEADLINE, "no process group left")


Run = Callable[..., Told]


@pytest.fixture
def run(app: Rota, executor: ProcessExecutor) -> Run:
    def start(node: str, param: Any = None, **context: Any) -> Told:
        told = Told()
        told.running = executor.start(Call(app.nodes[node], NodeContext(param=param, **context)), told)
        return told

    return start


def pids_in(file: Path) -> list[int]:
    wait_until(file.exists, DEADLINE, "the handler's word")
    pids: list[int] = json.loads(file.read_text())
    sleepers = [child.pid for child in psutil.Process(pids[1]).children()]
    return [*pids, *sleepers]


def test_the_context_crosses_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    before = boottime()
    told = run(
        "TYPED_CONTEXT",
        {"in": "us", "secret": "s3cret"},
        schedule_datetime=datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        due_at=datetime(2026, 10, 25, 1, 31, tzinfo=UTC),
        results={"EXTRACT": {"rows": [1, None, "ä"]}},
        task_name="täglich",
        node_type="TYPED_CONTEXT",
        instance_id=7,
        run_number=2,
        attempt=3,
        origin="replay",
    )
    outcome = told.one
    assert outcome.failure is None, outcome.failure
    assert before < told.entered <= outcome.left < boottime()
    pid = outcome.result.pop("pid")
    assert pid != os.getpid()
    assert outcome.result == {
        "task_name": "täglich",
        "node_type": "TYPED_CONTEXT",
        "instance_id": 7,
        "run_number": 2,
        "attempt": 3,
        "origin": "replay",
        "results": {"EXTRACT": {"rows": [1, None, "ä"]}},
        "region": "us",
        "secret": "s3cret",
        "unset": ["region", "secret"],
        "fire": "2026-10-25T02:30:00+01:00",
        "zone": "Europe/Berlin",
        "due": "2026-10-25T01:31:00+00:00",
        "canceled": False,
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "python_path": "/nowhere",
    }


@pytest.mark.parametrize("offset", [0, 330])
def test_a_zone_without_a_name_crosses_as_its_offset(run: Run, offset: int) -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(minutes=offset)))
    outcome = run("TYPED_CONTEXT", {}, schedule_datetime=moment).one
    assert outcome.result["fire"] == moment.isoformat()


def test_an_idle_child_is_used_again(run: Run) -> None:
    pids = [run("PLAIN_PID").one.result for _ in range(3)]
    assert len(set(pids)) == 1


def test_no_more_children_than_asked_for(run: Run) -> None:
    pids = [told.one.result for told in [run("PLAIN_PID") for _ in range(8)]]
    assert len(set(pids)) <= 2


def test_a_call_that_the_machine_has_no_thread_for_is_refused_and_costs_no_child(
    run: Run, executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(NoThread):
                run("PLAIN_PID")
    assert run("PLAIN_PID").one.failure is None
    assert not executor._waiting


def test_a_guard_that_cannot_be_started_again_costs_no_child_and_no_calls_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(order: str) -> None:
        if order.startswith("-"):
            raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(process_groups._guard, "tell", refuse)
    for _ in range(3):
        assert "exit code 3" in run("PLAIN_END", {"how": 3}).failure[1]


def test_an_idle_child_ends_after_a_while(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.01)
    pid = run("PLAIN_PID").one.result
    wait_until(lambda: gone(pid), DEADLINE, "the idle child's end")
    assert run("PLAIN_PID").one.result != pid


def test_a_child_that_died_while_idle_is_replaced(run: Run) -> None:
    pid = run("PLAIN_PID").one.result
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), DEADLINE, "its death")
    assert run("PLAIN_PID").one.result not in (None, pid)


def test_a_model_is_returned_as_its_json(run: Run) -> None:
    assert run("PLAIN_MODEL").one.result["note"] == "a model"


def test_a_param_without_a_model_crosses_as_it_is(run: Run) -> None:
    given = {"a": [1, 2.5, None, True, {"ü": "\n\x00"}]}
    assert run("PLAIN_ECHO", given).one.result == given


def test_a_param_that_does_not_fit_is_refused_in_the_child_for_good(run: Run) -> None:
    told = run("TYPED_CONTEXT", {"in": 7})
    assert told.failure == ("InvalidParam", "param of TYPED_CONTEXT: in: Input should be a valid string")
    assert told.one.failure is not None
    assert told.one.failure.final


def test_a_validator_that_exits_is_the_nodes_failure(run: Run) -> None:
    kind, sentence = run("TYPED_CONTEXT", {"note": "exit"}).failure
    assert (kind, sentence) == ("SystemExit", "SystemExit: 3")
    assert run("PLAIN_ECHO", 1).one.result == 1


def test_what_is_not_json_is_refused_in_the_child(run: Run) -> None:
    told = run("PLAIN_SET")
    kind, sentence = told.failure
    assert told.one.failure is not None
    assert (kind, told.one.failure.final) == ("InvalidInput", True)
    assert "PLAIN_SET returned what is not JSON: a set is not JSON" in sentence


def test_a_result_may_be_as_large_as_the_limit_and_no_larger(run: Run) -> None:
    assert len(run("PLAIN_LARGE", {"size": LIMIT - 2}).one.result) == LIMIT - 2
    kind, sentence = run("PLAIN_LARGE", {"size": LIMIT - 1}).failure
    assert kind == "InvalidInput"
    assert "returned 2,001 bytes of JSON; the limit is 2,000" in sentence
    assert "the limit is" in run("PLAIN_LARGE", {"size": 50_000_000}).failure[1]


def test_whatever_a_handler_raises_is_its_failure_and_the_child_goes_on(run: Run) -> None:
    pid = run("PLAIN_PID").one.result
    outcome = run("PLAIN_RAISE", {"what": "value"}).one
    assert outcome.failure is not None
    assert (outcome.failure.type, outcome.failure.error) == ("ValueError", "ValueError: no")
    assert "process_app.py" in outcome.failure.traceback
    assert run("PLAIN_RAISE", {"what": "exit"}).failure[0] == "SystemExit"
    assert run("PLAIN_RAISE", {"what": "interrupt"}).failure[0] == "KeyboardInterrupt"
    assert len(run("PLAIN_RAISE", {"what": "long"}).failure[1]) < 10_000
    assert run("PLAIN_PID").one.result == pid


def test_a_handlers_own_word_and_the_names_of_an_exception_come_from_the_process(run: Run) -> None:
    later, never, own = (run("PLAIN_RAISE", {"what": what}).one.failure for what in ("retry", "fail", "own"))
    assert later is not None
    assert never is not None
    assert own is not None
    assert (later.error, later.final, list(later.kinds), later.retry_in) == ("Retry: not yet", False, [], 5)
    assert (never.error, never.final) == ("Fail: no", True)
    assert list(own.kinds)[:2] == ["tests.harness.process_app.Away", "ConnectionError"]


def test_that_a_handler_ends_the_run_comes_from_the_process(run: Run) -> None:
    ended = run("PLAIN_EARLY").one.result
    assert isinstance(ended, EndRun)
    assert ended.result == {"rows": 0}


@pytest.mark.parametrize("at", [None, "2030-01-01T09:00:00", "2030-01-01T09:00:00+01:00"])
def test_when_a_handler_wants_to_run_again_comes_from_the_process(run: Run, at: str | None) -> None:
    again = run("PLAIN_AGAIN", {} if at is None else {"at": at}).one.result
    assert isinstance(again, RunAgain)
    if at is None:
        assert (again.at, again.in_seconds, again.result) == (None, 300, {"rows": 3})
    else:
        assert (again.at, again.in_seconds, again.result) == (datetime.fromisoformat(at), None, {"at": at})


@pytest.mark.parametrize(
    ("how", "said"),
    [(3, "ended by itself with exit code 3"), (0, "exit code 0"), ("SIGSEGV", "SIGSEGV"), ("SIGKILL", "SIGKILL")],
)
def test_a_process_that_dies_by_itself_is_a_failure(run: Run, how: int | str, said: str) -> None:
    before = boottime()
    told = run("PLAIN_END", {"how": how})
    kind, sentence = told.failure
    assert kind == "ProcessEnded"
    assert said in sentence
    assert "PLAIN_END" in sentence
    assert before < told.entered <= told.one.left
    assert run("PLAIN_PID").one.failure is None


def test_what_ignores_sigterm_is_killed_with_what_it_started(run: Run, tmp_path: Path) -> None:
    told = run("PLAIN_HANG", {"file": str(tmp_path / "pids")})
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 3
    told.stop()
    told.stop()
    assert run("PLAIN_PID").one.failure is None, "another call, while that one goes on"
    assert told.outcomes == []
    assert not any(gone(pid) for pid in pids)
    told.kill()
    assert told.one.stopped
    assert all(map(gone, pids)), "the call has not ended while a process of the group is left"


@pytest.mark.parametrize(
    ("how", "stopped", "tidied"),
    [
        ("", True, "its process got SIGTERM "),
        ("asks", True, "its process got SIGTERM True"),
        ("returns", False, "its process got SIGTERM "),
        ("returns asks", True, "its process got SIGTERM True"),
        ("looks", True, None),
    ],
)
def test_a_process_that_is_stopped_tidies_up_before_its_call_ends(
    run: Run, tmp_path: Path, how: str, stopped: bool, tidied: str | None
) -> None:
    told = run("PLAIN_TIDY", {"folder": str(tmp_path), **dict.fromkeys(how.split(), True)})
    wait_until((tmp_path / "pids").exists, DEADLINE, "the handler's word")
    assert told.running is not None
    told.running.stop(asks=True)
    outcome = told.one
    assert (outcome.stopped, outcome.result) == (stopped, None if stopped else "returned")
    assert (tmp_path / "left").exists()
    assert tidied is None or (tmp_path / "tidied").read_text() == tidied
    assert all(map(gone, json.loads((tmp_path / "pids").read_text()))), "nor is a process left that it has started"
    assert run("PLAIN_PID").one.failure is None


def test_a_sigterm_from_elsewhere_is_a_failure_of_the_handler_and_ends_an_idle_child(run: Run, tmp_path: Path) -> None:
    told = run("PLAIN_TIDY", {"folder": str(tmp_path), "asks": True})
    wait_until((tmp_path / "pids").exists, DEADLINE, "the handler's word")
    pid, other = json.loads((tmp_path / "pids").read_text())
    os.kill(pid, signal.SIGTERM)
    assert told.failure == ("SystemExit", "SystemExit: its process got SIGTERM")
    assert not gone(pid)
    os.kill(other, signal.SIGKILL)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: gone(pid), DEADLINE, "the idle child's end")
    assert run("PLAIN_PID").one.failure is None


def test_a_process_that_times_out_says_where_it_stands_and_since_when(run: Run, tmp_path: Path) -> None:
    before = boottime()
    told = run("PLAIN_HANG", {"file": str(tmp_path / "pids")})
    pids = pids_in(tmp_path / "pids")
    assert told.running is not None
    running = told.running
    entered = wait_until(lambda: running.entered, DEADLINE, "the word that it began")
    running.stop(asks=True)
    wait_until(lambda: running._place, DEADLINE, "its answer")  # type: ignore[attr-defined]
    running.kill()
    outcome = told.one
    line = 1 + inspect.getsource(process_app).splitlines().index("    time.sleep(1000)")
    assert outcome.place == f"{process_app.__file__}:{line} in hang"
    assert (outcome.stopped, outcome.entered) == (True, entered)
    assert before < told.entered < boottime()
    wait_until(lambda: all(map(gone, pids)), DEADLINE, "the whole group's end")
    assert run("PLAIN_PID").one.failure is None


def test_a_process_that_holds_pythons_lock_is_killed_though_it_does_not_say_where_it_stands(
    run: Run, tmp_path: Path
) -> None:
    told = run("PLAIN_HANG", {"file": str(tmp_path / "pids"), "hold_the_lock": True})
    pids = pids_in(tmp_path / "pids")
    assert told.running is not None
    began = boottime()
    told.running.stop(asks=True)
    told.running.kill()
    assert (told.one.stopped, told.one.place) == (True, None)
    assert boottime() - began < 5
    wait_until(lambda: all(map(gone, pids)), DEADLINE, "the whole group's end")


def test_a_call_that_ends_as_it_is_asked_costs_the_next_call_of_its_child_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.05)
    for _ in range(20):
        told = run("PLAIN_ECHO", 1)
        assert told.running is not None
        told.running.stop(asks=True)
        assert told.one.stopped or told.one.result == 1
        assert run("PLAIN_BRIEF").one.failure is None


def test_a_child_that_is_no_longer_needed_runs_its_exit_hooks_and_writes_what_was_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.01)
    pid = run("PLAIN_HOOK", {"file": str(tmp_path / "hook")}).one.result
    wait_until(lambda: gone(pid), DEADLINE, "the idle child's end")
    assert (tmp_path / "hook").read_text() == "called"
    assert "printed by a hook" in capfd.readouterr().out


def test_a_hook_that_hangs_holds_up_the_end_of_its_child_only_so_long(
    run: Run, executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "HOOKS_SECONDS", 0.5)
    pid = run("PLAIN_HOOK", {"hangs": True}).one.result
    assert not gone(pid)
    executor.finish(threading.Event())
    wait_until(lambda: gone(pid), DEADLINE, "the child's end")


def test_who_asks_a_second_time_waits_for_no_hook(run: Run, executor: ProcessExecutor) -> None:
    run("PLAIN_HOOK", {"hangs": True}).one  # noqa: B018 - it waits
    asked, began = threading.Event(), boottime()
    asked.set()
    executor.finish(asked)
    assert boottime() - began < process.HOOKS_SECONDS
    process_groups.kill_all()


def test_what_the_import_made_for_all_children_is_removed_by_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.01)
    monkeypatch.setenv("TEST_REMOVED", str(tmp_path / "removed"))
    pid = run("PLAIN_HOOK", {"file": str(tmp_path / "hook")}).one.result
    wait_until(lambda: gone(pid), DEADLINE, "the idle child's end")
    assert (tmp_path / "hook").exists()
    assert not (tmp_path / "removed").exists()


def test_a_call_stopped_while_it_waits_never_runs(run: Run, tmp_path: Path) -> None:
    hanging = [run("PLAIN_HANG", {"file": str(tmp_path / str(at))}) for at in range(2)]
    waiting = run("PLAIN_HANG", {"file": str(tmp_path / "waiting")})
    waiting.stop()
    assert (waiting.one.stopped, waiting.one.entered) == (True, None)
    for told in hanging:
        told.stop()
        assert told.one.stopped
    assert run("PLAIN_PID").one.failure is None
    assert not (tmp_path / "waiting").exists()


def test_a_call_stopped_while_its_child_starts_is_stopped(run: Run, tmp_path: Path) -> None:
    for _ in range(3):
        told = run("PLAIN_HANG", {"file": str(tmp_path / "pids")})
        told.stop()
        assert told.one.stopped


def test_close_tells_all_and_takes_no_more(app: Rota, run: Run, executor: ProcessExecutor, tmp_path: Path) -> None:
    tolds = [run("PLAIN_HANG", {"file": str(tmp_path / str(at))}) for at in range(3)]
    pids = pids_in(tmp_path / "0")
    executor.close()
    late = run("PLAIN_PID")
    assert [told.one.stopped for told in [*tolds, late]] == [True] * 4
    wait_until(lambda: all(map(gone, pids)), DEADLINE, "the children's end")


def test_log_records_reach_the_parents_handlers(
    run: Run, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    assert run("PLAIN_LOG", task_name="daily", instance_id=7, node_type="PLAIN_LOG").one.failure is None
    records = {record.name: record for record in caplog.records}
    assert records["rota.task"].getMessage() == "[daily #7 PLAIN_LOG] counted 3"
    assert records["rota.task"].task == "daily"  # type: ignore[attr-defined]
    assert "it failed\nTraceback" in records["mine"].getMessage()
    assert "ZeroDivisionError" in records["mine"].getMessage()
    assert "too low" not in caplog.text
    assert "to stdout" in capfd.readouterr().out


def test_a_log_handler_that_raises_ends_no_call(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise OSError("the log's disk is full")

    monkeypatch.setattr(logging.getLogger(), "filters", [refuse])
    assert run("PLAIN_LOG", task_name="daily").one.failure is None


def test_without_a_target_every_call_fails_in_a_sentence(app: Rota) -> None:
    told, executor = Told(), ProcessExecutor(None, 2, LIMIT, HostTimer())
    executor.start(Call(app.nodes["PLAIN_PID"], NodeContext()), told)
    assert "load it as module:app" in told.failure[1]
    assert told.one.entered is None, "its handler was not entered"
    executor.close()


def test_an_app_that_cannot_be_imported_is_a_sentence(app: Rota, tmp_path: Path) -> None:
    (tmp_path / "broken_app.py").write_text("1 / 0")
    told, executor = Told(), ProcessExecutor("broken_app:app", 2, LIMIT, HostTimer())
    executor.start(Call(app.nodes["PLAIN_PID"], NodeContext()), told)
    kind, sentence = told.failure
    assert kind == "ConfigurationError"
    assert "ZeroDivisionError" in sentence
    executor.close()


@pytest.mark.parametrize("lock", ["lock", "free"])
def test_a_killed_parent_leaves_no_process(app: Rota, tmp_path: Path, lock: str) -> None:
    file = tmp_path / "pids"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(file), lock],
        cwd=ROOT,
        env=marked_environment(os.environ),
    )
    try:
        pids = pids_in(file)
        assert not all(map(gone, pids))
    finally:
        parent.kill()
        parent.wait(DEADLINE)
    wait_until(lambda: all(map(gone, pids)), DEADLINE, "the end of what the parent started")


def test_many_calls_from_many_threads_are_each_told_once(run: Run) -> None:
    tolds: list[Told] = []
    threads = [threading.Thread(target=lambda: tolds.extend(run("PLAIN_PID") for _ in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(told.one.failure is None for told in tolds)
