"""``rota worker drain`` and ``rota worker resume``."""

import json
import re
from typing import Any

import pytest

from rota.shared.database.transactions import Database
from rota.shared.store import loads, workers
from tests.harness.command_line import done, invoke
from tests.harness.filled import with_rows

pytestmark = pytest.mark.every_database


@pytest.fixture
def url(migrated_url: str) -> str:
    """A database with the live worker `w`."""
    with_rows(migrated_url)
    return migrated_url


def listed(url: str) -> dict[str, Any]:
    [found] = json.loads(done("worker", "list", "--json", url=url))
    return dict(found)


def audited(url: str) -> list[dict[str, Any]]:
    """The acts on workers."""
    acts = json.loads(done("audit", "--json", url=url))
    return [act for act in acts if act["action"].startswith("worker.")]


def test_a_drained_worker_gets_no_more_until_it_is_resumed(url: str, database: Database) -> None:
    said = done("worker", "drain", "w", "--why", "kernel update", url=url)
    assert said == "w takes no more; what it runs goes on (load 0)\n"
    assert database.read(loads.fleet) == []
    assert (listed(url)["state"], listed(url)["reason"]) == ("draining", "kernel update")
    assert done("worker", "list", url=url).splitlines()[1].endswith("  kernel update")
    assert done("worker", "resume", "w", url=url) == "w takes work again\n"
    assert [one.name for one in database.read(loads.fleet)] == ["w"]
    assert (listed(url)["state"], listed(url)["reason"]) == ("live", None)


def test_the_times_of_a_worker_are_shown_as_people_read_them(url: str) -> None:
    shown = done("worker", "show", "w", url=url)
    assert re.search(r"^gmt_started +20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ  (just now|\d+.* ago)$", shown, re.MULTILINE)


def test_to_drain_or_resume_twice_changes_nothing_and_says_so(url: str) -> None:
    done("worker", "drain", "w", "--why", "first", url=url)
    assert "was draining already" in done("worker", "drain", "w", "--why", "second", url=url)
    assert listed(url)["reason"] == "first"
    done("worker", "resume", "w", url=url)
    assert "was at work already" in done("worker", "resume", "w", url=url)
    assert len(audited(url)) == 2


def test_the_audit_says_who_drained_which_worker_and_why(url: str) -> None:
    done("worker", "drain", "w", "--why", "kernel update", url=url)
    [line] = [line for line in done("audit", url=url).splitlines() if "worker.drain" in line]
    assert line.split()[4:6] == ["worker.drain", "w"]
    assert line.split()[-2:] == ["kernel", "update"]
    assert "state live → draining" in line
    [act] = audited(url)
    assert (act["object_type"], act["new_values"]) == ("schedule_worker_node", {"name": "w", "state": "draining"})


def test_the_acts_on_a_worker_are_not_among_those_on_a_task_of_its_name(url: str) -> None:
    done("task", "set", "daily", "--name", "w", url=url)
    done("worker", "drain", "w", url=url)
    assert [act["action"] for act in json.loads(done("audit", "--task", "w", "--json", url=url))] == ["task.set"]


def test_a_worker_that_stops_cannot_be_resumed(url: str, database: Database) -> None:
    done("worker", "drain", "w", "--why", "kernel update", url=url)
    [worker] = database.read(workers.alive)
    database.write(lambda connection: workers.drain(connection, worker.id, workers.STOPPING, "worker"))
    refused = invoke("worker", "resume", "w", url=url)
    assert (refused.exit_code, refused.stderr) == (1, "error: worker 'w' is stopping; its process takes no more\n")


def test_to_drain_a_worker_that_stops_already_is_no_error(url: str, database: Database) -> None:
    [worker] = database.read(workers.alive)
    database.write(lambda connection: workers.drain(connection, worker.id, workers.STOPPING, "worker"))
    drained = invoke("worker", "drain", "w", url=url)
    assert (drained.exit_code, "w is stopping already: it takes no more, and ends" in drained.stdout) == (0, True)
    found = json.loads(done("worker", "drain", "w", "--json", url=url))
    assert (found["state"], found["changed"], found["stopping"]) == ("draining", False, True)


def test_a_worker_that_is_not_there_is_named(url: str) -> None:
    for verb in ("drain", "resume"):
        refused = invoke("worker", verb, "nobody", url=url)
        assert refused.exit_code == 1
        assert "no live worker is named 'nobody'; rota worker list shows them" in refused.stderr
