"""SHELL_COMMAND: real commands, bounded in time and output, of which nothing is left."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest

from rota.shared.clock import HostTimer, boottime
from rota.worker_service import process_groups
from rota.worker_service.builtin.command import LAST_BYTES
from rota.worker_service.builtin.shell import CommandFailed, shell_command
from rota.worker_service.builtin.shell_param import ShellCommandParam
from rota.worker_service.contents import Node
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import Call
from rota.worker_service.executors.event_loop import EventLoopExecutor
from rota.worker_service.running import endings
from tests.harness.guard import marked_processes
from tests.harness.processes import ROOT, gone, marked_environment, wait_until
from tests.harness.told import Told

DEADLINE = 20

GRACE = 10
"""For how long a command may tidy up, unless a test says otherwise."""

# Two processes that ignore SIGTERM, the second a child of a child; each adds its pid to $PIDS.
STUBBORN = "trap '' TERM; (echo $$ >> $PIDS; sh -c 'echo $$ >> $PIDS; while :; do sleep 1000; done') & wait; sleep 1000"

WORKER = """
import asyncio, sys
from rota.worker_service.builtin.shell import shell_command
from rota.worker_service.builtin.shell_param import ShellCommandParam
from rota.worker_service.context import NodeContext

asyncio.run(shell_command(NodeContext(param=ShellCommandParam.model_validate_json(sys.argv[1]))))
"""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert process_groups._groups == set()


@pytest.fixture
def pids(tmp_path: Path) -> Callable[[int], list[int]]:
    """Waits until so many processes have written their pid to the file that $PIDS names."""
    file = tmp_path / "pids"

    def read(count: int) -> list[int]:
        wait_until(lambda: lines(file) >= count, DEADLINE, "the pids")
        return [int(line) for line in file.read_text().split()]

    return read


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def context(command: str | list[str], **param: Any) -> NodeContext[ShellCommandParam]:
    return NodeContext(
        param=ShellCommandParam(command=command, **param),
        schedule_datetime=datetime(2026, 11, 21, 3, tzinfo=ZoneInfo("Asia/Shanghai")),
        task_name="nightly",
        instance_id=7,
        attempt=2,
    )


def run(command: str | list[str], **param: Any) -> dict[str, Any]:
    return asyncio.run(shell_command(context(command, **param)))


def failure(command: str | list[str], **param: Any) -> str:
    with pytest.raises(CommandFailed) as caught:
        run(command, **param)
    return str(caught.value)


def test_a_line_is_run_by_the_shell() -> None:
    result = run("echo out; echo err >&2; exit 0")
    assert result.pop("elapsed_ms") >= 0
    assert result == {"exit_code": 0, "stdout": "out\n", "stderr": "err\n", "truncated": False}


def test_a_list_is_run_without_a_shell() -> None:
    assert run(["printf", "%s|", "$HOME", "a b", ";"])["stdout"] == "$HOME|a b|;|"


def test_it_sees_its_run_and_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    printed = run("env", env={"MINE": "x y", "INHERITED_TOO": "1"})["stdout"].splitlines()
    assert {
        "INHERITED=yes",
        "MINE=x y",
        "ROTA_INSTANCE_ID=7",
        "ROTA_TASK_NAME=nightly",
        "ROTA_SCHEDULE_DATETIME=2026-11-21T03:00:00+08:00",
        "ROTA_ATTEMPT=2",
    } <= set(printed)


def test_its_environment_is_the_given_one_and_does_not_touch_what_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    printed = run("env", env={"LANG": "C", "LINES2": "a\nb=c", "LD_LIBRARY_PATH": "/nowhere"})["stdout"]
    assert "LC_CTYPE" not in printed, "Python sets it where LANG is C"
    assert "LINES2=a\nb=c\n" in printed


def test_it_does_not_see_rotas_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", "mysql://rota:s3cret@db/rota")
    monkeypatch.setenv("ROTA_CONSOLE_TOKEN", "s3cret")
    assert "s3cret" not in run("env; cat /proc/self/environ")["stdout"]


def test_it_runs_where_it_is_told(tmp_path: Path) -> None:
    assert run("pwd -P", cwd=str(tmp_path))["stdout"].strip() == str(tmp_path.resolve())


def test_its_input_is_given_whole_even_if_it_is_not_read() -> None:
    assert run(["wc", "-c"], stdin="ä" * 500_000)["stdout"].strip() == "1000000"
    assert run("true", stdin="x" * 1_000_000)["exit_code"] == 0
    assert run("cat")["stdout"] == ""


def test_an_unexpected_exit_is_told_with_the_end_of_stderr() -> None:
    said = failure("seq 100000 >&2; echo the last word >&2; exit 3", max_output_bytes=10)
    assert "ended with exit code 3, where 0 is expected; stderr ends: " in said
    assert said.endswith("the last word")
    assert len(said) < 1200
    assert failure("exit 1").endswith("stderr is empty")


def test_other_exits_may_be_expected() -> None:
    assert run("exit 3", expect_exit=[0, 3])["exit_code"] == 3
    assert "where 3 is expected" in failure("exit 0", expect_exit=[3])


def test_a_signal_is_named() -> None:
    assert "was killed by SIGSEGV" in failure("kill -SEGV $$")


def test_what_cannot_be_started_is_told_without_the_arguments(tmp_path: Path) -> None:
    said = failure(["no-such-program", "s3cret"])
    assert said == "the command could not be started: 'no-such-program': No such file or directory"
    assert "(cwd): No such file or directory" in failure("pwd", cwd=str(tmp_path / "none"))
    (tmp_path / "file").write_text("x")
    assert "Permission denied" in failure([str(tmp_path / "file")])


def test_the_command_line_is_in_no_failure() -> None:
    assert "s3cret" not in failure(": s3cret; exit 1")
    assert "s3cret" not in failure(": s3cret; sleep 1000", timeout_seconds=0.01)


def test_a_flood_is_read_to_its_end_and_kept_to_the_limit() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run("head -c 300000000 /dev/zero; head -c 300000000 /dev/zero >&2", max_output_bytes=1000)
    assert len(result["stdout"]) == len(result["stderr"]) == 1000
    assert result["truncated"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


def test_output_as_long_as_the_limit_is_whole() -> None:
    assert run("printf 12345", max_output_bytes=5) | {"elapsed_ms": 0} == {
        "exit_code": 0,
        "stdout": "12345",
        "stderr": "",
        "truncated": False,
        "elapsed_ms": 0,
    }
    assert run("printf 123456", max_output_bytes=5)["truncated"]
    assert run("printf 1", max_output_bytes=0)["stdout"] == ""


def test_output_that_is_not_utf8_is_replaced() -> None:
    assert run(r"printf 'a\377b'")["stdout"] == "a\ufffdb"


def test_a_timeout_terminates_politely(tmp_path: Path) -> None:
    began = boottime()
    said = failure(f"trap 'echo bye > {tmp_path}/bye; exit' TERM; sleep 1000 & wait", timeout_seconds=0.5)
    assert said == "the command did not end within 0.5 s (timeout_seconds) and was terminated"
    assert (tmp_path / "bye").read_text() == "bye\n"
    assert boottime() - began < GRACE


def test_a_member_of_the_group_has_the_time_to_clean_up_after_its_leader_is_gone(tmp_path: Path) -> None:
    inner = (
        f"trap 'sleep 0.3; echo bye > {tmp_path}/bye; exit' TERM; echo on > {tmp_path}/on; while :; do sleep 0.01; done"
    )
    failure(f'sh -c "{inner}" > /dev/null 2>&1; true', timeout_seconds=1)
    assert (tmp_path / "on").exists()
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_what_ignores_sigterm_is_killed_with_its_grandchildren(
    tmp_path: Path, pids: Callable[[int], list[int]]
) -> None:
    ctx = context(STUBBORN, env={"PIDS": str(tmp_path / "pids")}, timeout_seconds=1)
    with pytest.raises(CommandFailed):
        asyncio.run(shell_command(ctx, grace_seconds=0.3))
    assert all(map(gone, pids(2))), "its run has not ended while a process of the group is left"


def test_it_ends_though_handlers_have_taken_all_threads_of_the_loop(tmp_path: Path) -> None:
    leave = threading.Event()

    async def cancel() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(pool := ThreadPoolExecutor(1))
        pool.submit(leave.wait)
        task = asyncio.create_task(shell_command(context(f"echo on > {tmp_path}/on; sleep 900")))
        while not (tmp_path / "on").exists():  # noqa: ASYNC110 - a file tells of it
            await asyncio.sleep(0.01)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=20)
        leave.set()
        assert done

    asyncio.run(cancel())


def test_cancellation_ends_it_and_a_second_one_at_once(tmp_path: Path, pids: Callable[[int], list[int]]) -> None:
    async def cancel_twice() -> float:
        task = asyncio.create_task(shell_command(context(STUBBORN, env={"PIDS": str(tmp_path / "pids")})))
        while lines(tmp_path / "pids") < 2:  # noqa: ASYNC110 - a file tells of it
            await asyncio.sleep(0.01)
        began = boottime()
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return boottime() - began

    assert asyncio.run(cancel_twice()) < GRACE
    wait_until(lambda: all(map(gone, pids(2))), DEADLINE, "the end of the group")
    wait_until(lambda: not process_groups._groups, DEADLINE, "its being forgotten")


def test_what_is_left_in_the_background_is_killed_and_held_pipes_hang_nothing(
    tmp_path: Path, pids: Callable[[int], list[int]]
) -> None:
    began = boottime()
    result = run("echo done; (sleep 1000 & echo $! >> $PIDS); exit 0", env={"PIDS": str(tmp_path / "pids")})
    assert result["stdout"] == "done\n"
    assert boottime() - began < 10
    wait_until(lambda: all(map(gone, pids(1))), DEADLINE, "the end of what ran in the background")


def test_a_pipe_held_outside_the_group_hangs_nothing(tmp_path: Path, pids: Callable[[int], list[int]]) -> None:
    try:
        line = "setsid sh -c 'echo $$ >> $PIDS; exec sleep 1000' & while ! [ -s $PIDS ]; do sleep 0.01; done; echo done"
        assert run(line, env={"PIDS": str(tmp_path / "pids")})["stdout"] == "done\n"
    finally:
        for pid in pids(1):
            psutil.Process(pid).kill()


def test_late_output_of_the_group_is_still_read() -> None:
    assert run("(sleep 0.2; echo late) & exit 0")["stdout"] == "late\n"


def test_the_worker_can_kill_it(tmp_path: Path, pids: Callable[[int], list[int]]) -> None:
    async def kill_all() -> None:
        task = asyncio.create_task(shell_command(context(STUBBORN, env={"PIDS": str(tmp_path / "pids")})))
        while lines(tmp_path / "pids") < 2:  # noqa: ASYNC110 - a file tells of it
            await asyncio.sleep(0.01)
        process_groups.kill_all()
        with pytest.raises(CommandFailed, match="killed by SIGKILL"):
            await task

    asyncio.run(kill_all())
    wait_until(lambda: all(map(gone, pids(2))), DEADLINE, "the end of the group")


def test_a_command_that_the_machine_has_no_thread_for_never_runs_and_leaves_no_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread.name.startswith("command-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(f"touch {tmp_path / 'ran'}")
    assert process_groups._groups == set()
    assert not (tmp_path / "ran").exists()


def test_many_run_at_once() -> None:
    async def many() -> list[dict[str, Any]]:
        return await asyncio.gather(*(shell_command(context(f"echo {at}")) for at in range(30)))

    assert [result["stdout"] for result in asyncio.run(many())] == [f"{at}\n" for at in range(30)]


@pytest.mark.parametrize("guard_killed", [False, True])
def test_a_killed_worker_leaves_no_command(
    tmp_path: Path, pids: Callable[[int], list[int]], guard_killed: bool
) -> None:
    param = {"command": STUBBORN, "env": {"PIDS": str(tmp_path / "pids")}}
    twice = WORKER.replace("asyncio.run(", "go = lambda: (").replace("asyncio, sys", "asyncio, os, sys, pathlib")
    twice += """
async def main():
    first = asyncio.create_task(go())
    if sys.argv[2] == "True":  # kill the guard; the next command starts another, which is told of the first too
        from rota.worker_service import process_groups
        await asyncio.sleep(0)
        process_groups._guard._process.kill()
        process_groups._guard._process.wait()
        second = asyncio.create_task(go())
    await asyncio.Event().wait()
asyncio.run(main())
"""
    worker = subprocess.Popen(
        [sys.executable, "-c", twice, json.dumps(param), str(guard_killed)],
        cwd=ROOT,
        env=marked_environment(os.environ),
    )
    try:
        commands = pids(4 if guard_killed else 2)
        assert not all(map(gone, commands))
    finally:
        worker.kill()
        worker.wait(DEADLINE)
    wait_until(lambda: all(map(gone, commands)), DEADLINE, "the end of the commands")


def test_a_command_does_not_begin_before_it_is_registered(tmp_path: Path) -> None:
    """The worker is killed in that very moment."""
    killed = f"""
import os, signal
from rota.worker_service import process_groups
process_groups.register = lambda group: os.kill(os.getpid(), signal.SIGKILL)
{WORKER}"""
    marker = f"TEST_COMMAND={tmp_path}"
    environment = marked_environment({**os.environ, "TEST_COMMAND": str(tmp_path)})
    param = json.dumps({"command": f"touch {tmp_path}/begun"})
    ended = subprocess.run([sys.executable, "-c", killed, param], cwd=ROOT, env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    wait_until(lambda: not list(marked_processes(marker)), DEADLINE, "the end of the process that would be the command")
    assert not (tmp_path / "begun").exists()


def details(command: str, **param: Any) -> dict[str, Any]:
    """What is kept of a failure, beside its sentence."""
    with pytest.raises(CommandFailed) as caught:
        run(command, **param)
    return caught.value.details


def test_a_failure_keeps_the_exit_code_and_the_output() -> None:
    kept = details("echo out; echo err >&2; exit 3")
    assert kept == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n", "truncated": False}
    assert details("kill -9 $$")["exit_code"] == -9


def test_a_command_that_took_too_long_keeps_its_output() -> None:
    kept = details("echo working; sleep 1000", timeout_seconds=0.5)
    assert (kept["stdout"], kept["exit_code"]) == ("working\n", -signal.SIGTERM)


def test_of_a_failure_the_end_of_long_output_is_kept() -> None:
    kept = details("seq 100000; seq 100000 >&2; exit 1")
    assert (len(kept["stdout"]), len(kept["stderr"]), kept["truncated"]) == (LAST_BYTES, LAST_BYTES, True)
    assert kept["stdout"].endswith("\n99999\n100000\n")


def test_of_a_failure_no_more_output_is_kept_than_asked_for() -> None:
    assert details("echo secret; exit 1", max_output_bytes=0)["stdout"] == ""
    assert details("echo 12345; exit 1", max_output_bytes=3)["stdout"] == "45\n"


def test_a_command_whose_node_is_stopped_keeps_its_output_and_how_it_ended() -> None:
    loop, told = EventLoopExecutor(HostTimer()), Told()
    node = Node("SHELL_COMMAND", "SHELL_COMMAND", 1, shell_command, "async", param_model=ShellCommandParam)
    line = "echo working; echo err >&2; trap 'echo bye; exit 3' TERM; sleep 1000 & wait"
    given: NodeContext[Any] = NodeContext(param={"command": line})
    try:
        running = loop.start(Call(node, given), told)
        wait_until(lambda: len(process_groups._groups) == 1, DEADLINE, "the command")
        [group] = process_groups._groups
        wait_until(lambda: len(psutil.Process(group).children()) == 1, DEADLINE, "its sleep")
        running.stop()
        outcome = told.one
    finally:
        loop.close()
    ending = endings.stopped(endings.Stop("SHELL_COMMAND timed out after 1 s", canceled=False), outcome)
    assert ending.result is not None
    kept = json.loads(ending.result)
    assert kept == {
        "error": "SHELL_COMMAND timed out after 1 s",
        "exit_code": 3,
        "stdout": "working\nbye\n",
        "stderr": "err\n",
        "truncated": False,
    }
    assert endings.stopped(endings.Stop("canceled", canceled=True), outcome).result is None
