"""What the handlers wrote down, and whether it is right: each fire once, none missing, none before it was due."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

QUANTILES = 400
"""How many points of a lateness distribution are kept for its plot."""


PIECE = 256 * 1024


class WrongRun(Exception):
    """A run whose figures count for nothing: something was missing, ran twice, or started early."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a handler; times in seconds since the epoch."""

    key: str
    due: float
    entered: float

    @property
    def late(self) -> float:
        """How long after it was due it started, in seconds."""
        return self.entered - self.due


class Records:
    """The folder of one run that the handlers write to.

    records = Records(folder); environment = {record.FOLDER: str(records.folder)}
    starts = records.starts()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counted: dict[Path, tuple[int, int]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def count(self) -> int:
        """How many starts there are so far."""
        for path in self.folder.iterdir():
            lines, at = self._counted.get(path, (0, 0))
            text = _written(path, at)
            self._counted[path] = (lines + text.count(b"\n"), at + len(text))
        return sum(lines for lines, _ in self._counted.values())

    def starts(self) -> list[Start]:
        """All starts, by time."""
        found = []
        for path in self.folder.iterdir():
            for line in _written(path).decode().splitlines():
                key, due, entered = line.rsplit(" ", 2)
                found.append(Start(key, float(due), float(entered)))
        return sorted(found, key=lambda start: start.entered)


def _written(path: Path, at: int = 0) -> bytes:
    """What a process has written from there on; the rest of its file is zeros. Whole lines only."""
    text = b""
    with path.open("rb") as file:
        file.seek(at)
        while not text.endswith(b"\0") and (more := file.read(PIECE)):
            text += more
    text = text.partition(b"\0")[0]
    return text[: text.rfind(b"\n") + 1]


def faults(starts: Sequence[Start], expected: Collection[str]) -> dict[str, int]:
    """How many expected keys never started, how many started more than once, were not expected, or started early."""
    seen = Counter(start.key for start in starts)
    return {
        "missing": sum(key not in seen for key in expected),
        "double": sum(count > 1 for count in seen.values()),
        "unexpected": len(set(seen) - set(expected)),
        "early": sum(start.due > 0 and start.late < 0 for start in starts),
    }


def check(starts: Sequence[Start], expected: Collection[str]) -> None:
    """Raises WrongRun unless each expected key started exactly once and none too early."""
    found = {name: count for name, count in faults(starts, expected).items() if count}
    if found:
        raise WrongRun(f"of {len(expected):,}: " + ", ".join(f"{count:,} {name}" for name, count in found.items()))


def middle_rate(starts: Sequence[Start]) -> float:
    """Starts a second, of the middle eight tenths: without the way in and the way out."""
    tenth = len(starts) // 10
    middle = starts[tenth : len(starts) - tenth]
    return len(middle) / (middle[-1].entered - middle[0].entered)


def lateness(starts: Sequence[Start]) -> dict[str, float]:
    """Percentiles of how late the starts were, in milliseconds."""
    late = sorted(start.late * 1000 for start in starts)
    return {f"p{percent}": quantile(late, percent / 100) for percent in (50, 95, 99)} | {"max": late[-1]}


def curve(starts: Sequence[Start]) -> list[float]:
    """The lateness distribution as ``QUANTILES`` + 1 points, in milliseconds."""
    late = sorted(start.late * 1000 for start in starts)
    return [round(quantile(late, step / QUANTILES), 4) for step in range(QUANTILES + 1)]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of ``ordered`` lies (nearest rank)."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
