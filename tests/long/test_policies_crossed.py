"""All policies crossed: trigger, misfire, overlap, retries, a lost worker, off. A model and Rota have the same outcome.

Each combination is a task. All live through the same hours of simulated time, on one database, with a real scheduler
and real workers. The model (``expected``) is written from docs/scheduling.md and docs/architecture.md. The minutes:

- 0 to 40: no scheduler runs, so these fires are missed. It comes at 45.
- 50: a run that takes 15 minutes, so that it is in the way of the fire at 60.
- 52 to 75: those tasks that are to be off are off.
- 80: a run that takes five minutes, and whose worker is lost at 82. Another worker is there.
- 110: a run that fails at its first attempt.
- 130: the last fire.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, select

from rota.scheduler_service.app import Scheduler
from rota.shared.control import tasks
from rota.shared.control.actor import Actor
from rota.shared.database.transactions import Database
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import TaskDefinition
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import workers
from rota.shared.store.tables import schedule_catch_up, schedule_instance, schedule_skip, schedule_task
from rota.worker_service.app import Worker
from rota.worker_service.authoring import Rota
from rota.worker_service.context import NodeContext
from tests.harness.tasks import insert_tasks, note_planned

BEGIN = datetime.fromisoformat("2026-11-19T12:00:00")
MINUTE = timedelta(minutes=1)
UP, LAST, END = 45, 130, 140
LONG, LONG_MINUTES = 50, 15
OFF, ON = 52, 75
LOSING, LOSING_MINUTES, LOST = 80, 5, 82
FAILING = 110

WINDOW_SECONDS, CAP = 2400, 3
"""Of the fires that were missed, fire_all runs those of the last 40 minutes, of these the newest three."""

SETTINGS = {"capacity": 600, "tick_seconds": 10, "poll_seconds": 10, "heartbeat_seconds": 20, "liveness_seconds": 120}

TRIGGERS: dict[str, dict[str, Any]] = {
    "cron": {"cron": "*/10 * * * *"},
    "interval": {"every": "10m"},
    "any_of": {"any_of": [{"every": "20m"}, {"cron": "10-59/20 * * * *"}]},
    "all_of": {"all_of": [{"every": "5m"}, {"cron": "*/10 * * * *"}]},
    **{f"once {minute}": {"at": (BEGIN + minute * MINUTE).isoformat()} for minute in (40, 60, 80, 110)},
}


@dataclass(frozen=True)
class Policies:
    """One combination."""

    trigger: str
    misfire: str
    overlap: str
    retries: int
    on_worker_lost: str
    goes_off: bool

    @property
    def name(self) -> str:
        off = "off" if self.goes_off else "on"
        return f"{self.trigger}, {self.misfire}, {self.overlap}, {self.retries}, {self.on_worker_lost}, {off}"

    @property
    def minutes(self) -> list[int]:
        """Its fires."""
        kind, _, minute = self.trigger.partition(" ")
        return [int(minute)] if kind == "once" else list(range(0, LAST + 1, 10))

    def definition(self) -> TaskDefinition:
        return TaskDefinition.of(
            name=self.name,
            type="NOTE",
            ends_at=BEGIN + LAST * MINUTE,
            misfire_policy=self.misfire,
            misfire_window_seconds=WINDOW_SECONDS,
            misfire_cap=CAP,
            overlap_policy=self.overlap,
            retries=self.retries,
            retry_delay_seconds=60,
            on_worker_lost=self.on_worker_lost,
            **TRIGGERS[self.trigger],
        )


AT_MOST_ONCE = (0, "fail")
ENDS = [(0, "retry"), (1, "retry"), AT_MOST_ONCE]
"""How often a node is retried, and what follows a lost worker: at most once excludes retries."""

CROSSED = [
    Policies(trigger, misfire, overlap, retries, lost, off)
    for trigger, misfire, overlap, (retries, lost), off in product(
        TRIGGERS, ["skip", "fire_once", "fire_all"], ["skip", "queue", "replace", "allow"], ENDS, [False, True]
    )
]

Outcome = tuple[str, int]
"""What became of a fire: how its instance ended, or why it has none; and how often the handler ran for it.

``waited``: it succeeded, and a scheduler was there when it was due, but it began minutes later.
"""


# --- The model: what the pages say -----------------------------------------------------------------------------------


def expected(task: Policies) -> dict[int, Outcome]:
    """What becomes of each fire, by its minute."""
    missed = [minute for minute in task.minutes if minute < UP]
    return {**of_missed(task, missed), **{minute: of_due(task, minute) for minute in task.minutes if minute > UP}}


def of_missed(task: Policies, missed: list[int]) -> dict[int, Outcome]:
    """Misfires: the newest, none, or those of the window up to the cap; under ``replace`` only the newest of these."""
    if task.misfire == "skip":
        return dict.fromkeys(missed, ("skip", 0))
    if task.misfire == "fire_once":
        return dict.fromkeys(missed, ("fire_once", 0)) | dict.fromkeys(missed[-1:], ("succeed", 1))
    in_window = [minute for minute in missed if minute >= UP - WINDOW_SECONDS // 60]
    run = in_window[-CAP:]
    outcomes: dict[int, Outcome] = dict.fromkeys(missed, ("window", 0))
    outcomes |= dict.fromkeys(in_window, ("cap", 0))
    outcomes |= dict.fromkeys(run, ("succeed", 1))
    if task.overlap == "replace":
        outcomes |= dict.fromkeys(run[:-1], ("canceled", 0))
    return outcomes


def of_due(task: Policies, minute: int) -> Outcome:
    """A fire for which a scheduler is there."""
    if task.goes_off and OFF <= minute < ON:
        return "off", 0
    is_overlapped = not task.goes_off and LONG in task.minutes
    if minute == LONG and is_overlapped and task.overlap == "replace":
        return "canceled", 1
    if LONG < minute < LONG + LONG_MINUTES and is_overlapped and task.overlap in {"skip", "queue"}:
        return ("canceled", 0) if task.overlap == "skip" else ("waited", 1)
    if minute == LOSING:
        return ("succeed", 2) if task.on_worker_lost == "retry" else ("failed", 1)
    if minute == FAILING:
        return ("succeed", 2) if task.retries else ("failed", 1)
    return "succeed", 1


# --- Rota ------------------------------------------------------------------------------------------------------------


class Simulation:
    """A database with a task for each combination, and the processes that live on it."""

    def __init__(self, url: str) -> None:
        self.clock = SettableClock(BEGIN + UP * MINUTE)
        self.database = Database(url, clock=self.clock)
        self.settings = Settings.load(database_url=url, **SETTINGS)
        self.began: dict[tuple[str, int], list[datetime]] = {}
        self.database.write(self._insert)

    def _insert(self, connection: Connection) -> None:
        ids = insert_tasks(connection, [task.definition().columns() for task in CROSSED])
        for minute in {task.minutes[0] for task in CROSSED}:
            begins = [number for number, task in zip(ids, CROSSED, strict=True) if task.minutes[0] == minute]
            note_planned(connection, begins, next_fire_at=BEGIN + minute * MINUTE)

    def app(self) -> Rota:
        app = Rota()

        @app.task("NOTE")
        def note(ctx: NodeContext) -> None:
            minute = (ctx.schedule_datetime.astimezone(UTC).replace(tzinfo=None) - BEGIN) // MINUTE
            self.began.setdefault((ctx.task_name, minute), []).append(self.clock.now())
            takes = {LONG: LONG_MINUTES, LOSING: LOSING_MINUTES}.get(minute, 0)
            for _ in range(2 * takes):
                if not ctx.cancel_requested:
                    self.clock.sleep(30)
            if minute == FAILING and ctx.attempt == 1:
                raise ValueError("the first attempt")

        return app

    def worker(self, name: str) -> Worker:
        settings = self.settings.model_copy(update={"worker_name": name})
        worker = Worker(settings, self.app(), clock=self.clock, lost=lambda reason: None)
        worker.start()
        return worker

    def live_until(self, minute: int) -> None:
        self.clock.advance(self.clock.seconds_until(BEGIN + minute * MINUTE))

    def switch(self, status: TaskStatus) -> None:
        names = [task.name for task in CROSSED if task.goes_off]
        tasks.switch(self.database, Actor("ann", "cli"), names, status)

    def live(self) -> None:
        """All minutes, as the page of this module says."""
        first = self.worker("first")
        scheduler = Scheduler(self.database, self.settings)
        scheduler.start()
        self.live_until(OFF)
        self.switch(TaskStatus.OFF)
        self.live_until(ON)
        self.switch(TaskStatus.ON)
        self.live_until(LOST - 1)
        second = self.worker("second")
        self.live_until(LOST)
        self.database.write(lambda c: workers.bury(c, [first.id], "test", "test"))
        self.live_until(END)
        for process in (first, second, scheduler):
            process.stop()

    def outcomes(self) -> dict[str, dict[int, Outcome]]:
        """What the rows say of each task's fires."""
        found: dict[str, dict[int, Outcome]] = {task.name: {} for task in CROSSED}
        i, s, t = schedule_instance.c, schedule_skip.c, schedule_task.c
        instances = select(t.name, i.schedule_datetime, i.status).join_from(
            schedule_instance, schedule_task, t.id == i.schedule_task_id
        )
        for name, fire, status in self.database.read(lambda c: c.execute(instances).all()):
            minute = (fire - BEGIN) // MINUTE
            assert minute not in found[name], f"{name}: the fire at {minute} has two instances"
            found[name][minute] = self._outcome(name, minute, status)
        stretches = select(t.name, s.reason, s.first_fire, s.last_fire, s.fires).join_from(
            schedule_skip, schedule_task, t.id == s.schedule_task_id
        )
        for name, reason, first, last, number in self.database.read(lambda c: c.execute(stretches).all()):
            minutes = range((first - BEGIN) // MINUTE, (last - BEGIN) // MINUTE + 1, 10)
            assert len(minutes) == number, f"{name}: {reason} from {first} to {last} counts {number}"
            for minute in minutes:
                assert minute not in found[name], f"{name}: the fire at {minute} was skipped ({reason}) and has a row"
                found[name][minute] = self._outcome(name, minute, reason)
        return found

    def _outcome(self, name: str, minute: int, word: str) -> Outcome:
        began = self.began.get((name, minute), [])
        has_waited = minute > UP and bool(began) and began[0] > BEGIN + (minute + 2) * MINUTE
        return "waited" if has_waited and word == "succeed" else word, len(began)


@pytest.fixture(params=["migrated_sqlite_url", "migrated_mariadb_url"], ids=["sqlite", "mariadb"])
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    simulation = Simulation(request.getfixturevalue(request.param))
    yield simulation
    simulation.database.close()


@pytest.mark.timeout(900)
def test_each_combination_ends_as_the_model_says(simulation: Simulation) -> None:
    simulation.live()
    found = simulation.outcomes()
    wrong = {
        task.name: {
            minute: (found[task.name].get(minute), wanted.get(minute))
            for minute in sorted({*found[task.name], *wanted})
            if found[task.name].get(minute) != wanted.get(minute)
        }
        for task in CROSSED
        if found[task.name] != (wanted := expected(task))
    }
    shown = "\n".join(f"{name}: {differences}" for name, differences in list(wrong.items())[:40])
    assert not wrong, f"{len(wrong)} of {len(CROSSED)} differ (found, model):\n{shown}"
    left = simulation.database.read(lambda c: c.execute(select(schedule_catch_up.c.id)).all())
    assert left == []


def test_the_model_tells_the_policies_apart() -> None:
    """A model that ignored a policy would be satisfied by a scheduler that does."""
    for name in ("misfire", "overlap", "retries", "on_worker_lost", "goes_off"):
        told: dict[Any, set[Any]] = {}
        for task in CROSSED:
            told.setdefault(getattr(task, name), set()).add(tuple(sorted(expected(task).items())))
        assert len({frozenset(outcomes) for outcomes in told.values()}) == len(told), name
    assert {outcome for task in CROSSED for outcome, _ in expected(task).values()} == {
        "succeed", "waited", "failed", "canceled", "skip", "fire_once", "window", "cap", "off",
    }  # fmt: skip
