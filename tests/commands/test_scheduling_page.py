"""docs/scheduling.md: its commands print what it shows, and its SQL and Python make tasks that a scheduler can plan."""

import re
import shlex
import textwrap
from typing import Any

import pytest

from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import node_types, workers
from rota.shared.store.node_types import NodeTypeDeclaration
from tests.harness.command_line import invoke
from tests.harness.processes import ROOT
from tests.harness.scenario import Scenario
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
    ended = Scenario(database).worker("w1", capacity=50, pools={"images": 2})
    database.write(lambda c: workers.bury(c, [ended], "test", "test"))
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


REPLAYED = (
    "DELETE FROM schedule_task_node",
    "DELETE FROM schedule_instance",
    """INSERT INTO schedule_instance
        (id, schedule_task_id, schedule_datetime, due_at, run_number, status, attempt, gmt_started, gmt_completed)
    SELECT 17, id, '2026-11-19 12:00:00.000000', '2026-11-19 12:00:00.000000', 0, 'failed', 1,
        '2026-11-19 12:00:00.000000', '2026-11-19 12:00:01.000000' FROM schedule_task WHERE name = 'sync'""",
    """INSERT INTO schedule_task_node
        (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence, status, execution_result)
    SELECT i.id, i.gmt_create, t.id, t.sequence,
        CASE t.type WHEN 'FETCH' THEN 'succeed' ELSE 'failed' END, CASE t.type WHEN 'FETCH' THEN '7' END
    FROM schedule_instance i JOIN schedule_task_node_type t ON t.category = 'SYNC'""",
)
LINES = [line for block in re.findall(r"^```sh\n((?:.*\n)*?)```$", PAGE, re.M) for line in block.splitlines()]


def test_the_page_has_lines_for_a_shell() -> None:
    assert len(LINES) >= 5


@pytest.mark.every_database
def test_each_line_for_a_shell_replays_what_it_says(migrated_url: str, database: Database) -> None:
    types = [NodeTypeDeclaration("FETCH", "SYNC", 1), NodeTypeDeclaration("SEND", "SYNC", 2)]
    database.write(lambda c: node_types.register(c, types, by="test"))
    assert invoke("task", "add", "sync", "--type", "SYNC", url=migrated_url).exit_code == 0
    for line in LINES:
        rota, *arguments = shlex.split(line, comments=True)
        typed(migrated_url, *REPLAYED)
        result = invoke(*arguments, url=migrated_url)
        assert (rota, result.exit_code) == ("rota", 0), result.output
        made = typed(migrated_url, "SELECT id, replay_of, from_sequence FROM schedule_instance WHERE id <> 17")
        assert [row[1] for row in made] == ([] if "--dry-run" in line else [17]), line
        if "--from-node" in line:
            kept = "SELECT COUNT(*) FROM schedule_task_node WHERE schedule_instance_id <> 17 AND status = 'succeed'"
            assert (made[0][2], typed(migrated_url, kept)) == (2, [(1,)])


def test_the_tree_of_a_chain_is_as_the_page_draws_it(migrated_url: str, database: Database) -> None:
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("REPORT", "REPORT")], by="test"))
    begun, ended = PAGE.index("## Chains"), PAGE.index("## Window")
    section = PAGE[begun:ended]
    for arguments in re.findall(r"^ +\$ rota (task add (?:extract|load|clean|alert|report) .*)$", section, re.M):
        assert invoke(*shlex.split(arguments), url=migrated_url).exit_code == 0
    for number, (name, status) in enumerate([("extract", "succeed"), ("load", "failed"), ("clean", "succeed")], 1):
        typed(
            migrated_url,
            f"INSERT INTO schedule_instance (id, schedule_task_id, schedule_datetime, run_number, status)"
            f" SELECT {number}, id, '2026-11-19 02:00:00.000000', 0, '{status}' FROM schedule_task"
            f" WHERE name = '{name}'",
        )
    [drawn] = re.findall(r"^```text\n(chain\n(?:.*\n)*?)```$", section, re.M)
    shown = invoke("instance", "show", "1", url=migrated_url).output
    assert shown[shown.index("\nchain\n") + 1 :] == drawn
    told = invoke("task", "why", "report", "--at", "2026-11-19T02:00", url=migrated_url).output
    assert "it follows the success of load, and instance 2 of load has failed" in told


def test_shards_are_shown_as_the_page_shows_them(migrated_url: str, database: Database) -> None:
    begun, ended = PAGE.index("## Shards and broadcasts"), PAGE.index("## Window")
    [drawn] = re.findall(r"^```text\n((?:.*\n)*?)```$", PAGE[begun:ended], re.M)
    scenario = Scenario(database)
    assert [scenario.worker("w1"), scenario.worker("w2")] == [1, 2]
    assert invoke("task", "add", "reindex", "--type", "REPORT", "--shards", "3", url=migrated_url).exit_code == 0
    columns = "id, schedule_task_id, schedule_datetime, due_at, run_number, fire_key, schedule_worker_node_id, status"
    at = "'2026-11-19 04:00:00.000000'"
    rows = [
        ("1", "", "0", "running", "NULL", "NULL", "NULL"),
        ("2", "shard/1/0", "2", "succeed", "1", "0", "NULL"),
        ("3", "shard/1/1", "1", "failed", "1", "1", "'the index is locked'"),
        ("4", "shard/1/2", "2", "running", "1", "2", "NULL"),
    ]
    for number, key, worker, status, parent, index, reason in rows:
        typed(
            migrated_url,
            f"INSERT INTO schedule_instance ({columns}, parent_id, shard_index, shard_total, reason) SELECT {number},"
            f" id, {at}, {at}, 0, '{key}', {worker}, '{status}', {parent}, {index}, 3, {reason} FROM schedule_task",
        )
    shown = invoke("instance", "show", "1", url=migrated_url).output
    table = shown[shown.index("\n3 shards:") + 1 :]
    assert [line.rstrip() for line in table.splitlines()] == drawn.splitlines()
    said = "instance 1 runs as 3 shards; their workers are asked to stop them\n"
    assert invoke("instance", "cancel", "1", url=migrated_url).output == said
