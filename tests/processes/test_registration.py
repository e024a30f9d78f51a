"""Whether a process is provably gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rota.worker_service.registration import is_gone, process_identity
from tests.harness.processes import wait_until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def identity_of(pid: int) -> str:
    identity = process_identity(pid)
    assert identity is not None
    return identity


def test_this_process_has_an_identity_that_stays() -> None:
    assert identity_of(os.getpid()) == identity_of(os.getpid())
    assert not is_gone(os.getpid(), identity_of(os.getpid()))


def test_its_start_is_read_right_whatever_the_process_is_called(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b c"
    odd.symlink_to(sys.executable)
    with subprocess.Popen([odd, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = float(identity_of(process.pid).rsplit("/", 1)[1]) / os.sysconf("SC_CLK_TCK")
        assert psutil.boot_time() + started == pytest.approx(psutil.Process(process.pid).create_time(), abs=1.5)
        process.kill()


def test_two_processes_of_one_moment_differ_by_pid_and_two_of_one_pid_by_start(
    child: subprocess.Popen[bytes],
) -> None:
    # What a successor with this pid would have: another start.
    boot, start = identity_of(child.pid).rsplit("/", 1)
    assert is_gone(child.pid, f"{boot}/{int(start) - 1}")
    assert not is_gone(child.pid, f"{boot}/{start}")


def test_a_killed_process_is_gone_at_once_though_nobody_has_reaped_it(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child.pid)
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert process_identity(child.pid) is None
    assert is_gone(child.pid, identity)
    child.wait()
    assert is_gone(child.pid, identity)


def test_a_frozen_process_is_not_gone(child: subprocess.Popen[bytes]) -> None:
    identity = identity_of(child.pid)
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    assert not is_gone(child.pid, identity)


@pytest.mark.parametrize("part", [0, 1], ids=["boot", "pid namespace"])
def test_of_another_boot_or_pid_namespace_nothing_is_proven(child: subprocess.Popen[bytes], part: int) -> None:
    boot, namespace, start = identity_of(child.pid).split("/")
    parts = [boot, namespace]
    parts[part] = f"other-{parts[part]}"
    child.kill()
    child.wait()
    assert is_gone(child.pid, f"{boot}/{namespace}/{start}")
    assert not is_gone(child.pid, "/".join([*parts, start]))


def test_of_a_worker_that_could_not_say_who_it_is_nothing_is_proven() -> None:
    assert not is_gone(2**22 + 1, "")


def test_a_process_that_proc_hides_is_not_gone(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    identity, read = identity_of(child.pid), Path.read_text

    def hide(path: Path, **options: str) -> str:
        if path.name == "stat":
            raise PermissionError
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", hide)
    monkeypatch.setattr("os.kill", lambda pid, number: (_ for _ in ()).throw(PermissionError()))
    assert process_identity(child.pid) is None
    assert not is_gone(child.pid, identity)
