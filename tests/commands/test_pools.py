"""Pools of threads on the command line: to name one, to see them, and to hear why an instance waits."""

import json
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.shared.database.transactions import Database
from rota.shared.settings import Settings
from rota.shared.store import schedulers
from rota.shared.store.schedulers import SchedulerDeclaration
from tests.harness.command_line import done, invoke
from tests.harness.scenario import Scenario

pytestmark = pytest.mark.every_database


@pytest.fixture
def rows(database: Database) -> Scenario:
    """A task type, and a live worker with a pool."""
    scenario = Scenario(database)
    scenario.worker("w1", pools={"images": 2, "mail": 1})
    return scenario


def shown(url: str) -> dict[str, Any]:
    return dict(json.loads(done("task", "show", "thumbs", "--json", url=url)))


def test_a_pool_is_named_shown_and_cleared(rows: Scenario, migrated_url: str) -> None:
    done("task", "add", "thumbs", "--type", "REPORT", "--pool", "images", url=migrated_url)
    assert shown(migrated_url)["pool"] == "images"
    done("task", "set", "thumbs", "--pool", "mail", "--why", "bills first", url=migrated_url)
    done("task", "set", "thumbs", "--no-pool", url=migrated_url)
    assert shown(migrated_url)["pool"] is None
    acts = json.loads(done("audit", "--json", url=migrated_url))
    new = [act["new_values"].get("pool") for act in acts if act["object_name"] == "thumbs"]
    assert new == [None, "mail", "images"]


def test_an_unknown_pool_is_refused_and_nothing_is_changed(rows: Scenario, migrated_url: str) -> None:
    said = "error: no worker has a pool 'fax'; there are: images, mail; an app declares one with app.pool\n"
    refused = invoke("task", "add", "thumbs", "--type", "REPORT", "--pool", "fax", url=migrated_url)
    assert (refused.exit_code, refused.stderr) == (1, said)
    done("task", "add", "thumbs", "--type", "REPORT", "--pool", "images", url=migrated_url)
    refused = invoke("task", "set", "thumbs", "--pool", "fax", "--priority", "1", url=migrated_url)
    assert (refused.exit_code, refused.stderr) == (1, said)
    assert (shown(migrated_url)["pool"], shown(migrated_url)["priority"]) == ("images", 5)


def test_workers_are_listed_with_their_pools_if_any_has_one(rows: Scenario, migrated_url: str) -> None:
    rows.worker("w2")
    header, *lines = done("worker", "list", url=migrated_url).splitlines()
    assert header.split()[:5] == ["name", "state", "load", "capacity", "pools"]
    assert lines[1].split()[4:8] == ["images", "0/2,", "mail", "0/1"]
    assert "images 0/2, mail 0/1" in done("worker", "show", "w1", url=migrated_url)
    rows.sql("UPDATE schedule_worker_node SET pools = NULL")
    assert "pools" not in done("worker", "list", url=migrated_url)


def test_who_asks_why_hears_that_no_live_worker_has_the_pool(rows: Scenario, migrated_url: str) -> None:
    done("task", "add", "thumbs", "--type", "REPORT", "--pool", "images", url=migrated_url)
    done("task", "run", "thumbs", url=migrated_url)
    alive = SchedulerDeclaration("s", "host", 8, "1.0", 15)
    schedulers.insert_into(rows.database, lambda connection: [schedulers.register(connection, alive)])
    rows.sql("UPDATE schedule_worker_node SET pools = NULL")
    Assigner(rows.database, Settings.load()).step()
    assert "no live worker has the pool 'images'" in done("task", "why", "thumbs", url=migrated_url)
    found = json.loads(invoke("doctor", "--json", url=migrated_url).stdout)["checks"]
    [check] = [one for one in found if one["name"] == "pools"]
    assert (check["ok"], check["found"]) == (None, "no live worker has 'images', which 1 task(s) name: thumbs")
