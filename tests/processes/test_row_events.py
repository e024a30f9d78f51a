"""An app's listeners hear what the rows say, whichever of its processes are killed meanwhile."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

from rota import Client
from tests.harness.processes import RotaProcess, wait_until
from tests.harness.schemas import typed

JOBS = """
import json, os, time
from rota import FiresEvent, NodeContext, Rota, SchedulerEvent, TaskEvent, WorkerEvent

app = Rota()


@app.task("SLEEPS")
def sleeps(ctx: NodeContext) -> None:
    time.sleep(ctx.param["seconds"])


def write(**said: object) -> None:
    with open("heard", "a") as file:
        file.write(json.dumps({"pid": os.getpid(), **said}) + "\\n")


@app.on("task_added", "task_changed", "task_removed")
def hear_tasks(event: TaskEvent) -> None:
    write(event=event.event, name=event.task_name)


@app.on("worker_joined", "worker_left", "worker_lost")
def hear_workers(event: WorkerEvent) -> None:
    write(event=event.event, name=event.worker)


@app.on("scheduler_started", "scheduler_paused")
def hear_schedulers(event: SchedulerEvent) -> None:
    write(event=event.event, name=event.actor)


@app.on("skipped")
def hear_fires(event: FiresEvent) -> None:
    write(event=event.event, name=event.task_name, reason=event.reason, instance=event.instance_id)
"""


class Heard:
    """What the listeners of all processes have heard, in the order in which they wrote it."""

    def __init__(self, folder: Path) -> None:
        (folder / "jobs.py").write_text(JOBS)
        self._file = folder / "heard"
        self._file.touch()

    def all(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()]

    def names(self, event: str) -> list[object]:
        return [one["name"] for one in self.all() if one["event"] == event]


def listeners(url: str) -> int:
    return len(typed(url, "SELECT id FROM schedule_listener WHERE held_at IS NOT NULL"))


def test_each_act_is_heard_though_the_process_that_tells_is_killed(
    migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    heard = Heard(tmp_path)

    def worker(name: str) -> RotaProcess:
        options = ("--app", "jobs:app", "--name", name)
        started = rota("worker", *options, database_url=migrated_url, cwd=tmp_path)
        started.wait_for_log("started as")
        return started

    rota("scheduler", database_url=migrated_url).wait_for_log("started")
    first = worker("first")
    wait_until(lambda: listeners(migrated_url) == 4, 20, "it to hold its listeners")
    worker("second")
    with Client(migrated_url) as client:
        for number in range(60):
            client.tasks.add(f"task-{number}", "SLEEPS")
            if number == 30:
                wait_until(lambda: len(heard.names("task_added")) >= 10, 20, "some to be heard")
                first.kill()
    wait_until(lambda: set(heard.names("task_added")) == {f"task-{n}" for n in range(60)}, 60, "all to be heard")
    wait_until(lambda: set(heard.names("worker_lost")) == {"first"}, 60, "the loss")
    assert set(heard.names("worker_joined")) == {"second"}
    tellers = {one["pid"] for one in heard.all()}
    assert len(tellers) == 2, tellers


def test_a_scheduler_with_the_app_tells_that_the_only_worker_is_lost(
    migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    heard = Heard(tmp_path)
    scheduler = rota("scheduler", "--app", "jobs:app", database_url=migrated_url, cwd=tmp_path)
    wait_until(lambda: listeners(migrated_url) == 4, 20, "it to hold its listeners")
    worker = rota("worker", "--name", "only", database_url=migrated_url)
    wait_until(lambda: heard.names("worker_joined") == ["only"], 20, "the worker")
    worker.kill()
    wait_until(lambda: heard.names("worker_lost") == ["only"], 40, "the loss")
    with Client(migrated_url) as client:
        client.schedulers.pause()
    wait_until(lambda: len(heard.names("scheduler_paused")) == 1, 20, "the pause")
    scheduler.stop_signal(signal.SIGTERM)
    assert scheduler.wait_exit(30) == 0
    assert listeners(migrated_url) == 0


def test_a_worker_tells_of_the_fires_that_it_skips(
    migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    heard = Heard(tmp_path)
    rota("scheduler", database_url=migrated_url)
    rota("worker", "--app", "jobs:app", database_url=migrated_url, cwd=tmp_path).wait_for_log("started as")
    with Client(migrated_url) as client:
        client.tasks.add("slow", "SLEEPS", cron="* * * * * *", seconds=True, param={"seconds": 5})
        wait_until(lambda: len(heard.names("skipped")) >= 3, 60, "some to be skipped")
    one = next(one for one in heard.all() if one["event"] == "skipped")
    assert one["name"] == "slow"
    row = f"SELECT status, reason FROM schedule_instance WHERE id = {one['instance']}"
    [[status, reason]] = typed(migrated_url, row)
    assert (status, one["reason"]) == ("canceled", reason)
    assert str(reason).startswith("overlap: instance ")


WITH_A_THREAD = """
import threading

from rota import Rota, TaskEvent

app = Rota()


@app.on("task_added")
def hear(event: TaskEvent) -> None:
    print("heard", flush=True)


threading.Thread(target=threading.Event().wait).start()
"""


def test_a_scheduler_ends_though_a_thread_of_the_app_goes_on(
    migrated_sqlite_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    (tmp_path / "jobs.py").write_text(WITH_A_THREAD)
    scheduler = rota("scheduler", "--app", "jobs:app", database_url=migrated_sqlite_url, cwd=tmp_path)
    scheduler.wait_for_log("started")
    wait_until(lambda: listeners(migrated_sqlite_url) == 1, 20, "it to hold its listener")
    scheduler.stop_signal(signal.SIGTERM)
    assert scheduler.wait_exit(20) == 0
    assert listeners(migrated_sqlite_url) == 0


def test_an_app_that_cannot_be_imported_is_said_and_starts_no_scheduler(
    migrated_sqlite_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    (tmp_path / "jobs.py").write_text("import nothing_like_this\n")
    scheduler = rota("scheduler", "--app", "jobs:app", database_url=migrated_sqlite_url, cwd=tmp_path)
    assert scheduler.wait_exit(20) == 1
    assert "app 'jobs:app': its import failed at" in scheduler.log
    assert typed(migrated_sqlite_url, "SELECT id FROM schedule_scheduler_node") == []
