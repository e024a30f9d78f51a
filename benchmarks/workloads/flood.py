"""Flood: very many instances of one group, stored at once, while tasks of another group fire every second.

What is told is how late those fires start while the flood is worked off, and how late they are without one.
"""

import time
from datetime import timedelta
from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.evidence import WrongRun
from benchmarks.lab import Lab
from benchmarks.rota_app import key_of
from benchmarks.system import System, epoch, fresh_system, in_seconds, now, sleep_until, write_out, written
from benchmarks.workloads.punctuality import AHEAD_SECONDS, punctuality

FIRING = 50
SECONDS = 15
BEFORE_SECONDS = 1.0
"""So long before the first of those fires the flood comes."""

DEADLINE = 120.0
KINDS = {"of nothing": ("BENCH_NOOP", "NULL"), "of 0.2 s": ("BENCH_WAIT", "'{\"seconds\": 0.2}'")}
"""What the handlers of the flood do. Nothing: the machine is what is short. A wait: the slots are."""

NOTE = (
    f"{FIRING} tasks of one group fire every second for {SECONDS} s. The flood comes {BEFORE_SECONDS:g} s before the"
    " first of them. 1 scheduler, and 2 workers."
)


def cases(scale: Scale) -> list[Case]:
    """Without a flood, and beside a flood of each kind."""
    if not scale.flood:
        return []
    runs = {"alone": partial(flood, count=0, kind="of nothing")}
    runs |= {f"beside {scale.flood:,} {kind}": partial(flood, count=scale.flood, kind=kind) for kind in KINDS}
    return [Case("flood", "rota", variant, scale.rounds, run, NOTE) for variant, run in runs.items()]


def flood(lab: Lab, count: int, kind: str) -> Outcome:
    """One flood of so many instances; none at all: what the other fires do alone."""
    with fresh_system(lab) as rota:
        handler, param = KINDS[kind]
        rota.sql(
            "INSERT INTO schedule_task (name, type, param, trigger_kind, overlap_policy, task_group)"
            f" VALUES ('flood', '{handler}', {param}, 'manual', 'allow', 'flood')"
        )
        write_out(lab.mariadb)
        rota.start()
        first = in_seconds(AHEAD_SECONDS)
        fires = [first + timedelta(seconds=passed) for passed in range(SECONDS)]
        rota.add_tasks(FIRING, "* * * * * *", next_fire_at=first, ends_at=fires[-1])
        rota.sql("UPDATE schedule_task SET task_group = 'others' WHERE live_name LIKE 't%'")
        sleep_until(first - timedelta(seconds=BEFORE_SECONDS))
        if count:
            _pour(rota, count)
        sleep_until(first)
        sleep_until(fires[-1])
        left = _left(rota)
        figures = {"flood left": left, "flood runs/s": (count - left) / (epoch(now()) - epoch(first))} if count else {}
        if count and not left:
            raise WrongRun("the flood was over before the last fire of the other group was due")
        expected = {key_of(f"t{number}", epoch(fire)) for number in range(FIRING) for fire in fires}
        _wait_for(rota, expected)
        return punctuality([one for one in rota.records.starts() if one.key.startswith("t")], expected, figures)


def _pour(rota: System, count: int) -> None:
    last = now().replace(microsecond=0)
    rota.sql(
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime, due_at)"
        f" SELECT id, '{written(last)}' - INTERVAL seq SECOND, UTC_TIMESTAMP(6) FROM schedule_task"
        f" JOIN seq_1_to_{count} WHERE name = 'flood'"
    )


def _left(rota: System) -> int:
    ((left,),) = rota.sql(
        "SELECT COUNT(*) FROM schedule_instance JOIN schedule_task ON schedule_task.id = schedule_task_id"
        " WHERE name = 'flood' AND schedule_instance.status <> 'succeed'"
    )
    return int(left)


def _wait_for(rota: System, expected: set[str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while expected - {start.key for start in rota.records.starts()}:
        if time.monotonic() > deadline:
            raise WrongRun(f"the fires of the other group did not all start within {DEADLINE:g} s")
        time.sleep(0.5)
