"""The command ``rota key``: what it prints, and what it refuses."""

import json
from typing import Any

import pytest

from rota.shared.database.transactions import Database
from tests.harness.command_line import done, invoke
from tests.harness.scenario import Scenario

AT = ("--at", "2099-12-24T20:00")


@pytest.fixture
def url(migrated_url: str, database: Database) -> str:
    Scenario(database)
    return migrated_url


def listed(url: str, *options: str) -> Any:
    return json.loads(done("key", "list", *options, "--json", url=url))


def test_a_key_is_asked_for_moved_shown_and_canceled(url: str) -> None:
    said = done("key", "once", "REPORT", "product-42", *AT, "--param", '{"region": "eu"}', url=url)
    assert said.startswith("product-42: instance 1 is added: 2099-12-24 20:00:00Z  in ")
    said = done("key", "once", "REPORT", "product-42", "--at", "2099-12-25", url=url)
    assert said.startswith("product-42: it is moved, and runs as instance 1: 2099-12-25 00:00:00Z  in ")
    done("key", "once", "REPORT", "7", "--code", "shop", *AT, url=url)
    shown = done("key", "list", url=url).splitlines()
    assert [line.split()[:5] for line in shown] == [
        ["type", "code", "key", "status", "at"],
        ["REPORT", "shop", "7", "pending", "2099-12-24"],
        ["REPORT", "product-42", "pending", "2099-12-25", "00:00:00Z"],
    ]
    assert [one["key"] for one in listed(url, "--code", "shop")] == ["7"]
    assert [one["key"] for one in listed(url, "REPORT", "--contains", "42")] == ["product-42"]
    assert [one["key"] for one in listed(url, "--until", "2099-12-25")] == ["7"]
    assert done("key", "cancel", "REPORT", "7", "--code", "shop", url=url) == "7: instance 2: is canceled\n"
    again = invoke("key", "cancel", "REPORT", "7", "--code", "shop", url=url)
    assert (again.exit_code, again.stderr) == (
        1, "error: nothing waits or runs under key '7' of REPORT; rota key list shows the keys\n",
    )  # fmt: skip


def test_all_of_a_beginning_are_shown_first_and_canceled_only_on_a_yes(url: str) -> None:
    for number in range(3):
        done("key", "once", "REPORT", f"product-{number}", *AT, url=url)
    done("key", "once", "REPORT", "other", *AT, url=url)
    shown = done("key", "cancel", "REPORT", "--begins", "product-", "--dry-run", url=url)
    assert [f"product-{number}" in shown for number in range(4)] == [True, True, True, False]
    refused = invoke("key", "cancel", "REPORT", "--begins", "product-", url=url)
    assert refused.exit_code == 1
    assert (
        "nobody is here to be asked whether to cancel all keys of REPORT that begin with 'product-'" in refused.stderr
    )
    assert len(listed(url)) == 4
    document = json.loads(done("key", "cancel", "REPORT", "--begins", "product-", "--yes", "--json", url=url))
    assert (document["canceled"], document["asked"], len(document["first"])) == (3, 0, 3)
    assert [one["key"] for one in listed(url)] == ["other"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("cancel", "REPORT"), "give a KEY, or --begins; one of them"),
        (("cancel", "REPORT", "k", "--begins", "k"), "give a KEY, or --begins; one of them"),
        (("cancel", "REPORT", "k", "--dry-run"), "--dry-run and --yes go with --begins"),
        (("cancel", "REPORT", "--begins", "", "--yes"), "an empty beginning would be every key"),
        (("list", "--begins", "k"), "say of which type"),
        (("list", "--since", "soon"), "'soon' is not a time"),
        (("once", "REPORT", ""), "key '': it has 0 characters; 1 to 128 are right"),
        (("once", "REPRT", "k"), "REPORT"),
        (("once", "REPORT", "k", "--param", "[]"), "--param"),
    ],
)
def test_what_is_wrong_is_said(url: str, typed: tuple[str, ...], said: str) -> None:
    result = invoke("key", *typed, url=url)
    assert result.exit_code in {1, 2}
    assert said in result.stderr
    assert listed(url) == []


def test_a_call_for_what_runs_says_that_it_is_kept(url: str, database: Database) -> None:
    done("key", "once", "REPORT", "k", url=url)
    rows = Scenario(database)
    worker = rows.worker()
    rows.give(worker, 1)
    rows.claim(worker, 1)
    said = done("key", "once", "REPORT", "k", url=url)
    assert said.startswith("k: instance 1 has begun; this run is kept, and begins after it: ")
    assert done("key", "cancel", "REPORT", "k", url=url) == "k: instance 1: its worker is asked to stop it\n"
