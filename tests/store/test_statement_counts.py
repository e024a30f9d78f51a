"""A batch takes as many statements as one row does: what costs is the round trip and the commit."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.materializer import Materializer
from rota.scheduler_service.duties.reaper import Reaper
from rota.shared.settings import Settings
from rota.shared.store import fires, reports
from tests.harness import leases
from tests.harness.batch_life import Work, counts, life
from tests.harness.claims import claim_on
from tests.harness.scenario import Scenario, succeeded
from tests.harness.statements import executed

FEW, MANY = 10, 1_000


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
        "first": lambda c: claim_on(c, worker, [first], rows.types),
        "second": lambda c: claim_on(c, worker, [second], rows.types),
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
        assert len(leases.acquire(connection, "token", tasks, 2)) == MANY
        batch = [fires.Fire(task, rows.start, 5, "{}", worker, rows.nodes) for task in tasks]
        fires.materialize(connection, batch)
        return before, inserts(connection)

    before, after = rows.database.write(work)
    assert {name: after[name] - before[name] for name in after} == {"Com_insert": 0, "Com_insert_select": 3}
    assert len(rows.statuses()) == MANY
