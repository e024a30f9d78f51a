"""``rota up`` with the examples: real processes, real kills."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.processes import ROOT, RotaProcess, wait_until
from tests.unit.test_cli import invoke

Start = Callable[..., RotaProcess]
BEAT = r"^\d\d:\d\d:\d\dZ  heartbeat +\S+ \S+  succeed +(\S+)  \+\d+ ms  \d+ ms  \{\"beat\": \"\d\d:\d\d:\d\d\"\}$"


def up(start: Start, url: str, *options: str) -> RotaProcess:
    process = start("up", "--app", "examples.jobs:app", *options, database_url=url)
    process.wait_for_log(BEAT, deadline=60)
    return process


def pids(process: RotaProcess) -> dict[str, int]:
    """The children by name, as the banner has them."""
    return {name: int(pid) for name, pid in re.findall(r"^  (\S+(?: \d+)?) +pid (\d+)$", process.log, re.MULTILINE)}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_up_migrates_runs_the_examples_and_stops_cleanly(rota: Start, database_url: str) -> None:
    process = up(rota, database_url, "--workers", "2")
    assert set(pids(process)) == {"scheduler", "worker 1", "worker 2"}
    process.wait_for_log(r'live-report .* succeed .* \{"sent": 7, "to": "us@example.org"\}$', deadline=30)
    process.stop_signal(signal.SIGTERM)
    assert process.wait_exit(60) == 0
    assert all(map(gone, pids(process).values()))
    assert "Traceback" not in process.log
    workers = json.loads(invoke("worker", "list", "--all", "--json", url=database_url).stdout)
    assert [worker["state"] for worker in workers] == ["dead", "dead"]
    assert "password" not in process.log


def test_every_instance_that_ended_under_it_is_shown_once(rota: Start, sqlite_url: str) -> None:
    process = up(rota, sqlite_url)
    process.wait_for_log(r"unsteady .* succeed ", deadline=30)
    process.stop_signal(signal.SIGTERM)
    assert process.wait_exit(60) == 0
    rows = json.loads(invoke("instance", "list", "--limit", "1000", "--json", url=sqlite_url).stdout)
    ended = sorted(row["task_name"] for row in rows if row["gmt_completed"] is not None)
    shown = sorted(re.findall(r"^\d\d:\d\d:\d\dZ  (\S+)", process.log, re.MULTILINE))
    assert shown == ended


def test_a_task_asked_for_by_another_process_runs_and_is_waited_for(rota: Start, sqlite_url: str) -> None:
    up(rota, sqlite_url)
    command = ("task", "run", "report-on-demand", "--param", '{"rows": 3}', "--at", "2026-11-19T02:00", "--wait")
    result = invoke(*command, "--json", url=sqlite_url)
    run = json.loads(result.stdout)
    assert (result.exit_code, run["status"], run["execution_result"]["sent"]) == (0, "succeed", 3)
    assert [node["type"] for node in run["nodes"]] == ["REPORT_EXTRACT", "REPORT_SEND"]
    assert run["nodes"][0]["execution_result"]["day"] == "2026-11-19"
    again = json.loads(invoke("instance", "replay", str(run["id"]), "--wait", "--json", url=sqlite_url).stdout)
    assert (again["status"], again["schedule_datetime"]) == ("succeed", run["schedule_datetime"])


def test_a_worker_that_is_killed_is_started_again_under_its_name_and_goes_on(rota: Start, mariadb_url: str) -> None:
    process = up(rota, mariadb_url)
    before = process.wait_for_log(BEAT)[1]
    os.kill(pids(process)["worker 1"], signal.SIGKILL)
    process.wait_for_log(r"^worker 1 \(\d+\) ended with SIGKILL \(exit code -9\); it starts again in 0.5 s$")
    process.wait_for_log(r"^worker 1 \(\d+\) is started again$")
    end_of_log = len(process.log)
    beat = wait_until(lambda: re.search(BEAT, process.log[end_of_log:], re.MULTILINE), 40, "a fire after the kill")
    assert beat is not None
    assert beat[1] == before
    assert "NameTaken" not in process.log


def test_no_process_outlives_up_when_it_is_killed(rota: Start, sqlite_url: str) -> None:
    process = up(rota, sqlite_url, "--workers", "2")
    children = pids(process).values()
    process.kill()
    wait_until(lambda: all(map(gone, children)), 40, "the children to end")


def test_options_reach_the_children_and_a_fault_stops_before_anything_starts(rota: Start, sqlite_url: str) -> None:
    up(rota, sqlite_url, "--capacity", "7", "--label", "region=eu")
    workers = json.loads(invoke("worker", "list", "--json", url=sqlite_url).stdout)
    assert [(worker["capacity"], worker["labels"]) for worker in workers] == [(7, {"region": "eu"})]
    result = invoke("up", "--capacity", "0", "--batch", "0", url=sqlite_url)
    assert result.exit_code == 1
    assert [line.split()[1] for line in result.stderr.splitlines()] == ["ROTA_BATCH", "ROTA_CAPACITY"]


def test_up_makes_its_database_in_this_folder(rota: Start, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    process = rota("up", "--workers", "0", cwd=here, environment={"PYTHONPATH": str(ROOT)})
    process.wait_for_log("Rota is up")
    assert (here / "rota.db").exists()
    assert "sqlite:///rota.db" in process.log


@pytest.mark.parametrize("command", ["scheduler", "worker"])
def test_a_service_logs_with_time_level_and_name_or_as_json(
    rota: Start, migrated_sqlite_url: str, command: str
) -> None:
    plain = rota(command, database_url=migrated_sqlite_url)
    plain.wait_for_log(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    \w+\.\w+: \S")
    plain.stop_signal(signal.SIGINT)
    assert plain.wait_exit(30) == 0
    as_json = rota(command, "--log-json", database_url=migrated_sqlite_url)
    record = json.loads(as_json.wait_for_log(r"^\{.*\}$")[0])
    assert set(record) == {"time", "level", "name", "message"}
