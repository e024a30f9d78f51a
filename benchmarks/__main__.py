"""``python -m benchmarks``: run the cases, round after round, and write the report."""

import logging
import sys
import time
from pathlib import Path

import click

from benchmarks import workloads
from benchmarks.cases import FULL, QUICK, Case
from benchmarks.lab import Lab
from benchmarks.samples import Sample, Samples

CACHE = Path(".bench")


@click.group()
def main() -> None:
    """What Rota, its peers and the bare database do with the same work, on this machine, in one run."""
    logging.basicConfig(level=logging.WARNING)


@main.command()
@click.option("--quick", is_flag=True, help="A look in under 3 minutes, without peers.")
@click.option("--only", "chosen", multiple=True, help="Only these workloads, or workload:subject; may be repeated.")
@click.option("--results", default=CACHE / "results.jsonl", type=click.Path(path_type=Path), show_default=True)
@click.option("--rounds", type=int, help="Rounds for every case, instead of its own.")
def run(*, quick: bool, chosen: tuple[str, ...], results: Path, rounds: int | None) -> None:
    """Run what is not in the results file yet; interrupted, the same command goes on."""
    cases = [case for case in workloads.cases(QUICK if quick else FULL) if _is_chosen(case, chosen)]
    if not cases:
        raise click.UsageError(f"no such workload: {', '.join(chosen)}")
    results.parent.mkdir(parents=True, exist_ok=True)
    samples = Samples(results)
    wanted = [
        (number, case)
        for number in range(rounds or max(case.rounds for case in cases))
        for case in cases
        if number < (rounds or case.rounds) and not samples.has(case, number)
    ]
    failed = 0
    with Lab(CACHE) as lab:
        for at, (number, case) in enumerate(wanted, start=1):
            began = time.monotonic()
            sample = _run(lab, case, number)
            samples.add(sample)
            failed += sample.error is not None
            said = sample.error or ", ".join(f"{name} {value:,.4g}" for name, value in sample.figures.items())
            click.echo(f"[{at}/{len(wanted)}] round {number + 1} {case} ({time.monotonic() - began:.0f} s): {said}")
    sys.exit(1 if failed else 0)


def _run(lab: Lab, case: Case, number: int) -> Sample:
    try:
        outcome = case.run(lab)
    except BaseException as error:  # a failed run is a sample, too, but an interrupt ends the whole
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return Sample(*case.key, number, {}, error=f"{type(error).__name__}: {error}"[:2000], note=case.note)
    return Sample(*case.key, number, outcome.figures, outcome.curve, note=case.note)


def _is_chosen(case: Case, chosen: tuple[str, ...]) -> bool:
    return not chosen or case.workload in chosen or f"{case.workload}:{case.subject}" in chosen


if __name__ == "__main__":
    main()
