"""An app's listeners hear what its worker's runs do, also where one raises and one never returns."""

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rota import Client
from tests.harness.processes import RotaProcess, wait_until

JOBS = """
import asyncio, json, threading
from rota import NodeContext, Rota, RunEvent

app = Rota()


@app.task("FAILS")
def fails(ctx: NodeContext) -> None:
    raise RuntimeError("it broke")


@app.task("WORKS")
async def works(ctx: NodeContext) -> dict[str, int]:
    return {"rows": 3}


@app.task("WAITS")
async def waits(ctx: NodeContext) -> None:
    await asyncio.sleep(60)


@app.on("started", "succeeded", "failed", "retried", "canceled")
def broken(event: RunEvent) -> None:
    raise ValueError("the listener broke")


@app.on("started", "succeeded", "failed", "retried", "canceled")
def hear(event: RunEvent) -> None:
    with open("heard", "a") as file:
        said = {"event": event.event, "task": event.task_name, "attempt": event.attempt, "result": event.result}
        file.write(json.dumps(said) + "\\n")


@app.on("succeeded")
def stuck(event: RunEvent) -> None:
    if event.task_name == "last":
        threading.Event().wait()
"""


def test_listeners_hear_what_runs_do(migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    heard = tmp_path / "heard"
    heard.touch()

    def events() -> list[tuple[str, str, int]]:
        told = [json.loads(line) for line in heard.read_text().splitlines()]
        return [(one["task"], one["event"], one["attempt"]) for one in told]

    rota("scheduler", database_url=migrated_url)
    worker = rota("worker", "--app", "jobs:app", database_url=migrated_url, cwd=tmp_path)
    worker.wait_for_log("started as")
    with Client(migrated_url) as client:
        for name, task_type in (("fails", "FAILS"), ("works", "WORKS"), ("waits", "WAITS"), ("last", "WORKS")):
            client.tasks.add(name, task_type)
        client.tasks.set("fails", retries=1, retry_delay_seconds=0)
        client.instances.wait(client.tasks.run("works")["id"], timeout=60)
        client.instances.wait(client.tasks.run("fails")["id"], timeout=60)
        waiting = client.tasks.run("waits")["id"]
        wait_until(lambda: ("waits", "started", 1) in events(), 60, "it to start")
        client.instances.cancel(waiting)
        client.instances.wait(waiting, timeout=60)
        wait_until(lambda: ("waits", "canceled", 1) in events(), 30, "its cancel")
        assert events() == [
            ("works", "started", 1),
            ("works", "succeeded", 1),
            ("fails", "started", 1),
            ("fails", "retried", 1),
            ("fails", "started", 2),
            ("fails", "failed", 2),
            ("waits", "started", 1),
            ("waits", "canceled", 1),
        ]
        assert json.loads(heard.read_text().splitlines()[1])["result"] == {"rows": 3}
        for _ in range(3):  # the listener of the first is stuck; the runs go on
            assert client.instances.wait(client.tasks.run("last")["id"], timeout=60)["status"] == "succeed"
    worker.stop_signal(signal.SIGTERM)
    assert worker.wait_exit(30) == 0
    assert worker.log.count('raise ValueError("the listener broke")') == 1, "an error that repeats is said once"
    assert Counter(task for task, _, _ in events())["last"] >= 2


def test_they_hear_what_a_worker_ends_when_it_stops(
    migrated_url: str, tmp_path: Path, rota: Callable[..., RotaProcess]
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "heard").touch()
    rota("scheduler", database_url=migrated_url)
    worker = rota("worker", "--app", "jobs:app", "--grace-seconds", "0", database_url=migrated_url, cwd=tmp_path)
    worker.wait_for_log("started as")
    with Client(migrated_url) as client:
        client.tasks.add("waits", "WAITS", on_worker_lost="fail")
        run = client.tasks.run("waits")["id"]
        wait_until(lambda: "started" in (tmp_path / "heard").read_text(), 60, "it to start")
        worker.stop_signal(signal.SIGTERM)
        assert worker.wait_exit(30) == 0
        assert client.instances.get(run)["status"] == "failed"
    told = [json.loads(line)["event"] for line in (tmp_path / "heard").read_text().splitlines()]
    assert told == ["started", "failed"]
