"""Two commits side by side: the ratios that are told follow from the pairs."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.compare import Pair, compared, interval, said

DRAIN = "drain:rota:"


def test_the_interval_holds_the_median_and_narrows_with_the_pairs() -> None:
    few, many = [0.9, 1.0, 1.1], [0.9, 1.0, 1.1] * 20
    low, high = interval(few)
    assert low <= 1.0 <= high
    closer, nearer = interval(many)
    assert low <= closer <= 1.0 <= nearer <= high
    assert nearer - closer < high - low


def test_what_is_told_is_the_same_for_the_same_pairs() -> None:
    assert said("drain", [1.0, 1.02, 0.98]) == "drain: 1.000 [0.980 to 1.020] of the other's, 3 pairs (seed 1)"


def test_the_two_take_turns_at_being_first_and_what_is_there_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other, results = tmp_path / "here", tmp_path / "other", tmp_path / "pairs.jsonl"
    results.write_text(json.dumps(asdict(Pair(DRAIN, 0, {"instances/s": 90.0}, {"instances/s": 100.0}))) + "\n")
    ran: list[Path] = []

    def run(checkout: Path, case: str) -> dict[str, float]:
        assert case == DRAIN
        ran.append(checkout)
        return {"instances/s": 110.0 if checkout == here else 100.0}

    monkeypatch.setattr(compare, "_run", run)
    lines = list(compared(here, other, ["drain"], 3, results))
    assert ran == [other, here, here, other]
    assert lines[-1].startswith("drain: 1.100 [0.900 to 1.100]")
    assert len(results.read_text().splitlines()) == 3
