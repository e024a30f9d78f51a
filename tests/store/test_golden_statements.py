"""The statements of the hot paths are those of tests/store/golden, where a DBA can read them, a folder a database.

They are recorded as they are executed while a small scenario runs the store's verbs. After a change that is meant:

    make golden    # and read the diff

``:ids`` is a list of ids and ``:rows`` the JSON text of a batch; ``(:name, …)`` is as long as its values are.
MySQL is sent what MariaDB is, but for its own word for a shared lock.
"""

import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Executable, event

from rota.shared.database.later import Later
from rota.shared.database.mysql_connection import MySQLConnection
from rota.shared.database.mysql_prepared import Keeper, Prepared, driver_of
from rota.shared.database.transactions import opened
from rota.shared.domain.states import InstanceStatus
from rota.shared.store import (
    assignments,
    crowds,
    fires,
    handing_on,
    locks,
    overlap,
    plans,
    polling,
    recovery,
    reports,
    run_numbers,
    runs,
    unclaimed,
    unstarted,
    workers,
)
from rota.shared.store.census import take as take_census
from rota.shared.store.loads import assigned_to
from rota.shared.store.loads import fleet as read_fleet
from rota.shared.store.transitions import canceling, giving
from tests.harness import leases
from tests.harness.databases import DATABASES
from tests.harness.scenario import Scenario, ended, stepped, succeeded
from tests.harness.sql_layout import laid_out, with_names

GOLDEN = Path(__file__).parent / "golden"
STORE = "/shared/store/"
LEASE, LIMIT = 2.0, 100

Subject = Generator[tuple[str, Callable[[Connection], Any] | Callable[[], Any]], Any, None]
"""Steps: when the verb is called, and the call, in a transaction or with its own; what it returned comes back."""


@pytest.fixture(params=DATABASES)
def rows(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """A scenario whose statements have named placeholders."""
    with opened(request.getfixturevalue(f"emptied_{request.param}_url")) as database:
        if database.engine.dialect.positional:
            database.engine.dialect.paramstyle = "named"
            database.engine.dialect.positional = False
        yield Scenario(database)


def due(rows: Scenario) -> Subject:
    rows.planned_task()
    yield (
        "The materializer asks at each tick: what is due, what has a stale plan, what is off and has passed its fire.",
        lambda c: plans.due(c, rows.start, rows.start, LIMIT, LEASE),
    )


def acquire(rows: Scenario) -> Subject:
    tasks = rows.tasks(3)
    rows.database.write(lambda c: leases.acquire(c, "earlier", tasks[:2], LEASE))
    rows.database.write(lambda c: locks.drop(c, "earlier", tasks[:2]))
    yield (
        "The materializer and the assigner lease a batch of tasks before they decide about them.",
        lambda c: leases.acquire(c, "token", tasks[:2], LEASE),
    )
    yield (
        "The same where a task has no lock row yet: it is new.",
        lambda c: leases.acquire(c, "token", tasks, LEASE),
    )


def release(rows: Scenario) -> Subject:
    tasks = rows.tasks(2)
    rows.database.write(lambda c: leases.acquire(c, "token", tasks, LEASE))
    yield (
        "The first statement of the transaction that writes what was decided: it holds the leases until the commit.",
        lambda c: locks.release(c, "token", tasks),
    )
    yield (
        "After another scheduler took a lease over, nothing was written: it asks which it still holds.",
        lambda c: locks.kept(c, "token", tasks),
    )


def locked_tasks(rows: Scenario) -> Subject:
    tasks = rows.tasks(2)
    rows.database.write(lambda c: leases.acquire(c, "token", tasks, LEASE))
    yield "The materializer reads the tasks that it has leased.", lambda c: plans.locked(c, "token", tasks)


def materialize(rows: Scenario) -> Subject:
    tasks, worker = rows.tasks(2), rows.worker()
    yield (
        "The materializer inserts the fires of a batch, pending or given to a worker, and the nodes of the latter.",
        lambda c: fires.materialize(
            c, [fires.Fire(t, rows.start, 5, "{}", w, rows.nodes) for t, w in zip(tasks, (worker, None), strict=True)]
        ),
    )


def advance(rows: Scenario) -> Subject:
    tasks = [rows.planned_task(), rows.task()]
    rows.database.write(lambda c: leases.acquire(c, "token", tasks, LEASE))
    following, new = rows.database.read(lambda c: plans.locked(c, "token", tasks))
    yield (
        "The materializer moves plans on to their next fires.",
        lambda c: plans.advance(c, [plans.Advance(following, rows.start)]),
    )
    yield (
        "The same for a plan that was stale, or that counts a misfire or an error.",
        lambda c: plans.advance(c, [plans.Advance(new, rows.start, misfires=1)]),
    )


def drop_ahead(rows: Scenario) -> Subject:
    task = rows.planned_task()
    rows.fire(task, rows.start + timedelta(minutes=1))
    yield (
        "The materializer deletes what a stale plan had put ahead and nobody claimed.",
        lambda c: unclaimed.drop(c, unclaimed.ahead(c, [task], rows.start)),
    )


def pending(rows: Scenario) -> Subject:
    rows.by_sql(rows.task())
    rows.pending()
    yield "The idle assigner asks whether there is anything to do.", lambda c: assignments.look(c, rows.start)
    yield (
        "The assigner gives rows inserted by SQL their due time.",
        lambda c: giving.adopt(c, assignments.orphans(c, LIMIT)),
    )
    [first, *_] = yield (
        "The assigner reads a page of what is pending, the most urgent first.",
        lambda c: assignments.pending(c, rows.start, LIMIT),
    )
    yield (
        "The next page, from behind the last row of this one.",
        lambda c: assignments.pending(c, rows.start, LIMIT, first.cursor),
    )
    yield (
        "Where that page's instances stand: most of them are known to wait far back in a line.",
        lambda c: assignments.standing(c, rows.start, LIMIT, first.cursor),
    )


def give(rows: Scenario) -> Subject:
    worker, instance = rows.worker(), rows.pending()
    [page] = rows.database.read(lambda c: assignments.pending(c, rows.start, LIMIT))
    yield (
        "The assigner asks what it may give: without what somebody else has locked.",
        lambda c: giving.free_pending(c, [instance]),
    )
    yield (
        "The assigner asks for the last run number of each fire on its page.",
        lambda c: run_numbers.last_of(c, [page.fire]),
    )
    yield (
        "The assigner asks which instances have their nodes from an earlier assignment.",
        lambda c: fires.pinned(c, [instance]),
    )
    yield (
        "The assigner gives pending instances to workers.",
        lambda c: giving.give(c, [(instance, worker, 0, "{}")]),
    )
    yield (
        "The assigner pins the nodes of what it gave.",
        lambda c: fires.pin_nodes(c, [(instance, node) for node in rows.nodes]),
    )


def explain(rows: Scenario) -> Subject:
    task, first, second = rows.task(), rows.pending(), rows.pending()
    yield (
        "The assigner asks which tasks have all their overlap slots taken.",
        lambda c: overlap.full(c, {task: 1}),
    )
    yield (
        "The assigner writes why instances stay pending.",
        lambda c: giving.explain(c, {first: "no worker"}),
    )
    yield (
        "The assigner cancels what can never run.",
        lambda c: canceling.refuse(c, {second: "its task was deleted"}),
    )


def take_back(rows: Scenario) -> Subject:
    worker = rows.worker()
    first, _ = rows.assigned(worker), rows.assigned(worker)
    assert first
    cutoff = rows.now() + timedelta(minutes=1)
    yield (
        "The reaper looks for the queues in which something is late.",
        lambda c: unstarted.late_queues(c, [worker], cutoff),
    )
    yield (
        "It puts back to pending what a worker did not start in time.",
        lambda c: unstarted.take_back(c, unstarted.Queue(worker, 5), cutoff, 1),
    )
    yield (
        "It goes on where the look before ended.",
        lambda c: unstarted.take_back(c, unstarted.Queue(worker, 5), cutoff, 1, (rows.start, first)),
    )
    yield (
        "The reaper, or a worker that stops, puts back what was assigned and is not claimed.",
        lambda c: assignments.take_back_assigned(c, worker, LIMIT),
    )


def poll(rows: Scenario) -> Subject:
    worker = rows.worker()
    rows.assigned(worker)
    queue = polling.Queue(worker)
    yield "A worker asks what it is to run soon.", lambda c: polling.poll(c, queue, rows.start, LIMIT)
    first, second = rows.task(overlap_policy="allow", task_group="flood"), rows.task(overlap_policy="allow")
    crowd = [rows.assigned(worker, first, rows.start - timedelta(minutes=number)) for number in range(9)]
    rows.assigned(worker, second, rows.start)
    yield (
        "Where much is due, it asks of which groups a sample is. Beside a crowd it reads what is of other groups.",
        lambda c: crowds.beside(c, queue, crowd, 5, rows.start),
    )


def claim(rows: Scenario) -> Subject:
    rows.database.read(lambda c: [rows.types.of(c, node.type_id) for node in rows.nodes])  # what is asked once
    worker = rows.worker()
    free, held, bounded = (
        rows.task(overlap_policy="allow"),
        rows.task(),
        rows.task(overlap_policy="allow", max_instances=2),
    )
    first, second, third = rows.assigned(worker, free), rows.assigned(worker, held), rows.assigned(worker, bounded)
    yield (
        "A worker claims what is due within 100 ms: it takes, starts the first nodes, commits, and reads.",
        lambda: rows.claim(worker, first, second),
    )
    yield (
        "The same of a task with max_instances: it asks which slots are free.",
        lambda: rows.claim(worker, third),
    )
    overlapping = rows.assigned(worker, held)
    yield (
        "The same where a predecessor still runs: the unique overlap key refuses it, and it waits or is skipped.",
        lambda: rows.claim(worker, overlapping),
    )


def replace(rows: Scenario) -> Subject:
    worker, task = rows.worker(), rows.task(overlap_policy="replace")
    older, _ = (rows.assigned(worker, task, rows.start - timedelta(minutes=n)) for n in (2, 1))
    yield (
        "A claim cancels a fire for which a newer one of its task waits.",
        lambda: rows.claim(worker, older),
    )


def skip(rows: Scenario) -> Subject:
    worker, task = rows.worker(), rows.task()
    holder = rows.running(worker, task)
    late = rows.assigned(worker, task, rows.now() + timedelta(seconds=1))
    candidates = {late: overlap.SkipCandidate(holder.id, rows.now())}
    yield (
        "A claim skips a fire whose predecessor still ran when it was due.",
        lambda: rows.claim(worker, late, now=rows.now() + timedelta(minutes=1), skip_candidates=candidates),
    )


def report(rows: Scenario) -> Subject:
    worker = rows.worker()
    first, second, third, stepping = (rows.running(worker) for _ in range(4))
    yield (
        "A worker reports plain steps: a node has succeeded, and the next one of its run starts.",
        lambda c: reports.report(c, worker, [stepped(stepping)]),
    )
    yield (
        "A worker reports plain successes: instances first, since they fence, then their last nodes.",
        lambda c: reports.report(c, worker, [succeeded(first)]),
    )
    yield (
        "The same where a run is not the worker's any more: it asks which had ended so.",
        lambda c: reports.report(c, worker + 1, [succeeded(second)]),
    )
    yield (
        "A worker reports what else became of its runs: failures, retries, single nodes.",
        lambda c: reports.report(c, worker, [ended(second, InstanceStatus.FAILED)]),
    )
    running = rows.running(worker, alone := rows.task(overlap_policy="queue"), rows.start - timedelta(minutes=3))
    waiting = [rows.assigned(worker, alone, rows.start - timedelta(minutes=n)) for n in (2, 1)]
    following, _ = rows.database.read(lambda c: runs.read_wanted(c, worker, waiting, rows.types))
    following.sort(key=lambda row: row.id)
    yield (
        "Among others a run of a task that runs one at a time has ended: the worker claims the next one, too.",
        lambda c: handing_on.report(c, worker, [succeeded(running)], following[:1]),
    )
    yield (
        "It has succeeded, and no other is to be reported.",
        lambda c: handing_on.succeed(c, worker, [succeeded(following[0].run())], following[1:]),
    )
    yield (
        "A worker hands back what it will not run.",
        lambda c: reports.hand_back(c, worker, [(third.id, third.attempt)], "it stops"),
    )


def heartbeat(rows: Scenario) -> Subject:
    worker = rows.worker()
    yield "A worker renews its lease at each heartbeat.", lambda c: workers.heartbeat(c, worker, workers.Load(1))
    yield "A worker compares what stands running with what it runs.", lambda c: recovery.held(c, worker)


def census(rows: Scenario) -> Subject:
    worker = rows.worker()
    yield "The reaper asks at each pass who lives and who holds something.", take_census
    yield (
        "The reaper marks dead who is silent beyond its limit.",
        lambda c: workers.bury_silent(c, [worker], "scheduler"),
    )


def loads(rows: Scenario) -> Subject:
    worker = rows.worker()
    yield "The scheduler reads the workers that work may be given to, and what they hold up to a limit.", read_fleet
    yield "It counts long queues further, in turn.", lambda c: assigned_to(c, [worker], LIMIT)


def recover(rows: Scenario) -> Subject:
    worker = rows.worker()
    rows.running(worker)
    rows.running(worker, rows.task(on_worker_lost="fail"))
    rows.begun(worker, rows.task(on_worker_lost="fail"))
    yield "The reaper takes what a dead worker was running.", lambda c: recovery.recover(c, worker, LIMIT)


SUBJECTS: list[Callable[[Scenario], Subject]] = [
    due, acquire, release, locked_tasks, materialize, advance, drop_ahead, pending, give, explain, take_back, poll,
    claim, skip, replace, report, heartbeat, census, loads, recover,
]  # fmt: skip


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.__name__)
def test_the_statements_are_as_they_are_written_down(
    rows: Scenario, subject: Callable[[Scenario], Subject], request: pytest.FixtureRequest
) -> None:
    path = GOLDEN / request.node.callspec.params["rows"] / f"{subject.__name__}.sql"
    written = recorded(rows, subject)
    if getattr(rows.database.engine.dialect, "use_mysql_for_share", False):
        assert _without_blanks(_as_mariadb(written)) == _without_blanks(path.read_text())
        return
    if "ROTA_WRITE_GOLDEN" in os.environ:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written)
    assert written == path.read_text()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.__name__)
def test_a_write_that_is_prepared_has_the_text_that_sqlalchemy_writes(
    mariadb_rows: Scenario, subject: Callable[[Scenario], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    waits = MySQLConnection.later

    def prepare(_: Keeper, connection: Connection, statement: Executable, values: dict[str, Any], later: Later) -> bool:
        texts.append(Prepared(connection, statement, values).text(driver_of(connection), values))
        return False

    def compare(driver: MySQLConnection, sql: str, later: Later) -> None:
        if sql not in ("BEGIN", "COMMIT"):
            assert sql == texts.pop()
        waits(driver, sql, later)

    monkeypatch.setattr(Keeper, "__call__", prepare)
    monkeypatch.setattr(MySQLConnection, "later", compare)
    for _ in executed(mariadb_rows, subject):
        assert not texts


OF_MYSQL = {
    r"FORSHARE": "LOCKINSHAREMODE",
    r"FORUPDATEOFschedule_instance": "FORUPDATE",
    r"FORCEINDEX\(ix_schedule_instance_work\)(?=LEFTOUTERJOINschedule_task)": "",
    r"FORCEINDEX\(ix_schedule_instance_work\)(?=WHERE[^;]+?:horizonANDschedule_instance.priority)": "",
    r"json_storage_size\(": "length(",
    r"json_contains_path\((.+?),:json_contains_path_\d,:json_contains_path_\d\)":
        r"length(replace(replace(\1,:replace_1,:replace_2),:replace_3,:replace_4))<length(\1)",
}  # fmt: skip
"""What MySQL is sent, without blanks, and what MariaDB is sent instead (docs/decisions/0044-mysql.md)."""


def _as_mariadb(written: str) -> str:
    """The statements in MariaDB's words."""
    squeezed = _without_blanks(written)
    for mysql, mariadb in OF_MYSQL.items():
        squeezed = re.sub(mysql, mariadb, squeezed)
    return squeezed


def _without_blanks(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_each_file_has_its_subject() -> None:
    names = {f"{database}/{subject.__name__}.sql" for database in DATABASES for subject in SUBJECTS}
    assert {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.sql")} == names


def recorded(rows: Scenario, subject: Callable[[Scenario], Subject]) -> str:
    """The file of a subject: when each verb is called, and the statements that it issues, each with its function."""
    parts: list[str] = []
    for when, statements in executed(rows, subject):
        parts.append(f"-- {when}")
        for issuer, text in statements:
            named = with_names(text)
            shown = laid_out(named)
            assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", named), "laid out, it is another statement"
            part = f"-- {issuer}\n{shown};"
            parts.append(f"-- {issuer}: as above" if part in parts else part)
    return "\n\n".join(parts) + "\n"


def executed(rows: Scenario, subject: Callable[[Scenario], Subject]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each step of the subject with its statements: who issued it, and its text."""
    statements: list[tuple[str, str]] = []

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        if not text.startswith("BEGIN"):
            statements.append((issuer(), text))

    steps, result = subject(rows), None
    try:
        while True:
            when, work = steps.send(result)
            event.listen(rows.database.engine, "before_cursor_execute", note)
            try:
                result = rows.database.write(work) if signature(work).parameters else work()  # type: ignore[arg-type, call-arg]
            finally:
                event.remove(rows.database.engine, "before_cursor_execute", note)
            yield when, list(statements)
            statements.clear()
    except StopIteration:
        return


def issuer() -> str:
    """The function of the store that is executing a statement: ``locks.take``, ``transitions.giving.give``."""
    frame = sys._getframe()
    while frame is not None:
        _, inside, module = frame.f_code.co_filename.partition(STORE)
        if inside:
            return f"{module.removesuffix('.py').replace('/', '.')}.{frame.f_code.co_qualname.split('.<')[0]}"
        frame = frame.f_back  # type: ignore[assignment]
    raise AssertionError("a statement that is not the store's")
