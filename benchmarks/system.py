"""Rota under test: its processes over a database of the lab, tasks by the thousand, and what the server counted."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from benchmarks import record
from benchmarks.cpu import Meter
from benchmarks.evidence import Records, WrongRun
from rota.shared.store.tables import plan_inputs_text
from tests.harness.databases import PrivateMariaDB, connect, run_sql
from tests.harness.distance import far
from tests.harness.processes import RotaProcess, wait_until

if TYPE_CHECKING:
    from benchmarks.lab import Lab

APP = "benchmarks.rota_app:app"
FAR = datetime(2099, 1, 1)  # noqa: DTZ001 - times in the database are naive UTC
"""When tasks are due that are not to fire during a run."""

LAST_HOLDER = "scheduler-of-the-last-fire:12345:0a1b2c3d:1"
"""A lease token as a former tick would have left it: about as long as the real ones."""

SETTLE_SECONDS = 2.0
LOOK_SECONDS = 0.02
QUIET_SECONDS = 15.0
"""A run is over when no handler has started for so long and no instance is left to run."""

WRITE_OUT_SECONDS = 600
PAGES_A_SECOND = 20_000
CLEAN_PAGES = 1_000

ERRORS = ("Deadlock found", "failed and will be tried again")
"""No process may log these: the database is there all the time, and deadlocks are retried silently."""

COUNTERS = ("Questions", "Innodb_deadlocks", "Com_rollback")


class System:
    """Schedulers and workers over one database; they end with the block.

    with System(url, records) as rota:
        rota.scheduler(); rota.start_workers(2)
    """

    def __init__(self, url: str, records: Records, reached_by: str | None = None) -> None:
        """``reached_by`` is the URL that the processes get, if it is not that of the benchmark itself."""
        self.url = url
        self._reached_by = reached_by or url
        self.schedulers: list[RotaProcess] = []
        self.workers: list[RotaProcess] = []
        self.records = records

    def __enter__(self) -> "System":
        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        """All of its processes."""
        return [process.pid for process in (*self.schedulers, *self.workers) if process.alive]

    def scheduler(self, settings: Mapping[str, str] | None = None) -> RotaProcess:
        """Start a scheduler and wait until it says so."""
        process = self._start(["scheduler"], settings)
        self.schedulers.append(process)
        process.wait_for_log("scheduler: started", deadline=60)
        return process

    def start_workers(self, count: int, settings: Mapping[str, str] | None = None) -> None:
        """Start workers and wait until they are live."""
        before = len(self.workers)
        for number in range(before + 1, before + count + 1):
            self.workers.append(self._start(["worker", "--app", APP, "--name", f"w{number}"], settings))
        for process in self.workers[before:]:
            process.wait_for_log("started as", deadline=60)

    def start(self, *, schedulers: int = 1, workers: int = 2, settings: Mapping[str, str] | None = None) -> None:
        """Start so many and let them come to rest."""
        for _ in range(schedulers):
            self.scheduler(settings)
        self.start_workers(workers, settings)
        settle()

    def stop(self) -> None:
        """End them as an operator would, so that no worker stays live in a database that is used again."""
        processes = [process for process in (*self.workers, *self.schedulers) if process.alive]
        for process in processes:
            process.stop_signal(signal.SIGTERM)
        for process in processes:
            process.wait_exit(60)

    def _start(self, arguments: list[str], settings: Mapping[str, str] | None) -> RotaProcess:
        environment = {record.FOLDER: str(self.records.folder), **(settings or {})}
        process = RotaProcess(*arguments, database_url=self._reached_by, environment=environment)
        self._stack.callback(process.discard)
        return process.start()

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run plain SQL and return the rows of the last statement."""
        return run_sql(self.url, *statements)

    def busy(self) -> bool:
        """Whether anything is pending, assigned or running."""
        active = "SELECT 1 FROM schedule_instance WHERE status IN ('pending', 'assigned', 'running') LIMIT 1"
        return bool(self.sql(active))

    def wait_ended(self, expected: int, deadline: float) -> None:
        """Wait until so many instances are there and all have ended."""
        count = "SELECT COUNT(*) FROM schedule_instance"
        self._wait(lambda: self.sql(count)[0][0] >= expected and not self.busy(), deadline, "not all instances ended")

    def wait_drained(self, expected: int, deadline: float) -> None:
        """Wait until so many handlers were entered and all instances have ended.

        Raises WrongRun when nothing is under way any more and it were fewer, when a process has ended or has logged
        what it must not, and at the deadline.
        """
        seen, since = 0, time.monotonic()

        def is_over() -> bool:
            nonlocal seen, since
            count = self.records.count()
            if count != seen:
                seen, since = count, time.monotonic()
            return count >= expected or (time.monotonic() - since > QUIET_SECONDS and not self.busy())

        self._wait(is_over, deadline, f"there were not {expected:,} starts")
        if seen < expected:
            ended = self.sql("SELECT status, reason, COUNT(*) FROM schedule_instance GROUP BY 1, 2 LIMIT 10")
            raise WrongRun(f"{seen:,} starts of {expected:,}; there are {ended}")
        self._wait(lambda: not self.busy(), deadline, "not all instances ended")
        for process in (*self.schedulers, *self.workers):
            if said := [error for error in ERRORS if error in process.log]:
                raise WrongRun(f"a process logged {said[0]!r}: {process.log_tail()}")

    def kill(self, process: RotaProcess) -> None:
        """``kill -9``; the others are to go on."""
        process.kill()
        for processes in (self.schedulers, self.workers):
            if process in processes:
                processes.remove(process)

    def _wait(self, is_over: Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_over():
            if ended := [process for process in (*self.schedulers, *self.workers) if not process.alive]:
                raise WrongRun(f"a process ended: {ended[0].log_tail()}")
            if time.monotonic() > deadline:
                raise WrongRun(f"{otherwise} within {seconds:g} s")
            time.sleep(LOOK_SECONDS)

    def add_tasks(
        self,
        count: int,
        cron: str = "0 0 0 1 1 *",
        *,
        next_fire_at: datetime = FAR,
        ends_at: datetime | None = None,
        kind: str = "BENCH_NOOP",
        param: Mapping[str, Any] | None = None,
        prefix: str = "t",
    ) -> None:
        """Insert planned tasks named t0, t1 …, with their lock rows: as they stand between two fires."""
        columns = {
            "type": kind,
            "cron": cron,
            "cron_seconds": "1",
            "next_fire_at": written(next_fire_at),
            **({} if ends_at is None else {"ends_at": written(ends_at)}),
            **({} if param is None else {"param": json.dumps(param)}),
        }
        literals = ", ".join(f"'{value}'" for value in columns.values())
        for start in range(0, count, 100_000):
            end = min(start + 100_000, count) - 1
            self.sql(
                f"INSERT INTO schedule_task (name, {', '.join(columns)})"
                f" SELECT CONCAT('{prefix}', seq), {literals} FROM seq_{start}_to_{end}",
            )
        self.sql(f"UPDATE schedule_task SET planned_inputs = {plan_inputs_text()} WHERE live_name LIKE '{prefix}%'")
        self.sql(
            f"INSERT IGNORE INTO schedule_task_lock (schedule_task_id, locked_by) SELECT id, '{LAST_HOLDER}'"
            " FROM schedule_task"
            f" WHERE live_name LIKE '{prefix}%'"
        )

    def add_planned(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert planned tasks with these columns, and their lock rows, in one transaction: it makes them due."""
        names = ", ".join(rows[0])
        values = ", ".join(f"({', '.join(map(literal, row.values()))})" for row in rows)
        self.sql(
            "START TRANSACTION",
            f"INSERT INTO schedule_task ({names}) VALUES {values}",
            f"UPDATE schedule_task SET planned_inputs = {plan_inputs_text()} WHERE planned_inputs IS NULL",
            f"INSERT INTO schedule_task_lock (schedule_task_id, locked_by) SELECT id, '{LAST_HOLDER}'"
            " FROM schedule_task",
            "COMMIT",
        )

    def fire_all(self, moment: datetime, prefix: str = "t") -> None:
        """Let every task of a prefix be due at a moment, and daily at that time, in one transaction."""
        self._replan(f"next_fire_at = '{written(moment)}', cron = '{daily_at(moment)}'", prefix)

    def fire_spread(self, moment: datetime, rate: int, prefix: str = "t") -> None:
        """Let the tasks be due one after the other, ``rate`` in a second, and daily at their second."""
        self._replan(
            f"next_fire_at = '{written(moment)}' + INTERVAL"
            f" SUBSTRING(name, {len(prefix) + 1}) * 1000000 DIV {rate} MICROSECOND,"
            " cron = CONCAT_WS(' ', SECOND(next_fire_at), MINUTE(next_fire_at), HOUR(next_fire_at), '* * *')",
            prefix,
        )

    def _replan(self, values: str, prefix: str) -> None:
        """Edit tasks and their plans in one statement, which leaves none stale, not even for a moment.

        MariaDB assigns from left to right, so that the text of the inputs is that of the new values.
        """
        self.sql(
            f"UPDATE schedule_task SET {values}, planned_inputs = {plan_inputs_text()} WHERE live_name LIKE '{prefix}%'"
        )


@contextmanager
def fresh_system(lab: "Lab", round_trip_seconds: float = 0) -> Iterator[System]:
    """A system without processes over an empty database, which is so far away from them."""
    with ExitStack() as stack:
        url, records = stack.enter_context(lab.rota_database()), stack.enter_context(lab.records())
        reached_by = stack.enter_context(far(url, round_trip_seconds)) if round_trip_seconds else url
        yield stack.enter_context(System(url, records, reached_by))


def write_out(server: PrivateMariaDB) -> None:
    """Let the server write its dirty pages to disk now. After millions of rows, it would do so during the run."""
    url = server.admin_url()
    names = ("innodb_max_dirty_pages_pct", "innodb_io_capacity", "innodb_io_capacity_max")
    (usual,) = run_sql(url, "SELECT " + ", ".join(f"@@{name}" for name in names))
    quick = zip(reversed(names), (PAGES_A_SECOND, PAGES_A_SECOND, 0), strict=True)
    run_sql(url, *(f"SET GLOBAL {name} = {value}" for name, value in quick))
    dirty = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'"
    wait_until(lambda: int(run_sql(url, dirty)[0][1]) < CLEAN_PAGES, WRITE_OUT_SECONDS, "the server to write out")
    run_sql(url, *(f"SET GLOBAL {name} = {value}" for name, value in zip(names, usual, strict=True)))


def settle() -> None:
    """Let processes that have just started come to rest."""
    time.sleep(SETTLE_SECONDS)


def daily_at(moment: datetime) -> str:
    """The cron expression, with seconds, that fires every day at this time."""
    return f"{moment.second} {moment.minute} {moment.hour} * * *"


def literal(value: str | int | None) -> str:
    """A value that needs no escapes, in SQL."""
    return "NULL" if value is None else str(value) if isinstance(value, int) else f"'{value}'"


def written(moment: datetime) -> str:
    """A naive UTC time as SQL writes it."""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def now() -> datetime:
    """The time, naive UTC: the lab's database is on this host."""
    return datetime.now(UTC).replace(tzinfo=None)


def in_seconds(seconds: float) -> datetime:
    """A full second, at least so far ahead; naive UTC."""
    return (now() + timedelta(seconds=seconds + 1)).replace(microsecond=0)


def epoch(moment: datetime) -> float:
    """A naive UTC moment in seconds since the epoch."""
    return moment.replace(tzinfo=UTC).timestamp()


def sleep_until(moment: datetime) -> None:
    """Wait for a naive UTC moment."""
    time.sleep(max(0.0, (moment - now()).total_seconds()))


class Window:
    """What a stretch of a run cost: CPU seconds of Rota and of the server, and what the server counted.

    window = Window(system, server); ...; window.figures(instances=50_000)
    """

    def __init__(self, system: System, server: PrivateMariaDB) -> None:
        self._server = server
        self._rota, self._database = Meter(system.pids), Meter([server.pid])
        self._counted = counters(server)

    def counted(self) -> dict[str, int]:
        """What the server counted since then."""
        return {name: value - self._counted[name] for name, value in counters(self._server, but_its_own=True).items()}

    def shares(self, seconds: float) -> dict[str, float]:
        """CPU time as a part of so many seconds."""
        return {
            "Rota CPU % of a core": self._rota.seconds() / seconds * 100,
            "database CPU % of a core": self._database.seconds() / seconds * 100,
        }

    def figures(self, instances: int) -> dict[str, float]:
        """CPU seconds per 1,000 instances, statements for each, deadlocks, and what was rolled back to be retried."""
        counted = self.counted()
        return {
            "Rota CPU s per 1,000": self._rota.seconds() / instances * 1000,
            "database CPU s per 1,000": self._database.seconds() / instances * 1000,
            "statements per instance": counted["Questions"] / instances,
            "deadlocks": counted["Innodb_deadlocks"],
            "rolled back": counted["Com_rollback"],
        }


def counters(server: PrivateMariaDB, *, but_its_own: bool = False) -> dict[str, int]:
    """What the server counted since it started; this question is counted, too, unless ``but_its_own``."""
    names = ", ".join(f"'{name}'" for name in COUNTERS)
    with closing(connect(server.admin_url())) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")
        counted = {str(name): int(value) for name, value in cursor.fetchall()}
        if but_its_own:
            cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
            ((_, own),) = cursor.fetchall()
            counted["Questions"] -= int(own) - 1
        return counted
