"""Chains: tasks that fire when others have ended, for the same time, once each."""

import random
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from rota.scheduler_service.duties.assigner import Assigner
from rota.scheduler_service.duties.chains import PAGE, Chains
from rota.scheduler_service.duties.materializer import Materializer
from rota.shared.control import instances, replays, tasks, whys
from rota.shared.control.actor import Actor
from rota.shared.control.replays import Again
from rota.shared.database.transactions import Database
from rota.shared.domain.errors import InvalidInput, RotaError
from rota.shared.domain.states import InstanceStatus, OnEnd
from rota.shared.domain.task import TaskDefinition
from rota.shared.settings import Settings
from rota.shared.store import chain_runs, chains, locks, skips
from rota.shared.store.runs import Run
from rota.worker_service.declarations import Declarations
from tests.harness.databases import past_the_checks, run_sql
from tests.harness.scenario import Scenario, ended, to_retry
from tests.harness.statements import executed

ANN = Actor("ann", "cli")
CHAIN = Again(chain=True)
Ends = Mapping[str, str]


class Chained:
    """Some tasks, a worker that runs what it is given, and the duties of a scheduler."""

    def __init__(self, rows: Scenario) -> None:
        self.rows, self.database = rows, rows.database
        self.worker = rows.worker(capacity=1000, prefetch=1000)
        self.settings = Settings.load()
        self.assigner = Assigner(self.database, self.settings)
        self.chains = Chains(self.database, self.settings)

    def add(self, name: str, after: Any = None, **fields: Any) -> int:
        given = {"name": name, "type": "REPORT", "after": after, "overlap_policy": "allow", **fields}
        return int(tasks.add(self.database, ANN, given).document["id"])

    def edit(self, name: str, /, **changes: Any) -> None:
        tasks.edit(self.database, ANN, name, changes)

    def start(self, name: str, **given: Any) -> int:
        return int(tasks.run(self.database, ANN, name, **given).document["id"])

    def give(self) -> list[Run]:
        """Let the scheduler give what is pending to the worker, and the worker begin it."""
        self.assigner.step()
        given = [i for i, status in self.rows.statuses().items() if status == "assigned"]
        return list(self.rows.claim(self.worker, *given).runs) if given else []

    def end(self, run: Run, status: str = "succeed") -> None:
        assert self.rows.report(self.worker, ended(run, InstanceStatus(status))) == set()

    def follow(self) -> None:
        """Let the scheduler look at all marks."""
        while self.chains.step() == 0:
            pass

    def settle(self, ends: Ends | None = None) -> None:
        """Let all run, by the name of its task to ``succeed`` or as ``ends`` says, and what follows, too."""
        while runs := self.give():
            for run in runs:
                self.end(run, (ends or {}).get(run.task_name, "succeed"))
            self.follow()

    def runs(self) -> list[tuple[str, str]]:
        """Each instance in the order of the ids: (task, status)."""
        found = self.rows.sql(
            "SELECT t.name, i.status FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
            " ORDER BY i.id"
        )
        return [(one.name, one.status) for one in found]

    def of(self, name: str) -> list[Any]:
        """The instances of a task in the order of their ids."""
        found = self.rows.sql(
            "SELECT i.id FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
            " WHERE t.name = :name ORDER BY i.id",
            name=name,
        )
        return [self.rows.row(one.id) for one in found]

    @property
    def marks(self) -> int:
        return len(self.rows.sql("SELECT id FROM schedule_chain_run"))

    @property
    def links(self) -> set[tuple[str, str, str]]:
        found = self.rows.sql(
            "SELECT t.name, c.after_name, c.on_end FROM schedule_chain c JOIN schedule_task t"
            " ON t.id = c.schedule_task_id"
        )
        return {(one.name, one.after_name, one.on_end) for one in found}


@pytest.fixture
def chained(database: Database) -> Chained:
    return Chained(Scenario(database))


@pytest.mark.parametrize(
    ("end", "followed"),
    [
        ("succeed", {"on success", "on any end"}),
        ("failed", {"on failure", "on any end"}),
        ("canceled", {"on any end"}),
    ],
)
def test_a_task_follows_the_end_that_it_asks_for(chained: Chained, end: str, followed: set[str]) -> None:
    chained.add("first")
    chained.add("on success", "first")
    chained.add("on failure", {"first": "failure"})
    chained.add("on any end", {"first": "always"})
    parent = chained.start("first")
    chained.settle({"first": end})
    assert {name for name, _ in chained.runs()} == {"first", *followed}
    assert all(status == "succeed" for name, status in chained.runs() if name != "first")
    assert chained.marks == 0
    for name in followed:
        [child] = chained.of(name)
        assert child.schedule_datetime == chained.rows.row(parent).schedule_datetime
        assert (child.origin, child.run_number, child.fire_key) == ("manual", 0, "")


def test_nothing_follows_before_the_end(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", "first")
    chained.start("first")
    [run] = chained.give()
    chained.follow()
    assert (chained.runs(), chained.marks) == ([("first", "running")], 1)
    retry = to_retry(run, chained.rows.now())
    assert chained.rows.report(chained.worker, retry) == set()
    chained.follow()
    assert (chained.runs(), chained.marks) == ([("first", "pending")], 1)
    chained.settle()
    assert chained.runs() == [("first", "succeed"), ("second", "succeed")]


@pytest.mark.parametrize("first", ["left", "right"])
def test_of_several_it_fires_once_after_the_last(chained: Chained, first: str) -> None:
    for name in ("left", "right"):
        chained.add(name)
    chained.add("both", ["left", "right"])
    moment = chained.rows.past().isoformat() + "Z"
    for name in ("left", "right"):
        chained.start(name, at=moment)
    runs = {run.task_name: run for run in chained.give()}
    chained.end(runs.pop(first))
    chained.follow()
    assert chained.of("both") == []
    chained.end(runs.popitem()[1])
    chained.settle()
    chained.follow()
    assert [row.status for row in chained.of("both")] == ["pending"]
    chained.settle()
    assert (len(chained.of("both")), chained.marks) == (1, 0)


def test_of_several_all_must_end_as_it_asks(chained: Chained) -> None:
    chained.add("left")
    chained.add("right")
    chained.add("both", {"left": "success", "right": "failure"})
    moment = chained.rows.past().isoformat() + "Z"
    chained.start("left", at=moment)
    chained.start("right", at=moment)
    chained.settle()
    assert chained.of("both") == []
    told = whys.why(chained.database, "both", moment).document
    assert told["outcome"] == "no_fire"
    right = chained.of("right")[0].id
    assert f"it follows the failure of right, and instance {right} of right has succeeded" in told["why"]


def test_runs_for_different_times_do_not_meet(chained: Chained) -> None:
    chained.add("left")
    chained.add("right")
    chained.add("both", ["left", "right"])
    chained.start("left", at=chained.rows.past().isoformat() + "Z")
    chained.start("right", at=chained.rows.past().isoformat() + "Z")
    chained.settle()
    assert (chained.of("both"), chained.marks) == ([], 0)


def test_two_schedulers_that_see_the_ends_of_both_at_once_write_one_fire(chained: Chained) -> None:
    chained.add("left")
    chained.add("right")
    chained.add("both", ["left", "right"])
    moment = chained.rows.past().isoformat() + "Z"
    chained.start("left", at=moment)
    chained.start("right", at=moment)
    for run in chained.give():
        chained.end(run)
    page = chained.database.read(lambda c: chain_runs.page(c, 0, 10))
    assert len(page.ended) == 2
    other = Chains(chained.database, chained.settings)
    chained.chains._follow(page.ended[:1])
    other._follow(page.ended)
    assert (len(chained.of("both")), chained.marks) == (1, 1)
    other.step()
    assert (len(chained.of("both")), chained.marks) == (1, 0)


def test_a_cron_fire_is_followed_whatever_became_of_it(chained: Chained) -> None:
    """Also if no worker was ever given it."""
    chained.add("left")
    task = chained.rows.planned_task(name="ticks", cron="@yearly", required_labels={"gpu": "yes"})
    chained.add("next", {"ticks": "always"}, required_labels=None)
    assert task
    Materializer(chained.database, chained.settings).step()
    [(instance, status)] = chained.rows.statuses().items()
    assert (status, chained.marks) == ("pending", 1)
    instances.cancel(chained.database, ANN, [instance])
    chained.follow()
    chained.settle()
    [child] = chained.of("next")
    assert (child.status, child.origin) == ("succeed", "cron")


def test_rows_by_sql_and_backfilled_fires_are_followed_and_each_kind_apart(chained: Chained) -> None:
    first = chained.add("first")
    chained.add("second", "first")
    chained.rows.by_sql(first)
    moment = chained.rows.past()
    for key in ("a", "b"):
        chained.rows.sql(
            "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, fire_key, origin)"
            " VALUES (:task, :at, :key, 'backfill')",
            task=first,
            at=moment.strftime("%Y-%m-%d %H:%M:%S.%f"),
            key=key,
        )
    chained.settle()
    assert sorted((row.fire_key, row.origin) for row in chained.of("second")) == [
        ("", "manual"),
        ("a", "backfill"),
        ("b", "backfill"),
    ]


def test_a_long_chain_runs_to_its_end_and_each_has_its_own_param(chained: Chained) -> None:
    chained.add("task 0")
    for number in range(1, 20):
        chained.add(f"task {number}", f"task {number - 1}", param={"number": number}, priority=number % 10)
    chained.start("task 0")
    chained.settle()
    assert chained.runs() == [(f"task {n}", "succeed") for n in range(20)]
    for number in range(1, 20):
        [row] = chained.of(f"task {number}")
        assert (row.param, row.priority) == ({"number": number}, number % 10)


def test_what_was_deleted_by_sql_is_followed_by_nothing(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", {"first": "always"})
    instance = chained.start("first")
    chained.give()
    assert chained.marks == 1
    chained.rows.sql("DELETE FROM schedule_instance WHERE id = :id", id=instance)
    chained.follow()
    assert (chained.runs(), chained.marks) == ([], 0)


def test_while_it_is_off_its_fires_are_held_back_and_counted(chained: Chained) -> None:
    chained.add("first")
    second = chained.add("second", "first", status="off")
    chained.start("first")
    chained.settle()
    assert (chained.of("second"), chained.marks) == ([], 0)
    [skipped] = chained.database.read(lambda c: skips.newest(c, second, 10))
    assert (skipped.reason, skipped.fires) == ("off", 1)
    chained.edit("second", status="on")
    chained.settle()
    chained.follow()
    assert chained.of("second") == []


def test_it_fires_only_for_times_in_its_window(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", "first", starts_at="2026-03-01T00:00", ends_at="2026-04-01T00:00")
    for moment in ("2026-02-28T00:00", "2026-03-15T00:00", "2026-04-02T00:00"):
        chained.start("first", at=moment)
    chained.settle()
    assert [row.schedule_datetime for row in chained.of("second")] == [datetime.fromisoformat("2026-03-15")]


def test_it_fires_only_on_the_days_of_its_calendar(chained: Chained) -> None:
    chained.rows.sql("INSERT INTO schedule_calendar (name, weekend) VALUES ('office', 'sat,sun')")
    chained.add("first")
    chained.add("second", "first", calendar="office")
    for moment in ("2026-03-06T12:00", "2026-03-07T12:00", "2026-03-09T12:00"):  # a Friday, a Saturday, a Monday
        chained.start("first", at=moment)
    chained.settle()
    assert [row.schedule_datetime.day for row in chained.of("second")] == [6, 9]


class TestReplays:
    def diamond(self, chained: Chained) -> int:
        chained.add("extract")
        chained.add("load", "extract")
        chained.add("clean", {"extract": "always"})
        chained.add("report", {"load": "success", "clean": "always"})
        instance = chained.start("extract")
        chained.settle()
        assert len(chained.runs()) == 4
        return instance

    def test_a_replayed_parent_is_followed_only_when_asked(self, chained: Chained) -> None:
        instance = self.diamond(chained)
        replays.replay(chained.database, ANN, [instance])
        chained.settle()
        assert len(chained.runs()) == 5
        assert chained.marks == 0

    def test_when_asked_each_behind_it_runs_once_more(self, chained: Chained) -> None:
        instance = self.diamond(chained)
        first = {row.task_name: row.id for name in ("load", "clean", "report") for row in chained.of(name)}
        replays.replay(chained.database, ANN, [instance], again=CHAIN)
        chained.settle()
        assert sorted(name for name, _ in chained.runs()) == sorted(["extract", "load", "clean", "report"] * 2)
        for name, old in first.items():
            new = chained.of(name)[1]
            assert (new.replay_of, new.origin, new.run_number, new.status) == (old, "replay", 1, "succeed")
        assert chained.marks == 0

    @pytest.mark.parametrize("slow", ["load", "clean"])
    def test_what_follows_several_of_it_waits_for_all_of_them(self, chained: Chained, slow: str) -> None:
        instance = self.diamond(chained)
        replays.replay(chained.database, ANN, [instance], again=CHAIN)
        [run] = chained.give()
        chained.end(run)
        chained.follow()
        runs = {run.task_name: run for run in chained.give()}
        last = runs.pop(slow)
        for run in runs.values():
            chained.end(run)
        chained.follow()
        assert len(chained.of("report")) == 1
        chained.end(last)
        chained.settle()
        assert len(chained.of("report")) == 1
        chained.follow()
        chained.settle()
        assert len(chained.of("report")) == 2

    def test_a_branch_that_is_longer_is_waited_for_too(self, chained: Chained) -> None:
        chained.add("extract")
        chained.add("short", "extract")
        chained.add("long 1", "extract")
        chained.add("long 2", "long 1")
        chained.add("report", ["short", "long 2"])
        instance = chained.start("extract")
        chained.settle()
        replays.replay(chained.database, ANN, [instance], again=CHAIN)
        chained.settle()
        assert [len(chained.of(name)) for name in ("short", "long 1", "long 2", "report")] == [2, 2, 2, 2]
        assert chained.of("report")[1].id > max(chained.of(name)[1].id for name in ("short", "long 2"))

    def test_two_replays_at_once_are_followed_by_one_run(self, chained: Chained) -> None:
        self.diamond(chained)
        both = [chained.of("load")[0].id, chained.of("clean")[0].id]
        replays.replay(chained.database, ANN, both, again=CHAIN)
        for run in chained.give():
            chained.end(run)
            chained.follow()
        chained.settle()
        assert len(chained.of("report")) == 2

    def test_what_has_not_run_runs_for_the_first_time(self, chained: Chained) -> None:
        chained.add("first")
        chained.add("second", "first")
        chained.add("third", "second")
        instance = chained.start("first")
        chained.settle({"first": "failed"})
        assert chained.runs() == [("first", "failed")]
        replays.replay(chained.database, ANN, [instance], again=CHAIN)
        chained.settle()
        assert chained.runs()[1:] == [(name, "succeed") for name in ("first", "second", "third")]

    def test_two_schedulers_write_one_replay(self, chained: Chained) -> None:
        self.diamond(chained)
        both = [chained.of("load")[0].id, chained.of("clean")[0].id]
        replays.replay(chained.database, ANN, both, again=CHAIN)
        for run in chained.give():
            chained.end(run)
        page = chained.database.read(lambda c: chain_runs.page(c, 0, 10))
        assert len(page.ended) == 2
        chained.chains._follow(page.ended[:1])
        Chains(chained.database, chained.settings)._follow(page.ended[1:])
        chained.settle()
        assert len(chained.of("report")) == 2

    def test_a_filter_takes_the_chain_along(self, chained: Chained) -> None:
        chained.add("first")
        chained.add("second", "first")
        chained.start("first")
        chained.settle({"first": "failed"})
        chosen = replays.ReplayFilter(task="first")
        found = replays.find(chained.database, chosen, CHAIN)
        done = replays.replay_found(chained.database, ANN, chosen, found.last, again=CHAIN)
        chained.settle()
        assert (done.done, len(chained.of("second"))) == (1, 1)


BAD: list[tuple[Callable[[Chained], object], str]] = [
    (lambda c: c.add("new", "nope"), "after 'nope': there is no such task"),
    (lambda c: c.add("new", "frist"), "(did you mean first?)"),
    (lambda c: c.add("new", "new"), "a task cannot follow itself"),
    (lambda c: c.edit("first", after="first"), "a task cannot follow itself"),
    (lambda c: c.edit("first", after="second"), "in a circle: first after second after first"),
    (lambda c: c.edit("first", after="third"), "in a circle: first after third after second after first"),
    (lambda c: c.add("new", {}), "name a task"),
    (
        lambda c: c.add("new", {"first": "sucess"}),
        "'sucess' is none of success, failure, always (did you mean success?)",
    ),
    (lambda c: c.add("new", {"first": 1}), "1 is none of success, failure, always"),
    (lambda c: c.add("new", 7), "name a task"),
    (lambda c: c.add("new", [7]), "name a task"),
    (lambda c: c.add("new", [""]), "that is no name of a task"),
    (lambda c: c.add("new", [f"task {n}" for n in range(101)]), "at most 100"),
    (lambda c: c.add("new", "first", cron="@daily"), "give cron or after, and not both"),
    (lambda c: c.add("new", "first", jitter_seconds=5), "jitter_seconds does not go with after"),
    (lambda c: tasks.remove(c.database, ANN, "second"), "'second' cannot be removed: third follows it"),
    (lambda c: c.edit("second", name="other"), "'second' cannot be renamed: third follows it"),
]


@pytest.mark.parametrize(("act", "said"), BAD, ids=[said for _, said in BAD])
def test_what_makes_no_chain_is_refused_and_changes_nothing(
    chained: Chained, act: Callable[[Chained], object], said: str
) -> None:
    chained.add("first")
    chained.add("second", "first")
    chained.add("third", {"second": "always"})
    tables = ("schedule_task", "schedule_chain", "schedule_audit")
    before = [chained.rows.sql(f"SELECT * FROM {table} ORDER BY id") for table in tables]
    with pytest.raises(InvalidInput) as refused:
        act(chained)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [chained.rows.sql(f"SELECT * FROM {table} ORDER BY id") for table in tables] == before


def test_of_two_edits_that_close_a_circle_together_one_is_refused(chained: Chained) -> None:
    for name in ("a", "b", "c", "d"):
        chained.add(name)
    for _ in range(10):
        for name in ("a", "b", "c", "d"):
            chained.edit(name, after=None)
        chained.edit("b", after="c")
        chained.edit("d", after="a")
        start = threading.Barrier(2)
        refused: list[str] = []

        def close(name: str, after: str, start: threading.Barrier = start, refused: list[str] = refused) -> None:
            start.wait(10)
            try:
                chained.edit(name, after=after)
            except RotaError as error:
                refused.append(str(error))

        edits = [threading.Thread(target=close, args=pair) for pair in (("a", "b"), ("c", "d"))]
        for edit in edits:
            edit.start()
        for edit in edits:
            edit.join(60)
        assert len(refused) == 1, refused
        assert "in a circle" in refused[0]
        assert len(chained.links) == 3


class TestBySql:
    def test_a_task_that_sql_has_inserted_follows_from_its_plan_on(self, chained: Chained) -> None:
        chained.add("first")
        chained.rows.sql(
            "INSERT INTO schedule_task (name, type, trigger_kind, trigger_spec)"
            " VALUES ('second', 'REPORT', 'after', '{\"after\": {\"first\": \"success\"}}')"
        )
        Materializer(chained.database, chained.settings).step()
        assert chained.links == {("second", "first", "success")}
        chained.start("first")
        chained.settle()
        assert chained.runs() == [("first", "succeed"), ("second", "succeed")]
        chained.rows.sql("UPDATE schedule_task SET trigger_kind = 'manual', trigger_spec = NULL WHERE name = 'second'")
        Materializer(chained.database, chained.settings).step()
        assert chained.links == set()

    def test_a_spec_that_names_no_task_is_set_aside_with_the_reason(self, chained: Chained) -> None:
        chained.rows.sql(
            "INSERT INTO schedule_task (name, type, trigger_kind, trigger_spec)"
            " VALUES ('odd', 'REPORT', 'after', '{\"after\": {\"first\": \"sometimes\"}}')"
        )
        Materializer(chained.database, chained.settings).step()
        [row] = chained.rows.sql("SELECT plan_error FROM schedule_task WHERE name = 'odd'")
        assert "'sometimes' is none of success, failure, always" in row.plan_error
        assert chained.links == set()

    def test_a_circle_ends_where_it_began(self, chained: Chained) -> None:
        chained.add("first")
        chained.add("second", "first")
        chained.rows.sql(
            'UPDATE schedule_task SET trigger_kind = \'after\', trigger_spec = \'{"after": {"second": "success"}}\''
            " WHERE name = 'first'"
        )
        Materializer(chained.database, chained.settings).step()
        chained.start("first", at="2026-03-01T00:00")
        chained.settle()
        assert [name for name, _ in chained.runs()] == ["first", "second", "first"]
        assert chained.marks == 0
        shown = instances.show(chained.database, chained.of("second")[0].id)
        assert sorted(one["task"] for one in shown["chain"]) == ["first", "second"]

    def test_a_spec_that_is_spoiled_later_holds_up_no_other(self, chained: Chained) -> None:
        chained.add("first")
        spoiled = chained.add("spoiled", "first")
        chained.add("second", "first")
        chained.rows.sql("UPDATE schedule_task SET trigger_spec = '[1]' WHERE id = :id", id=spoiled)
        chained.start("first")
        chained.settle()
        assert chained.runs() == [("first", "succeed"), ("second", "succeed")]
        assert chained.marks == 0


def test_without_a_chain_one_statement_of_a_batch_of_fires_looks_whether_that_is_still_so(chained: Chained) -> None:
    chained.rows.planned_task(name="ticks", cron="@yearly")
    chained.add("asked")
    chained.start("asked")

    def writing(statements: list[str]) -> list[str]:
        return [one for one in statements if "schedule_chain" in one and not one.lstrip().startswith("SELECT")]

    with executed(chained.database.engine) as statements:
        Materializer(chained.database, chained.settings).step()
    [looks] = writing(statements)
    assert "schedule_instance" not in looks.split("FROM")[1]
    with executed(chained.database.engine) as statements:
        assert len(chained.give()) == 2
    assert writing(statements) == []
    assert chained.marks == 0


def test_show_has_the_chain_of_each_of_its_runs(chained: Chained) -> None:
    chained.add("extract")
    chained.add("load", "extract")
    chained.add("alert", {"extract": "failure"})
    chained.add("report", {"load": "success", "extract": "always"})
    extract = chained.start("extract")
    chained.settle()
    load, report = (chained.of(name)[0].id for name in ("load", "report"))
    expected = [
        {"task": "extract", "after": {}, "instance_id": extract, "status": "succeed", "runs": 1, "why": None},
        {
            "task": "alert", "after": {"extract": "failure"}, "instance_id": None, "status": None, "runs": 0,
            "why": f"it follows the failure of extract, and instance {extract} of extract has succeeded",
        },
        {"task": "load", "after": {"extract": "success"}, "instance_id": load, "status": "succeed", "runs": 1,
         "why": None},
        {
            "task": "report", "after": {"extract": "always", "load": "success"}, "instance_id": report,
            "status": "succeed", "runs": 1, "why": None,
        },
    ]  # fmt: skip
    for instance in (extract, load, report):
        assert instances.show(chained.database, instance)["chain"] == expected
    alone = chained.add("alone")
    assert alone
    assert instances.show(chained.database, chained.start("alone"))["chain"] == []


def test_many_ends_are_followed_a_page_at_a_time(chained: Chained) -> None:
    first = chained.add("first")
    chained.add("second", "first")
    number = 3 * PAGE
    start = chained.rows.start - timedelta(days=1)
    for at in range(number):
        chained.rows.fire(first, start + timedelta(seconds=at))
    chained.rows.sql("UPDATE schedule_instance SET status = 'succeed'")
    chained.database.write(
        lambda c: chain_runs.mark_fires(c, [(first, start + timedelta(seconds=at)) for at in range(number)])
    )
    assert chained.marks == number
    assert chained.chains.step() == 0
    assert chained.marks == number - PAGE
    chained.follow()
    assert (len(chained.of("second")), chained.marks) == (number, 0)


def test_a_fire_of_a_chain_that_is_canceled_before_a_worker_has_it_has_ended_too(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", "first")
    chained.add("third", {"second": "always"})
    chained.start("first")
    [run] = chained.give()
    chained.end(run)
    chained.follow()
    [second] = chained.of("second")
    instances.cancel(chained.database, ANN, [second.id])
    chained.settle()
    chained.follow()
    chained.settle()
    assert [(row.status, row.id > second.id) for row in chained.of("third")] == [("succeed", True)]


def test_fires_to_come_that_are_written_already_are_followed_by_a_task_that_is_added_then(chained: Chained) -> None:
    chained.add("alone")
    later = chained.rows.now() + timedelta(seconds=3)
    chained.rows.planned_task(later, name="ticks", cron="@yearly", overlap_policy="allow")
    Materializer(chained.database, chained.settings).step()
    [(fire, status)] = chained.rows.statuses().items()
    assert status in ("pending", "assigned")
    assert chained.marks == 0
    chained.add("next", "ticks")
    assert chained.marks == 1
    chained.rows.sql("UPDATE schedule_instance SET status = 'succeed' WHERE id = :id", id=fire)
    chained.follow()
    assert len(chained.of("next")) == 1


def test_of_the_links_of_several_tasks_those_that_stay_are_not_written_anew(chained: Chained) -> None:
    for name in ("first", "second"):
        chained.add(name)
    ids = {
        name: chained.add(name, {"first": "success", "second": "always"}) for name in ("one", "two", "three", "four")
    }
    found = "SELECT id, schedule_task_id, after_name, on_end FROM schedule_chain"
    old = {(row.schedule_task_id, row.after_name): row.id for row in chained.rows.sql(found)}
    changed = {
        ids["one"]: {"first": OnEnd.SUCCESS, "second": OnEnd.ALWAYS},
        ids["two"]: {"first": OnEnd.FAILURE, "second": OnEnd.ALWAYS},
        ids["three"]: {"second": OnEnd.ALWAYS},
        ids["four"]: {},
    }
    chained.database.write(lambda c: chains.link(c, changed))
    links = chained.rows.sql(found)
    assert {(row.schedule_task_id, row.after_name, row.on_end) for row in links} == {
        (task, name, end.value) for task, before in changed.items() for name, end in before.items()
    }
    new = {(row.schedule_task_id, row.after_name) for row in links if row.id not in old.values()}
    assert new == {(ids["two"], "first")}
    chained.database.write(lambda c: chains.link(c, {ids["one"]: {}}))
    assert len(chained.links) == 3


def test_the_first_link_that_is_added_between_the_look_and_the_write_is_seen(
    chained: Chained, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = chained.rows.planned_task(name="ticks", cron="@yearly")
    duty = Materializer(chained.database, chained.settings)
    decide = duty._decide

    def decide_and_link(*given: Any, **also: Any) -> Any:
        decided = decide(*given, **also)
        chained.add("next", "ticks")
        return decided

    monkeypatch.setattr(duty, "_decide", decide_and_link)
    duty.step()
    [(fired,)] = chained.rows.sql("SELECT id FROM schedule_instance WHERE schedule_task_id = :task", task=task)
    assert chained.rows.sql("SELECT schedule_instance_id FROM schedule_chain_run") == [(fired,)]


def test_a_status_that_sql_has_spoiled_is_no_run_that_goes_on(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", {"first": "always"})
    instance = chained.start("first")
    chained.give()
    if chained.database.url.get_backend_name() == "sqlite":
        chained.rows.sql("UPDATE schedule_instance SET status = 'done' WHERE id = :id", id=instance)
    else:
        url = chained.database.url.render_as_string(hide_password=False)
        spoil = f"UPDATE IGNORE schedule_instance SET status = 'done' WHERE id = {instance}"
        run_sql(url, *past_the_checks(url), spoil)
    chained.follow()
    assert (chained.of("second"), chained.marks) == ([], 0)


class TestReplaysBesideOthers:
    def two(self, chained: Chained) -> tuple[int, int]:
        chained.add("first")
        chained.add("second", "first")
        first = chained.start("first")
        chained.settle()
        return first, chained.of("second")[0].id

    def test_a_plain_replay_of_what_follows_does_not_count_for_the_chain(self, chained: Chained) -> None:
        first, second = self.two(chained)
        replays.replay(chained.database, ANN, [first], again=CHAIN)
        [run] = chained.give()
        replays.replay(chained.database, ANN, [second])
        [plain] = chained.give()
        chained.end(plain)
        chained.end(run)
        chained.follow()
        chained.settle()
        assert len(chained.of("second")) == 3

    def test_of_two_replays_at_once_the_last_end_is_followed(self, chained: Chained) -> None:
        first, _ = self.two(chained)
        for _ in range(2):
            replays.replay(chained.database, ANN, [first], again=CHAIN)
        one, other = chained.give()
        chained.end(other)
        chained.follow()
        assert len(chained.of("second")) == 1
        chained.end(one)
        chained.follow()
        chained.settle()
        assert [row.status for row in chained.of("second")] == ["succeed"] * 2

    def test_a_replay_that_is_asked_for_while_what_follows_runs_is_followed_too(self, chained: Chained) -> None:
        first, _ = self.two(chained)
        replays.replay(chained.database, ANN, [first], again=CHAIN)
        [one] = chained.give()
        chained.end(one)
        chained.follow()
        [follower] = chained.give()
        replays.replay(chained.database, ANN, [first], again=CHAIN)
        [other] = chained.give()
        chained.end(other)
        chained.follow()
        assert len(chained.of("second")) == 3
        chained.end(follower)
        chained.settle()
        assert [row.status for row in chained.of("second")] == ["succeed"] * 3

    def test_one_that_waits_counts_for_both(self, chained: Chained) -> None:
        first, _ = self.two(chained)
        for _ in range(2):
            replays.replay(chained.database, ANN, [first], again=CHAIN)
        one, other = chained.give()
        chained.end(other)
        chained.follow()
        chained.end(one)
        chained.follow()
        assert len(chained.of("second")) == 2
        chained.settle()
        assert chained.marks == 0

    def test_a_first_run_that_ends_late_is_no_run_for_the_replay(self, chained: Chained) -> None:
        chained.add("first")
        chained.add("second", "first")
        chained.add("third", "second")
        first = chained.start("first")
        [run] = chained.give()
        chained.end(run)
        chained.follow()
        [late] = chained.give()
        replays.replay(chained.database, ANN, [first], again=CHAIN)
        [again] = chained.give()
        chained.end(again)
        chained.follow()
        chained.end(late)
        chained.follow()
        assert len(chained.of("third")) == 1
        chained.settle()
        assert [len(chained.of(name)) for name in ("first", "second", "third")] == [2, 2, 2]

    def test_a_replay_of_what_comes_between_does_not_stand_for_the_whole(self, chained: Chained) -> None:
        chained.add("first")
        chained.add("second", "first")
        chained.add("third", "second")
        first = chained.start("first")
        chained.settle()
        second = chained.of("second")[0].id
        replays.replay(chained.database, ANN, [first], again=CHAIN)
        [long] = chained.give()
        replays.replay(chained.database, ANN, [second], again=CHAIN)
        [run] = chained.give()
        chained.end(run)
        chained.follow()
        [third] = chained.give()
        chained.end(third)
        chained.follow()
        chained.end(long)
        chained.settle()
        chained.follow()
        chained.settle()
        assert [len(chained.of(name)) for name in ("first", "second", "third")] == [2, 3, 3]

    @pytest.mark.parametrize("first", ["root", "side"])
    def test_replays_of_two_branches_that_meet_twice_are_followed_to_the_end(
        self, chained: Chained, first: str
    ) -> None:
        """What both meet in waits for the one, and what comes behind that for a branch of the other."""
        for name in ("root", "side"):
            chained.add(name)
        chained.add("meet", ["root", "side"])
        chained.add("long", "side")
        chained.add("last", ["meet", "long"])
        moment = chained.rows.past().isoformat() + "Z"
        ids = {name: chained.start(name, at=moment) for name in ("root", "side")}
        chained.settle()
        second = "side" if first == "root" else "root"
        for name in (first, second):
            replays.replay(chained.database, ANN, [ids[name]], again=CHAIN)
        runs = {run.task_name: run for run in chained.give()}
        for name in (second, first):
            chained.end(runs[name])
            chained.follow()
        while some := chained.give():
            for run in sorted(some, key=lambda run: run.task_name == "long"):
                chained.end(run)
                chained.follow()
        newest = {name: max(row.id for row in chained.of(name)) for name in ("meet", "long", "last")}
        assert len(chained.of("meet")) >= 2
        assert newest["last"] > max(newest["meet"], newest["long"])
        assert chained.marks == 0

    @pytest.mark.parametrize("end", ["succeed", "failed"])
    def test_a_plain_replay_changes_nothing_of_what_has_not_fired_yet(self, chained: Chained, end: str) -> None:
        for name in ("left", "right"):
            chained.add(name)
        chained.add("both", ["left", "right"])
        moment = chained.rows.past().isoformat() + "Z"
        chained.start("left", at=moment)
        right = chained.start("right", at=moment)
        runs = {run.task_name: run for run in chained.give()}
        chained.end(runs["right"], end)
        chained.follow()
        replays.replay(chained.database, ANN, [right])
        [again] = chained.give()
        chained.end(again, "failed" if end == "succeed" else "succeed")
        chained.end(runs["left"])
        chained.follow()
        assert len(chained.of("both")) == (1 if end == "succeed" else 0)

    def test_what_was_canceled_before_it_began_counts_for_nobody_whenever_that_was(self, chained: Chained) -> None:
        for name in ("left", "right"):
            chained.add(name)
        chained.add("both", {"left": "success", "right": "always"})
        for canceled_first in (True, False):
            moment = chained.rows.past().isoformat() + "Z"
            chained.start("left", at=moment)
            [run] = chained.give()
            right = chained.start("right", at=moment)
            if canceled_first:
                instances.cancel(chained.database, ANN, [right])
            chained.end(run)
            chained.follow()
            if not canceled_first:
                instances.cancel(chained.database, ANN, [right])
            chained.follow()
        assert chained.of("both") == []

    def test_a_lock_on_a_task_that_follows_holds_up_no_other_chain(self, chained: Chained) -> None:
        if chained.database.url.get_backend_name() == "sqlite":
            pytest.skip("SQLite has one lock for all")
        first, _ = self.two(chained)
        chained.add("other")
        chained.add("its follower", "other")
        replays.replay(chained.database, ANN, [first], again=CHAIN)
        chained.start("other")
        for run in chained.give():
            chained.end(run)
        with chained.database.engine.connect() as console:
            console.exec_driver_sql("BEGIN")
            console.exec_driver_sql("SELECT id FROM schedule_task WHERE name = 'second' FOR UPDATE")
            chained.follow()
            assert (len(chained.of("second")), len(chained.of("its follower")), chained.marks) == (2, 1, 1)
            console.rollback()


def test_a_task_whose_follower_is_added_meanwhile_is_not_removed(chained: Chained) -> None:
    for round_ in range(10):
        name = f"task {round_}"
        chained.add(name)
        start = threading.Barrier(2)
        refused: list[str] = []

        def act(what: Callable[[], object], start: threading.Barrier = start, refused: list[str] = refused) -> None:
            start.wait(10)
            try:
                what()
            except RotaError as error:
                refused.append(str(error))

        acts = [
            lambda name=name: tasks.remove(chained.database, ANN, name),
            lambda name=name, number=round_: chained.add(f"after {number}", name),
        ]
        threads = [threading.Thread(target=act, args=(one,)) for one in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(refused) == 1, refused


def test_a_task_that_is_renamed_does_not_follow_its_own_old_name(chained: Chained) -> None:
    chained.add("old")
    with pytest.raises(InvalidInput, match="after 'old': there is no such task"):
        tasks.edit(chained.database, ANN, "old", {"name": "new", "after": "old"})


def test_a_new_name_that_closes_a_circle_is_refused(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", "first")
    chained.rows.sql(
        'UPDATE schedule_task SET trigger_kind = \'after\', trigger_spec = \'{"after": {"ghost": "success"}}\''
        " WHERE name = 'first'"
    )
    Materializer(chained.database, chained.settings).step()
    with pytest.raises(InvalidInput, match="in a circle: ghost after first after ghost"):
        tasks.edit(chained.database, ANN, "second", {"name": "ghost"})


def test_what_was_held_back_is_counted_at_the_task(chained: Chained) -> None:
    chained.add("first")
    second = chained.add("second", "first", status="off")
    for _ in range(3):
        chained.start("first", at=chained.rows.past().isoformat() + "Z")
    chained.settle()
    assert chained.rows.task_row(second).fires_held_back == 3


def declarations(chained: Chained, *definitions: TaskDefinition) -> Declarations:
    return Declarations(chained.database, definitions, "worker", chained.settings)


def test_an_app_declares_its_chain_in_any_order_and_waits_for_tasks_of_others(
    chained: Chained, caplog: pytest.LogCaptureFixture
) -> None:
    tasks_of_app = [
        TaskDefinition.of(name="last", type="REPORT", after=["middle", "elsewhere"]),
        TaskDefinition.of(name="middle", type="REPORT", after="first"),
        TaskDefinition.of(name="first", type="REPORT"),
    ]
    declared = declarations(chained, *tasks_of_app)
    declared.declare()
    assert chained.links == {("middle", "first", "success")}
    assert "'last': after 'elsewhere': there is no such task; it is declared when that is declared" in caplog.text
    chained.add("elsewhere")
    declared.look()
    assert chained.links == {
        ("middle", "first", "success"),
        ("last", "middle", "success"),
        ("last", "elsewhere", "success"),
    }


def test_a_task_that_would_close_a_circle_holds_up_no_other_of_its_app(
    chained: Chained, caplog: pytest.LogCaptureFixture
) -> None:
    declared = declarations(
        chained,
        TaskDefinition.of(name="a", type="REPORT", after="x"),
        TaskDefinition.of(name="q", type="REPORT", after="y"),
    )
    declared.declare()
    chained.rows.sql(
        "INSERT INTO schedule_task (name, type, trigger_kind, trigger_spec)"
        " VALUES ('x', 'REPORT', 'after', '{\"after\": {\"b\": \"success\"}}')"
    )
    chained.rows.sql(
        "INSERT INTO schedule_task (name, type, trigger_kind, trigger_spec)"
        " VALUES ('b', 'REPORT', 'after', '{\"after\": {\"a\": \"success\"}}')"
    )
    Materializer(chained.database, chained.settings).step()
    chained.add("y")
    for _ in range(2):
        declared.look()
    assert ("q", "y", "success") in chained.links
    assert caplog.text.count("'a' cannot be declared: after: the tasks would follow each other in a circle") == 1
    with pytest.raises(InvalidInput, match="in a circle"):
        declarations(chained, TaskDefinition.of(name="a", type="REPORT", after="x")).declare()


def expected(after: Mapping[str, Mapping[str, str]], outcome: Mapping[str, str]) -> set[str]:
    """The tasks that run once the first have, by the model: each whose all have run and ended as it asks."""
    fits = {"success": {"succeed"}, "failure": {"failed"}, "always": {"succeed", "failed"}}
    ran = {name for name, ends in after.items() if not ends}
    while new := {
        name
        for name, ends in after.items()
        if name not in ran and all(one in ran and outcome[one] in fits[end] for one, end in ends.items())
    }:
        ran |= new
    return ran


@pytest.mark.parametrize("seed", range(12))
def test_random_chains_run_as_the_model_says_in_whatever_order_runs_end(chained: Chained, seed: int) -> None:
    """And once more, when the first is replayed with its chain: what comes behind it and nothing else."""
    print("seed", seed)
    chosen = random.Random(seed)
    names = [f"t{number}" for number in range(8)]
    after: dict[str, dict[str, str]] = {}
    for at, name in enumerate(names):
        before = chosen.sample(names[:at], min(at, chosen.choice([0, 1, 1, 2, 2, 3])))
        after[name] = {one: chosen.choice(["success", "success", "always", "failure"]) for one in before}
        chained.add(name, after[name] or None)
    outcome = {name: chosen.choice(["succeed", "succeed", "succeed", "failed"]) for name in names}
    moment = chained.rows.past().isoformat() + "Z"
    first = [chained.start(name, at=moment) for name in names if not after[name]]
    run_in_any_order(chained, outcome, chosen)
    ran = expected(after, outcome)
    assert {name: len(chained.of(name)) for name in names} == {name: int(name in ran) for name in names}
    behind = {"t0"}
    while more := {name for name in ran if name not in behind and after[name].keys() & behind}:
        behind |= more
    replays.replay(chained.database, ANN, first[:1], again=CHAIN)
    run_in_any_order(chained, outcome, chosen)
    counts = {name: int(name in ran) + int(name in behind and name in ran) for name in names}
    assert {name: len(chained.of(name)) for name in names} == counts
    assert chained.marks == 0


def run_in_any_order(chained: Chained, outcome: Mapping[str, str], chosen: random.Random) -> None:
    """Let runs begin and end in a random order, and the scheduler look after some of the ends, until nothing runs."""
    running = chained.give()
    while running:
        run = running.pop(chosen.randrange(len(running)))
        chained.end(run, outcome[run.task_name])
        if chosen.random() < 0.6 or not running:
            chained.follow()
            running += chained.give()


def test_of_several_runs_for_one_time_one_that_ended_as_asked_is_enough_in_whatever_order(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", "first")
    for good_first in (True, False):
        moment = chained.rows.past().isoformat() + "Z"
        for _ in range(2):
            chained.start("first", at=moment)
        one, other = (run for run in chained.give() if run.task_name == "first")
        ends = [(one, "succeed"), (other, "failed")]
        for run, status in ends if good_first else reversed(ends):
            chained.end(run, status)
            chained.follow()
    assert len(chained.of("second")) == 2


def test_a_replay_that_is_canceled_holds_up_the_chain_of_another_no_longer(chained: Chained) -> None:
    chained.add("extract")
    chained.add("load", "extract")
    chained.add("clean", "extract")
    chained.add("report", ["load", "clean"])
    extract = chained.start("extract")
    chained.settle()
    replays.replay(chained.database, ANN, [extract], again=CHAIN)
    [run] = chained.give()
    chained.end(run)
    chained.follow()
    runs = {run.task_name: run for run in chained.give()}
    chained.end(runs["clean"])
    chained.follow()
    [other] = replays.replay(chained.database, ANN, [runs["clean"].id], again=CHAIN)
    chained.end(runs["load"])
    chained.chains.step()
    assert len(chained.of("report")) == 1, "the other replay goes on before it"
    instances.cancel(chained.database, ANN, [other["id"]])
    chained.chains.step()
    chained.settle()
    assert (len(chained.of("report")), chained.marks) == (2, 0)


def test_a_task_that_another_scheduler_has_leased_is_waited_for_and_nothing_else_is_held(chained: Chained) -> None:
    chained.add("first")
    children = [chained.add(name, "first") for name in ("left", "right")]
    first = chained.start("first")
    chained.settle()
    replays.replay(chained.database, ANN, [first], again=CHAIN)
    [run] = chained.give()
    chained.end(run)
    token = locks.new_token()
    chained.database.write(lambda c: locks.take_new(c, token, children[1:], 30))
    assert chained.chains.step() > 0
    assert (len(chained.of("left")), chained.marks) == (1, 1)
    held = chained.rows.sql("SELECT schedule_task_id FROM schedule_task_lock WHERE is_locked = 1")
    assert [row.schedule_task_id for row in held] == children[1:]
    chained.database.write(lambda c: locks.drop(c, token, children[1:]))
    chained.settle()
    chained.follow()
    assert (len(chained.of("left")), len(chained.of("right")), chained.marks) == (2, 2, 2)


def test_what_follows_a_run_that_was_made_up_for_goes_behind_what_is_due_now(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", "first", priority=2)
    late, plain = chained.start("first"), chained.start("first")
    chained.rows.sql("UPDATE schedule_instance SET priority = 9 WHERE id = :id", id=late)
    chained.settle()
    moments = {chained.rows.row(number).schedule_datetime: number for number in (late, plain)}
    assert {moments[row.schedule_datetime]: row.priority for row in chained.of("second")} == {late: 9, plain: 2}


def test_no_more_than_so_many_come_before_one_or_follow_one(chained: Chained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MOST_IN_CHAIN", 3)
    chained.add("first")
    for number in range(1, 4):
        chained.add(f"row {number}", f"row {number - 1}" if number > 1 else "first")
    with pytest.raises(InvalidInput, match="more than 3 tasks would come before 'row 4'"):
        chained.add("row 4", "row 3")
    for number in range(2):
        chained.add(f"beside {number}", "first")
    with pytest.raises(InvalidInput, match="after 'first': 3 tasks follow it, and no more may"):
        chained.add("beside 2", "first")
    chained.edit("beside 1", after={"first": "always"})


def test_a_task_says_who_follows_it(chained: Chained) -> None:
    chained.add("first")
    chained.add("second", "first")
    chained.add("third", {"first": "always"})
    assert tasks.show(chained.database, "first")["followed_by"] == ["second", "third"]
    assert tasks.show(chained.database, "third")["followed_by"] == []
    chained.rows.sql("UPDATE schedule_task SET trigger_kind = 'manual', trigger_spec = NULL WHERE name = 'third'")
    assert tasks.show(chained.database, "first")["followed_by"] == ["second"]
