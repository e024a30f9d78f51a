"""The samples as tables: a row for each case, a column for each figure; Rota first, then the ceiling and the peers."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.samples import Sample, Samples, Spread, spread

Key = tuple[str, str, str]

ROTA, CEILING = "rota", "database"
CEILING_KEY: Key = ("ceiling", CEILING, "")
CEILING_SECTION = "drain"

SECTIONS = (
    "drain",
    "backlog",
    "herd",
    "different",
    "steady",
    "distance",
    "registry",
    "edit",
    "flood",
    "history",
    "fleet",
    "run_now",
    "recovery",
    "pipeline",
    "processes",
    "tuning",
)
"""The order of the report; workloads that it does not name come last."""

OF_THE_CEILING = "of the ceiling"
DASH = "–"  # noqa: RUF001 - for "none" and "to"


@dataclass(frozen=True, slots=True)
class Row:
    """One case: a spread, or None, for each of the table's figures."""

    key: Key
    cells: tuple[Spread | None, ...]
    good: int
    failed: int
    note: str

    @property
    def runs(self) -> str:
        """How many of its runs count, and how many do not."""
        return f"{self.good}, {self.failed} failed" if self.failed else str(self.good)


@dataclass(frozen=True, slots=True)
class Table:
    """One workload; a ceiling stands beside what it is the ceiling of."""

    workload: str
    figures: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def has_variants(self) -> bool:
        """Whether its rows differ by more than their subject."""
        return any(row.key[2] for row in self.rows)


def tables(samples: Samples) -> list[Table]:
    """All workloads that have samples, failed ones included."""
    present = dict.fromkeys(_section(sample.workload) for sample in samples.all)
    ordered = [name for name in SECTIONS if name in present] + [name for name in present if name not in SECTIONS]
    return [_table(samples, name) for name in ordered]


def _section(workload: str) -> str:
    return CEILING_SECTION if workload == CEILING_KEY[0] else workload


def ceiling_of(key: Key) -> Key | None:
    """The case of the bare writes that a case compares with: pipelines have one for each size of a result."""
    workload, _, variant = key
    if workload == "pipeline":
        return (workload, CEILING, variant.rpartition(", ")[2])
    return CEILING_KEY if _section(workload) == CEILING_SECTION else None


def _table(samples: Samples, workload: str) -> Table:
    of_it = [sample for sample in samples.all if _section(sample.workload) == workload]
    keys = in_order(sample.key for sample in of_it)
    figures = list(dict.fromkeys(name for key in keys for sample in samples.of(key) for name in sample.figures))
    if any(samples.of(key) for key in {ceiling_of(key) for key in keys} if key is not None):
        figures.insert(1, OF_THE_CEILING)
    return Table(workload, tuple(figures), tuple(_row(samples, key, figures) for key in keys))


def _row(samples: Samples, key: Key, figures: Iterable[str]) -> Row:
    runs = [sample for sample in samples.all if sample.key == key]
    return Row(
        key,
        tuple(_spread(samples, key, name) for name in figures),
        good=len(samples.of(key)),
        failed=sum(sample.error is not None for sample in runs),
        note=runs[-1].note,
    )


def _spread(samples: Samples, key: Key, figure: str) -> Spread | None:
    if figure == OF_THE_CEILING:
        to = ceiling_of(key)
        return None if to is None or key == to else spread(ratios(samples, key, to, "instances/s"))
    return samples.spread(key, figure)


def rounds(samples: Samples, key: Key, figure: str) -> dict[int, float]:
    """A figure of a case by round."""
    return {sample.round: sample.figures[figure] for sample in samples.of(key) if figure in sample.figures}


def ratios(samples: Samples, key: Key, to: Key, figure: str) -> list[float]:
    """The ratio of a figure of two cases, round by round: a disturbance of a round affects both."""
    ours, theirs = rounds(samples, key, figure), rounds(samples, to, figure)
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys()) if theirs[number]]


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Each key once, by variant and then by subject. Variants that differ only in a number stand together."""
    different = list(dict.fromkeys(keys))
    kinds = list(dict.fromkeys(_kind(variant) for _, _, variant in different))
    subjects = list(dict.fromkeys((ROTA, CEILING, *(subject for _, subject, _ in different))))
    return sorted(different, key=lambda key: (kinds.index(_kind(key[2])), numbers(key[2]), subjects.index(key[1])))


def numbers(variant: str) -> list[float]:
    """The numbers in a variant's name: [10000.0] of "10,000"."""
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", variant)]


def _kind(variant: str) -> str:
    return re.sub(r"\d[\d,]*(?:\.\d+)?", "", variant).strip().rstrip("s")


def subject_name(subject: str) -> str:
    """A subject in the report's words."""
    if subject == CEILING:
        return "ceiling"
    return f"R{subject[1:]}" if subject.startswith(ROTA) else subject


def number(value: float) -> str:
    """At most three digits that mean something, but whole thousands: 0.00123, 1.23, 12.3, 12,345."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = f"{float(f'{value:.3g}'):f}"  # without an exponent
    return digits.rstrip("0").rstrip(".")


def shown(cell: Spread | None, *, count: bool = False) -> str:
    """Median and range, and how many values where that is asked for."""
    if cell is None:
        return DASH
    text = number(cell.median)
    if number(cell.low) != number(cell.high):
        text += f" [{number(cell.low)}{DASH}{number(cell.high)}]"
    return f"{text} (n={cell.count})" if count else text


def failures(samples: Samples) -> list[Sample]:
    """All samples that failed."""
    return [sample for sample in samples.all if sample.error is not None]


def was_repeated(samples: Samples, failed: Sample) -> bool:
    """Whether the same round of the same case went well when it ran again."""
    return any(sample.round == failed.round for sample in samples.of(failed.key))


def brief(error: str | None, most: int = 400) -> str:
    """An error in one line."""
    text = " ".join((error or "").split())
    return text if len(text) <= most else f"{text[:most]} …"


def show(samples: Samples, chosen: Collection[Key]) -> None:
    """Print the figures of these cases to the terminal."""
    table = RichTable(title="median, and the range in brackets")
    for column in ("workload", "subject", "variant", "runs", "figures"):
        table.add_column(column, overflow="fold")
    for one in tables(samples):
        for row in one.rows:
            if row.key in chosen:
                said = [f"{name} {shown(cell)}" for name, cell in zip(one.figures, row.cells, strict=True) if cell]
                said += [f"failed: {brief(bad.error)}" for bad in failures(samples) if bad.key == row.key]
                workload, subject, variant = row.key
                cells = (workload, subject_name(subject), variant, row.runs, "\n".join(said))
                table.add_row(*map(Text, cells), end_section=True)  # as Text: an error's brackets are no markup
    Console().print(table)
