"""``rota audit`` and the reasons that commands take; ``rota scheduler list``, and what ``rota doctor`` says of it."""

import json
from typing import Any

import pytest

from rota.cli.shell import actor
from rota.shared.database.transactions import Database
from rota.shared.store import node_types, schedulers
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.schedulers import SchedulerDeclaration
from tests.harness.command_line import done, invoke

SECRET = '{"password": "geheim"}'


@pytest.fixture
def url(migrated_url: str, database: Database) -> str:
    """A database where workers have registered CLEANUP, with a task that has a secret in its param."""
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("CLEANUP", "CLEANUP")], by="test"))
    done("task", "add", "nightly", "--type", "CLEANUP", "--param", SECRET, "--why", "asked for", url=migrated_url)
    return migrated_url


def acts(url: str, *arguments: str) -> Any:
    return json.loads(done("audit", *arguments, "--json", url=url))


def test_every_command_that_changes_something_takes_a_reason(url: str) -> None:
    done("task", "set", "nightly", "--retries", "2", "--why", "1", url=url)
    done("task", "off", "nightly", "--why", "2", url=url)
    done("task", "on", "nightly", "--why", "3", url=url)
    run = json.loads(done("task", "run", "nightly", "--why", "4", "--json", url=url))["id"]
    done("instance", "cancel", str(run), "--why", "5", url=url)
    done("instance", "replay", str(run), "--why", "6", url=url)
    done("task", "remove", "nightly", "--yes", "--why", "7", url=url)
    assert [(act["action"], act["why"]) for act in acts(url)][::-1] == [
        ("task.add", "asked for"),
        ("task.set", "1"),
        ("task.off", "2"),
        ("task.on", "3"),
        ("task.run", "4"),
        ("instance.cancel", "5"),
        ("instance.replay", "6"),
        ("task.remove", "7"),
    ]
    assert {(act["actor"], act["face"]) for act in acts(url)} == {(actor().name, "cli")}
    assert [act["action"] for act in acts(url, "--instance", str(run))] == ["instance.cancel", "task.run"]


def test_the_table_says_what_changed_and_no_value_of_a_param(url: str) -> None:
    done("task", "set", "nightly", "--cron", "@daily", "--param", '{"password": "geheimer"}', "--retries", "1", url=url)
    done("task", "run", "nightly", "--param", SECRET, url=url)
    shown = done("audit", url=url)
    assert "geheim" not in shown
    run, edited, added = shown.splitlines()[1:]
    assert "task.run" in run
    assert ", param" in run
    assert "cron - → @daily" in edited
    assert "retries 0 → 1" in edited
    assert "param" in edited
    assert added.endswith("asked for")
    values = [(act["old_values"], act["new_values"]) for act in acts(url)]
    assert values[1][0]["param"] == json.loads(SECRET)
    assert values[0][1]["param"] == json.loads(SECRET)


def test_the_audit_is_bounded_and_filtered(url: str) -> None:
    done("task", "add", "other", "--type", "CLEANUP", url=url)
    assert [act["object_name"] for act in acts(url)] == ["other", "nightly"]
    assert [act["object_name"] for act in acts(url, "--limit", "1")] == ["other"]
    assert [act["object_name"] for act in acts(url, "--task", "nightly")] == ["nightly"]
    assert invoke("audit", "--instance", "77", url=url).stderr == "nothing is recorded\n"
    nobody = invoke("audit", "--task", "nobody", url=url)
    assert (nobody.exit_code, "no task is named 'nobody'" in nobody.stderr) == (1, True)
    assert invoke("audit", "--task", "nightly", "--instance", "1", url=url).exit_code == 2


def test_a_reason_that_is_too_long_is_refused(url: str) -> None:
    refused = invoke("task", "off", "nightly", "--why", "x" * 1001, url=url)
    assert (refused.exit_code, refused.stderr) == (
        1,
        "error: a reason of 1,001 characters is too long; at most 1,000 are kept\n",
    )


@pytest.mark.every_database
def test_scheduler_list_shows_when_each_ticked_and_who_is_silent(url: str, database: Database) -> None:
    assert invoke("scheduler", "list", url=url).stderr == "no scheduler runs; start one with rota scheduler\n"
    declared = [SchedulerDeclaration(name, "vm", 7, "1.0", 15) for name in ("live", "lost")]
    schedulers.insert_into(database, lambda c: [schedulers.register(c, scheduler) for scheduler in declared])
    database.write(lambda c: schedulers.tick(c, 2, database.clock.now().replace(2020)))
    live, lost = done("scheduler", "list", url=url).splitlines()[1:]
    assert live.split()[:2] == ["live", "active"]
    assert "silent" not in live
    assert lost.startswith("lost  active  ")
    assert " d " in lost
    assert lost.endswith("silent")
    both = json.loads(done("scheduler", "list", "--json", url=url))
    assert [(row["name"], row["silent"], row["last_tick"][-1]) for row in both] == [
        ("live", False, "Z"),
        ("lost", True, "Z"),
    ]


@pytest.mark.every_database
def test_doctor_says_whether_anybody_schedules_and_is_content_without(url: str, database: Database) -> None:
    def scheduling() -> Any:
        said = json.loads(done("doctor", "--json", url=url))
        assert said["ok"]
        [check] = [check for check in said["checks"] if check["name"] == "scheduling"]
        return check["ok"]

    assert scheduling() is None
    declared = SchedulerDeclaration("one", "vm", 7, "1.0", 15)
    schedulers.insert_into(database, lambda c: [schedulers.register(c, declared)])
    assert scheduling() is True
