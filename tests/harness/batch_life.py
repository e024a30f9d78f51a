"""The life of a batch of instances, by the store's verbs, and how many statements each stage of it takes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, text

from rota.shared.database.sqlite import SQLITE
from rota.shared.store import assignments, fires, locks, plans, polling, recovery, reports, run_numbers, unclaimed
from rota.shared.store.transitions import giving
from tests.harness import leases
from tests.harness.claims import claim_on
from tests.harness.scenario import Scenario, ended
from tests.harness.statements import executed

Work = Callable[[Connection], Any]


def counts(rows: Scenario, works: dict[str, Work]) -> dict[str, int]:
    """How many statements each work took, one after the other; on MariaDB as its server counted them."""
    taken = {}
    for name, work in works.items():
        with executed(rows.database.engine) as texts:
            asked = rows.database.write(partial(_questions, work=work))
        own = 1 if rows.database.backend is SQLITE else 3  # BEGIN; and twice the question how many
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
        locks.drop(connection, "token", tasks)
        unclaimed.drop(connection, unclaimed.ahead(connection, tasks, now))
        fires.materialize(connection, [fires.Fire(t.id, now, 5, "{}", worker, rows.nodes) for t in state["read"]])
        plans.advance(connection, [plans.Advance(t, now) for t in state["read"]])

    def acquire(connection: Connection) -> None:
        locks.take(connection, "token", tasks, 2)
        assert len(locks.held(connection, "token", tasks)) == number

    def assign(connection: Connection) -> None:
        page = state["page"]
        assert len(giving.free_pending(connection, [p.id for p in page])) == number
        numbers = run_numbers.last_of(connection, {p.fire for p in page})
        assert set(numbers.values()) == {0}
        giving.give(connection, [(p.id, second, 0, "{}") for p in page])
        fires.pin_nodes(connection, [(p.id, node) for p in page for node in rows.nodes])

    works: dict[str, Work] = {
        "acquire missing": lambda c: leases.acquire(c, "before", tasks, 2),
        "release": lambda c: locks.drop(c, "before", tasks),
        "acquire": acquire,
        "read": remember("read", lambda c: plans.locked(c, "token", tasks)),
        "write": write,
        "take back": lambda c: assignments.take_back_assigned(c, worker, number),
        "page": remember("page", lambda c: assignments.pending(c, now, number)),
        "explain": lambda c: giving.explain(c, {p.id: "no worker" for p in state["page"]}),
        "assign": assign,
        "poll": remember("polled", lambda c: polling.poll(c, polling.Queue(second), now, number)),
        "claim": remember(
            "claim", lambda c: claim_on(c, second, [instance for instance, _, _ in state["polled"].rows], rows.types)
        ),
        "recover": lambda c: recovery.recover(c, second, number),
        "give again": lambda c: giving.give(c, [(p.id, third, 0, None) for p in state["page"]]),
        "claim again": remember("claim", lambda c: claim_on(c, third, [p.id for p in state["page"]], rows.types)),
        "hand back": lambda c: reports.hand_back(c, third, [(r.id, r.attempt) for r in state["claim"]], "x"),
        "give last": lambda c: giving.give(c, [(p.id, last, 0, None) for p in state["page"]]),
        "claim last": remember("claim", lambda c: claim_on(c, last, [p.id for p in state["page"]], rows.types)),
        "report": lambda c: reports.report(c, last, [ended(run) for run in state["claim"]]),
    }
    taken = counts(rows, works)
    assert list(rows.statuses().values()) == ["succeed"] * number
    assert rows.sql("SELECT DISTINCT status FROM schedule_task_node") == [("succeed",)]
    return taken
