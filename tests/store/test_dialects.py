"""Many values in one statement: listed, or as JSON; what comes out is what went in."""

from datetime import datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, select, text, update

from rota.migrations import upgrade
from rota.shared.database.constructs import Listed, RowsUpdate, among
from rota.shared.database.mysql_constructs import write_listed
from rota.shared.database.transactions import Database, opened
from rota.shared.store.tables import schedule_task
from tests.harness.databases import PrivateMariaDB, run_sql
from tests.harness.scenario import Scenario, ended, succeeded
from tests.harness.together import impatient, uncommitted

_task = schedule_task.c

NASTY = [
    "",
    "plain",
    "it's",
    "''",
    '"double"',
    "back\\slash",
    "\\",
    "\\'",
    "'; DROP TABLE schedule_task; --",
    "100 % (%s) %(name)s :name",
    "\n\r\t\b\x1a",
    "Grüße, 世界 🚀",
    "NULL",
    "/* a */ -- b # c",
]
"""What a quoting that is not the server's would spoil, or run."""


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ((1, 2, 3), "1,2,3"),
        ((2**63,), "9223372036854775808"),
        ((-1, None, "a"), "-1,NULL,'a'"),
        (("it's", "back\\slash"), r"'it\'s','back\\slash'"),
        (("a\nb", 'a"b', "ü🚀"), "'a\nb','a\"b','ü🚀'"),
        (("a,b", ""), "'a,b',''"),
        ((), "NULL"),
    ],
)
def test_values_are_listed_as_sql_writes_them(values: tuple[Any, ...], written: str) -> None:
    assert write_listed(Listed(values), None) == written


@pytest.mark.parametrize("value", [*NASTY, "\0", "".join(map(chr, range(1, 256))), 10 * "\\'"])
def test_a_text_reaches_the_database_as_it_is(rows: Scenario, value: str) -> None:
    assert rows.database.read(lambda c: c.scalar(select(bindparam("value", value)))) == value


def test_what_is_listed_reaches_the_server_as_it_is(mariadb_rows: Scenario) -> None:
    values = [value for value in NASTY if value]  # ELT is for one of many: what it gives for an empty one is ''
    statement = text(f"SELECT {', '.join(f'ELT({n}, :listed)' for n in range(1, len(values) + 1))}")
    given = {"listed": Listed(values)}
    assert list(mariadb_rows.database.read(lambda c: c.execute(statement, given).one())) == values


def test_ids_are_found_among_a_list_and_none_in_an_empty_one(rows: Scenario) -> None:
    tasks = [rows.task() for _ in range(4)]
    statement = select(_task.id).where(among(_task.id)).order_by(_task.id)

    def found(connection: Connection, ids: list[int]) -> list[int]:
        return list(connection.scalars(statement, {"ids": ids}))

    for ids in (tasks[:1], tasks[1:3], [*tasks, 999_999], []):
        assert rows.database.read(partial(found, ids=ids)) == [task for task in tasks if task in ids]


write_all = RowsUpdate(
    schedule_task,
    lambda rows: (
        update(schedule_task)
        .where(rows.match, _task.is_deleted == bindparam("deleted"), _task.priority == rows.c["expected"])
        .values(name=rows.c["name"], param=rows.c["param"], starts_at=rows.c["starts"], misfires=rows.c["misfires"])
    ),
    expected="int",
    name="str",
    param="json",
    starts="time",
    misfires="int",
)


def write_rows(connection: Connection, rows: list[tuple[Any, ...]], **values: Any) -> int:
    ids, *columns = zip(*sorted(rows), strict=True)
    return write_all(connection, Listed(ids), *map(Listed.of, columns), **values).rowcount


def values_of(database: Database, *tasks: int) -> list[tuple[Any, ...]]:
    columns = select(_task.id, _task.name, _task.param, _task.starts_at, _task.misfires)
    statement = columns.where(_task.id.in_(tasks)).order_by(_task.id)
    return [tuple(row) for row in database.read(lambda c: c.execute(statement).all())]


def moment(number: int) -> datetime:
    return datetime.fromisoformat("2026-11-19T12:00:00").replace(microsecond=number)


@pytest.mark.parametrize(
    ("ids", "misfires"), [((2, 1), (7, 8)), ((1, 1), (7, 8)), ((1, 2), (7,))], ids=["descend", "twice", "too few"]
)
def test_lists_that_would_give_a_row_anothers_value_are_refused(
    rows: Scenario, ids: tuple[int, ...], misfires: tuple[int, ...]
) -> None:
    count = RowsUpdate(
        schedule_task,
        lambda rows: update(schedule_task).where(rows.match).values(misfires=rows.c["misfires"]),
        misfires="int",
    )
    rows.tasks(2)
    with pytest.raises(ValueError, match="must ascend"):
        rows.database.write(lambda c: count(c, Listed(ids), Listed(misfires)))


def test_each_row_is_written_with_its_own_values(rows: Scenario) -> None:
    tasks = rows.tasks(len(NASTY))
    names = [value or "empty" for value in NASTY]
    wanted = [
        (task, name, {"text": name}, moment(n) if n % 2 else None, n)
        for n, (task, name) in enumerate(zip(tasks, names, strict=True))
    ]
    given = [(task, 5, name, quoted(param["text"]), starts, n) for task, name, param, starts, n in wanted]
    assert rows.database.write(lambda c: write_rows(c, given, deleted=0)) == len(tasks)
    assert values_of(rows.database, *tasks) == wanted
    assert rows.database.write(lambda c: write_rows(c, given, deleted=0)) == len(tasks), "it counts what it found"


def quoted(value: str) -> str:
    """A JSON text with every character as it is, so that the SQL around it has to carry them."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\x1a": "\\u001a"}
    return '{"text": "' + "".join(escapes.get(character, character) for character in value) + '"}'


def test_only_the_rows_that_are_as_expected_are_written(rows: Scenario) -> None:
    good, other_value, deleted, missing = rows.task(), rows.task(priority=1), rows.task(), 999_999
    untouched = values_of(rows.database, other_value, deleted)
    rows.sql("UPDATE schedule_task SET is_deleted = 1 WHERE id = :task", task=deleted)
    given = [(task, 5, f"new-{task}", "{}", None, 7) for task in (missing, deleted, other_value, good)]
    assert rows.database.write(lambda c: write_rows(c, given, deleted=0)) == 1
    assert values_of(rows.database, good) == [(good, f"new-{good}", {}, None, 7)]
    assert values_of(rows.database, other_value, deleted) == untouched


def test_ids_as_large_as_a_double_holds_keep_their_own_values(database: Database) -> None:
    rows = Scenario(database)
    large = [2**53 - number for number in (1, 2, 3, 1000)]
    for task in large:
        rows.sql("INSERT INTO schedule_task (id, name, type, cron) VALUES (:id, :id, 'REPORT', '* * * * *')", id=task)
    given = [(task, 5, f"new-{task}", None, None, 0) for task in large]
    assert rows.database.write(lambda c: write_rows(c, given, deleted=0)) == len(large)
    assert [row[:2] for row in values_of(rows.database, *large)] == [(task, f"new-{task}") for task in sorted(large)]


def test_rows_that_are_not_in_the_list_are_not_waited_for(mariadb_rows: Scenario) -> None:
    """In a table as small as this one an UPDATE that scanned would stop at the first row that is locked."""
    rows = mariadb_rows
    locked, *others = rows.tasks(3)
    given = [(task, 5, f"new-{task}", None, None, 2) for task in others]
    with (
        uncommitted(rows.database, lambda c: write_rows(c, [(locked, 5, "locked", None, None, 1)], deleted=0)),
        impatient(rows.database) as database,
    ):
        assert database.write(lambda c: write_rows(c, given, deleted=0)) == len(others)


RESULTS = [quoted(value) for value in NASTY]


def test_results_are_kept_as_they_are_whatever_is_in_them(rows: Scenario) -> None:
    check_results(rows)


def check_results(rows: Scenario) -> None:
    """By the list of plain successes, and by the JSON of the others."""
    for report in (succeeded, ended):
        worker = rows.worker()
        started = [rows.running(worker, rows.task(overlap_policy="allow")) for _ in RESULTS]
        reports = [report(run, result=result) for run, result in zip(started, RESULTS, strict=True)]
        assert rows.report(worker, *reports) == set()
        assert [rows.row(run.id).execution_result for run in started] == [{"text": value} for value in NASTY]


def test_a_server_without_backslash_escapes_keeps_results_as_they_are(own_mariadb: PrivateMariaDB) -> None:
    run_sql(
        own_mariadb.admin_url(),
        "SET GLOBAL sql_mode = CONCAT('NO_BACKSLASH_ESCAPES,', @@GLOBAL.sql_mode, ',ANSI_QUOTES')",
    )
    url = own_mariadb.create_database()
    [(mode,)] = run_sql(url, "SELECT @@SESSION.sql_mode")
    assert "NO_BACKSLASH_ESCAPES" in mode
    upgrade(url)
    with opened(url) as database:
        mode = database.read(lambda c: c.execute(text("SELECT @@SESSION.sql_mode")).scalar_one())
        assert "NO_BACKSLASH_ESCAPES" not in mode
        assert "STRICT_TRANS_TABLES" in mode
        rows = Scenario(database)
        check_results(rows)
        test_each_row_is_written_with_its_own_values(rows)
