"""What holds for every command: its help is true, and with ``--json`` it prints one JSON document."""

import json
import re
import shlex
import signal
from pathlib import Path

import click
import pytest

from rota.cli import cli
from rota.cli.shell import DATABASE_PROBLEM, INTERRUPTED, REFUSED
from rota.shared.clock import boottime
from rota.shared.outdated import EXIT_OUTDATED
from rota.worker_service.app import EXIT_ABANDONED
from rota.worker_service.liveness import EXIT_LEASE_LOST
from tests.harness.command_line import commands, invoke
from tests.harness.filled import with_all_rows

ROOT = Path(__file__).parents[2]
WITHOUT_JSON = {"up", "scheduler", "worker", "task", "instance", "key", "backfill", "limit", "calendar"}
"""Groups, and services that run until they are stopped."""

CALLS: dict[str, tuple[str, ...]] = {
    "migrate": (),
    "task add": ("task", "add", "new", "--type", "REPORT", "--cron", "@daily"),
    "task set": ("task", "set", "daily", "--retries", "2"),
    "task list": (),
    "task show": ("task", "show", "daily"),
    "task why": ("task", "why", "daily"),
    "task on": ("task", "on", "daily"),
    "task off": ("task", "off", "daily"),
    "task run": ("task", "run", "daily"),
    "task next": ("task", "next", "daily"),
    "task remove": ("task", "remove", "daily", "--yes"),
    "instance list": (),
    "instance show": ("instance", "show", "1"),
    "instance replay": ("instance", "replay", "1"),
    "instance cancel": ("instance", "cancel", "1"),
    "key once": ("key", "once", "REPORT", "product-43", "--at", "2099-12-24T20:00"),
    "key list": (),
    "key cancel": ("key", "cancel", "REPORT", "product-42"),
    "backfill start": ("backfill", "daily", "--from", "2026-01-01", "--to", "2026-01-05"),
    "backfill list": (),
    "backfill show": ("backfill", "show", "1"),
    "backfill pause": ("backfill", "pause", "1"),
    "backfill resume": ("backfill", "resume", "1"),
    "backfill cancel": ("backfill", "cancel", "1"),
    "worker list": (),
    "worker show": ("worker", "show", "w"),
    "worker drain": ("worker", "drain", "w"),
    "worker resume": ("worker", "resume", "w"),
    "scheduler list": (),
    "limit add": ("limit", "add", "new", "--max-running", "4"),
    "limit set": ("limit", "set", "warehouse", "--starts-per-minute", "60"),
    "limit remove": ("limit", "remove", "warehouse"),
    "limit list": (),
    "limit show": ("limit", "show", "warehouse"),
    "scheduler pause": (),
    "scheduler resume": (),
    "calendar add": ("calendar", "add", "new", "--weekend", "all", "--on", "2027-01-29"),
    "calendar set": ("calendar", "set", "feasts", "--off", "2027-12-24"),
    "calendar list": (),
    "calendar show": ("calendar", "show", "feasts"),
    "calendar refresh": (),
    "calendar remove": ("calendar", "remove", "feasts"),
    "audit": (),
    "cron": ("cron", "0 3 * * *"),
    "config": (),
    "doctor": (),
    "health": (),
}
"""A call of each command, with what it must be told."""

NEED_ROWS = {name for name, call in CALLS.items() if call} - {"cron", "limit add", "calendar add"}
REFUSED_ON_ROWS = {"instance cancel", "key cancel"}
"""Instance 1 has ended."""


def calls() -> list[tuple[str, list[str]]]:
    return [(name, [*(call or name.split()), "--json"]) for name, call in CALLS.items()]


def examples_of(command: click.Command) -> list[str]:
    """The lines of a command's help that show it in use."""
    _, _, shown = (command.help or "").partition("Example")
    return [line.strip() for line in shown.splitlines() if re.search(r"(^|\s)rota ", line)]


def parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parse what was typed as the command does, without running anything."""
    with command.make_context(name, arguments, parent=parent) as context:
        rest = [*context._protected_args, *context.args]
        if isinstance(command, click.Group) and rest:
            sub, found, its_arguments = command.resolve_command(context, rest)
            assert found is not None
            parse(found, str(sub), its_arguments, context)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_each_example_of_the_help_can_be_typed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "param.json").write_text("{}")
    command = dict(commands())[name]
    shown = examples_of(command)
    assert shown
    for line in shown:
        _, _, typed = line.partition("rota ")
        parse(cli, "rota", shlex.split(typed.partition(" > ")[0]))


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_each_option_says_what_it_does_and_the_page_names_the_command(name: str) -> None:
    command = dict(commands())[name]
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    assert [option.name for option in options if not option.help] == []
    page = (ROOT / "docs" / "cli.md").read_text()
    assert f"rota {name}" in page or f"`{name}`" in page


@pytest.mark.parametrize("group", ["task", "instance", "key", "backfill", "worker", "scheduler", "limit", "calendar"])
def test_no_line_of_a_group_is_cut(group: str) -> None:
    _, _, listed = invoke(group, "--help").stdout.partition("Commands:")
    assert listed
    assert "..." not in listed


def test_each_command_that_ends_by_itself_has_json() -> None:
    with_json = {name for name, one in commands() if "as_json" in {param.name for param in one.params}}
    assert with_json == {name for name, _ in commands()} - WITHOUT_JSON == set(CALLS)


@pytest.mark.every_database
def test_where_there_is_no_row_json_is_a_document_or_a_sentence(migrated_url: str, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    beat.write_text(f"{boottime()}\n")
    for name, call in calls():
        result = invoke(*call, url=migrated_url, ROTA_HEALTH_FILE=str(beat))
        if name in NEED_ROWS:
            assert (result.exit_code, result.stdout) == (1, ""), (name, result.output)
            assert result.stderr.startswith("error: "), name
        else:
            assert result.exit_code == 0, (name, result.output)
            json.loads(result.stdout)


@pytest.mark.every_database
def test_with_rows_json_is_one_document(migrated_url: str, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    beat.write_text(f"{boottime()}\n")
    with_all_rows(migrated_url)
    removed_last = sorted(calls(), key=lambda call: call[0].endswith(" remove"))
    for name, call in removed_last:
        result = invoke(*call, url=migrated_url, ROTA_HEALTH_FILE=str(beat))
        assert result.exit_code == (name in REFUSED_ON_ROWS), (name, result.output)
        if result.exit_code == 0:
            json.loads(result.stdout)
        else:
            assert result.stdout == ""


@pytest.mark.every_database
@pytest.mark.parametrize("is_filled", [False, True], ids=["empty", "filled"])
def test_lists_are_lists_in_json(migrated_url: str, is_filled: bool) -> None:
    if is_filled:
        with_all_rows(migrated_url)
    lists = (
        "task list",
        "instance list",
        "key list",
        "backfill list",
        "worker list",
        "scheduler list",
        "limit list",
        "calendar list",
    )
    for name in (*lists, "audit"):
        found = json.loads(invoke(*name.split(), "--json", url=migrated_url).stdout)
        assert (isinstance(found, list), bool(found)) == (True, is_filled), name


def test_the_page_lists_every_exit_code() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    own = {REFUSED, DATABASE_PROBLEM, INTERRUPTED, EXIT_LEASE_LOST, EXIT_ABANDONED, EXIT_OUTDATED}
    assert listed == own | {0, click.UsageError.exit_code, 128 + signal.SIGTERM}
