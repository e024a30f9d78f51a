"""The command ``rota backfill``: what it prints, what it refuses, and how it waits."""

import json
import signal
import threading
from collections.abc import Iterator

import pytest

from rota.scheduler_service.duties.backfiller import Backfiller
from rota.shared.database.transactions import Database, opened
from rota.shared.settings import Settings
from tests.harness.command_line import done, invoke
from tests.harness.processes import RotaProcess
from tests.harness.scenario import Scenario

RANGE = ("--from", "2026-01-01", "--to", "2026-01-10")


@pytest.fixture
def url(migrated_url: str, database: Database) -> str:
    Scenario(database).task("nightly", cron="0 3 * * *", timezone="Europe/Berlin")
    return migrated_url


def backfilled(url: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(done("backfill", "list", "--json", url=url))
    return found


def test_a_dry_run_shows_the_number_the_first_and_the_last_fires_and_writes_nothing(url: str) -> None:
    shown = done("backfill", "nightly", *RANGE, "--dry-run", url=url).splitlines()
    assert shown == [
        "nightly would run 9 fires, the oldest first, 1 at a time",
        "fires (Europe/Berlin)      UTC",
        "2026-01-01 03:00:00+01:00  2026-01-01 02:00:00Z",
        "2026-01-02 03:00:00+01:00  2026-01-02 02:00:00Z",
        "2026-01-03 03:00:00+01:00  2026-01-03 02:00:00Z",
        "...                        ...",
        "2026-01-07 03:00:00+01:00  2026-01-07 02:00:00Z",
        "2026-01-08 03:00:00+01:00  2026-01-08 02:00:00Z",
        "2026-01-09 03:00:00+01:00  2026-01-09 02:00:00Z",
    ]
    document = json.loads(done("backfill", "nightly", *RANGE, "--dry-run", "--json", url=url))
    assert (document["fires"], document["is_exact"], document["last"][-1]["utc"]) == (9, True, "2026-01-09T02:00:00Z")
    assert backfilled(url) == []


def test_few_fires_are_all_shown(url: str) -> None:
    shown = done("backfill", "nightly", "--from", "2026-01-01", "--to", "2026-01-03", "--dry-run", url=url)
    assert shown.splitlines()[2:] == [
        "2026-01-01 03:00:00+01:00  2026-01-01 02:00:00Z",
        "2026-01-02 03:00:00+01:00  2026-01-02 02:00:00Z",
    ]


@pytest.mark.parametrize("words", [("backfill",), ("backfill", "start")])
def test_the_name_of_the_task_may_come_first(url: str, words: tuple[str, ...]) -> None:
    said = done(*words, "nightly", *RANGE, "--concurrency", "2", "--newest-first", url=url)
    assert said == "backfill 1 of nightly: 9 fires, the newest first, 2 at a time; rota backfill show 1\n"
    [one] = backfilled(url)
    assert (one["concurrency"], one["newest_first"], one["next_fire"]) == (2, True, "2026-01-09T02:00:00Z")


def test_the_options_may_come_before_the_name(url: str) -> None:
    done("backfill", *RANGE, "nightly", url=url)
    assert len(backfilled(url)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--from", "2026-01-10", "--to", "2026-01-01"),
            "--from 2026-01-09 23:00:00 is after --to 2025-12-31 23:00:00",
        ),
        (("--from", "2026-01-01", "--to", "2999-01-01"), "--to 2998-12-31 23:00:00 (UTC) is still to come"),
        (("--from", "2026-01-01T04:00", "--to", "2026-01-01T05:00"), "the task has no fire from"),
        (("--from", "tomorrow"), "'tomorrow' is not a time"),
        (("--from", "2026-01-01", "--only-missing"), "the history of the task is complete only from 2026-01-05 00:00"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_and_nothing_is_written(
    url: str, options: tuple[str, ...], said: str
) -> None:
    with opened(url) as database:
        Scenario(database).sql("UPDATE schedule_task SET history_complete_from = '2026-01-05 00:00:00.000000'")
    result = invoke("backfill", "nightly", *options, url=url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert backfilled(url) == []


def test_ten_to_the_ninth_fires_are_refused(url: str, database: Database) -> None:
    Scenario(database).task("each-second", cron=None, every="1s")
    result = invoke("backfill", "each-second", "--from", "1994-01-01", url=url)
    assert result.exit_code == 1
    assert "there are about 1,0" in result.stderr
    assert "at most 1,000,000: choose a shorter range" in result.stderr


@pytest.mark.parametrize(
    "wrong", [("--concurrency", "0"), ("--concurrency", "1001"), ("--priority", "10"), ("--param", "[]")]
)
def test_a_wrong_option_is_not_understood(url: str, wrong: tuple[str, str]) -> None:
    assert invoke("backfill", "nightly", *RANGE, *wrong, url=url).exit_code == 2
    assert backfilled(url) == []


def test_it_is_paused_resumed_and_canceled(url: str) -> None:
    done("backfill", "nightly", *RANGE, url=url)
    progress = "0 of 9 fires ended"
    assert done("backfill", "pause", "1", url=url) == (
        f"backfill 1 of nightly is paused; what it has written still runs: {progress}\n"
    )
    assert done("backfill", "resume", "1", url=url) == f"backfill 1 of nightly goes on: {progress}\n"
    assert done("backfill", "cancel", "1", "--why", "enough", url=url) == (
        f"backfill 1 of nightly is canceled; what runs goes on: {progress}\n"
    )
    assert invoke("backfill", "resume", "1", url=url).stderr == (
        "error: backfill 1 is canceled; only one that is paused can be resumed\n"
    )
    assert invoke("backfill", "show", "2", url=url).stderr == (
        "error: there is no backfill 2; rota backfill list shows the newest\n"
    )
    acts = json.loads(done("audit", "--task", "nightly", "--json", url=url))
    assert [act["action"] for act in acts][:4] == [
        f"backfill.{verb}" for verb in ("cancel", "resume", "pause", "start")
    ]


def test_show_tells_all_of_it(url: str) -> None:
    done("backfill", "nightly", *RANGE, "--only-missing", "--param", '{"region": "us"}', url=url)
    shown = done("backfill", "show", "1", url=url)
    assert 'param             {"region": "us"}' in shown
    assert "only_missing      yes" in shown
    assert shown.endswith("\n0 of 9 fires ended\n")


@pytest.fixture
def ending(url: str) -> Iterator[None]:
    """Something that ends what a backfill has written, as a worker would."""
    over = threading.Event()

    def end() -> None:
        with opened(url) as database:
            scenario, duty = Scenario(database), Backfiller(database, Settings.load())
            while not over.wait(0.05):
                duty.step()
                scenario.sql("UPDATE schedule_instance SET status = 'succeed' WHERE id % 4 <> 0")
                scenario.sql("UPDATE schedule_instance SET status = 'failed' WHERE id % 4 = 0")

    thread = threading.Thread(target=end)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.usefixtures("ending")
def test_wait_tells_the_progress_and_ends_with_the_backfill(url: str) -> None:
    result = invoke("backfill", "nightly", *RANGE, "--concurrency", "9", "--wait", url=url)
    assert result.exit_code == 1, "some have failed"
    assert result.stdout.splitlines()[-1] == "backfill 1 of nightly is done: 9 of 9 fires ended, 2 failed"
    assert "9 of 9 fires ended, 2 failed, done" in result.stderr
    document = json.loads(done("backfill", "show", "1", "--wait", "--json", url=url))
    assert (document["status"], document["failed"], document["ended"]) == ("done", 2, 9)


def test_an_interrupt_ends_the_wait_and_not_the_backfill(url: str) -> None:
    process = RotaProcess("backfill", "nightly", *RANGE, "--wait", database_url=url)
    try:
        process.start()
        process.wait_for_log("0 of 9 fires ended")
        process.stop_signal(signal.SIGINT)
        assert process.wait_exit() == 130
        process.wait_for_log("backfill 1 goes on; rota backfill show 1 tells how far it is")
    finally:
        process.discard()
    assert backfilled(url)[0]["status"] == "running"
