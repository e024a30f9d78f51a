"""``rota up`` with the examples over some time: what it shows and survives."""

import json
import os
import re
import signal
from typing import Any

from tests.harness.command_line import invoke
from tests.harness.processes import gone, wait_until
from tests.harness.up import BEAT, Start, pids, up


def test_the_scheduler_of_up_is_seen_to_tick_until_it_has_stopped(rota: Start, database_url: str) -> None:
    process = up(rota, database_url)

    def schedulers() -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = json.loads(invoke("scheduler", "list", "--json", url=database_url).stdout)
        return seen

    def ticks() -> bool:
        return any(one["last_tick"] > one["gmt_started"] for one in schedulers())

    wait_until(ticks, 20, "the first tick to be written")
    [seen] = schedulers()
    assert (seen["pid"], seen["state"], seen["silent"]) == (pids(process)["scheduler"], "active", False)
    process.stop_signal(signal.SIGTERM)
    assert process.wait_exit(60) == 0
    assert schedulers() == []


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
