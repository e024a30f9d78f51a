"""docs/scheduling.md: its commands print what it shows, and its SQL and Python make tasks that a scheduler can plan."""

import re
import shlex
import textwrap
from typing import Any

import pytest

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from tests.harness.command_line import invoke
from tests.harness.processes import ROOT
from tests.harness.schemas import typed

PAGE = (ROOT / "docs" / "scheduling.md").read_text()
SHOWN = re.compile(
    r"^(?P<indent> +)\$ rota (?P<arguments>.+)\n(?P<output>(?:(?P=indent)(?!\$ ).*\n)+)"
    r"|^```(?P<language>python|sql)\n(?P<code>(?:.*\n)*?)```$",
    re.M,
)
BLOCKS = [match.groupdict() for match in SHOWN.finditer(PAGE)]


def comparable(output: str) -> str:
    """Without how long it is until a fire, and what fills a line."""
    return "\n".join(re.sub(r" {2,}in \d.*$", "  in …", line).rstrip() for line in output.splitlines())


def test_the_page_shows_commands_statements_and_code() -> None:
    languages = [block["language"] for block in BLOCKS]
    assert all(languages.count(language) >= 2 for language in (None, "python", "sql"))


@pytest.mark.every_database
def test_all_that_the_page_shows_is_so(migrated_url: str, database: Database) -> None:
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("REPORT", "REPORT")], by="test"))
    for block in BLOCKS:
        if block["language"] == "sql":
            typed(migrated_url, block["code"])
        elif block["language"] == "python":
            made: dict[str, Any] = {}
            exec(block["code"], made)
            assert made["app"].schedules, block["code"]
        else:
            printed = invoke(*shlex.split(block["arguments"]), url=migrated_url).output
            assert comparable(printed) == comparable(textwrap.dedent(block["output"]))
    Materializer(database, Settings.load()).step()
    assert typed(migrated_url, "SELECT name, plan_error FROM schedule_task WHERE plan_error IS NOT NULL") == []
    assert typed(migrated_url, "SELECT name FROM schedule_task WHERE plan_stale = 1") == []
