"""Recovery: ``kill -9`` of a busy worker, and of one of two schedulers.

What the worker ran when it was killed runs again elsewhere: a second start with the next attempt is right there, and
nowhere else.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from datetime import timedelta

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import Start, WrongRun, check
from benchmarks.lab import Lab
from benchmarks.rota_app import attempt_of, key_of
from benchmarks.system import System, epoch, fresh_system, in_seconds, sleep_until
from benchmarks.workloads.punctuality import AHEAD_SECONDS
from benchmarks.workloads.steady import add_every_second, spread_keys
from tests.harness.databases import connect

DEADLINE = 90.0
WAIT_SECONDS = 0.3
RATE, LOAD_SECONDS = 40, 10
EVERY_SECOND, FIRES = 100, 16
KILLED_AFTER = 4.3
WATCHED_SECONDS = 10
DROP_SECONDS = 0.2
"""Until the server has dropped a killed process's connections, and what these had begun."""

WORKER_NOTE = (
    f"2 workers, {RATE} fires/s of {WAIT_SECONDS:g} s each; until the last instance that the killed worker ran or was"
    " assigned has started on the other. Each instance that it ran has a second start, with the next attempt."
)
SCHEDULER_NOTE = (
    f"2 schedulers, {EVERY_SECOND} tasks due every second; one is killed when it is seen to hold leases. The latest"
    f" start in the {WATCHED_SECONDS} s after."
)


def cases(scale: Scale) -> list[Case]:
    """A case for each process that is killed."""
    if not scale.recovery:
        return []
    return [
        Case("recovery", "rota", "worker killed", scale.rounds, worker_killed, WORKER_NOTE),
        Case("recovery", "rota", "scheduler killed", scale.rounds, scheduler_killed, SCHEDULER_NOTE),
    ]


def worker_killed(lab: Lab) -> Outcome:
    """One of two busy workers."""
    count = RATE * LOAD_SECONDS
    with fresh_system(lab) as rota:
        rota.add_tasks(count, kind="BENCH_WAIT", param={"seconds": WAIT_SECONDS})
        rota.start()
        first = in_seconds(AHEAD_SECONDS)
        rota.fire_spread(first, RATE)
        sleep_until(first + timedelta(seconds=KILLED_AFTER))
        killed = time.time()
        rota.kill(rota.workers[0])
        time.sleep(DROP_SECONDS)
        running, assigned = _held(rota, "running"), _held(rota, "assigned")
        expected = spread_keys("t", first, RATE, count)
        rota.wait_ended(count, DEADLINE)
        starts = rota.records.starts()
        _check_attempts(starts, expected, running)
        last = {start.key.partition("#")[0]: start.entered for start in starts}
        return Outcome(
            {
                "work elsewhere s": max(last[key] for key in running | assigned) - killed,
                "held": len(running | assigned),
                "run again": sum(start.key.endswith("#2") for start in starts),
                "latest start s": max(start.late for start in starts),
            }
        )


def scheduler_killed(lab: Lab) -> Outcome:
    """One of two schedulers."""
    with fresh_system(lab) as rota:
        rota.start(schedulers=2)
        first, expected = add_every_second(rota, EVERY_SECOND, FIRES)
        sleep_until(first + timedelta(seconds=KILLED_AFTER))
        killed, leases = _kill_a_holder(rota)
        sleep_until(first + timedelta(seconds=FIRES))
        rota.wait_drained(len(expected), DEADLINE)
        starts = rota.records.starts()
        check(starts, expected)
        after = [start.late for start in starts if killed <= start.due <= killed + WATCHED_SECONDS]
        return Outcome({"next fires late ms": max(after) * 1000, "fires watched": len(after), "leases held": leases})


def _kill_a_holder(rota: System) -> tuple[float, int]:
    """Kill the scheduler that is seen to hold leases; returns when, and how many it left behind."""
    held = "SELECT locked_by FROM schedule_task_lock WHERE is_locked = 1 LIMIT 1"
    deadline = time.monotonic() + DEADLINE
    with closing(connect(rota.url)) as connection, connection.cursor() as cursor:
        while not cursor.execute(held):
            if time.monotonic() > deadline:
                raise WrongRun("no scheduler was seen to hold a lease")
        ((token,),) = cursor.fetchall()
        rota.kill(next(one for one in rota.schedulers if f":{one.pid}:" in token))
        killed = time.time()
        time.sleep(DROP_SECONDS)
        cursor.execute("SELECT COUNT(*) FROM schedule_task_lock WHERE is_locked = 1 AND locked_by = %s", (token,))
        ((left,),) = cursor.fetchall()
    return killed, int(left)


def _held(rota: System, status: str) -> set[str]:
    """The keys of what the first worker's row holds in a status."""
    rows = rota.sql(
        "SELECT t.name, i.schedule_datetime FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
        " JOIN schedule_worker_node w ON w.id = i.schedule_worker_node_id"
        f" WHERE w.name = 'w1' AND i.status = '{status}'"
    )
    return {key_of(name, epoch(fire)) for name, fire in rows}


def _check_attempts(starts: Sequence[Start], expected: Collection[str], running: Collection[str]) -> None:
    """Raises WrongRun unless all started, each attempt once, and only what was running a second time."""
    first = {attempt_of(key, 1) for key in expected}
    again = {attempt_of(key, 2) for key in running}
    lost = {attempt_of(key, 1) for key in running} - {start.key for start in starts}  # claimed, and not begun
    check(starts, (first | again) - lost)
