"""The tables keep their promises to the SQL that people type, whatever client and session they type it in."""

import json
import sqlite3
from itertools import product

import pymysql
import pytest

from tests.harness.databases import is_mysql, run_sql
from tests.harness.schemas import is_sqlite, typed

Refused = (pymysql.err.IntegrityError, sqlite3.IntegrityError)
TASK = "INSERT INTO schedule_task (name, cron, type) VALUES ('nightly', '0 2 * * *', 'REPORT')"


def test_a_task_typed_with_three_values_is_whole(migrated_url: str) -> None:
    row = typed(
        migrated_url,
        *in_another_time_zone(migrated_url),
        TASK,
        "SELECT status, timezone, trigger_kind, plan_stale, live_name, creator,"
        f" {age(migrated_url)} FROM schedule_task",
    )[0]
    assert row[:-1] == ("on", "UTC", "cron", 1, "nightly", "sql")
    assert 0 <= float(row[-1]) < 5, "gmt_create is not the UTC time of its insert"


def test_a_compensation_typed_with_two_values_is_whole(migrated_url: str) -> None:
    row = typed(
        migrated_url,
        *in_another_time_zone(migrated_url),
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime) VALUES (1, '2026-11-19 02:00:00.000000')",
        "SELECT status, origin, run_number, due_at, fire_key, attempt, failures, worker_losses, priority, overlap_key,"
        f" {age(migrated_url)} FROM schedule_instance",
    )[0]
    assert row[:-1] == ("pending", "sql", None, None, "", 0, 0, 0, 5, None)
    assert 0 <= float(row[-1]) < 5, "gmt_create is not the UTC time of its insert"


def in_another_time_zone(url: str) -> list[str]:
    return [] if is_sqlite(url) else ["SET time_zone = '-07:00'"]


def age(url: str) -> str:
    if is_sqlite(url):
        return "(julianday('now') - julianday(gmt_create)) * 86400 + 0.01"
    return "TIMESTAMPDIFF(MICROSECOND, gmt_create, UTC_TIMESTAMP(6)) / 1000000"


def test_an_sqlite_default_is_in_the_written_form(migrated_sqlite_url: str) -> None:
    typed(migrated_sqlite_url, TASK)
    form = "____-__-__ __:__:__.______"
    assert typed(migrated_sqlite_url, f"SELECT count(*) FROM schedule_task WHERE gmt_create LIKE '{form}'") == [(1,)]


def test_a_name_is_unique_among_the_live_only(migrated_url: str) -> None:
    typed(migrated_url, TASK)
    with pytest.raises(Refused):
        typed(migrated_url, TASK)
    typed(migrated_url, "UPDATE schedule_task SET is_deleted = 1", TASK)
    typed(migrated_url, "UPDATE schedule_task SET is_deleted = 1", TASK)
    found = typed(migrated_url, "SELECT live_name FROM schedule_task ORDER BY id")
    assert found == [(None,), (None,), ("nightly",)]


def test_a_worker_frees_its_name_when_it_is_dead(migrated_url: str) -> None:
    worker = (
        "INSERT INTO schedule_worker_node (name, host, pid, process_identity, version, capacity, prefetch, node_types)"
        " VALUES ('w', 'h', 1, 'x', '0', 1, 0, '[]')"
    )
    typed(migrated_url, worker, "UPDATE schedule_worker_node SET state = 'draining'")
    with pytest.raises(Refused):
        typed(migrated_url, worker)
    typed(migrated_url, "UPDATE schedule_worker_node SET state = 'dead'", worker)


EDITS = (
    "cron = '0 3 * * *'",
    "cron = NULL",
    "cron_seconds = 1",
    "timezone = 'Asia/Tokyo'",
    "trigger_kind = 'manual'",
    "starts_at = '2026-11-19 02:00:00.000000'",
    "ends_at = '2026-11-19 02:00:00.000000'",
    "trigger_spec = '{\"seconds\": 1}'",
    "status = 'off'",
    "is_deleted = 1",
)
PLAN = "UPDATE schedule_task SET planned_inputs = plan_inputs"


@pytest.mark.parametrize("edit", EDITS)
def test_a_plan_is_stale_from_an_edit_until_it_is_made_again(migrated_url: str, edit: str) -> None:
    stale = "SELECT plan_stale FROM schedule_task"
    assert typed(migrated_url, TASK, stale) == [(1,)]
    assert typed(migrated_url, PLAN, stale) == [(None,)]
    assert typed(migrated_url, f"UPDATE schedule_task SET {edit}", stale) == [(1,)]
    assert typed(migrated_url, PLAN, stale) == [(None,)]


SESSIONS = (
    "SET NAMES latin1",
    "SET NAMES binary",
    "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci",
    "SET time_zone = '-07:00'",
    "SET sql_mode = ''",
    "SET sql_mode = 'ORACLE'",
    "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
)


@pytest.mark.parametrize("session", SESSIONS)
def test_the_inputs_are_one_text_whatever_session_writes_them(migrated_mariadb_url: str, session: str) -> None:
    sessions = [one for one in SESSIONS if "ORACLE" not in one or not is_mysql(migrated_mariadb_url)]
    if session not in sessions:
        pytest.skip("MySQL has no such mode")
    odd = "CONVERT(X'2A20C3BC27225CF09F98802C' USING utf8mb4)"
    when = "'2026-11-19 02:00:00.25'"
    run_sql(
        migrated_mariadb_url,
        session,
        f"INSERT INTO schedule_task (name, type, cron, timezone, starts_at) VALUES ('a', 'B', {odd}, {odd}, {when})",
        PLAN,
    )
    others = (other for other in ("SET NAMES utf8mb4", *sessions))
    for priority, other in enumerate(others, 6):
        again = f"UPDATE schedule_task SET cron = {odd}, starts_at = {when}, priority = {priority % 10}"
        assert run_sql(migrated_mariadb_url, other, again, "SELECT plan_stale FROM schedule_task") == [(None,)], other
    [(inputs,)] = run_sql(migrated_mariadb_url, "SET NAMES utf8mb4", "SELECT plan_inputs FROM schedule_task")
    cron = "* ü'\"\\😀,"
    assert json.loads(inputs) == ["on", 0, "cron", cron, 0, cron, None, "2026-11-19 02:00:00.250000", None]


def test_no_two_inputs_make_one_text(migrated_url: str) -> None:
    odd = ("NULL", "''", "'null'", "'\"'", "'\", \"'", "','", "'a'", "'A'", "'a '")
    for at, (cron, timezone) in enumerate(product(odd, odd[1:])):
        typed(
            migrated_url,
            f"INSERT INTO schedule_task (name, type, cron, timezone) VALUES ('{at}', 'B', {cron}, {timezone})",
        )
    assert typed(migrated_url, "SELECT count(*), count(DISTINCT plan_inputs) FROM schedule_task") == [(72, 72)]


def test_other_edits_leave_the_plan_alone(migrated_url: str) -> None:
    typed(migrated_url, TASK, PLAN)
    edit = "UPDATE schedule_task SET retries = 3, priority = 1, param = '{}', next_fire_at = NULL"
    assert typed(migrated_url, edit, "SELECT plan_stale FROM schedule_task") == [(None,)]


def test_an_overlap_slot_is_held_by_one_running_instance(migrated_url: str) -> None:
    fires = [
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at, run_number, overlap_slot)"
        f" VALUES ({task}, '2026-11-19 0{hour}:00:00.000000', '2026-11-19 02:00:00.000000', 0, {slot})"
        for task, hour, slot in ((7, 1, 0), (7, 2, 0), (7, 3, 1), (8, 4, 0), (7, 5, "NULL"), (7, 6, "NULL"))
    ]
    typed(migrated_url, *fires)
    run = "UPDATE schedule_instance SET status = 'running', schedule_worker_node_id = 1 WHERE id = {}"
    typed(migrated_url, run.format(1))
    with pytest.raises(Refused):
        typed(migrated_url, run.format(2))
    typed(migrated_url, *(run.format(other) for other in (3, 4, 5, 6)))
    typed(migrated_url, "UPDATE schedule_instance SET status = 'succeed' WHERE id = 1", run.format(2))
    keys = [key for (key,) in typed(migrated_url, "SELECT overlap_key FROM schedule_instance ORDER BY id")]
    assert keys == [None, 7 * 32768, 7 * 32768 + 1, 8 * 32768, None, None]


def test_a_fire_is_there_once_and_typed_rows_never_clash(migrated_url: str) -> None:
    columns, when = "schedule_task_id, schedule_datetime", "1, '2026-11-19 02:00:00.000000'"
    fire = f"INSERT INTO schedule_instance ({columns}, run_number) VALUES ({when}, 0)"
    typed(migrated_url, fire)
    with pytest.raises(Refused):
        typed(migrated_url, fire)
    typed(migrated_url, *[f"INSERT INTO schedule_instance ({columns}) VALUES ({when})"] * 2)


@pytest.mark.parametrize(
    "moment",
    [
        *("2026-11-19T02:00", "2026-11-19 02:00", "2026-11-19 02:00:00", "tomorrow"),
        *("2026-02-30 02:00:00.000000", "2026-13-01 02:00:00.000000", "2026-11-19 24:00:00.000000"),
        *("2026-11-19 02:00:60.000000", "2026-11-19 02:00:00.abcdef"),
    ],
)
def test_sqlite_refuses_a_time_in_another_form_or_that_there_is_not(migrated_sqlite_url: str, moment: str) -> None:
    for column in ("schedule_datetime", "due_at"):
        times = {"schedule_datetime": "2026-11-19 02:00:00.000000", column: moment}
        with pytest.raises(sqlite3.IntegrityError, match=f"{column}_form"):
            typed(
                migrated_sqlite_url,
                f"INSERT INTO schedule_instance (schedule_task_id, {', '.join(times)})"
                f" VALUES (1, {', '.join(map(repr, times.values()))})",
            )
    typed(migrated_sqlite_url, TASK)
    for column in ("next_fire_at", "starts_at", "ends_at"):
        with pytest.raises(sqlite3.IntegrityError, match=f"{column}_form"):
            typed(migrated_sqlite_url, f"UPDATE schedule_task SET {column} = '{moment}'")


def test_mariadb_reads_every_form_as_one_time(migrated_mariadb_url: str) -> None:
    fire = "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, run_number) VALUES (1, '{}', 0)"
    run_sql(migrated_mariadb_url, fire.format("2026-11-19T02:00"))
    with pytest.raises(Refused):
        run_sql(migrated_mariadb_url, fire.format("2026-11-19 02:00:00.000000"))


def test_an_id_never_comes_again(migrated_url: str) -> None:
    highest = "SELECT max(id) FROM schedule_task"
    first = typed(migrated_url, TASK, highest)
    assert typed(migrated_url, "DELETE FROM schedule_task", TASK, highest) != first


@pytest.mark.parametrize(
    "edit", ["status = 'paused'", "priority = 10", "priority = -1", "trigger_kind = 'hourly'", "name = NULL"]
)
def test_what_has_no_meaning_is_refused(migrated_url: str, edit: str) -> None:
    typed(migrated_url, TASK)
    with pytest.raises((*Refused, pymysql.err.DataError, pymysql.err.OperationalError)):
        typed(migrated_url, f"UPDATE schedule_task SET {edit}")


def test_a_param_that_is_not_json_is_refused(migrated_url: str) -> None:
    typed(migrated_url, TASK)
    with pytest.raises((*Refused, pymysql.err.OperationalError)):
        typed(migrated_url, "UPDATE schedule_task SET param = '{not json'")
