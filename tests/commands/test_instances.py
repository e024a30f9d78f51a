"""``rota instance`` and ``rota worker list`` on both databases, over rows as a scheduler and workers leave them."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from rota.shared.database.transactions import Database
from rota.shared.domain.task import TaskDefinition
from rota.shared.store import instances, node_types, tasks, workers
from rota.shared.store.node_types import NodeTypeDeclaration
from rota.shared.store.tables import (
    schedule_instance,
    schedule_task_node,
    schedule_task_node_type,
    schedule_worker_node,
)
from rota.shared.store.workers import WorkerDeclaration
from tests.harness.command_line import invoke
from tests.harness.processes import RotaProcess

TRACEBACK = 'Traceback (most recent call last):\n  File "jobs.py", line 3, in extract\nValueError: no rows'


@pytest.fixture
def url(migrated_url: str, database: Database) -> str:
    """A database with the task `daily`, in Berlin, and a live worker `w`."""

    def write(connection: Any) -> None:
        declared = [NodeTypeDeclaration("REPORT_EXTRACT", "REPORT"), NodeTypeDeclaration("REPORT_SEND", "REPORT", 2)]
        node_types.register(connection, declared, by="test")
        tasks.add(connection, TaskDefinition.of(name="daily", type="REPORT", timezone="Europe/Berlin"), by="test")
        workers.register(connection, WorkerDeclaration("w", "host", 7, "x", "1", 50, 100, 15, [], {"gpu": "a100"}))

    database.write(write)
    return migrated_url


def asked(database: Database, **values: Any) -> int:
    """An instance of `daily`, in the state that the values make."""

    def write(connection: Any) -> int:
        now = database.clock.now()
        made = instances.ask(connection, tasks.find(connection, "daily"), now, by="test")
        if values:
            values.setdefault("run_number", 0)  # as each has that was given to a worker, or MySQL refuses the row
            connection.execute(update(schedule_instance).where(schedule_instance.c.id == made).values(**values))
        return made

    return database.write(write)


def with_nodes(database: Database, instance_id: int, *results: tuple[str, Any]) -> None:
    def write(connection: Any) -> None:
        types = connection.scalars(
            select(schedule_task_node_type.c.id).order_by(schedule_task_node_type.c.sequence)
        ).all()
        own = schedule_instance.c.id == instance_id
        created = connection.scalar(select(schedule_instance.c.gmt_create).where(own))
        for sequence, (status, result) in enumerate(results, start=1):
            connection.execute(
                insert(schedule_task_node).values(
                    schedule_instance_id=instance_id, instance_gmt_create=created,
                    schedule_task_node_type_id=types[sequence - 1],
                    sequence=sequence, status=status, execution_result=result,
                )
            )  # fmt: skip

    database.write(write)


def shown(url: str, *arguments: str) -> Any:
    result = invoke("instance", *arguments, "--json", url=url)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.every_database
def test_list_filters_by_task_and_status_and_is_bounded(url: str, database: Database) -> None:
    ids = [asked(database), asked(database, status="succeed"), asked(database, status="failed")]
    assert [row["id"] for row in shown(url, "list")] == ids[::-1]
    assert [row["id"] for row in shown(url, "list", "--task", "daily", "--status", "failed")] == ids[2:]
    assert len(shown(url, "list", "--limit", "2")) == 2
    assert invoke("instance", "list", "--task", "weekly", url=url).exit_code == 1


def test_list_and_replay_choose_by_owner_group_and_tag(url: str, database: Database) -> None:
    failed = asked(database, status="failed")
    words = ("--owner", "ann", "--group", "night", "--tag", "a", "--tag", "b")
    assert invoke("task", "set", "daily", *words, url=url).exit_code == 0
    for chosen in (("--owner", "ann"), ("--group", "night", "--tag", "a", "--tag", "b", "--status", "failed")):
        [one] = shown(url, "list", *chosen)
        assert (one["id"], one["owner"], one["task_group"], one["tags"]) == (failed, "ann", "night", ["a", "b"])
    assert shown(url, "list", "--tag", "c") == []
    assert "\nowner  ann\n" in re.sub(" {2,}", "  ", invoke("instance", "show", str(failed), url=url).stdout)
    for alone in (("--task", "daily"), ("--parent", str(failed))):
        refused = invoke("instance", "list", *alone, "--owner", "ann", url=url)
        assert (refused.exit_code, f"{alone[0]} says which alone" in refused.stderr) == (2, True)
    refused = invoke("instance", "replay", "--task", "daily", "--tag", "a", url=url)
    assert (refused.exit_code, "task 'daily' says which alone" in refused.stderr) == (1, True)
    refused = invoke("instance", "replay", str(failed), "--tag", "a", url=url)
    assert (refused.exit_code, "--tag goes with a choice of many" in refused.stderr) == (2, True)
    assert shown(url, "replay", "--owner", "bob")["replayed"] == 0
    assert shown(url, "replay", "--owner", "ann", "--tag", "b")["replayed"] == 1


def test_list_shows_the_schedule_time_in_the_tasks_zone(url: str, database: Database) -> None:
    asked(database, schedule_datetime=database.clock.now().replace(2026, 7, 1, 12, 0, 0, 0))
    assert "2026-07-01 14:00:00+02:00" in invoke("instance", "list", url=url).stdout


def test_the_worker_of_an_old_instance_that_was_removed_is_shown_by_its_id(url: str, database: Database) -> None:
    number = str(asked(database, status="succeed", schedule_worker_node_id=4711))
    assert "#4711 (removed)" in invoke("instance", "list", url=url).stdout
    assert "#4711 (removed)" in invoke("instance", "show", number, url=url).stdout
    document = shown(url, "show", number)
    assert (document["schedule_worker_node_id"], document["worker_name"]) == (4711, None)


def test_show_prints_results_as_json_and_tracebacks_as_they_read(url: str, database: Database) -> None:
    failed = asked(database, status="failed", reason="ValueError: no rows", attempt=1)
    with_nodes(
        database, failed, ("succeed", {"rows": 42}), ("failed", {"error": "no rows", "traceback": TRACEBACK})
    )  # fmt: skip
    words = invoke("instance", "show", str(failed), url=url).stdout
    assert "1. REPORT_EXTRACT  succeed" in words
    assert '      "rows": 42' in words
    assert "2. REPORT_SEND  failed" in words
    assert '        File "jobs.py", line 3, in extract\n' in words
    assert "it has ended: ValueError: no rows" in words
    assert [node["status"] for node in shown(url, "show", str(failed))["nodes"]] == ["succeed", "failed"]


def test_show_prints_how_earlier_attempts_failed_though_a_later_one_succeeded(url: str, database: Database) -> None:
    at = (database.clock.now() - timedelta(seconds=90)).isoformat(" ", "microseconds")
    begun = (database.clock.now() - timedelta(seconds=102)).isoformat(" ", "microseconds")
    ended = {"gmt_started": begun, "gmt_completed": at}
    first = {"attempt": 1, "worker_id": 3, **ended, "exit_code": 3, "traceback": TRACEBACK}
    odd_ones = [{"attempt": 2}, "by SQL", {"worker_id": [3]}]
    done = asked(database, status="succeed", attempt=3, failed_attempts=[first, *odd_ones])
    words = invoke("instance", "show", str(done), url=url).stdout
    assert re.search(r"attempt 1 failed on worker #3 1 min \d+ s ago, after 12 s\n", words), words
    assert '      "exit_code": 3' in words
    assert '        File "jobs.py", line 3, in extract\n' in words
    assert "attempt 2 failed on worker #\n" in words
    iso = {name: text.replace(" ", "T") + "Z" for name, text in ended.items()}
    assert shown(url, "show", str(done))["failed_attempts"] == [first | iso, *odd_ones]
    [(worker,)] = database.read(lambda c: c.execute(select(schedule_worker_node.c.id)).all())
    named = [first | {"worker_id": worker}]
    done = asked(database, failed_attempts=named, schedule_datetime=database.clock.now() - timedelta(days=2))
    assert shown(url, "show", str(done))["failed_attempts"][0]["worker_name"] == "w"
    assert "attempt 1 failed on worker w 1 min " in invoke("instance", "show", str(done), url=url).stdout
    odd = asked(database, failed_attempts={"odd": 1}, schedule_datetime=database.clock.now() - timedelta(days=1))
    assert shown(url, "show", str(odd))["failed_attempts"] == []


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "it waits: the scheduler has not given it to a worker yet"),
        ({"reason": "no live worker can run REPORT_SEND"}, "it waits: no live worker can run REPORT_SEND"),
        ({"status": "assigned", "schedule_worker_node_id": 1}, "it was given to w"),
        ({"status": "running", "schedule_worker_node_id": 1, "attempt": 2}, "it runs on w, attempt 2"),
        ({"status": "canceled", "reason": "overlap: instance 1 still ran"}, "it has ended: overlap: instance 1"),
    ],
)
def test_show_tells_why_it_is_where_it_is(url: str, database: Database, values: dict[str, Any], why: str) -> None:
    assert why in invoke("instance", "show", str(asked(database, **values)), url=url).stdout


def test_show_tells_that_it_is_not_due_yet(url: str, database: Database) -> None:
    later = asked(database, due_at=database.clock.now() + timedelta(hours=2))
    assert "it is due in " in invoke("instance", "show", str(later), url=url).stdout


def test_the_columns_shown_are_those_of_the_table(url: str, database: Database) -> None:
    columns = {column.name for column in schedule_instance.c if column.computed is None}
    assert columns - set(shown(url, "show", str(asked(database)))) == {"is_deleted", "overlap_slot"}


@pytest.mark.every_database
def test_cancel_is_at_once_for_what_waits_and_a_request_for_what_runs(url: str, database: Database) -> None:
    waiting = asked(database)
    running = asked(database, status="running", schedule_worker_node_id=1, attempt=1)
    result = invoke("instance", "cancel", str(waiting), str(running), url=url)
    assert result.stdout.splitlines() == [
        f"instance {waiting} is canceled",
        f"instance {running} runs; its worker is asked to stop it",
    ]
    assert shown(url, "show", str(running))["gmt_cancel_requested"] is not None
    assert "its worker was asked to stop it" in invoke("instance", "show", str(running), url=url).stdout


def test_cancel_tells_that_nodes_are_left_which_run_always(url: str, database: Database) -> None:
    always = NodeTypeDeclaration("REPORT_SEND", "REPORT", 2, {"always": True})
    database.write(lambda c: node_types.register(c, [NodeTypeDeclaration("REPORT_EXTRACT", "REPORT"), always], "test"))
    retried = asked(database, attempt=1)
    with_nodes(database, retried, ("pending", None), ("pending", None))
    said = f"instance {retried} ends when its nodes that run always have\n"
    assert invoke("instance", "cancel", str(retried), url=url).stdout == said
    assert [n["status"] for n in shown(url, "show", str(retried))["nodes"]] == ["canceled", "pending"]


@pytest.mark.parametrize(
    ("command", "status", "sentence"),
    [
        ("cancel", "succeed", "has ended already: succeed"),
        ("replay", "running", "is running, not ended"),
    ],
)
def test_several_are_done_all_or_none(url: str, database: Database, command: str, status: str, sentence: str) -> None:
    good = asked(database, status="failed" if command == "replay" else "pending")
    bad = asked(database, status=status)
    result = invoke("instance", command, str(good), str(bad), "--json", url=url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert sentence in result.stderr
    rows = shown(url, "list")
    assert [row["status"] for row in rows] == [status, "failed" if command == "replay" else "pending"]


def test_what_is_not_there_is_refused(url: str) -> None:
    for command in ("show", "cancel", "replay"):
        result = invoke("instance", command, "77", url=url)
        assert result.exit_code == 1
        assert "there is no instance 77" in result.stderr


@pytest.mark.every_database
def test_replay_is_a_new_run_for_the_same_time_with_the_same_param(url: str, database: Database) -> None:
    old = asked(database, status="failed", param={"region": "eu"})
    new = shown(url, "replay", str(old))
    before = shown(url, "show", str(old))
    assert (new["origin"], new["param"], new["status"]) == ("replay", {"region": "eu"}, "pending")
    assert new["schedule_datetime"] == before["schedule_datetime"]


@pytest.mark.parametrize(("status", "code"), [("succeed", 0), ("failed", 1), ("canceled", 1)])
def test_wait_ends_when_the_run_does_with_its_result_and_exit_code(
    url: str, database: Database, status: str, code: int, tmp_path: Any
) -> None:
    command = ("task", "run", "daily", "--wait")
    with RotaProcess(*command, database_url=url, log=tmp_path / "log") as process:
        made = int(process.wait_for_log(r"^instance (\d+) of daily")[1])
        with_nodes(database, made, ("succeed", {"rows": 42}))
        database.write(
            lambda connection: connection.execute(update(schedule_instance).values(status=status, reason="said so"))
        )
        assert process.wait_exit() == code
        assert '"rows": 42' in process.log
        assert "it has ended: said so" in process.log


@pytest.mark.every_database
def test_worker_show_tells_what_a_worker_carries_and_by_what_it_is_blocked(url: str, database: Database) -> None:
    shown_worker = json.loads(invoke("worker", "show", "w", "--json", url=url).stdout)
    assert (shown_worker["name"], shown_worker["state"], shown_worker["blocked_by"]) == ("w", "live", None)
    assert shown_worker["liveness_seconds"] > 0
    blocked = update(schedule_worker_node).values(gmt_blocked=database.clock.now(), blocked_by="REPORT #7")
    database.write(lambda connection: connection.execute(blocked))
    assert invoke("worker", "list", url=url).stdout.splitlines()[1].endswith("  blocked by REPORT #7")
    assert json.loads(invoke("worker", "show", "w", "--json", url=url).stdout)["blocked_by"] == "REPORT #7"
    missing = invoke("worker", "show", "nobody", url=url)
    assert missing.exit_code != 0
    assert "no live worker is named 'nobody'" in missing.stderr


def test_worker_list_shows_the_living_and_with_all_the_dead(url: str, database: Database) -> None:
    database.write(
        lambda connection: workers.register(connection, WorkerDeclaration("d", "host", 8, "y", "1", 50, 100, 15, []))
    )
    database.write(
        lambda connection: connection.execute(
            update(schedule_worker_node).where(schedule_worker_node.c.name == "d").values(state="dead")
        )
    )
    live = invoke("worker", "list", url=url).stdout.splitlines()
    assert len(live) == 2
    assert live[1].split()[:5] == ["w", "live", "0", "50", "gpu=a100"]
    every = json.loads(invoke("worker", "list", "--all", "--json", url=url).stdout)
    assert [(worker["name"], worker["state"]) for worker in every] == [("d", "dead"), ("w", "live")]


@pytest.mark.every_database
def test_many_are_replayed_by_a_filter_and_a_dry_run_changes_nothing(url: str, database: Database) -> None:
    old = [asked(database, status="failed", reason="no rows") for _ in range(3)]
    asked(database, status="succeed")
    chosen = ("replay", "--task", "daily", "--since", "2026-01-01T00:00")
    dry = invoke("instance", *chosen, "--dry-run", url=url).stdout.splitlines()
    assert [line.split()[0] for line in dry[1:4]] == [str(number) for number in old]
    assert dry[-1] == "3 instances would be replayed"
    assert len(shown(url, "list")) == 4
    done = shown(url, *chosen, "--param", '{"region": "us"}')
    assert (done["found"], done["replayed"], done["left_out"], done["dry_run"]) == (3, 3, 0, False)
    assert [(row["replay_of"], row["param"]) for row in done["first"]] == [(one, {"region": "us"}) for one in old]
    again = invoke("instance", *chosen, url=url)
    assert (again.exit_code, again.stdout) == (0, "0 instances replayed\n")


def test_many_are_replayed_only_when_somebody_says_yes(url: str, database: Database) -> None:
    for _ in range(12):
        asked(database, status="failed")
    refused = invoke("instance", "replay", "--status", "failed", url=url)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "error: nobody is here to be asked whether to replay 12 instances; say --yes\n"
    assert len(shown(url, "list")) == 12
    words = invoke("instance", "replay", "--status", "failed", "--yes", url=url).stdout.splitlines()
    assert words[-2:] == ["and 2 more", "12 instances replayed"]
    assert len(shown(url, "list", "--limit", "50")) == 24


@pytest.mark.every_database
def test_a_replay_from_a_node_keeps_what_was_before_it(url: str, database: Database) -> None:
    old = asked(database, status="failed", attempt=1)
    with_nodes(database, old, ("succeed", {"rows": 42}), ("failed", {"error": "no mail"}))
    new = shown(url, "replay", str(old), "--from-node", "SEND")
    assert [(node["status"], node["execution_result"]) for node in shown(url, "show", str(new["id"]))["nodes"]] == [
        ("succeed", {"rows": 42}),
        ("pending", None),
    ]
    assert re.search(rf"^replay_of +{old}$", invoke("instance", "show", str(new["id"]), url=url).stdout, re.MULTILINE)
    wrong = invoke("instance", "replay", str(old), "--from-node", "MAIL", url=url)
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert wrong.stderr == (
        f"error: --from-node 'MAIL' is no node of instance {old}; it has: REPORT_EXTRACT, REPORT_SEND\n"
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "say which instances: their ids, or --status, --task, --owner, --group, --tag, --since or --until"),
        (("1", "--status", "failed"), "--status goes with a choice of many, and not with ids"),
        (("1", "--dry-run"), "--dry-run goes with a choice of many"),
        (("--status", "failed", "--wait"), "--wait goes with ids"),
        (("--status", "pending"), "'pending' is not one of 'failed', 'canceled', 'succeed'"),
        (("--status", "succeed"), "status succeed: say of which task"),
        (("--task", "weekly"), "no task is named 'weekly'"),
        (("--since", "yesterday"), "yesterday"),
    ],
)
def test_what_cannot_be_asked_of_a_replay_is_refused(url: str, given: tuple[str, ...], sentence: str) -> None:
    result = invoke("instance", "replay", *given, url=url)
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert sentence in result.stderr
