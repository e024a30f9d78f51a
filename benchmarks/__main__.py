"""``python -m benchmarks``: run the cases, round after round, and write the report."""

import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from benchmarks import facts, workloads
from benchmarks.cases import SCALES, Case, Outcome
from benchmarks.compare import COMPARED, compared
from benchmarks.cpu import Steal
from benchmarks.lab import Lab
from benchmarks.report import write
from benchmarks.samples import Sample, Samples
from benchmarks.tables import show

CACHE = Path(".bench")
RESULTS = CACHE / "results.jsonl"
QUICK_RESULTS = CACHE / "quick.jsonl"


@click.group()
def main() -> None:
    """What Rota, its peers and the bare database do with the same work, on this machine, in one run."""
    logging.basicConfig(level=logging.WARNING)


@main.command()
@click.option(
    "--scale",
    "size",
    type=click.Choice(list(SCALES)),
    default="full",
    show_default=True,
    help="quick: a look in under 3 minutes, without peers, which always starts anew; pairs: what compare runs.",
)
@click.option(
    "--only",
    "chosen",
    multiple=True,
    help="Only a workload, workload:subject or workload:subject:variant; may be repeated.",
)
@click.option("--results", type=click.Path(path_type=Path), help=f"Default: {RESULTS}, or {QUICK_RESULTS}.")
@click.option("--rounds", type=int, help="Rounds for every case, instead of its own.")
def run(*, size: str, chosen: tuple[str, ...], results: Path | None, rounds: int | None) -> None:
    """Run what is not in the results file yet; interrupted, the same command goes on."""
    scale, quick = SCALES[size], size == "quick"
    every = workloads.cases(scale)
    if unknown := [one for one in chosen if not any(_is_chosen(case, [one]) for case in every)]:
        raise click.UsageError(f"this benchmark has no {', '.join(unknown)}")
    cases = [case for case in every if not chosen or _is_chosen(case, chosen)]
    if quick and results is None:
        for old in (QUICK_RESULTS, facts.beside(QUICK_RESULTS)):
            old.unlink(missing_ok=True)
    results = results or (QUICK_RESULTS if quick else RESULTS)
    results.parent.mkdir(parents=True, exist_ok=True)
    samples = Samples(results)
    wanted = [
        (number, case)
        for number in range(rounds or max(case.rounds for case in cases))
        for case in cases
        if number < (rounds or case.rounds) and not samples.has(case, number)
    ]
    if not wanted:
        click.echo(f"{results} has all of it already; rm {results.with_suffix('.*')} begins anew")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the facts are written
    began, before = datetime.now(UTC), facts.commit()
    try:
        failed = _run_all(wanted, samples)
    finally:
        if wanted:
            ran = scale if rounds is None else replace(scale, rounds=rounds, peer_rounds=rounds)
            facts.append(facts.beside(results), facts.gather(began, before, ran, CACHE))
    show(samples, {case.key for case in cases})
    sys.exit(1 if failed else 0)


@main.command()
@click.option("--results", default=RESULTS, type=click.Path(path_type=Path, exists=True), show_default=True)
@click.option("--out", default=Path("docs"), type=click.Path(path_type=Path, file_okay=False), show_default=True)
def report(*, results: Path, out: Path) -> None:
    """Write benchmarks.md and its plots from the samples of a run; needs the extra "bench"."""
    try:
        click.echo(write(results, out))
    except ModuleNotFoundError as error:
        raise click.ClickException(f'{error}: the plots need the extra "bench", pip install -e .[bench]') from None


@main.command()
@click.argument("other", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--pairs", type=click.IntRange(2), default=12, show_default=True, help="Pairs of each workload.")
@click.option("--only", "chosen", multiple=True, type=click.Choice(list(COMPARED)), help="Only this; may be repeated.")
@click.option("--results", type=click.Path(path_type=Path), default=CACHE / "pairs.jsonl", show_default=True)
def compare(*, other: Path, pairs: int, chosen: tuple[str, ...], results: Path) -> None:
    """Run workloads here and in another checkout of Rota, in turn, and say the median ratio of the pairs.

    OTHER has its own .venv (make bench-quick makes it). A pair that was interrupted is run anew; those before it stay.
    """
    results.parent.mkdir(parents=True, exist_ok=True)
    for line in compared(Path.cwd(), other.resolve(), chosen or tuple(COMPARED), pairs, results):
        click.echo(line)


def _run_all(wanted: Sequence[tuple[int, Case]], samples: Samples) -> int:
    """Run and keep these, and return how many failed."""
    failed = 0
    with Lab(CACHE) as lab:
        for at, (number, case) in enumerate(wanted, start=1):
            sample = _run(lab, case, number)
            samples.add(sample)
            failed += sample.error is not None
            said = sample.error or ", ".join(f"{name} {value:,.4g}" for name, value in sample.figures.items())
            click.echo(f"[{at}/{len(wanted)}] round {number + 1} {case} ({sample.seconds:.0f} s): {said}")
    return failed


def _run(lab: Lab, case: Case, number: int) -> Sample:
    began, steal, error = time.monotonic(), Steal(), None
    try:
        outcome = case.run(lab)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # noqa: BLE001 - a failed run is a sample, too; what fails may be a test's helper
        outcome, error = Outcome({}), f"{type(raised).__name__}: {raised}"[:2000]
    seconds = time.monotonic() - began
    return Sample(
        *case.key, number, outcome.figures, outcome.curve, error, case.note, seconds=seconds, stolen=steal.share()
    )


def _is_chosen(case: Case, chosen: Sequence[str]) -> bool:
    return any((parts := one.split(":", 2)) == list(case.key[: len(parts)]) for one in chosen)


if __name__ == "__main__":
    main()
