"""No text of the database reaches a terminal raw: it would obey escapes, line ends and marks of direction."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, String, Table, update

from rota.shared.database.transactions import Database, opened
from rota.shared.domain.sentences import is_shown
from rota.shared.store.tables import (
    schedule_audit,
    schedule_instance,
    schedule_scheduler_node,
    schedule_task,
    schedule_task_node,
    schedule_task_node_type,
    schedule_worker_node,
)
from tests.harness.command_line import invoke
from tests.harness.examples import examples
from tests.harness.filled import with_all_rows

TABLES = (
    schedule_audit, schedule_instance, schedule_scheduler_node, schedule_task, schedule_task_node,
    schedule_task_node_type, schedule_worker_node,
)  # fmt: skip
KEYS = {"object_type", "act_key", "fire_key", "category", "process_identity"}
"""Columns by which rows are found or that are shown nowhere."""

OBEYED = "\x1b[31m\n\r\t\x07\b\x7f\x85\x9b\u200b\u200f\u202e\u2066\u2028\ufeff"
TEXTS = st.text(st.sampled_from(f"{OBEYED}日é🚀 \u3000a'%{{"), min_size=1, max_size=6)
HALVES = st.sampled_from(["", "\ud800", "\udfff\x1b"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Any) -> str:
    """A database with a row of everything."""
    file = tmp_path_factory.mktemp("raw") / "rota.db"
    file.write_bytes(sqlite_template.read_bytes())
    with_all_rows(f"sqlite:///{file}")
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def database(url: str) -> Iterator[Database]:
    """The same, open."""
    with opened(url) as one:
        yield one


def texts_of(table: Table) -> list[Column[Any]]:
    """The columns of a table that hold any text."""
    columns = [column for column in table.c if isinstance(column.type, String) and column.computed is None]
    return [column for column in columns if column.name not in KEYS]


def spoil(database: Database, text: str, half: str) -> None:
    """Write the text into every column of every row that takes it; ``half`` as well into JSON, which alone takes it."""
    failure = {"error": text, "traceback": f"{text}\n{text}{half}", text + half: [text + half], "worker_id": text}
    values_of: dict[Table, dict[str, Any]] = {table: {c.name: text for c in texts_of(table)} for table in TABLES}
    values_of[schedule_task] |= {"param": failure, "required_labels": {text: text + half}}
    values_of[schedule_instance] |= {"param": failure, "execution_result": failure, "failed_attempts": [failure]}
    values_of[schedule_task_node] |= {"param": failure, "execution_result": failure}
    values_of[schedule_worker_node] |= {"labels": {text: text + half}, "type_versions": {text: text}}
    values_of[schedule_scheduler_node] |= {"kinds": {text: [text + half]}}
    values_of[schedule_audit] |= {"old_values": {text: text}, "new_values": {text: text + half, "param": failure}}
    with database.engine.begin() as connection:
        for table, values in values_of.items():
            connection.execute(update(table).values(**values))
        connection.execute(update(schedule_worker_node).values(gmt_blocked=database.clock.now()))


def shown_of(url: str, name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """What each command that shows rows prints, by the command."""
    for arguments in (
        ("task", "list"),
        ("task", "show", "--", name),
        ("task", "off", "--", name),
        ("task", "set", "--on", "--", name),
        ("task", "show", "--", f"{name}, not there"),
        ("instance", "list"),
        ("instance", "list", f"--task={name}"),
        ("instance", "show", "1"),
        ("instance", "cancel", "1"),
        ("worker", "list", "--all"),
        ("worker", "show", "--", name),
        ("scheduler", "list"),
        ("audit",),
        ("audit", f"--task={name}"),
        ("doctor",),
        ("doctor", "--data"),
    ):
        for form in ((), ("--json",)):
            at = arguments.index("--") if "--" in arguments else len(arguments)
            command = (*arguments[:at], *form, *arguments[at:])
            result = invoke(*command, url=url)
            yield command, result.stdout + result.stderr
            if form and result.exit_code == 0:
                json.loads(result.stdout)


@pytest.mark.parametrize("on_terminal", [False, True], ids=["pipe", "terminal"])
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.tuples(TEXTS, HALVES))
def test_no_text_of_the_database_reaches_a_terminal_raw(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch, on_terminal: bool, texts: tuple[str, str]
) -> None:
    for module in ("output", "table"):
        monkeypatch.setattr(f"rota.cli.show.{module}.on_terminal", lambda: on_terminal)
    spoil(database, *texts)
    for command, printed in shown_of(url, texts[0]):
        raw = {c for c in printed if c != "\n" and not is_shown(c)}
        assert raw == set(), (command, printed)


def test_a_line_end_in_a_name_makes_no_line_of_its_own(url: str, database: Database) -> None:
    spoil(database, "a\nb\u2028c", "")
    for command in (("task", "list"), ("instance", "list"), ("worker", "list"), ("audit", "--limit", "1")):
        shown = invoke(*command, url=url).stdout.split("\n")
        assert len(shown) == len(["heading", "row", ""]), shown
        assert "a\\nb\\u2028c" in shown[1]
