"""A thousand tasks of every minute, and no scheduler for a day, in simulated time: each misfire policy."""

from collections import Counter
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, func, select

from rota.scheduler_service.app import Scheduler
from rota.shared.database.transactions import Database
from rota.shared.settable_clock import SettableClock
from rota.shared.settings import Settings
from rota.shared.store.tables import schedule_catch_up, schedule_instance, schedule_skip, schedule_task
from rota.worker_service.app import Worker
from rota.worker_service.authoring import Rota
from rota.worker_service.context import NodeContext
from tests.harness.tasks import insert_tasks, note_planned

TASKS = 1000
DOWN = datetime.fromisoformat("2026-11-19T12:00:30")
"""The scheduler goes; the tasks were planned up to then."""

UP = DOWN + timedelta(days=1)
LAST = UP + timedelta(minutes=3)
"""Three more fires come after the outage."""

MINUTE = timedelta(minutes=1)
MISSED, CAP = 1440, 13
SETTINGS = {"capacity": 2000, "tick_seconds": 10, "poll_seconds": 10, "lookahead_seconds": 60, "heartbeat_seconds": 600}

LATE = timedelta(seconds=1)
"""A thousand that are due at once are claimed in several batches, with or without a catch-up."""

RUN = {"skip": 0, "fire_once": 1, "fire_all": CAP}
SKIPPED = {
    "skip": {"skip": MISSED},
    "fire_once": {"fire_once": MISSED - 1},
    "fire_all": {"window": MISSED - 60, "cap": 60 - CAP},
}
"""What becomes of the fires that each task has missed, and of which none ran on time."""


class Simulation:
    """A database with the tasks, a worker, and a scheduler that comes after a day."""

    def __init__(self, url: str, policy: str) -> None:
        self.clock = SettableClock(UP)
        self.database = Database(url, clock=self.clock)
        self.settings = Settings.load(database_url=url, liveness_seconds=1800, **SETTINGS)
        columns = {"misfire_policy": policy, "misfire_window_seconds": 3600, "misfire_cap": CAP}
        tasks = [
            {"name": f"task-{n}", "type": "NOTE", "cron": "* * * * *", "ends_at": LAST, **columns} for n in range(TASKS)
        ]

        def insert(connection: Connection) -> None:
            ids = insert_tasks(connection, tasks)
            note_planned(connection, ids, next_fire_at=DOWN.replace(second=0) + MINUTE)

        self.database.write(insert)

    def live(self, until: datetime) -> None:
        """A worker and a scheduler until this moment."""
        worker = Worker(self.settings, app(), clock=self.clock, lost=lambda reason: None)
        scheduler = Scheduler(self.database, self.settings)
        worker.start()
        scheduler.start()
        self.clock.advance(self.clock.seconds_until(until))
        worker.stop()
        scheduler.stop()


def app() -> Rota:
    app = Rota()

    @app.task("NOTE")  # on a thread, which is part of the simulation; the event loop goes by the host's time
    def note(ctx: NodeContext) -> None: ...

    return app


@pytest.fixture(params=["migrated_sqlite_url", "migrated_mariadb_url"], ids=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["skip", "fire_once", "fire_all"])
def test_each_missed_fire_runs_or_is_counted_and_what_is_due_now_is_on_time(url: str, policy: str) -> None:
    simulation = Simulation(url, policy)
    simulation.live(UP + timedelta(minutes=20))
    i, s = schedule_instance.c, schedule_skip.c
    database = simulation.database
    late = i.schedule_datetime < UP - timedelta(seconds=10)
    ended = database.read(
        lambda c: c.execute(
            select(i.schedule_task_id, late, func.count())
            .where(i.status == "succeed")
            .group_by(i.schedule_task_id, late)
        ).all()
    )
    assert Counter(number for _, is_late, number in ended if is_late) == ({RUN[policy]: TASKS} if RUN[policy] else {})
    assert Counter(number for _, is_late, number in ended if not is_late) == {3: TASKS}
    others = database.read(lambda c: c.scalar(select(func.count()).where(i.status != "succeed")))
    assert others == 0
    stretches = database.read(lambda c: c.execute(select(s.schedule_task_id, s.reason, s.fires)).all())
    assert Counter((reason, fires) for _, reason, fires in stretches) == dict.fromkeys(SKIPPED[policy].items(), TASKS)
    misfires = database.read(lambda c: c.execute(select(schedule_task.c.misfires)).scalars().all())
    assert set(misfires) == {MISSED - RUN[policy]}
    assert database.read(lambda c: c.scalar(select(func.count()).select_from(schedule_catch_up))) == 0
    moments = database.read(lambda c: c.execute(select(i.gmt_started, i.due_at).where(~late)).all())
    latest = max(started - due for started, due in moments)
    print(f"the latest of {len(moments)} fires that were due after the outage was late by {latest}")
    assert latest < LATE, "none that was due after the outage waited for what was caught up"
    database.close()
