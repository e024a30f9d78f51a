"""``rota task next`` and ``rota scheduler pause | resume``, as a person types them."""

import json

import pytest
from sqlalchemy import text

from rota.shared.control import schedulers
from rota.shared.database.transactions import Database, opened
from rota.shared.domain.deciding import known_kinds
from rota.shared.store import node_types
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.schedulers import SchedulerDeclaration, register
from tests.harness.command_line import done, invoke


@pytest.fixture
def url(migrated_sqlite_url: str) -> str:
    database = Database(migrated_sqlite_url)
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("REPORT", "REPORT")], by="test"))
    database.close()
    made = ("task", "add", "tidy", "--type", "REPORT", "--cron", "0 3 * * *", "--starts-at", "2030-01-01T00:00")
    done(*made, url=migrated_sqlite_url)
    return migrated_sqlite_url


def due(url: str) -> list[str]:
    shown = json.loads(done("task", "next", "tidy", "--json", url=url))["next_fires"]
    return [one["due"]["utc"][5:16] for one in shown if one["status"] != "canceled"]


def test_the_next_fire_is_shown_skipped_and_set(url: str) -> None:
    assert due(url)[:2] == ["01-01T03:00", "01-02T03:00"]
    assert "is skipped" in done("task", "next", "tidy", "--skip", url=url)
    assert due(url)[:2] == ["01-02T03:00", "01-03T03:00"]
    assert "runs at 2030-01-01 01:00" in done("task", "next", "tidy", "--at", "2030-01-01T01:00", url=url)
    assert due(url)[:2] == ["01-01T01:00", "01-03T03:00"]
    assert "was skipped already" in done("task", "next", "tidy", "--skip", "--fire", "2030-01-01T03:00", url=url)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--skip", "--at", "2030-01-01T01:00"), 2, "--skip or --at, not both"),
        (("--fire", "2030-01-01T01:00"), 2, "--fire goes with --skip or --at"),
        (("--at", "2020-01-01T01:00"), 1, "error: --at 2020-01-01T01:00:00+00:00: it has passed"),
        (("--at", "2031-01-01T01:00"), 1, "error: --at 2031-01-01T01:00:00Z: it would pass over more than 100"),
        (
            ("--skip", "--fire", "2030-01-09T03:00"),
            1,
            "error: the next fire of 'tidy' that has not begun",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(
    url: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    before = due(url)
    result = invoke("task", "next", "tidy", *arguments, url=url)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert due(url) == before


def test_a_pause_is_told_wherever_people_look(url: str) -> None:
    assert "is paused" in done("scheduler", "pause", "--reason", "the move", url=url)
    assert "paused all scheduling" in done("scheduler", "pause", url=url)
    assert "the move" in invoke("scheduler", "list", url=url).stderr
    assert "paused" in invoke("task", "next", "tidy", url=url).stderr
    assert "the move" in done("doctor", url=url)
    assert json.loads(done("scheduler", "resume", "--json", url=url))["changed"] is True
    assert "was not paused" in done("scheduler", "resume", url=url)


def test_a_pause_that_a_scheduler_is_too_old_to_heed_is_refused_in_words(url: str) -> None:
    with opened(url) as database:
        declared = SchedulerDeclaration("old", "vm", 7, "0.1.0", 3600, known_kinds())
        database.write(lambda c: register(c, declared))
        database.write(lambda c: c.execute(text("UPDATE schedule_scheduler_node SET kinds = NULL")))
    for arguments in ((), ("--json",), ("--json",)):
        result = invoke("scheduler", "pause", *arguments, url=url)
        told = "all scheduling is paused, but fires begin all the same: stop old, which is older than pauses"
        assert (result.exit_code, told in result.stderr) == (1, True), result.output
        assert "no new fire" not in result.stdout
    assert json.loads(result.stdout)["ignored_by"] == ["old"]
    assert "fires all the same: older than pauses" in done("scheduler", "list", url=url)


def test_a_scheduler_may_start_paused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.scheduler_service.app.serve", lambda *_: 0)
    database = Database(url)
    for arguments, environment, paused in (
        ((), {}, False),
        (("--paused",), {}, True),
        (("--no-paused",), {"ROTA_START_PAUSED": "true"}, False),
        ((), {"ROTA_START_PAUSED": "true"}, True),
    ):
        invoke("scheduler", *arguments, url=url, **environment)
        assert schedulers.paused(database)["paused"] is paused
        done("scheduler", "resume", url=url)
    database.close()
