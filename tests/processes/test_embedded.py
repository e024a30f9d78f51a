"""A program with a scheduler and a worker beside it: they start and end with it, however it ends."""

import importlib
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rota import Client, Rota, embedded
from rota.beside import _target_of
from rota.shared.database.transactions import opened
from rota.shared.domain.errors import ConfigurationError, NotPossible
from rota.shared.store import workers
from rota.supervise.supervisor import PARENT_GONE
from tests.harness import apps
from tests.harness.processes import RotaProcess, wait_until

PROGRAM = """
import os, sys, threading
from rota import embedded

if __name__ == "__main__":
    with embedded("jobs:app", workers=2, grace_seconds=5):
        print("threads:", threading.active_count(), flush=True)
        if "fork" in sys.argv and os.fork() == 0:
            import time
            time.sleep(600)
        print("goes on", flush=True)
        sys.stdin.read()
        import time
        time.sleep(600)
"""
JOBS = """
from rota import Rota

app = Rota()


@app.task("PING")
async def ping(ctx):
    return {"pong": 1}
"""


SLOW = """
import os, time
from pathlib import Path
from rota import Rota

app = Rota()
gates = Path(os.environ["TEST_GATES"])


@app.task("SLOW")
def slow(ctx):
    (gates / "entered").touch()
    while not (gates / "open").exists():
        time.sleep(0.05)
"""


def live(url: str) -> int:
    with opened(url) as database:
        return len(database.read(workers.alive))


@pytest.fixture
def start(migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]) -> Callable[..., RotaProcess]:
    """Starts the program, and waits until two workers live."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "program.py").write_text(PROGRAM)

    def started(*arguments: str) -> RotaProcess:
        process = rota(*arguments, database_url=migrated_url, cwd=tmp_path, command=(sys.executable, "program.py"))
        process.wait_for_log("threads: 1$", 60)
        process.wait_for_log("goes on$", 60)
        wait_until(lambda: live(migrated_url) == 2, 60, "two workers")
        return process

    return started


def test_it_works_while_the_program_runs(migrated_url: str, start: Callable[..., RotaProcess]) -> None:
    start("run")
    with Client(migrated_url) as client:
        client.tasks.add("ping", "PING")
        ended = client.instances.wait(client.tasks.run("ping")["id"], timeout=60)
        assert (ended["status"], ended["execution_result"]) == ("succeed", {"pong": 1})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("argument", ["run", "fork"])
def test_it_ends_with_the_program_however_that_ends(
    migrated_url: str, start: Callable[..., RotaProcess], number: signal.Signals, argument: str
) -> None:
    """Also while a process lives on that the program has forked."""
    program = start(argument)
    own = psutil.Process(program.pid)
    [parent] = [one for one in own.children() if "rota" in one.cmdline()]
    family = [parent, *parent.children(recursive=True)]
    program.stop_signal(number)
    _, alive = psutil.wait_procs(family, 40)
    assert alive == []
    wait_until(lambda: live(migrated_url) == 0, 30, "the workers to be dead")


def test_what_cannot_start_is_said_at_the_start(migrated_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotPossible, match=r"could not be started \(exit code 1\); stderr says why"):
        embedded("no_such_module:app", database_url=migrated_url).start()
    assert "there is no module 'no_such_module'" in capfd.readouterr().err
    for wrong, said in (
        ({"capacity": 0}, "ROTA_CAPACITY 0"),
        ({"capasity": 5}, r"there is no such setting \(did you mean capacity\?\)"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            embedded("jobs:app", database_url=migrated_url, **wrong)


def test_after_a_start_that_took_too_long_it_works_all_the_same(migrated_url: str, tmp_path: Path) -> None:
    with embedded("tests.harness.apps:app", database_url=migrated_url, start_timeout=0.01, grace_seconds=1) as made:
        wait_until(lambda: live(migrated_url) == 1, 60, "the worker")
        with Client(migrated_url) as client, pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            run = client.tasks.run(
                client.tasks.add("web", "HTTP_REQUEST", param={"url": "http://127.0.0.1:1/"})["name"]
            )
            assert client.instances.wait(run["id"], timeout=60)["status"] == "failed"
        assert psutil.pid_exists(made.pid or 0)


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run of ``slow:app`` shows that it has begun, and waits for ``open``."""
    folder = tmp_path / "gates"
    folder.mkdir()
    monkeypatch.setenv("TEST_GATES", str(folder))
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def begun(client: Client, gates: Path) -> int:
    """A slow run that has begun."""
    client.tasks.add("slow", "SLOW")
    run: int = client.tasks.run("slow")["id"]
    wait_until((gates / "entered").exists, 30, "it to run")
    return run


def wait_until_it_drains(client: Client) -> None:
    wait_until(lambda: client.workers.list()[0]["state"] == "draining", 30, "the worker to stop")


def test_an_end_after_a_signal_to_everybody_kills_nothing_that_runs(migrated_url: str, gates: Path) -> None:
    """As systemd sends it: SIGTERM to each process but the workers', and then the program ends."""
    made = embedded("slow:app", database_url=migrated_url, grace_seconds=20)
    made.start()
    with Client(migrated_url) as client:
        run = begun(client, gates)
        psutil.Process(made.pid).send_signal(signal.SIGTERM)
        ending = threading.Thread(target=made.stop)
        ending.start()
        wait_until_it_drains(client)
        (gates / "open").touch()
        ending.join(60)
        assert not ending.is_alive()
        assert client.instances.get(run)["status"] == "succeed"


def test_a_signal_that_comes_with_the_end_of_the_program_is_no_second_one(migrated_url: str, gates: Path) -> None:
    """Of two signals that wait, Python handles the lower number first: here the one of the program's end."""
    with embedded("slow:app", database_url=migrated_url, grace_seconds=20) as made, Client(migrated_url) as client:
        run = begun(client, gates)
        parent = psutil.Process(made.pid)
        parent.suspend()
        for number in (signal.SIGTERM, PARENT_GONE):
            parent.send_signal(number)
        parent.resume()
        wait_until_it_drains(client)
        (gates / "open").touch()
        assert client.instances.wait(run, timeout=30)["status"] == "succeed"


def test_workers_of_the_same_name_are_not_taken_for_ones_own(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_WORKER_NAME", "shop")
    with embedded("tests.harness.apps:app", database_url=migrated_url, grace_seconds=1):
        assert live(migrated_url) == 1
        other = embedded("tests.harness.apps:app", database_url=migrated_url, start_timeout=4, grace_seconds=1)
        began = time.monotonic()
        with other:
            assert time.monotonic() - began >= 4, "its worker is refused, and so it is not up"


def test_it_is_started_once(migrated_url: str) -> None:
    with embedded("tests.harness.apps:app", database_url=migrated_url, grace_seconds=1) as made:
        pid = made.pid
        with pytest.raises(NotPossible, match="it is started already"):
            made.start()
        assert made.pid == pid


@pytest.mark.parametrize(
    ("app", "given", "said"),
    [
        ("jobs", {}, "app 'jobs': write module:app, for example jobs:app"),
        ("jobs:app", {"workers": -1}, "workers -1: 0 to 64 are right"),
        ("jobs:app", {"worker_name": "shop"}, "worker_name is for one process"),
        ("jobs:app", {"health_file": "/tmp/x"}, "health_file is for one process"),
    ],
)
def test_what_is_wrong_is_refused_at_once(app: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        embedded(app, **given)
    assert said in str(refused.value)


def test_handlers_are_given_no_path_that_is_python_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/srv/shop")
    path = embedded("jobs:app")._environment["PYTHONPATH"].split(":")
    assert "/srv/shop" in path
    assert not [one for one in path if one == sysconfig.get_path("stdlib") or one.endswith(("site-packages", ".zip"))]


def test_an_app_is_named_by_its_module() -> None:
    module, _, name = _target_of(apps.app).partition(":")
    assert getattr(importlib.import_module(module), name) is apps.app
    with pytest.raises(ConfigurationError, match="write it in a module of its own, and name it: embedded"):
        _target_of(Rota())


def test_one_that_was_not_started_is_stopped(migrated_url: str) -> None:
    made = embedded("jobs:app", database_url=migrated_url)
    made.stop()
    assert made.pid is None
