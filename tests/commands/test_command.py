"""The command as a whole: its help, its exit codes, how it fails."""

import errno
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rota.cli import COMMANDS, RotaGroup, cli, main
from rota.cli.commands.up import planned
from rota.cli.options import SCHEDULER_SETTINGS, UP_SETTINGS, WORKER_SETTINGS
from rota.cli.shell import Shell
from rota.shared.clock import boottime
from rota.shared.domain.errors import DatabaseProblem, NotPossible
from rota.shared.settings import SECRETS, Settings
from tests.harness.command_line import commands, invoke


def test_every_line_of_the_help_is_the_first_of_the_commands_own() -> None:
    for name, command in commands():
        if name in COMMANDS:
            assert COMMANDS[name][1] == (command.help or "").splitlines()[0]


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_command_has_help_with_an_example(name: str) -> None:
    shown = invoke(*name.split(), "--help")
    assert shown.exit_code == 0
    assert "Example" in shown.stdout
    assert f"rota {name.split(maxsplit=1)[0]}" in shown.stdout.split("Example")[1]


@pytest.mark.parametrize(
    ("error", "code"),
    [(NotPossible("it is not possible"), 1), (DatabaseProblem("no server\nno schema"), 3), (KeyboardInterrupt(), 130)],
)
def test_what_goes_wrong_is_a_sentence_and_an_exit_code(error: BaseException, code: int) -> None:
    @click.command()
    def failing() -> None:
        raise error

    class Group(RotaGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return failing

    result = CliRunner().invoke(Group("rota"), ["failing"])
    said = [f"error: {line}" for line in str(error).splitlines()] or ["interrupted"]
    assert (result.exit_code, result.stdout, result.stderr.splitlines()) == (code, "", said)


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(DatabaseProblem):
        invoke("--debug", "task", "list", url="sqlite:////nowhere/rota.db")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["tsak", "list"], "task"),
        (["wroker"], "worker"),
        (["job", "list"], "task"),
        (["task", "lst"], "list"),
        (["task", "delete", "nightly"], "remove"),
        (["task", "stop", "nightly"], "off"),
        (["instance", "kill", "17"], "cancel"),
        (["instance", "retry", "17"], "replay"),
        (["worker", "stop", "eu-1"], "drain"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(typed: list[str], meant: str) -> None:
    refused = invoke(*typed)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"Did you mean '{meant}'?" in refused.stderr


def test_a_command_that_is_like_no_other_is_answered_with_those_there_are() -> None:
    assert f"Error: No such command 'xyz'; there are: {', '.join(COMMANDS)}.\n" in invoke("xyz").stderr
    assert "Error: No such command 'xyz'; there are: add, list, next, off, on, " in invoke("task", "xyz").stderr
    assert "No such option '-x'" in invoke("task", "-x").stderr


def test_an_error_names_the_option_for_a_field_and_leaves_sql_as_it_is(migrated_sqlite_url: str) -> None:
    add = ("task", "add", "x", "--type", "REPORT", "--cron", "0 30 2 * * ?")
    said = invoke(*add, url=migrated_sqlite_url).stderr
    assert "(`--seconds`, `seconds=True`, `cron_seconds = 1`)" in said


def test_what_is_not_understood_is_exit_code_2() -> None:
    for arguments in (["tsak"], ["task", "add"], ["cron", "* * * * *", "--count", "x"], ["task", "list", "--no"]):
        assert invoke(*arguments).exit_code == 2


NO_IDS = ("0", "-1", str(10**30), "abc", "9" * 5000)


@pytest.mark.parametrize("number", NO_IDS)
@pytest.mark.parametrize(
    "command",
    [
        ["instance", "show", "--"],
        ["instance", "cancel", "--"],
        ["instance", "replay", "--"],
        ["audit", "--instance"],
        ["audit", "--limit"],
        ["instance", "list", "--limit"],
        ["task", "list", "--limit"],
        ["worker", "list", "--limit"],
        ["scheduler", "list", "--limit"],
    ],
    ids=" ".join,
)
def test_an_id_or_a_limit_out_of_range_is_exit_code_2_and_never_reaches_the_database(
    command: list[str], number: str
) -> None:
    refused = invoke(*command, number, url="sqlite:////nowhere/rota.db")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert re.search(r"^Error: Invalid value for '\S+': .*\.$", refused.stderr, re.MULTILINE)


@pytest.mark.parametrize("command", [["show"], ["cancel"], ["replay", "--wait", "17"]], ids=" ".join)
@pytest.mark.parametrize("number", ["abc", "-1", "-17", "0"])
def test_what_is_no_id_is_refused_in_words_and_with_an_example(command: list[str], number: str) -> None:
    refused = invoke("instance", *command, number, url="sqlite:////nowhere/rota.db")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert (
        f"'{number}' is not an id; an id is a whole number from 1 to 9,223,372,036,854,775,807, for example 17."
        in refused.stderr
    )


def test_an_option_that_is_not_there_is_no_id() -> None:
    assert "No such option '-x'" in invoke("instance", "show", "-x", "17").stderr


def test_a_number_that_is_none_is_refused_in_words() -> None:
    for arguments in (["task", "list", "--limit", "x"], ["cron", "@daily", "--count", "-1"], ["up", "--workers", "x"]):
        refused = invoke(*arguments, url="sqlite:////nowhere/rota.db")
        assert refused.exit_code == 2
        assert f"'{arguments[-1]}' is not a whole number from " in refused.stderr


@pytest.mark.parametrize("option", ["--name", "--app", "--health-file"])
def test_an_empty_text_is_refused(option: str) -> None:
    refused = invoke("config", option, "")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"Error: Invalid value for '{option}': it is empty;" in refused.stderr


def test_an_empty_variable_of_the_workers_name_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_WORKER_NAME", "")
    _, worker = planned(Shell(), 1, [], {})
    assert worker.environment["ROTA_WORKER_NAME"] == f"{socket.gethostname()}-{os.getpid()}-1"


def test_a_worker_name_that_no_column_holds_is_refused_before_the_worker_starts() -> None:
    name = "w" * 300
    refused = CliRunner().invoke(cli, ["worker", "--name", name])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Error: Invalid value for '--name': 300 characters are too many; at most 255 are allowed." in refused.stderr
    for command in ("worker", "up"):  # a process of its own: a worker blocks the signals of the one that it is in
        by_variable = subprocess.run(
            [sys.executable, "-m", "rota", command],
            env={**os.environ, "ROTA_WORKER_NAME": name}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert by_variable.returncode == 1
        assert "ROTA_WORKER_NAME" in by_variable.stderr


def test_up_refuses_a_worker_name_that_is_too_long_with_its_number(tmp_path: Path) -> None:
    refused = invoke("up", url=f"sqlite:///{tmp_path}/rota.db", ROTA_WORKER_NAME="w" * 254)
    assert (refused.exit_code, "ROTA_WORKER_NAME" in refused.stderr) == (1, True)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_a_reader_that_has_seen_enough_is_no_error(form: list[str]) -> None:
    command = (sys.executable, "-m", "rota", "cron", "@hourly", "--count", "10000", *form)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [["config"], ["config", "--json"], ["cron", "@hourly", "--count", "1000"], ["--help"], ["task", "add", "--help"]],
    ids=" ".join,
)
def test_a_disk_that_is_full_is_told_in_a_sentence(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rota", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (1, "error: cannot write to stdout: No space left on device\n")


def test_where_stdout_is_closed_nothing_is_shown_and_nothing_fails() -> None:
    command = f"{shlex.quote(sys.executable)} -m rota cron @hourly >&-"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_full_disk_under_a_file_is_not_taken_for_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/srv/file")

    monkeypatch.setattr("rota.cli.cli", fail)
    with pytest.raises(OSError, match="/srv/file"):
        main()


def test_a_pipe_that_breaks_elsewhere_is_an_error() -> None:
    class Group(RotaGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            @click.command()
            def failing() -> None:
                raise BrokenPipeError(errno.EPIPE, "of a socket")

            return failing

    assert CliRunner().invoke(Group("rota"), ["failing"]).exit_code != 0


def test_every_setting_is_an_option_of_the_process_that_heeds_it() -> None:
    assert {*SECRETS, *SCHEDULER_SETTINGS, *WORKER_SETTINGS} == set(Settings.model_fields)  # ps shows options
    per_process = {"worker_name", "health_file"}
    assert set(UP_SETTINGS) | per_process >= {*SCHEDULER_SETTINGS, *WORKER_SETTINGS}


def health(file: Path, **environment: str) -> Result:
    return invoke("health", "--health-file", str(file), **environment)


def test_health_tells_by_exit_code_whether_the_process_has_beaten(tmp_path: Path) -> None:
    file = tmp_path / "beat"
    assert health(file).exit_code == 1
    assert "has never beaten (limit 15 s)" in health(file).stderr
    file.write_text(f"{boottime():.3f}\n")
    assert health(file).exit_code == 0
    assert health(file).stdout.startswith("alive: ")
    file.write_text(f"{boottime() - 16:.3f}\n")
    assert health(file).exit_code == 1
    assert "has been silent for 16" in health(file).stderr
    assert health(file, ROTA_LIVENESS_SECONDS="20").exit_code == 0
    file.write_text(f"{boottime() - 7300:.3f}\n")
    assert "has been silent for 2 h 1 min (limit 15 s)" in health(file).stderr


def test_health_without_a_file_says_what_to_set() -> None:
    assert "ROTA_HEALTH_FILE is not set" in invoke("health").stderr
    assert "ROTA_HEALTH_FILE is not set" in invoke("health", ROTA_HEALTH_FILE="").stderr
    empty = invoke("health", "--health-file", "")
    assert (empty.exit_code, "Invalid value for '--health-file': it is empty;" in empty.stderr) == (2, True)


def test_health_says_so_where_the_file_cannot_be_read(tmp_path: Path) -> None:
    refused = health(tmp_path)
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"error: --health-file {tmp_path} cannot be read: Is a directory\n",
    )


@pytest.mark.parametrize("arguments", [["task", "show", "\udcff"], ["-d", "sqlite:///\udcff.db", "task", "list"]])
def test_a_text_that_is_not_utf_8_is_refused_before_it_reaches_the_database(arguments: list[str]) -> None:
    refused = invoke(*arguments, url="sqlite:////nowhere/rota.db")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "\\udcff" in refused.stderr
    assert "is not UTF-8; Rota takes no other text." in refused.stderr


def test_a_terminal_that_knows_fewer_characters_gets_escapes_and_json_stays_json() -> None:
    def shown(*arguments: str) -> str:
        command = [sys.executable, "-m", "rota", *arguments]
        environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "ROTA_WORKER_NAME": "日报 é"}
        return subprocess.run(command, capture_output=True, check=True, env=environment).stdout.decode("latin-1")

    assert "\\u65e5\\u62a5 é" in shown("config")
    settings = json.loads(shown("config", "--json"))["settings"]
    assert "日报 é" in [setting["value"] for setting in settings]
