"""``rota up`` with the examples: real processes, real kills."""

import json
import signal
from pathlib import Path

import pytest

from tests.harness.command_line import invoke
from tests.harness.processes import ROOT, gone
from tests.harness.up import Start, pids, up


def test_up_migrates_runs_the_examples_and_stops_cleanly(rota: Start, database_url: str) -> None:
    process = up(rota, database_url, "--workers", "2")
    assert set(pids(process)) == {"scheduler", "worker 1", "worker 2"}
    sent, to = '"sent": 7', '"to": "us@example.org"'
    result = rf"\{{({sent}, {to}|{to}, {sent})\}}"  # MySQL's JSON puts the shorter key first
    process.wait_for_log(rf"live-report .* succeed .* {result}$", deadline=30)
    process.stop_signal(signal.SIGTERM)
    assert process.wait_exit(60) == 0
    assert all(map(gone, pids(process).values()))
    assert "Traceback" not in process.log
    workers = json.loads(invoke("worker", "list", "--all", "--json", url=database_url).stdout)
    assert [worker["state"] for worker in workers] == ["dead", "dead"]
    assert "password" not in process.log
    declared = json.loads(invoke("audit", "--task", "live-report", "--json", url=database_url).stdout)
    assert [(act["face"], act["action"]) for act in declared] == [("code", "task.add")], "two workers declared it"


def test_options_reach_the_children_and_a_fault_stops_before_anything_starts(rota: Start, sqlite_url: str) -> None:
    up(rota, sqlite_url, "--capacity", "7", "--label", "region=eu")
    workers = json.loads(invoke("worker", "list", "--json", url=sqlite_url).stdout)
    assert [(worker["capacity"], worker["labels"]) for worker in workers] == [(7, {"region": "eu"})]
    result = invoke("up", "--capacity", "0", "--batch", "0", url=sqlite_url)
    assert result.exit_code == 1
    assert [line.split()[1] for line in result.stderr.splitlines()] == ["--batch", "--capacity"]


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
    plain.wait_for_log(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    rota[\w.]+: \S")
    plain.stop_signal(signal.SIGINT)
    assert plain.wait_exit(30) == 0
    as_json = rota(command, "--log-json", database_url=migrated_sqlite_url)
    record = json.loads(as_json.wait_for_log(r"^\{.*\}$")[0])
    assert set(record) == {"time", "level", "name", "message"}


def test_an_app_whose_workers_would_end_at_once_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    (tmp_path / "jobs_refused.py").write_text(
        "from rota import Rota\napp = Rota()\napp.schedule('ping', 'HTTP_REQUEST', param={'uri': 'x'})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    result = invoke("up", "--app", "jobs_refused:app", url=sqlite_url)
    assert result.exit_code == 1
    assert "task 'ping': param of HTTP_REQUEST: " in result.stderr
    assert "Rota is up" not in result.stdout


def test_a_type_that_nobody_has_registered_is_told_and_ends_no_worker(
    rota: Start, tmp_path: Path, migrated_sqlite_url: str
) -> None:
    (tmp_path / "jobs_unknown.py").write_text(
        "from rota import Rota\napp = Rota()\n@app.task('REPORT')\ndef report(ctx): ...\n"
        "app.schedule('daily', 'REPROT')\napp.schedule('weekly', 'REPORT')\n"
    )
    environment = {"PYTHONPATH": str(ROOT)}
    worker = rota(
        "worker", "--app", "jobs_unknown:app", cwd=tmp_path, environment=environment, database_url=migrated_sqlite_url
    )
    worker.wait_for_log(r"task 'daily': no task type 'REPROT' is registered \(did you mean REPORT\?\)")
    worker.wait_for_log("started as #")
    listed = json.loads(invoke("task", "list", "--json", url=migrated_sqlite_url).stdout)
    assert [task["name"] for task in listed] == ["weekly"]
    worker.stop_signal(signal.SIGTERM)
    assert worker.wait_exit(30) == 0
