"""Processes: nodes with ``execution="process"``: how many in a second where they are reused, how late the first is."""

from datetime import timedelta
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.cpu import Meter
from benchmarks.evidence import check
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, epoch, fresh_system, in_seconds, sleep_until
from benchmarks.workloads.drain import drained
from benchmarks.workloads.punctuality import AHEAD_SECONDS
from tests.harness.processes import wait_until

DEADLINE = 60.0
CAPACITY = 4
SETTINGS = {"ROTA_CAPACITY": str(CAPACITY)}
"""By default each worker would start 50 processes."""

WARMING = 20 * CAPACITY
"""So many run before: then each worker has all its processes."""

COSTS = ("Rota CPU s per 1,000", "database CPU s per 1,000")
APART_SECONDS = 2
AT_REST_SECONDS = 0.2
KIND = "BENCH_PROCESS"
PREFIXES = ("first", "second")


def cases(scale: Scale) -> list[Case]:
    """How many in a second, and how late the first is."""
    return [
        Case(
            "processes",
            "rota",
            "reused",
            scale.rounds,
            partial(reused, count=scale.processed),
            f"{scale.processed:,} instances of one node. 1 scheduler, 2 workers, ROTA_CAPACITY={CAPACITY}.",
        ),
        Case(
            "processes",
            "rota",
            "first",
            scale.rounds,
            partial(first, starts=scale.started),
            f"{scale.started} workers, one after the other: a fire in a new process, and one {APART_SECONDS} s later.",
        ),
    ]


def reused(lab: Lab, count: int) -> Outcome:
    """One drain by children that have run before; the rate is that of the handlers' entries, from first to last."""
    with fresh_system(lab) as rota:
        rota.add_tasks(WARMING, kind=KIND, prefix="warm")
        rota.add_tasks(count, kind=KIND)
        rota.start(settings=SETTINGS)
        drained(rota, lab.mariadb, WARMING, prefix="warm")
        figures = drained(rota, lab.mariadb, count).figures
        entered = [start.entered for start in rota.records.starts() if start.key.startswith("t")]
    rate = (count - 1) / (entered[-1] - entered[0])
    return Outcome({"nodes/s": rate} | {name: figures[name] for name in COSTS})


def first(lab: Lab, starts: int) -> Outcome:
    """The lateness of the first and the second process node of so many workers, and what the first costs."""
    firsts, seconds, costs = [], [], []
    for _ in range(starts):
        with fresh_system(lab) as rota:
            late, again, cost = _two(rota, lab)
        firsts.append(late)
        seconds.append(again)
        costs.append(cost)
    ordered = sorted(firsts)
    return Outcome(
        {
            "first ms": ordered[len(ordered) // 2],
            "first max ms": ordered[-1],
            "second ms": sorted(seconds)[len(seconds) // 2],
            "CPU ms of the first": sorted(costs)[len(costs) // 2],
        }
    )


def _two(rota: System, lab: Lab) -> tuple[float, float, float]:
    """Two fires: how late each is in ms, and the worker's processor time for the first in ms."""
    rota.add_tasks(1)
    for prefix in PREFIXES:
        rota.add_tasks(1, kind=KIND, prefix=prefix)
    rota.start(workers=1, settings=SETTINGS)
    drained(rota, lab.mariadb, 1)
    due = in_seconds(AHEAD_SECONDS)
    fires = dict(zip(PREFIXES, (due, due + timedelta(seconds=APART_SECONDS)), strict=True))
    for prefix, moment in fires.items():
        rota.fire_all(moment, prefix)
    sleep_until(due - timedelta(seconds=AT_REST_SECONDS))
    meter = Meter([rota.workers[0].pid])
    wait_until(lambda: rota.records.count() > 1, DEADLINE, "the first fire")
    cost = meter.seconds() * 1000
    rota.wait_drained(3, DEADLINE)
    early, late = found = [start for start in rota.records.starts() if not start.key.startswith("t")]
    check(found, {key_of(f"{prefix}0", epoch(moment)) for prefix, moment in fires.items()})
    return early.late * 1000, late.late * 1000, cost
