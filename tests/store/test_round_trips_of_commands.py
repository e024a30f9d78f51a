"""What the commands of users, and declarations by code, send: no lock is held over a round trip.

They read without locks, and write in one packet that relies on what they have read. If it was changed meanwhile, they
are tried again.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from rota.shared.control import (
    acts,
    audit,
    backfills,
    calendars,
    instances,
    limits,
    schedulers,
    steering,
    tasks,
    workers,
)
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database, opened
from rota.shared.domain.calendars.defining import Changes
from rota.shared.domain.errors import NameTaken, NotFound, NotPossible
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import TaskDefinition
from rota.shared.settable_clock import SettableClock
from tests.harness.packets import Packets, assert_one_packet_each, verbs
from tests.harness.scenario import Scenario

ANN, BOB = Actor("ann", "cli"), Actor("bob", "cli")
Work = Callable[[Database], object]
NIGHTLY = {"name": "nightly", "type": "REPORT", "cron": "0 3 * * *"}


def declare(database: Database, **fields: Any) -> bool:
    return tasks.declare(database, ANN, TaskDefinition.of(**NIGHTLY, **fields), liveness_seconds=-1)


COMMANDS: dict[str, Work] = {
    "edit": lambda d: tasks.edit(d, ANN, "nightly", {"retries": 2, "cron": None}),
    "rename": lambda d: tasks.edit(d, ANN, "nightly", {"name": "weekly"}),
    "off": lambda d: tasks.switch(d, ANN, ["other", "nightly"], TaskStatus.OFF),
    "follow": lambda d: tasks.edit(d, ANN, "nightly", {"after": "other"}),
    "remove": lambda d: tasks.remove(d, ANN, "nightly"),
    "declare": lambda d: declare(d, retries=2),
    "cancel": lambda d: instances.cancel(d, ANN, live(d)),
    "skip the next fire": lambda d: steering.skip(d, ANN, "nightly"),
    "set the next fire": lambda d: steering.set_at(d, ANN, "nightly", f"{d.clock.now() + timedelta(minutes=1)}Z"),
    "limit edit": lambda d: limits.edit(d, ANN, "warehouse", {"max_running": 2}),
    "limit remove": lambda d: limits.remove(d, ANN, "warehouse"),
    "calendar edit": lambda d: calendars.edit(d, ANN, "work", Changes(on=["2027-01-01"])),
    "calendar remove": lambda d: calendars.remove(d, ANN, "work"),
    "backfill pause": lambda d: backfills.pause(d, ANN, backfills.listed(d, 1)[0]["id"]),
    "backfill cancel": lambda d: backfills.cancel(d, ANN, backfills.listed(d, 1)[0]["id"]),
    "resume": lambda d: schedulers.resume(d, ANN),
    "drain": lambda d: workers.drain(d, ANN, workers.listed(d, 1)[0]["name"]),
}


def another_of(rows: Scenario) -> AbstractContextManager[Database]:
    """The database as another process uses it."""
    return opened(rows.database.url.render_as_string(hide_password=False))


def live(database: Database) -> list[int]:
    return [one["id"] for one in instances.listed(database, 9)]


@pytest.fixture
def nightly(mariadb_rows: Scenario) -> Scenario:
    """Two tasks, and two instances: one waits, and one runs."""
    declare(mariadb_rows.database)
    tasks.add(mariadb_rows.database, ANN, NIGHTLY | {"name": "other"})
    worker = mariadb_rows.worker()
    mariadb_rows.assigned(worker)
    mariadb_rows.running(worker)
    limits.add(mariadb_rows.database, ANN, {"name": "warehouse", "max_running": 4})
    calendars.add(mariadb_rows.database, ANN, "work", Changes(off=["2027-12-24"]))
    backfills.start(mariadb_rows.database, ANN, backfills.Wanted("nightly", "2025-01-01", "2025-02-01"))
    schedulers.pause(mariadb_rows.database, ANN)
    mariadb_rows.database.clock.now()  # it has read the database's time
    return mariadb_rows


@contextmanager
def after_each_statement(database: Database, do: Callable[[str], object]) -> Iterator[None]:
    """``do`` is called with each statement after the database has answered."""

    def listener(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        do(statement)

    event.listen(database.engine, "after_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(database.engine, "after_cursor_execute", listener)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reads_and_then_writes_in_one_packet(nightly: Scenario, packets: Packets, name: str) -> None:
    packets.clear()
    COMMANDS[name](nightly.database)
    assert_one_packet_each(packets)
    assert not any(b"FOR UPDATE" in packet for packet in packets)


def test_a_simulated_transaction_begins_no_earlier_than_a_real_one(nightly: Scenario, packets: Packets) -> None:
    simulated = Database(nightly.database.url.render_as_string(hide_password=False), clock=SettableClock(nightly.start))
    try:
        packets.clear()
        COMMANDS["off"](simulated)
    finally:
        simulated.close()
    assert [verbs(packet)[0] for packet in packets if b"SET timestamp" in packet] == ["SET"]
    assert_one_packet_each(packets)


def lock_whole(connection: Connection, table: str) -> None:
    connection.execute(text(f"SELECT id FROM {table} FOR UPDATE NOWAIT")).all()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_frozen_between_two_statements_holds_up_nobody(nightly: Scenario, name: str) -> None:
    with another_of(nightly) as another:

        def lock_all(_: str) -> None:
            for table in ("schedule_task", "schedule_instance", "schedule_worker_node"):
                another.write(partial(lock_whole, table=table))

        another._retry_seconds = 0
        with after_each_statement(nightly.database, lock_all):
            COMMANDS[name](nightly.database)


def test_a_declaration_that_changes_nothing_locks_nothing(nightly: Scenario, packets: Packets) -> None:
    packets.clear()
    assert declare(nightly.database)
    assert [verbs(packet) for packet in packets] == [["SELECT"]]
    assert b"FOR UPDATE" not in packets[0]


# What was read may have changed before the packet arrives


@contextmanager
def disturbed(rows: Scenario, table: str, work: Work, times: int = 1) -> Iterator[list[int]]:
    """``work`` is done by somebody else so often, each time after the command has read from the table."""
    done: list[int] = []
    with another_of(rows) as another:

        def disturb(statement: str) -> None:
            if len(done) < times and statement.startswith("SELECT") and f"FROM {table} " in " ".join(statement.split()):
                done.append(1)
                work(another)

        with after_each_statement(rows.database, disturb):
            yield done


def facts(rows: Scenario) -> list[tuple[Any, ...]]:
    found = audit.listed(rows.database, 9)
    return [(act["actor"], act["action"], act["old_values"], act["new_values"]) for act in found]


def test_an_edit_is_tried_again_when_another_came_before_it(nightly: Scenario) -> None:
    def five(database: Database) -> object:
        return tasks.edit(database, BOB, "nightly", {"retries": 5, "priority": 3})

    with disturbed(nightly, "schedule_task", five):
        saved = tasks.edit(nightly.database, ANN, "nightly", {"retries": 2})
    assert (saved.document["retries"], saved.document["priority"]) == (2, 3)
    assert facts(nightly)[0] == ("ann", "task.set", {"retries": 5}, {"retries": 2})


def test_a_declaration_is_tried_again_when_an_edit_came_before_it(nightly: Scenario) -> None:
    def five(database: Database) -> object:
        return tasks.edit(database, BOB, "nightly", {"retries": 5, "priority": 3})

    with disturbed(nightly, "schedule_task", five):
        assert declare(nightly.database, retries=2)
    assert facts(nightly)[0] == ("ann", "task.set", {"retries": 5}, {"retries": 2})


@pytest.mark.parametrize("name", ["edit", "off", "remove"])
def test_a_task_that_is_removed_after_it_was_read_is_not_found(nightly: Scenario, name: str) -> None:
    with (
        disturbed(nightly, "schedule_task", lambda d: tasks.remove(d, BOB, "nightly")),
        pytest.raises(NotFound),
    ):
        COMMANDS[name](nightly.database)
    assert facts(nightly)[0][:2] == ("bob", "task.remove")
    assert tasks.get(nightly.database, "other")["status"] == "on"


def test_a_name_that_was_taken_after_the_task_was_read_is_refused(nightly: Scenario) -> None:
    with (
        disturbed(
            nightly,
            "schedule_task",
            lambda d: tasks.add(d, BOB, NIGHTLY | {"name": "weekly", "cron": None}),
        ),
        pytest.raises(NameTaken, match="'weekly' exists already"),
    ):
        COMMANDS["rename"](nightly.database)
    assert facts(nightly)[0][:2] == ("bob", "task.add")


def test_an_instance_that_starts_after_it_was_read_is_asked_to_stop(nightly: Scenario) -> None:
    worker = nightly.worker()
    waiting = nightly.assigned(worker)
    with disturbed(nightly, "schedule_instance", lambda _: nightly.claim(worker, waiting)):
        [canceled] = instances.cancel(nightly.database, ANN, [waiting])
    assert canceled == {"id": waiting, "canceled": False, "asked": True}
    assert (nightly.status(waiting), nightly.row(waiting).gmt_cancel_requested is not None) == ("running", True)
    [_, _, _, new] = facts(nightly)[0]
    assert set(new) == {"reason", "gmt_cancel_requested"}


def test_a_command_that_others_always_come_before_says_so_and_does_nothing(
    nightly: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(database: Database) -> object:
        return tasks.edit(database, BOB, "nightly", {"priority": 3})

    monkeypatch.setattr(nightly.database.clock, "sleep", lambda _: None)
    with (
        disturbed(nightly, "schedule_task", edit, times=acts.TRIES) as done,
        pytest.raises(NotPossible, match="nothing was done; try again"),
    ):
        tasks.edit(nightly.database, ANN, "nightly", {"retries": 2})
    assert len(done) == acts.TRIES
    assert {actor for actor, action, _, _ in facts(nightly) if action == "task.set"} == {"bob"}
