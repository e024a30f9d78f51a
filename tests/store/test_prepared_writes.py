"""A write that comes again is prepared: the database is sent what SQLAlchemy would have sent, whatever the values."""

import logging
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, Executable, bindparam, event, insert, select, update
from sqlalchemy.exc import SQLAlchemyError, StatementError

from rota.shared.database.constructs import Listed, among
from rota.shared.database.later import Later, execute_later
from rota.shared.database.mysql_prepared import Keeper, Prepared, driver_of
from rota.shared.store.tables import schedule_instance, schedule_task
from tests.harness.packets import Packets, verbs
from tests.harness.scenario import Scenario

_instance = schedule_instance.c
_task = schedule_task.c

EXPLAIN = (
    update(schedule_instance)
    .where(among(_instance.id), _instance.status.in_(["pending", "assigned"]), _instance.creator != "100 % of it")
    .values(reason=bindparam("why"), due_at=bindparam("moment"))
)
MOMENT = datetime.fromisoformat("2026-11-28T01:02:03.000004")
WHYS = ["it's", 'a \\ and a "', "%s %% %(why)s", "naïve ☃", "", None]


@pytest.fixture
def reasons(mariadb_rows: Scenario) -> list[str | None]:
    """What stands in an instance's row after each of several writes by one statement."""
    number = mariadb_rows.pending()
    found = []
    for why in WHYS:
        values = {"ids": [number], "why": why, "moment": MOMENT}
        assert mariadb_rows.database.write(partial(execute_later, statement=EXPLAIN, values=values, expected=1)).waits
        row = mariadb_rows.row(number)
        assert row.due_at == MOMENT
        found.append(row.reason)
    return found


def test_values_arrive_as_they_are(reasons: list[str | None]) -> None:
    assert reasons == WHYS


def times_kept(rows: Scenario, monkeypatch: pytest.MonkeyPatch, *statements: tuple[Executable, dict[str, Any]]) -> int:
    """How many of these writes the connection was given without SQLAlchemy's execution."""
    kept: list[bool] = []
    keep = Keeper.__call__

    def counted(*given: Any) -> bool:
        kept.append(keep(*given))
        return kept[-1]

    monkeypatch.setattr(Keeper, "__call__", counted)
    for statement, values in statements:
        rows.database.write(partial(execute_later, statement=statement, values=values))
    return sum(kept)


ONE: dict[str, Any] = {"ids": [1], "why": "so", "moment": MOMENT}


def test_a_write_is_prepared_when_it_comes_again(mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = EXPLAIN.where(_instance.attempt == 0)
    assert times_kept(mariadb_rows, monkeypatch, *[(statement, ONE)] * 4) == 3


def test_whoever_traces_statements_is_told_of_each(mariadb_rows: Scenario, packets: Packets) -> None:
    told: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        told.append(statement.split(maxsplit=1)[0])

    event.listen(mariadb_rows.database.engine, "before_cursor_execute", note)
    for _ in range(3):
        mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, ONE))
    assert told == ["BEGIN", "UPDATE"] * 3
    event.remove(mariadb_rows.database.engine, "before_cursor_execute", note)
    packets.clear()
    mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, ONE))
    assert told == ["BEGIN", "UPDATE"] * 3
    assert len(packets) == 1


def test_a_write_that_is_too_long_for_a_packet_with_others_is_sent_all_the_same(mariadb_rows: Scenario) -> None:
    number = mariadb_rows.pending()
    long = "x" * 900

    def write(connection: Connection) -> None:
        driver_of(connection).packet_limit = 2_000
        for why in ("a", "b", long):
            execute_later(connection, EXPLAIN, {**ONE, "ids": [number], "why": why}, expected=1)

    for _ in range(2):
        mariadb_rows.database.write(write)
        assert mariadb_rows.row(number).reason == long


@pytest.mark.parametrize("limit", [1_000, 1_001, 1_002, 1_003])
def test_a_write_for_which_there_is_just_no_room_is_sent_all_the_same(
    mariadb_rows: Scenario, packets: Packets, limit: int
) -> None:
    first = limit // 4 - 4
    lengths = [first, 2 * limit // 4 - len("BEGIN") - first - len("DO 1"), len("DO 1")]

    def write(connection: Connection) -> None:
        driver = driver_of(connection)
        driver.packet_limit = limit
        for length in lengths:
            driver.later(f"DO {'1' * (length - 3)}", Later())

    packets.clear()
    mariadb_rows.database.write(write)
    assert [verb for packet in packets for verb in verbs(packet)] == ["BEGIN", "DO", "DO", "DO", "COMMIT"]


def test_a_write_of_no_transaction_is_executed(mariadb_rows: Scenario) -> None:
    number = mariadb_rows.pending()
    for why in ("a", "b", "c", "d"):
        with mariadb_rows.database.engine.connect() as connection:
            execute_later(connection, EXPLAIN, {**ONE, "ids": [number], "why": why}, expected=1)
            connection.commit()
        assert mariadb_rows.row(number).reason == why


def test_a_value_that_cannot_be_written_is_refused_alike_each_time(mariadb_rows: Scenario) -> None:
    told = []
    for _ in range(3):
        with pytest.raises(SQLAlchemyError) as refused:
            mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, {**ONE, "why": float("nan")}))
        told.append(str(refused.value))
        mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, ONE))
    assert len(set(told)) == 1


def test_the_log_of_sqlalchemy_has_each_write(mariadb_rows: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, ONE))
    caplog.set_level(logging.INFO, "sqlalchemy.engine")
    mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, ONE))
    assert any(message.startswith("UPDATE schedule_instance") for message in caplog.messages)


NOT_CONSTANT: dict[str, tuple[Executable, dict[str, Any]]] = {
    "a list that SQLAlchemy writes out": (
        update(schedule_task).where(_task.id.in_(bindparam("some", expanding=True))).values(retries=1),
        {"some": [1, 2]},
    ),
    "a value that has the name of a constant": (
        update(schedule_task).where(_task.status == "on").values(retries=1),
        {"status_1": "off"},
    ),
    "a value that is made at each execution": (
        update(schedule_task).where(_task.id == bindparam(None, callable_=lambda: 7)).values(retries=1),
        {},
    ),
}


@pytest.mark.parametrize("name", NOT_CONSTANT)
def test_a_write_whose_text_is_not_constant_is_executed_in_the_usual_way(
    mariadb_rows: Scenario, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    statement, values = NOT_CONSTANT[name]
    with pytest.raises(ValueError, match="UPDATE schedule_task"):
        mariadb_rows.database.read(lambda c: Prepared(c, statement, values))
    assert times_kept(mariadb_rows, monkeypatch, *[(statement, values)] * 3) == 0


def test_a_value_that_is_missing_is_told_as_ever(mariadb_rows: Scenario) -> None:
    for _ in range(2):
        mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, ONE))
    with pytest.raises(StatementError, match="A value is required for bind parameter 'why'"):
        mariadb_rows.database.write(lambda c: execute_later(c, EXPLAIN, {"ids": [1], "moment": MOMENT}))


def test_other_columns_are_another_text(mariadb_rows: Scenario) -> None:
    """The columns of an INSERT without values are those of the values that it is executed with."""
    bare = insert(schedule_task).inline()
    fields = {"name": "one", "type": "NOTE", "trigger_kind": "manual"}
    for name in ("one", "two", "three"):
        mariadb_rows.database.write(partial(execute_later, statement=bare, values={**fields, "name": name}))
    mariadb_rows.database.write(lambda c: execute_later(c, bare, {**fields, "name": "four", "retries": 3}))
    found = mariadb_rows.database.read(lambda c: c.execute(select(_task.name, _task.retries).order_by(_task.id)).all())
    assert [tuple(row) for row in found][-4:] == [("one", 0), ("two", 0), ("three", 0), ("four", 3)]


def test_lists_are_written_out_by_the_driver(mariadb_rows: Scenario) -> None:
    ids = [mariadb_rows.pending() for _ in range(3)]
    for some in ([], ids[:1], ids):
        values = {**ONE, "ids": Listed(some), "why": f"{len(some)} of them"}
        mariadb_rows.database.write(partial(execute_later, statement=EXPLAIN, values=values, expected=len(some)))
    assert [mariadb_rows.row(i).reason for i in ids] == ["3 of them"] * 3
