"""``rota task`` on both databases: what it saves, shows and refuses."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from rota.shared.database.transactions import Database
from rota.shared.store import node_types, tasks
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.tables import schedule_instance, schedule_task
from tests.harness.command_line import done, invoke
from tests.harness.databases import past_the_checks, run_sql
from tests.harness.processes import ROOT, marked_environment

REPORT_PARAM = {"type": "object", "properties": {"region": {"type": "string"}}, "required": ["region"]}
EVERYTHING = (
    "--cron", "0 30 2 * * *", "--seconds", "--timezone", "Europe/Berlin", "--param", '{"region": "eu"}',
    "--overlap", "allow", "--max-instances", "3", "--retries", "4", "--retry-delay", "5", "--backoff", "fixed",
    "--max-retry-delay", "50", "--retry-jitter", "20", "--retry-on", "OSError", "--retry-on", "jobs.Away",
    "--never-retry", "TimeoutError", "--on-retry", "restart",
    "--on-worker-lost", "retry", "--timeout", "60", "--priority", "2", "--label", "gpu=a100", "--label", "region=eu",
    "--starts-at", "2027-03-01T00:00", "--ends-at", "2027-12-31T00:00", "--misfire-grace", "30",
)  # fmt: skip


@pytest.fixture
def url(migrated_url: str, database: Database) -> str:
    """A database where workers have registered REPORT and CLEANUP."""
    declared = [
        NodeTypeDeclaration("REPORT_EXTRACT", "REPORT", 1, param_schema=REPORT_PARAM),
        NodeTypeDeclaration("CLEANUP", "CLEANUP"),
    ]
    database.write(lambda connection: node_types.register(connection, declared, by="test"))
    return migrated_url


@pytest.fixture
def nightly(url: str) -> str:
    assert invoke("task", "add", "nightly", "--type", "CLEANUP", "--cron", "0 3 * * *", url=url).exit_code == 0
    return url


def stored(database: Database) -> list[dict[str, Any]]:
    """Every task and every instance, as they are in the database."""

    def read(connection: Any) -> list[dict[str, Any]]:
        rows = []
        for table in (schedule_task, schedule_instance):
            rows += [dict(row) for row in connection.execute(select(table).order_by(table.c.id)).mappings()]
        return rows

    return database.read(read)


@pytest.mark.every_database
def test_add_writes_every_field(url: str, database: Database) -> None:
    result = invoke("task", "add", "daily", "--type", "REPORT", *EVERYTHING, "--off", url=url)
    assert result.exit_code == 0, result.stderr
    row = database.read(lambda connection: tasks.find(connection, "daily"))
    wanted = {
        "type": "REPORT", "status": "off", "trigger_kind": "cron", "cron": "0 30 2 * * *", "cron_seconds": 1,
        "timezone": "Europe/Berlin", "param": {"region": "eu"}, "overlap_policy": "allow", "max_instances": 3,
        "retries": 4, "retry_delay_seconds": 5, "retry_backoff": "fixed", "on_worker_lost": "retry",
        "max_retry_delay_seconds": 50, "retry_jitter_percent": 20, "retry_on": ["OSError", "jobs.Away"],
        "never_retry": ["TimeoutError"], "on_retry": "restart", "timeout_seconds": 60, "priority": 2,
        "required_labels": {"gpu": "a100", "region": "eu"}, "misfire_grace_seconds": 30,
    }  # fmt: skip
    assert {name: getattr(row, name) for name in wanted} == wanted
    assert str(row.starts_at) == "2027-02-28 23:00:00"  # naive options are in the task's zone
    assert str(row.ends_at) == "2027-12-30 23:00:00"


def test_saving_shows_the_reading_and_the_next_five_fires(url: str) -> None:
    shown = invoke(
        "task", "add", "n", "--type", "CLEANUP", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin",
        "--starts-at", "2027-03-27T00:00", url=url,
    ).stdout.splitlines()  # fmt: skip
    assert shown[0] == "n is added: fires every day at 02:30, Europe/Berlin"
    assert [line[:25] for line in shown[2:]] == [
        "2027-03-27 02:30:00+01:00",
        "2027-03-28 03:00:00+02:00",  # 02:30 does not occur on that day
        "2027-03-29 02:30:00+02:00",
        "2027-03-30 02:30:00+02:00",
        "2027-03-31 02:30:00+02:00",
    ]


def test_a_task_without_cron_is_said_to_run_when_asked(url: str) -> None:
    assert "runs only when asked" in invoke("task", "add", "x", "--type", "CLEANUP", url=url).stdout


@pytest.mark.parametrize("way", ["text", "file", "stdin"])
def test_param_comes_as_text_from_a_file_or_from_stdin(url: str, database: Database, tmp_path: Path, way: str) -> None:
    given = '{"region": "süd"}'
    (tmp_path / "param.json").write_text(given, encoding="utf-8")
    value = {"text": given, "file": f"@{tmp_path / 'param.json'}", "stdin": "-"}[way]
    assert invoke("task", "add", "x", "--type", "REPORT", "--param", value, url=url, stdin=given).exit_code == 0
    assert database.read(lambda connection: tasks.find(connection, "x")).param == {"region": "süd"}


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--type", "CLEANUP", "--cron", "61 * * * *"], 1, "the minute field has 61"),
        (["--type", "CLEANUP", "--cron", "0 15 10 * * *"], 1, "seconds are not declared"),
        (["--type", "CLEANER"], 1, "'CLEANER' is registered (did you mean CLEANUP?); there are: CLEANUP, REPORT"),
        (["--type", "CLEANUP", "--timezone", "Europe/Berln"], 1, "There is no time zone 'Europe/Berln'"),
        (["--type", "REPORT", "--cron", "@daily"], 1, "'region' is a required property"),
        (["--type", "REPORT", "--param", '{"region": 5}'], 1, "region: 5 is not of type 'string'"),
        (["--type", "REPORT", "--param", "[5]"], 2, "Invalid value for '--param': [5] is not a JSON object"),
        (["--type", "REPORT", "--param", "null"], 2, "null is not a JSON object; write one as {"),
        (["--type", "REPORT", "--param", '{"region": NaN}'], 2, "is not JSON"),
        (["--type", "REPORT", "--param", "@nowhere.json"], 2, "cannot read nowhere.json"),
        (["--type", "CLEANUP", "--max-instances", "2"], 1, "error: --max-instances goes with --overlap allow"),
        (["--type", "CLEANUP", "--timeout", "-1"], 1, "error: --timeout -1: Input should be greater than or equal"),
        (["--type", "CLEANUP", "--retries", "2000", "--priority", "12"], 1, "--retries 2000: Input should be less"),
        (
            ["--type", "CLEANUP", "--fixed-delay", "5m", "--any-of", '[{"cron": "0 9 * * *"}, {"fixed_delay": 300}]'],
            1,
            "{'fixed_delay': 300} is no trigger of a combination",
        ),
        (["--type", "CLEANUP", "--retry-jitter", "101"], 1, "--retry-jitter 101: Input should be less"),
        (
            ["--type", "CLEANUP", "--max-retry-delay", "5"],
            1,
            "--max-retry-delay 5 is less than --retry-delay 10",
        ),
        (["--type", "CLEANUP", "--retry-on", "Timeout"], 1, "--retry-on 'Timeout': no built-in exception has that"),
        (["--type", "CLEANUP", "--on-retry", "again"], 2, "'again' is not one of 'resume', 'restart'"),
        (["--type", "CLEANUP", "--label", "gpu"], 2, "'gpu' is not of the form key=value"),
        (["--type", "CLEANUP", "--starts-at", "soon"], 1, "'soon' is not a time"),
        (["--type", "CLEANUP", "--starts-at", "2027-01-02", "--ends-at", "2027-01-01"], 1, "is before --starts-at"),
        (["--type", "CLEANUP", "--every", "0"], 1, "error: --every '0': an interval is from 1s to 3650d"),
        (
            ["--type", "CLEANUP", "--every", "5m", "--cron", "@daily"],
            1,
            "one trigger: give cron or every, and not both",
        ),
        (["--type", "CLEANUP", "--at", "noon"], 1, "'noon' is not a time; write it as"),
        ([], 2, "Missing option '--type'"),
    ],
)
def test_what_cannot_be_added_is_refused_and_nothing_changes(
    url: str, database: Database, options: list[str], code: int, sentence: str
) -> None:
    result = invoke("task", "add", "x", *options, "--json", url=url)
    assert (result.exit_code, result.stdout) == (code, "")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert stored(database) == []


def test_a_manual_task_may_be_without_the_param_that_each_of_its_runs_brings(url: str) -> None:
    done("task", "add", "by-hand", "--type", "REPORT", url=url)
    done("task", "set", "by-hand", "--retries", "2", url=url)
    refused = invoke("task", "run", "by-hand", url=url)
    assert (refused.exit_code, "'region' is a required property" in refused.stderr) == (1, True)
    assert json.loads(done("instance", "list", "--json", url=url)) == []
    done("task", "run", "by-hand", "--param", '{"region": "eu"}', url=url)
    refused = invoke("task", "set", "by-hand", "--cron", "@daily", url=url)
    assert (refused.exit_code, "'region' is a required property" in refused.stderr) == (1, True)


def test_every_fault_is_told_at_once(url: str) -> None:
    result = invoke("task", "add", "x", "--type", "CLEANUP", "--retries", "2000", "--priority", "12", url=url)
    assert [line.split()[1] for line in result.stderr.splitlines()] == ["--retries", "--priority"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "nightly", "--type", "CLEANUP"], "a task named 'nightly' exists already"),
        (["set", "nightly", "--cron", "61 * * * *"], "the minute field has 61"),
        (["set", "nightly", "--timezone", "Mars"], "There is no time zone 'Mars'"),
        (["set", "nightly", "--type", "REPORT"], "'region' is a required property"),
        (["set", "nightly", "--name", "taken"], "a task named 'taken' exists already"),
        (["set", "weekly", "--retries", "1"], "no task is named 'weekly'"),
        (["set", "nightly", "--max-instances", "2"], "--max-instances goes with --overlap allow"),
        (["set", "nightly", "--timeout", "-1"], "--timeout -1: Input should be greater than or equal to 1"),
        (["on", "nightly", "weekly"], "no task is named 'weekly'"),
        (["off", "nightly", "weekly"], "no task is named 'weekly'"),
        (["remove", "weekly", "--yes"], "no task is named 'weekly'"),
        (["remove", "nightly"], "nobody is here to be asked whether to remove 'nightly'; say --yes"),
        (["run", "weekly"], "no task is named 'weekly'"),
        (["run", "nightly", "--at", "02:00"], "'02:00' is not a time"),
        (["run", "report", "--param", '{"region": 5}'], "region: 5 is not of type 'string'"),
        (["show", "weekly"], "no task is named 'weekly'"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_changes(
    nightly: str, database: Database, arguments: list[str], sentence: str
) -> None:
    invoke("task", "add", "taken", "--type", "CLEANUP", url=nightly)
    invoke("task", "add", "report", "--type", "REPORT", "--param", '{"region": "eu"}', url=nightly)
    before = stored(database)
    result = invoke("task", *arguments, "--json", url=nightly)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert stored(database) == before


@pytest.mark.every_database
def test_set_changes_only_what_is_given(nightly: str, database: Database) -> None:
    before = stored(database)[0]
    result = invoke("task", "set", "nightly", "--retries", "2", url=nightly)
    assert result.exit_code == 0
    after = stored(database)[0]
    assert {name for name in before if before[name] != after[name]} <= {"retries", "gmt_modified"}
    assert after["retries"] == 2


def test_set_clears_fields(url: str, database: Database) -> None:
    invoke("task", "add", "x", "--type", "REPORT", *EVERYTHING, url=url)
    result = invoke(
        "task", "set", "x", "--no-cron", "--no-starts-at", "--no-ends-at", "--no-max-instances", "--no-timeout",
        "--no-label", "--no-param", "--type", "CLEANUP", url=url,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    row = database.read(lambda connection: tasks.find(connection, "x"))
    cleared = ("cron", "starts_at", "ends_at", "max_instances", "timeout_seconds", "required_labels", "param")
    assert [getattr(row, name) for name in cleared] == [None] * 7
    assert row.trigger_kind == "manual"


@pytest.mark.parametrize(("given", "kind"), [(("--every", "15m"), "interval"), (("--at", "2030-01-01T09:00"), "once")])
def test_set_gives_another_trigger_and_clears_it(
    nightly: str, database: Database, given: tuple[str, str], kind: str
) -> None:
    def trigger() -> tuple[Any, ...]:
        row = database.read(lambda connection: tasks.find(connection, "nightly"))
        return row.trigger_kind, row.cron, bool(row.trigger_spec)

    assert invoke("task", "set", "nightly", *given, url=nightly).exit_code == 0
    assert trigger() == (kind, None, True)
    assert invoke("task", "set", "nightly", f"--no-{given[0][2:]}", url=nightly).exit_code == 0
    assert trigger() == ("manual", None, False)


def test_a_list_says_each_trigger_in_a_few_characters(url: str) -> None:
    for name, *given in (("a", "--every", "15m"), ("b", "--at", "2030-01-01T09:00"), ("c", "--cron", "@daily")):
        assert invoke("task", "add", name, "--type", "CLEANUP", *given, url=url).exit_code == 0
    listed = json.loads(invoke("task", "list", "--json", url=url).stdout)
    assert [task["trigger"] for task in listed] == ["every 15m", "at 2030-01-01 09:00", "@daily"]


def test_set_renames_and_switches(nightly: str, database: Database) -> None:
    invoke("task", "set", "nightly", "--name", "nocturne", "--off", url=nightly)
    assert database.read(lambda connection: tasks.find(connection, "nocturne")).status == "off"


def test_set_without_anything_and_with_a_contradiction_is_not_understood(nightly: str) -> None:
    assert invoke("task", "set", "nightly", url=nightly).exit_code == 2
    result = invoke("task", "set", "nightly", "--cron", "@daily", "--no-cron", url=nightly)
    assert result.exit_code == 2
    assert "--no-cron clears what another option sets" in result.stderr


def test_set_reads_times_in_the_zone_that_the_task_has_or_is_given(nightly: str, database: Database) -> None:
    invoke("task", "set", "nightly", "--timezone", "Asia/Shanghai", "--starts-at", "2027-01-01T08:00", url=nightly)
    assert str(database.read(lambda c: tasks.find(c, "nightly")).starts_at) == "2027-01-01 00:00:00"
    invoke("task", "set", "nightly", "--starts-at", "2027-01-01T09:00", url=nightly)
    assert str(database.read(lambda c: tasks.find(c, "nightly")).starts_at) == "2027-01-01 01:00:00"


def test_on_and_off_say_whether_they_changed_anything(nightly: str) -> None:
    assert invoke("task", "off", "nightly", url=nightly).stdout == "nightly is off\n"
    assert invoke("task", "off", "nightly", url=nightly).stdout == "nightly was off already\n"
    shown = json.loads(invoke("task", "on", "nightly", "--json", url=nightly).stdout)
    assert shown == [{"name": "nightly", "status": "on", "changed": True}]


def test_remove_frees_the_name(nightly: str) -> None:
    assert invoke("task", "remove", "nightly", "--yes", url=nightly).exit_code == 0
    assert json.loads(invoke("task", "list", "--json", url=nightly).stdout) == []
    assert invoke("task", "add", "nightly", "--type", "CLEANUP", url=nightly).exit_code == 0


def test_list_finds_by_a_part_of_the_name_and_says_when_there_are_more(nightly: str) -> None:
    for name in ("a_1", "a_2", "ab1"):
        invoke("task", "add", name, "--type", "CLEANUP", "--off", url=nightly)
    found = json.loads(invoke("task", "list", "--like", "a_", "--json", url=nightly).stdout)
    assert [task["name"] for task in found] == ["a_1", "a_2"]
    assert "nightly" not in invoke("task", "list", "--status", "off", url=nightly).stdout
    few = invoke("task", "list", "--limit", "2", url=nightly)
    assert len(few.stdout.splitlines()) == 3
    assert "there are more than 2" in few.stderr


@pytest.mark.every_database
def test_show_has_every_field_the_fires_and_the_counters(nightly: str, database: Database) -> None:
    database.write(
        lambda connection: connection.execute(
            update(schedule_task).values(misfires=3, fires_held_back=4, plan_error="it was bad")
        )
    )
    instance = json.loads(invoke("task", "run", "nightly", "--json", url=nightly).stdout)["id"]
    shown = json.loads(invoke("task", "show", "nightly", "--json", url=nightly).stdout)
    assert (shown["misfires"], shown["fires_held_back"], shown["plan_error"]) == (3, 4, "it was bad")
    assert shown["trigger_description"] == "every day at 03:00"
    assert len(shown["next_fires"]) == 5
    assert [i["id"] for i in shown["instances"]] == [instance]
    words = invoke("task", "show", "nightly", url=nightly).stdout
    for said in ("misfires", "fires_held_back", "it was bad", "fires every day at 03:00 (UTC)", "last runs"):
        assert said in words


def test_a_cron_that_sql_made_invalid_is_shown_with_its_fault(nightly: str, database: Database) -> None:
    database.write(lambda connection: connection.execute(update(schedule_task).values(cron="61 * * * *")))
    shown = invoke("task", "show", "nightly", url=nightly)
    assert shown.exit_code == 0
    assert "it cannot fire: The cron expression '61 * * * *' is refused" in shown.stderr
    assert "the minute field has 61" in invoke("task", "list", url=nightly).stdout


def test_a_date_that_is_none_spoils_its_own_task_alone(migrated_mariadb_url: str, mariadb_database: Database) -> None:
    """MariaDB takes a zero day from a session that does not check, and MySQL from any if the tables do not."""
    mariadb_database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("CLEANUP", "CLEANUP")], "test"))
    for name in ("good", "bad"):
        add = ("task", "add", name, "--type", "CLEANUP", "--cron", "0 3 * * *")
        assert invoke(*add, url=migrated_mariadb_url).exit_code == 0
    odd = "UPDATE schedule_task SET starts_at = '2026-10-00' WHERE name = 'bad'"
    run_sql(migrated_mariadb_url, *past_the_checks(migrated_mariadb_url), odd)
    listed = invoke("task", "list", "--json", url=migrated_mariadb_url)
    assert [task["name"] for task in json.loads(listed.stdout)] == ["bad", "good"]
    assert "starts_at '2026-10-00 00:00:00.000000' is no date" in json.loads(listed.stdout)[0]["remark"]
    assert invoke("task", "show", "bad", url=migrated_mariadb_url).exit_code == 0
    assert invoke("task", "remove", "bad", "--yes", url=migrated_mariadb_url).exit_code == 0


def test_control_characters_from_the_database_reach_no_terminal(nightly: str, database: Database) -> None:
    database.write(lambda connection: connection.execute(update(schedule_task).values(name="a\x1b[2Jb")))
    shown = invoke("task", "list", url=nightly).stdout
    assert "\x1b" not in shown
    assert "a\\x1b[2Jb" in shown


def test_run_is_for_now_or_for_a_time_in_the_tasks_zone(url: str, database: Database) -> None:
    invoke("task", "add", "x", "--type", "CLEANUP", "--timezone", "Europe/Berlin", url=url)
    now = database.clock.now()
    for_now = json.loads(invoke("task", "run", "x", "--json", url=url).stdout)
    assert for_now["schedule_datetime"][:13] in (f"{now:%Y-%m-%dT%H}", f"{database.clock.now():%Y-%m-%dT%H}")
    at = json.loads(invoke("task", "run", "x", "--at", "2026-11-19T02:00", "--json", url=url).stdout)
    assert at["schedule_datetime"] == "2026-11-19T01:00:00Z"
    assert (at["status"], at["origin"], at["due_at"] > "2026-11-20") == ("pending", "manual", True)


@pytest.mark.every_database
def test_run_for_a_time_to_come_waits_for_that_time(url: str, database: Database) -> None:
    invoke("task", "add", "x", "--type", "CLEANUP", "--timezone", "Europe/Berlin", url=url)
    asked = json.loads(invoke("task", "run", "x", "--at", "2099-07-01T02:00", "--json", url=url).stdout)
    assert asked["schedule_datetime"] == asked["due_at"] == "2099-07-01T00:00:00Z"
    said = invoke("task", "run", "x", "--at", "2099-07-01T02:00", url=url).stdout
    assert re.fullmatch(r"instance \d+ of x runs at 2099-07-01 02:00:00\+02:00, in \d+ d( \d+ h)?\n", said)


@pytest.mark.parametrize(
    ("at", "utc", "remark"),
    [
        ("2026-10-25T02:30", "2026-10-25T00:30:00Z", "occurs twice in Europe/Berlin; the first is taken"),
        ("2026-03-29T02:30", "2026-03-29T01:00:00Z", "does not occur in Europe/Berlin; the first instant after"),
    ],
)
def test_run_says_how_it_took_a_time_that_is_no_single_one(url: str, at: str, utc: str, remark: str) -> None:
    invoke("task", "add", "x", "--type", "CLEANUP", "--timezone", "Europe/Berlin", url=url)
    result = invoke("task", "run", "x", "--at", at, "--json", url=url)
    assert json.loads(result.stdout)["schedule_datetime"] == utc
    assert remark in result.stderr


def test_run_may_have_a_param_of_its_own(url: str) -> None:
    invoke("task", "add", "x", "--type", "REPORT", "--param", '{"region": "eu"}', url=url)
    run = json.loads(invoke("task", "run", "x", "--param", '{"region": "us"}', "--json", url=url).stdout)
    assert run["param"] == {"region": "us"}


def test_an_unmigrated_database_is_exit_code_3_and_says_what_to_do(database_url: str) -> None:
    for command in (["task", "list"], ["instance", "list", "--json"], ["worker", "list"], ["scheduler"]):
        result = invoke(*command, url=database_url)
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr.startswith("error: ")
        assert "run rota migrate" in result.stderr


def test_a_missing_sqlite_file_is_said_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("task", "list")
    assert result.stderr == "error: no database at rota.db yet: run rota migrate, or rota up\n"
    assert result.exit_code == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["mysql://root@127.0.0.1:1/rota", "mysql://rota:geheim@nowhere.invalid/rota"])
def test_an_unreachable_database_is_exit_code_3_and_shows_no_password(url: str) -> None:
    result = invoke("task", "list", url=url)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: mysql://")
    assert "geheim" not in result.stderr


def test_migrate_makes_the_tables_and_the_types_that_rota_brings(database_url: str) -> None:
    assert "migrated from nothing" in invoke("migrate", url=database_url).stdout
    assert "already" in invoke("migrate", url=database_url).stdout
    shell = ("--type", "SHELL_COMMAND", "--param", '{"command": ["true"]}')
    result = invoke("task", "add", "x", *shell, url=database_url)
    assert result.exit_code == 0, result.stderr


def test_migrate_sql_prints_and_changes_nothing(database_url: str) -> None:
    assert "CREATE TABLE schedule_task" in invoke("migrate", "--sql", url=database_url).stdout
    assert invoke("task", "list", url=database_url).exit_code == 3


def test_doctor_tells_by_exit_code_whether_rota_can_work(database_url: str) -> None:
    sick = invoke("doctor", "--json", url=database_url)
    assert (sick.exit_code, json.loads(sick.stdout)["ok"]) == (3, False)
    invoke("migrate", url=database_url)
    well = invoke("doctor", "--json", url=database_url)
    assert (well.exit_code, json.loads(well.stdout)["ok"]) == (0, True)
    assert "migrated" in invoke("doctor", url=database_url).stdout


def test_a_wrong_app_is_refused_in_a_sentence(migrated_sqlite_url: str) -> None:
    for app, sentence in {
        "nowhere:app": "there is no module 'nowhere'",
        "examples.jobs": "write module:app",
        "examples.jobs:report": "holds a TaskType where a rota.Rota is needed",
    }.items():
        result = invoke("up", "--app", app, url=migrated_sqlite_url)
        assert result.exit_code == 1
        assert f"error: app '{app}': " in result.stderr
        assert sentence in result.stderr


def test_the_columns_shown_are_those_of_the_table(nightly: str) -> None:
    shown = set(json.loads(invoke("task", "show", "nightly", "--json", url=nightly).stdout))
    columns = {column.name for column in schedule_task.c if column.computed is None}
    assert {name for name in columns - shown if not name.startswith(("planned_", "declared"))} == {"is_deleted"}
    assert "declaration" in shown


def on_a_terminal(typed: str, *arguments: str, url: str) -> tuple[int, str]:
    """Run the command on a terminal on which somebody has typed; its exit code and what the screen showed."""
    person, terminal = pty.openpty()
    os.write(person, typed.encode())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "NO_COLOR"))}
    with subprocess.Popen(
        [sys.executable, "-m", "rota", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=ROOT,
        env=marked_environment(environment | {"ROTA_DATABASE_URL": url, "TERM": "xterm", "COLUMNS": "120"}),
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that the last program on it has ended
            while chunk := os.read(person, 65536):
                shown += chunk
        code = process.wait(30)
    os.close(person)
    return code, shown.decode()


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 1, 1), ("y\n", 0, 0)])
def test_remove_asks_a_person(nightly: str, answer: str, code: int, left: int) -> None:
    ended, shown = on_a_terminal(answer, "task", "remove", "nightly", url=nightly)
    assert "Remove nightly? It fires no more [y/N]" in shown
    assert ended == code
    assert len(json.loads(invoke("task", "list", "--json", url=nightly).stdout)) == left


def test_a_terminal_gets_colour_and_a_pipe_does_not(nightly: str) -> None:
    _, shown = on_a_terminal("", "task", "list", url=nightly)
    assert "\x1b[32mon" in shown
    assert "in " in shown
    assert "\x1b" not in invoke("task", "list", url=nightly).stdout


def test_at_most_once_and_retries_exclude_each_other_whichever_is_set_last(nightly: str, database: Database) -> None:
    said = "--on-worker-lost fail means at most once: retries must be 0, not 3"
    both = ("--on-worker-lost", "fail", "--retries", "3")
    assert said in invoke("task", "add", "other", "--type", "CLEANUP", *both, url=nightly).stderr
    assert invoke("task", "set", "nightly", "--on-worker-lost", "fail", url=nightly).exit_code == 0
    refused = invoke("task", "set", "nightly", "--retries", "3", url=nightly)
    assert (refused.exit_code != 0, said in refused.stderr) == (True, True)
    assert database.read(lambda connection: tasks.find(connection, "nightly")).retries == 0
