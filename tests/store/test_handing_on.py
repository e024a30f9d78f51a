"""A run of a task that runs one at a time ends, and hands its slot on to the next one in the report's transaction."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from rota.scheduler_service import fleet, stretches
from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.stretches import AHEAD, LOOK_SECONDS, Seen, in_turn
from rota.shared.database.later import Unexpected
from rota.shared.database.questions import Question
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import assignments, handing_on, runs
from rota.shared.store.reports import Report
from rota.shared.store.runs import Run, Wanted
from rota.worker_service.pulling.backlog import FEWEST_READ
from rota.worker_service.pulling.successors import Successors
from rota.worker_service.rows import WorkerRows
from tests.harness.puller import Puller
from tests.harness.scenario import Scenario, ended, succeeded, to_retry
from tests.harness.together import locked

pytestmark = pytest.mark.every_database

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
ALONE = [{"overlap_policy": "queue"}, {"overlap_policy": "allow", "max_instances": 1}]


def read(rows: Scenario, worker: int, *instances: int) -> list[Wanted]:
    """These instances as the worker reads them before it claims them."""
    return rows.database.read(lambda c: runs.read_wanted(c, worker, instances, rows.types))[0]


def nodes_of(rows: Scenario, instance: int) -> list[dict[str, Any]]:
    found = rows.sql("SELECT * FROM schedule_task_node WHERE schedule_instance_id = :id ORDER BY sequence", id=instance)
    return [row._asdict() for row in found]


def hand_on(rows: Scenario, worker: int, report: Report, following: list[Wanted]) -> tuple[set[int], set[int]]:
    return WorkerRows(rows.database, worker).report_and_hand_on([report], following)


@pytest.fixture(params=[True, False], ids=["one_turn", "batch"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a success that can be written together with what follows be written so; or not."""
    if not request.param:
        monkeypatch.setattr(handing_on, "is_one_turn", lambda batch, following: False)


class Line:
    """A task that runs one at a time: one of its instances runs, three wait for their turns at the same worker."""

    def __init__(self, rows: Scenario, **fields: Any) -> None:
        self.rows, self.worker = rows, rows.worker()
        self.task = rows.task(**{"overlap_policy": "queue", **fields})
        self.run: Run = rows.running(self.worker, self.task, rows.start - 9 * MINUTE)
        self.waits = [rows.assigned(self.worker, self.task, rows.start - n * MINUTE) for n in (3, 2, 1)]
        self.read = read(rows, self.worker, *self.waits)

    def hand_on(self, place: int = 0) -> bool:
        """Whether the run's end claims the one at this place of the line. The run ends in any case."""
        lost, claimed = hand_on(self.rows, self.worker, succeeded(self.run), [self.read[place]])
        assert (lost, self.rows.status(self.run.id)) == (set(), "succeed")
        status = self.rows.status(self.waits[place])
        assert (claimed == {self.waits[place]}) == (status == "running"), status
        return bool(claimed)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("fields", ALONE, ids=["queue", "max_instances"])
def test_the_next_one_is_claimed_with_the_report_of_the_one_before(rows: Scenario, fields: dict[str, Any]) -> None:
    line = Line(rows, **fields)
    assert line.hand_on()
    row = rows.row(line.waits[0])
    assert (row.attempt, row.overlap_slot, row.turn_key) == (1, 0, None)
    assert rows.node_statuses(line.waits[0])[0] == "running"
    assert rows.status(line.waits[1]) == "assigned"


@pytest.mark.usefixtures("each_way")
def test_none_is_claimed_before_an_older_one_that_waits_anywhere(rows: Scenario) -> None:
    line = Line(rows)
    assert not line.hand_on(1)
    line = Line(rows)
    rows.assigned(rows.worker(), line.task, rows.start - 5 * MINUTE)
    assert not line.hand_on()
    line = Line(rows)
    rows.pending(line.task, rows.start - 5 * MINUTE)
    assert not line.hand_on()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    "elsewhere", ["schedule_worker_node_id = 77", "status = 'pending', schedule_worker_node_id = NULL"]
)
def test_of_those_that_are_due_at_one_time_the_oldest_comes_first(rows: Scenario, elsewhere: str) -> None:
    line = Line(rows)
    rows.sql("UPDATE schedule_instance SET due_at = :at WHERE status = 'assigned'", at=rows.start - MINUTE)
    line.read = read(rows, line.worker, *line.waits)
    rows.sql(f"UPDATE schedule_instance SET {elsewhere} WHERE id = :id", id=line.waits[0])
    assert not line.hand_on(1)


@pytest.mark.usefixtures("each_way")
def test_what_has_got_other_nodes_since_it_was_read_is_read_anew(rows: Scenario) -> None:
    """Its old node would be reported, and the one that it has would wait for good."""
    line = Line(rows)
    rows.sql("UPDATE schedule_task_node SET id = id + 1000 WHERE schedule_instance_id = :id", id=line.waits[0])
    assert hand_on(rows, line.worker, succeeded(line.run), line.read[:1]) == (set(), set())
    assert rows.status(line.run.id) == "succeed"
    [run] = rows.claim(line.worker, line.waits[0]).runs
    assert run.nodes[0].id == nodes_of(rows, line.waits[0])[0]["id"]


def test_no_task_is_switched_off_between_the_question_and_the_commit(mariadb_rows: Scenario) -> None:
    """Nothing starts after ``off`` is committed."""
    line = Line(mariadb_rows)

    def hand_on_and_look(connection: Connection) -> None:
        handing_on.succeed(connection, line.worker, [succeeded(line.run)], line.read[:1])
        connection.execute(select(1))  # sends it
        with pytest.raises(DBAPIError, match="Lock wait timeout"):
            mariadb_rows.database.write_unless_locked(
                lambda c: c.execute(text("UPDATE schedule_task SET status = 'off'"))
            )

    mariadb_rows.database.write(hand_on_and_look)
    assert mariadb_rows.status(line.waits[0]) == "running"


@pytest.mark.parametrize(
    "given_away",
    [
        "status = 'pending', schedule_worker_node_id = NULL WHERE id = :done",
        "schedule_worker_node_id = 77, attempt = 2 WHERE id = :done",
        "schedule_worker_node_id = 77 WHERE id = :next",
        "attempt = 1 WHERE id = :next",
    ],
)
def test_a_turn_is_fenced_whatever_was_answered(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch, given_away: str
) -> None:
    """The writes have the fences, too: they do not rely on the locks of the question."""
    line = Line(rows)
    ids = {"done": line.run.id, "next": line.waits[0]}
    [lost] = [instance for name, instance in ids.items() if f":{name}" in given_away]
    rows.sql(f"UPDATE schedule_instance SET {given_away}".replace(":done", ":id").replace(":next", ":id"), id=lost)

    def yes(question: Question, connection: Connection, values: Any) -> dict[str, bool]:
        if connection.dialect.name == "sqlite":
            return {"answer": True}
        connection.execute(text("SET @rota_answer = 1"))
        return {}

    monkeypatch.setattr(Question, "ask", yes)
    before = [rows.sql("SELECT * FROM schedule_instance"), rows.sql("SELECT * FROM schedule_task_node")]
    with pytest.raises((Unexpected, IntegrityError)):  # the second: the slot is still taken
        rows.database.write(lambda c: handing_on.succeed(c, line.worker, [succeeded(line.run)], line.read[:1]))
    assert [rows.sql("SELECT * FROM schedule_instance"), rows.sql("SELECT * FROM schedule_task_node")] == before


def test_a_turn_reads_few_rows_however_many_are_due_at_one_time(mariadb_rows: Scenario) -> None:
    rows, line = mariadb_rows, Line(mariadb_rows)
    for n in range(100):
        rows.assigned(line.worker, line.task, rows.start - 5 * MINUTE + n * SECOND)
    rows.sql("UPDATE schedule_instance SET due_at = :at WHERE status = 'assigned'", at=rows.start - MINUTE)
    line.read = read(rows, line.worker, line.waits[0])

    def reads(connection: Connection) -> int:
        counted = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
        return sum(int(number) for _, number in counted)

    def hand_on(connection: Connection) -> int:
        first = reads(connection)
        second = reads(connection)
        handing_on.succeed(connection, line.worker, [succeeded(line.run)], line.read)
        return reads(connection) - second - (second - first)  # without those of the SHOW itself

    assert rows.database.write(hand_on) <= 20
    assert rows.status(line.waits[0]) == "running"


def test_the_oldest_is_that_of_the_least_due_time_not_of_the_least_id(rows: Scenario) -> None:
    line = Line(rows)
    rows.sql("UPDATE schedule_instance SET due_at = :at WHERE id = :id", at=rows.start, id=line.waits[0])
    line.read = read(rows, line.worker, *line.waits)
    line.read.sort(key=lambda row: row.id)
    assert line.hand_on(1)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE schedule_task SET status = 'off'",
        "UPDATE schedule_task SET is_deleted = 1",
        "UPDATE schedule_task SET limit_name = 'narrow'",
        "UPDATE schedule_task SET overlap_policy = 'skip'",
        "UPDATE schedule_task SET overlap_policy = 'allow', max_instances = 2",
        "UPDATE schedule_instance SET attempt = 1 WHERE id = :next",
        "UPDATE schedule_instance SET gmt_cancel_requested = gmt_create WHERE id = :next",
        "UPDATE schedule_instance SET due_at = '2099-01-01 00:00:00.000000' WHERE status = 'assigned'",
        "UPDATE schedule_instance SET status = 'pending', schedule_worker_node_id = NULL WHERE id = :next",
        "UPDATE schedule_instance SET schedule_worker_node_id = 77 WHERE id = :next",
        "UPDATE schedule_instance SET status = 'canceled', overlap_slot = NULL WHERE id = :next",
    ],
)
def test_what_was_changed_since_it_was_read_is_not_claimed(rows: Scenario, change: str) -> None:
    line = Line(rows)
    rows.sql(change.replace(":next", str(line.waits[0])))
    assert not line.hand_on()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("own", "others"), [(0, 1), (0, 2), (1, 0), (2, 1), (None, 0)])
def test_none_starts_while_another_run_has_a_slot_though_the_task_has_one_only(
    rows: Scenario, own: int | None, others: int
) -> None:
    line = Line(rows)
    other = rows.running(rows.worker(), rows.task(overlap_policy="allow", max_instances=3), rows.start)
    moved = "UPDATE schedule_instance SET schedule_task_id = :task, overlap_slot = :slot WHERE id = :id"
    rows.sql(moved, task=line.task, slot=own, id=line.run.id)
    rows.sql(moved, task=line.task, slot=others, id=other.id)
    assert not line.hand_on()


@pytest.mark.usefixtures("each_way")
def test_a_worker_that_has_lost_its_run_claims_nothing_with_its_report(rows: Scenario) -> None:
    line = Line(rows)
    rows.sql("UPDATE schedule_instance SET attempt = 5 WHERE id = :id", id=line.run.id)
    assert hand_on(rows, line.worker, succeeded(line.run), [line.read[0]]) == ({line.run.id}, set())
    assert (rows.status(line.run.id), rows.status(line.waits[0])) == ("running", "assigned")


def test_a_run_that_is_to_be_retried_later_hands_its_slot_on(rows: Scenario) -> None:
    line = Line(rows)
    report = to_retry(line.run, rows.now() + MINUTE)
    assert hand_on(rows, line.worker, report, [line.read[0]]) == (set(), {line.waits[0]})
    assert rows.status(line.run.id) == "pending"


def test_a_retry_that_is_due_earlier_keeps_its_turn(rows: Scenario) -> None:
    line = Line(rows)
    report = to_retry(line.run, rows.start - 8 * MINUTE)
    assert hand_on(rows, line.worker, report, [line.read[0]]) == (set(), set())


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    ("table", "where"),
    [
        ("schedule_instance", "id = :next"),
        ("schedule_task_node", "schedule_instance_id = :next"),
        ("schedule_task", "id = :task"),
    ],
)
def test_reports_do_not_wait_for_what_somebody_has_locked_of_what_follows(
    mariadb_rows: Scenario, table: str, where: str
) -> None:
    line = Line(mariadb_rows)
    values = {"next": line.waits[0], "task": line.task}
    of = {name: value for name, value in values.items() if f":{name}" in where}
    with locked(mariadb_rows.database, table, where, **of):
        assert not line.hand_on()


@pytest.mark.usefixtures("each_way")
def test_a_slot_is_handed_on_to_an_instance_that_was_inserted_before(rows: Scenario) -> None:
    line = Line(rows)
    newest = rows.running(line.worker, rows.task(), rows.start - 8 * MINUTE)
    rows.sql("UPDATE schedule_instance SET status = 'canceled' WHERE id = :id", id=line.run.id)
    moved = "UPDATE schedule_instance SET schedule_task_id = :task, overlap_slot = 0 WHERE id = :id"
    rows.sql(moved, task=line.task, id=newest.id)
    assert newest.id > line.waits[0]
    assert hand_on(rows, line.worker, succeeded(newest), [line.read[0]]) == (set(), {line.waits[0]})
    assert (rows.status(newest.id), rows.status(line.waits[0])) == ("succeed", "running")


@pytest.mark.usefixtures("each_way")
def test_a_task_that_is_off_hands_on_to_what_is_no_fire(rows: Scenario) -> None:
    line = Line(rows)
    rows.sql("UPDATE schedule_instance SET origin = 'manual' WHERE id = :id", id=line.waits[0])
    line.read = read(rows, line.worker, *line.waits)
    rows.sql("UPDATE schedule_task SET status = 'off'")
    assert line.hand_on()


@pytest.mark.usefixtures("each_way")
def test_what_may_run_once_only_is_claimed_with_no_start_of_its_node(rows: Scenario) -> None:
    """Its worker commits apart that the handler begins."""
    line = Line(rows, on_worker_lost="fail")
    assert line.hand_on()
    [node, *_] = nodes_of(rows, line.waits[0])
    assert (node["status"], node["gmt_started"]) == ("running", None)


def test_both_ways_write_the_same(rows: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [Line(rows), Line(rows)]
    assert handing_on.is_one_turn([succeeded(lines[0].run)], lines[0].read[:1])
    assert lines[0].hand_on()
    monkeypatch.setattr(handing_on, "is_one_turn", lambda batch, following: False)
    assert lines[1].hand_on()
    own = {"id", "schedule_task_id", "schedule_worker_node_id", "overlap_key", "schedule_instance_id"}
    times = {"gmt_create", "gmt_modified", "gmt_started", "gmt_completed", "gmt_assigned", "instance_gmt_create"}

    def seen(instance: int) -> list[dict[str, Any]]:
        [row] = rows.sql("SELECT * FROM schedule_instance WHERE id = :id", id=instance)
        every = [row._asdict(), *nodes_of(rows, instance)]
        return [{k: v is None if k in times else v for k, v in one.items() if k not in own} for one in every]

    assert seen(lines[0].run.id) == seen(lines[1].run.id)
    assert seen(lines[0].waits[0]) == seen(lines[1].waits[0])


# Within a worker


class Pulling:
    """A worker with a line of a task that runs one at a time, whose runs end when the test says so."""

    def __init__(self, rows: Scenario, number: int, **given: Any) -> None:
        self.rows, self.worker, self.task = rows, rows.worker(), rows.task(overlap_policy="queue")
        self.ids = [rows.assigned(self.worker, self.task, rows.start - (number - n) * SECOND) for n in range(number)]
        self.clock = SettableClock(rows.now())
        self.puller = Puller(rows.database, self.worker, self.clock, **given)
        self.successors = Successors(self.puller.backlog, self.puller.slots)
        self.successors.start = lambda some, _: self.started.extend(some)
        self.started: list[Run] = []

    def end(self, run: Run) -> bool:
        """End a run; whether another one was claimed with its report."""
        report = ended(run)
        report.turn_of = run.turn_of
        following = self.successors.take([report])
        _, claimed = self.puller.rows.report_and_hand_on([report], [row for row, _ in following])
        self.successors.settle(following, claimed)
        self.puller.backlog.run_over(run)
        return bool(claimed)


def test_a_line_is_run_in_order_without_further_claims(rows: Scenario) -> None:
    pulling = Pulling(rows, 30)
    pulling.puller.fetcher.fetch()
    pulling.puller.claimer.claim()
    [first] = [active.run for active in pulling.puller.runner._active.values()]
    pulling.puller.runner.drop(first.id)
    pulling.started.append(first)
    for at in range(29):
        assert pulling.end(pulling.started[at])
    assert not pulling.end(pulling.started[-1])
    assert [run.id for run in pulling.started] == pulling.ids
    assert len(pulling.puller.rows.asked) == 1
    assert set(rows.statuses().values()) == {"succeed"}
    assert pulling.puller.backlog.give_up({*pulling.ids}) == {*pulling.ids}, "none is in a claim"


def test_what_has_begun_and_stands_in_the_line_still_lets_nothing_be_read_again(rows: Scenario) -> None:
    pulling = Pulling(rows, FEWEST_READ + 10, capacity=200)
    backlog = pulling.puller.backlog
    pulling.puller.fetcher.fetch()
    pulling.puller.claimer.claim()
    [first] = [active.run for active in pulling.puller.runner._active.values()]
    pulling.puller.runner.drop(first.id)
    begun = pulling.ids[FEWEST_READ + 1]
    backlog._waiting.pop(begun)
    backlog._lines.leave({begun})
    assert pulling.end(first)
    assert not backlog.is_crowded


def test_what_was_read_long_ago_is_read_again_before_it_is_claimed(rows: Scenario) -> None:
    pulling = Pulling(rows, 3)
    pulling.puller.fetcher.fetch()
    pulling.puller.claimer.claim()
    [first] = [active.run for active in pulling.puller.runner._active.values()]
    pulling.puller.runner.drop(first.id)
    pulling.clock.advance(60)
    assert not pulling.end(first)
    pulling.puller.claimer.claim()
    assert sorted(pulling.puller.rows.asked[-1]) == pulling.ids[1:]
    assert rows.status(pulling.ids[1]) == "running"


def test_a_worker_that_is_full_hands_nothing_on_while_another_task_waits_for_the_slot(rows: Scenario) -> None:
    pulling = Pulling(rows, 3, capacity=1)
    pulling.puller.fetcher.fetch()
    pulling.puller.claimer.claim()
    [first] = [active.run for active in pulling.puller.runner._active.values()]
    other = rows.assigned(pulling.worker, rows.task(), rows.start - MINUTE)
    pulling.puller.fetcher.fetch()
    pulling.puller.runner.drop(first.id)
    assert not pulling.end(first)
    assert rows.status(other) == "assigned"


def test_a_run_that_finds_its_slot_taken_waits_for_another_before_it_is_handed_back(rows: Scenario) -> None:
    pulling = Pulling(rows, 30, capacity=1)
    starter, runner = pulling.puller.starter, pulling.puller.runner
    first, second = (row.run() for row in read(rows, pulling.worker, *pulling.ids[:2]))
    runner.accept([first])
    pulling.puller.slots.start(runner._active.values())
    starter.put_at_once([second], {})
    starter.give_back_late()
    assert second.id in runner
    pulling.clock.advance(2)
    starter.give_back_late()
    assert second.id not in runner


# The scheduler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the scheduler's looks be due at once."""
    monkeypatch.setattr(fleet, "LONGEST_SNAPSHOT_SECONDS", -1)
    monkeypatch.setattr(stretches, "LOOK_SECONDS", 0)


def assigned(rows: Scenario, task: int) -> list[tuple[int, int]]:
    """The instances of a task that are assigned, in their order, each with its worker."""
    found = rows.sql(
        "SELECT id, schedule_worker_node_id FROM schedule_instance WHERE status = 'assigned'"
        " AND schedule_task_id = :task ORDER BY due_at, id",
        task=task,
    )
    return [tuple(row) for row in found]


def worked_off(rows: Scenario, task: int, number: int) -> None:
    """The oldest of a task that are assigned have run, and the next one runs."""
    ids = [instance for instance, _ in assigned(rows, task)][: number + 1]
    rows.sql(
        "UPDATE schedule_instance SET status = 'succeed' WHERE status = 'running' AND schedule_task_id = :t", t=task
    )
    for instance in ids[:-1]:
        rows.sql("UPDATE schedule_instance SET status = 'succeed' WHERE id = :id", id=instance)
    rows.sql("UPDATE schedule_instance SET status = 'running' WHERE id = :id", id=ids[-1])


@pytest.mark.usefixtures("clock")
def test_a_stretch_goes_to_one_worker_and_grows_while_it_is_worked_off_also_behind_a_run(rows: Scenario) -> None:
    task, _, _ = (
        rows.task(overlap_policy="queue"),
        rows.worker(capacity=50, prefetch=1000),
        rows.worker(capacity=50, prefetch=1000),
    )
    ids = [rows.pending(task, rows.start - (200 - n) * SECOND) for n in range(200)]
    assigner = Assigner(rows.database, Settings.load())
    assigner.step()
    first = assigned(rows, task)
    assert [instance for instance, _ in first] == ids[: AHEAD + 1]
    assert len({worker for _, worker in first}) == 1
    worked_off(rows, task, AHEAD)
    assert assigner.step() <= LOOK_SECONDS
    second = assigned(rows, task)
    assert AHEAD < len(second) < 150
    assert [instance for instance, _ in second] == ids[AHEAD + 1 :][: len(second)]
    assert {worker for _, worker in second} == {worker for _, worker in first}


@pytest.mark.usefixtures("clock")
def test_a_worker_that_was_quicker_than_the_looks_is_woken_for_more(
    rows: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[list[str]] = []
    monkeypatch.setattr("rota.scheduler_service.urgent.send", lambda to: woken.append(sorted(to)))
    task = rows.task(overlap_policy="queue")
    both = {rows.worker(capacity=1, prefetch=99, wake_address=to): to for to in ("10.0.0.1:1", "10.0.0.2:1")}
    for n in range(200):
        rows.pending(task, rows.start - (200 - n) * SECOND)
    assigner = Assigner(rows.database, Settings.load())
    assigner.step()
    [worker] = {worker for _, worker in assigned(rows, task)}
    busy = rows.running(worker)
    rows.sql("UPDATE schedule_instance SET status = 'succeed' WHERE status = 'assigned'")
    assert not any(woken)
    assigner.step()
    assert {given for _, given in assigned(rows, task)} == {worker}
    assert [to for to in woken if to] == [[both[worker]]], f"its slot was taken by {busy.id} when it was looked at"
    assigner.step()
    assert sum(map(bool, woken)) == 1


@pytest.mark.usefixtures("clock")
def test_a_pass_gives_what_is_next_in_a_line_and_nothing_from_its_later_pages(rows: Scenario) -> None:
    task, _ = rows.task(overlap_policy="queue"), rows.worker(capacity=50, prefetch=1000)
    ids = [rows.pending(task, rows.start - (120 - n) * SECOND) for n in range(120)]
    last, first = rows.pending(task, rows.start), rows.pending(task, rows.start - 200 * SECOND)
    rows.sql("UPDATE schedule_instance SET priority = 9 WHERE id IN (:last, :first)", last=last, first=first)
    Assigner(rows.database, Settings.load(batch=40)).step()
    assert [instance for instance, _ in assigned(rows, task)] == [first, *ids[: AHEAD + 1]]


@pytest.mark.usefixtures("clock")
def test_a_task_that_has_no_stretch_is_given_some_of_each_page(rows: Scenario) -> None:
    """Nobody tops it up between two passes."""
    task, _ = rows.task(overlap_policy="allow", max_instances=2), rows.worker(capacity=50, prefetch=1000)
    for n in range(120):
        rows.pending(task, rows.start - (120 - n) * SECOND)
    Assigner(rows.database, Settings.load(batch=40)).step()
    assert len(assigned(rows, task)) == 3 * (2 + AHEAD)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("batch", [25, 1000])
def test_a_stretch_is_filled_from_as_many_pages_as_it_takes(rows: Scenario, batch: int) -> None:
    task, _ = rows.task(overlap_policy="queue"), rows.worker(capacity=50, prefetch=1000)
    for n in range(200):
        rows.pending(task, rows.start - (200 - n) * SECOND)
    assigner = Assigner(rows.database, Settings.load(batch=batch))
    assigner.step()
    worked_off(rows, task, AHEAD)
    assigner.is_woken = True
    assigner.step()
    assert len(assigned(rows, task)) == stretches.LOOKS_AHEAD * (AHEAD + 1)


def test_what_a_pass_sees_twice_counts_once(rows: Scenario) -> None:
    task = rows.task(overlap_policy="queue")
    for n in range(AHEAD):
        rows.pending(task, rows.start - n * SECOND)
    page = rows.database.read(partial(assignments.pending, horizon=rows.start + MINUTE, limit=99, after=None))
    seen = Seen()
    for _ in range(2):
        near, later = in_turn(page, (), (), {}, seen)
        assert (len(near), later) == (AHEAD, [])
        seen.remember(page, ())


@pytest.mark.usefixtures("clock")
def test_each_of_a_line_that_no_worker_can_run_says_why(rows: Scenario) -> None:
    rows.worker()
    task = rows.task(overlap_policy="queue", required_labels={"gpu": "a100"})
    ids = [rows.pending(task, rows.start - (40 - n) * SECOND) for n in range(40)]
    Assigner(rows.database, Settings.load()).step()
    assert {rows.row(i).reason for i in ids} == {"no live worker that can run it carries the labels gpu=a100"}


@pytest.mark.usefixtures("clock")
def test_a_task_whose_runs_take_long_is_given_nothing_behind_its_run(rows: Scenario) -> None:
    task, _ = rows.task(overlap_policy="queue"), rows.worker(capacity=50, prefetch=1000)
    for n in range(60):
        rows.pending(task, rows.start - (60 - n) * SECOND)
    assigner = Assigner(rows.database, Settings.load())
    assigner.step()
    worked_off(rows, task, 0)
    for _ in range(3):
        assigner.step()
    assert len(assigned(rows, task)) <= AHEAD + 1


@pytest.mark.usefixtures("clock")
def test_what_waits_in_a_stretch_makes_its_worker_no_more_loaded(rows: Scenario) -> None:
    task, both = (
        rows.task(overlap_policy="queue"),
        [rows.worker(capacity=50, prefetch=1000), rows.worker(capacity=50, prefetch=1000)],
    )
    for n in range(400):
        rows.pending(task, rows.start - (400 - n) * SECOND)
    assigner = Assigner(rows.database, Settings.load())
    assigner.step()
    worked_off(rows, task, AHEAD)
    assigner.step()
    behind = len(assigned(rows, task))
    assert behind > 2 * AHEAD
    others = rows.task(overlap_policy="allow")
    for _ in range(60):
        rows.pending(others, rows.now() + 2 * SECOND)
    assigner._pass_at = 0
    assigner.step()
    given = [worker for _, worker in assigned(rows, others)]
    assert min(given.count(worker) for worker in both) >= 15
