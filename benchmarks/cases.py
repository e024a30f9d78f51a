"""What a benchmark is made of: a case is one subject doing one variant of one workload, run again in every round."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.lab import Lab


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a case found: named figures, and the lateness distribution where there is one (ms, quantiles)."""

    figures: dict[str, float]
    curve: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Case:
    """One subject (``rota``, ``ceiling`` or a peer) doing one variant of a workload; ``rounds`` times in a whole run.

    Case("herd", "rota", "10,000", rounds=5, run=lambda lab: herd(lab, 10_000))
    """

    workload: str
    subject: str
    variant: str
    rounds: int
    run: Callable[["Lab"], Outcome]
    note: str = ""
    """What a reader must know about it: a setting, or what the peer cannot do."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others."""
        return (self.workload, self.subject, self.variant)

    def __str__(self) -> str:
        return " ".join(part for part in self.key if part)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: the whole benchmark, or a quick look at it."""

    rounds: int = 5
    """Of the ceiling, and of what Rota does."""

    peer_rounds: int = 3

    drain: int = 50_000
    serial: int = 5_000
    """Runs of a task that runs one at a time."""

    herds: tuple[int, ...] = (1_000, 10_000)
    different: tuple[int, ...] = (10_000,)
    """Tasks that differ in everything."""

    rates: tuple[int, ...] = (50, 200, 1_000)
    seconds: int = 60
    registered: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    edited: tuple[int, ...] = (300_000,)
    flood: int = 100_000
    """Instances of one group, while another group fires."""

    finished: tuple[int, ...] = (0, 1_000_000, 10_000_000)
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    schedulers: tuple[int, ...] = (1, 2, 4)
    asked: int = 40
    """Instances asked for by hand."""

    idle_seconds: int = 15
    piped: float = 1.0
    """The part of the pipelines' instances that is run."""

    results: tuple[str, ...] = ("1 KB", "100 KB")
    processed: int = 20_000
    """Instances by processes."""

    started: int = 5
    """Workers whose first process node is measured."""

    distances: tuple[int, ...] = (10, 100, 200)
    """Round trips to the database, in milliseconds."""

    recovery: bool = True


FULL = Scale()
QUICK = Scale(
    rounds=1,
    peer_rounds=1,
    drain=10_000,
    herds=(1_000,),
    different=(1_000,),
    rates=(200,),
    seconds=10,
    registered=(100_000,),
    edited=(),
    flood=0,
    finished=(),
    workers=(4,),
    schedulers=(),
    asked=6,
    idle_seconds=5,
    piped=0.1,
    results=("1 KB",),
    processed=500,
    started=1,
    distances=(),
    recovery=False,
)
PAIRS = replace(
    QUICK,
    drain=50_000,
    herds=(10_000,),
    different=(10_000,),
    seconds=20,
    asked=12,
    edited=(100_000,),
    flood=100_000,
    finished=(300_000,),
    piped=1.0,
    distances=(100,),
)
"""For ``compare``: as much as tells two commits apart in a few minutes each. ``--only`` chooses workloads."""

SCALES = {"full": FULL, "quick": QUICK, "pairs": PAIRS}
