"""Different: a herd and a drain of tasks that differ in everything, 1 scheduler and 2 workers, default settings.

The herd of equal tasks, of one node each, is what the herd compares with. Each node of each task must run exactly once.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.different import KINDS, ZONES, DifferentTask, task
from benchmarks.evidence import check
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, epoch, fresh_system, in_seconds, now, sleep_until
from benchmarks.workloads.drain import Herd, timed
from benchmarks.workloads.herd import DEADLINE, last_end
from benchmarks.workloads.punctuality import AHEAD_SECONDS, punctuality

NOTE = (
    f"Each task has a cron expression and a param of its own; {len(ZONES)} time zones; {len(KINDS)} task types of one"
    " to three nodes, one type in four on threads; all overlap policies, retries, timeouts, priorities; one task in ten"
    " may run at most once. Lateness is that of the first nodes."
)


def cases(scale: Scale) -> list[Case]:
    """A herd and a drain for each size."""
    return [
        Case("different", "rota", f"{name} of {count:,}", scale.rounds, partial(run, count=count), NOTE)
        for count in scale.different
        for name, run in (("herd", herd), ("drain", drain))
    ]


def herd(lab: Lab, count: int) -> Outcome:
    """One herd: all are due at one second, and materialized up to 5 s ahead."""
    with fresh_system(lab) as rota:
        rota.start()
        due = in_seconds(AHEAD_SECONDS)
        tasks = [task(number, due) for number in range(count)]
        rota.add_planned([one.columns for one in tasks])
        sleep_until(due)
        expected = keys(tasks, due)
        rota.wait_drained(len(expected), DEADLINE)
        starts = rota.records.starts()
        check(starts, expected)
        all_succeeded(rota, count)
        firsts = [start for start in starts if start.key.endswith("/N1")]
        figures = {"started within s": firsts[-1].entered - epoch(due), "done after s": last_end(rota) - epoch(due)}
        return punctuality(firsts, {key for key in expected if key.endswith("/N1")}, figures)


def drain(lab: Lab, count: int) -> Outcome:
    """One drain: all are due now."""
    with fresh_system(lab) as rota:
        rota.start()
        due = now().replace(microsecond=0)
        tasks = [task(number, due) for number in range(count)]
        add = partial(rota.add_planned, [one.columns for one in tasks])
        return timed(rota, lab.mariadb, Herd(due, count, keys(tasks, due), "d"), add)


def keys(tasks: Iterable[DifferentTask], due: datetime) -> list[str]:
    """What the handlers of all their nodes write down."""
    return [f"{key_of(one.name, epoch(due))}/{node}" for one in tasks for node in one.nodes]


def all_succeeded(rota: System, count: int) -> None:
    """Raises AssertionError unless there are so many instances, and all have succeeded."""
    ended = rota.sql("SELECT status, COUNT(*) FROM schedule_instance GROUP BY status")
    assert ended == [("succeed", count)], ended
