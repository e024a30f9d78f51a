"""Two schedulers and two workers live through two days on one database, in simulated time.

Nothing depends on how fast the machine is: a fire whose worker has a free slot starts at its very moment.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any

import pytest
from sqlalchemy import Row, select

from rota.scheduler_service.app import Scheduler
from rota.shared.clock import Clock
from rota.shared.database.transactions import Database
from rota.shared.domain.triggers.cron import Cron
from rota.shared.domain.triggers.zones import load_zone
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store.tables import schedule_instance, schedule_task
from rota.worker_service.app import Worker
from rota.worker_service.authoring import Rota
from rota.worker_service.context import NodeContext

BEGIN = datetime.fromisoformat("2026-10-24T12:00:00")
FIRST, LAST = BEGIN + timedelta(minutes=10), BEGIN + timedelta(days=2)
"""The tasks' window. On the 25th clocks are set back in Berlin: one night is before it, and one behind."""

DEPLOYED = BEGIN + timedelta(hours=24, minutes=1)
"""A new scheduler and a new worker take the places of old ones."""

END = LAST + timedelta(hours=3)
"""By then all has ended."""

BERLIN = "Europe/Berlin"
OFTEN, NIGHTLY, FAILING, OVERRUNNING, QUEUED = "*/15 * * * *", "30 2 * * *", "5 * * * *", "0 * * * *", "0 0-3 * * *"
RETRY, OVERRUN, LONG = timedelta(minutes=10), timedelta(minutes=75), timedelta(minutes=90)

IN_TURN = timedelta(seconds=150)
"""The longest from the end of a run to the start of the next that waits for its turn: a tick and a poll, and their
phases."""

SETTINGS = {
    "tick_seconds": 60,
    "poll_seconds": 60,
    "lookahead_seconds": 300,
    "heartbeat_seconds": 600,
    "liveness_seconds": 1800,
    "assignment_timeout_seconds": 60,
    "overdue_seconds": 600,
    "grace_seconds": 7200,
    "capacity": 10,
}

Ran = tuple[str, datetime, int]
"""One run of a handler: the task's name, the fire's own time (naive UTC), the attempt."""


def app(clock: Clock, ran: list[Ran]) -> Rota:
    """The tasks: ordinary ones, one that fails at first, and two that take longer than the time between their fires."""
    app = Rota()
    window: dict[str, Any] = {"starts_at": FIRST, "ends_at": LAST}

    def note(ctx: NodeContext) -> None:
        ran.append((ctx.task_name, ctx.schedule_datetime.astimezone(UTC).replace(tzinfo=None), ctx.attempt))

    @app.task("OFTEN", cron=OFTEN, **window)
    def often(ctx: NodeContext) -> None:
        note(ctx)

    @app.task("NIGHTLY", cron=NIGHTLY, timezone=BERLIN, **window)
    def nightly(ctx: NodeContext) -> None:
        note(ctx)

    @app.task("FAILING", cron=FAILING, retries=1, retry_delay_seconds=int(RETRY.total_seconds()), **window)
    def failing(ctx: NodeContext) -> None:
        note(ctx)
        if ctx.attempt == 1:
            raise ValueError("the first attempt")

    @app.task("OVERRUNNING", cron=OVERRUNNING, overlap_policy="skip", **window)
    def overrunning(ctx: NodeContext) -> None:
        note(ctx)
        clock.sleep(OVERRUN.total_seconds())

    @app.task("QUEUED", cron=QUEUED, overlap_policy="queue", **window)
    def queued(ctx: NodeContext) -> None:
        note(ctx)
        clock.sleep(LONG.total_seconds())

    return app


class Simulation:
    """A database, and the processes that live on it."""

    def __init__(self, url: str) -> None:
        self.clock = SettableClock(BEGIN)
        self.settings = Settings.load(database_url=url, **SETTINGS)
        self.database = Database(url, clock=self.clock)
        self.ran: list[Ran] = []
        self.lost: list[str] = []

    def scheduler(self) -> Scheduler:
        """A new one, at work."""
        scheduler = Scheduler(self.database, self.settings)
        scheduler.start()
        return scheduler

    def worker(self, name: str) -> Worker:
        """A new one, at work."""
        settings = self.settings.model_copy(update={"worker_name": name})
        worker = Worker(settings, app(self.clock, self.ran), clock=self.clock, lost=self.lost.append)
        worker.start()
        return worker

    def live_until(self, moment: datetime) -> None:
        self.clock.advance(self.clock.seconds_until(moment))

    def instances(self) -> dict[str, list[Row[Any]]]:
        """What the database holds of each task, by the time of the fires."""
        statement = (
            select(schedule_task.c.name, schedule_instance)
            .join_from(schedule_instance, schedule_task, schedule_task.c.id == schedule_instance.c.schedule_task_id)
            .order_by(schedule_instance.c.schedule_datetime)
        )
        found: dict[str, list[Row[Any]]] = {}
        for row in self.database.read(lambda c: c.execute(statement).all()):
            found.setdefault(row.name, []).append(row)
        return found


@pytest.fixture(params=["migrated_sqlite_url", "migrated_mariadb_url"], ids=["sqlite", "mariadb"])
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    simulation = Simulation(request.getfixturevalue(request.param))
    yield simulation
    simulation.database.close()


def fires(cron: str, zone: str = "UTC") -> list[datetime]:
    """Those that are due in the window."""
    moments = Cron.parse(cron).fires_after(FIRST - timedelta(seconds=1), load_zone(zone))
    return list(takewhile(lambda moment: moment <= LAST, moments))


def not_overrun(moments: Iterable[datetime]) -> list[datetime]:
    """Of the fires of what overruns those for which it does not run any more."""
    kept: list[datetime] = []
    for moment in moments:
        if not kept or moment >= kept[-1] + OVERRUN:
            kept.append(moment)
    return kept


def succeeded(rows: Iterable[Row[Any]]) -> list[datetime]:
    return [row.schedule_datetime for row in rows if row.status == "succeed"]


@pytest.mark.timeout(2400)  # for a slow machine: threads that hang fail the clock after a minute
def test_two_days_go_by_as_planned(simulation: Simulation) -> None:
    schedulers = [simulation.scheduler(), simulation.scheduler()]
    workers = [simulation.worker("first"), simulation.worker("second")]
    simulation.live_until(DEPLOYED)
    schedulers.pop(0).stop()
    workers.pop(0).stop()
    schedulers.append(simulation.scheduler())
    workers.append(simulation.worker("first"))
    simulation.live_until(END)
    for worker in workers:
        worker.stop()
    for scheduler in schedulers:
        scheduler.stop()
    assert simulation.clock.now() - END < timedelta(minutes=1), "nothing was left to wait for"
    assert simulation.lost == []
    check(simulation.instances(), simulation.ran)


def check(instances: dict[str, list[Row[Any]]], ran: list[Ran]) -> None:
    """Each fire ran once, at its moment, and no other did."""
    assert {row.status for rows in instances.values() for row in rows} == {"succeed", "canceled"}
    assert fires(NIGHTLY, BERLIN) == [datetime.fromisoformat(f"2026-10-{at}:30") for at in ("25T00", "26T01")]
    assert [row.schedule_datetime for row in instances["nightly"]] == fires(NIGHTLY, BERLIN)
    assert [row.schedule_datetime for row in instances["often"]] == fires(OFTEN)
    assert [row.schedule_datetime for row in instances["failing"]] == fires(FAILING)
    assert [row.schedule_datetime for row in instances["overrunning"]] == fires(OVERRUNNING)
    assert [row.schedule_datetime for row in instances["queued"]] == fires(QUEUED)
    for name in ("often", "nightly", "failing", "queued"):
        assert succeeded(instances[name]) == [row.schedule_datetime for row in instances[name]]
    assert succeeded(instances["overrunning"]) == not_overrun(fires(OVERRUNNING))
    for name in ("often", "nightly", "failing", "overrunning"):
        begun = [row for row in instances[name] if row.status == "succeed"]
        assert [row.gmt_started for row in begun] == [row.due_at for row in begun], f"{name}: none early, none late"
    check_retries(instances["failing"])
    check_overlap(instances)
    wanted = Counter((name, fire, 1) for name, rows in instances.items() for fire in succeeded(rows))
    wanted.update(("failing", fire, 2) for fire in fires(FAILING))
    assert Counter(ran) == wanted


def check_retries(failing: list[Row[Any]]) -> None:
    """Each failed once, and was tried again after its delay."""
    assert {(row.attempt, row.failures) for row in failing} == {(2, 1)}
    assert [row.due_at for row in failing] == [row.schedule_datetime + RETRY for row in failing]


def check_overlap(instances: dict[str, list[Row[Any]]]) -> None:
    """What overran skipped the next fire, which says so; what queues ran one after the other, each in its turn."""
    skipped = [row for row in instances["overrunning"] if row.status == "canceled"]
    assert all("still ran when this instance was due" in row.reason for row in skipped)
    queued = sorted(instances["queued"], key=lambda row: row.gmt_started)
    assert [row.gmt_completed - row.gmt_started for row in queued] == [LONG] * len(queued)
    assert queued[0].gmt_started == queued[0].due_at
    for before, row in pairwise(queued):
        assert before.gmt_completed <= row.gmt_started
        assert row.gmt_started <= max(before.gmt_completed, row.due_at) + IN_TURN
    assert sum(row.gmt_started == row.due_at for row in queued) >= 2, "each day's first found its slot free"
