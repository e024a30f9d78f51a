"""The samples of a run, a line of JSON each, so that a run that was interrupted goes on where it stood."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.cases import Case


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run of one case found; ``error`` where it failed, then its figures count for nothing."""

    workload: str
    subject: str
    variant: str
    round: int
    figures: dict[str, float]
    curve: list[float] = field(default_factory=list)
    error: str | None = None
    note: str = ""
    seconds: float = 0.0
    """How long it took, with all that was set up for it."""

    stolen: float | None = None
    """The share of this machine's CPU time that its host gave to others during the run. None: not known."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The case it is of."""
        return (self.workload, self.subject, self.variant)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    low: float
    high: float
    count: int


class Samples:
    """A file of samples.

    samples = Samples(Path("results.jsonl"))
    samples.add(sample); samples.spread(("drain", "rota", ""), "instances/s")
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.all: list[Sample] = []
        if path.exists():
            self.all = [Sample(**json.loads(line)) for line in path.read_text().splitlines()]

    def add(self, sample: Sample) -> None:
        """Append one, at once."""
        self.all.append(sample)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(sample)) + "\n")

    def has(self, case: Case, number: int) -> bool:
        """Whether this round of the case ran already, and well."""
        return any(s.key == case.key and s.round == number and s.error is None for s in self.all)

    def of(self, key: tuple[str, str, str]) -> list[Sample]:
        """The good samples of a case."""
        return [sample for sample in self.all if sample.key == key and sample.error is None]

    def spread(self, key: tuple[str, str, str], figure: str) -> Spread | None:
        """Median and range of one figure of a case; None where no sample has it."""
        return spread(sample.figures[figure] for sample in self.of(key) if figure in sample.figures)


def spread(values: Iterable[float]) -> Spread | None:
    """Median and range of some values; None of none."""
    ordered = sorted(values)
    return Spread(median(ordered), ordered[0], ordered[-1], len(ordered)) if ordered else None
