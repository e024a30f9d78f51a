"""History: the drain and a steady load again, with millions of finished instances in the tables.

They are of 1,000 tasks, each with a fire every minute, up to the time of the run; one in a hundred failed; one node row
each. The database is filled once and serves all rounds, so a round also finds what those before it added.
"""

from datetime import timedelta
from functools import cache, partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.system import System, fresh_system, now, write_out, written
from benchmarks.workloads.drain import drained
from benchmarks.workloads.steady import spread
from tests.harness.databases import PrivateMariaDB

TASKS = 1_000
CHUNK = 500_000
RATE, SECONDS = 200, 20

NODES = (
    "INSERT INTO schedule_task_node (schedule_instance_id, instance_gmt_create, schedule_task_node_type_id, sequence,"
    " status, gmt_started, gmt_completed, execution_result, creator, modifier)"
    " SELECT id, gmt_create, 1, 1, status, gmt_started, gmt_completed, execution_result, 'scheduler', 'w1'"
    " FROM schedule_instance WHERE id > {before} ORDER BY id"
)
INSTANCES = (
    "INSERT INTO schedule_instance (schedule_task_id, status, schedule_datetime, due_at, run_number, origin,"
    " schedule_worker_node_id, attempt, failures, overlap_slot, gmt_assigned, gmt_started, gmt_completed, reason,"
    " execution_result, creator, modifier)"
    " SELECT {task} + seq MOD {tasks}, IF(seq MOD 101, 'succeed', 'failed'), {moment}, {moment}, 0, 'cron', 1, 1,"
    " seq MOD 101 = 0, 0, {moment}, {moment}, {moment} + INTERVAL 1000 MICROSECOND,"
    " IF(seq MOD 101, NULL, 'node BENCH_NOOP: ValueError: no'), '{{\"ok\": true}}', 'scheduler', 'w1'"
    " FROM seq_{low}_to_{high}"
)


def cases(scale: Scale) -> list[Case]:
    """A case for each size."""
    note = (
        f"The steady load is {RATE}/s for {SECONDS} s; filled once, for all rounds, on the one server that all cases"
        " share: from the second round on it has those tables beside the empty ones, too."
    )
    return [
        Case(
            "history",
            "rota",
            f"{count:,}",
            scale.rounds,
            partial(history, finished=count, drain=scale.drain),
            note,
        )
        for count in scale.finished
    ]


def history(lab: Lab, finished: int, drain: int) -> Outcome:
    """A drain, then a steady load."""
    if not finished:
        with fresh_system(lab) as rota:
            return _both(rota, lab.mariadb, drain)
    url = _filled(lab, finished)
    try:
        with lab.records() as records, System(url, records) as rota:
            return _both(rota, lab.mariadb, drain)
    except BaseException:
        _filled.cache_clear()  # what it left there must not run in the next round
        raise


def _both(rota: System, server: PrivateMariaDB, drain: int) -> Outcome:
    ((run,),) = rota.sql("SELECT COUNT(*) FROM schedule_task")  # names of its own for each round
    drained_ones, steady_ones = f"d{run}-", f"s{run}-"
    rota.add_tasks(drain, prefix=drained_ones)
    rota.add_tasks(RATE * SECONDS, prefix=steady_ones)
    rota.start()
    fast = drained(rota, server, drain, drained_ones)
    even = spread(rota, server, RATE, SECONDS, steady_ones)
    rota.stop()
    return Outcome({**fast.figures, **even.figures}, even.curve)


@cache
def _filled(lab: Lab, finished: int) -> str:
    url = lab.kept_database()
    with lab.records() as records, System(url, records) as rota:
        rota.add_tasks(TASKS, prefix="h")
        ((task, before),) = rota.sql("SELECT MIN(id), 0 FROM schedule_task")
        start = now().replace(second=0, microsecond=0) - timedelta(minutes=finished // TASKS)
        moment = f"'{written(start)}' + INTERVAL seq DIV {TASKS} MINUTE"
        for low in range(0, finished, CHUNK):
            high = min(low + CHUNK, finished) - 1
            rota.sql(INSTANCES.format(task=task, tasks=TASKS, moment=moment, low=low, high=high))
            rota.sql(NODES.format(before=before))
            ((before,),) = rota.sql("SELECT MAX(id) FROM schedule_instance")
    write_out(lab.mariadb)
    return url
