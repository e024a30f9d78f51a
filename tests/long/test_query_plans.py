"""Every hot statement reads by its index, and no more rows than its batch needs, however large the tables are (law 7).

Each runs for real, in a transaction that is rolled back, on the tables of tests/harness/big_tables.py.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select, text, update

from rota.shared.database.transactions import Database, opened
from rota.shared.domain.business_keys import Asked, Done, KeyFilter
from rota.shared.domain.chains import Link
from rota.shared.domain.nodes import PlannedNode
from rota.shared.domain.planning import PlannedTask
from rota.shared.domain.states import InstanceStatus, NodeStatus
from rota.shared.domain.task_filter import TaskFilter
from rota.shared.domain.told import Place, Told
from rota.shared.store import (
    assignments,
    backfills,
    business_keys,
    calendars,
    catch_ups,
    census,
    chain_fires,
    chain_runs,
    chain_views,
    chains,
    crowds,
    deadlines,
    fire_rows,
    fires,
    follow_ups,
    found_keys,
    full_lines,
    gone,
    instances,
    invariants,
    last_runs,
    loads,
    locks,
    newest_instances,
    node_types,
    overlap,
    plans,
    polling,
    pools,
    recovery,
    replays,
    reports,
    requests,
    run_numbers,
    runs,
    shared_limits,
    skips,
    spreading,
    standing_keys,
    strays,
    tasks,
    turns,
    unclaimed,
    unstarted,
    weights,
    workers,
)
from rota.shared.store.feeds import FEEDS, MOST_RECENT, Feed
from rota.shared.store.pending import Pending
from rota.shared.store.polling import Queue
from rota.shared.store.tables import schedule_instance, schedule_task, schedule_task_lock
from rota.shared.store.transitions import canceling, claiming, giving, run_again
from rota.shared.store.transitions import spreading as moves
from tests.harness import big_tables, leases
from tests.harness.claims import claim_on
from tests.harness.databases import MariaDBServer, fresh_database, run_sql
from tests.harness.statements import Statement, Step, explained

BATCH = 1_000
LEASE = 2.0
WORKER = big_tables.DEAD_WORKERS + 1
"""A live worker: it holds a tenth of what is assigned, and a tenth of what runs."""

DUE, STALE = "ix_schedule_task_due", "ix_schedule_task_stale"
FIRE, WORK, OVERLAP, UNSUCCESSFUL = (
    "uq_schedule_instance_fire",
    "ix_schedule_instance_work",
    "uq_schedule_instance_overlap_key",
    "ix_schedule_instance_unsuccessful",
)
MAX_WAITING = "ix_schedule_task_max_waiting"
TURN = "ix_schedule_instance_turn"
NODES, STATE = "uq_schedule_task_node_order", "ix_schedule_worker_node_state"
LIVING = "ix_schedule_worker_beat_gmt_dead"
OWNER = "ix_schedule_task_owner_live_name"
PRIMARY = "PRIMARY"

READ_BY_ID = {("schedule_instance", PRIMARY), ("schedule_task", PRIMARY), ("schedule_task_node", PRIMARY)}

LARGE = {
    "schedule_task", "schedule_instance", "schedule_task_node", "schedule_worker_node", "schedule_worker_beat",
    "schedule_task_lock", "is_assigned", "is_running", "newest",
}  # fmt: skip
"""By the names that the statements have for them: three are instances."""

READS_PER_ROW = 6
"""An UPDATE by JSON_TABLE reads its row of the parameter, the row itself and what it looks up beside it; and, as it
changes an index, each row twice more from a temporary table."""


RANGE_FOR_EACH_ROW = "Range checked for each record"


class RolledBack(Exception):
    """Ends a transaction that was only to be watched."""


@dataclass(frozen=True)
class Big:
    """The large tables, and how to watch what the store does with them."""

    database: Database
    now: datetime
    types: node_types.NodeTypeNames = field(default_factory=node_types.NodeTypeNames)

    @property
    def horizon(self) -> datetime:
        return self.now + timedelta(seconds=5)

    def reads(
        self,
        work: Callable[[Connection], Any],
        *,
        rows: int,
        by: set[str],
        before: Callable[[Connection], Any] | None = None,
    ) -> list[Statement]:
        """Assert that `work` reads the large tables by these indexes, all of them, and for `rows` rows no more.

        `before` is done first in the same transaction, unwatched. Returns the statements.
        """
        with explained(self.database.engine) as statements:

            def watched(connection: Connection) -> None:
                if before is not None:
                    before(connection)
                statements.clear()
                work(connection)
                raise RolledBack

            with pytest.raises(RolledBack):
                self.database.write(watched)
        for statement in statements:
            check(statement, rows, by)
        used = {index_of(step, one) for one in statements for step in one.plan if step.table in LARGE}
        assert used >= by, f"of {by} only {used} are used"
        return statements

    def tell(self, ask: Callable[[Connection], Any]) -> Any:
        """What `ask` returns, in a transaction that is rolled back."""
        said = []

        def work(connection: Connection) -> None:
            said.append(ask(connection))
            raise RolledBack

        with pytest.raises(RolledBack):
            self.database.write(work)
        return said[0]


def index_of(step: Step, statement: Statement) -> str | None:
    """The index that a step reads by. For ranges that depend on the row before, the plan names none.

    Then the statement forces one, and the number of rows that were read says whether it was a scan.
    """
    if step.extra.startswith(RANGE_FOR_EACH_ROW) and (forced := re.search(r"FORCE INDEX \((\w+)\)", statement.text)):
        return forced[1]
    return None if step.type == "ALL" else step.key


def check(statement: Statement, rows: int, by: set[str]) -> None:
    for step in statement.plan:
        if step.table in LARGE:
            index = index_of(step, statement)
            assert index is not None, f"a full scan:\n{statement}"
            assert index in by, f"by another index than {by}:\n{statement}"
    assert statement.rows_read <= READS_PER_ROW * rows + 20, f"too many rows for {rows}:\n{statement}"


@pytest.fixture(scope="module")
def big(mariadb_server: MariaDBServer, mariadb_template: list[str]) -> Iterator[Big]:
    with fresh_database(mariadb_server) as url:
        run_sql(url, *mariadb_template)
        now = big_tables.fill(url)
        with opened(url) as database:
            yield Big(database, now)


@pytest.fixture(scope="module")
def due(big: Big) -> list[int]:
    found = big.database.read(lambda c: plans.due(c, big.now, big.horizon, BATCH, LEASE)).ids
    assert len(found) == BATCH
    return found


@pytest.fixture(scope="module")
def planned(big: Big, due: list[int]) -> list[PlannedTask]:
    def ask(connection: Connection) -> list[PlannedTask]:
        leases.acquire(connection, "token", due, 2)
        return plans.locked(connection, "token", due)

    found: list[PlannedTask] = big.tell(ask)
    assert len(found) == BATCH
    return found


@pytest.fixture(scope="module")
def nodes(big: Big) -> list[PlannedNode]:
    return big.database.read(node_types.catalog).planned(["REPORT_EXTRACT", "REPORT_SEND"]) or []


@pytest.fixture(scope="module")
def page(big: Big) -> list[Pending]:
    found = big.database.read(lambda c: assignments.pending(c, big.horizon, BATCH))
    assert len(found) == BATCH
    return found


@pytest.fixture(scope="module")
def assigned(big: Big) -> list[int]:
    polled = big.database.read(lambda c: polling.poll(c, Queue(WORKER), big.horizon, BATCH))
    found = [instance for instance, _, _ in polled.rows]
    assert len(found) == big_tables.ASSIGNED // big_tables.LIVE_WORKERS
    return found


@pytest.fixture(scope="module")
def running(big: Big) -> list[reports.Report]:
    """Reports that end what the worker runs."""

    def report(instance: int, attempt: int, connection: Connection) -> reports.Report:
        done = [
            reports.NodeReport(node.id, NodeStatus.SUCCEED, "1", big.now, big.now)
            for node in instances.nodes(connection, instance)
        ]
        end = reports.InstanceReport(InstanceStatus.SUCCEED, "1", None, big.now, big.now, 0)
        return reports.Report(instance, attempt, done, end)

    found = big.database.read(lambda c: [report(i, attempt, c) for i, attempt, _ in recovery.held(c, WORKER)])
    assert len(found) == big_tables.RUNNING // big_tables.LIVE_WORKERS
    return found


def test_the_tables_are_as_large_as_they_claim(big: Big) -> None:
    statement = text("SELECT status, count(*) FROM schedule_instance GROUP BY status")
    counted: dict[str, int] = dict(big.database.read(lambda c: list(c.execute(statement))))
    assert sum(counted.values()) == big_tables.INSTANCES
    assert (counted["pending"], counted["assigned"], counted["running"]) == (5_000, 4_000, 500)
    assert big.database.read(lambda c: c.scalar(text("SELECT count(*) FROM schedule_task"))) == big_tables.TASKS


# The materializer


@pytest.mark.parametrize("known", [False, True], ids=["all kinds", "known kinds"])
def test_due_tasks_and_stale_plans_are_found_by_index(big: Big, *, known: bool) -> None:
    def ask(connection: Connection) -> None:
        assert len(plans.due(connection, big.now, big.horizon, BATCH, LEASE, known=known).ids) == BATCH

    check_due(big.reads(ask, rows=BATCH, by={DUE, STALE, PRIMARY}))


def check_due(statements: list[Statement]) -> None:
    """Tasks are found in their index alone, and for each its lock by its id."""
    steps = [step for statement in statements for step in statement.plan]
    assert all("Using index" in step.extra for step in steps if step.table == "schedule_task")
    assert all((step.table == "schedule_task_lock") == (step.key == PRIMARY) for step in steps)


def test_a_page_of_the_catch_up_looks_up_each_task_and_the_fire_that_was_written_last(big: Big) -> None:
    stretches = text(
        "INSERT INTO schedule_catch_up (schedule_task_id, next_fire, last_fire, written_fire, plan_inputs)"
        " SELECT seq, :now, :now, :now, '[]' FROM seq_1_to_1000"
    )
    big.reads(
        lambda c: catch_ups.page(c, 0, 200),
        rows=200,
        by={FIRE, PRIMARY},
        before=lambda c: c.execute(stretches, {"now": big.now}),
    )


MARKS = text(
    "INSERT INTO schedule_follow_up (schedule_task_id, schedule_instance_id, instance_gmt_create, what)"
    " SELECT schedule_task_id, id, gmt_create, 'fixed_delay' FROM schedule_instance ORDER BY id LIMIT 3000"
)


def test_a_page_of_marks_looks_up_each_instance_and_each_task_and_no_more(big: Big) -> None:
    big.reads(lambda c: follow_ups.page(c, 0, 200), rows=200, by={PRIMARY}, before=lambda c: c.execute(MARKS))


def test_the_marked_runs_of_some_tasks_are_found_by_the_task(big: Big) -> None:
    tasks_of = big.tell(
        lambda c: c.scalars(text("SELECT DISTINCT schedule_task_id FROM schedule_instance ORDER BY id LIMIT 20")).all()
    )

    def ask(connection: Connection) -> None:
        assert follow_ups.of_tasks(connection, tasks_of)

    statements = big.reads(ask, rows=3_000, by={PRIMARY}, before=lambda c: c.execute(MARKS))
    assert all(
        step.key == "ix_schedule_follow_up_task" for s in statements for step in s.plan if "follow" in step.table
    )


def test_fires_are_marked_by_their_key(big: Big) -> None:
    there = big.tell(
        lambda c: c.execute(
            text("SELECT schedule_task_id, schedule_datetime FROM schedule_instance WHERE run_number = 0 LIMIT 200")
        ).all()
    )
    big.reads(lambda c: follow_ups.mark(c, map(tuple, there)), rows=200, by={FIRE})


def test_what_a_handler_asks_for_is_written_by_the_ids_of_the_runs_that_asked(big: Big) -> None:
    ids = big.tell(lambda c: c.scalars(text("SELECT id FROM schedule_instance ORDER BY id LIMIT 200")).all())
    big.reads(lambda c: run_again.ask(c, WORKER, [(i, 1, big.now) for i in ids]), rows=200, by={PRIMARY})


def test_a_page_of_backfills_reads_those_that_are_open_and_looks_up_what_is_in_flight(big: Big) -> None:
    backfills_of = text(
        "INSERT INTO schedule_backfill (schedule_task_id, status, from_at, to_at, in_flight, in_flight_fires)"
        " SELECT 1 + seq % 7, IF(seq <= 20, 'running', 'done'), :now, :now, 0,"
        " JSON_ARRAY('2026-11-19 02:00:00.000000', '2026-11-19 02:01:00.000000') FROM seq_1_to_3000"
    )

    def ask(connection: Connection) -> None:
        found = backfills.page(connection, 0, 20)
        assert len(found) == 20
        backfills.in_flight(connection, found[0].backfill)
        backfills.past(connection, found[0], found[0].backfill.in_flight)

    statements = big.reads(ask, rows=60, by={FIRE, PRIMARY}, before=lambda c: c.execute(backfills_of, {"now": big.now}))
    keys = {step.key for statement in statements for step in statement.plan if step.table == "schedule_backfill"}
    assert keys == {"ix_schedule_backfill_open"}


USES = text(
    "INSERT INTO schedule_calendar_use (schedule_task_id, calendar, edition)"
    " SELECT seq, IF(seq % 2, 'de', 'cn'), IF(seq % 1000 < 2, 'old', 'new') FROM seq_1_to_20000"
)


def test_plans_that_were_made_with_another_edition_of_a_calendar_are_found_without_reading_the_others(big: Big) -> None:
    def before(connection: Connection) -> None:
        connection.execute(USES)
        named = text('UPDATE schedule_task SET trigger_spec = \'{"calendar": "de"}\' WHERE id <= 20000')
        connection.execute(named)
        connection.execute(text("UPDATE schedule_task SET planned_inputs = plan_inputs WHERE id <= 20000"))

    def ask(connection: Connection) -> None:
        using, others = calendars.outdated(connection, "de", "new", BATCH)
        assert (len(using), others) == (20, [])
        assert calendars.outdated(connection, "fr", "new", BATCH) == ([], [])
        calendars.mark(connection, using)
        assert calendars.outdated(connection, "de", "new", BATCH) == ([], [])

    big.reads(ask, rows=20, by={PRIMARY}, before=before)


def test_what_a_batch_of_tasks_was_planned_with_is_read_and_written_by_their_ids(big: Big) -> None:
    some = range(1, 201)

    def ask(connection: Connection) -> None:
        assert len(calendars.editions(connection, some)) == len(some)
        calendars.use(connection, [(task, "de", "newer") for task in some])

    big.reads(ask, rows=2 * len(some), by=set(), before=lambda c: c.execute(USES))


def test_the_stretches_in_which_a_moment_lies_are_found_by_their_key(big: Big) -> None:
    stretches = text(
        "INSERT INTO schedule_skip (schedule_task_id, reason, first_fire, last_fire, fires)"
        " SELECT 7, 'off', :now + INTERVAL seq * 2 MINUTE, :now + INTERVAL seq * 2 MINUTE, 1 FROM seq_1_to_1000"
    )

    def ask(connection: Connection) -> None:
        assert len(skips.covering(connection, 7, big.now + timedelta(minutes=1980))) == 1
        assert len(skips.newest(connection, 7, 5)) == 5

    big.reads(ask, rows=20, by=set(), before=lambda c: c.execute(stretches, {"now": big.now}))


def test_tasks_that_others_have_leased_are_passed_over_in_the_index(big: Big, due: list[int]) -> None:
    free, leased = due[:10], due[10:]

    def lease(connection: Connection) -> None:
        assert len(leases.acquire(connection, "other", leased, LEASE)) == len(leased)

    def ask(connection: Connection) -> None:
        found = plans.due(connection, big.now, big.horizon, BATCH, LEASE).ids
        assert found[: len(free)] == free
        assert not set(found) & set(leased)

    check_due(big.reads(ask, before=lease, rows=2 * BATCH, by={DUE, STALE, PRIMARY}))


@pytest.mark.parametrize("locks_there", [True, False], ids=["locks", "no locks yet"])
def test_many_due_tasks_are_found_without_reading_more_than_a_batch_of_them(big: Big, *, locks_there: bool) -> None:
    def let_many_be_due(connection: Connection) -> None:
        many = update(schedule_task).where(schedule_task.c.id.between(1, 20 * BATCH))
        connection.execute(many.values(next_fire_at=big.now))
        if not locks_there:
            connection.execute(delete(schedule_task_lock).where(schedule_task_lock.c.schedule_task_id < 20 * BATCH))

    def ask(connection: Connection) -> None:
        assert len(plans.due(connection, big.now, big.horizon, BATCH, LEASE).ids) == BATCH

    check_due(big.reads(ask, before=let_many_be_due, rows=BATCH, by={DUE, STALE, PRIMARY}))


def test_looking_for_due_tasks_reads_nothing_when_none_is(big: Big) -> None:
    past = big.now - timedelta(days=1)

    def replan(connection: Connection) -> None:
        stale = update(schedule_task).where(schedule_task.c.plan_stale == 1)
        connection.execute(stale.values(planned_inputs=schedule_task.c.plan_inputs))

    def ask(connection: Connection) -> None:
        assert plans.due(connection, past, past, BATCH, LEASE).ids == []

    [statement] = big.reads(ask, before=replan, rows=0, by={DUE, STALE, PRIMARY})
    assert statement.rows_read <= 9, "a look into each of three ranges, and the end of each empty table between"


def test_leases_are_taken_and_released_by_the_tasks_ids(big: Big, due: list[int]) -> None:
    def take(connection: Connection) -> set[int]:
        return leases.acquire(connection, "token", due, 2)

    big.reads(take, rows=BATCH, by={PRIMARY})
    big.reads(lambda c: locks.release(c, "token", due), before=take, rows=BATCH, by={PRIMARY})
    big.reads(lambda c: locks.kept(c, "token", [*due, 1]), before=take, rows=BATCH, by={PRIMARY})


def test_lock_rows_that_are_missing_are_found_missing_by_their_ids(big: Big, due: list[int]) -> None:
    def forget(connection: Connection) -> None:
        connection.execute(text("DELETE FROM schedule_task_lock WHERE schedule_task_id % 100 = 7"))

    big.reads(lambda c: leases.acquire(c, "token", due, 2), before=forget, rows=BATCH, by={PRIMARY})


def test_leased_tasks_are_read_again_by_id(big: Big, due: list[int]) -> None:
    big.reads(
        lambda c: plans.locked(c, "token", due),
        before=lambda c: leases.acquire(c, "token", due, 2),
        rows=BATCH,
        by={PRIMARY},
    )


def test_plans_move_on_by_id(big: Big, planned: list[PlannedTask]) -> None:
    advances = [plans.Advance(task, big.now + timedelta(days=1)) for task in planned]
    [moved, replanned] = big.reads(lambda c: plans.advance(c, advances), rows=BATCH, by={PRIMARY})
    assert "ELT(" in moved.text
    assert "JSON_TABLE" in replanned.text
    plain = [a for a in advances if not a.task.terms.is_stale]
    [one] = big.reads(lambda c: plans.advance(c, plain[:1]), rows=1, by={PRIMARY})
    assert "ELT(" in one.text


def test_what_an_old_plan_put_ahead_is_found_without_its_tasks_history(big: Big, due: list[int]) -> None:
    busy = [*range(1, 51)]
    big.reads(lambda c: unclaimed.drop(c, unclaimed.ahead(c, busy, big.now)), rows=len(busy), by={FIRE, PRIMARY, NODES})
    big.reads(lambda c: unclaimed.drop(c, unclaimed.ahead(c, due, big.now)), rows=BATCH, by={FIRE, PRIMARY, NODES})


def test_fires_and_their_nodes_are_written_without_a_scan(
    big: Big, planned: list[PlannedTask], nodes: list[PlannedNode]
) -> None:
    batch = [fires.Fire(task.id, big.now, 5, None, WORKER, nodes) for task in planned]
    big.reads(lambda c: fires.materialize(c, batch), rows=len(nodes) * BATCH, by={FIRE})
    big.reads(lambda c: fires.materialize(c, batch[:1]), rows=len(nodes), by={FIRE})


# The assigner and the reaper


def test_whether_anything_is_pending_is_read_from_the_index_alone(big: Big) -> None:
    def none_yet(connection: Connection) -> None:
        connection.execute(
            text("UPDATE schedule_instance SET due_at = :later WHERE status = 'pending'"),
            {"later": big.horizon + timedelta(hours=1)},
        )

    for before in (None, none_yet):
        [statement] = big.reads(
            lambda c: assignments.look(c, big.horizon), before=before, rows=2, by={WORK, MAX_WAITING}
        )
        assert all("Using index" in step.extra for step in statement.plan if step.table in LARGE)


def test_looking_for_bounded_lines_reads_the_tasks_with_a_bound_alone(big: Big) -> None:
    def bounded(connection: Connection) -> None:
        connection.execute(text("UPDATE schedule_task SET max_waiting = 3, overlap_policy = 'queue' WHERE id <= 300"))

    look = partial(full_lines.without_a_place, due=big.horizon)
    big.reads(look, before=bounded, rows=300, by={MAX_WAITING})


def test_rows_that_sql_inserted_are_adopted_by_index(big: Big) -> None:
    big.reads(lambda c: assignments.orphans(c, BATCH), rows=500, by={WORK})
    big.reads(lambda c: giving.adopt(c, assignments.orphans(c, BATCH)), rows=500, by={WORK, PRIMARY})


def test_the_first_page_of_what_is_pending_reads_no_more_than_a_page(big: Big) -> None:
    [first] = big.reads(lambda c: assignments.pending(c, big.horizon, BATCH), rows=BATCH, by={WORK, PRIMARY})
    assert "filesort" not in str(first)


def test_a_later_page_of_what_is_pending_starts_where_the_last_ended(big: Big, page: list[Pending]) -> None:
    later = big.reads(
        lambda c: assignments.pending(c, big.horizon, BATCH, page[-1].cursor), rows=BATCH, by={WORK, PRIMARY}
    )
    assert not any("filesort" in str(statement) for statement in later)


def test_where_the_instances_of_a_page_stand_is_read_as_the_page_is(big: Big, page: list[Pending]) -> None:
    later = big.reads(lambda c: assignments.standing(c, big.horizon, BATCH, page[-1].cursor), rows=BATCH, by={WORK})
    assert not any("filesort" in str(statement) for statement in later)


def test_a_page_among_thousands_that_are_due_at_one_moment_starts_where_the_last_ended(big: Big) -> None:
    def at_once(connection: Connection) -> None:
        connection.execute(
            text("UPDATE schedule_instance SET due_at = :now, priority = 5 WHERE status = 'pending'"),
            {"now": big.now},
        )

    def some_later_page(connection: Connection) -> None:
        status = schedule_instance.c.status == "pending"
        last = connection.scalar(
            select(schedule_instance.c.id).where(status).order_by(schedule_instance.c.id).offset(3_999).limit(1)
        )
        statements.clear()
        assert last is not None
        assert len(assignments.pending(connection, big.horizon, 100, (5, big.now, last))) == 100

    with explained(big.database.engine) as statements:

        def watched(connection: Connection) -> None:
            at_once(connection)
            some_later_page(connection)
            raise RolledBack

        with pytest.raises(RolledBack):
            big.database.write(watched)
    [statement] = statements
    check(statement, 100, {WORK, PRIMARY})


def test_run_numbers_are_found_without_the_tasks_history(big: Big, page: list[Pending]) -> None:
    asked = {p.fire for p in page} | {(big_tables.BUSY_TASK, big.now, "")}
    [statement] = big.reads(lambda c: run_numbers.last_of(c, asked), rows=BATCH, by={FIRE})
    assert "Using index" in statement.plan[-1].extra


def test_full_slots_are_found_by_their_key(big: Big, page: list[Pending]) -> None:
    slots = {p.task_id: 3 for p in page}
    big.reads(lambda c: overlap.full(c, slots), rows=BATCH, by={"uq_schedule_instance_overlap_key"})


def test_slots_that_are_kept_for_no_thread_are_found_among_those_that_are_taken(big: Big) -> None:
    taken = 500
    big.reads(strays.find_slots, rows=taken, by={"uq_schedule_instance_overlap_key"})


@pytest.mark.parametrize("of_one_task", [False, True], ids=["of many tasks", "thousands of one"])
def test_which_instance_is_the_oldest_that_waits_is_read_from_the_index_of_turns(
    big: Big, *, of_one_task: bool
) -> None:
    task = str(big_tables.BUSY_TASK) if of_one_task else "schedule_task_id"

    def all_wait_in_turn(connection: Connection) -> None:
        connection.execute(
            text(
                f"UPDATE schedule_instance SET overlap_slot = 0, schedule_task_id = {task},"
                " fire_key = id WHERE status = 'pending'"
            )
        )

    asked = range(big_tables.BUSY_TASK, big_tables.BUSY_TASK + 500)
    for ask in (
        lambda c: turns.last_in_turn(c, dict.fromkeys(asked, 2)),
        lambda c: turns.newest_fires(c, asked, big.now),
    ):
        [statement] = big.reads(ask, before=all_wait_in_turn, rows=len(asked), by=set())
        assert [step.key for step in statement.plan if step.table == "waiting"] == [TURN]


def test_instances_are_given_explained_and_refused_by_id(
    big: Big, page: list[Pending], nodes: list[PlannedNode]
) -> None:
    given = [(p.id, WORKER, 1, None) for p in page]
    reasons = {p.id: "no worker is live" for p in page}
    pinned = [(p.id, node) for p in page for node in nodes]
    big.reads(lambda c: giving.free_pending(c, list(reasons)), rows=BATCH, by={PRIMARY})
    big.reads(lambda c: giving.give(c, given), rows=BATCH, by={PRIMARY})
    big.reads(
        lambda c: fires.pin_nodes(c, pinned),
        before=lambda c: giving.give(c, given),
        rows=len(pinned),
        by={PRIMARY},
    )
    big.reads(lambda c: giving.explain(c, reasons), rows=BATCH, by={PRIMARY})
    big.reads(lambda c: canceling.refuse(c, reasons), rows=BATCH, by={PRIMARY, NODES})


def test_the_fleet_is_read_without_the_dead_and_what_it_holds_from_the_index_alone(big: Big) -> None:
    active = big_tables.ASSIGNED + big_tables.RUNNING
    [fleet] = big.reads(loads.fleet, rows=active, by={WORK, STATE, PRIMARY})
    assert all("Using index" in step.extra for step in fleet.plan if step.key == WORK)
    assert fleet.rows_read <= 2 * active + 10 * big_tables.LIVE_WORKERS
    [fleet] = big.reads(lambda c: loads.fleet(c, 50), rows=active, by={WORK, STATE, PRIMARY})
    assert fleet.rows_read <= big_tables.RUNNING + 60 * big_tables.LIVE_WORKERS


def test_long_queues_are_counted_up_to_a_limit_from_the_index_alone(big: Big) -> None:
    live = range(WORKER, WORKER + big_tables.LIVE_WORKERS)
    [statement] = big.reads(lambda c: loads.assigned_to(c, live, 100), rows=100 * len(live), by={WORK, PRIMARY})
    assert all("Using index" in step.extra for step in statement.plan if step.key == WORK)
    assert statement.rows_read <= 110 * len(live)


def test_assignments_that_were_not_started_are_taken_back_by_index(big: Big) -> None:
    live = range(WORKER, WORKER + big_tables.LIVE_WORKERS)
    soon, past = big.now + timedelta(seconds=60), big.now - timedelta(seconds=60)
    queues = [unstarted.Queue(worker, priority) for worker in live for priority in range(10)]
    for cutoff in (soon, past):
        look_for = partial(unstarted.late_queues, workers=live, cutoff=cutoff)
        [statement] = big.reads(look_for, rows=len(queues), by={WORK})
        assert all("Using index" in step.extra for step in statement.plan if step.key == WORK)
    assert big.database.read(lambda c: unstarted.late_queues(c, live, soon)) == queues
    assert big.database.read(lambda c: unstarted.late_queues(c, live, past)) == []
    found, place = big.database.read(lambda c: unstarted.overdue(c, queues[0], soon, 20))
    assert len(found) == 20
    for after in (unstarted.FRONT, place):
        look = partial(unstarted.take_back, queue=queues[0], cutoff=soon, limit=20, after=after)
        big.reads(look, rows=20, by={WORK, PRIMARY})
    big.reads(partial(unstarted.take_back, queue=queues[0], cutoff=past, limit=20), rows=0, by={WORK})


def test_assignments_of_a_worker_are_taken_back_by_index(big: Big, assigned: list[int]) -> None:
    big.reads(lambda c: assignments.take_back_assigned(c, WORKER, BATCH), rows=len(assigned), by={WORK, PRIMARY})


def test_what_a_lost_worker_ran_is_recovered_by_index(big: Big, running: list[reports.Report]) -> None:
    big.reads(lambda c: recovery.recover(c, WORKER, BATCH), rows=2 * len(running), by={WORK, PRIMARY, NODES})


def test_the_silent_are_buried_by_their_ids(big: Big) -> None:
    big.reads(lambda c: workers.bury_silent(c, [WORKER, WORKER + 1], "test"), rows=2, by={PRIMARY})


def test_what_is_long_gone_is_found_by_index_a_page_at_a_time(big: Big) -> None:
    def long_ago(connection: Connection) -> None:
        connection.execute(
            text("UPDATE schedule_worker_beat SET last_beat = '2020-01-01', gmt_dead = '2020-01-01' WHERE gmt_dead > 0")
        )

    day, page = 86_400, 100
    big.reads(lambda c: gone.find_workers(c, 0, page, day), rows=0, by={LIVING, PRIMARY, WORK})
    big.reads(lambda c: gone.find_workers(c, 0, page, day), before=long_ago, rows=3 * page, by={LIVING, STATE, WORK})
    big.reads(lambda c: gone.find_locks(c, 50_000, page, day // 2), rows=page, by={PRIMARY})
    dead = [*range(1, page)]
    big.reads(lambda c: gone.remove_workers(c, dead, day), before=long_ago, rows=3 * page, by={PRIMARY, STATE, WORK})

    def versions(connection: Connection) -> None:
        connection.execute(
            text(
                "INSERT INTO schedule_task_type_version (category, version, nodes, gmt_modified)"
                " SELECT CONCAT('TYPE_', seq % 50), seq, '[]', '2020-01-01' + INTERVAL seq DAY FROM seq_1_to_1000"
            )
        )

    of_live = page * big_tables.LIVE_WORKERS
    big.reads(lambda c: gone.find_versions(c, 100, page, day), before=versions, rows=of_live, by={STATE})
    locked = [*range(50_000, 50_000 + page)]
    big.reads(lambda c: gone.remove_locks(c, locked, day // 2), rows=page, by={PRIMARY})


def test_the_census_reads_the_living_and_goes_from_holder_to_holder(big: Big) -> None:
    known = big.database.read(census.take).known
    [statement] = big.reads(
        lambda c: census.take(c, known), rows=10 * big_tables.LIVE_WORKERS, by={STATE, PRIMARY, LIVING, WORK}
    )
    assert statement.rows_read <= 20 * big_tables.LIVE_WORKERS


# The worker


def test_a_poll_reads_what_it_returns_from_the_index_alone(big: Big) -> None:
    [statement] = big.reads(lambda c: polling.poll(c, Queue(WORKER), big.horizon, 100), rows=100, by={WORK})
    assert statement.rows_read <= 3 * 100 + 20, (
        "each once in the index, and in the temporary tables that join their ids"
    )
    [of_index] = [step for step in statement.plan if step.table == "schedule_instance"]
    assert "Using index" in of_index.extra
    assert "filesort" not in of_index.extra


def crowded(connection: Connection) -> None:
    """Most of what the worker was given is of one group."""
    connection.execute(text("UPDATE schedule_task SET task_group = IF(id % 7 = 0, NULL, 'flood')"))


def test_what_waits_beside_a_crowd_is_read_from_what_the_worker_has(big: Big) -> None:
    queue, held = Queue(WORKER), "SELECT COUNT(*) FROM schedule_instance WHERE status = 'assigned'"
    number = big.database.read(lambda c: c.scalar(text(f"{held} AND schedule_worker_node_id = {WORKER}")))
    polled = big.database.read(lambda c: polling.poll(c, queue, big.horizon, BATCH)).rows
    ((most, _),) = Counter(priority for _, _, priority in polled).most_common(1)
    waiting = [instance for instance, _, priority in polled if priority == most]

    def ask(connection: Connection) -> None:
        assert crowds.beside(connection, queue, waiting, most, big.horizon).members

    assert isinstance(number, int)
    sample, others, *_ = big.reads(ask, rows=2 * number, by={PRIMARY, WORK}, before=crowded)
    assert sample.rows_read <= 3 * crowds.SAMPLED
    assert "filesort" not in str(others)


def test_what_came_last_behind_a_flood_is_read_from_the_end_of_the_index(big: Big) -> None:
    [statement] = big.reads(lambda c: assignments.newest_pending(c, 5, big.horizon, 100), rows=100, by={WORK, PRIMARY})
    assert "filesort" not in str(statement)


def test_a_claim_reads_its_batch_and_no_more(big: Big, assigned: list[int]) -> None:
    by = {PRIMARY, NODES}
    statements = big.reads(lambda c: claim_on(c, WORKER, assigned, big.types), rows=2 * len(assigned), by=by)
    holders = [step for statement in statements for step in statement.plan if step.table == "holder"]
    assert {(step.type, step.key) for step in holders} == {("eq_ref", OVERLAP), ("unique_subquery", OVERLAP)}
    assert len(holders) == 2


def test_what_is_wanted_is_found_by_id_with_its_nodes_by_theirs(big: Big, assigned: list[int]) -> None:
    statements = big.reads(
        lambda c: claim_on(c, WORKER, assigned, big.types),
        before=lambda c: [big.types.of(c, type_id) for type_id in (1, 2)],
        rows=2 * len(assigned),
        by={PRIMARY, NODES},
    )
    [wanted] = [s for s in statements if s.text.startswith("SELECT") and "schedule_task_node.id" in s.text]
    assert [(step.table, step.key) for step in wanted.plan] == [
        ("schedule_instance", PRIMARY),
        ("schedule_task", PRIMARY),
        ("schedule_task_node", NODES),
        ("holder", OVERLAP),
        ("parent", PRIMARY),  # of shards alone
    ]


def test_a_claim_of_one_reads_one(big: Big, assigned: list[int]) -> None:
    for instance in assigned[:3]:
        reads = partial(claim_on, worker=WORKER, ids=[instance], types=big.types)
        big.reads(reads, rows=2, by={PRIMARY, NODES})


@pytest.mark.parametrize("number", [None, 1], ids=["a batch", "one"])
def test_a_claim_nearby_updates_what_it_has_read_by_the_ids(big: Big, assigned: list[int], number: int | None) -> None:
    ids = assigned[:number]

    def claim(connection: Connection) -> None:
        ready = [row for row in rows if row.terms.may_run]
        nodes = [row.first_node for row in ready if row.first_node is not None]
        assert len(nodes) == len(ready) == len(ids)
        half = len(nodes) // 2
        slots = [(row.id, None, row.attempt) for row in ready]
        claiming.claim_read(connection, WORKER, slots, nodes[half:], nodes[:half])

    rows, _ = big.tell(lambda c: runs.read_free(c, WORKER, ids, big.types))
    claimed, *started = big.reads(claim, rows=len(ids), by={PRIMARY})
    assert claimed.text.startswith("UPDATE IGNORE schedule_instance FORCE INDEX (PRIMARY)")
    assert len(started) == min(len(ids), 2)
    assert all(one.text.startswith("UPDATE schedule_task_node FORCE INDEX (PRIMARY)") for one in started)
    assert all((step.table, step.key) in READ_BY_ID for one in (claimed, *started) for step in one.plan)


def test_what_a_claim_nearby_wants_is_read_by_id_with_its_nodes_by_theirs(big: Big, assigned: list[int]) -> None:
    [wanted] = big.reads(
        lambda c: runs.read_free(c, WORKER, assigned, big.types),
        before=lambda c: [big.types.of(c, type_id) for type_id in (1, 2)],
        rows=2 * len(assigned),
        by={PRIMARY, NODES},
    )
    assert "LOCK IN SHARE MODE SKIP LOCKED" in wanted.text
    assert [(step.table, step.key) for step in wanted.plan] == [
        ("schedule_instance", PRIMARY),
        ("schedule_task", PRIMARY),
        ("schedule_task_node", NODES),
        ("counted", NODES),
        ("parent", PRIMARY),  # of shards alone
    ]


def test_what_a_worker_holds_is_read_by_index(big: Big, running: list[reports.Report]) -> None:
    big.reads(lambda c: recovery.held(c, WORKER), rows=len(running), by={WORK})
    ids = [report.instance_id for report in running]
    big.reads(lambda c: recovery.why_canceled(c, ids), rows=len(ids), by={PRIMARY})


def test_a_report_reads_its_batch_and_no_more(big: Big, running: list[reports.Report]) -> None:
    big.reads(lambda c: reports.report(c, WORKER, running), rows=2 * len(running), by={PRIMARY})
    big.reads(lambda c: reports.report(c, WORKER, running[:1]), rows=2, by={PRIMARY})


def test_a_report_of_plain_successes_updates_its_rows_by_their_ids(big: Big, running: list[reports.Report]) -> None:
    plain = [replace(report, nodes=report.nodes[-1:]) for report in running]
    assert all(report.is_plain_success for report in plain)
    instances_updated, nodes_updated = big.reads(
        lambda c: reports.report(c, WORKER, plain), rows=len(plain), by={PRIMARY}
    )
    assert "ELT(" in instances_updated.text
    assert "ELT(" in nodes_updated.text
    big.reads(lambda c: reports.report(c, WORKER, plain[:1]), rows=1, by={PRIMARY})
    lost = [*plain[1:], replace(plain[0], attempt=7)]
    big.reads(lambda c: reports.report(c, WORKER, lost), rows=len(plain), by={PRIMARY})


def test_a_hand_back_reads_its_batch_and_no_more(big: Big, running: list[reports.Report]) -> None:
    fences = [(report.instance_id, report.attempt) for report in running]
    big.reads(lambda c: reports.hand_back(c, WORKER, fences, "x"), rows=2 * len(running), by={PRIMARY, NODES})
    back = [instance for instance, _ in fences]
    big.reads(
        lambda c: fires.unpin(c, back, attempt=fences[0][1]),
        before=lambda c: reports.hand_back(c, WORKER, fences, "x"),
        rows=2 * len(running),
        by={PRIMARY, NODES},
    )


def test_a_heartbeat_reads_one_row(big: Big) -> None:
    [statement] = big.reads(lambda c: workers.heartbeat(c, WORKER, workers.Load(3)), rows=1, by={PRIMARY})
    assert statement.rows_read == 1


# What people ask


OF_WHAT_IS_ACTIVE = {
    "waiting-nodes", "assigned-nodes", "running-nodes", "pending-worker", "assigned-worker", "running-worker",
    "numbered", "not-started",
}  # fmt: skip


def test_the_invariants_of_what_waits_or_runs_are_checked_without_reading_what_has_ended(big: Big) -> None:
    active = big_tables.INSTANCES - big_tables.ENDED
    for invariant in invariants.INVARIANTS:
        if invariant.name in OF_WHAT_IS_ACTIVE:
            with explained(big.database.engine) as statements:
                assert big.database.read(partial(invariants.breaches, invariant=invariant)) == []
            [statement] = [s for s in statements if s.text != "BEGIN"]
            assert statement.plan[0].key == WORK, str(statement)
            assert statement.rows_read <= 3 * active, str(statement)


def test_the_newest_instances_are_read_backwards_and_no_further(big: Big) -> None:
    for after in (None, 1, big_tables.INSTANCES - 1_000):
        big.reads(partial(instances.listed, limit=50, after_id=after), rows=50, by={PRIMARY})


@pytest.mark.parametrize("task", [big_tables.BUSY_TASK, 5_000])
def test_the_newest_instances_of_a_task_are_read_without_its_history(big: Big, task: int) -> None:
    big.reads(lambda c: instances.listed(c, 50, task_id=task), rows=50, by={FIRE, PRIMARY})


@pytest.mark.parametrize(
    ("status", "by", "rows"),
    [
        (None, {FIRE, OWNER}, 5 * 50),
        ("succeed", {FIRE, OWNER}, 5 * 50),
        ("failed", {UNSUCCESSFUL, OWNER}, newest_instances.PAGE),
        ("running", {WORK, PRIMARY}, big_tables.RUNNING),
    ],
)
def test_the_newest_instances_of_an_owners_tasks_are_read_without_what_has_another_status(
    big: Big, status: str | None, by: set[str], rows: int
) -> None:
    some = update(schedule_task).where(schedule_task.c.id.between(5_000, 5_004)).values(owner="ann")
    ask = partial(newest_instances.of_tasks, chosen=TaskFilter(owner="ann"), limit=50, status=status)
    big.reads(ask, rows=rows, by=by, before=lambda c: c.execute(some))


@pytest.mark.parametrize("status", ["failed", "canceled"])
def test_the_newest_that_failed_are_read_without_those_that_did_not(big: Big, status: str) -> None:
    big.reads(lambda c: instances.listed(c, 50, status=status), rows=50, by={UNSUCCESSFUL, PRIMARY})


@pytest.mark.parametrize("status", ["pending", "assigned", "running", "succeed"])
def test_the_newest_of_another_status_cost_no_more_than_what_is_active(big: Big, status: str) -> None:
    active = big_tables.INSTANCES - big_tables.ENDED
    with explained(big.database.engine) as statements:
        assert len(big.database.read(lambda c: instances.listed(c, 50, status=status))) == 50
    assert statements[0].rows_read <= active + 200, str(statements[0])


def test_following_costs_what_happens_and_not_what_exists(big: Big) -> None:
    newest = big.database.read(instances.newest_id)
    assert newest == big_tables.INSTANCES
    watched = range(newest - 200, newest - 100)
    big.reads(lambda c: instances.ended_since(c, newest - 100, watched, 100), rows=200, by={PRIMARY})
    big.reads(lambda c: instances.live_ids(c, 100), rows=100, by={WORK})
    [statement] = big.reads(instances.newest_id, rows=1, by=set())
    assert statement.rows_read <= 1


def test_tasks_are_found_and_listed_by_name(big: Big) -> None:
    by = {"uq_schedule_task_live_name"}
    big.reads(lambda c: tasks.find(c, "task-77"), rows=1, by=by)
    big.reads(lambda c: tasks.listed(c, 50), rows=50, by=by)


@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        (TaskFilter(owner="ann"), OWNER),
        (TaskFilter(group="night"), "ix_schedule_task_task_group_live_name"),
    ],
)
def test_tasks_of_an_owner_or_a_group_are_found_by_an_index(big: Big, chosen: TaskFilter, index: str) -> None:
    set_some = update(schedule_task).where(schedule_task.c.id <= 20).values(owner="ann", task_group="night")
    big.reads(lambda c: tasks.listed(c, 50, chosen), rows=20, by={index}, before=lambda c: c.execute(set_some))


def test_the_last_runs_of_a_page_of_tasks_are_found_without_their_history(big: Big) -> None:
    ids = range(1, 101)
    big.reads(lambda c: last_runs.of_tasks(c, ids), rows=300, by={FIRE, PRIMARY, OVERLAP})


def test_what_became_of_a_fire_is_told_from_a_few_rows(big: Big) -> None:
    newest = big.tell(lambda c: fire_rows.newest_time(c, 7, big.now + timedelta(days=1)))
    assert newest is not None

    def ask(connection: Connection) -> None:
        fire_rows.newest_time(connection, 7, big.now)
        fire_rows.next_written(connection, 7, newest)
        fire_rows.holders(connection, 7)
        assert instances.of_fire(connection, 7, newest, fire_rows.LOOKED_AT)

    big.reads(ask, rows=2 * fire_rows.NEWEST, by={FIRE, PRIMARY, OVERLAP})


def test_instances_with_a_deadline_are_found_by_when_they_are_looked_at_next(big: Big) -> None:
    noted = text(
        "INSERT INTO schedule_deadline (schedule_instance_id, run_timeout_seconds, check_at)"
        " SELECT id, 60, IF(id % 20 = 0, :now, :now + INTERVAL 1 DAY) FROM schedule_instance LIMIT 20000"
    )

    def ask(connection: Connection) -> None:
        assert len(deadlines.due(connection, 200)) == 200

    statements = big.reads(ask, rows=200, by={PRIMARY}, before=lambda c: c.execute(noted, {"now": big.now}))
    keys = {step.key for one in statements for step in one.plan if step.table == "schedule_deadline"}
    assert keys == {"ix_schedule_deadline_check_at"}


def test_fires_with_a_deadline_are_noted_by_their_keys(big: Big) -> None:
    there = text("SELECT schedule_task_id, schedule_datetime, schedule_worker_node_id FROM schedule_instance LIMIT 200")
    given = [(*row, 60) for row in big.tell(lambda c: c.execute(there).all())]
    big.reads(lambda c: deadlines.note_fires(c, given), rows=200, by={FIRE})


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (replays.Wanted(InstanceStatus.FAILED), UNSUCCESSFUL),
        (replays.Wanted(InstanceStatus.FAILED, {7, 8}), UNSUCCESSFUL),
        (replays.Wanted(InstanceStatus.SUCCEED, {7}), FIRE),
        (replays.Wanted(InstanceStatus.FAILED, {7}, datetime(2020, 1, 1), datetime(2040, 1, 1)), FIRE),  # noqa: DTZ001
    ],
)
def test_a_page_of_what_is_to_be_replayed_is_read_by_an_index(big: Big, wanted: replays.Wanted, index: str) -> None:
    last = big.database.read(instances.newest_id)
    with explained(big.database.engine) as statements:
        next(replays.pages(big.database, wanted, last))
    assert statements
    for statement in statements:
        check(statement, replays.PAGE, {index, FIRE, PRIMARY})
    assert index in {step.key for step in statements[0].plan}


def test_what_waits_for_a_limit_is_looked_for_in_the_queue_and_no_further(big: Big) -> None:
    limited = text("UPDATE schedule_task SET limit_name = 'warehouse' WHERE id % 2 = 0")
    rows = shared_limits.LOOKED_AT
    ask = partial(shared_limits.waiting, name="warehouse", limit=20)
    big.reads(ask, rows=rows, by={WORK, PRIMARY}, before=lambda c: c.execute(limited))


BUSINESS_KEYS = text(
    "INSERT INTO schedule_business_key"
    " (type, number, schedule_task_id, schedule_instance_id, instance_gmt_create, due_at)"
    " SELECT 'REPORT', CONCAT('product-', id), schedule_task_id, id, gmt_create,"
    " IF(id % 20 = 0, :now, :now + INTERVAL 1 DAY) FROM schedule_instance ORDER BY id LIMIT 20000"
)
WAITING_KEYS = text(
    "INSERT INTO schedule_business_key"
    " (type, code, number, schedule_task_id, schedule_instance_id, instance_gmt_create, due_at)"
    " SELECT 'REPORT', 'waits', id, schedule_task_id, id, gmt_create, :now FROM schedule_instance"
    " WHERE status = 'pending' ORDER BY id LIMIT 100"
)
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive UTC


@pytest.mark.parametrize(
    ("number", "index", "ask"),
    [
        (200, "due_at", lambda c, now: standing_keys.due(c, (EPOCH, 0), now, 200).standings),
        (0, "due_at", lambda c, now: standing_keys.due(c, (EPOCH, 0), now - timedelta(days=1), 200).standings),
        (100, "key", lambda c, _: standing_keys.standing(c, "REPORT", [("", f"product-{n}") for n in range(1, 101)])),
        (50, "key", lambda c, _: found_keys.by_number(c, KeyFilter("REPORT", begins="product-1"), "product-11", 50)),
        (50, "due_at", lambda c, now: found_keys.by_time(c, KeyFilter(), (now, 0), 50)),
        (50, "type_due_at", lambda c, now: found_keys.by_time(c, KeyFilter("REPORT"), (now, 0), 50)),
    ],
    ids=["due", "none is due", "standing", "beginning", "time", "type and time"],
)
def test_business_keys_are_found_by_an_index(
    big: Big, number: int, index: str, ask: Callable[[Connection, datetime], Any]
) -> None:
    def asked(connection: Connection) -> None:
        assert len(ask(connection, big.now)) == number

    statements = big.reads(
        asked, rows=number, by={PRIMARY}, before=lambda c: c.execute(BUSINESS_KEYS, {"now": big.now})
    )
    keys = {step.key for one in statements for step in one.plan if step.table == "schedule_business_key"}
    assert {str(key).removeprefix("uq_").removeprefix("ix_") for key in keys} == {f"schedule_business_key_{index}"}


def test_a_batch_of_calls_is_written_by_keys(big: Big) -> None:
    calls: list[business_keys.Call] = []

    def asked_for(number: int) -> Asked:
        return Asked(big.now + timedelta(days=2, seconds=number), '{"region": "eu"}')

    def before(connection: Connection) -> None:
        connection.execute(BUSINESS_KEYS, {"now": big.now})
        connection.execute(WAITING_KEYS, {"now": big.now})
        waiting = connection.scalars(text("SELECT number FROM schedule_business_key WHERE code = 'waits'"))
        keys = [*(("waits", number) for number in waiting), *(("", f"product-{n}") for n in range(1, 101))]
        found = standing_keys.standing(connection, "REPORT", keys)
        keys += [("", f"new-{n}") for n in range(100)]
        calls[:] = [
            business_keys.Call("REPORT", key, asked_for(n), found.get(key), 7, f"token-{n}")
            for n, key in enumerate(dict.fromkeys(keys))
        ]
        assert {call.done for call in calls} >= {Done.ADDED, Done.MOVED}

    statements = big.reads(
        lambda c: business_keys.put(c, calls, "test"), rows=300, by={PRIMARY, FIRE, NODES}, before=before
    )
    steps = [step for one in statements for step in one.plan if step.table == "schedule_business_key"]
    assert {step.key for step in steps if step.type != "ALL"} <= {PRIMARY, None}


def test_a_run_is_found_by_its_fire_key(big: Big) -> None:
    moment = datetime.fromisoformat("2026-11-19 03:00:00")
    big.reads(
        lambda c: found_keys.newest_of_fire(c, "task-7", moment, "f" * 32),
        rows=1,
        by={FIRE, "uq_schedule_task_live_name"},
    )


def test_requests_are_found_however_many_were_refused(big: Big) -> None:
    rows = text(
        "INSERT INTO schedule_request (type, number, is_deleted)"
        " SELECT 'REPORT', seq, IF(seq % 100 = 0, 0, 1) FROM seq_1_to_20000"
    )

    def ask(connection: Connection) -> None:
        assert len(requests.waiting(connection, 100)) == 100

    statements = big.reads(ask, rows=100, by=set(), before=lambda c: c.execute(rows))
    assert [step.key for one in statements for step in one.plan] == ["ix_schedule_request_open"]


DEATHS = "ix_schedule_worker_beat_gmt_dead"
HEARD_OF = {
    "scheduler_paused": "INSERT INTO schedule_audit"
    " (id, act_key, actor, face, action, object_type, object_id, gmt_create)"
    " SELECT 1000000 + seq, seq, 'ann', 'cli', 'task.set', 'schedule_task', 7, :now FROM seq_1_to_20000",
    "missed": "INSERT INTO schedule_skip (schedule_task_id, reason, first_fire, last_fire, fires, gmt_modified)"
    " SELECT seq, 'skip', :now, :now, 1, :now + INTERVAL seq SECOND FROM seq_1_to_20000",
    "worker_joined": "INSERT INTO schedule_worker_node"
    " (id, name, host, pid, process_identity, version, capacity, prefetch, node_types, state)"
    " SELECT 1000000 + seq, seq, 'h', 1, 'x', '1', 1, 1, '[]', 'dead' FROM seq_1_to_20000",
    "worker_left": "INSERT INTO schedule_worker_beat (schedule_worker_node_id, gmt_dead)"
    " SELECT 1000000 + seq, :now + INTERVAL seq SECOND FROM seq_1_to_20000",
    "scheduler_started": "INSERT INTO schedule_scheduler_node (id, name, host, pid, version)"
    " SELECT 1000000 + seq, seq, 'h', 1, '1' FROM seq_1_to_20000",
}
"""By an event of each feed, 20,000 rows of its table; by ids up to 1,020,000, or from now on by a second each."""


@pytest.mark.parametrize("feed", FEEDS, ids=lambda feed: min(feed.events))
def test_what_listeners_are_told_is_found_behind_what_they_were_told(big: Big, feed: Feed) -> None:
    place: Place = (str(big.now + timedelta(seconds=19950, milliseconds=1)), 0) if feed.by_time else (1019950, "")

    def ask(connection: Connection) -> None:
        feed.begin(connection, big.now)
        assert not Told(place).is_beyond(feed.newest_id(connection))
        assert len(entries := feed.after(connection, place)) == 50
        assert len(feed.told_by(connection, entries)) == 50

    event = min(feed.events)
    by = {"missed": {PRIMARY}, "worker_joined": {PRIMARY}, "worker_left": {PRIMARY, DEATHS}}
    written = text(HEARD_OF[event])
    statements = big.reads(
        ask, rows=MOST_RECENT, by=by.get(event, set()), before=lambda c: c.execute(written, {"now": big.now})
    )
    assert not any("filesort" in step.extra for one in statements for step in one.plan)


FOLLOW = text("UPDATE schedule_task SET trigger_kind = 'after' WHERE id > 50000 AND id <= 70000")
LINKS = text(
    "INSERT INTO schedule_chain (schedule_task_id, after_name, on_end)"
    " SELECT follower.id, task.name, 'success' FROM schedule_task task"
    " JOIN schedule_task follower ON follower.id = task.id + 50000 WHERE task.id <= 20000"
)
FOLLOWED = text(
    "INSERT INTO schedule_chain_run (schedule_instance_id, instance_gmt_create, again_of)"
    " SELECT id, gmt_create, IF(id % 2, id, NULL) FROM schedule_instance ORDER BY id DESC LIMIT 3000"
)
LIVE_NAME, AFTER_NAME = "uq_schedule_task_live_name", "ix_schedule_chain_after_name"


def add_links(connection: Connection) -> None:
    connection.execute(FOLLOW)
    connection.execute(LINKS)


def before_chains(connection: Connection) -> None:
    add_links(connection)
    connection.execute(FOLLOWED)


def keys_of(statements: list[Statement], table: str) -> set[str | None]:
    return {step.key for statement in statements for step in statement.plan if step.table == table}


def test_a_page_of_runs_that_are_followed_looks_up_each_instance_and_no_more(big: Big) -> None:
    big.reads(lambda c: chain_runs.page(c, 0, 200), rows=200, by={PRIMARY}, before=before_chains)


def test_who_follows_runs_is_found_by_the_names_of_their_tasks(big: Big) -> None:
    def ask(connection: Connection) -> None:
        assert chain_fires.followers(connection, [row.id for row in connection.execute(FIRST_MARKS)])

    statements = big.reads(ask, rows=400, by={PRIMARY}, before=before_chains)
    assert keys_of(statements, "schedule_chain") == {AFTER_NAME}


FIRST_MARKS = text("SELECT id FROM schedule_chain_run ORDER BY id LIMIT 200")
PLACES = text(
    "SELECT t.name, i.schedule_datetime, i.fire_key, t.id FROM schedule_instance i"
    " JOIN schedule_task t ON t.id = i.schedule_task_id WHERE i.id > 900000 LIMIT 200"
)


def test_how_runs_for_a_time_have_ended_is_found_by_the_task_and_the_time(big: Big) -> None:
    places = [tuple(row) for row in big.tell(lambda c: c.execute(PLACES).all())]
    asked = [(*place[:3], since) for place in places for since in (0, 1)]
    by = {FIRE, LIVE_NAME}
    big.reads(lambda c: chain_fires.ended(c, asked), rows=1_200, by=by)
    big.reads(lambda c: chain_fires.open_again(c, asked), rows=1_200, by=by, before=before_chains)
    links = [Link(task, moment, key, "cron", 1) for _, moment, key, task in places]
    big.reads(lambda c: chain_fires.fire_again(c, links), rows=1_200, by={FIRE, PRIMARY})


def test_fires_to_come_are_marked_by_the_task_and_the_time(big: Big) -> None:
    names = {place[0] for place in big.tell(lambda c: c.execute(PLACES).all())}
    big.reads(lambda c: chain_runs.mark_ahead(c, names), rows=400, by={FIRE, LIVE_NAME})


def test_what_is_fired_and_given_is_marked_by_its_keys(big: Big) -> None:
    fires_there = [
        tuple(row)
        for row in big.tell(
            lambda c: c.execute(
                text("SELECT schedule_task_id, schedule_datetime FROM schedule_instance WHERE run_number = 0 LIMIT 200")
            ).all()
        )
    ]
    ids = big.tell(
        lambda c: c.scalars(text("SELECT id FROM schedule_instance WHERE status = 'assigned' LIMIT 200")).all()
    )
    for mark, key in (
        (partial(chain_runs.mark_fires, fires=fires_there), FIRE),
        (partial(chain_runs.mark_given, instance_ids=ids), PRIMARY),
    ):
        statements = big.reads(mark, rows=400, by={key, PRIMARY}, before=add_links)
        assert keys_of(statements, "schedule_chain") == {AFTER_NAME}


def test_the_chain_of_a_run_is_read_by_the_names_of_its_tasks(big: Big) -> None:
    name = big.tell(lambda c: c.scalar(text("SELECT name FROM schedule_task WHERE id = 7")))

    def ask(connection: Connection) -> None:
        after = chain_views.connected(connection, name)
        assert len(after) == 2
        chain_views.runs(connection, after, big.now, "")
        assert len(chains.behind(connection, 7)) == 2
        assert chains.followers(connection, name)

    statements = big.reads(ask, rows=20, by={PRIMARY, FIRE, LIVE_NAME}, before=add_links)
    assert keys_of(statements, "schedule_chain") <= {AFTER_NAME, "uq_schedule_chain_link"}


SHARDED = 20


def before_shards(connection: Connection) -> None:
    """Some of what waits runs as ten shards each."""
    chosen = "SELECT id FROM schedule_instance WHERE status = 'pending' ORDER BY id LIMIT 20"
    connection.execute(
        text(
            f"UPDATE schedule_instance i JOIN ({chosen}) c ON c.id = i.id SET status = 'running', attempt = 1,"
            " schedule_worker_node_id = 0, run_number = 0, shard_total = 10, due_at = schedule_datetime"
        )
    )
    connection.execute(
        text(
            "INSERT INTO schedule_instance"
            " (schedule_task_id, schedule_datetime, due_at, fire_key, run_number, parent_id)"
            " SELECT i.schedule_task_id, i.schedule_datetime, i.due_at, CONCAT('shard/', i.id, '/', n.id), 0, i.id"
            " FROM schedule_instance i JOIN (SELECT id FROM schedule_task LIMIT 10) n"
            " WHERE i.status = 'running' AND i.schedule_worker_node_id = 0"
        )
    )


def test_what_runs_as_its_shards_is_found_by_the_index_of_work_and_its_shards_by_their_fire(big: Big) -> None:
    def look(connection: Connection) -> None:
        parents = spreading.running(connection, 0, 200)
        assert [one.is_open for one in parents] == [True] * SHARDED
        assert sum(map(len, spreading.shards_of(connection, [one.id for one in parents]).values())) == SHARDED * 10

    statements = big.reads(look, rows=SHARDED * 12, by={WORK, PRIMARY}, before=before_shards)
    assert keys_of(statements, "shard") == {FIRE}


def test_what_is_to_be_spread_is_read_and_spread_by_id(big: Big, page: list[Pending]) -> None:
    some = [one.id for one in page[:SHARDED]]

    def move(connection: Connection) -> None:
        found = assignments.pending_of(connection, some, big.horizon)
        moves.spread(connection, [moves.Parent(one.id, one.attempt, None, 0, [None] * 10, 10) for one in found])

    big.reads(move, rows=SHARDED * 12, by={PRIMARY})


PLACE = "ix_schedule_pool_place_worker"


def before_pools(connection: Connection) -> None:
    """Of what the live workers were given, one in twenty is for a pool: half of what two workers have."""
    connection.execute(
        text(
            "INSERT INTO schedule_pool_place (schedule_instance_id, schedule_worker_node_id, pool, gmt_assigned)"
            " SELECT id, schedule_worker_node_id, IF(id % 40 = 0, 'images', 'mail'), gmt_assigned"
            " FROM schedule_instance WHERE status IN ('assigned', 'running') AND id % 20 = 0"
        )
    )


def test_what_pools_hold_is_counted_and_polled_without_what_is_beside_them(big: Big) -> None:
    def ask(connection: Connection) -> None:
        assert pools.held(connection, [WORKER]).keys() == {WORKER}
        assert polling.poll(connection, Queue(WORKER, "images"), big.horizon, 100).rows

    statements = big.reads(ask, rows=225, by={PRIMARY}, before=before_pools)
    assert keys_of(statements, "schedule_pool_place") == {PLACE}


def test_a_worker_with_pools_polls_for_its_slots_up_to_the_limit(big: Big) -> None:
    def ask(connection: Connection) -> None:
        assert polling.poll(connection, Queue(WORKER, pools=("images", "mail")), big.horizon, 100).rows

    big.reads(ask, rows=120, by={WORK}, before=before_pools)


def test_what_is_given_for_a_pool_is_noted_by_its_id(big: Big, page: list[Pending]) -> None:
    given = {one.id: WORKER for one in page}

    def note(connection: Connection) -> None:
        pools.note(connection, dict.fromkeys(given, pools.Place("images")))

    rows = [(instance, worker, 0, None) for instance, worker in given.items()]
    big.reads(note, rows=BATCH, by={PRIMARY}, before=lambda c: giving.give(c, rows))


def test_the_pools_that_tasks_name_are_read_by_an_index(big: Big) -> None:
    big.reads(pools.named, rows=30, by={"ix_schedule_task_pool_live_name"})


def with_weights(connection: Connection) -> None:
    """Every twentieth instance that a worker has takes three of its slots; every hundredth task has a weight."""
    connection.execute(
        text(
            "INSERT INTO schedule_pool_place"
            " (schedule_instance_id, schedule_worker_node_id, pool, weight, gmt_assigned)"
            " SELECT id, schedule_worker_node_id, '', 3, gmt_assigned"
            " FROM schedule_instance WHERE status IN ('assigned', 'running') AND id % 20 = 0"
        )
    )
    connection.execute(text("UPDATE schedule_task SET weight = 3 WHERE id % 10000 = 0"))


def test_a_poll_reads_the_weights_of_its_worker_alone(big: Big) -> None:
    def ask(connection: Connection) -> None:
        assert polling.poll(connection, Queue(WORKER), big.horizon, 100).weights

    statements = big.reads(ask, rows=400, by={PRIMARY, WORK}, before=with_weights)
    assert keys_of(statements, "schedule_pool_place") == {PLACE}


def test_the_tasks_that_take_several_slots_are_read_by_an_index(big: Big) -> None:
    big.reads(weights.heavy, rows=150, by={"ix_schedule_task_weight_live_name"}, before=with_weights)
