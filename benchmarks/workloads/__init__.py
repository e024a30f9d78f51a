"""The workloads, a module each: ``cases(scale)`` says what of it is to be run."""

from benchmarks import peers
from benchmarks.cases import Case, Scale
from benchmarks.workloads import (
    ceiling,
    drain,
    fleet,
    herd,
    history,
    pipeline,
    recovery,
    registry,
    run_now,
    steady,
    tuning,
)

ALL = (ceiling, drain, herd, steady, registry, history, fleet, run_now, recovery, pipeline, tuning)


def cases(scale: Scale) -> list[Case]:
    """Every case of a benchmark of this size, in the order of a round."""
    return [*(case for workload in ALL for case in workload.cases(scale)), *peers.cases(scale)]
