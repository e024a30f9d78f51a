"""Pipeline: five nodes per instance by each executor, with small and large results; a drain, 1 scheduler, 2 workers.

The ceiling is the bare writes of as many such lives, as for the drain.
"""

from functools import partial

from benchmarks.cases import Case, Outcome, Scale
from benchmarks.lab import Lab
from benchmarks.rota_app import PIPE_NODES, PIPES
from benchmarks.system import fresh_system
from benchmarks.workloads.ceiling import ceiling
from benchmarks.workloads.drain import drained
from rota.worker_service.signatures import Execution

SIZES = {"1 KB": 1_000, "100 KB": 100_000}
COUNTS: dict[tuple[Execution, str], int] = {
    ("async", "1 KB"): 10_000,
    ("async", "100 KB"): 200,
    ("thread", "1 KB"): 10_000,
    ("thread", "100 KB"): 200,
    ("process", "1 KB"): 150,
    ("process", "100 KB"): 100,
}

SETTINGS: dict[Execution, dict[str, str]] = {"process": {"ROTA_CAPACITY": "4"}}
"""By default each worker would start 50 processes."""


def cases(scale: Scale) -> list[Case]:
    """A ceiling for each size, and a case for each executor and size."""
    ceilings = [
        Case(
            "pipeline",
            "database",
            size,
            scale.rounds,
            partial(
                ceiling,
                count=int(COUNTS["async", size] * scale.piped),
                nodes=len(PIPE_NODES),
                result="x" * SIZES[size],
            ),
        )
        for size in scale.results
    ]
    return ceilings + [
        Case(
            "pipeline",
            "rota",
            f"{execution}, {size}",
            scale.rounds,
            partial(pipeline, execution=execution, size=SIZES[size], count=int(count * scale.piped)),
            f"{int(count * scale.piped):,} instances of {len(PIPE_NODES)} nodes, each with such a result."
            + "".join(f" {name}={value}." for name, value in SETTINGS.get(execution, {}).items()),
        )
        for (execution, size), count in COUNTS.items()
        if size in scale.results
    ]


def pipeline(lab: Lab, execution: Execution, size: int, count: int) -> Outcome:
    """One drain; every node exactly once."""
    with fresh_system(lab) as rota:
        rota.add_tasks(count, kind=PIPES[execution], param={"bytes": size})
        rota.start(settings=SETTINGS.get(execution))
        return drained(rota, lab.mariadb, count, nodes=PIPE_NODES)
