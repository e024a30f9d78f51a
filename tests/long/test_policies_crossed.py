"""All policies crossed: trigger, misfire, overlap, retries, a lost worker, off. A model and Rota have the same outcome.

Each combination is a task. All live through the same hours of simulated time, on one database, with a real scheduler
and real workers. The model (``expected``) is written from docs/scheduling.md and docs/architecture.md. The minutes:

- 0 to 40: no scheduler runs, so these fires are missed. It comes at 45.
- 50: a run that takes 15 minutes, so that it is in the way of the fire at 60.
- 52 to 75: those tasks that are to be off are off.
- 80: a run that takes five minutes, and whose worker is lost at 82. Another worker is there.
- 110: a run that fails at its first attempt.
- 130: the last fire.

Left out is ``fixed_delay``, whose fires are no times of a clock: tests/store/test_fixed_delay.py has its policies.
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
from rota.shared.control.calendars import add as add_calendar
from rota.shared.database.transactions import Database
from rota.shared.domain.calendars.defining import Changes
from rota.shared.domain.calendars.definition import edition_of
from rota.shared.domain.states import TaskStatus
from rota.shared.domain.task import TaskDefinition
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store import calendars, workers
from rota.shared.store.tables import schedule_catch_up, schedule_instance, schedule_skip, schedule_task
from rota.worker_service.app import Worker
from rota.worker_service.authoring import Rota
from rota.worker_service.context import NodeContext
from tests.harness.tasks import insert_tasks, note_planned

ANN = Actor("ann", "cli")
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
    "crons": {"cron": "*/20 * * * *; 10-59/20 * * * *"},
    "jitter": {"cron": "*/10 * * * *", "jitter_seconds": 30},
    "calendar": {"cron": "*/10 * * * *", "calendar": "work"},
    "on demand": {},
    **{f"once {minute}": {"at": (BEGIN + minute * MINUTE).isoformat()} for minute in (40, 60, 80, 110)},
}


@dataclass(frozen=True)
class Policies:
    """One combination."""

    trigger: str
    misfire: str
    overlap: str
    retry: str
    on_worker_lost: str
    goes_off: bool

    @property
    def name(self) -> str:
        off = "off" if self.goes_off else "on"
        return f"{self.trigger}, {self.misfire}, {self.overlap}, {self.retry}, {self.on_worker_lost}, {off}"

    @property
    def minutes(self) -> list[int]:
        """Its fires."""
        kind, _, minute = self.trigger.partition(" ")
        if kind == "on":
            return []
        return [int(minute)] if kind == "once" else list(range(0, LAST + 1, 10))

    def definition(self) -> TaskDefinition:
        return TaskDefinition.of(
            name=self.name,
            type="NOTE",
            ends_at=BEGIN + LAST * MINUTE,
            misfire_policy=self.misfire,
            misfire_window_seconds=WINDOW_SECONDS,
            misfire_cap=CAP,
            retry_delay_seconds=60,
            on_worker_lost=self.on_worker_lost,
            **OVERLAPS[self.overlap],
            **RETRIES[self.retry],
            **TRIGGERS[self.trigger],
        )


OVERLAPS: dict[str, dict[str, Any]] = {
    **{policy: {"overlap_policy": policy} for policy in ("skip", "queue", "replace", "allow")},
    "allow 1": {"overlap_policy": "allow", "max_instances": 1},
    "allow 2": {"overlap_policy": "allow", "max_instances": 2},
}
RETRIES: dict[str, dict[str, Any]] = {
    "never": {"retries": 0},
    "once": {"retries": 1},
    "once from the first node": {"retries": 1, "on_retry": "restart"},
    "once on ValueError": {"retries": 1, "retry_on": ["ValueError"]},
    "once on KeyError": {"retries": 1, "retry_on": ["KeyError"]},
    "once but not on ValueError": {"retries": 1, "never_retry": ["ValueError"]},
}
ENDS = [("never", "retry"), ("once", "retry"), ("never", "fail")]
"""How often a node is retried, and what follows a lost worker: at most once excludes retries."""

MISFIRES = ["skip", "fire_once", "fire_all"]
NEW_IN_ONE_WAY = ("crons", "jitter", "calendar", "on demand", "allow 1", "allow 2")
"""Triggers and overlaps that are crossed with all but the ends."""


def crossed() -> Iterator[Policies]:
    """All of them; with ends of their own one trigger and one misfire policy, as neither matters to an end."""
    for trigger, misfire, overlap, (retry, lost), off in product(TRIGGERS, MISFIRES, OVERLAPS, ENDS, [False, True]):
        if retry == "once" or not {trigger, overlap} & set(NEW_IN_ONE_WAY):
            yield Policies(trigger, misfire, overlap, retry, lost, off)
    for retry, overlap, off in product(list(RETRIES)[2:], OVERLAPS, [False, True]):
        yield Policies("cron", "skip", overlap, retry, "retry", off)


CROSSED = list(crossed())

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
    if LONG < minute < LONG + LONG_MINUTES and is_overlapped and task.overlap in {"skip", "queue", "allow 1"}:
        return ("canceled", 0) if task.overlap == "skip" else ("waited", 1)
    if minute == LOSING:
        return ("succeed", 2) if task.on_worker_lost == "retry" else ("failed", 1)
    if minute == FAILING:
        is_retried = task.retry in {"once", "once from the first node", "once on ValueError"}
        return ("succeed", 2) if is_retried else ("failed", 1)
    return "succeed", 1


# --- Rota ------------------------------------------------------------------------------------------------------------


class Simulation:
    """A database with a task for each combination, and the processes that live on it."""

    def __init__(self, url: str) -> None:
        self.clock = SettableClock(BEGIN + UP * MINUTE)
        self.database = Database(url, clock=self.clock)
        self.settings = Settings.load(database_url=url, **SETTINGS)
        self.began: dict[tuple[str, int], list[datetime]] = {}
        add_calendar(self.database, ANN, "work", Changes(off=["2026-11-20"]))
        self.database.write(self._insert)

    def _insert(self, connection: Connection) -> None:
        ids = insert_tasks(connection, [task.definition().columns() for task in CROSSED])
        for minute in {min(task.minutes) for task in CROSSED if task.minutes}:
            begins = [number for number, task in zip(ids, CROSSED, strict=True) if task.minutes[:1] == [minute]]
            note_planned(connection, begins, next_fire_at=BEGIN + minute * MINUTE)
        edition = edition_of(calendars.texts(connection, ["work"])["work"])
        by_calendar = [number for number, task in zip(ids, CROSSED, strict=True) if task.trigger == "calendar"]
        calendars.use(connection, [(number, "work", edition) for number in by_calendar])

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
        tasks.switch(self.database, ANN, names, status)

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
    told_apart = {task for task in CROSSED if not {task.trigger, task.overlap} & set(NEW_IN_ONE_WAY)}
    told_apart -= {task for task in told_apart if task.retry not in dict(ENDS)}
    for name in ("misfire", "overlap", "retry", "on_worker_lost", "goes_off"):
        told: dict[Any, set[Any]] = {}
        for task in told_apart:
            told.setdefault(getattr(task, name), set()).add(tuple(sorted(expected(task).items())))
        assert len({frozenset(outcomes) for outcomes in told.values()}) == len(told), name
    assert {outcome for task in CROSSED for outcome, _ in expected(task).values()} == {
        "succeed", "waited", "failed", "canceled", "skip", "fire_once", "window", "cap", "off",
    }  # fmt: skip
