"""One scheduler's life up to a point between two statements, how others go on, and what must be true afterwards."""

import functools
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import psutil
import pytest
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from tests.harness import faults, invariants, staging
from tests.harness.databases import MariaDBServer, connect, fresh_database, is_mysql, run_sql
from tests.harness.faults import COMMIT
from tests.harness.processes import marked_environment, wait_until
from tests.harness.staging import Ran, scheduling, working

SIDE_BY_SIDE = 6
"""Lives that are led at once: they wait more than they work."""

FIRES = 5
OTHERS_GO_ON_SECONDS = 10.0
"""The lease, the server's limit for an idle transaction, a tick, and what a busy machine takes."""

HELD_LONGER_ON_MYSQL_SECONDS = 7.0
"""There a process that is frozen inside a transaction holds its locks for 10 s, and not for 3."""

FREEING = ("UPDATE schedule_task_lock", "DELETE FROM schedule_chain_run")

Stage = Callable[[str], "Expected"]


@dataclass(slots=True)
class Expected:
    """What must be there in the end."""

    rows: list[tuple[str, datetime, int]]
    """Every instance: the task's name, the fire's time, the run number; each has succeeded."""

    runs: list[Ran] = field(default_factory=list)


def stage_fires(url: str) -> Expected:
    """A task in its plan, one never planned, and one whose old plan has put a fire ahead."""
    first = staging.database_second(url)
    last = first + timedelta(seconds=FIRES - 1)
    window: dict[str, Any] = {"cron": "* * * * * *", "starts_at": first, "ends_at": last}
    staging.add_task(url, "planned", **window, next_fire_at=first)
    staging.add_task(url, "new", planned=False, **window, gmt_create=first - timedelta(seconds=1))
    edited = staging.add_task(url, "edited", cron="@hourly", cron_seconds=0)
    run_sql(url, f"UPDATE schedule_task SET trigger_kind = 'manual', cron = NULL WHERE id = {edited}")
    ahead = first + timedelta(hours=1)
    staging.insert_row(
        url, "schedule_instance",
        schedule_task_id=edited, schedule_datetime=ahead, due_at=ahead, run_number=0, origin="cron",
        creator="scheduler",
    )  # fmt: skip
    fires = [(name, first + timedelta(seconds=at), 0) for name in ("planned", "new") for at in range(FIRES)]
    return Expected(rows=fires, runs=fires)


def stage_pending(url: str) -> Expected:
    """Rows by SQL: two for a fire that has run, one for another, and a run that was asked for."""
    task = staging.add_task(url, "asked")
    moment = staging.database_second(url)
    old, missed = moment - timedelta(days=1), moment - timedelta(days=2)
    insert = partial(staging.insert_row, url, "schedule_instance", schedule_task_id=task)
    insert(schedule_datetime=old, run_number=0, **staging.ended_at(old))
    insert(schedule_datetime=old)
    insert(schedule_datetime=old)
    insert(schedule_datetime=missed)
    insert(schedule_datetime=moment, due_at=moment, origin="manual")
    runs = [("asked", old, 1), ("asked", old, 2), ("asked", missed, 1), ("asked", moment, 1)]
    return Expected(rows=[("asked", old, 0), *runs], runs=runs)


def stage_ends(url: str) -> Expected:
    """Two tasks with a fixed delay, each with a marked run that has ended; their windows have room for one run more."""
    end = staging.database_second(url)
    following = end + timedelta(seconds=2)
    names = ("one", "other")
    for name in names:
        spec = {"fixed_delay": 2}
        task = staging.add_task(
            url, name, cron_seconds=0, trigger_kind="fixed_delay", trigger_spec=spec, ends_at=following
        )
        staging.insert_row(
            url, "schedule_instance",
            schedule_task_id=task, schedule_datetime=end, run_number=0, **staging.ended_at(end),
        )  # fmt: skip
    run_sql(
        url,
        "INSERT INTO schedule_follow_up (schedule_task_id, schedule_instance_id, instance_gmt_create, what)"
        " SELECT schedule_task_id, id, gmt_create, 'fixed_delay' FROM schedule_instance",
    )
    runs = [(name, following, 0) for name in names]
    return Expected(rows=[*((name, end, 0) for name in names), *runs], runs=runs)


def stage_chain(url: str) -> Expected:
    """Two runs for one time that have ended and are marked, a task that follows both, and one that follows that."""
    end = staging.database_second(url)
    manual: dict[str, Any] = {"cron_seconds": 0, "trigger_kind": "manual"}
    for name in ("left", "right"):
        task = staging.add_task(url, name, **manual)
        staging.insert_row(
            url, "schedule_instance",
            schedule_task_id=task, schedule_datetime=end, run_number=0, **staging.ended_at(end),
        )  # fmt: skip
    chain = {"both": {"left": "success", "right": "always"}, "last": {"both": "success"}}
    for name, after in chain.items():
        task = staging.add_task(url, name, cron_seconds=0, trigger_kind="after", trigger_spec={"after": after})
        for before, on_end in after.items():
            staging.insert_row(url, "schedule_chain", schedule_task_id=task, after_name=before, on_end=on_end)
    run_sql(
        url,
        "INSERT INTO schedule_chain_run (schedule_instance_id, instance_gmt_create)"
        " SELECT id, gmt_create FROM schedule_instance",
    )
    runs = [(name, end, 0) for name in chain]
    return Expected(rows=[("left", end, 0), ("right", end, 0), *runs], runs=runs)


def stage_shards(url: str) -> Expected:
    """A fire that is due of a task that runs as three shards."""
    moment = staging.database_second(url)
    task = staging.add_task(url, "spread", cron_seconds=0, trigger_kind="manual", spread="shards", shards=3)
    staging.insert_row(
        url, "schedule_instance", schedule_task_id=task, schedule_datetime=moment, due_at=moment, run_number=0
    )
    shard = ("spread", moment, 0)
    return Expected(rows=[shard] * 4, runs=[shard] * 3)


class Lives:
    """Every life of a scheduler that ends, or rests, between two statements of one duty's batch."""

    def __init__(self, server: MariaDBServer, template: list[str], directory: Path, duty: str, stage: Stage) -> None:
        self._server = server
        self._template = template
        self._directory = directory
        self.duty = duty
        self._stage = stage
        self.points = self._dry_run()

    def lead(self, number: signal.Signals, first: int = 1) -> None:
        """Lead one life for each point, the one after the last commit included; fails with all that went wrong."""
        points = range(first, len(self.points) + 2)
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            wrong = [fault for fault in pool.map(partial(self._told, number), points) if fault]
        assert not wrong, "\n".join(wrong)

    def first_of(self, text: str) -> int:
        """The first point that says something of the kind."""
        return next(point for point, said in enumerate(self.points, 1) if text in said)

    def _told(self, number: signal.Signals, at: int) -> str | None:
        what = self.points[at - 1] if at <= len(self.points) else "what follows the batch"
        try:
            self._lead(number, at)
        except (AssertionError, pytest.fail.Exception) as error:
            return f"{number.name} before {at}, {what}: {error}"
        return None

    def _dry_run(self) -> list[str]:
        """What the duty says in its first batch: from its first statement to the commit that frees the leases."""
        with self._staged() as life, self._victim(life.url, 0, signal.SIGKILL) as victim:
            return wait_until(lambda: _batch(victim.said), 30, "the first batch to be written")

    def _lead(self, number: signal.Signals, at: int) -> None:
        with self._staged() as life, self._victim(life.url, at, number) as victim:
            victim.meet_fate(number)
            _same("its words", victim.said[: len(self.points)], self.points[:at])
            with scheduling(life.url):
                life.wait_for_fires()
                if number is signal.SIGSTOP:
                    victim.wake()
                life.wait_for_runs()
            if number is signal.SIGSTOP:
                victim.end()
            life.check()

    @contextmanager
    def _staged(self) -> Iterator["Life"]:
        ran: list[Ran] = []
        with fresh_database(self._server) as url:
            run_sql(url, *self._template)
            with working(url, ran), closing(connect(url)) as connection:
                yield Life(url, self._stage(url), ran, connection)

    @contextmanager
    def _victim(self, url: str, at: int, number: signal.Signals) -> Iterator["Victim"]:
        journal, log = (self._directory / f"{self.duty}-{number.name}-{at}.{kind}" for kind in ("journal", "log"))
        settings = {**staging.QUICK, "database_url": url}
        fate = {"duty": self.duty, "at": at, "number": number, "journal": journal, "log": log}
        process = _processes().Process(target=faults.scheduler, args=(settings,), kwargs=fate, daemon=True)
        process.start()
        try:
            yield Victim(process, journal)
        finally:
            process.kill()
            process.join(10)


@functools.cache
def _processes() -> ForkServerContext:
    """Where the victims come from: a process that has imported everything forks one in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", faults.__name__])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in marked_environment({}).items():
            patch.setenv(name, value)
        ensure_running()
    return context


@dataclass(slots=True)
class Victim:
    """The scheduler that meets its fate, and its journal."""

    process: ForkServerProcess
    journal: Path

    @property
    def said(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def meet_fate(self, number: signal.Signals) -> None:
        """Wait until it is dead, or stopped."""
        if number is signal.SIGKILL:
            self.process.join(30)
            assert self.process.exitcode == -signal.SIGKILL
        else:
            status = psutil.Process(self.process.pid).status
            wait_until(lambda: status() == psutil.STATUS_STOPPED, 30, "the scheduler to stop")

    def wake(self) -> None:
        """Let it go on, and wait until it has been through several transactions more."""
        before = self.said.count(COMMIT)
        os.kill(self.process.pid or 0, signal.SIGCONT)
        wait_until(lambda: self.said.count(COMMIT) >= before + 5, 30, "the scheduler that woke to go on")

    def end(self) -> None:
        self.process.terminate()
        self.process.join(15)
        assert self.process.exitcode == 0


@dataclass(slots=True)
class Life:
    """A database in which a scheduler meets its fate, and what is expected there in the end."""

    url: str
    expected: Expected
    ran: list[Ran]
    connection: "Connection[Cursor]"

    def ask(self, query: str) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return [tuple(row) for row in cursor.fetchall()]

    def number(self, query: str) -> int:
        return int(self.ask(query)[0][0])

    def wait_for_fires(self) -> None:
        """Wait until every fire has its row: the others go on, whatever the victim holds."""
        limit = FIRES + OTHERS_GO_ON_SECONDS + (HELD_LONGER_ON_MYSQL_SECONDS if is_mysql(self.url) else 0)
        wait_until(lambda: len(self.rows()) >= len(self.expected.rows), limit, "every fire")

    def wait_for_runs(self) -> None:
        """Wait until they have run and the leases are free."""
        succeed = "SELECT count(*) FROM schedule_instance WHERE status = 'succeed'"
        wait_until(lambda: self.number(succeed) >= len(self.expected.rows), 40, "every fire to have run")
        marks = "SELECT (SELECT count(*) FROM schedule_follow_up) + (SELECT count(*) FROM schedule_chain_run)"
        wait_until(lambda: not self.number(marks), 30, "all ends to be followed up")
        leases = "SELECT count(*) FROM schedule_task_lock WHERE is_locked = 1"
        wait_until(lambda: not self.number(leases), 30, "the leases to be free")
        plans = "SELECT count(*) FROM schedule_task WHERE next_fire_at IS NOT NULL OR plan_stale = 1"
        wait_until(lambda: not self.number(plans), 30, "the plans to move on")

    def rows(self) -> list[tuple[str, datetime, int]]:
        """Every instance, by task, fire and run."""
        return self.ask(
            "SELECT t.name, i.schedule_datetime, i.run_number FROM schedule_instance i"
            " JOIN schedule_task t ON t.id = i.schedule_task_id WHERE t.name <> 'edited' ORDER BY 1, 2, 3"
        )

    def check(self) -> None:
        """Every fire has exactly one row and exactly one run; the plans have moved on; what was dropped is gone.

        And the rows agree.
        """
        rows = len(self.expected.rows)
        _same("the rows", self.rows(), sorted(self.expected.rows))
        _same("the runs", Counter(self.ran), Counter(self.expected.runs))
        states = self.ask("SELECT status, attempt, worker_losses, count(*) FROM schedule_instance GROUP BY 1, 2, 3")
        _same("the instances", states, [("succeed", 1, 0, rows)])
        nodes = self.ask("SELECT count(*), count(DISTINCT schedule_instance_id), sequence, status"
                         " FROM schedule_task_node GROUP BY 3, 4")  # fmt: skip
        _same("the nodes", nodes, [(len(self.expected.runs), len(self.expected.runs), 1, "succeed")])
        plans = self.ask(
            "SELECT DISTINCT next_fire_at, plan_stale, plan_error, misfires, fires_held_back FROM schedule_task"
        )
        _same("the plans", plans, [(None, None, None, 0, 0)])
        _same("the faults", list(invariants.rows_agree(self.url, scheduled=False)), [])


def _same(what: str, found: object, wanted: object) -> None:
    assert found == wanted, f"{what} are {found}, not {wanted}"


def _batch(said: list[str]) -> list[str]:
    """The first batch, once it is whole: the write that frees its locks, or its marks, and the commit after it."""
    freed = next((at for at, text in enumerate(said) if text.startswith(FREEING)), None)
    if freed is None or COMMIT not in said[freed:]:
        return []
    return said[: said.index(COMMIT, freed) + 1]
