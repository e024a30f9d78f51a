"""The client does what the command line does, and says why it does not, on each kind of database."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pydantic import BaseModel

from rota import Client, RotaError
from rota.scheduler_service.app import declaration
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import (
    ConfigurationError,
    DatabaseProblem,
    InvalidInput,
    InvalidParam,
    NameTaken,
    NotEnded,
    NotFound,
    NotPossible,
)
from rota.shared.settings import Settings
from rota.shared.store import schedulers
from tests.harness.processes import ROOT, RotaProcess
from tests.harness.scenario import Scenario
from tests.harness.schemas import typed

FUTURE = datetime(2099, 1, 1, tzinfo=UTC)
NAIVE = datetime(2020, 7, 1, 12)  # noqa: DTZ001 - it is to be without an offset


class Region(BaseModel):
    region: str


@pytest.fixture
def rows(database: Database) -> Scenario:
    """Registers the task type ``REPORT``, and makes rows."""
    return Scenario(database)


def by_command(rota: Callable[..., RotaProcess], url: str, *arguments: str) -> Any:
    """What a command prints with ``--json``."""
    process = rota(*arguments, "--json", database_url=url)
    assert process.wait_exit(30) == 0, process.log
    return json.loads(process.log)


def test_a_task_is_added_changed_found_switched_and_removed(rows: Scenario, client: Client) -> None:
    added = client.tasks.add("nightly", "REPORT", cron="0 3 * * *", timezone="Europe/Berlin", owner="ann", tags=["a"])
    assert (added["name"], added["status"], len(added["next_fires"])) == ("nightly", "on", 5)
    assert client.tasks.add("idle", "REPORT", on=False)["status"] == "off"
    changed = client.tasks.set("nightly", cron="30 4 * * * *", seconds=True, owner=None, retries=3)
    assert (changed["cron"], changed["cron_seconds"], changed["owner"], changed["retries"]) == (
        "30 4 * * * *", True, None, 3
    )  # fmt: skip
    assert client.tasks.set("nightly", name="daily")["name"] == "daily"
    assert [task["name"] for task in client.tasks.list(like="dail", tags=["a"])] == ["daily"]
    assert [task["name"] for task in client.tasks.list(status="off")] == ["idle"]
    assert client.tasks.off("daily", "idle", why="a reason") == [
        {"name": "daily", "status": "off", "changed": True},
        {"name": "idle", "status": "off", "changed": False},
    ]
    assert client.tasks.on("daily")[0]["changed"]
    assert client.tasks.show("daily")["status"] == "on"
    assert client.tasks.remove("daily")["removed"]
    assert [task["name"] for task in client.tasks.list()] == ["idle"]


def test_the_next_fire_is_skipped_and_set_by_hand(rows: Scenario, client: Client) -> None:
    client.tasks.add("yearly", "REPORT", cron="0 3 1 1 *")
    first, second, *_ = [line["fire"]["utc"] for line in client.tasks.next_fires("yearly")["next_fires"]]
    assert client.tasks.skip_next("yearly", fire=first, why="a holiday")["changed"]
    assert client.tasks.set_next("yearly", FUTURE)["fire"]["utc"] == second
    lines = {line["fire"]["utc"]: line for line in client.tasks.next_fires("yearly")["next_fires"]}
    assert (lines[first]["status"], lines[second]["due"]["utc"]) == ("canceled", "2099-01-01T00:00:00Z")
    assert client.tasks.why("yearly", first)["why"] == "instance 1 was canceled before it started: skipped by hand"


def test_a_naive_time_is_local_time_of_the_task(rows: Scenario, client: Client) -> None:
    client.tasks.add("once", "REPORT", at=NAIVE.replace(year=2099), timezone="Europe/Berlin")
    assert client.tasks.show("once")["next_fires"][0]["utc"] == "2099-07-01T10:00:00Z"
    run = client.tasks.run("once", at=NAIVE)
    assert run["schedule_datetime"] == "2020-07-01T10:00:00Z"
    run = client.tasks.run("once", at=NAIVE.replace(tzinfo=UTC))
    assert run["schedule_datetime"] == "2020-07-01T12:00:00Z"


def test_a_run_is_asked_for_listed_canceled_and_replayed(rows: Scenario, client: Client) -> None:
    client.tasks.add("asked", "REPORT")
    run = client.tasks.run("asked", param=Region(region="eu"), why="a customer asked")
    assert (run["status"], run["param"]) == ("pending", {"region": "eu"})
    assert [one["id"] for one in client.instances.list(task="asked", status="pending")] == [run["id"]]
    assert client.instances.get(run["id"])["status"] == "pending"
    with pytest.raises(NotEnded, match=rf"instance {run['id']} has not ended within 0.01 s; it is pending"):
        client.instances.wait(run["id"], timeout=0.01)
    assert client.instances.cancel(run["id"]) == [{"id": run["id"], "canceled": True, "asked": False}]
    assert client.instances.wait(run["id"], timeout=0)["status"] == "canceled"
    with pytest.raises(NotPossible):
        client.instances.cancel(run["id"])
    [again] = client.instances.replay(run["id"], param={"region": "us"})
    assert (again["replay_of"], client.instances.show(again["id"])["param"]) == (run["id"], {"region": "us"})


def test_what_a_filter_finds_is_replayed_once(rows: Scenario, client: Client) -> None:
    task = rows.task("failing")
    failed = [rows.ended("failed", task=task) for _ in range(3)]
    looked = client.instances.replay_found(task="failing", dry_run=True)
    assert (looked["replayed"], [one["id"] for one in looked["first"]]) == (3, failed)
    assert client.instances.replay_found(task="failing", why="mended")["replayed"] == 3
    assert client.instances.replay_found(task="failing")["replayed"] == 0


def test_a_backfill_is_looked_at_started_paused_and_canceled(rows: Scenario, client: Client) -> None:
    client.tasks.add("daily", "REPORT", cron="0 3 * * *")
    looked = client.backfills.preview("daily", "2026-10-01", "2026-10-31")
    assert (looked["fires"], client.backfills.list()) == (30, [])
    started = client.backfills.start(
        "daily", NAIVE.replace(year=2026, month=10, hour=0), "2026-10-31", concurrency=4, why="a gap"
    )
    assert (started["fires"], started["concurrency"], started["status"]) == (30, 4, "running")
    assert client.backfills.pause(started["id"])["status"] == "paused"
    assert client.backfills.resume(started["id"])["status"] == "running"
    assert client.backfills.cancel(started["id"])["status"] == "canceled"
    assert [one["id"] for one in client.backfills.list(task="daily", status="canceled")] == [started["id"]]
    assert client.backfills.show(started["id"])["status"] == "canceled"


def test_workers_are_listed_drained_and_resumed(rows: Scenario, client: Client) -> None:
    rows.worker("eu-1")
    assert [worker["name"] for worker in client.workers.list()] == ["eu-1"]
    assert client.workers.drain("eu-1", why="new disks")["state"] == "draining"
    assert client.workers.show("eu-1")["state"] == "draining"
    assert client.workers.resume("eu-1")["state"] == "live"


def test_a_limit_is_added_changed_shown_and_removed(rows: Scenario, client: Client) -> None:
    assert client.limits.add("warehouse", max_running=4, why="a small house")["max_running"] == 4
    changed = client.limits.set("warehouse", max_running=None, starts_per_minute=30)
    assert (changed["max_running"], changed["starts_per_minute"]) == (None, 30)
    client.tasks.add("nightly", "REPORT", limit_name="warehouse")
    with pytest.raises(NotPossible, match="nightly"):
        client.limits.remove("warehouse")
    assert [one["name"] for one in client.limits.list()] == ["warehouse"]
    assert client.limits.show("warehouse")["holders"] == []
    client.tasks.set("nightly", limit_name=None)
    assert client.limits.remove("warehouse")["removed"] is True
    assert client.limits.list() == []


def test_a_calendar_is_added_changed_shown_refreshed_and_removed(rows: Scenario, client: Client) -> None:
    added = client.calendars.add(
        "bavaria", country="DE-BY", off=[date(2027, 12, 24), datetime(2027, 12, 31, 12, tzinfo=UTC)]
    )
    assert added["country"] == "DE"
    assert {"2027-12-24", "2027-12-31"} <= {one["date"] for one in client.calendars.show("bavaria", year=2027)["days"]}
    client.calendars.set("bavaria", forget=["2027-12-31"], on=["2027-12-25"], why="a market")
    days = {one["date"]: one["working"] for one in client.calendars.show("bavaria", year=2027)["days"]}
    assert ("2027-12-31" in days, days["2027-12-24"], days["2027-12-25"]) == (False, False, True)
    assert [one["name"] for one in client.calendars.refresh()] == ["bavaria"]
    client.tasks.add("nightly", "REPORT", cron="0 3 * * *", calendar="bavaria")
    assert client.calendars.show("bavaria")["tasks"] == ["nightly"]
    with pytest.raises(NotPossible, match="nightly"):
        client.calendars.remove("bavaria")
    client.tasks.remove("nightly")
    assert client.calendars.remove("bavaria")["removed"] is True
    assert client.calendars.list() == []


def test_all_scheduling_is_paused_and_goes_on(rows: Scenario, client: Client) -> None:
    number = rows.database.write(lambda c: schedulers.register(c, declaration(Settings.load())))
    assert [one["id"] for one in client.schedulers.list()] == [number]
    assert client.schedulers.paused()["paused"] is False
    told = client.schedulers.pause(reason="the database moves")
    assert (told["changed"], told["by"], told["reason"]) == (True, "shop", "the database moves")
    assert client.schedulers.pause()["changed"] is False
    assert client.schedulers.paused()["paused"] is True
    assert client.schedulers.resume()["changed"] is True
    assert client.schedulers.resume()["changed"] is False


def test_it_returns_what_the_command_prints_and_the_audit_says_who_asked(
    rows: Scenario, client: Client, migrated_url: str, rota: Callable[..., RotaProcess]
) -> None:
    client.tasks.add("nightly", "REPORT", cron="0 3 * * *", why="asked for")
    run = client.tasks.run("nightly")
    assert by_command(rota, migrated_url, "task", "show", "nightly") == client.tasks.show("nightly")
    assert by_command(rota, migrated_url, "instance", "show", str(run["id"])) == client.instances.show(run["id"])
    found = typed(migrated_url, "SELECT actor, face, action, why FROM schedule_audit ORDER BY id")
    assert found == [("shop", "code", "task.add", "asked for"), ("shop", "code", "task.run", None)]


REFUSED: list[tuple[type[RotaError], Callable[[Client], object], str]] = [
    (NotFound, lambda c: c.tasks.show("nobody"), "nobody"),
    (NotFound, lambda c: c.tasks.run("nobody"), "nobody"),
    (NotFound, lambda c: c.instances.wait(77), "77"),
    (NotFound, lambda c: c.backfills.show(77), "77"),
    (NotFound, lambda c: c.workers.drain("nobody"), "nobody"),
    (NotFound, lambda c: c.limits.show("nobody"), "nobody"),
    (NotFound, lambda c: c.limits.set("nobody", max_running=1), "nobody"),
    (InvalidInput, lambda c: c.limits.set("nobody"), "say what to change"),
    (InvalidInput, lambda c: c.limits.add("x", max_running=-1), "max_running"),
    (InvalidInput, lambda c: (c.limits.add("x", max_running=1), c.limits.set("x", colour=1)), "colour"),  # type: ignore[call-arg]
    (NotFound, lambda c: c.calendars.show("nobody"), "nobody"),
    (InvalidInput, lambda c: c.calendars.set("nobody"), "say what to change"),
    (InvalidInput, lambda c: c.calendars.add("x", country="QQ"), "QQ"),
    (InvalidInput, lambda c: c.calendars.add("x", off=["soon"]), "soon"),
    (InvalidInput, lambda c: c.calendars.add("x", off="2027-12-24"), "give a list of dates"),
    (InvalidInput, lambda c: c.schedulers.pause(reason="w" * 2000), "2,000 characters"),
    (NameTaken, lambda c: c.tasks.add("there", "REPORT"), "there"),
    (InvalidInput, lambda c: c.tasks.add("new", "REPORT", cron="61 * * * *"), "61"),
    (InvalidInput, lambda c: c.tasks.set("there", priority=99), "99"),
    (InvalidInput, lambda c: c.tasks.run("there", at="yesterday"), "yesterday"),
    (InvalidInput, lambda c: c.tasks.run("there", param={1, 2}), "param is a set"),  # type: ignore[arg-type]
    (InvalidParam, lambda c: c.tasks.run("there", param=[1]), "param"),  # type: ignore[arg-type]
    (InvalidInput, lambda c: c.backfills.start("there", "2026-10-31", "2026-10-01"), "2026-10"),
    (InvalidInput, lambda c: c.instances.replay_found(status="succeed"), "succeed"),
    (InvalidInput, lambda c: c.instances.replay_found(status="fail"), "'fail': there is no such status; there are: p"),
    (InvalidInput, lambda c: c.tasks.list(status="of"), "'of': there is no such status; there are: on, off"),
    (InvalidInput, lambda c: c.instances.list(status=""), "'': there is no such status"),
    (InvalidInput, lambda c: c.backfills.list(status="over"), "'over': there is no such status"),
    (InvalidInput, lambda c: c.tasks.list(limit=0), "limit 0: 1 to 1,000,000"),
    (InvalidInput, lambda c: c.instances.list(limit=-1), "limit -1"),
    (InvalidInput, lambda c: c.workers.list(limit=10**9), "limit 1000000000"),
    (InvalidInput, lambda c: c.instances.wait(1, timeout=-1), "timeout -1"),
    (InvalidInput, lambda c: c.instances.wait(1, timeout=float("nan")), "timeout nan"),
    (InvalidInput, lambda c: c.instances.show(2**70), "a whole number from 1 to"),
    (InvalidInput, lambda c: c.instances.cancel(1, -1), "id -1"),
    (InvalidInput, lambda c: c.backfills.cancel(2**70), "a whole number from 1 to"),
    (InvalidInput, lambda c: c.tasks.add("", "REPORT"), "name"),
    (InvalidInput, lambda c: c.tasks.add("new", print), "type <built-in function print>: give a task type"),  # type: ignore[arg-type]
    (InvalidInput, lambda c: c.tasks.run("there", at=5), "time 5: give a datetime"),  # type: ignore[arg-type]
    (InvalidInput, lambda c: c.tasks.list(limit="5"), "limit '5': 1 to"),  # type: ignore[arg-type]
    (InvalidInput, lambda c: c.tasks.add("n" * 300, "REPORT"), "name"),
    (InvalidInput, lambda c: c.tasks.set("there", colour="red"), "colour"),  # type: ignore[call-arg]
    (InvalidInput, lambda c: c.tasks.run("there", why="w" * 2000), "2,000 characters"),
    (InvalidInput, lambda c: c.tasks.run("there", param={"n": float("nan")}), "param.n"),
]


@pytest.mark.parametrize(("error", "call", "said"), REFUSED, ids=[str(at) for at in range(len(REFUSED))])
def test_what_is_refused_says_why_and_changes_nothing(
    rows: Scenario, client: Client, error: type[RotaError], call: Callable[[Client], object], said: str
) -> None:
    client.tasks.add("there", "REPORT", cron="0 3 * * *")
    before = (client.tasks.list(), client.instances.list(), client.backfills.list())
    with pytest.raises(error, match=said):
        call(client)
    assert (client.tasks.list(), client.instances.list(), client.backfills.list()) == before


def test_many_threads_share_a_client(rows: Scenario, client: Client) -> None:
    client.tasks.add("asked", "REPORT")
    barrier = Barrier(30)

    def ask(number: int) -> int:
        barrier.wait(30)
        return int(client.tasks.run("asked", at=FUTURE + timedelta(seconds=number))["id"])

    with ThreadPoolExecutor(30) as threads:
        ids = list(threads.map(ask, range(30)))
    assert len(set(ids)) == len(client.instances.list(limit=100)) == 30


FORKS = """
import os, signal, sys
from rota import Client

with Client(sys.argv[1]) as client:
    before = client.tasks.list()
    children = []
    for _ in range(3):
        client._session._opening.acquire()  # as another thread may, in the moment of the fork
        if (child := os.fork()) == 0:
            signal.alarm(30)
            try:
                same = all(client.tasks.list() == before for _ in range(20))
            except BaseException as error:
                print("the child:", error, file=sys.stderr)
                same = False
            os._exit(0 if same else 1)
        client._session._opening.release()
        children.append(child)
    assert all(client.tasks.list() == before for _ in range(20))
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert client.tasks.list() == before
"""


def test_a_forked_process_uses_connections_of_its_own(rows: Scenario, client: Client, migrated_url: str) -> None:
    client.tasks.add("nightly", "REPORT", cron="0 3 * * *")
    command = [sys.executable, "-W", "error", "-c", FORKS, migrated_url]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_closed_client_opens_again(rows: Scenario, client: Client) -> None:
    client.tasks.add("nightly", "REPORT")
    client.close()
    assert [task["name"] for task in client.tasks.list()] == ["nightly"]


def test_a_database_that_is_not_there_or_not_migrated_is_named_and_not_created(
    database_url: str, tmp_path: Path
) -> None:
    with Client(database_url) as client, pytest.raises(DatabaseProblem, match="rota migrate"):
        client.tasks.list()
    file = tmp_path / "none.db"
    with Client(f"sqlite:///{file}") as client, pytest.raises(DatabaseProblem, match="run rota migrate"):
        client.tasks.list()
    assert not file.exists()


def test_a_bad_url_or_name_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="oracle"):
        Client("oracle://scott@db/x")
    for name in ("", "n" * 128):
        with pytest.raises(InvalidInput, match="1 to 127"):
            Client("sqlite:///x.db", name=name)


def test_the_url_is_that_of_the_environment_and_the_name_that_of_the_user(
    rows: Scenario, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_DATABASE_URL", migrated_url)
    monkeypatch.setenv("LOGNAME", "ann")
    with Client() as client:
        client.tasks.add("nightly", "REPORT")
    assert typed(migrated_url, "SELECT actor FROM schedule_audit") == [("ann",)]
