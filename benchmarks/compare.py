"""Two commits side by side: the same workload in two checkouts, in turn, so that a machine that drifts drifts for both.

Each checkout runs its own benchmark with its own Rota. What is told is the ratio of the two figures of a pair: its
median over the pairs, and the interval in which that median lies with a chance of 95 % (bootstrap over the pairs).
"""

import json
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

COMPARED = {
    "drain": ("drain:rota:", "instances/s"),
    "herd": ("herd:rota:10,000", "started within s"),
    "steady": ("steady:rota:200/s", "p50"),
    "steady p99": ("steady:rota:200/s", "p99"),
    "run-now": ("run_now:rota:", "p50"),
    "different": ("different:rota:herd of 10,000", "done after s"),
    "different drain": ("different:rota:drain of 10,000", "instances/s"),
    "pipeline": ("pipeline:rota:async, 1 KB", "instances/s"),
    "history": ("history:rota:300,000", "instances/s"),
}
"""What may be compared: the case, and its figure. Of instances/s more is better, of the others less."""

RESAMPLES = 10_000
SEED = 1
RUN_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Pair:
    """The figures of one case in one round, here and in the other checkout."""

    case: str
    number: int
    here: dict[str, float]
    other: dict[str, float]


def compared(here: Path, other: Path, chosen: Sequence[str], pairs: int, results: Path) -> Iterator[str]:
    """Run the pairs that the results file does not have yet; a line after each, and the ratios in the end.

    Raises RuntimeError when a run fails: its checkout's words are in the text.
    """
    done = [Pair(**json.loads(line)) for line in results.read_text().splitlines()] if results.exists() else []
    cases = list(dict.fromkeys(COMPARED[name][0] for name in chosen))
    for number in range(pairs):
        for case in cases:
            if any(pair.case == case and pair.number == number for pair in done):
                continue
            order = [here, other] if number % 2 == 0 else [other, here]
            figures = {checkout: _run(checkout, case) for checkout in order}
            pair = Pair(case, number, figures[here], figures[other])
            done.append(pair)
            with results.open("a") as file:
                file.write(json.dumps(asdict(pair)) + "\n")
            yield f"pair {number + 1} of {case}: {_shown(pair, chosen)}"
    for name in chosen:
        case, figure = COMPARED[name]
        yield said(name, [pair.here[figure] / pair.other[figure] for pair in done if pair.case == case])


def said(name: str, ratios: Sequence[float]) -> str:
    """The median of some ratios and its 95 % interval.

    said("drain", [1.0, 1.02, 0.98])   # "drain: 1.000 [0.980 to 1.020] of the other's, 3 pairs (seed 1)"
    """
    low, high = interval(ratios)
    return f"{name}: {median(ratios):.3f} [{low:.3f} to {high:.3f}] of the other's, {len(ratios)} pairs (seed {SEED})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with a chance of 95 %, by drawing the values anew (Efron's percentile bootstrap, 1979)."""
    chance = random.Random(SEED)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975) - 1]


def _run(checkout: Path, case: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rota-compare-") as folder:
        results = Path(folder) / "results.jsonl"
        ended = subprocess.run(
            [
                *(checkout / ".venv" / "bin" / "python", "-m", "benchmarks", "run", "--scale", "pairs"),
                *("--only", case, "--rounds", "1", "--results", results),
            ],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        if ended.returncode != 0:
            raise RuntimeError(f"{case} failed in {checkout}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        figures: dict[str, float] = json.loads(results.read_text().splitlines()[0])["figures"]
        return figures


def _shown(pair: Pair, chosen: Sequence[str]) -> str:
    figures = [COMPARED[name][1] for name in chosen if COMPARED[name][0] == pair.case]
    return ", ".join(f"{figure} {pair.here[figure]:,.4g} here, {pair.other[figure]:,.4g} there" for figure in figures)
