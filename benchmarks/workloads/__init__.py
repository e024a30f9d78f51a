"""The workloads, a module each: ``cases(scale)`` says what of it is to be run."""

from benchmarks import peers
from benchmarks.cases import Case, Scale
from benchmarks.workloads import (
    backlog,
    ceiling,
    different,
    distance,
    drain,
    edit,
    fleet,
    flood,
    herd,
    history,
    pipeline,
    processes,
    recovery,
    registry,
    run_now,
    steady,
    tuning,
)

ALL = (
    ceiling,
    drain,
    backlog,
    herd,
    different,
    steady,
    distance,
    registry,
    edit,
    flood,
    history,
    fleet,
    run_now,
    recovery,
    pipeline,
    processes,
    tuning,
)


def cases(scale: Scale) -> list[Case]:
    """Every case of a benchmark of this size, in the order of a round: the peers of each workload right after Rota, as
    a machine may be slower an hour later."""
    found = [*(case for workload in ALL for case in workload.cases(scale)), *peers.cases(scale)]
    order = list(dict.fromkeys(case.workload for case in found))
    return sorted(found, key=lambda case: order.index(case.workload))
