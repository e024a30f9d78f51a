"""A batch takes as many statements as one row does: what costs is the round trip and the commit."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from scheduler_service.assigner import Assigner
from scheduler_service.materializer import Materializer
from scheduler_service.reaper import Reaper
from shared.settings import Settings
from shared.store import assignments, fires, locks, losses, plans, reports, runs
from tests.store.scenario import Scenario, ended, succeeded
from tests.store.statements import executed

Work = Callable[[Connection], Any]
FEW, MANY = 10, 1_000


def counts(rows: Scenario, works: dict[str, Work]) -> dict[str, int]:
    """How many statements each work took, one after the other; on MariaDB as its server counted them."""
    taken = {}
    for name, work in works.items():
        with executed(rows.database.engine) as texts:
            asked = rows.database.write(lambda c, w=work: _questions(c, w))  # type: ignore[misc]
        own = 1 if rows.database.is_sqlite else 3  # BEGIN; and twice the question how many
        taken[name] = len(texts) - own
        if asked is not None:
            assert asked == taken[name], f"{name}: {asked} statements reached the server, not {taken[name]}: {texts}"
    return taken


def _questions(connection: Connection, work: Work) -> int | None:
    """The number of statements the server was sent for `work`."""
    if connection.dialect.name == "sqlite":
        work(connection)
        return None
    status = text("SHOW SESSION STATUS LIKE 'Questions'")
    before = int(connection.execute(status).one()[1])
    work(connection)
    return int(connection.execute(status).one()[1]) - before - 1


def life(rows: Scenario, number: int) -> dict[str, int]:
    """The statements of each stage in the life of a batch of instances."""
    tasks, worker = rows.tasks(number), rows.worker()
    last, second, third = rows.worker(), rows.worker(), rows.worker()
    now = rows.start
    state: dict[str, Any] = {}
    rows.database.read(lambda c: [rows.types.of(c, node.type_id) for node in rows.nodes])  # what a process asks once

    def remember(name: str, work: Work) -> Work:
        def remembering(connection: Connection) -> None:
            state[name] = work(connection)

        return remembering

    def write(connection: Connection) -> None:
        assert len(locks.release(connection, "token", tasks)) == number
        plans.drop_ahead(connection, tasks, now)
        fires.materialize(connection, [fires.Fire(t.id, now, 5, "{}", worker, rows.nodes) for t in state["read"]])
        plans.advance(connection, [plans.Advance(t, now) for t in state["read"]])

    def assign(connection: Connection) -> None:
        page = state["page"]
        numbers = assignments.last_run_numbers(connection, {p.fire for p in page})
        assert set(numbers.values()) == {0}
        assignments.give(connection, [(p.id, second, 0, "{}") for p in page])
        fires.pin_nodes(connection, [(p.id, node) for p in page for node in rows.nodes])

    works: dict[str, Work] = {
        "acquire missing": lambda c: locks.acquire(c, "before", tasks, 2),
        "release": lambda c: locks.release(c, "before", tasks),
        "acquire": lambda c: locks.acquire(c, "token", tasks, 2),
        "read": remember("read", lambda c: plans.locked(c, "token", tasks)),
        "write": write,
        "take back": lambda c: assignments.take_back_assigned(c, worker, number),
        "page": remember("page", lambda c: assignments.pending(c, now, number)),
        "explain": lambda c: assignments.explain(c, {p.id: "no worker" for p in state["page"]}),
        "assign": assign,
        "poll": remember("polled", lambda c: runs.poll(c, second, now, number)),
        "claim": remember(
            "claim", lambda c: runs.claim(c, second, [instance for instance, _, _ in state["polled"]], now, rows.types)
        ),
        "recover": lambda c: losses.recover(c, second, number),
        "give again": lambda c: assignments.give(c, [(p.id, third, 0, None) for p in state["page"]]),
        "claim again": remember(
            "claim", lambda c: runs.claim(c, third, [p.id for p in state["page"]], now, rows.types)
        ),
        "hand back": lambda c: reports.hand_back(c, third, [(r.id, r.attempt) for r in state["claim"].runs], "x"),
        "give last": lambda c: assignments.give(c, [(p.id, last, 0, None) for p in state["page"]]),
        "claim last": remember("claim", lambda c: runs.claim(c, last, [p.id for p in state["page"]], now, rows.types)),
        "report": lambda c: reports.report(c, last, [ended(run) for run in state["claim"].runs]),
    }
    taken = counts(rows, works)
    assert list(rows.statuses().values()) == ["succeed"] * number
    assert rows.sql("SELECT DISTINCT status FROM schedule_task_node") == [("succeed",)]
    return taken


def empty(rows: Scenario) -> None:
    for table in ("schedule_task", "schedule_instance", "schedule_task_node", "schedule_task_lock"):
        rows.sql(f"DELETE FROM {table}")


@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_a_thousand_take_as_many_statements_as_ten(rows: Scenario, policy: str) -> None:
    few = life(rows, FEW)
    empty(rows)
    many = life(rows, MANY)
    print(policy, many)
    assert many == few
    assert many["acquire"] <= 2
    assert many["claim"] <= 3
    assert many["report"] <= 3
    assert many["write"] <= 5


@pytest.mark.parametrize("number", [FEW, MANY])
def test_successes_are_reported_in_two_statements_however_many_they_are(rows: Scenario, number: int) -> None:
    worker, tasks = rows.worker(), rows.tasks(number)
    batch = [fires.Fire(task, rows.start, 5, None, worker, rows.nodes) for task in tasks]
    rows.database.write(lambda c: fires.materialize(c, batch))
    batch_of_reports = [succeeded(run) for run in rows.claim(worker, *rows.statuses()).runs]
    assert counts(rows, {"report": lambda c: reports.report(c, worker, batch_of_reports)}) == {"report": 2}
    assert list(rows.statuses().values()) == ["succeed"] * number


def test_an_idle_scheduler_asks_one_statement_for_each_duty(rows: Scenario) -> None:
    settings = Settings.load()
    later = rows.now() + timedelta(hours=1)
    rows.pending(rows.planned_task(later), due_at=later)
    steps = [
        Materializer(rows.database, settings).step,
        Assigner(rows.database, settings).step,
        Reaper(rows.database, settings, "test").step,
    ]
    for step in steps:  # what was not started is looked at now and then
        step()
    taken = []
    for step in steps:
        with executed(rows.database.engine) as texts:
            step()
        taken.append(len([one for one in texts if one != "BEGIN"]))
    assert taken == [1, 1, 1]


def test_a_node_type_is_asked_for_once(rows: Scenario) -> None:
    worker = rows.worker()
    first, second = rows.assigned(worker), rows.assigned(worker)
    works: dict[str, Work] = {
        "first": lambda c: runs.claim(c, worker, [first], rows.start, rows.types),
        "second": lambda c: runs.claim(c, worker, [second], rows.start, rows.types),
    }
    assert counts(rows, works) == {"first": 3 + len(rows.nodes), "second": 3}


def test_inserts_reach_the_server_as_one_statement_for_all_rows(mariadb_rows: Scenario) -> None:
    """PyMySQL's executemany would send a statement for each row if VALUES held anything but placeholders."""
    rows = mariadb_rows
    tasks, worker = rows.tasks(MANY), rows.worker()
    status = text("SHOW SESSION STATUS LIKE 'Com_insert%'")

    def inserts(connection: Connection) -> dict[str, int]:
        return {name: int(value) for name, value in connection.execute(status)}

    def work(connection: Connection) -> tuple[dict[str, int], dict[str, int]]:
        before = inserts(connection)
        assert len(locks.acquire(connection, "token", tasks, 2)) == MANY
        batch = [fires.Fire(task, rows.start, 5, "{}", worker, rows.nodes) for task in tasks]
        fires.materialize(connection, batch)
        return before, inserts(connection)

    before, after = rows.database.write(work)
    assert {name: after[name] - before[name] for name in after} == {"Com_insert": 1, "Com_insert_select": 2}
    assert len(rows.statuses()) == MANY
