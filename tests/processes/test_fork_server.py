"""The fork server of a worker: it imports the app once, and nothing of the worker is in the children."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota.shared.clock import HostTimer
from rota.shared.control import instances, tasks
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import opened
from rota.worker_service import process_groups
from rota.worker_service.app import EXIT_ABANDONED
from rota.worker_service.context import NodeContext
from rota.worker_service.executors.base import Call
from rota.worker_service.executors.fork_server import ForkServer
from rota.worker_service.executors.process import ProcessExecutor
from rota.worker_service.loading import load_app
from tests.harness.processes import RotaProcess, gone, wait_until
from tests.harness.told import DEADLINE, Told

START_SECONDS = 30
RUN_SECONDS = 20

APP = """
import os, signal, socket, subprocess, threading, time
from pathlib import Path

from rota import NodeContext, Rota
from version import VERSION

app = Rota()
with open("imports", "a") as file:
    file.write(f"{os.getpid()}\\n")
IMPORTS = len(Path("imports").read_text().splitlines())


@app.task("PROBE", execution="process")
def probe(ctx):
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "server": os.getppid(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "on_sigterm": signal.getsignal(signal.SIGTERM).__module__,
        "open": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]],
    }


@app.task("HOLD", execution="process")
def hold(ctx):
    other = subprocess.Popen(["sleep", "1000"])
    Path("held.new").write_text(f"{os.getpid()} {other.pid}")
    Path("held.new").rename("held")
    while not Path("go").exists():
        time.sleep(0.02)
    return {"pid": os.getpid()}


app.schedule("probe", "PROBE")
app.schedule("hold", "HOLD")
"""


@dataclass
class Site:
    """A folder with an app, a database, a scheduler, and a worker of that app."""

    folder: Path
    url: str
    rota: Callable[..., RotaProcess]

    def write(self, *more: str, version: int = 1) -> None:
        """Write the app, with these lines in addition."""
        (self.folder / "version.py").write_text(f"VERSION = {version}\n" + "#" * version)  # its size tells it, too
        (self.folder / "jobs.py").write_text(APP + "\n".join(more))

    def start(self) -> RotaProcess:
        self.rota("scheduler", database_url=self.url)
        self.worker = self.started()
        self.worker.wait_for_log("started as #1", START_SECONDS)
        return self.worker

    def started(self) -> RotaProcess:
        return self.rota("worker", "--app", "jobs:app", "--capacity", "4", database_url=self.url, cwd=self.folder)

    @property
    def server(self) -> psutil.Process:
        """The worker's fork server that can be used."""

        def found() -> psutil.Process | None:
            children = psutil.Process(self.worker.worker_pid).children()
            return next((child for child in children if child.name() == "rota-forks"), None)

        server = wait_until(found, START_SECONDS, "the fork server")
        assert server is not None
        return server

    @property
    def imports(self) -> list[int]:
        """The processes that have imported the app."""
        return [int(line) for line in (self.folder / "imports").read_text().splitlines()]

    def ask(self, task: str) -> int:
        """Run a task now; returns the id of its instance."""
        with opened(self.url) as database:
            return int(tasks.run(database, Actor("test", "cli"), task).document["id"])

    def ended(self, instance: int) -> Any:
        """Wait until an instance has succeeded; returns its result."""
        with opened(self.url) as database:
            document = wait_until(
                lambda: (found := instances.get(database, instance))["gmt_completed"] and found, RUN_SECONDS, "its end"
            )
        assert document["status"] == "succeed", document
        return document["execution_result"]

    def probe(self) -> Any:
        return self.ended(self.ask("probe"))

    def held(self) -> list[psutil.Process]:
        """The child that holds, and the process that it started."""
        wait_until((self.folder / "held").exists, RUN_SECONDS, "the handler to be entered")
        return [psutil.Process(int(pid)) for pid in (self.folder / "held").read_text().split()]


@pytest.fixture
def site(rota: Callable[..., RotaProcess], migrated_sqlite_url: str, tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    one = Site(folder, migrated_sqlite_url, rota)
    one.write()
    return one


def test_the_app_is_imported_once_for_all_children_and_before_the_worker_takes_work(site: Site) -> None:
    worker = site.start()
    assert site.imports == [worker.worker_pid, site.server.pid]
    hold, probe = site.ask("hold"), site.ask("probe")
    found = site.ended(probe)
    assert found["server"] == site.server.pid
    child, other = site.held()
    (site.folder / "go").touch()
    assert site.ended(hold) == {"pid": child.pid}
    assert len({found["pid"], child.pid, worker.worker_pid, site.server.pid}) == 4
    assert len(site.imports) == 2, "neither child has imported it"
    worker.stop_signal(signal.SIGTERM)
    assert worker.wait_exit(START_SECONDS) == 0
    wait_until(lambda: gone(other), DEADLINE, "the end of what the child had started")


def test_a_child_has_no_connection_no_thread_and_no_signal_handler_of_the_worker(site: Site) -> None:
    site.start()
    found = site.probe()
    assert found["threads"] == ["MainThread", "control"]
    assert found["blocked"] == []
    assert found["on_sigterm"] == "rota.worker_service.executors.process_child", "its own, for the grace"
    sockets = [name for name in found["open"] if name.startswith("socket:")]
    assert len(sockets) == 1, "its own channel"
    assert not [name for name in found["open"] if "rota.db" in name]


def test_after_an_edit_the_worker_and_its_new_children_go_on_with_the_version_that_it_imported(site: Site) -> None:
    site.start()
    site.write(version=2)
    first = site.probe()
    os.kill(first["pid"], signal.SIGKILL)
    second = site.probe()
    assert (first["version"], second["version"]) == (1, 1)
    assert first["pid"] != second["pid"]


def test_an_edit_between_the_two_imports_is_said(site: Site) -> None:
    site.write("if IMPORTS == 1:\n    Path('version.py').write_text('VERSION = 22')")
    worker = site.start()
    said = worker.wait_for_log(r"WARNING .*the files of app 'jobs:app' changed while it was imported \((.*)\)")
    assert said[1] == str(site.folder / "version.py")


def test_without_an_edit_nothing_is_said(site: Site) -> None:
    worker = site.start()
    assert "WARNING" not in worker.log


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise RuntimeError('one is enough')", r"app 'jobs:app': its import failed at \S+:\d+: RuntimeError: one is"),
        ("raise SystemExit(3)", r"app 'jobs:app': its import failed at \S+:\d+: it ends the process \(SystemExit: 3\)"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "app 'jobs:app': the process that imports it .* was killed by SIGSEGV",
        ),
        ("os._exit(4)", "app 'jobs:app': the process that imports it .* ended by itself with exit code 4"),
    ],
)
def test_an_import_that_fails_in_the_server_ends_the_worker_with_a_sentence(site: Site, line: str, said: str) -> None:
    site.write(f"if IMPORTS == 2:\n    {line}")
    worker = site.started()
    assert worker.wait_exit(START_SECONDS) == 1
    worker_said = [one for one in worker.log.splitlines() if one.startswith("error: ")]
    assert len(worker_said) == 1
    assert re.match(f"error: {said}", worker_said[0])
    assert "started as" not in worker.log


def test_threads_and_sockets_that_the_import_leaves_are_named(site: Site) -> None:
    site.write(
        "threading.Thread(target=threading.Event().wait, name='pump', daemon=True).start()",
        "listening = socket.create_server(('127.0.0.1', 0))",
    )
    worker = site.start()
    worker.wait_for_log(r"WARNING .*the import of app 'jobs:app' left threads \(pump\), which do not run in")
    worker.wait_for_log(r"WARNING .*left sockets \(AF_INET 127\.0\.0\.1:\d+\), which are shared by all")
    assert site.probe()["version"] == 1


def test_a_server_that_is_killed_is_replaced_and_its_children_go_on(site: Site) -> None:
    worker = site.start()
    hold = site.ask("hold")
    child, _ = site.held()
    killed = site.server
    killed.kill()
    worker.wait_for_log(r"WARNING .*its fork server was killed by SIGKILL .*; it starts another")
    assert site.probe()["server"] == site.server.pid != killed.pid
    (site.folder / "go").touch()
    assert site.ended(hold) == {"pid": child.pid}
    assert worker.alive


def test_a_worker_that_could_only_fork_another_version_stops(site: Site) -> None:
    worker = site.start()
    site.write(version=2)
    site.server.kill()
    assert worker.wait_exit(START_SECONDS) == EXIT_ABANDONED
    assert "its files have changed since the worker imported them" in worker.log
    assert "worker: stopped" in worker.log


def test_signals_to_all_of_a_workers_processes_leave_the_server_to_the_worker(site: Site) -> None:
    site.start()
    server = site.server
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        server.send_signal(number)
    assert site.probe()["server"] == server.pid


@pytest.mark.parametrize("killed", ["guardian", "worker"])
def test_no_process_is_left_when_one_of_the_two_is_killed(site: Site, killed: str) -> None:
    worker = site.start()
    site.ask("hold")
    everything = [psutil.Process(worker.worker_pid), site.server, *site.held()]
    os.kill(worker.pid if killed == "guardian" else worker.worker_pid, signal.SIGKILL)
    wait_until(lambda: all(map(gone, everything)), DEADLINE, "the end of all")


def test_a_worker_without_process_nodes_has_no_fork_server(site: Site) -> None:
    site.write(
        "for name in ('PROBE', 'HOLD'):", "    app._nodes.pop(name)", "app._types.clear()", "app._schedules.clear()"
    )
    worker = site.start()
    assert psutil.Process(worker.worker_pid).children() == []
    assert len(site.imports) == 1


@pytest.fixture
def executor() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor("tests.harness.process_app:app", 2, 2_000, HostTimer(), ForkServer())
    yield executor
    executor.close()
    wait_until(lambda: not process_groups._groups, DEADLINE, "no process group left")


Run = Callable[..., Told]


@pytest.fixture
def run(executor: ProcessExecutor) -> Run:
    nodes = load_app("tests.harness.process_app:app").nodes

    def start(node: str, param: Any = None) -> Told:
        told = Told()
        told.running = executor.start(Call(nodes[node], NodeContext(param=param)), told)
        return told

    return start


def test_a_call_that_finds_the_server_killed_runs_in_a_child_of_the_next(executor: ProcessExecutor, run: Run) -> None:
    for _ in range(3):
        assert run("PLAIN_END", {"how": 3}).failure, "no child is left"
        os.kill(executor.server(lambda: False).pid, signal.SIGKILL)
        assert run("PLAIN_PID").one.failure is None


def test_a_call_is_stopped_though_the_server_does_not_answer(executor: ProcessExecutor, run: Run) -> None:
    assert run("PLAIN_END", {"how": 3}).failure, "no child is left"
    os.kill(executor.server(lambda: False).pid, signal.SIGSTOP)
    told = run("PLAIN_PID")
    told.stop()
    assert told.one.stopped


def test_children_that_come_and_go_leave_nothing_in_the_server(executor: ProcessExecutor, run: Run) -> None:
    def size() -> tuple[int, int]:
        return server.num_fds(), len(server.children())

    assert run("PLAIN_END", {"how": 3}).failure
    server = psutil.Process(executor.server(lambda: False).pid)
    before, memory = size(), server.memory_full_info().uss
    for _ in range(40):
        assert "exit code 3" in run("PLAIN_END", {"how": 3}).failure[1]
    wait_until(lambda: size() == before, DEADLINE, "the server as it was")
    assert server.memory_full_info().uss - memory < 1_000_000
